"""Command line of the experiments: ``python -m experiments list | run NAME | report``."""

import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any

from experiments._process_settings import hasten
from experiments._registry import Experiment, UnknownExperimentError, discover, find, load

try:
    import tyro
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    from experiments import _plain_command

    sys.exit(_plain_command.main(sys.argv[1:], missing.name or str(missing)))

from experiments._report import write_report
from experiments._results import read_runs, record

PROG = "python -m experiments"
USAGE_ERROR = 2
INTERRUPTED = 130

Results = Annotated[Path, tyro.conf.arg(metavar="DIR")]
DEFAULT_RESULTS = Path("results")

console = Console(width=None if sys.stdout.isatty() else 120)
errors = Console(stderr=True, width=console.width, highlight=False)


def list_experiments(*, results: Results = DEFAULT_RESULTS) -> int:
    """Show every experiment, what it reproduces, and whether it has results.

    Args:
        results: Folder to look for results in.
    """
    table = Table()
    for column in ("name", "paper", "reproduces", "quick run", "results"):
        table.add_column(column)
    for experiment in discover().values():
        runs, _ = read_runs(results, experiment.name)
        last = f"{len(runs)}, last {runs[-1]['started'][:10]}" if runs else "none"
        cells = (experiment.name, experiment.paper, experiment.summary, experiment.quick, last)
        table.add_row(*map(Text, cells))
    console.print(table)
    return 0


def run_named(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    *,
    quick: bool = False,
    jobs: int = 1,
    results: Results = DEFAULT_RESULTS,
) -> int:
    """Run one experiment, or all of them, each in a process of its own.

    ``run NAME --help`` shows the options of that experiment.

    Args:
        name: An experiment of ``list``, or ``all`` but ``bench/device``, which is for accelerators.
        quick: Use the small configuration that takes seconds to a minute.
        jobs: With ``all``, how many run at a time; benchmarks run alone, unless quick.
        results: Folder to write results to.
    """
    if jobs < 1:
        return fail(f"--jobs: expected at least 1, got {jobs}", USAGE_ERROR)
    options = [*(["--quick"] if quick else []), "--results", str(results)]
    if name == "all":
        return run_all(options, jobs)
    return run_one(find(name), options)


def run_all(options: list[str], jobs: int) -> int:
    """Runs all experiments, each in its own process; returns the exit status."""
    found = [e for e in discover().values() if not e.by_name_only]
    quick = "--quick" in options  # whose times are not worth comparing
    together = [e for e in found if jobs > 1 and (quick or not e.alone)]
    apart = [e.name for e in found if e not in together]
    failed = []
    pool = ThreadPoolExecutor(jobs)
    # The longest begin first, so that none is left running alone at the end.
    queue = sorted(together, key=lambda e: e.quick_seconds, reverse=True)
    progress = Progress(queue, jobs, quick)
    ended = {e.name: pool.submit(run_quietly, e.name, options) for e in queue}
    for e in queue:
        ended[e.name].add_done_callback(lambda _, e=e: progress.note(e))
    try:
        for name in (e.name for e in together):
            console.rule(Text(name))
            status, said = ended[name].result()
            print(said, end="", flush=True)
            failed += [name] if status else []
    finally:
        pool.shutdown(cancel_futures=True)  # interrupted: nothing more is begun
    for name in apart:
        console.rule(Text(name))
        if subprocess.run(command(name, options), check=False).returncode:
            failed.append(name)
    return fail(f"failed: {', '.join(failed)}", 1) if failed else 0


class Progress:
    """Progress of `run all`: a line whenever an experiment ends, with the time left if quick.

    The time left follows from the durations that experiments declare for quick runs, and from the
    pace of those that have ended.
    """

    def __init__(self, queue: list[Experiment], jobs: int, quick: bool) -> None:
        self._left, self._jobs, self._quick = list(queue), jobs, quick
        self._all, self._begin = sum(e.quick_seconds for e in queue), time.perf_counter()
        if queue:
            about = f", about {self._minutes(self._all / jobs)}" if quick else ""
            errors.print(Text(f"{len(queue)} experiments, {jobs} at a time{about}"))

    def note(self, experiment: Experiment) -> None:
        """Prints a line about an experiment that has ended, and what is left."""
        self._left.remove(experiment)
        line = f"{experiment.name} has ended, {len(self._left)} left"
        if self._quick and self._left:
            rest = sum(e.quick_seconds for e in self._left)
            pace = (time.perf_counter() - self._begin) / max(self._all - rest, 1.0)
            line += f", about {self._minutes(pace * rest)}"
        errors.print(Text(line))

    @staticmethod
    def _minutes(seconds: float) -> str:
        return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def command(name: str, options: list[str]) -> list[str]:
    """Returns the command line that runs one experiment in a process of its own."""
    return [sys.executable, "-m", "experiments", "run", name, *options]


