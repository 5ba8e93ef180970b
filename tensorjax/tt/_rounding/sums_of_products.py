"""Rounding of weighted sums of trains and of products of trains, to a tolerance or to ranks."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _check, _native, linalg
from tensorjax._cores import gram_rounding, randomized_rounding, scaling, truncation_sweeps
from tensorjax._cores.products import hadamard_core, matmul_core
from tensorjax._cores.ranks import cut_ranks, rank_bounds
from tensorjax._cores.scaling import balanced
from tensorjax._formats.random_arrays import split_keys
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._formats.zero_padding import is_empty, narrowed, widened
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.table import CPP, NUMPY, TRACE
from tensorjax._placement import placed_like
from tensorjax._transfer import on_device
from tensorjax.tt._rank_padding import padded_ranks, padded_to
from tensorjax.tt._rounding import sums_by_sketches_or_grams as fused
from tensorjax.tt._rounding.round import round

Rank = int | Sequence[int] | None
# Multiplications up to which an exact product is formed and rounded: sketches, whose widths are
# tried one after the other, take longer there, and their error is an estimate.
_EXACT_WORK = 1e8


def term_of(name: str, term: Any) -> tuple[Any, ...]:
    """Returns a term of a sum of products as a tuple of tensor trains; raises if unfit."""
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


def factors_of(term: tuple[Any, ...], dtype: Any) -> list[tuple[Any, ...]]:
    """Returns the cores of one product in a sum of products: a tuple of factors per mode."""
    out = []
    for cores in zip(*(t.cores for t in term), strict=True):
        cores = [c.astype(dtype) for c in cores]
        if len(cores) == 2 and cores[0].ndim > cores[1].ndim:
            cores[1] = cores[1][:, :, None, :]
        out.append(tuple(cores))
    return out


def rounded(
    terms: Sequence[Any],
    weights: Sequence[Any],
    tol: Any,
    rank: Rank,
    key: Any,
    oversample: int | None,
) -> TT:
    """Rounds a sum of products of trains to a tolerance, to ranks, or to both."""
    if oversample is not None:
        oversample = _check.integer("oversample", oversample, low=0)
    _check.tol_or_rank(tol, rank, *terms, *weights)
    for i, term in enumerate(terms):
        _check.finite(f"terms[{i}]" if len(terms) > 1 else "x, y", term)
    dtype = jnp.result_type(*(t.dtype for term in terms for t in term))
    tol = None if tol is None else _check.tolerance(tol, dtype)
    given, modes_of_result = terms[0][-1].cores, _full_ranks(terms)[1]
    terms = [tuple(map(widened, term)) for term in terms]
    if key is not None:
        _check.key(key)
    if rank is None:
        out = _dynamic(terms, weights, tol, key, dtype)
        return narrowed(TT._unchecked(placed_like(out.cores, given)), modes_of_result)
    full, modes = _full_ranks(terms)
    wanted = _check.bond_ranks(rank, rank_bounds(modes))
    ranks = cut_ranks((1, *map(min, wanted, full), 1), modes)[1:-1]
    extra = randomized_rounding.oversampled(ranks, oversample)
    arrays = [c for term in terms for t in term for c in t.cores]
    facts = {
        "dtype": np.dtype(dtype),
        "rest": (weights, tol),
        "drawn": key is None,
        "key": ("sum", tuple(map(len, terms)), ranks, extra, tol is None),
        "shapes": tuple([c.shape for c in arrays]),
        "work": lambda: _work(terms, ranks, extra),
    }
    if choose_kernel("tt.linear_combination(rank=)", arrays, **facts) is NUMPY:
        out = _by_numpy(terms, weights, tol, ranks, extra)
    else:
        weights = [jnp.asarray(w).astype(dtype) for w in weights]
        out = _static(tuple(map(tuple, terms)), tuple(weights), tol, key, ranks, extra)
    shape = padded_ranks(rank, ranks, [t for term in terms for t in term])
    if shape != out.ranks[1:-1]:
        out = padded_to(out, shape)
    return narrowed(TT._unchecked(placed_like(out.cores, given)), modes_of_result)


def _work(terms: Sequence[Any], ranks: Sequence[int], extra: int) -> float:
    """Estimates the multiplications that sketches of a sum of products of trains take."""
    width = max(ranks, default=1) + extra
    return float(
        sum(
            width
            * math.prod([c.size for c in cores]) ** (1 / len(cores))
            * max([c.shape[-1] for c in cores])
            for term in terms
            for cores in zip(*(t.cores for t in term), strict=True)
        )
    )


def rounded_by_grams(terms: Sequence[Any], weights: Sequence[Any], tol: Any) -> TT | None:
    """Rounds a sum of products of trains by Gram matrices; None if these are inaccurate."""
    _check.tol_or_rank(tol, None, *terms, *weights)
    _check.finite("terms", terms)
    dtype = jnp.result_type(*(t.dtype for term in terms for t in term))
    tol = _check.tolerance(tol, dtype)
    if any(map(is_empty, itertools.chain(*terms))):
        return None
    wide = np.result_type(linalg.factor_dtype(dtype), np.float64)
    factors = [factors_of(jax.tree.map(np.asarray, term), wide) for term in terms]
    scaled = [np.asarray(w).astype(wide) for w in weights]
    # Part of the tolerance pays for rounding the cores to a narrower dtype.
    share = max(tol**2 - len(factors[0]) * (linalg.epsilon(dtype) / 2) ** 2, tol**2 / 4)
    if len(factors[0]) == 1:
        return None
    try:
        cores = balanced(*fused.by_grams(factors, scaled, share))
    except gram_rounding.InaccurateGram:
        return None
    found = jax.device_put(scaling.cast_in_range(cores, dtype))
    return TT._unchecked(placed_like(found, terms[0][-1].cores))


def _full_ranks(terms: Sequence[Any]) -> tuple[tuple[int, ...], list[int]]:
    """Returns upper bounds of the TT-ranks of a sum of products of trains, and its mode sizes."""
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
        return TT._unchecked(tuple(scaling.cast_in_range(cores, dtype)))
    return _by_xla(terms, weights, tol, key, ranks, extra)


def _is_cpp(terms: Any, tol: Any, dtype: Any) -> bool:
    """Whether a sum of products is one TT-matrix times a train, which C++ rounds on a CPU."""
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
    draw, mix = randomized_rounding.random_train(list(a.cores), max(ranks) + extra, key)
    *first, last = _native.round_to_ranks(x.cores, draw, mix, ranks, a.cores)
    return [*first, weight * last]


def _one_by_xla(
    ranks: tuple[int, ...],
    extra: int,
    a: TTMatrix,
    x: TT,
    weight: Any,
    key: Any,
    exact: bool = False,
) -> list[Any]:
    return list(_by_xla([(a, x)], [weight], None, key, ranks, extra, exact).cores)


@_either.defjvp
def _either_jvp(ranks: tuple[int, ...], extra: int, primals: Any, tangents: Any) -> Any:
    """Differentiates the rounding of a sum of products by XLA's sweeps, also if C++ computed it."""
    *arrays, key = primals
    differentiable = functools.partial(_one_by_xla, ranks, extra, key=key, exact=True)
    return jax.jvp(differentiable, tuple(arrays), tuple(tangents[:-1]))


