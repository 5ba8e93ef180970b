"""Removal of a train's tails: outer slabs of the box in which it holds almost nothing.

The drift is fastest far out, where the solution is not: what contracts there multiplies whatever
small errors lie in its way, and on a periodic grid a drift jumps from one end of an axis to the
other, so that differences across that seam grow at rates of the grid. Errors of rounding, of
spectral derivatives and of extrapolated motions would come back as mass at the edge. Setting v to
zero where a whole slab holds less than rounding may take is an error of that size, leaves ranks as
they are, and lets nothing outside grow from step to step.

Chebyshev axes are left alone: their points crowd at the ends, and their derivatives have neither
seam nor growing modes; periodic axes have no ends. Of Laguerre axes only the far end is cleared,
where the weights are large.

Source: ours.
"""

import functools

import numpy as np

from tensorjax._cores.contractions import absorb
from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._discretization.grid import Box

# Points over which v fades to zero: within a step it moves by one or two. Many more would have the
# step limited by the drift further out.
_FADE = 5
# Largest factor between squared norms of slabs at the edge and further in, of what is noise.
_FLAT = 4


def cleared(cores: Cores, box: Box, allowed: float) -> Cores:
    """Sets a train to zero in its outskirts, outer parts of the grid with almost none of its norm.

    Args:
      cores: right-orthogonal but for the first; so is the result.
      box: of the grid.
      allowed: norm that may be lost at either end of an axis, over that of the train.
    """
    out, changed = [], False
    for core, (first, last) in zip(cores, _inner(cores, box, allowed), strict=True):
        n = core.shape[1]
        changed = changed or bool(core[:, :first].any() or core[:, last:].any())
        full = (first, last) == (0, n)
        out.append(core if full else core * faded(n, first, last)[:, None])
    return right_orthogonal(out, scale=False)[0] if changed else cores


def window(
    cores: Cores, box: Box, allowed: float, end: Cores | None = None
) -> list[np.ndarray] | None:
    """Returns masks (n,) of every axis, 0 in the outskirts of a train; None if there are none.

    Within a step v moves by a few points at most, and beyond them there is nothing to be changed;
    or, in a long one, from where it is to about where it ends.

    Args:
      cores: right-orthogonal but for the first.
      box: of the grid.
      allowed: as in `cleared`.
      end: cores of about the end of a long step, as ``cores``; None for those.
    """
    sizes, ranges = box.shape, _inner(cores, box, allowed)
    if end is not None:
        pairs = zip(ranges, _inner(end, box, allowed), strict=True)
        ranges = [(min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs]
    if all(r == (0, n) for n, r in zip(sizes, ranges, strict=True)):
        return None
    return [faded(n, *r) for n, r in zip(sizes, ranges, strict=True)]


def _inner(cores: Cores, box: Box, allowed: float) -> list[tuple[int, int]]:
    """Returns the range [first, last) of every axis outside which the outskirts of a train lie."""
    whole = [(0, c.shape[1]) for c in cores]
    total = float(np.vdot(cores[0], cores[0]))
    if not (np.isfinite(total) and total > 0):
        return whole
    limit = allowed**2 * total
    out = []
    for density, axis in zip(profiles(cores), box.axes, strict=True):
        first = int((np.cumsum(density) <= limit).sum())
        last = len(density) - int((np.cumsum(density[::-1]) <= limit).sum())
        first = 0 if axis.kind == "laguerre" else first
        whole_axis = axis.kind in ("chebyshev", "periodic")
        out.append((0, axis.n) if whole_axis else (first, max(first, last)))
    return out


def profiles(cores: Cores) -> list[np.ndarray]:
    """Computes squared norms of a PDE solution's slices, axis by axis, to find its outskirts.

    Args:
      cores: right-orthogonal but for the first.
    """
    out, left = [], np.ones((1, 1))
    for core in cores:
        moved = absorb(left, core)
        out.append((moved * core).sum((0, 2)))
        left = bond_overlap(moved, core)
    return out


def noisy_edge(cores: Cores, box: Box) -> tuple[int, float] | None:
    """Returns the axis whose outskirts hold most of a solution, and the share, if by noise.

    Args:
      cores: right-orthogonal but for the first.
      box: of the grid.
    """
    k, share, is_noise = max(edges(cores, box), key=lambda edge: edge[1])
    return (k, share) if is_noise else None


def edges(cores: Cores, box: Box) -> list[tuple[int, float, bool]]:
    """Returns for every axis its number, the share of v in its outskirts, and if that is noise.

    The tail of a density grows inwards from the edge. Noise is about the same everywhere: over an
    eighth of the axis next to the edge the squared norms of slabs rise by less than a factor of 4.

    Args:
      cores: of v, right-orthogonal but for the first.
      box: of the grid.
    """
    out = []
    for k, (profile, axis) in enumerate(zip(profiles(cores), box.axes, strict=True)):
        share = float(profile @ axis.ends / max(profile.sum(), 1e-300))
        depth = max(4, axis.n // 8)
        low, high = profile[:depth], profile[: -depth - 1 : -1]
        side = low if low[:2].sum() > high[:2].sum() else high
        is_noise = bool(side[2:].max() < _FLAT * side[:2].max())
        out.append((k, max(share, 0.0) ** 0.5, is_noise))
    return out


def above_noise(profile: np.ndarray) -> tuple[int, int]:
    """Returns the range [first, last) of an axis in which a solution is above noise at its ends.

    Args:
      profile: of the axis, as `profiles` returns it.
    """
    noise = max(profile[:2].max(), profile[-2:].max())
    (above,) = np.nonzero(profile > _FLAT * noise)
    return (int(above[0]), int(above[-1]) + 1) if len(above) else (0, len(profile))


@functools.lru_cache(maxsize=1024)
def faded(n: int, first: int, last: int) -> np.ndarray:
    """Returns a mask (n,) that is 1 on [first, last) and falls smoothly to zero in the outskirts.

    A jump there would be a wave of the highest modes, and spectral derivatives spread those.
    """
    k = np.arange(n)
    beyond = np.maximum(np.maximum(first - k, k - last + 1), 0)
    wave = np.square(np.cos(np.pi / 2 * beyond / _FADE))
    out = np.where(beyond < _FADE, wave, 0.0)
    out.flags.writeable = False  # callers share it
    return out
