"""Data, sizes and steps of every task at every scale."""

from dataclasses import replace
from typing import Any, NamedTuple

from experiments.comera.data import flights
from experiments.comera.methods import Options
from experiments.comera.tasks import Scale

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
