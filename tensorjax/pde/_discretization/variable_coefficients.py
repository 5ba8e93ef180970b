"""Variable coefficients, functions of w·y, as trains, and their derivative operators."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax._cores.contractions import absorb, einsum, times_right
from tensorjax._cores.products import hadamard_core
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TTMatrix
from tensorjax.pde._arguments import backend, floats
from tensorjax.pde._discretization.affine_operators import Coefficients, affine_states
from tensorjax.pde._discretization.axis import DD, ONE, Axis, D
from tensorjax.pde._discretization.grid import Box


def sine(box: Box, weights: Any, phase: Any, amplitude: Any = 1.0) -> Cores:
    """Builds the TT-cores of the variable coefficient a sin(w·y + φ) on a grid, of TT-rank 2.

    Before the first and after the last weight that is not zero the rank is 1.
    """
    xp, (w, phase, amplitude) = floats(weights, phase, amplitude)

    def core(angle: Any) -> Any:
        sin, cos = xp.sin(angle), xp.cos(angle)
        return xp.stack([xp.stack([cos, -sin], -1), xp.stack([sin, cos], -1)])

    first = amplitude * xp.stack([xp.sin(phase), xp.cos(phase)])
    return _ridge(xp, box, w, _active(weights), first, core, 0)


def power(box: Box, weights: Any, offset: Any, exponent: int, amplitude: Any = 1.0) -> Cores:
    """Builds the TT-cores of the variable coefficient a (w·y + c)^m on a grid, of TT-rank m + 1.

    Before the first and after the last weight that is not zero the rank is 1.
    """
    m = exponent
    xp, (w, offset, amplitude) = floats(weights, offset, amplitude)
    choose = np.array(
        [[math.comb(m - p, max(q - p, 0)) for q in range(m + 1)] for p in range(m + 1)]
    )
    choose = xp.asarray(np.triu(choose).astype(w.dtype))
    lift = np.maximum(np.subtract.outer(-np.arange(m + 1), -np.arange(m + 1)), 0)

    def core(x: Any) -> Any:
        powers = xp.stack([x**k for k in range(m + 1)], -1)  # (n, m + 1)
        return (choose[:, None, :] * powers[:, lift].transpose(1, 0, 2)).astype(w.dtype)

    first = amplitude * core(offset[None])[0, 0]
    return _ridge(xp, box, w, _active(weights), first, core, m)


def _ridge(
    xp: Any,
    box: Box,
    w: Any,
    active: tuple[int, int],
    first: Any,
    core: Callable[[Any], Any],
    last: int,
) -> Cores:
    """Builds the TT-cores of a variable coefficient f(w·y) from one core per axis."""
    low, high = active
    out = []
    for k, points in enumerate(box.points):
        y = xp.asarray(points).astype(w.dtype)
        if low <= k <= high:
            c = core(w[k] * y)
            c = absorb(first[None], c) if k == low else c
            out.append(c[..., last : last + 1] if k == high else c)
        else:
            out.append(xp.ones((1, len(points), 1), w.dtype))
    return out


def _active(w: Any) -> tuple[int, int]:
    """Returns the first and last axis on which a coefficient f(w·y) depends; all if traced."""
    if _check.is_traced(w):
        return 0, len(w) - 1
    places = np.flatnonzero(np.asarray(w))
    return (int(places[0]), int(places[-1])) if len(places) else (0, 0)


def times(a: Cores, b: Cores) -> Cores:
    """Multiplies two variable coefficients of a PDE, given as tensor trains; TT-ranks multiply."""
    return [hadamard_core(p, q) for p, q in zip(a, b, strict=True)]


def multiplication(cores: Cores) -> TTMatrix:
    """Builds the TT-matrix of v ↦ m v, multiplication by a variable coefficient m of a PDE."""
    return TTMatrix._unchecked(tuple(map(_diagonal, cores)))


def flux(box: Box, direction: Any, cores: Cores) -> TTMatrix:
    """Builds the TT-matrix of v ↦ a·∇(m v) for a variable coefficient m, of twice its TT-ranks.

    What it gives sums to zero over a Fourier grid, as a divergence should.
    """
    return _directed(box, direction, cores, _flux)


def transport(box: Box, direction: Any, cores: Cores) -> TTMatrix:
    """Builds the TT-matrix of v ↦ a·∇(m v) for a variable coefficient, stable on periodic axes.

    On Fourier axes it is (∂ m + m ∂ + m')/2, less the mean over the axis, on log axes the same in
    log y, for other axes `flux`: the same for functions that vanish at the ends, and what it gives
    sums to zero as well. m jumps
    from one end of a periodic axis to the other, and of the jump ∂ m alone makes modes that grow
    at rates of the grid; energies of the split form change at the rate m'/2, as they should.

    Source: the split form of skew-symmetric transport, H.-O. Kreiss, J. Oliger, "Comparison of
    accurate methods for the integration of hyperbolic equations", Tellus 24 (1972).
    """
    return _directed(box, direction, cores, _split)


def _split(axis: Axis, d1: Any, m: Any) -> Any:
    xp = backend(m)
    if axis.kind == "log":  # y ∂ (m u) = ∂_log((m/y) y u)
        inner = axis.logarithm
        y = xp.asarray(axis.points).astype(m.dtype)
        return _split(inner, xp.asarray(inner.d1).astype(m.dtype), m / y[:, None])
    whole = _flux(axis, d1, m)
    if axis.kind not in ("fourier", "periodic"):
        return whole
    other = d1[None, :, :, None] * m[:, :, None, :]
    slope = einsum("ij,ajb->aib", xp.asarray(axis.slope).astype(m.dtype), m)
    out = (whole + other + _diagonal(slope)) / 2
    return out - out.mean(axis=1, keepdims=True)


def _flux(axis: Axis, d1: Any, m: Any) -> Any:
    """Builds the TT-matrix core of v ↦ ∂ (m v) for a coefficient m: −∫ φ' m v between walls."""
    at = axis.projected
    if at is None:
        return d1[None, :, :, None] * m[:, None, :, :]
    return -(2 / axis.length) * _between(at.steep, at.filled, m, at.value)


def _between(left: np.ndarray, filled: np.ndarray, m: Any, right: np.ndarray) -> Any:
    """Builds left · diag(filled m) · right from a coefficient's core m (s, n, t): (s, n, n, t)."""
    xp = backend(m)
    left, filled, right = (xp.asarray(x).astype(m.dtype) for x in (left, filled, right))
    return einsum("iq,aqb,qj->aijb", left, einsum("qn,anb->aqb", filled, m), right)


def _multiplied(axis: Axis, m: Any) -> Any:
    """Builds the TT-matrix core of v ↦ m v for a coefficient m; Galerkin product between walls."""
    at = axis.projected
    level = not _check.is_traced(m) and not np.ptp(m, axis=1).any()
    return _diagonal(m) if at is None or level else _between(at.tested, at.filled, m, at.value)


def advection(box: Box, direction: Any, cores: Cores) -> TTMatrix:
    """Builds the TT-matrix of v ↦ m a·∇v for a variable coefficient m, of twice its TT-ranks."""
    return _directed(box, direction, cores, _advected)


def _advected(axis: Axis, d1: Any, m: Any) -> Any:
    """Builds the TT-matrix core of v ↦ m ∂v for a coefficient m; Galerkin product between walls."""
    at = axis.projected
    if at is None:
        return d1[None, :, :, None] * m[:, :, None, :]
    return 2 / axis.length * _between(at.tested, at.filled, m, at.slope)


def carried(cores: Cores, derivatives: dict[int, np.ndarray], weight: float = 1.0) -> TTMatrix:
    """Builds the TT-matrix of v ↦ m ∂v for a variable coefficient m and given derivative matrices.

    As values of m at the points times derivatives there.
    """
    out = [_diagonal(m) for m in cores]
    for k, d in derivatives.items():
        out[k] = d[None, :, :, None] * cores[k][:, :, None, :]
    return TTMatrix._unchecked((weight * out[0], *out[1:]))


def conduction(box: Box, tensor: Any, cores: Cores) -> TTMatrix:
    """Builds the TT-matrix of v ↦ Σ S_ij ∂_i (m ∂_j v) for a variable coefficient m.

    The automaton of `affine_generator`, with ∂_i before m in place of ∂_i and ∂_j after m in place
    of y_j.
    """
    xp, (tensor, *cores) = floats(tensor, *cores)
    automaton = affine_states(box, Coefficients(matrix=tensor))
    out = []
    for states, axis, m in zip(automaton, box.axes, cores, strict=True):
        d1, at = xp.asarray(axis.d1).astype(m.dtype), axis.projected
        before = _flux(axis, d1, m)
        if at is None:
            after = m[:, :, None, :] * d1[None, :, :, None]
            both = einsum("mk,aknb->amnb", d1, after)
        else:
            scale = 2 / axis.length
            after = scale * _between(at.tested, at.filled, m, at.slope)
            both = -(scale**2) * _between(at.steep, at.filled, m, at.slope)
        matrices = xp.stack([_multiplied(axis, m), before, after, both])
        out.append(_merged(states[:, :4], matrices))
    return TTMatrix._unchecked(tuple(out))


def second(box: Box, tensor: Any, cores: Cores) -> TTMatrix:
    """Builds the TT-matrix of v ↦ Σ S_ij ∂_i ∂_j (m v) for a variable coefficient m.

    Its rank is r where S has one entry only, else (min(p, d − p) + 2) r at the bond after p axes.
    What it gives sums to zero over a Fourier grid.
    """
    xp, (tensor, *cores) = floats(tensor, *cores)
    pairs = [] if xp is not np else list(zip(*np.nonzero(np.triu(tensor)), strict=True))
    if len(pairs) == 1:
        return TTMatrix._unchecked(tuple(_derived(box, tensor, pairs[0], cores)))
    automaton = affine_states(box, Coefficients(diffusion=tensor))
    out = []
    for states, axis, m in zip(automaton, box.axes, cores, strict=True):
        first = _flux(axis, xp.asarray(axis.d1).astype(m.dtype), m)
        matrices = xp.stack([_multiplied(axis, m), first, _twice(axis, m)])
        out.append(_merged(states[:, [ONE, D, DD]], matrices))
    return TTMatrix._unchecked(tuple(out))


def bent(box: Box, pair: tuple[int, int], weight: float, cores: Cores) -> TTMatrix:
    """Builds the TT-matrix of v ↦ m S_ij ∂_i ∂_j v for a pair of axes, m a variable coefficient."""
    i, j = pair
    if i == j:
        return carried(cores, {i: box.axes[i].d2}, weight)
    return carried(cores, {k: box.axes[k].d1 for k in pair}, 2 * weight)


def _twice(axis: Axis, m: Any) -> Any:
    """Builds the TT-matrix core of v ↦ ∂² (m v), stable for strongly varying coefficients m.

    As ∂ (m ∂ v + m' v) on Laguerre axes and between walls, and on Fourier axes with the second part
    in the split form of `transport`: m jumps from one end to the other there, and of the jump ∂² m
    makes modes that grow at rates of the grid, where ∂ m ∂ only damps. Of an even number of points
    ∂ has no highest mode, which the mean of m damps.
    """
    xp, at = backend(m), axis.projected
    if at is not None:
        spread = _between(at.steep, at.filled, m, at.slope)
        return -((2 / axis.length) ** 2) * (spread + _between(at.steep, at.sloped, m, at.value))
    d2 = xp.asarray(axis.d2).astype(m.dtype)
    if axis.kind not in ("fourier", "periodic", "laguerre"):
        return d2[None, :, :, None] * m[:, None, :, :]
    d1, slope = (xp.asarray(d).astype(m.dtype) for d in (axis.d1, axis.slope))
    inner, sloped = m[:, :, None, :] * d1[None, :, :, None], einsum("ij,ajb->aib", slope, m)
    if axis.kind == "laguerre":
        return einsum("mk,aknb->amnb", d1, inner + _diagonal(sloped))
    highest = (d2 - d1 @ d1)[None, :, :, None] * m.mean(1)[:, None, None, :]
    return einsum("mk,aknb->amnb", d1, inner) + highest + _split(axis, d1, sloped)


def _derived(box: Box, tensor: Any, pair: tuple[int, int], cores: Cores) -> list[Any]:
    """Builds the TT-matrix of v ↦ S_ij ∂_i ∂_j (m v) for a pair of axes and a coefficient m."""
    i, j = pair
    out = []
    for k, (axis, m) in enumerate(zip(box.axes, cores, strict=True)):
        if k not in pair:
            out.append(_multiplied(axis, m))
            continue
        first = _flux(axis, axis.d1, m)
        out.append(_twice(axis, m) if i == j else first)
    weight = tensor[i, j] if i == j else tensor[i, j] + tensor[j, i]
    return [weight * out[0], *out[1:]]


def _directed(
    box: Box, direction: Any, cores: Cores, derived: Callable[[Axis, Any, Any], Any]
) -> TTMatrix:
    """Builds Σ_k a_k M_k, coefficient operators M_k with a derivative in core k only."""
    low, high = _active(direction)
    xp, (a, *cores) = floats(direction, *cores)
    out = []
    for k, (m, axis) in enumerate(zip(cores, box.axes, strict=True)):
        plain = _multiplied(axis, m)
        if not low <= k <= high:
            out.append(plain)
            continue
        step = a[k] * derived(axis, xp.asarray(axis.d1).astype(m.dtype), m)
        zero = xp.zeros_like(plain)
        # States: "none derived yet", "done".
        rows = [(plain, step), (zero, plain)]
        rows = [(step,), (plain,)] if k == high else rows
        rows = rows[:1] if k == low else rows
        out.append(xp.concatenate([xp.concatenate(r, -1) for r in rows], 0))
    return TTMatrix._unchecked(tuple(out))


def _diagonal(m: Any) -> Any:
    """Builds the TT-matrix core (s, n, n, t) of multiplying by a coefficient's core (s, n, t)."""
    xp = backend(m)
    return xp.eye(m.shape[1], dtype=m.dtype)[None, :, :, None] * m[:, :, None, :]


def _merged(states: Any, matrices: Any) -> Any:
    """Multiplies a derivative operator's bond states with coefficient cores to a TT-matrix core."""
    core = einsum("aob,osmnt->asmnbt", states, matrices)
    a, s, m, n, b, t = core.shape
    return core.reshape(a * s, m, n, b * t)


def components(cores: Sequence[np.ndarray]) -> list[Cores]:
    """Splits a vector-valued variable coefficient's train into one train for each component."""
    *rest, last = cores
    return [[*rest[:-1], times_right(rest[-1], last[:, i])] for i in range(last.shape[1])]
