"""Lotka–Volterra equations with environmental noise."""

import dataclasses

import numpy as np

from tensorjax.pde._arguments import positive
from tensorjax.pde._discretization.axis import Axis
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Gaussian, Start
from tensorjax.pde._function_trains.known_densities import Lognormal
from tensorjax.pde._problems.diffusion import proportional
from tensorjax.pde._problems.drifts import Power, Product
from tensorjax.pde._problems.ready_made import ReadyMade, check_own, fourier_box, narrowest, visited

# Points per width of the density across its flow, and share by which a box is larger on either
# side: tails of x are longer than those of its logarithm.
_POINTS, _MARGIN = 1.6, 0.15


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
            flat = fourier_box(low - margin, high + margin, narrowest(*given), _POINTS)
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
