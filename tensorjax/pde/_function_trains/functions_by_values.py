"""Approximation of functions on a box by trains, from their values at selected points."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tensorjax import _check, tt
from tensorjax._cores import products
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains import concentrated_functions as skeleton
from tensorjax.pde._function_trains.concentrated_functions import Draw


def crossed(
    name: str,
    f: Callable[[Any], Any],
    box: Box,
    tol: float,
    seed: int = 0,
    max_rank: int | None = None,
) -> Cores:
    """Approximates a function by a tensor train from its values on a PDE grid, by TT-cross."""
    if len(box.shape) == 1:  # all values are asked for, and have no ranks
        values = np.asarray(_finite(name, f(box.points[0][:, None])))
        flat = values.reshape(len(values), -1)
        return [flat[None], *([np.eye(flat.shape[1])[:, :, None]] if values.ndim > 1 else [])]
    # Cross approximation takes half of it for its search, which has to be 10 eps or more.
    tol = max(tol, 20 * float(np.finfo(jax.dtypes.canonicalize_dtype(float)).eps))
    key = jax.random.key(seed)
    train, info = tt.cross(
        f, box.shape, tol=tol, key=key, max_rank=max_rank, grid=box.points, jit=False
    )
    # A field that is zero wherever it was looked at may well be zero; a density may not.
    zero = info.status == "zero" and name != "start"
    if info.status != "converged" and not (zero or info.error <= 10 * tol):
        raise ValueError(
            f"{name}: expected a function of low TT-ranks, got a relative error of "
            f"{info.error:.1g} for tol = {tol:.1g} ({info.status}); {info.advice}; for a narrow "
            "function give near=, a density that is large where it is"
        )
    return hosted_cores(train)


def drawn(
    name: str, f: Callable[[Any], Any], box: Box, tol: float, draw: Draw, seed: int = 0
) -> Cores:
    """Approximates a function on a grid by a tensor train, from random points drawn by ``draw``."""

    def of_index(index: np.ndarray) -> np.ndarray:
        points = zip(box.points, index.T, strict=True)
        return _finite(name, f(np.stack([p[i] for p, i in points], 1)))

    return _found(name, of_index, box.shape, tol, draw, seed)


def entrywise(f: Callable[[Any], Any], v: TT, tol: float) -> Cores:
    """Approximates f(v), entry by entry of a tensor train v, by a train from sampled entries."""
    cores, name = hosted_cores(v), "reaction"
    if len(cores) == 1:  # all entries are there, and have no ranks
        return [_finite(name, f(cores[0].ravel())).reshape(cores[0].shape)]
    rest = float(_finite(name, f(np.zeros(1)))[0])

    def of_values(values: np.ndarray) -> np.ndarray:
        return _finite(name, f(values.ravel())).reshape(values.shape) - rest

    pairs = skeleton.table_of(cores)
    out = _found(
        name,
        lambda index: of_values(skeleton.entries(cores, index)),
        v.shape,
        tol,
        skeleton.from_train(cores, tol),
        table=lambda left, right: of_values(pairs(left, right)),
    )
    ones = [np.ones((1, n, 1)) for n in v.shape]
    return products.combined([out, ones], [1.0, rest]) if rest else out


def _found(
    name: str, f: Any, shape: Any, tol: float, draw: Draw, seed: int = 0, table: Any = None
) -> Cores:
    cores, error = skeleton.skeleton(f, shape, draw, tol, np.random.default_rng(seed), table)
    if not error <= 10 * tol:
        raise ValueError(
            f"{name}: expected a function of low TT-ranks, got a relative error of {error:.1g} for "
            f"tol = {tol:.1g}; ask for less accuracy, or choose coordinates that suit it"
        )
    return cores


def _finite(name: str, values: Any) -> np.ndarray:
    values = np.asarray(values, np.float64)
    _check.finite(name, values)
    return values
