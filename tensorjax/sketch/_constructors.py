"""Constructors of random maps: TT, Gaussian, sparse, Khatri–Rao, TT rows, CP rows."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.random_arrays import drawn, split, words_of
from tensorjax._transfer import on_device
from tensorjax._typing import DTypeLike, Key
from tensorjax.sketch import _mode_sizes
from tensorjax.sketch._map_types import CPRows, Dense, Kronecker, Sparse, TTRows, law, signs

_MOST_ENTRIES = 2**30 - 2  # of a matrix that is stored whole, or indexed by int32


def _float_dtype(dtype: Any) -> Any:
    """Returns the dtype of a new random map, JAX's default for None; TypeError if not floating."""
    out = jnp.result_type(float) if dtype is None else _check.dtype_of("dtype", dtype)
    if not jnp.issubdtype(out, jnp.floating):
        raise TypeError(f"dtype: expected a floating-point dtype, got {out}")
    _check.available("dtype", out)
    return out


def _key(key: Any) -> Any:
    """Returns the JAX random key given for a random map; raises TypeError for others."""
    is_key = isinstance(key, jax.Array) and (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == jnp.uint32
    )
    if not is_key:
        raise TypeError(f"key: expected a key from jax.random.key(seed), got {type(key).__name__}")
    return key


def _interior(rank: Any, order: int) -> tuple[int, ...]:
    """Expands ``rank``, an int or a sequence, to the d − 1 interior TT-ranks of a new map."""
    return _check.bond_ranks(rank, (2**62,) * (order - 1))


def ttrp(
    key: Key,
    in_shape: int | Sequence[int],
    out_shape: int | Sequence[int],
    *,
    distribution: str = "rademacher",
    rank: int | Sequence[int] = 1,
    s: float = 3.0,
    order: int | None = None,
    dtype: DTypeLike | None = None,
) -> Kronecker:
    """Constructs a random tensor-train projection (random Kronecker product at rank one).

    f(x) = M^{-1/2} (R_1 ⊗ … ⊗ R_d) x with independent entries of mean 0, variance 1 in R_k
    (m_k × n_k). With TT-ranks r the map is a TT-matrix of such cores over (M r_1 ⋯ r_{d−1})^{1/2}.
    Always E‖f(x)‖² = ‖x‖². For structured x the variance is larger than that of a dense Gaussian
    map, by `variance_bound`: prefer few modes, and m_k large and equal. TT-ranks lower it.

    Args:
      key: `jax.random.key`; the same key gives the same map.
      in_shape: (n_1, …, n_d), or N to have it factored; a prime N is padded by zeros.
      out_shape: (m_1, …, m_d), or M to have it factored. Where M has no balanced factors more
        rows are drawn and the first M used, with the scale of M rows; the mean stays exact, for
        every row has the same law.
      distribution: of the entries: "rademacher" (least variance), "gaussian" or "sparse".
      rank: TT-rank of the map: one int, or one per interior bond.
      s: for "sparse", one entry in s is nonzero.
      order: count d of modes, when both shapes are ints; by default as few as keep the modes of
        the input under 4096, at least two.
      dtype: floating-point type of the cores; by default JAX's (float32, or float64 in its 64-bit
        mode).

    Returns:
      A `Kronecker` map.

    Raises:
      ValueError: sizes are not positive or contradict each other; unknown distribution.
      TypeError: ``key`` is not a key or ``dtype`` not floating-point.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> p = sketch.ttrp(jax.random.key(0), (25, 25, 16), (4, 3, 2))
      >>> p
      Kronecker(25·25·16 → 4·3·2, rademacher)
      >>> p.size
      207
      >>> sketch.ttrp(jax.random.key(0), 784, 24).out_shape
      (6, 4)

    Source: Feng, Tang, He, Zhou, Liao, "Tensor Train Random Projection", arXiv 2010.10797,
    definition of TTRP and its Rademacher optimum. The ranks' scale, the padding and the choice of
    factors are ours.
    """
    kind, dtype = law(distribution, s), _float_dtype(dtype)
    least = min((_check.integer("rank", r, low=1) for r in np.ravel(rank).tolist()), default=1)
    n, m, in_size, out_size = _mode_sizes.shapes(in_shape, out_shape, order=order, rank=least)
    r = (1, *_interior(rank, len(n)), 1)
    cores = kind.draw(_key(key), list(zip(r[:-1], m, n, r[1:], strict=True)), dtype)
    return Kronecker(n, in_size, out_size, kind, cores)


