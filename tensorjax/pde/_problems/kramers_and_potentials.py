"""Particles in polynomial potentials: Kramers equation, overdamped double wells."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial

from tensorjax import _check
from tensorjax.pde._arguments import finite, positive
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Gaussian, Start
from tensorjax.pde._problems.drifts import Power
from tensorjax.pde._problems.ready_made import (
    ReadyMade,
    conditional_deviations,
    fourier_box,
    narrowest,
)

# Energy above the lowest, over the temperature, that a box holds, and standard deviations of a
# start. exp(−28) is 7e-13: what grids add at the ends of a box changes variances before densities.
_HELD, _REACH = 28.0, 5.2
# Points per width of a density, and of one of positions and momenta.
_POINTS, _PHASE = 2.0, 2.4
# Energy up to which the curvature of a potential counts for the width of densities.
_THERMAL = 6.0
# Points of quadratures over a potential.
_FINE = 4001


def held(well: "Potential", start: Any, friction: float, mass: float, time: float) -> Box:
    """Builds the grid (q, p) for a particle in a polynomial potential (Kramers, Duffing)."""
    momentum, top = mass * well.temperature, well.bottom + _HELD * well.temperature
    width = np.array([well.width, np.sqrt(momentum)])
    if isinstance(start, Gaussian):

        def velocity(x: np.ndarray) -> np.ndarray:
            return np.stack([x[:, 1] / mass, -well.slope(x[:, 0]) - friction * x[:, 1]], 1)

        noise = np.array([0.0, friction * momentum])
        width = np.minimum(width, narrowest(velocity, noise, start, time))
        turn = np.linspace(0, 2 * np.pi, 64)
        ring = np.stack([np.cos(turn), np.sin(turn)], 1) @ np.linalg.cholesky(start.covariance).T
        x = start.mean + _REACH * ring
        top = max(top, float((well.v(x[:, 0]) + x[:, 1] ** 2 / (2 * mass)).max()))
    low, high = well.extent(top)
    reach = float(np.sqrt(2 * mass * (top - well.bottom)))
    return fourier_box([low, -reach], [high, reach], width, _PHASE)


class Potential:
    """Polynomial potential V(q) that confines a particle at temperature T.

    Args:
      coefficients: of V, from the constant on.
      temperature: T.

    Raises:
      ValueError: V does not grow on both sides.
    """

    def __init__(self, coefficients: Sequence[float], temperature: float):
        c = np.asarray(coefficients, np.float64)
        _check.finite("potential", c)
        c = np.trim_zeros(c, "b") if c.ndim == 1 else c
        if c.ndim != 1 or len(c) < 3 or len(c) % 2 == 0 or c[-1] <= 0:
            raise ValueError(
                "potential: expected coefficients (c_0, c_1, …) of a polynomial of even degree and "
                f"positive leading coefficient, which confines the particle, got {coefficients!r}"
            )
        self.v, self.temperature = Polynomial(c), temperature
        self.slope = self.v.deriv()
        stops = self.slope.roots()
        stops = np.sort(stops[np.abs(stops.imag) < 1e-9 * (1 + np.abs(stops))].real)
        self.bottom = float(self.v(stops).min())
        self.low, self.high = self.extent(_HELD * temperature + self.bottom)
        curved = self.v.deriv(2)(stops)
        wells = stops[curved > 1e-9 * (1 + np.abs(curved).max())]
        q = np.linspace(self.low, self.high, _FINE)
        weight = np.exp(-(self.v(q) - self.bottom) / temperature)
        self.partition = float(np.trapezoid(weight, q))
        mean = float(np.trapezoid(q * weight, q)) / self.partition
        self.variance = float(np.trapezoid((q - mean) ** 2 * weight, q)) / self.partition
        self.well = float(wells[0]) if len(wells) else mean
        curvature = float(self.v.deriv(2)(self.well))
        # Variance in the well: harmonic, but well within the next barrier, and with tails at no
        # higher energies than the box holds: where V rises faster than a parabola, those of a
        # Gaussian would reach them, and ask for a box several times as wide in the momenta.
        gap = np.min(np.abs(stops - self.well), where=stops != self.well, initial=np.inf)
        harmonic = temperature / curvature if curvature > 0 else np.inf
        inside = min(self.well - self.low, self.high - self.well) / _REACH
        self.local = float(min(harmonic, self.variance, (gap / 3) ** 2, inside**2))
        warm = self.v(q) - self.bottom < _THERMAL * temperature
        steepest = np.abs(self.v.deriv(2)(q[warm])).max()
        self.width = float(np.sqrt(min(temperature / max(steepest, 1e-300), self.variance)))

    def extent(self, energy: float) -> tuple[float, float]:
        """Returns the interval outside which a polynomial potential exceeds ``energy``."""
        ends = (self.v - energy).roots()
        ends = ends[np.abs(ends.imag) < 1e-7 * (1 + np.abs(ends))].real
        return float(ends.min()), float(ends.max())

    def density(self, q: np.ndarray) -> np.ndarray:
        """Evaluates the Boltzmann density exp(−V/T)/Z of a polynomial potential V."""
        return np.exp(-(self.v(q) - self.bottom) / self.temperature) / self.partition

    def with_momenta(self, x: np.ndarray, mass: float) -> np.ndarray:
        """Evaluates a potential's Boltzmann density exp(−p²/2mT − V/T) with momenta p, (m, 2)."""
        momentum = mass * self.temperature
        kinetic = np.exp(-(x[:, 1] ** 2) / (2 * momentum)) / np.sqrt(2 * np.pi * momentum)
        return self.density(x[:, 0]) * kinetic

    def force(self, dim: int, axis: int) -> tuple[float, float, list[Power]]:
        """Returns a potential's force −V'(x_axis) as constant, slope and higher-degree terms."""
        c = -self.slope.coef
        e = np.eye(dim)[axis]
        high = [Power(e, exponent=k, amplitude=float(a)) for k, a in enumerate(c) if k > 1 and a]
        return float(c[0]), float(c[1]) if len(c) > 1 else 0.0, high


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Confined(ReadyMade):
    """Base class of a ready-made particle with friction in a polynomial potential, in (q, p)."""

    horizon: float
    _well: Potential = dataclasses.field(init=False)
    _mass: float = dataclasses.field(init=False)

    def _confine(
        self, well: Potential, start: Start, box: Box | None, *, friction: float, mass: float,
        noise: float, offset: Any = None,
    ) -> None:  # fmt: skip
        """Sets up the Fokker–Planck equation of a particle in a polynomial potential."""
        self._set(_well=well, _mass=mass)
        _, slope, terms = well.force(2, 0)
        box = held(well, start, friction, mass, self.horizon) if box is None else box
        super().__init__(
            [None, terms], np.diag([0.0, noise]), start, box,
            matrix=[[0.0, 1 / mass], [slope, -friction]], offset=offset,
        )  # fmt: skip

    def _at_rest(self, x: np.ndarray) -> np.ndarray:
        """Evaluates the Boltzmann density exp(−(p²/2m + V(q))/T)/Z of a potential V."""
        return self._well.with_momenta(x, self._mass)


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Kramers(Confined):
    """Kramers equation of a particle in a polynomial potential V: dp = (−V'(q) − γ p) dt + noise.

    Coordinates (q, p). Without ``start`` it is near the bottom of the leftmost well, with momenta
    in equilibrium: what is seen is its escape. Without ``box`` that holds energies to 28 T above
    the lowest, and those of ``start``.

    Attributes:
      potential: coefficients c of V(q) = Σ c_k q^k, of even degree; (q² − 1)²/4 by default.
      friction: γ.
      temperature: T.
      mass: m.
      horizon: time to which the width of densities is estimated for the points of the box.
      start: the initial state, u(0).
      box: `Box` of the coordinates y.

    Raises:
      ValueError: parameters that are not positive, or a potential that does not confine.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> problem = pde.Kramers(temperature=0.5)
      >>> found = pde.stationary(problem)
      >>> x = np.array([[0.0, 0.0], [1.0, 0.5]])
      >>> p = pde.evaluate(found.final.v, found.final.map, problem.box, x)
      >>> bool(np.abs(p - problem.stationary_density(x)).max() < 1e-5)
      True

    Source: H. A. Kramers, "Brownian motion in a field of force and the diffusion model of chemical
    reactions", Physica 7 (1940); H. Risken, "The Fokker–Planck Equation" (Springer, 1989),
    chapter 10.
    """

    potential: Sequence[float]
    friction: float
    temperature: float
    mass: float

    def __init__(
        self,
        potential: Sequence[float] = (0.25, 0.0, -0.5, 0.0, 0.25),
        friction: float = 1.0,
        temperature: float = 0.25,
        *,
        mass: float = 1.0,
        horizon: float = 10.0,
        start: Start | None = None,
        box: Box | None = None,
    ):
        positive(friction=friction, temperature=temperature, mass=mass, horizon=horizon)
        well = Potential(potential, temperature)
        momentum = mass * temperature
        if start is None:
            start = Gaussian([well.well, 0.0], np.diag([well.local, momentum]))
        self._set(
            potential=tuple(float(c) for c in potential), friction=friction, mass=mass,
            temperature=temperature, horizon=horizon,
        )  # fmt: skip
        self._confine(
            well, start, box, friction=friction, mass=mass, noise=friction * momentum,
            offset=[0.0, well.force(2, 0)[0]],
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class DoubleWell(ReadyMade):
    """Chain of overdamped particles in double-well potentials, dx = −∇V dt + √(2T) dW.

    V = Σ h (x_i²/m² − 1)² + ½ k Σ (x_{i+1} − x_i)²: barriers h between minima ±m, springs k
    between neighbours (the φ⁴ chain). Without ``start`` all x_i are near −m; without ``box`` that
    holds the stationary density.

    Attributes:
      barrier: h.
      minimum: m.
      temperature: T.
      coupling: k ≥ 0.
      start: the initial state, u(0).
      box: `Box` of the coordinates y.

    Raises:
      ValueError: parameters out of range.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> chain = pde.DoubleWell(dim=2, coupling=0.5)
      >>> found = pde.stationary(chain)
      >>> x = np.array([[0.0, 0.0], [1.0, 0.5]])
      >>> p = pde.evaluate(found.final.v, found.final.map, chain.box, x)
      >>> bool(np.abs(p - chain.stationary_density(x)).max() < 1e-5)
      True

    Source: H. Risken, "The Fokker–Planck Equation" (Springer, 1989), section 5.10.
    """

    barrier: float
    minimum: float
    temperature: float
    coupling: float
    _well: Potential = dataclasses.field(init=False)

    def __init__(
        self,
        barrier: float = 1.0,
        minimum: float = 1.0,
        temperature: float = 0.4,
        *,
        dim: int | None = None,
        coupling: float = 0.0,
        start: Start | None = None,
        box: Box | None = None,
    ):
        positive(barrier=barrier, minimum=minimum, temperature=temperature)
        finite(coupling=coupling)
        if coupling < 0:
            raise ValueError(f"coupling: expected a number >= 0, got {coupling!r}")
        if dim is None:
            dim = 1 if box is None else box.dim
        d = _check.integer("dim", dim, low=1)
        quartic = barrier, 0.0, -2 * barrier / minimum**2, 0.0, barrier / minimum**4
        well = Potential(quartic, temperature)
        steps = np.diff(np.eye(d), axis=0)
        springs = coupling * (steps.T @ steps)  # graph Laplacian of a chain with free ends
        if start is None:
            stiff = temperature / well.local * np.eye(d) + springs
            start = Gaussian(np.full(d, -minimum), temperature * np.linalg.inv(stiff))
        if box is None:
            narrow = 1 / np.sqrt(well.width**-2 + 2 * coupling / temperature)
            if isinstance(start, Gaussian):
                narrow = np.minimum(narrow, conditional_deviations(start.covariance))
            ends = np.full(d, well.low), np.full(d, well.high)
            box = fourier_box(*ends, np.broadcast_to(narrow, d), _POINTS)
        _, slope, _ = well.force(d, 0)
        super().__init__(
            [well.force(d, i)[2] for i in range(d)], temperature * np.eye(d), start, box,
            matrix=slope * np.eye(d) - springs,
        )  # fmt: skip
        self._set(
            barrier=barrier, minimum=minimum, temperature=temperature, coupling=coupling, _well=well
        )

    def _at_rest(self, x: np.ndarray) -> np.ndarray:
        """Evaluates the Boltzmann density exp(−V/T)/Z of double-well potentials.

        Z is a product of transfer operators between neighbours.
        """
        t, well = self.temperature, self._well
        q = np.linspace(well.low, well.high, 801)
        step = well.density(q) * (q[1] - q[0])
        total = np.ones(len(q))
        bond = np.exp(-self.coupling / (2 * t) * np.subtract.outer(q, q) ** 2)
        for _ in range(self.dim - 1):
            total = bond @ (step * total)
        springs = np.square(np.diff(x, axis=1)).sum(1) * self.coupling / (2 * t)
        return np.prod(well.density(x), axis=1) * np.exp(-springs) / (step @ total)
