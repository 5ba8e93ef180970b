"""Johnson–Lindenstrauss dimension and worst-case variance of the random projections."""

import math

from tensorjax import _check
from tensorjax.sketch import _fourth_moments
from tensorjax.sketch._map_types import Projection
from tensorjax.sketch._variance import family


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
    """Returns the output size M for which `ttrp` provably keeps distances within 1 ± eps.

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
