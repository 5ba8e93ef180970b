"""Work for `bench/solvers`: what each library is asked, and what is read off its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import tt

Answer = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """How one library does the work of a problem.

    Attributes:
        library: Name of the competitor.
        variant: Which of its ways this is; empty if there is only one.
        call: Does the work, in the competitor's own types, and waits for it.
        answer: What the table says of its result: errors, ranks, evaluations.
    """

    library: str
    variant: str
    call: Callable[[], Any]
    answer: Callable[[Any], Answer]


@dataclass(frozen=True)
class Problem:
    """One row group: the same work for every library.

    Attributes:
        name: How the table calls it.
        ways: Of all libraries that can do it, ours first.
        goal: The least ratio of the fastest peer's time to ours that is aimed at; None if there is
            none.
    """

    name: str
    ways: list[Way]
    goal: float | None = None


def found(name: str) -> Any:
    """A module, or None where it is not installed."""
    import importlib
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        return None


# Products and sums ------------------------------------------------------------------------------


def decaying(key: jax.Array, shape: tuple[int, ...], rank: int, factor: float) -> tt.TT:
    """A train whose singular values fall by about ``factor`` from one to the next."""
    t = tt.random(key, shape, rank, float)
    weights = factor ** jnp.arange(rank, dtype=float)
    cores = [c * weights if k < len(shape) - 1 else c for k, c in enumerate(t.cores)]
    t = tt.TT(cores)
    return t / tt.norm(t)


def products(order: int, mode: int, rank: int) -> list[Problem]:
    """x * y and A x, rounded to the rank of x."""
    shape = (mode,) * order
    keys = jax.random.split(jax.random.key(0), 4)
    x, y = (decaying(k, shape, rank, 0.5) for k in keys[:2])
    a = tt.random_matrix(keys[2], shape, shape, 4, float)
    # The exact product in a form small enough to compare with: ranks that matter only.
    small = [tt.round(t, tol=1e-7) for t in (x, y)]
    exact = tt.round(tt.hadamard(*small), tol=1e-8)
    image = tt.round(tt.matvec(a, small[0]), tol=1e-8)
    return [
        Problem(f"Hadamard, d = {order}, n = {mode}, rank {rank}", _hadamards(x, y, exact), 3.0),
        Problem(
            f"matrix · vector, d = {order}, n = {mode}, rank {rank}", _matvecs(a, x, image), 3.0
        ),
    ]


def _compared(exact: tt.TT, cores: Callable[[Any], Any]) -> Callable[[Any], Answer]:
    def answer(result: Any) -> Answer:
        train = tt.TT([np.asarray(c) for c in cores(result)])
        error = float(tt.distance(train, exact) / tt.norm(exact))
        return {"error": error, "rank": max(train.ranks)}

    return answer


def _hadamards(x: tt.TT, y: tt.TT, exact: tt.TT) -> list[Way]:
    rank = max(x.ranks)
    ours = _compared(exact, lambda t: t.cores)
    ways = [
        Way("tensorjax", "", lambda: jax.block_until_ready(tt.hadamard(x, y, rank=rank)), ours),
        Way("tensorjax", "tol 1e-6", lambda: tt.hadamard(x, y, tol=1e-6), ours),
    ]
    if (torchtt := found("torchtt")) is not None:
        a, b = (_torch(torchtt, t.cores) for t in (x, y))
        theirs = _compared(exact, lambda t: t.cores)
        ways += [
            Way(
                "torchTT",
                "fast_hadammard",
                lambda: torchtt.fast_hadammard(a, b, 1e-6, rank),
                theirs,
            ),
            Way(
                "torchTT",
                "dmrg_hadamard",
                lambda: torchtt.dmrg_hadamard(a, b, eps=1e-6, rmax=rank, use_cpp=False),
                theirs,
            ),
        ]
    return ways


def _matvecs(a: tt.TTMatrix, x: tt.TT, exact: tt.TT) -> list[Way]:
    rank = max(x.ranks)
    ours = _compared(exact, lambda t: t.cores)
    ways = [
        Way("tensorjax", "", lambda: jax.block_until_ready(tt.matvec(a, x, rank=rank)), ours),
        Way("tensorjax", "tol 1e-6", lambda: tt.matvec(a, x, tol=1e-6), ours),
    ]
    if (torchtt := found("torchtt")) is not None:
        matrix, vector = (_torch(torchtt, t.cores) for t in (a, x))
        theirs = _compared(exact, lambda t: t.cores)
        ways += [
            Way("torchTT", "fast_mv", lambda: torchtt.fast_mv(matrix, vector, 1e-6, rank), theirs),
            Way("torchTT", "then round", lambda: (matrix @ vector).round(1e-6, rank), theirs),
            Way(
                "torchTT",
                "amen_mv",
                lambda: torchtt.amen_mv(matrix, vector, eps=1e-6, rmax=rank, use_cpp=False),
                theirs,
            ),
        ]
    if found("quimb") is not None:
        import quimb.tensor as qtn

        operator = qtn.MatrixProductOperator(_bonds(a.cores), shape="lrud")
        state = qtn.MatrixProductState(_bonds(x.cores), shape="lrp")
        back = _compared(exact, _from_quimb)
        for method in ("zipup", "src", "src-oversample"):
            ways.append(
                Way(
                    "quimb",
                    method,
                    lambda m=method: operator.apply(
                        state, compress=True, max_bond=rank, cutoff=0.0, method=m
                    ),
                    back,
                )
            )
    return ways


def _torch(torchtt: Any, cores: Any) -> Any:
    import torch

    return torchtt.TT([torch.tensor(np.asarray(c)) for c in cores])


def _bonds(cores: Any) -> list[np.ndarray]:
    """Cores as quimb takes them: bonds first, and none at the ends."""
    arrays = [np.moveaxis(np.asarray(c), -1, 1) for c in cores]
    return [arrays[0][0], *arrays[1:-1], arrays[-1][:, 0]]


def _from_quimb(state: Any) -> list[np.ndarray]:
    state = state.copy()
    state.permute_arrays("lpr")
    first, *middle, last = (np.asarray(a) for a in state.arrays)
    return [first[None], *middle, last[..., None]]


# Completion -------------------------------------------------------------------------------------


def completion(size: int, share: float) -> list[Problem]:
    """A photograph from a share of its numbers, to be told by the others."""
    from sklearn.datasets import load_sample_image

    image = load_sample_image("china.jpg")[: 4 * size : 4, : 4 * size : 4].astype(float) / 255
    rng = np.random.default_rng(0)
    mask = rng.random(image.shape) < share
    seen = np.argwhere(mask)
    values = image[tuple(seen.T)]
    hidden = ~mask

    def score(dense: np.ndarray) -> Answer:
        error = np.linalg.norm((dense - image)[hidden]) / np.linalg.norm(image[hidden])
        return {"error": float(error)}

    def ours(result: Any) -> Answer:
        train, info = result
        return {**score(np.asarray(tt.to_dense(train))), "rank": max(train.ranks),
                "status": info.status}  # fmt: skip

    def run(**options: Any) -> Any:
        return tt.complete(seen, values, image.shape, 30, ridge=1e-2, **options)

    ways = [
        Way("tensorjax", "ALS, ranks adapted", lambda: run(adapt=True), ours),
        Way("tensorjax", "Riemannian, rank 12", lambda: tt.complete(
            seen, values, image.shape, 12, method="riemannian"), ours),
    ]  # fmt: skip
    if (tensorly := found("tensorly")) is not None:
        from tensorly.decomposition import parafac, tucker

        whole = mask.astype(float)
        start = image * whole
        for rank in (5, 10, 20):
            ways.append(
                Way(
                    "tensorly",
                    f"parafac, rank {rank}",
                    lambda r=rank: parafac(
                        start, r, mask=whole, n_iter_max=100, init="random", random_state=0
                    ),
                    lambda out: score(tensorly.cp_to_tensor(out)),
                )
            )
            ways.append(
                Way(
                    "tensorly",
                    f"tucker, rank {rank}",
                    lambda r=rank: tucker(start, (r, r, 3), mask=whole, n_iter_max=100),
                    lambda out: score(tensorly.tucker_to_tensor(out)),
                )
            )
    return [Problem(f"photograph {image.shape}, {share:.0%} of the numbers", ways)]
