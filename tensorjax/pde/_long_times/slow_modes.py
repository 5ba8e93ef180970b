"""Slow modes and spectral gap of linear equations, by inverse subspace iteration with AMEn."""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import linalg

from tensorjax import _check
from tensorjax._cores import overlaps, products, rounding
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._typing import ArrayLike
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._integration.failure_diagnosis import unbounded_by
from tensorjax.pde._integration.solution import Result
from tensorjax.pde._long_times import closed_forms, linear_systems
from tensorjax.pde._long_times.closed_forms import derivatives_of_gaussian
from tensorjax.pde._long_times.stationary import (
    GRID,
    Stationary,
    bordered,
    operator_of,
    out_of_time,
    rate_of,
    standard_coordinates,
    times_coordinates,
    with_cores,
)
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.edge_and_resolution import quadrature, shares_of
from tensorjax.pde._observables.values_and_moments import evaluate
from tensorjax.pde._problems.problem import Problem
from tensorjax.pde._stepping.mass import mass_of
from tensorjax.tt._exact_arithmetic import imag, real

# Modes that are iterated beyond those asked for; iterations, at most.
_MORE, _ITERATIONS = 4, 40
# The stationary density and the solves are so much more accurate than the modes are asked to be.
_SHARE = 0.1
# Size of the space, over that of the first modes, from which on it is cut back to these.
_LARGEST = 3
# Accuracy of the directions in which modes are looked for.
_COARSE = 1e-2
# Relative residual below which θ tells of an eigenvalue; directions that are one up to this.
_NEAR, _EQUAL = 0.5, 1e-13


@dataclasses.dataclass(frozen=True)
class SlowModes:
    """Slowest decaying eigenmodes of a linear PDE, L u = λ u, with residuals and a status.

    Attributes:
      values: λ, (m,), by descending real part: complex, with negative real parts. Zero, of the
        stationary density, is not among them. m is the number asked for, or one more where that
        would cut a complex pair in two.
      modes: m trains of values on the grid of the box, of norm one; complex where λ is.
      stationary: `Stationary`, the density that remains; ``stationary.final.map`` holds the
        coordinates of the modes, too.
      box: of the coordinates y.
      residuals: ‖u − λ L⁻¹ u‖/‖u‖, (m,): relative errors of λ, to first order. Of closed forms,
        whose λ are exact, ‖L u − λu‖/‖λu‖ on the grid.
      result: `Result.successful`; that of the stationary density where there is none;
        `Result.edge_mass`, `Result.unresolved` where a mode is wider than the box or finer than its
        points; `Result.max_rank`; `Result.solver` where the residuals stay above ``tol``;
        `Result.max_steps` where that would take more than ``max_seconds``. Those of closed forms
        may reach 30 times the sum of a mode's shares at the edge and in the highest modes of the
        grid, where that is above ``tol``.
      message: explanation of a failure, with advice; else empty.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2))
      >>> box = pde.Box.fourier(2, 32, 5.0)
      >>> problem = pde.OrnsteinUhlenbeck(-0.5 * np.eye(2), 0.25 * np.eye(2), start, box)
      >>> found = pde.slow_modes(problem, k=1)
      >>> found.result.value, round(found.gap, 4), found(np.zeros((3, 2))).shape
      ('successful', 0.5, (3, 1))
    """

    values: np.ndarray
    modes: tuple[TT, ...]
    stationary: Stationary
    box: Box
    residuals: np.ndarray
    result: Result
    message: str

    @property
    def gap(self) -> float:
        """Spectral gap −max Re λ of a linear PDE, the rate of its slowest mode; NaN if none."""
        return -float(np.real(self.values).max()) if len(self.values) else math.nan

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """Evaluates slow eigenmodes at physical points x (m, d), zero outside the box.

        Args:
          x: points (m, d).

        Returns:
          Values (m, number of modes), complex.

        Raises:
          ValueError: points of another dimension.
        """
        map = self.stationary.final.map
        out = np.zeros((len(np.asarray(x)), len(self.modes)), complex)
        for j, mode in enumerate(self.modes):
            for unit, part in ((1.0, real(mode)), (1j, imag(mode))):
                out[:, j] += unit * np.asarray(evaluate(part, map, self.box, x))
        return out


