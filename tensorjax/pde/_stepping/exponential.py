"""Exponential Runge–Kutta steps: what acts along one axis alone exactly, the rest explicitly.

With L = Σ_k L_k, each L_k on axis k, exp(t L) is a product of matrices exp(t L_k), one for every
core: no ranks grow and no system is solved. Diffusion, decay and wells along the axes, which limit
explicit steps on fine grids, have no part in the stability of a step; coupled terms have.

Source: J. Lawson, "Generalized Runge–Kutta processes for stable systems with large Lipschitz
constants", SIAM J. Numer. Anal. 4 (1967), with the classical method of order 4. Where what is left
is itself stiff and does not commute with L, the order is lower than 4.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import linalg

from tensorjax._cores.contractions import times_mode
from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TTMatrix
from tensorjax.pde._discretization.affine_operators import Coefficients
from tensorjax.pde._discretization.axis import DD, ONE, YD, Axis, D
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._stepping.outskirts import window
from tensorjax.pde._stepping.right_side import Clock, Rates
from tensorjax.pde._stepping.runge_kutta_adams_imex import Method, Step, with_estimate
from tensorjax.pde._stepping.sketched_sums import Train
from tensorjax.pde._stepping.step_rounding import CLEARED, STAGE, Trim

# Matrices differ from multiples of 1 by roundoff only, relative to their largest entry.
_ROUNDOFF = 1e-13

Matrices = list[np.ndarray]


def exponential(at: Clock, v: Cores, dt: float, trim: Trim, estimate: bool, past: Any) -> Step:
    """Advances a tensor train by one rounded step of Lawson's exponential Runge–Kutta method.

    The stages are those of v(t) in exp(−t L) v, and in the sum at the end exp(dt/2 L) of the first
    two and the third stand for their slopes, as in the classical method here. The estimate is that
    of the classical method, of order 3.
    """
    tol, box = STAGE * trim.tol, at(0.0).box
    alone = along_axes(at(0.5))
    half = [linalg.expm(dt / 2 * m) for m in alone]
    seen = None if at(0.0).window is None else _window(v, half, trim, box)
    begin, middle, end = (coupled(at(s), alone, box, seen) for s in (0.0, 0.5, 1.0))
    whole: dict[int, tuple[Cores, Train]] = {}

    def moved(cores: Cores) -> Cores:
        # Rounding leaves nothing where all terms of a sum are zero; elsewhere it leaves noise, and
        # far out that has variances and covariances that no density has.
        before = whole[id(cores)][1].cores if id(cores) in whole else cores
        out = full = [times_mode(c, m) for c, m in zip(before, half, strict=True)]
        if seen is not None:
            out = [m[:, None] * c for m, c in zip(seen, full, strict=True)]
        trim.follow(cores, out)
        whole[id(out)] = out, Train(full)
        return out

    def known(cores: Cores) -> Train:
        return Train(cores, whole=whole[id(cores)][1]) if id(cores) in whole else Train(cores)

    def stage(name: str, trains: Sequence[Cores], weights: Sequence[float], rate: Any, by: float):
        terms = [*map(known, trains), *rate]
        return trim(name, terms, [*weights, *[by] * len(rate)])

    far = moved(moved(v))
    s2 = moved(stage("s2", [v], [1.0], begin.terms(v, tol), dt / 2).cores)
    near = moved(v)
    s3 = stage("s3", [near], [1.0], middle.terms(s2, tol), dt / 2).cores
    # dt exp(dt/2 L) of the slope at s3.
    rate = middle.terms(s3, tol)
    carried = [known(moved(stage("s4 slope", [], [], rate, dt).cores))] if rate else []
    s4 = stage("s4", [far], [1.0], carried, 1.0).cores
    last = end.terms(s4, tol)
    weights = [-1 / 3, 1 / 3, 2 / 3, 1 / 3]
    out = stage("v", [far, moved(s2), moved(s3), s4], weights, last, dt / 6)
    return with_estimate(out, last, end, dt, tol) if estimate else Step(out)


EXPONENTIAL = Method(exponential, 4, 0, 3)


def along_axes(rates: Rates) -> Matrices:
    """Returns matrices L_k (n, n) along single axes, which exponential steps take exactly."""
    return _parted(rates)[0]


def wells_along_axes(right: Any) -> bool:
    """Whether some of a right side's operators with other than affine coefficients act on one axis.

    Exponential steps take these exactly, but not in coordinates that have turned.
    """
    return any(_one_axis([np.asarray(c) for c in o.cores]) is not None for o in right.others)


def _window(v: Cores, half: Matrices, trim: Trim, box: Box) -> list[np.ndarray] | None:
    """Returns masks for an exponential step, zero where v is negligible; None if nowhere.

    Where v is not negligible anywhere at the beginning, the rates come without a window.
    """
    far = [times_mode(c, m @ m) for c, m in zip(v, half, strict=True)]
    return window(v, box, CLEARED * trim.tol, right_orthogonal(far, scale=False)[0])


def coupled(rates: Rates, alone: Matrices, box: Box, seen: Any = None) -> Rates:
    """Returns the part of a right side that couples axes, explicit in an exponential step."""
    own, affine, others = _parted(rates)
    rest = [m - n for m, n in zip(own, alone, strict=True)]
    if any(np.abs(r).max() > _ROUNDOFF * np.abs(m).max() for r, m in zip(rest, own, strict=True)):
        others = [*others, _sum_along_axes(rest)]
    right = dataclasses.replace(
        rates.right, affine=affine, others=tuple(TTMatrix._unchecked(tuple(o)) for o in others)
    )
    return Rates(box, right, window=seen, part=True)


def _parted(rates: Rates) -> tuple[Matrices, Coefficients | None, list[Cores]]:
    """Splits operators for exponential steps into matrices along axes, couplings and the rest."""
    own, affine = _affine_parts(rates.affine, rates.box)
    others: list[Cores] = []
    for operator in rates.others:
        found = _one_axis(operator)
        if found is None:
            others.append(operator)
        else:
            own[found[0]] = own[found[0]] + found[1]
    return own, affine, others


def _affine_parts(given: Any, box: Box) -> tuple[Matrices, Coefficients | None]:
    """Splits an affine operator for exponential steps into matrices along axes and couplings."""
    own = [np.zeros((a.n, a.n)) for a in box.axes]
    if given is None:
        return own, None
    zero = np.zeros((box.dim, box.dim))
    m, s = (zero if x is None else np.asarray(x) for x in (given.matrix, given.diffusion))
    b = zero[0] if given.shift is None else np.asarray(given.shift)
    for k, axis in enumerate(box.axes):
        basis = axis.stable_basis
        own[k] = own[k] + m[k, k] * _scaling(axis) + b[k] * basis[D] + s[k, k] * basis[DD]
    # The constant commutes with everything.
    own[0] = own[0] + (float(given.constant) - float(np.trace(m))) * box.axes[0].basis[ONE]
    m, s = (x - np.diag(np.diag(x)) for x in (m, s))
    if not (np.any(m) or np.any(s)):
        return own, None
    return own, Coefficients(m if np.any(m) else None, None, s if np.any(s) else None)


def _scaling(axis: Axis) -> np.ndarray:
    """Builds the matrix of v ↦ ∂(y v) on an axis, without growing modes, for exponential steps.

    On periodic grids y jumps at the ends, and the split form has no modes that grow from it.
    """
    basis = axis.stable_basis
    if axis.kind not in ("fourier", "finite differences"):
        return basis[YD] + basis[ONE]
    y = axis.points[:, None]
    return (basis[D] * y.T + y * basis[D] + basis[ONE]) / 2


def _one_axis(operator: Cores) -> tuple[int, np.ndarray] | None:
    """Returns axis and matrix of an operator along one axis, for exponential steps; else None."""
    if any(c.shape[0] != 1 or c.shape[3] != 1 for c in operator):
        return None
    found, scale, matrix = None, 1.0, None
    for k, core in enumerate(operator):
        m = core[0, :, :, 0]
        factor = float(m[0, 0])
        if np.abs(m - factor * np.eye(len(m))).max() <= _ROUNDOFF * np.abs(m).max():
            scale *= factor
        elif found is None:
            found, matrix = k, m
        else:
            return None
    if matrix is None:
        found, matrix = 0, np.eye(operator[0].shape[1])
    assert found is not None
    return found, scale * matrix


def _sum_along_axes(matrices: Matrices) -> Cores:
    """Builds the TT-matrix Σ_k m_k of matrices along axes, which exponential steps take exactly."""
    out, last = [], len(matrices) - 1
    for k, m in enumerate(matrices):
        core = np.zeros((2, *m.shape, 2))
        core[0, :, :, 0] = core[1, :, :, 1] = np.eye(len(m))
        core[0, :, :, 1] = m
        out.append(
            core[
                (slice(0, 1) if k == 0 else slice(0, 2)),
                :,
                :,
                slice(1, 2) if k == last else slice(0, 2),
            ]
        )
    return out
