"""Arithmetic of patched trains: sums, inner products, norms, entries."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.tt import _constructors as constructors
from tensorjax.tt._arrays import reductions
from tensorjax.tt._arrays.indexing_and_concatenation import item
from tensorjax.tt._entries import evaluate as entries_of
from tensorjax.tt._products.inner_products import inner as trains_inner
from tensorjax.tt._products.inner_products import norm as trains_norm
from tensorjax.tt.patches import arithmetic_on_host
from tensorjax.tt.patches.patched_train import PatchedTT, Prefix


@placed
def evaluate(p: PatchedTT, indices: ArrayLike) -> jax.Array:
    """Evaluates entries of a patched train at a batch of multi-indices.

    Args:
      p: patched train of order d.
      indices: integers (…, d), each in [−n_k, n_k) as in NumPy.

    Returns:
      (…,) entries.

    Raises:
      ValueError: the last axis is not d, or an index is out of range; of indices known only under
        a transformation, such entries are NaN.
      TypeError: the indices are not integers.

    Of indices that are known, each patch evaluates its own; under a transformation every patch
    evaluates all of them.

    Example:
      >>> from tensorjax import tt
      >>> p = tt.patches.PatchedTT((2, 3), [(0,)], [tt.ones((3,))])
      >>> print(tt.patches.evaluate(p, [[0, 2], [1, 0]]))
      [1. 0.]

    Source: ours.
    """
    indices = _check.indices(indices, _patched(p).shape)
    flat = indices.reshape(-1, p.ndim)
    if _check.is_traced(indices):
        out = _evaluate_everywhere(p, flat)
    else:
        rows = np.asarray(flat)
        out = _evaluate_each(p, np.where(rows < 0, rows + np.array(p.shape), rows))
    return out.reshape(indices.shape[:-1])


def _evaluate_everywhere(p: PatchedTT, rows: Any) -> jax.Array:
    sizes = jnp.array([p.shape], rows.dtype)
    inside = ((rows >= -sizes) & (rows < sizes)).all(axis=1)
    rows = jnp.where(rows < 0, rows + sizes, rows)
    out = jnp.zeros(rows.shape[:1], p.dtype)
    for prefix, train in zip(p.prefixes, p.trains, strict=True):
        here = (rows[:, : len(prefix)] == jnp.array([prefix], rows.dtype)).all(axis=1)
        entries = entries_of(train, rows[:, len(prefix) :])
        out = out + jnp.where(here, entries, 0).astype(p.dtype)
    return jnp.where(inside, out, jnp.nan)


def _evaluate_each(p: PatchedTT, rows: np.ndarray) -> jax.Array:
    parts: list[tuple[np.ndarray, Any]] = []
    groups: dict[int, dict[Prefix, np.ndarray]] = {}  # by length, the rows that a prefix leads to
    for prefix, train in zip(p.prefixes, p.trains, strict=True):
        k = len(prefix)
        if k not in groups:
            groups[k] = _groups(rows[:, :k])
        here = groups[k].get(prefix)
        if here is not None:
            parts.append((here, entries_of(train, rows[here, k:])))
    if _check.is_traced([entries for _, entries in parts]):
        traced = jnp.zeros(len(rows), p.dtype)
        for here, entries in parts:
            traced = traced.at[here].add(entries.astype(p.dtype))
        return traced
    out = np.zeros(len(rows), p.dtype)
    for here, entries in parts:
        out[here] += np.asarray(entries)
    return jnp.asarray(out)


def _groups(rows: np.ndarray) -> dict[Prefix, np.ndarray]:
    """Groups the index prefixes of patches to evaluate entries: positions of each distinct one."""
    unique, which = np.unique(rows, axis=0, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(which.ravel()))[:-1])
    return dict(zip(map(tuple, unique.tolist()), parts, strict=True))


@placed
def add(x: PatchedTT, y: PatchedTT) -> PatchedTT:
    """Adds patched trains, the operator ``+``: trains of equal patches add, others stay separate.

    Args:
      x: patched train.
      y: patched train of the same shape.

    Returns:
      Patched train with the patches of both; TT-ranks add where a patch is one of both.

    Raises:
      ValueError: another shape.

    Example:
      >>> from tensorjax import tt
      >>> p = tt.patches.PatchedTT((2, 3), [(0,)], [tt.ones((3,))])
      >>> len((p + p).trains), len((p + 1.0).trains)
      (1, 2)

    Source: ours.
    """
    if _patched(x).shape != _patched(y).shape:
        raise ValueError(f"y: expected shape {x.shape}, got {y.shape}")
    trains = dict(zip(x.prefixes, x.trains, strict=True))
    for prefix, train in zip(y.prefixes, y.trains, strict=True):
        trains[prefix] = trains[prefix] + train if prefix in trains else train
    return PatchedTT._unchecked(x.shape, tuple(trains), tuple(trains.values()))


@placed
def ones_like(p: PatchedTT) -> PatchedTT:
    """Constructs the patched train of ones, as one patch, with the shape and dtype of another.

    Args:
      p: patched train.

    Returns:
      Patched train of one patch, which is the whole tensor.

    Raises:
      TypeError: no patched train.

    Example:
      >>> from tensorjax import tt
      >>> p = tt.patches.PatchedTT((2, 3), [(0,)], [tt.ones((3,))])
      >>> tt.patches.ones_like(p).prefixes
      ((),)

    Source: ours.
    """
    whole = constructors.ones(_patched(p).shape, p.dtype)
    return PatchedTT._unchecked(p.shape, ((),), (whole,))


@placed
def sum(p: PatchedTT) -> jax.Array:
    """Sums all entries of a patched train.

    Args:
      p: patched train.

    Returns:
      Scalar.

    Raises:
      TypeError: no patched train. OverflowError: on a CPU, the dtype cannot hold the sum.

    Example:
      >>> from tensorjax import tt
      >>> p = tt.patches.PatchedTT((2, 3), [(0,)], [tt.ones((3,))])
      >>> float(tt.patches.sum(p))
      3.0

    Source: ours.
    """
    if arithmetic_on_host.on_host(_patched(p)):
        return arithmetic_on_host.sum(p)
    return _total(p.dtype, [reductions.sum(t) for t in p.trains])


@placed
def inner(x: PatchedTT | TT, y: PatchedTT | TT) -> jax.Array:
    """Computes the inner product ⟨x, y⟩ = Σ conj(x_i) y_i of patched trains, a scalar.

    With a train of quadrature weights as x, as of `tensorjax.tt.quantics.weights`, it integrates y.

    Args:
      x: patched train or TT; conjugated.
      y: patched train or TT of the same shape.

    Returns:
      Scalar of the promoted dtype.

    Raises:
      ValueError: another shape.
      OverflowError: on a CPU, the dtype cannot hold the value, unless it is below roundoff of its
        terms; Inf and NaN in the cores make it Inf or NaN.

    Concrete trains on a CPU are NumPy's here and in `sum`, `norm` and `to_dense`: patches have
    trains of many ranks, and no program is compiled for each.

    Example:
      >>> from tensorjax import tt
      >>> p = tt.patches.PatchedTT((2, 3), [(0,)], [tt.ones((3,))])
      >>> float(tt.patches.inner(tt.ones((2, 3)), p)), float(tt.patches.inner(p, p))
      (3.0, 3.0)

    Source: ours.
    """
    x, y = (PatchedTT(t.shape, [()], [t]) if isinstance(t, TT) else t for t in (x, y))
    if _patched(x).shape != _patched(y).shape:
        raise ValueError(f"y: expected shape {x.shape}, got {y.shape}")
    if arithmetic_on_host.on_host(x, y):
        return arithmetic_on_host.inner(x, y)
    pairs = []
    for i, j in arithmetic_on_host.overlapping(x.prefixes, y.prefixes):
        a, b = x.prefixes[i], y.prefixes[j]
        s, t = item(x.trains[i], b[len(a) :] or ...), item(y.trains[j], a[len(b) :] or ...)
        pairs.append(trains_inner(s, t))
    return _total(jnp.result_type(x.dtype, y.dtype), pairs)


@placed
def norm(p: PatchedTT) -> jax.Array:
    """Computes the Frobenius norm of a patched train.

    Args:
      p: patched train.

    Returns:
      Real scalar. Where patches overlap, it comes from inner products: values below √eps of the
      largest patch's norm are roundoff then.

    Raises:
      TypeError: no patched train. OverflowError: on a CPU, the dtype cannot hold the norm.

    Example:
      >>> from tensorjax import tt
      >>> p = tt.patches.PatchedTT((2, 4), [(0,)], [tt.ones((4,))])
      >>> float(tt.patches.norm(p))
      2.0

    Source: ours.
    """
    overlaps = _overlap(_patched(p).prefixes)
    if arithmetic_on_host.on_host(p):
        return arithmetic_on_host.norm(p, overlaps=overlaps)
    if not overlaps:
        norms = jnp.stack([trains_norm(t) for t in p.trains])
        largest = linalg.where_positive(jnp.max(norms), 1.0)
        return largest * linalg.root(jnp.sum((norms / largest) ** 2))
    return linalg.root(jnp.real(inner(p, p)))


def _overlap(prefixes: tuple[Prefix, ...]) -> bool:
    """Whether patches in a norm or product overlap: two are equal, or one lies within another."""
    kept = set(prefixes)
    inside = any(prefix[:k] in kept for prefix in prefixes for k in range(len(prefix)))
    return inside or len(kept) < len(prefixes)


def _total(dtype: Any, terms: list[Any]) -> jax.Array:
    out = jnp.zeros((), dtype)
    for term in terms:
        out = out + term.astype(dtype)
    return out


def _patched(p: Any) -> PatchedTT:
    if not isinstance(p, PatchedTT):
        raise TypeError(f"expected a PatchedTT, got {type(p).__name__}")
    return p
