"""Exact variance of ‖f(x)‖² of a random projection, its bound, and Johnson–Lindenstrauss sizes."""

import functools
import math
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg, tt
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, Shaped
from tensorjax.contract import einsum
from tensorjax.sketch import _fourth_moments
from tensorjax.sketch._apply import is_folded
from tensorjax.sketch._map_cores import HIGHEST
from tensorjax.sketch._map_types import (
    CPRows,
    Dense,
    Kronecker,
    Projection,
    Sparse,
    TTRows,
    accumulator,
    promoted,
)

_MOST_PATTERNS_MODES = 5  # 187 patterns; 715 for six modes
_MOST_STATE = 2**27  # most elements of the sweep's state


class Family(NamedTuple):
    """Description of a random map that determines its variance: shapes, ranks, law. Hashable.

    Attributes:
      copies: count of independent blocks of rows.
      out_shape: modes of a block; None if its entries are independent, without tensor structure.
      rows: rows of a block in use.
      ranks: interior TT-ranks of a block.
      terms: independent maps that are averaged (over √T).
      delta: fourth moment Δ of the entries.
    """

    copies: int
    out_shape: tuple[int, ...] | None
    rows: int
    ranks: tuple[int, ...]
    terms: int
    delta: float


def family(p: Projection) -> Family:
    """Returns the `Family` of a random map, which determines the variance of ‖f(x)‖²."""
    delta, ones = p.law.fourth_moment, (1,) * len(p.in_shape)
    if isinstance(p, Kronecker):
        return Family(1, p.out_shape, p.out_size, p.ranks, 1, delta)
    if isinstance(p, TTRows):
        return Family(p.out_size, ones, 1, p.ranks, 1, delta)
    if isinstance(p, CPRows):
        return Family(p.out_size, ones, 1, ones[1:], p.terms, delta)
    assert isinstance(p, Dense | Sparse)
    return Family(p.out_size, None, 1, (), 1, delta)


@placed
def variance(p: Projection, x: ArrayLike | Shaped, *, relative: bool = False) -> jax.Array:
    """Computes the exact variance of ‖f(x)‖² over random draws of a random projection f.

    Only the type, the shapes and the law of p count, not its entries. With entries of moments
    0, 1, 0, Δ and, for a Kronecker map,

      E‖f(x)‖⁴ = ⟨x⊗x⊗x⊗x, ⊗_k [δ_ab δ_cd + (δ_ac δ_bd + δ_ad δ_bc + (Δ−3) δ_abcd)/m_k]⟩,

    from which the squared mean ‖x‖⁴ is left out term by term, so that nothing cancels. TT-ranks of
    the map weigh the terms of neighbouring modes by 1 or 1/r; surplus rows are not counted. Maps
    with independent rows have Var = (E y⁴ − ‖x‖⁴)/M from one row y.

    Args:
      p: a map, see `apply`.
      x: an array with axes as in `apply`, leading ones a batch; or a TT of shape ``p.in_shape``.
        A dense x costs up to 4^d contractions, a train of TT-rank q about Σ n_k q⁵ operations.
      relative: divide by ‖x‖⁴, which may overflow for very long x.

    Returns:
      Real array, of the batch shape of x. Computed in float32 at least.

    Raises:
      ValueError: the shape of x does not fit, x has NaN or Inf, or a dense x has too many modes.
      TypeError: x is of integer dtype, p no map, or x neither array nor TT.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import sketch
      >>> p = sketch.gaussian(jax.random.key(0), 100, 8)
      >>> print(f"{sketch.variance(p, jnp.ones(100), relative=True):.4f}")
      0.2500
      >>> p = sketch.ttrp(jax.random.key(0), (10, 10), (4, 2), distribution="gaussian")
      >>> print(f"{sketch.variance(p, jnp.ones(100), relative=True):.4f}")  # 1.5 · 2 - 1
      2.0000

    Source: derived here; Feng et al. (arXiv 2010.10797) bound it. Every family is checked against
    enumeration of all sign patterns.
    """
    if not isinstance(p, Projection):
        raise TypeError(f"p: expected a random map, as from sketch.ttrp, got {type(p).__name__}")
    relative = _check.flag("relative", relative)
    if isinstance(x, tt.TT):
        if x.cores[0].ndim != 3 or x.shape != p.in_shape:
            raise ValueError(f"x: expected one TT of shape {p.in_shape}, got {x!r}")
        _check.held("x", x)
        _check.finite("x", x)
        return _train_variance(family(p), x, _out_dtype(p, x), relative)
    if isinstance(x, tt.TTMatrix) or hasattr(x, "todense"):
        raise TypeError(f"x: expected an array or a TT, got {type(x).__name__}; pass x.todense()")
    x = _check.inexact("x", x)
    lead = x.shape[: -len(p.in_shape)] if is_folded(p, x.shape) else x.shape[:-1]
    _check.finite("x", x)
    if math.prod(lead) == 0:
        return jnp.zeros(lead, _out_dtype(p, x))
    return _dense_variance(family(p), jnp.asarray(x), p.in_shape, lead, _out_dtype(p, x), relative)


