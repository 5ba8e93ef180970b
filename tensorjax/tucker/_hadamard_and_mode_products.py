"""Products of Tucker tensors: entry by entry, and of one mode with a matrix."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import einsum
from tensorjax._cores.products import is_in_range, times_in_range
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.tucker._core_and_factors import (
    finite_on_host,
    first_on_host,
    from_host,
    near_one_parts,
    on_host,
    scaled_back,
    times,
    with_entries,
)
from tensorjax.tucker._rounding import round
from tensorjax.tucker._sums_and_padding import aligned
from tensorjax.tucker._types import Tucker, one


@placed
def hadamard(
    x: Tucker,
    y: Tucker,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    core_rank: int | Sequence[int] | None = None,
) -> Tucker:
    """Computes the entrywise product of Tucker tensors, the operator ``*``; ranks multiply.

    Args:
      x: Tucker.
      y: Tucker of the same shape. If one core is dense, so is the other made.
      tol: relative error; rounds the result, see `round`.
      rank: multilinear ranks of the result, static.
      core_rank: TT-ranks of a train core.

    Returns:
      Tucker of ranks s_k t_k, or n_k where that is less; TT-ranks of train cores multiply. A dense
      core of ∏ s_k t_k elements is formed in any case.

    Raises:
      TypeError: an argument is no Tucker. ValueError: the shapes differ.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(2 * jnp.ones((1, 1)), [jnp.ones((2, 1)), jnp.ones((3, 1))])
      >>> print(tucker.to_dense(tucker.hadamard(t, t))[0])
      [4. 4. 4.]

    Source: N. Lee, A. Cichocki, "Fundamental tensor operations for large-scale data analysis using
    tensor network formats", Multidimens. Syst. Signal Process. 29 (2018), section 4: Kronecker
    product of the cores, row-wise Khatri–Rao product of the factors.
    """
    x, y = aligned(x, y)
    host = None
    if first_on_host("hadamard", lambda: x.core.size * y.core.size * x.order, x, y):
        host = finite_on_host(lambda: _product(on_host(x), on_host(y)).astype(x.dtype))
    out = _hadamard(x, y) if host is None else from_host(host)
    if tol is None and rank is None and core_rank is None:
        return out
    return round(out, tol=tol, rank=rank, core_rank=core_rank)


def _product(x: Tucker, y: Tucker) -> Tucker:
    # In range by exact powers of two: products of two cores may not be.
    (x, p), (y, q) = near_one_parts(x), near_one_parts(y)
    pairs = zip(x.factors, y.factors, strict=True)
    factors = [(u[:, :, None] * v[:, None, :]).reshape(len(u), -1) for u, v in pairs]
    core = _kron(x.core, y.core)
    # No mode needs a larger rank than its size: such a factor goes into the core.
    wide = [u.shape[1] > u.shape[0] for u in factors]
    xp = np if linalg.is_host(factors[0]) else jnp
    eyes = [xp.eye(n, dtype=factors[0].dtype) for n in x.shape]
    if isinstance(core, TT):
        held = [jnp.eye(u.shape[1], dtype=u.dtype) for u in factors]
        matrices = [u if w else eye for u, w, eye in zip(factors, wide, held, strict=True)]
        core = times(core, matrices) if any(wide) else core
    else:
        core = times(core, [u if w else None for u, w in zip(factors, wide, strict=True)])
    kept = [eye if w else u for u, w, eye in zip(factors, wide, eyes, strict=True)]
    return scaled_back(core, kept, p + q)


_hadamard = with_entries(jax.jit(_product))


def _kron(a: Any, b: Any) -> Any:
    """Computes the core of an entrywise product of Tucker tensors: a Kronecker product."""
    if isinstance(a, TT):
        return TT._unchecked(tuple(map(_kron_core, a.cores, b.cores)))
    order = a.ndim
    outer = (np if linalg.is_host(a) else jnp).multiply.outer(a, b)
    axes = [k for pair in zip(range(order), range(order, 2 * order), strict=True) for k in pair]
    return outer.transpose(axes).reshape([m * n for m, n in zip(a.shape, b.shape, strict=True)])


def _kron_core(a: Any, b: Any) -> jax.Array:
    """Computes the Kronecker product of cores, for a product of Tucker tensors with train cores."""
    both = einsum("aib,cjd->acijbd", a, b)
    return both.reshape(len(a) * len(b), a.shape[1] * b.shape[1], -1)


@placed
def mode_product(t: Tucker, matrix: ArrayLike, mode: int) -> Tucker:
    """Contracts one mode of a Tucker tensor with a matrix, Σ_j matrix[i, j] x[…, j, …].

    Args:
      t: Tucker.
      matrix: (m, n_k), which makes the mode of size n_k one of size m.
      mode: k; negative ones count from the end.

    Returns:
      Tucker of the same core and ranks.

    Raises:
      ValueError: the matrix has another number of columns. OverflowError: the dtype cannot hold the
        product in as many arrays; under transformations, where no size is known, the one factor is
        multiplied as it is, and what it cannot hold is Inf or 0.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1, 1)), [jnp.ones((2, 1)), jnp.ones((3, 1))])
      >>> tucker.mode_product(t, jnp.ones((5, 3)), 1).shape
      (2, 5)

    Source: T. Kolda, B. Bader, "Tensor decompositions and applications", SIAM Rev. 51 (2009),
    section 2.5.
    """
    one("t", t)
    k, w, dtype = _check.mode_matrix(matrix, mode, t.shape, t.dtype)
    t = t.astype(dtype)
    if not _check.is_traced(t, w) and not is_in_range(t.factors[k], w):
        leaves, structure = jax.tree.flatten(t)
        arrays = times_in_range(leaves, len(leaves) - t.order + k, w, _times_factor, "t")
        return jax.tree.unflatten(structure, arrays)
    factor = _times_factor(jnp.asarray(t.factors[k]), w)
    return Tucker._unchecked(t.core, (*t.factors[:k], factor, *t.factors[k + 1 :]))


def _times_factor(factor: jax.Array, matrix: jax.Array) -> jax.Array:
    return linalg.matmul(matrix, factor)
