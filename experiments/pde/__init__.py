"""Time-dependent equations in moving coordinates: ranks, errors and times; see README.md."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="pde",
        module="experiments.pde.main",
        paper="Dektor, Venturi, arXiv 2307.05914",
        summary="Liouville and Fokker-Planck equations: ranks in fixed and in moving coordinates",
        quick="80 s",
        packages=("matplotlib", "threadpoolctl"),
    ),
)
