"""QR factorisation with finite derivatives, and scaling helpers, on JAX or NumPy arrays.

A NumPy array goes to the host's LAPACK and a JAX array to XLA. JAX's own derivatives of these
factorisations divide by differences of singular values and by the diagonal of r, and so give NaN on
repeated values and on zero-padded arrays; here such terms are left out.

On the host it is NumPy's LAPACK, not SciPy's: each brings threads of its own, which go on spinning
for a while after every call. Taken in turn on two cores they slow a sweep many times over.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax._placement import placed

Array = Any  # a JAX or NumPy array; NumPy in, NumPy out


def factor_dtype(dtype: Any) -> Any:
    """Returns the dtype to factorise in: float32 for half precision, which LAPACK lacks."""
    return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 32 else jnp.dtype(dtype)


@functools.cache
def epsilon(dtype: Any) -> float:
    """Returns the machine epsilon of a floating or complex dtype, half precision included."""
    return float(jnp.finfo(dtype).eps)


def is_host(a: Array) -> bool:
    """Whether ``a`` is a NumPy array, to be factorised by LAPACK on the host."""
    return isinstance(a, np.ndarray | np.generic)


def namespace(a: Array) -> Any:
    return np if is_host(a) else jnp


def matmul(a: Array, b: Array) -> Array:
    """Computes a @ b at the highest precision the backend has (accelerators default to less)."""
    return a @ b if is_host(a) else jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def adjoint(a: Array) -> Array:
    """Returns the conjugate transpose over the last two axes."""
    return a.mT.conj() if a.dtype.kind == "c" else a.mT


def scale_columns(a: Array, s: Array) -> Array:
    """Scales the columns of ``a``: a @ diag(s), with s real or of the dtype of ``a``."""
    return a * s.astype(a.dtype)[..., None, :]


def root(x: Array) -> Array:
    """Computes √x of non-negative entries, with derivative 0 at 0; NaN of NaN."""
    xp = namespace(x)
    return xp.where(x <= 0, 0, xp.sqrt(xp.where(x <= 0, 1, x)))


def energy(a: Array) -> Array:
    """Computes the squared Frobenius norm ‖a‖_F² over the last two axes, real."""
    xp = namespace(a)
    if is_host(a) and a.ndim == 2 and a.flags.c_contiguous:
        return np.vdot(a, a).real  # one pass, no temporary
    return xp.sum(
        xp.square(a.real) + (xp.square(a.imag) if xp.iscomplexobj(a) else 0), axis=(-2, -1)
    )


def normalized(x: Array, axis: Any = None) -> tuple[Array, Any]:
    """Splits x exactly into (x / 2^e, e), the largest part then in [1/2, 1)."""
    e = exponent_of(x, axis)
    return (scaled(x, -e) if is_host(x) else x * power_of_two(-e, x.dtype)), e


def exponent_of(x: Array, axis: Any = None) -> Any:
    """Returns e such that the largest real or imaginary part of x lies in [2^(e−1), 2^e).

    With ``axis`` it is that of each slice over these axes, which are kept, of size one.
    """
    kept = axis is not None
    if is_host(x):
        size = largest_part(x, axis)
        return np.frexp(size)[1] if kept else math.frexp(size)[1]
    x = lax.stop_gradient(x)
    real = jnp.finfo(x.dtype).dtype
    integer, bits, bias = _ieee(real)

    def largest(part: Array) -> Any:
        # Magnitudes are ordered as their bits are, and integers compare faster: no NaN to heed.
        size = lax.bitcast_convert_type(part, integer) & jnp.iinfo(integer).max
        return jnp.max(size, axis=axis, keepdims=kept, initial=0)

    size = largest(x.real)
    if jnp.iscomplexobj(x):
        size = jnp.maximum(size, largest(x.imag))
    # The bits of the exponent themselves: frexp takes XLA several times longer to compile.
    e = (size >> bits).astype(jnp.int32) - bias + 1
    return jnp.clip(e, 2 - bias, bias - 1)  # both 2^e and 2^(−e) are normal numbers


def largest_part(x: Array, axis: Any = None) -> Any:
    """Returns the largest magnitude of real and imaginary parts; 0 if empty, NaN if one is NaN."""
    parts = (x.real, x.imag) if np.iscomplexobj(x) else (x,)
    keep = {"axis": axis, "keepdims": axis is not None, "initial": 0}
    sizes = [np.maximum(p.max(**keep), -p.min(**keep)) for p in parts]
    return functools.reduce(np.maximum, sizes)


def squares_fit(x: Array) -> bool:
    """Whether ‖x‖², and small shares of it, neither overflow nor underflow in the dtype of x."""
    top = exponents_held(x.dtype)[1] + 1
    return bool(2.0 ** (-0.2 * top) <= largest_part(x) <= 2.0 ** (0.3 * top))


@functools.cache
def exponents_held(dtype: Any) -> tuple[int, int]:
    """Returns the range of exponents of its largest part in which an array keeps all digits."""
    info = jnp.finfo(dtype)
    return int(info.minexp) + int(info.nmant), int(info.maxexp) - 1


def power_of_two(e: Any, dtype: Any) -> jax.Array:
    """Builds 2^e in ``dtype`` from the bits of the exponent, as `exponent_of` gives it."""
    real = jnp.finfo(dtype).dtype
    integer, bits, bias = _ieee(real)
    raw = (jnp.asarray(e, jnp.int32) + bias).astype(integer) << bits
    return lax.bitcast_convert_type(raw, real).astype(dtype)


def _ieee(real: Any) -> tuple[Any, int, int]:
    """Returns the layout of a float dtype: integer type, fraction bits, exponent bias."""
    info = jnp.finfo(real)
    return jnp.dtype(f"int{info.bits}"), info.nmant, int(info.maxexp) - 1


def scaled(x: Array, exponent: Any) -> Array:
    """Multiplies x by 2^exponent for any exponent; the result may overflow or vanish.

    In two halves: the value may be in range where 2^exponent is not.
    """
    half = exponent // 2
    if is_host(x):
        if np.ndim(exponent) == 0 and exponent == 0:
            return x
        one = np.ones((), x.real.dtype)
        with np.errstate(over="ignore"):
            return x * np.ldexp(one, half) * np.ldexp(one, exponent - half)
    limit = _ieee(jnp.finfo(x.dtype).dtype)[2] - 1
    halves = (jnp.clip(e, -limit, limit) for e in (half, exponent - half))
    for e in halves:
        x = x * power_of_two(e, x.dtype)
    return x


def identity_like(n: int, like: Array) -> Array:
    """Returns the n × n identity, in the dtype and array library of ``like``."""
    return namespace(like).eye(n, dtype=like.dtype)


def where_positive(x: Array, otherwise: float) -> Array:
    """Replaces entries of x that are not positive by ``otherwise``."""
    return namespace(x).where(x > 0, x, otherwise)


def random_like(key: jax.Array | None, shape: tuple[int, ...], like: Array) -> Array:
    """Draws independent entries, uniform on [-1, 1], in the dtype and library of ``like``.

    Uniform, not Gaussian: as good a sketch, and it needs no inverse error function. Without a key
    the draw is a constant of the program, fixed once and for all.
    """
    if key is None or is_host(like):
        seed = 0 if key is None else np.asarray(jax.random.key_data(key)).ravel()
        draw = np.random.default_rng(seed).uniform(-1, 1, shape).astype(like.dtype)
        return draw if is_host(like) else jnp.asarray(draw)
    real = jnp.finfo(like.dtype).dtype
    draw = jax.random.uniform(key, shape, real, -1, 1).astype(like.dtype)
    return lax.optimization_barrier(draw)  # or XLA draws it again in every fused consumer


def qr(a: Array) -> Any:
    """Computes the reduced QR, a = q @ r with q (…, m, k), r (…, k, n), k = min(m, n).

    Derivatives are finite for rank-deficient ``a``: directions whose diagonal entry of r vanishes
    get none. Wide matrices are differentiable too.

    Example:
      >>> import jax.numpy as jnp
      >>> q, r = qr(jnp.ones((3, 2)))
      >>> q.shape, r.shape
      ((3, 2), (2, 2))
    """
    return tuple(np.linalg.qr(a)) if is_host(a) else _qr(a)


@placed
def _qr(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    m, n = a.shape[-2:]
    if m >= n:
        return _qr_tall(a)
    q, left = _qr_tall(a[..., :m])
    return q, jnp.concatenate([left, matmul(adjoint(q), a[..., m:])], axis=-1)


@jax.custom_jvp
def _qr_tall(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    q, r = jnp.linalg.qr(a)
    return q, after(r, q)  # r is there before q is, and whoever factors r must wait


def after(x: Array, *done: Array) -> Array:
    """Returns x with a data dependency on other arrays, so that XLA computes these first.

    XLA cannot prove that what is added is zero.

    Factorisations of batches (as `jax.vmap` makes them) must not run side by side on a CPU. Each
    holds a thread of XLA's pool while it waits for others to do the work: on two cores two of them
    hold both, and the program stands still for ever (seen with jaxlib 0.10.1).
    """
    for y in (y for y in done if y.size):
        zero = 0 * y.ravel()[:1].real
        x = x + zero.reshape((1,) * x.ndim).astype(x.dtype)
    return x


@_qr_tall.defjvp
def _qr_tall_jvp(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    q, r = _qr_tall(a)
    c = _right_solve(da, r)
    qc = matmul(adjoint(q), c)
    lower = jnp.tril(qc, -1)
    omega = lower - adjoint(lower)
    if jnp.iscomplexobj(qc):  # r has a real diagonal, so the phase moves into q
        omega = omega + _imaginary_diagonal(qc)
    dq = c - matmul(q, qc) + matmul(q, omega)
    dr = matmul(adjoint(q), da) - matmul(omega, r)
    return (q, r), (dq, dr)


def _right_solve(b: jax.Array, r: jax.Array) -> jax.Array:
    """Solves for b r⁻¹, r upper triangular; columns of the result with a vanishing pivot are 0."""
    diagonal = jnp.abs(jnp.diagonal(r, axis1=-2, axis2=-1))
    alive = diagonal > _floor(diagonal, max(b.shape[-2:]))
    # Dead directions get a unit pivot for the solve.
    pivots = jnp.where(alive, 0, 1).astype(r.dtype)
    solvable = r + pivots[..., None, :] * eye_like(r)
    c = lax.linalg.triangular_solve(solvable, b, left_side=False, lower=False)
    return jnp.where(alive[..., None, :], c, 0)


def triangle(a: Array) -> Array:
    """Computes the factor r of `qr` alone, for tall ``a``: less than half the work of both."""
    if is_host(a):
        return np.linalg.qr(a, mode="r")
    return placed(_triangle)(a)


@jax.custom_jvp
def _triangle(a: jax.Array) -> jax.Array:
    return jnp.linalg.qr(a, mode="r")


@_triangle.defjvp
def _triangle_jvp(primals: Any, tangents: Any) -> Any:
    (_, r), (_, dr) = jax.jvp(_qr_tall, primals, tangents)
    return r, dr


def _floor(magnitude: jax.Array, size: int) -> jax.Array:
    """Returns the roundoff threshold beside entries of the given magnitudes, (…, 1)."""
    return size * jnp.finfo(magnitude.dtype).eps * jnp.max(magnitude, axis=-1, keepdims=True)


def _imaginary_diagonal(a: jax.Array) -> jax.Array:
    return (a - a.conj()) / 2 * eye_like(a)


def eye_like(a: jax.Array) -> jax.Array:
    return jnp.broadcast_to(
        jnp.eye(a.shape[-1], dtype=a.dtype), (*a.shape[:-2], a.shape[-1], a.shape[-1])
    )


def masked_reciprocal(x: jax.Array, scale: jax.Array, size: int) -> jax.Array:
    """Computes 1/x, and 0 where |x| is roundoff beside ``scale``."""
    alive = jnp.abs(x) > size * jnp.finfo(x.dtype).eps * scale
    return jnp.where(alive, 1 / jnp.where(alive, x, 1), 0)
