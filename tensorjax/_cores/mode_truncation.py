"""Mode truncation of a tensor train (HOSVD): orthonormal mode factors and a smaller core train.

Mode k is cut in the basis of the leading left singular vectors of the tensor unfolded along it, all
modes before it cut already. That unfolding is not materialised: it has the singular values of
E_k G_k F_k, which is one core between a *left factor* E_k of what lies left of it and a *right
factor* F_k of what lies right. They are found in two ways:

- by QR sweeps that form no Q: to full accuracy;
- by Gram matrices, which is all matrix products and takes half the time: where the energy
  that may be discarded lies well above their roundoff.

The bases are orthonormal and act on different modes, so the squared error is the sum of the
discarded energies. The cores of the smaller train are Uᴴ G: they keep the gauge of the old ones,
and nothing is divided by a small number.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.contractions import absorb, times_mode, times_right
from tensorjax._cores.orthogonalization import short, triangles
from tensorjax._cores.ranks import cut_ranks
from tensorjax._cores.scaling import in_range
from tensorjax._cores.unfoldings import Cores, mode_unfolding, tall, wide
from tensorjax.linalg._arrays import adjoint, energy, epsilon, identity_like, matmul, where_positive
from tensorjax.linalg._powers_of_two import normalized
from tensorjax.linalg._subspaces.method_choice import choose
from tensorjax.linalg._subspaces.truncated_basis import left_basis
from tensorjax.linalg._svd_eigh_polar import eigh


class Truncated(NamedTuple):
    """Result of truncating a train's modes: mode factors, smaller train, discarded energies.

    Attributes:
      factors: d arrays (n_k, s_k) of orthonormal columns (zero where ``share`` discarded them).
      cores: d arrays (r_{k-1}, s_k, r_k); no TT-rank above what its neighbours allow.
      tails: d shares of the energy ‖t‖², discarded mode by mode.
      exponent: the train is 2^exponent times ``cores``; 0 unless TT-ranks became smaller.
    """

    factors: list[Any]
    cores: Cores
    tails: list[Any]
    exponent: Any


def feasible_ranks(
    ranks: Sequence[int], shape: Sequence[int], bonds: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns multilinear ranks and TT-ranks that a train has after mode truncation to ``ranks``.

    Args:
      ranks: multilinear ranks wanted, d.
      shape: mode sizes, d.
      bonds: TT-ranks r_0 … r_d.
    """
    order = len(shape)
    right = [1] * order  # sides of the right factors
    for k in range(order - 1, 0, -1):
        right[k - 1] = min(bonds[k], shape[k] * right[k])
    left, modes = 1, []
    for k in range(order):
        modes.append(min(ranks[k], shape[k], left * right[k]))
        left = min(bonds[k + 1], left * modes[k])
    return tuple(modes), cut_ranks(bonds, modes)[1:-1]


def truncate(
    cores: Cores,
    *,
    ranks: Sequence[int] | None = None,
    share: Any = None,
    factors: Sequence[Any] | None = None,
) -> Truncated:
    """Truncates the modes of a train (HOSVD) to ranks, to a share of discarded energy, or to both.

    What one mode leaves of its part of the share passes on to the modes after it.

    Args:
      cores: NumPy (exact ranks, by ``share`` alone) or JAX arrays, of size near one: products with
        bases must be in range.
      ranks: d multilinear ranks, feasible.
      share: of ‖t‖²; may be traced if there are ranks.
      factors: with ``ranks`` only: matrices that the modes are to be multiplied by first. They
        need not be orthonormal, nor of full rank.
    """
    if ranks is None:
        found = _by_grams(cores, share)
        if found is not None:
            return found
    return _by_triangles(cores, ranks, share, factors)