def _sizes(in_shape: Any, out_shape: Any) -> tuple[tuple[int, ...], int, int]:
    """Returns input modes, N and M of a new random map; raises ValueError if too large."""
    n = _check.shape("in_shape", in_shape)
    size, m = math.prod(n), math.prod(_check.shape("out_shape", out_shape))
    if size * m > _MOST_ENTRIES:
        raise ValueError(
            "in_shape, out_shape: expected fewer than 2^30 entries in a matrix without product "
            f"structure, got {m} × {size}; use sketch.ttrp, khatri_rao, tt_rows or cp_rows"
        )
    return n, size, m


def gaussian(
    key: Key,
    in_shape: int | Sequence[int],
    out_shape: int | Sequence[int],
    *,
    dtype: DTypeLike | None = None,
) -> Dense:
    """Draws a dense Gaussian random map: f(x) = M^{-1/2} W x, Var‖f(x)‖² = 2‖x‖⁴/M for every x.

    Args:
      key: `jax.random.key`.
      in_shape: N, or modes (n_1, …, n_d), which a tensor-train input then must have.
      out_shape: M, or modes whose product it is.
      dtype: floating-point type, by default JAX's.

    Returns:
      A `Dense` map.

    Raises:
      ValueError: the matrix would have 2³⁰ entries or more.
      TypeError: ``key`` is not a key or ``dtype`` not floating-point.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.gaussian(jax.random.key(0), 10_000, 24).size
      240000

    Source: W. Johnson, J. Lindenstrauss, "Extensions of Lipschitz mappings into a Hilbert space",
    Contemp. Math. 26 (1984), for the property; the variance is derived here, see `variance`.
    """
    dtype, kind = _float_dtype(dtype), law("gaussian")
    n, size, m = _sizes(in_shape, out_shape)
    (matrix,) = kind.draw(_key(key), [(m, size)], dtype)
    return Dense(n, size, m, kind, matrix)


def sparse(
    key: Key,
    in_shape: int | Sequence[int],
    out_shape: int | Sequence[int],
    *,
    s: float | str = 3.0,
    dtype: DTypeLike | None = None,
) -> Sparse:
    """Draws a sparse (Achlioptas) random map: entries ±√(s/M) with probability 1/(2s), else 0.

    Var‖f(x)‖² = (2‖x‖₂⁴ + (s − 3)‖x‖₄⁴)/M. Only the nonzeros are stored, in a buffer whose static
    size they exceed with probability below 10⁻¹⁵ (any beyond it would be lost).

    Args:
      key: `jax.random.key`.
      in_shape: N, or modes (n_1, …, n_d), which a tensor-train input then must have.
      out_shape: M, or modes whose product it is.
      s: 3 for Achlioptas' map, "sqrt" for the very sparse one, s = √N; or any number ≥ 1.
      dtype: floating-point type of the signs, by default JAX's.

    Returns:
      A `Sparse` map.

    Raises:
      ValueError: ``s`` < 1, or a matrix of 2³⁰ entries or more (places are int32).
      TypeError: ``key`` is not a key or ``dtype`` not floating-point.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> 2200 < sketch.sparse(jax.random.key(0), 10_000, 24, s="sqrt").size < 2600
      True

    Source: D. Achlioptas, J. Comput. Syst. Sci. 66 (2003), theorem 1.1; P. Li, T. Hastie,
    K. Church, "Very sparse random projections", KDD 2006, section 2.
    """
    dtype = _float_dtype(dtype)
    n, size, m = _sizes(in_shape, out_shape)
    kind = law("sparse", math.sqrt(size) if isinstance(s, str) and s == "sqrt" else s)  # type: ignore[arg-type]
    given = _key(key), size * m, 1 / kind.fourth_moment, dtype
    found = _signs_on_host(*given)
    index, sign = _bernoulli_signs(*given) if found is None else on_device(found)
    return Sparse(n, size, m, kind, index, sign)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _bernoulli_signs(key: Any, count: int, probability: float, dtype: Any) -> Any:
    """Draws positions and signs of nonzeros of a new sparse random map.

    Gaps between successes are independent and geometric, so their number need not be drawn first.
    Places left over are ``count``, and their signs 0.
    """
    capacity = _capacity(count, probability)
    for_gaps, for_signs = jax.random.split(key)
    gaps = _Gaps(probability)(for_gaps, (capacity,), jnp.float32)
    gaps = jnp.minimum(gaps, count).astype(jnp.int32)
    # The sum saturates at count + 1: the last gaps run past the end, and int32 must not wrap.
    places = jax.lax.associative_scan(lambda a, b: jnp.minimum(a + b, count + 1), gaps + 1) - 1
    sign = jnp.where(places < count, signs(for_signs, (capacity,), dtype), 0)
    return places, sign.astype(dtype)


