"""TT-SVD of small host arrays by Gram matrices, in C++ or where NumPy's call overhead dominates.

One Gram matrix and its eigenvectors a bond, in double precision, from whichever end has the shorter
side: no choice between methods, no attempt that may fail. `on_host.tt_svd` has all of these, and
the same results otherwise. Of real arrays in C++, where one Gram matrix serves several bonds:
tensorjax/_native/tt_svd.h.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import _native
from tensorjax._cores.contractions import absorb, merge
from tensorjax._cores.unfoldings import tall
from tensorjax.linalg import _predicted_times
from tensorjax.linalg._arrays import adjoint
from tensorjax.linalg._gram import host_gram
from tensorjax.linalg._subspaces.method_choice import GRAM_NOISE, gram_floor
from tensorjax.linalg._subspaces.subspaces_on_host import (
    Asked,
    columns_split,
    of_gram,
    small_leading,
)
from tensorjax.tt._tt_svd.tt_svd_on_host import _Group, _norm_to_the_right, next_guess

# Up to so many entries an SVD is faster than a Gram matrix, its eigenvectors, and their
# reorthogonalisation.
_TINY = 2**9
# Rows of joined modes at most: their Gram matrix costs one pass over the data.
_JOINED = 16
# Expected rank of bonds not yet cut; and nanoseconds of the additional orthogonalisation of a core
# that was split off on the right.
_GUESS, _AGAIN = 6, 6e4


def compiled_tt_svd(x: np.ndarray, share: float) -> list[np.ndarray] | None:
    """Decomposes a small real array for `from_dense` by the C++ TT-SVD; None if a side is too long.

    Args:
      x: (n_1, …, n_d), float32 or float64; so are the cores. Computed in double precision.
      share: of the energy that every bond may discard.
    """
    return _native.tt_svd(x, share, GRAM_NOISE * gram_floor(np.float64, 1))


def small_tt_svd(x: np.ndarray, share: float, whole: bool = True) -> list[Any] | None:
    """Computes the TT-SVD of a small array by Gram matrices in double precision.

    Args:
      x: (n_1, …, n_d).
      share: of the energy that every bond may discard.
      whole: whether to go on where the first cut needs the full rank; else the result is None.
        Larger arrays of full rank are better cut in the middle first.
    """
    core: Any = np.ascontiguousarray(x, np.result_type(x.dtype, np.float64))
    asked = Asked(tail=share * float(np.vdot(core, core).real), whole=True)
    shape, first, last, left, right = x.shape, 0, x.ndim, 1, 1
    lefts: list[Any] = []
    rights: list[_Group] = []
    while last - first > 1:
        if not whole and asked.whole and last - first < x.ndim:
            return None
        m, n, size = left * shape[first], shape[last - 1] * right, core.size
        if _from_the_right(m, n, size, shape[first + 1]):
            a = core.reshape(-1, n)
            found = small_leading(a, asked, right=True)
            last, right = last - 1, found.basis.shape[1]
            split = adjoint(found.basis).reshape(right, shape[last], -1)
            rights.insert(0, _Group(shape[last : last + 1], [split], [found.discarded], last))
            core = a if found.energies is None else a @ found.basis
            asked = _after(asked, right, n)
            continue
        cores, core, asked = _split_on_the_left(core, left, shape[first:last], asked)
        lefts += cores
        first, left = first + len(cores), cores[-1].shape[2]
    return lefts + _norm_to_the_right(core.reshape(left, shape[first], right), rights, Asked())


def _after(asked: Asked, rank: int, side: int) -> Asked:
    """Updates the options of a small array's TT-SVD for the next bond.

    Once a bond did not need its full rank, later bonds are not tested for it.
    """
    whole = asked.whole and rank == side
    return asked._replace(guess=next_guess(rank, side), whole=whole)


@functools.lru_cache(maxsize=4096)
def _joined(left: int, modes: tuple[int, ...], size: int) -> int:
    """Returns how many leading modes of a small array TT-SVD cuts by a single Gram matrix."""
    rows, count = left * modes[0], 1
    for n in modes[1:-1]:
        if rows * n > _JOINED or (rows * n) ** 2 > size:
            break
        rows, count = rows * n, count + 1
    return count


def _split_on_the_left(
    core: Any, left: int, modes: tuple[int, ...], asked: Asked
) -> tuple[list[Any], Any, Asked]:
    """Splits leading modes off in a small array's TT-SVD; returns cores, the rest, new options."""
    m, size = left * modes[0], core.size
    a = core.reshape(m, -1)
    if m <= a.shape[1]:
        joined = _joined(left, modes, size)
        if joined > 1:
            return _split_joined(core, left, modes[:joined], asked)
        found = small_leading(a, asked)
        u, core = found.basis, a if found.energies is None else adjoint(found.basis) @ a
    elif size <= _TINY:
        u, core = _by_svd(a, asked.tail)
    else:
        u, core = columns_split(a, small_leading(a, asked, right=True), core.dtype)
    rank = u.shape[1]
    return [u.reshape(left, modes[0], rank)], core, _after(asked, rank, min(m, size // m))


def _split_joined(
    core: Any, left: int, modes: Sequence[int], asked: Asked
) -> tuple[list[Any], Any, Asked]:
    """Splits several leading modes off a small array in TT-SVD, by one Gram matrix."""
    after = math.prod(modes)
    a = core.reshape(left * after, -1)
    w, cut = host_gram(a), False
    cores: list[Any] = []
    for n in modes:
        m, after = left * n, after // n
        blocks = w.reshape(m, after, m, after)
        u = of_gram(np.trace(blocks, axis1=1, axis2=3), asked).basis
        rank = u.shape[1]
        if rank < m and after > 1:
            w = u.T @ absorb(adjoint(u), blocks)
        cores.append(u.reshape(left, n, rank))
        cut = cut or rank < m
        asked, left = _after(asked, rank, m), rank
    basis = tall(merge(cores))
    return cores, adjoint(basis) @ a if cut else a, asked


@functools.lru_cache(maxsize=4096)
def _from_the_right(m: int, n: int, size: int, more: int) -> bool:
    """Whether TT-SVD of a small array is predicted to be faster if it splits the last mode first.

    A side that is no longer than the rank stays whole: the next mode, of size ``more``, goes with
    it then.
    """
    if n * n > size:
        return False
    m = m * more if m <= _GUESS else m
    sides = min(m, size // m), n
    at_left, at_right = (_predicted_times.cut(size, side, min(side, _GUESS)) for side in sides)
    return at_right + _AGAIN < at_left


def _by_svd(a: np.ndarray, tail: Any) -> tuple[np.ndarray, np.ndarray]:
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    sums = np.cumsum(s[::-1] ** 2)
    kept = max(len(s) - int(np.searchsorted(sums, tail, side="right")), 1)
    return u[:, :kept], s[:kept, None] * vh[:kept]
