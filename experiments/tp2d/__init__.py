"""2D tensor parallelism of GPT-2 beside the other layouts; see README.md in this folder."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="tp2d",
        title="TP2D: two-dimensional tensor parallelism",
        module="experiments.tp2d.main",
        paper="Zhu, Dong, CAAI Trans. Intelligent Systems 20(5), 2025",
        summary="GPT-2 split over devices: memory, bytes sent, equality, modelled scaling",
        claim="2D tensor parallelism is 1.84 × as fast as 1D on 4 GPUs "
        "(judged: as fast, in the model)",
        basis="abstract",
        quick="60 s",
        extra="nn",
        compiles=True,
        packages=("flax", "optax"),
    ),
)
