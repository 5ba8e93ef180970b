"""Time-dependent equations in moving coordinates: ranks, errors and times; see README.md."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="pde",
        title="PDEs in moving coordinates",
        module="experiments.pde.main",
        paper="Dektor, Venturi, arXiv 2307.05914",
        summary="Liouville and Fokker-Planck equations: ranks in fixed and in moving coordinates",
        claim="moving coordinates lower ranks (judged: never higher at the end, lower somewhere)",
        basis="abstract, introduction",
        quick="45 s",
        packages=("matplotlib", "threadpoolctl"),
    ),
)
