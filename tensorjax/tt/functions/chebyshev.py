"""Chebyshev polynomials as the basis of one variable of a functional train."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _chebyshev, _check
from tensorjax.linalg._arrays import matmul
from tensorjax.tt.functions.bases import Basis, checked_interval, degree_of, fixed


@dataclasses.dataclass(frozen=True)
class Chebyshev(Basis):
    """Basis of Chebyshev polynomials T_0, …, T_degree on an interval, for smooth functions.

    Attributes:
      degree: largest degree of the polynomials; the basis has one function more.
      low: left end of the interval.
      high: right end.

    Raises:
      ValueError: a negative degree, an interval that is empty or infinite.

    Example:
      >>> import numpy as np
      >>> from tensorjax import tt
      >>> basis = tt.functions.Chebyshev(2, 0.0, 1.0)
      >>> print(basis.values(np.array([0.0, 0.5, 1.0])).round(6) + 0.0)
      [[ 1. -1.  1.]
       [ 1.  0. -1.]
       [ 1.  1.  1.]]

    Source: L. N. Trefethen, "Approximation Theory and Approximation Practice" (SIAM, 2013),
    chapters 2 to 4.
    """

    degree: int
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self):
        ends = checked_interval(self.low, self.high)
        fields = degree_of(self.degree, 0), *ends
        for name, value in zip(("degree", "low", "high"), fields, strict=True):
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """Number of polynomials of the Chebyshev basis, degree + 1."""
        return self.degree + 1

    @functools.cached_property
    def nodes(self) -> np.ndarray:
        """Chebyshev points of the first kind (n,), ascending, without the ends."""
        return fixed(self.low + self.length * (1 + _chebyshev.roots(self.size)) / 2)

    @functools.cached_property
    def from_values(self) -> np.ndarray:
        """Matrix (n, n) from values at the Chebyshev points to coefficients."""
        return fixed(_chebyshev.series(self.size))

    @functools.cached_property
    def integrals(self) -> np.ndarray:
        """Integrals (n,) of the Chebyshev polynomials over the interval."""
        return fixed(self.length / 2 * _chebyshev.integrals(self.size))

    @functools.cached_property
    def gram(self) -> np.ndarray:
        """Gram matrix (n, n) of the Chebyshev polynomials in L², without a weight."""
        return fixed(self.length / 2 * _chebyshev.gram(self.size))

    @property
    def constant(self) -> np.ndarray:
        """Coefficients (n,) of the constant function 1 in Chebyshev polynomials."""
        return np.eye(1, self.size)[0]

    def derivative(self) -> tuple["Chebyshev", np.ndarray]:
        """Returns the Chebyshev basis of one degree less, and the differentiation matrix to it."""
        matrix = _chebyshev.derivative_series(self.size) * (2 / self.length)
        return self.of_degree(max(self.degree - 1, 0)), matrix

    def common(self, other: "Chebyshev") -> tuple["Chebyshev", np.ndarray, np.ndarray]:
        """Returns the Chebyshev basis of the larger degree, and the conversion matrices into it.

        Args:
          other: basis on the same interval.

        Returns:
          Basis, and two matrices that pad coefficients with zeros.
        """
        basis = self if self.degree >= other.degree else other
        return basis, np.eye(basis.size, self.size), np.eye(basis.size, other.size)

    def product(self, other: "Chebyshev") -> tuple["Chebyshev", np.ndarray, np.ndarray]:
        """Returns the basis for products of two: Chebyshev polynomials of the sum of their degrees.

        Args:
          other: basis on the same interval.

        Returns:
          Basis, points (m,), matrix from values there to coefficients.
        """
        basis = self.of_degree(self.degree + other.degree)
        return basis, basis.nodes, basis.from_values

    def of_degree(self, degree: int) -> "Chebyshev":
        """Returns the Chebyshev basis of a given degree on the same interval.

        Args:
          degree: of the polynomials.

        Returns:
          Basis.
        """
        return Chebyshev(degree, self.low, self.high)

    def _on_host(self, x: np.ndarray) -> np.ndarray:
        return _chebyshev.polynomials((2 * x - self.low - self.high) / self.length, self.size)

    def _on_device(self, x: jax.Array) -> jax.Array:
        middle, half = (jnp.asarray(c, x.dtype) for c in (self.low + self.length / 2, self.length))
        return _polynomials((x - middle) * 2 / half, self.size)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _polynomials(t: jax.Array, count: int) -> jax.Array:
    """Evaluates a `Chebyshev` basis, T_0, …, T_{n−1}, at JAX points in [−1, 1], by cosines.

    By cosines: a loop over the recurrence takes XLA several times longer to compile. The derivative
    is that of the series, for arccos has none at the ends.
    """
    angle = jnp.arccos(jnp.clip(t, -1, 1))  # roundoff may lead outside
    degrees = jnp.arange(count, dtype=t.dtype).reshape((1,) * t.ndim + (count,))
    return jnp.cos(angle[..., None] * degrees)


@_polynomials.defjvp
def _of_polynomials(count: int, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (t,), (dt,) = primals, tangents
    out = _polynomials(t, count)
    matrix = jnp.asarray(_chebyshev.derivative_series(count), t.dtype)
    return out, dt[..., None] * matmul(out[..., : len(matrix)], matrix)


def checked_domain(domain: Any) -> tuple[list[Basis], list[int]]:
    """Converts the domain of an interpolation to Chebyshev bases; says which were pairs."""
    if _check.is_traced(domain):
        raise TypeError("domain: expected numbers, got traced ones; call this outside of jit")
    entries = list(domain) if np.iterable(domain) else [domain]
    if len(entries) == 2 and all(isinstance(e, int | float) for e in entries):
        entries = [entries]
    bases: list[Basis] = []
    free: list[int] = []
    for k, entry in enumerate(entries):
        if not isinstance(entry, Basis):
            if np.shape(entry) != (2,):
                raise ValueError(
                    f"domain: expected a pair (low, high) or a basis of variable {k}, got {entry!r}"
                )
            free.append(k)
            entry = Chebyshev(0, *entry)
        bases.append(entry)
    if not bases:
        raise ValueError("domain: expected a pair (low, high) or a basis a variable, got none")
    return bases, free
