"""Conversion of tensors to and from NumPy, tensornetwork and quimb.

Example:
  >>> from tensorjax import interop, tt
  >>> [c.shape for c in interop.to_numpy(tt.ones((2, 3)))]
  [(1, 2, 1), (1, 3, 1)]

tensornetwork and quimb are optional: ``pip install "tensorjax[network]"`` brings the first,
``pip install quimb`` the second.

Known limits, with JAX 0.10 and NumPy 2: tensornetwork is no longer maintained, but its nodes,
edges, contractors (greedy, optimal, branch, auto) and node splittings work on the arrays put in
here, of JAX and of NumPy; the tests check it.
"""

from tensorjax.interop._numpy import from_numpy, to_numpy
from tensorjax.interop._quimb import from_quimb, to_quimb
from tensorjax.interop._tensornetwork import from_tensornetwork, to_tensornetwork

__all__ = [
    "from_numpy",
    "from_quimb",
    "from_tensornetwork",
    "to_numpy",
    "to_quimb",
    "to_tensornetwork",
]
__dir__ = __all__.copy  # for `dir`: the public names alone
