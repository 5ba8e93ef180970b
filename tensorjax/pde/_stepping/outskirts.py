"""Clearing of the outer slabs of a box in which a train holds less than the tolerance.

The drift is fastest far out, where the solution is not: what contracts there multiplies whatever
small errors lie in its way, and on a periodic grid a drift jumps from one end of an axis to the
other, so that differences across that seam grow at rates of the grid. Errors of rounding, of
spectral derivatives and of extrapolated motions would come back as mass at the edge. Setting v to
zero where a whole slab holds less than rounding may take is an error of that size, leaves ranks as
they are, and lets nothing outside grow from step to step.

Source: ours.
"""

import numpy as np

from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.unfoldings import Cores, absorb


def cleared(cores: Cores, allowed: float) -> Cores:
    """Sets a train to zero on the outer slabs of all axes that hold ``allowed`` of its norm or less.

    Args:
      cores: right-orthogonal but for the first; so is the result.
      allowed: norm that may be lost, over that of the train.
    """
    total = float(np.vdot(cores[0], cores[0]))
    if not (np.isfinite(total) and total > 0):
        return cores
    limit = allowed**2 * total / (2 * len(cores))  # of either end of every axis
    out, changed, left = [], False, np.ones((1, 1))
    for core in cores:
        moved = absorb(left, core)
        density = np.einsum("inj,inj->n", moved, core)
        first, last = inner(density, limit)
        if first > 0 or last < len(density):
            changed = changed or bool(density[:first].any() or density[last:].any())
            core = core.copy()
            core[:, :first] = 0
            core[:, last:] = 0
        out.append(core)
        left = bond_overlap(moved, cores[len(out) - 1])
    return right_orthogonal(out, scale=False)[0] if changed else cores


def inner(density: np.ndarray, limit: float) -> tuple[int, int]:
    """Returns the range [first, last) of an axis outside which either end holds ``limit`` or less.

    Args:
      density: squared norm at every point, (n,).
      limit: largest sum at either end.
    """
    first = int((np.cumsum(density) <= limit).sum())
    last = len(density) - int((np.cumsum(density[::-1]) <= limit).sum())
    return first, max(last, first)
