"""Drift vector fields as sums of low-rank terms: sines, powers, products, separable functions."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorjax import _check
from tensorjax.pde._arguments import floats
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.grid import Box
from tensorjax.pde._function_trains.cross_approximation import crossed
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.partial_derivatives import partial_derivative
from tensorjax.pde._problems.user_functions import CheckedField, Remembered

Cores = list[Any]


class Term(abc.ABC):
    """Base class of scalar terms in a drift or diffusion, with exact or approximate TT-cores.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> print(pde.Sin([1.0, 0.0]).gradient(np.zeros((1, 2))))
      [[1. 0.]]
    """

    @abc.abstractmethod
    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluates a scalar drift term at physical points (m, d).

        Args:
          x: (m, d).

        Returns:
          (m,).
        """

    @abc.abstractmethod
    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Evaluates the gradient (m, d) of a scalar drift term at physical points (m, d).

        Args:
          x: (m, d).

        Returns:
          (m, d).
        """

    @abc.abstractmethod
    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Computes TT-cores of a scalar drift term on a grid in the coordinates y = map(x).

        Args:
          box: of the coordinates y.
          map: `AffineMap` y = Γ x + s.
          tol: relative error, for terms that are approximated.

        Returns:
          d arrays (r_{k−1}, n_k, r_k).
        """

    def check(self, dim: int) -> None:
        """Raises ValueError unless a drift term is a function of ``dim`` coordinates.

        Args:
          dim: d.

        Raises:
          ValueError: weights of another shape, coordinates out of range, NaN or Inf.
        """
        _check.finite(f"{type(self).__name__}.amplitude", self.amplitude)

    amplitude: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Sin(Term):
    """Drift term a sin(w·x + φ): TT-rank 2 in any affine coordinates.

    Attributes:
      weights: w, (d,).
      phase: φ.
      amplitude: a, possibly traced, as are the others.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> cosine = pde.Sin([1.0, 0.0], phase=np.pi / 2)
      >>> print(cosine.values(np.zeros((1, 2))))
      [1.]
    """

    weights: Any
    phase: Any = 0.0
    amplitude: Any = 1.0

    def values(self, x: np.ndarray) -> np.ndarray:
        return self.amplitude * np.sin(x @ np.asarray(self.weights) + self.phase)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        w = np.asarray(self.weights)
        return (self.amplitude * np.cos(x @ w + self.phase))[:, None] * w

    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        weights, phase = _turned(map, self.weights, self.phase)
        return multipliers.sine(box, weights, phase, self.amplitude)

    def check(self, dim: int) -> None:
        super().check(dim)
        _check_weights("Sin", self.weights, dim)


@dataclasses.dataclass(frozen=True, eq=False)
class Power(Term):
    """Drift term a (w·x + c)^m: TT-rank m + 1 in any affine coordinates.

    Attributes:
      weights: w, (d,).
      offset: c.
      exponent: m ≥ 0.
      amplitude: a, possibly traced, as are weights and offset.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> print(pde.Power([1.0, 1.0], exponent=3).values(np.ones((1, 2))))
      [8.]
    """

    weights: Any
    offset: Any = 0.0
    exponent: int = 1
    amplitude: Any = 1.0

    def values(self, x: np.ndarray) -> np.ndarray:
        return self.amplitude * (x @ np.asarray(self.weights) + self.offset) ** self.exponent

    def gradient(self, x: np.ndarray) -> np.ndarray:
        w, m = np.asarray(self.weights), self.exponent
        slope = m * (x @ w + self.offset) ** max(m - 1, 0)
        return (self.amplitude * slope)[:, None] * w

    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        weights, offset = _turned(map, self.weights, self.offset)
        return multipliers.power(box, weights, offset, self.exponent, self.amplitude)

    def check(self, dim: int) -> None:
        super().check(dim)
        _check.integer("Power.exponent", self.exponent, low=0)
        _check_weights("Power", self.weights, dim)


