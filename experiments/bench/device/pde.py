"""Part "pde" of `bench/device`: integration at fixed ranks, compiled as one loop.

Ornstein–Uhlenbeck processes in coordinates at rest, in double precision: one run, and a batch of
runs with other coefficients under `jax.vmap`, which is what a device is for.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import _stepping
from experiments.bench.device.rows import Budget, Case, Emit, run_cases
from tensorjax import pde

_END = 1.0


@dataclasses.dataclass(frozen=True)
class Size:
    """Size of a run: dimension, grid points, steps, TT-rank, and batch."""

    dim: int
    points: int
    steps: int
    rank: int
    batch: int = 1

    def __str__(self) -> str:
        runs = f", {self.batch} runs at once" if self.batch > 1 else ""
        return f"d = {self.dim}, {self.points} points, {self.steps} steps, rank {self.rank}{runs}"


# Steps that "rk4" is stable with at these points: at fixed ranks all modes are there that can grow.
SIZES = (
    Size(2, 28, 48, 8),
    Size(2, 28, 48, 8, batch=64),
    Size(3, 28, 64, 8),
    Size(4, 28, 96, 8),
)
SMALL = (Size(2, 28, 48, 6), Size(2, 28, 48, 6, batch=2))


def run(budget: Budget, emit: Emit) -> None:
    """Times integrations of every size on the device and on the CPU."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    found: list[Case] = []
    for size in SMALL if budget.tiny else SIZES:
        seconds: dict[str, float] = {}
        for name in ("device", "CPU") if jax.default_backend() != "cpu" else ("CPU",):
            found.append((f"{size}, {name}", _timed(size, name, seconds)))
    run_cases(found, budget, emit)


def _timed(size: Size, name: str, seconds: dict[str, float]) -> Callable[[], dict[str, Any]]:
    where = jax.devices()[0] if name == "device" else jax.devices("cpu")[0]

    def find() -> dict[str, Any]:
        with jax.default_device(where):
            call = single(size) if size.batch == 1 else batched(size)
            start = time.perf_counter()
            row, cores = call()
            first = time.perf_counter() - start
            times: list[float] = []
            while len(times) < 3 and sum(times) < 3.0:
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
        seconds[name] = min(times)
        ours = seconds.get("device")
        places = {str(d.platform) for c in cores for d in c.devices()}
        return {
            "ms": 1e3 * min(times),
            "ms a step and run": 1e3 * min(times) / size.steps / size.batch,
            "time over the device's": seconds[name] / ours if ours else None,
            "first call s": first,
            **row,
            "ran on": ", ".join(sorted(places)),
        }

    return find


def single(size: Size) -> Callable[[], Any]:
    """Returns a call that integrates one density and reports its error."""
    problem = _stepping.process(size.dim, size.points)

    def call() -> Any:
        solution = pde.integrate(
            problem, t1=_END, dt=_END / size.steps, rank=size.rank, coordinates="fixed"
        )
        end = solution.final
        cores = jax.block_until_ready(end.v.cores)

        def values(x: np.ndarray) -> Any:
            return pde.evaluate(end.v, end.map, problem.box, x)

        task = _stepping.Task(size.dim, 0.0, (), ())
        return {"status": solution.result.name,
                "error": _stepping.measured(task, values, size.rank)["error"]}, cores  # fmt: skip

    return call


def batched(size: Size) -> Callable[[], Any]:
    """Returns a call that integrates a batch of densities, compiled as one program."""
    problem = _stepping.process(size.dim, size.points)
    strengths = jnp.linspace(0.5, 1.0, size.batch)  # stronger drifts take shorter steps

    def one(strength: Any) -> Any:
        changed = pde.OrnsteinUhlenbeck(
            strength * jnp.asarray(problem.matrix), problem.diffusion, problem.start, problem.box
        )
        solution = pde.integrate(
            changed, t1=_END, dt=_END / size.steps, rank=size.rank, coordinates="fixed"
        )
        return solution.final.v.cores, solution.stats["status"]

    compiled = jax.jit(jax.vmap(one))

    def call() -> Any:
        cores, status = jax.block_until_ready(compiled(strengths))
        failed = int(np.count_nonzero(np.asarray(status)))
        return {"status": f"{size.batch - failed} of {size.batch} successful"}, cores

    return call
