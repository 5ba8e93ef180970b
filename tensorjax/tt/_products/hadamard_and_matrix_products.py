"""Products and weighted sums of trains, exact or rounded on the way."""

from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.arithmetic_operators import in_range, is_scalar
from tensorjax._formats.trains import TT, Train, TTMatrix, known, single
from tensorjax._kernels.train_signatures import is_known
from tensorjax._placement import placed
from tensorjax._typing import Key
from tensorjax.tt._broadcasting import broadcast_aligned
from tensorjax.tt._exact_arithmetic import add, scale
from tensorjax.tt._folding import fold, unfold
from tensorjax.tt._products import product_kernels
from tensorjax.tt._products.product_kernels import exact_hadamard, exact_matrix_product
from tensorjax.tt._rounding.round import round
from tensorjax.tt._rounding.sums_of_products import (
    Rank,
    rounded,
    rounded_by_grams,
    shape_of,
    term_of,
)


@placed
def hadamard(
    x: Train,
    y: Train,
    *,
    tol: float | None = None,
    rank: Rank = None,
    key: Key | None = None,
    oversample: int | None = None,
) -> Train:
    """Computes the entrywise (Hadamard) product of trains, exactly (TT-ranks multiply) or rounded.

    Args:
      x: TT or TTMatrix.
      y: of the same kind and shape; modes of size one are broadcast, as in NumPy, on both sides.
      tol: relative error, and with it ranks as found; see `linear_combination`.
      rank: TT-ranks of the result, static. The product, of ranks r², is not materialised.
      key: of the random sketches; a fixed draw if None.
      oversample: columns of the sketches above ``rank``; see `round`.

    Returns:
      Train of the kind and shape of both, in the promoted dtype: of TT-ranks r_k s_k, or as asked.

    Raises:
      TypeError: not two trains of one kind, or ``tol`` alone under a JAX transformation.
      ValueError: shapes differ; with ``tol`` or ``rank`` also impossible ones, NaN or Inf.

    Example:
      >>> from tensorjax import tt
      >>> two = tt.scale(tt.ones((2, 3)), 2.0)
      >>> print(tt.to_dense(tt.hadamard(two, two))[0])
      [4. 4. 4.]
      >>> tt.hadamard(two + two, two + two, rank=1).ranks
      (1, 1, 1)

    Source: Oseledets (2011), section 4.2; for the rounding, see `linear_combination`. Real
    products are written by compiled code in programs for a single CPU device. The first exact
    products of one shape of concrete trains on a CPU (ten small ones, three large ones) are
    NumPy's, with nothing compiled, and later ones one call of compiled code; so are those of
    `matvec` and `matmul` but for long sums over modes, which are NumPy's or a program's: others sum
    in another order and may differ by roundoff. The
    cores of one factor are scaled by powers of two where a product of cores would leave the range
    of the dtype, here and in `matvec` and `matmul`.
    """
    if tol is None and rank is None and is_known("hadamard", x, y):
        return product_kernels.in_one_call(x, y, "hadamard")
    x, y = broadcast_aligned(x, y)
    for name, t in (("x", x), ("y", y)):
        if t.cores[0].ndim != t._core_ndim:  # all else has been asked
            single(name, t)
    if tol is None and rank is None:
        done = product_kernels.product(x, y, "hadamard", x.cores[0].dtype)
        return exact_hadamard(x, y) if done is None else done
    if isinstance(x, TTMatrix) and isinstance(y, TTMatrix):
        out = rounded([(fold(x), fold(y))], [1.0], tol, rank, key, oversample)
        return unfold(out, x.row_shape, x.col_shape)
    return rounded([(x, y)], [1.0], tol, rank, key, oversample)


