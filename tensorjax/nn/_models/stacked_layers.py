"""Layers stacked under `flax.nnx.vmap` for scans: split into single layers, and stacked again."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax.nn._linear_layers import TensorLinearGeneral
from tensorjax.nn._parameters import parameter_count
from tensorjax.nn._weight_conversion import Certificate, certificates

Shape = tuple[int, ...]


def lead(layer: Any) -> Shape:
    """Returns the leading axes of a layer stacked by `nnx.vmap`."""
    if isinstance(layer, TensorLinearGeneral):
        return lead(layer.layer)
    if isinstance(layer, nnx.Linear):
        return layer.kernel.shape[:-2]
    if isinstance(layer, nnx.LinearGeneral):
        return layer.kernel.shape[: -len(layer.in_features) - len(layer.out_features)]
    if isinstance(layer, nnx.Conv):
        return layer.kernel.shape[: -len(layer.kernel_shape)]
    if isinstance(layer, nnx.Embed):
        return layer.embedding.shape[:-2]
    if layer.gates:
        return layer.gates[0].shape[:-1]
    own = len(layer.network().shapes[0]) if hasattr(layer, "network") else 4  # of one core alone
    return layer.cores[0].shape[:-own]


def copies(layer: Any) -> list[Any]:
    """Splits a layer stacked by `nnx.vmap` into single layers; parameters may be shapes.

    Raises:
      ValueError: a parameter without the leading axes of the weight.
    """
    axes = lead(layer)
    if not axes:
        return [layer]
    graph, state = nnx.split(layer)
    for path, leaf in jax.tree.leaves_with_path(state):
        if leaf.shape[: len(axes)] != axes:
            raise ValueError(
                f"layer: expected all parameters stacked over the first axes {axes}, got shape "
                f"{leaf.shape} at {jax.tree_util.keystr(path)}; stack layers by nnx.vmap with "
                "out_axes=0"
            )
    count = math.prod(axes)
    return [
        nnx.merge(graph, jax.tree.map(lambda x, k=k: _part(x, len(axes), k), state))
        for k in range(count)
    ]


def _part(x: Any, axes: int, k: int) -> Any:
    """Selects copy ``k`` of a parameter stacked by `nnx.vmap`, be it an array or a shape."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(x.shape[axes:], x.dtype)
    return x.reshape(-1, *x.shape[axes:])[k]


def stacked(layers: Sequence[Any], axes: Shape) -> Any:
    """Stacks layers of one format over new leading axes; pads ranks that differ with zeros.

    The padding is zeros, gates included: indices that are dead, as those that `optim` prunes, so
    that every copy keeps the ranks that it had.
    """
    if not axes:
        return layers[0]
    graph = nnx.graphdef(layers[0])
    new = nnx.merge(graph, jax.tree.map(lambda *x: _padded(x, axes), *map(nnx.state, layers)))
    measured = [certificates[layer] for layer in layers if layer in certificates]
    if len(measured) == len(layers):
        certificates[new] = _together(new, measured, [norm(layer) for layer in layers])
    return new


def _padded(arrays: Sequence[jax.Array], axes: Shape) -> jax.Array:
    """Stacks one parameter of several layers, padded with zeros to the largest shape."""
    shape = [max(sizes) for sizes in zip(*(x.shape for x in arrays), strict=True)]
    wide = [
        jnp.pad(x, [(0, n - m) for n, m in zip(shape, x.shape, strict=True)])
        if x.shape != tuple(shape)
        else x
        for x in arrays
    ]
    return jnp.stack(wide).reshape(*axes, *shape)


def norm(layer: Any) -> float:
    """Computes the norm of a layer's weight over all copies in a stack, dense or tensorised."""
    if isinstance(layer, nnx.Embed):
        weight = layer.embedding[...]
    elif hasattr(layer, "kernel") and isinstance(layer.kernel, nnx.Variable):
        weight = layer.kernel[...]
    else:
        weight = layer.weight() if hasattr(layer, "weight") else layer.table()
    largest = jnp.max(jnp.abs(weight), initial=0).astype(jnp.float32)
    shares = weight.ravel().astype(jnp.float32) / jnp.where(largest > 0, largest, 1)
    return float(largest) * float(jnp.linalg.norm(shares))  # of any range: a double here


def _together(new: Any, measured: Sequence[Certificate], sizes: Sequence[float]) -> Certificate:
    """Combines the certificates of the layers of one stack (`nnx.vmap`), as of one large weight."""
    total = math.hypot(*sizes)

    def mean(errors: Sequence[float]) -> float:
        shares = [e * s for e, s in zip(errors, sizes, strict=True)]
        return math.hypot(*shares) / total if total else max(errors)

    bounds = [c.bound for c in measured if c.bound is not None]
    return Certificate(
        error=mean([c.error for c in measured]),
        bound=max(bounds) if len(bounds) == len(measured) else None,
        least=mean([c.least for c in measured]),
        ranks=getattr(new, "ranks", ()),
        numbers_before=sum(c.numbers_before for c in measured),
        numbers=parameter_count(new),
    )


def each(layer: Any, change: Callable[[Any], Any]) -> Any:
    """Applies a function to every single layer of a stacked one, and stacks the results."""
    return stacked([change(one) for one in copies(layer)], lead(layer))
