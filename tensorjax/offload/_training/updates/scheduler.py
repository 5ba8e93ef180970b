"""Scheduler of optimiser updates: its jobs, the next state to read, the next group to update."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tensorjax.offload._training.storage.storage import Reading
from tensorjax.offload._training.storage.tensor_packing import TensorPacking
from tensorjax.offload._training.updates.parameter_groups import Group
from tensorjax.offload._training.updates.read_budget import ReadBudget

_SOON = 3  # groups: the states of so many whose gradients come next are read first


@dataclass
class Ready:
    """Gradient on the host as a job of the update scheduler, with its update's deadline."""

    version: int
    deadline: float
    gradient: Any  # None if it waits in the store
    gated: bool  # offered after `gate`
    scale: Any = None  # what the gradient is multiplied by, once the gate is open
    spare: Any = None  # memory for its results


@dataclass
class Fetched:
    """Reads of a state and gradient for one scheduled update, pending or complete."""

    state: Reading  # parameters and state; the gradient too, if it was in the store by then
    whole: bool  # whether the gradient is with them
    gradient: Reading | None = None  # if it is read by itself

    def ready(self, update: Ready) -> bool:
        """Whether a scheduled update's reads are complete and its gradient has arrived."""
        if self.gradient is not None:
            return self.gradient.ready() and self.state.ready()
        return (self.whole or update.gradient is not None) and self.state.ready()

    def release(self) -> None:
        """Frees the memory of a scheduled update's reads."""
        self.state.release()
        if self.gradient is not None:
            self.gradient.release()


@dataclass
class Output:
    """Results of a scheduled update that are still to be written to storage."""

    group: Group
    ready: Ready
    params: Any
    state: Any
    weights: Any
    handed: Callable[[], object]  # gives what holds the parameters for the device, while that may

    def take(self) -> list[tuple[TensorPacking, list[Any]]]:
        """Returns the results of a scheduled update, by pytree, and drops references to them."""
        packings = (self.group.params, self.group.state, self.group.weights)
        trees, self.params, self.state, self.weights = (
            (self.params, self.state, self.weights), None, None, None
        )  # fmt: skip
        pairs = zip(packings, trees, strict=True)
        return [(packing, packing.flatten(tree)) for packing, tree in pairs if packing is not None]


