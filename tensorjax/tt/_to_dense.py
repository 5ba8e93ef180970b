"""Dense arrays of tensor trains and TT-matrices, in range for cores of any size."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import linalg
from tensorjax._cores.contractions import join, merge
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import by_axes, placed_by

# Exponents of all cores together up to which their products are in the range of single precision.
_TAME = 100


def _by_modes(out: Any, arguments: Any) -> list[Any]:
    """Returns the sharding of the dense array made from a train: axis by axis, as its modes."""
    cores = jax.tree.leaves(arguments)
    if cores[0].ndim == 3:
        return [by_axes(out.shape, [[(c, 1)] for c in cores])]
    return [by_axes(out.shape, [[(cores[0], 1)], [(cores[0], 2)]])]


@placed_by(_by_modes)
def to_dense(t: TT | TTMatrix) -> jax.Array:
    """Converts a train to a dense array: (n_1, …, n_d) of a TT, (∏ m_k, ∏ n_k) of a TTMatrix.

    Args:
      t: TT or TTMatrix.

    Returns:
      Array in the dtype of ``t``. As in NumPy's products, entries that the dtype cannot hold, or of
      which a term is out of range, are infinite, or zero. Subnormal ones, below
      ``numpy.finfo(dtype).tiny``, are zero, as in all programs of XLA for CPUs.

    Raises:
      TypeError: ``t`` is no train. ValueError: it is a batch of them.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.identity((2,))))
      [[1. 0.]
       [0. 1.]]

    Source: Oseledets (2011), eq. (1.3). Ours: cores are multiplied from both ends, kept in range.
    """
    single("t", t)
    return _to_dense(t, not _is_tame(t))


def _is_tame(t: TT | TTMatrix) -> bool:
    """Whether concrete cores are so near one that `to_dense` multiplies them without scaling."""
    if choose_kernel("tt.to_dense", (t,)) is not NUMPY:
        return False
    exponents = [linalg.exponent_of(np.asarray(c)) for c in t.cores]
    # Sums over the bonds make products larger; smaller ones than these bounds are lost anyway.
    bonds = sum(r.bit_length() for r in t.ranks)
    return sum(map(abs, exponents)) + bonds < _TAME * (2 if t.dtype.itemsize > 4 else 1)


def dense(t: TT | TTMatrix, careful: bool) -> Any:
    """Multiplies the cores of a train, NumPy or JAX, to a dense array; scaled if ``careful``."""
    # Halves first: the one large product is then a matrix product of two balanced factors. Each of
    # them takes half of the exponent, which neither may be able to hold alone.
    middle = _balanced_cut(t)
    whole, exponent = _chain(t.cores[:middle], careful)
    right, e = _chain(t.cores[middle:], careful) if middle < t.order else (None, 0)
    half = exponent + e if right is None else (exponent + e) // 2
    whole = linalg.scaled(whole, half) if careful else whole
    if right is not None:
        right = linalg.scaled(right, exponent + e - half) if careful else right
        whole = join(whole, right)
    if isinstance(t, TT):
        return whole.reshape(t.shape)
    pairs = [n for pair in zip(t.row_shape, t.col_shape, strict=True) for n in pair]
    order = (*range(0, 2 * t.order, 2), *range(1, 2 * t.order, 2))
    return whole.reshape(pairs).transpose(order).reshape(t.shape)


_to_dense = jax.jit(dense, static_argnums=1)


def _balanced_cut(t: TT | TTMatrix) -> int:
    sizes = [math.prod(c.shape[1:-1]) for c in t.cores]
    costs = [math.prod(sizes[:k]) + math.prod(sizes[k:]) for k in range(1, t.order)]
    return 1 + int(np.argmin(costs)) if costs else 1


def _chain(cores: Sequence[jax.Array], careful: bool) -> tuple[jax.Array, Any]:
    """Multiplies one half of a train's cores for `to_dense`, scaled against overflow if asked.

    Products are then kept near one: those of some cores may leave the range of the dtype where the
    whole does not.
    """
    out, exponent = merge(cores[:1]), 0
    for c in cores[1:]:
        out, e = linalg.normalized(out) if careful else (out, 0)
        out, exponent = merge([out, c]), exponent + e
    out, e = linalg.normalized(out) if careful else (out, 0)
    return out, exponent + e
