"""Sums and products of functional trains, rounding in L², and functions of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from tensorjax._placement import placed
from tensorjax._typing import Key, Rank
from tensorjax.tt import _constructors as constructors
from tensorjax.tt import _exact_arithmetic as trains
from tensorjax.tt._products.hadamard_and_matrix_products import hadamard
from tensorjax.tt._rounding import round as rounding
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.chebyshev import Chebyshev
from tensorjax.tt.functions.evaluation import evaluate
from tensorjax.tt.functions.function_train import (
    FunctionTrain,
    check_boxes,
    checked,
    on_common_bases,
    times_modes,
)
from tensorjax.tt.functions.interpolation import interpolate
from tensorjax.tt.functions.interpolation_error import InterpolateInfo


@placed
def add(f: FunctionTrain, g: FunctionTrain) -> FunctionTrain:
    """Adds two functional trains on one box, the operator ``+``; TT-ranks add.

    Args:
      f: functional train.
      g: functional train on the same box; bases may have other degrees.

    Returns:
      `FunctionTrain` in bases that hold both exactly.

    Raises:
      ValueError: another box, or bases of another kind.

    Example:
      >>> from tensorjax import tt
      >>> f, g = (
      ...     tt.functions.FunctionTrain([tt.functions.Chebyshev(n)], tt.ones((n + 1,)))
      ...     for n in (1, 2)
      ... )
      >>> (f + g).bases, f"{(f + g)([1.0]):.3f}"
      ((Chebyshev(degree=2, low=-1.0, high=1.0),), '5.000')

    Source: Oseledets (2011), section 4.1, in bases common to both.
    """
    bases, x, y = on_common_bases(f, g)
    return FunctionTrain._unchecked(bases, trains.add(x, y))


@placed
def ones_like(f: FunctionTrain) -> FunctionTrain:
    """Constructs the function 1 in the bases and dtype of a functional train; TT-ranks are one.

    Args:
      f: functional train.

    Returns:
      `FunctionTrain`.

    Raises:
      TypeError: no functional train.

    Example:
      >>> from tensorjax import tt
      >>> f = tt.functions.FunctionTrain([tt.functions.Chebyshev(2)] * 2, tt.ones((3, 3)))
      >>> print(f"{tt.functions.ones_like(f)([0.3, 0.7]):.4f}")
      1.0000

    Source: ours.
    """
    vectors = [np.asarray(b.constant, f.dtype) for b in checked(f).bases]
    return FunctionTrain._unchecked(f.bases, constructors.rank_one(vectors))


@placed
def multiply(
    f: FunctionTrain,
    g: FunctionTrain,
    *,
    tol: float | None = None,
    rank: Rank | None = None,
) -> FunctionTrain:
    """Multiplies two functional trains on one box, the operator ``*``; degrees add.

    Args:
      f: functional train.
      g: functional train on the same box.
      tol: relative error in L² of a rounding of the product; outside jit.
      rank: TT-ranks of the result; static. With neither, TT-ranks multiply.

    Returns:
      `FunctionTrain` in bases that hold the product.

    Raises:
      ValueError: another box, or bases of another kind.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> f = tt.functions.FunctionTrain([tt.functions.Chebyshev(1)], tt.TT([jnp.ones((1, 2, 1))]))
      >>> (f * f).bases[0].degree, f"{(f * f)([0.5]):.4f}"   # (1 + x)²
      (2, '2.2500')

    Source: ours: products of values at points that determine the product in its basis.
    """
    check_boxes(f, g)
    bases: list[Basis] = []
    at_f, at_g, back = {}, {}, {}
    for k, (a, b) in enumerate(zip(f.bases, g.bases, strict=True)):
        basis, points, back[k] = a.product(b)
        bases.append(basis)
        at_f[k], at_g[k] = a.values(points), b.values(points)
    values = hadamard(times_modes(f.coefficients, at_f), times_modes(g.coefficients, at_g))
    out = FunctionTrain._unchecked(tuple(bases), times_modes(values, back))
    return out if tol is None and rank is None else round(out, tol=tol, rank=rank)


@placed
def round(f: FunctionTrain, *, tol: float | None = None, rank: Rank | None = None) -> FunctionTrain:
    """Rounds a functional train to lower TT-ranks, with the error measured in L² over the box.

    Args:
      f: functional train.
      tol: relative error in L²; outside jit.
      rank: largest TT-ranks, static; with ``tol`` under jit, the rest is zero.

    Returns:
      `FunctionTrain` in the same bases.

    Raises:
      ValueError: neither tol nor rank.
      TypeError: tol alone under a transformation.

    Example:
      >>> from tensorjax import tt
      >>> f = tt.functions.FunctionTrain([tt.functions.Chebyshev(2)] * 2, tt.ones((3, 3)))
      >>> tt.functions.round(f + f, tol=1e-5).ranks
      (1, 1, 1)

    Source: Oseledets (2011), algorithm 2, in bases that are orthonormal in L² (Bigoni et al. 2016).
    """
    checked(f)
    there = {k: b.orthonormal for k, b in enumerate(f.bases)}
    back = {k: scipy.linalg.solve_triangular(r, np.eye(len(r))) for k, r in there.items()}
    rounded = rounding.round(times_modes(f.coefficients, there), tol=tol, rank=rank)
    return FunctionTrain._unchecked(f.bases, times_modes(rounded, back))


def compose(
    outer: Callable[..., Any],
    *functions: FunctionTrain,
    tol: float,
    key: Key | None = None,
    **options: Any,
) -> tuple[FunctionTrain, InterpolateInfo]:
    """Interpolates x ↦ outer(f(x), g(x), …) of functional trains by a new functional train.

    Args:
      outer: takes one array (batch,) of values for each function, and returns (batch,) values.
      functions: one or more functional trains on one box.
      tol: relative error asked for, see `interpolate`.
      key: of `jax.random`; of seed 0 if None.
      options: others of `interpolate`, as ``max_rank`` and ``max_degree``.

    Returns:
      (`FunctionTrain`, `InterpolateInfo`); degrees are chosen anew, except of bases that are no
      Chebyshev polynomials, which are kept.

    Raises:
      ValueError: no function, another box, values of ``outer`` that are not finite.

    Example:
      >>> import jax, numpy as np
      >>> from tensorjax import tt
      >>> f, _ = tt.functions.interpolate(lambda x: x.sum(axis=1), [(0, 1)] * 3, tol=1e-5)
      >>> root, info = tt.functions.compose(lambda u: np.sqrt(1 + u), f, tol=1e-4)
      >>> info.status, bool(abs(root([0.5, 0.5, 1.0]) - 3**0.5) < 1e-3)
      ('converged', True)

    Source: ours; as `tensorjax.tt.map`, by cross approximation.
    """
    if not functions:
        raise ValueError("functions: expected one or more functional trains, got none")
    for g in functions:
        check_boxes(functions[0], g)

    def values(x: np.ndarray) -> Any:
        return outer(*(np.asarray(evaluate(g, x)) for g in functions))

    bases = functions[0].bases
    domain = [(b.low, b.high) if isinstance(b, Chebyshev) else b for b in bases]
    return interpolate(values, domain, tol=tol, key=key, jit=False, **options)
