"""Products and sums of trains: exact, or rounded without materialising the exact result."""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, _native, linalg
from tensorjax._cores import rounding_sweeps as sweeps
from tensorjax._cores.placement import placed_like
from tensorjax._cores.products import matmul_core, matvec_core
from tensorjax._cores.ranks import cut_ranks, rank_bounds
from tensorjax._cores.scaling import balanced
from tensorjax._formats.trains import TT, TTMatrix, known, single
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.table import CPP, TRACE
from tensorjax._placement import placed
from tensorjax._typing import Key
from tensorjax.tt import _products_on_host
from tensorjax.tt._algebra import (
    _aligned,
    add,
    exact_hadamard,
    exact_product,
    fold,
    scale,
    unfold,
)
from tensorjax.tt._broadcasting import together
from tensorjax.tt._padding import padded_ranks, padded_to
from tensorjax.tt._rounding import rounded_sums as fused
from tensorjax.tt._rounding.rounding import round

Train = TypeVar("Train", TT, TTMatrix)
Rank = int | Sequence[int] | None


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
    """Multiplies trains entry by entry; TT-ranks multiply, or are rounded at once.

    Args:
      x: TT or TTMatrix.
      y: of the same kind and shape; modes of size one are broadcast, as in NumPy, on both sides.
      tol: relative error, and with it ranks as found; see `linear_combination`.
      rank: TT-ranks of the result, static. The product, of ranks r², is not materialised.
      key: of the random sketches; a fixed draw if None.
      oversample: columns of the sketches above ``rank``; see `round`.

    Example:
      >>> from tensorjax import tt
      >>> two = tt.scale(tt.ones((2, 3)), 2.0)
      >>> print(tt.to_dense(tt.hadamard(two, two))[0])
      [4. 4. 4.]
      >>> tt.hadamard(two + two, two + two, rank=1).ranks
      (1, 1, 1)

    Source: Oseledets (2011), section 4.2; for the rounding, see `linear_combination`. Large real
    products are written by compiled code in programs for a single CPU device. The first exact
    products of one shape of concrete trains on a CPU (ten small ones, three large ones) are
    NumPy's, with nothing compiled; so are those of `matvec` and `matmul`, where a program sums in
    another order and may differ by roundoff. Of concrete trains on a CPU the cores are scaled by
    powers of two where a product of cores would leave the range of the dtype; under a
    transformation and on other devices bring the trains into range first (`normalize`).
    """
    x, y = _aligned(*together(x, y))
    single("x", x)
    single("y", y)
    if tol is None and rank is None:
        return _products_on_host.product(x, y, "hadamard") or exact_hadamard(x, y)
    if isinstance(x, TTMatrix) and isinstance(y, TTMatrix):
        out = _rounded([(fold(x), fold(y))], [1.0], tol, rank, key, oversample)
        return unfold(out, x.row_shape, x.col_shape)
    return _rounded([(x, y)], [1.0], tol, rank, key, oversample)


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
    """Multiplies a TT-matrix (rows m_k, columns n_k) by a train of shape n: A x.

    TT-ranks multiply, or are brought down at once.

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
    if not isinstance(a, TTMatrix) or not isinstance(x, TT):
        raise TypeError(f"expected (TTMatrix, TT), got {type(a).__name__}, {type(x).__name__}")
    known("a", a)
    known("x", x)
    if a.col_shape != x.shape:
        raise ValueError(f"x: expected shape {a.col_shape} (the columns of a), got {x.shape}")
    if tol is None and rank is None:
        return _products_on_host.product(a, x, "matvec") or exact_product(a, x, matvec_core, TT)
    return _rounded([(a, x)], [1.0], tol, rank, key, oversample)


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
    """Multiplies TT-matrices, A B; TT-ranks multiply, or are rounded at once.

    Args:
      a: TTMatrix.
      b: TTMatrix with ``row_shape`` equal to ``a.col_shape``.
      tol: relative error, and with it ranks as found; see `linear_combination`.
      rank: TT-ranks of the result, static. The exact product is not materialised.
      key: of the random sketches; a fixed draw if None.
      oversample: columns of the sketches above ``rank``; see `round`.

    Example:
      >>> from tensorjax import tt
      >>> tt.matmul(tt.identity((2, 3)), tt.identity((2, 3))).shape
      (6, 6)
    """
    if not isinstance(a, TTMatrix) or not isinstance(b, TTMatrix):
        raise TypeError(f"expected two TTMatrix, got {type(a).__name__}, {type(b).__name__}")
    known("a", a)
    known("b", b)
    if a.col_shape != b.row_shape:
        raise ValueError(f"b: expected rows {a.col_shape} (the columns of a), got {b.row_shape}")
    if tol is None and rank is None:
        out = _products_on_host.product(a, b, "matmul")
        return out or exact_product(a, b, matmul_core, TTMatrix)
    return unfold(_rounded([(a, b)], [1.0], tol, rank, key, oversample), a.row_shape, b.col_shape)


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
    """Sums trains and products of trains with weights; rounded in one pass, if asked.

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
    pairs = [term_of(f"terms[{i}]", term) for i, term in enumerate(terms)]
    weights = [1.0] * len(pairs) if weights is None else list(weights)
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
    if method not in ("randomized", "gram"):
        raise ValueError(f'method: expected "randomized" or "gram", got {method!r}')
    if method == "gram":
        if tol is None or rank is not None:
            raise ValueError('method: "gram" finds the ranks; expected tol= alone with it')
        return _rounded_by_grams(pairs, weights, tol)
    if tol is not None or rank is not None:
        return _rounded(pairs, weights, tol, rank, key, oversample)
    return _formed(pairs, weights, dtype)


