"""Reshaping of trains: reshape (splits and merges modes), permute and reverse."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb, join, times_right
from tensorjax._cores.orthogonalization import left_qr, right_lq
from tensorjax._cores.ranks import feasible_ranks
from tensorjax._cores.scaling import cast, cast_in_range, near_one, shared_out
from tensorjax._formats.trains import TT, Train, TTMatrix, single
from tensorjax._formats.zero_padding import is_empty, zero_train
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import copied, on_device
from tensorjax._typing import Shape
from tensorjax.tt._folding import rearranged
from tensorjax.tt._rounding.orthogonalize import orthogonal_cores
from tensorjax.tt._rounding.round import round

# Rows and columns of a mode; a TT has one column.
Pair = tuple[int, int]
# Where an exact result is asked, the relative error of truncations, in units of eps.
_EXACT = 10


@placed
def reshape(t: Train, shape: Shape | Sequence[Shape], tol: float | None = None) -> Train:
    """Reshapes a tensor train, its entries in row-major order, as `numpy.reshape`.

    Args:
      t: TT or TTMatrix.
      shape: of the result, one entry may be −1; for a TTMatrix (row_shape, col_shape), of which
        both have as many modes. To and from quantics: (2,)·b for a mode of 2^b.
      tol: relative error of the result; None for roundoff.

    Returns:
      Train of the kind of ``t``. Merged modes keep the ranks. Split ones get ranks as found, or,
      under a transformation, the most that the modes allow: then the result is exact. Cores are
      multiplied as they are there, and a product that their dtype cannot hold is Inf or 0.

    Raises:
      ValueError: sizes do not match. TypeError: ``tol`` under a transformation. OverflowError: the
        dtype cannot hold the result in so many cores, outside transformations.

    Example:
      >>> from tensorjax import tt
      >>> t = tt.reshape(tt.ones((6, 4)), (2, 3, 4))
      >>> t.shape, tt.reshape(t, (-1,)).shape
      ((2, 3, 4), (24,))

    Source: I. Oseledets, "Approximation of 2^d × 2^d matrices using tensor decomposition", SIAM J.
    Matrix Anal. Appl. 31 (2010), for splits. Ours: modes that do not nest are merged until they do,
    from left to right, with the norm in the current core, so that errors are those of the whole.
    """
    single("t", t)
    if tol is not None and _check.is_traced(t, tol):
        raise TypeError(
            "tol: expected None under a transformation, which cannot trace ranks that depend on "
            "data; tt.round(tt.reshape(t, shape), rank=, tol=) has static ones"
        )
    given, asked = _pairs(t), _asked(t, shape)
    if is_empty(t):
        return _zero(type(t), asked, t.dtype)
    if given == asked:
        return _train(type(t), t.cores) if tol is None else round(t, tol=tol)
    if choose_kernel("tt.reshape", (t,)) is not NUMPY:
        cores = [c[..., None, :] if isinstance(t, TT) else c for c in t.cores]
        # Products of cores, of single ones none is needed. In programs exponents of all cores would
        # take longer to compile than the products.
        scaled = not _check.is_traced(t) and "merge" in _steps(given, asked)
        cores, exponent = near_one(cores) if scaled else (cores, 0)
        done = _restructured(cores, asked, _exact_cut, lambda core, following: (core, following))
        out = _train(type(t), shared_out(done, exponent) if scaled else done)
        return out if tol is None else round(out, tol=tol)
    host, exponent, norm = _orthogonal(t, 0)
    host = [c.reshape(len(c), m, n, -1) for c, (m, n) in zip(host, given, strict=True)]
    cuts = max(1, list(_steps(given, asked)).count("split"))
    cut = _Truncation(_relative(t, tol) * norm / math.sqrt(cuts))
    done = _restructured(host, asked, cut, _handed_on)
    return _train(type(t), _returned(done, exponent, t.dtype))


@placed
def permute(
    t: Train,
    axes: Sequence[int],
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
) -> Train:
    """Permutes the modes of a train, as `numpy.transpose`.

    Args:
      t: TT or TTMatrix, of which row and column of a mode move together.
      axes: ``axes[k]`` is the mode that becomes the k-th.
      tol: relative error of the result; None for roundoff.
      rank: bound on the ranks; static, so it works under jit, where ``tol`` does not.

    Returns:
      Train of the kind of ``t``. Ranks may grow much: a bond of the result can need the product of
      those that the moved modes cross. Under a transformation without ``rank``, neighbours are
      multiplied as they are, and a product that their dtype cannot hold is Inf or 0.

    Raises:
      ValueError: no permutation. TypeError: ``tol`` under a transformation. OverflowError: the
        dtype cannot hold the result in its cores, outside transformations.

    Example:
      >>> from tensorjax import tt
      >>> tt.permute(tt.ones((2, 3, 4)), (2, 0, 1)).shape
      (4, 2, 3)

    Source: neighbours swapped by an SVD of their two cores, as in J. Haegeman et al., "Time-
    dependent variational principle for quantum lattices", and any MPS code; by as few swaps as the
    order has inversions, each with an equal part of ``tol``.
    """
    single("t", t)
    order = _checked_axes(axes, t.order)
    sizes = _pairs(t)
    swaps = list(_swaps(order))
    if is_empty(t):
        return _zero(type(t), [sizes[k] for k in order], t.dtype)
    if not swaps:
        plain = tol is None and rank is None
        return _train(type(t), t.cores) if plain else round(t, tol=tol, rank=rank)
    moved = [sizes[k] for k in order]
    if tol is None and rank is None and order == list(range(t.order))[::-1]:
        return reverse(t)
    if tol is not None:
        _check.tol_or_rank(tol, rank, t)
    bound = (
        max(feasible_ranks(rank, [m * n for m, n in moved]), default=1)
        if rank is not None
        else None
    )
    hosted = choose_kernel("tt.permute", (t,)) is NUMPY
    if not hosted:
        cores = _permuted(t, swaps, bound)
    elif bound is None:
        cores = _permuted_on_host(t, swaps, tol)
    else:
        cores = _cut_on_host(t, swaps, bound)
    if hosted:
        cores = [np.asarray(c) for c in cores]  # reshaped, compiling nothing
    out = _train(type(t), [c.reshape(len(c), *p, -1) for c, p in zip(cores, moved, strict=True)])
    if rank is not None:
        return round(out, rank=rank, tol=tol)
    # The swaps took a quarter of the error.
    coarse = tol is not None and tol >= 2 * _EXACT * linalg.epsilon(t.dtype)
    return round(out, tol=0.7 * tol) if tol is not None and coarse else out


def _permuted_on_host(t: TT | TTMatrix, swaps: list[int], tol: float | None) -> list[Any]:
    # Ranks between may be large, and what roundoff leaves of them adds up over the swaps: a part
    # of the error is for a rounding at the end.
    most = _relative(t, tol) * (1 if tol is not None else math.sqrt(len(swaps)))
    cores, exponent, norm = _orthogonal(t, swaps[0])
    cores = _swapped(cores, swaps, _Truncation(most / 4 * norm / len(swaps)))
    found = TT._unchecked(tuple(on_device(_returned(cores, exponent, t.dtype))))
    least = _EXACT * linalg.epsilon(t.dtype)
    return list(round(found, tol=max(most / 2, least)).cores if tol is None else found.cores)


def _cut_on_host(t: TT | TTMatrix, swaps: list[int], bound: int) -> list[Any]:
    """Permutes the modes of a train on the host, with bounded TT-ranks."""
    cores, exponent, _ = _orthogonal(t, swaps[0])
    cores = _swapped(cores, swaps, lambda a: _static_cut(a, bound))
    return list(_returned(cores, exponent, t.dtype))


def _permuted(t: TT | TTMatrix, swaps: list[int], bound: int | None) -> list[Any]:
    """Permutes the modes of a train in a compiled program: exactly, or with bounded TT-ranks."""
    flat = TT._unchecked(tuple(c.reshape(len(c), -1, c.shape[-1]) for c in t.cores))
    if bound is None:  # factors of a matrix of lower rank would have no right derivatives
        return _swapped(list(flat.cores), swaps, _exact_cut, centred=False)
    cores, exponent = orthogonal_cores(flat, swaps[0])
    cores = _swapped(cores, swaps, lambda a: _static_cut(a, bound))
    return cast_in_range(shared_out(cores, exponent, at=swaps[-1] + 1), t.dtype)


@placed
def reverse(t: Train) -> Train:
    """Reverses the order of a train's modes, exactly and without SVDs: cores in reverse.

    Args:
      t: TT or TTMatrix.

    Returns:
      Train of the kind of ``t``, with its modes and TT-ranks in reverse order.

    Raises:
      TypeError: ``t`` is no train.

    Example:
      >>> from tensorjax import tt
      >>> tt.reverse(tt.ones((2, 3, 4))).shape
      (4, 3, 2)

    Source: ours.
    """
    single("t", t)
    return type(t)._unchecked(rearranged("reverse", t.cores[::-1], lambda c: c.swapaxes(0, -1)))


def _zero(kind: Any, pairs: Sequence[Pair], dtype: Any) -> Any:
    return zero_train(kind, pairs if kind is TTMatrix else [p[:1] for p in pairs], dtype)


def _pairs(t: TT | TTMatrix) -> list[Pair]:
    if isinstance(t, TT):
        return [(n, 1) for n in t.shape]
    return list(zip(t.row_shape, t.col_shape, strict=True))


def _asked(t: TT | TTMatrix, shape: Any) -> list[Pair]:
    if isinstance(t, TT):
        return [(n, 1) for n in _filled("shape", shape, t.shape)]
    if np.ndim(shape) == 0 or len(shape) != 2:
        raise ValueError(f"shape: expected (row_shape, col_shape), got {shape}")
    rows = _filled("shape[0]", shape[0], t.row_shape)
    columns = _filled("shape[1]", shape[1], t.col_shape)
    if len(rows) != len(columns):
        raise ValueError(
            f"shape: expected as many row modes as column modes, got {len(rows)} and {len(columns)}"
        )
    return list(zip(rows, columns, strict=True))


def _filled(name: str, shape: Any, given: Sequence[int]) -> tuple[int, ...]:
    """Returns the new shape of a reshaped train, with −1 replaced by the missing size."""
    single = isinstance(shape, int | np.integer)
    asked = [shape] if single else _check.several(name, shape, "mode sizes")
    if not all(isinstance(n, int | np.integer) for n in asked):
        raise TypeError(f"{name}: expected integers, got {_check.short(shape)}")
    total = math.prod(given)
    if asked.count(-1) == 1:
        rest = math.prod(n for n in asked if n != -1)
        asked[asked.index(-1)] = total // rest if rest and total % rest == 0 else -1
    if not asked or any(n < 0 for n in asked) or math.prod(asked) != total:
        raise ValueError(f"{name}: expected {total} entries, as {tuple(given)} has, got {shape}")
    return _check.shape(name, asked, low=0)


def _steps(given: Sequence[Pair], asked: Sequence[Pair]) -> Iterator[str]:
    """Yields the steps that reshape a train: merge with the next core, split off a mode, emit.

    A mode is split off the current core if its sizes divide; else the next core is merged into it.
    """
    sources, targets = list(given[::-1]), list(asked[::-1])
    rows, columns = sources.pop()
    while targets:
        m, n = targets[-1]
        whole = (rows, columns) == (m, n) and (bool(sources) == (len(targets) > 1))
        if whole:
            yield "emit"
            targets.pop()
            if sources:
                rows, columns = sources.pop()
        elif len(targets) > 1 and rows % m == 0 and columns % n == 0:
            yield "split"
            targets.pop()
            rows, columns = rows // m, columns // n
        else:
            yield "merge"
            p, q = sources.pop()
            rows, columns = rows * p, columns * q


def _restructured(
    cores: list[Any], asked: Sequence[Pair], cut: Callable[..., Any], hand_on: Callable[..., Any]
) -> list[Any]:
    """Carries out the merges and splits that reshape a train; returns the new cores."""
    given = [c.shape[1:3] for c in cores]
    sources, targets, out = list(cores[::-1]), list(asked[::-1]), []
    held = sources.pop()
    for step in _steps(given, asked):
        if step == "merge":
            held = _merged(held, sources.pop())
        elif step == "split":
            pair = targets.pop()
            left, held = _split(held, pair, cut)
            out.append(left)
        else:
            targets.pop()
            if sources:
                held, following = hand_on(held, sources.pop())
                out.append(held)
                held = following
            else:
                out.append(held)
    return out


def _merged(a: Any, b: Any) -> Any:
    """Merges two neighbouring cores for `reshape`: row modes with row modes, columns likewise."""
    (r, m, n, _), (_, p, q, s) = a.shape, b.shape
    return join(a, b).transpose(0, 1, 3, 2, 4, 5).reshape(r, m * p, n * q, s)


def _split(core: Any, pair: Pair, cut: Callable[..., Any]) -> tuple[Any, Any]:
    """Splits the leading mode off a core in `reshape`, by a factorisation; returns both."""
    (r, rows, columns, s), (m, n) = core.shape, pair
    parts = core.reshape(r, m, rows // m, n, columns // n, s).transpose(0, 1, 3, 2, 4, 5)
    left, right = cut(parts.reshape(r * m * n, -1))
    return left.reshape(r, m, n, -1), right.reshape(-1, rows // m, columns // n, s)


def _handed_on(core: Any, following: Any) -> tuple[Any, Any]:
    """Orthogonalises a core in a reshape by QR, and multiplies R into the following core."""
    q, r = left_qr(core)
    return q, absorb(r, following)


def _exact_cut(matrix: Any) -> tuple[Any, Any]:
    """Splits a core for a reshape without truncation: the matrix itself and an identity."""
    if matrix.shape[0] <= matrix.shape[1]:
        return linalg.identity_like(matrix.shape[0], matrix), matrix
    return matrix, linalg.identity_like(matrix.shape[1], matrix)


def _static_cut(matrix: Any, bound: int) -> tuple[Any, Any]:
    u = linalg.left_basis(matrix, rank=min(*matrix.shape, bound)).u
    return u, linalg.matmul(linalg.adjoint(u), matrix)


class _Truncation(NamedTuple):
    """Callable that splits a reshaped train's matrix in two factors, to an absolute error."""

    error: float

    def __call__(self, matrix: Any) -> tuple[Any, Any]:
        share = self.error**2 / max(float(linalg.energy(matrix)), np.finfo(float).tiny)
        method = linalg.choose("auto", min(share, 1.0), matrix.dtype)
        u = linalg.left_basis(matrix, tail=self.error**2, method=method).u
        return u, linalg.matmul(linalg.adjoint(u), matrix)