def slow_modes(
    problem: Problem,
    *,
    k: int = 1,
    tol: float = 1e-6,
    map: AffineMap | None = None,
    max_rank: int | None = None,
    edge_limit: float = 1e-3,
    resolution_limit: float = 1e-3,
    max_seconds: float = 120.0,
) -> SlowModes:
    """Computes the slowest eigenmodes of a linear PDE, L u = λ u with λ ≠ 0, and the spectral gap.

    The stationary density p is found first. (L − c p ∫) has the same eigenvalues, but −c in place
    of zero, and can be inverted: by AMEn. Modes begin as p times polynomials, which they are for
    Ornstein–Uhlenbeck processes, and are looked for in the space of them, four more, and the images
    of their residuals. Eigenvalues are those of the inverse in the space of the modes, which need
    not be orthogonal: L is not symmetric, and those of rotating processes are complex. Modes relax
    as u exp(λt): 1/gap is the time that equilibrium takes. The problem is one for `stationary`, and
    so are costs and limits: ranks are those of coordinates at rest. For affine drift in three
    dimensions and more modes are the derivatives of the Gaussian p along eigenvectors of its
    matrix, in closed form; their residuals ‖L u − λu‖/‖λu‖ are those of the grid. Where that matrix
    lacks eigenvectors (critical damping) every mode is listed once, and what decays as a polynomial
    in t times exp(λt) is no mode and left out.

    Args:
      problem: linear, not a function of time, without source, with a stationary density.
      k: number of modes.
      tol: relative error of eigenvalues, by the residuals; that of the grid and the box comes on
        top. Residuals of closed forms, of affine drift, are those of the grid: see
        ``SlowModes.result``.
      map: coordinates of the modes, at rest. If None, the identity, or those that `stationary`
        chooses for an affine drift in three dimensions and more.
      max_rank: of the density and the modes; closed forms are cut to it.
      edge_limit: largest `edge_mass` of a success.
      resolution_limit: largest `resolution` of a success.
      max_seconds: processor time that sweeps of AMEn may take, of all threads together; Inf for no
        limit. It is looked at between sweeps.

    Returns:
      `SlowModes`.

    Raises:
      ValueError: an argument out of range, a problem that `stationary` refuses.

    Example:
      A rotating Ornstein–Uhlenbeck process: λ are the sums of eigenvalues of its matrix.

      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), 0.5 * np.eye(2))
      >>> box = pde.Box.fourier(2, 32, 5.0)
      >>> matrix = np.array([[-0.5, 2.0], [-2.0, -0.5]])
      >>> found = pde.slow_modes(pde.OrnsteinUhlenbeck(matrix, 0.25 * np.eye(2), start, box), k=2)
      >>> print(found.result.value, round(found.gap, 4), np.round(abs(found.values.imag), 4))
      successful 0.5 [2. 2.]

    Source: Y. Saad, "Numerical Methods for Large Eigenvalue Problems" (SIAM, 2011), chapter 5, for
    subspace iteration; D. Liberzon, R. Brockett, "Spectral analysis of Fokker–Planck and related
    operators arising from linear stochastic differential equations", SIAM J. Control Optim. 38
    (2000), for affine drift. Ours: the bordered operator, the first modes.
    """
    count = _check.integer("k", k, low=1)
    tol, cap = linear_systems.checked_options(tol, max_rank)
    points = math.prod(problem.box.shape)
    if count + _MORE >= points:
        raise ValueError(f"k: expected fewer modes than the {points} points of the grid, got {k}")
    limits = (edge_limit, resolution_limit)
    timer = linear_systems.checked_seconds(max_seconds)
    # In double precision whatever JAX has: L amplifies what roundoff leaves of p.
    rest, p = with_cores(problem, _SHARE * tol, map, cap, limits, max_seconds)

    def report(block: _Block, residuals: np.ndarray, result: Result, message: str) -> SlowModes:
        modes = tuple(TT._unchecked(tuple(jax.device_put(c))) for c in _complex(block))
        return SlowModes(1 / block.values, modes, rest, problem.box, residuals, result, message)

    none = _Block([], [], np.zeros(0, complex)), np.zeros(0)
    if rest.result != Result.successful:
        return report(*none, rest.result, f"no stationary density was found: {rest.message}")
    at = rest.final.map
    if rest.change == 0:
        known = _of_affine_drift(problem, p, at, count, tol, cap, limits)
        if known is not None:
            return report(*known)
    first = _begun(p, problem.box, count + _MORE)
    operator, weights = operator_of(problem, at), problem.box.weights
    # Any border would do that is no eigenvalue; modes have no part in it, for their mass is zero.
    rate = rate_of(operator, p, problem.box)
    system = bordered(operator, p, weights, rate)
    inverse = _Inverse(system, p, weights, _SHARE * tol, cap, timer)
    try:
        block, residuals = _iterated(inverse, first, count, tol)
    except linear_systems.OutOfTimeError as error:
        return report(*none, Result.max_steps, out_of_time("modes", error.ranks, max_seconds))
    return report(block, residuals, *_judged(problem.box, block.x, residuals, tol, cap, limits))


