"""Parts of parameters that one of several processes keeps: the shards on its devices.

A sharding cuts an array into pieces, and says which devices hold which. A process keeps the pieces
that its own devices hold, each once, joined along the first axis in the order of their places. So
a part has as many axes as the whole, and optimisers that go by the number of axes see no
difference; each piece is a contiguous block of it. Memory, disk and the optimiser's work per
process go down by as much as the pieces are smaller than the whole.

In a single process a part is the whole, however many devices there are: nothing is cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from tensorjax.offload._training.storage.arrays import to_host


@dataclass(frozen=True)
class Piece:
    """Shard of a parameter's array, and the devices of this process that hold it.

    Attributes:
      index: its place in the array, start and stop along each axis.
      devices: of this process, that hold it.
      counted: whether this process counts it, where every piece counts once over all processes.
    """

    index: tuple[tuple[int, int], ...]
    devices: tuple[Any, ...]
    counted: bool


class Part:
    """Part of one sharded parameter array that this process's devices hold: distinct shards.

    Args:
      sharding: of it, over devices of all processes.

    Attributes:
      pieces: this process's, in the order of their places.

    Example:
      >>> import jax
      >>> import numpy as np
      >>> from jax.sharding import NamedSharding, PartitionSpec
      >>> from tensorjax.offload._training.storage.process_shards import Part
      >>> sharding = NamedSharding(jax.make_mesh((1,), ("x",)), PartitionSpec("x"))
      >>> part = Part((4, 2), sharding, 0)
      >>> part.shape, float(part.cut(np.ones((4, 2))).sum())
      ((4, 2), 8.0)
    """

    def __init__(self, shape: Sequence[int], sharding: Any, process: int) -> None:
        self._whole, self._sharding = tuple(shape), sharding
        holders: dict[Any, list[Any]] = {}
        for device, index in sharding.devices_indices_map(self._whole).items():
            bounds = (s.indices(n)[:2] for s, n in zip(index, self._whole, strict=True))
            holders.setdefault(tuple(bounds), []).append(device)
        self.pieces = tuple(
            Piece(
                index,
                tuple(d for d in devices if d.process_index == process),
                min(d.process_index for d in devices) == process,
            )
            for index, devices in sorted(holders.items(), key=lambda item: item[0])
            if any(d.process_index == process for d in devices)
        )
        one = sharding.shard_shape(self._whole)
        self._rows = one[0] if one else 0
        self.shape = (one[0] * len(self.pieces), *one[1:]) if one else ()

    def cut(self, whole: Any) -> np.ndarray:
        """Returns this process's shards of a whole host array, concatenated."""
        array = np.asarray(whole)
        places = (tuple(slice(*bounds) for bounds in piece.index) for piece in self.pieces)
        found = [np.asarray(array[place]) for place in places]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def take(self, array: jax.Array) -> jax.Array:
        """Copies this process's shards of an array to the host, joined; no other takes part."""
        if not array.sharding.is_equivalent_to(self._sharding, array.ndim):
            raise ValueError(f"expected an array on {self._sharding}, got one on {array.sharding}")
        blocks = {shard.device: shard.data for shard in array.addressable_shards}
        found = to_host([blocks[piece.devices[0]] for piece in self.pieces])
        return jnp.concatenate(found) if len(found) > 1 else found[0]

    def place(self, part: Any) -> jax.Array:
        """Builds a sharded array on the devices of all processes from this process's shards.

        What lies on the devices are copies, never views of the host's memory. Nothing is sent
        between processes, so this may be called from any thread.
        """
        blocks = [jnp.array(block, copy=True) for block in self._blocks(part)]
        copies = [
            jax.device_put(block, device)
            for piece, block in zip(self.pieces, blocks, strict=True)
            for device in piece.devices
        ]
        return jax.make_array_from_single_device_arrays(self._whole, self._sharding, copies)

    def counted(self, part: Any) -> list[Any]:
        """Returns the shards that this process sums in a norm; each is summed by one process."""
        blocks = zip(self.pieces, self._blocks(part), strict=True)
        return [block for piece, block in blocks if piece.counted]

    def _blocks(self, part: Any) -> list[Any]:
        if len(self.pieces) == 1:
            return [part]
        rows = self._rows
        return [part[n * rows : (n + 1) * rows] for n in range(len(self.pieces))]


class Shards:
    """Shards of all parameters that one of several training processes holds, by parameter group.

    Args:
      shapes: of the parameters of each group: pytrees of `jax.ShapeDtypeStruct`.
      shardings: of the parameters of each group, as `Engine` takes them.

    Raises:
      ValueError: in one of several processes: a group without shardings over the devices of all.
    """

    def __init__(self, shapes: Mapping[str, Any], shardings: Mapping[str, Any]) -> None:
        self._parts: dict[str, Any] = {}
        if jax.process_count() > 1:
            self._parts = {
                name: jax.tree_util.tree_map_with_path(
                    lambda path, x, where, name=name: _part(name, path, x, where),
                    group,
                    _given(name, group, shardings),
                )
                for name, group in shapes.items()
            }

    def shapes(self, name: str, tree: Any) -> Any:
        """Returns the shapes of this process's parts of a parameter group's arrays."""
        return self._map(name, lambda part, x: jax.ShapeDtypeStruct(part.shape, x.dtype), tree)

    def cut(self, name: str, tree: Any) -> Any:
        """Returns this process's shards of a parameter group's whole host arrays."""
        return self._map(name, lambda part, x: part.cut(x), tree)

    def take(self, name: str, tree: Any) -> Any:
        """Copies this process's shards of a parameter group's sharded arrays to the host."""
        if not self._parts:
            return to_host(tree)
        return jax.block_until_ready(self._map(name, lambda part, x: part.take(x), tree))

    def place(self, name: str, tree: Any) -> Any:
        """Builds a group's sharded arrays from this process's parts; None if single-process."""
        return self._map(name, lambda part, x: part.place(x), tree) if self._parts else None

    def counted(self, name: str, tree: Any) -> Any:
        """Returns a group's shards that this process sums in a norm; others sum the other ones."""
        return self._map(name, lambda part, x: part.counted(x), tree)

    def whole(self, name: str, tree: Any) -> Any:
        """Gathers a group's whole arrays as NumPy from all processes, each of which calls this."""
        if not self._parts:
            return tree
        return self._map(
            name, lambda part, x: multihost_utils.process_allgather(part.place(x), tiled=True), tree
        )

    def _map(self, name: str, function: Any, tree: Any) -> Any:
        return jax.tree.map(function, self._parts[name], tree) if self._parts else tree


def _given(name: str, group: Any, shardings: Mapping[str, Any]) -> Any:
    found = shardings.get(name)
    if jax.tree.structure(found) != jax.tree.structure(group):
        raise ValueError(
            f"shardings: expected those of every group, as this is one of {jax.process_count()} "
            f"processes, got {found!r} for {name!r}; give Engine(shardings=), over a mesh of the "
            "devices of all processes"
        )
    return found


def _part(name: str, path: Any, x: Any, sharding: Any) -> Part:
    there = {device.process_index for device in sharding.device_set}
    if there != set(range(jax.process_count())):
        where = jax.tree_util.keystr(path, simple=True, separator=".")
        raise ValueError(
            f"shardings: {name}/{where}: expected devices of all {jax.process_count()} processes, "
            f"got those of {sorted(there)}; take a mesh of jax.devices()"
        )
    return Part(x.shape, sharding, jax.process_index())
