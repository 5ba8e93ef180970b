"""The part "offload-7b": seven billion parameters trained from disk."""

from experiments.bench.device import offload
from experiments.bench.device.rows import Budget, Emit


def run(budget: Budget, emit: Emit) -> None:
    """A third on disk, then all."""
    offload.trained(offload.SEVEN, budget, emit)
