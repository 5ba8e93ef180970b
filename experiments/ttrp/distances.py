"""Pairwise distances of random points under projection: mean and variance of their ratio."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from experiments import Run
from experiments.ttrp.methods import (
    METHODS,
    Method,
    Shape,
    factors,
    moments,
    over_draws,
    storage,
    times,
)
from tensorjax import sketch

PAPER_MODES = {2500: (25, 10, 10), 10_000: (25, 25, 16)}
PAPER_ROWS = 24  # = 4·3·2

# Measured once with another implementation, for M = 24 and Gaussian points. Not the paper's.
REFERENCE = tuple(
    {"N": 10_000, "method": method, "mean": mean, "variance": variance}
    for method, mean, variance in (
        ("Gaussian", 0.989, 0.0020),
        ("very sparse, s = √N", 0.986, 0.0018),
        ("TRP Gaussian", 0.997, 0.0055),
        ("TRP Rademacher", 1.000, 0.0023),
        ("TTRP Gaussian", 0.962, 0.032),
        ("TTRP Rademacher", 0.986, 0.0025),
    )
)


def pairwise(x: np.ndarray) -> np.ndarray:
    """Computes the distances of all pairs of rows of x (…, n, N), as (…, n(n−1)/2)."""
    i, j = np.triu_indices(x.shape[-2], 1)
    return np.linalg.norm(x[..., i, :] - x[..., j, :], axis=-1)


def mean_ratio(images: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Computes the mean ratio of pairwise distances after and before a projection.

    2/(n(n−1)) Σ_{i<j} ‖f(x_i) − f(x_j)‖ / ‖x_i − x_j‖, the paper's statistic of a draw.

    Args:
        images: (…, n, M), the projected points f(x_i), of any number of draws.
        points: (n, N), the points x_i, all different.
    """
    return (pairwise(images) / pairwise(points)).mean(-1)


def hull(shapes: Sequence[Shape]) -> Shape:
    """Returns the smallest shape that holds all given shapes."""
    return tuple(map(max, zip(*shapes, strict=True)))


def block(y: np.ndarray, whole: Shape, shape: Shape) -> np.ndarray:
    """Cuts projected points of a larger map to those of a sub-map with fewer rows.

    Rows i_k < m_k of a Kronecker map, or any rows of a map with independent ones, are a map of the
    same law with fewer rows. So one draw serves a sweep over M; only the scale changes.

    Args:
        y: (…, ∏ whole).
        whole: modes of the map.
        shape: modes (m_1, …, m_d) of the sub-map, none larger.
    """
    lead = y.shape[:-1]
    part = y.reshape(*lead, *whole)[(..., *map(slice, shape))]
    return part.reshape(*lead, -1) * math.sqrt(math.prod(whole) / math.prod(shape))


def mean_ratios(
    method: Method, in_shape: Shape, shapes: Sequence[Shape], keys: jax.Array, points: jax.Array
) -> list[np.ndarray]:
    """Computes the mean distance ratio of every draw, for each output shape."""
    whole = hull(shapes)
    images = over_draws(sketch.apply, method, (in_shape, whole), keys, points)
    exact = np.asarray(points)
    return [mean_ratio(block(images, whole, shape), exact) for shape in shapes]


def measure(
    run: Run, *, sizes: Sequence[int], rows: Sequence[int], points: int, draws: int, seed: int
) -> list[dict[str, Any]]:
    """Measures mean and variance of distance ratios for every N, method and M; records tables."""
    cases = [(n, method) for n in sizes for method in METHODS]
    measured = []
    for n, method in run.progress(cases, "distances, (N, method)"):
        measured += _sweep(n, method, rows, points, draws, seed)
    shown = PAPER_ROWS if PAPER_ROWS in rows else max(rows)
    _record(run, measured, shown, points, draws)
    return measured


def _sweep(
    n: int, method: Method, rows: Sequence[int], points: int, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    in_shape = PAPER_MODES.get(n) or factors(n, 3)
    shapes = tuple(factors(m, 3) for m in rows)
    data, maps = jax.random.split(jax.random.key(seed))
    x = jax.random.normal(data, (points, n))
    keys = jax.random.split(maps, draws)
    ratios = mean_ratios(method, in_shape, shapes, keys, x)
    for shape, sample in zip(shapes, ratios, strict=True):
        yield {
            "N": n,
            "method": method.name,
            "M": math.prod(shape),
            "modes": f"{times(in_shape)} → {times(shape)}",
            "storage": storage(method, in_shape, shape),
            **moments(sample),
        }


def _record(run: Run, measured: list[dict[str, Any]], shown: int, points: int, draws: int) -> None:
    statistic = f"ratio of pairwise distances of {points} Gaussian points, over {draws} draws"
    table = [
        {c: v for c, v in row.items() if c not in ("M", "modes")}
        for row in measured
        if row["M"] == shown
    ]
    compared = shown == PAPER_ROWS and any(row["N"] == 10_000 for row in table)
    run.table(
        "distances",
        table,
        caption=f"M = {shown}: {statistic}; storage in elements; ± one standard error. "
        "(reference): measured independently, not the paper's",
        key=["N", "method"],
        paper=REFERENCE if compared else (),
        source="reference",
    )
    for column in ("mean", "variance"):
        caption = f"{column} of the {statistic}, against M"
        run.table(f"distance_{column}s", wide(measured, column), caption=caption)
    if compared:
        run.metric("largest_difference_from_reference", _largest_difference(table))


def wide(measured: list[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """Pivots rows to one per N and method, with a column for each M."""
    out: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in measured:
        line = out.setdefault((row["N"], row["method"]), {"N": row["N"], "method": row["method"]})
        line[f"M = {row['M']}"] = row[column]
    return list(out.values())


def _largest_difference(table: list[dict[str, Any]]) -> float:
    """Computes the largest difference from the reference's means and variances.

    In standard errors of a difference; the reference is taken to have standard errors like ours.

    The reference is taken to have standard errors like ours.
    """
    ours = {(row["N"], row["method"]): row for row in table}
    return max(
        abs(ours[row["N"], row["method"]][c] - row[c])
        / (math.sqrt(2) * ours[row["N"], row["method"]][f"{c} ±"])
        for row in REFERENCE
        for c in ("mean", "variance")
    )
