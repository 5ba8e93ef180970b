"""Rounding of sums of trains and operator-train products on the host, by random sketches.

What `tt.linear_combination` does with a tolerance, for the inner loop of an integrator: operators
come as few small matrices per mode, Σ_p C[a, p, b] O_p (a generator of a partial differential
equation has five: 1, y, ∂, y∂, ∂²), so that applying one of rank R to a train of rank r costs
O(R² r n + R r² n w) for a sketch of width w and not O(R² r n² w); and the widths of the sketches
are those that the last step needed.

Source: H. Al Daas et al., "Randomized algorithms for rounding in the tensor-train format", SIAM J.
Sci. Comput. 45 (2023), algorithm 3.2. Ours: the factored operators, the random train (that of
`tensorjax.tt._rounding.sums_by_sketches_or_grams`), and the rule for the widths.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.contractions import (
    absorb,
    applied_from_left,
    applied_functionals,
    functionals,
    times_right,
)
from tensorjax._cores.ranks import cut_ranks
from tensorjax._cores.unfoldings import Cores, tall

Array = Any
# Oversampling: columns of a sketch beyond the expected rank, and columns that must remain unused.
_SPARE, _LEFT_OVER = 5, 2
# Singular values down to this share of the truncation threshold must lie inside the sketch.
_SEEN = 0.2
# Columns of the sketch that estimates a norm.
_PROBES = 24


class Train:
    """Tensor train as a term of a time step's sum, which is rounded by random sketches.

    ``whole`` is the term of which it is the part in a window, for its mass; itself if None.
    """

    def __init__(self, cores: Cores, whole: "Term | None" = None):
        self.cores = cores
        self.whole = whole or self
        self.ranks = self.inner = [c.shape[0] for c in cores]
        self.modes = [c.shape[1] for c in cores]

    def right(self, k: int, f: Array, omega: Array) -> Array:
        """Updates the random sketch (w, r) of a tensor train from bond k + 1 to bond k."""
        return functionals(self.cores[k], f, omega)

    def flat(self, k: int, w: Array) -> Array:
        """Multiplies a matrix (f, r) by core k of a train in a sketched sum; returns (f n, s)."""
        return tall(absorb(w, self.cores[k]))


class Applied:
    """Product of an operator and a tensor train, as a term of a sum rounded by random sketches.

    Args:
      coefficients: C of every mode, (a, P, b).
      images: O_p times the core, of every mode: (P, r, n, s).
      whole: as of `Train`.

    A flat bond is a pair (rank of the train, rank of the operator).
    """

    def __init__(
        self, coefficients: Sequence[Array], images: Sequence[Array], whole: "Term | None" = None
    ):
        self.whole = whole or self
        self.coefficients = coefficients
        self.images = images
        self.ranks = [i.shape[1] * c.shape[0] for i, c in zip(images, coefficients, strict=True)]
        self.inner = [i.shape[1] for i in images]
        self.modes = [i.shape[2] for i in images]

    def right(self, k: int, f: Array, omega: Array) -> Array:
        return applied_functionals(self.coefficients[k], self.images[k], f, omega)

    def flat(self, k: int, w: Array) -> Array:
        return applied_from_left(self.coefficients[k], self.images[k], w)


Term = Train | Applied


class Rounded(NamedTuple):
    """Sum of trains rounded by random sketches: cores, norm, and whether the rank cap was reached.

    Attributes:
      cores: right-orthogonal but for the first.
      norm: of the result.
      capped: whether the tolerance asked for higher ranks than ``cap``.
    """

    cores: Cores
    norm: float
    capped: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        """TT-ranks of the interior bonds of a sum rounded by random sketches."""
        return tuple(len(c) for c in self.cores[1:])


class Runaway(ArithmeticError):
    """Error raised if rounding a sum by random sketches needs ranks above a limit."""

    def __init__(self, cores: Cores):
        super().__init__(f"ranks {[len(c) for c in cores[1:]]} exceed the limit")
        self.cores = cores


def rounded(
    terms: Sequence[Term],
    weights: Sequence[float],
    tol: float,
    guess: Sequence[int] | None = None,
    *,
    cap: int | None = None,
    scale: float | None = None,
    limit: int | None = None,
) -> Rounded:
    """Rounds a sum of tensor trains and operator products to ``tol``, by random sketches.

    Args:
      terms: of the same modes.
      weights: one for each.
      tol: ‖error‖ over the scale; the ranks follow from it.
      guess: ranks expected, d−1, by which the sketches are as wide as they need to be; those of the
        trains if None.
      cap: of the ranks.
      scale: in whose units ``tol`` is; the norm of the sum if None.
      limit: ranks above it are not worked out.

    Raises:
      Runaway: the limit is passed.

    The sketches are widened until singular values of a fifth of the threshold lie inside them.
    """
    modes = terms[0].modes
    full = cut_ranks(
        (1, *(sum(r) for r in zip(*(t.ranks[1:] for t in terms), strict=True)), 1), modes
    )[1:-1]
    if not full:
        core = sum(t.flat(0, np.full((1, 1), w)) for t, w in zip(terms, weights, strict=True))
        core = np.asarray(core).reshape(1, -1, 1)
        return Rounded([core], float(np.linalg.norm(core)), False)
    guess = (
        [max(t.inner[k + 1] for t in terms) for k in range(len(full))] if guess is None else guess
    )
    wanted = [g + _SPARE for g in guess]
    while True:
        widths = cut_ranks((1, *map(min, wanted, full), 1), modes)[1:-1]
        cores = projected(terms, weights, widths)
        out, seen = truncated(cores, tol, cap, scale)
        narrow = [s > w - _LEFT_OVER and w < f for s, w, f in zip(seen, widths, full, strict=True)]
        if limit is not None and np.isfinite(out.norm) and max(out.ranks) > limit:
            raise Runaway(out.cores)
        if not any(narrow) or not np.isfinite(out.norm):
            return out
        wanted = [2 * w if n else w for w, n in zip(widths, narrow, strict=True)]


def projected(terms: Sequence[Term], weights: Sequence[float], widths: Sequence[int]) -> Cores:
    """Compresses a sum of tensor trains to given ranks by random sketches, without truncation."""
    sketched, _ = sketches(terms, max(widths))
    ws = [np.full((1, 1), float(w)) for w in weights]
    out: Cores = []
    for k, width in enumerate(widths):
        flats = [t.flat(k, w) for t, w in zip(terms, ws, strict=True)]
        rows = len(flats[0])
        n = terms[0].modes[k]
        if rows <= width:
            q = np.eye(rows)
            ws = flats
        else:
            y = sum(m @ f[:width].T for m, f in zip(flats, sketched[k], strict=True))
            q = np.linalg.qr(y)[0]
            ws = [q.T @ m for m in flats]
        out.append(q.reshape(-1, n, q.shape[1]))
    last = sum(t.flat(len(widths), w) for t, w in zip(terms, ws, strict=True))
    return [*out, np.asarray(last).reshape(out[-1].shape[2], -1, 1)]


def sketches(terms: Sequence[Term], width: int) -> tuple[list[list[Array]], list[Array]]:
    """Computes random sketches (w, r) of tensor trains from the right, at every bond.

    All terms share one scale at every bond: their sum is what counts.
    """
    modes = terms[0].modes
    draw, mix = _draw(tuple(modes), 8 * -(-width // 8))
    fs = [np.ones((draw[0].shape[1], 1)) for _ in terms]
    out = []
    for k in range(len(modes) - 1, 0, -1):
        fs = [mix @ t.right(k, f, draw[k]) for t, f in zip(terms, fs, strict=True)]
        size = sum(float(np.vdot(f, f)) for f in fs) ** 0.5
        if size > 0:
            fs = [f / size for f in fs]
        out.append(fs)
    return out[::-1], draw[0]


@functools.lru_cache(maxsize=64)
def _draw(modes: tuple[int, ...], width: int) -> tuple[list[Array], Array]:
    """Draws the random train that sketches tensor trains, the same one at every call."""
    rng = np.random.default_rng(width)
    draw = [rng.uniform(-1, 1, (n, width)) for n in modes]
    return draw, np.linalg.qr(rng.uniform(-1, 1, (width, width)))[0]


def truncated(
    cores: Cores, tol: float, cap: int | None = None, scale: float | None = None
) -> tuple[Rounded, list[int]]:
    """Truncates a sketched sum, left-orthogonal, by SVDs from the last core to the first.

    Returns:
      The result, and how many singular values of each bond exceed a fifth of the threshold.
    """
    out: Cores = []
    seen: list[int] = []
    capped = False
    norm = float(np.linalg.norm(cores[-1]))
    if not np.isfinite(norm):
        return Rounded(cores, norm, False), [0] * (len(cores) - 1)
    # Projections of different bonds are orthogonal: squared errors add, with an equal share each.
    tail = (tol * (norm if scale is None else scale)) ** 2 / max(len(cores) - 1, 1)
    core = cores[-1]
    for k in range(len(cores) - 1, 0, -1):
        _, n, s = core.shape
        u, sigma, vh = _svd(core.reshape(len(core), -1))
        left = np.cumsum(sigma[::-1] ** 2)[::-1]  # energy from each singular value on
        rank = max(int((left > tail).sum()), 1)
        seen.append(int((left > _SEEN**2 * tail).sum()))
        if cap is not None and rank > cap:
            rank, capped = cap, True
        out.append(vh[:rank].reshape(rank, n, s))
        core = times_right(cores[k - 1], u[:, :rank] * sigma[:rank])
    out.append(core)
    return Rounded(out[::-1], float(np.linalg.norm(core)), capped), seen[::-1]


def _svd(a: Array) -> tuple[Array, Array, Array]:
    """Computes the SVD of a wide matrix of a sketched sum, by a QR decomposition first."""
    if a.shape[1] <= a.shape[0]:
        return np.linalg.svd(a, full_matrices=False)
    # QR first: an SVD of the small triangle in place of one of the wide matrix, many times the work
    # (T. Chan, ACM Trans. Math. Softw. 8 (1982)).
    q, r = np.linalg.qr(a.T)
    u, s, vh = np.linalg.svd(r.T)
    return u, s, vh @ q.T


def relative_norm(terms: Sequence[Term], weights: Sequence[float], beside: Train) -> float:
    """Estimates ‖Σ w_i t_i‖ / ‖beside‖ of tensor trains from one random sketch, to about 15 %."""
    every = [*terms, beside]
    if len(beside.modes) == 1:
        parts = [t.flat(0, np.ones((1, 1))) for t in every]
    else:
        fs = sketches(every, _PROBES)[0][0]
        parts = [t.flat(0, np.ones((1, 1))) @ f.T for t, f in zip(every, fs, strict=True)]
    total = sum(w * p for w, p in zip(weights, parts, strict=False))
    size = float(np.linalg.norm(parts[-1]))
    return float(np.linalg.norm(np.asarray(total))) / size if size > 0 else np.inf


def nothing(cores: Cores) -> Train:
    """Returns the zero train, the sum of no terms, with the mode sizes of given cores."""
    return Train([np.zeros((1, c.shape[1], 1)) for c in cores])
