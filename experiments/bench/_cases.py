"""Cases of the benchmark `bench/core`: drawn inputs, errors of results, and goals."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import tt

Cores = list[np.ndarray]
# What an adapter makes of a result: the cores of a train, a number or array, or a list of these.
Plain = Any

TOL = 1e-6
# Entries at which results of arithmetic are compared with exact ones.
_SAMPLES = 1000
# Errors below this count as none where the exact result is known or representable.
EXACT = 1e-10


@dataclass(frozen=True)
class Goal:
    """Goal of a benchmark case: how fast the toolkit is to be beside a competitor.

    Attributes:
        against: Name of a library; ``"fastest peer"`` is any of them that is accurate enough,
            ``"peer as accurate"`` any whose error is no larger than ours.
        at_least: Time of the other over ours; 1 / ``at_most`` if that is given.
        at_most: Time of ours over the other's, if the goal is said this way round.
        variant: Which of the other's ways, if it has several and not the fastest one is meant.
        ours: Which of our ways, if not that of the case.
    """

    against: str
    at_least: float = 0.0
    at_most: float | None = None
    variant: str | None = None
    ours: str | None = None

    @property
    def ratio(self) -> float:
        """Least ratio of the competitor's time to ours that meets the goal."""
        return self.at_least if self.at_most is None else 1 / self.at_most


@dataclass(frozen=True, kw_only=True)
class Case:
    """Benchmark case: one operation with its inputs, for every library that can do it.

    Attributes:
        group: The table it belongs to.
        name: Its name in that table.
        operation: The method of the libraries that does it.
        inputs: What that method is given, as NumPy arrays and numbers.
        error: Relative error of a result.
        goals: What is to be reached.
        tolerance: The error asked for, or above which an error counts; see `experiments.bench`.
        ours: The variant of ours that the goals are about, if not the fastest.
        most_programs: Programs that ours may compile.
        cold: Whether every call starts with nothing compiled.
        flops: Least floating-point operations of the usual method, if there is one.
        bytes: Least traffic: input read once, output written once.
    """

    group: str
    name: str
    operation: str
    inputs: dict[str, Any]
    error: Callable[[Plain], float]
    goals: tuple[Goal, ...] = ()
    tolerance: float = EXACT
    ours: str | None = None
    most_programs: int | None = None
    cold: bool = False
    flops: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Sizes:
    """Sizes of all cases of the benchmark; `SMALL` is for trying out."""

    dense: tuple[tuple[int, ...], ...] = ((4,) * 12, (8,) * 8, (16,) * 6)
    orders: tuple[int, ...] = (20, 50)
    mode: int = 10
    doubled: int = 32
    decaying: tuple[int, int] = (100, 50)
    batch: tuple[int, int, int, int] = (64, 10, 8, 8)  # trains, order, mode, rank
    ranks: dict[str, int] = field(
        default_factory=lambda: {"add": 32, "inner": 64, "norm": 64, "hadamard": 16, "matvec": 32}
    )
    rows: int = 1000
    features: tuple[int, ...] = (10_000, 250_000)
    sweep: tuple[int, int, int] = (30, 10, 10)  # roundings, order, mode


SMALL = Sizes(
    dense=((4,) * 8, (8,) * 5),
    orders=(6,),
    mode=6,
    doubled=6,
    decaying=(12, 6),
    batch=(8, 5, 4, 3),
    ranks={"add": 6, "inner": 8, "norm": 8, "hadamard": 4, "matvec": 4},
    rows=100,
    features=(4096,),
    sweep=(4, 5, 4),
)


# Inputs


def random_train(rng: np.random.Generator, shape: Sequence[int], rank: int) -> Cores:
    """Draws a train with normal cores, whose entries have mean 0 and variance 1."""
    ranks = [1, *[rank] * (len(shape) - 1), 1]
    return [
        rng.standard_normal((a, n, b)) / math.sqrt(a)
        for a, n, b in zip(ranks, shape, ranks[1:], strict=False)
    ]


def doubled(cores: Cores) -> Cores:
    """Returns the cores of t + t, a train whose ranks are twice those needed."""
    first, *middle, last = cores
    blocks = [np.zeros((2 * a, n, 2 * b)) for a, n, b in (c.shape for c in middle)]
    for block, c in zip(blocks, middle, strict=True):
        block[: c.shape[0], :, : c.shape[2]] = c
        block[c.shape[0] :, :, c.shape[2] :] = c
    return [np.concatenate([first] * 2, 2), *blocks, np.concatenate([last] * 2, 0)]


def decaying_train(rng: np.random.Generator, shape: Sequence[int], rank: int, kept: int) -> Cores:
    """Draws a train with geometrically decaying singular values, ``kept`` of them above `TOL`."""
    cores = random_train(rng, shape, rank)
    falling = np.exp(-13.5 / kept * np.arange(rank))
    return [*(c * falling for c in cores[:-1]), cores[-1]]


def laplacian(order: int, mode: int) -> Cores:
    """Returns the discrete Laplacian as a TT-matrix of rank two.

    Σ_k 1 ⊗ … ⊗ T ⊗ … ⊗ 1, T = tridiag(−1, 2, −1).
    """
    one = np.eye(mode)
    second = 2 * one - np.eye(mode, k=1) - np.eye(mode, k=-1)
    core = np.zeros((2, mode, mode, 2))
    core[0, :, :, 0], core[0, :, :, 1], core[1, :, :, 1] = one, second, one
    return [core[:1], *[core] * (order - 2), core[:, :, :, 1:]]


def terms_tensor(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Draws a dense tensor: a sum of 16 rank-one terms, plus noise of relative size 1e-8."""
    factors = [rng.standard_normal((n, 16)) for n in shape]
    half = len(shape) // 2
    sides = (functools.reduce(_khatri_rao, part) for part in (factors[:half], factors[half:]))
    left, right = sides
    x = (left @ right.T).reshape(shape)
    noise = rng.standard_normal(shape)
    return x + noise * (1e-8 * np.linalg.norm(x) / np.linalg.norm(noise))


def _khatri_rao(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a[:, None] * b[None]).reshape(-1, a.shape[1])


def harmonic_tensor(shape: Sequence[int]) -> np.ndarray:
    """Returns the tensor 1 / (1 + x_1 + … + x_d) on uniform grids of [0, 1]."""
    total = functools.reduce(np.add.outer, (np.linspace(0, 1, n) for n in shape))
    return 1 / (1 + total)


# What results must be, computed by NumPy alone where that is possible


def to_dense(cores: Cores) -> np.ndarray:
    """Contracts the cores of a train to a dense tensor."""
    out = np.ones((1, 1))
    for c in cores:
        out = (out @ c.reshape(c.shape[0], -1)).reshape(-1, c.shape[2])
    return out.reshape([c.shape[1] for c in cores])


def entries(cores: Cores, indices: np.ndarray) -> np.ndarray:
    """Evaluates a train at multi-indices (count, d)."""
    rows = np.ones((len(indices), 1))
    for c, index in zip(cores, indices.T, strict=True):
        out = np.empty((len(indices), c.shape[2]))
        for i in range(c.shape[1]):
            out[index == i] = rows[index == i] @ c[:, i]
        rows = out
    return rows[:, 0]


def inner(x: Cores, y: Cores) -> float:
    """Computes the inner product of two trains."""
    out = np.ones((1, 1))
    for a, b in zip(x, y, strict=True):
        out = np.einsum("cd,cie,dif->ef", out, a, b, optimize=True)
    return out.item()


def applied(a: Cores, x: Cores) -> Cores:
    """Computes the cores of a TT-matrix times a train."""
    pairs = (np.einsum("aijb,cjd->acibd", m, c) for m, c in zip(a, x, strict=True))
    return [p.reshape(p.shape[0] * p.shape[1], p.shape[2], -1) for p in pairs]


def max_rank(plain: Plain) -> int | None:
    """Returns the largest TT-rank in a result of trains, or None for other results."""
    if not isinstance(plain, list):
        return None
    return max(max_rank(p) or 0 if isinstance(p, list) else p.shape[-1] for p in plain)


def dense_error(x: np.ndarray) -> Callable[[Plain], float]:
    """Returns a function: the relative distance of a train from a dense tensor."""
    norm = float(np.linalg.norm(x))
    return lambda cores: float(np.linalg.norm(to_dense(cores) - x)) / norm


def train_error(cores: Cores) -> Callable[[Plain], float]:
    """Returns a function: the relative distance of a train from a given one.

    Trains are orthogonalised, so nothing cancels.
    """
    exact = tt.TT([jnp.asarray(c) for c in cores])
    norm = math.sqrt(inner(cores, cores))
    return lambda other: float(tt.distance(exact, tt.TT([jnp.asarray(c) for c in other]))) / norm


def trains_error(trains: Sequence[Cores]) -> Callable[[Plain], float]:
    """Returns a function: the largest relative distance of several trains from given ones."""
    errors = [train_error(t) for t in trains]

    def error(plain: Plain) -> float:
        stacked = not isinstance(plain[0], list)
        many = zip(*plain, strict=True) if stacked else plain
        return max(e(list(t)) for e, t in zip(errors, many, strict=True))

    return error


def entries_error(
    rng: np.random.Generator, shape: Sequence[int], exact: Callable[[np.ndarray], np.ndarray]
) -> Callable[[Plain], float]:
    """Returns a function: the relative error of a train at random entries."""
    indices = rng.integers(shape, size=(_SAMPLES, len(shape)))
    want = exact(indices)
    norm = np.linalg.norm(want)
    return lambda cores: float(np.linalg.norm(entries(cores, indices) - want) / norm)


def number_error(exact: float, scale: float) -> Callable[[Plain], float]:
    """Returns a function: the distance of a number from the exact one, relative to ``scale``."""
    return lambda value: abs(float(value) - exact) / scale


def isometry_error(x: np.ndarray) -> Callable[[Plain], float]:
    """Returns a function: how much a projection changes the rows' mean squared length."""
    energy = sum(float(np.vdot(row, row)) for row in x)
    return lambda y: abs(sum(float(np.vdot(row, row)) for row in y) / energy - 1)


# The cases


def svd_cases(sizes: Sizes, rng: np.random.Generator) -> Iterator[Case]:
    for shape in sizes.dense:
        for function in ("16 terms", "1/(1+Σx)"):
            x = terms_tensor(rng, shape) if function == "16 terms" else harmonic_tensor(shape)
            yield Case(
                group="svd",
                name=f"{_power(shape)} {function}",
                operation="svd",
                inputs={"x": x, "tol": TOL},
                error=dense_error(x),
                tolerance=TOL,
                goals=(Goal("fastest peer", 4.0), Goal("Gram matrix", at_most=2.0)),
                flops=x.size * 65,
                bytes=x.nbytes,
            )


def rounding_cases(sizes: Sizes, rng: np.random.Generator) -> Iterator[Case]:
    for order in sizes.orders:
        shape, (rank, kept) = (sizes.mode,) * order, sizes.decaying
        inputs = {
            f"{2 * sizes.doubled}→{sizes.doubled} doubled": (
                doubled(random_train(rng, shape, sizes.doubled)),
                sizes.doubled,
            ),
            f"{rank}→{kept} decaying": (decaying_train(rng, shape, rank, kept), kept),
        }
        for name, (cores, target) in inputs.items():
            yield from _rounding_pair(f"d={order} {name}", cores, target)
    yield _batch_case(sizes, rng)


def _rounding_pair(name: str, cores: Cores, rank: int) -> Iterator[Case]:
    error = train_error(cores)
    to_rank = (
        Goal("fastest peer", 3.0, ours="jit, oversample=0"),
        Goal("peer as accurate", 3.0, ours="jit"),
    )
    for operation, how, option, goals in (
        ("round_rank", "rank=", {"rank": rank}, to_rank),
        ("round_tol", "tol=", {"tol": TOL}, (Goal("fastest peer", 1.5),)),
    ):
        yield Case(
            group="rounding",
            name=f"{name}, {how}",
            operation=operation,
            inputs={"cores": cores, **option},
            error=error,
            tolerance=TOL,
            ours="jit" if operation == "round_rank" else None,
            goals=goals,
            # Two sweeps that multiply each core by as many columns as are kept.
            flops=sum(4 * c.size * rank for c in cores),
            bytes=sum(c.nbytes for c in cores),
        )


def _batch_case(sizes: Sizes, rng: np.random.Generator) -> Case:
    count, order, mode, rank = sizes.batch
    trains = [doubled(random_train(rng, (mode,) * order, rank)) for _ in range(count)]
    return Case(
        group="rounding",
        name=f"{count} trains, d={order} n={mode} {2 * rank}→{rank}, rank=",
        operation="round_batch",
        inputs={"trains": trains, "rank": rank},
        error=trains_error(trains),
        tolerance=TOL,
        goals=(Goal("torchTT", 6.0),),
        flops=sum(4 * c.size * rank for t in trains for c in t),
        bytes=sum(c.nbytes for t in trains for c in t),
    )


def arithmetic_cases(sizes: Sizes, rng: np.random.Generator) -> Iterator[Case]:
    shape = (sizes.mode,) * sizes.orders[0]
    for operation, rank in sizes.ranks.items():
        x, y = random_train(rng, shape, rank), random_train(rng, shape, rank)
        inputs, error = _arithmetic(operation, x, y, rng)
        flops, traffic = _arithmetic_work(operation, x)
        yield Case(
            group="arithmetic",
            name=f"{operation} r={rank}",
            operation=operation,
            inputs=inputs,
            error=error,
            goals=(Goal("fastest peer", 1.0),),
            flops=flops,
            bytes=traffic,
        )


def _arithmetic(
    operation: str, x: Cores, y: Cores, rng: np.random.Generator
) -> tuple[dict[str, Any], Callable[[Plain], float]]:
    """Returns the arguments of an operation on trains, and the error function of its result."""
    shape = [c.shape[1] for c in x]
    if operation == "norm":
        norm = math.sqrt(inner(x, x))
        return {"x": x}, number_error(norm, norm)
    if operation == "inner":
        scale = math.sqrt(inner(x, x) * inner(y, y))
        return {"x": x, "y": y}, number_error(inner(x, y), scale)
    if operation == "matvec":
        a = laplacian(len(x), shape[0])
        exact = applied(a, x)
        return {"a": a, "x": x}, entries_error(rng, shape, lambda i: entries(exact, i))
    combine = {"add": np.add, "hadamard": np.multiply}[operation]
    error = entries_error(rng, shape, lambda i: combine(entries(x, i), entries(y, i)))
    return {"x": x, "y": y}, error


def _arithmetic_work(operation: str, x: Cores) -> tuple[int, int]:
    """Returns the floating-point operations and bytes of one operation on trains."""
    size, squared = sum(c.nbytes for c in x), sum(c.shape[0] ** 2 * c.shape[2] ** 2 for c in x)
    mode, rank = x[0].shape[1], x[0].shape[2]
    return {
        "add": (0, 2 * size + 4 * size),
        "hadamard": (squared * mode, 2 * size + 8 * squared * mode),
        "matvec": (sum(8 * c.size * mode for c in x), size + 4 * size),
        "inner": (sum(4 * c.size * rank for c in x), 2 * size),
        "norm": (sum(4 * c.size * rank for c in x), size),
    }[operation]


def projection_cases(sizes: Sizes, rng: np.random.Generator) -> Iterator[Case]:
    for features in sizes.features:
        x = rng.standard_normal((sizes.rows, features), np.float32)
        yield Case(
            group="projection",
            name=f"{sizes.rows} × {features} → 24",
            operation="project",
            inputs={"x": x, "size": 24},
            error=isometry_error(x),
            tolerance=1.0,  # a random map is right on average
            ours="TTRP",
            goals=(
                Goal("one pass", at_most=1.3),
                Goal("scikit-learn", 2.0, variant="Gaussian"),
            ),
            flops=2 * x.size * 24,
            bytes=x.nbytes,
        )


def changing_cases(sizes: Sizes, rng: np.random.Generator) -> Iterator[Case]:
    count, order, mode = sizes.sweep
    trains = [doubled(random_train(rng, (mode,) * order, 8 + k)) for k in range(count)]
    yield Case(
        group="ranks",
        name=f"{count} roundings, ranks {16}…{2 * (7 + count)}",
        operation="sweep",
        inputs={"trains": trains, "tol": TOL},
        error=trains_error(trains),
        tolerance=TOL,
        cold=True,
        most_programs=4,
        ours="",
        goals=(Goal("torchTT", 1.0),),
    )


def _power(shape: Sequence[int]) -> str:
    return f"{shape[0]}^{len(shape)}"


GROUPS: dict[str, Callable[[Sizes, np.random.Generator], Iterator[Case]]] = {
    "svd": svd_cases,
    "rounding": rounding_cases,
    "arithmetic": arithmetic_cases,
    "projection": projection_cases,
    "ranks": changing_cases,
}