def _of_affine_drift(
    problem: Problem, p: Cores, at: AffineMap, count: int, tol: float, cap: Any, limits: Any
) -> tuple["_Block", np.ndarray, Result, str] | None:
    """Returns slow eigenmodes in closed form for affine drift, with residuals; else None.

    Their values are exact: what L leaves of them is the error of the grid. Where that is above
    what shares at the edge and in the highest modes explain, modes are solved for.
    """
    density = closed_forms.gaussian(problem)
    if density is None:
        return None
    box, operator = problem.box, operator_of(problem, at)
    matrix: Any = getattr(problem, "matrix", None)
    found = derivatives_of_gaussian(matrix, p, box, at.matrix, count)
    xs, ys, values = [], [], []
    for rate, (even, odd) in found:
        # As in a `_Block`: 1/λ has a positive imaginary part.
        parts = [even] if odd is None else [even, [-odd[0], *odd[1:]]]
        size = math.hypot(*(overlaps.norm(x) for x in parts))
        parts = [[x[0] / size, *x[1:]] for x in parts]
        if cap is not None:
            parts = [rounding.rounded(x, _EQUAL, cap) for x in parts]
        # Of L⁻¹ x only x/λ is known; its residual is that of L x = λ x.
        images = [products.matvec(operator, x) for x in parts]
        xs, ys = xs + parts, ys + images
        values += [1 / rate.conjugate(), 1 / rate][: len(parts)]
    block = _Block(xs, ys, np.array(values))
    rates = 1 / block.values
    left = _Block(xs, ys, rates).residuals()
    errors = _Block(xs, ys, rates.conj()).errors(left)  # first of a pair: positive imaginary part
    shares = np.array([shares_of(np, x, quadrature(box)) for x in xs], np.float64)
    allowed = max(tol, GRID * float(shares.sum(1).max()))
    result, message = _judged(box, xs, errors, allowed, cap, limits)
    return None if result == Result.solver else (block, errors, result, message)


class _Inverse:
    """Inverse of a PDE's generator L, by AMEn, of which slow modes are eigenvectors."""

    def __init__(
        self, operator: Cores, p: Cores, weights: Any, tol: float, cap: int | None, timer: Any
    ):
        self.operator, self.tol, self.cap, self._timer = operator, tol, cap, timer
        self._p, self._weights = p, weights
        self._direct = None if cap else linear_systems.factored(operator)
        self._elimination = linear_systems.Elimination()

    def __call__(self, x: Cores, guess: Cores, tol: float) -> Cores:
        """Solves L y = x for y by AMEn, in the subspace iteration for slow modes."""
        if self._direct is not None:
            return self.of_no_mass(self._direct(x, self.tol))
        out, _ = linear_systems.solved(
            self.operator, x, guess, tol, self.cap, timer=self._timer, elimination=self._elimination
        )
        return self.of_no_mass(out)

    def of_no_mass(self, x: Cores, tol: float | None = None) -> Cores:
        """Projects an approximate slow mode x to integral zero, and rounds the result."""
        total = mass_of(x, self._weights)
        return _combined([x, self._p], [1.0, -total], self.tol if tol is None else tol)


