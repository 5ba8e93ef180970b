"""Step-size controllers: constant steps, or PID control by an estimate of the local error."""

import math
from typing import NamedTuple

from tensorjax import _check


class ConstantStepSize(NamedTuple):
    """Time-step controller that keeps a given step size ``dt``.

    Example:
      >>> from tensorjax import pde
      >>> pde.ConstantStepSize()                   # for pde.integrate(..., dt=0.1)
      ConstantStepSize()
    """


class PIDController(NamedTuple):
    """PID time-step controller that keeps the estimated local error below ``rtol`` · ‖v‖.

    With the scaled errors e_n = error/(rtol + atol/‖v‖) of this step and the last two accepted ones
    and the order k of the estimate plus one, the next step is dt times
    safety · e_n^{−(p+i+d)/k} e_{n−1}^{(p+2d)/k} e_{n−2}^{−d/k}, within [factormin, factormax].

    Attributes:
      rtol: error allowed in a step over ‖v‖.
      atol: error allowed in a step, in units of v on the grid (its Euclidean norm).
      pcoeff: p, proportional part.
      icoeff: i, integral part.
      dcoeff: d, derivative part.
      dtmin: smallest step; the run stops where a smaller one would be needed.
      dtmax: largest step.
      safety: factor on the step size that the estimate suggests.
      factormin: smallest factor between one step size and the next.
      factormax: largest factor between one step size and the next.

    Rank truncation at ``tol`` contributes an error to every step that smaller steps do not reduce:
    choose ``rtol`` no less than ``tol``.

    Example:
      >>> from tensorjax import pde
      >>> accepted, factor = pde.PIDController(1e-4).judge(1.6e-3, 1.0, (), 4)
      >>> accepted, round(factor, 3)
      (False, 0.45)

    Source: G. Söderlind, "Digital filters in adaptive time-stepping", ACM Trans. Math. Softw. 29
    (2003); names and defaults after diffrax (recalled).
    """

    rtol: float
    atol: float = 0.0
    pcoeff: float = 0.0
    icoeff: float = 1.0
    dcoeff: float = 0.0
    dtmin: float | None = None
    dtmax: float | None = None
    safety: float = 0.9
    factormin: float = 0.2
    factormax: float = 5.0

    def judge(
        self, error: float, norm: float, previous: tuple[float, ...], k: int
    ) -> tuple[bool, float]:
        """Decides whether a time step is accepted; returns that and the next size's factor.

        Args:
          error: estimated, over the norm.
          norm: ‖v‖.
          previous: scaled errors of the last accepted steps, the newest first.
          k: order of the estimate plus one.

        Returns:
          (accepted, factor); the factor is at most 1 for a step that was rejected.
        """
        if not math.isfinite(error):
            return False, self.factormin
        scaled = self.scaled(error, norm)
        first, second = (*previous, 1.0, 1.0)[:2]
        p, i, d = self.pcoeff, self.icoeff, self.dcoeff
        factor = self.safety * scaled ** (-(p + i + d) / k)
        factor *= first ** ((p + 2 * d) / k) * second ** (-d / k)
        accepted = scaled <= 1
        high = self.factormax if accepted else 1.0
        return accepted, min(max(factor, self.factormin), high)

    def scaled(self, error: float, norm: float) -> float:
        """Returns the estimated error of a time step divided by the allowed one.

        Args:
          error: estimated, over the norm.
          norm: ‖v‖.

        Returns:
          A number; the step is accepted up to 1.
        """
        allowed = self.rtol + (self.atol / norm if norm > 0 else math.inf if self.atol else 0.0)
        return max(error / allowed, 1e-10)


def checked(controller: object, dt: float | None) -> ConstantStepSize | PIDController:
    """Returns the time-step controller; raises ValueError if it or ``dt`` is not valid.

    Raises:
      ValueError: a step that is missing or not positive, an option out of range.
    """
    controller = ConstantStepSize() if controller is None else controller
    if not isinstance(controller, ConstantStepSize | PIDController):
        raise ValueError(
            "stepsize_controller: expected pde.ConstantStepSize() or pde.PIDController(rtol), "
            f"got {controller!r}"
        )
    if dt is None and isinstance(controller, ConstantStepSize):
        raise ValueError(
            "dt: expected a time step, got None; give one, or let "
            "stepsize_controller=pde.PIDController(rtol=…) choose"
        )
    if dt is not None:
        _check.number("dt", dt, low=0, open=True)
    if isinstance(controller, PIDController):
        c = controller
        good = c.rtol >= 0 and c.atol >= 0 and c.rtol + c.atol > 0
        if not (good and 0 < c.factormin < 1 < c.factormax and 0 < c.safety <= 1):
            raise ValueError(
                "stepsize_controller: expected rtol, atol >= 0, one of them positive, "
                f"0 < factormin < 1 < factormax and 0 < safety <= 1, got {c}"
            )
        low, high = 0.0 if c.dtmin is None else c.dtmin, math.inf if c.dtmax is None else c.dtmax
        if not (0 <= low <= high and high > 0):
            raise ValueError(
                "stepsize_controller: expected 0 <= dtmin <= dtmax and dtmax > 0, got "
                f"dtmin={c.dtmin!r}, dtmax={c.dtmax!r}"
            )
    return controller
