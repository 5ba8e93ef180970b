"""Van der Pol oscillator with noise."""

import dataclasses

import numpy as np

from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._initial_states.initial_states import Gaussian, Start
from tensorjax.pde._problems.drifts import Power, Product
from tensorjax.pde._problems.ready_made import (
    ReadyMade,
    fourier_box,
    narrowest,
    positive,
    visited,
)

# Points per width of the density across its flow.
_POINTS = 2.2


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