def _by_xla(
    terms: Any,
    weights: Any,
    tol: Any,
    key: Any,
    ranks: tuple[int, ...],
    extra: int,
    exact: bool = False,
) -> TT:
    dtype = jnp.result_type(*(t.dtype for term in terms for t in term))
    work = linalg.factor_dtype(dtype)
    factors = [factors_of(term, work) for term in terms]
    weights = [w.astype(work) for w in weights]
    widths = _widths(terms, ranks, extra)
    cores, exponent = fused.projected(factors, weights, widths, key)
    if tol is not None and ranks:
        cores = round(TT._unchecked(tuple(cores)), rank=ranks, tol=tol, method="svd").cores
    elif widths != ranks:
        cores = truncation_sweeps.truncate_back(cores, [None] * len(ranks), ranks, exact=exact)
    cores = scaling.scaled_back(list(cores), exponent + jnp.zeros((), jnp.int32))
    return TT._unchecked(tuple(scaling.cast_in_range(cores, dtype)))


def _widths(terms: Sequence[Any], ranks: Sequence[int], extra: int) -> tuple[int, ...]:
    """Returns the TT-ranks of a sketched sum of products, before truncation to ``ranks``."""
    full, modes = _full_ranks(terms)
    wider = (min(r + extra, f) for r, f in zip(ranks, full, strict=True))
    return cut_ranks((1, *wider, 1), modes)[1:-1]


