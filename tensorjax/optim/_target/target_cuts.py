"""Rank cuts to a size under jit, the least important bond indices first."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax.optim._layers.tensorised_layers import Layout
from tensorjax.optim._size_polynomial import Polynomial, padded, picked
from tensorjax.optim._threshold_pruning import Gates


def least_important(
    gates: Gates,
    polynomial: Polynomial,
    worth: jax.Array,
    live: jax.Array,
    frozen: jax.Array,
    *,
    budget: jax.Array,
    gate_size: float,
    most: jax.Array,
    together: np.ndarray,
) -> jax.Array:
    """Marks the least important rank gates to prune, down to a model size, under jit.

    The same order as that of `prune`, on traced arrays. One index of every bond stays. Bonds of the
    copies of a stacked layer lose an index each at once, as one array holds all copies, and only
    ranks that are the same for all make it smaller.

    Args:
      worth: importance of every gate.
      live: which of them are not dead.
      frozen: which of them must stay.
      budget: size at which it ends; −inf: all die that may.
      gate_size: that a live gate adds to the size.
      most: how many may die.
      together: (bonds,), a number for every bond, the same for those that are cut at once.
    """
    members = [np.flatnonzero(together == n).tolist() for n in range(together.max(initial=-1) + 1)]
    table = padded(members, together.size)

    def of_groups(x: jax.Array, reduce: Any, fill: float) -> jax.Array:
        if table.shape[1] == 1:
            return x
        return reduce(picked(jnp.append(x, jnp.asarray(fill, x.dtype)), table), 1)

    def candidates(alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        ranks = gates.per_bond(alive)
        may = alive & ~frozen & (ranks > 1)[gates.bonds]
        # Of copies of different ranks those of the largest are cut.
        open_ranks = jnp.where(gates.per_bond(may) > 0, ranks, 0.0)
        largest = of_groups(open_ranks, jnp.max, 0.0)[together]
        return ranks, may & (ranks == largest)[gates.bonds]

    def goes_on(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        alive, count = carry
        ranks, may = candidates(alive)
        size = polynomial.of_living(ranks) + gate_size * jnp.sum(ranks)
        return (size > budget) & (count < most) & jnp.any(may)

    def removed(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        alive, count = carry
        ranks, may = candidates(alive)
        # The size is linear in every rank: its slope is what one index less frees.
        freed = polynomial.slopes(ranks) + gate_size
        least = gates.largest(-worth, may)
        lost = gates.per_bond(jnp.where(least, worth, 0.0))
        has = gates.per_bond(least) > 0
        lost = of_groups(lost, jnp.sum, 0.0)
        freed = of_groups(jnp.where(has, freed, 0.0), jnp.sum, 0.0)
        score = jnp.where(of_groups(has, jnp.any, False), lost / jnp.maximum(freed, 1e-9), jnp.inf)
        chosen = (jnp.arange(score.size) == jnp.argmin(score))[together]
        gone = least & chosen[gates.bonds]
        return alive & ~gone, count + jnp.sum(gone, dtype=jnp.float32)

    start = (live, jnp.zeros((), jnp.float32))
    return live & ~jax.lax.while_loop(goes_on, removed, start)[0]


def sizes_of_all(layout: Layout, leaves: list[Any]) -> tuple[int, int]:
    """Counts a model's parameters if its tensorised layers were dense, and those outside them."""
    dense = 0
    for layer in layout.layers:
        if not layer.gates:
            continue
        whole = 1
        for core in range(len(layer.cores)):
            for n in layer.modes(core):
                whole *= n
        dense += whole
    inside = {k for layer in layout.layers if layer.gates for k in (*layer.cores, *layer.gates)}
    outside = sum(int(jnp.size(x)) for k, x in enumerate(leaves) if k not in inside)
    return dense, outside
