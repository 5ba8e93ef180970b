"""PDE problems: an equation, an initial state and a box, with exact solutions where known.

Linear drift: `Liouville`, `OrnsteinUhlenbeck`. Any drift: `FokkerPlanck`. Not in divergence form,
with reactions and variable conductivity: `AdvectionDiffusionReaction`. Ready-made, with boxes and
initial states: `Kramers`, `Duffing`, `DoubleWell`, `VanDerPol`, `LotkaVolterra`,
`GeometricBrownianMotion`, `CIR`, `Heston`. Drifts are sums of terms (`Term`): `Sin`, `Power`,
`Product` and `Separable`, or any function. Initial states: `Gaussian`, `Mixture`, `Function`. All
are of the kind `Problem`, and give a `RightSide` to the integrator.

``help(problems.FokkerPlanck)`` describes a problem.
"""

from tensorjax import _extras
from tensorjax.pde._function_trains.initial_states import Function, Gaussian, Mixture
from tensorjax.pde._problems.drifts import Power, Product, Separable, Sin, Term
from tensorjax.pde._problems.financial_processes import CIR, GeometricBrownianMotion, Heston
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.kramers_and_potentials import DoubleWell, Kramers
from tensorjax.pde._problems.ornstein_uhlenbeck import Liouville, OrnsteinUhlenbeck
from tensorjax.pde._problems.oscillators_and_populations import Duffing, LotkaVolterra, VanDerPol
from tensorjax.pde._problems.problem import Problem, RightSide
from tensorjax.pde._problems.reactions import AdvectionDiffusionReaction

__all__ = [
    "CIR",
    "AdvectionDiffusionReaction",
    "DoubleWell",
    "Duffing",
    "FokkerPlanck",
    "Function",
    "Gaussian",
    "GeometricBrownianMotion",
    "Heston",
    "Kramers",
    "Liouville",
    "LotkaVolterra",
    "Mixture",
    "OrnsteinUhlenbeck",
    "Power",
    "Problem",
    "Product",
    "RightSide",
    "Separable",
    "Sin",
    "Term",
    "VanDerPol",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints what the docstring leaves out
