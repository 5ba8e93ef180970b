"""Advection–diffusion–reaction equations, not in divergence form."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import _check
from tensorjax._cores import products, rounding
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._typing import ArrayLike, KeyOrGenerator
from tensorjax.pde._arguments import coefficient, floats, hosted_cores, or_zero
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.grid import Box, random_points
from tensorjax.pde._function_trains.cross_approximation import entrywise
from tensorjax.pde._function_trains.initial_states import Start
from tensorjax.pde._maps import characteristics
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.diffusion import check_sign, diffusion_matrix
from tensorjax.pde._problems.drifts import Field, Term, terms_of
from tensorjax.pde._problems.ornstein_uhlenbeck import (
    OrnsteinUhlenbeck,
    affine_part,
    affine_velocity,
)
from tensorjax.pde._problems.problem import Problem, RightSide
from tensorjax.pde._problems.user_functions import InFewSizes, Remembered
from tensorjax.tt._rounding import sums_by_sketches_or_grams as fused

# Number of random points of the box at which the sign of variable conductivities is checked.
_LOOKS = 1000


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class AdvectionDiffusionReaction(Problem):
    """Advection–diffusion–reaction equation u_t = f·∇u + ∇·(σ∇u) + p u + R(u) + g.

    The advection is f(x) = A x + b + terms.

    Attributes:
      velocity: f less its affine part: d entries as in `FokkerPlanck`, a function of points, or
        None.
      conductivity: σ: a number or a symmetric positive semidefinite matrix (d, d), constant; a
        `Term` for a scalar field; a sequence of pairs (term, matrix), which are summed; or None.
      matrix: A, (d, d), or None.
      offset: b, (d,), or None.
      reaction: R: coefficients (c₀, c₁, c₂, …) of a polynomial in u, of c₀ = 0 unless u may fill
        the box; a function of values, entry by entry, that is
        evaluated at entries drawn from u²; or None.
      potential: p, a term, a sequence of them, or None.
      source: g, constant in time, as an initial state is given; or None.
      tol: relative error of the source and of cross approximations of f.
      start: the initial state, u(0): a `Gaussian`, `Mixture` or `Function`.
      box: `Box` of the coordinates y.

    Raises:
      ValueError: wrong shapes, NaN or Inf, negative conductivity.

    Example:
      Fisher's equation in two dimensions.

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), 0.3 * np.eye(2), amplitude=0.1)
      >>> fisher = pde.AdvectionDiffusionReaction(
      ...     None, 0.1, start, pde.Box.fourier(2, 32), reaction=(0.0, 1.0, -1.0)
      ... )
      >>> map = pde.AffineMap.identity(2)
      >>> right, v = fisher.right_side(map, 0.0), fisher.initial(map, 1e-5)
      >>> right.affine.constant, right.reaction(v, 1e-4).ranks
      (1.0, (1, 1, 1))
    """

    velocity: Field
    conductivity: Any
    matrix: Any
    offset: Any
    reaction: Any
    potential: tuple[Term, ...]
    source: Start | None

    def __init__(
        self,
        velocity: Any,
        conductivity: Any,
        start: Start,
        box: Box,
        *,
        matrix: Any = None,
        offset: Any = None,
        reaction: Sequence[float] | Callable[[Any], Any] | None = None,
        potential: Any = None,
        source: Start | None = None,
        tol: float = 1e-8,
    ):
        super().__init__(start, box)
        d = box.dim
        self._set(
            velocity=Field(velocity, d, tol, "velocity"),
            conductivity=conductivity,
            matrix=coefficient("matrix", matrix, (d, d), optional=True),
            offset=coefficient("offset", offset, (d,), optional=True),
            potential=tuple(terms_of("potential", potential, d)),
            source=source,
            tol=tol,
            _known=Remembered("source"),
        )
        constant, variable = _conductivity(conductivity, box)
        self._set(_constant=constant, _variable=variable)
        function, polynomial = (
            (reaction, ()) if callable(reaction) else (None, () if reaction is None else reaction)
        )
        _check.finite("reaction", np.asarray(polynomial, np.float64))
        self._set(
            reaction=reaction,
            _function=function and InFewSizes(function),
            _polynomial=tuple(map(float, polynomial)),
        )

    tol: float
    _constant: Any = dataclasses.field(init=False)  # part of the conductivity
    _variable: list[tuple[Term, Any]] = dataclasses.field(init=False)
    _function: Callable[[Any], Any] | None = dataclasses.field(init=False)
    _polynomial: tuple[float, ...] = dataclasses.field(init=False)
    _known: Remembered = dataclasses.field(init=False)

    def right_side(self, map: AffineMap, t: float) -> RightSide:
        """Builds the right side of a reaction–diffusion PDE in a map's coordinates.

        Q_y(v) = (Γ f)·∇v + ∇·(Γ σ Γᵀ ∇v) + p v + R(v) + g, at time t where f depends on it.
        """
        growth = self._coefficient(1)
        matrix, offset = (None if p is None else -p for p in (self.matrix, self.offset))
        affine = affine_part(map, matrix, offset, self._constant)._replace(constant=growth)
        given = self.matrix, self.offset, self._constant, growth or None
        others = [
            multipliers.advection(self.box, a, m) for m, a in self.velocity.pieces(self.box, map, t)
        ]
        for term, tensor in self._variable:
            _, (gamma, s) = floats(map.matrix, tensor)
            cores = term.cores(self.box, map, self.tol)
            others.append(multipliers.conduction(self.box, gamma @ s @ gamma.T, cores))
        others += [
            multipliers.multiplication(p.cores(self.box, map, self.tol)) for p in self.potential
        ]
        return RightSide(
            self.box,
            None if all(g is None for g in given) else affine,
            tuple(others),
            self._source(map),
            self._reaction(),
        )

    def exact(self, t: float, x: ArrayLike) -> np.ndarray | None:
        """Evaluates the exact solution of a reaction–diffusion PDE; None if unknown.

        A moved Gaussian where all is linear with constant σ; without σ along characteristics.

        With a source, or other terms beside σ: None.
        """
        if self.source is not None or self._variable or self.velocity.timed or self.box.walled:
            return None
        if self._constant is None:
            return self._characteristic(t, np.asarray(x, np.float64))
        growth = self._linear_growth()
        if growth is None:
            return None
        u = self._opposite().exact(t, x)
        return None if u is None else np.exp(growth * t) * u

    def moments(self, t: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Returns exact mass, mean and covariance for linear reactions; else None."""
        growth = self._linear_growth()
        if growth is None:
            return None
        found = self._opposite().moments(t)
        return None if found is None else (found[0] * float(np.exp(growth * t)), *found[1:])

    def sample(self, key: KeyOrGenerator, t: float, count: int) -> np.ndarray:
        """Draws points of a reaction–diffusion PDE's exact solution, where known."""
        known = super() if self._linear_growth() is None else self._opposite()
        return known.sample(key, t, count)

    def _coefficient(self, k: int) -> float:
        return self._polynomial[k] if len(self._polynomial) > k else 0.0

    def _linear_growth(self) -> float | None:
        """Returns the mass's growth rate for affine advection, linear reaction; else None."""
        others = self.velocity or self.potential or self._function or self._variable
        powers = any(c for k, c in enumerate(self._polynomial) if k != 1)
        if others or powers or self.source is not None:
            return None
        trace = 0.0 if self.matrix is None else float(np.trace(np.asarray(self.matrix)))
        return self._coefficient(1) - trace

    def _opposite(self) -> OrnsteinUhlenbeck:
        """Returns the Ornstein–Uhlenbeck problem of drift −f for a reaction equation with f·∇u.

        f·∇u = −∇·(−f u) − (∇·f) u.
        """
        matrix = -np.asarray(or_zero(self.matrix, self.dim, self.dim))
        offset = None if self.offset is None else -np.asarray(self.offset)
        return OrnsteinUhlenbeck(matrix, self._constant, self.start, self.box, offset=offset)

    def _velocity(self, x: np.ndarray) -> np.ndarray:
        return self.velocity.values(x) + affine_velocity(x, self.matrix, self.offset)

    def _rate(self, u: np.ndarray) -> np.ndarray:
        if self._function is not None:
            return np.asarray(self._function(u), np.float64)
        return np.polynomial.polynomial.polyval(u, self._polynomial or (0.0,))

    def _characteristic(self, t: float, x: np.ndarray) -> np.ndarray:
        """Solves an advection–reaction equation at points by characteristics."""
        origin = characteristics.solve(self._velocity, x, t)

        def forward(state: np.ndarray) -> np.ndarray:
            p, u = state[:, :-1], state[:, -1]
            rate = self._rate(u) + sum((term.values(p) * u for term in self.potential), 0.0)
            return np.concatenate([-self._velocity(p), np.asarray(rate)[:, None]], 1)

        start = np.concatenate([origin, self.start.values(origin)[:, None]], 1)
        return characteristics.solve(forward, start, t)[:, -1]

    def _source(self, map: AffineMap) -> TT | None:
        """Builds the tensor train of a PDE's source plus the reaction's constant term."""
        constant, source = self._coefficient(0), self.source
        ones = [np.ones((1, n, 1)) for n in self.box.shape]
        if source is None:
            return TT._unchecked((constant * ones[0], *ones[1:])) if constant else None

        def summed() -> TT:
            cores = source.cores(self.box, map, self.tol)
            return TT._unchecked(
                tuple(products.combined([cores, ones], [1.0, constant]) if constant else cores)
            )

        return self._known.get(map, self.box, self.tol, summed)

    def _reaction(self) -> Callable[[TT, float], TT] | None:
        """Returns a reaction's nonlinear part as a function of tensor trains, or None."""
        f, coefficients = self._function, self._polynomial
        if f is None and not any(coefficients[2:]):
            return None

        def nonlinear(v: TT, tol: float) -> TT:
            found = (
                polynomial(hosted_cores(v), coefficients, tol)
                if f is None
                else entrywise(f, v, tol)
            )
            return TT._unchecked(tuple(found)).astype(v.dtype)

        return nonlinear


