"""Calls of the function that `cross` approximates: compiled, by executors, with a record."""

import dataclasses
import functools
import math
import os
import pickle
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, CancelledError
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check

# A batch is cut into so many parts for each worker of an executor, so that slow ones do not delay.
_PARTS = 4
Jit = bool | Literal["auto"]
# Batches of compiled functions are padded to one of these sizes, and cut at the last.
_BUCKETS = tuple(64 * 4**k for k in range(7))
LONGEST = _BUCKETS[-1]
NOT_TRACEABLE = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)


class Executor(Protocol):
    """Interface of worker pools (``map`` or ``submit``) that call a slow function for `cross`.

    Executors of `concurrent.futures`, pools of `multiprocessing`, a Dask client or its
    ``get_executor()``, and pools of Ray have one or both.

    Example:
      >>> from concurrent.futures import ThreadPoolExecutor
      >>> with ThreadPoolExecutor(2) as pool:
      ...     print(list(pool.map(abs, [-1, 2])))
      [1, 2]

    Source: `concurrent.futures.Executor` of Python, whose interface it is.
    """

    def map(self, function: Callable[[Any], Any], values: Iterable[Any], /) -> Iterable[Any]: ...


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Evaluations:
    """Record of the function calls of `cross`: multi-indices and values, from which it resumes.

    Attributes:
      held_out: number of entries that the search held out first.
      keys: (m,) positions of multi-indices in the flattened tensor: int64, or Python integers.
      values: (m, 1) or (m, components) values there.
      components: (m,) of a function with components, else ().

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> f = lambda i: 1.0 * i.sum(axis=1)
      >>> _, info = tt.cross(f, (4, 4, 4), tol=1e-4, key=jax.random.key(0))
      >>> info.record
      <64 values of a function>

    Source: ours.
    """

    shape: tuple[int, ...]
    held_out: int
    keys: np.ndarray
    values: np.ndarray
    components: tuple[int, ...]
    dtype: Any

    def __repr__(self) -> str:
        return f"<{len(self.keys)} values of a function>"

    @functools.cached_property
    def _places(self) -> dict[int, int]:
        return {key: place for place, key in enumerate(self.keys.tolist())}

    def places(self, keys: list[int]) -> np.ndarray:
        """Finds positions of multi-index keys in `cross`'s record of function calls, or −1."""
        return np.array([self._places.get(key, -1) for key in keys], np.int64)

    def more(self, keys: np.ndarray, values: np.ndarray, dtype: Any) -> "Evaluations":
        """Returns `cross`'s record of function values with others added, but for known points."""
        new = np.flatnonzero(self.places(keys.tolist()) < 0)
        return dataclasses.replace(
            self,
            keys=np.concatenate([self.keys, keys[new]]),
            values=np.concatenate([self.values, values[new]]),
            dtype=np.result_type(self.dtype, dtype),
        )


class Calls:
    """Callable that evaluates a black-box function on a batch of points, by an executor if given.

    It gets points of its own, so that one that changes its argument changes nothing else.
    """

    def __init__(self, f: Callable[[Any], Any], vectorized: bool, executor: Executor | None):
        self._f, self._executor = _check.function("f", f), executor
        self._batch = f if _check.flag("vectorized", vectorized) else OneByOne(f)
        self._failed = slice(None)  # points of the batch whose part failed in a worker

    def __call__(self, points: np.ndarray) -> Any:
        if self._executor is None:
            return unmasked(self._batch(points.copy()))
        workers = getattr(self._executor, "_max_workers", None) or os.cpu_count() or 1
        size = math.ceil(len(points) / min(len(points), _PARTS * workers))
        parts = [points[p : p + size].copy() for p in range(0, len(points), size)]
        values = [np.asarray(unmasked(v)) for v in self._mapped(parts)]
        for part, value in zip(parts, values, strict=True):
            if value.shape[:1] != (len(part),):
                return value  # of a wrong shape, which is told of as in any batch
        return joined(values, np.concatenate)

    def _mapped(self, parts: list[np.ndarray]) -> list[Any]:
        executor: Any = self._executor
        self._failed = slice(None)
        if not hasattr(executor, "submit"):
            return list(executor.map(self._batch, parts))
        futures, values = [executor.submit(self._batch, part) for part in parts], []
        try:
            for future in futures:
                values.append(future.result())
        except BaseException:
            for future in futures:  # else a pool would go on with them after the search has ended
                future.cancel()
            first = sum(len(part) for part in parts[: len(values)])
            self._failed = slice(first, first + len(parts[len(values)]))
            raise
        return values

    def done(self) -> list[Any]:
        """Returns the values of a batch from function calls before the one that failed."""
        if not isinstance(self._batch, OneByOne) or self._executor is not None:
            return []
        done, self._batch.done = self._batch.done, []
        return done

    def culprit(self, error: Exception, points: np.ndarray) -> int | None:
        """Finds the point of a batch at which a function call raises an error, by bisection.

        Where an executor evaluated the function, its workers do so here too: the function may take
        long, or need what only they have.

        Returns:
          None if it raises at no single point, or at the first and the last: then the batch itself
          is what it cannot take; or if it is no error of the function, but of the executor.
        """
        if self._executor is not None and _of_executor(error):
            return None
        if len(points) > 1 and self._raises(points[:1]) and self._raises(points[-1:]):
            return None
        low, high, _ = self._failed.indices(len(points))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._raises(points[low:middle]) else (middle, high)
        return low if self._raises(points[low : low + 1]) else None

    def _raises(self, points: np.ndarray) -> bool:
        failed = self._failed
        try:
            self(points)
        except Exception:  # whatever it is, the first one is passed on
            return True
        finally:
            self._failed = failed
        return False