def _by_triangles(
    cores: Cores, ranks: Sequence[int] | None, share: Any, given: Sequence[Any] | None
) -> Truncated:
    order, factors, tails = len(cores), [], []
    method = "svd" if ranks is not None else choose("auto", share / order, cores[0].dtype)
    scaled = [in_range(c) for c in cores]
    left = identity_like(1, cores[0])
    kept = left[0, 0].real
    for k, right in enumerate([*triangles(_multiplied(scaled, given)), left]):
        seen = absorb(left, scaled[k])
        matrix = in_range(mode_unfolding(times_right(seen, right)))
        if given is not None:
            # Not in a basis of the factor: at a factor of lower rank that has no derivative.
            matrix = in_range(matmul(given[k], adjoint(short(adjoint(matrix)))))
        u, energies, lost = left_basis(
            matrix,
            rank=None if ranks is None else ranks[k],
            share=_allowed(share, sum(tails), order - k, kept),
            method=method,
        )
        fraction = lost / where_positive(energies.sum() + lost, 1.0)
        factors.append(u)
        tails.append(fraction * kept)
        kept = kept * (1 - fraction)
        to_core = adjoint(u) if given is None else matmul(adjoint(u), given[k])
        left = in_range(short(tall(times_mode(seen, to_core))))
    return _assembled(cores, factors, tails, given)


def _multiplied(cores: Cores, given: Sequence[Any] | None) -> Cores:
    """Multiplies train cores by the QR triangles of given mode factors, before mode truncation."""
    if given is None:
        return cores
    return [in_range(times_mode(c, short(u))) for c, u in zip(cores, given, strict=True)]


def _allowed(share: Any, used: Any, modes_left: int, kept: Any) -> Any:
    """Returns the share of energy that a train's next mode truncation may discard."""
    return None if share is None else (share - used) / modes_left / where_positive(kept, 1.0)


def _by_grams(cores: Cores, share: float) -> Truncated | None:
    """Truncates the modes of a train by Gram matrices on the host; None if these are inaccurate."""
    rights, weighted = [identity_like(1, cores[0])], []
    scaled = [in_range(c) for c in cores]
    for core in reversed(scaled):
        weighted.append(times_right(core, rights[-1]))
        rights.append(in_range(matmul(wide(weighted[-1]), adjoint(wide(core)))))
    order, factors, tails = len(cores), [], []
    left = identity_like(1, cores[0])
    kept = left[0, 0].real
    for k, core in enumerate(scaled):
        seen = absorb(left, weighted[order - 1 - k])
        energies, vectors = eigh(matmul(mode_unfolding(seen), adjoint(mode_unfolding(core))))
        energies = np.maximum(energies, 0)
        total = energies.sum()
        # Roundoff of the sums in the matrix, which are of terms of at most this size.
        size = np.linalg.norm(left) * np.linalg.norm(rights[order - 1 - k]) * energy(wide(core))
        noise = 2 * epsilon(core.dtype) * size
        tail = _allowed(share, sum(tails), order - k, kept) * total
        if not 8 * noise <= tail:
            return None
        suffix = np.cumsum(energies[::-1])[::-1]
        rank = max(int((suffix > tail - 2 * noise).sum()), 1)
        fraction = energies[rank:].sum() / where_positive(total, 1.0)
        u = vectors[:, :rank]
        factors.append(u)
        tails.append(fraction * kept)
        kept = kept * (1 - fraction)
        core = times_mode(core, adjoint(u))
        left = in_range(matmul(adjoint(tall(core)), tall(absorb(left, core))))
    return _assembled(cores, factors, tails)


def _assembled(
    cores: Cores, factors: list[Any], tails: list[Any], given: Sequence[Any] | None = None
) -> Truncated:
    to_core = [adjoint(u) for u in factors]
    if given is not None:
        to_core = [matmul(u, v) for u, v in zip(to_core, given, strict=True)]
    small = [times_mode(c, m) for c, m in zip(cores, to_core, strict=True)]
    small, exponent = _shrunk(small)
    return Truncated(factors, small, tails, exponent)


def _shrunk(cores: Cores) -> tuple[Cores, Any]:
    """Reduces a train's TT-ranks exactly to those that its truncated mode sizes allow.

    One core may absorb many others: it is scaled by powers of two, whose exponent is returned.
    """
    out, exponent = list(cores), 0
    for k in range(len(out) - 1):
        rows, columns = tall(out[k]).shape
        if rows < columns:
            out[k + 1], e = normalized(absorb(tall(out[k]), out[k + 1]))
            exponent = exponent + e
            out[k] = identity_like(rows, out[k]).reshape(*out[k].shape[:2], rows)
    for k in range(len(out) - 1, 0, -1):
        rows, columns = wide(out[k]).shape
        if rows > columns:
            out[k - 1], e = normalized(times_right(out[k - 1], wide(out[k])))
            exponent = exponent + e
            out[k] = identity_like(columns, out[k]).reshape(columns, *out[k].shape[1:])
    return out, exponent
