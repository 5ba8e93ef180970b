"""TT → Tucker and TT → MERA: planted networks, a heat equation, an image; see README.md."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="meracle",
        module="experiments.meracle.main",
        paper="Batselier, Cichocki, Wong, arXiv 1912.09775",
        summary="TT to Tucker and MERA: a heat equation, an image, planted MERAs, random trains",
        quick="60 s",
        compiles=True,
        packages=("scikit-learn", "matplotlib"),
    ),
)
