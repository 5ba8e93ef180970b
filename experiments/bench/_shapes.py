"""Compression and arithmetic on drawn shapes, timed beside plain NumPy and other libraries."""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import _drawn, _plain
from experiments.bench._drawn import Dense
from experiments.bench._library import Library
from tensorjax import sketch, tt, tucker

Call = Callable[[], Any]
Clock = Callable[[], float]
# "cpu": seconds of all threads, which other load of a machine disturbs less.
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
# Calls longer than this are timed twice at most; others up to so many times, for so long.
_LONG, _TURNS, _SECONDS = 2.0, 9, 1.5
# Calls with drawn trains after which a shape is no longer new to what chooses kernels.
_WARM = 11
# Gram matrices lose half of the digits: below these errors, in double and in single precision,
# they are no fair way.
_GRAM = {"double": 1e-7, "single": 1e-3}
# An SVD of every unfolding is tried up to this size where a Gram matrix will do.
_SVD = 2**18
# Name of the time that JAX takes for a program which does nothing.
_IDLE = "JAX alone"
# Error over the one allowed up to which a way counts: plain NumPy's, and that of other libraries.
_FAIR, _FAIR_PEER = 1.02, 10.0


@dataclass
class Job:
    """Piece of work on a drawn shape: ours, plain NumPy's ways, and those of other libraries.

    Attributes:
        group, name: Of the row.
        ours: Does it, and waits for the result.
        plain: NumPy's ways, by name.
        peers: Ways of other libraries, by name, each with what makes NumPy's cores of its result.
        wrong: The error of a result of ours or theirs over what is allowed; fair if at most one.
        size: Numbers that a result holds, for the ranks.
        operands: JAX arrays that ours reads, for the time of a program that does nothing.
        warm: Calls of ours after the first one that are not timed: first calls of a shape may be
            served otherwise than later ones.
    """

    group: str
    name: str
    ours: Call
    plain: dict[str, Call]
    wrong: Callable[[Any], float] | None = None
    size: Callable[[Any], int] | None = None
    operands: Any = ()
    warm: int = 0
    peers: dict[str, tuple[Call, Callable[[Any], Any]]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def run(self, clock: Clock = time.perf_counter, idle: bool = True) -> dict[str, Any]:
        """Times all ways of a job by turns, by a clock; returns the row of its results.

        And a program of JAX that does nothing, unless ``idle`` is false: it has to be compiled.
        """
        first, mine = _timed(self.ours, clock)
        for _ in range(self.warm):
            self.ours()
        results = {name: _timed(call, clock) for name, call in self.plain.items()}
        others = dict(self.plain)
        for name, (call, converted) in self.peers.items():
            try:
                took, result = _timed(call, clock)
                results[name], others[name] = (took, converted(result)), call
            except Exception:  # a shape or a dtype that it does not take
                continue
        error = self.wrong(mine) if self.wrong else None
        fair = [n for n, (_, r) in results.items() if self._is_fair(n, r)]
        ways = {"ours": self.ours, **{n: others[n] for n in fair}}
        self.seconds = {"ours": [], **{n: [results[n][0]] for n in fair}}
        if idle:
            ways[_IDLE], self.seconds[_IDLE] = idle_program(self.operands, mine), []
        best = min((results[n][0] for n in fair), default=math.inf)
        for turn in range(_TURNS):
            for name in list(ways) if turn % 2 else list(ways)[::-1]:
                spent = self.seconds[name]
                hopeless = name in others and spent[0] > 5 * best
                if hopeless or (sum(spent) > _SECONDS and len(spent) > (max(spent) < _LONG)):
                    continue
                spent.append(_timed(ways[name], clock)[0])
        times = {n: min(s) for n, s in self.seconds.items() if s}
        other = min(fair, key=times.__getitem__, default="")
        row = {
            "group": self.group,
            "case": self.name,
            "ours ms": 1e3 * times["ours"],
            "first ms": 1e3 * first,
            "other": other or "none accurate enough",
            "other ms": 1e3 * times[other] if other else None,
            "ours / other": times["ours"] / times[other] if other else None,
            "JAX alone ms": 1e3 * times[_IDLE] if idle else None,
            "speed-up over peers": self._over_peers(times),
            "error / allowed": error,
        }
        if self.size and other:
            row["size / other"] = self.size(mine) / self.size(results[other][1])
        return row

    def _over_peers(self, times: dict[str, float]) -> float | None:
        """Returns the time of the fastest other library over ours."""
        found = [times[name] for name in self.peers if name in times]
        return min(found) / times["ours"] if found else None

    def _is_fair(self, name: str, result: Any) -> bool:
        limit = _FAIR if name in self.plain else _FAIR_PEER
        return self.wrong is None or self.wrong(result) <= limit


def idle_program(operands: Any, result: Any) -> Call:
    """Returns a call of a compiled program that has a job's JAX arrays and results, and no work.

    It writes zeros of the shapes of the results. What it takes is the least that a program of JAX
    can take for the job, and about what it takes to hand as many arrays of NumPy to JAX.
    """
    leaves, given = jax.tree.leaves(result), jax.tree.leaves(operands)
    shapes = [(np.shape(x), np.asarray(x).dtype) for x in leaves]
    call = jax.jit(lambda *_: [jnp.zeros(*shape) for shape in shapes], keep_unused=True)
    jax.block_until_ready(call(*given))
    return lambda: jax.block_until_ready(call(*given))


def peer_ways(
    libraries: Sequence[Library], operation: str, *args: Any
) -> dict[str, tuple[Call, Callable[[Any], Any]]]:
    """Returns the ways of other libraries to do an operation of `bench/core`, by name."""
    found: dict[str, tuple[Call, Callable[[Any], Any]]] = {}
    for library in libraries:
        try:
            for variant, call in getattr(library, operation, _none)(*args):
                found[f"{library.name} {variant}".strip()] = call, library.plain
        except Exception:  # a shape or a dtype that it does not take
            continue
    return found


def _none(*_: Any) -> Iterator[tuple[str, Call]]:
    yield from ()


def _timed(call: Call, clock: Clock) -> tuple[float, Any]:
    start = clock()
    result = call()
    return clock() - start, result


def dense_job(case: Dense, libraries: Sequence[Library] = ()) -> Job:
    """Returns the job of a TT-SVD of a drawn array."""
    x, tol = case.array(), case.tol
    single = x.dtype.itemsize < np.result_type(x.dtype, np.float64).itemsize
    norm = np.linalg.norm(x)
    grams = (_plain.gram_tt_svd, _plain.gram_tt_svd_from_the_right)
    ways: dict[str, Any] = {}
    for name, way in zip(("Gram", "Gram from the right"), grams, strict=True):
        if tol >= _GRAM["single" if single else "double"]:
            ways[name] = way
        if single:
            ways[f"{name}, double"] = _plain.in_double(way)
    if not ways or x.size <= _SVD:
        ways["SVD"] = _plain.svd_tt_svd

    def wrong(result: Any) -> float:
        cores = [np.asarray(c) for c in getattr(result, "cores", result)]
        return float(np.linalg.norm(_drawn.dense(cores) - x.reshape(-1)) / norm) / tol

    return Job(
        "TT-SVD",
        case.name,
        lambda: jax.block_until_ready(tt.from_dense(x, tol=tol)),
        {name: functools.partial(way, x, tol) for name, way in ways.items()},
        wrong,
        lambda result: sum(c.size for c in getattr(result, "cores", result)),
        peers=peer_ways(libraries, "svd", x, tol),
    )


def tucker_job(case: Dense) -> Job:
    """Returns the job of a Tucker decomposition of a drawn array of at most six modes."""
    x, single = case.array(), case.dtype in ("float32", "complex64")
    tol = max(case.tol, _GRAM["single" if single else "double"])
    ways = {"Gram": _plain.st_hosvd}
    if single:
        ways["Gram, double"] = _plain.st_hosvd_in_double
    norm = float(np.linalg.norm(x))

    def parts(result: Any) -> tuple[Any, Sequence[Any]]:
        return (result.core, result.factors) if isinstance(result, tucker.Tucker) else result

    def wrong(result: Any) -> float:
        dense = _plain.tucker_dense(*parts(result))
        return float(np.linalg.norm(dense - x) / norm) / tol

    return Job(
        "Tucker",
        case.name,
        lambda: jax.block_until_ready(tucker.from_dense(x, tol=tol)),
        {name: functools.partial(way, x, tol) for name, way in ways.items()},
        wrong,
        lambda result: sum(np.size(a) for a in jax.tree.leaves(parts(result))),
    )


def jobs(
    rng: np.random.Generator, count: int, largest: float, libraries: Sequence[Library] = ()
) -> Iterator[Job]:
    """Yields jobs: TT-SVDs of ``count`` drawn arrays, and a fifth as many of each other operation.

    By turns, so that a run that is ended early has some of all.
    """
    arrays, few = iter(_drawn.draw(rng, count, largest)), max(count // 5, 1)
    modest = (c for c in _drawn.draw(rng, 10 * few, largest) if len(c.shape) <= 6)
    compressed = functools.partial(dense_job, libraries=libraries)
    for _, case in zip(range(few), modest, strict=False):
        yield from map(compressed, itertools.islice(arrays, 5))
        yield tucker_job(case)
        yield from _train_jobs(rng, largest, libraries)
    yield from map(compressed, arrays)


@dataclass
class _Trains:
    """Drawn trains of one order, mode size and dtype, and jobs on them beside NumPy and peers."""

    rng: np.random.Generator
    shape: tuple[int, ...]
    rank: int
    dtype: str
    libraries: Sequence[Library]

    def cores(self, rank: int) -> list[np.ndarray]:
        """Draws the cores of a train of these modes and of a given rank."""
        return _drawn.train(self.rng, self.shape, rank, self.dtype)

    def job(
        self, group: str, call: Call, plain: Call, note: str = "", peers: Any = None, **of: Any
    ) -> Job:
        """Makes a job of a call of ours and one of NumPy's, with the libraries that can do it."""
        name = f"d={len(self.shape)} n={self.shape[0]} r={self.rank} {self.dtype}{note}"
        ours = lambda: jax.block_until_ready(call())  # noqa: E731
        ways = peer_ways(self.libraries, *peers) if peers else {}
        return Job(group, name, ours, {"NumPy": plain}, warm=_WARM, peers=ways, **of)


def _train_jobs(
    rng: np.random.Generator, largest: float, libraries: Sequence[Library]
) -> Iterator[Job]:
    """Yields jobs of arithmetic on drawn trains, of orders 3 to 24."""
    order, mode = int(rng.integers(3, 25)), int(np.exp(rng.uniform(math.log(2), math.log(50))))
    most = max(2, int((largest / 30 / order / mode) ** 0.5))
    rank = int(np.exp(rng.uniform(math.log(2), math.log(min(most, 200)))))
    dtype = str(rng.choice(_drawn.DTYPES))
    drawn = _Trains(rng, (mode,) * order, rank, dtype, libraries)
    tol = 10.0 ** rng.uniform(-3.5 if dtype in ("float32", "complex64") else -6, -1)
    x, y = drawn.cores(rank), drawn.cores(rank)
    yield _round_job(drawn, x, tol)
    yield from _product_jobs(drawn, x, y)
    indices = rng.integers(0, mode, (int(10 ** rng.uniform(1, 4)), order))
    ours = _train(x)
    yield drawn.job(
        "evaluate",
        lambda: tt.evaluate(ours, indices),
        lambda: _plain.evaluate(x, indices),
        f", {len(indices)} entries",
        operands=ours,
    )
    yield from sketch_jobs(rng, dtype, largest)


def _train(cores: Sequence[np.ndarray]) -> tt.TT:
    return tt.TT([jnp.asarray(c) for c in cores])


def _round_job(drawn: _Trains, x: list[np.ndarray], tol: float) -> Job:
    """Makes a job of rounding a train whose bond indices fall in size, to a tolerance."""
    weights = np.exp(-8 / drawn.rank * np.arange(drawn.rank))
    falling = [c * weights[: c.shape[2]].astype(drawn.dtype) for c in x[:-1]] + x[-1:]
    decaying = _train(falling)
    return drawn.job(
        "round",
        lambda: tt.round(decaying, tol=tol),
        lambda: _plain.rounded(falling, tol),
        f" tol {tol:.0e}",
        ("round_tol", falling, tol),
        operands=decaying,
        wrong=lambda result: _distance(getattr(result, "cores", result), falling) / tol,
    )


def _product_jobs(drawn: _Trains, x: list[np.ndarray], y: list[np.ndarray]) -> Iterator[Job]:
    """Yields jobs of products: of small trains entry by entry, inner, and by a TT-matrix."""
    small = max(2, int(drawn.rank**0.5))
    p, q = drawn.cores(small), drawn.cores(small)
    left, right, ours, other = (_train(cores) for cores in (p, q, x, y))
    yield drawn.job(
        "hadamard",
        lambda: tt.hadamard(left, right),
        lambda: _plain.hadamard(p, q),
        f", {small}",
        ("hadamard", p, q),
        operands=(left, right),
    )
    yield drawn.job(
        "inner",
        lambda: tt.inner(ours, other),
        lambda: _plain.inner(x, y),
        peers=("inner", x, y),
        operands=(ours, other),
    )
    matrix = [
        _drawn.normal(drawn.rng, (a.shape[0], a.shape[1], a.shape[1], a.shape[2]), drawn.dtype)
        for a in drawn.cores(2)
    ]
    operator = tt.TTMatrix([jnp.asarray(c) for c in matrix])
    yield drawn.job(
        "matvec",
        lambda: tt.matvec(operator, left),
        lambda: _plain.matvec(matrix, p),
        f", {small}",
        ("matvec", matrix, p),
        operands=(operator, left),
    )


def _distance(cores: Any, exact: Sequence[np.ndarray]) -> float:
    """Computes the relative distance of a train from another, to about 1e-8."""
    wide = np.result_type(exact[0].dtype, np.float64)
    x, y = ([np.asarray(c, wide) for c in t] for t in (cores, exact))
    norm, other, both = (_plain.inner(a, b).real for a, b in ((y, y), (x, x), (x, y)))
    return float(max(other - 2 * both + norm, 0.0) / norm) ** 0.5


def sketch_jobs(rng: np.random.Generator, dtype: str, largest: float) -> Iterator[Job]:
    """Yields jobs of projecting drawn rows to 24 features: by a dense matrix, and by a train."""
    features = int(np.exp(rng.uniform(math.log(200), math.log(min(largest / 10, 3e5)))))
    rows = max(1, int(min(1000, largest / 3 / features)))
    dtype = str(np.finfo(dtype).dtype)  # random maps are real
    x = _drawn.normal(rng, (rows, features), dtype)
    dense = sketch.gaussian(jax.random.key(0), features, 24, dtype=x.dtype)
    matrix = _drawn.normal(rng, (features, 24), dtype)
    yield _sketch_job("dense", dense, x, functools.partial(np.matmul, x, matrix))
    modes, rank = (max(2, round(features ** (1 / 3))),) * 3, int(rng.integers(1, 5))
    x = _drawn.normal(rng, (rows, math.prod(modes)), dtype)
    train = sketch.ttrp(jax.random.key(0), modes, (4, 3, 2), rank=rank, dtype=x.dtype)
    cores = [np.asarray(c) for c in sketch.to_tt_matrix(train).cores]
    yield _sketch_job(
        f"train of rank {rank}", train, x, functools.partial(_plain.applied, cores, x)
    )


def _sketch_job(kind: str, projection: Any, x: np.ndarray, plain: Call) -> Job:
    array = jnp.asarray(x)
    return Job(
        "sketch",
        f"{len(x)} × {x.shape[1]} {x.dtype} {kind}",
        lambda: jax.block_until_ready(sketch.apply(projection, array)),
        {"NumPy": plain},
        operands=(projection, array),
        warm=_WARM,
    )


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summarises jobs by group: count, median and worst ratio of times, slow ones, first call."""
    out = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [r for r in rows if r["group"] == group]
        ratios = [r["ours / other"] for r in mine if r["ours / other"] is not None]
        out.append(
            {
                "group": group,
                "cases": len(mine),
                "median": float(np.median(ratios)),
                "worst": max(ratios),
                "least speed-up": 1 / max(ratios),
                "median speed-up": 1 / float(np.median(ratios)),
                "greatest speed-up": 1 / min(ratios),
                "speed-up over peers": _range(
                    [r["speed-up over peers"] for r in mine if r.get("speed-up over peers")]
                ),
                "above 1.3": sum(r > 1.3 for r in ratios),
                "above 1.3 without JAX alone": sum(map(_is_slow, mine)),
                "longest first call over warm s": max(
                    (r["first ms"] - r["ours ms"]) / 1e3 for r in mine
                ),
                "tolerance missed": sum((r["error / allowed"] or 0) > 1 for r in mine),
            }
        )
    return out


def _is_slow(row: dict[str, Any]) -> bool:
    """Whether a job takes longer than 1.3 × the other and a program of JAX that does nothing."""
    ratio, alone = row["ours / other"], row.get("JAX alone ms") or 0.0
    return ratio is not None and row["ours ms"] * (1 - 1.3 / ratio) > alone


def _range(found: list[float]) -> str:
    """Says the least, the median and the greatest of some ratios; empty without any."""
    return f"{min(found):.3g}, {np.median(found):.3g}, {max(found):.3g}" if found else ""
