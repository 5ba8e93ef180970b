"""Affine maps y = Γ x + s between physical coordinates x and moving coordinates y."""

from typing import Any, NamedTuple

import jax
import numpy as np

from tensorjax import _check
from tensorjax._typing import ArrayLike, HostArray
from tensorjax.pde._arguments import backend, floats


class AffineMap(NamedTuple):
    """Affine map y = Γ x + s of coordinates, a pytree; `affine` builds a checked one.

    Attributes:
      matrix: Γ, (d, d), invertible.
      shift: s, (d,).

    Example:
      >>> import jax
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> quarter = pde.affine(np.array([[0.0, 1.0], [-1.0, 0.0]]), np.array([1.0, 0.0]))
      >>> y = quarter.forward(np.array([[2.0, 3.0]]))
      >>> print(y, quarter.inverse(y), float(quarter.det))
      [[ 4. -2.]] [[2. 3.]] 1.0
    """

    matrix: Any
    shift: Any

    @classmethod
    def identity(cls, dim: int) -> "AffineMap":
        """Returns the identity in ``dim`` dimensions as an affine map.

        Args:
          dim: d.

        Returns:
          `AffineMap` with Γ = 1 and s = 0.
        """
        return cls(np.eye(dim), np.zeros(dim))

    @property
    def still(self) -> bool:
        """Whether an affine map of coordinates is exactly the identity."""
        return np.array_equal(self.matrix, np.eye(self.dim)) and not np.any(self.shift)

    @property
    def dim(self) -> int:
        """Number of coordinates d of an affine map y = Γ x + s."""
        return self.matrix.shape[-1]

    @property
    def det(self) -> Any:
        """Determinant of the matrix Γ of the affine map y = Γ x + s."""
        return backend(self.matrix).linalg.det(self.matrix)

    @property
    def cond(self) -> Any:
        """Condition number in the 2-norm of the matrix Γ of the affine map y = Γ x + s."""
        return backend(self.matrix).linalg.cond(self.matrix)

    def forward(self, x: ArrayLike) -> Any:
        """Maps physical points x to moving coordinates y = Γ x + s, (m, d).

        Args:
          x: (m, d).

        Returns:
          (m, d), of NumPy, or of JAX if anything is traced.
        """
        _, (matrix, shift, x) = floats(self.matrix, self.shift, x)
        return x @ matrix.T + shift[None]

    def inverse(self, y: ArrayLike) -> Any:
        """Maps moving coordinates y to physical points x = Γ⁻¹ (y − s), (m, d).

        Args:
          y: (m, d).

        Returns:
          (m, d), of NumPy, or of JAX if anything is traced.
        """
        xp, (matrix, shift, y) = floats(self.matrix, self.shift, y)
        return xp.linalg.solve(matrix, (y - shift[None]).T).T


def affine(matrix: ArrayLike, shift: ArrayLike | None = None) -> AffineMap:
    """Builds an affine map y = Γ x + s of coordinates from checked arguments.

    Args:
      matrix: Γ, (d, d), real.
      shift: s, (d,); zero if None.

    Returns:
      `AffineMap` of NumPy arrays in double precision, or of the arguments where they are traced.

    Raises:
      ValueError: wrong shapes, NaN or Inf, or a matrix that is singular in double precision.

    Example:
      >>> from tensorjax import pde
      >>> pde.affine([[2.0, 0.0], [0.0, 1.0]]).cond.item()
      2.0

    Source: Dektor, Venturi, "Coordinate-adaptive integration of PDEs on tensor manifolds" (arXiv
    2307.05914), for y = Γ x; the shift is ours.
    """
    matrix = _given(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(f"matrix: expected shape (d, d), got {matrix.shape}")
    shift = _given(np.zeros(len(matrix)) if shift is None else shift)
    if shift.shape != matrix.shape[:1]:
        raise ValueError(f"shift: expected shape {matrix.shape[:1]}, got {shift.shape}")
    _check.finite("matrix", matrix)
    _check.finite("shift", shift)
    if not _check.is_traced(matrix):
        s = np.linalg.svd(matrix, compute_uv=False)
        if s[-1] <= len(s) * np.finfo(float).eps * s[0]:
            raise ValueError(
                "matrix: expected an invertible matrix, got singular values from "
                f"{s[0]:.2g} to {s[-1]:.2g}; choose coordinates that are independent"
            )
    return AffineMap(matrix, shift)


def _given(x: Any) -> jax.Array | HostArray:
    return x if _check.is_traced(x) else np.asarray(x, np.float64)
