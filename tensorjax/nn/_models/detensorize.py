"""Export of a whole tensorised model to dense Flax layers, the inverse of `tensorize`."""

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax.nn._convolution_base import TensorConv
from tensorjax.nn._convolution_conversion import dense_conv
from tensorjax.nn._embeddings.embedding import PaddedEmbed
from tensorjax.nn._embeddings.embedding_base import Embedding
from tensorjax.nn._embeddings.embedding_conversion import dense_embedding
from tensorjax.nn._linear_base import TensorLinear
from tensorjax.nn._linear_conversion import dense_options
from tensorjax.nn._linear_layers import TensorLinearGeneral
from tensorjax.nn._models.adapters import Adapted, merged, unfrozen
from tensorjax.nn._models.exact_weights import certify_export, exact_weight
from tensorjax.nn._models.stacked_layers import each
from tensorjax.nn._models.traversal import check_module, places, swap
from tensorjax.nn._parameters import MAX_BYTES, settle

_TENSORISED = (TensorLinear, TensorLinearGeneral, Embedding, TensorConv)


def detensorize(model: object, *, max_bytes: int = MAX_BYTES) -> Any:
    """Copies a model and replaces its tensorised layers by dense ones; inverse of `tensorize`.

    The copy computes what the model computes, up to rounding: weights are contracted in double
    precision on the host and rounded once to the dtype of the parameters. That error is measured
    for every weight, see `certificates`. Layers that share parameters share the dense ones, stacked
    layers stay stacked, and adapters are merged, as by `merge_adapters`.

    A `TensorLinearGeneral` becomes a `flax.nnx.LinearGeneral` again, an embedding with a padding id
    a `PaddedEmbed`. Of ids out of range dense embeddings make what Flax does.

    Args:
      model: any NNX module; it is not changed.
      max_bytes: the largest array that may be made, in double precision.

    Returns:
      The copy, of the class of ``model``; a dense layer where the model itself is replaced.

    Raises:
      TypeError: ``model`` is no NNX module.
      ValueError: a weight needs more than ``max_bytes``, with the path of the layer.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> rngs = nnx.Rngs(0)
      >>> model = nnx.Sequential(nnx.Linear(64, 96, rngs=rngs), nnx.Linear(96, 8, rngs=rngs))
      >>> small = nn.tensorize(model, {"*": nn.TT(rank=8)})
      >>> dense = nn.detensorize(small)
      >>> [type(layer).__name__ for layer in dense.layers]
      ['Linear', 'Linear']
      >>> nn.certificates(small)["layers/0"].error > 0.1
      True
      >>> nn.certificates(dense)["layers/0"].error < 1e-7
      True

    Source: ours.
    """
    check_module(model)
    copy = cast(Any, nnx.clone(model))
    made: dict[int, Any] = {}
    inside: set[int] = set()
    weights: dict[Any, Any] = {}
    for module, paths in places(copy).values():
        if id(module) in inside or not isinstance(module, (*_TENSORISED, Adapted)):
            continue
        inside.update(set(places(module)) - {id(module)})
        try:
            made[id(module)] = _dense(module, max_bytes, weights)
        except ValueError as error:
            raise ValueError(f"{paths[0] or 'the model itself'}: {error}") from error
    if id(copy) in made:
        return unfrozen(made[id(copy)])
    swap(copy, made)
    return unfrozen(copy)


def _dense(layer: Any, max_bytes: int, weights: dict[Any, Any]) -> Any:
    """Converts a tensorised or adapted layer to a dense one; tied layers share the new weight."""
    if isinstance(layer, Adapted):
        return merged(layer, max_bytes, weights)
    new: Any = each(layer, lambda one: _export(one, max_bytes))
    inner = layer.layer if isinstance(layer, TensorLinearGeneral) else layer
    name = "embedding" if hasattr(new, "embedding") else "kernel"
    bias = getattr(inner, "bias", None)
    found = [v for _, v in nnx.iter_graph(inner) if isinstance(v, nnx.Variable)]
    parts = tuple(id(v) for v in found if v is not bias)
    weight = getattr(new, name)
    setattr(new, name, weights.setdefault((parts, weight.shape), weight))
    if bias is not None:  # folded, and shared where it was
        folded = bias.replace(bias.get_value().reshape(new.bias.shape))
        new.bias = weights.setdefault((id(bias), folded.shape), folded)
    return new


def _export(layer: Any, max_bytes: int) -> Any:
    """Detensorises one layer that is not stacked: converts it to a dense layer without bias."""
    exact = exact_weight(layer, max_bytes)
    inner: Any = layer.layer if isinstance(layer, TensorLinearGeneral) else layer
    some = jax.tree.leaves(nnx.state([inner.cores if hasattr(inner, "cores") else inner.factors]))
    weight = jnp.asarray(exact, some[0].dtype)
    new = _like(layer, inner, weight)
    settle(new, nnx.Param(some[0]))
    certify_export(new, weight, exact, layer)
    return new


def _like(layer: Any, inner: Any, weight: jax.Array) -> Any:
    """Builds the dense layer of a given weight that stands for a layer to be detensorised."""
    if isinstance(layer, Embedding):
        if layer.padding_idx is None:
            return dense_embedding(layer, weight, nnx.Embed)
        return dense_embedding(layer, weight, PaddedEmbed, padding_idx=layer.padding_idx)
    if isinstance(layer, TensorConv):
        return dense_conv(layer, weight)
    sizes, options = (layer.in_features, layer.out_features), dense_options(inner, weight)
    if isinstance(layer, TensorLinearGeneral):
        return nnx.LinearGeneral(*sizes, axis=layer.axis, **options)
    return nnx.Linear(*sizes, **options)