def _conductivity(given: Any, box: Box) -> tuple[Any, list[tuple[Term, Any]]]:
    """Splits a reaction equation's conductivity σ into a constant and (scalar term, matrix)."""
    d = box.dim
    if isinstance(given, Term):
        given = [(given, np.eye(d))]
    if not isinstance(given, Sequence) or not any(isinstance(g, tuple) for g in given):
        return diffusion_matrix("conductivity", given, d), []
    pairs = [(term, diffusion_matrix("conductivity", m, d)) for term, m in given]
    for term, _ in pairs:
        terms_of("conductivity", term, d)
    x = random_points(box, _LOOKS)
    total: Any = sum(term.values(x)[:, None, None] * m for term, m in pairs)
    check_sign("conductivity", total, "in the box")
    return None, pairs


def polynomial(cores: Cores, coefficients: Sequence[float], tol: float) -> Cores:
    """Computes a polynomial reaction Σ_{k ≥ 2} c_k vᵏ of a train, each product to error ``tol``."""
    last = max(k for k, c in enumerate(coefficients) if c)
    pairs, weights, power = [], [], cores
    for k in range(2, last + 1):
        if coefficients[k]:
            pairs.append((power, cores))
            weights.append(coefficients[k])
        if k < last:
            power = _products([(power, cores)], [1.0], tol)
    return _products(pairs, weights, tol)


def _products(pairs: Sequence[tuple[Cores, Cores]], weights: list[float], tol: float) -> Cores:
    """Computes a rounded sum of entrywise products Σ w x∘y of trains, for reactions."""
    if len(pairs[0][0]) == 1:
        return [sum(w * x[0] * y[0] for w, (x, y) in zip(weights, pairs, strict=True))]
    terms = [list(zip(x, y, strict=True)) for x, y in pairs]
    cores, _ = fused.within(terms, weights, tol, None, jax.random.key(1))
    return rounding.rounded(cores, fused.TRUNCATION * tol)
