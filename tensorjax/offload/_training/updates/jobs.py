"""Records of one optimiser update: its gradient, its pending reads, and its results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorjax.offload._training.parameter_groups import Group
from tensorjax.offload._training.storage.storage import Reading
from tensorjax.offload._training.storage.tensor_packing import TensorPacking


@dataclass
class Ready:
    """Gradient of a parameter group that has arrived on the host, with its update's deadline."""

    version: int
    deadline: float
    gradient: Any  # None if it waits in the store
    gated: bool  # offered after `gate`
    scale: Any = None  # what the gradient is multiplied by, once the gate is open
    spare: Any = None  # memory for its results


@dataclass
class Fetched:
    """Reads of an optimiser state and gradient for one update, pending or complete."""

    state: Reading  # parameters and state; the gradient too, if it was in the store by then
    whole: bool  # whether the gradient is with them
    gradient: Reading | None = None  # if it is read by itself

    def ready(self, update: Ready) -> bool:
        """Whether an optimiser update's reads are complete and its gradient has arrived."""
        if self.gradient is not None:
            return self.gradient.ready() and self.state.ready()
        return (self.whole or update.gradient is not None) and self.state.ready()

    def release(self) -> None:
        """Frees the memory of an optimiser update's reads."""
        self.state.release()
        if self.gradient is not None:
            self.gradient.release()


@dataclass
class Output:
    """Results of an optimiser update that are still to be written to storage."""

    group: Group
    ready: Ready
    params: Any
    state: Any
    weights: Any
    handed: Callable[[], object]  # gives what holds the parameters for the device, while that may

    def take(self) -> list[tuple[TensorPacking, list[Any]]]:
        """Returns the results of an optimiser update, by pytree, and drops references to them."""
        packings = (self.group.params, self.group.state, self.group.weights)
        trees, self.params, self.state, self.weights = (
            (self.params, self.state, self.weights), None, None, None
        )  # fmt: skip
        pairs = zip(packings, trees, strict=True)
        return [(packing, packing.flatten(tree)) for packing, tree in pairs if packing is not None]
