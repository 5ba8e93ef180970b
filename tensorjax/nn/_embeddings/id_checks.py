"""Validation of embedding ids: integer types, padding ids, and ids out of range."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._placement import returned

OutOfRange = Literal["error", "clip", "zero"]


def resolve(
    ids: Any, *, rows: int, size: int, padding_idx: int | None, out_of_range: OutOfRange
) -> jax.Array:
    """Validates embedding ids and converts them to row numbers; invalid ids lie beyond the table.

    Args:
      ids: integers of any shape: an array, a number, or nested lists.
      rows: ids are in [0, rows).
      size: rows of the matrix with its padding, at least ``rows``; it stands for a row of zeros,
        and size + 1 for a row of NaN.
      padding_idx: the id whose row is zero, or None.
      out_of_range: what becomes of the others; "error" is NaN where the ids are traced.

    Returns:
      Integers of the shape of ``ids`` in [0, size + 1].

    Raises:
      TypeError: ``ids`` are not integers.
      ValueError: with "error", a concrete id is out of range; the lists are ragged; or there are
        more rows than integers can count.
    """
    array = as_integers(ids)
    # Concrete ids are resolved by NumPy: one program less to compile and to wait for.
    xp = np if isinstance(array, np.ndarray) else jnp
    outside = (array < 0) | (array >= rows)
    if out_of_range == "clip":
        array = xp.clip(array, 0, rows - 1)
    else:
        if out_of_range == "error" and isinstance(array, np.ndarray):
            _raise_if_any(array, np.asarray(outside), rows)
        array = xp.where(outside, size + (out_of_range == "error"), array)
    if padding_idx is not None:
        array = xp.where(array == padding_idx, size, array)
    found = array.astype(_index_type(size + 1))
    concrete = isinstance(ids, jax.Array) and not _check.is_traced(ids)
    return returned(found, ids) if concrete else jnp.asarray(found)


def _index_type(most: int) -> Any:
    if most <= np.iinfo(np.int32).max:
        return np.int32
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"num_embeddings: expected at most {np.iinfo(np.int32).max - 1} with 32-bit integers, "
            f"got {most - 1} (padding of the modes included); use "
            "jax.config.update('jax_enable_x64', True)"
        )
    return np.int64


def as_integers(ids: Any, name: str = "ids") -> Any:
    """Converts embedding ids to an integer array of at least 32 bits; NumPy if not traced."""
    try:
        array = ids if isinstance(ids, jax.Array) else np.asarray(ids)
    except ValueError:
        raise ValueError(
            f"{name}: expected rows of one length, got a ragged list; fill shorter rows up with a "
            "padding id, or pass one flat list and segments to bag"
        ) from None
    if isinstance(ids, list | tuple) and not array.size:
        array = array.astype(np.int32)  # NumPy makes empty lists float64
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(
            f"{name}: expected integers, got dtype {array.dtype}; convert them, for example with "
            ".astype(jnp.int32)"
        )
    if not _check.is_traced(array):
        array = np.asarray(array)
    return array.astype(np.int32) if np.dtype(array.dtype).itemsize < 4 else array


def _raise_if_any(ids: np.ndarray, outside: np.ndarray, rows: int) -> None:
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ValueError(
            f"ids: expected integers in [0, {rows}), got {ids[where]}"
            + (f" at {where}" if where else "")
            + f" ({int(outside.sum())} of {ids.size} are out of range); correct them, or build the "
            'layer with out_of_range="clip" or "zero"'
        )