def _formed(pairs: Sequence[Any], weights: Sequence[Any], dtype: Any) -> TT:
    """Computes the exact sum of products of trains; TT-ranks add."""
    total = None
    for term, weight in zip(pairs, weights, strict=True):
        one = term[0] if len(term) == 1 else _product(*term)
        one = scale(one, jnp.asarray(weight).astype(dtype))
        total = one if total is None else add(total, one)
    assert total is not None
    return total


def term_of(name: str, term: Any) -> tuple[Any, ...]:
    """Checks a term of a sum of products and returns it as a tuple of trains."""
    factors = tuple(term) if isinstance(term, tuple | list) else (term,)
    kinds = [type(t) for t in factors]
    if kinds not in ([TT], [TT, TT], [TTMatrix, TT]):
        raise TypeError(
            f"{name}: expected a TT, or a pair (TT, TT) or (TTMatrix, TT), "
            f"got {', '.join(k.__name__ for k in kinds)}"
        )
    for t in factors:
        single(name, t)
    inner = factors[0].col_shape if kinds[0] is TTMatrix else factors[0].shape
    if inner != factors[-1].shape:
        raise ValueError(
            f"{name}: expected a second factor of shape {inner}, got {factors[-1].shape}"
        )
    return factors


def shape_of(term: tuple[Any, ...]) -> tuple[int, ...]:
    return term[0].row_shape if isinstance(term[0], TTMatrix) else term[0].shape


def _product(first: Any, second: TT) -> TT:
    return hadamard(first, second) if isinstance(first, TT) else matvec(first, second)


def factors_of(term: tuple[Any, ...], dtype: Any) -> list[tuple[Any, ...]]:
    """Returns the cores of a product's factors, by modes; a vector after a matrix as column."""
    out = []
    for cores in zip(*(t.cores for t in term), strict=True):
        cores = [c.astype(dtype) for c in cores]
        if len(cores) == 2 and cores[0].ndim > cores[1].ndim:
            cores[1] = cores[1][:, :, None, :]
        out.append(tuple(cores))
    return out


