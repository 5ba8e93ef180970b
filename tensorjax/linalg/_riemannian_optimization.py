"""Riemannian optimisation: conjugate gradients for any manifold, Cayley transform of unitaries."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tensorjax._optax import transformation
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


class Conjugate(NamedTuple):
    """State of a Riemannian conjugate gradient optimiser: last direction, gradient and step."""

    direction: Any
    gradient: Any
    step: jax.Array


def riemannian_cg(
    zero: Callable[[Any], Any],
    tangents: Callable[..., tuple[Any, ...]],
    inner: Callable[[Any, Any], jax.Array],
    combined: Callable[[Sequence[Any], Sequence[jax.Array]], Any],
    moved: Callable[[Any, Any, jax.Array], Any],
) -> Any:
    """Returns a Riemannian conjugate gradient optimiser, in Optax's form, for a given manifold.

    Its ``update`` needs the extra arguments ``value``, the present loss, and ``value_fn``.

    Args:
      zero: the zero tangent vector at a point.
      tangents: (point, gradient, *vectors) ↦ the gradient and the vectors, transported by
        projection, as tangent vectors at the point.
      inner: real inner product of tangent vectors.
      combined: linear combination of tangent vectors.
      moved: (point, direction, step) ↦ the retracted point.

    Source: Absil, Mahony, Sepulchre (2008), algorithm 13, with the Polak–Ribière rule, never
    negative; steps are found by one parabola and then halving (Armijo).
    """

    def init(x: Any) -> Conjugate:
        nothing = zero(x)
        return Conjugate(nothing, nothing, jnp.ones((), jnp.finfo(nothing.dtype).dtype))

    def update(
        gradient: Any,
        state: Conjugate,
        x: Any,
        *,
        value: jax.Array,
        value_fn: Callable[[Any], jax.Array],
        **_: Any,
    ) -> tuple[Any, Conjugate]:
        gradient, past, carried = tangents(x, gradient, state.gradient, state.direction)
        before, size = inner(state.gradient, state.gradient), inner(gradient, gradient)
        beta = jnp.maximum(size - inner(gradient, past), 0) / where_positive(before, 1.0)
        # A direction that leads uphill is dropped for the gradient.
        downhill = (before > 0) & (beta * inner(gradient, carried) < size)
        beta = jnp.where(downhill, beta, 0)
        direction = combined([gradient, carried], [-jnp.ones_like(beta), beta])

        def loss(step: jax.Array) -> jax.Array:
            return value_fn(moved(x, direction, step))

        step = line_search(loss, value, inner(gradient, direction), state.step)
        new = moved(x, direction, step)
        state = Conjugate(direction, gradient, 2 * where_positive(step, 0.5))
        return jax.tree.map(jnp.subtract, new, x), state

    return transformation(init, update)


def line_search(loss: Callable[[Array], Array], value: Array, slope: Array, first: Array) -> Array:
    """Searches a step t > 0 along a direction of Riemannian CG by Armijo's rule; 0 if none.

    One parabola, through the value and the slope at 0 and the loss at ``first``; then halving.
    NumPy numbers are searched on the host, with nothing compiled.
    """
    xp = namespace(value)
    where, dtype = xp.where, getattr(value, "dtype", first.dtype)

    def fails(carry: tuple[Any, ...]) -> Any:
        tries, _, t, f = carry
        return (tries < 2) | ~(f <= value + _ARMIJO * t * slope) & (t > _SHORTEST)

    # One loop for all three kinds of trials, so that the loss is compiled once: at ``first``, at
    # the vertex of the parabola, which is kept if it is better, then at halves of what was kept.
    def attempt(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        tries, trial, t, f = carry
        tried = xp.asarray(loss(trial), dtype)
        bend = tried - value - slope * first
        vertex = where(bend > 0, -slope * first**2 / where_positive(2 * bend, 1.0), 2 * first)
        taken = (tries != 1) | (tried < f)
        t, f = where(taken, trial, t), where(taken, tried, f)
        return tries + 1, where(tries == 0, vertex, t / 2), t, f

    start = 0 * first, first, first, xp.asarray(value, dtype)
    _, _, t, f = (_host_loop if is_host(value) else lax.while_loop)(fails, attempt, start)
    return where(f < value, t, 0)


def _host_loop(going: Callable[[Any], Any], step: Callable[[Any], Any], carry: Any) -> Any:
    while going(carry):
        carry = step(carry)
    return carry


def skew(a: Array) -> Array:
    """Returns the skew-Hermitian part (a − aᴴ)/2 of a matrix, for Riemannian optimisation."""
    return (a - adjoint(a)) / 2


def cayley(z: Array) -> Array:
    """Computes the Cayley transform (1 − z/2)⁻¹ (1 + z/2), unitary for skew-Hermitian z."""
    eye = identity_like(z.shape[-1], z)
    return namespace(z).linalg.solve(eye - z / 2, eye + z / 2)
