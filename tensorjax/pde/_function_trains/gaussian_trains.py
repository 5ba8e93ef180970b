"""Gaussians as tensor trains in closed form (Mehler's formula), and their TT-ranks.

At the bond after p of d axes, exp(−½ zᵀP z) is a product of kernels exp(−½ (a² + 2c ab + b²)) of
canonical coordinates left and right, with c the singular values of L₁₁⁻¹ P₁₂ L₂₂⁻ᵀ (L Cholesky
factors). Mehler's formula expands each one in Hermite functions, with weights ∝ qᵏ and
q = c/(1 + √(1 − c²)). So singular vectors and values are known, and a core is a table of integrals
of products of Hermite functions of two neighbouring bonds' coordinates. It follows from its
generating function, which is a Gaussian, by a recurrence.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensorjax._cores.unfoldings import Cores

# Singular values below this share of the tolerance are left out of every sum.
_FLOOR = 1e-3
# Largest TT-rank: one core of this rank on 100 points takes 13 GB already.
_MOST_RANK = 4000
# Beyond this degree the factor exp(−x²/2) underflows within reach of a Hermite function.
_DEGREE = 600


class Bond(NamedTuple):
    """Canonical (correlation) coordinates of a Gaussian at one TT bond, with singular-value decay.

    Attributes:
      scale: T, (q, q): the coordinates right of the bond are ζ = T z.
      decay: q_i, (min(p, q),), in [0, 1), the largest first.
    """

    scale: np.ndarray
    decay: np.ndarray


def bonds(precision: np.ndarray) -> list[Bond]:
    """Computes the canonical coordinates of a Gaussian exp(−½ zᵀ P z) at the TT bonds 0, …, d."""
    d = len(precision)
    out = [Bond(np.linalg.cholesky(precision).T, np.zeros(0))]
    for p in range(1, d):
        left = np.linalg.cholesky(precision[:p, :p])
        right = np.linalg.cholesky(precision[p:, p:])
        k = np.linalg.solve(left, np.linalg.solve(right, precision[p:, :p]).T)
        _, c, wt = np.linalg.svd(k)
        # As a product, for 1 − c² would cancel where c is near one: strongly correlated sides.
        root = np.sqrt(np.maximum((1 - c) * (1 + c), 0))
        squeeze = np.concatenate([np.sqrt(root), np.ones(d - p - len(root))])
        out.append(Bond(squeeze[:, None] * (wt @ right.T), c / (1 + root)))
    return [*out, Bond(np.zeros((0, 0)), np.zeros(0))]


def excitations(decay: np.ndarray, tol: float) -> np.ndarray:
    """Selects the fewest Hermite multi-indices that represent a Gaussian at a TT bond to ``tol``.

    That is relative to all in the root-sum-square. Sorted by degree; with k, the set holds every
    multi-index below k.
    """
    whole = float(np.prod(1 / np.sqrt((1 - decay) * (1 + decay))))
    floor = _FLOOR * tol * whole
    index, weight = np.zeros((1, 0), int), np.ones(1)
    for q in decay:
        most = np.zeros(len(weight), int)
        if q > 0:
            most = np.floor(np.log(floor / weight) / np.log(q) + 1e-9).astype(int)
        times = np.maximum(most, 0) + 1
        if times.sum() > 50 * _MOST_RANK or times.max() > _DEGREE:
            raise ValueError(_too_many(tol))
        new = np.concatenate([np.arange(t) for t in times])
        index = np.concatenate([np.repeat(index, times, 0), new[:, None]], 1)
        weight = np.repeat(weight, times) * q**new
    order = np.argsort(-weight, kind="stable")
    tails = np.sqrt(np.cumsum(np.square(weight[order])[::-1])[::-1])
    count = max(int(np.sum(tails > tol * whole)), 1)
    if count > _MOST_RANK:
        raise ValueError(_too_many(tol))
    kept = index[order[:count]]
    return kept[np.argsort(kept.sum(1), kind="stable")]


def _too_many(tol: float) -> str:
    return (
        f"covariance: expected TT-ranks of at most {_MOST_RANK} at tol = {tol:.1g}, got more; "
        "start from a map in which the Gaussian is closer to a product (see Gaussian.whitening)"
    )


def ranks(precision: np.ndarray, tol: float) -> tuple[int, ...]:
    """Computes the TT-ranks of a Gaussian exp(−½ zᵀ P z) at relative error ``tol``."""
    inner = [len(excitations(b.decay, tol)) for b in bonds(precision)[1:-1]]
    return (1, *inner, 1)


def gaussian(points: Sequence[np.ndarray], precision: np.ndarray, tol: float) -> Cores:
    """Builds the TT-cores of a Gaussian exp(−½ zᵀ P z) on grid points z_k, at error ``tol``."""
    d = len(points)
    share = tol / max(d - 1, 1) ** 0.5
    chain = bonds(precision)
    sets = [excitations(b.decay, share) for b in chain]
    cores = []
    for k, z in enumerate(points):
        table = _integrals(chain[k].scale, chain[k + 1].scale, sets[k], sets[k + 1], z)
        cores.append(table.transpose(0, 2, 1))
    cores[0] = cores[0] * np.pi ** (d / 4)
    return cores


def _integrals(
    scale: np.ndarray, after: np.ndarray, rows: np.ndarray, columns: np.ndarray, z: np.ndarray
) -> np.ndarray:
    """Computes a TT-core of a Gaussian, integrals of products of Hermite functions, (α, β, n).

    With ψ_α the products of orthonormal Hermite functions of degrees α. Their generating function
    is Σ t^α ψ_α / √α! = π^(−1/4) exp(−x²/2 + √2 t x − t²/2) in one dimension; so that of the
    integrals is exp of a quadratic polynomial in (t, s), whose gradient gives the recurrence.
    """
    q = len(after)
    tau, b = scale[:, 0], np.linalg.solve(after.T, scale[:, 1:].T).T
    n = np.linalg.inv(np.eye(q) + b.T @ b)
    bn = b @ n
    shadow = tau - bn @ (b.T @ tau)
    root = np.sqrt(np.linalg.det(2 * n))
    base = np.pi**-0.25 * root * np.exp(-0.5 * (tau @ shadow) * z**2)
    down_row, down_column = _below(rows), _below(columns)
    out = np.zeros((len(rows) + 1, len(columns) + 1, len(z)))  # the last ones stay zero
    out[0, 0] = base
    linear, square = -(2**0.5) * (bn.T @ tau), 2 * n - np.eye(q)
    for j in range(1, len(columns)):
        i = int(np.argmax(columns[j]))
        before = down_column[j, i]
        new = linear[i] * z * out[0, before]
        for m in np.flatnonzero(columns[before]):
            factor = square[i, m] * columns[before, m] ** 0.5
            new = new + factor * out[0, down_column[before, m]]
        out[0, j] = new / columns[j, i] ** 0.5
    linear, square, mixed = 2**0.5 * shadow, 2 * bn @ b.T - np.eye(q + 1), 2 * bn
    active = np.flatnonzero(columns.any(0))
    for j in range(1, len(rows)):
        i = int(np.argmax(rows[j]))
        before = down_row[j, i]
        new = linear[i] * z * out[before]
        for m in np.flatnonzero(rows[before]):
            new = new + square[i, m] * rows[before, m] ** 0.5 * out[down_row[before, m]]
        for m in active:
            factor = np.append(mixed[i, m] * columns[:, m] ** 0.5, 0.0)
            new = new + factor[:, None] * out[before, np.append(down_column[:, m], -1)]
        out[j] = new / rows[j, i] ** 0.5
    return out[:-1, :-1]


def _below(index: np.ndarray) -> np.ndarray:
    """Returns positions of k − e_i among the multi-indices k of a Gaussian train; −1 if none."""
    place = {tuple(k): p for p, k in enumerate(index.tolist())}
    out = np.full(index.shape, -1)
    for p, k in enumerate(index.tolist()):
        for i, degree in enumerate(k):
            if degree:
                out[p, i] = place[(*k[:i], degree - 1, *k[i + 1 :])]
    return out