class PaddedCalls:
    """Callable that compiles a JAX function for few batch sizes, by padding; calls others as is.

    Attributes:
      called: whether the function has returned anything yet.
      programs: batch sizes for which it was compiled.
    """

    def __init__(
        self, f: Callable[[Any], Any], vectorized: bool, executor: Executor | None, jit: Jit
    ):
        self.called = False
        self.programs: set[int] = set()
        self._f, self._vectorized, self._jit = f, vectorized, jit
        self._eager = Calls(f, vectorized, executor)
        self._compiled: Any = None
        self._is_jax = False

    def __call__(self, points: np.ndarray) -> Any:
        if self._jit is True and self._compiled is None:
            self._compiled = self._jitted()
        if self._compiled is not None:
            try:
                out = _padded(self._compiled, points)
            except NOT_TRACEABLE:
                if self._jit is True:
                    raise
                self._compiled = None
            else:
                self.programs.add(_bucket(len(points)))
                return out
        if self._is_jax:  # eager operations are compiled for every shape too
            return _padded(self._eager, points)
        return self._eager(points) if self.called else self._first(points)

    def done(self) -> list[Any]:
        """Returns the values of a batch from eager function calls before the one that failed."""
        return self._eager.done()

    def culprit(self, error: Exception, points: np.ndarray) -> int | None:
        """Finds the point of a batch at which a function call raises an error, or None."""
        return self._eager.culprit(error, points)

    def _first(self, points: np.ndarray) -> Any:
        """Calls a black-box function on its first batch; notes if it returns JAX arrays."""
        head = self._eager(points if self._vectorized else points[:1])
        self.called = True
        self._is_jax = isinstance(head, jax.Array)
        if self._is_jax and self._jit == "auto":
            self._compiled = self._jitted()
        if self._vectorized or len(points) == 1:
            return head
        rest = self(points[1:]) if self._is_jax else self._eager(points[1:])
        return joined([*np.asarray(head), *np.asarray(rest)], np.stack)

    def _jitted(self) -> Any:
        # JAX keeps what it compiled with the function: the next search finds it.
        return jax.jit(self._f if self._vectorized else _mapped(self._f))


def _padded(f: Callable[[Any], Any], points: np.ndarray) -> np.ndarray:
    """Calls the function of `cross` on a batch padded by copies of its last point."""
    size = _bucket(len(points))
    padding = np.broadcast_to(points[-1:], (size - len(points), points.shape[1]))
    out = np.asarray(f(np.concatenate([points, padding])))
    return out[: len(points)] if out.shape[:1] == (size,) else out


