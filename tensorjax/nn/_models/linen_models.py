"""Linen models whose dense layers are Flax NNX layers, so that they can be tensorised."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from jax import lax

from tensorjax.nn._weight_conversion import concrete


class BridgedModel(nnx.Module):
    """Linen model that calls NNX layers in place of its own Dense and Embed layers.

    Attributes:
      linen: the `flax.nnx.bridge.ToNNX`, with all other variables.
      layers: the NNX layers, by their paths in the Linen model.
    """

    def __init__(self, model: nnx.bridge.ToNNX, layers: dict[str, nnx.Module]):
        self.linen = model
        self.layers = nnx.Dict(layers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the Linen model, as `flax.nnx.bridge.ToNNX` does, with its NNX layers."""

        def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            path = "/".join(context.module.path)
            if path not in self.layers:
                return call(*args, **kwargs)
            return _replaced(self.layers[path], args, kwargs, context)

        with linen.intercept_methods(intercept):
            return self.linen(*args, **kwargs)


def from_linen(model: nnx.bridge.ToNNX) -> BridgedModel:
    """Copies a Linen model behind Flax' bridge, with NNX layers in place of its dense ones.

    Every `flax.linen.Dense` and `flax.linen.Embed` becomes a `flax.nnx.Linear` or `flax.nnx.Embed`
    with the same weights, which `tensorize`, `choose`, `adapt` and `detensorize` find by the path
    "layers/" + path in the Linen model. All else stays Linen's, and the copy is called as before.

    Args:
      model: `flax.nnx.bridge.ToNNX` with variables, as after ``lazy_init``; it is not changed.

    Returns:
      The copy, an NNX module.

    Raises:
      TypeError: not a `flax.nnx.bridge.ToNNX`.
      ValueError: it has no variables yet, or no dense layers; when called, a replaced layer that
        is no Dense or Embed, or has a ``dot_general`` of its own.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import linen, nnx
      >>> from tensorjax import nn
      >>> module = linen.Sequential([linen.Dense(64), linen.relu, linen.Dense(8)])
      >>> model = nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(jnp.ones((1, 32)))
      >>> small = nn.tensorize(nn.from_linen(model), {"layers/layers_0": nn.TT(rank=4), "*": None})
      >>> small(jnp.ones((5, 32))).shape
      (5, 8)

    Source: ours, by `flax.linen.intercept_methods`.
    """
    if not isinstance(model, nnx.bridge.ToNNX):
        raise TypeError(f"model: expected a flax.nnx.bridge.ToNNX, got {type(model).__name__}")
    copy = nnx.clone(model)
    names = [name for name in vars(copy) if not name.startswith(("to_nnx__", "_pytree__"))]
    if not names:
        raise ValueError("model: expected variables, got none; call model.lazy_init(inputs) first")
    layers: dict[str, nnx.Module] = {}
    for name in names:
        kept = _without_layers(getattr(copy, name), name, layers)
        if kept is None:
            delattr(copy, name)
        else:
            setattr(copy, name, nnx.data(kept))
    if not layers:
        raise ValueError("model: expected Dense or Embed layers inside a Linen model, got none")
    return BridgedModel(copy, layers)


def _without_layers(tree: Any, path: str, layers: dict[str, nnx.Module]) -> Any:
    """Removes dense layers from a Linen model's variables; returns the rest, or None if empty."""
    if not isinstance(tree, dict):
        return tree
    found = _layer(tree)
    if found is not None:
        layers[path] = found
        return None
    kept = {name: _without_layers(x, f"{path}/{name}", layers) for name, x in tree.items()}
    return {name: x for name, x in kept.items() if x is not None} or None


def _layer(tree: dict[str, Any]) -> nnx.Module | None:
    """Converts the variables of a Linen Dense or Embed layer to an NNX layer; None for others."""
    shape = {name: x.shape for name, x in tree.items() if isinstance(x, nnx.Param)}
    if len(shape) != len(tree):
        return None
    new: Any
    if {"kernel"} <= set(shape) <= {"kernel", "bias"} and len(shape["kernel"]) == 2:
        options: dict[str, Any] = {"use_bias": "bias" in shape}
        options |= {"param_dtype": tree["kernel"].dtype, "rngs": nnx.Rngs(0)}
        new = nnx.Linear(*shape["kernel"], **options)
    elif set(shape) == {"embedding"} and len(shape["embedding"]) == 2:
        options = {"param_dtype": tree["embedding"].dtype, "rngs": nnx.Rngs(0)}
        new = nnx.Embed(*shape["embedding"], **options)
    else:
        return None
    for name, x in tree.items():
        setattr(new, name, nnx.Param(concrete(x)))
    return new


def _replaced(layer: Any, args: Any, kwargs: Any, context: Any) -> Any:
    """Interceptor that calls an NNX layer in place of a Linen layer's method, in its dtype."""
    module, method = context.module, context.method_name
    known = {linen.Dense: ("__call__",), linen.Embed: ("__call__", "attend")}
    if method == "setup":  # it would look for the variables
        return None
    if method not in known.get(type(module), ()) or getattr(module, "dot_general", None):
        raise ValueError(
            f"{'/'.join(module.path)}: expected linen.Dense or linen.Embed, without a dot_general "
            f"of its own, in place of which an NNX layer is called, got {module}"
        )
    (inputs,) = (*args, *kwargs.values())
    dtype = module.dtype
    inputs = jnp.asarray(inputs)
    if dtype is not None and jnp.issubdtype(inputs.dtype, jnp.inexact):
        inputs = inputs.astype(dtype)
    with _precision(getattr(module, "precision", None)):
        out = getattr(layer, method)(inputs)
    return out if dtype is None else out.astype(dtype)


def _precision(given: Any) -> Any:
    """Returns a context in which products have the precision of a Linen layer."""
    if given is None:
        return contextlib.nullcontext()
    one, *others = given if isinstance(given, tuple | list) else (given,)
    if any(other != one for other in others):
        raise ValueError(f"precision: expected one for both factors, got {given}")
    return jax.default_matmul_precision(one.name.lower() if isinstance(one, lax.Precision) else one)