def _rounded(
    terms: Sequence[Any],
    weights: Sequence[Any],
    tol: Any,
    rank: Rank,
    key: Any,
    oversample: int | None,
) -> TT:
    if oversample is not None:
        oversample = _check.integer("oversample", oversample, low=0)
    _check.tol_or_rank(tol, rank, *terms, *weights)
    for i, term in enumerate(terms):
        _check.finite(f"terms[{i}]" if len(terms) > 1 else "x, y", term)
    dtype = jnp.result_type(*(t.dtype for term in terms for t in term))
    tol = None if tol is None else _check.tolerance(tol, dtype)
    given = terms[0][-1].cores
    if rank is None:
        out = _dynamic(terms, weights, tol, key, dtype)
        return TT._unchecked(placed_like(out.cores, given))
    full, modes = _full_ranks(terms)
    wanted = _check.bond_ranks(rank, rank_bounds(modes))
    ranks = cut_ranks((1, *map(min, wanted, full), 1), modes)[1:-1]
    weights = [jnp.asarray(w).astype(dtype) for w in weights]
    extra = sweeps.oversampled(ranks, oversample)
    out = _static(tuple(map(tuple, terms)), tuple(weights), tol, key, ranks, extra)
    shape = padded_ranks(rank, ranks, [t for term in terms for t in term])
    if shape != out.ranks[1:-1]:
        out = padded_to(out, shape)
    return TT._unchecked(placed_like(out.cores, given))


def _rounded_by_grams(terms: Sequence[Any], weights: Sequence[Any], tol: Any) -> TT:
    _check.tol_or_rank(tol, None, *terms, *weights)
    _check.finite("terms", terms)
    dtype = jnp.result_type(*(t.dtype for term in terms for t in term))
    tol = _check.tolerance(tol, dtype)
    wide = np.result_type(linalg.factor_dtype(dtype), np.float64)
    factors = [factors_of(jax.tree.map(np.asarray, term), wide) for term in terms]
    scaled = [np.asarray(w).astype(wide) for w in weights]
    # Part of the tolerance pays for rounding the cores to a narrower dtype.
    share = max(tol**2 - len(factors[0]) * (linalg.epsilon(dtype) / 2) ** 2, tol**2 / 4)
    if len(factors[0]) > 1:
        try:
            cores = balanced(*fused.by_grams(factors, scaled, share))
            found = TT._unchecked(tuple(jax.device_put([c.astype(dtype) for c in cores])))
            return TT._unchecked(placed_like(found.cores, terms[0][-1].cores))
        except sweeps.InaccurateGram:
            pass
    return round(_formed(terms, weights, dtype), tol=tol)


def _full_ranks(terms: Sequence[Any]) -> tuple[tuple[int, ...], list[int]]:
    """Returns ranks that the sum of the products cannot exceed, and its modes."""
    first, *second = terms[0]
    columns = [n for t in second if isinstance(t, TTMatrix) for n in t.col_shape]
    modes = [m * n for m, n in zip(shape_of(terms[0]), columns or [1] * first.order, strict=True)]
    bonds = [[math.prod(r) for r in zip(*(t.ranks for t in term), strict=True)] for term in terms]
    total = [sum(r) for r in zip(*bonds, strict=True)]
    return cut_ranks((1, *total[1:-1], 1), modes)[1:-1], modes


@jax.jit(static_argnums=(4, 5))
def _static(terms: Any, weights: Any, tol: Any, key: Any, ranks: tuple[int, ...], extra: int) -> TT:
    dtype = jnp.result_type(*(t.dtype for term in terms for t in term))
    work = linalg.factor_dtype(dtype)
    if _is_cpp(terms, tol, work):
        pair = [t.astype(work) for t in terms[0]]
        cores = _either(*pair, weights[0].astype(work), key, ranks, extra)
        return TT._unchecked(tuple(c.astype(dtype) for c in cores))
    return _by_xla(terms, weights, tol, key, ranks, extra)


