"""Kernels of inner products and norms of trains: NumPy, C++ or XLA, on the host or in programs."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _native, linalg
from tensorjax._cores.contractions import absorb
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.scaling import norms_near_one
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.overflow_checks import Powers, power_of_ten
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.conditions import most_products
from tensorjax._kernels.table import CPP, PROGRAM, TRACE
from tensorjax._kernels.train_signatures import remember
from tensorjax._transfer import on_device
from tensorjax.contract import einsum
from tensorjax.tt._entries import on_host
from tensorjax.tt._exact_arithmetic import conj
from tensorjax.tt._products.product_kernels import common_dtype, mode_sums

# The matrix carried from core to core is rescaled once its squared norm leaves 2^±_TAME.
_TAME = 60

_overlap_in_one_call = jax.jit(_native.overlap)

_HIGHEST = jax.lax.Precision.HIGHEST


def inner_on_host(x: TT, y: TT) -> jax.Array | None:
    """Computes the inner product ⟨x, y⟩ of trains by NumPy; None if compiled code is better."""
    found = _overlap(x, y, "inner")
    if found is None or isinstance(found, jax.Array):
        return found
    with np.errstate(all="ignore"):
        return on_device([np.asarray(linalg.scaled(*found))])[0]


def in_one_call(x: TT, y: TT) -> jax.Array:
    """Computes the inner product of two trains by one call of the C++ kernel, once chosen."""
    return _overlap_in_one_call(x.cores, y.cores)


def norm_on_host(x: TT) -> jax.Array | None:
    """Computes the norm ‖x‖ of a train by its NumPy kernel; None if compiled code is better."""
    found = _overlap(x, x, "norm")
    if found is None or isinstance(found, jax.Array):
        return found
    square, exponent = found[0].real, found[1]
    half = exponent // 2
    with np.errstate(all="ignore"):
        rest = np.ldexp(square, exponent - 2 * half)
        root = abs(rest * 0) if rest <= 0 else np.sqrt(rest)
        return on_device([np.asarray(np.ldexp(root, half))])[0]


def squared_norm_on_host(x: TT) -> tuple[Any, int] | None:
    """Computes ‖x‖² of a train by its NumPy kernel, as (m, e) for m·4^e; None if left to XLA.

    In double precision: the norm of a train of many sites is a product of many rounded factors.
    """
    if choose_kernel("tt.log_norm", x.cores) is PROGRAM:
        return None
    square, exponent = _in_double_precision(x, x)
    square, shift = linalg.normalized(np.asarray(square.real))
    half = (exponent + shift) // 2
    return linalg.scaled(square, exponent + shift - 2 * half), half


def powers(x: TT, y: TT) -> Powers:
    """Returns log10 of the inner product |⟨x, y⟩| and of ‖x‖·‖y‖, to check kernels for overflow."""

    def bound() -> float:
        return norm_power(x) + (norm_power(y) if x is not y else norm_power(x))

    return power_of_ten(*_in_double_precision(x, y)), bound


def norm_power(x: TT) -> float:
    """Computes log10 ‖x‖ of a train by the NumPy kernel of the inner product."""
    return power_of_ten(*_in_double_precision(x, x)) / 2


def norm_powers(x: TT) -> Powers:
    """Returns log10 ‖x‖ by the NumPy kernel of the norm, for overflow checks, and −∞ as bound."""
    return norm_power(x), lambda: -math.inf


def _in_double_precision(x: TT, y: TT) -> tuple[Any, int]:
    wide = np.result_type(linalg.factor_dtype(jnp.promote_types(x.dtype, y.dtype)), np.float64)
    with np.errstate(all="ignore"), _blas_threads.one_thread(True):
        left = on_host(x.cores, wide)
        return host_overlap(left, left if x is y else on_host(y.cores, wide))


def _overlap(x: TT, y: TT, kind: str) -> tuple[Any, int] | jax.Array | None:
    """Runs the kernel chosen for an inner product or norm: NumPy or C++; None if that is XLA.

    Or what is asked for, the inner product or the norm, by one call of C++.
    """
    cores = x.cores if kind == "norm" else (*x.cores, *y.cores)
    dtype, same = common_dtype(cores)
    shapes = tuple([c.shape for c in cores])
    facts = {
        "dtype": dtype,
        "key": kind,
        "shapes": shapes,
        "work": lambda: _multiplications(shapes, kind == "norm"),
        "products": lambda: _multiplications(shapes, kind == "norm") / (1 + (kind == "norm")),
        "one_dtype": same,
        "sum_time": lambda: mode_sums(kind, shapes),
    }
    chosen = choose_kernel(f"tt.{kind}", cores, **facts)
    if chosen is CPP:
        if kind == "norm":
            return _overlap_in_one_call(x.cores, ())
        # Long ones of other types are served so for their entries alone.
        if dtype == np.float64 or _multiplications(shapes, False) <= most_products(dtype):
            remember(kind, x, y)
        return in_one_call(x, y)
    if chosen is PROGRAM:
        return None
    with np.errstate(all="ignore"), _blas_threads.one_thread(True):
        left = on_host(x.cores, dtype)
        return host_overlap(left, left if x is y else on_host(y.cores, dtype))


@functools.lru_cache(maxsize=4096)
def _multiplications(shapes: tuple[tuple[int, ...], ...], same: bool) -> float:
    """Counts the multiplications of an inner product or squared norm, to choose its kernel."""
    half = len(shapes) if same else len(shapes) // 2
    pairs = zip(shapes[:half], shapes[-half:], strict=True)
    return float(sum(a[0] * b[1] * b[2] * (b[0] + a[2]) for a, b in pairs))


def host_overlap(xs: Cores, ys: Cores) -> tuple[Any, int]:
    """Computes the inner product of two trains of host cores by NumPy, as mantissa and exponent.

    Cores are brought near one when their turn comes: they are read once, while in the cache.
    """
    low, high = 2.0**-_TAME, 2.0**_TAME
    e: Any = np.ones((1, 1), ys[0].dtype)
    exponent = 0
    for left, right in zip(xs, ys, strict=True):
        (a,), more = norms_near_one([left])
        (b,), shift = ((a,), more) if left is right else norms_near_one([right])
        exponent += more + shift
        e = bond_overlap(a, absorb(e, b))
        if not low < np.vdot(e, e).real < high:
            e, shift = linalg.normalized(e)
            exponent += shift
    return e[0, 0], exponent


def overlap(x: TT, y: TT, same: bool = False) -> tuple[jax.Array, jax.Array]:
    """Computes Σ_i x_i y_i of trains in a JAX program, by C++ or XLA, as (m, e) for m·2^e."""
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x, y = x.astype(dtype), y.astype(dtype)  # cores of one train may differ too
    operation = _operation(same)
    if choose_kernel(operation, (*x.cores, *y.cores), TRACE) is CPP:
        return _either_overlap(x, y, same)
    return _overlap_by_xla(x, y, same)


def squared_norm(x: TT) -> tuple[jax.Array, jax.Array]:
    """Computes ‖x‖² of a train in a JAX program, by C++ or XLA, as (m, e) for m·4^e."""
    mantissa, exponent = overlap(conj(x), x, True)
    mantissa, shift = linalg.normalized(mantissa.real)
    half = (exponent + shift) // 2
    return linalg.scaled(mantissa, exponent + shift - 2 * half), half


squared_norm_by_program = jax.jit(squared_norm)


def _operation(same: bool) -> str:
    return "tt.norm" if same else "tt.inner"


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _either_overlap(x: TT, y: TT, same: bool) -> tuple[jax.Array, jax.Array]:
    results = jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct((), jnp.int32)
    native, otherwise = (_norm_by_sweeps, _norm_by_xla) if same else (_by_sweeps, _overlap_by_xla)
    operands = (x,) if same else (x, y)
    kernels = _operation(same), native, otherwise
    mantissa, exponent = cpp_or_xla(*kernels, *operands, results=results)
    return mantissa, exponent


def _by_sweeps(x: TT, y: TT) -> tuple[jax.Array, jax.Array]:
    return _native.inner(x.cores, y.cores)


def _norm_by_sweeps(x: TT) -> tuple[jax.Array, jax.Array]:
    return _native.inner(x.cores)


def _norm_by_xla(x: TT) -> tuple[jax.Array, jax.Array]:
    return _overlap_by_xla(x, x, True)  # real: the conjugate is the train itself


@_either_overlap.defjvp
def _either_overlap_jvp(same: bool, primals: Any, tangents: Any) -> Any:
    return jax.jvp(_overlap_by_xla, primals, tangents)


def _overlap_by_xla(x: TT, y: TT, same: bool = False) -> tuple[jax.Array, jax.Array]:
    e = jnp.ones((1, 1), x.dtype)
    exponent = jnp.zeros((), jnp.int32)
    # From the right: all that is transposed is a right factor, which XLA multiplies fastest.
    for a, b in zip(reversed(x.cores), reversed(y.cores), strict=True):
        size = linalg.exponent_of_nonzero(linalg.exponent_of(a), a.dtype)
        e = e * linalg.power_of_two(-size, e.dtype)
        # One after the other: two large cores must not meet before e has scaled one of them down.
        e = einsum("aic,cd->aid", a, e, precision=_HIGHEST)
        if same:
            # So many terms of the size of b, which is that of a, may be beyond what each of them
            # is within; exponents are clipped to two below the largest one. Elsewhere a look at b
            # would take as long as the product.
            terms = math.ceil(math.log2(a.shape[1] * a.shape[2] ** 2)) + 4
            down = jnp.maximum(size + terms - int(jnp.finfo(e.dtype).maxexp), 0)
            e, size = e * linalg.power_of_two(-down, e.dtype), size + down
        e, shift = linalg.normalized(einsum("aid,bid->ab", e, b, precision=_HIGHEST))
        exponent = exponent + shift + size
    return e[0, 0], exponent
