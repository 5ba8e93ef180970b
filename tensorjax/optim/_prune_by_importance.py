"""Rank pruning to a target size in one go, by the importance of each bond index per size."""

import heapq
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._typing import PyTree, Tree
from tensorjax.optim._layers.parameter_paths import flatten
from tensorjax.optim._layers.tensorised_layers import Stacks, check_concrete, gated
from tensorjax.optim._size_polynomial import Measure, check_flops, checked, terms


def prune(
    params: Tree,
    target: float,
    *,
    importance: PyTree | None = None,
    measure: Measure = "numbers",
    rows: int = 1,
) -> Tree:
    """Prunes ranks to a target size: zeroes gates of least importance per freed size first.

    Greedy: of all bonds of all layers, the index of least importance per unit of size that it frees
    is removed first, then the next one, with sizes updated. One index of every bond stays. `shrink`
    removes the dead indices from the arrays.

    With s = E[(∂L/∂g)²] over samples, ½ s g² is the rise of the loss without that index: to second
    order, where the gradient vanishes, with Fisher's matrix for the Hessian. It tells indices apart
    in the basis that `canonical` gives; gates are one there. Importance is not measured again as
    indices are removed, and indices that a removed neighbour has made linearly dependent stay.

    Args:
      params: any tree of parameters.
      target: size to reach, in the measure, of the tensorised layers: that of `size`.
      importance: a tree like ``params``, of which only what stands at the gates is read: s, the
        mean of squared gradients, not negative. None is one everywhere: gates² decide, as they can
        where a training has pressed on them, but not after `canonical`, which has them all one.
      measure: as of `size`.
      rows: as of `size`.

    Returns:
      The same tree, with more zeros in its gates. As it was, if it is small enough.

    Raises:
      ValueError: a target below that of rank one; no gates, or some that are negative, NaN or Inf;
        importance of other shapes, negative or NaN.
      TypeError: traced arrays.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import optim
      >>> layer = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> worth = {"cores": [None, None], "gates": [jnp.array([0.5, 0.1, 0.2])]}
      >>> small = optim.prune(layer, 20, importance=worth)
      >>> print(small["gates"][0], optim.size(small))
      [1. 0. 1.] 18

    Source: Theis, Korshunova, Tejani, Huszár, "Faster gaze prediction with dense networks and
    Fisher pruning" (arXiv 1801.05787), there for channels and their operations; Molchanov, Mallya,
    Tyree, Frosio, Kautz, "Importance estimation for neural network pruning" (CVPR 2019, arXiv
    1906.10771). For TT-ranks, in a canonical basis, it is ours.
    """
    measure = checked(measure)
    rows = _check.integer("rows", rows, low=1)
    check_concrete("prune", (target,))
    if isinstance(target, bool) or not isinstance(target, numbers.Real) or not target >= 0:
        raise ValueError(f"target: expected a number that is not negative, got {target!r}")
    check_flops(params, measure)
    stacks = Stacks.of(params)
    params, importance = stacks.split(params), stacks.split(importance, "importance")
    layout = gated(params)
    _, leaves, structure = flatten(params)
    gates = {g: leaves[g] for g in layout.gates}
    check_concrete("prune", (list(gates.values()), importance))
    worth = _worth(params, gates, importance)
    # Of each bond the live indices, the least important last.
    left = [
        [np.argsort(-worth[g], kind="stable")[: int(np.sum(np.asarray(gates[g]) > 0))].tolist()
         for g in layer.gates]
        for layer in layout.layers
    ]  # fmt: skip

    listed = [list(terms(layer, measure, rows)) for layer in layout.layers]

    def sized(layer: int, less: int | None = None) -> int:
        ranks = [len(kept) - (bond == less) for bond, kept in enumerate(left[layer])]
        if ranks and min(ranks) == 0:
            return 0
        return sum(c * math.prod(ranks[g] for g in bonds) for c, bonds in listed[layer])

    def candidates(layer: int) -> list[tuple[float, int, int]]:
        """Lists (importance per freed size, layer, bond) of bond indices that may be pruned."""
        now, bonds = sized(layer), enumerate(left[layer])
        found = []
        for bond, kept in bonds:
            if len(kept) > 1:
                freed = now - sized(layer, bond)
                value = worth[layout.layers[layer].gates[bond]][kept[-1]]
                found.append((value / max(freed, 1e-9), layer, bond))
        return found

    order = range(len(layout.layers))
    size = sum(sized(k) for k in order)
    next_of = [least for k in order for least in sorted(candidates(k))[:1]]
    heapq.heapify(next_of)
    while size > target:
        if not next_of:
            raise ValueError(
                f"target: expected at least {size}, the size at rank one, got {target}; take a "
                "larger one"
            )
        _, layer, bond = heapq.heappop(next_of)
        size -= sized(layer) - sized(layer, bond)
        left[layer][bond].pop()
        for least in sorted(candidates(layer))[:1]:
            heapq.heappush(next_of, least)
    for layer, kept in zip(layout.layers, left, strict=True):
        for g, indices in zip(layer.gates, kept, strict=True):
            mask = np.zeros(np.shape(leaves[g]), bool)
            mask[indices] = True
            leaves[g] = jnp.where(mask, leaves[g], jnp.zeros((), jnp.result_type(leaves[g])))
    return stacks.join(jax.tree.unflatten(structure, leaves))


def _worth(params: Any, gates: dict[int, Any], importance: Any) -> dict[int, np.ndarray]:
    """Returns the importance of every rank gate, by which `prune` cuts; −1 for zero gates."""
    given: dict[Any, Any] = {}
    if importance is not None:
        paths, leaves, _ = flatten(importance)
        given = dict(zip(paths, leaves, strict=True))
    found = {}
    names, _, _ = flatten(params)
    for position, gate in gates.items():
        path, values = names[position], np.asarray(gate, np.float64)
        good = np.isfinite(values) & (values >= 0)
        if not good.all():
            raise ValueError(
                f"params: expected gates >= 0 and finite, got {values[~good][0]:.4g} in "
                f"{'/'.join(map(str, path))}; bring them into the cores by optim.canonical, "
                "or look for the step that made it NaN"
            )
        share = np.ones_like(values)
        if importance is not None:
            name = "/".join(map(str, path))
            if path not in given or np.shape(given[path]) != values.shape:
                got = np.shape(given[path]) if path in given else "nothing"
                raise ValueError(
                    f"importance: expected one number for each gate of {name}, shape "
                    f"{values.shape}, got {got}; pass a tree like params"
                )
            share = np.asarray(given[path], np.float64)
            if not (share >= 0).all():
                raise ValueError(f"importance: expected numbers >= 0, got {share.min()} at {name}")
        found[position] = np.where(values > 0, share * values**2, -1.0)
    return found
