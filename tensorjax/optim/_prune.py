"""Choice of the gates to set to zero in a step: by threshold, and down to a size target."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax.optim._explicit_sharding import _whole, widest
from tensorjax.optim._size_polynomial import Polynomial
from tensorjax.optim._tensorised_leaves import Layout


@dataclasses.dataclass(frozen=True)
class Gates:
    """Conversion between the gate vectors of all layers and one joined vector.

    Attributes:
      bonds: (gates in all,), the bond of each.
      owners: (bonds,), the layer of each bond.
      lengths: of the bonds.
      layers: how many.
    """

    bonds: np.ndarray
    owners: np.ndarray
    lengths: tuple[int, ...]
    layers: int

    @classmethod
    def of(cls, layout: Layout) -> "Gates":
        """Builds the index of the gates of a layout, to choose which to prune."""
        lengths = [n for layer in layout.layers for n in layer.ranks]
        owners = [k for k, layer in enumerate(layout.layers) for _ in layer.gates]
        bonds = np.repeat(np.arange(len(lengths)), lengths)
        return cls(bonds, np.array(owners, int), tuple(lengths), len(layout.layers))

    def join(self, gates: Sequence[jax.Array]) -> jax.Array:
        """Concatenates the gates, for pruning, in their widest dtype, float32 at least."""
        dtype = widest(jnp.float32, *gates)
        return jnp.concatenate([_whole(jnp.asarray(g)).astype(dtype) for g in gates])

    def split(self, flat: jax.Array) -> list[jax.Array]:
        """Splits a joined vector of gates, for pruning, into one vector per bond."""
        ends = np.cumsum((0, *self.lengths))
        return [flat[a:b] for a, b in itertools.pairwise(ends)]

    def spread(self, of_gates: Sequence[jax.Array]) -> jax.Array:
        """Repeats one value per bond, for pruning, for all entries of the bond's gate."""
        return jnp.stack([_whole(x) for x in of_gates])[self.bonds]

    def per_bond(self, flat: jax.Array) -> jax.Array:
        """Sums a joined vector of gates bond by bond, for pruning, in single precision."""
        sums = jnp.zeros((len(self.lengths),), jnp.float32)
        return sums.at[self.bonds].add(flat.astype(jnp.float32))

    def largest(self, flat: jax.Array, live: jax.Array) -> jax.Array:
        """Marks, for pruning, the largest live gate of every bond, the first of equal ones."""
        count = len(self.lengths)
        shown = jnp.where(live, flat, -jnp.inf)
        peak = jnp.full((count,), -jnp.inf, flat.dtype).at[self.bonds].max(shown)
        order = jnp.arange(flat.size)
        at_peak = live & (shown == peak[self.bonds])
        first = (
            jnp.full((count,), flat.size).at[self.bonds].min(jnp.where(at_peak, order, flat.size))
        )
        return order == first[self.bonds]


def doomed(
    gates: Gates,
    polynomial: Polynomial,
    values: jax.Array,
    live: jax.Array,
    threshold: Any,
    *,
    keep_one: bool,
    target: jax.Array | None,
    frozen: jax.Array,
    most: jax.Array | None = None,
) -> jax.Array:
    """Marks the gates to prune, that is to set to zero, in this step.

    Args:
      gates: where they are.
      polynomial: the size.
      values: new gates, one vector.
      live: which of them were not dead before.
      threshold: gates at or below it may die.
      keep_one: whether the largest gate of a bond has to stay.
      target: size below which no further gate dies, the smallest dying first; None: all die.
      frozen: which of them must stay as they are.
      most: how many may die, with a target only.
    """
    may_die = live & ~frozen & (values <= threshold)
    if keep_one:
        may_die &= ~gates.largest(values, live)
    if target is not None:
        # Position of every gate that may die, in ascending order; the others come last.
        order = jnp.argsort(jnp.where(may_die, values, jnp.inf), stable=True)
        place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))

        def enough(count: jax.Array) -> jax.Array:
            left = gates.per_bond(live & ~(may_die & (place < count)))
            return polynomial.of_living(left) <= target

        count = _least(enough, jnp.sum(may_die), values.size)
        may_die &= place < (count if most is None else jnp.minimum(count, most.astype(count.dtype)))
    if not keep_one:  # nothing passes a layer with an empty bond: its other bonds go too
        alive = polynomial.living(gates.per_bond(live & ~may_die))
        may_die |= live & ~frozen & ~alive[gates.owners[gates.bonds]]
    return may_die


def _least(enough: Any, high: jax.Array, size: int) -> jax.Array:
    """Finds by bisection the least count of gates to prune that is enough; ``high`` if none is."""
    low = jnp.zeros_like(high)
    for _ in range(math.ceil(math.log2(size + 1))):
        middle = (low + high) // 2
        found = enough(middle)
        high = jnp.where(found, middle, high)
        low = jnp.where(found, low, jnp.minimum(middle + 1, high))
    return high
