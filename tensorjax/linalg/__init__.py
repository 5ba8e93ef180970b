"""Matrix factorisations with static or dynamic truncation, of JAX and NumPy arrays.

Names by task:

  exact      qr svd SVD eigh polar
  truncated  truncated_svd left_basis leading_eigenvectors range_finder Basis
  methods    choose Method METHODS gram square_factor

``help(linalg.truncated_svd)`` describes a function.

Every function takes arrays of shape (…, m, n) and answers in kind. A JAX array is factored by XLA:
shapes are static, so it works under jit, vmap and grad, and derivatives stay finite where singular
values repeat or vanish (zero-padded factors). A NumPy array is factored by the host's LAPACK, with
ranks cut to what the data need and nothing compiled.

Two words are used throughout. ``rank`` is static: the number of columns kept. ``tail`` is dynamic:
the energy (sum of squared singular values) that may be discarded. With both, the shape is that of
``rank`` and the columns that ``tail`` discards are set to zero; with ``tail`` alone, which needs a
NumPy array, the shape shrinks to what is kept.

One rule chooses the method (`choose`): the Gram matrix is the fastest way to a subspace but squares
the singular values, so it sees nothing below √eps; it is taken where the asked error lies above
that floor, and a full-accuracy SVD otherwise.
"""

from tensorjax import _extras
from tensorjax.linalg._arrays import (
    adjoint,
    energy,
    epsilon,
    factor_dtype,
    identity_like,
    is_host,
    matmul,
    random_like,
    root,
    scale_columns,
    where_positive,
)
from tensorjax.linalg._gram import gram, host_energy, project
from tensorjax.linalg._host_precision import VERIFY_BELOW
from tensorjax.linalg._powers_of_two import (
    exponent_of,
    exponent_of_nonzero,
    exponents_held,
    normalized,
    power_of_two,
    scaled,
    squares_fit,
)
from tensorjax.linalg._qr import after, orthonormal_rows, qr, triangle
from tensorjax.linalg._subspaces.method_choice import METHODS, Method, choose
from tensorjax.linalg._subspaces.range_finder import OVERSAMPLE, range_finder
from tensorjax.linalg._subspaces.spectrum import leading_eigenvectors
from tensorjax.linalg._subspaces.square_factor import factor_near_one, square_factor
from tensorjax.linalg._subspaces.truncated_basis import Basis, left_basis
from tensorjax.linalg._svd_eigh_polar import eigh, polar, svd
from tensorjax.linalg._truncated_svd import SVD, truncated_svd

# What else is imported here is arithmetic for the packages above: their own business.
__all__ = [
    "METHODS",
    "SVD",
    "Basis",
    "Method",
    "choose",
    "eigh",
    "gram",
    "leading_eigenvectors",
    "left_basis",
    "polar",
    "qr",
    "range_finder",
    "square_factor",
    "svd",
    "truncated_svd",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring
