"""Riemannian gradients by automatic differentiation, and optimisers at fixed TT-ranks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax import _check
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._formats.zero_padding import is_empty
from tensorjax._optax import transformation
from tensorjax._typing import Optimizer, Scalar
from tensorjax.linalg._riemannian_optimization import riemannian_cg as _riemannian_cg
from tensorjax.tt._folding import fold, folded, unfold
from tensorjax.tt._manifold.frames_and_variations import (
    Arrays,
    Frame,
    frame,
    gauged,
    point,
    project,
    shared,
    split,
    tangent,
)
from tensorjax.tt._manifold.tangent_space import moved, tangent_inner, tangent_sum


def value_and_riemannian_grad(f: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, TT]]:
    """Returns a function that computes f of a train and its gradient on the TT-manifold.

    Args:
      f: takes a TT or a TTMatrix first and returns a real scalar; written with JAX, for trains of
        any ranks.

    Returns:
      A function of the same arguments that returns f(x) and what `riemannian_grad` gives there.

    Raises:
      TypeError: ``f`` is no function; from the function returned, x is no train, or f(x) no real
        scalar.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> x = tt.random(jax.random.key(0), (4, 5, 6), 2)
      >>> value, gradient = tt.value_and_riemannian_grad(lambda t: tt.inner(t, t) / 2)(x)
      >>> gradient.ranks, bool(abs(2 * value / tt.norm(x) ** 2 - 1) < 1e-4)
      ((1, 4, 4, 1), True)

    Source: Novikov, Rakhuba, Oseledets (2022), see `riemannian_grad`.
    """
    _check.function("f", f)

    def value_and_grad(x: Any, *args: Any, **kwargs: Any) -> tuple[jax.Array, Any]:
        if isinstance(x, TTMatrix):
            return _of_matrix(f, x, *args, **kwargs)
        if isinstance(x, TT) and is_empty(x):  # no entry that a gradient could have
            return f(x, *args, **kwargs), _no_tangent(x)
        dtype: Any = getattr(x, "dtype", None)
        at, start, exponent, share = _start(point(x))

        def along(deltas: Arrays) -> jax.Array:
            return f(_tangent(at, deltas, exponent, share).astype(dtype), *args, **kwargs)

        value, slopes = jax.value_and_grad(along)(start)
        return value, _gradient(at, slopes, exponent)

    return value_and_grad


# Programs of a few parts: of every operation alone there would be a hundred for each shape.
_tangent = jax.jit(tangent)


@jax.jit
def _start(x: TT) -> tuple[Frame, Arrays, Any, Any]:
    """Writes a train as a tangent vector at itself, of which Riemannian gradients are computed."""
    at, last, exponent = frame(x)
    share = shared(0, exponent, x.order, last.dtype)
    return at, (*map(jnp.zeros_like, at.left), last), exponent, share


@jax.jit
def _gradient(at: Frame, slopes: Arrays, exponent: Any) -> TT:
    """Builds a Riemannian gradient from the derivatives by a tangent vector's variations."""
    # JAX's gradient of a real function is the conjugate of the steepest ascent.
    deltas = gauged(at, tuple(map(jnp.conj, slopes)))
    share = shared(0, -exponent, len(deltas), deltas[-1].dtype)
    return tangent(at, deltas, -exponent, share)


def _of_matrix(f: Callable[..., jax.Array], x: TTMatrix, *args: Any, **kwargs: Any) -> Any:
    """Computes the value and Riemannian gradient of a function at a TT-matrix."""
    single("x", x)
    shape = x.row_shape, x.col_shape

    def on_train(t: TT, *args: Any, **kwargs: Any) -> jax.Array:
        return f(unfold(t, *shape), *args, **kwargs)

    value, gradient = value_and_riemannian_grad(on_train)(fold(x), *args, **kwargs)
    return value, unfold(gradient, *shape)


def riemannian_grad(f: Callable[..., jax.Array]) -> Callable[..., TT]:
    """Returns a function that computes the Riemannian gradient P_x ∇f(x) of f at a train x.

    It does not materialise ∇f(x).

    Args:
      f: takes a TT or a TTMatrix first and returns a real scalar; written with JAX, for trains of
        any ranks.

    Returns:
      A function of the same arguments that returns the tangent vector ξ at x, a train of the kind
      of x and twice the ranks, with Re⟨ξ, η⟩ the derivative of f at x along every tangent vector η.

    Raises:
      TypeError: as `value_and_riemannian_grad`.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> x = tt.random(jax.random.key(0), (4, 5, 6), 2)
      >>> gradient = tt.riemannian_grad(lambda t: tt.inner(t, t) / 2)(x)
      >>> bool(tt.distance(gradient, x) < 1e-4 * tt.norm(x))
      True

    Source: A. Novikov, M. Rakhuba, I. Oseledets, "Automatic differentiation for Riemannian
    optimization on low-rank matrix and tensor-train manifolds", SIAM J. Sci. Comput. 44 (2022):
    f is differentiated by the variations at the point where they give x itself.
    """
    value_and_grad = value_and_riemannian_grad(f)
    return lambda x, *args, **kwargs: value_and_grad(x, *args, **kwargs)[1]


class _Momentum(NamedTuple):
    velocity: Any
    count: jax.Array