def _out_dtype(p: Projection, x: Any) -> Any:
    return jnp.finfo(promoted(p.dtype, x.dtype)).dtype


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4, 5))
def _dense_variance(
    kind: Family, x: jax.Array, in_shape: Any, lead: Any, dtype: Any, relative: bool
) -> jax.Array:
    x = x.reshape(math.prod(lead), -1).astype(accumulator(promoted(dtype, x.dtype)))
    if kind.out_shape is not None:
        x = jnp.pad(x, ((0, 0), (0, math.prod(in_shape) - x.shape[1])))
        x = x.reshape(-1, *in_shape)
        if len(in_shape) > _MOST_PATTERNS_MODES:
            one = functools.partial(_exact_train_variance, kind)
            return jax.lax.map(lambda v: one(v, relative), x).astype(dtype).reshape(lead)
    out = jax.lax.map(functools.partial(_one_dense, kind, relative), x)
    return out.astype(dtype).reshape(lead)


def _one_dense(kind: Family, relative: bool, x: jax.Array) -> jax.Array:
    # Homogeneous of degree four: a constant scale keeps the powers in range, and gradients exact.
    half = math.ceil(math.log2(x.size) / 2)
    x, exponent = linalg.normalized(x)
    x = x * 0.5**half
    real = not jnp.iscomplexobj(x)
    square = jnp.sum(jnp.abs(x) ** 2) if not real else jnp.sum(x * x)
    bilinear = jnp.abs(jnp.sum(x * x)) ** 2
    if kind.out_shape is None:
        quartic = jnp.sum(jnp.abs(x) ** 4)
        value = square**2 + bilinear + (kind.delta - 3) * quartic
    else:
        shape = kind.out_shape, kind.rows, kind.ranks, kind.delta
        terms = _fourth_moments.patterns(*shape, real=real)
        value = sum(weight * _pattern_value(x, pattern) for pattern, weight in terms.items())
        value = jnp.asarray(value, square.dtype)
    return _finish(kind, value, square, bilinear, exponent + half, relative)


def _finish(
    kind: Family, value: Any, square: Any, bilinear: Any, exponent: Any, relative: bool
) -> jax.Array:
    """Computes a random map's variance from that of one block of its rows."""
    mixed = (1 - 1 / kind.terms) * (square**2 + bilinear)
    # Roundoff may leave a variance that vanishes a little below zero.
    out = jnp.maximum(value / kind.terms + mixed, 0) / kind.copies
    if relative:
        return out / jnp.where(square > 0, square, 1) ** 2
    return linalg.scaled(out, 4 * exponent)


def _pattern_value(x: jax.Array, pattern: Sequence[int]) -> jax.Array:
    """Contracts four copies of x in one index pairing, a term of a random map's variance."""
    if not any(pattern):
        return jnp.sum(jnp.abs(x) ** 2) ** 2
    terms = [
        "".join(
            string.ascii_letters[2 * k + _fourth_moments.LABELS[p][copy]]
            for k, p in enumerate(pattern)
        )
        for copy in range(4)
    ]
    return jnp.real(einsum(",".join(terms) + "->", x, x.conj(), x, x.conj(), precision=HIGHEST))


def _exact_train_variance(kind: Family, x: jax.Array, relative: bool) -> jax.Array:
    """Computes a random map's variance for a dense x, written exactly as a tensor train."""
    sizes = x.shape
    left = [math.prod(sizes[:k]) for k in range(len(sizes) + 1)]
    right = [math.prod(sizes[k:]) for k in range(len(sizes) + 1)]
    middle = max(k for k in range(len(sizes)) if left[k] <= right[k])
    cores = [
        jnp.eye(left[k + 1], dtype=x.dtype).reshape(left[k], sizes[k], left[k + 1])
        for k in range(middle)
    ]
    cores.append(x.reshape(left[middle], sizes[middle], right[middle + 1]))
    cores += [
        jnp.eye(right[k], dtype=x.dtype).reshape(right[k], sizes[k], right[k + 1])
        for k in range(middle + 1, len(sizes))
    ]
    return _sweep(kind, cores, relative)


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _train_variance(kind: Family, x: tt.TT, dtype: Any, relative: bool) -> jax.Array:
    wide = accumulator(promoted(dtype, x.dtype))
    return _sweep(kind, [c.astype(wide) for c in x.cores], relative).astype(dtype)