def run_quietly(name: str, options: list[str]) -> tuple[int, str]:
    """Runs an experiment in its own process; returns its exit status and captured output."""
    ended = subprocess.run(
        command(name, options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return ended.returncode, ended.stdout.decode(errors="replace")


def run_one(experiment: Experiment, options: list[str]) -> int:
    """Parses the options of an experiment, runs it and records what it finds."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    try:
        config_type, run = load(experiment)
    except ModuleNotFoundError as error:
        return fail(str(error), 1)
    try:
        config, quick, results = parse(experiment, config_type, options)
    except ValueError as error:
        return fail(str(error), USAGE_ERROR)
    console.print(Text(f"{experiment.name}: {experiment.summary} ({experiment.paper})", "bold"))
    start = time.perf_counter()
    try:
        with record(experiment, config, quick=quick, results=results, console=console) as recorder:
            run(config, recorder)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        return fail(f"{experiment.name} failed ({reason}); no result is written", 1)
    if recorder.discarded:
        console.print(Text(f"{recorder.discarded}: done, nothing is written here"))
        return 0
    for name, value in recorder.metrics.items():
        console.print(Text(f"{name}: {value}"))
    seconds = time.perf_counter() - start
    console.print(Text(f"{seconds:.1f} s, written to {results / experiment.name}", "green"))
    return 0


def parse(
    experiment: Experiment, config_type: type[Any], options: list[str]
) -> tuple[Any, bool, Path]:
    """Parses an experiment's options: returns configuration, whether quick, and results folder.

    The options of the experiment and the common ones share one help page. ``--quick`` changes
    the defaults, so any other option given with it is kept.
    """
    config = config_type.quick() if "--quick" in options else config_type()
    page = make_dataclass(
        "Options",
        [
            ("config", Annotated[config_type, tyro.conf.arg(name="")], config),
            ("quick", Annotated[bool, tyro.conf.arg(help="Start from the quick defaults.")], False),
            (
                "results",
                Annotated[Results, tyro.conf.arg(help="Folder of results.")],
                DEFAULT_RESULTS,
            ),
        ],
        frozen=True,
    )
    parsed = tyro.cli(
        page,
        args=options,
        prog=f"{PROG} run {experiment.name}",
        description=f"{experiment.summary}. Source: {experiment.paper}. "
        f"A quick run takes about {experiment.quick}.",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return parsed.config, parsed.quick, parsed.results


def report(*, results: Results = DEFAULT_RESULTS) -> int:
    """Gather the latest results in one page, as Markdown and HTML.

    Args:
        results: Folder of results; the page is written into it.
    """
    pages, faults = write_report(results)
    for fault in faults:
        errors.print(Text(fault, "yellow"))
    if not pages:
        return fail(f"no results in {results}; get some with: {PROG} run all --quick", 1)
    for page in pages:
        console.print(Text(f"report: {page.resolve()}"), soft_wrap=True)
    return 0


def main(arguments: list[str]) -> int:
    """Runs the command line and returns its exit status."""
    try:
        match arguments:
            case ["run", name, *options] if name != "all" and not name.startswith("-"):
                return run_one(find(name), options)
        return tyro.extras.subcommand_cli_from_dict(
            {"list": list_experiments, "run": run_named, "report": report},
            args=arguments,
            prog=PROG,
            description="Reproduce the published results of the toolkit.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except UnknownExperimentError as error:
        return fail(str(error), USAGE_ERROR)
    except KeyboardInterrupt:
        return fail("interrupted; no result is written", INTERRUPTED)


def hurried(arguments: list[str]) -> Experiment | None:
    """Returns the experiment if the arguments ask for one quick run, whose programs may be slower.

    None otherwise.
    """
    match arguments:
        case ["run", name, *options] if "--quick" in options:
            experiment = discover().get(name)
            if experiment is not None and (experiment.compiles or not experiment.alone):
                return experiment
    return None


def fail(message: str, status: int) -> int:
    """Prints an error message in red, and returns the exit status given."""
    errors.print(Text(message, "bold red"), soft_wrap=True)
    return status


if __name__ == "__main__":
    if (experiment := hurried(sys.argv[1:])) is not None:
        hasten(unoptimised=experiment.compiles)
    sys.exit(main(sys.argv[1:]))