@placed
def matvec(
    a: TTMatrix,
    x: TT,
    *,
    tol: float | None = None,
    rank: Rank = None,
    key: Key | None = None,
    oversample: int | None = None,
) -> TT:
    """Computes the product A x of a TT-matrix and a train, exactly (TT-ranks multiply) or rounded.

    Args:
      a: TTMatrix with ``col_shape`` equal to ``x.shape``.
      x: TT.
      tol: relative error, and with it ranks as found; see `linear_combination`.
      rank: TT-ranks of the result, static. The exact product is not materialised.
      key: of the random sketches; a fixed draw if None.
      oversample: columns of the sketches above ``rank``; see `round`.

    Returns:
      TT of shape ``a.row_shape``.

    Raises:
      TypeError: wrong kinds. ValueError: the shapes do not match.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.matvec(tt.identity((2, 2)), tt.ones((2, 2)))))
      [[1. 1.]
       [1. 1.]]

    Source: Oseledets (2011), section 4.3; for the rounding, see `linear_combination`. On CPUs,
    ``rank`` is served by compiled sweeps for real trains, as in `round`.
    """
    if tol is None and rank is None and is_known("matvec", a, x):
        return product_kernels.in_one_call(a, x, "matvec")
    if not isinstance(a, TTMatrix) or not isinstance(x, TT):
        raise TypeError(f"expected (TTMatrix, TT), got {type(a).__name__}, {type(x).__name__}")
    known("a", a)
    known("x", x)
    if a.col_shape != x.shape:
        raise ValueError(f"x: expected shape {a.col_shape} (the columns of a), got {x.shape}")
    if tol is None and rank is None:
        done = product_kernels.product(a, x, "matvec")
        return exact_matrix_product(a, x, "matvec") if done is None else done
    return rounded([(a, x)], [1.0], tol, rank, key, oversample)


@placed
def matmul(
    a: TTMatrix,
    b: TTMatrix,
    *,
    tol: float | None = None,
    rank: Rank = None,
    key: Key | None = None,
    oversample: int | None = None,
) -> TTMatrix:
    """Computes the product A B of TT-matrices, exactly (TT-ranks multiply) or rounded.

    Args:
      a: TTMatrix.
      b: TTMatrix with ``row_shape`` equal to ``a.col_shape``.
      tol: relative error, and with it ranks as found; see `linear_combination`.
      rank: TT-ranks of the result, static. The exact product is not materialised.
      key: of the random sketches; a fixed draw if None.
      oversample: columns of the sketches above ``rank``; see `round`.

    Returns:
      TTMatrix of ``row_shape`` that of ``a`` and ``col_shape`` that of ``b``.

    Raises:
      TypeError: wrong kinds. ValueError: the shapes do not match.

    Example:
      >>> from tensorjax import tt
      >>> tt.matmul(tt.identity((2, 3)), tt.identity((2, 3))).shape
      (6, 6)

    Source: Oseledets (2011), section 4.3; for the rounding, see `linear_combination`.
    """
    if tol is None and rank is None and is_known("matmul", a, b):
        return product_kernels.in_one_call(a, b, "matmul")
    if not isinstance(a, TTMatrix) or not isinstance(b, TTMatrix):
        raise TypeError(f"expected two TTMatrix, got {type(a).__name__}, {type(b).__name__}")
    known("a", a)
    known("b", b)
    if a.col_shape != b.row_shape:
        raise ValueError(f"b: expected rows {a.col_shape} (the columns of a), got {b.row_shape}")
    if tol is None and rank is None:
        done = product_kernels.product(a, b, "matmul")
        return exact_matrix_product(a, b, "matmul") if done is None else done
    return unfold(rounded([(a, b)], [1.0], tol, rank, key, oversample), a.row_shape, b.col_shape)


