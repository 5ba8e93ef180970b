"""Time of a training step of each method, measured by turns on one task.

The models have the shapes at the end of their trainings on the first seed, in hasty runs those of
the last steps, which are compiled already; what their numbers are does not matter to the time of a
step, so they are drawn anew.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.comera import report
from experiments.comera.compare import Comparison
from experiments.comera.methods import ADAPTIVE, LATE, NAMES
from experiments.comera.training import Order, State, chunk_of
from tensorjax import optim

ROUNDS = 7
STEPS = 10  # of one call, at most


def rows(comparison: Comparison, results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Times a step of every method; returns rows with milliseconds and speed over dense.

    Smaller models of equal size are left out.
    """
    task = comparison.task
    data = {name: jnp.asarray(a) for name, a in task.splits["train"].items()}
    order = Order(len(next(iter(data.values()))), task.batch, seed=0)
    chosen = jnp.asarray(order(0, min(STEPS, chunk_of(task.steps))))
    timed = [r for r in results if r["target"] is None or r["method"] in LATE]
    first = [found[0] for found in report.groups(timed).values()]
    begun = [comparison.last(result) for result in first]
    programs, states = (
        [p for p, _ in begun],
        [cut(s, r, comparison.budget.hasty) for (_, s), r in zip(begun, first, strict=True)],
    )
    seconds: list[list[float]] = [[] for _ in first]
    for turn in range(ROUNDS + 1):
        for k, program in enumerate(programs):
            begin = time.perf_counter()
            states[k], losses, _ = program.steps(states[k], data, chosen)
            losses.block_until_ready()
            if turn:  # the first one compiles
                seconds[k].append((time.perf_counter() - begin) / len(chosen))
    found = []
    for result, times, state in zip(first, seconds, states, strict=True):
        found.append(
            {
                "task": task.name,
                "method": report.title(result),
                "stored": sum(x.size for x in jax.tree.leaves(state.params)),
                "ms/step": 1e3 * statistics.median(times),
            }
        )
    dense = [row["ms/step"] for row in found if row["method"] == NAMES["dense"]]
    for row in found if dense else ():
        row["dense / ms"] = dense[0] / row["ms/step"]
    return found


def cut(state: State, result: Mapping[str, Any], hasty: bool = False) -> State:
    """Returns a state cut to the ranks at the end of a training, if ranks were pruned.

    With ``hasty`` it is the ranks at the end of the early stage, where a late one has followed.
    """
    if result["method"] not in ADAPTIVE:
        return state
    records = result["early"] if hasty and "early" in result else result["records"]
    left = iter([r for layer in records[-1]["ranks"].values() for r in layer])

    def kept(label: str, leaf: jax.Array) -> jax.Array:
        if label != "gate":
            return leaf
        return jnp.asarray(np.arange(leaf.size) < next(left), leaf.dtype)

    gated = jax.tree.map(kept, optim.labels(state.params), state.params)
    params, opt_state = optim.shrink(gated, state.opt_state)
    return state._replace(params=params, opt_state=opt_state)
