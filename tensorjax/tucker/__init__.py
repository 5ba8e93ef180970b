"""Tucker format: a small core, dense or a tensor train, and one factor matrix per mode.

Names by task:

  create      from_dense to_dense random ones_like to_tt Tucker
  arithmetic  add scale hadamard mode_product real imag inner norm distance evaluate
  ranks       round orthogonalize pad
  fits        hooi nonnegative FitInfo; both with a mask

``help(tucker.round)`` describes a function, ``help(tucker.Tucker)`` the format.

Example:
  >>> import jax.numpy as jnp
  >>> from tensorjax import tucker
  >>> i, j, k = jnp.meshgrid(*3 * [jnp.arange(8.0)], indexing="ij")
  >>> t = tucker.from_dense(i + j * k, tol=1e-5)
  >>> t
  Tucker(shape=(8, 8, 8), ranks=(2, 2, 2), core=dense, dtype=float32)
  >>> tucker.round(t + 2 * t, tol=1e-5).ranks
  (2, 2, 2)
  >>> bool(jnp.allclose(tucker.to_dense(t), i + j * k, atol=1e-3))
  True
"""

from tensorjax import _extras
from tensorjax.tucker._constructors import ones_like, random
from tensorjax.tucker._decompositions.fits import FitInfo
from tensorjax.tucker._decompositions.hooi import hooi
from tensorjax.tucker._decompositions.hosvd import from_dense
from tensorjax.tucker._decompositions.nonnegative import nonnegative
from tensorjax.tucker._hadamard_and_mode_products import hadamard, mode_product
from tensorjax.tucker._indexing import item as item
from tensorjax.tucker._norms_and_entries import distance, evaluate, inner, norm
from tensorjax.tucker._rounding import orthogonalize, round
from tensorjax.tucker._sums_and_padding import add, imag, pad, real, scale
from tensorjax.tucker._to_dense_and_tt import to_dense, to_tt
from tensorjax.tucker._types import Tucker

__all__ = [
    "FitInfo",
    "Tucker",
    "add",
    "distance",
    "evaluate",
    "from_dense",
    "hadamard",
    "hooi",
    "imag",
    "inner",
    "mode_product",
    "nonnegative",
    "norm",
    "ones_like",
    "orthogonalize",
    "pad",
    "random",
    "real",
    "round",
    "scale",
    "to_dense",
    "to_tt",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring
