"""How the programs of an experiment are compiled: for long runs, or hastily."""

import gc
import os
from typing import Any

# For programs that run for seconds: on CPUs they compile faster, and run nearly as fast.
_HASTY: dict[str, Any] = {"xla_backend_optimization_level": 1}


def compiler_options(hasty: bool) -> dict[str, Any] | None:
    """For `jax.jit`; ``hasty`` makes a difference on CPUs alone."""
    import jax

    return dict(_HASTY) if hasty and jax.default_backend() == "cpu" else None


def hasten() -> None:
    """For a whole process that ends soon and compares no times; called before JAX is imported.

    What ``XLA_FLAGS`` says already is kept.
    """
    flags = " ".join(f"--{name}={value}" for name, value in _HASTY.items())
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".rstrip()
    # Tracing makes many objects and little garbage.
    gc.set_threshold(50_000, 20, 50)
