"""Closed forms of stationary densities (affine drift, detailed balance) and of slow modes.

Slow modes of affine drift are derivatives of the stationary Gaussian.
"""

import heapq
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores import overlaps, products
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._discretization.affine_operators import affine_generator
from tensorjax.pde._discretization.grid import Box, ends
from tensorjax.pde._function_trains import cross_approximation
from tensorjax.pde._function_trains.cross_approximation import crossed, drawn
from tensorjax.pde._function_trains.initial_states import Gaussian
from tensorjax.pde._long_times import linear_systems
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.fokker_planck import FokkerPlanck
from tensorjax.pde._problems.ornstein_uhlenbeck import (
    SINGULAR,
    OrnsteinUhlenbeck,
    stationary_gaussian,
)
from tensorjax.pde._problems.problem import Problem

# Nodes of the integrals of a drift along rays (exact up to degree 2n − 1), of which the fewest are
# taken that differ by less than this from twice as many; points of tests.
_NODES, _EXACT, _TESTS = (2, 4, 8, 16, 32), 1e-11, 64
# Ascents to tops of a density, their steps; largest error there over the top; logarithm of the
# largest value of a density, over the largest that ascents have found.
_ASCENTS, _CLIMBS, _MISSED, _HIGHEST = 100, 60, 1e-5, 50.0
# Central differences: step over the width of the box; relative errors that a test lets pass.
_STEP, _CLOSE = 1e-4, 1e-6
# Densities in closed form are more accurate than asked for by this: L amplifies what is left out.
# What roundoff allows; the error of a first approximation, that tells where a density is large.
_FINER, _FINEST, _COARSE = 1e-3, 1e-10, 1e-3
# Largest rank of a density in closed form that is worth its price.
_MOST_RANK = 300
# Imaginary parts of eigenvalues that are real.
_REAL = 1e-12
# Eigenvectors, relative distances of eigenvalues: below this roundoff may have split those of one.
_SAME = 2e-5


class Known(NamedTuple):
    """Stationary density in closed form and coordinates in which its TT-ranks are low, if known.

    Attributes:
      map: coordinates chosen for the density; None for those given.
      cores: of the density, but for a factor; None if there is no closed form of low rank.
    """

    map: AffineMap | None = None
    cores: Cores | None = None


def known(
    problem: Problem, tol: float, map: AffineMap | None, cap: int | None, seconds: float
) -> Known:
    """Finds the closed form of a stationary density, and low-rank coordinates if none are given.

    In one or two dimensions nothing is looked for: linear systems are solved at once there. After
    so many ``seconds`` of processor time no more values of a density are computed.
    """
    if problem.dim < 3:
        return Known()
    tol = max(_FINER * tol, _FINEST)
    density = gaussian(problem)
    if density is not None:
        chosen = independent(density) if map is None else None
        at = chosen or map
        assert at is not None
        if max(density.ranks(tol, at)) > (cap or _MOST_RANK):
            return Known(chosen)
        return Known(chosen, density.cores(problem.box, at, tol))
    found = equilibrium(problem)
    if found is None:
        return Known()
    at, most = map or AffineMap.identity(problem.dim), cap or _MOST_RANK
    cores = found.cores(problem.box, at, tol, most, seconds)
    if cores is None or max(len(c) for c in cores) > most:
        return Known()
    return Known(None, cores)


def gaussian(problem: Problem) -> Gaussian | None:
    """Finds the closed form of a stationary density for affine drift, a Gaussian.

    None for another problem, for walls and periodic axes, or where there is no such density.
    """
    if not isinstance(problem, OrnsteinUhlenbeck | FokkerPlanck) or not problem.box.movable:
        return None
    if isinstance(problem, FokkerPlanck) and not problem._affine:
        return None
    if problem.matrix is None or problem.diffusion is None:
        return None
    return stationary_gaussian(problem.matrix, problem.offset, problem.diffusion)


def independent(density: Gaussian) -> AffineMap:
    """Returns the map that makes a closed-form stationary Gaussian a product of densities.

    Every coordinate keeps its mean and its standard deviation, so that a box holds the density as
    before: y − m = S R^(−1/2) S⁻¹ (x − m), with S the deviations and R the correlations.
    """
    scale = np.sqrt(np.diag(density.covariance))
    values, vectors = np.linalg.eigh(density.covariance / np.outer(scale, scale))
    matrix = scale[:, None] * (vectors / np.sqrt(values) @ vectors.T) / scale
    return AffineMap(matrix, density.mean - matrix @ density.mean)


class _LateError(ValueError):
    """Signal that values of a density in closed form take longer than is allowed."""


class Equilibrium(NamedTuple):
    """Closed form exp(φ) of a stationary density in detailed balance, by the gradient g = ∇φ.

    Attributes:
      gradient: g, maps points (m, d) to (m, d).
      center: where the rays begin along which g is integrated.
      nodes: of these integrals.
    """

    gradient: Callable[[np.ndarray], np.ndarray]
    center: np.ndarray
    nodes: int

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Integrates the gradient of a closed-form log-density φ along rays: φ(x) − φ(center)."""
        s, weights = np.polynomial.legendre.leggauss(self.nodes)
        ray = x - self.center
        along = self.center + (s[:, None, None] + 1) / 2 * ray
        g = self.gradient(along.reshape(-1, x.shape[1])).reshape(along.shape)
        return weights / 2 @ np.vecdot(g, ray)

    def cores(
        self, box: Box, map: AffineMap, tol: float, most: int, seconds: float
    ) -> Cores | None:
        """Approximates a closed-form equilibrium density by a tensor train; None if that fails.

        Cross approximation may miss a well. Its train is compared with the density at the tops
        that ascents from all over the box reach. It is given up where it takes ranks above
        ``most``, or longer than ``seconds`` of processor time, looked at with every batch.
        """
        end = time.process_time() + seconds
        low, high = ends(box)
        y = self._ascended(np.random.default_rng(0).uniform(low, high, (_ASCENTS, box.dim)), map)
        y = y[((y >= low) & (y <= high)).all(1)]
        if not len(y):
            return None
        index = [
            np.abs(a.points - c[:, None]).argmin(1) for a, c in zip(box.axes, y.T, strict=True)
        ]
        at = np.stack([a.points[i] for a, i in zip(box.axes, index, strict=True)], 1)
        logs = self.log_density(map.inverse(at))
        top = float(logs.max())

        def density(y: np.ndarray) -> np.ndarray:
            if time.process_time() > end:
                raise _LateError("density: expected values within the time allowed, got more")
            return np.exp(np.minimum(self.log_density(map.inverse(y)) - top, _HIGHEST))

        try:
            first = crossed("density", density, box.points, _COARSE, max_rank=most)
            draw = cross_approximation.from_train(first, tol)
            cores = drawn("density", density, box.points, tol, draw)
        except ValueError:
            return None
        missed = cross_approximation.entries(cores, np.stack(index, 1)) - np.exp(logs - top)
        return cores if np.abs(missed).max() <= _MISSED else None

    def _ascended(self, y: np.ndarray, map: AffineMap) -> np.ndarray:
        """Moves points y up to maxima of a closed-form equilibrium density by gradient ascent."""
        x = map.inverse(y)
        step = np.full(len(x), np.ptp(x, axis=0).max() / 8)
        value = self.log_density(x)
        for _ in range(_CLIMBS):
            g = self.gradient(x)
            size = np.maximum(np.linalg.norm(g, axis=1), 1e-300)
            there = x + (step / size)[:, None] * g
            new = self.log_density(there)
            better = new > value
            x, value = np.where(better[:, None], there, x), np.where(better, new, value)
            step = np.where(better, step * 1.2, step / 2)
        return map.forward(x)


def equilibrium(problem: Problem) -> Equilibrium | None:
    """Finds the closed form of a stationary Fokker–Planck density in detailed balance.

    Where all coordinates have noise it is that of a gradient: g = D⁻¹ a for the drift a. Where some
    have none (positions q) and all others do (momenta p), time reversal turns p round: the part of
    a that is then odd damps, and has to be D g; for the other one, ∇·a + a·g = 0 at all p gives
    the slopes along q. Whether exp φ is stationary, and whether g is a gradient, is tested at
    points of the box.

    None for other equations, and without detailed balance.

    Source: H. Risken, "The Fokker–Planck Equation" (Springer, 1989), section 6.4.
    """
    if not isinstance(problem, FokkerPlanck) or not problem.box.movable or problem.timed:
        return None
    if problem.noise.variable or problem.diffusion is None:
        return None
    d = np.asarray(problem.diffusion, np.float64)
    noisy = np.diag(d) > 0
    spread = d[np.ix_(noisy, noisy)]
    if np.linalg.eigvalsh(spread)[0] <= SINGULAR * np.linalg.eigvalsh(spread)[-1]:
        return None
    inverse = np.linalg.inv(spread)

    def gradient(x: np.ndarray) -> np.ndarray:
        if noisy.all():
            return problem.velocity(x) @ inverse
        return _of_momenta(problem.velocity, inverse, noisy, x)

    low, high = ends(problem.box)
    rng = np.random.default_rng(1)
    # Points of the middle and of the whole box: where the density is, and what confines it.
    middle, half = (low + high) / 2, (high - low) / 2
    x = middle + half * rng.uniform(-1, 1, (_TESTS, len(d))) * rng.uniform(0, 1, (_TESTS, 1))
    with np.errstate(all="ignore"):
        values = [Equilibrium(gradient, middle, n).log_density(x) for n in _NODES]
        for n, one, more in zip(_NODES, values, values[1:], strict=False):
            if np.abs(one - more).max() <= _EXACT * np.abs(more).max():
                found = Equilibrium(gradient, middle, n)
                return found if _holds(problem, d, found, x, _STEP * half) else None
    return None


def _of_momenta(velocity: Any, inverse: np.ndarray, noisy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Computes ∇ log p of a closed-form density p of positions and momenta (Kramers)."""
    turn = np.where(noisy, -1.0, 1.0)
    out = np.zeros_like(x)
    out[:, noisy] = _damping(velocity, turn, x)[:, noisy] @ inverse
    # ∇·a_r + a_r·g = 0 for the reversible part a_r, at the same q and several p.
    count = int(noisy.sum())
    probes = np.concatenate([np.eye(count), -np.eye(count), np.ones((1, count))])
    rows, right = [], []
    for p in probes:
        at = x.copy()
        at[:, noisy] = p
        part = velocity(at) - _damping(velocity, turn, at)
        push = _damping(velocity, turn, at)[:, noisy] @ inverse
        rows.append(part[:, ~noisy])
        right.append(-np.vecdot(part[:, noisy], push))
    a, b = np.stack(rows, 1), np.stack(right, 1)
    out[:, ~noisy] = (np.linalg.pinv(a) @ b[:, :, None])[:, :, 0]
    return out


