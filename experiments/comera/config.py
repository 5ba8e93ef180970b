"""Options of the experiment `comera` on the command line, and budgets derived from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.comera.compare import Budget
from experiments.comera.methods import LATE, Method
from experiments.comera.settings import SETTINGS
from experiments.comera.tasks import Scale

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
