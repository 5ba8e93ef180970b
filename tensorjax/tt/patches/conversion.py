"""Conversion of patched trains to one train and to dense arrays, and merges of patches."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp

from tensorjax import _check
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax.tt._constructors import unit
from tensorjax.tt._exact_arithmetic import kron
from tensorjax.tt._products.hadamard_and_matrix_products import linear_combination
from tensorjax.tt._to_dense import to_dense as dense_of
from tensorjax.tt.patches import arithmetic_on_host
from tensorjax.tt.patches.patched_train import PatchedTT, Prefix


@placed
def to_dense(p: PatchedTT) -> jax.Array:
    """Converts a patched train to a dense array.

    Args:
      p: patched train.

    Returns:
      Array of shape (n_1, …, n_d).

    Raises:
      TypeError: no patched train.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.patches.to_dense(tt.patches.PatchedTT((2, 3), [(0,)], [tt.ones((3,))])))
      [[1. 1. 1.]
       [0. 0. 0.]]

    Source: ours.
    """
    if not isinstance(p, PatchedTT):
        raise TypeError(f"p: expected a PatchedTT, got {type(p).__name__}")
    if arithmetic_on_host.on_host(p):
        return arithmetic_on_host.to_dense(p)
    out = jnp.zeros(p.shape, p.dtype)
    for prefix, train in zip(p.prefixes, p.trains, strict=True):
        out = out.at[prefix].add(dense_of(train).astype(p.dtype))
    return out


@placed
def to_tt(p: PatchedTT, *, tol: float | None = None) -> TT:
    """Converts a patched train to a single train.

    Patches that differ in their last leading index only are joined and rounded, level by level.

    Args:
      p: patched train.
      tol: relative error in the Frobenius norm; exact if None, and TT-ranks of patches add then.

    Returns:
      TT of the shape of ``p``.

    Raises:
      ValueError: tol below 10 eps. TypeError: no patched train, or ``tol`` under a transformation.

    Example:
      >>> from tensorjax import tt
      >>> p = tt.patches.PatchedTT((2, 3, 4), [(0,), (1,)], [tt.ones((3, 4)), tt.ones((3, 4))])
      >>> tt.patches.to_tt(p).ranks, tt.patches.to_tt(p, tol=1e-4).ranks
      ((1, 2, 2, 1), (1, 1, 1, 1))

    Source: ours.
    """
    if not isinstance(p, PatchedTT):
        raise TypeError(f"p: expected a PatchedTT, got {type(p).__name__}")
    if tol is not None:
        _check.tolerance(tol, p.dtype)
    levels = max(1, max(map(len, p.prefixes)))
    # Errors of levels may add up; those of patches that do not overlap add in squares.
    share = None if tol is None else tol / levels
    trains = dict(zip(p.prefixes, p.trains, strict=True))
    for level in range(levels, 0, -1):
        parents = by_parent(prefix for prefix in trains if len(prefix) == level)
        for parent, children in parents.items():
            whole = [trains.pop(parent)] if parent in trains else []
            trains[parent] = joined({c[-1]: trains.pop(c) for c in children}, p.shape, share, whole)
    return trains[()]


def joined(
    parts: Mapping[int, TT], shape: Sequence[int], tol: float | None, more: Sequence[TT] = ()
) -> TT:
    """Merges the trains of neighbouring patches to one train, with one more leading mode.

    Args:
      parts: from the index to the train.
      shape: mode sizes of the whole tensor, the mode of the index among them.
      tol: relative error, or 10 eps if that is more; exact if None.
      more: trains over all modes of the result, which are added.

    Example:
      >>> from tensorjax import tt
      >>> joined({0: tt.ones((3,)), 1: tt.ones((3,))}, (2, 3), 1e-4).ranks
      (1, 1, 1)
    """
    order = next(iter(parts.values())).order
    size = shape[len(shape) - order - 1]
    lifted = [kron(unit((size,), (i,), t.dtype), t) for i, t in parts.items()]
    terms = [*more, *lifted]
    if tol is not None:
        tol = max(tol, 10 * float(jnp.finfo(lifted[0].dtype).eps))
    return linear_combination(terms, tol=tol)


def by_parent(prefixes: Iterable[Prefix]) -> dict[Prefix, list[Prefix]]:
    """Groups patches, to merge them, by all of their leading indices but the last one."""
    out: dict[Prefix, list[Prefix]] = defaultdict(list)
    for prefix in prefixes:
        out[prefix[:-1]].append(prefix)
    return out
