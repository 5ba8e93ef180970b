"""Rank-adaptive tensor-compressed training beside dense, low-rank and GaLore training.

``python -m experiments run comera`` trains all methods on all tasks, prints a table a task, and
draws score against parameters and ranks over time. What is finished is kept in ``comera/store`` in
the folder of results: a run that was interrupted goes on where it stopped. README.md in this folder
says what is the paper's and what is not.

Source: Yang, Liu, Choudhary, Xie, Gao, Kunzmann, Zhang, "CoMERA: Computing- and Memory-Efficient
Training via Rank-Adaptive Tensor Optimization" (NeurIPS 2024), arXiv 2405.14377.
"""

from typing import Any

import jax

from experiments import Run
from experiments.comera import planted, report, sizes, speed
from experiments.comera.board import Board
from experiments.comera.compare import Comparison, trainings
from experiments.comera.config import NAMES as TASKS
from experiments.comera.config import Config, load
from experiments.comera.methods import NAMES, Options
from experiments.comera.store import Store
from experiments.comera.tasks import Task


def run(config: Config, run: Run) -> None:
    """Trains all methods on all tasks in single precision, then draws the figure."""
    store = Store(run.folder.parent / "comera" / "store")
    names = [name for name in config.tasks if name in TASKS]
    found: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    steps: list[dict[str, Any]] = []
    # Optax mixes dtypes and ranks, and means to.
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        loaded = {name: load(name, config, store.folder / "data") for name in names}
        budgets = {name: config.budget(name) for name in names}
        with Board(run, sum(trainings(budget) for budget in budgets.values())) as board:
            for name, (task, options) in loaded.items():
                comparison = Comparison(task, options, budgets[name], store, board)
                found[name] = (task.metric, comparison.results())
                _record(run, task, options, found[name][1])
                steps += speed.rows(comparison, found[name][1])
        if found:
            run.table("steps", steps, caption=STEPS.format(speed.ROUNDS))
            run.figure("comera", report.overview(found), caption=CAPTION)
            run.compare(*_outcome(run, list(found)))
        if "planted" in config.tasks:
            _planted(config, run)


def _outcome(run: Run, tasks: list[str]) -> tuple[str, bool | None]:
    """Returns the points lost on every task by the best model of a tenth of the dense size.

    At most a tenth, as a sentence; and whether the loss is at most one point.
    """
    below = {task: run.metrics.get(f"{task}_points_below_dense") for task in tasks}
    known = {task: points for task, points in below.items() if points is not None}
    if not known:
        return "no model ten times smaller beside a dense one", None
    said = ", ".join(f"{task} {-points:+.2f} points" for task, points in known.items())
    return f"ten times smaller and more: {said}", max(known.values()) <= 1


def _planted(config: Config, run: Run) -> None:
    """Trains the planted trains, and records the table of ranks found."""
    wanted = (planted.OURS,) if config.scale == "tiny" else planted.METHODS
    settings = planted.Config(seeds=config.planted)
    work = run.progress(wanted, f"planted ranks, {config.planted} seeds")
    found = {method: planted.measure(settings, method) for method in work}
    rows = [report.planted(rows) for rows in found.values()]
    problem = settings.problem
    run.table(
        "planted",
        rows,
        caption=PLANTED.format(problem.ranks, problem.start, problem.numbers(problem.ranks)),
    )
    ours = found[planted.OURS]
    good = sum(row["ratio"] <= 1.5 and row["error"] <= 0.01 for row in ours)
    run.metric("planted_found", good)
    run.metric("planted_seeds", len(ours))


def _record(run: Run, task: Task, options: Options, results: list[dict[str, Any]]) -> None:
    """Records the table and the metrics of a task."""
    dense = sizes.count(lambda rngs: task.make(task.config, rngs=rngs))
    rows = report.rows(results, dense)
    ours = {row["method"] for row in rows}
    paper = [row for row in report.PAPER[task.name] if row["method"] in ours]
    run.table(
        task.name,
        rows,
        caption=TABLE.format(task.data, task.metric, options.compression, dense),
        key=["method"],
        paper=paper,
        source="paper, recalled, other data",
    )
    for name, value in report.metrics(rows, task.metric).items():
        run.metric(f"{task.name}_{name}", value)
    run.console.print(f"{task.name}: {len(results)} results of {len(NAMES)} methods")


PLANTED = (
    "Planted TT-ranks {}, started from {}, {} entries: sizes found over it (median and largest), "
    "seeds within 1.5 × and error 1 %, seeds with exactly the planted ranks, largest relative "
    "error, Σ‖G‖² at its largest over the start"
)
TABLE = (
    "{}: test scores where validation ({}) is best, means over seeds and standard deviations [%]; "
    "“equal size”: at most 1/{:g} of the dense model's {} parameters, where a share follows, that "
    "share of the tensorised layers' at the start; parameters: live ones, with biases and gates; "
    "compilations: of the step, at most; size / S₀: tensorised layers, at most; "
    "status: what the optimiser says of (L₀, S₀) at the end, seeds each"
)
STEPS = (
    "Time of a training step with the shapes at the end, first seed: all methods of a task in "
    "turn, medians of {} rounds; stored: elements of all arrays"
)
CAPTION = (
    "Above: test score against parameters, a small point a seed, large ones their means, joined "
    "for each method. Below: TT-ranks of the first seed over the steps of CoMERA, each bond thin, "
    "their mean thick."
)
