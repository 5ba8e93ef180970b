"""Refinement of a MERA towards a tensor train, by optimisation on Stiefel manifolds."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax import _check, linalg
from tensorjax._formats.trains import TT
from tensorjax._formats.trains import single as single_train
from tensorjax._optax import check_optimizer, transformation
from tensorjax._placement import placed
from tensorjax._typing import Optimizer
from tensorjax.contract import einsum
from tensorjax.linalg._riemannian_optimization import riemannian_cg
from tensorjax.mera._overlap_network import _network
from tensorjax.mera._types import MERA, Layer, single

_HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class RefineInfo:
    """Report on the refinement of a MERA: relative error after each step, and convergence.

    Attributes:
      errors: relative errors ‖target − m‖ / ‖target‖ with the best top tensor, before the first
        step and after each. The MERA returned has the least of them.
      converged: whether the last step lowered the error by less than ``stop`` of itself.

    Example:
      >>> from tensorjax import mera
      >>> print(mera.RefineInfo(errors=(0.5, 0.2, 0.1), converged=True))
      error 0.5 -> 0.1 in 2 steps, converged

    Source: ours.
    """

    errors: tuple[float, ...]
    converged: bool

    @property
    def steps(self) -> int:
        """Number of optimisation steps in the refinement of a MERA."""
        return len(self.errors) - 1

    def __str__(self) -> str:
        end = "converged" if self.converged else "not converged: allow more steps"
        return f"error {self.errors[0]:.3g} -> {self.errors[-1]:.3g} in {self.steps} steps, {end}"


def _by_matrix(f: Callable[..., jax.Array], *trees: MERA) -> MERA:
    """Maps a function over the isometries and disentanglers of MERAs as matrices, for `refine`."""
    for m in trees:
        single("m", m)
    _check.held("m", trees)
    structures = {jax.tree.structure(m) for m in trees}
    if len(structures) > 1 or len({tuple(map(jnp.shape, jax.tree.leaves(m))) for m in trees}) > 1:
        raise ValueError("direction: expected a MERA of the layers and shapes of m, got another")

    def each(split: int, *tensors: jax.Array) -> jax.Array:
        shape = tensors[0].shape
        rows = math.prod(shape[:split])
        return f(*(t.reshape(rows, -1) for t in tensors)).reshape(shape)

    layers = []
    for group in zip(*(m.layers for m in trees), strict=True):
        us = zip(*(x.disentanglers for x in group), strict=True)
        ws = zip(*(x.isometries for x in group), strict=True)
        arities = group[0].wiring.arities
        layers.append(
            Layer._unchecked(
                tuple(each(2, *u) for u in us),
                tuple(each(k, *w) for k, w in zip(arities, ws, strict=True)),
                group[0].wiring,
            )
        )
    return MERA._unchecked(tuple(layers), trees[-1].top)


@placed
def tangent(m: MERA, direction: MERA) -> MERA:
    """Projects a direction of refinement on the tangent space of isometries: d − x (xᴴ d + dᴴ x)/2.

    Args:
      m: MERA, the point.
      direction: MERA of the same structure, whose layers need not be isometric; a gradient.

    Returns:
      MERA of projected isometries and disentanglers, with the top tensor of ``direction``.

    Raises:
      TypeError: an argument is no MERA. ValueError: MERAs of different layers or shapes.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> m = mera.random(jax.random.key(0), (2,) * 4, 2)
      >>> xi = mera.tangent(m, m)  # m points out of the manifold: nothing but the top is left
      >>> bool(abs(xi.layers[0].isometries[0]).max() < 1e-5)
      True

    Source: A. Edelman, T. Arias, S. Smith, "The geometry of algorithms with orthogonality
    constraints", SIAM J. Matrix Anal. Appl. 20 (1998), eq. (2.4), in the embedded metric.
    """

    def project(x: jax.Array, d: jax.Array) -> jax.Array:
        inner = linalg.matmul(linalg.adjoint(x), d)
        return d - linalg.matmul(x, (inner + linalg.adjoint(inner)) / 2)

    return _by_matrix(project, m, direction)


@placed
def retract(m: MERA, direction: MERA) -> MERA:
    """Moves a MERA along a direction of refinement, and makes its tensors isometric.

    Args:
      m: MERA, the point.
      direction: MERA of the same structure, as `tangent` makes it.

    Returns:
      MERA with orthonormal columns.

    Raises:
      TypeError: an argument is no MERA. ValueError: MERAs of different layers or shapes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import mera
      >>> m = mera.random(jax.random.key(0), (2,) * 4, 2)
      >>> w = mera.retract(m, m).layers[0].isometries[0]  # 2 m, brought back to m
      >>> bool(jnp.allclose(w, m.layers[0].isometries[0], atol=1e-5))
      True

    Source: P.-A. Absil, R. Mahony, R. Sepulchre, "Optimization Algorithms on Matrix Manifolds"
    (2008), example 4.1.3.
    """
    moved = _by_matrix(lambda x, d: linalg.polar(x + d)[0], m, direction)
    return MERA._unchecked(moved.layers, m.top + direction.top)


def stiefel(inner: Optimizer) -> Optimizer:
    """Wraps an Optax optimiser to refine MERAs along their Stiefel manifolds.

    Gradients are projected on the tangent space, ``inner`` makes a step of them, and the step is
    projected and retracted: ``optax.apply_updates(m, updates)`` has orthonormal columns again. The
    top tensor moves freely.

    Args:
      inner: any optax.GradientTransformation, such as ``optax.adam(1e-2)``.

    Returns:
      optax.GradientTransformationExtraArgs, or a pair of the same functions where Optax is not
      installed.

    Raises:
      TypeError: ``inner`` is no optimiser.

    Example:
      >>> import jax, optax
      >>> from tensorjax import mera
      >>> m = mera.random(jax.random.key(0), (2,) * 4, 2)
      >>> optimizer = mera.stiefel(optax.sgd(0.1))
      >>> state = optimizer.init(m)
      >>> updates, state = optimizer.update(m, state, m)
      >>> m = mera.MERA(*vars(optax.apply_updates(m, updates)).values())   # still orthonormal

    Gradients are directions of steepest ascent: of complex MERAs, the conjugate of `jax.grad`.
    Moments that ``inner`` keeps are not transported; they are projected with the step.

    Source: ours; projection and retraction are those of `tangent` and `retract`.
    """
    check_optimizer("inner", inner)
    # Plain transformations take nothing but gradients, state and parameters.
    kinds = {p.kind for p in inspect.signature(inner.update).parameters.values()}
    takes_extra = inspect.Parameter.VAR_KEYWORD in kinds

    def update(gradients: MERA, state: Any, params: MERA, **extra: Any) -> tuple[MERA, Any]:
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes dtypes, and means to
            known = extra if takes_extra else {}
            steps, state = inner.update(tangent(params, gradients), state, params, **known)
        moved = retract(params, tangent(params, steps))
        return jax.tree.map(jnp.subtract, moved, params), state

    return transformation(inner.init, update)


def conjugate_gradient() -> Optimizer:
    """Returns a Riemannian conjugate gradient optimiser to refine MERAs, in Optax's form.

    ``update`` needs two extra arguments, as `optax.lbfgs` does: ``value``, the present loss, and
    ``value_fn``, the loss as a function of the MERA. Gradients are directions of steepest ascent:
    of complex MERAs, the conjugate of `jax.grad`.

    Returns:
      optax.GradientTransformationExtraArgs, or a pair of the same functions where Optax is not
      installed.

    Raises:
      TypeError: from ``update``, without ``value`` and ``value_fn``.

    Example:
      >>> import jax, optax
      >>> from tensorjax import mera
      >>> m = mera.random(jax.random.key(0), (2,) * 4, 2)
      >>> loss = lambda m: m.layers[0].isometries[0][0, 0, 0]
      >>> optimizer = mera.conjugate_gradient()
      >>> value, gradient = jax.value_and_grad(loss)(m)
      >>> state, extra = optimizer.init(m), {"value": value, "value_fn": loss}
      >>> updates, state = optimizer.update(gradient, state, m, **extra)
      >>> bool(loss(optax.apply_updates(m, updates)) < value)
      True

    Source: Absil, Mahony, Sepulchre (2008), algorithm 13, with the Polak–Ribière rule, transport by
    projection, and steps found by one parabola and then halving (Armijo).
    """

    def tangents(params: MERA, *directions: MERA) -> tuple[MERA, ...]:
        return tuple(tangent(params, direction) for direction in directions)

    def moved(params: MERA, direction: MERA, step: jax.Array) -> MERA:
        return retract(params, _combined([direction], [step]))

    return riemannian_cg(
        lambda m: jax.tree.map(jnp.zeros_like, m), tangents, _dot, _combined, moved
    )


def _dot(x: MERA, y: MERA) -> jax.Array:
    """Computes the real inner product of two directions in a MERA's refinement."""
    pairs = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    return sum((jnp.vdot(a, b).real for a, b in pairs), start=jnp.zeros((), x.top.real.dtype))


