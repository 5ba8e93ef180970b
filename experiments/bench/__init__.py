"""The toolkit beside its peers: the same work, in one process, with fair clocks."""

from experiments import Experiment

_PEERS = ("quimb", "teneva", "tensorly", "threadpoolctl", "tntorch", "torch", "torchTT")

EXPERIMENTS = (
    Experiment(
        name="bench/core",
        module="experiments.bench.core",
        paper="none: our own measurement beside public libraries",
        summary="TT-SVD, rounding, arithmetic and projections: time, compilations, error, ranks",
        quick="40 s",
        packages=(*_PEERS, "scikit-learn", "ttax"),
        alone=True,
    ),
    Experiment(
        name="bench/solvers",
        module="experiments.bench.solvers",
        paper="none: our own measurement beside public libraries",
        summary="cross approximation, linear systems, spin chains, completion, fused products",
        quick="30 s",
        packages=_PEERS,
        alone=True,
    ),
    Experiment(
        name="bench/pde",
        module="experiments.bench.pde",
        paper="none: our own measurement beside public libraries",
        summary="Fokker–Planck equations in fixed coordinates at equal errors; ten dimensions",
        quick="10 s",
        packages=("fpcross", "seemps", "teneva", "threadpoolctl"),
        alone=True,
    ),
    Experiment(
        name="bench/layers",
        module="experiments.bench.layers",
        paper="Yang et al., CoMERA, arXiv 2405.14377: shapes, ranks and formula",
        summary="tensorised linear layers and embeddings beside dense ones and tensorly-torch",
        quick="30 s",
        extra="nn",
        packages=("flax", "tensorly-torch", "torch"),
        alone=True,
    ),
    Experiment(
        name="bench/store",
        module="experiments.bench.store",
        paper="none: our own measurement beside public libraries",
        summary="the tensor store beside files, safetensors, tensorstore, orbax and fio",
        quick="10 s",
        extra="offload",
        packages=("orbax-checkpoint", "safetensors", "tensorstore", "xxhash"),
        alone=True,
    ),
    Experiment(
        name="bench/gpt2",
        module="experiments.bench.gpt2",
        paper="none: our own measurement beside plain Flax and nanoGPT's formulation",
        summary="one training step of GPT-2 on one device, the same weights written three ways",
        quick="15 s",
        extra="nn",
        packages=("flax", "optax"),
        alone=True,
    ),
    Experiment(
        name="bench/device",
        module="experiments.bench.device.main",
        paper="none: our own measurement beside public libraries",
        summary="all that an accelerator can show within minutes, what is least known first",
        quick="60 s",
        extra="nn",
        packages=("flax", "optax", "torch", "torchTT"),
        alone=True,
    ),
)
