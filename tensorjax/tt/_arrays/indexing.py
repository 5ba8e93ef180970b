"""Indexing of trains as in NumPy: t[3, :, 2:5, None, ...] acts on one core per mode."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._ids import counted
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax.tt._algebra import fold, unfold
from tensorjax.tt._evaluation.evaluate import contract_modes, evaluate

_WHOLE = slice(None)


@placed
def item(t: TT, key: Any) -> Any:
    """Indexes a train, t[key], as NumPy does: a TT; a scalar where all keys are integers.

    Args:
      t: TT of order d.
      key: per mode an integer, a slice, or, for one mode, a vector of integers or Booleans; None
        adds a mode of size one, an Ellipsis stands for the modes not named.

    Returns:
      TT, or a scalar if no mode remains. TT-ranks are those of ``t`` or smaller.

    Raises:
      IndexError: out of range, too many keys, nothing picked, or keys that no train can follow.
        Integers known only under a transformation give NaN where they are out of range.
    """
    single("t", t, TT)
    given = tuple(map(_array_of, key if isinstance(key, tuple) else (key,)))
    keys = _expanded(given, t.order, "modes")
    _check_vectors(given)
    modes = [k for k in keys if k is not None]
    if all(_is_integer(k) for k in keys):
        _check_integers(modes, t.shape)
        picked = [_known(k) for k in modes]
        if choose_kernel("tt.TT[...]", picked) is NUMPY:
            return evaluate(t, np.array([operator.index(k) for k in picked]))
    cores = _at_hand(t, modes)
    picked_cores = [_picked(c, k, n) for c, k, n in zip(cores, modes, t.shape, strict=True)]
    out, gone, new = iter(picked_cores), [], []
    for k in keys:
        if k is None:
            rank = 1 if not new else new[-1].shape[-1]
            new.append(np.eye(rank, dtype=t.dtype)[:, None])
        else:
            gone += [len(new)] * _is_integer(k)
            new.append(next(out))
    return _without(new, gone)


@placed
def matrix_item(a: TTMatrix, key: Any) -> Any:
    """Indexes a TT-matrix, a[rows, columns]: entries, rows, columns and blocks.

    Args:
      a: TTMatrix.
      key: rows, or (rows, columns). Each is ``:``, an Ellipsis, an integer that counts rows or
        columns of the whole matrix, or a tuple of one integer or slice per mode.

    Returns:
      TTMatrix; TT over the modes of the other side where rows or columns are one; a scalar where
      both are. A mode that both sides give an integer for goes.

    Raises:
      IndexError: out of range, too many keys, nothing picked.
    """
    single("a", a, TTMatrix)
    if key is Ellipsis:
        return a
    keys = list(key) if isinstance(key, tuple) else [key]
    if len(keys) == 3 and sum(k is Ellipsis for k in keys) == 1:  # which stands for nothing
        keys = [k for k in keys if k is not Ellipsis]
    if len(keys) > 2:
        raise IndexError(f"expected rows, or rows and columns, got {len(keys)} keys")
    row_key, column_key = [*keys, _WHOLE, _WHOLE][:2]
    rows = _side(row_key, a.row_shape, "rows")
    columns = _side(column_key, a.col_shape, "columns")
    cores = []
    for c, i, j in zip(_at_hand(a, [*rows, *columns]), rows, columns, strict=True):
        c = _picked(c, i, c.shape[1], axis=1)
        cores.append(_picked(c, j, c.shape[2], axis=2))
    one_row, one_column = (all(map(_is_integer, side)) for side in (rows, columns))
    if one_row or one_column:
        other = columns if one_row else rows
        gone = [k for k, key in enumerate(other) if _is_integer(key)]
        flat = [c.reshape(len(c), -1, c.shape[-1]) for c in cores]
        return _without(flat, gone)
    gone = [
        k for k, pair in enumerate(zip(rows, columns, strict=True)) if all(map(_is_integer, pair))
    ]
    block = TTMatrix._unchecked(tuple(cores))
    if not gone:
        return TTMatrix._unchecked(tuple(map(jnp.asarray, cores)))
    kept = [k for k in range(a.order) if k not in gone]
    out = _without(list(fold(block).cores), gone)
    return unfold(out, [block.row_shape[k] for k in kept], [block.col_shape[k] for k in kept])


def _expanded(key: Any, order: int, what: str) -> list[Any]:
    """Expands an index key: one entry for every mode, the Ellipsis replaced, None for new modes."""
    keys = key if isinstance(key, tuple) else (key,)
    dots = [n for n, k in enumerate(keys) if k is Ellipsis]
    given = sum(k is not None and k is not Ellipsis for k in keys)
    if len(dots) > 1:
        raise IndexError(f"expected one Ellipsis, got {len(dots)}")
    if given > order:
        raise IndexError(f"expected at most {order} keys, one for each of the {what}, got {given}")
    at = dots[0] if dots else len(keys)
    return [*keys[:at], *[_WHOLE] * (order - given), *keys[at + 1 :]]


def _array_of(k: Any) -> Any:
    """Converts a sequence among the keys to an array, as NumPy does, to index with it."""
    return np.array(k, None if len(k) else int) if isinstance(k, list | tuple | range) else k


def _check_vectors(keys: Sequence[Any]) -> None:
    """Checks the index keys: at most one vector of indices, and integers only beside it.

    An Ellipsis parts them as in NumPy, where it stands for no mode too.
    """
    for k in keys:
        plain = k is None or k is Ellipsis or isinstance(k, slice)
        if not (plain or _is_integer(k) or _is_vector(k)):
            what = f"an array of shape {k.shape}" if hasattr(k, "shape") else type(k).__name__
            raise IndexError(
                "expected integers, slices, None, an Ellipsis or one vector of integers or "
                f"Booleans, got {what}; tt.evaluate takes arrays of multi-indices"
            )
    at = [n for n, k in enumerate(keys) if _is_vector(k) or _is_integer(k)]
    vectors = [n for n in at if _is_vector(keys[n])]
    if len(vectors) > 1:
        raise IndexError(
            f"expected one vector, got {len(vectors)}, of which NumPy takes pairs of entries: "
            "tt.evaluate does, and indexing one mode after the other gives their outer product"
        )
    if vectors and at != list(range(at[0], at[-1] + 1)):
        raise IndexError(
            "expected integers beside the vector, not apart from it, where NumPy moves its mode to "
            "the front; index in two steps, the integers first"
        )


def _check_integers(keys: Sequence[Any], shape: Sequence[int]) -> None:
    for mode, (k, n) in enumerate(zip(keys, shape, strict=True)):
        if not _check.is_traced(k) and not -n <= operator.index(_known(k)) < n:
            raise IndexError(f"expected an index of mode {mode} in [-{n}, {n}), got {k}")


def _known(k: Any) -> Any:
    return k if _check.is_traced(k) or isinstance(k, int) else np.asarray(k)[()]


def _is_integer(k: Any) -> bool:
    if isinstance(k, bool | np.bool_):
        raise IndexError("expected an integer, a slice or None, got a Boolean")
    if isinstance(k, int):
        return True
    return (
        isinstance(k, np.generic | np.ndarray | jax.Array) and k.ndim == 0 and k.dtype.kind in "iu"
    )


def _is_vector(k: Any) -> bool:
    return isinstance(k, np.ndarray | jax.Array) and k.ndim == 1 and k.dtype.kind in "biu"


def _at_hand(t: TT | TTMatrix, keys: Sequence[Any]) -> list[Any]:
    """Returns the cores to index, as NumPy arrays where nothing needs to be compiled."""
    moving = [k for k in keys if not isinstance(k, slice)]
    hosted = choose_kernel("tt.TT[...]", (t, moving)) is NUMPY
    return [np.asarray(c) for c in t.cores] if hosted else list(t.cores)


def _picked(core: Any, key: Any, n: int, axis: int = 1) -> Any:
    """Takes the slices of a core that an index key selects; an integer leaves a mode of size 1."""
    if isinstance(key, slice):
        out = core[(_WHOLE,) * axis + (key,)]
        if out.shape[axis] == 0:
            raise IndexError(
                f"expected a slice that picks something of a mode of size {n}, got {key}"
            )
        return out
    if _is_vector(key) and key.dtype.kind == "b" and not _check.is_traced(key):
        if key.shape != (n,):
            raise IndexError(f"expected {n} Booleans, one for each index, got {key.shape[0]}")
        key = np.flatnonzero(key)
    single_index = _is_integer(key)
    if not _check.is_traced(key):
        rows = np.atleast_1d(np.asarray(key)).astype(np.int64)
        if rows.size == 0 or rows.min() < -n or rows.max() >= n:
            got = f"{rows.min()} to {rows.max()}" if rows.size else "none"
            raise IndexError(f"expected indices in [-{n}, {n}), got {key if single_index else got}")
        return core[(_WHOLE,) * axis + (np.where(rows < 0, rows + n, rows),)]
    if key.dtype.kind == "b":
        raise IndexError(
            "expected integers under a transformation, where it is not known how many indices "
            "Booleans pick"
        )
    rows, held = counted(jnp.atleast_1d(key), n)
    shape = [1] * core.ndim
    shape[axis] = held.size
    return jnp.where(held.reshape(shape), jnp.take(core, rows, axis=axis), jnp.nan)


def _without(cores: list[Any], gone: Sequence[int]) -> Any:
    """Builds the indexed train and contracts its modes ``gone``, which are of size one."""
    t = TT._unchecked(tuple(cores))
    if not gone:
        return TT._unchecked(tuple(map(jnp.asarray, cores)))
    one = np.ones(1, t.dtype)
    return contract_modes(t, dict.fromkeys(gone, one))


def _side(key: Any, shape: tuple[int, ...], what: str) -> list[Any]:
    """Returns one index, integer or slice, per mode, for the rows or the columns of a TT-matrix."""
    if (isinstance(key, slice) and key == _WHOLE) or key is Ellipsis:
        return [_WHOLE] * len(shape)
    if isinstance(key, tuple):
        keys = _expanded(key, len(shape), f"{what}' modes")
        if not all(isinstance(k, slice) or (k is not None and _is_integer(k)) for k in keys):
            raise IndexError(f"expected an integer or a slice per mode of the {what}, got {key}")
        return keys
    if isinstance(key, slice) or key is None or not _is_integer(key):
        raise IndexError(
            f"expected an integer, ':' or a tuple of one integer or slice per mode for the {what}, "
            f"got {key!r}"
        )
    total = math.prod(shape)
    if not _check.is_traced(key):
        index = operator.index(_known(key))
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
