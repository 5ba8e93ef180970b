"""Times core operations of the toolkit and its peers on the same work, by turns.

Source: none; our own measurement. Run it on a quiet machine with the peers installed::

    python -m experiments run bench/core

It takes about 40 minutes on two CPU cores. See README.md in this folder for what is measured and
how, and what is expected.
"""

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from experiments import Run
from experiments._process_settings import keep_memory
from experiments.bench import _shapes, _timing, _verdicts
from experiments.bench._cases import GROUPS, SMALL, Case, Sizes, max_rank
from experiments.bench._library import Library, Unsupported
from experiments.bench._peers import load
from experiments.bench._timing import Sized
from experiments.bench._verdicts import Result, Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Group = Literal["svd", "rounding", "arithmetic", "projection", "ranks", "shapes"]
TABLES = {
    "svd": ("tt_svd", "TT-SVD of dense tensors, float64, tol 1e-6"),
    "rounding": ("rounding", "Rounding of tensor trains, float64"),
    "arithmetic": ("arithmetic", "Arithmetic of tensor trains, float64"),
    "projection": ("projection", "Projection of dense rows, float32"),
    "ranks": ("changing_ranks", "A sweep whose ranks change at every step, from a cold start"),
}


@dataclass(frozen=True)
class Config(Sized):
    """Options of the benchmark `bench/core`."""

    only: tuple[Group, ...] = ("svd", "rounding", "arithmetic", "projection", "ranks")
    """Groups of cases to run."""

    skip: tuple[str, ...] = ()
    """Peers to leave out, by name."""

    seed: int = 0
    """Seed of all inputs. For "shapes", 0 to 99 are for choosing constants, others for reports."""

    shapes: int = 60
    """Arrays drawn for "shapes"."""

    seconds: float = 780.0
    """Time for "shapes", after which no further case is begun."""

    clock: Literal["wall", "cpu"] = "wall"
    """Clock of "shapes": seconds passed, or those of all threads of the process."""

    largest: float = 3e7
    """Most entries of the arrays drawn for "shapes"."""

    keep_memory: bool = False
    """Have glibc's malloc keep what is freed, for all competitors alike."""

    @classmethod
    def quick(cls) -> "Config":
        return cls(only=(*cls.only, "shapes"), repeats=3, small=True, shapes=2)


def run(config: Config, run: Run) -> None:
    """Times all groups asked for; writes their tables, the targets and a figure."""
    if config.keep_memory:
        keep_memory()
    libraries, peers = load(config.skip)
    run.table("peers", peers, caption="Peers: versions, and which are missing")
    sizes = SMALL if config.small else Sizes()
    found: list[Target] = []
    least: list[dict[str, Any]] = []
    with double_precision():
        for group in config.only:
            if group == "shapes":
                run_shapes(config, run, [library for library in libraries if library.peer])
                continue
            cases = GROUPS[group](sizes, np.random.default_rng(config.seed))
            rows = []
            for case in run.progress(cases, group):
                results = _verdicts.judge(case, measure(case, libraries, config.repeats))
                rows += _verdicts.rows(case, results)
                found += _verdicts.targets(case, results)
                if case.bytes:
                    least.append(_verdicts.work(case, results))
            name, caption = TABLES[group]
            run.table(name, rows, caption=caption)
    if least:
        run.table("work", least, caption="The least work of each case, and the rate of ours")
    if not found:
        return
    caption = "Goals: speed-up over the other at least, or time of ours over its at most"
    run.table("targets", [t.row() for t in found], caption=caption)
    run.figure(
        "ratios",
        plot(found),
        caption="Speed-up over the other: right of 1 ours is faster; | marks the goal",
    )
    for name, value in _verdicts.summary(found).items():
        run.metric(name, value)


def run_shapes(config: Config, run: Run, peers: Sequence[Library]) -> None:
    """Times drawn shapes beside NumPy and peers; writes a table of cases and one of ratios."""
    rng = np.random.default_rng(config.seed)
    # A trial shows that it runs: each peer would add its own conversions and compilations.
    largest, peers = (3e5, ()) if config.small else (config.largest, peers)
    jobs = _shapes.jobs(rng, config.shapes, largest, peers)
    rows, end = [], time.monotonic() + config.seconds
    for job in run.progress(jobs, "shapes"):
        if time.monotonic() > end:
            print(f"shapes: ended after {len(rows)} cases and {config.seconds:.0f} s", flush=True)
            break
        rows.append(job.run(_shapes.CLOCKS[config.clock], idle=not config.small))
    run.table("shapes", rows, caption="Drawn shapes: ours beside the fastest accurate way")
    totals = _shapes.summary(rows)
    run.table(
        "shapes_summary",
        totals,
        caption="Drawn shapes: speed-up over the fastest of NumPy and the peers",
    )
    for total in totals:
        run.metric(f"{total['group']}: median of ours / other", total["median"])
        run.metric(f"{total['group']}: worst of ours / other", total["worst"])
    medians = ", ".join(f"{total['group']} {total['median speed-up']:.2g}" for total in totals)
    run.compare(f"median speed-up over the fastest of the others on drawn shapes: {medians}")


