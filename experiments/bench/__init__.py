"""Benchmarks of the toolkit beside its peers: the same work, in one process, timed by turns."""

from typing import Any

from experiments import Experiment

_PEERS = ("quimb", "teneva", "tensorly", "threadpoolctl", "tntorch", "torch", "torchTT")


TITLES = {
    "core": "Tensor trains beside other libraries",
    "solvers": "Solvers beside other libraries",
    "pde": "Fokker–Planck equations beside other libraries",
    "layers": "Layers beside dense ones",
    "store": "Tensor store beside other storage",
    "gpt2": "A step of GPT-2, written three ways",
    "history": "Times over commits",
    "device": "Measurements on an accelerator",
}


def _bench(name: str, summary: str, quick: str, packages: tuple[str, ...], **more: Any) -> Any:
    """Describes a benchmark as an `Experiment`, by default without a paper."""
    options = {
        "module": f"experiments.bench.{name}",
        "paper": "our own measurement beside public libraries",
        "alone": True,
        **more,
    }
    return Experiment(
        name=f"bench/{name}",
        title=TITLES[name],
        summary=summary,
        quick=quick,
        packages=packages,
        **options,
    )


EXPERIMENTS = (
    _bench(
        "core",
        "TT-SVD, rounding, arithmetic and projections: time, compilations, error, ranks",
        "70 s",
        (*_PEERS, "scikit-learn", "ttax"),
        compiles=True,
    ),
    _bench(
        "solvers",
        "cross approximation, linear systems, spin chains, completion, fused products",
        "40 s",
        _PEERS,
        compiles=True,
    ),
    _bench(
        "pde",
        "Fokker–Planck equations in fixed coordinates at equal errors; ten dimensions",
        "10 s",
        ("fpcross", "seemps", "teneva", "threadpoolctl"),
    ),
    _bench(
        "layers",
        "tensorised linear layers and embeddings beside dense ones and tensorly-torch",
        "50 s",
        ("flax", "tensorly-torch", "torch"),
        paper="Yang et al., CoMERA, arXiv 2405.14377: shapes, ranks and formula",
        extra="nn",
        compiles=True,
    ),
    _bench(
        "store",
        "the tensor store beside files, safetensors, tensorstore, orbax and fio",
        "10 s",
        ("orbax-checkpoint", "safetensors", "tensorstore", "xxhash"),
        extra="offload",
    ),
    _bench(
        "gpt2",
        "one training step of GPT-2 on one device, the same weights written three ways",
        "35 s",
        ("flax", "optax"),
        paper="our own measurement beside plain Flax and nanoGPT's formulation",
        extra="nn",
    ),
    _bench(
        "history",
        "one call of each part of the toolkit, kept commit by commit",
        "40 s",
        ("flax", "optax"),
        by_name_only=True,
        extra="nn",
        compiles=True,
    ),
    _bench(
        "device",
        "all that an accelerator can show within minutes, what is least known first",
        "60 s",
        ("flax", "optax", "torch", "torchTT"),
        module="experiments.bench.device.main",
        by_name_only=True,
        extra="nn",
    ),
)
