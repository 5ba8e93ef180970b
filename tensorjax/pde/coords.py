"""Coordinate generators: choose the motion of the coordinates, so that TT-ranks stay low.

A generator is called as ``generator(v, right, map, box, tol, t)`` with the state v on the y-grid, a
train; the `RightSide` Q at the present coordinates; the `AffineMap` y = Γ x + s; the `Box`; the
relative tolerance of the integration; and the time. It returns a `Motion` ẏ = Σ y + β, with which
v_t = Q(v) − (Σ y + β)·∇v and Γ̇ = Σ Γ, ṡ = Σ s + β. Whatever it returns is right
as dt → 0: coordinates change the ranks, not the solution. At a given dt a fast or jumping motion
costs accuracy. Any callable of this kind will do.

Coordinates move on unbounded axes only: Σ and β are zero on periodic axes, half-lines and axes with
walls.

Nothing here compiles or traces: it is NumPy on the host, in double precision.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TT
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._generators import normal_component as normal
from tensorjax.pde._generators.canonical_form import leading, truncated, truncated_ranks
from tensorjax.pde._generators.inputs_and_motion import Gauge, Motion, Setting, rates_of_motion
from tensorjax.pde._generators.normal_component import (
    among,
    filtered,
    from_off_diagonal,
    spectrum,
    visible,
)
from tensorjax.pde._generators.nuclear_norms import nuclear_norms_gradient
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.problem import RightSide

__all__ = ["Convex", "Fixed", "Flow", "Generator", "Motion", "MultiLevel", "Prescribed"]
__dir__ = __all__.copy  # for `dir`: the public names alone


# The guard requires that the normal component at v falls to this share: a motion that gains nothing
# there follows the coarse levels, and stirs up what lies between them and v.
_GAIN = 0.7
# Where the convex problem at v alone leaves less than this share of what rest leaves, its own Σ is
# taken: it is smooth in time there, and what the coarse levels add to it costs ranks. Where it
# gains little its Σ jumps, which costs accuracy.
_LITTLE = 0.03
# Default regularisation of the convex problem, relative to the largest eigenvalue.
_PLAIN = 1e-10
# Eigenvalues of a level's normal equations below this share of its largest are roundoff of the
# truncation: at their weight fine levels would follow them to Σ of any size.
_NULL = 1e-8
# Parts of v smaller than this share of a level are left out there.
_SEEN = 1e-2


Generator = Callable[..., Motion]


def _convex(form: normal.Form, regularization: float, kept: np.ndarray) -> np.ndarray:
    """Chooses the coordinates of the generator `Convex`: Σ of least TT-normal component.

    ``kept``: entries of Σ that may differ from zero, see `Setting.kept`.
    """
    gram, load = among(form.gram, form.load, kept)
    found = spectrum(gram)
    sigma = np.zeros(len(form.load))
    sigma[kept] = filtered(found, load, regularization * max(found.largest, 0.0))
    return from_off_diagonal(sigma, round((1 + (1 + 4 * len(sigma)) ** 0.5) / 2))


def _at_rest(d: int) -> Motion:
    return Motion(np.zeros((d, d)), np.zeros(d))


class _Generator(abc.ABC):
    """Base class of the generators of coordinate motion."""

    @abc.abstractmethod
    def __call__(
        self, v: TT, right: RightSide, map: AffineMap, box: Box, tol: float, t: float
    ) -> Motion:
        """Chooses the motion of the coordinates of a state.

        Args:
          v: train of the state on the grid of the box.
          right: `RightSide` in the present coordinates.
          map: `AffineMap` of the present coordinates, which the right side knows.
          box: of the coordinates y.
          tol: relative tolerance of the integration.
          t: time.

        Returns:
          `Motion`, with its cost and that of rest where they are computed.

        Raises:
          ValueError: NaN or Inf in the state or in a given motion, or another shape of that.
        """


class _ByState(_Generator):
    """Base class of the coordinate generators that look at the state and its right side."""

    def __call__(
        self, v: TT, right: RightSide, map: AffineMap, box: Box, tol: float, t: float
    ) -> Motion:
        """Chooses the coordinate motion that keeps TT-ranks low; none on fewer than two axes."""
        setting = Setting(v, right, box, tol)
        if setting.trivial:
            return _at_rest(box.dim)
        return self._chosen(setting, setting.form(setting.point, tol, measure=True))

    @abc.abstractmethod
    def _chosen(self, setting: Setting, form: normal.Form) -> Motion:
        """Chooses the coordinate motion from the quadratic form of the normal component."""


@dataclasses.dataclass(frozen=True)
class Fixed(_Generator):
    """Choice of PDE coordinates for `integrate`: they stay fixed.

    Example:
      >>> from tensorjax import pde, tt
      >>> box = pde.Box.fourier(2, n=16)
      >>> print(pde.Fixed()(tt.ones(box.shape), None, None, box, 1e-6, 0.0).sigma)
      [[0. 0.]
       [0. 0.]]
    """

    def __call__(
        self, v: TT, right: RightSide, map: AffineMap, box: Box, tol: float, t: float
    ) -> Motion:
        """Returns a coordinate motion of zero, Σ = 0 and β = 0."""
        return _at_rest(box.dim)


@dataclasses.dataclass(frozen=True)
class Prescribed(_Generator):
    """Choice of PDE coordinates for `integrate`: they follow a motion given in time.

    Args:
      motion: t ↦ Σ, (d, d), or t ↦ (Σ, β).

    Raises:
      ValueError: at the first call, for wrong shapes, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde, tt
      >>> turn = pde.Prescribed(lambda t: np.array([[0.0, t], [-t, 0.0]]))
      >>> box = pde.Box.fourier(2, n=16)
      >>> print(turn(tt.ones(box.shape), None, None, box, 1e-6, 2.0).sigma)
      [[ 0.  2.]
       [-2.  0.]]
    """

    motion: Callable[[float], Any]

    def __call__(
        self, v: TT, right: RightSide, map: AffineMap, box: Box, tol: float, t: float
    ) -> Motion:
        """Returns the prescribed coordinate motion (Σ, β) at time t."""
        given = self.motion(t)
        sigma, beta = given if isinstance(given, tuple) else (given, np.zeros(box.dim))
        return Motion(*rates_of_motion("motion: expected", sigma, beta, box.dim))


@dataclasses.dataclass(frozen=True)
class Convex(_ByState):
    """Moving coordinates for a TT solution that keep its time derivative near the tangent space.

    Minimises ‖N(Q − Σ_jk Σ_jk y_k ∂_j v)‖² over Σ of zero diagonal, N = 1 − P the projection on
    what is normal to the tangent space: the paper's convex problem, by its normal equations. The
    diagonal and shifts are tangent, and so free.

    Args:
      regularization: λ ≥ 0. Eigenvalues w of the normal equations are divided by through
        w/(w² + (λ w_max)²).
      gauge: what shifts and stretches do, see `MultiLevel`.

    Raises:
      ValueError: options out of range; at a call, NaN or Inf in the state.

    Example:
      A Gaussian that turns with its coordinates keeps TT-rank one.

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.16]))
      >>> turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
      >>> box = pde.Box.fourier(2, n=64)
      >>> problem = pde.Liouville(turn, start, box)
      >>> at = pde.AffineMap.identity(2)
      >>> v, right = problem.initial(at, 1e-8), problem.right_side(at, 0.0)
      >>> motion = pde.Convex()(v, right, at, box, 1e-8, 0.0)
      >>> bool(motion.cost < 1e-6 * motion.cost_without)
      True

    Source: Dektor, Venturi, "Coordinate-adaptive integration of PDEs on tensor manifolds" (arXiv
    2307.05914), of which we know abstract and introduction. Whether the paper regularises in this
    way is not known to us. Ours: how the normal equations are computed
    (`tensorjax.pde._generators.normal_component`), and the gauge.
    """

    _: dataclasses.KW_ONLY
    regularization: float = _PLAIN
    gauge: Gauge = "none"

    def __post_init__(self):
        _check_options(self.regularization, self.gauge)

    def _chosen(self, setting: Setting, form: normal.Form) -> Motion:
        return setting.motion(form, _convex(form, self.regularization, setting.kept), self.gauge)


@dataclasses.dataclass(frozen=True)
class MultiLevel(_ByState):
    """Moving coordinates for a TT solution, from tangent spaces at several truncations of it.

    Minimises Σ_i δ_i⁻² ‖N_i(Q + κ v − Σ_jk Σ_jk y_k ∂_j v)‖² over Σ of zero diagonal, N_i the
    projection on what is normal to the tangent space at v rounded at δ_i‖v‖. At a tight tolerance
    the tangent space at v holds nearly everything and the paper's cost says little; the coarse
    levels still tell what motion keeps the large parts of v of low rank.

    Of every level's normal equations eigenvalues below 1e-8 of the largest are left out.

    At the coarse levels only those parts of y_k ∂_j v and of the affine part of Q count that act on
    both sides of a bond (the others move the small parts of v within themselves), and all other
    parts of Q are evaluated at the rounded v.

    Args:
      levels: δ_i, relative; those above the tolerance of the integration are taken, and it itself.
      regularization: λ ≥ 0. Eigenvalues w of the normal equations are divided by through
        w/(w² + (λ s)²), s the mean of ‖y_k ∂_j v‖² over (δ_max ‖v‖)².
      kappa: κ ≥ 0, per time: decay rate imposed on the part of v outside the tangent space of v_i.
        It lowers ranks that are high at the start.
      guard: whether the normal component at v itself decides too. Where `Convex` reduces it to less
        than 0.03 of its value at rest, the Σ of `Convex` is taken, and no other level is used.
        Elsewhere Σ is zero unless it reduces it to 0.7 or less. Ignored with ``kappa`` > 0, whose
        effect the normal component does not show.
      gauge: of shifts and stretches, which leave the ranks alone. "edge": along an axis to whose
        ends v comes near, the mean of v² is held and its variance kept from growing; "moments":
        means and variances are held everywhere; "none": the diagonal of Σ and β are zero, and v may
        leave the box.

    Raises:
      ValueError: options out of range; at a call, NaN or Inf in the state.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(3), np.diag([1.0, 0.25, 1.0]))
      >>> drift = np.array([[-0.5, 0.8, 0.0], [-0.8, -0.5, 0.8], [0.0, -0.8, -0.5]])
      >>> box = pde.Box.fourier(3, n=48)
      >>> problem = pde.OrnsteinUhlenbeck(drift, 0.1 * np.eye(3), start, box)
      >>> at = pde.AffineMap.identity(3)
      >>> v, right = problem.initial(at, 1e-6), problem.right_side(at, 0.0)
      >>> motion = pde.MultiLevel()(v, right, at, box, 1e-6, 0.0)
      >>> bool(motion.cost < 1e-3 * motion.cost_without)
      True

    Source: ours, an extension of the paper named in `Convex`.
    """

    _: dataclasses.KW_ONLY
    levels: Sequence[float] = tuple(0.3 * 10.0**-k for k in range(14))
    regularization: float = 1e-2
    kappa: float = 0.0
    guard: bool = True
    gauge: Gauge = "edge"
    # Share of the normal component that a motion may leave, where a run asks for more than _GAIN.
    _gain: float | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self):
        _check_options(self.regularization, self.gauge)
        object.__setattr__(self, "levels", tuple(float(x) for x in self.levels))
        if not all(0 < x < 1 for x in self.levels):
            raise ValueError(f"levels: expected relative errors in (0, 1), got {self.levels}")
        _check.number("kappa", self.kappa, low=0)

    def _chosen(self, setting: Setting, form: normal.Form) -> Motion:
        if not self.guard or self.kappa > 0:
            sigma, levels = self._minimiser(setting, form)
            return self._told(setting, form, sigma, levels)
        alone, rest = (
            _convex(form, _PLAIN, setting.kept), form.cost(np.zeros((setting.box.dim,) * 2))
        )  # fmt: skip
        if form.cost(alone) < _LITTLE * rest:
            return self._told(setting, form, alone, {setting.tol: setting.point.ranks})
        sigma, levels = self._minimiser(setting, form)
        if form.cost(sigma) <= (_GAIN if self._gain is None else self._gain) * rest:
            return self._told(setting, form, sigma, levels)
        return self._told(setting, form, 0 * sigma, levels)._replace(guarded=True)

    def _told(
        self, setting: Setting, finest: Any, sigma: np.ndarray, levels: dict[float, Any]
    ) -> Motion:
        ranks = dict.fromkeys(levels.values())
        found = setting.motion(finest, sigma, self.gauge)
        return found._replace(levels=tuple(levels), ranks=tuple(max(r, default=1) for r in ranks))

    def _minimiser(self, setting: Setting, finest: Any) -> tuple[np.ndarray, dict[float, Any]]:
        """Computes the coordinate motion Σ y optimal at all truncation levels, and their ranks."""
        tol, point = setting.tol, setting.point
        coarse = sorted((x for x in self.levels if x > tol), reverse=True)
        levels = {x: truncated_ranks(point, x) for x in coarse} | {tol: point.ranks}
        gram: Any = 0.0
        load: Any = 0.0
        kept = setting.kept
        for ranks in dict.fromkeys(levels.values()):
            group = [x for x, r in levels.items() if r == ranks]
            form, weight = finest, sum(x**-2.0 for x in group)
            if ranks != point.ranks:
                enough = truncated_ranks(point, _SEEN * min(group))
                state = leading(point, enough)
                form = setting.form(truncated(point, ranks), tol, state=state, kappa=self.kappa)
            seen_gram, seen_load = visible(*among(form.gram, form.load, kept), _NULL)
            gram, load = gram + weight * seen_gram, load + weight * seen_load
        scale = point.scale**2
        size = setting.mean_square() / (max(levels) ** 2 * scale)
        flat = np.zeros(len(finest.load))
        flat[kept] = filtered(spectrum(gram / scale), load / scale, self.regularization * size)
        return from_off_diagonal(flat, setting.box.dim), levels


@dataclasses.dataclass(frozen=True)
class Flow(_ByState):
    """Moving coordinates for a TT solution, by steepest descent of its unfoldings' nuclear norms.

    Σ = rate · g/‖v‖, where Σ_p ‖v_(p)‖_* falls at the rate Σ·g under v_t = −Σ_jk Σ_jk y_k ∂_j v,
    but that every singular value σ counts as √(σ² + ε²): about a kink the flow would chatter. The
    sum is a convex stand-in for the TT-ranks, but not convex in the coordinates; the right side
    is not looked at, only the state, and so the flow follows where the convex generators go ahead.

    Args:
      rate: > 0, per time.
      smoothing: ε/‖v‖ ≥ 0. Time steps should be well below ε/(rate ‖v‖).

    Raises:
      ValueError: options out of range; at a call, NaN or Inf in the state.

    Example:
      A Gaussian whose axes are turned against the coordinates is turned back.

      >>> import numpy as np
      >>> from tensorjax import pde, tt
      >>> start = pde.Gaussian(np.zeros(2), np.array([[1.0, 0.4], [0.4, 0.5]]))
      >>> box = pde.Box.fourier(2, n=48)
      >>> v = start.cores(box, pde.AffineMap.identity(2), 1e-6)
      >>> v = tt.TT([c.astype("float32") for c in v])
      >>> motion = pde.Flow()(v, pde.RightSide(box), None, box, 1e-6, 0.0)
      >>> bool(np.all(motion.sigma[[0, 1], [1, 0]] < 0))
      True

    Source: Dektor, Venturi, "Tensor rank reduction via coordinate flows" (arXiv 2207.11955), of
    which we know the abstract: it looks for one linear map that lowers the ranks of a given
    function, by Riemannian gradient descent.
    That is `rank_reducing_map`. Ours: they move at the same time as the equation, at a given rate,
    by the gradient over the entries off the diagonal.
    """

    _: dataclasses.KW_ONLY
    rate: float = 3.0
    smoothing: float = 0.1

    def __post_init__(self):
        _check.number("smoothing", self.smoothing, low=0)
        _check.number("rate", self.rate, low=0, open=True)

    def _chosen(self, setting: Setting, form: normal.Form) -> Motion:
        scale = setting.point.scale
        slope = nuclear_norms_gradient(
            setting.point, setting.modes, form.family, self.smoothing * scale
        )
        free = setting.box.unbounded
        slope = slope * np.outer(free, free)
        return setting.motion(form, self.rate / scale * slope, "none")


def _check_options(regularization: float, gauge: str) -> None:
    _check.number("regularization", regularization, low=0)
    _check.choice("gauge", gauge, get_args(Gauge))


class Replay:
    """Generator of moving coordinates that repeats the motion of an earlier `Solution`."""

    def __init__(self, stats: Mapping[str, np.ndarray]):
        if "sigma" not in stats or not len(stats["t"]):
            raise ValueError(
                "coordinates: expected a pde.Solution that recorded its motion, got one that did "
                "not; make it by pde.integrate with tol="
            )
        self._times = stats["t"] - stats["dt"]
        self._values = np.concatenate([stats["sigma"], stats["beta"][:, :, None]], 2)

    def __call__(self, v: Any, right: Any, map: Any, box: Any, tol: float, t: float) -> Motion:
        """Returns the earlier coordinate motion (Σ, β) at time t, interpolated between steps."""
        k = int(np.clip(np.searchsorted(self._times, t, "right") - 1, 0, len(self._times) - 1))
        near = min(k + 1, len(self._times) - 1)
        span = self._times[near] - self._times[k]
        w = min(max((t - self._times[k]) / span, 0.0), 1.0) if span > 0 else 0.0
        total = (1 - w) * self._values[k] + w * self._values[near]
        return Motion(total[:, :-1], total[:, -1])
