"""How many optimiser states may be read before they are needed."""

from collections.abc import Collection, Mapping

from tensorjax.offload._group import Group


class Ahead:
    """Bounds what states hold of the memory that reads share.

    What computes the gradients that they wait for must be able to read: room is left for the
    largest parameters, and beside states without a gradient for the largest of the other states.
    A gradient that may have to be read from the store counts with its state: an update that has the
    one and waits for the other would otherwise find all memory held by such as itself.

    Args:
      groups: by name.
      lookahead: how many of the largest states may be held.
      staging: bytes of memory that reads share; None for any.
      spills: whether gradients may have to be read as well.
    """

    def __init__(
        self, groups: Mapping[str, Group], *, lookahead: int, staging: int | None, spills: bool
    ) -> None:
        self._needed = {
            name: group.held + (group.gradient.nbytes if spills else 0)
            for name, group in groups.items()
        }
        self._most, self._staging = lookahead * max(self._needed.values()), staging
        if staging is not None:
            self._staging = staging - max(g.device.nbytes for g in groups.values())
            self._most = min(self._most, self._staging)

    def fits(self, name: str, held: Collection[str], urgent: Collection[str]) -> bool:
        """Whether a state may be read beside those that are held, with room for an urgent one.

        Args:
          name: of the group.
          held: groups whose states are there, or on their way.
          urgent: groups that will be needed sooner.
        """
        if not held:
            return True
        beside = max((self._needed[n] for n in urgent if n not in held), default=0)
        return self._sum(held) + self._needed[name] + beside <= self._most

    def fits_early(self, names: Collection[str]) -> bool:
        """Whether the states of these groups may all be held before their gradients are there."""
        if self._staging is None:
            return True
        # Any other one may come to be needed first.
        beside = max((n for name, n in self._needed.items() if name not in names), default=0)
        return self._sum(names) + beside <= self._staging

    def _sum(self, names: Collection[str]) -> int:
        return sum(self._needed[name] for name in names)
