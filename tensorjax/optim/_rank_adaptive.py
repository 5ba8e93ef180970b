"""Rank-adaptive training (CoMERA): an Optax wrapper that minimises loss and model size."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tensorjax import _check
from tensorjax._typing import Optimizer
from tensorjax.optim._options_and_state import (
    Options,
    RankAdaptiveState,
    Switch,
    Weight,
    check_lookahead,
    fresh,
    initial,
)
from tensorjax.optim._sizes_and_ranks import Measure, check_flops, checked
from tensorjax.optim._stacked_layers import Stacks
from tensorjax.optim._target.target_update import towards_target
from tensorjax.optim._update import Step

# Weights γ and β of the planted-rank experiment, where γ grows from zero:
# python -m experiments run comera/planted.
SIZE_WEIGHT, CORE_WEIGHT = 0.3, 3e-4


def rank_adaptive(
    inner: Optimizer,
    *,
    size_weight: Weight = SIZE_WEIGHT,
    core_weight: Weight = CORE_WEIGHT,
    threshold: float = 1e-2,
    measure: Measure = "numbers",
    rows: int = 1,
    size_scale: float | None = None,
    keep_one: bool = True,
    proximal: Weight | None = None,
    switch: Switch = None,
    loss_target: float | None = None,
    size_target: float | None = None,
    size_fraction: float | None = None,
    loss_weight: Weight = 1.0,
    late_size_weight: Weight = 1.0,
    late_threshold: Weight | None = None,
    mix: Weight = 0.1,
    loss_decay: float = 0.99,
    compress_to: float | None = None,
    size: float | None = None,
    by: int | None = None,
    chance: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Wraps an Optax optimiser to minimise loss and model size together, which finds the ranks.

    **To a target size**: ``rank_adaptive(inner, compress_to=10, by=800)`` cuts a model that begins
    with larger ranks down to ten times fewer parameters than dense by update 800. Nothing else is
    to be chosen: gates are multiplied into the cores, bonds go into the basis of their singular
    vectors (`canonical`, here within jit), optimiser moments go along, and the indices that the
    loss would miss least for the parameters they take (`prune`; by squared gradients that are there
    anyhow, over the root of those of the whole bond, or early cuts would leave layers with rank
    one) are set to zero, a few at a time. Let about a third of the updates follow ``by``, and
    begin at about twice the size that is to stay, as ``nn.tensorize(model, compress_to=10)`` does.
    Where past gradients move ``inner``, as momentum of `optax.sgd` and `optax.lbfgs` do, the
    cores of a layer are scaled so that its derivatives by all of them are equally large: in the
    basis alone the same rate may diverge. Others, as of Adam, Lion or Muon, get the basis as it is.
    The memory of `optax.lbfgs` begins anew with every basis and after every cut.

    **The paper's two stages**, without these options: with gates D on the bonds of tensorised
    layers, ρ_k the number of gates of bond k above the threshold τ, and S the size of the layers at
    these ranks (`size`), a polynomial such as Σ_k n_k ρ_{k−1} ρ_k, the surrogate Ŝ is the same
    polynomial of ‖D_k‖₁. The gradient handed to ``inner`` is that of

    - early stage:  L + γ Ŝ + β Σ ‖G‖²
    - late stage:   max{w₁ (L − L₀), w₂ (S − S₀)} + ρ (L + Ŝ) + β Σ ‖G‖²

    where Ŝ stands for S in the late gradient, the larger term is chosen on a moving average of the
    loss, and S, S₀ and Ŝ are divided by ``size_scale``. After the inner step gates at or below τ
    become exactly zero and stay so, as do their indices in the cores. `shrink` drops them from the
    arrays. Parameters that ``inner`` leaves as they are in a step, by `optax.set_to_zero` for some
    labels or by a learning rate of zero, are left so here too, bit for bit: a frozen layer keeps
    its gates and cores, and counts with the size that it has.

    Args:
      inner: any Optax transformation that makes steps, with its learning rate. For rates of its own
        per kind of parameter: `optax.partition` with `labels`.
      size_weight: γ. Where training starts far from a fit, let it grow from zero, as
        ``optax.linear_schedule(0.0, 0.3, steps)`` does: pressed too early, all ranks may go.
      core_weight: β. D → αD, G → G/α leaves a layer as it is and lowers Ŝ for α < 1, so without β
        the surrogate shrinks the gates, not the ranks.
      threshold: τ. A gate of 1 in bfloat16 does not move by steps below 1/512, which are most of
        those at small learning rates: hold the gates, at least, in single precision.
      measure: of size: "numbers", "bytes" or "flops", as `size` counts them.
      rows: inputs of a forward pass, for "flops"; looked at for no other measure.
      size_scale: None takes the size of the parameters given to ``init``, at full rank, so that γ,
        w₂ and ρ weigh shares of that; 1 gives the paper's formula.
      keep_one: the largest gate of a bond stays, just above τ at least. If not, a layer may lose
        all ranks and is then its bias, which is for layers with a residual path. Gates must not be
        negative at the start: those would die in the first step.
      proximal: step with which gates are soft-thresholded after the inner step, by step × weight of
        Ŝ × ∂Ŝ/∂|D|, in place of adding that gradient; its natural value is the learning rate of
        the gates under plain gradient descent, and more under Adam, which scales its steps. Not
        with `optax.MultiSteps` inside: put that around.
      switch: beginning of the late stage: a count of updates; a function (count, average loss,
        size) → bool, traced, so that a decision on the host is a `jax.pure_callback`; None: never.
        Or set it between steps, ``state._replace(late=jnp.array(True))``, with a ``switch`` that
        never comes, such as ``lambda *_: False``. There is no way back.
      loss_target: L₀; None takes the average loss at the switch.
      size_target: S₀ in the units of the measure.
      size_fraction: S₀ as a share of the size at the switch; the authors use 0.2 to 0.8. One of the
        two is needed with ``switch``.
      loss_weight: w₁.
      late_size_weight: w₂.
      late_threshold: gates at or below it die in the late stage, in ascending order and only until
        S ≤ S₀; None for τ. A schedule that at last exceeds all gates has S₀ met by then, whatever
        they are to the loss: ``lambda n: jnp.where(n < deadline, 0.01, 1e6)``, or gradually.
      mix: ρ.
      loss_decay: of the moving average of the loss, which is bias-corrected.
      compress_to: how many times fewer parameters than the dense model the whole model is to have,
        gates, biases and dense layers counted; dense layers have the sizes of the modes.
      size: in place of ``compress_to``, the size that the tensorised layers are to have, in units
        of the measure, as `size` counts it.
      by: update by which that is met; needed with either of the two.
      chance: the loss of a model that has learnt nothing, such as log(classes); None estimates it
        from the first loss, if the first gradients look like those of an untrained model. Give it
        where training begins with a trained or converted model.

    All weights, ``late_threshold`` and ``proximal`` may be schedules: functions of the number of
    updates so far.

    Returns:
      optax.GradientTransformationExtraArgs. ``update`` needs the parameters, and the loss as
      ``value=``; both, and all else, go on to ``inner``. Its state is a `RankAdaptiveState`, which
      `status` reads. With γ = β = 0 as numbers, and no switch or w₂ = ρ = 0 too and no
      ``late_threshold``, it is ``inner``, bit for bit, and nothing is pruned.

    Raises:
      TypeError: ``inner`` is no transformation.
      ValueError: no gates among the parameters; negative gates, or all zero on a bond that is to
        keep one; ``value`` or parameters not passed; a size target below the size of all ranks one
        (of traced parameters it is left to `status`); options out of range; `optax.lookahead`
        inside.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from tensorjax import optim
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> optimizer = optim.rank_adaptive(optax.adam(1e-2), switch=100, size_fraction=0.5)
      >>> state = optimizer.init(params)
      >>> gradients = optax.tree.zeros_like(params)
      >>> updates, state = optimizer.update(gradients, state, params, value=jnp.array(0.3))
      >>> float(state.count), float(state.size)
      (1.0, 27.0)

    A run to a target size, and what came of it:
      >>> optimizer = optim.rank_adaptive(optax.sgd(1e-2), size=18, by=4)
      >>> state = optimizer.init(params)
      >>> gradients = optax.tree.ones_like(params)
      >>> for _ in range(4):
      ...     updates, state = optimizer.update(gradients, state, params, value=jnp.array(0.3))
      ...     params = optax.apply_updates(params, updates)
      >>> optim.size(params), optim.status(state).status
      (18, 'converged')

    A cut of the late stage, or to a target, which is any step of it in which gates die, is on trial
    until the next losses show whether the model still works. Chance is near the first loss of a
    training that begins from nothing. Where half of what was gained since is lost, the gates come
    back as they were, and half as many may die in the next cut (twice as many again after one that
    is kept); after five undone cuts of one index in a row, or where the loss is near chance for
    another reason, size is not pressed on. Where training begins with a trained model, chance is
    known by ``chance`` alone, and without it no cut is undone. `status` says what happened, and
    which option to change.

    It goes outermost: around `optax.chain`, `optax.partition`, `optax.masked`, since what is done
    to its updates afterwards would undo the zeros. `optax.lookahead` goes neither inside nor around
    it: it does not hand the loss on, and its two sets of parameters would be in different bases.
    So would averages of parameters, as a moving average for evaluation: begin those at ``by``.
    `optax.MultiSteps` may be inside (the average then sees the loss of every mini-step) or outside
    (that of the last mini-step of each step). Where data are spread over devices, the value has to
    be the mean over all of them, as the gradients are, or the stages of the devices part. A loss
    that is NaN or Inf leaves average and stage as they are, and is counted in the state; gradients
    that are not finite are for `optax.apply_if_finite`: around it, whole steps are left out, and
    not counted here; inside, size is not pressed on in those steps, and no gate dies.
    With `optax.inject_hyperparams`, options that are no numbers to follow go to ``static_args``:
    ``("inner", "switch", "rows", "keep_one")``. Of schedule-free optimisers, `shrink` comes before
    ``schedule_free_eval_params``: their second sequence does not know which gates are dead.

    Source: Yang, Liu, Choudhary, Xie, Gao, Kunzmann, Zhang, "CoMERA: Computing- and
    Memory-Efficient Training via Rank-Adaptive Tensor Optimization" (arXiv 2405.14377), the
    multi-objective formulation and its two stages.

    Departures: the loss of the late stage is a moving average, not that of a minibatch. Once
    S ≤ S₀ nothing presses on size and nothing dies; before, gates die in ascending order and only
    until S ≤ S₀, so that the end is within one index of a bond of it (with ``keep_one=False``,
    within one layer, where a bond becomes empty). Their threshold may grow (``late_threshold``). S
    counts the column modes of TT-matrices, which the released program leaves out, and its surrogate
    is Ŝ, where the program has the mean of the live gates. Training to a target size is ours; its
    schedule is that of Zhu and Gupta (arXiv 1710.01878). Layers of CP have no other basis, and are
    cut as they are. A dead index does not come back, but for cuts that are undone: its gate and its
    slices are zero, hence its gradients too, and nothing there tells whether the loss asks for it.
    """
    options = Options(**{k: v for k, v in locals().items() if k != "inner"})
    options.check()
    checked(measure)
    if compress_to is not None or size is not None or by is not None:
        options = options.towards_target(_DEFAULTS)
    if measure == "flops":
        _check.integer("rows", rows, low=1)
    inner = _checked_inner(inner)

    def init(params: Any) -> RankAdaptiveState:
        # optax.tree_map_params asks with a stand-in that holds no parameters.
        if type(params).__name__ == "_ParamsPlaceholder":
            return fresh(1.0, options, inner.init(params), params, params, 0)
        return initial(options, inner, params)

    def update(
        updates: Any, state: Any, params: Any = None, *, stacks: Stacks | None = None, **extra: Any
    ) -> tuple[Any, RankAdaptiveState]:
        check_lookahead(params)
        value = _loss(extra)

        def descend(gradients: Any) -> tuple[Any, Any]:
            with jax.numpy_dtype_promotion("standard"):  # Optax mixes dtypes, and means to
                return inner.update(gradients, state.inner, params, **extra)

        if options.schedule is not None:
            return towards_target(options, updates, params, state, value, descend, stacks)
        step = Step.of(options, updates, params, state, value)
        if options.passive:
            moves, inner_state = descend(updates)
            return moves, step.state._replace(inner=inner_state)
        gradients = step.gradients()
        moves, inner_state = descend(gradients)
        moves, size, learnt = step.finish(moves, gradients)
        return moves, step.record(size, **learnt)._replace(inner=inner_state)

    return _by_single_layers(optax.GradientTransformationExtraArgs(init, update), measure)


