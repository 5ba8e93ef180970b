"""Edge mass and resolution of a solution: shares of its norm that the grid may not hold."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensorjax._cores import interfaces
from tensorjax._cores.contractions import absorb, times_mode, times_right
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._formats.trains import TT
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._observables.values_and_moments import given


def edge_mass(v: TT, box: Box) -> float:
    """Returns the edge mass of a PDE solution v: largest share of ‖v‖ next to an end of an axis.

    v has to vanish there: what is not small against the accuracy asked for has left the box, or is
    about to. The end at which a "laguerre" axis begins does not count. One sweep in either
    direction, O(d n r³) operations.

    Args:
      v: train of values on the grid of the box.
      box: of the coordinates y.

    Returns:
      A float; 0 for v = 0.

    Raises:
      ValueError: shapes that do not match, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box = pde.Box.fourier(2, half_width=5.0)
      >>> v = pde.Gaussian(np.zeros(2), np.eye(2)).train(box, pde.AffineMap.identity(2), 1e-5)
      >>> pde.edge_mass(v, box) < 1e-4
      True

    Source: ours.
    """
    return shares(v, box)[0]


def resolution(v: TT, box: Box) -> float:
    """Computes the resolution of a solution: largest share of ‖v‖ in the highest third of modes.

    It is near √⅓ for noise and next to nothing for what the points resolve; of a Gaussian as narrow
    as they can hold with a relative error ε it is about ε^(4/9).

    Args:
      v: train of values on the grid of the box.
      box: of the coordinates y.

    Returns:
      A float; 0 for v = 0.

    Raises:
      ValueError: shapes that do not match, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start, still = pde.Gaussian(np.zeros(2), 0.1 * np.eye(2)), pde.AffineMap.identity(2)
      >>> for n in (24, 48):
      ...     box = pde.Box.fourier(2, n, half_width=5.0)
      ...     print(f"{pde.resolution(start.train(box, still, 1e-5), box):.1g}")
      0.1
      0.002

    Source: ours.
    """
    return shares(v, box)[1]


def shares(v: TT, box: Box) -> tuple[float, float]:
    """Computes `edge_mass` and `resolution` of a PDE solution's train at once."""
    _, cores, _ = given(v, AffineMap.identity(box.dim), box)
    edge, rough = shares_of(np, cores, quadrature(box))
    return float(edge), float(rough)


def quadrature(box: Box) -> list[tuple[np.ndarray, ...]]:
    """Returns the data for edge mass and resolution: weights, highest modes, ends of all axes."""
    return [(a.weights, a.fine, a.ends) for a in box.axes]


def mode_densities(
    xp: Any, cores: Sequence[Any], weights: Sequence[Any]
) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yields, axis by axis, what edge mass and resolution are computed from: the density of v².

    Returns:
      Core k contracted with all to the left of it, and with all to the right, each with itself, so
      that the sum of their products is ‖v‖²; the sums of the products at each grid point; and the
      sum of these, one for zero.
    """
    left, right = xp.ones((1, 1), cores[0].dtype), [xp.ones((1, 1), cores[0].dtype)]
    weighted = [c * xp.sqrt(w)[None, :, None] for c, w in zip(cores, weights, strict=True)]
    for core in weighted[::-1]:
        right.append(interfaces.right_overlap(right[-1], core, core))
    for core, after in zip(weighted, right[-2::-1], strict=True):
        before = absorb(left, core)
        after = times_right(core, after)
        density = (before * after).sum((0, 2))
        total = density.sum()
        yield before, after, density, xp.where(total > 0, total, 1)
        left = bond_overlap(before, core)


def shares_of(xp: Any, cores: Sequence[Any], axes: Sequence[tuple[Any, ...]]) -> tuple[Any, Any]:
    """Computes edge mass and resolution of a tensor train on a grid, in NumPy or JAX."""
    edges, roughs = [], []
    densities = mode_densities(xp, cores, [weights for weights, *_ in axes])
    for (before, after, density, total), (_, fine, ends) in zip(densities, axes, strict=True):
        edges.append((density * ends).sum() / total)
        roughs.append((times_mode(before, fine) * times_mode(after, fine)).sum() / total)
    # Sums of squares, but for roundoff; zero has no share anywhere.
    return tuple(xp.sqrt(xp.max(xp.maximum(xp.stack(s), 0))) for s in (edges, roughs))