def _relative(t: TT | TTMatrix, tol: float | None) -> float:
    """Returns the relative tolerance of a train's reshape: as asked, or a few times roundoff."""
    if tol is not None:
        return _check.tolerance(tol, t.dtype)
    return _EXACT * linalg.epsilon(linalg.factor_dtype(t.dtype))


def _orthogonal(t: TT | TTMatrix, center: int) -> tuple[list[Any], int, float]:
    """Orthogonalises a train to be reshaped around one core; returns exponent and norm too."""
    _check.finite("t", t)
    flat = [np.asarray(c).reshape(len(c), -1, c.shape[-1]) for c in t.cores]
    cores, exponent = orthogonal_cores(TT._unchecked(tuple(flat)), center)
    return cores, int(exponent), float(np.linalg.norm(cores[center]))


def _returned(cores: list[Any], exponent: int, dtype: Any) -> list[Any]:
    """Multiplies a reshaped train's host cores by 2^exponent, and casts them to a dtype."""
    refused = (
        f"t: {dtype} cannot hold the cores of the result; reshape or permute "
        "tt.normalize(t), or cast t to a wider dtype"
    )
    return cast(cores, exponent, dtype, refused)


def _train(kind: Any, cores: Sequence[Any]) -> Any:
    """Builds a reshaped TT or TTMatrix from cores that have row and column modes."""
    if kind is TT and cores[0].ndim > 3:
        cores = [c.reshape(len(c), -1, c.shape[-1]) for c in cores]
    return kind._unchecked(tuple(copied(cores)))


