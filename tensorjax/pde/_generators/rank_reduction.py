"""Search for linear maps of coordinates in which a function has low TT-ranks, by nuclear norms."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._arguments import real_cores
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.initial_states import Function, Gaussian, Start
from tensorjax.pde._generators.canonical_form import Point, canonical, truncated, truncated_ranks
from tensorjax.pde._generators.inputs_and_motion import spread
from tensorjax.pde._generators.nuclear_norms import nuclear_norms, nuclear_norms_gradient
from tensorjax.pde._generators.tangent_normal_factors import Family, Modes, modes_of, singles
from tensorjax.pde._maps import characteristics
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.edge_and_resolution import shares
from tensorjax.pde._observables.values_and_moments import evaluate

# Share of the tolerance for the train before it is truncated.
_PART = 0.3
# The descent has converged where the slope is this share of the cost, or where a step lowers the
# cost by this share of it and by less than a singular value at the tolerance counts.
_FLAT, _STEADY = 1e-5, 1e-7
# Armijo's share of the fall that the slope promises; by how much a step that fails is shortened,
# and how often; the largest step, a norm of the logarithm of a map.
_ARMIJO, _SHORTER, _TRIES, _LONGEST = 1e-4, 0.25, 6, 0.5
# A map may leave this share of the norm in the highest modes, or so many times what the identity
# leaves there; and at the edge the tolerance, or as many times what the identity leaves.
_ROUGH, _MORE = 1e-3, 2.0


class RankReduction(NamedTuple):
    """Report of a search for a linear map that lowers TT-ranks: ranks, costs, status.

    Attributes:
      status: how the descent ended: "converged"; "stalled", as no step lowers the cost any more;
        or "max_steps".
      reduced: whether the map lowers ranks. Otherwise it is the identity.
      message: explanation of both.
      ranks: TT-ranks of the function with the map, at ``tol``.
      ranks_before: those with the identity.
      costs: smoothed nuclear norms of all unfoldings, relative to the norm of the function, with
        the identity and after every step of the descent.
      evaluations: number of maps for which the function was approximated.
      edge_mass: of the train with the map, see `tensorjax.pde.edge_mass`.
      resolution: of the train with the map, see `tensorjax.pde.resolution`.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> bump = pde.Gaussian(np.array([0.5, 0.0]), np.array([[1.0, 0.6], [0.6, 0.7]]))
      >>> map, v, report = pde.rank_reducing_map(bump, pde.Box.fourier(2), tol=1e-5)
      >>> report.reduced, max(report.ranks) < max(report.ranks_before)
      (True, True)
      >>> report.costs[-1] < report.costs[0]
      True
    """

    status: Literal["converged", "stalled", "max_steps"]
    reduced: bool
    message: str
    ranks: tuple[int, ...]
    ranks_before: tuple[int, ...]
    costs: tuple[float, ...]
    evaluations: int
    edge_mass: float
    resolution: float


def rank_reducing_map(
    v: Start | TT | Callable[[Any], Any],
    box: Box,
    *,
    tol: float = 1e-6,
    smoothing: float = 1e-2,
    max_steps: int = 50,
) -> tuple[AffineMap, TT, RankReduction]:
    """Finds a linear map y = Γ x + s, det Γ = 1, in which a given function has low TT-ranks.

    Riemannian gradient descent on the matrices of determinant one, from the identity: with
    Γ ← exp(h g) Γ, where g is the gradient of the smoothed nuclear norms of all unfoldings, the
    cost of `Flow`. Scalings of the coordinates leave ranks alone, so that g has no diagonal. The
    mean of v² stays where it is. The function is approximated anew for every map that is tried.

    The cost has many minima, and is not the ranks: of all maps on the way the one of least ranks is
    returned, and the identity where none has lower ones. A map is taken only where the function
    stays inside the box and resolved, as it is with the identity.

    Args:
      v: the function: a `Gaussian`, `Mixture` or `Function`; any function of points (m, d) with
        values (m,); or a train on the grid of the box, whose interpolant is mapped (evaluated at
        many points: in three dimensions about half a second for every map that is tried). It has to
        vanish at the edge of the box.
      box: of the coordinates y, and of x where v is a train.
      tol: relative error of the trains, in L².
      smoothing: ε ≥ 0: a singular value σ counts as √(σ² + ε²‖v‖²) − ε‖v‖.
      max_steps: of the descent.

    Returns:
      The map, to be used as ``map=`` of `integrate`; the train of the function in its coordinates,
      v(map.inverse(y)) on the grid; and a `RankReduction`.

    Raises:
      ValueError: an argument out of range, shapes that do not match, NaN or Inf, a function that
        cross approximation cannot bring into a train in the coordinates x.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> bump = pde.Gaussian(np.array([0.5, 0.0]), np.array([[1.0, 0.6], [0.6, 0.7]]))
      >>> map, v, info = pde.rank_reducing_map(bump, pde.Box.fourier(2), tol=1e-5)
      >>> info.status, info.ranks_before, info.ranks, round(float(map.det), 6)
      ('converged', (1, 14, 1), (1, 1, 1), 1.0)

    Source: Dektor, Venturi, "Tensor rank reduction via coordinate flows" (arXiv 2207.11955), of
    which we know the abstract. Ours: smoothing, step sizes (Barzilai–Borwein, safeguarded by
    Armijo's rule), the mean held, and that the ranks decide.
    """
    tol = _check.tolerance(tol, np.float64)
    max_steps = _check.integer("max_steps", max_steps, low=0)
    _check.number("smoothing", smoothing, low=0)
    search = _Search(box, tol, smoothing)
    start, cores = _given(v, box, tol)
    first = search.look(cores, AffineMap.identity(box.dim))
    if first.point.scale == 0 or max(first.ranks) == 1:
        best, status, path = first, "converged", [first]
    else:
        search.locate(start, first)
        status, path = _descent(search, first, max_steps)
        top = max(first.ranks)
        best = min((p for p in path if max(p.ranks) <= top), key=lambda p: (sum(p.ranks), p.cost))
        if sum(best.ranks) == sum(first.ranks):
            best = first
    train = search.train(best)
    edge, rough = shares(train, box)
    reduced, before = best is not first, (1, *first.ranks, 1)
    info = RankReduction(
        status, reduced, _message(status, reduced, before, train.ranks, search.refused),
        train.ranks, before,
        tuple(p.cost for p in path), search.count, edge, rough,
    )  # fmt: skip
    return best.map, train, info


class _Seen(NamedTuple):
    """Candidate map in the search for lower TT-ranks: function in new coordinates, ranks, cost."""

    map: AffineMap
    point: Point
    ranks: tuple[int, ...]
    cost: float
    edge: float
    rough: float


@dataclasses.dataclass(eq=False)
class _Search:
    """Search for a linear map of coordinates that lowers the TT-ranks of a function."""

    box: Box
    tol: float
    smoothing: float
    start: Any = None
    first: Any = None
    center: Any = None
    count: int = 0
    refused: str = ""

    @property
    def least(self) -> float:
        """Share of the rank cost that a singular value of the tolerance's size contributes."""
        return float(np.hypot(self.tol, self.smoothing) - self.smoothing)

    @property
    def modes(self) -> Modes:
        return modes_of(self.box)

    def look(self, cores: Cores, map: AffineMap) -> _Seen:
        """Computes TT-ranks, cost and edge norm of a function in the coordinates of a map."""
        self.count += 1
        _check.finite("v", cores)
        point = canonical(self.modes.weighted(cores))
        ranks = truncated_ranks(point, (1 - _PART) * self.tol) if self.box.dim > 1 else (1,)
        scale = point.scale or 1.0
        cost = nuclear_norms(point, self.smoothing * scale) / scale
        return _Seen(map, point, ranks, cost, *shares(TT._unchecked(tuple(cores)), self.box))

    def locate(self, start: Any, first: _Seen) -> None:
        """Stores the region where the function of a rank reduction is large, to sample it there."""
        near = spread(first.point, self.modes, self.family(first), self.box)
        if isinstance(start, Function) and start.near is None:
            gaps = [a.length / a.n for a in self.box.axes]
            # Of a Gaussian v², the covariance is half that of v.
            width = 2 * near.covariance + np.diag(np.square(gaps))
            start = dataclasses.replace(start, near=Gaussian(near.mean, width))
        self.start, self.first, self.center = start, first, near.mean

    def moved(self, map: AffineMap, sigma: np.ndarray) -> AffineMap:
        """Returns the next trial map of a rank reduction, exp(Σ) Γ, with the mean of v² fixed."""
        zero = np.zeros_like(sigma)
        matrix = characteristics.flow(sigma, zero[0], zero, 1.0).matrix @ map.matrix
        return AffineMap(matrix, self.center - matrix @ self.center)

    def trial(self, map: AffineMap) -> _Seen | None:
        """Approximates a function in rank-reducing trial coordinates; None if it leaves the box."""
        try:
            cores = self.start.cores(self.box, map, _PART * self.tol)
        except ValueError:  # no train of low rank
            self.count += 1
            return None
        seen = self.look(cores, map)
        inside = seen.edge <= max(self.tol, _MORE * self.first.edge)
        resolved = seen.rough <= max(_ROUGH, _MORE * self.first.rough)
        if not resolved:
            self.refused = "finer than the points of an axis: take more points"
        elif not inside:
            self.refused = "larger than the box: take a larger one"
        return seen if inside and resolved else None

    def slope(self, at: _Seen) -> np.ndarray:
        """Computes the gradient (d, d) of a rank reduction's cost with respect to the map."""
        point, width = at.point, self.smoothing * at.point.scale
        return nuclear_norms_gradient(point, self.modes, self.family(at), width) / point.scale

    def family(self, at: _Seen) -> Family:
        return singles(at.point, at.point, self.modes)

    def train(self, seen: _Seen) -> TT:
        """Builds the tensor train of a function in rank-reducing coordinates, truncated."""
        point = seen.point
        cores = truncated(point, seen.ranks).cores if point.left else point.centers
        return TT([jnp.asarray(c) for c in self.modes.values(cores)])


def _descent(search: _Search, at: _Seen, max_steps: int) -> tuple[Any, list[_Seen]]:
    """Runs the gradient descent for a rank-reducing map; returns its status and all maps tried."""
    path, step, before = [at], 1.0, None
    for _ in range(max_steps):
        slope = search.slope(at)
        size = float(np.linalg.norm(slope))
        if size <= _FLAT * at.cost:
            return "converged", path
        if before is not None:  # Barzilai–Borwein, in the algebra of the group
            change = np.vdot(before - slope, before)
            step = step * np.vdot(before, before) / abs(change) if change else step
        step, new = min(step, _LONGEST / size), None
        first = step
        for _ in range(_TRIES):
            new = search.trial(search.moved(at.map, step * slope))
            if new is not None and new.cost <= at.cost - _ARMIJO * step * size**2:
                break
            step, new = _SHORTER * step, None
        if new is None:  # a fall below the error of the trains is not seen
            return "converged" if first * size**2 <= search.tol * at.cost else "stalled", path
        path.append(new)
        if at.cost - new.cost <= min(_STEADY * at.cost, search.least):
            return "converged", path
        at, before = new, slope
    return "max_steps", path


def _given(v: Any, box: Box, tol: float) -> tuple[Start, Cores]:
    """Converts the function whose rank is to be reduced to an initial state and its TT-cores."""
    at = AffineMap.identity(box.dim)
    if isinstance(v, TT):
        if v.shape != box.shape:
            raise ValueError(f"v: expected the shape {box.shape} of the box, got {v.shape}")
        return Function(lambda x: np.asarray(evaluate(v, at, box, x))), real_cores("v", v)
    if not isinstance(v, Start):
        if not callable(v):
            raise ValueError(
                "v: expected a pde.Gaussian, pde.Mixture or pde.Function, a function of points or "
                f"a train, got {type(v).__name__}"
            )
        v = Function(v)
    dim = getattr(v, "dim", box.dim)
    if dim != box.dim:
        raise ValueError(f"v: expected {box.dim} coordinates as the box, got {dim}")
    return v, v.cores(box, at, _PART * tol)


def _message(status: str, reduced: bool, before: Any, ranks: Any, refused: str) -> str:
    """Writes the report of a search for a rank-reducing map: ranks before and after, its end."""
    ended = {
        "converged": "the descent has converged",
        "stalled": "the descent ended where no step lowers the cost inside the box",
        "max_steps": "the descent was ended by max_steps",
    }[status]
    if status == "stalled" and refused:
        ended += f", for in the maps that were tried the function is {refused}"
    if reduced:
        return f"ranks {before} fell to {ranks}; {ended}"
    if max(before) == 1:
        return "the function has rank one: the identity is returned"
    return f"no map with lower ranks than {before} was found, the identity is returned; {ended}"
