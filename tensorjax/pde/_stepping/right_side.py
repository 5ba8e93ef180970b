"""Right side of v_t = Q_y(v) − (Σ y + β)·∇v at one time, as a list of terms to be summed."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores import products
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._discretization.affine_operators import (
    Coefficients,
    affine_states,
    differentiated,
)
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._maps.coordinate_path import Path
from tensorjax.pde._stepping.sketched_sums import Applied, Term, Train

# Negative eigenvalues of the diffusion below this share of the largest are roundoff of the map.
_NEGATIVE = 1e-6


def train(cores: Sequence[Any]) -> TT:
    """Wraps NumPy cores as a `TT` for a PDE's right side, without copies to the device."""
    return TT._unchecked(tuple(cores))


def right_side(problem: Any, map: AffineMap, t: float) -> Any:
    """Builds a PDE's right side for time steps on the host: its reaction takes NumPy cores.

    It is evaluated as JAX evaluates functions of trains, in its precision.
    """
    right = problem.right_side(map, t)
    if right.reaction is None:
        return right

    def reaction(v: TT, tol: float) -> TT:
        v = TT._unchecked(tuple(jax.device_put(list(v.cores))))
        # `tt` refuses tolerances near the roundoff of the dtype, which JAX may have lowered here.
        return right.reaction(v, max(tol, 20 * linalg.epsilon(v.dtype)))

    return dataclasses.replace(right, reaction=reaction)


class Rates:
    """PDE right side Q(v) − (Σ y + β)·∇v in moving coordinates at one time, as terms on the host.

    Args:
      box: of the y-grid.
      right: the `RightSide` of a problem at these coordinates.
      sigma: Σ, (d, d), and ``beta``, β, (d,), of the motion ẏ = Σ y + β; None at rest.
      window: masks (n,) of all axes, where the rates are; None for everywhere. See
        `tensorjax.pde._stepping.outskirts`.
      part: whether this is a part of a right side, whose diffusion may be negative.
    """

    def __init__(
        self,
        box: Box,
        right: Any,
        sigma: Any = None,
        beta: Any = None,
        window: Any = None,
        part: bool = False,
    ):
        self._part = part
        self.box = box
        self.window = window
        self.right = right
        affine = right.affine
        if sigma is not None and (np.any(sigma) or np.any(beta)):
            affine = (Coefficients() if affine is None else affine).moving(sigma, beta)
        self.affine = affine
        if not part:
            _check_diffusion(affine)
        self._states = None if affine is None else affine_states(box, affine)
        self._dense = [hosted_cores(o) for o in right.others]
        self._source = None if right.source is None else Train(hosted_cores(right.source))

    def _seen(self, term: Any) -> Any:
        """Multiplies a term of a PDE's right side by masks that are 0 where v is negligible."""
        if self.window is None:
            return term
        if isinstance(term, Applied):
            pairs = zip(self.window, term.images, strict=True)
            return Applied(term.coefficients, [m[:, None] * c for m, c in pairs], whole=term)
        pairs = zip(self.window, term.cores, strict=True)
        return Train([m[:, None] * c for m, c in pairs], whole=term)

    @property
    def linear(self) -> bool:
        """Whether a PDE's right side has no nonlinear reaction."""
        return self.right.reaction is None

    def terms(self, cores: Cores, tol: float) -> list[Term]:
        """Returns the terms whose sum is a PDE's right side at a tensor train v."""
        out: list[Term] = []
        if self._states is not None:
            images = [differentiated(a, c) for a, c in zip(self.box.axes, cores, strict=True)]
            out.append(self._seen(Applied(self._states, images)))
        out.extend(self._seen(Train(products.matvec(o, cores))) for o in self._dense)
        if self._source is not None:
            out.append(self._source)
        if not self.linear:
            out.append(Train(hosted_cores(self.right.reaction(train(cores), tol))))
        return out

    @property
    def others(self) -> list[Cores]:
        """Operators of a PDE's right side other than the affine one, as cores (r, n, n, s)."""
        return self._dense

    @property
    def source(self) -> Cores | None:
        """TT-cores of the source in a PDE's right side, or None."""
        return None if self._source is None else self._source.cores

    def frozen(self, cores: Cores, tol: float) -> "Rates":
        """Returns a PDE's right side with the reaction replaced by its value at a given train."""
        if self.linear:
            return self
        source = hosted_cores(self.right.reaction(train(cores), tol))
        if self._source is not None:
            source = products.combined([self._source.cores, source], [1.0, 1.0])
        right = dataclasses.replace(
            self.right, affine=self.affine, source=train(source), reaction=None
        )
        return Rates(self.box, right, window=self.window, part=self._part)

    def without_sources(self) -> "Rates":
        """Returns a PDE's right side with its linear operators only."""
        right = dataclasses.replace(self.right, affine=self.affine, source=None, reaction=None)
        return Rates(self.box, right, window=self.window, part=self._part)

    def split(self) -> tuple["Rates", "Rates"]:
        """Splits a PDE's right side into constant diffusion and the rest, for IMEX steps."""
        affine = Coefficients() if self.affine is None else self.affine
        if affine.diffusion is None:
            raise ValueError(
                'method: expected a problem with a constant diffusion matrix for "imex", which '
                'takes that implicitly; use "rk4" or "ab2"'
            )
        stiff = Coefficients(diffusion=affine.diffusion)
        right = self.right
        slow = dataclasses.replace(right, affine=affine._replace(diffusion=None))
        only = dataclasses.replace(right, affine=stiff, others=(), source=None, reaction=None)
        return Rates(self.box, only, window=self.window), Rates(self.box, slow, window=self.window)


def _check_diffusion(affine: Any) -> None:
    if affine is None or affine.diffusion is None:
        return
    s = np.asarray(affine.diffusion, np.float64)
    _check.finite("diffusion", s)
    low, high = np.linalg.eigvalsh((s + s.T) / 2)[[0, -1]]
    if low < -_NEGATIVE * max(high, -low):
        raise ValueError(
            f"diffusion: expected a positive semidefinite matrix, got an eigenvalue {low:.2g} in "
            "the coordinates of v; negative diffusion has no solution forward in time"
        )


class Clock:
    """Cache of a PDE's right sides at the stage times of one time step.

    Args:
      problem: whose right side it is.
      path: the motion of the coordinates over the step.
      right: the right side at its start, where it is there already.
      window: of the rates, see `Rates`.
    """

    def __init__(self, problem: Any, path: Path, right: Any = None, window: Any = None):
        self.problem = problem
        self.window = window
        self.path = path
        self._first = right
        self._built: dict[float, Rates] = {}

    def __call__(self, share: float) -> Rates:
        """Returns the right side's `Rates` at time t + share·dt, within a time step."""
        if share not in self._built:
            sigma, beta = self.path.motion(share)
            right = self._first if share == 0 else None
            if right is None:
                right = right_side(self.problem, self.path.map(share), self.path.time(share))
            self._built[share] = Rates(self.problem.box, right, sigma, beta, self.window)
        return self._built[share]
