"""Values and gradients of functional trains at points."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb, einsum
from tensorjax._cores.unfoldings import Cores
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax._typing import ArrayLike
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.function_train import FunctionTrain, checked

# Elements that one piece of a long batch may take in a product with a core.
_PIECE = 2**23


@placed
def evaluate(f: FunctionTrain, x: ArrayLike) -> jax.Array:
    """Evaluates a functional train at points of its box, also ``f(x)``.

    Args:
      f: functional train of d variables.
      x: real points (…, d); under jit and vmap too.

    Returns:
      (…,) values, in the promoted dtype of the coefficients and the points. Points outside of the
      box that are known only under a transformation give NaN.

    Raises:
      ValueError: the last axis is not d, or a concrete point is outside of the box.
      TypeError: points that are no real numbers.

    Example:
      >>> import jax, numpy as np
      >>> from tensorjax import tt
      >>> f, info = tt.functions.interpolate(
      ...     lambda x: np.exp(-x.sum(axis=1)), [(0, 1)] * 4, tol=1e-5, key=jax.random.key(0)
      ... )
      >>> x = np.array([[0.1, 0.2, 0.3, 0.4], [1.0, 1.0, 1.0, 1.0]])
      >>> bool(np.allclose(f(x), np.exp([-1.0, -4.0]), atol=1e-4))
      True

    O(d n r²) operations a point. Intermediate results are kept in range by powers of two, and long
    batches are done in pieces. Concrete arguments on a CPU are served by NumPy.

    Source: Gorodetsky et al. (2019), section 2. Ours: the scaling.
    """
    checked(f)
    points = checked_points(f, x)
    flat = points.reshape(-1, f.ndim)
    if choose_kernel("tt.functions.evaluate", (flat, f)) is NUMPY:
        cores = [np.asarray(c) for c in f.coefficients.cores]
        out = host_values(f.bases, cores, np.asarray(flat)).reshape(points.shape[:-1])
        return on_device([out.astype(_dtype(f, jnp.asarray(flat[:0]).dtype), copy=False)])[0]
    return _evaluate(f, jnp.asarray(flat)).reshape(points.shape[:-1])


@placed
def gradient(f: FunctionTrain, x: ArrayLike) -> jax.Array:
    """Evaluates all partial derivatives of a functional train at points, by reverse mode.

    Args:
      f: functional train of d variables, real or complex.
      x: real points (…, d).

    Returns:
      (…, d); NaN outside of the box, as of `evaluate`.

    Raises:
      ValueError: the last axis is not d, or a concrete point is outside of the box.
      TypeError: points that are no real numbers.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> bases = [tt.functions.Chebyshev(1)] * 2   # 1, x
      >>> f = tt.functions.FunctionTrain(bases, tt.rank_one([jnp.array([0.0, 1.0])] * 2))   # x y
      >>> print(tt.functions.gradient(f, [0.25, 0.5]).round(4))
      [0.5  0.25]

    Source: ours; reverse-mode derivatives, which take about three evaluations for all variables.
    """
    checked(f)
    points = checked_points(f, x)
    flat = points.reshape(-1, f.ndim)
    return _gradient(f, jnp.asarray(flat)).reshape(points.shape)


def checked_points(f: FunctionTrain, x: Any) -> Any:
    """Returns points (…, d) to evaluate a functional train at; raises an error out of its box."""
    points = x if isinstance(x, jax.Array) else np.asarray(x)
    if points.dtype.kind in "biu" and not _check.is_traced(points):
        points = np.asarray(points, np.dtype(f.dtype).type(0).real.dtype)
    if not jnp.issubdtype(points.dtype, jnp.floating):
        raise TypeError(f"x: expected real points (…, {f.ndim}), got dtype {points.dtype}")
    if points.ndim == 0 or points.shape[-1] != f.ndim:
        raise ValueError(f"x: expected shape (…, {f.ndim}), got {points.shape}")
    if not _check.is_traced(points) and points.size:
        host = np.asarray(points).reshape(-1, f.ndim)
        low, high = (np.asarray(end).astype(host.dtype) for end in zip(*f.domain, strict=True))
        outside = ~((host >= low) & (host <= high)).all(axis=1)
        if outside.any():
            raise ValueError(
                f"x: expected points in the box {f.domain}, got {int(outside.sum())} outside, "
                f"first {tuple(host[outside.argmax()].tolist())}; under jit their values are NaN"
            )
    return points


@jax.jit
def _evaluate(f: FunctionTrain, x: jax.Array) -> jax.Array:
    return in_pieces(f, x, _values)


@jax.jit
def _gradient(f: FunctionTrain, x: jax.Array) -> jax.Array:
    def piece(f: FunctionTrain, x: jax.Array) -> jax.Array:
        # Rows are independent of each other: the derivative of a sum holds all of their gradients.
        def part(x: jax.Array, take: Any) -> jax.Array:
            return jnp.sum(take(_values(f, x)))

        out = jax.grad(part)(x, jnp.real)
        if jnp.issubdtype(f.dtype, jnp.complexfloating):
            out = jax.lax.complex(out, jax.grad(part)(x, jnp.imag))
        outside = jnp.isnan(_values(f, x))
        return jnp.where(outside[:, None], jnp.asarray(jnp.nan, out.dtype), out)

    return in_pieces(f, x, piece)


def in_pieces(f: FunctionTrain, x: jax.Array, function: Any) -> jax.Array:
    """Evaluates a function of a functional train at a long batch of points, piece by piece."""
    widest = max(math.prod(c.shape) // min(c.shape[0], c.shape[2]) for c in f.coefficients.cores)
    piece = max(1, _PIECE // widest)
    if x.shape[0] <= piece:
        return function(f, x)
    count = -(-x.shape[0] // piece)
    padded = jnp.concatenate([x, jnp.broadcast_to(x[:1], (count * piece - x.shape[0], f.ndim))])
    out = jax.lax.map(lambda rows: function(f, rows), padded.reshape(count, piece, f.ndim))
    return out.reshape(count * piece, *out.shape[2:])[: x.shape[0]]


def _values(f: FunctionTrain, x: jax.Array) -> jax.Array:
    dtype = _dtype(f, x.dtype)
    x = x.astype(jnp.finfo(dtype).dtype)
    held, exponent = jnp.ones((x.shape[0], 1), dtype), jnp.zeros((x.shape[0], 1), jnp.int32)
    for k, (basis, core) in enumerate(zip(f.bases, f.coefficients.cores, strict=True)):
        rows = basis.values(x[:, k]).astype(dtype)
        held = einsum("ba,bn,ans->bs", held, rows, core.astype(dtype))
        held, more = linalg.normalized(held, -1)
        exponent = exponent + more
    return linalg.scaled(held[:, 0], exponent[:, 0])


def _dtype(f: FunctionTrain, of_points: Any) -> Any:
    """Returns the dtype of a functional train's values when evaluated at points of a dtype."""
    real = jnp.finfo(f.dtype).dtype
    if jnp.finfo(of_points).bits > jnp.finfo(real).bits:
        real = of_points
    if not jnp.issubdtype(f.dtype, jnp.complexfloating):
        return real
    return np.dtype(np.complex128 if jnp.finfo(real).bits == 64 else np.complex64)


def host_values(bases: Sequence[Basis], cores: Cores, x: np.ndarray) -> np.ndarray:
    """Evaluates a functional train of NumPy cores at points (batch, d), in double precision.

    Returns:
      Values (batch,); or (batch, components) if there is one core more than bases.
    """
    wide = [c.astype(linalg.factor_dtype(c.dtype)) for c in cores]
    wide = [c.astype(np.result_type(c.dtype, np.float64)) for c in wide]
    piece = max(1, _PIECE // max(c.size // min(c.shape[0], c.shape[2]) for c in wide))
    out = []
    for first in range(0, max(1, len(x)), piece):
        rows = x[first : first + piece]
        held, exponent = np.ones((len(rows), 1)), np.zeros((len(rows), 1), int)
        for k, (basis, core) in enumerate(zip(bases, wide, strict=False)):
            held = einsum("ba,bn,ans->bs", held, basis.values(rows[:, k]), core)
            held, more = linalg.normalized(held, -1)
            exponent = exponent + more
        held = linalg.scaled(held, exponent)
        out.append(held[:, 0] if len(wide) == len(bases) else absorb(held, wide[-1])[:, :, 0])
    return np.concatenate(out)