def _checked_inner(inner: Any) -> optax.GradientTransformationExtraArgs:
    """Checks the Optax optimiser that `rank_adaptive` wraps; TypeError if it is not one."""
    found = inner
    if hasattr(found, "gradient_transformation"):  # optax.MultiSteps
        found = found.gradient_transformation()
    if not (hasattr(found, "init") and hasattr(found, "update")):
        raise TypeError(
            f"inner: expected an Optax transformation such as optax.adam(1e-3), got {inner!r}"
        )
    return _without_loss(optax.with_extra_args_support(found))


def _without_loss(
    inner: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """Wraps an Optax optimiser so that it is not given a loss if it does not accept one."""
    names = inspect.signature(inner.update).parameters
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in names.values())
    if any_name or "value" in names:
        return inner

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return inner.update(updates, state, params, **{k: v for k, v in extra.items()
                                                       if k != "value"})  # fmt: skip

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _loss(extra: dict[str, Any]) -> Any:
    if extra.get("value") is None:
        raise ValueError(
            "value: expected the loss of this step, got none; call update(gradients, state, params,"
            " value=loss), and through an nnx.Optimizer update(model, gradients, value=loss); what "
            "is around it has to hand that on, which optax.lookahead does not, and optax.MultiSteps"
            " itself does, but not its gradient_transformation() within another one"
        )
    value = extra["value"]
    kinds = (jnp.floating, jnp.integer)
    if jnp.shape(value) != () or not any(jnp.issubdtype(jnp.result_type(value), k) for k in kinds):
        raise ValueError(
            f"value: expected a real scalar, the loss of this step, got {jnp.result_type(value)} "
            f"of shape {jnp.shape(value)}; take the mean first"
        )
    return value


def _by_single_layers(
    optimizer: optax.GradientTransformationExtraArgs, measure: Measure
) -> optax.GradientTransformationExtraArgs:
    """Wraps the rank-adaptive optimiser so that layers stacked by `nnx.vmap` are single ones to it.

    Parameters without stacked layers are handed on as they are.
    """

    def init(params: Any) -> Any:
        check_flops(params, measure)  # single layers are plain arrays
        return optimizer.init(Stacks.of(params).split(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None or isinstance(params, optax.LookaheadParams):
            return optimizer.update(updates, state, params, **extra)  # which says what is wrong
        stacks = Stacks.of(params)
        split = stacks.split(updates), state, stacks.split(params)
        moves, state = optimizer.update(*split, stacks=stacks, **extra)
        return stacks.join(moves), state

    return optax.GradientTransformationExtraArgs(init, update)


_DEFAULTS = Options(
    **{
        name: parameter.default
        for name, parameter in inspect.signature(rank_adaptive).parameters.items()
        if name != "inner"
    }
)
