"""Mass, means and covariances of trains, and their correction within the tangent space.

Truncation is a small error in L², but what it cuts lies spread over the box, where a function of
that norm has much mass, and a variance that is larger still by the square of the box over that of
the density. So has a tail that is set to zero. What a sum has of these moments before it is rounded
is known, and is restored by the smallest change that does so: polynomials of degree two, faded out
before the end of what is kept, and projected on the tangent space at v, so that no rank rises.

Source: W. Guo, J.-M. Qiu, "A conservative low rank tensor method for the Vlasov dynamics" (2022),
keep moments by parts of v that are left out of the truncation. Ours: the correction within the
tangent space, and its weighing against the tolerance.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores import contractions
from tensorjax._cores.contractions import absorb
from tensorjax._cores.orthogonalization import left_qr, right_orthogonal
from tensorjax._cores.unfoldings import Cores, tall
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._stepping.outskirts import above_noise, faded, profiles

# In more dimensions the mass alone is restored: with 66 moments in ten, a step takes some percent
# longer.
MOST_AXES = 10
# Polynomials are faded out as exp(−(x/a)^p), x from −1 to 1 over what is kept of an axis: well
# before the end of the box, where y·∇v would amplify them, and shortly before that of a window.
_IN_BOX, _IN_WINDOW = (0.6, 8), (0.85, 16)
# Moments are those of what is not next to the ends of the box: the same with other a and p.
_AT_ENDS = (0.9, 32)
# Moments may miss their values by this share of the tolerance where v would change by all of it.
_SHARE = 0.1
# Corrections of one step: each is exact but for terms of second order in the change.
_ROUNDS = 3


class Moments(NamedTuple):
    """Linear functionals of a density: its mass and first and second standardised moments.

    Attributes:
      powers: (m, d), exponents of every coordinate; the first is the mass.
      weights: of every axis, (n, m): a moment is the contraction of v with a column of each.
    """

    powers: np.ndarray
    weights: list[np.ndarray]

    @property
    def count(self) -> int:
        """Number m of a density's moments that TT rounding conserves."""
        return len(self.powers)

    def of(self, term: Any) -> np.ndarray:
        """Computes the moments (m,) of a tensor train or of a TT operator times a train."""
        f = np.ones((self.count, 1))
        for k in range(len(self.weights) - 1, -1, -1):
            f = term.right(k, f, self.weights[k])
        return f[:, 0]

    def of_train(self, cores: Cores) -> np.ndarray:
        """Computes the moments (m,) of a tensor train from its cores."""
        f = np.ones((self.count, 1))
        for core, w in zip(cores[::-1], self.weights[::-1], strict=True):
            f = _passed(core, f, w)
        return f[:, 0]


def mass_alone(box: Box) -> Moments:
    """Returns the functional of the mass ∫ v dy, as the only moment of a density."""
    return Moments(np.zeros((1, box.dim), int), [w[:, None] for w in box.weights])


def low_moments(cores: Cores, box: Box) -> Moments:
    """Builds the functionals of low moments: mass, means and (co)variances, standardised.

    On periodic axes there are none. They are the mass alone in many dimensions, and where v has no
    positive mass and variances.
    """
    axes = _unbounded(box)
    found = standardisation(cores, box, axes) if 0 < len(axes) <= MOST_AXES else None
    return mass_alone(box) if found is None else functionals(box, _up_to_two(box, axes), *found)


def added_by_noise(cores: Cores, box: Box, axes: Sequence[int]) -> float:
    """Computes by how much noise in the outskirts changes low moments of a density, at most.

    The largest change of the mass, a mean or a (co)variance, in units of the mass and of standard
    deviations, where v is faded out along some axes as soon as it is no larger than the noise. Zero
    where v has no positive mass and variances.

    Args:
      cores: of v, right-orthogonal but for the first.
      box: of the grid.
      axes: whose outskirts hold noise.
    """
    free = _unbounded(box)
    found = standardisation(cores, box, free)
    if found is None:
        return 0.0
    at = functionals(box, _up_to_two(box, free), *found, plain=True)
    inner = list(cores)
    for k, profile in enumerate(profiles(cores)):
        if k in axes:
            inner[k] = cores[k] * faded(len(profile), *above_noise(profile))[:, None]
    whole = at.of_train(cores)
    return float(np.abs(at.of_train(inner) - whole).max() / whole[0])