def _damping(velocity: Any, turn: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Computes the drift part irreversible under reversal of momenta, for a closed-form density."""
    return (velocity(x) + turn * velocity(turn * x)) / 2


def _holds(problem: Any, d: np.ndarray, found: Equilibrium, x: np.ndarray, step: Any) -> bool:
    """Tests at points whether a closed form exp φ, of given g = ∇φ, is a stationary density."""
    g, a = found.gradient(x), problem.velocity(x)
    slope, spread, divergence = np.zeros_like(g), np.zeros(len(x)), np.zeros(len(x))
    for k, h in enumerate(step):
        ahead, behind = x + h * np.eye(len(d))[k], x - h * np.eye(len(d))[k]
        curve = (found.gradient(ahead) - found.gradient(behind)) / (2 * h)
        slope[:, k] = (found.log_density(ahead) - found.log_density(behind)) / (2 * h)
        divergence += (problem.velocity(ahead) - problem.velocity(behind))[:, k] / (2 * h)
        spread += curve @ d[k]
    parts = np.stack([spread, np.vecdot(g, g @ d), -divergence, -np.vecdot(a, g)])
    size = np.abs(parts).sum(0)
    left = np.abs(parts.sum(0)) / np.maximum(size + size.mean(), 1e-300)
    bent = np.abs(slope - g).max() / np.maximum(np.abs(g).max(), 1e-300)
    return bool(left.max() < _CLOSE and bent < _CLOSE)  # not so of NaN


class Mode(NamedTuple):
    """Slow eigenmode in closed form for affine drift: real and imaginary part as tensor trains."""

    real: Cores
    imag: Cores | None


def derivatives_of_gaussian(
    matrix: Any, p: Cores, box: Box, map_matrix: Any, count: int
) -> list[tuple[complex, Mode]]:
    """Computes slow modes in closed form for affine drift: derivatives of the Gaussian p.

    With A w = λ w, L (w·∇) p = λ (w·∇) p, and products of such derivatives have sums of
    eigenvalues. Of a complex pair the mode of positive imaginary part stands for both.

    Args:
      matrix: A, (d, d), stable.
      p: cores of the stationary density on the grid y = Γ x + s.
      box: of the grid.
      map_matrix: Γ.
      count: of modes, where a pair counts as two; one more where that would cut a pair in two.

    Returns:
      Pairs (eigenvalue, mode).

    Source: D. Liberzon, R. Brockett, "Spectral analysis of Fokker–Planck and related operators
    arising from linear stochastic differential equations", SIAM J. Control Optim. 38 (2000).
    """
    spectrum: Any = np.linalg.eig(np.asarray(matrix, np.float64))
    order = np.lexsort((-spectrum[0].imag, -spectrum[0].real))
    values, vectors = _independent(spectrum[0][order], spectrum[1][:, order])
    vectors = np.asarray(map_matrix) @ vectors
    out, found = [], 0
    for index in slowest(-values.real, 2 * count):
        rate = complex(values[list(index)].sum())
        real = abs(rate.imag) <= _REAL * abs(rate)
        if found >= count or (rate.imag < 0 and not real):
            continue
        mode = Mode(p, None)
        for k in index:
            mode = _derived(box, vectors[:, k], mode)
        out.append((complex(rate.real) if real else rate, _larger(mode) if real else mode))
        found += 1 if real else 2
    return out


def _independent(values: Any, vectors: Any) -> tuple[Any, Any]:
    """Leaves out closed-form slow modes that earlier ones of the same eigenvalue span.

    A matrix that lacks eigenvectors seems to have them, apart by the root of roundoff, and a real
    eigenvalue of it may come as a complex pair.
    """
    kept: list[int] = []
    left_out: list[complex] = []
    for k, value in enumerate(values):
        near = [j for j in kept if abs(values[j] - value) <= _SAME * abs(value)]
        basis = np.linalg.qr(vectors[:, near])[0]
        rest = vectors[:, k] - basis @ (basis.conj().T @ vectors[:, k])
        if near and np.linalg.norm(rest) <= _SAME:
            left_out.append(complex(value))
        else:
            kept.append(k)
    values, vectors = values[kept].astype(complex), vectors[:, kept].astype(complex)
    for k, value in enumerate(values):
        if value.imag and value.conjugate() in left_out and value.conjugate() not in values:
            real, imag = vectors[:, k].real, vectors[:, k].imag
            larger = real if np.linalg.norm(real) >= np.linalg.norm(imag) else imag
            values[k], vectors[:, k] = value.real, larger / np.linalg.norm(larger)
    return values, vectors


def slowest(rates: np.ndarray, count: int) -> list[tuple[int, ...]]:
    """Lists the closed-form rates of slow modes, smallest sums of given rates, by their indices."""
    heap: list[tuple[float, tuple[int, ...]]] = [(float(rates[0]), (0,))]
    out: list[tuple[int, ...]] = []
    while len(out) < count:
        total, index = heapq.heappop(heap)
        out.append(index)
        heapq.heappush(heap, (total + float(rates[index[-1]]), (*index, index[-1])))
        if index[-1] + 1 < len(rates):
            after = index[-1] + 1
            moved = total - float(rates[index[-1]]) + float(rates[after])
            heapq.heappush(heap, (moved, (*index[:-1], after)))
    return out


def _derived(box: Box, direction: Any, mode: Mode) -> Mode:
    """Differentiates a closed-form eigenmode along a complex direction of the coordinates y."""
    parts = direction.real, direction.imag
    out: list[list[Cores]] = [[], []]
    for i, along in enumerate(parts):
        for j, train in enumerate(mode):
            if train is None or not np.any(along):
                continue
            operator = hosted_cores(affine_generator(box, None, along, None))
            new = products.matvec(operator, train)
            out[(i + j) % 2].append([-new[0], *new[1:]] if i and j else new)
    real, imag = (
        linear_systems.summed(terms, [1.0] * len(terms)) if terms else None for terms in out
    )
    if real is None:  # a factor i does not matter
        assert imag is not None
        return Mode(imag, None)
    return Mode(real, imag)


def _larger(mode: Mode) -> Mode:
    """Returns the larger part, real or imaginary, of a closed-form mode of a real eigenvalue."""
    if mode.imag is None or overlaps.norm(mode.real) >= overlaps.norm(mode.imag):
        return Mode(mode.real, None)
    return Mode(mode.imag, None)
