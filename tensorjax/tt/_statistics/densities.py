"""Trains as probability densities: marginals, conditionals, log-densities, and their sums."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import einsum
from tensorjax._cores.scaling import in_range
from tensorjax._formats.trains import TT, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax._typing import ArrayLike
from tensorjax.tt._arrays.indexing_and_concatenation import item
from tensorjax.tt._arrays.reductions import _modes, sum
from tensorjax.tt._exact_arithmetic import conj, real
from tensorjax.tt._products.hadamard_and_matrix_products import hadamard
from tensorjax.tt._products.inner_products import log_norm


@placed
def marginal(t: TT, modes: int | Sequence[int], *, squared: bool = False) -> TT:
    """Computes the marginal density of some modes of a train that is a probability density.

    Args:
      t: TT, real and non-negative; or any with ``squared``.
      modes: those that remain, in ascending order.
      squared: whether |t_i|² is the density, up to normalisation, instead of t_i.

    Returns:
      TT of these modes whose entries sum to one; its TT-ranks are squared with ``squared``. NaN
      under jit if the entries of ``t`` do not have a positive sum.

    Raises:
      ValueError: modes out of range or given twice, entries without a positive sum.
      TypeError: a complex train without ``squared``.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> t = tt.rank_one([jnp.array([1.0, 3.0]), jnp.array([2.0, 2.0])])
      >>> print(tt.to_dense(tt.marginal(t, 0)))
      [0.25 0.75]

    Source: S. Dolgov, K. Anaya-Izquierdo, C. Fox, R. Scheichl, "Approximation and sampling of
    multivariate probability distributions in the tensor train decomposition", Stat. Comput. 30
    (2020), section 2.
    """
    density = _density(t, squared)
    kept = _modes(modes, t.order)
    if not kept:
        raise ValueError("modes: expected at least one mode to remain, got none")
    others = [k for k in range(t.order) if k not in kept]
    whole = _normalized(density)
    return sum(whole, others) if others else whole


@placed
def conditional(t: TT, given: Mapping[int, int], *, squared: bool = False) -> TT:
    """Computes the conditional density of a train's other modes, given some indices.

    Args:
      t: TT, real and non-negative; or any with ``squared``.
      given: index by mode; at least one mode must remain.
      squared: whether |t_i|² is the density, up to normalisation, instead of t_i.

    Returns:
      TT of the modes that remain, whose entries sum to one. NaN under jit where what is given has
      no positive probability.

    Raises:
      ValueError: modes or indices out of range, no mode that remains, indices of no probability.
      TypeError: a complex train without ``squared``.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> t = tt.from_dense(jnp.array([[1.0, 3.0], [2.0, 0.0]]), rank=2)
      >>> print(tt.to_dense(tt.conditional(t, {0: 0})))
      [0.25 0.75]

    Source: Dolgov et al. (2020), see `marginal`.
    """
    single("t", t, TT, entries=True)
    indices: list[Any] = [slice(None)] * t.order
    for mode, index in _check.mapping("given", given, "an index for each mode").items():
        k = _check.integer("modes of given", mode, low=-t.order, high=t.order - 1) % t.order
        n = t.shape[k]
        if indices[k] != slice(None):
            raise ValueError(f"given: expected modes given once, got {list(given)}")
        indices[k] = _check.integer(f"given[{mode}]", index, low=-n, high=n - 1)
    if slice(None) not in indices:
        raise ValueError("given: expected at least one mode to remain, got indices of all")
    density = _density(item(_placed_near_one(t), tuple(indices)), squared)
    return _normalized(
        density, "given: expected indices whose entries have a positive sum that is finite"
    )


@placed
def log_density(t: TT, indices: ArrayLike, *, squared: bool = False) -> jax.Array:
    """Computes log(t_i / Σ_j t_j) at multi-indices of a tensor train that is a probability density.

    Args:
      t: TT, real and non-negative; or any with ``squared``.
      indices: integers (…, d).
      squared: whether |t_i|² is the density, up to normalisation, instead of t_i.

    Returns:
      Array (…) of logarithms of probabilities: −inf where the entry is zero, NaN where it is
      negative or where the entries have no positive, finite sum. Probabilities far below the
      smallest number of the dtype are no difficulty.

    Raises:
      ValueError: indices out of range. TypeError: indices that are no integers, a complex train
        without ``squared``.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> t = tt.rank_one([jnp.array([1.0, 3.0])] * 1000)
      >>> print(f"{tt.log_density(t, [0] * 1000):.1f}")
      -1386.3

    Source: ours.
    """
    single("t", t, TT, entries=True)
    if not _check.flag("squared", squared):
        is_real(t)
    index = _check.indices(indices, t.shape)
    if choose_kernel("tt.log_density", (t, index)) is not NUMPY:
        return _log_density(t, jnp.asarray(index), squared)
    host = TT._unchecked(tuple(map(np.asarray, t.cores)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return on_device([_logarithms(host, np.asarray(index), squared)])[0]


def _logarithms(t: TT, index: Any, squared: bool) -> Any:
    """Computes log-probabilities at multi-indices of a tensor train that is a density."""
    dtype, t = jnp.finfo(t.dtype).dtype, near_one(t)
    log, sign = _log_entries(t, index)
    xp = np if linalg.is_host(log) else jnp
    if squared:
        norm = xp.asarray(log_norm(t)).astype(log.dtype)
        return xp.where(xp.isfinite(norm), 2 * (log - norm), xp.nan).astype(dtype)
    _, factors, whole = sums_to_the_right(t)
    total = xp.sum(xp.log(xp.stack(factors)))
    return xp.where((sign < 0) | ~(whole > 0), xp.nan, log - total).astype(dtype)


_log_density = jax.jit(_logarithms, static_argnums=2)


def _log_entries(t: TT, index: Any) -> tuple[Any, Any]:
    """Computes logarithms and signs of a density's tensor train at multi-indices, in any range."""
    xp = np if linalg.is_host(t.cores[0]) else jnp
    dtype = linalg.factor_dtype(t.dtype)
    flat = index.reshape(-1, t.order)
    rows = xp.ones((flat.shape[0], 1), dtype)
    log = xp.zeros(flat.shape[0], xp.finfo(dtype).dtype)
    for core, at in zip(t.cores, flat.T, strict=True):
        at = xp.where(at < 0, at + core.shape[1], at)
        rows = einsum("br,rbs->bs", rows, xp.take(core.astype(dtype), at, axis=1))
        size = xp.max(xp.abs(rows), axis=1)
        rows = rows / xp.where(size > 0, size, 1)[:, None].astype(dtype)
        log = log + xp.log(size)
    sign = xp.ones_like(log) if xp.iscomplexobj(rows) else xp.sign(rows[:, 0])
    return log.reshape(index.shape[:-1]), sign.reshape(index.shape[:-1])


