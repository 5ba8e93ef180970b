"""The part "offload-xl": GPT-2 XL trained from disk."""

from experiments.bench.device import offload
from experiments.bench.device.rows import Budget, Emit


def run(budget: Budget, emit: Emit) -> None:
    """A third on disk, then all."""
    offload.trained(offload.XL, budget, emit)
