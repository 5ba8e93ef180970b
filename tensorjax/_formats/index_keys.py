"""Index keys of tensor formats, as in NumPy: parsing, checks, and indexing of cores and factors."""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._ids import counted

WHOLE = slice(None)


def expanded(key: Any, order: int, what: str) -> list[Any]:
    """Expands an index key of a tensor to one entry per mode; replaces the Ellipsis by slices."""
    keys = key if isinstance(key, tuple) else (key,)
    dots = [n for n, k in enumerate(keys) if k is Ellipsis]
    given = sum(k is not None and k is not Ellipsis for k in keys)
    if len(dots) > 1:
        raise IndexError(f"expected one Ellipsis, got {len(dots)}")
    if given > order:
        raise IndexError(f"expected at most {order} keys, one for each of the {what}, got {given}")
    at = dots[0] if dots else len(keys)
    return [*keys[:at], *[WHOLE] * (order - given), *keys[at + 1 :]]


def read(key: Any, shape: Sequence[int]) -> tuple[list[Any], list[Any] | None]:
    """Parses a tensor's index key to one entry per mode; returns the indices if all integers."""
    given = tuple(map(array_of, key if isinstance(key, tuple) else (key,)))
    keys = expanded(given, len(shape), "modes")
    check_vectors(given)
    if not all(is_integer(k) for k in keys):
        return keys, None
    check_integers(keys, shape)
    return keys, [known_key(k) for k in keys]


def array_of(k: Any) -> Any:
    """Converts a list, tuple or range in a tensor's index key to an array; returns others as is."""
    return np.array(k, None if len(k) else int) if isinstance(k, list | tuple | range) else k


def check_vectors(keys: Sequence[Any]) -> None:
    """Raises IndexError if a tensor's index key has two vectors, or integers apart from one.

    An Ellipsis parts them as in NumPy, where it stands for no mode too.
    """
    for k in keys:
        plain = k is None or k is Ellipsis or isinstance(k, slice)
        if not (plain or is_integer(k) or is_vector(k)):
            shape = getattr(k, "shape", None)
            what = type(k).__name__ if shape is None else f"an array of shape {shape}"
            raise IndexError(
                "expected integers, slices, None, an Ellipsis or one vector of integers or "
                f"Booleans, got {what}; tt.evaluate takes arrays of multi-indices"
            )
    at = [n for n, k in enumerate(keys) if is_vector(k) or is_integer(k)]
    vectors = [n for n in at if is_vector(keys[n])]
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


def check_integers(keys: Sequence[Any], shape: Sequence[int]) -> None:
    for mode, (k, n) in enumerate(zip(keys, shape, strict=True)):
        if not _check.is_traced(k) and not -n <= operator.index(known_key(k)) < n:
            raise IndexError(f"expected an index of mode {mode} in [-{n}, {n}), got {k}")


def known_key(k: Any) -> Any:
    return k if _check.is_traced(k) or isinstance(k, int) else np.asarray(k)[()]


def is_integer(k: Any) -> bool:
    if isinstance(k, bool | np.bool_):
        raise IndexError("expected an integer, a slice or None, got a Boolean")
    if isinstance(k, int):
        return True
    return (
        isinstance(k, np.generic | np.ndarray | jax.Array) and k.ndim == 0 and k.dtype.kind in "iu"
    )


def is_vector(k: Any) -> bool:
    return isinstance(k, np.ndarray | jax.Array) and k.ndim == 1 and k.dtype.kind in "biu"


def picked(core: Any, key: Any, n: int, axis: int = 1) -> Any:
    """Applies one index key to an axis of a core; an integer key leaves an axis of size one."""
    if isinstance(key, slice):
        return core[(WHOLE,) * axis + (key,)]
    if is_vector(key) and key.dtype.kind == "b" and not _check.is_traced(key):
        if key.shape != (n,):
            raise IndexError(f"expected {n} Booleans, one for each index, got {key.shape[0]}")
        key = np.flatnonzero(key)
    single_index = is_integer(key)
    if not _check.is_traced(key):
        rows = np.atleast_1d(np.asarray(key)).astype(np.int64)
        if rows.size and (rows.min() < -n or rows.max() >= n):
            got = key if single_index else f"{rows.min()} to {rows.max()}"
            raise IndexError(f"expected indices in [-{n}, {n}), got {got}")
        return core[(WHOLE,) * axis + (np.where(rows < 0, rows + n, rows),)]
    if key.dtype.kind == "b":
        raise IndexError(
            "expected integers under a transformation, where it is not known how many indices "
            "Booleans pick"
        )
    rows, held = counted(jnp.atleast_1d(key), n)
    shape = [1] * core.ndim
    shape[axis] = held.size
    return jnp.where(held.reshape(shape), jnp.take(core, rows, axis=axis), jnp.nan)
