"""Patched trains: functions of locally high TT-ranks, as trains on parts of a tensor.

Example:
  >>> import jax, numpy as np
  >>> from tensorjax import tt
  >>> grid = tt.quantics_grid([0.0] * 2, [1.0] * 2, bits=6, base=2)
  >>> f = lambda i: np.hypot(*(grid.coordinates(i) - 0.5).T) < 0.3
  >>> p, info = tt.patches.cross(lambda i: 1.0 * f(i), grid.shape, tol=1e-4, key=jax.random.key(0))
  >>> round(float(tt.patches.sum(p)) / 4096, 2)   # π/4 · .36
  0.28
"""

from tensorjax.tt.patches.arithmetic import add, evaluate, inner, norm, ones_like, sum
from tensorjax.tt.patches.conversion import to_dense, to_tt
from tensorjax.tt.patches.cross import PatchesInfo, cross
from tensorjax.tt.patches.patched_train import PatchedTT

__all__ = [
    "PatchedTT",
    "PatchesInfo",
    "add",
    "cross",
    "evaluate",
    "inner",
    "norm",
    "ones_like",
    "sum",
    "to_dense",
    "to_tt",
]
__dir__ = __all__.copy  # for `dir`: the public names alone
