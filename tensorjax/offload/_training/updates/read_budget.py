"""Read budget: bound on the staging memory of optimiser states read before their update."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tensorjax.offload._errors import CapacityError
from tensorjax.offload._training.storage.storage import Storage
from tensorjax.offload._training.updates.parameter_groups import Group


@dataclass(frozen=True)
class Shares:
    """Division of staging memory into read budgets of optimiser states and of parameters.

    Attributes:
      staging: bytes for what updates read, with the device's next.
      early: bytes for parameters that are read before the device has room for them.
      tight: whether all that an update reads should get its memory at once or not at all. Where
        there is not thrice what the largest needs, one that holds a part could wait for ever for a
        hole that takes the rest.
    """

    staging: int
    early: int
    tight: bool


def shared(store: Any, storage: Storage, groups: Collection[Group], *, spills: bool) -> Shares:
    """Divides staging memory into read budgets of optimiser states and prefetched parameters.

    An eighth is left free, as leases fragment it. Parameters are read early only where two of the
    largest states remain.

    Args:
      spills: whether gradients may have to be read as well.

    Raises:
      CapacityError: the parameters and the state of one group do not fit.
    """
    found = store.statistics()
    stored = [group for group in groups if group.storage is storage]
    largest = max(stored, key=lambda group: _needed(group, spills=spills), default=None)
    needed = 0 if largest is None else _needed(largest, spills=spills)
    if largest is not None and needed > found.staging_reads:
        gradient = ", with its gradient," if spills else ""
        raise CapacityError(
            f"staging: parameters and state of group {largest.name!r}{gradient} take {needed} "
            f"bytes, reads have {found.staging_reads} of the {found.staging} bytes of staging; "
            f"open the store with staging={2 * needed}"
        )
    staging, device = found.staging_reads * 7 // 8, max(g.device.staged for g in groups)
    early = max(0, min(2 * device, staging // 8, staging - device - 2 * needed))
    return Shares(staging - early, early, tight=found.staging_reads < 3 * needed)


def _needed(group: Group, *, spills: bool) -> int:
    return group.held + (group.gradient.staged if spills else 0)


class ReadBudget:
    """Limit on the staging memory of optimiser states that are read before their update.

    What computes the gradients that they wait for must be able to read: room is left for the
    largest parameters.
    A gradient that may have to be read from the store counts with its state: an update that has the
    one and waits for the other would otherwise find all memory held by such as itself.

    Args:
      lookahead: how many of the largest states may be held.
      staging: bytes of memory that reads share; None for any.
      spills: whether gradients may have to be read as well.
    """

    def __init__(
        self, groups: Mapping[str, Group], *, lookahead: int, staging: int | None, spills: bool
    ) -> None:
        self._needed = {name: _needed(group, spills=spills) for name, group in groups.items()}
        self._most, self._staging = lookahead * max(self._needed.values()), staging
        if staging is not None:
            self._staging = staging - max(g.device.staged for g in groups.values())
            self._most = min(self._most, self._staging)

    def fits(self, name: str, held: Collection[str], urgent: Collection[str]) -> bool:
        """Whether one more optimiser state fits the read budget, with room for an urgent one.

        Args:
          held: groups whose states are there, or on their way.
          urgent: groups that will be needed sooner.
        """
        if not held:
            return True
        beside = max((self._needed[n] for n in urgent if n not in held), default=0)
        return self._sum(held) + self._needed[name] + beside <= self._most

    def fits_early(self, names: Collection[str]) -> bool:
        """Whether optimiser states read before their gradients have arrived fit the read budget."""
        if self._staging is None:
            return True
        return self._sum(names) <= self._staging

    def _sum(self, names: Collection[str]) -> int:
        return sum(self._needed[name] for name in names)
