"""Parts "encoder" and "encoder-plain" of `bench/device`: training steps of CoMERA's encoder.

The models are those of `experiments.bench._encoders`. Those of one batch size are compiled at once,
by a thread each, and timed afterwards, when nothing else is at work.
"""

import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.bench import _encoders
from experiments.bench.device import machine
from experiments.bench.device.rows import Budget, Emit, reason, run_case

WAYS = (("tensorjax", ""), ("Adam", "dense"), ("GaLore", "linear layers"))
# Batch 1 is a matter of launches, 128 of arithmetic.
GROUPS = tuple((dtype, batch) for dtype in ("bfloat16", "float32") for batch in (32, 1, 128))
_PLAIN = (("bfloat16", 1), ("bfloat16", 32), ("float32", 1), ("float32", 32))
_STEPS = 15


def run(budget: Budget, emit: Emit) -> None:
    """Times training steps of the encoder for each dtype and batch size."""
    plain = "xla_gpu_enable_command_buffer=" in os.environ.get("XLA_FLAGS", "")
    if plain and jax.default_backend() != "gpu":
        emit.left_out("all", "no GPU: there are no command buffers")
        return
    groups: Sequence[tuple[str, int]] = _PLAIN if plain else GROUPS
    if budget.tiny:
        groups = (("float32", 2),)
    made: dict[Any, Any] = {}
    longest = 0.0
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for dtype, batch in groups:
            start, left = budget.clock(), budget.left()
            if left < 0.7 * longest or left <= 0:
                why = f"out of time: {max(left, 0):.0f} s left, about {longest:.0f} s needed"
                for way in WAYS:
                    emit.left_out(_label(way, dtype, batch), why)
                continue
            group(dtype, batch, made, budget, emit, plain)
            longest = max(longest, budget.clock() - start)


def _label(way: tuple[str, str], dtype: str, batch: int) -> str:
    return f"batch {batch}, {dtype}, {', '.join(filter(None, way))}"


def group(
    dtype: str, batch: int, made: dict[Any, Any], budget: Budget, emit: Emit, plain: bool
) -> None:
    """Compiles and times all variants of the encoder at one dtype and batch size."""
    makers = _encoders.trainings(budget.tiny, jnp.dtype(dtype))

    def compiled(way: tuple[str, str]) -> Any:
        try:
            # The modes of JAX are those of a thread.
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                if (way, dtype) not in made:
                    made[way, dtype] = makers[way]()
                return _program(made[way, dtype], batch)
        except Exception as error:  # of one way: the others are compiled
            return error

    with ThreadPoolExecutor(len(WAYS)) as pool:
        programs = list(pool.map(compiled, WAYS))
    for way, program in zip(WAYS, programs, strict=True):
        if isinstance(program, Exception):
            emit.left_out(_label(way, dtype, batch), reason(program))
            continue

        def find(training: Any = made[way, dtype], program: Any = program) -> dict[str, Any]:
            row = timed(training, program, batch, 2 if budget.tiny else _STEPS)
            return {**row, "command buffers": "no" if plain else "as by default"}

        run_case(_label(way, dtype, batch), find, budget, emit)


def _program(training: Any, batch: int) -> tuple[Any, float]:
    """Compiles a training step; returns it with the seconds of tracing and compilation."""

    def first() -> Any:
        params = jax.eval_shape(lambda: _params(training))
        state = jax.eval_shape(training.optimizer.init, params)
        step = jax.jit(training.step, donate_argnums=(0, 1))
        return step.lower(params, state, *training.data(batch)).compile()

    result: list[Any] = []
    took = machine.seconds_of(lambda: result.append(first()))
    return result[0], took


def _params(training: Any) -> Any:
    return nnx.state(training.make(), nnx.Param)


def timed(training: Any, program: tuple[Any, float], batch: int, steps: int) -> dict[str, Any]:
    """Times a compiled training step; returns its row, with median milliseconds and memory."""
    step, compiling = program
    data = training.data(batch)
    if training.state is None:
        training.state = training.start()

    def once() -> Any:
        before, training.state = training.state, None  # given up, also where the step fails
        training.state = step(*before, *data)
        return training.state

    times = [machine.seconds_of(once) for _ in range(steps + 2)][2:]
    median = statistics.median(times)
    sizes = training.sizes(step)
    return {
        "ms": 1e3 * median,
        "tokens/s": batch * training.config.length / median,
        "parameters": sizes["parameters"],
        "with gradients MiB": sizes["with gradients MiB"],
        "peak MiB": sizes["peak MiB"],
        "tracing and compiling s": compiling,
    }
