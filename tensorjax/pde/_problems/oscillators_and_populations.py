"""Oscillators with noise (Van der Pol, Duffing), and Lotka–Volterra populations."""

import dataclasses

import numpy as np

from tensorjax.pde._arguments import finite, positive
from tensorjax.pde._discretization.axis import Axis
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Gaussian, Start
from tensorjax.pde._function_trains.known_densities import Lognormal
from tensorjax.pde._problems.diffusion import proportional
from tensorjax.pde._problems.drifts import Power, Product
from tensorjax.pde._problems.kramers_and_potentials import Confined, Potential
from tensorjax.pde._problems.ready_made import ReadyMade, check_own, fourier_box, narrowest, visited

# Points per width of the density across its flow.
_POINTS = 2.2
# Points per width of the density across its flow, and share by which a box is larger on either
# side: tails of x are longer than those of its logarithm.
_FEWER_POINTS, _MARGIN = 1.6, 0.15


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class VanDerPol(ReadyMade):
    """Van der Pol oscillator with noise: dx = v dt, dv = (μ (1 − x²) v − x) dt + √(2D) dW.

    Coordinates (x, v). Without ``box`` that holds what paths from ``start`` visit within a time
    ``horizon``.

    Attributes:
      damping: μ.
      intensity: D.
      horizon: time to which paths are followed for the box.
      start: the initial state, u(0); a Gaussian at (1, 0) of covariance 0.1 if None.
      box: `Box` of the coordinates y.

    Raises:
      ValueError: parameters that are not positive, paths that do not stay finite.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> problem = pde.VanDerPol(damping=0.5, intensity=0.2)
      >>> solution = pde.integrate(problem, t1=1.0, tol=1e-4)
      >>> solution.result.value
      'successful'

    Source: B. van der Pol, "On relaxation-oscillations", Phil. Mag. 2 (1926).
    """

    damping: float
    intensity: float
    horizon: float

    def __init__(
        self,
        damping: float = 1.0,
        intensity: float = 0.1,
        *,
        horizon: float = 10.0,
        start: Start | None = None,
        box: Box | None = None,
    ):
        positive(damping=damping, intensity=intensity, horizon=horizon)
        e = np.eye(2)
        start = Gaussian([1.0, 0.0], 0.1 * e) if start is None else start
        if box is None:
            if not isinstance(start, Gaussian):
                raise ValueError("box: expected one with a start that is no Gaussian, got None")

            def velocity(x: np.ndarray) -> np.ndarray:
                force = damping * (1 - x[:, 0] ** 2) * x[:, 1] - x[:, 0]
                return np.stack([x[:, 1], force], 1)

            noise = np.array([0.0, intensity])
            width = narrowest(velocity, noise, start, horizon)
            box = fourier_box(*visited(velocity, noise, start, horizon), width, _POINTS)
        bend = Product([Power(e[0], exponent=2), Power(e[1])], amplitude=-damping)
        super().__init__(
            [None, bend], np.diag([0.0, intensity]), start, box,
            matrix=[[0.0, 1.0], [-1.0, damping]],
        )  # fmt: skip
        self._set(damping=damping, intensity=intensity, horizon=horizon)


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Duffing(Confined):
    """Duffing oscillator with noise: dx = v dt, dv = (−δ v − α x − β x³) dt + √(2D) dW.

    Coordinates (x, v); it is not driven. Without ``start`` it is at rest near the origin, in the
    middle between the wells where α < 0. The box as in `Kramers`.

    Attributes:
      damping: δ.
      stiffness: α.
      cubic: β > 0, or 0 with α > 0.
      intensity: D.
      horizon: time to which the width of densities is estimated for the points of the box.
      start: the initial state, u(0).
      box: `Box` of the coordinates y.

    Raises:
      ValueError: parameters out of range.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> problem = pde.Duffing(damping=1.0, intensity=0.3)
      >>> solution = pde.integrate(problem, t1=0.2, tol=1e-3, coordinates="fixed")
      >>> solution.result.value
      'successful'

    Source: T. K. Caughey, "Nonlinear theory of random vibrations", Adv. Appl. Mech. 11 (1971), for
    the stationary density.
    """

    damping: float
    stiffness: float
    cubic: float
    intensity: float

    def __init__(
        self,
        damping: float = 0.5,
        stiffness: float = -1.0,
        cubic: float = 1.0,
        intensity: float = 0.1,
        *,
        horizon: float = 10.0,
        start: Start | None = None,
        box: Box | None = None,
    ):
        positive(damping=damping, intensity=intensity, horizon=horizon)
        finite(stiffness=stiffness, cubic=cubic)
        well = Potential((0.0, 0.0, stiffness / 2, 0.0, cubic / 4), intensity / damping)
        if start is None:
            start = Gaussian([0.0, 0.0], np.diag([well.local, well.temperature]) / 2)
        self._set(
            damping=damping, stiffness=stiffness, cubic=cubic, intensity=intensity, horizon=horizon
        )  # fmt: skip
        self._confine(well, start, box, friction=damping, mass=1.0, noise=intensity)


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class LotkaVolterra(ReadyMade):
    """Lotka–Volterra SDE: dx = x (a − b y) dt + σ₁ x dW₁, dy = y (c x − m) dt + σ₂ y dW₂ (Itô).

    Noise is that of the environment, in proportion to x and y (not that of births and deaths, √x,
    of the chemical Langevin equation). Without ``start`` log x and log y are normal about the
    logarithms of ``x0``; without ``box`` the axes are logarithmic, hold what paths visit within a
    time ``horizon``, and do not move.

    Attributes:
      birth: a, of the prey.
      predation: b.
      growth: c, of the predators per prey.
      death: m, of the predators.
      volatility: σ, one number or (σ₁, σ₂).
      x0: prey and predators at the start, (2,).
      spread: standard deviation of their logarithms.
      horizon: time that the box is made for.
      start: the initial state, u(0).
      box: `Box` of the coordinates y.

    Raises:
      ValueError: parameters that are not positive; a start without a box.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> problem = pde.LotkaVolterra(horizon=0.5)
      >>> solution = pde.integrate(problem, t1=0.5, tol=1e-3)
      >>> solution.result.value
      'successful'

    Source: L. Arnold, W. Horsthemke, J. Stucki, "The influence of external real and white noise on
    the Lotka–Volterra model", Biometrical J. 21 (1979).
    """

    birth: float
    predation: float
    growth: float
    death: float
    volatility: float | tuple[float, float]
    x0: tuple[float, float]
    spread: float
    horizon: float

    def __init__(
        self,
        birth: float = 1.0,
        predation: float = 1.0,
        growth: float = 1.0,
        death: float = 1.0,
        volatility: float | tuple[float, float] = 0.2,
        *,
        x0: tuple[float, float] = (1.5, 1.0),
        spread: float = 0.2,
        horizon: float = 2.0,
        start: Start | None = None,
        box: Box | None = None,
    ):
        positive(birth=birth, predation=predation, growth=growth, death=death, horizon=horizon)
        sigma = np.broadcast_to(np.asarray(volatility, np.float64), (2,))
        positive(volatility_1=sigma[0], volatility_2=sigma[1], spread=spread)
        positive(prey=x0[0], predators=x0[1])
        center, cov = np.log(np.asarray(x0, np.float64)), spread**2 * np.eye(2)
        if box is None:
            check_own(start)
            rates = np.array([birth, -death]) - sigma**2 / 2
            ties = np.array([[0.0, -predation], [growth, 0.0]])

            def velocity(z: np.ndarray) -> np.ndarray:
                return rates + np.exp(z) @ ties.T

            given = velocity, sigma**2 / 2, Gaussian(center, cov), horizon
            low, high = visited(*given)
            margin = _MARGIN * (high - low)
            flat = fourier_box(low - margin, high + margin, narrowest(*given), _FEWER_POINTS)
            ends = [(a.n, float(np.exp(a.low)), float(np.exp(a.high))) for a in flat.axes]
            box = Box(tuple(Axis("log", *each) for each in ends))
        e = np.eye(2)
        meet = Power(e[0]), Power(e[1])
        super().__init__(
            [Product(meet, amplitude=-predation), Product(meet, amplitude=growth)],
            proportional(np.diag(sigma**2 / 2)),
            Lognormal(center, cov) if start is None else start,
            box,
            matrix=np.diag([birth, -death]),
        )
        self._set(
            birth=birth, predation=predation, growth=growth, death=death, volatility=volatility,
            x0=tuple(x0), spread=spread, horizon=horizon,
        )  # fmt: skip
