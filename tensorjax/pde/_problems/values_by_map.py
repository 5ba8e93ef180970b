"""Values of fields and sources: remembered for the last maps, asked for in batches of few sizes."""

import inspect
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from tensorjax import _check
from tensorjax.pde._maps.affine_maps import AffineMap

# Smallest batch: less than this costs as much.
_SMALLEST = 256


class InFewSizes:
    """Function of points, called with batches of few sizes where JAX evaluates it.

    JAX compiles every operation anew for every size of a batch, and cross approximation asks for
    batches of a hundred sizes in every map. They are filled up, by the last point, to powers of
    two. Functions that return NumPy arrays get the batches as they are.

    Args:
      f: (m, …) ↦ (m, …), row by row.
    """

    _called = "function"

    def __init__(self, f: Callable[[Any], Any]):
        self._f = f
        self._compiles = False

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Returns f(x) as a NumPy array in double precision."""
        count = len(x)
        if self._compiles and count:
            full = max(_SMALLEST, 1 << (count - 1).bit_length())
            x = np.concatenate([x, np.repeat(x[-1:], full - count, 0)])
        out = self._f(x)
        self._compiles = isinstance(out, jax.Array)
        if np.iscomplexobj(out):
            raise ValueError(
                f"{self._called}: expected real values, got complex ones; take the real part"
            )
        values = np.asarray(out, np.float64)
        return values[:count] if self._compiles and values.ndim else values


class CheckedField(InFewSizes):
    """Vector field given as a function, which checks its call for a time, and the shape of values.

    Args:
      f: (m, dim) ↦ (m, dim).
      name: of the argument.
      dim: d.

    Raises:
      ValueError: ``f`` takes more than points.
    """

    def __init__(self, f: Callable[..., Any], name: str, dim: int):
        super().__init__(f)
        self._called = name
        self._expected = f"{name}: expected a function that maps points (m, {dim}) to values"
        try:
            inspect.signature(f).bind(None)
        except TypeError:
            raise ValueError(
                f"{self._expected} of this shape, got one that does not take points alone; drifts "
                "do not depend on time here: give a problem of your own a right_side(map, t)"
            ) from None
        except ValueError:  # built-in functions may have no signature
            pass

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Returns f(x), of the shape of x, as a NumPy array in double precision."""
        out = super().__call__(x)
        if out.shape != x.shape:
            raise ValueError(
                f"{self._expected} of this shape, got {out.shape} for {x.shape}; a function of one "
                "point becomes one of many by jax.vmap or np.apply_along_axis(f, 1, x)"
            )
        return out


class Remembered:
    """Cache of results for the last few maps.

    Results depend on the map, the box and the tolerance alone, so that a run and its continuation
    get equal ones. A map at rest is requested again and again.
    """

    def __init__(self, name: str, count: int = 8):
        self._name, self._count = name, count
        self._known: dict[Any, Any] = {}

    def get(self, map: AffineMap, box: Hashable, tol: float, make: Callable[[], Any]) -> Any:
        """Returns the cached result for an affine map, box and tolerance, or makes it."""
        if _check.is_traced(map):
            raise TypeError(
                f"{self._name}: expected a concrete map, got a traced one: this is brought into a "
                "train by cross approximation, outside jit, vmap and grad; there use Sin or Power"
            )
        key = np.asarray(map.matrix).tobytes(), np.asarray(map.shift).tobytes(), box, tol
        if key not in self._known:
            while len(self._known) >= self._count:
                self._known.pop(next(iter(self._known)))
            self._known[key] = make()
        return self._known[key]
