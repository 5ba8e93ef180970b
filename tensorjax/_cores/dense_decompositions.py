"""Decomposition of dense arrays: the steps that TT-SVD and ST-HOSVD have in common."""

import contextlib
import contextvars
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _check, linalg
from tensorjax._cores.scaling import balanced
from tensorjax._kernels.table import NUMPY
from tensorjax._transfer import FreshArrays, on_device, on_lines
from tensorjax.linalg import Method
from tensorjax.linalg._host_precision import budget, in_single
from tensorjax.linalg._subspaces.subspaces_on_host import THREADS, Asked, asked_of

_LOG = logging.getLogger("tensorjax")
_OURS: contextvars.ContextVar[bool] = contextvars.ContextVar("tensorjax_double", default=False)
# By rank alone no error is asked: full accuracy up to this size, Gram matrices (error floor
# eps^0.75 of the norm) above it, where an exact SVD takes many times longer.
_LARGE = 2**16
Ranks = tuple[int, ...]


class Decomposition(NamedTuple):
    """Table of algorithms that decompose dense arrays into one format, by TT-SVD or ST-HOSVD.

    *Parts* are lists of arrays, of which the last has the norm.

    Attributes:
      kernel: (array, tolerance) ↦ kernel that decomposes to a tolerance, of the table's choice.
      kernel_to_ranks: (array, tolerance, method) ↦ kernel that decomposes to ranks.
      cuts: order ↦ truncations, each to an equal share of the energy that may be discarded.
      arrays: order ↦ number of parts, each rounded to the dtype of the result in the end.
      compress: (host array, what is asked, ranks at most or None) ↦ parts.
      at_once: (small host array, what is asked) ↦ parts by a short way, or None.
      wrap: parts ↦ tensor of the format.
      pad: (tensor, ranks) ↦ the tensor padded with zeros.
      cut: (tensor, shape) ↦ the tensor with its modes cut to a shape.
      ranks: tensor ↦ those that are asked for.
      holds: (tensor, x, e, tol) ↦ whether it is x · 2^e within the relative error.
      lossless: array ↦ tensor of full ranks.
      program: (array, tol, key, ranks, method) ↦ tensor, by a compiled program.
    """

    kernel: Callable[..., Any]
    kernel_to_ranks: Callable[..., Any]
    cuts: Callable[[int], int]
    arrays: Callable[[int], int]
    compress: Callable[..., list[Any]]
    at_once: Callable[..., list[Any] | None]
    wrap: Callable[[list[Any]], Any]
    pad: Callable[[Any, Ranks], Any]
    cut: Callable[[Any, Ranks], Any]
    ranks: Callable[[Any], Ranks]
    holds: Callable[..., bool]
    lossless: Callable[[np.ndarray], Any]
    program: Callable[..., Any]


def decomposed(
    how: Decomposition, x: Any, dtype: Any, tol: Any, ranks: Ranks | None, method: Method, key: Any
) -> Any:
    """Decomposes a dense array by ``how``, TT-SVD or HOSVD, to a tolerance, to ranks or to both."""
    _check.choice("method", method, linalg.METHODS)
    if 0 in x.shape:  # one without entries is zero: see `tensorjax._formats.zero_padding`
        zero = np.zeros([max(n, 1) for n in x.shape], dtype)
        return how.cut(decomposed(how, zero, dtype, tol, ranks, method, key), x.shape)
    if tol is not None and how.kernel(x, tol) is NUMPY:
        found = to_tolerance(how, np.asarray(x), tol, method, dtype)
        if ranks is None:
            return found
        if all(r <= cap for r, cap in zip(how.ranks(found), ranks, strict=True)):
            return how.pad(found, ranks)
    assert ranks is not None
    share = None if tol is None or _check.is_traced(tol) else tol**2 / how.cuts(x.ndim)
    # To compile a random sketch takes longer than Gram matrices of small arrays.
    by_grams = method == "randomized" and key is None and x.size <= _LARGE
    served: Method = "gram" if by_grams else method
    if how.kernel_to_ranks(x, tol, served) is NUMPY:
        return how.pad(to_ranks(how, x, ranks, share, served, dtype), ranks)
    _check.finite("x", x)
    if method == "auto" and tol is None and x.size > _LARGE:
        method = "gram"
    chosen = linalg.choose(method, share, linalg.factor_dtype(dtype))
    if tol is not None and share is None:
        chosen = "svd"  # a traced tolerance may be anything
    return how.program(jnp.asarray(x), tol, key, ranks, chosen)


