"""Overlaps Σ x_i y_i of two tensor trains in compiled JAX programs: by C++ sweeps, or by XLA."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import _native, linalg
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.table import CPP, TRACE
from tensorjax.contract import einsum

_HIGHEST = jax.lax.Precision.HIGHEST


def overlap(x: TT, y: TT, same: bool = False) -> tuple[jax.Array, jax.Array]:
    """Computes Σ_i x_i y_i of two tensor trains in a compiled JAX program, as (m, e) for m·2^e."""
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x, y = x.astype(dtype), y.astype(dtype)  # cores of one train may differ too
    operation = _operation(same)
    if choose_kernel(operation, (*x.cores, *y.cores), TRACE) is CPP:
        return _either_overlap(x, y, same)
    return _overlap_by_xla(x, y, same)


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
        size = linalg.exponent_of(a)
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
