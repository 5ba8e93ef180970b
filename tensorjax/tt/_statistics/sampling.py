"""Perfect sampling of multi-indices from the entries of a tensor train, or by the Born rule."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb, einsum
from tensorjax._formats.random_arrays import drawn, one_on_host, split, words_of
from tensorjax._formats.trains import TT, single
from tensorjax._kernels.batch_sizes import rounded_up
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._rounding.orthogonalize import orthogonal_cores, orthogonalize
from tensorjax.tt._statistics.densities import (
    is_real,
    mass_is_positive,
    near_one,
    sums_to_the_right,
)


@placed
def sample(key: jax.Array, t: TT, count: int = 1, *, squared: bool = True) -> jax.Array:
    """Samples multi-indices i of a tensor train with probability |t_i|² / ‖t‖², or t_i / Σ t.

    Perfect sampling: one mode after the other from its exact conditional distribution, which a
    right-orthogonal train, or one summed from the right, gives at O(n r²) operations.

    Args:
      key: `jax.random.key`.
      t: TT of order d.
      count: how many; static.
      squared: False for probabilities t_i / Σ t of a real, non-negative train. Conditional
        probabilities below zero, as rounding or `tensorjax.tt.cross` may leave, count as zero; how
        likely a sample was under t itself says `tensorjax.tt.log_density`.

    Returns:
      (count, d) integers. All zero for a train that is zero, with ``squared``. Without, −1 from the
      first mode on in which no index has a positive probability.

    Raises:
      ValueError: count below 1, NaN or Inf; without ``squared``, outside jit, entries whose sum is
        not positive. TypeError: a complex train without ``squared``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import tt
      >>> t = tt.rank_one([jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0])])
      >>> print(tt.sample(jax.random.key(0), t, 2))
      [[1 0]
       [1 0]]

    Source: A. Ferris, G. Vidal, "Perfect sampling with unitary tensor networks", Phys. Rev. B 85,
    165146 (2012), section III; without ``squared`` S. Dolgov et al., "Approximation and sampling of
    multivariate probability distributions in the tensor train decomposition", Stat. Comput. 30
    (2020), Algorithm 1.
    """
    single("t", t, TT, entries=True)
    _check.integer("count", count, low=1)
    _check.finite("t", t)
    _check.key(key)
    if not _check.flag("squared", squared):
        is_real(t)
        found, sign = _sample_by_sums(key, t, count)
        mass_is_positive(sign)
        return found
    noise = rounded_up(count) * sum(t.shape)
    if choose_kernel("tt.sample", (t.cores[0], key, t), noise=noise) is not NUMPY:
        return _sample(key, orthogonalize(near_one(t), 0), count)
    return on_device([_on_host(t, _noise(key, t, count))])[0]


def _sample_by_sums(key: jax.Array, t: TT, count: int) -> tuple[Any, Any]:
    """Samples multi-indices i of a train with probability t_i / Σ t; returns sign(Σ t) too."""
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


def _noise(key: jax.Array, t: TT, count: int) -> list[np.ndarray]:
    """Draws the Gumbel noise of Born sampling of a train: an array (count, n) for every mode.

    As many keys as are split off, the first are the same: a few more draws change none of these.
    """
    real = jnp.finfo(linalg.factor_dtype(t.dtype)).dtype
    words = words_of(key)
    if words is not None:
        keys = np.moveaxis(split(split(words, count), t.order), 1, 0)
        noise = drawn(jax.random.gumbel, keys, [(n,) for n in t.shape], real)
        if noise is not None:
            return noise
    found = {
        n: np.asarray(x)[:count] for n, x in _gumbel(key, rounded_up(count), t.shape, real).items()
    }
    places = [t.shape[:k].count(n) for k, n in enumerate(t.shape)]
    return [found[n][:, place] for n, place in zip(t.shape, places, strict=True)]


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _gumbel(key: jax.Array, count: int, shape: tuple[int, ...], dtype: Any) -> dict[int, jax.Array]:
    """Draws Gumbel noise for all modes of a train by one program, grouped by mode size."""
    keys = jax.vmap(lambda k: jax.random.split(k, len(shape)))(jax.random.split(key, count))
    sizes = np.array(shape)
    return {
        n: jax.vmap(jax.vmap(lambda k, n=n: jax.random.gumbel(k, (n,), dtype)))(keys[:, sizes == n])
        for n in sorted(set(shape))
    }


def _on_host(t: TT, noise: list[Any]) -> np.ndarray:
    """Samples multi-indices of a tensor train by the Born rule from Gumbel noise, by NumPy."""
    dtype = linalg.factor_dtype(t.dtype)
    host = near_one(TT._unchecked(tuple(np.asarray(c).astype(dtype) for c in t.cores)))
    cores, _ = orthogonal_cores(host, 0)
    left = np.ones((len(noise[0]), 1), dtype)
    found = []
    for core, gumbel in zip(cores, noise, strict=True):
        rows = absorb(left, core)
        weights = np.sum(np.square(np.abs(rows)), axis=2)
        with np.errstate(divide="ignore"):
            index = np.argmax(np.log(weights) + gumbel.astype(weights.dtype), axis=1)
        at = np.arange(len(index)), index
        length = np.sqrt(weights[at])
        left = rows[at] / np.where(length > 0, length, 1)[:, None].astype(dtype)
        found.append(index)
    return np.stack(found, axis=1).astype(jax.dtypes.canonicalize_dtype(int))


@functools.partial(jax.jit, static_argnums=2)
def _sample(key: jax.Array, t: TT, count: int) -> jax.Array:
    # The norm sits in the first core, or in all, and its square might not be representable.
    cores = [linalg.normalized(c)[0] for c in t.cores]

    def one(key: jax.Array) -> jax.Array:
        left = jnp.ones((1,), t.dtype)
        found = []
        for k, core in zip(jax.random.split(key, t.order), cores, strict=True):
            rows = absorb(left[None], core)[0]
            weights = jnp.sum(jnp.square(jnp.abs(rows)), axis=1)
            index = jax.random.categorical(k, jnp.log(weights))
            # The norm of what is left is the square root of a probability: kept at one.
            length = jnp.sqrt(weights[index])
            left = rows[index] / jnp.where(length > 0, length, 1).astype(rows.dtype)
            found.append(index)
        return jnp.stack(found)

    return jax.vmap(one)(jax.random.split(key, count))
