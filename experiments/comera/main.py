"""Rank-adaptive tensor-compressed training beside dense, low-rank and GaLore training.

``python -m experiments run comera`` trains all methods on all tasks, prints a table a task, and
draws score against numbers and ranks over time. What is finished is kept in ``comera/store`` in
the folder of results: a run that was interrupted goes on where it stopped. README.md in this folder
says what is the paper's and what is not.

Source: Yang, Liu, Choudhary, Xie, Gao, Kunzmann, Zhang, "CoMERA: Computing- and Memory-Efficient
Training via Rank-Adaptive Tensor Optimization" (NeurIPS 2024), arXiv 2405.14377.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax

from experiments import Run
from experiments.comera import figure, planted, report, sizes, speed
from experiments.comera.board import Board
from experiments.comera.compare import Budget, Comparison, trainings
from experiments.comera.loading import NAMES as TASKS
from experiments.comera.loading import SETTINGS, load
from experiments.comera.methods import LATE, NAMES, Method, Options
from experiments.comera.store import Store
from experiments.comera.tasks import Scale, Task

Name = Literal["flights", "code", "pairs", "planted"]


@dataclass(frozen=True)
class Config:
    """Options; the defaults take hours on two CPU cores."""

    tasks: tuple[Name, ...] = ("flights", "code", "pairs", "planted")
    """What is learnt; "planted" is the recovery of planted ranks."""
    methods: tuple[Method, ...] = (
        "dense", "shrunk", "lowrank", "galore", "fixed", "early", "late", "importance",
    )  # fmt: skip
    """What is compared."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of every method."""
    rates: tuple[float, ...] | None = None
    """Learning rates that validation chooses from, for every method, if not those of the task."""
    targets: tuple[float, ...] = (0.8, 0.5, 0.2)
    """S₀ of the late stage, as shares of the size at the end of the early stage."""
    shares: tuple[float, ...] = (0.5, 0.2)
    """At which shares of its numbers the methods of equal size are trained once more."""
    scale: Scale = "default"
    """Models and data: "tiny", "default", or "published" sizes, which want an accelerator."""
    steps: int | None = None
    """Steps of every training, if not those of the task."""
    early: float | None = None
    """Share of the steps that are the early stage, if not that of the task."""
    evaluations: int | None = None
    """Evaluations of every training, if not those of the task."""
    criteo: Path | None = None
    """train.txt of the Criteo Kaggle data, in place of the flights."""
    codesearchnet: Path | None = None
    """Folder of CodeSearchNet's .jsonl files, in place of Python's standard library."""
    mnli: Path | None = None
    """Folder of MNLI's files, in place of the pairs from Python's standard library."""
    planted: int = 10
    """Seeds of the planted ranks."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints of a training."""

    def __post_init__(self) -> None:
        """Checks what would fail late."""
        for name in ("tasks", "methods", "seeds", "rates"):
            value = getattr(self, name)
            if value is not None and not value:
                raise ValueError(f"{name}: expected at least one, got none")
        if set(LATE) & set(self.methods) and not self.targets:
            raise ValueError("targets: expected at least one for the late stage, got none")
        early = () if self.early is None else (self.early,)
        shares = {"targets": self.targets, "shares": self.shares, "early": early}
        for name, values in shares.items():
            for value in values:
                if not 0 < value < 1:
                    raise ValueError(f"{name}: expected shares between 0 and 1, got {value}")
        if self.rates is not None and not all(rate > 0 for rate in self.rates):
            raise ValueError(f"rates: expected positive learning rates, got {self.rates}")
        if self.planted < 1:
            raise ValueError(f"planted: expected at least 1 seed, got {self.planted}")
        if self.steps is not None and self.steps < 2:
            raise ValueError(f"steps: expected at least 2, got {self.steps}")
        if self.evaluations is not None and self.evaluations < 2:
            raise ValueError(f"evaluations: expected at least 2, got {self.evaluations}")

    @classmethod
    def quick(cls) -> "Config":
        """Tiny models and data, one seed and one rate: all that there is, in two or three."""
        return cls(
            methods=("dense", "lowrank", "late"), seeds=(0,), rates=(3e-3,),
            targets=(0.5,), shares=(), scale="tiny", evaluations=3, planted=1,
        )  # fmt: skip

    def budget(self, name: str) -> Budget:
        """How much is trained of the task of a name."""
        setting = SETTINGS[name, self.scale]
        return Budget(
            methods=self.methods, seeds=self.seeds, targets=self.targets, shares=self.shares,
            rates=setting.rates if self.rates is None else self.rates, tuned_on=setting.tuned_on,
            evaluations=setting.evaluations if self.evaluations is None else self.evaluations,
            early=setting.options.early if self.early is None else self.early,
            checkpoint_seconds=self.checkpoint_seconds, hasty=self.scale == "tiny",
        )  # fmt: skip


def run(config: Config, run: Run) -> None:
    """Trains everything in single precision, then draws the figure."""
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
            run.figure("comera", figure.overview(found), caption=CAPTION)
        if "planted" in config.tasks:
            _planted(config, run)


def _planted(config: Config, run: Run) -> None:
    """Ranks of planted trains, found again."""
    wanted = (OURS,) if config.scale == "tiny" else planted.METHODS
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
    ours = found[OURS]
    good = sum(row["ratio"] <= 1.5 and row["error"] <= 0.01 for row in ours)
    run.metric("planted_found", good)
    run.metric("planted_seeds", len(ours))


def _record(run: Run, task: Task, options: Options, results: list[dict[str, Any]]) -> None:
    """The table and the metrics of a task."""
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


OURS = "surrogate, β"  # of the methods of `planted`, the one that is judged
PLANTED = (
    "Planted TT-ranks {}, started from {}, {} numbers: sizes found over it (median and largest), "
    "seeds within 1.5 × and error 1 %, seeds with exactly the planted ranks, largest relative "
    "error, Σ‖G‖² at its largest over the start"
)
TABLE = (
    "{}: test scores where validation ({}) is best, means over seeds and standard deviations [%]; "
    "“equal size”: at most 1/{:g} of the dense model's {} numbers, where a share follows, that "
    "share of the tensorised layers' at the start; numbers: live ones, biases and gates included; "
    "compilations: of the step, at most; size / S₀: tensorised layers, at most; "
    "status: what the optimiser says of (L₀, S₀) at the end, seeds each"
)
STEPS = (
    "Time of a training step with the shapes at the end, first seed: all methods of a task in "
    "turn, medians of {} rounds; stored: numbers in all arrays"
)
CAPTION = (
    "Above: test score against numbers, a small point a seed, large ones their means, those of a "
    "method joined. Below: TT-ranks of the first seed over the steps of CoMERA, each bond thin, "
    "their mean thick."
)