def _density(t: TT, squared: bool) -> TT:
    single("t", t, TT, entries=True)
    if _check.flag("squared", squared):
        small = _placed_near_one(t)  # the squares of t may be out of range
        return real(hadamard(conj(small), small)).astype(jnp.finfo(t.dtype).dtype)
    is_real(t)
    return t


def _placed_near_one(t: TT) -> TT:
    """Scales a density's cores near one, by NumPy where they are on the host."""
    if choose_kernel("tt.log_density", (t, ())) is not NUMPY:
        return near_one(t)
    small = near_one(TT._unchecked(tuple(map(np.asarray, t.cores))))
    return TT._unchecked(tuple(on_device(small.cores)))


def _normalized(t: TT, *what: str) -> TT:
    """Scales a tensor train to a density of sum one; raises ValueError, or NaN if traced.

    Every core is divided by a factor of its own: the sum itself may be out of range.
    """
    on_host = choose_kernel("tt.log_density", (t, ())) is NUMPY
    cores = tuple(map(np.asarray, t.cores)) if on_host else t.cores
    small = near_one(TT._unchecked(cores))
    _, factors, sign = sums_to_the_right(small)
    mass_is_positive(sign, *what)
    scaled = [(c / f).astype(t.dtype) for c, f in zip(small.cores, factors, strict=True)]
    if on_host:
        return TT._unchecked(tuple(on_device(scaled)))
    scaled[0] = jnp.where(sign > 0, scaled[0], jnp.nan)
    return TT._unchecked(tuple(scaled))


def mass_is_positive(
    sign: Any, what: str = "t: expected a density, entries with a positive sum that is finite"
) -> None:
    """Raises ValueError if a density has no positive sum; NaN if traced."""
    if _check.is_traced(sign) or sign > 0:
        return
    got = "zero" if sign == 0 else "a negative one" if sign < 0 else "NaN or Inf"
    advice = "; for |t|² pass squared=True" if sign < 0 else ""
    raise ValueError(f"{what}, got {got}{advice}")


def is_real(t: TT) -> None:
    """Raises TypeError if a tensor train given as a probability density is complex."""
    if jnp.issubdtype(t.dtype, jnp.complexfloating):
        raise TypeError(
            f"t: expected a real train as a density, got {t.dtype}; take tt.real(t), or pass "
            "squared=True for |t|²"
        )


def sums_to_the_right(t: TT) -> tuple[list[Any], list[Any], Any]:
    """Sums a density's train over all modes right of each bond.

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
    """Scales the cores of a density near one by powers of two; once normalised it is the same."""
    real = linalg.factor_dtype(t.dtype)
    return TT._unchecked(tuple(in_range(c.astype(real)).astype(c.dtype) for c in t.cores))
