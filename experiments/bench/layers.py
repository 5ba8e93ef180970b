"""Times tensorised layers beside dense ones, tensorly-torch and the released formula.

Source: Yang et al., "CoMERA" (NeurIPS 2024, arXiv 2405.14377) for shapes, ranks and the formula;
the measurement is our own. Run it on a quiet machine with the peers installed::

    python -m experiments run bench/layers

All run in one process, by turns, warm; see README.md in this folder for what is measured and how.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from experiments import Run
from experiments.bench import _adaptation, _encoders, _linears, _lookups
from experiments.bench._outcomes import spread
from experiments.bench._solving import Problem, by_turns
from experiments.bench._timing import Sized

Group = Literal["linear", "embedding", "encoder", "embedding-step", "adaptation"]
GROUPS: dict[str, Callable[[bool], list[Problem]]] = {
    "linear": _linears.problems,
    "embedding": _lookups.problems,
    "encoder": _encoders.problems,
    "embedding-step": _lookups.steps,
}
CAPTIONS = {
    "linear": "Linear layers, float32: y = x W + bias, and the gradient of all",
    "embedding": "Embeddings, float32: rows of Zipf-distributed ids, and the gradient",
    "encoder": "Training steps of six encoders of width 768: memory that is kept, and at the peak",
    "embedding-step": "Embeddings, float32: forward, backward and update by Adam, uniform ids",
    "adaptation": "Steps under optim.rank_adaptive(adamw, compress_to=10) over those under "
    "adamw alone, processor time, by turns over {} steps; usual: without cut or change of basis",
}
_LAYER = ("error", "parameters", "kind", "flops", "temp bytes")
_STEP = ("parameters", "parameters MiB", "state MiB", "with gradients MiB", "peak MiB", "flops")
_COLUMNS = {
    "linear": _LAYER, "embedding": _LAYER, "encoder": _STEP, "embedding-step": ("parameters",),
}  # fmt: skip
# Time of tensorly-torch over ours; what is aimed at beside dense JAX is said by every problem.
_PEER_GOAL = 3.0


@dataclass(frozen=True)
class Config(Sized):
    """Options of the benchmark `bench/layers`."""

    only: tuple[Group, ...] = ("linear", "embedding", "encoder")
    """Groups of problems to run; "embedding-step" and "adaptation" are for their own runs."""
    steps: int = 600
    """Of the group "adaptation"; its cuts are about 40, whatever the number of steps."""


def run(config: Config, run: Run) -> None:
    """Times the layer groups asked for; writes their tables and the ratios beside the goals."""
    ratios = []
    for name in config.only:
        if name == "adaptation":
            adaptation(config, run)
            continue
        rows = []
        for problem in run.progress(GROUPS[name](config.small), name):
            # Optax mixes dtypes and ranks, and means to.
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                found = measure(problem, config.repeats, _COLUMNS[name])
            rows += found
            ratios.append(verdict(problem, found))
        run.table(name, rows, caption=CAPTIONS[name], key=["problem", "library", "variant"])
    if not ratios:
        return
    caption = "Speed-up of ours as planned over the others, each where it is fastest"
    run.table("ratios", ratios, caption=caption, key=["problem"])
    if said := spread(row.get("JAX") for row in ratios):
        run.compare(f"speed-up over the layers in plain JAX: {said}")
    run.metric("goals", sum(row["goals"] for row in ratios))
    run.metric(
        "goals missed", sum(len(row["missed"].split(", ")) for row in ratios if row["missed"])
    )


def adaptation(config: Config, run: Run) -> None:
    """Measures what rank-adaptive training adds to a step of several models; writes the table."""
    steps = 12 if config.small else config.steps
    rows = []
    for case in run.progress(_adaptation.cases(config.small), "models"):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            rows.append(_adaptation.measure(case, steps))
    run.table("adaptation", rows, caption=CAPTIONS["adaptation"].format(steps), key=["model"])
    for row in rows:
        run.metric(f"adaptation, usual steps, {row['model']}", row["usual + %"])


def measure(problem: Problem, repeats: int, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Times all ways of a layer problem by turns; returns a row for each."""
    return [
        {
            "problem": problem.name,
            "library": way.library,
            "variant": way.variant,
            **{name: answer.get(name) for name in columns},
            "ms": None if timing.failure else 1e3 * timing.median,
            "first call s": None if timing.failure else timing.first,
            "note": timing.failure,
        }
        for way, answer, timing in by_turns(problem.ways, repeats, problem.name)
    ]


def verdict(problem: Problem, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the ratio of every library's best time to ours, and the goals missed."""
    (ours,) = (r["ms"] for r in rows if (r["library"], r["variant"]) == ("tensorjax", ""))
    others: dict[str, float] = {}
    for row in rows:
        if row["library"] != "tensorjax" and row["ms"] is not None:
            others[row["library"]] = min(row["ms"], others.get(row["library"], row["ms"]))
    ratios = {library: time / ours for library, time in others.items()}
    goals = {"JAX": problem.goal, "tensorly-torch": _PEER_GOAL}
    set_ = {name: goal for name, goal in goals.items() if name in ratios and goal is not None}
    missed = [f"{name} {goal:g}" for name, goal in set_.items() if ratios[name] < goal]
    return {
        "problem": problem.name,
        "ours ms": ours,
        **ratios,
        "goals": len(set_),
        "missed": ", ".join(missed),
    }
