"""Frobenius norm of a tensor train."""

import functools
from typing import cast

import jax
import jax.numpy as jnp

from tensorjax import linalg
from tensorjax._formats.scalar_range import held
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._placement import placed
from tensorjax.tt._algebra import conj
from tensorjax.tt._folding import as_train
from tensorjax.tt._inner_products import overlaps_on_host
from tensorjax.tt._inner_products.overlaps_in_programs import overlap

NORM_REMEDY = "tt.log_norm of {} gives its logarithm, tt.normalize a train of norm one"


@placed
@as_train
def norm(x: TT | TTMatrix) -> jax.Array:
    """Computes the Frobenius norm ‖x‖ of a tensor train, a real scalar.

    By the inner product: accurate to about √eps·(sizes of the terms) if ``x`` is a difference of
    nearly equal trains. `distance` has no such loss.

    On a CPU a norm that the dtype cannot hold raises; on accelerators and under jit, vmap and grad
    it is inf or 0, as in IEEE arithmetic. `log_norm` and `normalize` have no such limit. First
    calls are served as those of `inner`.

    Args:
      x: TT or TTMatrix.

    Returns:
      Real scalar, of the precision of ``x``.

    Raises:
      OverflowError: on a CPU, the norm of a concrete finite train is above, or that of a nonzero
        one below the range of the dtype.

    Example:
      >>> from tensorjax import tt
      >>> print(f"{tt.norm(tt.ones((10,) * 30)):.3g}")
      1e+15

    Source: Oseledets (2011), section 4.2.
    """
    value = overlaps_on_host.norm(cast(TT, x))
    value = _norm(x) if value is None else value
    powers = functools.partial(overlaps_on_host.norm_powers, cast(TT, x))
    return held("the norm", value, powers, NORM_REMEDY.format("the train"))


def squared_norm(x: TT) -> tuple[jax.Array, jax.Array]:
    """Computes the squared norm of a tensor train as (m, e), which means m·4^e."""
    mantissa, exponent = overlap(conj(x), x, True)
    mantissa, shift = linalg.normalized(mantissa.real)
    half = (exponent + shift) // 2
    return linalg.scaled(mantissa, exponent + shift - 2 * half), half


squared_norm_by_program = jax.jit(squared_norm)


@jax.jit
def _norm(x: TT) -> jax.Array:
    mantissa, exponent = overlap(conj(x), x, True)
    half = exponent // 2
    rest = jnp.ldexp(mantissa.real, exponent - 2 * half)
    # The derivative of the square root at zero would be infinite: the zero train gets none. NaN is
    # not <= 0, and so comes through.
    none = rest <= 0
    root = jnp.where(none, 0, jnp.sqrt(jnp.where(none, 1, rest)))
    return jnp.ldexp(root, half)
