"""Part "layers" of `bench/device`: tensorised layers and lookups beside dense ones.

The problems are those of `bench/layers`, of larger batches, which a device needs to be busy.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax

from experiments.bench import _linears, _lookups, _timing
from experiments.bench._solving import Problem, Way, found
from experiments.bench.device.rows import Budget, Emit, run_case

_SHAPE = ((12, 8, 8), (12, 16, 16))  # 768 → 3072
_ROWS = (32, 4096, 32768)
_IDS = (512, 32768)
_REPEATS = 5
# What is there to be told from the way that is planned: other orders are of no use here.
_VARIANTS = {("tensorjax", ""), ("JAX", "dense"), ("JAX", "dense gather"), ("torch", "dense"),
             ("torch", "sparse gradient")}  # fmt: skip


def run(budget: Budget, emit: Emit) -> None:
    """Times every way of every layer problem, with the ratio to our time."""
    if found("torch") is None:
        emit.left_out("torch", "'torch' is not installed")
    repeats = 1 if budget.tiny else _REPEATS
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for problem in problems(budget.tiny):
            ours: list[float] = []
            for way in problem.ways:
                if (way.library, way.variant) in _VARIANTS:
                    label = ", ".join(filter(None, (problem.name, way.library, way.variant)))
                    run_case(label, _timed(way, repeats, ours), budget, emit)


def problems(tiny: bool) -> Iterator[Problem]:
    """Yields the layer problems one after the other, the largest last."""
    if tiny:
        yield _linears.problems(small=True)[-1]
        yield _lookups.problems(small=True)[-1]
        return
    for rows in _ROWS:
        yield from _linears.problems(small=False, shapes=(_SHAPE,), batches=(rows,))
    for count in _IDS:
        yield from _lookups.problems(small=False, counts=(count,))


def _timed(way: Way, repeats: int, ours: list[float]) -> Callable[[], dict[str, Any]]:
    def find() -> dict[str, Any]:
        timing, result = _timing.first_call(_timing.Lane(way.library, way.variant, way.call))
        if timing.failure:
            raise RuntimeError(timing.failure)
        _timing.interleave([timing], repeats)
        answer = way.answer(result)
        if way.library == "tensorjax":
            ours.append(timing.median)
        return {
            "ms": 1e3 * timing.median,
            "time over ours": timing.median / ours[0] if ours else None,
            "first call s": timing.first,
            "error": answer.get("error"),
            "parameters": answer.get("parameters"),
        }

    return find
