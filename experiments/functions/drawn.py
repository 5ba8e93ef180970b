"""Table of functions whose parameters are drawn from a seed, and the true errors of trains.

A function is one of points with integer coordinates, of which a tensor is made mode by mode or
digit by digit. Where it is concentrated is known from its parameters, so that its true error can be
measured there too: points come from the whole domain and from boxes, each with a weight of one over
its density (multiple importance sampling with the balance heuristic).
"""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

# Domains of at most so many points are measured as a whole; of larger ones so many points from each
# box.
_WHOLE, _POINTS = 1 << 20, 10_000
Layout = Literal["", "interleaved", "sequential", "fused"]
Box = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Function:
    """Function of integer points (m, dims), as a tensor of few or many modes.

    Attributes:
      name: as in the table.
      f: of points int64 (m, dims).
      points: number of points in each dimension.
      tol: relative error to ask for.
      layout: of the digits of base two; empty if every dimension is one mode.
      boxes: where f is concentrated, (low, high) each.
    """

    name: str
    f: Callable[[np.ndarray], np.ndarray]
    points: tuple[int, ...]
    tol: float
    layout: Layout = ""
    boxes: tuple[Box, ...] = ()

    @property
    def bits(self) -> int:
        """Digits of a dimension."""
        return self.points[0].bit_length() - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Mode sizes of the tensor."""
        if not self.layout:
            return self.points
        dims = len(self.points)
        return (2**dims,) * self.bits if self.layout == "fused" else (2,) * (self.bits * dims)

    def of_index(self, index: np.ndarray) -> np.ndarray:
        """Evaluates f at multi-indices (m, d) of the tensor."""
        if not self.layout:
            return self.f(index)
        dims, place = len(self.points), 1 << np.arange(self.bits - 1, -1, -1)
        if self.layout == "fused":
            parts = [(index >> (dims - 1 - k)) & 1 for k in range(dims)]
        elif self.layout == "sequential":
            parts = np.split(index, dims, axis=1)
        else:
            parts = [index[:, k::dims] for k in range(dims)]
        return self.f(np.stack([part @ place for part in parts], axis=1))

    def index(self, points: np.ndarray) -> np.ndarray:
        """Multi-indices of the tensor of points (m, dims)."""
        if not self.layout:
            return points
        dims, shift = len(self.points), np.arange(self.bits - 1, -1, -1)
        digits = (points[:, :, None] >> shift) & 1  # (m, dims, bits)
        if self.layout == "sequential":
            return digits.reshape(len(points), -1)
        if self.layout == "fused":
            return (digits << np.arange(dims - 1, -1, -1)[:, None]).sum(axis=1)
        return digits.transpose(0, 2, 1).reshape(len(points), -1)

    def true_error(self, values: Callable[[np.ndarray], np.ndarray], seed: int) -> float:
        """Relative error in the Frobenius norm of a train, given as a function of multi-indices."""
        rng, total = np.random.default_rng(seed), math.prod(self.points)
        low = np.zeros(len(self.points), np.int64)
        boxes = [(low, np.array(self.points)), *self.boxes]
        if total <= _WHOLE:
            at = np.stack(np.unravel_index(np.arange(total), self.points), axis=1)
            weights = np.ones(total)
        else:
            drawn = [rng.integers(a, b, (_POINTS, len(a))) for a, b in boxes]
            at = np.concatenate(drawn)
            density = np.zeros(len(at))
            for a, b in boxes:
                part = math.exp(np.log((b - a).astype(float)).sum() - math.log(total))
                density += ((at >= a) & (at < b)).all(axis=1) / part
            weights = 1 / density
        exact = self.f(at)
        wrong = np.abs(values(self.index(at)) - exact) ** 2
        return float(np.sqrt((weights * wrong).sum() / (weights * np.abs(exact) ** 2).sum()))


def table(seed: int) -> list[Function]:
    """Draws the parameters of all functions of the table."""
    makers = (
        _fraction, _waves, _narrow, _peaks, _broad_and_narrow, _sparse, _disc, _box, _half_space,
        _noise, _complex, _wave_and_peak, _gaussian, _modulated, _hundred, _steps, _singular,
        _kink, _random_train, _product, _coulomb,
    )  # fmt: skip
    return [make(np.random.default_rng([seed, k])) for k, make in enumerate(makers)]


def _unit(i: np.ndarray, points: Iterable[int]) -> np.ndarray:
    """Coordinates in (0, 1) of integer points."""
    return (i + 0.5) / np.array(list(points), float)


def _around(points: tuple[int, ...], centre: Any, width: Any) -> Box:
    n = np.array(points, float)
    low = np.clip(np.floor((np.asarray(centre) - width) * n), 0, n - 1).astype(np.int64)
    high = np.clip(np.ceil((np.asarray(centre) + width) * n), 1, n).astype(np.int64)
    return low, np.maximum(high, low + 1)


def _log(rng: np.random.Generator, low: float, high: float, size: Any = None) -> Any:
    return np.exp(rng.uniform(math.log(low), math.log(high), size))


def _bumps(points: tuple[int, ...], heights: Any, centres: Any, widths: Any) -> Any:
    """Sum of Gaussians, and a box about each."""

    def f(i: np.ndarray) -> np.ndarray:
        x = _unit(i, points)
        far = [(((x - c) / w) ** 2).sum(axis=1) for c, w in zip(centres, widths, strict=True)]
        return np.exp(-np.stack(far, axis=1)) @ np.asarray(heights)

    return f, tuple(_around(points, c, 2 * w) for c, w in zip(centres, widths, strict=True))


def _fraction(rng: np.random.Generator) -> Function:
    n, a = (32,) * 6, rng.uniform(0.1, 3, 6)
    return Function("fraction, d 6", lambda i: 1 / (1 + _unit(i, n) @ a), n, 1e-6)


def _waves(rng: np.random.Generator) -> Function:
    n, a = (16,) * 20, rng.uniform(-4, 4, 20)
    return Function("wave, d 20", lambda i: np.cos(_unit(i, n) @ a + 0.3), n, 1e-6)


def _narrow(rng: np.random.Generator) -> Function:
    n = (256,) * 3
    f, boxes = _bumps(n, [1.0], [rng.uniform(0.1, 0.9, 3)], [_log(rng, 0.01, 0.04)])
    return Function("narrow peak, d 3", f, n, 1e-6, boxes=boxes)


def _peaks(rng: np.random.Generator) -> Function:
    n = (64,) * 4
    f, boxes = _bumps(
        n, rng.uniform(0.5, 2, 5), rng.uniform(0.1, 0.9, (5, 4)), _log(rng, 0.08, 0.2, 5)
    )
    return Function("five peaks, d 4", f, n, 1e-5, boxes=boxes)


def _broad_and_narrow(rng: np.random.Generator) -> Function:
    n = (64,) * 4
    widths = [_log(rng, 0.15, 0.3), _log(rng, 0.03, 0.06)]
    f, boxes = _bumps(n, [1, rng.uniform(2, 6)], rng.uniform(0.15, 0.85, (2, 4)), widths)
    return Function("broad and narrow peak, d 4", f, n, 1e-5, boxes=boxes)


def _sparse(rng: np.random.Generator) -> Function:
    n = (12,) * 5
    held = np.zeros(n)
    held[tuple(rng.integers(0, 12, (5, 40)))] = rng.standard_normal(40)
    return Function("40 entries, d 5", lambda i: np.asarray(held[tuple(i.T)]), n, 1e-6)


def _disc(rng: np.random.Generator) -> Function:
    n, c, r = (512,) * 2, rng.uniform(0.35, 0.65, 2), rng.uniform(0.15, 0.33)
    inside = lambda i: 1.0 * (((_unit(i, n) - c) ** 2).sum(axis=1) < r**2)  # noqa: E731
    return Function("disc, 4^9", inside, n, 1e-3, "fused")


def _box(rng: np.random.Generator) -> Function:
    n, low = (20,) * 5, rng.integers(1, 8, 5)
    high = low + rng.integers(4, 11, 5)
    inside = lambda i: np.all((i >= low) & (i < high), axis=1)  # noqa: E731
    return Function("box, d 5", lambda i: np.where(inside(i), 1.5, 0.5), n, 1e-6)


def _half_space(rng: np.random.Generator) -> Function:
    n, a = (48,) * 3, rng.uniform(-1, 1, 3)
    return Function("half-space, d 3", lambda i: np.sign((_unit(i, n) - 0.5) @ a + 0.05), n, 1e-3)


def _noise(rng: np.random.Generator) -> Function:
    n, a = (16,) * 5, rng.uniform(0.5, 3, 5)
    odd = np.array([7919, 104729, 1299709, 15485863, 32452843])

    def f(i: np.ndarray) -> np.ndarray:
        scatter = ((i @ odd) * 2654435761 % 2**32) / 2**32 - 0.5
        return np.exp(-_unit(i, n) @ a) * (1 + 1e-4 * scatter)

    return Function("noise of 1e-4, d 5", f, n, 1e-3)


def _complex(rng: np.random.Generator) -> Function:
    n, a = (24,) * 8, rng.uniform(-6, 6, 8)

    def f(i: np.ndarray) -> np.ndarray:
        x = _unit(i, n)
        return np.exp(1j * (x @ a)) / (2 + x[:, 0] + x[:, 3])

    return Function("complex wave, d 8", f, n, 1e-7)


def _wave_and_peak(rng: np.random.Generator) -> Function:
    n, k, height = (2**40,), rng.uniform(20, 200), rng.uniform(3, 10)
    peak, boxes = _bumps(n, [height], [rng.uniform(0.1, 0.9, 1)], [_log(rng, 2e-3, 1e-2)])
    f = lambda i: np.cos(k * _unit(i, n)[:, 0]) + peak(i)  # noqa: E731
    return Function("wave and peak, 2^40", f, n, 1e-6, "interleaved", boxes)


def _gaussian(rng: np.random.Generator) -> Function:
    n = (2**20,) * 3
    f, boxes = _bumps(n, [1.0], [rng.uniform(0.2, 0.8, 3)], [_log(rng, 0.03, 0.1, 3)])
    return Function("Gaussian, 2^60 in sequence", f, n, 1e-6, "sequential", boxes)


def _modulated(rng: np.random.Generator) -> Function:
    n = (2**30,) * 2
    c, w, k = rng.uniform(0.2, 0.8, 2), _log(rng, 0.05, 0.3), rng.uniform(3, 30, 2)

    def f(i: np.ndarray) -> np.ndarray:
        x = _unit(i, n)
        return np.cos(x @ k) / (1 + (((x - c) / w) ** 2).sum(axis=1))

    return Function("wave in a tail, 2^60 interleaved", f, n, 1e-6, "interleaved")


def _hundred(rng: np.random.Generator) -> Function:
    n, a = (8,) * 100, rng.uniform(0.5, 1.5, 100) / 33
    return Function("fraction, d 100", lambda i: 1 / (1 + _unit(i, n) @ a), n, 1e-7)


def _steps(rng: np.random.Generator) -> Function:
    n, cuts = (2**40,), np.sort(rng.uniform(0.05, 0.95, 3))

    def f(i: np.ndarray) -> np.ndarray:
        x = _unit(i, n)[:, 0]
        return 1.0 * (x < cuts[0]) - 2.0 * (x > cuts[1]) + 0.5 * (x > cuts[2])

    return Function("three steps, 2^40", f, n, 1e-6, "interleaved")


def _singular(rng: np.random.Generator) -> Function:
    n, c = (2**30,), rng.uniform(0.1, 0.9, 1)
    boxes = tuple(_around(n, c, w) for w in (1e-3, 1e-4, 2e-5))
    f = lambda i: 1 / np.sqrt(np.abs(_unit(i, n) - c)[:, 0] + 1e-5)  # noqa: E731
    return Function("near a singularity, 2^30", f, n, 1e-5, "interleaved", boxes)


def _kink(rng: np.random.Generator) -> Function:
    n, slope = (256,) * 2, rng.uniform(0.5, 1.5)
    f = lambda i: np.abs(_unit(i, n) @ np.array([1.0, -slope]))  # noqa: E731
    return Function("kink, d 2", f, n, 1e-4)


def _random_train(rng: np.random.Generator) -> Function:
    ranks = [1, *[12] * 7, 1]
    cores = [rng.standard_normal((10, a, b)) for a, b in itertools.pairwise(ranks)]

    def f(i: np.ndarray) -> np.ndarray:
        held = np.ones((len(i), 1))
        for core, column in zip(cores, i.T, strict=True):
            held = np.matmul(held[:, None], core[column])[:, 0]
        return held[:, 0]

    return Function("random train of rank 12, d 8", f, (10,) * 8, 1e-8)


def _product(rng: np.random.Generator) -> Function:
    n, k = (12,) * 30, rng.uniform(1, 4, 30)
    f = lambda i: np.prod(np.sin(k * _unit(i, n) + 0.4), axis=1)  # noqa: E731
    return Function("product of sines, d 30", f, n, 1e-6)


def _coulomb(rng: np.random.Generator) -> Function:
    n, c = (1024,) * 3, rng.uniform(0.3, 0.7, 3)
    boxes = tuple(_around(n, c, w) for w in (0.02, 0.1))
    f = lambda i: 1 / np.sqrt(((_unit(i, n) - c) ** 2).sum(axis=1) + 1e-4)  # noqa: E731
    return Function("Coulomb potential, 8^10", f, n, 1e-3, "fused", boxes)
