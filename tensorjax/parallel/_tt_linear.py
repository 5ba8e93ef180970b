"""Tensor-train linear layer with its leading modes sharded over devices."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import contract
from tensorjax.parallel import _collectives as collectives
from tensorjax.parallel._collectives import Axes


def splits(layer: Any, blocks: int, fold: tuple[int, ...]) -> bool:
    """Whether a TT layer's leading modes split into equal blocks, to be sharded over devices.

    Args:
      layer: with ``cores``, ``in_shape`` and ``out_shape`` as `tensorjax.nn.TTLinear` has them, or
        any other one: TT-matrices, whose cores hold a mode of both sides, are not split.
      fold: sizes (…, wide) that the output is folded into; () for none. The last one is split.
    """
    if not hasattr(layer, "cores") or layer.memory_limit is not None:
        return False  # a limit is kept by the layer itself, on tokens
    if len(layer.cores) != len(layer.in_shape) + len(layer.out_shape):
        return False  # a TT-matrix
    whole = (
        math.prod(layer.in_shape) == layer.in_features
        and math.prod(layer.out_shape) == layer.out_features
    )
    empty = any(0 in core.shape for core in layer.cores)
    pieces = blocks * math.prod(fold[:-1])
    return whole and not empty and not (layer.in_shape[0] % blocks or layer.out_shape[0] % pieces)


def product(layer: Any, x: jax.Array, axes: Axes, fold: tuple[int, ...]) -> jax.Array:
    """Applies a tensor-train linear layer to this device's block of features.

    With cores G_1 … G_p of the input, G_{p+1} … G_{p+q} of the output, on each device:

        z = psum(x[i_1 in its block, i_2 … i_p] G_1 … G_p),    y = z G_{p+1}[j_1 in its block] ….

    All devices hold all cores, and between them go only the T × r_p elements of z. The work and
    what is kept of it for the backward pass are split: batch over some axes of the mesh, modes over
    others.

    Args:
      layer: of which `splits` is true.
      x: (batch, length, block of the features), this device's blocks.
      axes: of the mesh, over which features are split.
      fold: as for `splits`.

    Returns:
      (batch, length, *fold[:-1], block of the last size of fold).
    """
    bias = None if layer.bias is None else layer.bias[...]
    arrays = layer.arrays()
    dtype = layer.dtype or jnp.result_type(x, *arrays)
    x, *arrays = (a.astype(dtype) for a in (x, *arrays))
    blocks, parts = collectives.size(axes), math.prod(fold[:-1])
    p = len(layer.in_shape)
    arrays[0] = _mode_block(arrays[0], axes, 1)
    arrays[p] = _mode_block(arrays[p], axes, parts)

    order = len(arrays)
    terms = [[order + k, k, order + k + 1] for k in range(order)]
    rows, middle = 2 * order + 1, order + p  # labels of the axis of tokens, and of the bond
    tokens = x.reshape(-1, layer.in_shape[0] // blocks, *layer.in_shape[1:])
    half = [tokens, [rows, *range(p)]]
    for array, term in zip(arrays[:p], terms[:p], strict=True):
        half += [array, term]
    z = contract.einsum(*half, [rows, order, middle], precision=layer.precision)
    z = collectives.total(z, axes)
    half = [z, [rows, order, middle]]
    for array, term in zip(arrays[p:], terms[p:], strict=True):
        half += [array, term]
    out = [rows, order, *range(p, order), 2 * order]
    y = contract.einsum(*half, out, precision=layer.precision)
    wide = layer.out_features // (blocks * parts)
    y = y.reshape(*x.shape[:-1], *fold[:-1], wide)
    if bias is None:
        return y
    bias = bias.astype(dtype).reshape(*fold[:-1], wide * blocks)
    return y + collectives.row(collectives.block(bias, axes, bias.ndim - 1), y.ndim)


def _mode_block(core: jax.Array, axes: Axes, parts: int) -> jax.Array:
    """Returns this device's block of a TT layer's core, cut along its mode in ``parts`` each."""
    left, _, right = core.shape
    folded = core.reshape(left, parts, -1, right)
    return collectives.block(folded, axes, 2).reshape(left, -1, right)
