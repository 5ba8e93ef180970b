"""Layout of tensors in the data file: extents of whole disk blocks, in two slots each.

An extent holds one tensor, or several that are smaller than a block of the disk: they move to the
other slot together. The extents of one reservation lie side by side, all first slots before all
second ones. Tensors written together are then adjacent in the file, and move in one transfer.
"""

import json
import math
import operator
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check

ALIGN = 4096  # of offsets, sizes and memory: O_DIRECT asks for 512 or 4096 (open(2))
PACKED = 64  # arrays that share memory begin at multiples; XLA reads aligned memory in place


def padded(nbytes: int) -> int:
    """Rounds the bytes of an extent up to whole disk blocks of 4096 bytes."""
    return -(-nbytes // ALIGN) * ALIGN


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """Position of a tensor's extents in the data file, with the tensor's name, shape and dtype.

    Attributes:
        offsets: In the two slots of its extent: of its first byte in the file.
        entry: Of the index, in JSON, without the closing brace.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    offsets: tuple[int, int]
    nbytes: int = field(init=False)
    entry: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", math.prod(self.shape) * self.dtype.itemsize)
        # Made once: the index is written at every commit.
        facts = {"shape": self.shape, "dtype": self.dtype.name, "offsets": self.offsets}
        text = json.dumps({self.name: facts}, separators=(",", ":"))
        object.__setattr__(self, "entry", text[1:-2])

    @property
    def stop(self) -> int:
        """Offset in the data file behind the second of a tensor's two extents."""
        return padded(self.offsets[1] + self.nbytes)


@dataclass(frozen=True, eq=False, slots=True)
class Extent:
    """Extent of one tensor, or of several small ones: disk blocks at two positions in the file.

    One of the two slots is committed; the other one gets the next state.

    Attributes:
        places: Of the tensors that it holds.
        offsets: Of its two slots in the file, in bytes.
        nbytes: Of what a slot holds: of a single tensor without the padding behind it.
        packed: Whether it holds several tensors.
    """

    places: tuple[Place, ...]
    packed: bool = field(init=False)
    offsets: tuple[int, int] = field(init=False)
    size: int = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        first, size = self.places[0], padded(max(place.nbytes for place in self.places))
        offsets = tuple(offset // ALIGN * ALIGN for offset in first.offsets)
        object.__setattr__(self, "packed", len(self.places) > 1)
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "nbytes", size if self.packed else first.nbytes)


def extents(places: Iterable[Place]) -> list[Extent]:
    """Groups tensors to extents by the disk blocks that they occupy, shared ones together."""
    found: dict[Any, list[Place]] = {}
    for place in places:
        small = 0 < place.nbytes < ALIGN
        found.setdefault(place.offsets[0] // ALIGN if small else place.name, []).append(place)
    return [Extent(tuple(together)) for together in found.values()]


@dataclass(frozen=True)
class Spec:
    """Checked shape and dtype of a tensor that is to get extents in the data file."""

    shape: tuple[int, ...]
    dtype: np.dtype


def checked(name: str, like: Any) -> Spec:
    """Checks a tensor that is to get extents in the data file; returns its shape and dtype.

    Raises:
        TypeError: if it has not, or the dtype cannot be stored.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name: expected a non-empty string, got {name!r}")
    try:
        shape, dtype = tuple(map(operator.index, like.shape)), like.dtype
    except TypeError:
        raise TypeError(f"{name}: expected a shape of integers, got {like.shape!r}") from None
    except AttributeError:
        raise TypeError(
            f"{name}: expected an array or jax.ShapeDtypeStruct, got {type(like).__name__}"
        ) from None
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        raise TypeError(
            f"{name}: expected numbers, got dtype {dtype}; "
            "store the bits of a random key, jax.random.key_data(key)"
        )
    if any(n < 0 for n in shape):
        raise ValueError(f"{name}: expected sizes of at least 0, got shape {shape}")
    dtype = np.dtype(dtype)
    if dtype.hasobject or dtype.names or not dtype.isnative or not _has_name(dtype):
        raise TypeError(f"{name}: expected a plain dtype of this machine, got {dtype!r}")
    return Spec(shape, dtype)


def _has_name(dtype: np.dtype) -> bool:
    """Whether NumPy can restore a dtype from its name, as tensors in extents on disk need."""
    try:
        return np.dtype(dtype.name) == dtype
    except TypeError:
        return False


def capacity(tensors: Mapping[str, Any]) -> int:
    """Computes the disk space for the extents of given tensors in bytes, two copies of each.

    Those below 4096 bytes share blocks, in which each begins at a multiple of 64.

    Args:
        tensors: Anything with ``shape`` and ``dtype``, by name, as `TensorStore.reserve` takes it.

    Returns:
        The least capacity for these, reserved in one call.

    Raises:
        TypeError: No mapping, or something in it without shape and dtype.

    Example:
        >>> import jax, numpy as np
        >>> from tensorjax import offload
        >>> offload.capacity({"w": jax.ShapeDtypeStruct((1000, 3), np.float32)})  # 12000 bytes
        24576
        >>> scales = [jax.ShapeDtypeStruct((16,), np.float32) for _ in range(64)]  # 64 bytes each
        >>> offload.capacity({f"scale {i}": scale for i, scale in enumerate(scales)})
        8192

    Source: ours.
    """
    named = _check.mapping("tensors", tensors, "arrays or jax.ShapeDtypeStruct")
    placed = place({name: checked(name, like) for name, like in named.items()}, 0)
    return max((p.stop for p in placed if p.nbytes), default=1)


def place(specs: Mapping[str, Spec], start: int) -> tuple[Place, ...]:
    """Assigns tensors two extents each in the data file from ``start`` on, first slots first.

    A small one goes to the block where the small one before it lies, if there is room.
    """
    positions, end, small = [], 0, 0
    for spec in specs.values():
        nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        position = end
        if 0 < nbytes < ALIGN and 0 < small % ALIGN <= ALIGN - nbytes:
            position = small
        else:
            end += padded(nbytes)
        if 0 < nbytes < ALIGN:
            small = -(-(position + nbytes) // PACKED) * PACKED
        positions.append(start + position)
    return tuple(
        Place(name, spec.shape, spec.dtype, (position, position + end))
        for (name, spec), position in zip(specs.items(), positions, strict=True)
    )


class Piece(NamedTuple):
    """Part of a tensor's disk extent, at most one block long, with its offsets in memory and file.

    Attributes:
        extent: The extent that it is a block of.
        number: Of the block within the extent.
        start: First byte in the extent.
        stop: Byte behind the last one in the extent, padding excluded.
        position: Of the first byte in the run.
        begin: Where the slot of the extent begins in the file.
    """

    extent: Extent
    number: int
    start: int
    stop: int
    position: int
    begin: int


class Transfer(NamedTuple):
    """Range of adjacent bytes of extents in the data file that is read or written at once.

    Attributes:
        position: Of the first byte in the run.
        size: In bytes.
        pieces: The blocks of extents that lie there.
        dense: Whether the pieces fill it, without padding between or behind them.
    """

    position: int
    size: int
    pieces: tuple[Piece, ...]
    dense: bool


class Run(NamedTuple):
    """Extents that are adjacent in a tensor store's data file, and are read or written together.

    Attributes:
        offset: Of the first byte in the file.
        size: Bytes of all of them, padded.
        members: The extents, in the order of the file; their slots are those asked for.
        begins: Where these slots begin in the file.
        transfers: The transfers that move it, of at most a block each.
    """

    offset: int
    size: int
    members: tuple[Extent, ...]
    begins: tuple[int, ...]
    transfers: tuple[Transfer, ...]


class Layouts:
    """Cache of layouts of neighbouring extents: the transfers into which they are joined.

    Args:
        block: Most bytes of one transfer.
        most: Most pieces that are remembered.
    """

    def __init__(self, block: int, most: int = 1 << 16):
        self._block, self._most = block, most
        self._known: dict[tuple[int, ...], tuple[Run, ...]] = {}
        self._held = 0
        self._lock = threading.Lock()

    def runs(self, asked: Sequence[tuple[Extent, int]]) -> tuple[Run, ...]:
        """Joins extents adjacent in the data file to runs of one block at most, or one extent.

        Args:
            asked: Extents of one store with the slot to use; empty ones are left out.
        """
        key = tuple([extent.offsets[slot] for extent, slot in asked if extent.size])
        found = self._known.get(key)
        if found is None:
            found = tuple(_runs(asked, self._block))
            self._remember(key, found)
        return found

    def forget(self) -> None:
        """Clears the cache of joined extents, after disk space of tensors has been released."""
        with self._lock:
            self._known, self._held = {}, 0

    def _remember(self, key: tuple[int, ...], found: tuple[Run, ...]) -> None:
        pieces = sum(len(transfer.pieces) for run in found for transfer in run.transfers)
        if pieces > self._most:
            return
        with self._lock:
            if self._held + pieces > self._most:
                self._known, self._held = {}, 0
            if key not in self._known:
                self._known[key] = found
                self._held += pieces


def _runs(asked: Iterable[tuple[Extent, int]], block: int) -> Iterator[Run]:
    todo = sorted((e.offsets[slot], e.size, e) for e, slot in asked if e.size)
    members: list[Extent] = []
    start = size = 0
    for offset, length, extent in todo:
        if members and (offset != start + size or size + length > block):
            yield _run(start, size, members, block)
            members, size = [], 0
        if not members:
            start = offset
        members.append(extent)
        size += length
    if members:
        yield _run(start, size, members, block)


def _run(offset: int, size: int, members: Sequence[Extent], block: int) -> Run:
    """Joins extents that are adjacent on disk to one run, cut into transfers of block size."""
    pieces, begins, position = [], [], 0
    for extent in members:
        begins.append(offset + position)
        for number, start in enumerate(range(0, extent.size, block)):
            stop = min(start + block, extent.nbytes)
            pieces.append(Piece(extent, number, start, stop, position + start, begins[-1]))
        position += extent.size
    parts = [tuple(pieces)] if len(members) > 1 else [(piece,) for piece in pieces]
    transfers = []
    for part in parts:
        first = part[0].position
        length = min(size - first, block)
        filled = sum(piece.stop - piece.start for piece in part)
        transfers.append(Transfer(first, length, part, filled == length))
    return Run(offset, size, tuple(members), tuple(begins), tuple(transfers))