def _sweep(kind: Family, cores: list[jax.Array], relative: bool) -> jax.Array:
    largest = max(c.shape[-1] for c in cores)
    if _fourth_moments.STATES * largest**4 > _MOST_STATE:
        raise ValueError(
            f"x: expected TT-ranks whose fourth power fits in memory, got {largest}; round the "
            "train first (tt.round), or compress a dense x of many modes by tt.from_dense"
        )
    cores, square, exponent = _normalized(cores)
    bilinear = jnp.abs(_two_copies(cores)) ** 2
    if kind.out_shape is None:
        value = square**2 + bilinear + (kind.delta - 3) * _one_pairing(cores, 3)
    else:
        value = _all_pairings(kind, cores)
    return _finish(kind, value, square, bilinear, exponent, relative)


def _normalized(cores: list[jax.Array]) -> tuple[list[jax.Array], jax.Array, jax.Array]:
    """Scales cores of x near norm one for a random map's variance; returns ‖x‖² too."""
    env = jnp.ones((1, 1), cores[0].dtype)
    out, exponent = [], jnp.zeros((), jnp.int32)
    for core in cores:
        core, of_core = linalg.normalized(core)  # or its square would leave the range
        env = einsum("ab,aic,bid->cd", env, core.conj(), core, precision=HIGHEST)
        half = linalg.exponent_of(env) // 2
        env = env * linalg.power_of_two(-2 * half, env.dtype)
        out.append(core * linalg.power_of_two(-half, core.dtype))
        exponent = exponent + of_core + half
    return out, jnp.real(env[0, 0]), exponent


def _two_copies(cores: list[jax.Array]) -> jax.Array:
    env = jnp.ones((1, 1), cores[0].dtype)
    for core in cores:
        env = einsum("ab,aic,bid->cd", env, core, core, precision=HIGHEST)
    return env[0, 0]


def _one_pairing(cores: list[jax.Array], pairing: int) -> jax.Array:
    """Computes a term of the variance of a sketch: four copies of a train under one pairing."""
    state = jnp.ones((1, 1, 1, 1, 1), cores[0].dtype)
    for core in cores:
        state = _absorb(state, core, pairing)
    return jnp.real(state[0, 0, 0, 0, 0])


def _all_pairings(kind: Family, cores: list[jax.Array]) -> jax.Array:
    """Sums a random map's variance over all index pairings, by a sweep over the cores of x."""
    assert kind.out_shape is not None
    weights = _fourth_moments.mode_weights(kind.out_shape, kind.rows, kind.delta)
    pairs = weights[0].shape[1]
    first = np.zeros((_fourth_moments.STATES, pairs, 1, 1, 1, 1))
    first[0, 0] = 1
    state = jnp.asarray(first, cores[0].dtype)
    for k, (core, weight) in enumerate(zip(cores, weights, strict=True)):
        bond = np.eye(1, _fourth_moments.STATES).T * _fourth_moments.start()
        if k:
            bond = _fourth_moments.bond_weights(kind.ranks[k - 1])
        # From (chain state, automaton) on the left of the mode to those on its right.
        mixing = bond[:, :, None, None] * weight[list(_fourth_moments.PAIRING)][None]
        mixing = jnp.asarray(mixing.swapaxes(1, 2), core.dtype)
        state = einsum("stabcd,stvu->vuabcd", state, mixing, precision=HIGHEST)
        parts = []
        for pairing, targets in enumerate(((0, 1), (2,), (3,), (4,))):
            part = state[targets[0] : targets[-1] + 1]
            out = _absorb(part.reshape(-1, *part.shape[2:]), core, pairing)
            parts.append(out.reshape(*part.shape[:2], *out.shape[1:]))
        state = jnp.concatenate(parts)
    return jnp.real(jnp.sum(state[1:]))


def _absorb(state: jax.Array, core: jax.Array, pairing: int) -> jax.Array:
    """Contracts four copies of a core of x in the sweep for a random map's variance."""
    i = ["xy"[label] for label in _fourth_moments.LABELS[pairing]]
    expression = f"tabcd,a{i[0]}A,b{i[1]}B,c{i[2]}C,d{i[3]}D->tABCD"
    operands = core, core.conj(), core, core.conj()
    return einsum(expression, state, *operands, precision=HIGHEST)


