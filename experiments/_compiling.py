"""How the programs of an experiment are compiled."""

from typing import Any

import jax

# For programs that run for seconds: on CPUs they compile faster, and run nearly as fast.
_HASTY: dict[str, Any] = {"xla_backend_optimization_level": 1}


def compiler_options(hasty: bool) -> dict[str, Any] | None:
    """For `jax.jit`; ``hasty`` makes a difference on CPUs alone."""
    return dict(_HASTY) if hasty and jax.default_backend() == "cpu" else None
