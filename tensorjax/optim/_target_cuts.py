"""Cuts of ranks to a given size by a given update, least important indices first, under jit."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax.optim._prune import Gates
from tensorjax.optim._size_polynomial import Polynomial
from tensorjax.optim._tensorised_leaves import Layout

# Chosen on a model of scikit-learn's digits, seeds 0 to 2; on no other model.
CUTS = 20  # about so many cuts: more leave too few gradients between two to tell indices apart
START = 10  # the first cut comes at this share of `by`, 1/START
POWER = 3  # the excess of size falls as (1 − share of the time)^POWER: Zhu and Gupta, 1710.01878


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Updates at which ranks are cut, and the size that each may leave.

    Attributes:
      by: update at which the target is met.
    """

    by: int

    @property
    def start(self) -> int:
        """Update before which no rank is cut."""
        return self.by // START

    @property
    def half(self) -> int:
        """Updates from a change of basis to a cut, and from a cut to a change of basis."""
        return max(1, (self.by - self.start) // (2 * CUTS))

    def budget(self, count: jax.Array, full: jax.Array, target: jax.Array) -> jax.Array:
        """Returns the size that the layers may have after this update."""
        share = (count - self.start).astype(jnp.float32) / max(self.by - self.start, 1)
        return target + jnp.maximum(full - target, 0.0) * (1 - jnp.clip(share, 0, 1)) ** POWER

    def tick(self, count: jax.Array) -> jax.Array:
        """Numbers what is due: even, a change of basis; odd, a cut. One falls on ``by``.

        They go on after ``by``, for what was undone.
        """
        return ((count - self.by) // self.half + 2 * CUTS + 1).astype(jnp.int32)


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
    """Marks the gates to set to zero: one by one the least important for the size that it frees.

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
    slope_of = jax.grad(polynomial)

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
        freed = slope_of(ranks) + gate_size
        score = jnp.where(may, worth / jnp.maximum(freed, 1e-9)[gates.bonds], jnp.inf)
        return alive & (jnp.arange(alive.size) != jnp.argmin(score)), count + 1

    start = (live, jnp.zeros((), jnp.float32))
    return live & ~jax.lax.while_loop(goes_on, removed, start)[0]


def sizes_of_all(layout: Layout, leaves: list[Any]) -> tuple[int, int]:
    """Returns (parameters that the layers would have dense, parameters outside the layers)."""
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
