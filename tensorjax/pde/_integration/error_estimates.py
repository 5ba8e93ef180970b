"""Error estimates of a solution: by grid axis, bond and time step, and of mass and moments.

Of a spectral axis the norms of v in two bands of modes below the highest one tell how fast they
decay, and so what the next band, which the points do not hold, would have. Where coefficients other
than affine jump between the ends of a Fourier axis, products with them spread what is in the
highest band over all modes, and that band tells. Of finite differences
the modes tell by how much each is carried too slowly. What lies at the ends of an axis is cut off.

Source: ours. The bands were chosen on half of the drawn linear equations of
``tests/test_pde_accuracy.py``.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores import interfaces
from tensorjax._cores.contractions import absorb, times_mode, times_right
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._discretization.collocation_matrices import DISPERSION, frequencies, modes
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._observables.edge_and_resolution import mode_densities, quadrature, shares_of
from tensorjax.pde._stepping.low_moments import added_by_noise, largest
from tensorjax.pde._stepping.outskirts import edges, noisy_edge

# Bands of frequencies, over the highest one, whose norms are compared.
_LOW, _HIGH = (0.7, 0.85), (0.85, 1.0)
# Largest estimate of a success, in units of the tolerance, if nothing else is asked for.
ALLOWED = 10.0
# A state is coarse rather than cut off if the highest third of the modes of an axis holds more than
# this times the share at the edge.
ROUGH = 5
# Estimates below this may be roundoff.
LEAST_ESTIMATE = 1e-8
# The same at fixed ranks, which ask for no accuracy.
ALLOWED_STATIC = 0.05
# Error of a covariance over the share of the norm that causes it, about, for advice on points: far
# out it weighs as the distance squared.
_FAR = 100.0
# Points that are advised, over those there are, at least and at most.
_LEAST_FACTOR, _MOST_FACTOR = 1.1, 4.0


class GridErrors(NamedTuple):
    """Estimated relative errors that the grid leaves in a solution, one for each axis, (d,) each.

    Attributes:
      coarse: by the distance of the points.
      cut: norm of v on the outermost points, over that of v: by the ends of the box.
    """

    coarse: Any
    cut: Any


@functools.lru_cache(maxsize=32)
def looks(box: Box, varies: bool = False) -> tuple[tuple[Any, ...], ...]:
    """Returns the data of an error estimate for every axis: weights, modes, ends, dispersion.

    Args:
      box: of the grid.
      varies: whether drift or noise are other than affine.
    """
    out = []
    for axis in box.axes:
        f = frequencies(axis)
        low, high = ((f > a) & (f <= b + 1e-12) for a, b in (_LOW, _HIGH))
        slow = np.zeros(axis.n)
        if axis.kind == "finite differences":
            slow = np.minimum(DISPERSION[axis.order] * (np.pi * f) ** axis.order, 1.0)
        mixed = float(varies and axis.kind == "fourier")
        bands = low.astype(float), high.astype(float), slow**2, mixed
        out.append((axis.weights, modes(axis), axis.ends, *bands))
    return tuple(out)


def grid_errors(xp: Any, cores: Sequence[Any], axes: Sequence[tuple[Any, ...]]) -> GridErrors:
    """Estimates the errors that a grid leaves in a solution, axis by axis, in NumPy or JAX.

    ``axes`` are as `looks` returns them.
    """
    coarse, cut = [], []
    densities = mode_densities(xp, cores, [look[0] for look in axes])
    for (before, after, density, total), look in zip(densities, axes, strict=True):
        _, rows, ends, *bands, mixed = look
        energy = (times_mode(before, rows) * times_mode(after, rows)).sum((0, 2)) / total
        low, high, slow = (xp.sqrt(xp.maximum((energy * b).sum(), 0)) for b in bands)
        decay = xp.where(low > high, high / xp.where(low > 0, low, 1), 1)
        coarse.append(xp.maximum(high * xp.where(mixed > 0, 1.0, decay), slow))
        cut.append(xp.sqrt(xp.maximum((density * ends).sum() / total, 0)))
    return GridErrors(xp.stack(coarse), xp.stack(cut))


def inaccurate(
    cores: Cores,
    box: Box,
    t: float,
    tol: float,
    allowed: float,
    varies: bool = False,
    density: bool = False,
    amplified: Any = 1.0,
) -> str:
    """Explains which axis has too large an error estimate, why, and the remedy; else "".

    Args:
      cores: of v.
      box: its grid.
      t: its time; Inf for a stationary density.
      tol: of the run.
      allowed: largest estimated error of a success.
      varies: whether drift or noise are other than affine.
      density: whether v is one, whose covariance is to be right.
      amplified: by how much the error by the points of each axis is larger than the estimate.
    """
    found = grid_errors(np, cores, looks(box, varies))
    found = found._replace(coarse=amplified * found.coarse)
    noisy = [
        (share, k)
        for k, share, is_noise in (edges(cores, box) if density else ())
        if is_noise and box.axes[k].kind == "fourier"
    ]
    off = added_by_noise(cores, box, [k for _, k in noisy]) if noisy else 0.0
    if off > allowed >= found.cut.max():
        share, k = max(noisy)
        return (
            f"at t = {t:g} a share {share:.1g} of the norm of v lies at the ends of axis {k}, as "
            f"waves of the grid and no tail: covariances are off by about {off:.1g}, for accuracy ="
            f" {allowed:.1g} (tol = {tol:.1g}): take "
            f"{_advised_on(box, found, share, share * allowed / off)}, or a larger tol or accuracy"
        )
    if not max(found.coarse.max(), found.cut.max()) > allowed:
        return ""
    when = f"at t = {t:g} " if t < math.inf else ""
    asked = f"for accuracy = {allowed:.1g} (tol = {tol:.1g})"
    if found.cut.max() > found.coarse.max():
        k = int(np.argmax(found.cut))
        text = f"{when}a share {found.cut[k]:.1g} of the norm of v lies at the ends of axis "
        edge, rough = shares_of(np, cores, quadrature(box))
        if rough > ROUGH * edge or noisy_edge(cores, box) is not None:
            return (
                f"{text}{k}, {asked}, as waves of the grid and no tail: take "
                f"{_advised_on(box, found, found.cut[k], allowed)}, or a larger tol or accuracy"
            )
        return (
            f"{text}{k}, {asked}, and is cut off there: take a larger box, or a larger tol or "
            "accuracy"
        )
    k = int(np.argmax(found.coarse))
    return (
        f"{when}the points of axis {k} resolve the solution to a relative error of about "
        f"{found.coarse[k]:.1g}, {asked}: take {_advised(box.axes[k], found.coarse[k], allowed)} "
        "there, coordinates in which it is wider, or a larger tol or accuracy"
    )


def start_missed(errors: Any, box: Box, allowed: float) -> str:
    """Explains an error of the initial state by the points, if larger than allowed; else "".

    Args:
      errors: of the initial state's moments, of every axis; or None.
      box: of the grid.
      allowed: largest estimated error of a success.
    """
    k = 0 if errors is None else int(np.argmax(errors))
    if errors is None or not errors[k] > allowed:
        return ""
    more = _advised(box.axes[k], errors[k], allowed)
    return (
        f"the points of axis {k} miss {errors[k]:.1g} of the initial state's mass, mean or "
        f"covariance, for accuracy = {allowed:.1g}: take {more} there, a wider start, or a larger "
        "accuracy"
    )


def absolute_mass(cores: Cores, box: Box) -> float:
    """Computes a scale of error estimates, ∫ |v| dy, in which masses do not cancel.

    It is ‖v‖ times the root of the volume of the box in which v lies, whose sides are those of the
    density of v² along every axis: (∫ p dy)² / ∫ p² dy. Of a Gaussian it is the mass, times 0.84 an
    axis.
    """
    left, right = np.ones((1, 1)), [np.ones((1, 1))]
    pairs = list(zip(cores, box.weights, strict=True))
    weighted = [c * np.sqrt(np.maximum(w, 0))[:, None] for c, w in pairs]
    for core in weighted[::-1]:
        right.append(interfaces.right_overlap(right[-1], core, core))
    square = float(right[-1][0, 0])
    if not (math.isfinite(square) and square > 0):
        return 0.0
    for (_, weights), core, after in zip(pairs, weighted, right[-2::-1], strict=True):
        before, after = absorb(left, core), times_right(core, after)
        density = np.maximum((before * after).sum((0, 2)) / right[-1][0, 0], 0)
        square /= float((density**2 / np.where(weights > 0, weights, np.inf)).sum())
        left = bond_overlap(before, core)
    return math.sqrt(square)


def lossy(before: float, after: float, whole: float, t: float, allowed: float) -> str:
    """Explains the estimated error of the mass by a run, if larger than allowed; else "".

    Args:
      before: mass at the beginning.
      after: at the end.
      whole: ∫ |u| dx at the beginning, of which the change is a share where the mass cancels.
      t: its time.
      allowed: largest estimated error of a success.
    """
    if not abs(after - before) > allowed * max(abs(before), whole):
        return ""
    return (
        f"at t = {t:g} the mass is {after:.6g} and was {before:.6g} at first, for accuracy = "
        f"{allowed:.1g}: it leaves over the ends of an axis, or noise there comes in: take a "
        "larger box, more points, conserve=, or a larger accuracy"
    )


def moments_lost(lost: Any, box: Box, t: float, allowed: float, share: float = 1.0) -> str:
    """Explains the estimated error of second moments by TT rounding, if not allowed; else "".

    Args:
      lost: of the moments in `tensorjax.pde._stepping.low_moments`, over the mass, or None. All
        that v lacks counts, what was lost before a restart too.
      box: of the grid.
      t: the time.
      allowed: largest estimated error of a success.
      share: of the mass in ∫ |v| dy, where masses of either sign cancel.
    """
    axes = [k for k, a in enumerate(box.axes) if a.kind != "periodic"]
    size, (j, k) = (0.0, (0, 0)) if lost is None else largest(share * np.asarray(lost), len(axes))
    if not size > allowed:
        return ""
    name = (
        f"variance along axis {axes[k]}"
        if j == k
        else f"covariance of axis {axes[j]} and axis {axes[k]}"
    )
    return (
        f"at t = {t:g} truncation has changed the {name} by about {size:.1g} of its size, for "
        f"accuracy = {allowed:.1g}: take a smaller tol, or a larger accuracy"
    )


def advised(cores: Cores, box: Box, varies: bool, error: float, allowed: float) -> str:
    """Returns the points, and their axis, that would bring down an error estimate of a solution.

    Args:
      cores: of v.
      box: of the grid.
      varies: whether drift or noise are other than affine.
      error: the estimate, of moments.
      allowed: largest one of a success.
    """
    found = grid_errors(np, cores, looks(box, varies))
    return _advised_on(box, found, error / _FAR, allowed / _FAR)


def _advised_on(box: Box, found: GridErrors, error: float, allowed: float) -> str:
    """Returns the advised points, and their axis: the one that the points resolve worst."""
    j = int(np.argmax(found.coarse))
    return f"{_advised(box.axes[j], max(found.coarse[j], error), allowed)} on axis {j}"


def _advised(axis: Any, error: float, allowed: float) -> str:
    """Returns the number of points that would bring an axis's error estimate down, as a text."""
    if axis.kind == "finite differences":
        more = (error / allowed) ** (1 / axis.order)
    else:  # modes of a Gaussian fall as exp(−c n²)
        more = math.sqrt(math.log(max(allowed, 1e-15)) / math.log(min(error, 0.9)))
    if more > _MOST_FACTOR and axis.kind == "finite differences":
        return f'points of kind "fourier" or more than {_MOST_FACTOR * axis.n:.0f}'
    return f"about {axis.n * min(max(more, _LEAST_FACTOR), _MOST_FACTOR):.0f} points"