def variance_bound(p: Projection) -> float:
    """Returns an upper bound of Var‖f(x)‖²/‖x‖⁴ over all x, for a type of random map f.

    For Δ ≤ 3 it is the value at rank-one x with Gaussian entries, where it is attained: for a
    Kronecker map ∏ (1 + 2/m_k) − 1. For Δ > 3 it is attained at x with one nonzero entry.

    Args:
      p: a map, see `apply`.

    Returns:
      Python float.

    Raises:
      TypeError: ``p`` is no map.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> key = jax.random.key(0)
      >>> sketch.variance_bound(sketch.ttrp(key, (4,) * 10, (2,) * 10))
      1023.0
      >>> sketch.variance_bound(sketch.gaussian(key, 64, 64))
      0.03125

    Source: derived here from the moments in `variance`: each pairing is at most ‖x‖⁴.
    """
    if not isinstance(p, Projection):
        raise TypeError(f"p: expected a random map, as from sketch.ttrp, got {type(p).__name__}")
    kind = family(p)
    delta = max(kind.delta, 3.0)
    if kind.out_shape is None:
        return (delta - 1) / kind.copies
    one = _fourth_moments.total(kind.out_shape, kind.rows, kind.ranks, delta)
    return (one / kind.terms + 2 * (1 - 1 / kind.terms)) / kind.copies


def guaranteed_shape(
    n_samples: int, eps: float, *, delta: float = 0.1, order: int = 2, rank: int = 1
) -> tuple[int, ...]:
    """Returns output modes (m, m/r, …, m/r) that suffice for the Johnson–Lindenstrauss bound."""
    n = _check.integer("n_samples", n_samples, low=1)
    d = _check.integer("order", order, low=1)
    r = _check.integer("rank", rank, low=1)
    for name, value in (("eps", eps), ("delta", delta)):
        if not 0 < value < 1:
            raise ValueError(f"{name}: expected a number in (0, 1), got {value!r}")
    pairs = max(1, n * (n - 1) // 2)
    eta = (1 + eps) ** (1 / d) - 1
    m = math.ceil(math.log(2 * d * pairs / delta) / (eta**2 / 4 - eta**3 / 6))
    return (m, *((-(-m // r),) * (d - 1)))


def johnson_lindenstrauss_min_dim(
    n_samples: int, eps: float = 0.1, *, delta: float = 0.1, order: int = 2, rank: int = 1
) -> int:
    """Returns the bound on the output size M by which `ttrp` keeps distances in 1 ± eps.

    With probability 1 − delta all of the n(n−1)/2 squared distances are kept up to a factor in
    [1 − eps, 1 + eps], whatever the n points, for Rademacher, Gaussian or Achlioptas' entries
    (moments at most those of a Gaussian) and out_shape (m, m/r, …, m/r) of product M, where

      m ≥ ln(n(n−1)d/delta) / (η²/4 − η³/6),   η = (1 + eps)^{1/d} − 1.

    This is not the bound of a dense map. The map is a product of d factors, each an iid matrix on
    one mode of what the later ones left (its rows m_k r_{k−1}, its columns n_k r_k). Given these,
    the factor sees a fixed positive semidefinite Gram matrix of trace ‖y‖², and by convexity the
    tail of its quadratic form is at most that for a single vector, Achlioptas' 2 exp(−m(η²/4 −
    η³/6)). A union over factors and pairs gives m; (1 ± η)^d lies in 1 ± eps. So M = m^d grows as
    (d²/eps²)^d for rank one: a Kronecker map needs far more rows than a dense one for all x.
    TT-rank r ≥ m brings M back to m.

    Args:
      n_samples: count n of points.
      eps: distortion of squared distances, in (0, 1).
      delta: probability of failure, in (0, 1).
      order: count d of factors; 1 is a dense map.
      rank: TT-rank r of the map.

    Returns:
      M.

    Raises:
      ValueError: an argument out of range.

    Example:
      >>> from tensorjax import sketch
      >>> sketch.johnson_lindenstrauss_min_dim(1000, 0.5, order=1)
      387
      >>> sketch.johnson_lindenstrauss_min_dim(1000, 0.5)
      2452356
      >>> sketch.johnson_lindenstrauss_min_dim(1000, 0.5, rank=1566)
      1566

    Source: D. Achlioptas, J. Comput. Syst. Sci. 66 (2003), theorem 1.1, for one factor; the step
    to d factors and TT-ranks is ours.
    """
    return math.prod(guaranteed_shape(n_samples, eps, delta=delta, order=order, rank=rank))