def _signs_on_host(key: Any, count: int, probability: float, dtype: Any) -> list[Any] | None:
    """Draws positions and signs of nonzeros of a new sparse map by NumPy; None if it cannot."""
    words = words_of(key)
    if words is None:
        return None
    capacity = _capacity(count, probability)
    for_gaps, for_signs = split(words, 2)[:, None]
    found = drawn(_Gaps(probability), for_gaps, [(capacity,)], np.float32)
    sign = drawn(signs, for_signs, [(capacity,)], dtype)
    if found is None or sign is None:
        return None
    gaps = np.minimum(found[0], np.float32(count)).astype(np.int64)
    places = np.minimum(np.cumsum(gaps + 1), count + 1) - 1
    return [places.astype(np.int32), np.where(places < count, sign[0], 0).astype(dtype)]


def _capacity(count: int, probability: float) -> int:
    """Returns how many nonzeros a new sparse random map of given probability has room for."""
    mean = count * probability
    return min(count, math.ceil(mean + 8 * math.sqrt(mean * (1 - probability))) + 16)


@dataclasses.dataclass(frozen=True)
class _Gaps:
    """Geometric distribution: failures before each success, for gaps in a new sparse random map."""

    probability: float

    def __call__(self, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        u = 1 - jax.random.uniform(key, shape, dtype)  # in (0, 1]
        denominator = math.log1p(-self.probability) if self.probability < 1 else -math.inf
        return jnp.floor(jnp.log(u) / denominator)


def tt_rows(
    key: Key,
    in_shape: int | Sequence[int],
    out_shape: int | Sequence[int],
    *,
    distribution: str = "gaussian",
    rank: int | Sequence[int] = 1,
    s: float = 3.0,
    order: int | None = None,
    dtype: DTypeLike | None = None,
) -> TTRows:
    """Draws a map f_TT(R) of M independent rows, each a random tensor train of TT-ranks R.

    Var‖f(x)‖² ≤ (3(1 + 2/R)^{d−1} − 1)‖x‖⁴/M for Gaussian cores, an equality for rank-one x.

    Args:
      key: `jax.random.key`.
      in_shape: (n_1, …, n_d), or N to have it factored (and padded by zeros if need be).
      out_shape: M, or modes whose product it is.
      distribution: of the entries: "gaussian", "rademacher" or "sparse".
      rank: R, or one rank per interior bond.
      s: for "sparse", one entry in s is nonzero.
      order: count d of modes, when ``in_shape`` is an int; by default as few as keep them under
        4096, at least two.
      dtype: floating-point type of the cores; JAX's default float if None.

    Returns:
      A `TTRows` map.

    Raises:
      ValueError: sizes or ranks below one, or an unknown distribution.
      TypeError: ``key`` is not a key or ``dtype`` not floating-point.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.tt_rows(jax.random.key(0), (4, 5, 6), 7, rank=2).ranks
      (2, 2)

    Source: B. Rakhshan, G. Rabusseau, "Tensorized random projections", AISTATS 2020: the map
    f_TT(R), with boundary cores of variance R^{-1/2} and interior ones of R^{-1}.
    """
    kind, dtype = law(distribution, s), _float_dtype(dtype)
    n, in_size, m = _row_shapes(in_shape, out_shape, order)
    r = (1, *_interior(rank, len(n)), 1)
    shapes = [(m, left, size, right) for left, size, right in zip(r[:-1], n, r[1:], strict=True)]
    cores = kind.draw(_key(key), shapes, dtype)
    return TTRows(n, in_size, m, kind, cores)


def _row_shapes(in_shape: Any, out_shape: Any, order: int | None) -> tuple[Any, int, int]:
    m = math.prod(_check.shape("out_shape", out_shape))
    d = 1 if order is None and not hasattr(in_shape, "__index__") else order
    if hasattr(in_shape, "__index__"):
        n, _, in_size, _ = _mode_sizes.shapes(in_shape, 1, order=d)
        return n, in_size, m
    n = _check.shape("in_shape", in_shape)
    _mode_sizes.shapes(n, (1,) * len(n), order=order)  # its check of the order
    return n, math.prod(n), m


def cp_rows(
    key: Key,
    in_shape: int | Sequence[int],
    out_shape: int | Sequence[int],
    *,
    distribution: str = "gaussian",
    rank: int = 1,
    s: float = 3.0,
    order: int | None = None,
    dtype: DTypeLike | None = None,
) -> CPRows:
    """Draws a map f_CP(R) of M independent rows, each a sum of R random rank-one tensors.

    Var‖f(x)‖² = (3^d/R + 2 − 3/R)‖x‖⁴/M for rank-one x and Gaussian factors, and at most that.

    Args:
      key: `jax.random.key`.
      in_shape: (n_1, …, n_d), or N to have it factored (and padded by zeros if need be).
      out_shape: M, or modes whose product it is.
      distribution: of the entries: "gaussian", "rademacher" or "sparse".
      rank: the count R of terms.
      s: for "sparse", one entry in s is nonzero.
      order: count d of modes, when ``in_shape`` is an int; by default as few as keep them under
        4096, at least two.
      dtype: floating-point type of the factors; JAX's default float if None.

    Returns:
      A `CPRows` map.

    Raises:
      ValueError: sizes or ranks below one, or an unknown distribution.
      TypeError: ``key`` is not a key or ``dtype`` not floating-point.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.cp_rows(jax.random.key(0), (4, 5, 6), 7, rank=2).size
      210

    Source: Rakhshan and Rabusseau (2020), see `tt_rows`: the map f_CP(R).
    """
    kind, dtype = law(distribution, s), _float_dtype(dtype)
    n, in_size, m = _row_shapes(in_shape, out_shape, order)
    t = _check.integer("rank", rank, low=1)
    factors = kind.draw(_key(key), [(m, t, size) for size in n], dtype)
    return CPRows(n, in_size, m, kind, factors)


def khatri_rao(
    key: Key,
    in_shape: int | Sequence[int],
    out_shape: int | Sequence[int],
    *,
    distribution: str = "gaussian",
    averages: int = 1,
    s: float = 3.0,
    order: int | None = None,
    dtype: DTypeLike | None = None,
) -> CPRows:
    """Draws a Khatri–Rao map (TRP): rows are rank-one tensors of small random matrices.

    f(x) = M^{-1/2} (A_1 ⊙ … ⊙ A_d)ᵀ x, A_k (n_k × M): row i is the rank-one tensor of columns i.
    ``averages`` = T adds T independent copies over √T (TRP_T), which is `cp_rows` with R = T.

    Args:
      key: `jax.random.key`.
      in_shape: (n_1, …, n_d), or N to have it factored (and padded by zeros if need be).
      out_shape: M, or modes whose product it is.
      distribution: of the entries: "gaussian", "rademacher" or "sparse".
      averages: the count T of copies.
      s: for "sparse", one entry in s is nonzero.
      order: count d of modes, when ``in_shape`` is an int; by default as few as keep them under
        4096, at least two.
      dtype: floating-point type of the factors; JAX's default float if None.

    Returns:
      A `CPRows` map.

    Raises:
      ValueError: sizes or ``averages`` below one, or an unknown distribution.
      TypeError: ``key`` is not a key or ``dtype`` not floating-point.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.khatri_rao(jax.random.key(0), (25, 25, 16), 24).size
      1584

    Source: Y. Sun, Y. Guo, J. Tropp, M. Udell, "Tensor random projection for low memory dimension
    reduction", arXiv 2105.00105: the maps TRP and TRP_T.
    """
    terms = _check.integer("averages", averages, low=1)
    options = {"distribution": distribution, "s": s, "order": order, "dtype": dtype}
    return cp_rows(key, in_shape, out_shape, rank=terms, **options)
