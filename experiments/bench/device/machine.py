"""Part "machine" of `bench/device`: the device's speed of products and copies."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.device.rows import Budget, Case, Emit, run_cases

GB = 10**9
# A call is repeated for so long, after one that compiles.
_SECONDS = 0.5
_LONG = 0.7  # one call of this length is enough


def run(budget: Budget, emit: Emit) -> None:
    """Times matrix products in three precisions, and copies."""
    size, bytes_ = (256, 2**20) if budget.tiny else (8192, 2**30)
    seconds = 0.02 if budget.tiny else _SECONDS
    with jax.enable_x64(True):
        run_cases(cases(size, bytes_, seconds), budget, emit)


def cases(size: int, count: int, seconds: float) -> list[Case]:
    """Returns cases: matrix products of ``size``, and copies of ``count`` bytes."""

    def product(dtype: Any) -> dict[str, Any]:
        # Random: zeros are multiplied faster on some devices.
        x = jax.random.normal(jax.random.key(0), (size, size), jnp.float32).astype(dtype)
        took = median(jax.jit(jnp.matmul), x, x, seconds=seconds)
        return {"ms": 1e3 * took, "TFLOP/s": 2 * size**3 / took / 1e12}

    def copy(call: Callable[..., Any], x: Any, passes: int) -> dict[str, Any]:
        took = median(call, x, seconds=seconds)
        return {"ms": 1e3 * took, "GB/s": passes * x.nbytes / took / GB}

    device = jax.devices()[0]
    host = jax.devices("cpu")[0]
    ones = np.ones(count // 4, np.float32)

    def back() -> dict[str, Any]:
        # An array knows its copy on the host: each turn has one of its own.
        made = jax.jit(lambda x, k: x + k)
        arrays = jax.block_until_ready([made(ones, np.float32(k)) for k in range(6)])
        times = [seconds_of(lambda x=x: np.asarray(x)) for x in arrays]
        took = statistics.median(times[1:])
        return {"ms": 1e3 * took, "GB/s": ones.nbytes / took / GB}

    def there() -> dict[str, Any]:
        x = jax.device_put(ones, host)
        return copy(lambda x: jax.device_put(x, device), x, 1)

    return [
        *(
            (f"{name}, {size} × {size} × {size}", lambda dtype=dtype: product(dtype))
            for name, dtype in (
                ("bfloat16", jnp.bfloat16), ("float32", jnp.float32), ("float64", jnp.float64)
            )
        ),
        ("copy on the device, read and written",
         lambda: copy(jax.jit(lambda x: x + 1), jnp.asarray(ones), 2)),
        ("copy to the device", there),
        ("copy from the device", back),
    ]  # fmt: skip


def seconds_of(call: Callable[[], Any]) -> float:
    """Measures the seconds of a call, and waits for its result."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def median(call: Callable[..., Any], *arguments: Any, seconds: float) -> float:
    """Measures the median seconds of warm calls, repeated for ``seconds``."""
    jax.block_until_ready(call(*arguments))
    times: list[float] = []
    while (sum(times) < seconds and len(times) < 100) or (len(times) < 3 and times[-1] < _LONG):
        times.append(seconds_of(lambda: call(*arguments)))
    return statistics.median(times)


def peak(budget: Budget, dtype: str) -> float | None:
    """Returns the device's operations per second in products, as the part "machine" measured.

    None if it did not.
    """
    for case, row in budget.facts.items():
        if case.startswith(f"{dtype},"):
            return 1e12 * row["TFLOP/s"]
    return None
