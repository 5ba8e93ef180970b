"""Functional trains: functions of several variables on a box, as trains over bases.

Names by task:

  create      interpolate (of a function), fit (to samples), compose, ones_like
  types       FunctionTrain Chebyshev BSpline; InterpolateInfo FitInfo
  calculus    evaluate gradient derivative integrate inner norm
  arithmetic  add multiply round

``help(tt.functions.interpolate)`` describes a function.

Example:
  >>> import jax, numpy as np
  >>> from tensorjax import tt
  >>> f, info = tt.functions.interpolate(
  ...     lambda x: np.cos(x.sum(axis=1)), [(0, 1)] * 4, tol=1e-5, key=jax.random.key(0)
  ... )
  >>> total = tt.functions.integrate(f)
  >>> info.status, bool(abs(total - np.cos(2.0) * (2 * np.sin(0.5)) ** 4) < 1e-4)
  ('converged', True)
"""

from tensorjax import _extras
from tensorjax.tt.functions.algebra import add, compose, multiply, ones_like, round
from tensorjax.tt.functions.bspline import BSpline
from tensorjax.tt.functions.calculus import derivative, inner, integrate, norm
from tensorjax.tt.functions.chebyshev import Chebyshev
from tensorjax.tt.functions.evaluation import evaluate, gradient
from tensorjax.tt.functions.fitting import FitInfo, fit
from tensorjax.tt.functions.function_train import FunctionTrain
from tensorjax.tt.functions.interpolation import interpolate
from tensorjax.tt.functions.interpolation_error import InterpolateInfo

__all__ = [
    "BSpline",
    "Chebyshev",
    "FitInfo",
    "FunctionTrain",
    "InterpolateInfo",
    "add",
    "compose",
    "derivative",
    "evaluate",
    "fit",
    "gradient",
    "inner",
    "integrate",
    "interpolate",
    "multiply",
    "norm",
    "ones_like",
    "round",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring
