"""Values of a function that functional trains interpolate: checked, counted, and in range."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from tensorjax.tt._cross.function_calls import Calls, advice, double, numbers

# Beginnings of messages and of notes on errors of a function, here and in `tt.cross`.
_TOLD, _RAISED = "f: expected", "f: raised"


def of_function(error: BaseException) -> bool:
    """Whether an error is of the function that `interpolate` evaluated, or of its values."""
    notes = getattr(error, "__notes__", ())
    return str(error).startswith(_TOLD) or any(n.startswith(_RAISED) for n in notes)


class Values(NamedTuple):
    """Callable that evaluates a function to choose Chebyshev degrees, and counts the points.

    Attributes:
      function: of points (batch, d), checked; gives values (batch, components).
      most: points that it may be asked for; inf if as many as wanted.
      spent: list of one number, those asked for.
    """

    function: Callable[[np.ndarray], np.ndarray]
    most: float
    spent: list[int]

    @property
    def left(self) -> float:
        """Number of points at which `interpolate` may still evaluate its function."""
        return self.most - self.spent[0]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Evaluates the function of `interpolate` at points, and counts them."""
        before = self.spent[0]
        self.spent[0] += len(x)
        try:
            return self.function(x)
        except Exception as error:
            if not str(error).startswith(_TOLD):
                error.add_note(f"{_RAISED} at {len(x)} points, after {before} evaluations")
            raise


class CheckedValues:
    """Callable that samples a function for `interpolate`; ValueError for NaN, Inf, wrong shapes."""

    def __init__(
        self, f: Callable[[Any], Any], shape: tuple[int, ...], vectorized: bool, executor: Any
    ):
        self._calls, self._shape = Calls(f, vectorized, executor), shape
        self._vectorized = vectorized
        self.dtype: Any = None  # of trains of these values, once there are some
        self.zero = True  # whether all values were zero
        self.half = False  # whether some values were of half precision, or shorter

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Evaluates and checks the function of `interpolate` at (batch, d): (batch, components)."""
        try:
            values = numbers(np.asarray(self._calls(points)))
        except Exception as error:
            if said := advice(error, points.shape, self._vectorized):
                error.add_note(said)
            raise
        expected = (len(points), *self._shape)
        if values.shape != expected:
            hint = ""
            if not self._shape and values.ndim == 2 and len(values) == len(points):
                hint = f"; for a train of each component give components={values.shape[1]}"
            raise ValueError(
                f"f: expected values of shape {expected} for points {points.shape}, got "
                f"{values.shape}{hint}"
            )
        kind = values.dtype
        # A copy: the function may give out the same array again, with other values.
        values = double(values).reshape(len(points), -1)
        bad = ~np.isfinite(values).all(axis=1)
        if bad.any():
            raise ValueError(
                f"f: expected finite values, got NaN or Inf at {int(bad.sum())} of {len(points)} "
                f"points, first {tuple(points[bad.argmax()].tolist())}"
            )
        self.zero = self.zero and not values.any()
        if kind.type in (np.longdouble, np.clongdouble):  # which JAX cannot hold
            kind = values.dtype
        self.half = self.half or (kind.kind == "f" and kind.itemsize < 4)
        self.dtype = jax.dtypes.canonicalize_dtype(np.result_type(kind, np.float32))
        return values


def times_power(f: Callable[[Any], Any], exponent: int, x: Any) -> Any:
    """Evaluates 2^exponent times the function to interpolate, in two halves that are in range."""
    return f(x) * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)
