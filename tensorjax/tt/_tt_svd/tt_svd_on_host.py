"""TT-SVD on the host: the order of cuts, from either end, is chosen by predicted time.

At every step one bond of the array that is left is cut, and the modes beyond it are split off: on
the left as cores whose columns are orthonormal, on the right as cores whose rows are. A long side
is thus met only when the modes between have been compressed. In the end the norm moves to the last
core. All cuts are orthogonal projections one after the other, so the squared error is the sum of
the energies that they discard, whatever their order.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax import _blas_threads
from tensorjax._cores.contractions import absorb, merge
from tensorjax._cores.unfoldings import tall
from tensorjax.linalg import _predicted_times
from tensorjax.linalg._arrays import adjoint
from tensorjax.linalg._gram import host_energy, host_gram, project
from tensorjax.linalg._qr import orthonormalized
from tensorjax.linalg._subspaces.method_choice import Method
from tensorjax.linalg._subspaces.subspaces_on_host import (
    SQUARE,
    Asked,
    Subspace,
    all_needed,
    alone,
    columns_split,
    is_tall,
    leading,
    recut,
    times,
)

# Rank expected of unknown data.
_GUESS = 6
# Arrays from _PROBED entries on are probed for their rank first: an unfolding of at most
# _PROBED_ROWS rows is sampled in at least _PIECES pieces of _PIECE columns.
_PROBED, _PROBED_ROWS, _PIECES, _PIECE = 2**19, 64, 8, 64
# Bonds on the right wider than this are not truncated a second time.
_CLEANED = 256
# Smaller arrays are cut from left to right.
_PLAIN = 2**16
# Factors with more rows go to Gram matrices.
_LONG = 32
# Share of a bond's allowed energy that a basis of several modes may lack before these are split.
_FACTOR = 0.01
# Sides shorter than the first number are candidates only where no longer one is left; from either
# end, none is after the first that is longer than the second.
_SHORT_SIDE, _LONG_SIDE = 4, 1024


class _Group(NamedTuple):
    """Modes that the host TT-SVD splits off together, with their cores and discarded energies.

    Attributes:
      modes: their sizes, in order.
      cores: of each; none if the modes stay as they are in the array that is left.
      lost: the energy discarded at the bond of each, from the outermost mode inwards.
      bond: that at which they were split off.
    """

    modes: tuple[int, ...]
    cores: list[Any]
    lost: list[float]
    bond: int


class _Cut(NamedTuple):
    """Position where the host TT-SVD can cut an array: a number of modes from left or right."""

    modes: int
    right: bool


def tt_svd(x: np.ndarray, asked: Asked, caps: Sequence[int] | None = None) -> list[Any]:
    """Computes the TT-SVD of a dense array on the host; all cores but the last are orthonormal.

    Args:
      x: (n_1, …, n_d).
      asked: ``share`` of the energy that every bond may discard; its method.
      caps: the largest rank at each bond, if there is one.
    """
    shape, core = x.shape, np.ascontiguousarray(x)
    asked = asked._replace(guess=_probed(core, asked, caps), whole=True)
    first, last, left, right = 0, len(shape), 1, 1  # modes in the core, ranks on both sides of it
    parts = 2 if x.dtype.kind == "c" else 1
    lefts: list[Any] = []
    rights: list[_Group] = []
    while last - first > 1:
        cut = _next_cut(left, shape[first:last], right, asked.guess or _GUESS, parts)
        bond = last - cut.modes if cut.right else first + cut.modes
        matrix = core.reshape(left * math.prod(shape[first:bond]), -1)
        cap = None if caps is None else min(caps[bond - 1], *matrix.shape)
        # One mode is taken from what is right of it where that is the shorter side.
        square = matrix.shape[0] > matrix.shape[1] and not is_tall(matrix)
        if square and bond == first + 1:
            cut, cap = _Cut(1, False), min(matrix.shape) if cap is None else cap
        single = bond == first + 1 and (cut.right or is_tall(matrix))
        side = matrix.shape[cut.right or single]
        # Inner bonds are cut first, in a factor of the matrix: they take noise off the last.
        inner = cut.modes > 1 and not single and side <= _CLEANED and caps is None
        part = _FACTOR if inner else 1.0
        found = leading(matrix, asked._replace(cap=cap, part=part), right=cut.right or single)
        if asked.share is not None:
            asked = asked._replace(share=None, tail=asked.share * found.total)
        rank = found.basis.shape[1]
        if single:
            u, core = columns_split(matrix, found, x.dtype if asked.narrow else found.basis.dtype)
            lefts.append(u.reshape(left, shape[first], -1))
            first, left = bond, len(core)
            asked = asked._replace(guess=next_guess(rank, side))
            continue
        group = _group(found, shape[bond:last] if cut.right else shape[first:bond], bond)
        known = found.energies is None or part == 1 or found.energies[-1] > (asked.tail or 0)
        if rank < side or not known:
            edge = right if cut.right else left
            group, basis = _split_off(found, group, edge, asked, caps, cut.right)
            rank = basis.shape[1]
            basis = basis.astype(x.dtype, copy=False) if asked.narrow else basis
            with _blas_threads.one_thread(alone(matrix, cut.right)):
                core = times(matrix, basis) if cut.right else project(basis, matrix)
        if cut.right:
            rights, last, right = [group, *rights], bond, rank
        else:
            lefts += group.cores or _identities(left, group.modes, core.dtype)
            first, left = bond, rank
        asked = asked._replace(guess=next_guess(rank, side))
    return lefts + _norm_to_the_right(core.reshape(left, shape[first], right), rights, asked)


def next_guess(rank: int, side: int) -> int:
    """Guesses the rank that the next cut of a host TT-SVD finds, from that of the last cut."""
    return 2 * rank if rank == side else rank + rank // 4 + 2


def _identities(left: int, modes: Sequence[int], dtype: Any) -> list[Any]:
    cores = []
    for n in modes:
        cores.append(np.eye(left * n, dtype=dtype).reshape(left, n, left * n))
        left *= n
    return cores


def _group(found: Subspace, modes: tuple[int, ...], bond: int) -> _Group:
    """Returns modes that the host TT-SVD splits off exactly, as their bond has full rank."""
    return _Group(modes, [], [0.0] * (len(modes) - 1) + [found.discarded], bond)


def _split_off(
    found: Subspace,
    group: _Group,
    edge: int,
    asked: Asked,
    caps: Sequence[int] | None,
    right: bool,
) -> tuple[_Group, Any]:
    """Splits a basis of several modes into cores, in host TT-SVD; returns their product too."""
    basis, count = found.basis, len(group.modes)
    rank = basis.shape[1]
    if count == 1:
        core = basis.reshape(-1, edge, rank) if right else basis.reshape(edge, -1, rank)
        return group._replace(cores=[core.transpose(2, 0, 1).conj() if right else core]), basis
    if caps is not None:
        inner = (
            range(group.bond, group.bond + count)
            if right
            else range(group.bond - count, group.bond)
        )
        caps = [caps[k] for k in inner][: count - 1]
        caps = caps[::-1] if right else caps
    sizes = (*group.modes, edge) if right else (edge, *group.modes)
    mirror = (*range(count + 1)[::-1], count + 1)
    turned = basis.reshape(*sizes, rank)
    turned = turned.transpose(mirror) if right else turned
    cores, lost = _split(turned, found, asked, caps)
    product = tall(merge(cores))
    if right:
        turned = product.reshape(*sizes[::-1], -1).transpose(mirror)
        product = np.ascontiguousarray(turned).reshape(-1, product.shape[1])
        cores = [c.transpose(2, 1, 0).conj() for c in cores[::-1]]
    return group._replace(cores=cores, lost=lost), product


def _split(
    basis: Any, found: Subspace, asked: Asked, caps: Sequence[int] | None
) -> tuple[list[Any], list[float]]:
    """Splits a basis (r_0, n_1, …, n_k, m), found by the host TT-SVD, into isometric cores.

    Also returns the energies lost at the bonds; the last includes what the basis had left out.
    """
    left, *modes, columns = basis.shape
    gone, rows = found.discarded, left * math.prod(modes)
    x: Any = basis * np.sqrt(found.energies).astype(basis.dtype)
    cores: list[Any] = []
    lost: list[float] = []
    for k, n in enumerate(modes):
        inner = k < len(modes) - 1
        matrix = x.reshape(left * n, -1)
        allowed = None if asked.tail is None else asked.tail if inner else max(asked.tail - gone, 0)
        cap = (None if caps is None else caps[k]) if inner else columns
        tall = matrix.shape[0] > 2 * matrix.shape[1]
        exact: Method = "svd" if asked.method == "svd" or tall or len(matrix) < _LONG else "gram"
        wanted = Asked(tail=allowed, cap=cap, method=exact, whole=inner)
        small = None
        if not inner and len(matrix) == rows:  # nothing was cut before: columns are orthogonal
            small = recut(basis.reshape(rows, -1), found.energies, wanted)
        small = small or leading(matrix, wanted)
        u = small.basis
        if inner and len(u) == u.shape[1]:
            u, x = np.eye(len(u), dtype=u.dtype), matrix
        else:
            x = adjoint(u) @ matrix if inner else None
        cores.append(u.reshape(left, n, -1))
        lost.append(small.discarded + (0.0 if inner else gone))
        left = u.shape[1]
    return cores, lost


def _norm_to_the_right(core: Any, rights: list[_Group], asked: Asked) -> list[Any]:
    """Moves the norm in the host TT-SVD to the last core; truncates cores on the right once more.

    Their bonds were cut before those on the left had taken their noise off. What was left of the
    energy that they may discard is used now.
    """
    cores = []
    for group in rights:
        for k, n in enumerate(group.modes):
            spare = (
                None if asked.tail is None else asked.tail - group.lost[len(group.modes) - 1 - k]
            )
            q, r = _orthonormal_columns(core.reshape(-1, math.prod(core.shape[2:])), spare)
            cores.append(q.reshape(*core.shape[:2], -1))
            core = absorb(r, group.cores[k]) if group.cores else r.reshape(len(r), n, -1)
    return [*cores, core]


def _orthonormal_columns(a: Any, spare: float | None) -> tuple[Any, Any]:
    """Factors an unfolding of a host TT-SVD as q r, q orthonormal; discards ``spare`` energy."""
    if a.shape[0] <= a.shape[1]:
        q, r = np.eye(len(a), dtype=a.dtype), a
    else:
        q, r = orthonormalized(a)
    if spare is None or not spare > 0 or len(r) > _CLEANED or _needed(r, spare):
        return q, r
    u = leading(r, Asked(tail=spare, method="svd")).basis
    return (q, r) if len(u) == u.shape[1] else (q @ u, adjoint(u) @ r)


def _needed(r: Any, spare: float) -> bool:
    """Whether all singular values of a triangle r are too large for TT-SVD to discard any."""
    if all_needed(host_gram(r), Asked(tail=spare)):
        return True
    if r.shape[0] != r.shape[1]:
        return False
    try:
        return host_energy(np.linalg.inv(r)) * spare < 1
    except np.linalg.LinAlgError:
        return False


def _probed(x: np.ndarray, asked: Asked, caps: Sequence[int] | None) -> int | None:
    """Estimates the rank of the first unfolding in host TT-SVD from some columns, or None."""
    if caps is not None:
        return max(caps, default=1)
    if x.size < _PROBED or asked.method == "svd":
        return None
    rows, most = 1, min(_PROBED_ROWS, x.size // 2**16)
    for n in x.shape:
        if rows > 1 and rows * n > most:
            break
        rows *= n
    columns, pieces = x.size // rows, max(_PIECES, rows // 2)
    if rows > 4 * _PROBED_ROWS or columns < 4 * pieces * _PIECE:
        return None
    matrix = x.reshape(rows, columns)
    starts = np.random.default_rng(0).integers(columns - _PIECE, size=pieces)
    some = np.concatenate([matrix[:, s : s + _PIECE] for s in starts], 1)
    rank = leading(some, Asked(share=asked.share, method="gram")).basis.shape[1]
    return 2 * rank if rank > 0.8 * rows else rank + rank // 4 + 2


def _next_cut(left: int, modes: tuple[int, ...], right: int, guess: int, parts: int = 1) -> _Cut:
    """Chooses where the host TT-SVD cuts next: the cheapest cut, or the first mode if small."""
    small = left * math.prod(modes) * right < _PLAIN
    return _Cut(1, False) if small else _cheapest(left, modes, right, guess, parts)


@functools.lru_cache(maxsize=4096)
def _cheapest(left: int, modes: tuple[int, ...], right: int, guess: int, parts: int) -> _Cut:
    """Chooses the next cut of a host TT-SVD by predicted time, looking one cut ahead."""
    return _best(left, modes, right, guess, parts, ahead=1)[1]


def _best(
    left: float, modes: Sequence[int], right: float, guess: int, parts: int, ahead: int
) -> tuple[float, _Cut]:
    size = left * math.prod(modes) * right
    found: list[tuple[float, _Cut]] = []
    for cut, side in _candidates(left, modes, right, guess):
        rank = min(guess, side)
        seconds = _predicted_times.cut(size, side, rank, cut.right, parts)
        rest = modes[: len(modes) - cut.modes] if cut.right else modes[cut.modes :]
        if ahead and len(rest) > 1:
            ends = (left, rank) if cut.right else (rank, right)
            seconds += _best(ends[0], rest, ends[1], guess, parts, ahead - 1)[0]
        if cut.right:  # cores on the right are orthogonalised once more
            more = min(4 * guess, side)  # the rank may turn out to be higher
            rows = min(more, size / (side * rest[-1])) * rest[-1]
            seconds += (1 if len(rest) == 1 else 4) * _predicted_times.product(
                rows * more, more, parts=parts
            )
        found.append((seconds, cut))
    return min(found, key=lambda pair: pair[0])


def _candidates(
    left: float, modes: Sequence[int], right: float, guess: int
) -> list[tuple[_Cut, float]]:
    """Lists the cuts that the host TT-SVD can take next, with unfolding sides.

    A side that is no longer than the rank would stay whole: a pass over the data for nothing.
    """
    size = left * math.prod(modes) * right
    out = []
    for towards_right in (False, True):
        side = right if towards_right else left
        ordered = modes[::-1] if towards_right else modes
        for k, n in enumerate(ordered[:-1]):
            side *= n
            # A nearly square unfolding is cut from the left: nothing is orthogonalised again.
            if (side * side * SQUARE >= size) if towards_right else (side * side > SQUARE * size):
                break
            if side >= _SHORT_SIDE or k == len(ordered) - 2:
                out.append((_Cut(k + 1, towards_right), side))
            if side > _LONG_SIDE:
                break
    if out:
        # Where all are expected to stay whole, the longest says so of those within it.
        return [c for c in out if c[1] > guess] or [max(out, key=lambda pair: pair[1])]
    ends = [(_Cut(1, False), left * modes[0]), (_Cut(1, True), right * modes[-1])]
    return [min(ends, key=lambda pair: pair[1])]
