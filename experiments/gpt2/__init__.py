"""GPT-2 trained from a folder of texts, on one device or split over many; see README.md."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="gpt2",
        title="GPT-2 from a folder of code",
        module="experiments.gpt2.main",
        paper="Radford et al. (2019); Zhu, Dong, CAAI Trans. Intelligent Systems 20(5), 2025",
        summary="GPT-2 from a folder of code: loss on held-out packages against bigram models",
        quick="20 s",
        packages=("flax", "optax", "orbax-checkpoint", "matplotlib", "tokenizers"),
    ),
)
