"""States of a store's tensors in memory while the store is open."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tensorjax.offload._errors import StoreError
from tensorjax.offload._store.disk.extents import Extent, Place, extents
from tensorjax.offload._store.disk.index import Entry
from tensorjax.offload._store.transfers.requests import Request, Slot


@dataclasses.dataclass(slots=True, eq=False)
class Content(Entry):
    """State of one of a tensor's two copies on disk: checksums, write error, cached bytes.

    Attributes:
        sums: Checksums in hexadecimal, filled in as it is written: of the blocks of one tensor; or
            of each of several tensors, empty where one was never written.
        error: Why it could not be written, if so.
        memory: The bytes, where several tensors share them: to write one of them beside the others.
            They are never changed. None where they are not known yet.
        names: Of those of the several that were to be written, if only some were.
    """

    error: BaseException | None = None
    memory: np.ndarray | None = None
    names: tuple[str, ...] = ()

    def failed(self, name: str) -> bool:
        """Whether, by the state of a tensor's copy, writing it to disk failed."""
        return self.error is not None and (self.memory is None or name in self.names)


class Slots:
    """State of a tensor's two copies on disk: which is committed, and which is newest.

    Attributes:
        users: Who uses the slots.
        committed: What a crash would leave.
        newest: What a read gives, and the next commit keeps.
    """

    __slots__ = ("committed", "extent", "newest", "tensors", "users")

    def __init__(self, extent: Extent, entries: Mapping[str, Entry]):
        self.extent = extent
        self.tensors = tuple(Tensor(place, self, i) for i, place in enumerate(extent.places))
        self.users = (Slot(), Slot())
        found = [entries.get(place.name) for place in extent.places]
        slot = next((entry.slot for entry in found if entry is not None), None)
        self.committed: Content | None = None
        if slot is not None:
            sums = [[""] if entry is None else entry.sums for entry in found]
            self.committed = Content(slot, [one for of in sums for one in of])
        self.newest = self.committed

    @property
    def free(self) -> int:
        """Number (0 or 1) of the copy on disk that is not committed, by a tensor's state."""
        return 0 if self.committed is None else 1 - self.committed.slot

    def readers(self) -> list[Request]:
        """Returns pending reads in the state of a tensor's newest copy; the queue's lock held."""
        return [] if self.newest is None else self.users[self.newest.slot].readers


class Tensor:
    """State of a tensor of an open store: its position in the data file, its two copies on disk.

    Attributes:
        number: Among the tensors of its extent.
        part: Its bytes within those of its extent.
        forgotten: Whether its place was given up.
    """

    __slots__ = ("forgotten", "number", "part", "place", "slots")

    def __init__(self, place: Place, slots: Slots, number: int):
        self.place, self.slots, self.number = place, slots, number
        start = place.offsets[0] - slots.extent.offsets[0]
        self.part = slice(start, start + place.nbytes)
        self.forgotten = False

    @property
    def written(self) -> bool:
        """Whether, by its state, a tensor of a store has been written, so that it can be read."""
        content = self.slots.newest
        if content is None:
            return False
        return not self.slots.extent.packed or bool(content.sums[self.number])


def opened(places: Iterable[Place], entries: Mapping[str, Entry]) -> dict[str, Tensor]:
    """Returns the committed states of all tensors by name, as a tensor store is opened."""
    places = tuple(places)
    found = {
        tensor.place.name: tensor
        for extent in extents(places)
        for tensor in Slots(extent, entries).tensors
    }
    return {place.name: found[place.name] for place in places}


def failures(tensors: Iterable[Tensor]) -> dict[str, BaseException | None]:
    """Returns the write errors in tensors' states whose newest content failed, by name."""
    newest = ((tensor.place.name, tensor.slots.newest) for tensor in tensors)
    return {name: c.error for name, c in newest if c is not None and c.failed(name)}


def entries(tensors: Mapping[str, Tensor]) -> dict[str, Entry]:
    """Returns the index entries of all tensors' newest copies, which a commit saves."""
    found: dict[str, Entry] = {}
    for name, tensor in tensors.items():
        content = tensor.slots.newest
        if content is None:
            continue
        if not tensor.slots.extent.packed:
            found[name] = content
        elif checksum := content.sums[tensor.number]:
            found[name] = Entry(content.slot, [checksum])
    return found


def check_there(tensors: Sequence[Tensor]) -> None:
    """Raises StoreError if a tensor's state says that `forget` removed it while a call waited."""
    for tensor in tensors:
        if tensor.forgotten:
            raise StoreError(
                f"{tensor.place.name}: its place was given up meanwhile, by `forget`; wait for "
                "reads and writes of a tensor before that"
            )
