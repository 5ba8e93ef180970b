"""Part "offload-xl" of `bench/device`: GPT-2 XL trained from disk."""

from experiments.bench.device import offload
from experiments.bench.device.rows import Budget, Emit


def run(budget: Budget, emit: Emit) -> None:
    """Trains GPT-2 XL with a third of it on disk, then with all of it."""
    offload.trained(offload.XL, budget, emit)
