"""Conversion of the arguments of coordinate maps and PDE problems: arrays, random generators."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.unfoldings import Cores


def backend(*values: Any) -> Any:
    """Returns `jax.numpy` if an argument of a PDE function is traced, else NumPy."""
    return jnp if _check.is_traced(*values) else np


def floats(*values: Any) -> tuple[Any, list[Any]]:
    """Converts arguments of PDE functions to arrays of one dtype; also returns NumPy or JAX."""
    xp = backend(*values)
    if xp is np:
        return np, [np.asarray(v, np.float64) for v in values]
    dtype = jnp.result_type(*(v.dtype for v in values if _check.is_traced(v)))
    dtype = dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)
    return jnp, [_argument(v).astype(dtype) for v in values]


def _argument(v: Any) -> Any:
    """Converts an argument, a coefficient of a map or a PDE, to an array that tracing keeps.

    So problems that differ in an amplitude share what is compiled: see
    `tensorjax.pde._stepping.compiled_once`.
    """
    if _check.is_traced(v) or np.ndim(v):
        return jnp.asarray(v)
    return jnp.asarray(np.reshape(np.asarray(v), 1))[0]


def hosted_cores(t: Any) -> Cores:
    """Converts the cores of a tensor train, an argument of a PDE function, to float64 NumPy."""
    return [np.asarray(c, np.float64) for c in t.cores]


def real_cores(name: str, t: Any) -> Cores:
    """Converts the cores in an argument as `hosted_cores` does; raises for complex, NaN or Inf."""
    if any(np.iscomplexobj(c) for c in t.cores):
        raise TypeError(f"{name}: expected real cores, got complex ones; take the real part")
    _check.finite(name, t.cores)
    return hosted_cores(t)


def generator_of(key: Any) -> np.random.Generator:
    """Converts the argument ``key`` of a PDE function, a JAX key or generator, to one of NumPy."""
    if isinstance(key, np.random.Generator):
        return key
    return _check.host_generator(key, "; a NumPy generator will do too")


def check_concrete(names: str, *values: Any) -> None:
    """Raises TypeError if arguments of a function on densities are traced."""
    if _check.is_traced(*values):
        raise TypeError(
            f"{names}: expected concrete arrays, got traced ones; call this outside jit, vmap and "
            "grad"
        )


def coefficient(name: str, value: Any, shape: tuple[int, ...], *, optional: bool = False) -> Any:
    """Converts an argument that is a PDE coefficient to float64; ValueError for a wrong shape.

    An optional one may be None.
    """
    if optional and value is None:
        return None
    value = value if _check.is_traced(value) else np.asarray(value, np.float64)
    if value.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {value.shape}")
    _check.finite(name, value)
    return value


def or_zero(value: Any, *shape: int) -> Any:
    """Returns an argument that is a PDE coefficient, or zeros of its shape where it is None."""
    return np.zeros(shape) if value is None else value


def finite(**values: float) -> None:
    """Raises ValueError for arguments of a PDE function that are not finite numbers."""
    for name, value in values.items():
        if not (np.ndim(value) == 0 and np.isfinite(value)):
            raise ValueError(f"{name}: expected a finite number, got {value!r}")


def positive(**values: float) -> None:
    """Raises ValueError for arguments of a PDE function that are not positive finite numbers."""
    finite(**values)
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value!r}")