def riemannian_descent(
    learning_rate: Scalar | Callable[[Any], Scalar], *, momentum: float = 0.0
) -> Optimizer:
    """Returns a Riemannian gradient descent optimiser of trains of fixed TT-ranks, in Optax's form.

    ``update(gradient, state, x)`` takes the Riemannian gradient of `riemannian_grad`, and
    ``optax.apply_updates(x, updates)`` is the retracted step: a train of the ranks of ``x``.

    Args:
      learning_rate: a number, or a schedule: a function of the number of steps made.
      momentum: in [0, 1): share of the last step's direction that is kept, transported.

    Returns:
      optax.GradientTransformationExtraArgs, or a pair of the same functions where Optax is not
      installed.

    Raises:
      ValueError: ``momentum`` outside [0, 1).

    Example:
      >>> import jax, optax
      >>> from tensorjax import tt
      >>> x, goal = (tt.random(k, (4, 5), 2) for k in jax.random.split(jax.random.key(0)))
      >>> loss = lambda t: tt.inner(t, t) / 2 - tt.inner(goal, t)
      >>> optimizer = tt.riemannian_descent(0.5)
      >>> state = optimizer.init(x)
      >>> updates, state = optimizer.update(tt.riemannian_grad(loss)(x), state, x)
      >>> bool(loss(optax.apply_updates(x, updates)) < loss(x))
      True

    Source: Absil, Mahony, Sepulchre (2008), section 4.1; retraction by SVD. Nothing that acts on
    leaves one by one, such as clipping, may stand before it in a chain: a tangent vector is scaled
    by `tangent_sum`.
    """
    _check.number("momentum", momentum, low=0, high=1)

    def init(x: Any) -> _Momentum:
        return _Momentum(_no_tangent(x), jnp.zeros((), jnp.int32))

    def update(gradient: Any, state: _Momentum, x: Any, **extra: Any) -> tuple[Any, _Momentum]:
        del extra
        velocity, *past = _tangents(x, gradient, *[state.velocity] * (momentum > 0))
        if past:
            velocity = tangent_sum([gradient, *past], [1.0, momentum])
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        new = _moved(x, velocity, -jnp.asarray(rate))
        updates = jax.tree.map(jnp.subtract, new, x)
        return updates, _Momentum(velocity, state.count + jnp.ones_like(state.count))

    return transformation(init, update)


def riemannian_cg() -> Optimizer:
    """Returns a Riemannian conjugate gradient optimiser of trains of fixed TT-ranks, for Optax.

    ``update(gradient, state, x, value=…, value_fn=…)`` needs two extra arguments, as `optax.lbfgs`
    does: the present loss, and the loss as a function of the train. The gradient is that of
    `riemannian_grad`; ``optax.apply_updates(x, updates)`` is the retracted step.

    Returns:
      optax.GradientTransformationExtraArgs, or a pair of the same functions where Optax is not
      installed.

    Raises:
      TypeError: from ``update``, without ``value`` and ``value_fn``.

    Example:
      >>> import jax, optax
      >>> from tensorjax import tt
      >>> x, goal = (tt.random(k, (4, 5), 2) for k in jax.random.split(jax.random.key(0)))
      >>> loss = lambda t: tt.inner(t, t) / 2 - tt.inner(goal, t)
      >>> optimizer = tt.riemannian_cg()
      >>> state = optimizer.init(x)
      >>> value, gradient = tt.value_and_riemannian_grad(loss)(x)
      >>> updates, state = optimizer.update(gradient, state, x, value=value, value_fn=loss)
      >>> bool(loss(optax.apply_updates(x, updates)) < value)
      True

    Source: Absil, Mahony, Sepulchre (2008), algorithm 13, with the Polak–Ribière rule (never
    negative), transport by projection, retraction by SVD, and steps found by one parabola and then
    halving (Armijo).
    """

    def inner(a: Any, b: Any) -> jax.Array:
        return tangent_inner(a, b).real

    return _riemannian_cg(_no_tangent, _tangents, inner, tangent_sum, _moved)


@folded
def _no_tangent(x: TT) -> TT:
    at, last, _ = frame(point(x))
    deltas = [jnp.zeros_like(c) for c in (*at.left, last)]
    return tangent(at, deltas)


@folded
def _tangents(x: TT, gradient: TT, *vectors: TT) -> tuple[TT, ...]:
    """Returns the Riemannian gradient at a train x, and momentum vectors projected there."""
    at = split(_checked(gradient, x))[0]
    return gradient, *(project(at, v) for v in vectors)


@folded
def _moved(x: TT, direction: TT, step: Any) -> TT:
    return moved(x, direction, step)


def _checked(gradient: Any, x: TT) -> TT:
    """Returns a Riemannian gradient that has the form of a tangent vector at x; else raises."""
    single("gradient", gradient, TT)
    doubled = tuple(r if k in (0, x.order) else 2 * r for k, r in enumerate(x.ranks))
    if gradient.ranks != doubled or gradient.shape != x.shape:
        raise ValueError(
            f"gradient: expected a tangent vector of shape {x.shape} and TT-ranks {doubled}, as "
            f"tt.riemannian_grad makes them, got shape {gradient.shape} and ranks {gradient.ranks}"
        )
    return gradient
