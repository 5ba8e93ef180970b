"""Samples of multi-indices with a non-negative tensor train as density, by inverse transform."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import einsum
from tensorjax._cores.scaling import in_range
from tensorjax._formats.random_arrays import one_on_host
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._transfer import on_device


def mass_is_positive(
    sign: Any, what: str = "t: expected a density, entries with a positive sum that is finite"
) -> None:
    """Raises ValueError, before sampling, if a density has no positive sum; NaN if traced."""
    if _check.is_traced(sign) or sign > 0:
        return
    got = "zero" if sign == 0 else "a negative one" if sign < 0 else "NaN or Inf"
    advice = "; for |t|² pass squared=True" if sign < 0 else ""
    raise ValueError(f"{what}, got {got}{advice}")


def is_real(t: TT) -> None:
    """Raises TypeError if a tensor train given as a density, to draw samples from, is complex."""
    if jnp.issubdtype(t.dtype, jnp.complexfloating):
        raise TypeError(
            f"t: expected a real train as a density, got {t.dtype}; take tt.real(t), or pass "
            "squared=True for |t|²"
        )


def sums_to_the_right(t: TT) -> tuple[list[Any], list[Any], Any]:
    """Sums a density's train over all modes right of each bond, to draw samples.

    Returns:
      Vectors (r_k,) for k = 1 … d, scaled to be near one; the factors, one a core, by which they
      were divided, whose product is the sum of all entries but for its sign; and that, NaN where
      the sum is not finite.
    """
    xp = np if linalg.is_host(t.cores[0]) else jnp
    real = linalg.factor_dtype(t.dtype)
    held, out, factors = xp.ones(1, real), [], []
    with np.errstate(invalid="ignore", over="ignore"):
        for core in reversed(t.cores):
            out.append(held)
            held = einsum("rns,s->r", core.astype(real), held)
            size = xp.max(xp.abs(held))
            factors.append(xp.where(size > 0, size, 1).astype(real))
            held = held / factors[-1]
    return out[::-1], factors[::-1], xp.sign(held[0])


def near_one(t: TT) -> TT:
    """Scales a train's cores near one by powers of two; the normalised density is the same."""
    real = linalg.factor_dtype(t.dtype)
    return TT._unchecked(tuple(in_range(c.astype(real)).astype(c.dtype) for c in t.cores))


def sample_entries(key: jax.Array, t: TT, count: int) -> tuple[Any, Any]:
    """Samples multi-indices i of a tensor train with density t_i / Σ t; also returns sign(Σ t)."""
    if choose_kernel("tt.sample(squared=False)", (t.cores[0], key, t)) is not NUMPY:
        return _sample_compiled(key, t, count)
    real = linalg.factor_dtype(t.dtype)
    noise = one_on_host(jax.random.uniform, key, (t.order, count), real)
    if noise is None:
        noise = np.asarray(jax.random.uniform(key, (t.order, count), real))
    host = TT._unchecked(tuple(map(np.asarray, t.cores)))
    drawn, sign = _transformed(near_one(host), noise)
    return on_device([drawn.astype(jax.dtypes.canonicalize_dtype(int))])[0], sign


@functools.partial(jax.jit, static_argnums=2)
def _sample_compiled(key: jax.Array, t: TT, count: int) -> tuple[jax.Array, jax.Array]:
    noise = jax.random.uniform(key, (t.order, count), linalg.factor_dtype(t.dtype))
    drawn, sign = _transformed(near_one(t), noise)
    return drawn.astype(jax.dtypes.canonicalize_dtype(int)), sign


def _transformed(t: TT, noise: Any) -> tuple[Any, Any]:
    """Samples multi-indices of a train as density, from uniform variates by inverse transform.

    One mode after the other by its conditional weights, of which negative ones count as zero. Where
    none is positive, −1 stands for this mode and those after it.
    """
    xp: Any = np if linalg.is_host(t.cores[0]) else jnp
    real = linalg.factor_dtype(t.dtype)
    rights, _, sign = sums_to_the_right(t)
    left = xp.ones((noise.shape[1], 1), real)
    alive = xp.ones(noise.shape[1], bool)
    drawn = []
    for core, right, u in zip(t.cores, rights, noise, strict=True):
        rows = einsum("br,rns->bns", left, core.astype(real))
        weights = einsum("bns,s->bn", rows, right)
        sums = xp.cumsum(xp.where(weights > 0, weights, 0), axis=1)
        total = sums[:, -1]
        alive = alive & (total > 0) & xp.isfinite(total)
        # The last index of positive weight, where roundoff puts the variate at the very end.
        last = xp.argmax(sums == total[:, None], axis=1)
        index = xp.minimum(xp.sum(sums <= (u * total)[:, None], axis=1), last)
        left = xp.take_along_axis(rows, index[:, None, None], axis=1)[:, 0]
        size = xp.max(xp.abs(left), axis=1, keepdims=True)
        left = left / xp.where(size > 0, size, 1).astype(real)
        drawn.append(xp.where(alive, index, -1))
    return xp.stack(drawn, axis=1), sign
