"""How the programs of an experiment are compiled."""

import jax

# For programs that run for seconds: on CPUs they compile in half the time, and run nearly as fast.
_HASTY = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}


def compiler_options(hasty: bool) -> dict[str, bool | str] | None:
    """For `jax.jit`; ``hasty`` makes a difference on CPUs alone."""
    return dict(_HASTY) if hasty and jax.default_backend() == "cpu" else None
