"""Interpolation of functions of several variables by cross approximation of their values."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, overload

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import times_mode, times_right
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._typing import Key
from tensorjax.tt._cross.cross import CrossInfo, cross
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.chebyshev import checked_domain
from tensorjax.tt.functions.degree_choice import (
    first_bases,
    of_degree,
    slice_norms,
    without_tails,
)
from tensorjax.tt.functions.function_train import FunctionTrain, times_modes
from tensorjax.tt.functions.interpolated_function import (
    CheckedValues,
    Values,
    of_function,
    times_power,
)
from tensorjax.tt.functions.interpolation_error import (
    ErrorPoints,
    Fit,
    InterpolateInfo,
    reported,
)
from tensorjax.tt.functions.peaks import HiddenPart, Peaks, hidden_part

# Points of the box at which the error is measured.
_TESTED = 1000
# Powers of two that the largest value may be off one, so that squares of small ones are in range.
_FAR = 200
# Part of the tolerance that is asked of the cross approximation, and that left-out degrees may use.
_CROSS, _TRIM = 1 / 3, 0.02
# Last coefficients above this part of the tolerance ask for a higher degree.
_TAIL = 0.03
# Two rounds in a row that lower the error by no more than this are the last ones.
_ROUNDS, _LOWER = 12, 0.9
# Parts of f that are looked for where an error stands out, at most; what their errors are at least,
# times the tolerance.
_PARTS, _LEAST_PART = 3, 10
# Share of all evaluations for random points that test a train. It is a share of so many evaluations
# at least, up to the default share, but these are no more new points than so many times all
# evaluations before.
_SHARE, _LEAST_SPENT, _TIMES = 0.05, 100_000, 2
# Tails of what a train lacks stand out of the errors of a train as accurate as so many units of
# roundoff, if that is at most this part of the tolerance. It may take so many evaluations, or this
# part of all before, and no more than were made before the random points; and degrees up to so many
# times those found, and some more.
_SHARP, _SHARPER, _SHARP_CALLS, _SHARP_PART, _SHARP_DEGREE = 1e4, 0.1, 10_000, 4, (3, 16)
# Evaluations kept for tests of a train, and part of all that they are at most.
_RESERVED, _RESERVED_PART = 1500, 0.02
# Statuses of a cross approximation that no other degree or tolerance changes.
_ENDED = ("budget", "stopped", "failed", "zero")


@overload
def interpolate(
    f: Callable[[Any], Any],
    domain: Sequence[Any],
    *,
    tol: float,
    key: Key | None = None,
    max_degree: int = 256,
    max_rank: int | None = None,
    max_evaluations: int | None = None,
    vectorized: bool = True,
    components: None = None,
    **options: Any,
) -> tuple[FunctionTrain, InterpolateInfo]: ...


@overload
def interpolate(
    f: Callable[[Any], Any],
    domain: Sequence[Any],
    *,
    tol: float,
    key: Key | None = None,
    max_degree: int = 256,
    max_rank: int | None = None,
    max_evaluations: int | None = None,
    vectorized: bool = True,
    components: int,
    **options: Any,
) -> tuple[tuple[FunctionTrain, ...], InterpolateInfo]: ...


def interpolate(
    f: Callable[[Any], Any],
    domain: Sequence[Any],
    *,
    tol: float,
    key: Key | None = None,
    max_degree: int = 256,
    max_rank: int | None = None,
    max_evaluations: int | None = None,
    vectorized: bool = True,
    components: int | None = None,
    **options: Any,
) -> tuple[FunctionTrain | tuple[FunctionTrain, ...], InterpolateInfo]:
    """Interpolates a function of d variables on a box by a functional train, from few evaluations.

    The values at a grid of nodes are a tensor, of which `tensorjax.tt.cross` makes a train, and the
    modes of which are then brought from values to coefficients. Chebyshev degrees are chosen for
    each variable by the coefficients along a few lines, through random points and through peaks of
    f, and raised while the error off the grid asks for it. Ascents along the lines lead to the
    peaks; if random points see little of f, there are several, and the cross starts from the peaks.
    Where one random point shows an error far above all others, it may be in the tail of a peak that
    the train lacks: an ascent of the error leads there, and degrees are chosen anew. A train that
    meets the tolerance is tested at 5000 random points, or 5 % of all evaluations if that is more,
    and a train as accurate as roundoff allows, from 10 000 evaluations at most, or a quarter of all
    before, shows tails there that are far below the tolerance. The points are no more than twice,
    and those of that train no more than, what was evaluated before: all may cost four times as much
    as without tests, and an ascent from the largest error some 219 d evaluations more. A peak whose
    tail no random point meets is missed, as ``info.message`` says.

    Args:
      f: maps points (batch, d) to values (batch,), or with ``components`` to (batch, components),
        which cost no more; real or complex, of NumPy or JAX.
      domain: for each variable a pair (low, high), for Chebyshev polynomials of a degree that is
        chosen, or a basis, which is kept as it is.
      tol: relative error, of the root mean square over the box.
      key: `jax.random.key`; of seed 0 if None.
      max_degree: largest Chebyshev degree.
      max_rank: of the result; no limit if None.
      max_evaluations: of f, at least 20; no limit if None.
      vectorized: False if f takes one point (d,), and gives a scalar or (components,).
      components: number of components of a vector-valued f; None if its values are scalars.
      options: others of `tensorjax.tt.cross`, as ``pivots`` (points where f is large, which the
        lines go through too), ``search`` (0.05: the share of all evaluations for random points,
        5000 at least; 0 for no tests beyond a thousand of them, nor a train more accurate than
        asked), ``jit``, ``executor``, ``dtype`` and ``on_error``: with "return" an error of f, or
        an interrupt, once there is a train gives the best one, with status "failed".

    Returns:
      The `FunctionTrain`, or with ``components`` a tuple of one for each, and an `InterpolateInfo`
      with status and measured error, of all components together.

    Raises:
      ValueError: intervals that are infinite, empty or reversed; NaN, Inf or wrong shapes of values
        of f; a tolerance below 10 eps of their dtype.
      TypeError: a call under a JAX transformation.

    Example:
      >>> import jax, numpy as np
      >>> from tensorjax import tt
      >>> f, info = tt.functions.interpolate(
      ...     lambda x: 1 / (1 + (x**2).sum(axis=1)), [(-1, 1)] * 4, tol=1e-4
      ... )
      >>> info.status, info.error <= 1e-4, bool(abs(f([0.0, 0.0, 1.0, 1.0]) - 1 / 3) < 1e-3)
      ('converged', True, True)

    Source: Gorodetsky, Karaman, Marzouk (2019); Bigoni, Engsig-Karup, Marzouk (2016); B. Hashemi,
    L. N. Trefethen, "Chebfun in three dimensions", SIAM J. Sci. Comput. 39 (2017), the degrees from
    lines. Ours: lines through peaks; the measured error, which degrees and tolerances follow.
    """
    started = time.perf_counter()
    tol = _check.tolerance(tol, np.float64)
    key = jax.random.key(0) if key is None else key
    rng = _check.host_generator(key, "; interpolation calls f from the host and cannot be traced")
    bases, free = checked_domain(domain)
    most = _check.integer("max_degree", max_degree, low=1)
    budget = (
        math.inf
        if max_evaluations is None
        else _check.integer("max_evaluations", max_evaluations, low=20)
    )
    shape = () if components is None else (_check.integer("components", components, low=1),)
    checked = CheckedValues(f, shape, vectorized, options.get("executor"))
    values = Values(checked, budget, [0])
    count = int(min(_TESTED, budget // 5))
    options = {"key": key, "max_rank": max_rank, "vectorized": vectorized, **options}
    tests = ErrorPoints(values, bases, count, rng)
    power = linalg.exponent_of(tests.true)
    if abs(power) > _FAR and tests.true.any():  # squares of these values may be zero or infinite
        near = functools.partial(times_power, f, -power)
        left = None if max_evaluations is None else max(20, int(values.left))
        out, info = interpolate(
            near, domain, tol=tol, max_degree=most, max_evaluations=left, **options
        )
        parts = [t._shift(power) for t in (out if isinstance(out, tuple) else (out,))]
        info = dataclasses.replace(info, evaluations=info.evaluations + values.spent[0])
        return (tuple(parts) if isinstance(out, tuple) else parts[0]), info
    tol = _check.tolerance(tol, checked.dtype)
    if checked.half:
        options.setdefault("dtype", checked.dtype)
    least = 10 * linalg.epsilon(checked.dtype)
    given = _given(options.get("pivots"), len(bases))
    seen = np.concatenate([tests.true, values(given)]) if len(given) else tests.true
    peaks = Peaks(np.concatenate([tests.x, given]), seen, len(given), rng)
    first = first_bases(values, bases, free, tol, most, peaks, rng)
    if peaks.concentrated and len(peaks.points):
        options["pivots"] = peaks.points
    work = _Work(f, values, tests, tol, least, bases, free, most, options, rng)
    found = work.run(first)
    parts = [
        FunctionTrain._unchecked(tuple(found.bases), TT._unchecked(tuple(jax.device_put(cores))))
        for cores in _components(found.cast, len(bases))
    ]
    seconds = time.perf_counter() - started
    info = reported(
        found, tol, tests, parts[0], values.spent[0], seconds, zero=checked.zero,
        failure=work.failure,
    )  # fmt: skip
    return (parts[0] if components is None else tuple(parts)), info


def _given(pivots: Any, dims: int) -> np.ndarray:
    """Returns the points (m, d) given to `interpolate` as ``pivots=``; none for multi-indices."""
    rows = np.empty((0, dims)) if pivots is None else np.asarray(pivots)
    return rows if rows.dtype.kind == "f" and rows.shape[1:] == (dims,) else np.empty((0, dims))


def _components(cores: Cores, dims: int) -> list[Cores]:
    """Splits the train of an interpolation of components, its last mode, into one for each."""
    if len(cores) == dims:
        return [cores]
    *first, last, mode = cores
    return [[*first, times_right(last, mode[:, j])] for j in range(mode.shape[1])]


@dataclasses.dataclass
class _Work:
    """State of a running interpolation by functional trains: test points, options, history."""

    f: Callable[[Any], Any]
    values: Values
    tests: ErrorPoints
    tol: float
    least: float  # tolerance of a cross approximation
    given: list[Basis]
    free: list[int]
    most: int
    options: dict[str, Any]
    rng: np.random.Generator
    parts: list[np.ndarray] = dataclasses.field(default_factory=list)  # where f was found late
    best: Fit | None = None
    failure: str = ""  # the error of f that ended the search

    def run(self, bases: list[Basis]) -> Fit:
        """Interpolates to the tolerance; an error of f may end that once there is a train."""
        try:
            self._raise_degrees(bases)
        except (Exception, KeyboardInterrupt) as error:
            returns = self.best is not None and self.options.get("on_error") == "return"
            if isinstance(error, KeyboardInterrupt) and returns:
                self.failure = f"interrupted after {self.values.spent[0]} evaluations"
            elif of_function(error) and returns:
                told = str(error).startswith("f: ")  # of values that are not finite
                self.failure = str(error) if told else f"f raised {error!r}"
            else:
                raise
        assert self.best is not None
        return self.again(self.best)  # at all points that were added

    def _raise_degrees(self, bases: list[Basis]) -> None:
        """Raises degrees or accuracy of an interpolation until it has the error asked for."""
        wanted, before, idle = _CROSS * self.tol, None, 0
        for _ in range(_ROUNDS):
            found = self.fit(bases, wanted, before)
            best = self.best and self.again(self.best)  # points of the measurement may be others
            idle = idle + 1 if best is not None and found.bound > _LOWER * best.bound else 0
            best = self.best = found if best is None or found.bound < best.bound else best
            spent = found.info.status in _ENDED or self.values.left < 20
            measured = self.tests.random
            following = None if spent or idle == 2 else self.next(bases, found, wanted)
            if self.tests.random > measured:  # at few points an error may have been too small
                best = min(self.again(best), self.again(found), key=lambda fit: fit.bound)
                self.best = best
            over = spent and (best.bound > self.tol or self.values.left < 20)
            if following is None and not over and not self.failure:
                part = self.hidden(best)
                if part is not None:
                    idle, following = 0, (self.anew(part), _CROSS * self.tol, None)
            if following is None or self.failure:
                break
            bases, wanted, before = following

    def next(
        self, bases: list[Basis], found: Fit, wanted: float
    ) -> tuple[list[Basis], float, Fit] | None:
        """Chooses bases and tolerance for the next try of an interpolation; None to stop."""
        if found.bound <= self.tol and self.again(found, more=True).bound <= self.tol:
            return None
        grown = self.grown(bases, found)
        if grown is not None:
            return grown, wanted, found
        if _cross_error(found.info) > _CROSS * self.tol and wanted > self.tol / 100:
            return None  # it cannot reach what it was asked for
        if wanted / 4 >= 10 * float(np.finfo(found.cast[0].dtype).eps):
            return bases, wanted / 4, found
        return None

    def again(self, found: Fit, *, more: bool = False) -> Fit:
        """Continues an interpolation's error test, at more points if f was called often."""
        share = float(self.options.get("search", _SHARE)) if more else 0.0
        spent, random = self.values.spent[0], self.tests.random
        asked = share / (1 - share) * (spent - random) - random  # then the share of all
        least = min(min(share, _SHARE) * _LEAST_SPENT - random, _TIMES * spent)
        count = int(min(max(asked, least), self.values.left / 2))
        if count > random // 2:
            self.tests.extend(found.bases, count)
        error, std, largest = self.tests.error(found.bases, found.cast)
        return found._replace(error=error, std=std, largest=largest)

    def hidden(self, found: Fit) -> HiddenPart | None:
        """Searches, when an interpolation seems done, for a part of f that it lacks, or None."""
        if len(self.parts) >= _PARTS or self.options.get("search") == 0:
            return None
        fit, start = found, self.tests.worst(found.bases, found.cast)
        converged = found.bound <= self.tol
        if start is None and converged and (sharp := self.sharper(found)) is not None:
            fit, start = sharp, self.tests.worst(sharp.bases, sharp.cast)
            if self.failure:
                return None
        lacks = start is not None
        if start is None and converged:
            fit, start = found, self.tests.worst(found.bases, found.cast, far=False)
        if start is None:
            return None
        least = _LEAST_PART * self.tol * self.tests.rms
        part = hidden_part(self.values, fit.bases, fit.cast, start, least)
        if part is None:
            return None
        self.tests.look_at(part.low, part.high)
        if not lacks and self.again(found).bound <= self.tol:  # large, but in too small a part
            return None
        self.parts.append(part.point)
        return part

    def sharper(self, found: Fit) -> Fit | None:
        """Interpolates far more accurately than asked, so that errors at tails of parts stand out.

        None where it cannot be much more accurate.
        """
        tol = _SHARP * float(np.finfo(found.cast[0].dtype).eps)
        spent = self.values.spent[0]
        calls = int(
            min(
                max(_SHARP_CALLS, spent // _SHARP_PART),
                spent // (1 + _TIMES),
                self.values.left / 2,
            )
        )
        if not self.free or tol > _SHARPER * self.tol or calls < _TESTED:
            return None
        times, more = _SHARP_DEGREE
        most = min(self.most, times * max(found.bases[k].size for k in self.free) + more)
        values = self.values._replace(most=spent + calls)
        peaks = Peaks(self.tests.x, self.tests.true, 0, self.rng)
        bases = first_bases(values, self.given, self.free, tol, most, peaks, self.rng)
        return self.fit(bases, tol, found, kept=tol, calls=spent + calls - self.values.spent[0])

    def anew(self, part: HiddenPart) -> list[Basis]:
        """Returns an interpolation's next bases: degrees from lines through a newly found part."""
        points = np.concatenate(
            [_given(self.options.get("pivots"), len(self.given)), part.point[None]]
        )
        self.options["pivots"] = points
        x = np.concatenate([self.tests.x, points])
        seen = np.concatenate([self.tests.true, self.values(points)])
        peaks = Peaks(x, seen, len(points), self.rng)
        return first_bases(self.values, self.given, self.free, self.tol, self.most, peaks, self.rng)

    def fit(
        self,
        bases: list[Basis],
        tol: float,
        before: Fit | None,
        *,
        kept: float | None = None,
        calls: float = math.inf,
    ) -> Fit:
        """Interpolates a function in given bases by one cross approximation of its node values.

        Args:
          bases: one a variable.
          tol: of the cross approximation.
          before: an interpolation to start from.
          kept: tolerance by which high degrees are left out; of all the work if None.
          calls: evaluations that it may take.
        """
        options = dict(self.options)
        if before is not None:
            nodes = {
                k: b.values(n.nodes)
                for k, (b, n) in enumerate(zip(before.bases, bases, strict=True))
            }
            options["x0"] = times_modes(TT(before.cast), nodes)
        left = self.values.left - min(_RESERVED, _RESERVED_PART * self.values.most)
        if math.isfinite(left := min(left, calls)):
            options["max_evaluations"] = int(max(left, 1))
        shape = tuple(b.size for b in bases)
        t, info = cross(
            self.f, shape, tol=max(tol, self.least), grid=[b.nodes for b in bases], **options
        )
        self.values.spent[0] += info.evaluations
        if info.status == "failed":
            self.failure = info.message.split("; searched")[0]
        wide = np.result_type(t.dtype, np.float64)
        cores = [np.asarray(c).astype(wide) for c in t.cores]
        for k, b in enumerate(bases):
            cores[k] = times_mode(cores[k], b.from_values)
        norms = slice_norms(cores)[: len(bases)]
        tails = [float(_end(n) / (np.linalg.norm(n) or 1.0)) for n in norms]
        allowed = _TRIM * (kept or self.tol) / len(bases) ** 0.5
        small, cores = without_tails(bases, self.free, cores, norms, allowed)
        cast = [c.astype(t.dtype) for c in cores]
        self.tests.follow(small, cast)
        return Fit(small, cores, cast, tails, *self.tests.error(small, cast), info)

    def grown(self, bases: list[Basis], found: Fit) -> list[Basis] | None:
        """Returns bases of the next interpolation, of higher degrees where unresolved; or None."""
        below = [k for k in self.free if bases[k].size <= self.most]
        long = [k for k in below if found.tails[k] > _TAIL * self.tol]
        if not long and _cross_error(found.info) <= self.tol / 2:
            long = below  # what is wrong lies between the nodes
        if not long:
            return None
        out = list(bases)
        for k in long:
            out[k] = of_degree(bases[k], min(self.most, 3 * bases[k].size // 2 + 2))
        return out


def _end(norms: np.ndarray) -> float:
    """Computes the norm of an interpolant's last coefficients in one variable."""
    return float(np.linalg.norm(norms[-max(2, len(norms) // 8) :]))


def _cross_error(info: CrossInfo) -> float:
    return info.error + 2 * info.error_std
