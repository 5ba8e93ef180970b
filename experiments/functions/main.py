"""Drawn functions by cross approximation, an integral, and a function in patches.

``python -m experiments run functions`` draws the parameters of a table of functions (`drawn.py`),
approximates each by `tt.cross` with several keys and by the peers that are installed, and measures
the true errors. README.md in this folder says what came out.

Source of the integral: Y. Núñez Fernández et al., "Learning tensor networks with tensor cross
interpolation: new algorithms and libraries", SciPost Phys. 18, 104 (2025), section on integrals:
−5.49604152 with 21 nodes in each of ten dimensions, as published.
"""

import statistics
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from experiments import Run
from experiments.functions import crosses, figure
from experiments.functions.crosses import Result, Way
from experiments.functions.drawn import Function, table
from tensorjax import tt

# The integral as published.
PUBLISHED = -5.49604152
# A train is good up to so many times the tolerance; false if "converged" above the other.
_GOOD, _FALSE = 3, 10


@dataclass(frozen=True)
class Config:
    """Options; the defaults take some minutes on two CPU cores."""

    seed: int = 2026
    """Seed from which the parameters of the functions are drawn."""
    only: tuple[str, ...] = ()
    """Parts of names of functions to run; all if none."""
    keys: int = 12
    """Keys of `tt.cross` for each function."""
    peer_seeds: int = 3
    """Seeds of the peers for each function."""
    most: int = 400_000
    """Evaluations of a function that any library may take."""
    peers: bool = True
    """Whether to run the peers that are installed."""
    tol: float = 1e-8
    """Relative error asked of the integral."""

    def __post_init__(self) -> None:
        """Checks what would fail late."""
        for name in ("keys", "peer_seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least one, got {getattr(self, name)}")
        if self.only and not any(o in f.name for f in table(self.seed) for o in self.only):
            names = ", ".join(f.name for f in table(self.seed))
            raise ValueError(f"only: expected parts of {names}; got {self.only}")
        if self.most < 1000:
            raise ValueError(f"most: expected at least 1000 evaluations, got {self.most}")

    @classmethod
    def quick(cls) -> "Config":
        """All functions with one key, without peers."""
        return cls(keys=1, peers=False, most=50_000, tol=1e-7)


def run(config: Config, run: Run) -> None:
    """Measures all of it in double precision, then draws the figures."""
    with jax.enable_x64(True):
        ways = crosses.ways() if config.peers else {"tensorjax": crosses.ours}
        rows: list[dict[str, Any]] = []
        functions = [
            f
            for f in table(config.seed)
            if not config.only or any(o in f.name for o in config.only)
        ]
        for function in run.progress(functions, "functions"):
            rows += [_row(config, function, name, way) for name, way in ways.items()]
        run.table("crosses", rows, caption=CROSSES.format(config.seed), key=["function", "library"])
        mine = [row for row in rows if row["library"] == "tensorjax"]
        run.metric("functions", len(mine))
        run.metric("good", sum(row["good"] == row["runs"] for row in mine))
        run.metric("falsely_converged", sum(row["falsely converged"] for row in mine))
        run.metric("raised", sum(row["raised"] for row in mine))
        run.figure("functions", figure.overview(rows), caption=OVERVIEW)
        value, evaluations = _integral(config)
        run.metric("integral", value)
        run.metric("integral_evaluations", evaluations)
        drawing, patches = figure.patched(config.seed)
        run.metric("patches", patches)
        run.figure("patches", drawing, caption=PATCHES)
    wrong = abs(value - PUBLISHED)
    run.compare(f"{value:.9f}, {wrong:.0e} from the published digits", wrong < 1e-8)


def _row(config: Config, function: Function, name: str, way: Way) -> dict[str, Any]:
    """Approximates one function several times by one library."""
    runs = config.keys if name == "tensorjax" else config.peer_seeds
    results = [
        crosses.call(way, function.of_index, function.shape, function.tol, seed, config.most)
        for seed in range(runs)
    ]
    errors = [_error(function, r, seed) for seed, r in enumerate(results)]
    good = [e <= _GOOD * function.tol for e in errors]
    claimed = [r.status == "converged" for r in results]
    false = [c and e > _FALSE * function.tol for c, e in zip(claimed, errors, strict=True)]
    spent = [r.evaluations for r, g in zip(results, good, strict=True) if g]
    held = [max(c.shape[0] for c in r.cores) for r in results if r.cores is not None]
    statuses = sorted({r.status for r in results if r.status})
    return {
        "function": function.name,
        "library": name,
        "tol": function.tol,
        "runs": runs,
        "good": sum(good),
        "falsely converged": sum(false),
        "raised": sum(r.cores is None and r.status != "TooMany" for r in results),
        "evaluations": int(statistics.median(spent)) if spent else None,
        "median error": float(np.median(errors)),
        "worst error": max(errors),
        "rank": max(held, default=None),
        "status": ", ".join(statuses),
    }


def _error(function: Function, result: Result, seed: int) -> float:
    if result.cores is None:
        return float("inf")
    cores = result.cores
    return function.true_error(lambda index: crosses.values(cores, index), seed)


def _integral(config: Config) -> tuple[float, int]:
    """The integral over ten variables, and its evaluations."""

    def f(x: np.ndarray) -> np.ndarray:
        return 1000 * np.cos(10 * (x**2).sum(axis=1)) * np.exp(-(x.sum(axis=1) ** 4) / 1000)

    value, info = tt.integrate(f, [(-1, 1)] * 10, tol=config.tol, rule="gauss-legendre", points=21)
    return float(np.real(value)), info.evaluations


CROSSES = (
    "Functions with parameters drawn from seed {}. Good: true error at most 3 tol, measured where "
    "the function is large too. Falsely converged: status “converged”, true error above 10 tol. "
    "Evaluations: median of the good runs"
)
OVERVIEW = (
    "(a) Evaluations of the good runs. (b) Median true error over the tolerance; hollow: not good "
    "in all runs."
)
PATCHES = (
    "A drawn function with a ridge along a circle and a peak on 1024 × 1024 points, and the "
    "patches of `tt.patches.cross` at a relative error of 1e-3 and ranks up to 12, coloured by rank"
)
