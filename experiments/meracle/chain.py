"""TT → Tucker on a long train (d = 50, n = 20, r = 50), timed beside rounding."""

import statistics
import time
from typing import Any

import jax

from experiments import Run
from tensorjax import convert, tt

ORDER, MODE, RANK, MULTILINEAR = 50, 20, 50, 8
TOLS = (1e-3, 1e-8)
NOISE = 1e-9


def train(seed: int) -> tt.TT:
    """Draws a train of multilinear ranks 8 and TT-ranks 50, with a little noise."""
    keys = jax.random.split(jax.random.key(seed), 2 * ORDER)
    core = tt.random(keys[0], (MULTILINEAR,) * ORDER, RANK, float)
    cores = []
    for k, c in enumerate(core.cores):
        u = jax.random.normal(keys[2 * k], (MODE, MULTILINEAR), float) / MODE**0.5
        c = jax.numpy.einsum("ni,aib->anb", u, c)
        cores.append(c + NOISE * jax.random.normal(keys[2 * k + 1], c.shape, float))
    return tt.TT(cores)


def measure(run: Run, seed: int, turns: int) -> list[dict[str, Any]]:
    """Times conversion and rounding of the train by turns; records a table."""
    t = train(seed)
    rows = []
    for tol in TOLS:
        taken: dict[str, list[float]] = {"convert": [], "round": []}
        info: Any = None
        for repeat in range(turns + 1):
            for name, call in (("convert", convert.tt_to_tucker), ("round", tt.round)):
                start = time.perf_counter()
                out: Any = call(t, tol=tol)
                if repeat > 0:  # the first call warms up
                    taken[name].append(time.perf_counter() - start)
                info = out[1] if name == "convert" else info
        convert_time, round_time = (statistics.median(taken[k]) for k in ("convert", "round"))
        rows.append(
            {
                "tol": tol,
                "TT": info.size_before,
                "Tucker": info.size,
                "largest rank": max(info.ranks),
                "error": float(info.error),
                "tt_to_tucker [s]": convert_time,
                "tt.round [s]": round_time,
                "ratio": convert_time / round_time,
            }
        )
    run.table(
        "chain",
        rows,
        caption=f"TT → Tucker beside one rounding, d = {ORDER}, n = {MODE}, r = {RANK}, "
        f"multilinear ranks {MULTILINEAR} and noise; warm medians, in turn",
        key=["tol"],
    )
    run.metric("conversion_over_rounding", max(row["ratio"] for row in rows))
    return rows
