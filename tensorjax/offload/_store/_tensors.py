"""The state of a tensor while the store is open."""

from tensorjax.offload._store._extents import Extent
from tensorjax.offload._store._index import Content
from tensorjax.offload._store._requests import Slot


class Tensor:
    """A tensor of an open store.

    Attributes:
        extent: Where it lies.
        committed: What a crash would leave.
        newest: What a read gives, and the next commit keeps.
        slots: Who uses its two slots.
        forgotten: Whether its place was given up.
    """

    __slots__ = ("committed", "extent", "forgotten", "newest", "slots")

    def __init__(self, extent: Extent, committed: Content | None = None):
        self.extent = extent
        self.committed = self.newest = committed
        self.slots = (Slot(), Slot())
        self.forgotten = False

    @property
    def free(self) -> int:
        """The slot that is not committed."""
        return 0 if self.committed is None else 1 - self.committed.slot
