"""Products of TT-matrices with dense arrays, the operators ``a @ x`` and ``x @ a``."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, contract, linalg
from tensorjax._cores.scaling import near_one
from tensorjax._formats.trains import TTMatrix, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device


@placed
def dense_product(a: TTMatrix, x: Any) -> jax.Array:
    """Multiplies a TT-matrix by a dense array, the operator ``a @ x``, as `numpy.matmul`.

    Args:
      a: TTMatrix of shape (M, N), of which no dense matrix is made.
      x: (N,), or (…, N, K); integers and Booleans become floating.

    Returns:
      (M,), or (…, M, K).

    Raises:
      ValueError: another size than N, or no axis.
    """
    single("a", a, TTMatrix)
    x = _dense_operand(a, x, 1 if np.ndim(x) == 1 else -2, 1)
    *lead, last = (*x.shape[:-2], x.shape[-1]) if x.ndim > 1 else (1,)  # a vector is one column
    size = (*lead, a.shape[0], last) if x.ndim > 1 else (a.shape[0],)
    return _dense_product(a, x, (math.prod(lead), *a.col_shape, last), size, transposed=False)


@placed
def dense_before(a: TTMatrix, x: Any) -> jax.Array:
    """Multiplies a dense array by a TT-matrix, the operator ``x @ a``, as `numpy.matmul`.

    Args:
      a: TTMatrix of shape (M, N), of which no dense matrix is made.
      x: (…, M).

    Returns:
      (…, N).

    Raises:
      ValueError: another size than M, or no axis.
    """
    single("a", a, TTMatrix)
    x = _dense_operand(a, x, -1, 0)
    lead = x.shape[:-1]
    size = (*lead, a.shape[1])
    return _dense_product(a, x, (math.prod(lead), *a.row_shape, 1), size, transposed=True)


def _dense_operand(a: TTMatrix, x: Any, axis: int, side: int) -> Any:
    """Converts the dense factor of a TT-matrix product to an array; ValueError if sizes differ."""
    array = x if isinstance(x, jax.Array | np.ndarray) else np.asarray(x)
    if not jnp.issubdtype(array.dtype, jnp.inexact) and array.dtype.kind in "biu":
        array = array.astype(a.dtype)
    array = _check.inexact("x", array)
    axis = axis if array.ndim else 0
    if array.ndim == 0 or array.shape[axis if axis < 0 else 0] != a.shape[side]:
        what = "columns" if side else "rows"
        raise ValueError(
            f"x: expected {a.shape[side]} entries along the axis that is summed over (the {what} "
            f"of a {a.shape}), got shape {array.shape}"
        )
    return array


def _dense_product(
    a: TTMatrix, x: Any, shape: tuple[int, ...], size: tuple[int, ...], *, transposed: bool
) -> jax.Array:
    """Contracts a TT-matrix, or its transpose, with a dense array, by NumPy or a JAX program."""
    dtype = jnp.promote_types(a.dtype, jax.dtypes.canonicalize_dtype(x.dtype))
    if not math.prod(shape):
        return on_device([np.zeros(size, dtype)])[0]
    middle = [
        c.shape if not transposed else (*c.shape[:1], *c.shape[2:0:-1], c.shape[3]) for c in a.cores
    ]
    plan = functools.cache(lambda: contract.plan(_expression(a.order), shape, *middle))
    held = a.cores if linalg.is_host(x) else (*a.cores, x)
    facts = {"key": ("dense product", shape, transposed), "work": lambda: plan().flops}
    if choose_kernel("tt.TTMatrix @ array", held, dtype=np.dtype(dtype), **facts) is NUMPY:
        host = [np.asarray(x), *map(np.asarray, a.cores)]
        arrays, exponent = _scaled_operands(host, shape, dtype, transposed)
        return on_device([linalg.scaled(plan().on_host(*arrays), exponent).reshape(size)])[0]
    arrays, exponent = _scaled_operands([jnp.asarray(x), *a.cores], shape, dtype, transposed)
    out = contract.einsum(_expression(a.order), *arrays, precision=jax.lax.Precision.HIGHEST)
    return linalg.scaled(out, exponent).reshape(size)


def _scaled_operands(
    arrays: Sequence[Any], shape: tuple[int, ...], dtype: Any, transposed: bool
) -> tuple[list[Any], Any]:
    """Casts and scales the arrays of a TT-matrix times dense array; returns the exponent too."""
    x, *cores = (c.astype(dtype) for c in arrays)
    cores, exponent = near_one([c.swapaxes(1, 2) for c in cores] if transposed else cores)
    return [x.reshape(shape), *cores], exponent


def _expression(order: int) -> str:
    """Returns the einsum expression of the product of a TT-matrix with a dense array."""
    names: Sequence[str] = [chr(0x100 + k) for k in range(3 * order + 3)]  # letters are too few
    rows, columns, bonds = names[:order], names[order : 2 * order], names[2 * order : 3 * order + 1]
    first, last = names[-2:]
    pairs = zip(bonds[:-1], rows, columns, bonds[1:], strict=True)
    terms = [first + "".join(columns) + last, *("".join(p) for p in pairs)]
    return f"{','.join(terms)}->{first}{''.join(rows)}{last}"
