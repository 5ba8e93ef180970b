"""Compiler options of an experiment's programs: for long runs, or for fast compilation."""

import gc
import os
from importlib import metadata
from typing import Any

# For programs that run for seconds: on CPUs they compile faster, and run nearly as fast.
_HASTY: dict[str, Any] = {"xla_backend_optimization_level": 1}


def _unoptimised() -> dict[str, Any]:
    """Returns XLA flags that turn optimisation off, for programs that run a few times.

    On CPUs they compile in less than half the time.

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
    """Returns options of `jax.jit` for fast compilation on CPUs; None for XLA's defaults.

    ``hasty`` asks for them; ``unoptimised`` makes compilation faster still.
    """
    import jax

    if not hasty or jax.default_backend() != "cpu":
        return None
    return _unoptimised() if unoptimised else dict(_HASTY)


def hasten(*, unoptimised: bool = False) -> None:
    """Sets XLA_FLAGS for fast compilation in a process that ends soon, before JAX is imported.

    What ``XLA_FLAGS`` says already is kept.
    """
    options = _unoptimised() if unoptimised else _HASTY
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in options.items())
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".rstrip()
    # Tracing makes many objects and little garbage.
    gc.set_threshold(50_000, 20, 50)
