"""Collective operations over zero, one or several mesh axes, inside `jax.shard_map`."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import linalg

Axes = tuple[str, ...]


def size(axes: Axes) -> int:
    """Returns the number of devices in collectives along mesh axes, inside `jax.shard_map`."""
    return math.prod(jax.lax.axis_size(axis) for axis in axes)


def index(axes: Axes) -> jax.Array | int:
    """Returns this device's number in collectives along mesh axes, the first changing slowest."""
    return jax.lax.axis_index(axes) if axes else 0


def gather(x: jax.Array, axes: Axes, dim: int, *, same: bool = False) -> jax.Array:
    """All-gathers the blocks of all devices along ``axes``; its transpose is `scatter`.

    Args:
      x: block of this device.
      dim: of the array, along which blocks are joined.
      same: the result counts as equal on all devices along ``axes``. Its transpose takes this
        device's block of a cotangent that is equal on all of them, and communicates nothing.
    """
    if not axes:
        return x
    to = "invarying" if same else "varying"
    return jax.lax.all_gather(x, axes, axis=dim % x.ndim, tiled=True, to=to)


def scatter(x: jax.Array, axes: Axes, dim: int) -> jax.Array:
    """Reduce-scatters along ``axes``: sums over devices, keeps this device's block of ``dim``."""
    if not axes:
        return x
    return jax.lax.psum_scatter(x, axes, scatter_dimension=dim % x.ndim, tiled=True)


def varying(x: jax.Array) -> frozenset[str]:
    """Returns mesh axes over which an array may differ between devices, for collectives."""
    kind: Any = jax.typeof(x)
    # The name is that of JAX 0.10; it was `vma` before, and may be again.
    return kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma


def vary(x: jax.Array, axes: Axes) -> jax.Array:
    """Marks an array as varying along mesh axes, so that a collective sums its gradient."""
    present = varying(x)
    missing = tuple(axis for axis in axes if axis not in present)
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def placed(place: Callable[[jax.Array], jax.Array], w: jax.Array, dtype: Any = None) -> jax.Array:
    """Gathers a sharded parameter by a collective whose gradient is summed in float32.

    A sum over n devices in bfloat16 has a relative error of n · 2⁻⁹, and loses what is small beside
    it. So cotangents in half precision are widened before they are added up over devices, and the
    sum alone is rounded to the dtype of ``w``: the forward pass still sends half precision.

    Args:
      place: linear, such as `gather`: what lets a block be used.
      w: block of a parameter.
      dtype: of the result; that of ``w`` if None.
    """
    dtype = w.dtype if dtype is None else jnp.dtype(dtype)
    if linalg.factor_dtype(dtype) == dtype:
        return place(w.astype(dtype))
    return _placed(place, dtype, (w.shape, w.dtype, tuple(varying(w))), w)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _placed(place: Any, dtype: Any, kind: Any, w: jax.Array) -> jax.Array:
    return place(w.astype(dtype))


def _placed_backward(
    place: Any, dtype: Any, kind: Any, kept: None, cotangent: jax.Array
) -> tuple[jax.Array]:
    shape, stored, axes = kind
    wide = linalg.factor_dtype(dtype)
    _, pull = jax.vjp(place, vary(jnp.zeros(shape, wide), axes))
    return (pull(cotangent.astype(wide))[0].astype(stored),)


# Linear: a loop over layers need not keep w.
_placed.defvjp(lambda place, dtype, _, w: (place(w.astype(dtype)), None), _placed_backward)


def total(x: jax.Array, axes: Axes) -> jax.Array:
    """Sums an array over the devices along ``axes``, a collective (all-reduce)."""
    return jax.lax.psum(x, axes) if axes else x


def largest(x: jax.Array, axes: Axes) -> jax.Array:
    """Computes the maximum over devices along ``axes``, a collective without derivative."""
    x = jax.lax.stop_gradient(x)
    return jax.lax.pmax(x, axes) if axes else x


def exchange(x: jax.Array, axes: Axes, split: int, join: int) -> jax.Array:
    """Exchanges blocks of all devices (collective all-to-all): cuts ``split``, joins ``join``."""
    if not axes:
        return x
    return jax.lax.all_to_all(x, axes, split % x.ndim, join % x.ndim, tiled=True)


def block(x: jax.Array, axes: Axes, dim: int) -> jax.Array:
    """Returns this device's block of an array equal on all devices, without a collective."""
    if not axes:
        return x
    length = x.shape[dim] // size(axes)
    return jax.lax.dynamic_slice_in_dim(x, index(axes) * length, length, axis=dim % x.ndim)


def row(x: jax.Array, ndim: int) -> jax.Array:
    """Prepends axes of size one inside `jax.shard_map`, so that a collective's operands broadcast.

    The tests forbid rank promotion.
    """
    return jnp.reshape(x, (1,) * (ndim - x.ndim) + x.shape)


def product(x: jax.Array, w: jax.Array, dtype: Any = None) -> jax.Array:
    """Multiplies x by w on one device, without a collective, last axis with first."""
    flat = x.reshape(-1, x.shape[-1]), w.reshape(w.shape[0], -1)
    y = jnp.matmul(*flat, preferred_element_type=dtype)
    return y.reshape(*x.shape[:-1], *w.shape[1:])


def ring_product(x: jax.Array, w: jax.Array, axes: Axes, dtype: Any = None) -> jax.Array:
    """Collective all-gather and product: passes column blocks of x around a ring, multiplied by w.

    Every block travels around the ring, and is multiplied while the next one is under way. Its
    transpose lets sums travel the other way around.

    Args:
      x: (…, block), this device's block of the last axis.
      w: (blocks × block, …), all rows.
      dtype: of the result; that of x and w if None.
    """
    if not axes:
        return product(x, w, dtype)
    blocks, rows = size(axes), x.shape[-1]
    y = None
    for step in range(blocks):
        place = (index(axes) + step) % blocks
        part = product(x, jax.lax.dynamic_slice_in_dim(w, place * rows, rows), dtype)
        y = part if y is None else y + part
        if step + 1 < blocks:
            x = jax.lax.ppermute(x, axes, [(i, (i - 1) % blocks) for i in range(blocks)])
    assert y is not None
    return y


def ring_scatter_product(x: jax.Array, w: jax.Array, axes: Axes) -> jax.Array:
    """Collective product and reduce-scatter: sums of columns of x times w pass around a ring.

    Args:
      x: (…, rows), another one on each device.
      w: (rows, blocks × block), another one on each device.
    """
    if not axes:
        return product(x, w)
    blocks = size(axes)
    columns = w.shape[-1] // blocks
    y = None
    for step in range(blocks):
        place = (index(axes) + blocks - 1 - step) % blocks
        part = product(x, jax.lax.dynamic_slice_in_dim(w, place * columns, columns, axis=1))
        if y is None:
            y = part
        else:
            arrived = jax.lax.ppermute(y, axes, [(i, (i + 1) % blocks) for i in range(blocks)])
            y = arrived + part
    assert y is not None
    return y
