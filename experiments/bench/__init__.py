"""The toolkit beside its peers: the same work, in one process, with fair clocks."""

from experiments import Experiment

EXPERIMENTS = (
    Experiment(
        name="bench/core",
        module="experiments.bench.core",
        paper="none: our own measurement beside public libraries",
        summary="TT-SVD, rounding, arithmetic and projections: time, compilations, error, ranks",
        quick="40 s",
        packages=(
            "quimb",
            "scikit-learn",
            "teneva",
            "tensorly",
            "threadpoolctl",
            "tntorch",
            "torch",
            "torchTT",
            "ttax",
        ),
    ),
)
