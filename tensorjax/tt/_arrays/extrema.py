"""Largest and smallest entries of a tensor train, by a beam search that bounds all others."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb, einsum, times_slices
from tensorjax._cores.unfoldings import tall
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._placement import placed
from tensorjax.tt._entries import evaluate
from tensorjax.tt._folding import fold
from tensorjax.tt._rounding.orthogonalize import orthogonal_cores

Index = tuple[int, ...]
# Number of best candidates from which local searches start.
_STARTS = 8
# Relative roundoff by which the bound may exceed the best entry, which is certified nevertheless.
_SLACK = 1e-12


@dataclasses.dataclass(frozen=True)
class ExtremumInfo:
    """Certificate of a tensor train's extremum: whether it is proven, and a bound on all entries.

    Attributes:
      status: "certified", no entry is beyond the value found, but for roundoff; or "searched", none
        was found, and ``bound`` says how far beyond it one could be.
      bound: a number that no entry is beyond: at least the largest, or at most the smallest one.

    Example:
      >>> from tensorjax import tt
      >>> tt.argmax(tt.unit((4, 5, 6), (1, 2, 3)))[2]
      ExtremumInfo(status='certified', bound=1.0)

    Source: ours.
    """

    status: Literal["certified", "searched"]
    bound: float


@overload
def argmax(t: TT, *, candidates: int = 256) -> tuple[jax.Array, Index, ExtremumInfo]: ...
@overload
def argmax(
    t: TTMatrix, *, candidates: int = 256
) -> tuple[jax.Array, tuple[Index, Index], ExtremumInfo]: ...
@placed
def argmax(
    t: TT | TTMatrix, *, candidates: int = 256
) -> tuple[jax.Array, tuple[Any, ...], ExtremumInfo]:
    """Finds the largest entry (extremum) of a real train: value, multi-index and certificate.

    Args:
      t: TT or TTMatrix of real dtype, outside of transformations.
      candidates: partial multi-indices kept per mode; more find more, and certify more.

    Returns:
      (value, index, `ExtremumInfo`), with ``t[index]`` the value: of a TTMatrix the index is a pair
      of multi-indices, of row and column.

    Raises:
      TypeError: a complex train, or a traced one. ValueError: NaN or Inf, or no candidates.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x = tt.rank_one([jnp.array([1.0, 3.0, -2.0])] * 30)
      >>> value, index, info = tt.argmax(x)
      >>> index == (1,) * 30, info.status, bool(info.bound >= value)
      (True, 'searched', True)

    Source: A. Chertkov, G. Ryzhakov, G. Novikov, I. Oseledets, "Optimization of functions given in
    the tensor train format", arXiv 2209.14808: multi-indices are built mode by mode, and those are
    kept whose remaining tensor has the largest norm. Ours: no entry of a remaining tensor is above
    its norm, so what was dropped is bounded; the search is repeated from the other end and for the
    train minus its smallest entry, and goes on mode by mode from the best entries found.
    """
    return _extremum(t, candidates, 1.0)


@overload
def argmin(t: TT, *, candidates: int = 256) -> tuple[jax.Array, Index, ExtremumInfo]: ...
@overload
def argmin(
    t: TTMatrix, *, candidates: int = 256
) -> tuple[jax.Array, tuple[Index, Index], ExtremumInfo]: ...
@placed
def argmin(
    t: TT | TTMatrix, *, candidates: int = 256
) -> tuple[jax.Array, tuple[Any, ...], ExtremumInfo]:
    """Finds the smallest entry (extremum) of a real train: value, multi-index and certificate.

    Args:
      t: TT or TTMatrix of real dtype, outside of transformations.
      candidates: partial multi-indices kept per mode; more find more, and certify more.

    Returns:
      (value, index, `ExtremumInfo`) as of `argmax`; no entry is below ``bound``.

    Raises:
      TypeError: a complex train, or a traced one. ValueError: NaN or Inf, or no candidates.

    Example:
      >>> from tensorjax import tt
      >>> value, index, info = tt.argmin(tt.unit((4, 5, 6), (1, 2, 3)) * -2.0 + 1)
      >>> print(value, index, info.status)
      -1.0 (1, 2, 3) certified

    Source: A. Chertkov et al., "Optimization of functions given in the tensor train format", arXiv
    2209.14808, with the departures named in `argmax`, here for −t.
    """
    return _extremum(t, candidates, -1.0)


class _Found(NamedTuple):
    """Candidates for the extremum of a train's entries, and a bound on all other entries."""

    indices: np.ndarray
    dropped: float


