"""Rank-one inputs, the worst case of a Kronecker map: sampled and exact variance."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments import Run
from experiments.ttrp.methods import (
    CP_ROWS,
    GAUSSIAN,
    TRP,
    TT_ROWS,
    TTRP,
    TTRP_2,
    TTRP_GAUSSIAN,
    Method,
    Shape,
    moments,
    outline,
    over_draws,
    storage,
)
from tensorjax import sketch, tt

METHODS = (GAUSSIAN, TRP, TT_ROWS, CP_ROWS, TTRP, TTRP_GAUSSIAN, TTRP_2)
FEW_METHODS = (GAUSSIAN, TRP, TTRP, TTRP_GAUSSIAN)
MANY_ROWS = 1024  # m^d with d = 1, 2, 5 and 10
_MOST_DRAWS = 2**20


def roots(size: int) -> dict[int, int]:
    """Returns all d and m with m^d = size and m ≥ 2, as a dictionary.

    >>> roots(64)
    {1: 64, 2: 8, 3: 4, 6: 2}
    """
    orders = range(1, size.bit_length())
    return {d: m for d in orders if (m := round(size ** (1 / d))) ** d == size}


def rank_one(key: jax.Array, shape: Shape) -> tt.TT:
    """Draws a rank-one train of Gaussian factors, each of norm one."""
    keys = jax.random.split(key, len(shape))
    vectors = [jax.random.normal(k, (n,)) for k, n in zip(keys, shape, strict=True)]
    return tt.rank_one([v / jnp.linalg.norm(v) for v in vectors])


def squared_norm(p: Any, x: tt.TT) -> jax.Array:
    """Computes the squared norm of a projected train."""
    y = sketch.apply(p, x)
    return tt.inner(y, y) if isinstance(y, tt.TT) else jnp.vdot(y, y)


def measure(
    run: Run, *, methods: Sequence[Method], rows: int, numbers: int, seed: int
) -> list[dict[str, Any]]:
    """Measures the variance of ‖f(x)‖²/‖x‖² against the number of factors; records tables.

    Args:
        run: where the tables go.
        methods: which maps.
        rows: M of the sampled maps.
        numbers: how many random numbers to draw for one row of the table; it sets the count of
            draws, which is at most a million.
        seed: of the inputs and the maps.
    """
    cases = [(d, m, method) for d, m in roots(rows).items() for method in methods]
    sampled = [
        _sampled(method, d, m, numbers, seed)
        for d, m, method in run.progress(cases, "rank-one inputs, (d, method)")
    ]
    run.table(
        "rank_one",
        sampled,
        caption=f"M = {rows} = m^d: mean and variance of ‖f(x)‖²/‖x‖² for a rank-one x, sampled "
        "and exact; ± one standard error, itself too small where the tail is long",
        key=["d", "method"],
    )
    with jax.enable_x64(True):
        exact = [_exact(methods, d, m, seed) for d, m in roots(MANY_ROWS).items()]
    run.table(
        "rank_one_exact",
        exact,
        caption=f"M = {MANY_ROWS} = m^d: exact variance of ‖f(x)‖²/‖x‖² for a rank-one x",
        key=["d"],
    )
    run.metric("exact_variance_of_TTRP_Gaussian_with_ten_factors", exact[-1][TTRP_GAUSSIAN.name])
    return sampled


def _sampled(method: Method, d: int, m: int, numbers: int, seed: int) -> dict[str, Any]:
    shapes = (2 * m,) * d, (m,) * d
    draws = min(_MOST_DRAWS, max(64, numbers // storage(method, *shapes)))
    data, maps = jax.random.split(jax.random.key(seed + d))
    x = rank_one(data, shapes[0])
    # A count that splits well into groups of draws.
    keys = jax.random.split(maps, 2 ** int(math.log2(draws)))
    sample = moments(over_draws(squared_norm, method, shapes, keys, x))
    exact = float(sketch.variance(outline(method, *shapes), x, relative=True))
    return {
        "M": m**d,
        "d": d,
        "m": m,
        "method": method.name,
        "draws": len(keys),
        **sample,
        "exact": exact,
    }


def _exact(methods: Sequence[Method], d: int, m: int, seed: int) -> dict[str, Any]:
    """Computes the exact variance of each map for one number of factors."""
    row: dict[str, Any] = {"M": m**d, "d": d, "m": m}
    x = rank_one(jax.random.key(seed + d), (2 * m,) * d)
    for method in methods:
        if method is GAUSSIAN:  # the same for every x, so any N will do
            row[method.name] = sketch.variance_bound(outline(method, (1,), (MANY_ROWS,)))
        else:
            p = outline(method, (2 * m,) * d, (m,) * d)
            row[method.name] = float(sketch.variance(p, x, relative=True))
    return row
