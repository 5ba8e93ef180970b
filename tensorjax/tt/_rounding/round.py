"""Rounding: lower TT-ranks within a relative error, or to given ranks (TT-rounding).

One sweep serves all methods. At bond k the train is A_k (…, R) times the cores on its right; those
are summed up in a *right factor* F_k with F_k F_kᴴ equal to (or, for a sketch, about) their Gram
matrix, so that the singular subspace of A_k F_k is that of the whole unfolding:

- "svd": F_k is the triangular factor of a QR sweep from the right, without forming any Q.
- "gram": F_k is a Cholesky factor of the Gram matrix, which is all matrix products.
- "randomized": F_k is the image of a random train, a few columns wider than the rank wanted.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import _blas_threads, _check, _native, linalg
from tensorjax._cores import randomized_rounding, scaling
from tensorjax._cores.overlaps import agree
from tensorjax._cores.ranks import feasible_ranks, rank_bounds
from tensorjax._cores.rounding import compressed
from tensorjax._cores.scaling import balanced, evened
from tensorjax._cores.truncation_sweeps import small_svd_round, svd_round
from tensorjax._cores.unfoldings import wide
from tensorjax._eager import evaluated_eagerly
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.table import CPP, HOST, NUMPY, SMALL, TRACE
from tensorjax._kernels.train_signatures import signature
from tensorjax._placement import placed, placed_like
from tensorjax._transfer import on_device
from tensorjax.linalg import Method
from tensorjax.linalg._host_precision import budget
from tensorjax.tt._folding import folded
from tensorjax.tt._rank_padding import padded_ranks, padded_to, trim
from tensorjax.tt._rounding.orthogonalize import Train, are_small

# Cores are not rescaled by rounding on the host where the product of the norms of all up to any one
# of them is within 2^±_AT_HAND.
_AT_HAND = 200
# The last core takes the norm where its entries are within 2^±_LAST; see `balanced`.
_LAST = 99
# Ranks of an accelerator's dynamic rounding are multiples of this, so few programs are compiled.
_BUCKET = 16


@placed
@evaluated_eagerly
def round(
    t: Train,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    method: Method = "auto",
    key: jax.Array | None = None,
    oversample: int | None = None,
) -> Train:
    """Rounds a train to lower TT-ranks, quasi-optimally: within √(d−1) of the best error.

    Args:
      t: TT or TTMatrix.
      tol: ‖t − result‖ ≤ tol·‖t‖, guaranteed, for tol ≥ 10 eps. Alone it finds the ranks, outside
        jit: on a CPU by LAPACK with exact ranks and nothing compiled, on an accelerator by one
        compiled program per bucket of ranks. With ``rank``, shapes are those of ``rank`` and what
        ``tol`` discards is set to zero.
      rank: one int for all bonds or one per interior bond, cut where a bond cannot need as much; of
        a train that `pad` has brought to exactly ``rank``, that very rank. Static: jit, vmap, grad
        and loops work.
      method: "auto"; "svd" (full accuracy); "gram" (fastest with ``tol``; error floor √eps, below
        which "svd" stands in); "randomized" (fastest with ``rank``: within a few per cent of the
        best error, or of about 1e-11·‖t‖ in float64 where that is more). "auto" takes "randomized"
        for a rank well below the present one, and "gram" or "svd" for a tolerance.
      key: for "randomized"; a fixed draw if None.
      oversample: for "randomized", columns of the sketch above the rank; if None 10 to 17, so that
        sketches fill whole vectors. With 0 the random bases are the result, at several times the
        best error, in half to four fifths of the time.

    Returns:
      Train of the kind, shape and dtype of ``t``; outside jit, also sharded over a mesh as ``t`` is
      (on axes whose new sizes allow it).

    Raises:
      TypeError: ``tol`` alone under a JAX transformation.
      ValueError: neither tol nor rank, tol < 10 eps, impossible ranks, NaN or Inf.

    Example:
      >>> from tensorjax import tt
      >>> x = tt.ones((4, 4, 4))
      >>> tt.round(x + x + x, tol=1e-5).ranks
      (1, 1, 1, 1)

    Source: Oseledets (2011), algorithm 2 ("svd"); Al Daas, Ballard, Manning, "Parallel tensor train
    rounding using Gram SVD" (2022) ("gram"); Al Daas et al., "Randomized algorithms for rounding in
    the tensor-train format", SIAM J. Sci. Comput. 45 (2023) ("randomized"). Departures, ours: no Q
    of the first sweep is formed; the random train has cores diag(ω_i) H with one orthogonal H,
    which costs as little as a Khatri–Rao sketch and mixes the columns like a full one; the extra
    columns are taken off again by a second, truncated sweep. Under differentiation the sweep is
    exact, for a random basis has no derivative at rank-deficient trains; the value then differs by
    what the sketch misses. Programs for CPUs, those of `jax.export` apart, serve ``rank`` alone by
    compiled sweeps (tensorjax/_native) for real trains, in double precision whatever their dtype;
    there the last truncation takes the subspaces of all bonds of one and the same train, within the
    same bound. ``tol`` is served so by "gram", and there the distance is measured before a result
    is accepted. XLA splits no such call over devices: a batch sharded over several CPUs is rounded
    where it lies under `shard_map`.
    """
    if method == "auto" and rank is None and key is None and oversample is None:
        out = _at_once(t, tol)
        if out is not None:
            return out
    single("t", t)
    linalg.choose(method, None, t.dtype)
    _check.tol_or_rank(tol, rank, t)
    tol = None if tol is None else _check.tolerance(tol, t.dtype)
    if oversample is not None:
        oversample = _check.integer("oversample", oversample, low=0)
    return _round(t, tol, rank, method, key, oversample)


@folded
def _round(t: Any, tol: Any, rank: Any, method: Method, key: Any, extra: int | None) -> Any:
    ranks = None
    if key is not None:
        _check.key(key)
    if rank is not None:
        ranks = feasible_ranks(rank, t.shape, t.ranks[1:-1])
    if t.order == 1:
        return _in_range(t)
    out = _compressed(t, tol, ranks, method, key, extra)
    if rank is not None and ranks is not None:
        shape = padded_ranks(rank, ranks, [t])
        out = out if shape == out.ranks[1:-1] else padded_to(out, shape)
    return TT._unchecked(placed_like(out.cores, t.cores))


def _compressed(
    t: TT, tol: Any, ranks: tuple[int, ...] | None, method: Method, key: Any, extra: int | None
) -> TT:
    if tol is not None and choose_kernel("tt.round(tol=)", (*t.cores, tol)) is NUMPY:
        out = _dynamic(t, tol, method, key)
        if ranks is None:
            return out
        if all(r <= cap for r, cap in zip(out.ranks[1:-1], ranks, strict=True)):
            return padded_to(out, ranks)
    t = _in_range(t)
    if ranks is None:
        bucket = -(-max(t.ranks) // _BUCKET) * _BUCKET
        ranks = tuple(min(bucket, b) for b in rank_bounds(t.shape))
        padded = padded_to(t, [max(r, s) for r, s in zip(ranks, t.ranks[1:-1], strict=True)])
        extra = randomized_rounding.oversampled(ranks, extra)
        return trim(_static(padded, tol, key, ranks, _method(t, tol, ranks, method, extra), extra))
    extra = randomized_rounding.oversampled(ranks, extra)
    chosen = _method(t, tol, ranks, method, extra)
    facts = {
        "dtype": t.dtype,
        "rest": tol,
        "drawn": key is None,
        "key": ("round", ranks, chosen, extra),
        "work": lambda: sum(c.size * max(c.shape) for c in t.cores),
    }
    if tol is not None and choose_kernel("tt.round(rank=, tol=)", t.cores, **facts) is NUMPY:
        return _to_ranks_by_numpy(t, tol, ranks)
    return _static(t, tol, key, ranks, chosen, extra)


def _to_ranks_by_numpy(t: TT, tol: float, ranks: tuple[int, ...]) -> TT:
    """Rounds a train on the host to a tolerance and to ranks; zero-pads its bonds to the ranks."""
    wide = np.result_type(linalg.factor_dtype(t.dtype), np.float64)
    host, exponent = _at_hand([np.asarray(c).astype(wide, copy=False) for c in t.cores])
    with _blas_threads.one_thread(are_small(host)):
        cores, e = compressed(host, ranks, tol**2, "svd", None)
    cores = scaling.cast_in_range(balanced(cores, exponent + e), t.dtype)
    return padded_to(TT._unchecked(tuple(on_device(cores))), ranks)


def _method(t: TT, tol: Any, ranks: Sequence[int], method: Method, extra: int) -> Method:
    """Chooses the method of rounding to given TT-ranks: randomised where sketches are narrow."""
    if method == "auto" and tol is None:
        pays = any(r + extra < s for r, s in zip(ranks, t.ranks[1:-1], strict=True))
        return "randomized" if pays else "svd"
    if tol is not None or method == "gram":
        return "svd"  # compiled programs cannot look at the roundoff of Gram matrices and turn back
    return method


@jax.jit(static_argnums=(3, 4, 5))
def _static(t: TT, tol: Any, key: Any, ranks: tuple[int, ...], method: Method, extra: int) -> TT:
    dtype = linalg.factor_dtype(t.dtype)
    wide = [c.astype(dtype) for c in t.cores]
    facts = {"static": tol is None, "exact": method == "svd", "shape": t.shape, "ranks": t.ranks}
    if choose_kernel("tt.round(rank=)", wide, TRACE, **facts) is CPP:
        cores = _either_round(wide, key, ranks, method, extra)
    else:
        cores = _by_xla(ranks, method, extra, wide, key, tol)
    return TT._unchecked(tuple(scaling.cast_in_range(cores, t.dtype)))


def _by_xla(
    ranks: tuple[int, ...], method: Method, extra: int, cores: list[Any], key: Any, tol: Any = None
) -> list[Any]:
    share = None if tol is None else tol**2
    scaled = [linalg.normalized(c) for c in cores]
    cores, exponent = compressed([c for c, _ in scaled], ranks, share, method, key, extra)
    return scaling.scaled_back(cores, exponent + sum(e for _, e in scaled))


def _dynamic(t: TT, tol: float, method: Method, key: Any) -> TT:
    """Rounds a tensor train within a relative error on the host, the NumPy kernel of `tt.round`."""
    t = _in_range(t)
    wide = np.result_type(linalg.factor_dtype(t.dtype), np.float64)
    given = [np.asarray(c).astype(wide, copy=False) for c in t.cores]
    host, exponent = _at_hand(given)
    allowed, doubtful = budget(tol, t.order, wide, t.dtype)
    for share in (allowed, allowed / 100):
        chosen = linalg.choose(method, share / (t.order - 1), wide, levels=1)
        cores, e = compressed(host, None, share, chosen, key)
        cores = scaling.cast_in_range(balanced(cores, exponent + e), t.dtype)
        out = TT._unchecked(tuple(on_device(cores)))
        # Where roundoff competes with what may be discarded, the result is measured, and a
        # second attempt leaves all of the tolerance to roundoff.
        if not doubtful or agree(cores, given, tol):
            return out
    return trim(t)  # exact: roundoff alone is larger than what may be discarded


def _at_once(t: Any, tol: Any) -> Any:
    """Rounds a train to a tolerance by one call of C++, or by few of NumPy if it is small; or None.

    `_dynamic` comes to the same result by more calls, which take longer than to round small cores.
    """
    known = signature(t)
    if known is None or type(tol) is not float or not 0 < tol < math.inf:
        return None
    small = choose_kernel("tt.round(tol=), few calls", t.cores, HOST) is SMALL
    one_call = choose_kernel("tt.round(tol=), one call", t.cores, HOST) is CPP
    share, doubtful, by_gram = _budget(tol, len(known.shapes), known.dtype)
    if doubtful or not (small or one_call):
        return None
    cores = [np.asarray(c) for c in t.cores]
    if known.kind is TTMatrix:
        cores = [c.reshape(len(c), -1, c.shape[-1]) for c in cores]
    found = None
    if (
        one_call and by_gram
    ):  # which looks at the range; None where Gram matrices are too inaccurate
        found = _native.gram_round(cores, share, _most_of(known.dtype))
    if small and not found:
        found = _by_few_calls(cores, share)
    if not found:
        return None
    top = float(np.abs(found[-1]).max())
    found = found if 2.0**-_LAST < top < 2.0**_LAST else balanced(found)
    if known.kind is TTMatrix:
        modes = [s[1:-1] for s in known.shapes]
        found = [c.reshape(len(c), *n, -1) for c, n in zip(found, modes, strict=True)]
    found = [c.astype(known.dtype, copy=False) for c in found]
    return known.kind._unchecked(tuple(on_device(found)))


def _by_few_calls(cores: list[Any], share: float) -> list[Any] | None:
    """Rounds a small train of host cores, in double precision; None where it is not in range."""
    wide = np.result_type(cores[0].dtype, np.float64)
    if not _are_at_hand(cores):
        return None
    with _blas_threads.one_thread(True):
        return small_svd_round([c.astype(wide, copy=False) for c in cores], share)


@functools.lru_cache(maxsize=1024)
def _budget(tol: float, order: int, dtype: np.dtype) -> tuple[float, bool, bool]:
    """Returns the share of energy that a train's rounding in double precision may discard.

    And whether the result would have to be measured, and whether Gram matrices resolve the share.
    """
    share, doubtful = budget(tol, order, np.result_type(dtype, np.float64), dtype)
    served = linalg.choose("auto", share / (order - 1), np.float64, levels=1)
    return share, doubtful, served == "gram"


def _in_range(t: TT) -> TT:
    """Checks that a concrete train to round is finite; scales it where rounding may overflow."""
    if _check.is_traced(t):
        return t
    cores = [np.asarray(c) for c in t.cores]
    dtype = np.dtype(linalg.factor_dtype(t.dtype))
    if _are_at_hand([c.astype(dtype, copy=False) for c in cores]):
        return t
    _check.finite("t", t)
    even, exponent = evened([c.astype(np.result_type(dtype, np.float64)) for c in cores])
    even = balanced(even, exponent, fit=linalg.exponents_held(dtype))
    moved = TT._unchecked(tuple(on_device(scaling.cast_in_range(even, t.dtype))))
    return TT._unchecked(placed_like(moved.cores, t.cores))


def _at_hand(cores: list[Any]) -> tuple[list[Any], int]:
    """Scales host cores for TT-rounding near one by powers of two; also returns the exponent."""
    return (cores, 0) if _are_at_hand(cores) else evened(cores)


def _are_at_hand(cores: list[Any]) -> bool:
    """Whether rounding may take host cores unscaled: finite, partial products near one.

    Where the product of cores is far from one, it may be that of one term of a sum beside others,
    whose cores differ in size in opposite ways.
    """
    with (
        np.errstate(over="ignore", divide="ignore", invalid="ignore"),
        _blas_threads.one_thread(True),
    ):  # more than one would go on spinning
        product = np.cumsum(np.log2([linalg.energy(wide(c)) for c in cores])) / 2
    return bool(np.abs(product).max() < _most_of(cores[0].dtype))


def _most_of(dtype: Any) -> int:
    """Returns by how many powers of two partial products may differ from one in TT-rounding."""
    return min(_AT_HAND, int(np.finfo(dtype).maxexp) // 2)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def _either_round(
    cores: list[Any], key: Any, ranks: tuple[int, ...], method: Method, extra: int
) -> list[Any]:
    results = _native.rounded_shapes(cores, ranks)
    static = ranks, method, extra
    kernels = "tt.round(rank=)", _by_sweeps, _by_xla
    return cpp_or_xla(*kernels, cores, key, static=static, results=results)


def _by_sweeps(
    ranks: tuple[int, ...], method: Method, extra: int, cores: list[Any], key: Any
) -> list[Any]:
    """Rounds a train to ranks by C++ sweeps in a compiled program, one kernel of `tt.round`."""
    width = 0 if method == "svd" else max(ranks) + extra
    return _native.round_to_ranks(
        cores, *randomized_rounding.random_train(cores, width, key), ranks
    )


@_either_round.defjvp
def _either_round_jvp(
    ranks: tuple[int, ...], method: Method, extra: int, primals: Any, tangents: Any
) -> Any:
    """Differentiates rounding to given TT-ranks by XLA's sweep, also where C++ rounded."""
    (cores, _), (moved, _) = primals, tangents

    def differentiable(cores: list[Any]) -> list[Any]:
        scaled = [linalg.normalized(c) for c in cores]
        out, exponent = svd_round([c for c, _ in scaled], ranks, None)
        return scaling.scaled_back(out, exponent + sum(e for _, e in scaled))

    return jax.jvp(differentiable, (cores,), (moved,))