@functools.lru_cache(maxsize=64)
def _mapped(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Vectorises calls of a function of `cross` by `jax.vmap`; cached, so it compiles once."""
    return jax.vmap(f)


def _bucket(count: int) -> int:
    return next(size for size in _BUCKETS if size >= count)


def _of_executor(error: Exception) -> bool:
    """Whether an error in calls of f came from an executor: a dead worker, or no pickling."""
    if isinstance(error, BrokenExecutor | CancelledError | pickle.PicklingError):
        return True
    unsent = isinstance(error, AttributeError | TypeError) and "pickle" in str(error)
    return unsent or type(error).__module__.split(".")[0] in ("distributed", "ray")


def advice(error: Exception, shape: tuple[int, ...] | None, vectorized: bool) -> str:
    """Returns advice on an error of the function given to `cross`, or of an executor, or "".

    Args:
      shape: of the points, if f raised it for a batch and at no single one of them.
      vectorized: whether f takes batches.

    Example:
      >>> advice(AttributeError("Can't pickle local object 'f'"), None, True)[:45]
      'executor: processes get f by its name: define'
    """
    if isinstance(error, pickle.PicklingError) or "pickle" in str(error):
        return (
            "executor: processes get f by its name: define f at the top level of a module, not as "
            "a lambda or inside a function, or use an executor of threads"
        )
    if isinstance(error, BrokenExecutor):
        return (
            "executor: a worker died while it evaluated f, or could not start: it may lack memory, "
            'or the program lacks `if __name__ == "__main__":`'
        )
    if shape is None or not isinstance(error, TypeError | ValueError | IndexError):
        return ""
    given = f"f: gets one array, {shape if vectorized else shape[1:]}"
    if "positional argument" in str(error):
        return f"{given}: write lambda x: f({'*x.T' if vectorized else '*x'}) for one of several"
    return f"{given}: pass vectorized=False if it takes one row at a time" if vectorized else ""


class OneByOne:
    """Callable that evaluates a function of one point at all points of a batch, one by one.

    Attributes:
      done: values at the first points of the last batch in which the function raised an error.
    """

    def __init__(self, f: Callable[[Any], Any]):
        self._f = f
        self.done: list[Any] = []

    def __call__(self, points: np.ndarray) -> Any:
        values: list[Any] = []
        try:
            for point in points:
                values.append(unmasked(self._f(point)))
        except BaseException:
            self.done = values
            raise
        return joined(values, np.stack)


def unmasked(values: Any) -> Any:
    """Replaces masked entries of values from function calls, NumPy masked arrays, by NaN."""
    if not isinstance(values, np.ma.MaskedArray) or not np.ma.is_masked(values):
        return values
    wide = values.astype(np.result_type(values.dtype, np.float32))
    return np.ma.filled(wide, np.nan)


def double(values: np.ndarray) -> np.ndarray:
    """Copies the checked values of function calls to new arrays of float64 or complex128.

    Example:
      >>> import numpy as np
      >>> double(np.arange(2, dtype=np.float16)).dtype, double(np.ones(2, np.clongdouble)).dtype
      (dtype('float64'), dtype('complex128'))
    """
    with np.errstate(over="ignore"):  # of longer numbers: Inf is refused as it is elsewhere
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def joined(values: list[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Joins the values of several function calls, of points or of batches, to one array.

    Example:
      >>> import numpy as np
      >>> print(joined([1.0, 2.0], np.stack))
      [1. 2.]
    """
    shapes = {np.shape(v)[1:] if join is np.concatenate else np.shape(v) for v in values}
    if len(shapes) > 1:
        raise ValueError(f"f: expected values of one shape, got {sorted(shapes)}")
    return jnp.stack(values) if isinstance(values[0], jax.Array) else join(values)


def numbers(values: np.ndarray) -> np.ndarray:
    """Converts the values of a function call to NumPy numbers; ValueError if impossible.

    Example:
      >>> from fractions import Fraction
      >>> import numpy as np
      >>> print(numbers(np.array([Fraction(1, 4), 2], object)))
      [0.25 2.  ]
    """
    kind = values.dtype
    if kind.kind in "biufc":
        return values
    if jnp.issubdtype(kind, jnp.floating):  # bfloat16 and shorter ones
        return values.astype(np.float32)
    texts = (str, bytes, type(None))
    if kind.kind == "O" and not any(isinstance(v, texts) for v in values.ravel().tolist()):
        for wide in (np.float64, np.complex128):
            try:
                return values.astype(wide)
            except (TypeError, ValueError, OverflowError):
                continue
    raise ValueError(f"f: expected numbers, got an array of dtype {kind}")
