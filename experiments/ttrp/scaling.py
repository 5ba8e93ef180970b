"""Storage and time against N: dense inputs to N = 10⁷, tensor trains to N = 10³⁰."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import Run
from experiments.ttrp.methods import (
    GAUSSIAN,
    TRP,
    TT_ROWS,
    TTRP,
    VERY_SPARSE,
    Method,
    factors,
    moments,
    outline,
    storage,
    times,
)
from tensorjax import sketch, tt

ROWS = (4, 3, 2)
MODE = 1000  # modes of a tensor train, N = 1000^d
WIDE = 32  # m_k of the map that keeps its output in TT form
INPUT_RANK = 4
DENSE_METHODS = (GAUSSIAN, VERY_SPARSE, TRP, TTRP)


class Timing(NamedTuple):
    """Seconds of compiling a program and of running it.

    Attributes:
        compile: to trace, lower and compile.
        run: one call of the compiled program, a median.
    """

    compile: float
    run: float


def timed(function: Callable[..., Any], *arguments: Any, repeats: int) -> Timing:
    """Compiles a function for its arguments and times it."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    spent = time.perf_counter() - start
    jax.block_until_ready(compiled(*arguments))
    runs = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        runs.append(time.perf_counter() - start)
    return Timing(spent, float(np.median(runs)))


def dense(
    run: Run, *, sizes: Sequence[int], batch: int, repeats: int, largest_map: float, seed: int
) -> list[dict[str, Any]]:
    """Times projections of dense inputs; returns a row for every N and method.

    Blank where the map would be too large.

    Args:
        run: where the table goes.
        sizes: values of N.
        batch: vectors projected together.
        repeats: calls of which the median is taken.
        largest_map: GiB a map may take.
        seed: of the data and the maps.
    """
    rows = []
    for n in run.progress(sizes, "time, dense, N"):
        data, key = jax.random.split(jax.random.key(seed))
        x = jax.random.normal(data, (batch, n))
        rows += [_dense_case(method, n, key, x, repeats, largest_map) for method in DENSE_METHODS]
    run.table(
        "scaling_dense",
        rows,
        caption=f"M = {math.prod(ROWS)}, {batch} dense vectors at once, median of {repeats} calls; "
        f"blank: the map would take over {largest_map} GiB; storage in elements",
        key=["N", "method"],
    )
    return rows


def _dense_case(
    method: Method, n: int, key: jax.Array, x: jax.Array, repeats: int, largest_map: float
) -> dict[str, Any]:
    in_shape = factors(n, 3)
    row = {"N": n, "method": method.name, "modes": times(in_shape)}
    row["storage"] = storage(method, in_shape, ROWS)
    leaves = jax.tree.leaves(outline(method, in_shape, ROWS))
    row["compile [s]"] = row["time [ms]"] = None
    if sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) <= largest_map * 2**30:
        p = jax.jit(method.draw, static_argnums=(1, 2))(key, in_shape, ROWS)
        timing = timed(sketch.apply, p, x, repeats=repeats)
        row |= {"compile [s]": timing.compile, "time [ms]": 1e3 * timing.run}
    return row


def trains(
    run: Run, *, orders: Sequence[int], repeats: int, draws: int, seed: int
) -> list[dict[str, Any]]:
    """Times projections of tensor trains with N = 1000^d; returns a row for every d and map.

    And distances at the largest N.
    """
    rows = []
    for d in run.progress(orders, "time, TT form, d"):
        data, key = jax.random.split(jax.random.key(seed + d))
        x = unit_train(data, d, INPUT_RANK)
        rows += list(_train_cases(d, key, x, repeats))
    run.table(
        "scaling_trains",
        rows,
        caption=f"Inputs of TT-rank {INPUT_RANK} with N = {MODE}^d entries, median of {repeats} "
        "calls; largest variance: of ‖f(x)‖²/‖x‖² over all x; storage in elements",
        key=["N", "method", "M"],
    )
    largest = max(orders)
    run.table("train_distances", [_distances(largest, draws, seed)], caption=_CAPTION, key=["N"])
    return rows


_CAPTION = (
    "Distances of two tensor trains of TT-rank 2, computed in TT form before and after projection: "
    "the squared ratio over draws, and its exact variance"
)


def unit_train(key: jax.Array, d: int, rank: int) -> tt.TT:
    """Draws a random train of modes 1000 and norm about one, without overflow."""
    x = tt.random(key, (MODE,) * d, rank)
    return tt.TT([core / math.sqrt(MODE) for core in x.cores])


def _train_cases(d: int, key: jax.Array, x: tt.TT, repeats: int) -> Iterator[dict[str, Any]]:
    fixed = (*ROWS, *(1,) * d)[: max(d, 3)]
    few = fixed if d >= 3 else factors(math.prod(ROWS), d)
    maps = [(TTRP, (WIDE,) * d), (TTRP, few), (TRP, few), (TT_ROWS, few)]
    for method, shape in maps:
        p = method.draw(key, (MODE,) * d, shape)
        timing = timed(sketch.apply, p, x, repeats=repeats)
        yield {
            "N": float(MODE**d),
            "d": d,
            "method": method.name,
            "M": f"{WIDE}^{d}" if shape[-1] == WIDE else str(math.prod(shape)),
            "storage": p.size,
            "compile [s]": timing.compile,
            "time [ms]": 1e3 * timing.run,
            "largest variance": sketch.variance_bound(p),
        }


def _distances(d: int, draws: int, seed: int) -> dict[str, Any]:
    """Measures squared distance ratios under TTRP with wide modes, at N = 1000^d."""
    first, second, maps = jax.random.split(jax.random.key(seed), 3)
    x, y = unit_train(first, d, 2), unit_train(second, d, 2)
    shapes = (MODE,) * d, (WIDE,) * d
    ratio = jax.jit(functools.partial(_squared_ratio, x=x, y=y))
    values = np.array([ratio(TTRP.draw(key, *shapes)) for key in jax.random.split(maps, draws)])
    p = outline(TTRP, *shapes)
    return {
        "N": float(MODE**d),
        "M": f"{WIDE}^{d}",
        "draws": draws,
        **moments(values),
        "exact variance": float(sketch.variance(p, x - y, relative=True)),
        "largest variance": sketch.variance_bound(p),
    }


def _squared_ratio(p: Any, x: tt.TT, y: tt.TT) -> jax.Array:
    ratio = tt.distance(sketch.apply(p, x), sketch.apply(p, y)) / tt.distance(x, y)
    return ratio**2
