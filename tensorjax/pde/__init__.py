"""Time-dependent partial differential equations on tensor trains, in moving coordinates.

Names by task:

  equations      FokkerPlanck OrnsteinUhlenbeck Liouville AdvectionDiffusionReaction Problem
                 RightSide
  ready-made     Kramers Duffing DoubleWell VanDerPol LotkaVolterra GeometricBrownianMotion CIR
                 Heston
  drifts         Sin Power Product Separable, or any function
  starts         Gaussian Mixture Function
  grids          Box Axis
  integrate      integrate Solution Result State SaveAt Event SteadyState ConstantStepSize
                 PIDController; save load Checkpoint
  without steps  stationary slow_modes first_passage committor survival expectation
  their results  Stationary SlowModes Passage Survival Expectation
  densities      evaluate marginal mass moments edge_mass resolution sample entropy
                 kullback_leibler flux square_root Estimate SquareRoot
  maps           AffineMap affine affine_generator Coefficients rank_reducing_map RankReduction
  coordinates    Fixed Convex MultiLevel Flow Prescribed Motion
  modules        problems, coords (how coordinates move)

``help(pde.integrate)`` describes a function, ``help(pde.Solution)`` a class with its methods.

Coordinates y = Γ x + s follow the solution, so that its TT-ranks stay low.
"""

from typing import TYPE_CHECKING

from tensorjax import _extras, _other_names
from tensorjax.pde import coords, problems
from tensorjax.pde._discretization.affine_operators import Coefficients, affine_generator
from tensorjax.pde._discretization.axis import Axis
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Function, Gaussian, Mixture
from tensorjax.pde._generators.rank_reduction import RankReduction, rank_reducing_map
from tensorjax.pde._integration.checkpoint import Checkpoint, load, save
from tensorjax.pde._integration.events import Event, SteadyState
from tensorjax.pde._integration.integrate import integrate
from tensorjax.pde._integration.solution import Result, SaveAt, Solution, State
from tensorjax.pde._long_times.mean_first_passage_times import Passage, committor, first_passage
from tensorjax.pde._long_times.slow_modes import SlowModes, slow_modes
from tensorjax.pde._long_times.stationary import Stationary, stationary
from tensorjax.pde._long_times.survival_and_expectations import (
    Expectation,
    Survival,
    expectation,
    survival,
)
from tensorjax.pde._maps.affine_maps import AffineMap, affine
from tensorjax.pde._observables.edge_and_resolution import edge_mass, resolution
from tensorjax.pde._observables.entropies import Estimate, entropy, kullback_leibler
from tensorjax.pde._observables.flux import flux
from tensorjax.pde._observables.marginals import marginal
from tensorjax.pde._observables.sampling import sample
from tensorjax.pde._observables.square_root import SquareRoot, square_root
from tensorjax.pde._observables.values_and_moments import evaluate, mass, moments
from tensorjax.pde._problems.drifts import Power, Product, Separable, Sin
from tensorjax.pde._problems.financial_processes import CIR, GeometricBrownianMotion, Heston
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.kramers_and_potentials import DoubleWell, Kramers
from tensorjax.pde._problems.ornstein_uhlenbeck import Liouville, OrnsteinUhlenbeck
from tensorjax.pde._problems.oscillators_and_populations import Duffing, LotkaVolterra, VanDerPol
from tensorjax.pde._problems.problem import Problem, RightSide
from tensorjax.pde._problems.reactions import AdvectionDiffusionReaction
from tensorjax.pde._stepping.step_sizes import ConstantStepSize, PIDController
from tensorjax.pde.coords import Convex, Fixed, Flow, Motion, MultiLevel, Prescribed

__all__ = [
    "CIR",
    "AdvectionDiffusionReaction",
    "AffineMap",
    "Axis",
    "Box",
    "Checkpoint",
    "Coefficients",
    "ConstantStepSize",
    "Convex",
    "DoubleWell",
    "Duffing",
    "Estimate",
    "Event",
    "Expectation",
    "Fixed",
    "Flow",
    "FokkerPlanck",
    "Function",
    "Gaussian",
    "GeometricBrownianMotion",
    "Heston",
    "Kramers",
    "Liouville",
    "LotkaVolterra",
    "Mixture",
    "Motion",
    "MultiLevel",
    "OrnsteinUhlenbeck",
    "PIDController",
    "Passage",
    "Power",
    "Prescribed",
    "Problem",
    "Product",
    "RankReduction",
    "Result",
    "RightSide",
    "SaveAt",
    "Separable",
    "Sin",
    "SlowModes",
    "Solution",
    "SquareRoot",
    "State",
    "Stationary",
    "SteadyState",
    "Survival",
    "VanDerPol",
    "affine",
    "affine_generator",
    "committor",
    "coords",
    "edge_mass",
    "entropy",
    "evaluate",
    "expectation",
    "first_passage",
    "flux",
    "integrate",
    "kullback_leibler",
    "load",
    "marginal",
    "mass",
    "moments",
    "problems",
    "rank_reducing_map",
    "resolution",
    "sample",
    "save",
    "slow_modes",
    "square_root",
    "stationary",
    "survival",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring

if not TYPE_CHECKING:
    __getattr__ = _other_names.missing(__name__, _other_names.REMOVED_FROM_PDE)
