"""GPT-2 trained from disk: schedules against memory budgets; see README.md in this folder."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="offload",
        title="HiTrain: training from disk",
        module="experiments.offload.main",
        paper="HiTrain, J. Computer Research and Development, 10.7544/issn1000-1239.202550478",
        summary="GPT-2 in memory, offloaded to the host, and from disk by four schedules",
        claim="1.49 × the speed of an unnamed scheme for training from disk "
        "(judged: over updates after the backward pass)",
        basis="abstract",
        quick="85 s",
        extra="nn,offload",
        packages=("flax", "optax", "xxhash"),
        alone=True,
    ),
    Experiment(
        name="offload/budgets",
        title="Training within budgets of memory",
        module="experiments.offload.budgets",
        paper="HiTrain, J. Computer Research and Development, 10.7544/issn1000-1239.202550478",
        summary="GPT-2 under budgets of device and host, as the plan says; for a GPU",
        quick="50 s",
        extra="nn,offload",
        packages=("flax", "optax", "xxhash"),
        alone=True,
    ),
)