class _Block(NamedTuple):
    """Approximate slow eigenmodes x, their images y = L⁻¹ x, and eigenvalues θ of L⁻¹.

    Two real trains stand for a complex pair: the real and the imaginary part of one of the two.
    """

    x: list[Cores]
    y: list[Cores]
    values: np.ndarray

    def residuals(self) -> list[Cores]:
        """Computes the residuals L⁻¹ x − θ x of a block of approximate slow eigenmodes."""
        out, j = [], 0
        while j < len(self.x):
            a, b = self.values[j].real, self.values[j].imag
            if b:
                u, v = self.x[j], self.x[j + 1]
                out.append(products.combined([self.y[j], u, v], [1.0, -a, b]))
                out.append(products.combined([self.y[j + 1], u, v], [1.0, -b, -a]))
            else:
                out.append(products.combined([self.y[j], self.x[j]], [1.0, -a]))
            j += 2 if b else 1
        return out

    def errors(self, residuals: list[Cores]) -> np.ndarray:
        """Computes relative residuals of slow eigenmodes; complex pairs share one."""
        size = np.array([overlaps.norm(x) for x in self.x])
        left = np.array([overlaps.norm(r) for r in residuals])
        for j in np.flatnonzero(np.imag(self.values) > 0):
            size[j : j + 2] = np.hypot(*size[j : j + 2])
            left[j : j + 2] = np.hypot(*left[j : j + 2])
        return left / (np.abs(self.values) * size)


def _iterated(
    inverse: _Inverse, first: list[Cores], count: int, tol: float
) -> tuple[_Block, np.ndarray]:
    """Computes slow eigenmodes by subspace iteration; returns them and their residuals."""
    xs = [inverse.of_no_mass(x) for x in first]
    ys = [inverse(x, x, inverse.tol) for x in xs]
    for k in range(_ITERATIONS):
        block = _projected(xs, ys, count, inverse.tol)
        residuals = block.residuals()
        errors = block.errors(residuals)
        if errors.max() <= tol:
            # Images were combined and rounded many times over: they are solved for anew.
            pairs = zip(block.x, block.y, strict=True)
            xs, ys = block.x, [inverse(x, y, inverse.tol) for x, y in pairs]
            block = _projected(xs, ys, count, inverse.tol)
            residuals = block.residuals()
            errors = block.errors(residuals)
        if errors.max() <= tol or k == _ITERATIONS - 1:
            break
        if len(xs) > _LARGEST * len(first):
            kept = _projected(xs, ys, len(first), inverse.tol)
            xs, ys = kept.x, kept.y
        # An error of the image of a direction counts as much as the share that modes take of it.
        accuracy = min(_COARSE, inverse.tol / min(float(errors.max()), 1.0))
        left = [r for r, error in zip(residuals, errors, strict=True) if error > tol]
        more = _normalized([inverse.of_no_mass(r, _COARSE) for r in left])
        xs, ys = [*xs, *more], [*ys, *(inverse(r, r, accuracy) for r in more)]
    return block, errors


