"""Ranks, errors and times of time-dependent equations in fixed and in moving coordinates.

``python -m experiments run pde`` integrates Liouville and Fokker–Planck equations in 2 to 20
dimensions four times each: in fixed coordinates, in those of the convex problem (the paper's), of
the predecessor's flow, and of `pde.MultiLevel` (ours). README.md in this folder says what came out.

Paper: Dektor, Venturi, "Coordinate-adaptive integration of PDEs on tensor manifolds", arXiv
2307.05914; predecessor: "Tensor rank reduction via coordinate flows", arXiv 2207.11955. We know
abstract and introduction of the former and the abstract of the latter; problems, sizes and
tolerances are ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
from threadpoolctl import threadpool_limits

from experiments import Run
from experiments.pde import cases, figure, orders, prototype, solve, textbook
from experiments.pde.cases import Case
from experiments.pde.solve import Found
from tensorjax import pde


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults take some minutes on two CPU cores."""

    plane: tuple[str, ...] = cases.NAMES
    """P1 and P3 to P7 of the prototype, and a round Gaussian."""
    dims: tuple[int, ...] = (2, 3, 6, 10, 20)
    """Dimensions of the family P2."""
    bent: tuple[str, ...] = tuple(cases.BENT)
    """Densities that no linear map makes straight."""
    bent_tols: tuple[float, ...] = (1e-4,)
    """Their tolerances."""
    bent_steps: int = 32
    """Their time steps."""
    four: tuple[str, ...] = ("cyclic", "Hénon–Heiles")
    """Nonlinear problems in four dimensions."""
    four_tols: tuple[float, ...] = (1e-3, 1e-4)
    """Their tolerances."""
    four_steps: int = 80
    """Their time steps."""
    textbook: tuple[str, ...] = tuple(textbook.PROBLEMS)
    """Textbook problems on defaults, in fixed and in adaptive coordinates."""
    paths: int = 60_000
    """Paths of their references without closed form."""
    feedback: tuple[float, ...] = ()
    """Rates κ at which ours is tried on all problems, besides those that have their own."""
    all_tols: bool = True
    """Whether P1 to P7 are solved at all of their tolerances, or at one each."""
    order_steps: tuple[int, ...] = (20, 40, 80)
    """Numbers of time steps for orders of convergence, each twice the one before."""
    order_methods: int = len(orders.RUNS)
    """How many methods are tried for them, the classical one first."""
    difference_steps: int = 320
    """Time steps of runs in which nothing is truncated."""
    seconds: float = 40.0
    """A run is stopped after so much processor time, and measured where it is."""
    max_rank: int = 80
    """A run is stopped where its tolerance asks for larger ranks."""

    def __post_init__(self) -> None:
        """Raises ValueError for options that would fail late in a run."""
        for name, known in (
            ("plane", cases.NAMES),
            ("bent", tuple(cases.BENT)),
            ("four", ("cyclic", "Hénon–Heiles")),
            ("textbook", tuple(textbook.PROBLEMS)),
        ):
            unknown = set(getattr(self, name)) - set(known)
            if unknown:
                raise ValueError(f"{name}: expected some of {known}, got {sorted(unknown)}")
        if not (self.plane or self.dims or self.bent or self.four):
            raise ValueError("plane, dims, bent, four: expected at least one problem, got none")
        if any(d < 2 for d in self.dims):
            raise ValueError(f"dims: expected at least 2 each, got {self.dims}")
        pairs = zip(self.order_steps, self.order_steps[1:], strict=False)
        if any(b != 2 * a for a, b in pairs):
            raise ValueError(f"order_steps: expected each twice the last, got {self.order_steps}")
        if not self.seconds > 0:
            raise ValueError(f"seconds: expected a positive time, got {self.seconds}")

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: one tolerance a problem, up to six dimensions.

        Left out are problems that take longer than a quick run may: P4, P5, ten dimensions, and
        the nonlinear ones in four.
        """
        return cls(
            plane=("P1", "P3", "P6", "P7", "round"),
            dims=(2, 6),
            bent=("banana",),
            bent_tols=(1e-3,),
            bent_steps=12,
            four=(),
            all_tols=False,
            order_steps=(20, 40),
            order_methods=3,
            difference_steps=80,
            seconds=3.5,
            max_rank=60,
            textbook=("near-defective", "pendulum in a bath"),
            paths=10_000,
        )


def run(config: Config, run: Run) -> None:
    """Solves all equations of the experiment, then draws the figures.

    In double precision: steps always are, but the states that come back have JAX's default. The
    matrices are small: on several threads BLAS takes twice the processor time, and no less time.
    """
    with jax.enable_x64(True), threadpool_limits(1):
        _run(config, run)


def _run(config: Config, run: Run) -> None:
    plane = cases.plane(config.plane, quick=not config.all_tols)
    groups = {
        "plane": (plane, PLANE, prototype.PLANE),
        "family": (cases.family(config.dims, 1e-6), FAMILY, prototype.FAMILY),
        "bent": (cases.bent(config.bent, config.bent_tols, config.bent_steps), BENT, []),
        "four": (cases.four(config.four, config.four_tols, config.four_steps), FOUR, []),
    }
    found: list[Found] = []
    for name, (group, caption, published) in groups.items():
        if not group:
            continue
        group = [replace(c, kappa=tuple(sorted({*c.kappa, *config.feedback}))) for c in group]
        runs = list(_solved(config, run, group, name))
        rows = [_wider(solve.row(r), r) if name == "family" else solve.row(r) for r in runs]
        run.table(
            name,
            rows,
            caption=caption,
            key=["problem", "tol", "coordinates"],
            paper=prototype.of(published, rows),
            source="prototype",
        )
        found += runs
    _textbook(config, run)
    _orders(config, run)
    _metrics(run, found)
    run.figure("ranks", figure.ranks(found), caption=RANKS)
    run.figure("frames", figure.frames(found), caption=FRAMES)
    run.compare(*_outcome(found))


def _outcome(found: list[Found]) -> tuple[str, bool | None]:
    """Compares final ranks in fixed and in moving coordinates, over all problems."""
    pairs: dict[tuple[str, float], dict[str, int]] = {}
    for r in found:
        kind = "ours" if r.coordinates.startswith("ours") else r.coordinates
        if kind in ("ours", "fixed") and bool(r.solution.result):
            name = (r.case.name, r.case.tol)
            pairs.setdefault(name, {})[kind] = int(r.solution.stats["rank"][-1])
    both = [(ranks["fixed"], ranks["ours"]) for ranks in pairs.values() if len(ranks) == 2]
    if not both:
        return "no problem ended in both coordinates", None
    lower, higher = sum(b < a for a, b in both), sum(b > a for a, b in both)
    fixed, ours = max(both, key=lambda ranks: ranks[0] / ranks[1])
    said = (
        f"rank at the end lower on {lower} and higher on {higher} of {len(both)} problems, "
        f"at best {ours} in place of {fixed}"
    )
    return said, lower > 0 and not higher


def _solved(config: Config, run: Run, group: list[Case], name: str) -> Iterator[Found]:
    """Yields all runs of a group of cases, with errors.

    Those without an exact solution are compared with one at a finer tolerance.
    """
    for case in run.progress(group, name):
        runs = [
            solve.solved(case, words, generator, config.seconds, config.max_rank)
            for words, generator in solve.movements(case).items()
        ]
        if case.reference is not None:
            runs = solve.compared(runs, _REFERENCE * config.seconds, 2 * config.max_rank)
        for r in runs:
            run.console.print(f"{case.name}, {r.coordinates}: {r.solution}, {r.seconds:.1f} s")
        yield from runs


def _wider(row: dict[str, Any], run: Found) -> dict[str, Any]:
    """Adds to a row the rank that fixed coordinates need at the end, in closed form."""
    problem, t1 = run.case.problem, run.case.t1
    assert isinstance(problem, pde.OrnsteinUhlenbeck)
    assert isinstance(problem.start, pde.Gaussian)
    end = problem.start.moved(problem.flow(t1))
    closed = max(end.ranks(run.case.tol)) if run.coordinates == "fixed" else None
    return {**row, "closed form": closed}


def _textbook(config: Config, run: Run) -> None:
    if not config.textbook:
        return
    rows = []
    for row in textbook.rows(config.textbook, config.seconds, config.paths):
        run.console.print(f"{row['problem']}, {row['coordinates']}: {row['status']}")
        rows.append(row)
    run.table("textbook", rows, caption=TEXTBOOK, key=["problem", "coordinates"])
    done = sum(row["status"] == "successful" for row in rows)
    run.metric("textbook_successful", done)
    run.metric("textbook_runs", len(rows))


def _orders(config: Config, run: Run) -> None:
    rows = orders.rows(orders.RUNS[: config.order_methods], config.order_steps)
    run.table("orders", rows, caption=ORDERS, key=["method", "coordinates", "steps"])
    run.table("differences", orders.differences(config.difference_steps), caption=DIFFERENCES)
    fourth = [r["order"] for r in rows if r["method"] == "rk4" and r["order"] is not None]
    run.metric("rk4_order_lowest", min(fourth, default=None))
    run.metric("rk4_order_highest", max(fourth, default=None))


def _metrics(run: Run, found: list[Found]) -> None:
    """Records rank, error and time of each problem in moving coordinates."""
    for r in found:
        if r.coordinates.startswith("ours") and len(r.solution.stats["t"]):
            name = f"{r.case.name} {r.case.tol:g} {r.coordinates}"
            name = "".join(c if c.isalnum() or c == "-" else "_" for c in name)
            run.metric(f"rank_{name}", int(r.solution.stats["rank"][-1]))
            if r.error is not None:
                run.metric(f"error_{name}", r.error)
            run.metric(f"seconds_{name}", r.seconds)
    run.metric("programs", max(int(r.solution.stats["compilations"].sum()) for r in found))


# What a run that others are measured against may take, in units of theirs.
_REFERENCE = 4
COLUMNS = (
    "Rank: largest of any bond at the end; largest: at any time. Error: relative l2 at points "
    "drawn from the exact density at the last time. Edge: share of ‖v‖ at the edge of the box, at "
    "most. Programs: compiled by XLA. Until: where a run did not come to its end, when and why"
)
PLANE = f"P1, P3 to P7 and a round Gaussian. {COLUMNS}"
FAMILY = f"P2, an Ornstein–Uhlenbeck process in d dimensions. {COLUMNS}. Closed form: of rank"
BENT = (
    f"Densities that bend. {COLUMNS}. Errors with noise are distances from fixed coordinates at a "
    "tenth of the tolerance"
)
FOUR = (
    f"Nonlinear problems in four dimensions. {COLUMNS}. “cyclic” has no exact solution: its errors "
    "are distances from fixed coordinates at a tenth of the tolerance"
)
TEXTBOOK = (
    "Textbook problems on defaults. Mean, covariance: largest error, in standard deviations, "
    "beside closed forms or paths. Density: relative l2 error at points drawn from it, where it is "
    "known. Seconds: of processor time"
)
ORDERS = "Errors in time alone, and orders from one number of steps to twice as many"
DIFFERENCES = "Relative differences of what should be equal"
RANKS = "Largest TT-rank over time, in fixed coordinates and in those that move."
FRAMES = (
    "Marginal densities of two coordinates as time goes on, with lines of constant y: of the "
    "physical coordinates (top), and of the coordinates that move (bottom)."
)
