"""Density of a Fokker–Planck or Liouville problem in the coordinates of a flow map."""

import dataclasses
from typing import Any

import numpy as np

from tensorjax._cores import products, rounding
from tensorjax._typing import ArrayLike, Key
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._function_trains.cross_approximation import smooth
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._maps.flow_map import FlowMap
from tensorjax.pde._problems.problem import Problem, RightSide, check_unbounded

# Number of times for which cross-approximated coefficients are cached: those of a step.
_KEPT = 4


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Flowed(Problem):
    """Fokker–Planck or Liouville problem in the nonlinear coordinates of a flow map.

    Attributes:
      problem: with a method ``velocity(x)`` (m, d) ↦ (m, d) and, if it diffuses, a constant matrix
        ``diffusion``: a `FokkerPlanck`.
      flow: the map.
      cross_tol: relative error of the cross approximation.

    Raises:
      ValueError: a problem of another kind, or another number of coordinates.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.5]))
      >>> drift = [pde.Power([0.0, 1.0], 0.0, 2), None]
      >>> problem = pde.FokkerPlanck(drift, None, start, pde.Box.fourier(2, n=32))
      >>> rest = pde.FlowMap(pde.Fields(2, 7.0), (0.0,), (np.zeros((1, 14)),))
      >>> x = np.array([[0.5, 0.5]])
      >>> bool(np.allclose(pde.Flowed(problem, rest).exact(0.7, x), problem.exact(0.7, x)))
      True
    """

    start: Any = dataclasses.field(init=False)  # both are those of the problem
    box: Any = dataclasses.field(init=False)
    problem: Any
    flow: FlowMap
    cross_tol: float

    def __init__(
        self,
        problem: Problem,
        flow: FlowMap,
        *,
        cross_tol: float = 1e-8,
        known: dict[float, Any] | None = None,
    ):
        if not callable(getattr(problem, "velocity", None)):
            raise ValueError(
                "problem: expected one with a method velocity(x), such as pde.FokkerPlanck, got "
                f"{type(problem).__name__}"
            )
        noise = getattr(problem, "noise", None)
        if getattr(noise, "variable", False) or getattr(problem, "timed", False):
            raise ValueError(
                "problem: expected one of constant diffusion and a drift that does not depend on "
                "time; give pde.integrate the others"
            )
        check_unbounded(problem.box)
        if flow.fields.dim != problem.dim:
            raise ValueError(f"flow: expected {problem.dim} coordinates, got {flow.fields.dim}")
        self._set(problem=problem, flow=flow, cross_tol=cross_tol)
        self._set(_known={} if known is None else known)
        super().__init__(problem.start, problem.box)
        start = flow.starts[0]
        if np.any(flow.back(start, np.zeros((1, self.dim))).x):
            raise ValueError(
                "flow: expected one that begins with the identity, got one that moves 0 at the "
                "start"
            )

    _known: dict[Any, Any] = dataclasses.field(init=False)

    def right_side(self, map: AffineMap, t: float) -> RightSide:
        """Builds the TT operators of the flowed problem's PDE at time t.

        Linear motions are fields of degree one.

        It has one operator for each component of the drift and entry of the diffusion.

        Raises:
          ValueError: another map than the identity.
        """
        if np.any(map.matrix != np.eye(self.dim)) or np.any(map.shift):
            raise ValueError(
                'map: expected the identity, got another one; give coordinates="fixed", for '
                "linear motions are fields of degree one"
            )
        t, d = float(t), self.dim
        found = self._coefficients(t)
        moving = self.flow.fields.trains(self.flow.rates(t), self.box.points)
        others = []
        for i, (f, g) in enumerate(zip(found[:d], moving, strict=True)):
            both = products.combined([f, g], [1.0, 1.0])
            both = rounding.rounded(both, self.cross_tol) if np.any(both[0]) else both
            others.append(multipliers.flux(self.box, -np.eye(d)[i], both))
        for (i, j), k in zip(_pairs(d), found[d:], strict=False):
            unit = np.zeros((d, d))
            unit[i, j] = unit[j, i] = 1.0
            others.append(multipliers.conduction(self.box, unit, k))
        return RightSide(self.box, None, tuple(others))

    def exact(self, t: float, x: ArrayLike) -> np.ndarray | None:
        """Evaluates the flowed problem's exact density at points y (m, d), or returns None."""
        back = self.flow.back(t, x)
        u = self.problem.exact(t, back.x)
        return None if u is None else u * np.linalg.det(back.inverse)

    def sample(self, key: Key, t: float, count: int) -> np.ndarray:
        """Draws points y, (count, d), of the flowed problem's exact density."""
        return self.flow.forward(t, self.problem.sample(key, t, count))[0]

    def _coefficients(self, t: float) -> list[Any]:
        """Approximates drift and diffusion of the flowed problem by tensor trains."""
        if t not in self._known:
            times = [k for k in self._known if k != "points"]
            for old in times[: len(times) + 1 - _KEPT]:
                self._known.pop(old)
            name = "the drift in coordinates that flow"
            begin = self._known.get("points", 16)
            cores, enough = smooth(
                name, lambda y: self._values(t, y), self.box, self.cross_tol, begin
            )
            self._known["points"] = enough
            self._known[t] = multipliers.components(cores)
        return self._known[t]

    def _values(self, t: float, y: np.ndarray) -> np.ndarray:
        diffusion = getattr(self.problem, "diffusion", None)
        back = self.flow.back(t, y, second=diffusion is not None)
        drift = back.push(self.problem.velocity(back.x))
        if diffusion is None:
            return drift
        half = np.linalg.solve(back.inverse, np.broadcast_to(diffusion, back.inverse.shape))
        k = np.linalg.solve(back.inverse, half.mT)  # J (J D)ᵀ, symmetric
        assert back.rise is not None
        drift = drift - (k @ back.rise[..., None])[..., 0]
        return np.concatenate([drift, np.stack([k[:, i, j] for i, j in _pairs(self.dim)], 1)], 1)


def _pairs(d: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(d) for j in range(i, d)]
