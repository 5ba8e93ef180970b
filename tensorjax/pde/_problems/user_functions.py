"""Wrappers of user functions of points: few batch sizes, checked shapes, cached results."""

import inspect
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from tensorjax import _check
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._discretization.grid import Box, random_points
from tensorjax.pde._discretization.variable_coefficients import components
from tensorjax.pde._function_trains.cross_approximation import crossed
from tensorjax.pde._maps.affine_maps import AffineMap

# Smallest batch: less than this costs as much.
_SMALLEST = 256


class InFewSizes:
    """Wrapper of a user's function that pads batches of points, to compile for fewer sizes.

    JAX compiles every operation anew for every size of a batch, and cross approximation asks for
    batches of a hundred sizes in every map. They are filled up, by the last point, to powers of
    two. Functions that return NumPy arrays get the batches as they are.

    Args:
      f: (m, …) ↦ (m, …), row by row; or a function of time and such points.
      timed: whether it is a function of time, too.
    """

    _called = "function"

    def __init__(self, f: Callable[..., Any], timed: bool = False):
        self._f, self.timed = f, timed
        self._compiles = False

    def __call__(self, x: np.ndarray, t: float = 0.0) -> np.ndarray:
        """Evaluates a user's function of points; returns a NumPy array in double precision."""
        count = len(x)
        if self._compiles and count:
            full = max(_SMALLEST, 1 << (count - 1).bit_length())
            x = np.concatenate([x, np.repeat(x[-1:], full - count, 0)])
        out = self._f(t, x) if self.timed else self._f(x)
        self._compiles = isinstance(out, jax.Array)
        if np.iscomplexobj(out):
            raise ValueError(
                f"{self._called}: expected real values, got complex ones; take the real part"
            )
        values = np.asarray(out, np.float64)
        return values[:count] if self._compiles and values.ndim else values


def takes_time(f: Callable[..., Any], name: str) -> bool:
    """Whether a user's function takes time and points, f(t, x), and not points alone, f(x).

    Raises:
      ValueError: it is neither.
    """
    try:
        signature = inspect.signature(f)
    except ValueError:  # built-in functions may have no signature
        return False
    for arguments in ((None,), (None, None)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise ValueError(
        f"{name}: expected a function that maps points (m, d) to values, f(x), or a time and "
        f"points, f(t, x); got one that takes neither, {name}{signature}"
    )


class CheckedField(InFewSizes):
    """Wrapper of a user's vector field, (m, dim) ↦ (m, dim), that checks the shape of its values.

    ``f`` is a function of x or of t and x, ``name`` that of the argument.
    """

    def __init__(self, f: Callable[..., Any], name: str, dim: int):
        super().__init__(f, takes_time(f, name))
        self._called = name
        self._expected = f"{name}: expected a function that maps points (m, {dim}) to values"

    def __call__(self, x: np.ndarray, t: float = 0.0) -> np.ndarray:
        """Evaluates a user's vector field at points x, as a NumPy array of their shape."""
        out = super().__call__(x, t)
        if out.shape != x.shape:
            raise ValueError(
                f"{self._expected} of this shape, got {out.shape} for {x.shape}; a function of one "
                "point becomes one of many by jax.vmap or np.apply_along_axis(f, 1, x)"
            )
        return out


class Remembered:
    """Cache of TT approximations of a user's function, by affine map, box, tolerance and time.

    Results depend on the map, the box and the tolerance alone, so that a run and its continuation
    get equal ones. A map at rest is requested again and again.
    """

    def __init__(self, name: str, count: int = 8):
        self._name, self._count = name, count
        self._known: dict[Any, Any] = {}

    def get(
        self,
        map: AffineMap,
        box: Hashable,
        tol: float,
        make: Callable[[], Any],
        t: float | None = None,
    ) -> Any:
        """Returns the cached approximation of a user's function for a map and box, or makes it."""
        if _check.is_traced(map, t):
            raise TypeError(
                f"{self._name}: expected a concrete map and time, got traced ones: this is brought "
                "into a train by cross approximation, outside jit, vmap and grad; there use Sin or "
                "Power"
            )
        key = np.asarray(map.matrix).tobytes(), np.asarray(map.shift).tobytes(), box, tol, t
        if key not in self._known:
            while len(self._known) >= self._count:
                self._known.pop(next(iter(self._known)))
            self._known[key] = make()
        return self._known[key]

    def components(
        self, f: Callable[[Any], Any], map: AffineMap, box: Box, tol: float, t: float | None
    ) -> list[Cores]:
        """Returns cached approximations of a user's function, a train for each component."""
        return self.get(
            map, box, tol, lambda: components(crossed(self._name, f, box.points, tol)), t
        )


def check_periodic(name: str, box: Any, values: Callable[[np.ndarray], Any]) -> None:
    """Raises ValueError if a user's function differs at both ends of a periodic axis."""
    x = random_points(box, 16)
    for k, axis in enumerate(box.axes):
        if axis.kind != "periodic":
            continue
        ends = [np.where(np.arange(box.dim) == k, at, x) for at in (axis.low, axis.high)]
        found = [values(point) for point in (*ends, x)]
        if any(map(_check.is_traced, found)):
            return
        first, last, inside = map(np.asarray, found)
        if np.abs(first - last).max() > 1e-4 * np.abs(inside).max():
            raise ValueError(
                f"{name}: expected the same values at both ends of axis {k}, {axis.low:g} and "
                f"{axis.high:g}, which is periodic; take a function of that period, or a kind of "
                'axis that is not "periodic"'
            )
