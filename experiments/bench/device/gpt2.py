"""Part "gpt2" of `bench/device`: a GPT-2 124M training step beside Flax and PyTorch.

The ways are those of `experiments.bench.gpt2`, one after the other, for each compiles for a while.
"""

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments._peak import measured_peak
from experiments.bench import gpt2
from experiments.bench.device import machine
from experiments.bench.device.rows import Budget, Emit, run_case
from tensorjax.models.gpt2 import GPT2Config

Name = tuple[str, str]
# In the order of what is to be known.
ORDER: tuple[Name, ...] = (
    ("tensorjax", "attention by cuDNN"),
    ("tensorjax", ""),
    ("torch", "nanoGPT, torch.compile"),
    ("flax", ""),
    ("torch", "nanoGPT, eager"),
    ("nanoGPT", ""),
)
_TINY: tuple[Name, ...] = (("tensorjax", ""), ("torch", "nanoGPT, torch.compile"),
                           ("torch", "nanoGPT, eager"))  # fmt: skip
_STEPS = 20
# Seconds without which a way is not begun: compiling takes longer than that of the others.
_LEAST = {("torch", "nanoGPT, torch.compile"): 30.0}


def run(budget: Budget, emit: Emit) -> None:
    """Times a training step of GPT-2 in every available way; names those that are not."""
    gpu = jax.default_backend() == "gpu"
    dtype = jnp.bfloat16 if gpu else jnp.float32
    case = gpt2.Case("124M", GPT2Config.small(dropout=0.0), 16)
    if budget.tiny:
        case = gpt2.Case("tiny", GPT2Config.tiny(vocabulary=120, length=16), 2)
    peak = machine.peak(budget, jnp.dtype(dtype).name) or measured_peak(dtype)
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        made = gpt2.makers(case, dtype)
        before: dict[str, Any] = {}
        for name in _TINY if budget.tiny else ORDER:
            label = ", ".join(filter(None, name))
            if name in made:
                steps = 2 if budget.tiny else _STEPS
                one = _timed(made[name], case, dtype, peak, steps, before)
                least = 0.0 if budget.tiny else _LEAST.get(name, 0.0)
                run_case(f"{case.name}, {label}", one, budget, emit, least=least)
            else:
                emit.left_out(f"{case.name}, {label}", missing(name, gpu))


def missing(name: Name, gpu: bool) -> str:
    """Returns the reason why a way to train GPT-2 is not available here."""
    if name[0] == "torch":
        return "'torch' is not installed" if gpu or "eager" in name[1] else "no GPU"
    return "no GPU in half precision"


def _timed(
    make: Callable[[], Any],
    case: gpt2.Case,
    dtype: Any,
    peak: float,
    steps: int,
    before: dict[str, Any],
) -> Callable[[], dict[str, Any]]:
    """Returns a function that times one way to train GPT-2 and returns its row.

    ``before`` keeps losses and time of the first way.
    """

    def find() -> dict[str, Any]:
        start = time.perf_counter()
        training = make()
        ready = time.perf_counter()
        training()
        first = time.perf_counter() - ready
        training()
        times = []
        for _ in range(steps):
            ready = time.perf_counter()
            training()
            times.append(time.perf_counter() - ready)
        median, losses = statistics.median(times), training.losses[:2]
        del training
        gc.collect()
        before.setdefault("losses", losses)
        before.setdefault("seconds", median)
        tokens = case.batch * case.config.length
        return {
            "batch": f"{case.batch} × {case.config.length} {jnp.dtype(dtype).name}",
            "ms": 1e3 * median,
            "tokens/s": tokens / median,
            "MFU": tokens * case.config.flops() / median / peak,
            "time over the first row's": median / before["seconds"],
            "first call s": first,
            "loss error": max(
                abs(a / b - 1) for a, b in zip(losses, before["losses"], strict=True)
            ),
            "all s": time.perf_counter() - start,
        }

    return find
