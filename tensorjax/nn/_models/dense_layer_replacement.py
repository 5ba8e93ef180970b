"""Replacement of one dense layer, single or stacked, by the layer that a spec describes."""

import dataclasses
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax import linalg
from tensorjax.nn._linear_layers import TensorLinearGeneral, flat
from tensorjax.nn._models.spec_candidates import is_random
from tensorjax.nn._models.stacked_layers import copies, lead, norm, stacked
from tensorjax.nn._specs import Spec
from tensorjax.nn._weight_conversion import certificates, check_plain

Ranks = Literal["own", "shared"]


def replacement(
    layer: Any,
    spec: Spec,
    init: str,
    tol: float | None,
    ranks: Ranks,
    rngs: Any,
    begins: bool = False,
) -> Any:
    """Builds the tensorised replacement of a dense layer, by SVD of its weight or random.

    Args:
      layer: dense, perhaps stacked.
      init: "svd" or "random".
      tol: relative error of every single weight, or None.
      ranks: of stacked layers, as for `tensorjax.nn.tensorize`.
      rngs: for "random".
      begins: whether a training begins with it; by "svd" random weights keep their norm then.
    """
    if isinstance(layer, nnx.LinearGeneral):
        check_plain(layer)
        new = replacement(flat(layer), spec, init, tol, ranks, rngs, begins)
        return TensorLinearGeneral(new, layer.in_features, layer.out_features, layer.axis)
    made = [_single(one, spec, init, tol, rngs, begins) for one in copies(layer)]
    if ranks == "shared" and len({one.ranks for one in made}) > 1:
        most: Any = [max(r) for r in zip(*(one.ranks for one in made), strict=True)]
        shared: dict[str, Any] = {"rank": tuple(most) if len(most) > 1 else most[0]}
        spec = dataclasses.replace(spec, **shared)
        made = [_single(one, spec, init, None, rngs, begins) for one in copies(layer)]
    return stacked(made, lead(layer))


def _single(
    layer: Any, spec: Spec, init: str, tol: float | None, rngs: Any, begins: bool = False
) -> Any:
    """Builds the tensorised layer that replaces one dense layer, not a stack of them."""
    linear, conv = isinstance(layer, nnx.Linear), isinstance(layer, nnx.Conv)
    if init == "svd":
        convert: Any = spec.from_linear if linear else spec.from_embedding
        convert = spec.from_conv if conv else convert
        new, _ = convert(layer, tol=tol)
        return _as_fresh(new, layer) if begins and is_random(layer) else new
    check_plain(layer)
    if conv:
        return _with_bias(_fresh_conv(layer, spec, rngs), layer)
    if not linear:
        return spec.embedding(
            layer.num_embeddings,
            layer.features,
            dtype=layer.dtype,
            param_dtype=layer.embedding.dtype,
            padding_idx=getattr(layer, "padding_idx", None),
            rngs=rngs,
        )
    new = spec.linear(
        layer.in_features,
        layer.out_features,
        use_bias=layer.bias is not None,
        dtype=layer.dtype,
        param_dtype=layer.kernel.dtype,
        rngs=rngs,
    )
    return _with_bias(new, layer)


def _as_fresh(new: Any, layer: Any) -> Any:
    """Rescales a replacement made from random weights to their norm, with gates of one.

    Of a flat spectrum a truncation keeps what the first ranks hold of the norm, a third of it at
    tenfold compression. Layer on layer outputs and gradients would shrink by such factors.
    """
    before, now = norm(layer), norm(new)
    if not (before > 0 and now > 0):
        return new
    cores: Any = list(getattr(new, "cores", ()))
    core: Any = [new.core] if hasattr(new, "core") else []
    parts = cores or [*core, *new.factors]
    scale = (before / now) ** (1 / len(parts))
    # Gates that are not one say to `optim.rank_adaptive` that the model was trained before.
    roots = [jnp.sqrt(gate[...]) for gate in new.gates] if cores else []
    for k, part in enumerate(parts):
        value = part[...].astype(linalg.factor_dtype(part.dtype)) * scale
        rest = (1,) * (value.ndim - 1)
        if 0 < k <= len(roots):
            value = value * roots[k - 1].reshape(-1, *rest).astype(value.dtype)
        if k < len(roots):
            value = value * roots[k].reshape(*rest, -1).astype(value.dtype)
        part.set_value(value.astype(part.dtype))
    for gate in new.gates if roots else ():
        gate.set_value(jnp.ones_like(gate[...]))
    # W' is a projection of W, so that ⟨W, W'⟩ = ‖W'‖²: the error of s W' of the norm of W.
    error = (2 * max(1 - now / before, 0.0)) ** 0.5
    certificates[new] = dataclasses.replace(certificates[new], error=error, bound=None)
    return new


def _fresh_conv(layer: nnx.Conv, spec: Spec, rngs: Any) -> Any:
    names = ("padding", "input_dilation", "kernel_dilation", "dtype")
    return spec.conv(
        layer.in_features,
        layer.out_features,
        layer.kernel_size,
        cast(Any, layer.strides),
        use_bias=layer.bias is not None,
        param_dtype=layer.kernel.dtype,
        rngs=rngs,
        **{name: getattr(layer, name) for name in names},
    )


def _with_bias(new: Any, layer: Any) -> Any:
    """Copies bias and precision of a dense layer to the layer that replaces it."""
    # Only shapes: then there is no bias to keep.
    if layer.bias is not None and not isinstance(layer.bias.get_value(), jax.ShapeDtypeStruct):
        new.bias = layer.bias.copy()
    if new.precision is None:
        new.precision = layer.precision
    return new
