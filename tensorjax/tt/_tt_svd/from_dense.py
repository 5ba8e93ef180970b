"""TT-SVD: dense arrays to tensor trains, on the host or as a program of static shapes."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import _blas_threads, _check, linalg
from tensorjax._cores.contractions import absorb, merge
from tensorjax._cores.dense_decompositions import Decomposition, decomposed, dense_input
from tensorjax._cores.ranks import feasible_ranks, rank_bounds
from tensorjax._cores.scaling import shared_out
from tensorjax._cores.unfoldings import tall
from tensorjax._eager import evaluated_eagerly
from tensorjax._formats.random_arrays import split_keys
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._formats.zero_padding import narrowed
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.conditions import MOST_ROWS, SMALL_ARRAY
from tensorjax._kernels.table import CPP, HOST, NUMPY
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike
from tensorjax.linalg import Method, _predicted_times
from tensorjax.linalg._subspaces.subspaces_on_host import (
    Asked,
    least_share,
    least_share_of_gaps,
)
from tensorjax.tt._constructors import _mode_pairs
from tensorjax.tt._folding import unfold
from tensorjax.tt._rank_padding import padded_to
from tensorjax.tt._tt_svd.small_arrays import compiled_tt_svd, small_tt_svd
from tensorjax.tt._tt_svd.tt_svd_on_host import tt_svd

# Rank expected of unknown data.
_GUESS = 12
# Elements up to which an array that has too long a side for C++ is still cut as a small one.
_LONG_SIDES = 2**18


@placed
@evaluated_eagerly
def from_dense(
    x: ArrayLike,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    method: Method = "auto",
    key: jax.Array | None = None,
) -> TT:
    """Decomposes a dense array into a tensor train (TT-SVD), to a tolerance or to ranks.

    Args:
      x: (n_1, …, n_d), d ≥ 1, floating or complex. NumPy arrays of double precision keep it only
        if JAX has 64-bit types enabled.
      tol: ‖x − result‖_F ≤ tol·‖x‖_F, guaranteed, for tol ≥ 10 eps. Alone it picks the ranks,
        outside jit. With ``rank``, shapes are those of ``rank`` and what ``tol`` discards is set to
        zero; the error is then kept below ``tol`` only if ``rank`` allows it.
      rank: one int for all bonds (cut where a bond cannot need as much) or one per interior bond.
        Static: jit, vmap and grad work.
      method: "auto", "svd", "gram" or "randomized" for the truncated SVDs; see
        `tensorjax.linalg.choose`.
      key: for "randomized"; a fixed draw if None. Without a key, small concrete arrays with
        ``rank`` are served by Gram matrices instead, without a draw.

    Returns:
      TT with orthonormal columns in all cores but the last, which has the norm; where it cannot
      hold that in the dtype, all share it.

    Raises:
      TypeError: integer data, or ``tol`` alone under a JAX transformation.
      ValueError: neither tol nor rank, tol < 10 eps, impossible ranks, NaN or Inf.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> i, j, k = jnp.meshgrid(*3 * [jnp.arange(8.0)], indexing="ij")
      >>> tt.from_dense(i + j + k, tol=1e-5)
      TT(shape=(8, 8, 8), ranks=(1, 2, 2, 1), dtype=float32)

    Source: Oseledets (2011), algorithm 1, with truncation ‖x‖·tol/√(d−1) per bond. Departures,
    ours: bonds are cut in the order, from either end and by the method (Gram matrix, random sketch
    or SVD) that a model of the costs forecasts to be the fastest, among those that `linalg.choose`
    finds accurate enough; what a sketch misses is measured. On a CPU concrete arrays are served by
    LAPACK, with nothing compiled, whether ``tol`` or ``rank`` is given, and small ones by Gram
    matrices where "randomized" is asked without a key.
    """
    array, dtype, tol = dense_input(x, tol, rank)
    ranks = None if rank is None else feasible_ranks(rank, array.shape)
    return decomposed(_TT_SVD, array, dtype, tol, ranks, method, key)


@jax.jit(static_argnums=(3, 4))
def _static(x: jax.Array, tol: Any, key: Any, ranks: tuple[int, ...], method: Method) -> TT:
    dtype = x.dtype
    x, exponent = linalg.normalized(x.astype(linalg.factor_dtype(dtype)))
    share = None if tol is None else tol**2 / max(x.ndim - 1, 1)
    *cores, last = _tt_svd(x, ranks, share, method, key)
    # In the dtype of the result: one of half precision holds less than the factors do.
    cores = [c.astype(dtype) for c in (*cores, last)]
    return TT._unchecked(tuple(shared_out(cores, exponent)))


def _at_once(x: np.ndarray, asked: Asked) -> list[Any] | None:
    """Decomposes an array in `from_dense` by C++ or Gram TT-SVD, if chosen; else None."""
    if asked.share is None:
        return None
    facts = {
        "method": asked.method,
        "share": asked.share,
        "floor": lambda: least_share(x.dtype),
        "least": lambda: least_share_of_gaps(x.dtype),
    }
    kernel = choose_kernel("tt.from_dense(tol=)", (x,), HOST, **facts)
    if kernel is CPP and (found := compiled_tt_svd(x, asked.share)):
        return found
    blurred = asked.share < least_share(x.dtype)
    if kernel is NUMPY or (kernel is CPP and (blurred or x.size >= _LONG_SIDES)):
        return None
    return small_tt_svd(x, asked.share, whole=x.size < SMALL_ARRAY)


def _holds(train: TT, x: np.ndarray, exponent: int, tol: float) -> bool:
    """Whether the train that `from_dense` found approximates x · 2^exponent to a relative error."""
    left, rest = np.ones((1, 1)), -exponent
    for k, c in enumerate(train.cores):
        core, e = linalg.normalized(np.asarray(c).astype(np.result_type(c.dtype, np.float64)))
        rest += e
        if k == train.order - 1:
            core = linalg.scaled(core, rest)
        left = tall(absorb(left, core))
    return bool(_energy(left.reshape(x.shape) - x) <= tol**2 * _energy(x.astype(left.dtype)))


def _lossless(x: np.ndarray) -> TT:
    """Converts a dense array to a train of full ranks, exactly, by identity cores."""
    ranks = (1, *rank_bounds(x.shape), 1)
    cores, middle = [], None
    for k, n in enumerate(x.shape):
        if ranks[k] * n == ranks[k + 1] and middle is None:
            cores.append(np.eye(ranks[k + 1], dtype=x.dtype).reshape(ranks[k], n, ranks[k + 1]))
        elif middle is None:
            middle = k
            cores.append(x.reshape(ranks[k], n, ranks[k + 1]))
        else:
            cores.append(np.eye(ranks[k], dtype=x.dtype).reshape(ranks[k], n, ranks[k + 1]))
    if middle is None:  # order one, or trailing modes of size one: the last core takes the data
        cores[-1] = x.reshape(ranks[-2], x.shape[-1], 1)
    return TT(jax.device_put(cores))


_TT_SVD = Decomposition(
    kernel=lambda x, tol: choose_kernel("tt.from_dense(tol=)", (x, tol)),
    kernel_to_ranks=lambda x, tol, method: choose_kernel(
        "tt.from_dense(rank=)", (x, tol), method=method
    ),
    cuts=lambda order: max(order - 1, 1),
    arrays=lambda order: order,
    compress=tt_svd,
    at_once=_at_once,
    wrap=lambda parts: TT._unchecked(tuple(parts)),
    pad=padded_to,
    cut=narrowed,
    ranks=lambda t: t.ranks[1:-1],
    holds=_holds,
    lossless=_lossless,
    program=lambda *given: _static(*given),
)


def _energy(x: Any) -> Any:
    return linalg.energy(x.reshape(1, -1))


def _tt_svd(x: Any, ranks: Sequence[int] | None, share: Any, method: Method, key: Any) -> list[Any]:
    """Computes the TT-SVD of `from_dense`, to ranks, to a share of discarded energy, or to both."""
    shape = x.shape
    keys = [None] * len(shape) if key is None else split_keys(key, len(shape))

    def basis(matrix: Any, bond: int, **allowed: Any) -> Any:
        rank = None if ranks is None else min(ranks[bond], *matrix.shape)
        return linalg.left_basis(matrix, rank=rank, method=method, key=keys[bond], **allowed)

    lead = _leading_modes(shape, ranks)
    flat = x.reshape(math.prod(shape[:lead]), -1)
    if lead == 1:
        return _split(x[None, ..., None], basis, 0, share, None)
    # The square factor of the merged unfolding, a = factor @ isometry, has the singular values and
    # left subspaces of all unfoldings up to it: the cuts are those of a TT-SVD from the left, but
    # the data are read only to make the factor and to project on the outcome.
    rank = None if ranks is None else min(ranks[lead - 1], *flat.shape)
    passes = method == "gram" and linalg.is_host(flat)
    passes = passes and choose_kernel("linalg.project", (flat,), HOST) is CPP
    with _blas_threads.one_thread(passes):  # they have threads of their own, and all else is small
        factor, energies = linalg.factor_near_one(flat, rank=rank, share=share, method=method)
        factor = factor.reshape(1, *shape[:lead], -1, 1)
        tail = None if share is None else share * energies.sum()
        left = _split(factor, basis, 0, None, tail)[:-1]
        rest = linalg.project(merge(left)[0], flat).reshape(-1, *shape[lead:], 1)
    seen = rest.reshape(rest.shape[0] * rest.shape[1], -1)
    with _blas_threads.one_thread(passes and len(seen) <= MOST_ROWS):
        return left + _split(rest, basis, lead, None, tail)


def _split(x: Any, cut: Any, bond: int, share: Any, tail: Any) -> list[Any]:
    """Splits modes merged in one cut of `from_dense` into cores, isometries but for the last."""
    cores = []
    left, *modes, right = x.shape
    for n in modes[:-1]:
        matrix = x.reshape(left * n, -1)
        u, energies, discarded = cut(matrix, bond, share=share, tail=tail)
        if share is not None:  # the first cut has seen the whole energy: the others need not
            share, tail = None, share * (energies.sum() + discarded)
        cores.append(u.reshape(left, n, -1))
        x, left, bond = linalg.project(u, matrix), u.shape[-1], bond + 1
    return [*cores, x.reshape(left, modes[-1], right)]


def _leading_modes(shape: Sequence[int], ranks: Sequence[int] | None) -> int:
    """Returns how many leading modes the first cut of `from_dense` should merge, to be fastest."""
    bounds = [_GUESS] * (len(shape) - 1) if ranks is None else ranks

    def seconds(lead: int) -> float:
        spent, size, rows = 0.0, float(math.prod(shape)), 1.0
        for k, n in enumerate(shape[:-1], 1):
            rows *= n
            if k >= lead:
                rank = min(bounds[k - 1], rows, size / rows)
                spent += _predicted_times.cut(size, min(rows, size / rows), rank)
                size, rows = size * rank / rows, rank
        return spent

    return min(range(1, max(len(shape), 2)), key=seconds)


@placed
@evaluated_eagerly
def matrix_from_dense(
    w: ArrayLike,
    row_shape: Sequence[int],
    col_shape: Sequence[int],
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    method: Method = "auto",
    key: jax.Array | None = None,
) -> TTMatrix:
    """Decomposes a dense matrix into a TT-matrix, its rows and columns folded (TT-SVD).

    Args:
      w: (∏ m_k, ∏ n_k), floating or complex.
      row_shape: (m_1, …, m_d).
      col_shape: (n_1, …, n_d), as many.
      tol: relative error in the Frobenius norm; alone it picks the ranks, outside jit.
      rank: one int for all bonds or one per interior bond; static, so it works under jit.
      method: "auto", "svd", "gram" or "randomized", as for `from_dense`.
      key: for "randomized"; a fixed draw if None. Without a key, small concrete arrays with
        ``rank`` are served by Gram matrices instead, without a draw.

    Returns:
      TTMatrix with cores (r_{k−1}, m_k, n_k, r_k).

    Raises:
      ValueError: ``w`` is not of shape (∏ m_k, ∏ n_k), and all that `from_dense` raises.
      TypeError: integer data, or ``tol`` alone under a JAX transformation.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> tt.matrix_from_dense(jnp.eye(6), (2, 3), (2, 3), tol=1e-5).ranks
      (1, 1, 1)

    Source: Oseledets (2011), section 4.3, for the folding; algorithm 1 as in `from_dense`.
    """
    pairs = _mode_pairs(row_shape, col_shape)
    rows, cols = zip(*pairs, strict=True)
    w = _check.inexact("w", w)
    if w.shape != (math.prod(rows), math.prod(cols)):
        raise ValueError(
            f"w: expected shape (∏ row_shape, ∏ col_shape) = {(math.prod(rows), math.prod(cols))}, "
            f"got {w.shape}; pad the matrix with zeros or choose other factors"
        )
    order = [axis for k in range(len(pairs)) for axis in (k, k + len(pairs))]
    folded = w.reshape(*rows, *cols).transpose(order).reshape([m * n for m, n in pairs])
    return unfold(from_dense(folded, tol=tol, rank=rank, method=method, key=key), rows, cols)
