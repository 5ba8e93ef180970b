"""Cayley transform and line search, for optimisation over matrices with orthonormal columns."""

from collections.abc import Callable
from typing import Any

from jax import lax

from tensorjax.linalg._arrays import (
    Array,
    adjoint,
    identity_like,
    is_host,
    namespace,
    where_positive,
)

# Sufficient decrease (Armijo): share of the decrease that the slope predicts; 1e-4 is customary.
# Steps below the second value are given up.
_ARMIJO = 1e-4
_SHORTEST = 1e-12


def skew(a: Array) -> Array:
    """Returns the skew-Hermitian part (a − aᴴ)/2 of a matrix."""
    return (a - adjoint(a)) / 2


def cayley(z: Array) -> Array:
    """Computes the Cayley transform (1 − z/2)⁻¹ (1 + z/2), unitary for skew-Hermitian z."""
    eye = identity_like(z.shape[-1], z)
    return namespace(z).linalg.solve(eye - z / 2, eye + z / 2)


def line_search(loss: Callable[[Array], Array], value: Array, slope: Array, first: Array) -> Array:
    """Finds a step t > 0 that lowers a loss sufficiently (Armijo's rule); 0 if there is none.

    One parabola, through the value and the slope at 0 and the loss at ``first``; then halving.
    NumPy numbers are searched on the host, with nothing compiled.
    """
    where = namespace(value).where
    tried = loss(first)
    bend = tried - value - slope * first
    vertex = where(bend > 0, -slope * first**2 / where_positive(2 * bend, 1.0), 2 * first)
    at_vertex = loss(vertex)
    better = at_vertex < tried
    start = where(better, vertex, first), where(better, at_vertex, tried)

    def fails(carry: tuple[Array, Array]) -> Any:
        t, f = carry
        return ~(f <= value + _ARMIJO * t * slope) & (t > _SHORTEST)

    def halve(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return carry[0] / 2, loss(carry[0] / 2)

    t, f = (_host_loop if is_host(value) else lax.while_loop)(fails, halve, start)
    return where(f < value, t, 0)


def _host_loop(going: Callable[[Any], Any], step: Callable[[Any], Any], carry: Any) -> Any:
    while going(carry):
        carry = step(carry)
    return carry
