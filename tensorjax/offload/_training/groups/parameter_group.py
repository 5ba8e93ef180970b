"""Parameter groups, and the pool of memory that their updates reuse."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tensorjax import linalg
from tensorjax.offload._training.optimizer.host_optimizer import HostOptimizer, Into
from tensorjax.offload._training.storage.storage import Storage
from tensorjax.offload._training.storage.tensor_packing import TensorPacking


@dataclass(frozen=True)
class Group:
    """Group of parameters that are updated together, with their storage and optimiser.

    Attributes:
      name: of the group.
      params, state, weights, gradient: pytrees of the parameters, of the optimiser's state, of the
        parameters as the device computes with them (None if they are the same), and of a gradient
        that waits in the store.
      storage: of the first three.
      optimizer: what updates it.
      lent: whether its gradients are in memory that updates cannot write to.
    """

    name: str
    params: TensorPacking
    state: TensorPacking
    weights: TensorPacking | None
    gradient: TensorPacking
    storage: Storage
    optimizer: HostOptimizer
    lent: bool = False

    @property
    def device(self) -> TensorPacking:
        """Layout of the group's parameters in the dtype in which the device computes."""
        return self.params if self.weights is None else self.weights

    @property
    def packings(self) -> tuple[TensorPacking, ...]:
        """Layouts of all pytrees that a group stores: parameters, state, cast parameters."""
        return tuple(b for b in (self.params, self.state, self.weights) if b is not None)

    @property
    def held(self) -> int:
        """Bytes of staging memory that reading a group's parameters and optimiser state takes."""
        return self.params.staged + self.state.staged

    @property
    def into(self) -> Into:
        """Memory that the results of a group's update overwrite: "place", "gradient" or "spare"."""
        if self.storage.in_place:
            return "place"
        return "spare" if self.lent else "gradient"

    @property
    def results(self) -> int:
        """Bytes that the results of a group's update take until they are written."""
        return self.taken(self.into)

    def taken(self, into: Into) -> int:
        """Computes the bytes of a group's update results, if they are written to ``into``.

        What they replace is not counted twice.
        """
        if into == "place":
            return 0 if self.weights is None else self.weights.nbytes
        return sum(b.nbytes for b in self.packings)

    @property
    def sums(self) -> int:
        """Bytes of a group's gradient while it is summed, in single precision at least."""
        leaves = self.gradient.leaves
        wide = [linalg.factor_dtype(leaf.dtype).itemsize for leaf in leaves]
        return sum(
            leaf.nbytes // leaf.dtype.itemsize * n for leaf, n in zip(leaves, wide, strict=True)
        )

    @property
    def kind(self) -> Any:
        """Shapes and dtypes of a group's parameters and state; equal kinds can share memory."""
        packings = (self.params, self.state)
        return tuple(tuple((x.shape, x.dtype) for x in packing.leaves) for packing in packings)


class Handed(list[Any]):
    """List of arrays passed to the device; a weak reference to it shows if they are in use."""

    __slots__ = ("__weakref__",)


def not_handed() -> None:
    """Returns None: stands for a dead weak reference where no arrays were passed to the device."""


class Spare:
    """Pool of arrays of written update results, whose memory later updates of like groups reuse.

    It keeps the memory of states; where gradients are lent, that of parameters too, once the
    device, to which they are handed, does not use them any more. Where memory is bounded, it keeps
    one result at most, and only as long as that and the results being written take no more than
    those of the largest group. Else it keeps two of every kind, as one is written while another is
    updated, or one if a kind has one group. The caller holds a lock.

    Args:
      groups: all there are.
      bounded: whether memory is.
    """

    def __init__(self, groups: Collection[Group], *, bounded: bool) -> None:
        counts = Counter(g.kind for g in groups if g.into != "place")
        self._bounded, self._most = bounded, max(g.results for g in groups)
        self._room = {
            kind: min(count - 1 if bounded else count, 2) for kind, count in counts.items()
        }
        self._held: dict[Any, list[_Results]] = {}
        self.nbytes = 0

    def keep(
        self, group: Group, params: Any, state: Any, handed: Callable[[], object] = not_handed
    ) -> None:
        """Adds the memory of a group's written parameters and state to the pool for reuse.

        Args:
          group: of them.
          params, state: arrays.
          handed: gives what the parameters are in as long as they are handed on, or None.
        """
        if group.into == "place":
            return
        if self._bounded and self._room[group.kind]:
            self.clear()
        held = self._held.setdefault(group.kind, [])
        if len(held) < self._room[group.kind]:
            results = _Results(params if group.into == "spare" else None, state, handed)
            held.append(results)
            self.nbytes += self._bytes(group, results)

    def take(self, group: Group) -> Any:
        """Removes memory for the results of a group's update from the pool; None if it has none."""
        held = None if group.into == "place" else self._held.get(group.kind)
        found = None
        if held:
            results = next((one for one in held if one.handed() is None), held[-1])
            held.remove(results)
            self.nbytes -= self._bytes(group, results)
            found = group.state.unflatten(results.state)
            if group.into == "spare":
                free = results.handed() is None
                found = (group.params.unflatten(results.params) if free else None, found)
        if self._bounded and self.nbytes + group.results > self._most:
            self.clear()
        return found

    def clear(self) -> None:
        """Drops all memory that the pool keeps for the results of updates."""
        self._held, self.nbytes = {}, 0

    def _bytes(self, group: Group, results: "_Results") -> int:
        return group.state.nbytes + (0 if results.params is None else group.params.nbytes)


@dataclass(frozen=True, eq=False)
class _Results:
    params: Any
    state: Any
    handed: Callable[[], object]
