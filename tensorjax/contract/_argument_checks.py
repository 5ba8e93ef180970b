"""Argument checks of `tensorjax.contract`: operands, dtypes, memory limits, precision."""

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Strategy = str | Callable[..., Any] | tuple[tuple[int, ...], ...]
_NAMED = (
    "optimal", "dp", "dynamic-programming", "greedy", "eager", "opportunistic", "auto-hq",
    "branch-all", "branch-2", "branch-1", "random-greedy", "random-greedy-128",
)  # fmt: skip


def is_array(x: Any) -> bool:
    """Whether an operand of a contraction is an array, a tracer or a Python number."""
    return isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def describe(index: int, x: Any, dtype: Any) -> tuple[tuple[int, ...], np.dtype, Any]:
    """Checks a contraction's operand; returns shape, dtype and a value for dtype promotion."""
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
    """Converts the dtype of an einsum operand or option to JAX's; TypeError unless numeric."""
    try:
        found = jax.dtypes.canonicalize_dtype(dtype)
        if jnp.issubdtype(found, jnp.number) or found == jnp.bool_:
            return np.dtype(found)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name}: expected a dtype of numbers such as 'float32', got {dtype!r}")


def check_minimize(minimize: Any) -> str:
    """Checks the argument ``minimize`` of a contraction: flops, bytes or peak."""
    if minimize not in ("flops", "bytes", "peak"):
        raise ValueError(f"minimize: expected 'flops', 'bytes' or 'peak', got {minimize!r}")
    return minimize


def check_limit(limit: Any, limit_grad: bool) -> int | None:
    """Checks the argument ``memory_limit`` of a contraction; returns whole bytes, or None."""
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
    """Checks the argument ``precision`` of a contraction: hashable, and known to JAX."""
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
    """Checks ``preferred_element_type`` of a contraction: returns the dtype of its sums."""
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


def check_seconds(seconds: Any) -> float | None:
    """Checks the argument ``seconds``, the time limit of a path search; returns it as float."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise TypeError(f"seconds: expected a number or None, got {seconds!r}")
    if not seconds >= 0:
        raise ValueError(f"seconds: expected at least 0, got {seconds}")
    return float(seconds)


def check_strategy(optimize: Any) -> Strategy:
    """Checks the argument ``optimize`` of a contraction: returns it hashable, or raises."""
    if isinstance(optimize, str):
        if optimize not in ("auto", "cotengra", *_NAMED):
            names = ", ".join(map(repr, ("auto", "cotengra", *_NAMED)))
            raise ValueError(
                f"optimize: expected one of {names}, or a path, got {optimize!r}; "
                "'auto' is the default"
            )
        if optimize == "cotengra" and not importlib.util.find_spec("cotengra"):
            raise ValueError("optimize: 'cotengra' is not installed; install it or use 'auto'")
        return optimize
    if callable(optimize):
        return optimize
    if isinstance(optimize, list | tuple) and all(
        isinstance(step, list | tuple) or step == "einsum_path" for step in optimize
    ):
        return tuple(tuple(s) if isinstance(s, list | tuple) else s for s in optimize)
    raise TypeError(
        "optimize: expected the name of a strategy, a path (a list of tuples of operand positions) "
        f"or a callable as opt_einsum takes, got {optimize!r}; 'auto' is the default"
    )
