"""Alternating least squares (ALS) for functional trains, by NumPy, on the host.

Values at samples are linear in one core at a time: f(x_i) = (L_i ⊗ Ψ_i ⊗ R_i) · G_k, with L and R
what lies left and right, and Ψ the values of the basis. Bases are orthonormal in a norm of
f and its derivatives: then the ridge, in the gauge of the current core, is that norm of the whole
function.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.linalg

from tensorjax._cores.contractions import einsum
from tensorjax._cores.unfoldings import Cores
from tensorjax.linalg import adjoint, matmul
from tensorjax.tt._completion.als import alternating_sweeps, shifted_solve
from tensorjax.tt.functions.bases import Basis

# Elements of the design matrix that are formed at a time.
_PIECE = 2**22


def smooth_coordinates(basis: Basis) -> np.ndarray:
    """Returns the basis change of a least-squares fit, orthonormal in a smoothness norm.

    The norm of one variable is ‖f‖² + ‖f' (high − low) / π‖², means over the interval; that of
    several is the product, so high degrees and interactions of many variables count more. The first
    coordinate is the constant.
    """
    mass = basis.gram / basis.length
    try:
        of, matrix = basis.derivative()
    except ValueError:  # pieces of degree zero, and splines that jump
        energy = np.zeros_like(mass)
        energy += np.eye(len(mass)) - np.outer(basis.constant, basis.integrals) / basis.length
        energy = mass @ energy
        energy = (energy + energy.T) / 2
    else:
        energy = matrix.T @ of.gram @ matrix * (basis.length / np.pi**2)
    rough, vectors = scipy.linalg.eigh(energy, mass)
    vectors[:, 0] = basis.constant  # with roughness zero, which roundoff may mix
    return vectors / np.sqrt(1 + np.maximum(rough, 0))


def values_at(cores: Cores, rows: Sequence[np.ndarray]) -> np.ndarray:
    """Evaluates cores at samples from basis values, for least-squares fits of functions."""
    held = np.ones((len(rows[0]), 1))
    for core, at in zip(cores, rows, strict=True):
        held = through(held, at, core)
    return held[:, 0]


def through(left: np.ndarray, at: np.ndarray, core: np.ndarray) -> np.ndarray:
    """Multiplies a row vector per sample by a functional train's core, in least-squares sweeps."""
    return einsum("ba,bn,ans->bs", left, at, core)


def sweeps(
    cores: Cores, rows: Sequence[np.ndarray], values: np.ndarray, ridge: float
) -> Iterator[Cores]:
    """Generates least-squares sweeps that fit a functional train to samples, there and back.

    Args:
      cores: to start from.
      rows: values (N, n_k) of the bases at the samples.
      values: (N,) to fit.
      ridge: weight of the squared norm of the function beside the mean square of the residual.

    Yields:
      The cores after every sweep there and back.
    """
    return alternating_sweeps(
        cores,
        len(values),
        lambda left, right, k: _solved(left, rows[k], right, values, ridge),
        lambda vectors, core, k: through(vectors, rows[k], core),
    )


def _solved(
    left: np.ndarray, at: np.ndarray, right: np.ndarray, values: np.ndarray, ridge: float
) -> np.ndarray:
    """Solves for one core of a functional train by regularised least squares."""
    shape = left.shape[1], at.shape[1], right.shape[1]
    size, count = int(np.prod(shape)), len(values)
    piece = max(1, _PIECE // size)
    if size > count <= piece:  # by the kernel, which is the smaller matrix
        design = _design(left, at, right)
        gram = matmul(design, adjoint(design))
        weights = shifted_solve(gram, values, ridge * count)
        return einsum("bm,b->m", design.conj(), weights).reshape(shape)
    dtype = np.result_type(left, values)
    normal, aim = np.zeros((size, size), dtype), np.zeros((size, 1), dtype)
    for first in range(0, count, piece):
        some = slice(first, first + piece)
        design = _design(left[some], at[some], right[some])
        normal += matmul(adjoint(design), design)
        aim += matmul(adjoint(design), values[some, None])
    return shifted_solve(normal, aim[:, 0], ridge * count).reshape(shape)


def _design(left: np.ndarray, at: np.ndarray, right: np.ndarray) -> np.ndarray:
    rows = left[:, :, None, None] * at[:, None, :, None] * right[:, None, None, :]
    return rows.reshape(len(left), -1)


def first_order(
    rows: Sequence[np.ndarray], values: np.ndarray, ridges: Sequence[float]
) -> list[Cores]:
    """Fits sums of one-variable functions by least squares, as functional trains of TT-rank two.

    Args:
      rows: values (N, n_k) of the bases at the samples, the constant first.
      values: (N,).
      ridges: as of `sweeps`; one result for each.

    Returns:
      Cores of the fits.
    """
    design = np.concatenate([r[:, 1:] for r in rows], axis=1)
    centre = design.mean(axis=0)
    u, s, vh = np.linalg.svd(design - centre, full_matrices=False)
    mean = values.mean()
    seen = matmul(adjoint(u), (values - mean)[:, None])[:, 0]
    ends = np.cumsum([0, *(r.shape[1] - 1 for r in rows)])
    out = []
    for ridge in ridges:
        filtered = s * seen / np.maximum(s**2 + ridge * len(values), np.finfo(float).tiny)
        c = adjoint(vh) @ filtered
        parts = [c[a:b] for a, b in itertools.pairwise(ends)]
        out.append(_sum_of_terms(parts, mean - centre @ c))
    return out


def _sum_of_terms(parts: Sequence[np.ndarray], constant: float) -> Cores:
    """Builds the functional train of a least-squares sum of one-variable functions."""
    cores: Cores = []
    for k, part in enumerate(parts):
        core = np.zeros((2, len(part) + 1, 2), np.result_type(part, float))
        core[0, 0, 0] = core[1, 0, 1] = 1
        core[0, 1:, 1] = part
        if k == 0:
            core[0, 0, 1] = constant
        cores.append(core)
    cores[0] = cores[0][:1]
    cores[-1] = cores[-1][:, :, 1:]
    return cores
