"""Registry of the experiments: found in their folders, imported only when they run."""

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Description of an experiment: name, module, paper, claim, packages; known without import.

    Attributes:
        name: What ``run`` is given: the folder, or ``folder/part``.
        title: What it is in a few words, the heading of its part of the report; the name if empty.
        module: Full name of the module that holds ``Config`` and ``run``.
        paper: Citation of the source, with its arXiv number where it has one.
        summary: What is reproduced: the table, the figure, the claim.
        claim: What the paper says that the run is compared with; empty for a benchmark.
        basis: What of the paper was read, such as ``"abstract"``; "recalled" is unverified.
        quick: Approximate duration of a quick run on two CPU cores, such as ``"20 s"``.
        extra: The extra of ``pyproject.toml`` that brings the packages it needs.
        packages: Distributions whose versions are recorded besides the usual ones.
        alone: Whether it compares times, so that ``run all`` runs nothing else beside it, unless
            quick.
        by_name_only: Whether ``run all`` leaves it out: it is for a machine that few have.
        compiles: Whether compiling takes most of a quick run, so that programs are not optimised.
    """

    name: str
    module: str
    paper: str
    summary: str
    quick: str
    title: str = ""
    claim: str = ""
    basis: str = ""
    extra: str = "experiments"
    packages: tuple[str, ...] = ()
    alone: bool = False
    by_name_only: bool = False
    compiles: bool = False

    @property
    def quick_seconds(self) -> float:
        """Seconds that a quick run takes, by which `run all` orders its queue.

        >>> Experiment(name="a", module="", paper="", summary="", quick="20 s").quick_seconds
        20.0
        """
        return float(self.quick.removesuffix(" s"))


class UnknownExperimentError(LookupError):
    """Raised if no experiment has the name asked for; the message lists those known."""


def discover() -> dict[str, Experiment]:
    """Returns every experiment by name, in alphabetical order.

    Raises:
        ValueError: If two experiments share a name, or one is not named after its folder.
    """
    package = importlib.import_module("experiments")
    found: dict[str, Experiment] = {}
    for folder in pkgutil.iter_modules(package.__path__):
        if not folder.ispkg:
            continue
        declared = importlib.import_module(f"experiments.{folder.name}")
        for experiment in getattr(declared, "EXPERIMENTS", ()):
            if experiment.name.split("/")[0] != folder.name or experiment.name in found:
                raise ValueError(
                    f"experiments/{folder.name}: expected names '{folder.name}' or "
                    f"'{folder.name}/part', each once, got '{experiment.name}'"
                )
            found[experiment.name] = experiment
    return dict(sorted(found.items()))


def find(name: str) -> Experiment:
    """Returns the experiment called ``name``.

    Raises:
        UnknownExperimentError: If there is none; the message gives the closest match.
    """
    known = discover()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise UnknownExperimentError(
        f"no experiment is named '{name}'; {hint}known: {', '.join(known) or 'none'}"
    )


def load(experiment: Experiment) -> tuple[type[Any], Callable[..., object]]:
    """Imports an experiment and returns its ``Config`` and its ``run``.

    Raises:
        ModuleNotFoundError: If a package it needs is missing; the message says how to get it.
        TypeError: If its module lacks ``Config``, ``Config.quick`` or ``run``.
    """
    try:
        module: ModuleType = importlib.import_module(experiment.module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("experiments", "tensorjax"):
            raise
        raise ModuleNotFoundError(
            f"{experiment.name} needs the package '{error.name}': "
            f"pip install -c constraints.txt -e '.[{experiment.extra}]'",
            name=error.name,
        ) from error
    config, run = getattr(module, "Config", None), getattr(module, "run", None)
    if not (isinstance(config, type) and hasattr(config, "quick") and callable(run)):
        raise TypeError(
            f"{experiment.module}: expected a dataclass Config with a classmethod quick(), "
            "and a function run(config, run)"
        )
    return config, run