@placed
def linear_combination(
    terms: Sequence[Any],
    weights: Sequence[Any] | None = None,
    *,
    tol: float | None = None,
    rank: Rank = None,
    method: Literal["randomized", "gram"] = "randomized",
    key: Key | None = None,
    oversample: int | None = None,
) -> TT:
    """Computes a weighted sum of tensor trains and their products (x * y, A x), exact or rounded.

    Neither the sum nor any product is materialised: for m terms of ranks r and a result of rank f
    it takes O(m d n r² f) operations, and O(d n r³ f) for a product of two trains of ranks r.

    Args:
      terms: one or more of one shape: a TT x; a pair of TT (x, y), for x * y; or a pair (A, x) of
        TTMatrix and TT, for A x.
      weights: as many scalars, traced or not; ones if None.
      tol: relative error of the result. Alone it finds the ranks, outside jit, on the host:
        sketches grow until an independent random sketch estimates that they miss a third of ``tol``
        or less; most of the rest is left to a truncation by singular values, which is exact. The
        estimate is random: an error above ``tol`` is improbable, not impossible. With ``rank``,
        shapes are those of ``rank`` and what ``tol`` discards is set to zero.
      rank: one int for all bonds or one per interior bond, cut where a bond cannot need as much,
        but not if a train goes in that `pad` has brought to ``rank``; see `round`. Static: jit,
        vmap and grad work. The error is within a few per cent of the best one, or of
        about 1e-11 of the sum in float64 where that is more.
      method: "randomized", or, with ``tol`` alone, "gram": Gram matrices over the bonds of all
        terms side by side. The tolerance is then proven; it takes O(d n m² r³) operations for m
        trains and O(d n r⁵) for a product of two; and where ``tol`` is near or below √eps, the sum
        is formed and rounded by SVD.
      key: of the random sketches; a fixed draw if None.
      oversample: columns of the sketches above ``rank``; see `round`.

    Returns:
      TT. With neither ``tol`` nor ``rank`` it is exact, and ranks add.

    Raises:
      TypeError: a term of another kind, or ``tol`` alone under a JAX transformation.
      ValueError: no terms, shapes or counts that do not match, tol < 10 eps, NaN or Inf.

    Example:
      >>> from tensorjax import tt
      >>> x = tt.ones((4, 4, 4))
      >>> tt.linear_combination([x, (tt.identity((4, 4, 4)), x), (x, x)], rank=2).ranks
      (1, 2, 2, 1)
      >>> tt.linear_combination([x] * 5, [1.0, 2.0, 3.0, 4.0, 5.0], tol=1e-4).ranks
      (1, 1, 1, 1)

    Source: H. Al Daas et al., "Randomized algorithms for rounding in the tensor-train format", SIAM
    J. Sci. Comput. 45 (2023), algorithm 3.2, for sums; Al Daas, Ballard, Manning, "Parallel tensor
    train rounding using Gram SVD" (2022) ("gram"). Ours: products, the random train (that of
    `round`), the truncation at the end, and the tolerance.
    """
    given = _check.several("terms", terms, "trains, or pairs of them")
    pairs = [term_of(f"terms[{i}]", term) for i, term in enumerate(given)]
    given = [1.0] * len(pairs) if weights is None else weights
    weights = list(_check.several("weights", given, "numbers"))
    if not pairs or len(weights) != len(pairs):
        raise ValueError(
            "terms: expected one or more, with one weight each, "
            f"got {len(pairs)} and {len(weights)} weights"
        )
    shapes = [shape_of(term) for term in pairs]
    if any(s != shapes[0] for s in shapes):
        raise ValueError(f"terms: expected one shape, got {shapes}")
    dtype = jnp.result_type(*(t.dtype for term in pairs for t in term))
    if any(map(jnp.iscomplexobj, weights)) and not jnp.issubdtype(dtype, jnp.complexfloating):
        dtype = jnp.complex64 if jnp.finfo(dtype).bits <= 32 else jnp.complex128
    pairs = [tuple(t.astype(dtype) for t in term) for term in pairs]
    for i, weight in enumerate(weights):
        pairs[i], weights[i] = _weighted(f"weights[{i}]", pairs[i], weight, dtype)
    _check.choice("method", method, ("randomized", "gram"))
    if method == "gram":
        if tol is None or rank is not None:
            raise ValueError(
                f'method: "gram" finds the ranks; expected tol= alone with it, got tol={tol} and '
                f"rank={rank}"
            )
        found = rounded_by_grams(pairs, weights, tol)
        return round(_formed(pairs, weights, dtype), tol=tol) if found is None else found
    if tol is not None or rank is not None:
        return rounded(pairs, weights, tol, rank, key, oversample)
    return _formed(pairs, weights, dtype)


def _weighted(name: str, term: Any, weight: Any, dtype: Any) -> tuple[Any, Any]:
    """Checks a weight in `linear_combination`; scales the train by it if that is out of range."""
    if not is_scalar(weight):
        raise TypeError(f"{name}: expected a number, got {weight!r}")
    if _check.is_traced(weight):
        return term, weight
    _check.finite(name, weight)
    number = np.asarray(weight).item()
    if in_range(number, dtype):
        return term, weight
    return (*term[:-1], scale(term[-1], number)), 1.0


def _formed(pairs: Sequence[Any], weights: Sequence[Any], dtype: Any) -> TT:
    """Forms `linear_combination` exactly: weighted trains and products of trains; TT-ranks add."""
    total = None
    for term, weight in zip(pairs, weights, strict=True):
        one = term[0] if len(term) == 1 else _product(*term)
        one = scale(one, jnp.asarray(weight).astype(dtype))
        total = one if total is None else add(total, one)
    assert total is not None
    return total


def _product(first: Any, second: TT) -> TT:
    return hadamard(first, second) if isinstance(first, TT) else matvec(first, second)
