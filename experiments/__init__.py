"""Experiments: every published result of the toolkit, reproduced by one command.

Run from the root of the repository::

    python -m experiments list
    python -m experiments run ttrp --quick
    python -m experiments report

An experiment is a folder of this package. Its ``__init__.py`` only describes it, so that
``list`` imports nothing heavy::

    from experiments import Experiment

    EXPERIMENTS = (
        Experiment(
            name="ttrp",
            title="Random projections",
            module="experiments.ttrp.distances",
            paper="Feng et al., arXiv 2010.10797",
            summary="mean and variance of pairwise-distance ratios (Table 1)",
            claim="the mean ratio is near one (judged: within 5 %)",
            basis="abstract",
            quick="20 s",
        ),
    )

The module it names holds the options and the work::

    @dataclass(frozen=True)
    class Config:
        draws: int = 100
        \"\"\"Independent projections per method.\"\"\"

        @classmethod
        def quick(cls) -> "Config":
            return cls(draws=10)

    def run(config: Config, run: Run) -> None:
        rows = [measure(method, config.draws) for method in run.progress(METHODS, "methods")]
        run.table("ratios", rows, key=["method"], paper=[{"method": "Gaussian", "mean": 0.989}])
        run.figure("variance", plot(rows))
        run.metric("mean", rows[0]["mean"])
        run.compare(f"mean {rows[0]['mean']:.3f}", abs(rows[0]["mean"] - 1) <= 0.05)

``claim`` and what `Run.compare` records beside it head the report; a benchmark has no claim.
Every field of ``Config`` becomes a command-line option, with its docstring as the help and
the value of ``Config()``, or of ``Config.quick()`` under ``--quick``, as the default. A
folder may hold several experiments, named ``folder/part``: one entry of ``EXPERIMENTS`` each.
"""

from experiments._registry import Experiment
from experiments._results import Run

__all__ = ["Experiment", "Run"]