@dataclasses.dataclass(frozen=True, eq=False)
class Product(Term):
    """Drift term a Π f_i, a product of scalar terms f_i; their TT-ranks multiply.

    Attributes:
      factors: one or more terms.
      amplitude: a.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> both = pde.Product([pde.Power([1.0, 0.0]), pde.Power([0.0, 1.0])])
      >>> print(both.values(np.array([[2.0, 3.0]])))
      [6.]
    """

    factors: Sequence[Term]
    amplitude: Any = 1.0

    def values(self, x: np.ndarray) -> np.ndarray:
        return self.amplitude * np.prod([f.values(x) for f in self.factors], axis=0)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros_like(x)
        for i, factor in enumerate(self.factors):
            others = [f.values(x) for j, f in enumerate(self.factors) if j != i]
            rest = np.prod(others, axis=0) if others else np.ones(len(x))
            out = out + rest[:, None] * factor.gradient(x)
        return self.amplitude * out

    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        first, *rest = (f.cores(box, map, tol) for f in self.factors)
        for cores in rest:
            first = multipliers.times(first, cores)
        _, (head, amplitude) = floats(first[0], self.amplitude)
        return [head * amplitude, *first[1:]]

    def check(self, dim: int) -> None:
        super().check(dim)
        if not self.factors:
            raise ValueError("Product.factors: expected one or more terms, got none")
        for f in self.factors:
            f.check(dim)


@dataclasses.dataclass(frozen=True, eq=False)
class Separable(Term):
    """Low-rank drift term a Π g_i(x_i): a product of any functions of one coordinate each.

    TT-rank 1 where every such x_i depends on one y only; else a cross approximation, at a relative
    error, outside jit.

    Attributes:
      functions: g_i by coordinate i, each mapping (m,) to (m,).
      amplitude: a.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> well = pde.Separable({0: np.tanh, 1: lambda x: 1 / (1 + x**2)})
      >>> print(well.values(np.array([[0.0, 5.0]])))
      [0.]
    """

    functions: Mapping[int, Callable[[Any], Any]]
    amplitude: Any = 1.0
    _known: Remembered = dataclasses.field(
        default_factory=lambda: Remembered("Separable"), init=False, repr=False
    )

    def values(self, x: np.ndarray) -> np.ndarray:
        parts = [np.asarray(g(x[:, i])) for i, g in self.functions.items()]
        return self.amplitude * np.prod(parts, axis=0)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Evaluates a separable drift term's gradient by central differences of order 6."""
        out = np.zeros_like(x)
        for i in self.functions:
            out[:, i] = partial_derivative(self.values, x, i)
        return out

    def cores(self, box: Box, map: AffineMap, tol: float) -> Cores:
        cores = self._known.get(map, box, tol, lambda: self._plain(box, map, tol))
        return [cores[0] * self.amplitude, *cores[1:]]

    def _plain(self, box: Box, map: AffineMap, tol: float) -> Cores:
        """Computes TT-cores of a separable drift term without its amplitude."""
        back = np.linalg.inv(map.matrix)
        used = {i: np.flatnonzero(back[i]) for i in self.functions}
        if any(len(k) > 1 for k in used.values()):
            bare = dataclasses.replace(self, amplitude=1.0)
            return crossed("drift", lambda y: bare.values(map.inverse(y)), box.points, tol)
        out = [np.ones((1, n, 1)) for n in box.shape]
        for i, g in self.functions.items():
            k = int(used[i][0])
            x = back[i, k] * box.axes[k].points - back[i] @ map.shift
            out[k] = out[k] * np.asarray(g(x), np.float64)[None, :, None]
        return out

    def check(self, dim: int) -> None:
        super().check(dim)
        if not self.functions or any(not 0 <= i < dim for i in self.functions):
            raise ValueError(
                f"Separable.functions: expected coordinates in [0, {dim}), "
                f"got {sorted(self.functions)}"
            )


def _turned(map: AffineMap, weights: Any, offset: Any) -> tuple[Any, Any]:
    """Converts weights and offset of w·x + c, in a drift term, to the coordinates y = map(x)."""
    xp, (matrix, shift, w, c) = floats(map.matrix, map.shift, weights, offset)
    w = xp.linalg.solve(matrix.T, w)
    return w, c - w @ shift


def _check_weights(name: str, weights: Any, dim: int) -> None:
    if np.shape(weights) != (dim,):
        raise ValueError(f"{name}.weights: expected shape ({dim},), got {np.shape(weights)}")
    _check.finite(f"{name}.weights", weights)


