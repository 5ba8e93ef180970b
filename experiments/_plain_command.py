"""Command ``run NAME`` where tyro or rich are not installed: argparse, and tables as text.

For machines on which nothing can be installed: an experiment runs if its own imports are there.
"""

import argparse
import dataclasses
import sys
import traceback
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from experiments._registry import UnknownExperimentError, find, load
from experiments._results import PlainConsole, record

USAGE_ERROR = 2


def main(arguments: Sequence[str], missing: str) -> int:
    """Runs one experiment and returns the exit status.

    Args:
        arguments: Of the command line.
        missing: Package for want of which this is not the usual command line.
    """
    match arguments:
        case ["run", name, *options] if name != "all" and not name.startswith("-"):
            pass
        case _:
            return _fail(
                f"the experiments need the package '{missing}' for all but `run NAME`: "
                "pip install -c constraints.txt -e '.[experiments]'", 1
            )  # fmt: skip
    try:
        experiment = find(name)
    except UnknownExperimentError as error:
        return _fail(str(error), USAGE_ERROR)
    try:
        config_type, run = load(experiment)
    except ModuleNotFoundError as error:
        return _fail(str(error), 1)
    given = parser(config_type, f"python -m experiments run {name}").parse_args(options)
    results, quick = given.results, given.quick
    try:
        config = made(config_type, given)
    except ValueError as error:
        return _fail(str(error), USAGE_ERROR)
    console = PlainConsole()
    console.print(f"{experiment.name}: {experiment.summary} (without '{missing}')")
    try:
        with record(experiment, config, quick=quick, results=results, console=console) as recorder:
            run(config, recorder)
    except KeyboardInterrupt:
        return _fail("interrupted; no result is written", 130)
    except Exception as error:
        traceback.print_exc()
        return _fail(f"{name} failed ({type(error).__name__}: {error}); no result is written", 1)
    for metric, value in recorder.metrics.items():
        console.print(f"{metric}: {value}")
    return 0


def parser(config_type: type[Any], prog: str) -> argparse.ArgumentParser:
    """Builds an argparse parser for an experiment's configuration and the common options."""
    found = argparse.ArgumentParser(prog=prog, description=config_type.__doc__)
    found.add_argument("--quick", action="store_true", help="Start from the quick defaults.")
    found.add_argument("--results", type=Path, default=Path("results"), help="Folder of results.")
    hints = typing.get_type_hints(config_type)
    for field in dataclasses.fields(config_type):
        option, hint = f"--{field.name.replace('_', '-')}", _bare(hints[field.name])
        known: dict[str, Any] = {"dest": f"config.{field.name}", "default": None}
        if hint is bool:
            found.add_argument(option, action=argparse.BooleanOptionalAction, **known)
        elif get_origin(hint) is tuple:
            found.add_argument(option, nargs="*", **_values(get_args(hint)[0]), **known)
        else:
            found.add_argument(option, **_values(hint), **known)
    return found


def _bare(hint: Any) -> Any:
    """Returns the type in ``T | None``; other types are returned as they are."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (a for a in get_args(hint) if a is not type(None))
    return hint


def _values(hint: Any) -> dict[str, Any]:
    """Returns the argparse keywords, type and choices, for a value of a type."""
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint), "type": type(get_args(hint)[0])}
    return {"type": hint}


def made(config_type: type[Any], given: argparse.Namespace) -> Any:
    """Builds an experiment's configuration: quick or default, with the options given."""
    start = config_type.quick() if given.quick else config_type()
    changed = {}
    for field in dataclasses.fields(config_type):
        value = getattr(given, f"config.{field.name}")
        if value is not None:
            changed[field.name] = tuple(value) if isinstance(value, list) else value
    return dataclasses.replace(start, **changed)


def _fail(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status