def bond_errors(xp: Any, cores: Sequence[Any]) -> Any:
    """Estimates the truncation errors that fixed TT-ranks leave at every bond, (d − 1,).

    The two smallest singular values at a bond tell how fast they decay, and so the next one. Zero
    where a bond holds everything, or is of rank one and tells nothing: there `rounded_off` tells.
    """
    shape = [c.shape[1] for c in cores]
    left, right = [xp.ones((1, 1), cores[0].dtype)], [xp.ones((1, 1), cores[0].dtype)]
    for core in cores:
        left.append(interfaces.left_overlap(left[-1], core, core))
    for core in cores[::-1]:
        right.append(interfaces.right_overlap(right[-1], core, core))
    total, out = left[-1][0, 0], []
    for k in range(1, len(cores)):
        rank = len(cores[k])
        if not 1 < rank < min(math.prod(shape[:k]), math.prod(shape[k:])):
            out.append(xp.zeros((), cores[0].dtype))
            continue
        values, vectors = xp.linalg.eigh(right[len(cores) - k])
        root = vectors * xp.sqrt(xp.maximum(values, 0))[None]
        last, before = xp.maximum(xp.linalg.eigvalsh(root.T @ left[k] @ root)[:2], 0)
        safe = xp.where((before > 0) & (total > 0), before * total, 1)
        out.append(xp.where(before > 0, last / xp.sqrt(safe), 0))
    return xp.stack(out) if out else xp.zeros(0, cores[0].dtype)


