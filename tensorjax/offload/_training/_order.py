"""When what is needed: positions of layers in time, versions of parameters, deadlines."""

from collections.abc import Sequence

from tensorjax.offload._training._layers import Layer
from tensorjax.offload._training._options import Schedule


class Order:
    """The order in which a trainer computes, and what follows from it.

    Time is counted in positions: one for each layer of the forward pass and, but for the last one,
    of the backward pass, on through all steps. A version of parameters is the number of updates
    that they have had.

    Args:
      layers: of the model.
      schedule: of the trainer.
      clip: whether gradients are clipped.

    Attributes:
      uses: the groups that each position of a step needs.
      stale: whether a step computes with parameters that lack the last update.
      gated: whether updates wait for the end of the backward pass.
    """

    def __init__(self, layers: Sequence[Layer], schedule: Schedule, *, clip: bool) -> None:
        self.forward = [layer.uses for layer in layers]
        self.uses = [*self.forward, *self.forward[-2::-1]]
        self.stale = schedule == "one_step_stale"
        self.gated = not self.stale and (clip or schedule != "overlap")
        self._first = {g: n for n, uses in reversed(list(enumerate(self.forward))) for g in uses}
        self._last = {g: n for n, uses in enumerate(self.uses) for g in uses}
        backward = [g for uses in reversed(self.forward) for g in uses]
        self._gradients = list(dict.fromkeys(reversed(backward)))[::-1]

    def start(self, step: int) -> int:
        """First position of a step."""
        return step * len(self.uses)

    def version(self, step: int) -> int:
        """Updates that the parameters have had which a step computes with."""
        return max(step - 1, 0) if self.stale else step

    def deadline(self, group: str, version: int) -> float:
        """Position at which the parameters of a version are needed first."""
        return float(self.start(self._step(version)) + self._first[group])

    def due(self, group: str, version: int) -> float:
        """Position by which a version should be in its home, though nobody waits for it there.

        That of the last use. Whoever needs it earlier asks for it, and is served in time.
        """
        return float(self.start(self._step(version)) + self._last[group])

    def coming(self, version: int) -> dict[str, tuple[int, float]]:
        """Versions and deadlines of all groups, in the order in which their gradients come."""
        return {g: (version, self.deadline(g, version)) for g in self._gradients}

    def _step(self, version: int) -> int:
        """The step that computes with a version."""
        return version + 1 if self.stale else version
