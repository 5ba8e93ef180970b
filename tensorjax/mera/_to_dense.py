"""Dense arrays of MERAs, layer by layer from the top."""

import math
from typing import Any

import jax
import numpy as np

from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.mera._on_host import host_copy, is_numpys, network_einsum
from tensorjax.mera._types import MERA, Layer, single


@placed
def to_dense(m: MERA) -> jax.Array:
    """Contracts a MERA to a dense array of shape (n_1, …, n_N).

    Args:
      m: MERA of N sites.

    Returns:
      Array in the dtype of ``m``.

    Raises:
      TypeError: ``m`` is no MERA. ValueError: it is a batch of them.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import mera
      >>> x = mera.to_dense(mera.random(jax.random.key(0), (2,) * 6, 2))
      >>> x.shape, bool(abs(jnp.linalg.norm(x.ravel()) - 1) < 1e-5)
      ((2, 2, 2, 2, 2, 2), True)

    Source: ours; layer by layer from the top, so that the state is smallest.
    """
    single("m", m)
    # Each tensor is applied to no more entries than there are in the end.
    work = len(jax.tree.leaves(m)) * math.prod(m.shape)
    if is_numpys("mera.to_dense", m, work):
        return on_device([np.ascontiguousarray(_dense(host_copy(m)))])[0]
    return _to_dense(m)


def _dense(m: MERA) -> Any:
    x = m.top
    for layer in reversed(m.layers):
        x = _expand(layer, x)
    return x


_to_dense = jax.jit(_dense)


def _expand(layer: Layer, x: Any) -> Any:
    """Contracts one layer of a MERA with a dense state of its top legs.

    A disentangler is applied as soon as both its sites exist, while the state is smallest.
    """
    axes = [-1 - b for b in range(x.ndim)]  # sites, or −1 − block for blocks still folded
    pairs = dict(zip(layer.wiring.pairs, layer.disentanglers, strict=True))
    for b, (w, block) in enumerate(zip(layer.isometries, layer.wiring.blocks, strict=True)):
        x, axes = _apply(x, axes, w, list(block), [-1 - b])
        for (i, j), u in list(pairs.items()):
            if i in axes and j in axes:
                x, axes = _apply(x, axes, u, [i, j], [i, j])
                del pairs[i, j]
    return x


def _apply(
    x: Any, axes: list[int], tensor: Any, bottom: list[int], top: list[int]
) -> tuple[Any, list[int]]:
    """Contracts axes of a growing dense state with a MERA's tensor; returns new labels too."""
    result = sorted([*(a for a in axes if a not in top), *bottom], key=lambda a: (a < 0, abs(a)))
    label = {a: k for k, a in enumerate([*axes, *(b for b in bottom if b not in axes)])}
    fresh = {b: len(label) + k for k, b in enumerate(bottom)}
    operand = [*(fresh[b] for b in bottom), *(label[a] for a in top)]
    out = [fresh.get(a, label[a]) for a in result]
    return network_einsum(x, [label[a] for a in axes], tensor, operand, out), result
