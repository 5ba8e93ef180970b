"""Arrays of many layers together: dtypes, explicit sharding, padding, nonzero flags, equal pieces.

On CPUs XLA compiles equal kernels once, but a piece that is cut out at a constant position is a
kernel of its own, and most of the compilation of a change of basis was those of equal layers. Here
positions are operands: a counter among the pieces of the same shape, which XLA cannot see through,
and a table of positions for every shape (`Counters`).
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def widest(*arrays: Any) -> Any:
    """Returns the widest dtype of arrays to be packed, to which they promote by JAX's rules."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arrays)


def like(x: jax.Array, model: Any) -> jax.Array:
    """Reshards an array, packed or not, like another, on meshes with explicit sharding only."""
    sharding = jax.typeof(model).sharding
    return jax.sharding.reshard(x, sharding) if _explicit(sharding) else x


def _whole(x: jax.Array) -> jax.Array:
    """Replicates an array to be packed on an explicitly sharded mesh; returns others unchanged."""
    sharding = jax.typeof(x).sharding
    if not _explicit(sharding):
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec()))


def take(x: jax.Array, indices: np.ndarray, axis: int) -> jax.Array:
    """Selects indices along an axis of a packed array; explicit sharding of other axes stays."""
    sharding = jax.typeof(x).sharding
    if not _explicit(sharding):
        return jnp.take(x, jnp.asarray(indices), axis=axis)
    spec = list(sharding.spec)
    spec[axis] = None
    sharding = NamedSharding(sharding.mesh, PartitionSpec(*spec))
    where = (*(slice(None),) * axis, jnp.asarray(indices))
    return jax.sharding.reshard(x, sharding).at[where].get(out_sharding=sharding)


def _explicit(sharding: Any) -> bool:
    return AxisType.Explicit in sharding.mesh.axis_types


def picked(x: jax.Array, places: np.ndarray | jax.Array) -> jax.Array:
    """Gathers entries of a packed array at indices that must be in range, without bounds checks."""
    found = x.at[jnp.asarray(places, jnp.int32)]
    return found.get(mode="promise_in_bounds", wrap_negative_indices=False)


def padded(lists: Sequence[Sequence[int]], fill: int) -> np.ndarray:
    columns = list(itertools.zip_longest(*lists, fillvalue=fill))
    return np.array(columns, int).reshape(-1, len(lists)).T


# Arrays of more entries are not copied together.
SMALL = 2**16
BLOCK = 64


def any_nonzero(arrays: list[Any]) -> jax.Array:
    """Marks, of many layers' arrays, those with a nonzero entry; integer arrays count as zero.

    A reduction for every array takes XLA much time to compile. Small arrays are joined to rows of
    one block size, with zeros behind each.
    """
    flags = [jnp.zeros((), bool)] * len(arrays)
    alike: dict[Any, list[int]] = {}
    for n, x in enumerate(arrays):
        if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
            continue
        if jnp.size(x) > SMALL:
            flags[n] = jnp.any(x != 0)
        else:
            alike.setdefault(jnp.result_type(x), []).append(n)
    # Which flag of all that are found is that of an array.
    found, place = [jnp.stack([*flags, jnp.zeros((), bool)])], [*range(len(arrays))]
    for dtype, numbers in alike.items():
        pieces, rows, start = [], [], 0
        for n in numbers:
            x = _whole(jnp.asarray(arrays[n])).ravel()
            fill = -x.size % BLOCK
            pieces += [x, jnp.zeros((fill,), dtype)] if fill else [x]
            rows.append(range(start, start + (x.size + fill) // BLOCK))
            start += len(rows[-1])
            place[n] = sum(map(len, found)) + len(rows) - 1
        blocks = jnp.any(jnp.concatenate(pieces).reshape(start, BLOCK) != 0, 1)
        table = padded([tuple(row) for row in rows], start)
        blocks = jnp.append(blocks, jnp.zeros((), bool))
        found.append(jnp.any(picked(blocks, table.reshape(len(numbers), -1)), 1))
    every = jnp.concatenate(found)
    return picked(every, jnp.array(place, jnp.int32)) if arrays else every[:0]


Shape = tuple[int, ...]


class Counters(NamedTuple):
    """Scalars 0, 1, … that XLA cannot fold as constants, to slice packed arrays by one kernel.

    Attributes:
      values: of unsigned integers, so that JAX does not look for negative ones.
    """

    values: tuple[jax.Array, ...]

    @classmethod
    def below(cls, count: int) -> "Counters":
        """Creates ``count`` scalars by which to slice packed arrays; not inside `lax.cond`."""
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
    """Counts how many of the arrays to be packed share the most frequent shape."""
    return max((shapes.count(shape) for shape in set(shapes)), default=0)
