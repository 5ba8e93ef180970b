"""Tensor-train random projection against its comparators; see README.md in this folder."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="ttrp",
        title="TTRP: tensor-train random projection",
        module="experiments.ttrp.main",
        paper="Feng, Tang, He, Zhou, Liao, arXiv 2010.10797",
        summary="pairwise distances, images, storage and time, structured inputs",
        claim="variance of distances near a Gaussian map's "
        "(judged: at most twice), from less storage",
        basis="paper; settings recalled",
        quick="60 s",
        compiles=True,
        packages=("scikit-learn", "matplotlib"),
    ),
)
