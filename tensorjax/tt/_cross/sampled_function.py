"""Black-box function of `cross`: calls in batches, caches, counts and checks its values."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tensorjax import linalg
from tensorjax.tt._cross.function_calls import (
    LONGEST,
    NOT_TRACEABLE,
    Evaluations,
    Executor,
    Jit,
    PaddedCalls,
    advice,
    joined,
    numbers,
)

# Values between 2^−e and 2^e for this e can be squared and summed without care; and those up to
# 2^e for the second one still have squares.
_IN_RANGE, _SQUARABLE = 100, 200


class BudgetExhausted(Exception):
    """Exception of a function sampled by `cross`: evaluations would exceed the budget."""


class Rescaled(Exception):
    """Exception of a function sampled by `cross`: earlier values were rescaled for a large one."""


class FunctionFailed(Exception):
    """Exception of a function sampled by `cross`: it failed, which ends the search."""


class Part(NamedTuple):
    """Left or right parts of multi-indices of a function sampled by `cross`, with flat offsets.

    Attributes:
      index: (m, k) multi-indices.
      keys: (m,) what they add to the position of an entry in the flattened tensor.
    """

    index: np.ndarray
    keys: np.ndarray

    def take(self, places: Any) -> "Part":
        return Part(self.index[places], self.keys[places])


class Oracle:
    """Sampled function of `cross` with a cache: its values, seen as the entries of a tensor.

    Coordinates, if there are any, are the rows of ``grid`` (d, longest mode).

    A vector-valued function makes a last mode of its components: all components of a multi-index
    are found by one evaluation. No multi-index is evaluated twice, as long as ``cache`` values hold
    all of them; when it is full, it is emptied.

    Attributes:
      shape: mode sizes, of the components too once ``start`` is done.
      evaluations: multi-indices handed to the function, all different unless the cache was emptied.
      hits: entries asked for again and found in the memory.
      largest: |value| seen so far.
      peak: the entry there, its component (if there are any) behind its multi-index.
      exponent: all values are given out over 2^exponent, which keeps their squares in range.
      end_on_error: whether errors of the function end the search, which then returns what it has.
    """

    def __init__(
        self,
        f: Callable[[Any], Any],
        shape: tuple[int, ...],
        *,
        grid: np.ndarray | None,
        vectorized: bool,
        jit: Jit,
        budget: int | None,
        cache: int | None = None,
        executor: Executor | None = None,
        end_on_error: bool = False,
        record: Evaluations | None = None,
    ):
        self.shape = shape
        self.evaluations = 0
        self.hits = 0
        self.dtype: Any = None
        self.largest = 0.0
        self.peak = np.zeros(len(shape), np.int64)
        self.exponent = 0
        self._grid, self._vectorized = grid, vectorized
        self._calls = PaddedCalls(f, vectorized, executor, jit)
        self.end_on_error = end_on_error
        self._cache = math.inf if cache is None else cache
        self._budget = math.inf if budget is None else budget
        self._modes = len(shape)
        self._record = record
        self._components = None if record is None else record.components
        self._rows: dict[int, int] = {}
        self._values = np.empty((0, 1))
        # Positions of multi-indices in the flattened tensor: Python integers where 64 bits end.
        strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
        self._strides = np.array(strides, np.int64 if math.prod(shape) < 2**53 else object)

    def start(self, index: np.ndarray) -> np.ndarray:
        """Evaluates the sampled function for the first time; finds its number of components."""
        values = self.points(index)
        if self._components:
            self.shape = (*self.shape[: self._modes], *self._components)
            self._strides = np.append(self._strides, self._strides[-1] * 0)
        return values

    @property
    def programs(self) -> set[int]:
        """Batch sizes for which the function sampled by `cross` was compiled."""
        return self._calls.programs

    @property
    def left(self) -> float:
        """Number of samples of the function that the budget of `cross` still allows."""
        return self._budget - self.evaluations

    @property
    def remembered(self) -> int:
        """Number of multi-indices at which the sampled function's values are in the cache."""
        return len(self._rows)

    def holds(self, count: int) -> bool:
        """Whether the sampled function's cache has room for so many values, and forgets none."""
        return count <= self._cache

    def points(self, index: np.ndarray) -> np.ndarray:
        """Evaluates the sampled function at multi-indices: (m, 1) or (m, components)."""
        return self._find(self.part(index, 0).keys, lambda p: index[p])

    def known(self, index: np.ndarray) -> np.ndarray:
        """Returns for each multi-index whether the sampled function's value is in the cache."""
        keys = self.part(index, 0).keys.tolist()
        return np.fromiter((key in self._rows for key in keys), bool, len(keys))

    def part(self, index: np.ndarray, first: int) -> Part:
        """Builds parts (m, k) of a sampled function's multi-indices, from mode ``first`` on."""
        return Part(index, np.dot(index, self._strides[first : first + index.shape[1]]))

    def pairs(self, left: Part, right: Part) -> np.ndarray:
        """Evaluates the sampled function at m entries, each of a left and a right part."""

        def take(p: np.ndarray) -> np.ndarray:
            return np.concatenate([left.index[p], right.index[p]], axis=1)

        values = self._find(left.keys + right.keys, take)
        return self._picked(values, (right if right.index.shape[1] else left).index[:, -1])

    def block(self, left: Part, right: Part) -> np.ndarray:
        """Evaluates the sampled function at all pairs of left and right parts, as a matrix."""
        keys = left.keys[:, None] + right.keys
        b = keys.shape[1]

        def take(p: np.ndarray) -> np.ndarray:
            return np.concatenate([left.index[p // b], right.index[p % b]], axis=1)

        values = self._find(keys.ravel(), take)
        last = right.index[:, -1] if right.index.shape[1] else left.index[:, -1:]
        component = np.broadcast_to(last, keys.shape).ravel()
        return self._picked(values, component).reshape(keys.shape)

    def _picked(self, values: np.ndarray, component: np.ndarray) -> np.ndarray:
        return values[np.arange(len(values)), component] if self._components else values[:, 0]

    def _find(self, keys: np.ndarray, take: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Returns values of a sampled function from the cache; evaluates it at missing entries.

        Args:
          keys: (m,) of the multi-indices.
          take: gives the multi-indices themselves at some of these places.
        """
        wanted = keys.tolist()
        rows = np.fromiter(map(self._rows.get, wanted, itertools.repeat(-1)), np.int64, len(wanted))
        missing = np.flatnonzero(rows < 0)
        self.hits += len(wanted) - missing.size
        if not missing.size:
            return self._values[rows]
        new = wanted if missing.size == len(wanted) else [wanted[p] for p in missing.tolist()]
        once, place = missing, np.arange(missing.size)
        if len(set(new)) < len(new):  # some come more than once
            places = {key: row for row, key in enumerate(dict.fromkeys(new))}
            place = np.array([places[key] for key in new])
            once, new = missing[np.unique(place, return_index=True)[1]], list(places)
        if once.size > self.left:
            raise BudgetExhausted
        index = take(once)[:, : self._modes]
        values, shift = self._call(index, new)
        self._count(values, index)
        if missing.size == len(wanted):
            out = values[place]
        else:
            out = np.empty((len(wanted), values.shape[1]), np.result_type(self._values, values))
            known = np.flatnonzero(rows >= 0)
            out[known], out[missing] = self._values[rows[known]], values[place]
        self._keep(new, values)
        if shift:
            raise Rescaled
        return out

    def _keep(self, keys: list[int], values: np.ndarray) -> None:
        """Caches values of the sampled function; empties the cache first if it is too large."""
        first = len(self._rows)
        if first + len(keys) > self._cache:
            self._rows, self._values, first = {}, self._values[:0], 0
            if len(keys) > self._cache:
                return
        total = first + len(keys)
        if total > len(self._values) or self._values.dtype != values.dtype:
            kind = np.result_type(self._values, values)
            room = max(int(min(2 * total, self._cache)), 1024)
            grown = np.empty((room, values.shape[1]), kind)
            grown[:first] = self._values[:first]
            self._values = grown
        self._values[first:total] = values
        self._rows.update(zip(keys, range(first, total), strict=True))

    def _count(self, values: np.ndarray, index: np.ndarray) -> None:
        """Counts evaluations of the sampled function; records the largest value and its index."""
        self.evaluations += len(values)
        sizes = np.abs(values)
        if (largest := float(sizes.max())) > self.largest:
            row, component = divmod(int(sizes.argmax()), values.shape[1])
            self.largest = largest
            self.peak = np.append(index[row], component) if self._components else index[row].copy()

    def again(self, index: np.ndarray) -> np.ndarray:
        """Evaluates the sampled function again at known multi-indices, to see if it changes."""
        values = self._evaluated(index, self.part(index, 0).keys.tolist())
        self.evaluations += len(index)
        return linalg.scaled(values, -self.exponent)

    # Calling -------------------------------------------------------------------------------------

    def _call(self, index: np.ndarray, keys: list[int]) -> tuple[np.ndarray, bool]:
        """Evaluates the sampled function at new multi-indices; tells if others were rescaled."""
        if self._record is None:
            values = self._evaluated(index, keys)
        else:
            places = self._record.places(keys)
            new = np.flatnonzero(places < 0)
            values = self._record.values[places]
            self._found(self._record.dtype)
            if new.size:
                fresh = self._evaluated(index[new], [keys[p] for p in new])
                values = values.astype(np.result_type(values, fresh), copy=False)
                values[new] = fresh
        exponent = linalg.exponent_of(values) if values.any() else self.exponent
        if self.largest == 0:  # zeros have any scale
            self.exponent = exponent if abs(exponent) > _IN_RANGE else 0
        shift = exponent - self.exponent if exponent > self.exponent + _SQUARABLE else 0
        if shift:
            self.exponent = exponent
            self._values = linalg.scaled(self._values, -shift)
            self.largest = 0.0  # the new ones are larger by far
        return linalg.scaled(values, -self.exponent), shift > 0

    def _evaluated(self, index: np.ndarray, keys: list[int]) -> np.ndarray:
        """Evaluates the sampled function at multi-indices in batches, and checks its values."""
        points = index
        if self._grid is not None:
            points = self._grid[np.arange(self._modes), index]
        size = LONGEST
        cuts = [slice(p, p + size) for p in range(0, len(points), size)]
        pieces: list[np.ndarray] = []
        try:
            for cut in cuts:
                pieces.append(self._piece(points[cut], index[cut], keys[cut]))
            values = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
            if not np.isfinite(values).all():
                self._complain(values, index, points)
        except BaseException:  # what is known is kept, for a search that goes on from here
            for piece, first in zip(pieces, range(0, len(points), size), strict=False):
                self._save(keys[first : first + size], piece)
            raise
        return values

    def _save(self, keys: list[int], values: np.ndarray) -> None:
        """Adds finite values of a sampled function's failed batch to the record of evaluations."""
        finite = np.flatnonzero(np.isfinite(values).all(axis=1))
        if not finite.size:
            return
        kept = self._positions(keys)[finite], values[finite]
        if self._record is None:
            self._record = self._recorded(*kept, 0)
        else:
            self._record = self._record.more(*kept, self.dtype)

    def _positions(self, keys: list[int]) -> np.ndarray:
        """Converts flat positions of a sampled function's entries: to int64, or Python integers."""
        return np.array(keys, self._strides.dtype)

    def _recorded(self, keys: np.ndarray, values: np.ndarray, held_out: int) -> Evaluations:
        components = self._components or ()
        shape = self.shape[: self._modes]
        return Evaluations(shape, held_out, keys, values, components, self.dtype)

    def record(self, held_out: int) -> Evaluations:
        """Returns all known values of a sampled function as a record, to resume `cross` from."""
        values = linalg.scaled(self._values[: len(self._rows)], self.exponent)
        out = self._recorded(self._positions(list(self._rows)), values, held_out)
        old = self._record
        return out if old is None else out.more(old.keys, old.values, old.dtype)

    def _piece(self, points: np.ndarray, index: np.ndarray, keys: list[int]) -> np.ndarray:
        """Evaluates the sampled function on one batch; checks values and casts to double."""
        first = 0 if self._calls.called else 1  # the first call of all is of one point
        try:
            out = self._calls(points)
        except BaseException as error:
            done = self._calls.done()
            if done and self._calls.called:
                found = slice(first, first + len(done))
                self._save(keys[found], self._checked(joined(done, np.stack), points[found]))
            if isinstance(error, Exception):
                self._name(error, points, index, first + len(done) if done else None)
            raise
        return self._checked(out, points)

    def _checked(self, out: Any, points: np.ndarray) -> np.ndarray:
        """Checks the shape of values of a sampled function, and casts them to double."""
        values = numbers(np.asarray(out))
        kinds = "(batch,) or (batch, components)"
        if values.ndim not in (1, 2) or len(values) != len(points) or 0 in values.shape:
            raise ValueError(
                f"f: expected {kinds} for a batch of {len(points)}, got shape {values.shape}; "
                "if f takes one multi-index at a time, pass vectorized=False"
            )
        components = values.shape[1:]
        if self._components is None:
            self._components = components
        elif components != self._components:
            raise ValueError(
                f"f: expected {self._components or 'scalar'} values as in the first batch, "
                f"got shape {values.shape}"
            )
        kind = values.dtype if values.dtype.kind in "fc" else np.dtype(np.float64)
        if kind.type in (np.longdouble, np.clongdouble):  # which JAX cannot hold
            kind = np.dtype(np.float64 if kind.kind == "f" else np.complex128)
        self._found(kind)
        with np.errstate(over="ignore"):  # of longer numbers: Inf is refused as it is elsewhere
            # A copy: the function may give out the same array again, with other values.
            wide = values.astype(np.result_type(kind, np.float64))
        return wide.reshape(len(points), -1)

    def _found(self, kind: Any) -> None:
        """Widens the dtype of a sampled function to hold newly returned values."""
        self.dtype = kind if self.dtype is None else np.result_type(self.dtype, kind)

    def _name(
        self, error: Exception, points: np.ndarray, index: np.ndarray, at: int | None
    ) -> None:
        """Adds to an error of a sampled function the multi-index that raised it."""
        if isinstance(error, NOT_TRACEABLE):
            return
        at = self._calls.culprit(error, points) if at is None else at
        if at is None:
            where = f"for a batch of {len(index)} multi-indices"
        else:
            where = f"at multi-index {tuple(index[at].tolist())}"
            if self._grid is not None:
                where += f" (coordinates {tuple(points[at].tolist())})"
        told = hasattr(error, "__notes__")  # by a function of this library that called f
        error.add_note(f"f: raised {where}, after {self.evaluations} evaluations of tt.cross")
        everywhere = (at is None or len(points) == 1) and not told
        batch = points.shape if everywhere else None
        if said := advice(error, batch, self._vectorized):
            error.add_note(said)
        if self.end_on_error and self.evaluations:
            raise FunctionFailed(f"f raised {error!r} {where}") from error

    def _complain(self, values: np.ndarray, index: np.ndarray, points: np.ndarray) -> NoReturn:
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        named = ", ".join(str(tuple(index[p].tolist())) for p in bad[:3])
        where = ""
        if self._grid is not None:
            where = f" (coordinates {tuple(points[bad[0]].tolist())})"
        message = (
            f"f: expected finite values, got NaN or Inf at {bad.size} of {len(index)} "
            f"multi-indices of a batch, first {named}{where}"
        )
        if self.end_on_error and self.evaluations:
            raise FunctionFailed(message)
        raise ValueError(message)
