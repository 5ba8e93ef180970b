"""Quantics (QTT) toolbox: grids, exact trains of functions, operators and quadrature weights.

Example:
  >>> from tensorjax import tt
  >>> grid = tt.quantics_grid(0.0, 1.0, bits=30)
  >>> tt.quantics.cosine(grid, 100.0).ranks[:4]
  (1, 2, 2, 2)
"""

from tensorjax.tt.quantics.affine_maps import affine
from tensorjax.tt.quantics.difference_operators import (
    derivative,
    inverse_laplacian,
    laplacian,
    shift,
)
from tensorjax.tt.quantics.elementary_functions import (
    constant,
    cosine,
    exponential,
    polynomial,
    sine,
)
from tensorjax.tt.quantics.fourier_transform import fourier
from tensorjax.tt.quantics.indicators import box, delta, step
from tensorjax.tt.quantics.quadrature import weights
from tensorjax.tt.quantics.toeplitz_matrices import circulant, toeplitz

__all__ = [
    "affine",
    "box",
    "circulant",
    "constant",
    "cosine",
    "delta",
    "derivative",
    "exponential",
    "fourier",
    "inverse_laplacian",
    "laplacian",
    "polynomial",
    "shift",
    "sine",
    "step",
    "toeplitz",
    "weights",
]
__dir__ = __all__.copy  # for `dir`: the public names alone
