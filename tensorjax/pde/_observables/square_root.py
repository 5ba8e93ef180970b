"""Square root of a density as a train: its square is a density that is nowhere negative."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores import products
from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax._cores.rounding import rounded
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, single
from tensorjax.pde._arguments import check_concrete, hosted_cores
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.cross_approximation import entrywise
from tensorjax.pde._stepping.mass import mass_of


class SquareRoot(NamedTuple):
    """Square root of a density as a tensor train, and how far its square is from the density.

    Attributes:
      root: w; the density is w², at grid points and between them. ``pde.evaluate`` of w squared,
        ``tt.sample`` of w.
      change: ‖w² − v‖ over ‖v‖ on the grid, of which negative parts of v are a part.

    Example:
      >>> from tensorjax import pde, tt
      >>> pde.SquareRoot(tt.ones((8, 8)), 1e-4).root.ranks
      (1, 1, 1)
    """

    root: TT
    change: float


def square_root(v: TT, box: Box, *, tol: float = 1e-3) -> SquareRoot:
    """Approximates the square root of a density by a tensor train w, so that w² ≥ 0.

    Truncation leaves small negative values in densities. Those of w² are positive by construction,
    and its mass is that of v: w is √max(v, 0) by approximation from entries drawn where v is large,
    times a number. The price is one such approximation, O(d n r³) and more, ranks of w that may be
    higher than those of v, and accuracy: an error ε of v, over its largest value, is one of √ε of w
    where v vanishes. So ``tol`` below the root of the tolerance of v asks for ranks that follow
    that noise.

    Args:
      v: train of values on the grid of the box; a density.
      box: of the grid.
      tol: relative error of w in the norm of its values on the grid.

    Returns:
      `SquareRoot`.

    Raises:
      ValueError: a density without mass, or a root without low ranks at this tolerance; axes of
        kind "log" or "laguerre", whose stored values are not those of the density.
      TypeError: v is traced.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> box, map = pde.Box.fourier(2), pde.AffineMap.identity(2)
      >>> v = pde.Gaussian(np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]])).train(box, map, 1e-4)
      >>> found = pde.square_root(v, box)
      >>> values = pde.evaluate(found.root, map, box, np.array([[6.0, -6.0], [0.0, 0.0]])) ** 2
      >>> bool(found.change < 1e-2), bool(values.min() >= 0)
      (True, True)

    Source: ours; squared trains as densities: G. Novikov, M. Panov, I. Oseledets, "Tensor-train
    density estimation", UAI (2021).
    """
    single("v", v, TT, host=False)
    check_concrete("v", v)
    _check.finite("v", v)
    _check.tolerance(tol, np.float64)
    if v.shape != box.shape:
        raise ValueError(f"v: expected the shape of the box {box.shape}, got {v.shape}")
    kinds = sorted({a.kind for a in box.axes} & {"log", "laguerre"})
    if kinds:
        raise ValueError(
            f"box: expected no axes of kind {kinds}, for values there are scaled; integrate on "
            "another kind of axis"
        )
    cores = hosted_cores(v)
    mass = mass_of(cores, box.weights)
    if not mass > 0:
        raise ValueError(f"v: expected a density of positive mass, got {mass:.3g}")
    root = rounded(entrywise(lambda x: np.sqrt(np.maximum(x, 0.0)), v, tol), tol / 10)
    square = [products.hadamard_core(a, a) for a in root]
    scale = mass / mass_of(square, box.weights)
    rest = products.combined([square, cores], [scale, -1.0])
    change = _norm(rest) / _norm(cores)
    root = [root[0] * np.sqrt(scale), *root[1:]]
    return SquareRoot(TT([jnp.asarray(c) for c in root]), change)


def _norm(cores: Cores) -> float:
    """Computes the Euclidean norm of a tensor train, to judge the square of a square root."""
    return float(np.linalg.norm(right_orthogonal(cores, scale=False)[0][0]))