def _projected(xs: list[Cores], ys: list[Cores], count: int, tol: float) -> _Block:
    """Computes Ritz vectors of slow eigenmodes in the span of trains x, given y = L⁻¹ x.

    By descending real part of λ = 1/θ among those that are near an eigenvalue: of what is far from
    all, θ may be anything. Of a pair both are kept.
    """
    gram, mixed, images = _gram(xs, xs), _gram(xs, ys), _gram(ys, ys)
    spectrum: Any = linalg.eig(np.linalg.lstsq(gram, mixed, _EQUAL)[0])
    values, vectors = spectrum
    size, left = (np.real(vectors.conj() * (g @ vectors)).sum(0) for g in (gram, images))
    left = np.maximum(left - np.abs(values) ** 2 * size, 0)
    safe = np.maximum(np.abs(values), 1e-300)
    near = np.sqrt(left / np.maximum(size, 1e-300)) < _NEAR * safe
    rates = 1 / np.where(np.abs(values) > 1e-300, values, 1e-300)
    last = ~near | (rates.real >= 0)
    order = np.lexsort((-values.imag, np.abs(rates), np.where(last, 0.0, -rates.real), last))
    out, found, j = ([], []), [], 0
    while len(found) < count and j < len(order):
        theta, c = values[order[j]], vectors[:, order[j]]
        j += 1
        if theta.imag < 0:
            continue
        parts = [c.real, c.imag] if theta.imag else [c.real]
        for trains, into in zip((xs, ys), out, strict=True):
            into += [_combined(trains, part / np.sqrt(size[order[j - 1]]), tol) for part in parts]
        found += [theta, theta.conj()][: len(parts)]
    return _Block(*out, np.array(found))


def _complex(block: _Block) -> list[Cores]:
    """Returns slow eigenmodes of norm one, complex pairs made of their real vectors."""
    states: list[Cores] = []
    for j, (x, theta) in enumerate(zip(block.x, block.values, strict=True)):
        if theta.imag > 0:
            x = products.combined([x, block.x[j + 1]], [1.0, 1j])
            x = [c.astype(np.complex128) for c in x]
        elif theta.imag < 0:
            x = [c.conj() for c in states[-1]]
        states.append(x)
    return _normalized(states)


def _judged(
    box: Box, parts: list[Cores], errors: np.ndarray, tol: float, cap: int | None, limits: Any
) -> tuple[Result, str]:
    """Returns the status of computed slow eigenmodes, with advice."""
    for j, x in enumerate(parts):
        edge, rough = (float(q) for q in shares_of(np, x, quadrature(box)))
        outside = unbounded_by(edge, rough, *limits)
        if outside[1]:
            return Result.unresolved, (
                f"mode {j} has a share {rough:.2g} of its norm in the highest third of the modes "
                "of an axis: take more points or a smaller box, or ask for fewer modes"
            )
        if outside[0]:
            return Result.edge_mass, (
                f"mode {j} has a share {edge:.2g} of its norm at the edge of the box: take a "
                "larger box, or ask for fewer modes"
            )
    if errors.max() <= tol:
        return Result.successful, ""
    if cap is not None and max(len(c) for x in parts for c in x) >= cap:
        return Result.max_rank, "the modes ask for ranks above max_rank: raise it, or tol"
    return Result.solver, (
        f"the residuals of the modes stay at {errors.max():.2g}: take a larger tol or k, a smaller "
        "box or one of fewer points, or coordinates in which ranks are lower"
    )


def _begun(p: Cores, box: Box, count: int) -> list[Cores]:
    """Returns initial guesses of slow eigenmodes: the stationary density times low monomials.

    In the coordinates of the grid, about the mean, of degrees up to what the count needs. Where
    there are more of a degree than are needed, sums of all: none of them must be missed.
    """
    lines = standard_coordinates(p, box)
    rng, out, degree = np.random.default_rng(0), [], 1
    while len(out) < count:
        powers = itertools.combinations_with_replacement(range(box.dim), degree)
        found = [times_coordinates(p, lines, axes) for axes in powers]
        left = count - len(out)
        if len(found) > left:
            found = [_combined(found, row) for row in rng.standard_normal((left, len(found)))]
        out, degree = out + found, degree + 1
    return _normalized(out)


def _combined(trains: list[Cores], weights: ArrayLike, tol: float = 1e-12) -> Cores:
    return rounding.rounded(products.combined(trains, list(np.asarray(weights))), tol)


def _normalized(trains: list[Cores]) -> list[Cores]:
    return [[x[0] / overlaps.norm(x), *x[1:]] for x in trains]


def _gram(xs: list[Cores], ys: list[Cores]) -> np.ndarray:
    return np.array([[overlaps.overlap(x, y) for y in ys] for x in xs])
