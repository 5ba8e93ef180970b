"""Cores of a random map: scaled, merged, and multiplied out to rows, by the rows' digits."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax.contract import einsum
from tensorjax.sketch._map_types import CPRows, Kronecker, TTRows

HIGHEST = jax.lax.Precision.HIGHEST
_EINSUM = functools.partial(einsum, precision=HIGHEST)


def scaled_cores(p: Kronecker | TTRows) -> list[jax.Array]:
    """Returns the cores of a random map, multiplied by its scale factor."""
    out = []
    modes = p.out_shape if isinstance(p, Kronecker) else (1,) * len(p.cores)
    surplus = math.prod(modes) / p.out_size  # rows not used, or the M of independent rows
    for core, m in zip(p.cores, modes, strict=True):
        out.append(core * math.sqrt(surplus / (m * core.shape[-1])))
        surplus = 1.0
    return out


def merge(cores: list[Any], einsum: Callable[..., Any] = _EINSUM) -> Any:
    """Multiplies neighbouring cores (r, m, n, r') of a random map to a single core."""
    out = cores[0]
    for core in cores[1:]:
        out = einsum("aijb,bklc->aikjlc", out, core)
        r, i, k, j, n, s = out.shape
        out = out.reshape(r, i * k, j * n, s)
    return out


def row_matrix(p: TTRows | CPRows) -> jax.Array:
    """Multiplies a random map's cores out to its dense matrix (M, ∏ n_k), row by row."""
    if len(p.in_shape) == 1:
        return _row_block(p, 0, 1).reshape(p.out_size, -1, p.in_shape[0]).sum(1)
    left, right = halves(p, len(p.in_shape) - 1)
    return einsum("mta,mtb->mab", left, right, precision=HIGHEST).reshape(p.out_size, -1)


def halves(p: TTRows | CPRows, s: int) -> tuple[jax.Array, jax.Array]:
    """Multiplies out a random map's cores in two halves, modes before s and from s on, by rows."""
    left, right = _row_block(p, 0, s), _row_block(p, s, len(p.in_shape))
    if isinstance(p, CPRows):
        return left, right
    return jnp.swapaxes(left[:, 0], 1, 2), right[..., 0]


def _row_block(p: TTRows | CPRows, start: int, stop: int) -> jax.Array:
    """Multiplies the cores of modes ``start`` to ``stop`` of a TT or CP map, row by row."""
    if isinstance(p, CPRows):
        out = p.factors[start]
        if start == 0:
            out = out * (1 / math.sqrt(p.terms * p.out_size))
        for factor in p.factors[start + 1 : stop]:
            out = (out[:, :, :, None] * factor[:, :, None, :]).reshape(*out.shape[:2], -1)
        return out
    cores = scaled_cores(p)
    out = cores[start]
    for core in cores[start + 1 : stop]:
        out = einsum("maib,mbjc->maijc", out, core, precision=HIGHEST)
        out = out.reshape(*out.shape[:2], -1, out.shape[-1])
    return out


def as_dtype(p: Any, dtype: Any) -> Any:
    """Casts a core or other array of a random map to ``dtype``; one of that dtype stays."""
    return p if p.dtype == dtype else p.astype(dtype)


def row_digits(out_shape: Sequence[int], rows: int) -> list[np.ndarray]:
    """Builds 0/1 cores that select the first ``rows`` of the ∏ m_k rows of a Kronecker map.

    Returns:
      d arrays (m_k, s, s) of zeros and ones, s = 2, or s = 1 if every row is kept. Digit i takes
      the automaton from state a to b where entry [i, a, b] is one. It starts in state 0 ("equal to
      the last kept row so far"), state 1 is "below it", and both accept. Read as TT cores, with
      state 0 on the left and the sum of states on the right, they are the indicator of the rows.
    """
    if rows == math.prod(out_shape):
        return [np.ones((m, 1, 1)) for m in out_shape]
    out, rest = [], rows - 1
    for k, m in enumerate(out_shape):
        digit, rest = divmod(rest, math.prod(out_shape[k + 1 :]))
        step = np.zeros((m, 2, 2))
        step[:, 1, 1] = 1
        step[:digit, 0, 1] = 1
        step[digit, 0, 0] = 1
        out.append(step)
    return out
