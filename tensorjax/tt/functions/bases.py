"""Base class of the functions of one variable that functional trains are made of."""

import abc
import functools
import math
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._typing import AnyArray


class Basis(abc.ABC):
    """Basis of functions φ_0, …, φ_{n−1} of one variable on an interval [low, high].

    All matrices are NumPy's, in double precision.
    """

    @property
    @abc.abstractmethod
    def low(self) -> float:
        """Left end of the interval on which the basis is defined."""

    @property
    @abc.abstractmethod
    def high(self) -> float:
        """Right end of the interval on which the basis is defined."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number n of functions of one variable in the basis."""

    @property
    def length(self) -> float:
        """Length high − low of the interval on which the basis is defined."""
        return self.high - self.low

    @property
    @abc.abstractmethod
    def nodes(self) -> np.ndarray:
        """Interpolation points (n,) of a basis of functions, ascending."""

    @property
    @abc.abstractmethod
    def from_values(self) -> np.ndarray:
        """Matrix (n, n) from a function's values at the basis's nodes to its coefficients."""

    @property
    @abc.abstractmethod
    def integrals(self) -> np.ndarray:
        """Integrals (n,) of the basis functions over the interval."""

    @property
    @abc.abstractmethod
    def gram(self) -> np.ndarray:
        """Gram matrix (n, n) of the basis functions in L²."""

    @property
    @abc.abstractmethod
    def constant(self) -> np.ndarray:
        """Coefficients (n,) of the constant function 1 in the basis."""

    @abc.abstractmethod
    def derivative(self) -> tuple["Basis", np.ndarray]:
        """Returns a basis that holds all derivatives of this basis, and the matrix into it."""

    @abc.abstractmethod
    def common(self, other: Self) -> tuple["Basis", np.ndarray, np.ndarray]:
        """Returns a basis of functions that contains two bases, and the matrices into it.

        Args:
          other: basis of the same kind and interval.
        """

    @abc.abstractmethod
    def product(self, other: Self) -> tuple["Basis", np.ndarray, np.ndarray]:
        """Returns a basis that holds products with another, points, and a matrix from values.

        Args:
          other: basis of the same kind and interval.
        """

    @abc.abstractmethod
    def _on_host(self, x: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def _on_device(self, x: jax.Array) -> jax.Array: ...

    @functools.cached_property
    def orthonormal(self) -> np.ndarray:
        """Upper triangular matrix R with Rᵀ R the Gram matrix, so that ‖f‖ in L² is ‖R c‖."""
        return fixed(np.linalg.cholesky(self.gram).T)

    def values(self, x: AnyArray) -> AnyArray:
        """Evaluates all functions of a basis at points of one variable.

        Args:
          x: real points (…), of NumPy or JAX.

        Returns:
          (…, n), of NumPy or JAX as x; NaN outside of the interval.
        """
        if isinstance(x, np.ndarray):
            inside = (x >= self.low) & (x <= self.high)
            out = self._on_host(np.clip(x.astype(np.float64), self.low, self.high))
            return cast(AnyArray, np.where(inside[..., None], out, np.nan))
        # In the precision of the points: the ends rounded to it are inside.
        low, high = (jnp.asarray(end, x.dtype) for end in (self.low, self.high))
        inside = (x >= low) & (x <= high)
        # Not clipped, for clipping halves derivatives at the ends.
        out = self._on_device(jnp.where(inside, x, low))
        found = jnp.where(inside[..., None], out, jnp.asarray(jnp.nan, out.dtype))
        return cast(AnyArray, found)


def checked_interval(low: Any, high: Any) -> tuple[float, float]:
    """Checks the interval of a basis of functions: returns two floats, low < high."""
    try:
        ends = float(low), float(high)
    except (TypeError, ValueError):
        ends = math.nan, math.nan
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise ValueError(f"low, high: expected finite low < high, got {low!r}, {high!r}")
    return ends


def degree_of(value: Any, low: int) -> int:
    """Checks the degree of functions in a basis: returns an int; raises if too small."""
    return _check.integer("degree", value, low=low)


def same_interval(a: Basis, b: Any, k: int) -> None:
    """Raises ValueError unless two bases of functions agree in kind and interval."""
    if type(a) is not type(b) or (a.low, a.high) != (b.low, b.high):
        raise ValueError(
            f"variable {k}: expected bases of one kind on one interval, got {a!r} and {b!r}; "
            "bring one function into the basis of the other with tt.functions.interpolate"
        )


def fixed(x: np.ndarray) -> np.ndarray:
    """Makes a matrix that a `Basis` of functions caches read-only, and returns it."""
    x.flags.writeable = False
    return x
