"""Part "offload-7b" of `bench/device`: seven billion parameters trained from disk."""

from experiments.bench.device import offload
from experiments.bench.device.rows import Budget, Emit


def run(budget: Budget, emit: Emit) -> None:
    """Trains the 7B model with a third of it on disk, then with all of it."""
    offload.trained(offload.SEVEN, budget, emit)