def _by_numpy(
    terms: Sequence[Any], weights: Sequence[Any], tol: Any, ranks: tuple[int, ...], extra: int
) -> TT:
    """Rounds a sum of products of trains to ranks by NumPy: by random sketches, or by SVDs too."""
    dtype = jnp.result_type(*(t.dtype for term in terms for t in term))
    wide = np.result_type(linalg.factor_dtype(dtype), np.float64)
    factors = [factors_of(jax.tree.map(np.asarray, term), wide) for term in terms]
    scaled = [np.asarray(w).astype(wide) for w in weights]
    with np.errstate(all="ignore"), _blas_threads.one_thread(True):
        widths = _widths(terms, ranks, extra)
        cores, exponent = fused.projected(factors, scaled, widths, None)
        if tol is not None and ranks:
            cores, e = truncation_sweeps.svd_round(cores, ranks, tol**2)
            exponent += e
        elif widths != ranks:
            cores = truncation_sweeps.truncate_back(cores, [None] * len(ranks), ranks, exact=True)
        cores = scaling.cast_in_range(balanced(cores, exponent), dtype)
    return padded_to(TT._unchecked(tuple(on_device(cores))), ranks)


def _work_of_exact(term: fused.Term) -> float:
    """Estimates the multiplications of rounding a sum of products of trains formed exactly."""
    modes = fused.modes_of(term)
    left, right = ([math.prod(c.shape[k] for c in f) for f in term] for k in (0, -1))
    return float(sum(n * r * s * max(r, s) for n, r, s in zip(modes, left, right, strict=True)))


def _product_core(*factors: Any) -> Any:
    """Multiplies the cores of one product of trains in a sum to an exact core, on the host."""
    if len(factors) == 1:
        return factors[0]
    if factors[0].ndim == 3:
        return hadamard_core(*factors)
    core = matmul_core(*factors)
    return core.reshape(len(core), -1, core.shape[-1])


def _dynamic(terms: Sequence[Any], weights: Sequence[Any], tol: float, key: Any, dtype: Any) -> TT:
    """Rounds a sum of products of trains to a tolerance on the host.

    A small product is formed exactly; others are sketched, by sketches that widen as needed.
    """
    wide = np.result_type(linalg.factor_dtype(dtype), np.float64)
    hosted = [tuple(jax.tree.map(np.asarray, t) for t in term) for term in terms]
    factors = [factors_of(term, wide) for term in hosted]
    weights = [np.asarray(w).astype(wide) for w in weights]
    if len(factors) == 1 and _work_of_exact(factors[0]) <= _EXACT_WORK:
        (term,), exponents = fused.near_one(factors)
        cores = [weights[0] * _product_core(*term[0]), *(_product_core(*f) for f in term[1:])]
        # Evened before they are narrowed: terms may differ by more than the dtype spans.
        even, exponent = scaling.evened(cores)
        fit = linalg.exponents_held(dtype)
        even = balanced(even, exponent + sum(e for (e,) in exponents), fit=fit)
        exact = TT._unchecked(tuple(on_device([c.astype(dtype) for c in even])))
        return round(exact, tol=tol)
    keys = (None, None) if key is None else split_keys(key, 2)
    probe = jax.random.key(1) if keys[1] is None else keys[1]
    cores, exact = fused.within(factors, weights, tol, keys[0], probe)
    found = TT._unchecked(tuple(jax.device_put(cores)))
    if len(cores) > 1:
        part = tol if exact else max(fused.TRUNCATION * tol, 10 * linalg.epsilon(wide))
        found = round(found, tol=part)
    return TT._unchecked(tuple(scaling.cast_in_range(found.cores, dtype)))