def static_errors(stats: dict[str, Any]) -> str:
    """Explains which axis, bond or step of a fixed-rank run has too large an error estimate.

    Args:
      stats: of the solution; arrays of a batch of runs have one more axis in front.
    """
    found = {
        name: np.max(stats[name], axis=tuple(range(np.ndim(stats[name]) - 1)))
        for name in ("coarse", "rank_error")
    }
    late, coarse = float(np.max(stats["time_error"])), found["coarse"].max()
    rank = found["rank_error"].max(initial=0.0)
    if late > max(coarse, rank):
        text = f"the steps leave a relative error of about {late:.1g}: take a smaller dt"
    elif rank > coarse:
        k = int(np.argmax(found["rank_error"]))
        # What rounding takes at a bond of rank one is summed over the steps.
        single = np.asarray(stats["ranks"]).reshape(-1, len(found["rank_error"]))[:, k].max() == 1
        about = "at most about" if single else "about"
        text = (
            f"the rank of bond {k}, between axes {k} and {k + 1}, leaves a relative error of "
            f"{about} {rank:.1g}: take higher ranks, or coordinates that follow the solution"
        )
    else:
        k = int(np.argmax(found["coarse"]))
        text = (
            f"the points of axis {k} resolve the solution to a relative error of about "
            f"{coarse:.1g}: take more points there, or coordinates in which it is wider"
        )
    return f"{text}, or a larger accuracy"