def _extremum(t: TT | TTMatrix, candidates: int, sign: float) -> Any:
    single("t", t, entries=True)
    if isinstance(t, TTMatrix):
        value, index, info = _extremum(fold(t), candidates, sign)
        pairs = [divmod(i, n) for i, n in zip(index, t.col_shape, strict=True)]
        return value, tuple(zip(*pairs, strict=True)), info
    _check.integer("candidates", candidates, low=1)
    if _check.is_traced(t):
        raise TypeError(
            "t: expected a concrete train; extrema are searched outside of jit and vmap"
        )
    if jnp.issubdtype(t.dtype, jnp.complexfloating):
        raise TypeError(f"t: expected a real dtype, got {t.dtype}; complex numbers have no order")
    _check.finite("t", t)
    cores, exponent = _wide(t, sign)
    found = _search(cores, candidates)
    values = _values(cores, found.indices)
    index, best = _improved(cores, found.indices, values)
    low = float(values.min())
    # No entry of x is above its size; nor is x − low above the size of that.
    bound = max(best, found.dropped)
    if bound > best:
        shifted = _search(_plus(cores, -low), candidates)
        values = _values(cores, shifted.indices)
        other, value = _improved(cores, shifted.indices, values)
        index, best = (other, value) if value > best else (index, best)
        bound = max(best, min(found.dropped, low + shifted.dropped))
    certified = bound <= best + _SLACK * max(abs(best), abs(low))
    # Where all that was seen is zero, or has vanished, a train that is not zero has more.
    certified &= bool(best != 0 or low != 0 or not any(cores[0].flat))
    value = evaluate(t, index)
    with np.errstate(over="ignore"):
        limit = sign * float(linalg.scaled(np.float64(bound), exponent))
    limit = float(value) if certified else limit
    status: Any = "certified" if certified else "searched"
    return value, tuple(map(int, index)), ExtremumInfo(status, limit)


def _wide(t: TT, sign: float) -> tuple[list[np.ndarray], int]:
    """Prepares a train for the search of extrema: right-orthogonal cores in double precision.

    Then what is multiplied out from the left is no smaller than the entries that come of it.
    """
    cores: list[Any] = [np.asarray(c).astype(np.float64) for c in t.cores]
    total = 0
    # From the left first: what the left cores do not see must not set the scale of the right ones.
    for center in (t.order - 1, 0):
        cores, exponent = orthogonal_cores(TT._unchecked(tuple(cores)), center)
        total += int(np.ravel(exponent)[0])
    return [cores[0] * sign, *cores[1:]], total


def _plus(cores: Sequence[np.ndarray], constant: float) -> list[np.ndarray]:
    """Adds a constant to all entries of a train of NumPy cores, in the search for its extrema."""
    if len(cores) == 1:
        return [cores[0] + constant]
    out = []
    for k, core in enumerate(cores):
        r, n, s = core.shape
        both = np.zeros((r + 1, n, s + 1))
        both[:r, :, :s], both[r, :, s] = core, constant if k == 0 else 1.0
        out.append(both)
    out[0], out[-1] = out[0].sum(0, keepdims=True), out[-1].sum(2, keepdims=True)
    return out


def _search(cores: list[np.ndarray], width: int) -> _Found:
    """Searches a tensor train for extrema in magnitude, by beam searches from both ends."""
    ahead = _beam(cores, width)
    back = _beam([c.transpose(2, 1, 0) for c in cores[::-1]], width)
    indices = np.unique(np.concatenate([ahead.indices, back.indices[:, ::-1]]), axis=0)
    return _Found(indices, min(ahead.dropped, back.dropped))


def _beam(cores: list[np.ndarray], width: int) -> _Found:
    """Searches a tensor train for extrema by a beam search from left to right."""
    held, exponent = orthogonal_cores(TT._unchecked(tuple(cores)), 0)
    rows, indices, dropped = np.ones((1, 1)), np.zeros((1, 0), np.int64), 0.0
    for core in held:
        n = core.shape[1]
        rows = tall(absorb(rows, core))
        digits = np.tile(np.arange(n), len(indices))[:, None]
        indices = np.concatenate([np.repeat(indices, n, axis=0), digits], axis=1)
        norms = np.linalg.norm(rows, axis=1)
        if len(rows) > width:
            order = np.argpartition(-norms, width - 1)
            dropped = max(dropped, float(norms[order[width:]].max()))
            rows, indices = rows[order[:width]], indices[order[:width]]
    return _Found(indices, float(linalg.scaled(np.float64(dropped), int(np.ravel(exponent)[0]))))


def _values(cores: list[np.ndarray], indices: np.ndarray) -> np.ndarray:
    rows = np.ones((len(indices), 1))
    for core, column in zip(cores, indices.T, strict=True):
        rows = times_slices(rows, core, column)
    return rows[:, 0]


def _improved(
    cores: list[np.ndarray], indices: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, float]:
    """Improves candidates for a train's extremum by mode-wise ascent; returns the best."""
    best, at = -np.inf, indices[0]
    for k in np.argsort(-values)[:_STARTS]:
        index, value = _ascended(cores, indices[k].copy())
        if value > best:
            best, at = value, index
    return at, best


def _ascended(cores: list[np.ndarray], index: np.ndarray) -> tuple[np.ndarray, float]:
    """Climbs to an extremum of a tensor train's entries by changes of one index at a time."""
    value = -np.inf
    while True:
        rights = [np.ones(1)]
        for core, i in zip(cores[:0:-1], index[:0:-1], strict=True):
            rights.append(core[:, i] @ rights[-1])
        left, new = np.ones(1), value
        for k, core in enumerate(cores):
            line = einsum("a,aib,b->i", left, core, rights[len(cores) - 1 - k])
            new, index[k] = float(line.max()), int(line.argmax())
            left = left @ core[:, index[k]]
        if not new > value:
            return index, value
        value = new
