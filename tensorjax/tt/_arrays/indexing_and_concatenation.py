"""Indexing of trains as in NumPy, concatenation along a mode, and padding of modes with zeros."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.index_keys import WHOLE, expanded, is_integer, known_key, picked, read
from tensorjax._formats.trains import TT, Train, TTMatrix, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import copied
from tensorjax.tt._arrays.mode_products import contract_modes
from tensorjax.tt._broadcasting import aligned
from tensorjax.tt._entries import evaluate
from tensorjax.tt._exact_arithmetic import add
from tensorjax.tt._folding import fold, rearranged, unfold


@placed
def item(t: TT, key: Any) -> Any:
    """Indexes a train, t[key], as NumPy does: returns a TT, or a scalar if all keys are integers.

    Args:
      t: TT of order d.
      key: per mode an integer, a slice, or, for one mode, a vector of integers or Booleans; None
        adds a mode of size one, an Ellipsis stands for the modes not named.

    Returns:
      TT, or a scalar if no mode remains. TT-ranks are those of ``t`` or smaller.

    Raises:
      IndexError: out of range, too many keys, or keys that no train can follow.
        Integers known only under a transformation give NaN where they are out of range.
    """
    single("t", t, TT)
    keys, numbers = read(key, t.shape)
    if numbers is not None and choose_kernel("tt.TT[...]", numbers) is NUMPY:
        return evaluate(t, np.array([operator.index(k) for k in numbers]))
    modes = [k for k in keys if k is not None]
    cores = _at_hand(t, modes)
    picked_cores = [picked(c, k, n) for c, k, n in zip(cores, modes, t.shape, strict=True)]
    out, gone, new = iter(picked_cores), [], []
    for k in keys:
        if k is None:
            rank = 1 if not new else new[-1].shape[-1]
            new.append(np.eye(rank, dtype=t.dtype)[:, None])
        else:
            gone += [len(new)] * is_integer(k)
            new.append(next(out))
    return _without(new, gone)


@placed
def matrix_item(a: TTMatrix, key: Any) -> Any:
    """Indexes a TT-matrix, a[rows, columns]: returns an entry, a row, a column or a block.

    Args:
      a: TTMatrix.
      key: rows, or (rows, columns). Each is ``:``, an Ellipsis, an integer that counts rows or
        columns of the whole matrix, or a tuple of one integer or slice per mode.

    Returns:
      TTMatrix; TT over the modes of the other side where rows or columns are one; a scalar where
      both are. A mode that both sides give an integer for goes.

    Raises:
      IndexError: out of range, or too many keys.
    """
    single("a", a, TTMatrix)
    if key is Ellipsis:
        return a
    keys = list(key) if isinstance(key, tuple) else [key]
    if len(keys) == 3 and sum(k is Ellipsis for k in keys) == 1:  # which stands for nothing
        keys = [k for k in keys if k is not Ellipsis]
    if len(keys) > 2:
        raise IndexError(f"expected rows, or rows and columns, got {len(keys)} keys")
    row_key, column_key = [*keys, WHOLE, WHOLE][:2]
    rows = _side(row_key, a.row_shape, "rows")
    columns = _side(column_key, a.col_shape, "columns")
    cores = []
    for c, i, j in zip(_at_hand(a, [*rows, *columns]), rows, columns, strict=True):
        c = picked(c, i, c.shape[1], axis=1)
        cores.append(picked(c, j, c.shape[2], axis=2))
    one_row, one_column = (all(map(is_integer, side)) for side in (rows, columns))
    if one_row or one_column:
        other = columns if one_row else rows
        gone = [k for k, key in enumerate(other) if is_integer(key)]
        flat = [c.reshape(len(c), -1, c.shape[-1]) for c in cores]
        return _without(flat, gone)
    gone = [
        k for k, pair in enumerate(zip(rows, columns, strict=True)) if all(map(is_integer, pair))
    ]
    block = TTMatrix._unchecked(tuple(cores))
    if not gone:
        return TTMatrix._unchecked(tuple(copied(cores)))
    kept = [k for k in range(a.order) if k not in gone]
    out = _without(list(fold(block).cores), gone)
    return unfold(out, [block.row_shape[k] for k in kept], [block.col_shape[k] for k in kept])


def _at_hand(t: TT | TTMatrix, keys: Sequence[Any]) -> list[Any]:
    """Returns a train's cores for indexing: NumPy arrays where NumPy indexes them, else JAX's."""
    moving = [k for k in keys if not isinstance(k, slice)]
    hosted = choose_kernel("tt.TT[...]", (t, moving)) is NUMPY
    return [np.asarray(c) for c in t.cores] if hosted else list(t.cores)


def _without(cores: list[Any], gone: Sequence[int]) -> Any:
    """Builds the train that an index ``t[key]`` selects, without the modes of integer keys."""
    t = TT._unchecked(tuple(cores))
    if not gone:
        return TT._unchecked(tuple(copied(cores)))
    one = np.ones(1, t.dtype)
    return contract_modes(t, dict.fromkeys(gone, one))


def _side(key: Any, shape: tuple[int, ...], what: str) -> list[Any]:
    """Expands the row or the column key of a TT-matrix to one integer or slice per mode."""
    if (isinstance(key, slice) and key == WHOLE) or key is Ellipsis:
        return [WHOLE] * len(shape)
    if isinstance(key, tuple):
        keys = expanded(key, len(shape), f"{what}' modes")
        if not all(isinstance(k, slice) or (k is not None and is_integer(k)) for k in keys):
            raise IndexError(f"expected an integer or a slice per mode of the {what}, got {key}")
        return keys
    if isinstance(key, slice) or key is None or not is_integer(key):
        raise IndexError(
            f"expected an integer, ':' or a tuple of one integer or slice per mode for the {what}, "
            f"got {key!r}"
        )
    total = math.prod(shape)
    if not _check.is_traced(key):
        index = operator.index(known_key(key))
        if not -total <= index < total:
            raise IndexError(f"expected an index of the {what} in [-{total}, {total}), got {index}")
        return [int(i) for i in np.unravel_index(index % total, shape)]
    # Of a negative number all digits but the leading one are as from the end: no size is added,
    # which the dtype might not hold.
    index, digits = key if key.dtype.itemsize >= 4 else key.astype(jnp.int32), []
    for n in shape[:0:-1]:
        index, digit = jnp.divmod(index, n)
        digits.append(digit)
    return [index, *digits[::-1]]


@placed
def concatenate(trains: Sequence[Train], axis: int = 0) -> Train:
    """Concatenates trains along one mode (TT-matrices: along its rows); TT-ranks add.

    Args:
      trains: TT or TTMatrix, equal in all modes but ``axis``.
      axis: the mode, 0 … d−1 (negative counts from the end).

    Returns:
      Train of the kind of the first, whose mode ``axis`` has the sum of their sizes.

    Raises:
      TypeError: no trains, or trains of two kinds.
      ValueError: the other modes differ, or ``axis`` is out of range.

    Example:
      >>> from tensorjax import tt
      >>> tt.concatenate([tt.ones((2, 3)), tt.zeros((2, 4))], axis=1).shape
      (2, 7)

    Source: ours; a sum of trains padded by zeros, Oseledets (2011), section 4.1.
    """
    trains = _check.several("trains", trains, "trains")
    if not trains or any(type(t) is not type(trains[0]) for t in trains):
        raise TypeError(
            "trains: expected one or more trains of one kind, got "
            f"{sorted({type(t).__name__ for t in trains}) or 'none'}"
        )
    for k, t in enumerate(trains):
        single(f"trains[{k}]", t)
    order = trains[0].order
    axis = _check.integer("axis", axis, low=-order, high=order - 1) % order
    sizes = [t.cores[axis].shape[1] for t in trains]
    total, start, out = sum(sizes), 0, None
    for t, size in zip(trains, sizes, strict=True):
        core = t.cores[axis]
        widths = [(0, 0)] * core.ndim
        widths[1] = (start, total - start - size)
        padded = type(t)._unchecked((*t.cores[:axis], jnp.pad(core, widths), *t.cores[axis + 1 :]))
        # Aligned before: of modes that are joined side by side none is broadcast, as in NumPy.
        out = padded if out is None else add(*aligned(out, padded))
        start += size
    return out  # type: ignore[return-value]


@placed
def pad_modes(t: TT, widths: Sequence[tuple[int, int]]) -> TT:
    """Zero-pads the modes of a train before and after, as `numpy.pad`; the TT-ranks stay.

    Args:
      t: TT.
      widths: (before, after) per mode.

    Returns:
      TT of the TT-ranks of ``t``, whose k-th mode has size before + n_k + after.

    Raises:
      ValueError: another number of pairs than modes, or negative widths.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.pad_modes(tt.ones((2,)), [(1, 0)])))
      [0. 1. 1.]

    Source: ours.
    """
    single("t", t, TT)
    widths = _check.several("widths", widths, "pairs (before, after)")
    if len(widths) != t.order:
        raise ValueError(f"widths: expected {t.order} pairs (before, after), got {len(widths)}")
    if any(np.ndim(pair) != 1 for pair in widths):
        raise ValueError(f"widths: expected pairs (before, after), got {widths}")
    pairs = [tuple(_check.integer("widths", w, low=0) for w in pair) for pair in widths]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"widths: expected pairs (before, after), got {widths}")

    def padded(core: Any, pair: tuple[int, int]) -> Any:
        return (np if linalg.is_host(core) else jnp).pad(core, [(0, 0), pair, (0, 0)])

    return TT._unchecked(rearranged("pad_modes", t.cores, padded, pairs))
