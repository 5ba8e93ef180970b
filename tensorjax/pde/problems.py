"""PDE problems: an equation, an initial state and a box, with exact solutions where known.

Linear drift: `Liouville`, `OrnsteinUhlenbeck`. Any drift: `FokkerPlanck`. Not in divergence form,
with reactions and variable conductivity: `AdvectionDiffusionReaction`. Drifts are sums of `Sin`,
`Power`, `Product` and `Separable`, or any function. Initial states: `Gaussian`, `Mixture`,
`Function`.
"""

from tensorjax.pde._initial_states.initial_states import Function, Gaussian, Mixture
from tensorjax.pde._problems.drifts import Power, Product, Separable, Sin, Term
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.linear_drift import Liouville, OrnsteinUhlenbeck
from tensorjax.pde._problems.problem import Problem, RightSide
from tensorjax.pde._problems.reactions import AdvectionDiffusionReaction

__all__ = [
    "AdvectionDiffusionReaction",
    "FokkerPlanck",
    "Function",
    "Gaussian",
    "Liouville",
    "Mixture",
    "OrnsteinUhlenbeck",
    "Power",
    "Problem",
    "Product",
    "RightSide",
    "Separable",
    "Sin",
    "Term",
]
__dir__ = __all__.copy  # for `dir`: the public names alone
