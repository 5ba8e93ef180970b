"""Random test problems for benchmarks: shapes, data and tolerances drawn from a seed."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = ("smooth", "random", "low rank", "high rank")
DTYPES = ("float32", "float64", "float64", "complex64", "complex128")
# An eigenproblem of the longest side of a random tensor, of full rank, takes seconds from here on.
_LONGEST_RANDOM = 1500


@dataclass(frozen=True)
class Dense:
    """Random problem of compressing a dense tensor: shape, dtype, kind and tolerance.

    Attributes:
        shape, dtype, tol: Of the tensor, and the error asked for.
        kind: "smooth" with noise, "random", of exactly "low rank" or of exactly "high rank".
        seed: Of its entries.
    """

    shape: tuple[int, ...]
    dtype: str
    tol: float
    kind: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the drawn problem in tables."""
        shape = "×".join(map(str, self.shape))
        if len(set(self.shape)) == 1:
            shape = f"{self.shape[0]}^{len(self.shape)}"
        return f"{shape} {self.dtype} {self.kind} tol {self.tol:.0e}"

    def array(self) -> np.ndarray:
        """Returns the dense tensor of a drawn problem."""
        rng = np.random.default_rng(self.seed)
        if self.kind == "random":
            return normal(rng, self.shape, self.dtype)
        if self.kind == "smooth":
            x = _smooth(self.shape)
            noise = normal(rng, self.shape, self.dtype)
            scale = self.tol * rng.uniform(0, 0.3) * np.linalg.norm(x) / np.linalg.norm(noise)
            return (x + scale * noise).astype(self.dtype)
        rank = rng.integers(1, 9) if self.kind == "low rank" else rng.integers(16, 65)
        return dense(train(rng, self.shape, int(rank), self.dtype)).reshape(self.shape)


def draw(rng: np.random.Generator, count: int, largest: float = 3e7) -> list[Dense]:
    """Draws compression problems: orders 2 to 24, modes 2 to 5000, up to ``largest`` entries.

    Sizes are distributed evenly in their logarithm.
    """
    found: list[Dense] = []
    while len(found) < count:
        shape = _shape(rng, largest)
        dtype, kind = str(rng.choice(DTYPES)), str(rng.choice(KINDS))
        if kind == "random" and _middle(shape) > min(_LONGEST_RANDOM, largest**0.5):
            continue
        single = dtype in ("float32", "complex64")
        tol = 10.0 ** rng.uniform(-5 if single else -8, -1)
        found.append(Dense(shape, dtype, tol, kind, int(rng.integers(2**31))))
    return found


def _shape(rng: np.random.Generator, largest: float) -> tuple[int, ...]:
    while True:
        order = int(rng.choice([2, 3, 3, 4, 4, 5, 6, 8, 10, 12, 16, 20, 24]))
        size = math.exp(rng.uniform(math.log(min(3e4, largest / 10)), math.log(largest)))
        weights = rng.dirichlet([rng.choice([1.0, 5.0, 1e4])] * order)
        shape = tuple(max(2, round(size**w)) for w in weights)
        if max(shape) <= 5000 and size / 4 <= math.prod(shape) <= largest:
            return shape


def _middle(shape: tuple[int, ...]) -> int:
    """Returns the largest short side among all unfoldings of a tensor."""
    left = [math.prod(shape[:k]) for k in range(1, len(shape))]
    return max(min(a, math.prod(shape) // a) for a in left)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Draws an array of independent normal entries, real or complex."""
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def _smooth(shape: tuple[int, ...]) -> Any:
    axes = np.ix_(*(np.linspace(0, 1, n) for n in shape))
    return 1 / (1 + sum(axes))  # pyright: ignore[reportArgumentType]


def train(
    rng: np.random.Generator, shape: tuple[int, ...], rank: int, dtype: Any
) -> list[np.ndarray]:
    """Draws a train with normal cores of a TT-rank, reduced where the modes need less."""
    ranks, total = [1], math.prod(shape)
    for n in shape[:-1]:
        total //= n
        ranks.append(min(rank, ranks[-1] * n, total))
    ranks.append(1)
    cores = [
        normal(rng, (a, n, b), dtype) / math.sqrt(a)
        for a, n, b in zip(ranks, shape, ranks[1:], strict=False)
    ]
    return [c.astype(dtype) for c in cores]


def dense(cores: list[np.ndarray]) -> np.ndarray:
    """Contracts the cores of a train to all its entries, flat."""
    out = cores[0].reshape(-1, cores[0].shape[2])
    for core in cores[1:]:
        out = (out @ core.reshape(core.shape[0], -1)).reshape(-1, core.shape[2])
    return out.reshape(-1)