def _unbounded(box: Box) -> list[int]:
    """Returns the axes along which a density has means and variances: those not periodic."""
    return [k for k, axis in enumerate(box.axes) if axis.kind != "periodic"]


def _up_to_two(box: Box, axes: Sequence[int]) -> np.ndarray:
    """Returns the exponents (m, d) of the monomials of degree 0, 1 and 2 in some coordinates."""
    d, one = len(axes), np.eye(box.dim, dtype=int)[axes]
    powers = [np.zeros((1, box.dim), int), one, 2 * one]
    powers.extend(one[j : j + 1] + one[k : k + 1] for j in range(d) for k in range(j + 1, d))
    return np.concatenate(powers)


def standardisation(
    cores: Cores, box: Box, axes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Computes centre and scale (d,) of standardised low moments; None unless all are positive."""
    center, scale = np.zeros(box.dim), np.ones(box.dim)
    axes = list(axes)
    raw = _raw(box, tuple(axes)).of_train(cores)
    with np.errstate(all="ignore"):
        mean, square = np.split(raw[1:] / raw[0], 2)
        center[axes], scale[axes] = mean, np.sqrt(square - mean**2)
    positive = raw[0] > 0 and np.isfinite(scale).all() and (scale > 0).all()
    return (center, scale) if positive else None


@functools.lru_cache(maxsize=32)
def _raw(box: Box, axes: tuple[int, ...]) -> Moments:
    """Builds the functionals of 1, y and y² along some axes, for centre and scale of a density."""
    one = np.eye(box.dim, dtype=int)[list(axes)]
    powers = np.concatenate([np.zeros((1, box.dim), int), one, 2 * one])
    return functionals(box, powers, np.zeros(box.dim), np.ones(box.dim), plain=True)


def functionals(
    box: Box, powers: np.ndarray, center: np.ndarray, scale: np.ndarray, plain: bool = False
) -> Moments:
    """Builds functionals of low moments: products of powers of t = (y − center)/scale.

    Args:
      box: of the grid.
      powers: (m, d), exponents of every coordinate.
      center: (d,).
      scale: (d,).
      plain: whether they are these, over the whole box; else t² − 1 stands for the square, and all
        but the mass fade at ends without walls.
    """
    weights, higher = [], powers.any(1)
    for k, axis in enumerate(box.axes):
        t = (axis.points - center[k]) / scale[k]
        values = np.stack([np.ones(axis.n), t, t**2 - (not plain)], 1)
        weights.append(axis.weights[:, None] * values[:, powers[:, k]])
        if not plain:
            # The mass is that of the whole box.
            weights[-1] *= np.where(higher, _inside(axis)[:, None], 1.0)
    return Moments(powers, weights)


@functools.lru_cache(maxsize=64)
def _inside(axis: Any) -> np.ndarray:
    """Returns weights (n,) of low moments that fade from 1 to 0 at ends without walls.

    There y and its powers jump, and derivatives across that seam take noise at the edge for moments
    many times as large.
    """
    x = (2 * np.arange(axis.n) + 1 - axis.n) / axis.n
    low, high = (axis.kind == "laguerre", False) if axis.walls is None else (True, True)
    width, power = _AT_ENDS
    fades = np.exp(-((x / width) ** power))
    return np.where(((x < 0) & low) | ((x > 0) & high), 1.0, fades)


def largest(lost: np.ndarray, dim: int) -> tuple[float, tuple[int, int]]:
    """Returns the largest loss among a density's second moments, and the two axes of it.

    Args:
      lost: of the `Moments` of a density with that many axes none of which is periodic, or fewer.
      dim: number of those axes.
    """
    pairs = [(k, k) for k in range(dim)]
    pairs += [(j, k) for j in range(dim) for k in range(j + 1, dim)]
    seconds = np.abs(lost[1 + dim :])
    if not len(seconds):
        return 0.0, (0, 0)
    k = int(np.argmax(seconds))
    return float(seconds[k]), pairs[k]


def _passed(core: Any, f: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Contracts a core (r, n, s) with low moments' weights (n, m) and a right side: (m, r)."""
    return contractions.functionals(core, f, w)


class Corrected(NamedTuple):
    """Tensor train corrected to given moments, with the moments reached.

    Attributes:
      cores: right-orthogonal but for the first.
      moments: (m,), of the cores.
    """

    cores: Cores
    moments: np.ndarray


def corrected(
    cores: Cores, at: Moments, target: np.ndarray, tol: float, found: np.ndarray | None = None
) -> Corrected:
    """Corrects a tensor train to given moments at the same TT-ranks, within ``tol`` of its norm.

    With h_b polynomials that are faded out, w_a the moments and P the projection on the tangent
    space at v, the coefficients c of the change Σ c_b P h_b minimise the sum of squares of what the
    moments lack, over a tenth of ``tol`` times the mass, and of the norm of the change, over
    ``tol`` ‖v‖: moments that the tangent space does not reach remain as they are. The parts of P
    are added core by core, each at what the cores before have become. Where singular values of v
    are as small as the change, that may change v by more than was planned: then each core gets the
    coefficients that serve it best. The largest lack never grows.

    Args:
      cores: right-orthogonal but for the first.
      at: the moments.
      target: (m,), the values they should have.
      tol: largest change, over ‖v‖.
      found: (m,), their values now, if known.
    """
    found = at.of_train(cores) if found is None else found
    shapes = _shapes(cores, at)
    allowed = tol * float(np.linalg.norm(cores[0]))
    small = _SHARE * tol * abs(float(target[0]))
    for _ in range(_ROUNDS):
        lacks = target - found
        if not np.abs(lacks).max() > small or not allowed > 0:
            break
        new, reached, size = _added(cores, at, shapes, lacks, small, allowed, joint=True)
        if size > 2 * allowed or not np.abs(target - reached).max() < np.abs(lacks).max():
            new, reached, size = _added(cores, at, shapes, lacks, small, allowed, joint=False)
        if not np.abs(target - reached).max() < np.abs(lacks).max():
            break
        cores, found = right_orthogonal(new, scale=False)[0], reached
        allowed -= min(size, allowed)
    return Corrected(cores, found)


def _added(
    cores: Cores,
    at: Moments,
    shapes: Sequence[np.ndarray],
    lacks: np.ndarray,
    small: float,
    allowed: float,
    joint: bool,
) -> tuple[Cores, np.ndarray, float]:
    """Adds one moment correction to a tensor train, core by core.

    Args:
      cores: right-orthogonal but for the first.
      at: the moments.
      shapes: the functions h_b.
      lacks: (m,), what each moment lacks.
      small: lack that weighs as much as a change of norm ``allowed``.
      allowed: norm of the change.
      joint: whether all cores get the same coefficients, those of the least change, and what is
        lacking in the end is asked of the last one; else each gets those that are best for it
        alone, and the changes add up to ``allowed`` at most.

    Returns:
      The cores, left-orthogonal but for the last, their moments, and the norm of the change or a
      bound of it.
    """
    share, ahead = None, _ahead(cores, at, shapes)
    if joint:
        parts = list(_sweep(cores, at, shapes, ahead))
        gain = np.sum([p.gain for p in parts], axis=0)
        square = np.sum([p.square for p in parts], axis=0)
        share = _balanced(gain, square, lacks, small, allowed)[0]
    spent = 0.0

    def chosen(part: _Part, last: bool) -> np.ndarray:
        nonlocal lacks, spent
        own = np.zeros(at.count) if share is None else share
        if share is None or last:
            most = max(allowed - spent, 0.0) if share is None else allowed
            rest = lacks - part.gain @ own
            own = own + _balanced(part.gain, part.square, rest, small, most)[0]
        lacks = lacks - part.gain @ own
        spent += math.sqrt(max(own @ part.square @ own, 0.0))
        return own

    *others, end = _sweep(cores, at, shapes, ahead, chosen)
    return [*(part.core for part in others), end.core], end.seen @ end.core.ravel(), spent


def _balanced(
    gain: np.ndarray, square: np.ndarray, lacks: np.ndarray, small: float, allowed: float
) -> tuple[np.ndarray, float]:
    """Solves for a moment correction c: min |gain c − lacks|²/small² + cᵀ square c/allowed².

    Returns:
      c, with a norm (cᵀ square c)^½ of at most ``allowed``, and that norm.
    """
    if not allowed > 0:
        return np.zeros(len(lacks)), 0.0
    values, vectors = np.linalg.eigh(square)
    root = vectors * np.sqrt(np.maximum(values, 0))
    rows = np.concatenate([gain / small, root.T / max(allowed, 1e-300)])
    share = np.linalg.lstsq(rows, np.concatenate([lacks / small, 0 * lacks]))[0]
    norm = float(np.linalg.norm(root.T @ share))
    share = share * min(1.0, allowed / norm) if norm > 0 else share
    return share, min(norm, allowed)


def _shapes(cores: Cores, at: Moments) -> list[np.ndarray]:
    """Builds per axis the functions (n, m) of which a density's moment corrections are products.

    They are zero where the train is.
    """
    out = []
    for weights, density, periodic in zip(
        at.weights, profiles(cores), np.all(at.powers == 0, axis=0), strict=True
    ):
        held = np.flatnonzero(density > 0)
        if periodic or not len(held):
            out.append(weights)
            continue
        first, last = held[0], held[-1] + 1
        x = (2 * np.arange(len(density)) + 1 - first - last) / (last - first)
        width, power = _IN_BOX if last - first == len(density) else _IN_WINDOW
        fades = np.where(np.abs(x) < 1, np.exp(-((x / width) ** power)), 0.0)
        out.append(weights * fades[:, None])
    return out


class _Part(NamedTuple):
    """Change of one core in a moment correction, by tangent projections P h_b of functions h_b.

    Attributes:
      gain: what each part adds to each moment, (m, m).
      square: inner products of the parts, (m, m).
      core: the new core.
      change: of the core for every b, (m, r n), times what follows it, (m, s).
      after: what follows it.
      seen: moments of what precedes the core and of its mode, (m, r n).
    """

    gain: np.ndarray
    square: np.ndarray
    core: Any
    change: np.ndarray
    after: np.ndarray
    seen: np.ndarray

    def added(self, share: np.ndarray) -> Any:
        """Computes the change of a core for given coefficients (m,) of the moment correction."""
        flat = (self.change * share[:, None]).T @ self.after
        return flat.reshape(self.core.shape)


def _ahead(
    cores: Cores, at: Moments, shapes: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Contracts what follows each core with the moments and with the functions h_b: (m, s) each."""
    right = after = np.ones((at.count, 1))
    out = [(right, after)]
    for core, w, h in zip(cores[:0:-1], at.weights[:0:-1], shapes[:0:-1], strict=True):
        right, after = _passed(core, right, w), _passed(core, after, h)
        out.append((right, after))
    return out[::-1]


def _sweep(
    cores: Cores,
    at: Moments,
    shapes: Sequence[np.ndarray],
    ahead: Sequence[tuple[np.ndarray, np.ndarray]],
    chosen: Callable[[_Part, bool], np.ndarray] | None = None,
) -> Iterator[_Part]:
    """Yields, core by core, the tangent projections P h_b of a moment correction's functions.

    All cores but the last come out left-orthogonal.

    Args:
      cores: right-orthogonal but for the first.
      at: the moments.
      shapes: the functions h_b.
      ahead: see `_ahead`.
      chosen: returns the coefficients (m,) of what is added to a core, given its part and whether
        it is the last; None for nothing.
    """
    left = seen = np.ones((at.count, 1))
    core = cores[0]
    for k, (w, h) in enumerate(zip(at.weights, shapes, strict=True)):
        right, after = ahead[k]
        part = (left[:, :, None] * w.T[:, None]).reshape(at.count, -1)
        whole = (seen[:, :, None] * h.T[:, None]).reshape(at.count, -1)
        last = k == len(cores) - 1
        change = whole
        if not last:
            frame, rest = left_qr(core)
            u = tall(frame)
            change = whole - (whole @ u) @ u.T
        gain = (part @ change.T) * (right @ after.T)
        square = (change @ change.T) * (after @ after.T)
        found = _Part(gain, square, core, change, after, part)
        if chosen is not None:
            core = core + found.added(chosen(found, last))
        if last:
            yield found._replace(core=core)
            return
        q, rest = (frame, rest) if chosen is None else left_qr(core)
        yield found._replace(core=q)
        basis = tall(q)
        left, seen = part @ basis, whole @ basis
        core = absorb(rest, cores[k + 1])