class Field:
    """Drift vector field of a PDE: a sum of scalar terms per component, or any function of points.

    Args:
      given: d entries, each a `Term`, a sequence of them or None for zero; or a callable that maps
        points (m, d) to (m, d); or another field, of which the same is made.
      dim: d.
      tol: relative error of cross approximations.
      name: of the argument.
    """

    def __init__(self, given: Any, dim: int, tol: float, name: str = "drift"):
        given = given.given if isinstance(given, Field) else given
        if not (given is None or callable(given) or isinstance(given, Term)):
            if isinstance(given, str) or not np.iterable(given):
                raise ValueError(
                    f"{name}: expected {dim} components, or a function that maps points (m, {dim}) "
                    f"to values of this shape, got {given!r}"
                )
            given = tuple(given)
        self.dim, self.tol, self.name, self.given = dim, tol, name, given
        self.function = CheckedField(given, name, dim) if callable(given) else None
        self.directed: list[tuple[Term, np.ndarray]] = []
        if given is not None and not callable(given):
            if isinstance(given, Term):
                raise ValueError(
                    f"{name}: expected {dim} components, each a term, a sequence of terms or None, "
                    f"got {type(given).__name__} alone"
                )
            if len(given) != dim:
                raise ValueError(f"{name}: expected {dim} components, got {len(given)}")
            for k, entry in enumerate(given):
                for term in terms_of(f"{name}[{k}]", entry, dim):
                    self._add(term, np.eye(dim)[k])
        self._known = Remembered(name)

    def __bool__(self) -> bool:
        return self.function is not None or bool(self.directed)

    def _add(self, term: Term, direction: np.ndarray) -> None:
        """Adds a scalar term times a direction to a drift field; merges proportional terms."""
        for i, (other, before) in enumerate(self.directed):
            ratio = _ratio(term, other)
            if ratio is not None:
                self.directed[i] = other, before + ratio * direction
                return
        self.directed.append((term, direction))

    @property
    def timed(self) -> bool:
        """Whether a drift vector field depends on time."""
        return self.function is not None and self.function.timed

    def values(self, x: np.ndarray, t: float = 0.0) -> np.ndarray:
        """Evaluates the drift field at physical points (m, d) and time t."""
        if self.function is not None:
            return np.asarray(self.function(x, t), np.float64)
        out = np.zeros_like(x)
        for term, direction in self.directed:
            out = out + term.values(x)[:, None] * direction
        return out

    def divergence(self, x: np.ndarray) -> np.ndarray:
        """Evaluates the divergence of the drift field at physical points (m, d)."""
        if self.function is not None:
            parts = [
                partial_derivative(lambda p, k=k: self.values(p)[:, k], x, k)
                for k in range(self.dim)
            ]
            return np.sum(parts, axis=0)
        out = np.zeros(len(x))
        for term, direction in self.directed:
            out = out + term.gradient(x) @ direction
        return out

    def pieces(self, box: Box, map: AffineMap, t: float = 0.0) -> list[tuple[Cores, Any]]:
        """Decomposes a drift in coordinates y as Σ m(y) a: pairs (TT-cores of m, vector a)."""
        if self.function is not None:
            return self._crossed(self.function, box, map, t)
        out = []
        for term, direction in self.directed:
            _, (gamma, a) = floats(map.matrix, direction)
            out.append((term.cores(box, map, self.tol), gamma @ a))
        return out

    def _crossed(self, f: Any, box: Box, map: AffineMap, t: float) -> list[tuple[Cores, Any]]:
        """Approximates all components of a drift function by one TT-cross approximation."""

        def moved(y: np.ndarray) -> np.ndarray:
            return np.asarray(f(map.inverse(y), t), np.float64) @ np.asarray(map.matrix).T

        at = t if self.timed else None
        found = self._known.components(moved, map, box, self.tol, at)
        return [(m, np.eye(self.dim)[i]) for i, m in enumerate(found)]


def terms_of(name: str, entry: Any, dim: int) -> list[Term]:
    """Converts one component of a drift to a list of scalar terms; raises for other types."""
    if callable(entry):
        raise ValueError(
            f"{name}: expected terms (pde.Sin, pde.Power, pde.Product, pde.Separable), got a "
            f"function; give one function of all components, that maps points (m, {dim}) to values "
            "of this shape"
        )
    single = entry if isinstance(entry, list | tuple) else [entry]
    found = [] if entry is None else list(single)
    for term in found:
        if not isinstance(term, Term):
            raise TypeError(
                f"{name}: expected terms (pde.Sin, pde.Power, pde.Product, pde.Separable), "
                f"got {type(term).__name__}"
            )
        term.check(dim)
    return found


def _ratio(term: Term, other: Term) -> float | None:
    """Returns c such that one sine term of a drift is c times another; None if there is none."""
    if not (isinstance(term, Sin) and isinstance(other, Sin)):
        return None
    numbers = [term.weights, term.phase, term.amplitude, other.weights, other.phase]
    if _check.is_traced(numbers, other.amplitude) or other.amplitude == 0:
        return None
    w, v = np.asarray(term.weights), np.asarray(other.weights)
    for sign in (1.0, -1.0):
        if np.array_equal(w, sign * v) and term.phase == sign * other.phase:
            return sign * term.amplitude / other.amplitude
    return None