def _combined(directions: Sequence[MERA], weights: Sequence[jax.Array]) -> MERA:
    """Computes a linear combination of directions in a MERA's refinement."""

    def combined(*arrays: jax.Array) -> jax.Array:
        pairs = zip(arrays, weights, strict=True)
        return sum(w.astype(a.real.dtype).astype(a.dtype) * a for a, w in pairs)  # type: ignore

    return jax.tree.map(combined, *directions)


@placed
def refine(
    m: MERA,
    target: TT,
    *,
    steps: int = 100,
    stop: float = 1e-4,
    optimizer: Optimizer | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> tuple[MERA, RefineInfo]:
    """Refines all tensors of a MERA by optimisation, to approximate a tensor train.

    Minimises the infidelity 1 − ‖Lᴴ t‖² / ‖t‖² over isometries and disentanglers, where L maps a
    top tensor to the sites. The best top tensor, Lᴴ t, is put in after every step, so the result's
    relative error is the root of the infidelity.

    Args:
      m: MERA to start from, such as that of `tensorjax.convert.tt_to_mera`.
      target: TT of the same shape.
      steps: at most.
      stop: ends when a step lowers the error by less than this share of itself.
      optimizer: an optax.GradientTransformation for the isometries, put on the manifold by
        `stiefel`; `conjugate_gradient` if None, whose program is compiled once for every structure.
        Those of others are compiled in every call. The best MERA met is returned.
      progress: called after each step with its number and the error.

    Returns:
      (MERA of the structure and ranks of ``m``, `RefineInfo`); never worse than ``m``. A complex
      target makes it complex.

    Raises:
      TypeError: ``m`` or ``target`` of the wrong kind.
      ValueError: shapes that differ, NaN or Inf, a target that is zero.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> planted = mera.random(jax.random.key(0), (2,) * 4, 2)
      >>> start = mera.random(jax.random.key(1), (2,) * 4, 2)
      >>> found, info = mera.refine(start, mera.to_tt(planted), steps=20)
      >>> info.errors[-1] < info.errors[0]
      True

    Errors below √eps cannot be told from zero in the infidelity. The minimum is a local one.

    Source: ours; Riemannian optimisation of isometric networks as in M. Hauru, M. Van Damme,
    J. Haegeman, "Riemannian optimization of isometric tensor networks", SciPost Phys. 10, 040
    (2021), here towards a tensor train.
    """
    single("m", m)
    single_train("target", target, TT)
    if m.shape != target.shape:
        raise ValueError(f"target: expected shape {m.shape} as m has, got {target.shape}")
    _check.finite("m", m)
    _check.finite("target", target)
    _check.integer("steps", steps, low=0)
    try:
        size = target._namespace.norm(target)
    except OverflowError as error:
        raise ValueError(f"target: {error}; scale the train first") from error
    if float(size) == 0:
        raise ValueError("target: expected a train that is not zero, got norm 0")
    dtype = linalg.factor_dtype(jnp.promote_types(m.dtype, target.dtype))
    unit = target.astype(dtype) / size.astype(dtype)
    method = _default() if optimizer is None else _stepping(stiefel(optimizer))
    best, errors, converged = _descend(m.astype(dtype), unit, method, steps, stop, progress)
    best = MERA._unchecked(best.layers, best.top * size.astype(dtype))
    dtype = jnp.promote_types(m.dtype, target.dtype)
    return best.astype(dtype), RefineInfo(tuple(errors), converged)


def _descend(
    m: MERA, unit: TT, method: "_Method", steps: int, stop: float, progress: Any
) -> tuple[MERA, list[float], bool]:
    best, best_top, state, converged = m, None, method.init(m), False
    if steps == 0:
        best_top = _top_program(m, unit)
        return MERA._unchecked(m.layers, best_top), [_root(_missed(best_top))], converged
    errors, lowest = [], math.inf
    for number in range(1, steps + 1):
        m, state, before, value, top = method.step(m, state, unit)
        if number == 1:
            lowest = float(before)
            errors.append(_root(before))
        errors.append(_root(value))
        if float(value) < lowest:
            best, best_top, lowest = m, top, float(value)
        if progress is not None:
            progress(number, errors[-1])
        if abs(errors[-2] - errors[-1]) <= stop * errors[-2]:
            converged = True
            break
    if best_top is None:  # the start is the best
        best_top = _top_program(best, unit)
    return MERA._unchecked(best.layers, best_top), errors, converged


class _Method(NamedTuple):
    """Optimiser of a MERA's refinement: the function of its first state, and a compiled step.

    Attributes:
      init: returns the first state for a MERA.
      step: takes a MERA, the state and the target; returns both after a step, the infidelities
        before and after it, and the best top tensor after it.
    """

    init: Callable[[MERA], Any]
    step: Callable[[MERA, Any, TT], tuple[MERA, Any, jax.Array, jax.Array, jax.Array]]


def _stepping(optimizer: Optimizer) -> _Method:
    # One program has all that a step needs: two more for the start and the end would cost seconds.
    @jax.jit
    def step(m: MERA, state: Any, unit: TT) -> tuple[MERA, Any, jax.Array, jax.Array, jax.Array]:
        def infidelity(m: MERA) -> jax.Array:
            return _missed(_best_top(m, unit))

        value, gradient = jax.value_and_grad(infidelity)(m)
        gradient = jax.tree.map(jnp.conj, gradient)
        update: Any = optimizer.update  # with more arguments than Optax's type of it has
        updates, state = update(gradient, state, m, value=value, value_fn=infidelity)
        moved = jax.tree.map(jnp.add, m, updates)
        top = _best_top(moved, unit)
        return moved, state, value, _missed(top), top

    return _Method(optimizer.init, step)


@functools.cache
def _default() -> _Method:
    # Its program is compiled once for every structure. Those of other optimisers are compiled in
    # every call, which may find other attributes in them, and are freed with it.
    return _stepping(conjugate_gradient())


def _missed(top: jax.Array) -> jax.Array:
    return 1 - jnp.sum(jnp.square(top.real) + jnp.square(top.imag))


def _root(infidelity: Any) -> float:
    return max(float(infidelity), 0.0) ** 0.5


def _best_top(m: MERA, t: TT) -> jax.Array:
    """Computes, in refinement, the top tensor with which a MERA is nearest to a tensor train."""
    sites = list(range(m.order))
    *network, (_, top) = _network(m, sites, m.order)
    fresh = 1 + max([m.order, *(max(labels) for _, labels in network)])
    bonds = [fresh + k for k in range(m.order + 1)]
    operands: list[Any] = []
    for k, core in enumerate(t.cores):
        operands += [core, [bonds[k], sites[k], bonds[k + 1]]]
    for tensor, labels in network:
        operands += [tensor.conj(), labels]
    # The outer bonds have size one and are summed.
    return einsum(*operands, top, precision=_HIGHEST)


_top_program = jax.jit(_best_top)
