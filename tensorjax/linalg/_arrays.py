"""Helpers for JAX and NumPy arrays alike: products, adjoints, roots, energies, draws, dtypes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax import _check

Array = Any  # a JAX or NumPy array; NumPy in, NumPy out
_ARRAYS = (np.ndarray, jax.Array)  # unions would be made anew in every call
_HOST = (np.ndarray, np.generic)


def is_host(a: Array) -> bool:
    """Whether an array is NumPy's, so that LAPACK factorises it and not XLA."""
    return isinstance(a, _HOST)


def namespace(a: Array) -> Any:
    return np if is_host(a) else jnp


def matmul(a: Array, b: Array) -> Array:
    """Multiplies arrays a @ b at the highest precision the backend has, whatever its default."""
    return a @ b if is_host(a) else jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def adjoint(a: Array) -> Array:
    """Returns the adjoint, conjugate transpose, of an array over the last two axes."""
    return a.mT.conj() if a.dtype.kind == "c" else a.mT


def scale_columns(a: Array, s: Array) -> Array:
    """Computes a @ diag(s) of JAX or NumPy arrays: scales the columns of a by numbers."""
    return a * s.astype(a.dtype)[..., None, :]


def root(x: Array) -> Array:
    """Computes the root of an array ≥ 0, JAX or NumPy; its derivative at 0 is 0, not infinite."""
    xp = namespace(x)
    return xp.where(x <= 0, 0, xp.sqrt(xp.where(x <= 0, 1, x)))


def identity_like(n: int, like: Array) -> Array:
    """Returns an identity matrix as an array of JAX or NumPy, with the dtype of ``like``."""
    return namespace(like).eye(n, dtype=like.dtype)


def where_positive(x: Array, otherwise: float) -> Array:
    """Replaces entries of a JAX or NumPy array that are not positive by ``otherwise``."""
    return namespace(x).where(x > 0, x, otherwise)


def random_like(key: jax.Array | None, shape: tuple[int, ...], like: Array) -> Array:
    """Draws uniform entries in [−1, 1] with the dtype of a JAX or NumPy array, for sketches.

    Uniform, not Gaussian: as good a sketch, and it needs no inverse error function. Without a key
    the draw is a constant of the program, fixed once and for all.
    """
    if key is None or is_host(like):
        draw = np.random.default_rng(_check.seed(key)).uniform(-1, 1, shape).astype(like.dtype)
        return draw if is_host(like) else jnp.asarray(draw)
    real = jnp.finfo(like.dtype).dtype
    draw = jax.random.uniform(_check.key(key), shape, real, -1, 1).astype(like.dtype)
    return lax.optimization_barrier(draw)  # or XLA draws it again in every fused consumer


def eye_like(a: jax.Array) -> jax.Array:
    return jnp.broadcast_to(
        jnp.eye(a.shape[-1], dtype=a.dtype), (*a.shape[:-2], a.shape[-1], a.shape[-1])
    )


def masked_reciprocal(x: jax.Array, scale: jax.Array, size: int) -> jax.Array:
    """Computes 1/x of a JAX or NumPy array for derivatives; 0 where |x| is roundoff."""
    alive = jnp.abs(x) > size * jnp.finfo(x.dtype).eps * scale
    return jnp.where(alive, 1 / jnp.where(alive, x, 1), 0)


def energy(a: Array) -> Array:
    """Computes the energy ‖a‖_F² of JAX or NumPy arrays over the last two axes."""
    xp = namespace(a)
    if is_host(a) and a.ndim == 2 and a.flags.c_contiguous:
        return np.vdot(a, a).real  # one pass, no temporary
    return xp.sum(
        xp.square(a.real) + (xp.square(a.imag) if xp.iscomplexobj(a) else 0), axis=(-2, -1)
    )


def factor_dtype(dtype: Any) -> Any:
    """Returns the dtype in which to factorise an array: float32 for half precision."""
    return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 32 else jnp.dtype(dtype)


@functools.cache
def epsilon(dtype: Any) -> float:
    """Returns the machine epsilon of a floating or complex dtype, half precision included."""
    return float(jnp.finfo(dtype).eps)


def wide(a: Array) -> Array:
    """Casts a half-precision array to the dtype of its factorisation, single precision."""
    dtype = factor_dtype(a.dtype)
    return a if a.dtype == dtype else a.astype(dtype)


def check_matrices(name: str, x: Any, *, square: bool = False, half: bool = True) -> None:
    """Checks an argument ``x`` to be an array of numbers (…, m, n), of NumPy or JAX, or traced.

    Of half precision only where ``half`` says so.
    """
    if not isinstance(x, _ARRAYS) or x.dtype.kind in "bOSTUmM":
        raise TypeError(
            f"{name}: expected a floating-point or complex array, got {_check.short(x)}"
        )
    _check.unmasked(name, x)
    if not half and x.dtype.itemsize < 4 and jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"{name}: expected single or double precision, got {x.dtype}, which LAPACK and XLA do "
            "not factorise; cast it by .astype(np.float32)"
        )
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        kind = "square matrices (…, m, m)" if square else "matrices (…, m, n)"
        raise ValueError(f"{name}: expected {kind}, got shape {x.shape}")
