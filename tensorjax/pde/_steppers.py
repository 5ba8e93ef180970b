"""One step of the step-truncation methods: Runge–Kutta and Adams–Bashforth, every sum rounded.

A step does not keep the slopes k_i of Runge–Kutta. The stages s_{i+1} = v + a dt k_i are rounded
anyway, so that (s_{i+1} − v)/(a dt) stands for k_i in the sum at the end: one application of the
right side and one rounding for each stage.

Source: A. Rodgers, A. Dektor, D. Venturi, "Adaptive integration of nonlinear evolution equations on
tensor manifolds", J. Sci. Comput. 92 (2022), for step-truncation; the classical tableaux. Ours: the
slopes taken from rounded stages, and the estimates of the error.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores import Cores
from tensorjax.pde import _mass as masses
from tensorjax.pde._rates import Rates
from tensorjax.pde._sums import Rounded, Term, Train, nothing, relative_norm, rounded

# Errors of stages, and of slopes that are kept, in units of the tolerance of the step.
_STAGE = 0.25
# Ranks of a sum above this times the largest of the last step, and more beside, look unstable.
_JUMP, _LEAP = 2, 12
# What a real and negative, and an imaginary dt λ may be.
STABLE = {
    "rk4": (2.7, 2.8),
    "rk2": (2.0, 1.2),
    "ab2": (1.0, 0.6),
    "ab3": (0.54, 0.72),
    "imex": (1.0, 0.6),
    "bug": (2.7, 2.8),
    "projector splitting": (2.7, 2.8),
}


class Step(NamedTuple):
    """What a step gives.

    Attributes:
      v: rounded, right-orthogonal but for the first core.
      error: about the local error over ‖v‖; NaN if it was not asked for.
      slope: (t, rate) of this step where a multistep method keeps it.
      note: what went wrong inside the step, for the message; empty if nothing did.
    """

    v: Rounded
    error: float = float("nan")
    slope: Any = None
    note: str = ""


class Trim:
    """Rounds the sums of one step, and remembers what ranks each of them took.

    Rounding keeps ∫ v dy: that of a result is what the sum had, and the parts of the sum that were
    rounded before count as they were before. Only what outlives the step is put right, by
    `tensorjax.pde._mass.corrected`, unless that takes more than ``tol``.

    Args:
      tol: relative error of the step.
      cap: of the ranks of what the step returns, or None.
      guesses: ranks that every sum took in the last step, by name; updated.
      box: of the grid.

    Attributes:
      limit: of the ranks of all sums, well above those of the last step; None where there was none.

    Raises:
      Runaway: by a sum that passes the limit.
    """

    def __init__(self, tol: float, cap: int | None, guesses: dict[str, tuple[int, ...]], box: Any):
        self.tol = tol
        self.cap = cap
        self.guesses = guesses
        self._quadrature = masses.quadrature(box)
        self._lost: list[tuple[Cores, float]] = []
        known = [r for ranks in guesses.values() for r in ranks]
        self.limit = _JUMP * max(known) + _LEAP if known else None

    def __call__(
        self,
        name: str,
        terms: Sequence[Term],
        weights: Sequence[float],
        *,
        share: float = _STAGE,
        scale: float | None = None,
    ) -> Rounded:
        """The sum, at ``share`` of the tolerance; relative to ``scale`` if given."""
        final = name == "v"
        tol = self.tol if final else share * self.tol
        out = rounded(
            terms,
            weights,
            tol,
            self.guesses.get(name),
            cap=self.cap if final else None,
            scale=scale,
            limit=self.limit,
        )
        self.guesses[name] = out.ranks
        mass = sum(w * self.mass(t) for w, t in zip(weights, terms, strict=True))
        if name in ("v", "slope"):
            return self.corrected(out, mass, tol * (out.norm if scale is None else scale))
        self._lost.append((out.cores, mass - masses.mass_of(out.cores, self._quadrature.weights)))
        return out

    def mass(self, term: Term) -> float:
        """∫ dy of a term, with what a stage has lost by rounding."""
        lost = [m for c, m in self._lost if isinstance(term, Train) and term.cores is c]
        return sum(lost, masses.mass_of_term(term, self._quadrature.weights))

    def corrected(self, out: Rounded, mass: float, allowed: float) -> Rounded:
        """A train of this mass, or as it is if that takes a change larger than allowed.

        It is right-orthogonal but for its first core, and stays so.
        """
        found = None
        if np.isfinite(out.norm) and np.isfinite(mass):
            found = masses.corrected(out.cores, self._quadrature, mass)
        if found is None or not found.norm <= allowed:
            return out
        return out._replace(cores=found.cores, norm=float(np.linalg.norm(found.cores[0])))


Stepper = Callable[[Callable[[float], Rates], Cores, float, Trim, bool, Sequence[Any]], Step]


def _plus(
    trim: Trim, name: str, trains: Sequence[Cores], weights: Sequence[float], rate: Any, by: float
) -> Rounded:
    """Σ w t + by · (sum of the terms of a rate)."""
    terms = [*map(Train, trains), *rate]
    return trim(name, terms, [*weights, *[by] * len(rate)])


def rk4(
    at: Callable[[float], Rates], v: Cores, dt: float, trim: Trim, estimate: bool, past: Any = ()
) -> Step:
    """The classical method of order 4.

    The estimate: with k_5, the slope at the new value, in place of k_4 the same weights give order
    3, so that dt/6 ‖k_4 − k_5‖ is of order dt⁴.
    """
    tol = _STAGE * trim.tol
    begin, middle, end = at(0.0), at(0.5), at(1.0)
    s2 = _plus(trim, "s2", [v], [1.0], begin.terms(v, tol), dt / 2).cores
    s3 = _plus(trim, "s3", [v], [1.0], middle.terms(s2, tol), dt / 2).cores
    s4 = _plus(trim, "s4", [v], [1.0], middle.terms(s3, tol), dt).cores
    last = end.terms(s4, tol)
    weights = [-1 / 3, 1 / 3, 2 / 3, 1 / 3]
    out = _plus(trim, "v", [v, s2, s3, s4], weights, last, dt / 6)
    if not (estimate and np.isfinite(out.norm)):
        return Step(out)
    new = end.terms(out.cores, tol)
    signs = [dt / 6] * len(last) + [-dt / 6] * len(new)
    return Step(out, relative_norm([*last, *new], signs, Train(out.cores)))


def rk2(
    at: Callable[[float], Rates], v: Cores, dt: float, trim: Trim, estimate: bool, past: Any = ()
) -> Step:
    """Heun's method of order 2; the estimate is its distance from Euler's."""
    tol = _STAGE * trim.tol
    first = at(0.0).terms(v, tol)
    s2 = _plus(trim, "s2", [v], [1.0], first, dt).cores
    second = at(1.0).terms(s2, tol)
    out = _plus(trim, "v", [v, s2], [0.5, 0.5], second, dt / 2)
    if not (estimate and np.isfinite(out.norm)):
        return Step(out)
    signs = [-dt / 2] * len(first) + [dt / 2] * len(second)
    return Step(out, relative_norm([*first, *second], signs, Train(out.cores)))


def adams_bashforth(order: int) -> Stepper:
    """The method of order 2 or 3 for steps that may vary, started by `rk4`.

    The slopes are rounded and kept. The estimate is the distance from the method of one order less.
    """

    def step(
        at: Callable[[float], Rates],
        v: Cores,
        dt: float,
        trim: Trim,
        estimate: bool,
        past: Sequence[Any] = (),
    ) -> Step:
        begin = at(0.0)
        t = at.path.t  # pyright: ignore[reportFunctionMemberAccess]
        size = float(np.linalg.norm(v[0]))
        terms = begin.terms(v, _STAGE * trim.tol) or [nothing(v)]
        slope = trim("slope", terms, [1.0] * len(terms), scale=size / dt).cores
        known = [*past, (t, slope)][-order:]
        if len(known) < order:
            out = rk4(at, v, dt, trim, estimate)
            return out._replace(slope=(t, slope))
        weights = dt * adams_weights(t, dt, [s for s, _ in known])
        trains = [Train(c) for _, c in known]
        out = trim("v", [Train(v), *trains], [1.0, *weights])
        error = float("nan")
        if estimate and np.isfinite(out.norm):
            lower = dt * adams_weights(t, dt, [s for s, _ in known[1:]])
            weights[1:] -= lower
            error = relative_norm(trains, list(weights), Train(out.cores))
        return Step(out, error, (t, slope))

    return step


def adams_weights(t: float, dt: float, times: Sequence[float]) -> np.ndarray:
    """Weights of slopes at some times in the integral over [t, t + dt], over dt."""
    nodes = (np.asarray(times) - t) / dt
    powers = np.vander(nodes, increasing=True).T
    return np.linalg.solve(powers, 1 / np.arange(1, len(nodes) + 1))


# Name, function, order of the method, slopes of past steps that it needs, order of the estimate.
class Method(NamedTuple):
    """A method: its step, its order, how many past slopes it takes, the order of its estimate."""

    step: Stepper
    order: int
    past: int
    estimate: int


STEPPERS = {
    "rk4": Method(rk4, 4, 0, 3),
    "rk2": Method(rk2, 2, 0, 1),
    "ab2": Method(adams_bashforth(2), 2, 1, 1),
    "ab3": Method(adams_bashforth(3), 3, 2, 2),
}