def _checked_axes(axes: Sequence[int], order: int) -> list[int]:
    given = _check.several("axes", axes, "modes")
    found = [_check.integer("axes", k, low=-order, high=order - 1) % order for k in given]
    if sorted(found) != list(range(order)):
        raise ValueError(f"axes: expected a permutation of 0 … {order - 1}, got {tuple(axes)}")
    return found


def _swaps(order: Sequence[int]) -> Iterator[int]:
    """Yields the swaps of neighbouring modes, k with k + 1, that permute a train's modes."""
    now = list(range(len(order)))
    for goal, mode in enumerate(order):
        at = now.index(mode)
        yield from range(at - 1, goal - 1, -1)
        now.insert(goal, now.pop(at))


def _swapped(
    cores: list[Any], swaps: Sequence[int], cut: Callable[..., Any], centred: bool = True
) -> list[Any]:
    """Permutes the modes of a train by swaps of neighbours, each with a truncation."""
    center = swaps[0]
    for k in swaps:
        center = center if centred else k
        while center < k:
            cores[center], r = left_qr(cores[center])
            center += 1
            cores[center] = absorb(r, cores[center])
        while center > k + 1:
            left, cores[center] = right_lq(cores[center])
            center -= 1
            cores[center] = times_right(cores[center], left)
        (r, m, _), (_, n, s) = cores[k].shape, cores[k + 1].shape
        both = join(cores[k], cores[k + 1])
        left, right = cut(both.transpose(0, 2, 1, 3).reshape(r * n, m * s))
        cores[k], cores[k + 1] = left.reshape(r, n, -1), right.reshape(-1, m, s)
        center = k + 1
    return cores
