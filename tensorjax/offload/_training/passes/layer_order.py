"""Timeline of a training: order of the layers' passes, versions of parameters, and deadlines."""

from collections.abc import Sequence

from tensorjax.offload._training.layers import Layer
from tensorjax.offload._training.options import Schedule


class Order:
    """Order of layer passes over all training steps, with deadlines of parameter updates.

    Time is counted in positions: one for each layer of the forward pass and, but for the last one,
    of the backward pass, on through all steps. A version of parameters is the number of updates
    that they have had.

    Args:
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
        """Returns the number of a step's first layer pass, counted over all training steps."""
        return step * len(self.uses)

    def version(self, step: int) -> int:
        """Returns how many optimiser updates the parameters of a training step have had."""
        return max(step - 1, 0) if self.stale else step

    def deadline(self, group: str, version: int) -> float:
        """Returns which layer pass is the first to need a group's parameters after an update."""
        return float(self.start(self._step(version)) + self._first[group])

    def due(self, group: str, version: int) -> float:
        """Returns which layer pass is the last to use a group's parameters after an update.

        A reader that needs the version earlier brings the write forward (`Queue.hasten`).
        """
        return float(self.start(self._step(version)) + self._last[group])

    def coming(self, version: int) -> dict[str, tuple[int, float]]:
        """Returns the deadline of each group's next optimiser update, in order of gradients."""
        return {g: (version, self.deadline(g, version)) for g in self._gradients}

    def _step(self, version: int) -> int:
        """Returns the training step that computes with parameters of a given number of updates."""
        return version + 1 if self.stale else version
