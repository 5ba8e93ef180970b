"""TT → Tucker and TT → MERA: planted networks, a heat equation, an image; see README.md."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="meracle",
        title="MERACLE: tensor train to MERA",
        module="experiments.meracle.main",
        paper="Batselier, Cichocki, Wong, arXiv 1912.09775",
        summary="TT to Tucker and MERA: a heat equation, an image, planted MERAs, random trains",
        claim="a tensor train becomes a MERA layer by layer, within the error asked",
        basis="authors' program",
        quick="50 s",
        compiles=True,
        packages=("scikit-learn", "matplotlib"),
    ),
)
