"""Adapters (LoRA): trainable low-rank or tensor-train updates beside frozen dense weights."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax import _check
from tensorjax._placement import returned
from tensorjax._typing import ArrayLike, OutSharding
from tensorjax.nn._linear_layers import TensorLinearGeneral, flat
from tensorjax.nn._models.exact_weights import exact_weight
from tensorjax.nn._models.path_rules import Rules, matched, rules_with
from tensorjax.nn._models.stacked_layers import copies, lead, stacked
from tensorjax.nn._models.traversal import check_module, places, rewrite_variables, swap, tie, ties
from tensorjax.nn._parameters import MAX_BYTES, settle
from tensorjax.nn._specs import TT, Spec
from tensorjax.nn._weight_conversion import check_plain, double


class Frozen(nnx.Variable):
    """Variable type that replaces `nnx.Param` for weights frozen beside adapters.

    `adapt` makes it of every parameter of a model that is no adapter, and `merge_adapters` makes a
    parameter of it again.

    Attributes:
      frozen_from: in its metadata, the type that it had.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> len(nnx.state(nnx.List([nn.Frozen(jnp.ones(3))]), nnx.Param))
      0
    """


class Adapted(nnx.Module):
    """Dense layer with frozen weight and a trainable update: y = base(x) + scale · delta(x).

    Args:
      base: `flax.nnx.Linear`, `flax.nnx.LinearGeneral` or `flax.nnx.Embed`.
      delta: tensorised layer from the same inputs to the same outputs, without a bias.
      scale: factor of the update.

    Attributes:
      base: the dense layer.
      delta: the update.
      scale: factor of the update.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> model = nn.adapt(nnx.Sequential(nnx.Linear(64, 96, rngs=nnx.Rngs(0))), rank=4)
      >>> model.layers[0].delta.ranks
      (4, 4, 4)
    """

    def __init__(self, base: nnx.Module, delta: nnx.Module, scale: float = 1.0):
        self.base = base
        self.delta = delta
        self.scale = scale

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Applies a frozen dense layer and adds its scaled trainable update (LoRA).

        Args:
          inputs: as for the dense layer.
          out_sharding: as for the dense layer.

        Returns:
          The outputs of the dense layer, with its dtype.
        """
        inputs = jnp.asarray(inputs)
        dense = cast(Any, self.base)(inputs, out_sharding=out_sharding)
        return self._added(dense, cast(Any, self.delta)(inputs, out_sharding))

    def attend(self, query: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Computes the logits for all rows of an adapted embedding, as `flax.nnx.Embed.attend`.

        Args:
          query: (…, features).
          out_sharding: of the logits.

        Returns:
          (…, num_embeddings).
        """
        query = jnp.asarray(query)
        dense = cast(Any, self.base).attend(query, out_sharding)
        return self._added(dense, cast(Any, self.delta).attend(query, out_sharding))

    def _added(self, dense: jax.Array, update: jax.Array) -> jax.Array:
        return dense + jnp.asarray(self.scale, dense.dtype) * update.astype(dense.dtype)


def adapt(
    model: object,
    rank: int | None = None,
    *,
    rules: Rules | None = None,
    scale: float = 1.0,
    rngs: nnx.Rngs | None = None,
) -> Any:
    """Copies a model, freezes its weights and adds an adapter, a low-rank update, to each layer.

    Every dense layer that the rules match becomes an `Adapted` one, y = x W + bias + scale · x ΔW,
    with ΔW a tensor train (LoRETTA), or W = U D V by `LowRank` (LoRA, with a gate on its bond).
    The last core of ΔW is zero at first, so that the copy computes what the model does. All other
    parameters of the model become `Frozen` variables: they are no `flax.nnx.Param`, so that
    gradients and optimisers of parameters see the updates alone::

        optimizer = nnx.Optimizer(adapted, optax.adamw(1e-3), wrt=nnx.Param)
        loss, grads = nnx.value_and_grad(loss_function)(adapted, batch)
        optimizer.update(adapted, grads)
        trained, rest = nnx.split(nnx.state(adapted), nnx.Param, ...)  # what to save: trained
        model = nn.merge_adapters(adapted)

    `tensorjax.optim.rank_adaptive` finds the ranks of the updates as of any tensorised layers.

    Args:
      model: any NNX module; it is not changed.
      rank: of the specs that have none; with ``rules`` None, of tensor trains for all dense layers.
      rules: patterns and specs of the updates, as for `tensorize`; layers that none matches are
        frozen as they are.
      scale: factor of the updates (α / r of LoRA).
      rngs: the stream "params" is drawn from; None is ``nnx.Rngs(0)``.

    Returns:
      The copy, of the class of ``model``; an `Adapted` layer where the model itself is one.

    Raises:
      TypeError: ``model`` is no NNX module, or a rule's value no spec.
      ValueError: a rule that matches no dense layer, no rank, a layer whose options the merged
        weight could not keep, a `flax.nnx.SpectralNorm`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> model = nnx.Sequential(nnx.Linear(64, 96, rngs=nnx.Rngs(0)))
      >>> adapted = nn.adapt(model, rules={"*": nn.LowRank(4)})
      >>> x = jnp.ones((2, 64))
      >>> bool((adapted(x) == model(x)).all())
      True
      >>> sum(p.size for p in jax.tree.leaves(nnx.state(adapted, nnx.Param)))  # 4 (64 + 96 + 1)
      644

    Source: Hu et al., "LoRA" (ICLR 2022, arXiv 2106.09685); Yang, Zhou, Wong, Zhang, "LoRETTA:
    Low-Rank Economic Tensor-Train Adaptation" (NAACL 2024, arXiv 2402.11417); Bershatsky et al.,
    "LoTR" (arXiv 2402.01376). Departures: gates on the bonds; the trains of different layers share
    no core, which those of LoTR do.
    """
    check_module(model)
    scale = _check.number("scale", scale)
    pairs = rules_with({"*": TT()} if rules is None else rules, rank)
    rngs = nnx.Rngs(0) if rngs is None else rngs
    copy = cast(Any, nnx.clone(model))
    for module, paths in places(copy).values():
        if isinstance(module, nnx.SpectralNorm):
            raise ValueError(
                f"{paths[0] or 'the model itself'}: expected no SpectralNorm: it normalises "
                "parameters alone, and adapt freezes them; put the normalised weight into its layer"
            )
    updates: dict[int, Any] = {}
    found = matched(copy, pairs)
    tied = ties(copy, found)
    for layer, paths, spec in found:
        try:
            check_plain(layer)
            updates[id(layer)] = _update(layer, spec, rngs)
        except ValueError as error:
            raise ValueError(f"{paths[0] or 'the model itself'}: {error}") from error
    tie(updates, tied)
    rewrite_variables(copy, _frozen)
    made = {id(x): Adapted(x, updates[id(x)], scale) for x, _, _ in found}
    if id(copy) in made:
        return made[id(copy)]
    swap(copy, made)
    return copy


def merge_adapters(model: object, *, max_bytes: int = MAX_BYTES) -> Any:
    """Copies an adapted model and adds every adapter's update to its dense weight.

    Sums are made in double precision on the host and rounded once to the dtype of the weight.
    `Frozen` variables become parameters again.

    Args:
      model: what `adapt` returned, after training; it is not changed.
      max_bytes: the largest array that may be made, in double precision.

    Returns:
      The copy, of dense layers.

    Raises:
      TypeError: ``model`` is no NNX module.
      ValueError: no adapters in it, or a weight that needs more than ``max_bytes``.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> model = nnx.Sequential(nnx.Linear(64, 96, rngs=nnx.Rngs(0)))
      >>> type(nn.merge_adapters(nn.adapt(model, rank=4)).layers[0]).__name__
      'Linear'

    Source: as `adapt`.
    """
    check_module(model)
    copy = cast(Any, nnx.clone(model))
    found = [module for module, _ in places(copy).values() if isinstance(module, Adapted)]
    if not found:
        raise ValueError("model: expected adapters, as tensorjax.nn.adapt makes them, got none")
    weights: dict[Any, nnx.Variable] = {}
    made = {id(module): merged(module, max_bytes, weights) for module in found}
    if id(copy) in made:
        return unfrozen(made[id(copy)])
    swap(copy, made)
    return unfrozen(copy)


def merged(layer: Adapted, max_bytes: int, weights: dict[Any, Any]) -> Any:
    """Converts an adapted (LoRA) layer to a dense one, with the update added to its weight.

    Args:
      layer: adapted.
      max_bytes: the largest array that may be made.
      weights: sums made before, by the parameters they came from, for tied layers.
    """
    new = cast(Any, layer.base)  # of a copy of the model
    name = "embedding" if isinstance(new, nnx.Embed) else "kernel"
    kept = getattr(new, name)
    parts = [v for _, v in nnx.iter_graph(layer.delta) if isinstance(v, nnx.Variable)]
    key = (id(kept), *map(id, parts))
    if key not in weights:
        pairs = zip(copies(new), copies(layer.delta), strict=True)
        exact = np.stack([
            double(getattr(one, name)[...]) + layer.scale * exact_weight(delta, max_bytes)
            for one, delta in pairs
        ]).reshape(kept.shape)  # fmt: skip
        weights[key] = kept.replace(returned(jnp.asarray(exact, kept.dtype), kept.get_value()))
    setattr(new, name, weights[key])
    return new


def _update(layer: Any, spec: Spec, rngs: nnx.Rngs) -> Any:
    """Draws a dense layer's trainable low-rank update (LoRA), zero at first."""
    if isinstance(layer, nnx.LinearGeneral):
        new = _update(flat(layer), spec, rngs)
        return TensorLinearGeneral(new, layer.in_features, layer.out_features, layer.axis)
    return stacked([_single(one, spec, rngs) for one in copies(layer)], lead(layer))


def _single(layer: Any, spec: Spec, rngs: nnx.Rngs) -> Any:
    options: dict[str, Any] = {"dtype": layer.dtype, "rngs": rngs}
    if isinstance(layer, nnx.Embed):
        padding = getattr(layer, "padding_idx", None)
        options |= {"padding_idx": padding, "param_dtype": layer.embedding.dtype}
        new = spec.embedding(layer.num_embeddings, layer.features, **options)
    else:
        options |= {"use_bias": False, "param_dtype": layer.kernel.dtype}
        new = spec.linear(layer.in_features, layer.out_features, **options)
        new.precision = layer.precision
    last = (new.cores if hasattr(new, "cores") else new.factors)[-1]
    last.set_value(jnp.zeros_like(last[...]))
    settle(new, layer.embedding if isinstance(layer, nnx.Embed) else layer.kernel)
    return new


def _frozen(variable: nnx.Variable) -> nnx.Variable:
    """Freezes a parameter of an adapted (LoRA) model: returns a `Frozen` variable of its value."""
    if not isinstance(variable, nnx.Param):
        return variable
    metadata = variable.get_metadata()
    return Frozen(variable.get_value(), **metadata, frozen_from=type(variable))


def _thawed(variable: nnx.Variable) -> nnx.Variable:
    if not isinstance(variable, Frozen):
        return variable
    metadata = dict(variable.get_metadata())
    kind = metadata.pop("frozen_from", nnx.Param)
    return kind(variable.get_value(), **metadata)


def unfrozen(model: Any) -> Any:
    """Turns the frozen variables of a model into trainable parameters again, in place."""
    rewrite_variables(model, _thawed)
    return model
