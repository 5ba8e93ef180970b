"""Indexing of Tucker tensors as in NumPy: keys act on the rows of the factors."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.index_keys import is_integer, picked, read
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax.tucker._argument_checks import one
from tensorjax.tucker._core_and_factors import near_one_parts, scaled_back, times
from tensorjax.tucker._norms_and_entries import evaluate
from tensorjax.tucker._types import Tucker


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
    factors = []
    for u, k, n in zip(t.factors, modes, t.shape, strict=True):
        factors.append(jnp.asarray(picked(jnp.asarray(u)[None], k, n)[0]))
    gone = [k for k, at in enumerate(modes) if is_integer(at)]
    kept = [k for k in keys if k is None or not is_integer(k)]
    places = [n for n, k in enumerate(kept) if k is None]
    core, factors = _without(t.core, factors, tuple(gone))
    return _with_new(core, factors, places)


@jax.jit(static_argnums=2)
def _without(
    core: Any, factors: list[jax.Array], gone: tuple[int, ...]
) -> tuple[Any, list[jax.Array]]:
    """Contracts modes of a Tucker core with their factors, of which indexing left one row each.

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
        out = scaled_back(jnp.reshape(core, (1,)), [], exponent)
        return jnp.reshape(out.core, ()), kept
    out = scaled_back(core, small, exponent)
    return out.core, list(out.factors)


def _with_new(core: Any, factors: list[jax.Array], places: list[int]) -> Tucker:
    """Inserts modes of size one into a Tucker tensor, as None in an index does."""
    for n in places:
        dtype = core.dtype
        factors.insert(n, jnp.ones((1, 1), dtype))
        if isinstance(core, TT):
            core = core[(*[slice(None)] * n, None)]
        else:
            core = jnp.expand_dims(core, n)
    return Tucker._unchecked(core, tuple(factors))
