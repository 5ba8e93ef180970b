"""Bilinear forms ⟨x, A y⟩ of a TT-matrix, and inner products of pairs of trains of two lists."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _check, linalg
from tensorjax._cores import interfaces
from tensorjax._cores.contractions import einsum
from tensorjax._cores.scaling import near_one
from tensorjax._formats.overflow_checks import Powers, held, power_of_ten
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._broadcasting import sizes_of
from tensorjax.tt._folding import fold
from tensorjax.tt._products import inner_product_kernels


@placed
def bilinear_form(x: TT, a: TTMatrix, y: TT) -> jax.Array:
    """Computes ⟨x|A|y⟩ of a TT-matrix between two trains in one sweep, without A y.

    Args:
      x: TT of shape ``a.row_shape``; conjugated.
      a: TTMatrix.
      y: TT of shape ``a.col_shape``.

    Returns:
      Scalar; only the value itself can leave the range of the dtype.

    Raises:
      TypeError: arguments of other kinds. ValueError: shapes that do not fit. OverflowError: the
        value is out of the range of the dtype, as of `inner`.

    Example:
      >>> from tensorjax import tt
      >>> x = tt.ones((2, 3))
      >>> print(tt.bilinear_form(x, tt.identity((2, 3)), x))
      6.0

    Source: A. Novikov et al., "Tensor Train decomposition on TensorFlow (T3F)", JMLR 21 (2020),
    ``bilinear_form``; Schollwöck, Ann. Phys. 326 (2011), section 6.2. For trains of ranks r and a
    matrix of ranks R it takes O(d n r² R (r + n R)) operations; first calls with concrete
    arguments on a CPU are NumPy's, with nothing compiled.
    """
    single("x", x, TT)
    single("a", a, TTMatrix)
    single("y", y, TT)
    if x.shape != a.row_shape or y.shape != a.col_shape:
        raise ValueError(
            f"x, y: expected shapes {a.row_shape} and {a.col_shape}, the rows and columns of a, "
            f"got {x.shape} and {y.shape}"
        )
    dtype = functools.reduce(jnp.promote_types, (x.dtype, a.dtype, y.dtype))
    parts = [[c.astype(dtype) for c in t.cores] for t in (x, a, y)]
    cores = [c for part in parts for c in part]
    facts = {"dtype": np.dtype(dtype), "key": "bilinear", "work": lambda: _form_work(x, a, y)}
    if choose_kernel("tt.bilinear_form", cores, **facts) is NUMPY:
        with np.errstate(all="ignore"), _blas_threads.one_thread(True):
            value = on_device([np.asarray(_form(*jax.tree.map(np.asarray, parts)))])[0]
    else:
        value = _compiled_form(*parts)
    powers = functools.partial(_powers, x, a, y)
    return held("the bilinear form", value, powers, "scale the trains by tt.normalize")


def _powers(x: TT, a: TTMatrix, y: TT) -> Powers:
    """Returns log10 |⟨x|A|y⟩| and a function for log10 ‖x‖·‖A‖·‖y‖, for overflow checks."""
    kind = np.result_type(*(linalg.factor_dtype(t.dtype) for t in (x, a, y)), np.float64)
    parts = [[np.asarray(c).astype(kind) for c in t.cores] for t in (x, a, y)]
    with np.errstate(all="ignore"):
        power = power_of_ten(*_scaled_form(*parts))
    return power, lambda: sum(inner_product_kernels.norm_power(t) for t in (x, fold(a), y))


def _form_work(x: TT, a: TTMatrix, y: TT) -> float:
    """Counts the multiplications in a bilinear form of a TT-matrix."""
    total = 0.0
    for left, operator, right in zip(x.cores, a.cores, y.cores, strict=True):
        (p, m, s), (r, _, n, t), (q, _, v) = left.shape, operator.shape, right.shape
        total += p * r * q * n * v + p * r * n * v * m * t + p * m * t * v * s
    return total


def _form(xs: Any, operators: Any, ys: Any) -> Any:
    """Computes a bilinear form of cores by a sweep of interfaces, scaled by powers of two."""
    return linalg.scaled(*_scaled_form(xs, operators, ys)).astype(xs[0].dtype)


def _scaled_form(xs: Any, operators: Any, ys: Any) -> tuple[Any, Any]:
    """Computes a bilinear form of cores as (m, e), which means m·2^e."""
    wide = linalg.factor_dtype(xs[0].dtype)
    edge, exponent = interfaces.edge(xs[0].astype(wide)), 0
    for site in zip(xs, operators, ys, strict=True):
        (x, a, y), e = near_one([c.astype(wide) for c in site])
        edge, own = linalg.normalized(interfaces.left(edge, x, a, y))
        exponent = exponent + e + own
    return edge[0, 0, 0], exponent


_compiled_form = jax.jit(_form)


@placed
def pairwise_inner(
    xs: Sequence[Any], ys: Sequence[Any] | None = None, *, matrix: TTMatrix | None = None
) -> jax.Array:
    """Computes inner products ⟨x_i, y_j⟩ or ⟨x_i, A y_j⟩ of all pairs of two lists of trains.

    Args:
      xs: trains of one kind and shape, whose TT-ranks may differ; conjugated.
      ys: likewise; ``xs`` if None, for a Gram matrix.
      matrix: A, a TTMatrix between trains of the kind TT; ``A y_j`` is not formed.

    Returns:
      (len(xs), len(ys)) inner products. Intermediate results are kept in range by exact powers of
      two, pair by pair. Entries that the dtype cannot hold are infinite, or zero, where the scalar
      of `inner` raises: the others are right.

    Raises:
      TypeError: trains of several kinds. ValueError: an empty list, or shapes that do not fit.

    Example:
      >>> from tensorjax import tt
      >>> xs = [tt.unit((2, 3), (0, 1)), tt.ones((2, 3))]
      >>> print(tt.pairwise_inner(xs))
      [[1. 1.]
       [1. 6.]]

    Source: A. Novikov et al., "Tensor Train decomposition on TensorFlow (T3F)", JMLR 21 (2020),
    ``pairwise_flat_inner``. Ours: ranks that differ, padded by zeros, and the scaling.
    """
    left = _checked("xs", xs)
    right = left if ys is None else _checked("ys", ys)
    if matrix is not None:
        single("matrix", matrix, TTMatrix)
    _check_shapes(left[0], right[0], matrix)
    trains = [*left, *right, *([] if matrix is None else [matrix])]
    dtype = functools.reduce(jnp.promote_types, (t.dtype for t in trains))
    sides = [left] if ys is None else [left, right]
    given = [c for t in trains for c in t.cores]
    if choose_kernel("tt.pairwise_inner, stacked cores", given, dtype=np.dtype(dtype)) is NUMPY:
        sides, matrix = jax.tree.map(np.asarray, (sides, matrix))  # nothing is compiled to stack
    stacks = [_stacked([_flat(t) for t in side], dtype) for side in sides]
    stacks = [stacks[0], stacks[-1]]
    operator = None if matrix is None else [c.astype(dtype) for c in matrix.cores]
    arrays = [*stacks[0], *stacks[1], *(operator or [])]
    facts = {"key": "pairwise", "work": lambda: _pairwise_work(*stacks)}
    stacked = linalg.is_host(arrays[0])
    if stacked and choose_kernel("tt.pairwise_inner", arrays, **facts) is NUMPY:
        with np.errstate(all="ignore"), _blas_threads.one_thread(True):
            return on_device([np.asarray(_pairwise(stacks, operator))])[0]
    return _compiled_pairwise(stacks, operator)


def _flat(t: Any) -> TT:
    return fold(t) if isinstance(t, TTMatrix) else t


def _checked(name: str, trains: Any) -> list[Any]:
    if isinstance(trains, TT | TTMatrix):
        raise TypeError(f"{name}: expected a list of trains, got one {type(trains).__name__}")
    found = _check.several(name, trains, "trains")
    if not found:
        raise ValueError(f"{name}: expected one or more trains, got none")
    for k, t in enumerate(found):
        single(f"{name}[{k}]", t, *(kind for kind in (TT, TTMatrix) if isinstance(found[0], kind)))
        if sizes_of(t) != sizes_of(found[0]):
            raise ValueError(f"{name}[{k}]: expected shape {sizes_of(found[0])}, got {sizes_of(t)}")
    return found


def _check_shapes(x: Any, y: Any, matrix: TTMatrix | None) -> None:
    if type(x) is not type(y) or (matrix is not None and not isinstance(x, TT)):
        kinds = "two lists of one kind" if matrix is None else "lists of TT beside a matrix"
        raise TypeError(f"expected {kinds}, got {type(x).__name__} and {type(y).__name__}")
    wanted = (sizes_of(x), sizes_of(x)) if matrix is None else (matrix.row_shape, matrix.col_shape)
    got = sizes_of(x), sizes_of(y)
    if got != wanted:
        raise ValueError(
            f"expected trains of shapes {wanted[0]} and {wanted[1]}, got {got[0]}, {got[1]}"
        )


def _stacked(trains: Sequence[TT], dtype: Any) -> list[Any]:
    """Stacks the cores of a list of trains, zero-padded, for their pairwise inner products."""
    ranks = [max(r) for r in zip(*(t.ranks for t in trains), strict=True)]
    out = []
    for k, cores in enumerate(zip(*(t.cores for t in trains), strict=True)):
        xp = np if linalg.is_host(cores[0]) else jnp
        padded = []
        for c in cores:
            after = ranks[k] - c.shape[0], ranks[k + 1] - c.shape[2]
            padded.append(xp.pad(c.astype(dtype), [(0, after[0]), (0, 0), (0, after[1])]))
        out.append(xp.stack(padded))
    return out


def _pairwise_work(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    pairs = zip(xs, ys, strict=True)
    return float(sum(x.size * y.size / max(x.shape[2], 1) for x, y in pairs))


def _pairwise(stacks: Any, operator: Any) -> Any:
    """Computes the inner products of all pairs of stacked trains by one sweep over the cores."""
    xs, ys = stacks
    dtype, wide = xs[0].dtype, linalg.factor_dtype(xs[0].dtype)
    xp = np if linalg.is_host(xs[0]) else jnp
    held = xp.ones((len(xs[0]), len(ys[0]), 1, 1, 1), wide)
    exponent: Any = 0
    for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
        # Each train, and each pair, by itself: one may be zero, or far from the others.
        (x, p), (y, q) = (linalg.normalized(c.astype(wide), (1, 2, 3)) for c in (x, y))
        exponent = exponent + p[..., None] + q[None]  # (x, 1, 1, 1, 1) + (1, y, 1, 1, 1)
        a = None
        if operator is not None:
            (a,), e = near_one([operator[k].astype(wide)])
            exponent = exponent + e
        held, own = linalg.normalized(
            _moved(held, x, y, None if operator is None else a), (2, 3, 4)
        )
        exponent = exponent + own
    return linalg.scaled(held, exponent)[:, :, 0, 0, 0].astype(dtype)


_compiled_pairwise = jax.jit(_pairwise)


def _moved(held: Any, x: Any, y: Any, a: Any = None) -> Any:
    """Extends interfaces of all pairs of tensor trains by a site, for pairwise inner products."""
    if a is None:
        return einsum("xyrpq,yqnu,xrns->xyspu", held, y, x.conj())
    return einsum("xyrpq,yqmu,pnmb,xrns->xysbu", held, y, a, x.conj())