def _is_cpp(terms: Any, tol: Any, dtype: Any) -> bool:
    """Whether C++ rounds this sum of products in programs for CPUs: one matrix times a vector."""
    a, x = terms[0][0], terms[0][-1]
    one = len(terms) == 1 and isinstance(a, TTMatrix) and isinstance(x, TT)
    shape = [m * n for m, n in zip(a.row_shape, x.shape, strict=True)] if one else []
    facts: dict[str, Any] = {"static": tol is None, "one_product": one, "exact": False}
    like = jax.ShapeDtypeStruct((), dtype)
    facts |= {"shape": shape, "ranks": x.ranks}
    return choose_kernel("tt.matvec(rank=)", (like,), TRACE, **facts) is CPP


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def _either(
    a: TTMatrix, x: TT, weight: Any, key: Any, ranks: tuple[int, ...], extra: int
) -> list[Any]:
    results = _native.rounded_shapes(a.cores, ranks)
    static, operands = (ranks, extra), (a, x, weight, key)
    kernels = "tt.matvec(rank=)", _by_sweeps, _one_by_xla
    return cpp_or_xla(*kernels, *operands, static=static, results=results)


def _by_sweeps(
    ranks: tuple[int, ...], extra: int, a: TTMatrix, x: TT, weight: Any, key: Any
) -> list[Any]:
    draw, mix = sweeps.random_train(list(a.cores), max(ranks) + extra, key)
    *first, last = _native.round_to_ranks(x.cores, draw, mix, ranks, a.cores)
    return [*first, weight * last]


def _one_by_xla(
    ranks: tuple[int, ...], extra: int, a: TTMatrix, x: TT, weight: Any, key: Any
) -> list[Any]:
    return list(_by_xla([(a, x)], [weight], None, key, ranks, extra).cores)


@_either.defjvp
def _either_jvp(ranks: tuple[int, ...], extra: int, primals: Any, tangents: Any) -> Any:
    """Differentiates XLA's sweeps for a product; C++ ones use the same random train."""
    *arrays, key = primals
    differentiable = functools.partial(_one_by_xla, ranks, extra, key=key)
    return jax.jvp(differentiable, tuple(arrays), tuple(tangents[:-1]))


def _by_xla(terms: Any, weights: Any, tol: Any, key: Any, ranks: tuple[int, ...], extra: int) -> TT:
    dtype = jnp.result_type(*(t.dtype for term in terms for t in term))
    work = linalg.factor_dtype(dtype)
    factors = [factors_of(term, work) for term in terms]
    full, modes = _full_ranks(terms)
    widths = cut_ranks(
        (1, *(min(r + extra, f) for r, f in zip(ranks, full, strict=True)), 1), modes
    )
    weights = [w.astype(work) for w in weights]
    cores, exponent = fused.projected(factors, weights, widths[1:-1], key)
    if tol is not None and len(modes) > 1:
        cores = round(TT._unchecked(tuple(cores)), rank=ranks, tol=tol, method="svd").cores
    elif len(modes) > 1 and widths[1:-1] != ranks:
        cores = sweeps.truncate_back(cores, [None] * len(ranks), ranks)
    cores = sweeps.scaled_back(list(cores), exponent + jnp.zeros((), jnp.int32))
    return TT._unchecked(tuple(c.astype(dtype) for c in cores))


def _dynamic(terms: Sequence[Any], weights: Sequence[Any], tol: float, key: Any, dtype: Any) -> TT:
    """Rounds a sum of products to a tolerance on the host: sketches widen until they suffice."""
    wide = np.result_type(linalg.factor_dtype(dtype), np.float64)
    hosted = [tuple(jax.tree.map(np.asarray, t) for t in term) for term in terms]
    factors = [factors_of(term, wide) for term in hosted]
    weights = [np.asarray(w).astype(wide) for w in weights]
    keys = (None, None) if key is None else jax.random.split(key)
    probe = jax.random.key(1) if keys[1] is None else keys[1]
    cores, exact = fused.within(factors, weights, tol, keys[0], probe)
    found = TT._unchecked(tuple(jax.device_put(cores)))
    if len(cores) > 1:
        part = tol if exact else max(fused.TRUNCATION * tol, 10 * linalg.epsilon(wide))
        found = round(found, tol=part)
    return found.astype(dtype)
