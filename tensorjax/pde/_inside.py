"""Whether the box holds the initial state."""

from typing import Any

import numpy as np

from tensorjax._cores import Cores
from tensorjax._train import TT
from tensorjax.pde._maps import AffineMap
from tensorjax.pde._mass import mass_of
from tensorjax.pde.physical import edge_mass

# The initial state may lose this share of its mass on the grid: well above what a loose tolerance
# costs, well below what a box costs that does not hold it.
_LOST = 0.3


def check_inside(problem: Any, cores: Cores, map: AffineMap, edge_limit: float) -> None:
    """Raises ValueError where the box does not hold the initial state."""
    box = problem.box
    mass = mass_of(cores, box.weights) / abs(float(map.det))
    start = problem.start
    known = getattr(start, "mass", None)
    size = np.abs(getattr(start, "_masses", known)).sum() if known is not None else 0.0
    if known is not None and not abs(mass - known) <= _LOST * size:
        raise ValueError(
            f"start: expected an initial state that the box holds and its points resolve, got "
            f"{mass:.3g} of its mass {known:.3g} on the grid; take a larger or finer box, or a map "
            "that brings the state to its middle"
        )
    edge = edge_mass(TT._unchecked(tuple(cores)), box)
    if edge > edge_limit:
        raise ValueError(
            f"start: expected an initial state that vanishes at the edge of the box, got a share "
            f"{edge:.2g} of its norm there (edge_limit = {edge_limit:g}); take a larger "
            "box, or a map that brings the state to its middle"
        )
