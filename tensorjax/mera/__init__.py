"""MERA: the multiscale entanglement renormalisation ansatz, open or periodic, of any arities.

Names by task:

  format       MERA Layer Wiring wirings random to_dense to_tt
  values       inner norm expectation causal_cone ConeLayer sample
  refinement   refine RefineInfo stiefel conjugate_gradient Transformation tangent retract

``help(mera.expectation)`` describes a function, ``help(mera.MERA)`` the format.

Example:
  >>> import jax, jax.numpy as jnp
  >>> from tensorjax import mera
  >>> m = mera.random(jax.random.key(0), (2,) * 64, rank=2, arity=2)
  >>> z = jnp.diag(jnp.array([1.0, -1.0]))
  >>> mera.expectation(m, jnp.kron(z, z), (31, 32)).shape   # cost logarithmic in the length
  ()
"""

from tensorjax import _extras
from tensorjax._optax import Transformation
from tensorjax.mera._causal_cone import ConeLayer, causal_cone, expectation
from tensorjax.mera._overlap_network import inner, norm
from tensorjax.mera._random_and_sampling import random, sample
from tensorjax.mera._refine import (
    RefineInfo,
    conjugate_gradient,
    refine,
    retract,
    stiefel,
    tangent,
)
from tensorjax.mera._to_dense_and_tt import to_dense, to_tt
from tensorjax.mera._types import MERA, Layer
from tensorjax.mera._wiring import Wiring, wirings

__all__ = [
    "MERA",
    "ConeLayer",
    "Layer",
    "RefineInfo",
    "Transformation",
    "Wiring",
    "causal_cone",
    "conjugate_gradient",
    "expectation",
    "inner",
    "norm",
    "random",
    "refine",
    "retract",
    "sample",
    "stiefel",
    "tangent",
    "to_dense",
    "to_tt",
    "wirings",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring
