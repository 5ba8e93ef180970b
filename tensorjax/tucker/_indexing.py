"""Indexing of Tucker tensors as in NumPy: keys act on the rows of the factors."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.index_keys import is_integer, picked, read
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tucker._core_and_factors import near_one_parts, scaled_back, times
from tensorjax.tucker._norms_and_entries import evaluate
from tensorjax.tucker._types import Tucker, one


@placed
def item(t: Tucker, key: Any) -> Any:
    """Indexes a Tucker tensor, t[key], as NumPy does: a Tucker, or a scalar for integers alone.

    Args:
      t: Tucker of order d.
      key: per mode an integer, a slice, or, for one mode, a vector of integers or Booleans; None
        adds a mode of size one, an Ellipsis stands for the modes not named.

    Returns:
      Tucker, whose core has lost the modes of the integers, or a scalar if no mode remains.

    Raises:
      IndexError: out of range, too many keys, or keys that cannot be followed.
        Integers known only under a transformation give NaN where they are out of range.
    """
    one("t", t)
    keys, numbers = read(key, t.shape)
    if numbers is not None:
        if not _check.is_traced(numbers):
            return evaluate(t, np.array([operator.index(k) for k in numbers]))
        return evaluate(t, jnp.stack([jnp.asarray(k) for k in numbers]))
    modes = [k for k in keys if k is not None]
    gone = tuple(k for k, at in enumerate(modes) if is_integer(at))
    kept = [k for k in keys if k is None or not is_integer(k)]
    places = [n for n, k in enumerate(kept) if k is None]
    on_host = not _check.is_traced(modes) and choose_kernel("tucker.Tucker[...]", (t,)) is NUMPY
    whole = map(np.asarray if on_host else jnp.asarray, t.factors)
    factors = [_rows(u, k, n) for u, k, n in zip(whole, modes, t.shape, strict=True)]
    if on_host and not (len(gone) == t.order and isinstance(t.core, TT)):
        return _on_host(t, factors, gone, places)
    factors = on_device(factors) if on_host else list(map(jnp.asarray, factors))
    core, factors = _compiled_without(t.core, factors, gone)
    return _with_new(core, factors, places)


def _rows(u: Any, key: Any, n: int) -> Any:
    """Picks the rows of a Tucker factor by the index key of its mode."""
    return picked(u[None], key, n)[0]


def _on_host(t: Tucker, factors: list[Any], gone: tuple[int, ...], places: list[int]) -> Tucker:
    """Indexes a Tucker tensor by NumPy: its core, from factors of which rows are picked."""
    core = t.core
    if gone and isinstance(core, TT):
        core = core._namespace.contract_modes(core, {k: factors[k][0] for k in gone})
        factors = [u for k, u in enumerate(factors) if k not in gone]
    elif gone:  # products in double precision
        wide = np.result_type(linalg.factor_dtype(t.dtype), np.float64)
        host = [u.astype(wide) for u in factors]
        core, kept = _without(np.asarray(core).astype(wide), host, gone)
        core = np.asarray(core).astype(t.dtype)
        factors = [u.astype(t.dtype) for u in kept]
    core = core if isinstance(core, TT) else np.asarray(core)
    leaves, structure = jax.tree.flatten(_with_new(core, factors, places, np))
    moved = iter(on_device([x for x in leaves if isinstance(x, np.ndarray)]))
    back = [next(moved) if isinstance(x, np.ndarray) else x for x in leaves]
    return jax.tree.unflatten(structure, back)


def _without(core: Any, factors: list[Any], gone: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """Contracts modes of a Tucker core with their factors, after integer keys left one row.

    At least one mode stays, or the result is a scalar for `_with_new`.
    """
    kept = [u for k, u in enumerate(factors) if k not in gone]
    if not gone:
        return core, kept
    whole, exponent = near_one_parts(Tucker._unchecked(core, tuple(factors)))
    core = whole.core
    if isinstance(core, TT):
        vectors = {k: whole.factors[k][0] for k in gone}
        core = core._namespace.contract_modes(core, vectors)
    else:
        rows = [u if k in gone else None for k, u in enumerate(whole.factors)]
        core = times(core, rows).reshape([n for k, n in enumerate(core.shape) if k not in gone])
    small = [u for k, u in enumerate(whole.factors) if k not in gone]
    if not small:  # new modes alone will be left
        out = scaled_back(core.reshape(1), [], exponent)
        return out.core.reshape(()), kept
    out = scaled_back(core, small, exponent)
    return out.core, list(out.factors)


_compiled_without = jax.jit(_without, static_argnums=2)


def _with_new(core: Any, factors: list[Any], places: list[int], xp: Any = jnp) -> Tucker:
    """Inserts modes of size one into a Tucker tensor, as None in an index does."""
    for n in places:
        factors.insert(n, xp.ones((1, 1), core.dtype))
        is_train = isinstance(core, TT)
        core = core[(*[slice(None)] * n, None)] if is_train else xp.expand_dims(core, n)
    return Tucker._unchecked(core, tuple(factors))
