"""Coordinate motion ẏ = Σ y + β that a generator returns, and the checks of its Σ and β."""

from typing import Any, NamedTuple

import numpy as np

from tensorjax import _check


class Motion(NamedTuple):
    """Coordinate motion ẏ = Σ y + β chosen for a PDE in moving coordinates, with its cost.

    Attributes:
      sigma: Σ, (d, d).
      beta: β, (d,).
      cost: ‖N(Q − Σ_jk Σ_jk y_k ∂_j v)‖/‖v‖, what remains of the right side outside the tangent
        space at v, per time; NaN where it was not computed.
      cost_without: the same for Σ = 0.
      levels: relative errors of the truncations of v that were looked at.
      ranks: the largest TT-rank of each.
      edge: the largest norm of v near an end of an axis, relative to ‖v‖; NaN if not computed.
      guarded: whether the guard has set Σ to zero.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.16]))
      >>> box = pde.Box.fourier(2, n=64)
      >>> problem = pde.Liouville(np.array([[0.0, 1.0], [-1.0, 0.0]]), start, box)
      >>> at = pde.AffineMap.identity(2)
      >>> v, right = problem.initial(at, 1e-8), problem.right_side(at, 0.0)
      >>> motion = pde.Convex()(v, right, at, box, 1e-8, 0.0)
      >>> motion.sigma.shape, motion.beta.shape, motion.guarded
      ((2, 2), (2,), False)
    """

    sigma: np.ndarray
    beta: np.ndarray
    cost: float = float("nan")
    cost_without: float = float("nan")
    levels: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    edge: float = float("nan")
    guarded: bool = False


def checked_motion(motion: Any, box: Any) -> tuple[Any, Any]:
    """Returns Σ and β of a coordinate motion ẏ = Σ y + β; raises ValueError if invalid."""
    d = box.dim
    if not isinstance(motion, Motion):
        raise ValueError(
            "coordinates: expected a generator that returns pde.Motion(sigma (d, d), beta (d,)), "
            f"got {type(motion).__name__}"
        )
    found = rates_of_motion("coordinates: expected a motion with", motion.sigma, motion.beta, d)
    if not moves_unbounded(box, *found):
        raise ValueError(
            "coordinates: expected a motion that is zero, in rows and columns, on axes that are "
            'periodic, half-lines or have walls, got one that moves them; take "adaptive", or a '
            "generator of pde.coords"
        )
    return found


def moves_unbounded(box: Any, sigma: Any, beta: Any) -> bool:
    """Whether a coordinate motion Σ y + β is zero on periodic, half-line and walled axes."""
    rests = ~box.unbounded
    return not (np.any(sigma[rests]) or np.any(sigma[:, rests]) or np.any(beta[rests]))


def rates_of_motion(expected: str, sigma: Any, beta: Any, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Converts Σ and β of a coordinate motion to arrays; ValueError for shapes, NaN or Inf."""
    sigma, beta = np.asarray(sigma, np.float64), np.asarray(beta, np.float64)
    for part, value, shape in (("sigma", sigma, (d, d)), ("beta", beta, (d,))):
        if value.shape != shape:
            raise ValueError(f"{expected} {part} of shape {shape}, got {value.shape}")
        _check.finite(f"{expected.partition(':')[0]}: {part}", value)
    return sigma, beta
