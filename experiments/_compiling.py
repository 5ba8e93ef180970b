"""How the programs of an experiment are compiled: for long runs, or hastily."""

import gc
import os
from importlib import metadata
from typing import Any

# For programs that run for seconds: on CPUs they compile faster, and run nearly as fast.
_HASTY: dict[str, Any] = {"xla_backend_optimization_level": 1}


def _unoptimised() -> dict[str, Any]:
    """For programs that run a few times: on CPUs they compile in less than half the time.

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


def compiler_options(hasty: bool, *, unoptimised: bool = False) -> dict[str, Any] | None:
    """For `jax.jit`; ``hasty`` makes a difference on CPUs alone, ``unoptimised`` a larger one."""
    import jax

    if not hasty or jax.default_backend() != "cpu":
        return None
    return _unoptimised() if unoptimised else dict(_HASTY)


def hasten(*, unoptimised: bool = False) -> None:
    """For a whole process that ends soon, whose times nobody compares; before JAX is imported.

    What ``XLA_FLAGS`` says already is kept.
    """
    options = _unoptimised() if unoptimised else _HASTY
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in options.items())
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".rstrip()
    # Tracing makes many objects and little garbage.
    gc.set_threshold(50_000, 20, 50)
