"""Choice of the kernel that computes a call, from a table of candidates with conditions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from tensorjax import _native
from tensorjax._kernels.conditions import Arrays
from tensorjax._kernels.table import CALL, TABLE, TRACE, Kernel, Stage
from tensorjax._kernels.train_signatures import Signature
from tensorjax._native.cpu_primitive import on_cpu


def choose_kernel(operation: str, arrays: Arrays, stage: Stage = CALL, **facts: Any) -> Kernel:
    """Chooses the kernel for a call: the table's first candidate whose conditions hold.

    Args:
      operation: a row of the table.
      arrays: those that the conditions look at.
      stage: at which the choice is made.
      **facts: what else they look at; functions where it takes time to find out.
    """
    for kernel, conditions, _ in TABLE[operation][stage]:
        for condition in conditions:
            if not condition.holds(arrays, facts):
                break
        else:
            return kernel
    raise LookupError(f"{operation}: no candidate without conditions at stage {stage.value}")


def choose_alike(operation: str, stage: Stage, known: Signature, batch: int) -> Kernel:
    """Chooses the kernel for a batch of entries of a train, once for all trains of its signature.

    Args:
      operation: a row of the table, whose conditions look at shapes and dtypes alone.
      stage: at which the choice is made.
      known: signature of the train.
      batch: number of entries.
    """
    return _chosen_alike(operation, stage, known, batch, _native.status())


@functools.lru_cache(maxsize=4096)
def _chosen_alike(
    operation: str, stage: Stage, known: Signature, batch: int, status: str
) -> Kernel:
    cores = [jax.ShapeDtypeStruct(shape, known.dtype) for shape in known.shapes]
    return choose_kernel(operation, cores, stage, shapes=known.shapes, batch=batch)


def is_cpp_default() -> bool:
    """Whether C++ kernels are the default choice here: JAX has one device, which is a CPU."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def cpp_or_xla(
    operation: str,
    cpp: Callable[..., Any],
    xla: Callable[..., Any],
    *operands: Any,
    static: tuple[Any, ...] = (),
    results: Sequence[jax.ShapeDtypeStruct],
    batched: bool = True,
) -> list[Any]:
    """Calls the kernel of an operation that is chosen, C++ or XLA, as its program is lowered.

    When the program is lowered its platform and devices decide; see
    `tensorjax._native.cpu_primitive.on_cpu`, whose arguments these are.

    Args:
      operation: a row of the table.
      cpp: for programs for CPUs, of one device where the table says so.
      static: hashable arguments of both that come first.
      results: shapes and dtypes of the leaves that both return.
      batched: whether one call of ``cpp`` takes a batch of `jax.vmap`; else ``xla`` does.
    """
    alone = TABLE[operation][TRACE][0].one_device
    return on_cpu(cpp, xla, *operands, static=static, results=results, alone=alone, batched=batched)
