"""Rank cuts to a size under jit, the least important bond indices first."""

from typing import Any

import jax
import jax.numpy as jnp

from tensorjax.optim._prune import Gates
from tensorjax.optim._size_polynomial import Polynomial
from tensorjax.optim._tensorised_leaves import Layout


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
) -> jax.Array:
    """Marks the gates to set to zero, least importance per freed size first, under jit.

    The same order as that of `prune`, on traced arrays. One index of every bond stays.

    Args:
      gates: where they are.
      polynomial: the size.
      worth: importance of every gate.
      live: which of them are not dead.
      frozen: which of them must stay.
      budget: size at which it ends; −inf: all die that may.
      gate_size: that a live gate adds to the size.
      most: how many may die.
    """

    def candidates(alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        ranks = gates.per_bond(alive)
        return ranks, alive & ~frozen & (ranks > 1)[gates.bonds]

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
        score = jnp.where(may, worth / jnp.maximum(freed, 1e-9)[gates.bonds], jnp.inf)
        return alive & (jnp.arange(alive.size) != jnp.argmin(score)), count + 1

    start = (live, jnp.zeros((), jnp.float32))
    return live & ~jax.lax.while_loop(goes_on, removed, start)[0]


def sizes_of_all(layout: Layout, leaves: list[Any]) -> tuple[int, int]:
    """Counts the parameters of the layers if they were dense, and those outside the layers."""
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
