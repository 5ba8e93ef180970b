"""Argument checks of `tensorjax.contract`: operands, dtypes, memory limits, precision."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_array(x: Any) -> bool:
    """Whether an operand ``x`` to check is an array, a tracer or a Python number."""
    return isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def describe(index: int, x: Any, dtype: Any) -> tuple[tuple[int, ...], np.dtype, Any]:
    """Checks an operand: returns shape, dtype, and its representative for type promotion."""
    if isinstance(x, tuple) and all(isinstance(n, int | np.integer) and n >= 0 for n in x):
        kind = _checked_dtype("dtype", dtype)
        return tuple(int(n) for n in x), kind, kind
    if isinstance(x, jax.ShapeDtypeStruct):
        kind = _checked_dtype(f"operand {index}", x.dtype)
        return tuple(x.shape), kind, kind
    if is_array(x):
        found = getattr(x, "dtype", None)
        found = jnp.result_type(x) if found is None else found
        return tuple(np.shape(x)), _checked_dtype(f"operand {index}", found), x
    raise TypeError(
        f"operand {index}: expected an array, a jax.ShapeDtypeStruct or a shape (a tuple of "
        f"non-negative ints), got {x!r}; convert data by jnp.asarray"
    )


def _checked_dtype(name: str, dtype: Any) -> np.dtype:
    """Checks a dtype option: returns the one JAX will use; raises if it is not numeric."""
    try:
        found = jax.dtypes.canonicalize_dtype(dtype)
        if jnp.issubdtype(found, jnp.number) or found == jnp.bool_:
            return np.dtype(found)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name}: expected a dtype of numbers such as 'float32', got {dtype!r}")


def check_minimize(minimize: Any) -> str:
    """Checks the option ``minimize``: "flops", "bytes" or "peak"."""
    if minimize not in ("flops", "bytes", "peak"):
        raise ValueError(f"minimize: expected 'flops', 'bytes' or 'peak', got {minimize!r}")
    return minimize


def check_limit(limit: Any, limit_grad: bool) -> int | None:
    """Checks the option of a memory limit and returns it in whole bytes; None for none."""
    if limit_grad and limit is None:
        raise ValueError("limit_grad: expected a memory_limit with it, got None; give one in bytes")
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.integer | np.floating):
        raise TypeError(
            f"memory_limit: expected a number of bytes or None, got {type(limit).__name__}"
        )
    if not limit >= 1:
        raise ValueError(
            f"memory_limit: expected a positive number of bytes, got {limit}; None is no limit"
        )
    return None if limit == math.inf else int(limit)


def check_precision(precision: Any) -> Any:
    """Checks the option of matrix-product precision by JAX's rule, and makes it hashable."""
    if precision is None:
        return None
    precision = tuple(precision) if isinstance(precision, list) else precision
    vector = jax.ShapeDtypeStruct((1,), jnp.float32)
    try:
        jax.eval_shape(functools.partial(jnp.dot, precision=precision), vector, vector)
    except (TypeError, ValueError) as error:
        raise type(error)(f"precision: got {precision!r}. {error}") from error
    return precision


def check_preferred(preferred: Any, common: np.dtype) -> np.dtype | None:
    """Checks the option of a preferred dtype, which must hold the values of the operands."""
    if preferred is None:
        return None
    dtype = _checked_dtype("preferred_element_type", preferred)
    for kind in (jnp.complexfloating, jnp.inexact, jnp.number):
        if jnp.issubdtype(common, kind) and not jnp.issubdtype(dtype, kind):
            raise ValueError(
                f"preferred_element_type: expected a type that can hold {common}, got {dtype}; "
                "take the real part or round the operands first"
            )
    return dtype