def to_ranks(
    how: Decomposition, x: Any, ranks: Ranks, share: float | None, method: Method, dtype: Any
) -> Any:
    """Decomposes a dense array, by TT-SVD or ST-HOSVD on the host, into a tensor of given ranks."""
    host = _held_by_lapack(np.asarray(x))
    method = "svd" if method == "auto" and share is None and x.size <= _LARGE else method
    _, exponent, parts = _in_range(how, host, asked_of(method, share, host.dtype), ranks)
    place = x.sharding if isinstance(x, jax.Array) and x.committed else None
    return how.wrap(_finished(parts, exponent, dtype, place))


def to_tolerance(how: Decomposition, x: np.ndarray, tol: float, method: Method, dtype: Any) -> Any:
    """Decomposes a dense host array by TT-SVD or HOSVD to a tolerance, by LAPACK."""
    x = _held_by_lapack(x)
    share, doubtful = budget(tol, how.arrays(x.ndim), x.dtype, dtype)
    asked = asked_of(method, share / how.cuts(x.ndim), x.dtype)
    at_hand, exponent, parts = _in_range(how, x, asked)
    found = how.wrap(_finished(parts, exponent, dtype))
    # Where roundoff competes with what may be discarded, the result is measured.
    if doubtful and not how.holds(found, at_hand, exponent, tol):
        return how.lossless(x.astype(dtype))
    return found


def _held_by_lapack(x: np.ndarray) -> np.ndarray:
    """Casts a dense NumPy array to a dtype that LAPACK has, before TT-SVD or HOSVD."""
    return x.astype(np.float32) if x.dtype.kind not in "fc" or x.dtype.itemsize < 4 else x


def _finished(parts: list[Any], exponent: int, dtype: Any, place: Any = None) -> list[Any]:
    """Scales the arrays of a dense array's decomposition, casts them, and transfers them to JAX."""
    # What was not scaled has passed `squares_fit`: in its own dtype there is nothing to balance.
    if exponent or parts[-1].dtype != dtype:
        parts = balanced(parts, exponent, fit=linalg.exponents_held(dtype))
    fresh = isinstance(parts, FreshArrays) and parts[-1].dtype == dtype
    # Others may be views of larger arrays, or of the caller's.
    return on_device(parts if fresh else [on_lines(p, dtype) for p in parts], place)


def _in_range(
    how: Decomposition, x: np.ndarray, asked: Asked, caps: Sequence[int] | None = None
) -> tuple[np.ndarray, int, list[Any]]:
    """Decomposes a dense host array by TT-SVD or HOSVD, scaled if its squares over- or underflow.

    Returns the array (scaled or not), the exponent, and the parts. Whether squares fit is seen in
    the last part, which has the norm: no pass over the data is spent.
    """
    compress = functools.partial(how.compress, caps=caps)

    def parts(x: np.ndarray) -> list[Any]:
        with _blas_threads.one_thread(x.size < THREADS):
            if caps is not None:
                return compress(x, asked)
            return how.at_once(x, asked) or in_single(x, asked, how.cuts(x.ndim), compress)

    try:
        with np.errstate(invalid="ignore", over="ignore"):
            found = parts(x)
        if linalg.squares_fit(found[-1]):
            return x, 0, found
    except (np.linalg.LinAlgError, ValueError):
        pass
    _check.finite("x", x)  # if it is not, the last part is not either
    small, exponent = linalg.normalized(x)
    return small, exponent, parts(small)


def dense_input(x: Any, tol: Any, rank: Any) -> tuple[Any, Any, Any]:
    """Checks the arguments of a dense array's decomposition: returns array, dtype and tolerance.

    Returns:
      (array, dtype that JAX gives the result, tolerance or None).
    """
    x = _check.inexact("x", x)
    if x.ndim == 0:
        raise ValueError("x: expected at least one axis, got a scalar")
    _check.tol_or_rank(tol, rank, x)
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    if np.dtype(dtype).itemsize < np.dtype(x.dtype).itemsize and not _OURS.get():
        _say_narrowed()
    return x, dtype, None if tol is None else _check.tolerance(tol, dtype)


@contextlib.contextmanager
def double_of_ours() -> Iterator[None]:
    """Silences, in a dense array's TT-SVD or HOSVD, the log that 64-bit data are narrowed."""
    before = _OURS.set(True)
    try:
        yield
    finally:
        _OURS.reset(before)


@functools.cache
def _say_narrowed() -> None:
    """Logs once that TT-SVD or HOSVD of dense 64-bit data is in 32 bits: JAX has x64 disabled."""
    _LOG.warning(
        "data of 64 bits become trains of 32: JAX has 64-bit types disabled; "
        "jax.config.update('jax_enable_x64', True) before the first call keeps them (said once)"
    )
