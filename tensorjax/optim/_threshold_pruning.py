"""Choice of the gates that an update sets to zero: by threshold, down to a size target."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax.optim._explicit_sharding import _whole, widest
from tensorjax.optim._layers.tensorised_layers import Layout
from tensorjax.optim._size_polynomial import Polynomial, picked


@dataclasses.dataclass(frozen=True)
class Gates:
    """Conversion of all layers' rank gates to one vector, and back.

    Attributes:
      bonds: (gates in all,), the bond of each.
      owners: (bonds,), the layer of each bond.
    """

    bonds: np.ndarray
    owners: np.ndarray
    lengths: tuple[int, ...]
    layers: int

    @classmethod
    def of(cls, layout: Layout) -> "Gates":
        """Builds the conversion of the rank gates of all layers in a `Layout` to one vector."""
        lengths = [n for layer in layout.layers for n in layer.ranks]
        owners = [k for k, layer in enumerate(layout.layers) for _ in layer.gates]
        bonds = np.repeat(np.arange(len(lengths)), lengths)
        return cls(bonds, np.array(owners, int), tuple(lengths), len(layout.layers))

    def join(self, gates: Sequence[jax.Array]) -> jax.Array:
        """Concatenates the rank gates of all bonds to one vector, in float32 or wider."""
        dtype = widest(jnp.float32, *gates)
        return jnp.concatenate([_whole(jnp.asarray(g)).astype(dtype) for g in gates])

    def split(self, flat: jax.Array) -> list[jax.Array]:
        """Splits the vector of all rank gates into one vector per bond."""
        ends = np.cumsum((0, *self.lengths))
        return [flat[a:b] for a, b in itertools.pairwise(ends)]

    def per_bond(self, flat: jax.Array) -> jax.Array:
        """Sums the vector of all rank gates over each bond, in single precision."""
        return jnp.sum(self.rows(flat.astype(jnp.float32), 0), 1)

    def largest(self, flat: jax.Array, live: jax.Array) -> jax.Array:
        """Marks the largest nonzero rank gate of every bond, the first of equal ones."""
        if not self.bonds.size:
            return live
        rows = self.rows(jnp.where(live, flat, -jnp.inf), -jnp.inf)
        starts = np.cumsum((0, *self.lengths))[:-1]
        first = jnp.asarray(starts, jnp.int32) + jnp.argmax(rows, 1).astype(jnp.int32)
        order = jnp.arange(flat.size, dtype=jnp.int32)
        return live & (order == picked(first, self.bonds))

    def rows(self, flat: jax.Array, fill: float) -> jax.Array:
        """Reshapes the vector of all rank gates to a matrix with one padded row per bond.

        A sum by scattering would be a loop of one step per gate on CPUs.
        """
        starts = np.cumsum((0, *self.lengths))[:-1, None]
        columns = np.arange(max(self.lengths, default=0))[None]
        inside = columns < np.array(self.lengths, int)[:, None]
        filled = jnp.concatenate([flat, jnp.full((1,), fill, flat.dtype)])
        return picked(filled, np.where(inside, starts + columns, flat.size))


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
    """Marks the rank gates to prune: those below the threshold, until a target size is met.

    Args:
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
    """Finds by bisection the fewest gates to prune for which ``enough`` is true, or ``high``."""

    def halved(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) // 2
        found = enough(middle)
        high = jnp.where(found, middle, high)
        return jnp.where(found, low, jnp.minimum(middle + 1, high)), high

    # A loop, so that the program holds one copy of the test.
    rounds = math.ceil(math.log2(size + 1))
    return jax.lax.fori_loop(0, rounds, halved, (jnp.zeros_like(high), high))[1]
