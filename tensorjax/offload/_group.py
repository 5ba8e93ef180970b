"""Parameters that are updated together, and the memory that their updates leave behind."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tensorjax.offload._bundle import Bundle
from tensorjax.offload._homes import Home


@dataclass(frozen=True)
class Group:
    """Parameters that are updated together, and where they live.

    Attributes:
      name: of the group.
      params, state, weights, gradient: bundles of the parameters, of the optimiser's state, of the
        parameters as the device computes with them (None if they are the same), and of a gradient
        that waits in the store.
      home: of the first three.
    """

    name: str
    params: Bundle
    state: Bundle
    weights: Bundle | None
    gradient: Bundle
    home: Home

    @property
    def device(self) -> Bundle:
        """What the device computes with."""
        return self.params if self.weights is None else self.weights

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """All that the home keeps."""
        return tuple(b for b in (self.params, self.state, self.weights) if b is not None)

    @property
    def held(self) -> int:
        """Bytes of the parameters and the state, which an update reads."""
        return self.params.nbytes + self.state.nbytes

    @property
    def results(self) -> int:
        """Bytes that an update takes: of all results, and of a gradient that stays beside them."""
        pairs = zip(self.gradient.leaves, self.params.leaves, strict=True)
        beside = any(g.dtype != p.dtype for g, p in pairs)
        return sum(b.nbytes for b in self.bundles) + (self.gradient.nbytes if beside else 0)

    @property
    def kind(self) -> Any:
        """Groups of one kind can use the memory of each other's states."""
        return self.state.tree, tuple((x.shape, x.dtype) for x in self.state.leaves)


class Spare:
    """Memory of a state that is not needed any more, for the next update of such a group.

    No more than one is kept, and none beside results with which it would take more than those of
    the largest group do. The caller holds a lock.

    Args:
      groups: all there are.
    """

    def __init__(self, groups: Collection[Group]) -> None:
        kinds = [g.kind for g in groups]
        self._common = {kind for kind in kinds if kinds.count(kind) > 1}
        self._most = max(g.results for g in groups)
        self._kind: Any = None
        self._state: Any = None
        self.nbytes = 0

    def keep(self, group: Group, arrays: Any) -> None:
        """Takes the arrays of a state."""
        if group.kind in self._common:
            self._kind, self._state = group.kind, group.state.unflatten(arrays)
            self.nbytes = group.state.nbytes

    def take(self, group: Group) -> Any:
        """A state whose memory the results of a group may use, or None."""
        found = self._state if self._kind == group.kind else None
        if found is not None or self.nbytes + group.results > self._most:
            self.clear()
        return found

    def clear(self) -> None:
        """Keeps nothing."""
        self._kind = self._state = None
        self.nbytes = 0
