"""How XLA compiles the programs of the tests, in this process and in those that tests start.

Most of the time of the tests goes into compiling small programs that run once or twice: LLVM is
asked not to optimise them, and loops are emitted as LLVM's code at once, not by way of MLIR. XLA's
own passes stay, and with them operations, buffers and collectives as they are counted. The gate
compiles doctests so too; benchmarks and notebooks are compiled as ever. The newest JAX knows no
other way than MLIR and refuses that flag: with it the tests go that way.
"""

import importlib
import threading
from importlib import metadata
from typing import Any


def share_contexts() -> Any:
    """Lets the programs of a thread share one MLIR context, and returns what ends that context.

    JAX makes a context for every program, which takes as long as all else that lowers a small one.
    Contexts grow with the programs: tests end them with the caches. Where JAX makes them in another
    way than the one known here, nothing changes.
    """
    try:
        mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
        make = mlir.make_ir_context
    except (ImportError, AttributeError):
        return lambda: None
    held = threading.local()

    def of_this_thread() -> Any:
        if not hasattr(held, "context"):
            held.context = make()
        return held.context

    mlir.make_ir_context = of_this_thread
    return lambda: vars(held).clear()


def flags(devices: int | None = None) -> str:
    """``XLA_FLAGS`` for so many simulated CPU devices, or as many as the process asks for."""
    found = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
    if tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 11):
        found.append("--xla_cpu_use_fusion_emitters=false")
    if devices is not None:
        found.append(f"--xla_force_host_platform_device_count={devices}")
    return " ".join(found)
