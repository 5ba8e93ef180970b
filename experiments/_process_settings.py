"""Settings of a process: malloc for freed memory, and XLA's options for fast compilation."""

import ctypes
import gc
import os
from importlib import metadata
from typing import Any

# For programs that run for seconds: on CPUs they compile faster, and run nearly as fast.
_HASTY: dict[str, Any] = {"xla_backend_optimization_level": 1}

# Of malloc.h: one arena, nothing by mmap, nothing cut off at the top.
_KEEP = {-8: 1, -4: 0, -1: 2**31 - 1}
# All from a mebibyte on by mmap, for good: by default glibc moves that limit up to 32 MiB.
_RETURN = {-3: 2**20}


def keep_memory() -> None:
    """Makes glibc's malloc keep what this process frees, instead of returning it to the system.

    By default large arrays, and whatever the threads of XLA allocate, go back to the system as soon
    as they are freed: results of megabytes then come in fresh pages at every call, which take
    longer than the arithmetic on them, and how often that happens is chance. The process stays as
    large as it was at most. Other systems' allocators are left as they are.
    """
    _set(_KEEP)


def return_memory() -> None:
    """Makes glibc's malloc return large arrays to the system as soon as they are freed.

    By default arrays below 32 MiB stay with the arena of the thread that made them, and each thread
    of XLA and of a trainer has one: the process becomes several times as large as what is alive in
    it. What is made anew comes in fresh pages, which takes time. To be called first: what is in an
    arena stays there. Other systems' allocators are left as they are.
    """
    _set(_RETURN)


def _set(options: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in options.items():
        mallopt(option, value)


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
