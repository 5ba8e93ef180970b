"""Steps along manifolds of matrices with orthonormal columns."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from tensorjax._factor import Array, adjoint, identity_like, where_positive

# Sufficient decrease of a step, as a share of what the slope promises (Armijo).
_ARMIJO = 1e-4
_SHORTEST = 1e-12


def skew(a: Array) -> Array:
    """The skew-Hermitian part (a − aᴴ)/2."""
    return (a - adjoint(a)) / 2


def cayley(z: jax.Array) -> jax.Array:
    """(1 − z/2)⁻¹ (1 + z/2), unitary for skew-Hermitian z, and exp(z) to second order."""
    eye = identity_like(z.shape[-1], z)
    return jnp.linalg.solve(eye - z / 2, eye + z / 2)


def line_search(
    loss: Callable[[jax.Array], jax.Array], value: jax.Array, slope: jax.Array, first: jax.Array
) -> jax.Array:
    """A step t > 0 that lowers ``loss(t)`` sufficiently, or 0 if there is none.

    One parabola, through the value and the slope at 0 and the loss at ``first``; then halving.
    """
    tried = loss(first)
    bend = tried - value - slope * first
    vertex = jnp.where(bend > 0, -slope * first**2 / where_positive(2 * bend, 1.0), 2 * first)
    at_vertex = loss(vertex)
    better = at_vertex < tried
    start = jnp.where(better, vertex, first), jnp.where(better, at_vertex, tried)

    def fails(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        t, f = carry
        return ~(f <= value + _ARMIJO * t * slope) & (t > _SHORTEST)

    def halve(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return carry[0] / 2, loss(carry[0] / 2)

    t, f = lax.while_loop(fails, halve, start)
    return jnp.where(f < value, t, 0)
