"""How the programs of an experiment are compiled: for long runs, or hastily."""

import gc
import os
from importlib import metadata
from typing import Any


def _hasty() -> dict[str, Any]:
    """For programs that run for seconds: on CPUs they compile in less than half the time.

    LLVM is asked not to optimise, and loops are emitted as LLVM's code at once, not by way of MLIR.
    The newest JAX knows no other way than MLIR, and refuses that flag.
    """
    flags: dict[str, Any] = {
        "xla_backend_optimization_level": 0,
        "xla_cpu_parallel_codegen_split_count": 1,
    }
    if tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 11):
        flags["xla_cpu_use_fusion_emitters"] = False
    return flags


def compiler_options(hasty: bool) -> dict[str, Any] | None:
    """For `jax.jit`; ``hasty`` makes a difference on CPUs alone."""
    import jax

    return _hasty() if hasty and jax.default_backend() == "cpu" else None


def hasten() -> None:
    """For a whole process that ends soon, whose times nobody compares; before JAX is imported.

    What ``XLA_FLAGS`` says already is kept.
    """
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in _hasty().items())
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".rstrip()
    # Tracing makes many objects and little garbage.
    gc.set_threshold(50_000, 20, 50)
