"""TT → Tucker and TT → MERA, with ranks found at a given error.

``python -m experiments run meracle`` prints the tables, the reference program's beside ours, and
draws the figure. README.md in this folder says what is the paper's and what is not.

Source: Batselier, Cichocki, Wong, "MERACLE: Constructive layer-wise conversion of a Tensor Train
into a MERA", arXiv 1912.09775.
"""

from dataclasses import dataclass

import jax

from experiments import Run
from experiments.meracle import chain, control, figure, heat, image, planted


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults take about a quarter of an hour on two CPU cores."""

    seed: int = 0
    """Seed of the planted MERAs, the random trains and the random starts."""
    seeds: int = 10
    """Planted MERAs for each case."""
    cases: tuple[tuple[int, int], ...] = ((3, 2), (4, 2), (6, 3), (8, 4))
    """Planted cases (n, r): 12 modes of size n, top legs of size r, two layers."""
    large: int = 1
    """Planted MERAs of the paper's own case, (10, 5); each takes minutes."""
    planted_tol: float = 1e-6
    """Relative error asked of the planted cases."""
    tols: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4)
    """Relative errors asked of the heat equation."""
    size: int = 256
    """Side of the image, a power of two."""
    image_tol: float = 0.1
    """Relative error asked of the image."""
    trains: int = 3
    """Random tensor trains for each case of the negative control."""
    timed: int = 5
    """Planted trains of each case in the comparison of speed."""
    turns: int = 5
    """Turns of TT → Tucker and rounding on the long train."""

    def __post_init__(self) -> None:
        """Raises ValueError for options that would fail late in a run."""
        for name in ("seeds", "trains", "timed", "turns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.size < 16 or self.size & (self.size - 1):
            raise ValueError(f"size: expected a power of two from 16 on, got {self.size}")

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: every table with fewer rows, within two minutes."""
        return cls(
            seeds=1, cases=((3, 2), (4, 2)), large=0, tols=(1e-1, 1e-2), size=64, trains=1, timed=1,
            turns=1,
        )  # fmt: skip


def run(config: Config, run: Run) -> None:
    """Measures all tables of the experiment in double precision, then draws the figure."""
    with jax.enable_x64(True):
        stored = heat.measure(run, config.tols)
        chain.measure(run, config.seed, config.turns)
        picture = image.measure(run, config.size, config.image_tol)
        found = planted.measure(
            run,
            cases=config.cases,
            seeds=config.seeds,
            large=config.large,
            timed=config.timed,
            tol=config.planted_tol,
            seed=config.seed,
        )
        control.measure(run, trains=config.trains, seed=config.seed)
    run.figure("meracle", figure.overview(stored, picture, found), caption=CAPTION)
    within = sum(one["error"] <= config.planted_tol for one in found)
    smaller = [one["found"] / one["TT"] for one in found]
    run.compare(
        f"{within} of {len(found)} planted MERAs within the tolerance, "
        f"{min(smaller):.2g} to {max(smaller):.2g} of their trains' sizes",
        within == len(found),
    )


CAPTION = (
    "(a) Entries stored against the true error, heat equation. (b) TT-ranks of a planted MERA's "
    "train, before and after each layer. (c) Entries found over entries planted, a point per seed. "
    "(d, e) An image and what the MERA keeps of it. (f) Its top tensor, as a matrix."
)