@contextmanager
def double_precision() -> Iterator[None]:
    """Context manager for 64-bit types in JAX and PyTorch, without a compilation cache."""
    torch = sys.modules.get("torch")
    wanted = {"jax_enable_x64": True, "jax_enable_compilation_cache": False}
    before = {name: getattr(jax.config, name) for name in wanted}
    torch_before = torch.get_default_dtype() if torch else None
    for name, value in wanted.items():
        jax.config.update(name, value)
    if torch:  # tntorch makes scalars of the default type
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        if torch:
            torch.set_default_dtype(torch_before)


def measure(case: Case, libraries: Sequence[Library], repeats: int) -> list[Result]:
    """Times a case by every library that can do it, by turns; returns the results."""
    jax.clear_caches()
    results: list[Result] = []
    timings: dict[int, list[_timing.Timing]] = {}
    for library in libraries:
        for variant, call in ways(case, library, results):
            result, lanes = begin(case, library, variant, call)
            timings[len(results)] = lanes
            results.append(result)
    _timing.interleave([t for lanes in timings.values() for t in lanes], repeats)
    for index, lanes in timings.items():
        settle(results[index], [t for t in lanes if not t.failure])
    gc.collect()
    return results


def ways(case: Case, library: Library, results: list[Result]) -> list[Any]:
    """Returns the calls by which a library does a case; a failure is recorded as a result."""
    operation = getattr(library, case.operation, None)
    if operation is None:
        return []
    try:
        return list(operation(**case.inputs))
    except Unsupported as reason:
        note = f"not run: {reason}"
    except Exception as error:  # of any peer, for any reason: the others go on
        if not library.peer:
            raise
        note = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:80]}"
    results.append(Result(library.name, "", library.peer, note=note))
    return []


def begin(
    case: Case, library: Library, variant: str, call: Any
) -> tuple[Result, list[_timing.Timing]]:
    """Makes the first call of one way with each thread setting; records time and error."""
    result = Result(library.name, variant, library.peer, library.compiled)
    lanes: list[_timing.Timing] = []
    for threads in thread_settings(library):
        before = jax.clear_caches if case.cold else None
        lane = _timing.Lane(library.name, variant, call, threads, before)
        timing, value = _timing.first_call(lane)
        lanes.append(timing)
        if timing.failure:
            if library.name == "tensorjax":
                raise RuntimeError(f"{case.name}: {timing.failure}")
            result.note = timing.failure
            break
        if len(lanes) == 1:
            result.first = timing.first
            check(case, library, value, result)
        if timing.first - timing.compiling > _timing.PATIENCE:
            break
    return result, lanes


def check(case: Case, library: Library, value: Any, result: Result) -> None:
    """Records the error and the rank of what a library returned."""
    try:
        plain = library.plain(value)
        if plain is not None:
            result.error, result.rank = case.error(plain), max_rank(plain)
    except Exception as error:
        if not library.peer:
            raise
        result.note = f"wrong result: {' '.join(str(error).split())[:80]}"


def thread_settings(library: Library) -> Sequence[int | None]:
    """Returns the numbers of threads that a library is tried with; None is its default."""
    every = _timing.cores()
    if library.threads == "default" or find_spec("threadpoolctl") is None:
        return (None,)
    return (1,) if library.threads == "one" or every == 1 else (1, every)


def settle(result: Result, lanes: Sequence[_timing.Timing]) -> None:
    """Records the time of the faster thread setting in a result."""
    if result.note or not lanes:
        return
    best = min(lanes, key=lambda t: t.median)
    result.median = best.median
    result.threads = "default" if best.lane.threads is None else str(best.lane.threads)
    programs = max(t.programs for t in lanes)
    result.programs = programs if programs or result.compiled else None


def plot(found: Sequence[Target]) -> "Figure":
    """Draws the ratios reached as bars on a logarithmic scale, one for each target."""
    from matplotlib.figure import Figure

    timed = [t for t in found if t.ratio is not None][::-1]
    figure = Figure(figsize=(9, 1.2 + 0.26 * max(len(timed), 1)))
    axes = figure.subplots()
    colours = {group: f"C{k}" for k, group in enumerate(TABLES)}
    for place, target in enumerate(timed):
        axes.barh(place, (target.ratio or 1.0) - 1, left=1, color=colours[target.group])
        axes.plot(target.wanted, place, "|", color="black", markersize=11, markeredgewidth=2)
    labels = [f"{t.case} : {t.fastest}" for t in timed]
    axes.set_yticks(range(len(timed)), labels, fontsize=7)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("speed-up of tensorjax over the other")
    axes.margins(y=0.01)
    return figure