class UpdateScheduler:
    """Scheduler of optimiser updates by deadline: picks the next state to read, the next update.

    Of the groups whose gradient has come, the one whose parameters are needed first is updated
    next. States are read ahead, in the order in which gradients will come, as far as those groups
    are more urgent than the ones that can be updated; then by deadline. A group that has its
    gradient and can wait gets no memory, for its state or its results, while a more urgent one is
    still to come.

    Holds no lock and starts no thread: the caller (`Updater`) holds its lock, keeps the attributes
    up to date, and asks which group is next.

    Args:
      ahead: bounds the states that are held.
      lookahead: with 0, the next state is read only once the one before has been written.
      early: whether states may be read before their gradients are there, and updates may begin.
      together: whether states are read once they are used.
      results_most: bytes of results that may be on their way to storage.
      start: version that the storages have.

    Attributes:
      ready: gradients that are there, in memory or in the store.
      expected: version and deadline of those to come, in their order.
      fetched: what has been asked for, and may be there.
      updating: groups whose state is still held.
      version: that a storage has.
      unwritten: how many updates have begun and are not written.
      open, gated: whether updates may begin; whether those to come wait for that.
      blocked: whether a gradient waits for room, so that none that is expected can come.
      newest: the last version that updates may make: storages that have it are being committed.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        ahead: ReadBudget,
        *,
        lookahead: int,
        early: bool,
        together: bool,
        results_most: int,
        start: int,
    ) -> None:
        self._groups, self._ahead = groups, ahead
        self._lookahead, self._early, self._together = lookahead, early, together
        self._results_most = results_most
        self.ready: dict[str, Ready] = {}
        self.expected: dict[str, tuple[int, float]] = {}
        self.fetched: dict[str, Fetched] = {}
        self.updating: list[str] = []
        self.version = dict.fromkeys(groups, start)
        self.unwritten = self.results_bytes = 0
        self.open, self.gated, self.blocked = True, False, False
        self.newest = math.inf

    # Decisions, which the threads ask for.

    def wanted(self) -> tuple[str, int, float] | None:
        """Picks the group whose state the scheduler reads next, version and deadline; or None."""
        if (not self._early and not self.open) or (not self._lookahead and self.unwritten):
            return None
        coming = self._coming() if self._early else {}
        known = {n: (r.version, r.deadline) for n, r in self.ready.items()}
        able = self._let()
        for name in self._in_turn(coming, known):
            version, deadline = known.get(name) or coming[name]
            if not self._askable(name, version):
                continue
            if name not in able and not self._fits_early(name, able):
                continue
            # Early ones come in the order of their gradients: they keep nothing waiting.
            urgent = self._to_come(deadline) if name in known else []
            if self._ahead.fits(name, [*self.fetched, *self.updating], urgent):
                return name, version, deadline
            break
        else:
            return None
        # The next forward pass may be waiting for it, as long as none more urgent is to come.
        if able and not any(name in self.fetched for name in able):
            version, deadline = known[able[0]]
            if self._askable(able[0], version) and not self._to_come(deadline):
                return able[0], version, deadline
        return None

    def lacking(self) -> str | None:
        """Picks a group whose gradient the scheduler wants read back from the store, or None."""
        for name in self._order():
            fetched = self.fetched.get(name)
            if fetched is None or fetched.whole or fetched.gradient is not None:
                continue
            if self.ready[name].gradient is None:
                return name
        return None

    def able(self) -> tuple[str | None, bool]:
        """Picks the scheduler's most urgent update to make, and whether its results fit in memory.

        Where they do not, one that is updated in its place, and so gives memory back.
        """
        let = self._let()
        there = [n for n in let if n in self.fetched and self.fetched[n].ready(self.ready[n])]
        if not there:
            return None, False
        name = self._first(there)
        if self._room(name, let):
            return name, True
        free = next((n for n in there if not self._groups[n].results), None)
        return (name, False) if free is None else (free, True)

    def _room(self, name: str, let: list[str]) -> bool:
        """Whether a scheduled update's results fit in memory beside more urgent ones."""
        ready = self.ready[name]
        # Room is left for what is more urgent: its state or its gradient is still on the way.
        before = [*self._to_come(ready.deadline), *let[: let.index(name)]]
        beside = max((self._groups[n].results for n in before), default=0)
        total = self.results_bytes + self._groups[name].results + beside
        return not self.unwritten or not self._groups[name].results or total <= self._results_most

    def behind(self, version: float) -> bool:
        """Whether the scheduler has a group with fewer written updates than ``version``."""
        return any(held < version for held in self.version.values())

    def idle(self) -> str | None:
        """Picks, in the scheduler, a state to free whose gradient cannot arrive; or None."""
        if not self.blocked or self.able()[0] is not None:
            return None
        return next((name for name in self.fetched if name not in self.ready), None)

    def latest(self) -> str | None:
        """Picks, in the scheduler, the least urgent state in memory, to be freed, or None."""
        known = {n: (r.version, r.deadline) for n, r in self.ready.items()}
        order = self._in_turn(self.expected, known)
        held = [n for n in order if n in self.fetched and self.fetched[n].state.begun()]
        return held[-1] if held else None

    # Parts of these decisions, from the attributes.

    def _first(self, there: list[str]) -> str:
        """Picks the scheduler's next update: the most urgent, or longest in memory."""
        if len(self._to_come(self.ready[there[0]].deadline)) <= _SOON:
            return there[0]
        # None is needed soon: the one that has held its memory longest, which others wait for.
        return next(name for name in self.fetched if name in there)

    def _in_turn(
        self, coming: dict[str, tuple[int, float]], known: dict[str, tuple[int, float]]
    ) -> list[str]:
        """Returns parameter groups in the scheduler's order of reading optimiser states."""
        if not self.open or self.gated:
            both = {**coming, **known}
            return sorted(both, key=lambda n: both[n][1])
        # Those whose gradients come next, if they are more urgent than what can be updated.
        urgent = min((deadline for _, deadline in known.values()), default=math.inf)
        soon = [n for n in list(coming)[:_SOON] if coming[n][1] < urgent]
        # First those whose parameters the backward pass is about to use: they are read only once.
        soon.sort(key=lambda n: not self._groups[n].storage.holds(self._groups[n].params))
        return [*soon, *self._order(), *(n for n in coming if n not in soon)]

    def _order(self) -> list[str]:
        return sorted(self.ready, key=lambda n: self.ready[n].deadline)

    def _let(self) -> list[str]:
        """Returns groups with gradients whose updates the scheduler allows, most urgent first."""
        there = [(n, self.ready[n]) for n in self._order()]
        return [n for n, r in there if r.version <= self.newest and (self.open or not r.gated)]

    def _coming(self) -> dict[str, tuple[int, float]]:
        """Returns groups, versions, deadlines of states that the scheduler may read early."""
        found: dict[str, tuple[int, float]] = {}
        for name, (version, deadline) in () if self.blocked else self.expected.items():
            if name not in self.fetched and self.version[name] != version - 1:
                break  # what comes later would take the room that this one needs first
            found[name] = version, deadline
        return found

    def _to_come(self, deadline: float) -> list[str]:
        """Returns the scheduler's groups with earlier deadlines that wait for their gradients."""
        if self.blocked:
            return []
        return [name for name, (_, at) in self.expected.items() if at < deadline]

    def _askable(self, name: str, version: int) -> bool:
        """Whether the scheduler may read an optimiser state, as its last update is written."""
        return name not in self.fetched and self.version[name] == version - 1

    def _fits_early(self, name: str, able: Collection[str]) -> bool:
        """Whether the scheduler may read a state before its gradient, by the read budget."""
        early = {n for n in self.fetched if n not in able} | {name}
        return not self._together and self._ahead.fits_early(early)
