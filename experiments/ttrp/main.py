"""Tensor-train random projection: distances, images, storage and time, structured inputs.

``python -m experiments run ttrp`` prints every table, with reference values where there are some,
and draws them in one figure. README.md in this folder says what is the paper's and what is not.

Source: Feng, Tang, He, Zhou, Liao, "Tensor Train Random Projection", arXiv 2010.10797.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import Run
from experiments.ttrp import data, distances, figure, images, scaling, structured
from experiments.ttrp.methods import GAUSSIAN, TTRP


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults take some minutes on two CPU cores."""

    data: Path | None = None
    """Images in Keras' layout: an .npz file with x_train, y_train, x_test and y_test, such as
    mnist.npz. Without it, scikit-learn's bundled digits (8×8) stand in."""
    openml: bool = False
    """Fetch MNIST from OpenML by scikit-learn instead; needs the network."""
    seed: int = 0
    """Seed of the points, of the choice of images and of every map."""
    draws: int = 100
    """Draws of each map for the distance ratios; the paper has 100."""
    points: int = 10
    """Points, or images, whose pairwise distances are compared; the paper has 10."""
    sizes: tuple[int, ...] = (2500, 10_000)
    """Sizes N of the Gaussian points."""
    rows: tuple[int, ...] = (4, 8, 12, 24, 48, 96)
    """Output sizes M for the Gaussian points; the paper's table has 24."""
    sides: tuple[int, ...] = (2, 3, 4, 6, 8, 10, 12)
    """Sides of the projected images, M = side²; those not below the image's own are left out."""
    train_size: int = 10_000
    """Images to train the classifier on, at most."""
    test_size: int = 2_000
    """Images to test it on, at most."""
    classified: int = 5
    """Draws of each map with which images are classified."""
    dense_sizes: tuple[int, ...] = (10**3, 10**4, 10**5, 10**6, 10**7)
    """Sizes N of the dense inputs that are timed."""
    batch: int = 8
    """Dense inputs projected together when timed."""
    repeats: int = 15
    """Calls of which the median time is reported."""
    largest_map: float = 1.0
    """Largest map that is timed, in GiB."""
    orders: tuple[int, ...] = (2, 3, 4, 6, 8, 10)
    """Orders d of the tensor trains that are timed, N = 1000^d."""
    train_draws: int = 1000
    """Draws for the distance of two tensor trains at the largest N."""
    rank_one_rows: int = 64
    """Output size M for rank-one inputs; every d with M = m^d is run."""
    numbers: int = 100_000_000
    """Random numbers drawn to sample one variance at rank-one inputs."""
    every_map: bool = True
    """Sample every map at rank-one inputs, not only four of them."""

    def __post_init__(self) -> None:
        """Raises ValueError for options that would fail late, or silently give nothing."""
        if self.data is not None and self.openml:
            raise ValueError("data, openml: expected one source of images, got both")
        for name in ("classified", "repeats", "train_size", "test_size", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("draws", "points", "train_draws"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name}: expected at least 2, got {getattr(self, name)}")
        if self.points > self.test_size or self.classified > self.draws:
            raise ValueError(
                "expected points <= test_size and classified <= draws, got "
                f"{self.points} and {self.test_size}, {self.classified} and {self.draws}"
            )

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: every table with fewer rows, within a minute."""
        return cls(
            sizes=(10_000,),
            rows=(8, 24),
            sides=(2, 4, 6),
            train_size=2_000,
            test_size=500,
            classified=3,
            dense_sizes=(10**3, 10**4, 10**5),
            orders=(2, 10),
            train_draws=100,
            rank_one_rows=16,
            numbers=2_000_000,
            every_map=False,
        )


def run(config: Config, run: Run) -> None:
    """Measures all tables of the experiment, then draws the figure."""
    seed, draws, points = config.seed, config.draws, config.points
    # The data come first: a file that does not fit should not cost minutes.
    pictures = data.load(config.data, openml=config.openml)
    pictures = pictures.sample(config.train_size, config.test_size, seed)
    measured = distances.measure(
        run, sizes=config.sizes, rows=config.rows, points=points, draws=draws, seed=seed
    )
    projected = images.measure(
        run,
        pictures,
        sides=config.sides,
        points=points,
        draws=draws,
        classified=config.classified,
        seed=seed,
    )
    dense = scaling.dense(
        run,
        sizes=config.dense_sizes,
        batch=config.batch,
        repeats=config.repeats,
        largest_map=config.largest_map,
        seed=seed,
    )
    trains = scaling.trains(
        run, orders=config.orders, repeats=config.repeats, draws=config.train_draws, seed=seed
    )
    sampled = structured.measure(
        run,
        methods=structured.METHODS if config.every_map else structured.FEW_METHODS,
        rows=config.rank_one_rows,
        numbers=config.numbers,
        seed=seed,
    )
    panels = figure.overview(measured, projected, dense, trains, sampled, data=pictures.name)
    run.figure("ttrp", panels, caption=CAPTION)
    run.compare(*outcome(measured))


def outcome(measured: list[dict[str, Any]]) -> tuple[str, bool | None]:
    """Compares variance and storage at the largest N and M with a Gaussian map's.

    Returns a sentence, and whether the claim holds there.
    """
    n, m = max((row["N"], row["M"]) for row in measured)
    by_name = {row["method"]: row for row in measured if (row["N"], row["M"]) == (n, m)}
    if not {TTRP.name, GAUSSIAN.name} <= by_name.keys():
        return "not measured beside a Gaussian map", None
    ours, dense = by_name[TTRP.name], by_name[GAUSSIAN.name]
    said = (
        f"N = {n:,}, M = {m}: variance {ours['variance']:.2g} from {ours['storage']:,} entries; "
        f"of a Gaussian map {dense['variance']:.2g} from {dense['storage']:,}"
    )
    near = ours["variance"] <= 2 * dense["variance"]
    return said, bool(near and ours["storage"] < dense["storage"])


CAPTION = (
    "(a) Variance of the mean distance ratio. (b, c) Accuracy of a nearest-neighbour classifier on "
    "projected images, against output size and against storage. (d, e) Storage and time against N. "
    "(f) Variance of ‖f(x)‖² at rank-one inputs: sampled (points) and exact (lines)."
)
