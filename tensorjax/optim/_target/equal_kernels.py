"""Pieces of packed arrays, cut such that XLA compiles one kernel for all pieces of a shape.

On CPUs XLA compiles equal kernels once, but a piece that is cut out at a constant position is a
kernel of its own, and most of the compilation of a change of basis was those of equal layers. Here
positions are operands: a counter among the pieces of the same shape, which XLA cannot see through,
and a table of positions for every shape.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Shape = tuple[int, ...]


class Counters(NamedTuple):
    """Scalars 0, 1, … that XLA cannot fold as constants, to slice equal pieces by one kernel.

    Attributes:
      values: of unsigned integers, so that JAX does not look for negative ones.
    """

    values: tuple[jax.Array, ...]

    @classmethod
    def below(cls, count: int) -> "Counters":
        """Creates ``count`` scalars that XLA cannot fold; not inside `lax.cond`, where it would."""
        values = tuple(jnp.asarray(n, jnp.uint32) for n in range(count))
        return cls(jax.lax.optimization_barrier(values)) if values else cls(values)

    def pieces(
        self, packed: jax.Array, places: Sequence[Shape], shapes: Sequence[Shape]
    ) -> list[jax.Array]:
        """Slices pieces out of a packed array, so that XLA compiles one kernel per piece shape.

        Args:
          packed: (…) with as many leading axes as a place has numbers.
          places: positions along the leading axes.
          shapes: of the pieces, for the trailing axes.
        """
        alike: dict[Shape, list[int]] = {}
        for number, shape in enumerate(shapes):
            alike.setdefault(tuple(shape), []).append(number)
        out: dict[int, jax.Array] = {}
        for shape, numbers in alike.items():
            tables = np.array([places[n] for n in numbers], np.uint32).T
            zeros = (jnp.zeros((), jnp.uint32),) * len(shape)
            for count, number in enumerate(numbers):
                counter = self.values[count]
                start = [
                    jax.lax.dynamic_slice(jnp.asarray(table), (counter,), (1,))[0]
                    for table in tables
                ]
                sizes = (1,) * len(tables) + shape
                piece = jax.lax.dynamic_slice(packed, (*start, *zeros), sizes)
                out[number] = piece.reshape(shape)
        return [out[n] for n in range(len(shapes))]


def most_alike(shapes: Sequence[Shape]) -> int:
    """Counts how many of some arrays share the most frequent shape."""
    return max((shapes.count(shape) for shape in set(shapes)), default=0)
