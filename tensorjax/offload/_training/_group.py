"""Parameters that are updated together, and the memory that their updates leave behind."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tensorjax import linalg
from tensorjax.offload._training._bundle import Bundle
from tensorjax.offload._training._homes import Home
from tensorjax.offload._training._optimizer import HostOptimizer, Into


@dataclass(frozen=True)
class Group:
    """Parameters that are updated together, and where they live.

    Attributes:
      name: of the group.
      params, state, weights, gradient: bundles of the parameters, of the optimiser's state, of the
        parameters as the device computes with them (None if they are the same), and of a gradient
        that waits in the store.
      home: of the first three.
      optimizer: what updates it.
      lent: whether its gradients are in memory that updates cannot write to.
    """

    name: str
    params: Bundle
    state: Bundle
    weights: Bundle | None
    gradient: Bundle
    home: Home
    optimizer: HostOptimizer
    lent: bool = False

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
        """Bytes of staging memory of the parameters and the state, which an update reads."""
        return self.params.staged + self.state.staged

    @property
    def into(self) -> Into:
        """What an update writes its results to."""
        if self.home.in_place:
            return "place"
        return "spare" if self.lent else "gradient"

    @property
    def results(self) -> int:
        """Bytes that the results of an update take until they are home."""
        return self.taken(self.into)

    def taken(self, into: Into) -> int:
        """Bytes of results that are written to that; what they replace is not counted twice."""
        if into == "place":
            return 0 if self.weights is None else self.weights.nbytes
        return sum(b.nbytes for b in self.bundles)

    @property
    def sums(self) -> int:
        """Bytes of a gradient that is still added to: in single precision at least."""
        leaves = self.gradient.leaves
        wide = [linalg.factor_dtype(leaf.dtype).itemsize for leaf in leaves]
        return sum(
            leaf.nbytes // leaf.dtype.itemsize * n for leaf, n in zip(leaves, wide, strict=True)
        )

    @property
    def kind(self) -> Any:
        """Groups of one kind can use each other's memory, whatever their arrays are called."""
        bundles = (self.params, self.state)
        return tuple(tuple((x.shape, x.dtype) for x in bundle.leaves) for bundle in bundles)


class Handed(list[Any]):
    """Arrays that are handed on: as long as this is seen by somebody, they are."""

    __slots__ = ("__weakref__",)


def not_handed() -> None:
    """As a weak reference to such arrays that are gone."""


class Spare:
    """Memory of results that are home in the store, for the next updates of such groups.

    That of states, and of parameters too where gradients are lent, once the device, to which they
    are handed, has no use for them any more. Where memory is bounded, no more than one is kept, and
    none beside results with which it would take more than those of the largest group do; else two
    of every kind, for while one is written another is updated, or one where a kind has one group.
    The caller holds a lock.

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
        """Takes the arrays of parameters and of a state that are home.

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
        """Memory that the results of a group may use, or None."""
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
        """Keeps nothing."""
        self._held, self.nbytes = {}, 0

    def _bytes(self, group: Group, results: "_Results") -> int:
        return group.state.nbytes + (0 if results.params is None else group.params.nbytes)


@dataclass(frozen=True, eq=False)
class _Results:
    params: Any
    state: Any
    handed: Callable[[], object]
