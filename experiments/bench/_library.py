"""Base class of competitors in `bench/core`, with ours and simple references.

An operation is a method. It takes NumPy arrays, makes of them what its library wants, and yields
(variant, call) pairs; only the calls are timed. What a library cannot do is a method it lacks.
"""

import functools
import importlib
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench._cases import Cores, Plain
from tensorjax import sketch, tt

Ways = Iterator[tuple[str, Callable[[], Any]]]
ready = jax.block_until_ready


class Unsupported(Exception):
    """Raised if a library can do the work only at a disproportionate cost; the message names it."""


class Library:
    """Base class of a competitor in the benchmark: name, modules, threads, conversions.

    Attributes:
        name: How the tables call it.
        modules: What must be importable.
        distribution: The package that brings it.
        threads: "best" is the better of one thread of BLAS and OpenMP and one per core, for the
            latter, which is the default, is often the slower; or "default", or "one".
        peer: Whether the goals may be about it.
        compiled: Whether it runs by programs that XLA compiles.
    """

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()
    distribution: ClassVar[str] = ""
    threads: ClassVar[Literal["best", "default", "one"]] = "best"
    peer: ClassVar[bool] = True
    compiled: ClassVar[bool] = False

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.imported = [importlib.import_module(name) for name in self.modules]

    def plain(self, result: Any) -> Plain:
        """Converts a library's result to NumPy: a number or array, cores, or a list of trains."""
        if self.is_train(result):
            return [np.asarray(c) for c in self.cores(result)]
        return [self.plain(r) for r in result] if isinstance(result, list) else float(result)

    def is_train(self, result: Any) -> bool:
        return hasattr(result, "cores")

    def cores(self, train: Any) -> Sequence[Any]:
        return train.cores


class Tensorjax(Library):
    """Competitor "tensorjax": the toolkit in its default settings."""

    name = "tensorjax"
    modules = ("tensorjax",)
    distribution = "tensorjax"
    threads = "default"
    peer = False
    compiled = True

    def plain(self, result: Any) -> Plain:
        return np.asarray(result) if isinstance(result, jax.Array) else super().plain(result)

    def train(self, cores: Cores) -> tt.TT:
        return tt.TT([jnp.asarray(c) for c in cores])

    def svd(self, x: np.ndarray, tol: float) -> Ways:
        array = jnp.asarray(x)
        yield "", lambda: ready(tt.from_dense(array, tol=tol))

    def round_rank(self, cores: Cores, rank: int) -> Ways:
        train = self.train(cores)
        yield from self._both(functools.partial(tt.round, rank=rank), train)
        quick = jax.jit(functools.partial(tt.round, rank=rank, oversample=0))
        yield "jit, oversample=0", lambda: ready(quick(train))

    def round_tol(self, cores: Cores, tol: float) -> Ways:
        train = self.train(cores)
        yield "", lambda: ready(tt.round(train, tol=tol))

    def round_batch(self, trains: list[Cores], rank: int) -> Ways:
        batch = self.train([np.stack(c) for c in zip(*trains, strict=True)])
        rounded = jax.jit(jax.vmap(functools.partial(tt.round, rank=rank)))
        yield "jit, vmap", lambda: ready(rounded(batch))

    def add(self, x: Cores, y: Cores) -> Ways:
        yield from self._both(tt.add, self.train(x), self.train(y))

    def inner(self, x: Cores, y: Cores) -> Ways:
        yield from self._both(tt.inner, self.train(x), self.train(y))

    def norm(self, x: Cores) -> Ways:
        yield from self._both(tt.norm, self.train(x))

    def hadamard(self, x: Cores, y: Cores) -> Ways:
        yield from self._both(tt.hadamard, self.train(x), self.train(y))

    def matvec(self, a: Cores, x: Cores) -> Ways:
        yield from self._both(tt.matvec, tt.TTMatrix(map(jnp.asarray, a)), self.train(x))

    def project(self, x: np.ndarray, size: int) -> Ways:
        key, array = jax.random.key(0), jnp.asarray(x)
        for variant, draw in (("TTRP", sketch.ttrp), ("Gaussian", sketch.gaussian)):
            projection = draw(key, x.shape[1], size, dtype=array.dtype)
            yield variant, lambda p=projection: ready(sketch.apply(p, array))

    def sweep(self, trains: list[Cores], tol: float) -> Ways:
        ours = [self.train(t) for t in trains]
        yield "", lambda: ready([tt.round(t, tol=tol) for t in ours])
        cap = max(max(t.ranks) for t in ours)

        def capped() -> list[tt.TT]:
            rounded = jax.jit(functools.partial(tt.round, tol=tol, rank=cap))
            return ready([rounded(tt.pad(t, cap)) for t in ours])

        yield "jit, one cap", capped

    def _both(self, function: Callable[..., Any], *args: Any) -> Ways:
        yield "", lambda: ready(function(*args))
        jitted = jax.jit(lambda *a: function(*a))
        yield "jit", lambda: ready(jitted(*args))


class OneThread(Library):
    """Competitor: the toolkit's host functions with one thread of BLAS."""

    name = "tensorjax with one thread"
    threads = "one"
    peer = False
    compiled = True

    def plain(self, result: Any) -> Plain:
        return Tensorjax().plain(result)

    def svd(self, x: np.ndarray, tol: float) -> Ways:
        yield from Tensorjax().svd(x, tol)

    def round_tol(self, cores: Cores, tol: float) -> Ways:
        yield from Tensorjax().round_tol(cores, tol)


class GramMatrix(Library):
    """Reference: the Gram matrix of the cheapest unfolding, which reads the tensor once."""

    name = "Gram matrix"
    peer = False

    def plain(self, result: Any) -> Plain:
        return None

    def svd(self, x: np.ndarray, tol: float) -> Ways:
        rows = itertools.accumulate(x.shape[:-1], lambda a, b: a * b)
        unfoldings = [x.reshape(m, -1) for m in rows if 64 <= m <= 4096]
        best = min(unfoldings, key=_seconds_of_gram)
        yield f"{best.shape[0]} rows", lambda: best @ best.T


def _seconds_of_gram(matrix: np.ndarray) -> float:
    def once() -> float:
        start = time.perf_counter()
        _ = matrix @ matrix.T
        return time.perf_counter() - start

    return min(once() for _ in range(2))


class OnePass(Library):
    """Reference: the sum of all entries, which reads the input once."""

    name = "one pass"
    threads = "default"
    peer = False

    def plain(self, result: Any) -> Plain:
        return None

    def project(self, x: np.ndarray, size: int) -> Ways:
        array = jnp.asarray(x)
        yield "jnp.sum", lambda: ready(jnp.sum(array))
        yield "np.sum", lambda: np.sum(x)


class NumPy(Library):
    """Competitor: a few lines of NumPy for each operation."""

    name = "NumPy"
    modules = ("numpy",)
    peer = False

    def plain(self, result: Any) -> Plain:
        return np.asarray(result)

    def project(self, x: np.ndarray, size: int) -> Ways:
        matrix = np.random.default_rng(0).standard_normal((x.shape[1], size), x.dtype)
        matrix /= math.sqrt(size)
        yield "Gaussian, X R", lambda: x @ matrix


REFERENCES: tuple[type[Library], ...] = (OneThread, GramMatrix, OnePass, NumPy)
