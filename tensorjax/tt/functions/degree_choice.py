"""Choice of Chebyshev degrees: from values along lines, and from a train's coefficients."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax._cores.contractions import absorb
from tensorjax._cores.orthogonalization import left_qr, right_orthogonal
from tensorjax._cores.unfoldings import Cores
from tensorjax.tt.functions.bases import Basis
from tensorjax.tt.functions.interpolated_function import Values
from tensorjax.tt.functions.peaks import Peaks, along

# Points on a line at first; doubled until the coefficients of the last quarter are negligible.
_FIRST = 16
# Lines along each variable, through random points.
_LINES = 3
# Most evaluations of a choice are this part of those left.
_PART = 4
# Coefficients below this part of the tolerance are left out.
_NEGLIGIBLE = 0.1
# Coefficients within this factor of the last ones are no better than those, as of noise.
_PLATEAU = 3.0


def first_bases(
    values: Values,
    bases: Sequence[Basis],
    free: Sequence[int],
    tol: float,
    most: int,
    peaks: Peaks,
    rng: np.random.Generator,
) -> list[Basis]:
    """Chooses Chebyshev degrees of all variables from a function's values along lines.

    Some lines go through random points, others to where f is large and through its peaks: a
    function that is large in a small part of the box is next to zero on the first.

    Args:
      bases: one a variable.
      free: variables whose Chebyshev degree is to be chosen.
      tol: relative error wanted of the function.
      most: largest degree.
      peaks: points where f is large, which climb along the lines.
      rng: generator of the lines.

    Returns:
      Bases. Where the largest degree is not enough, or f is noisy, of a degree from which on
      coefficients fall no more.
    """
    out = list(bases)
    open_ = list(free)
    size, squares, count = min(_FIRST, most + 1), 0.0, 0
    while open_:
        affordable = values.left / _PART / (size * len(open_))
        lines = int(min(_LINES, affordable))
        if lines < 1:
            for k in open_:  # too few evaluations to look further
                out[k] = of_degree(bases[k], min(size // 2, most))
            break
        grids = [of_degree(bases[k], size - 1) for k in open_]
        through = [uniform(bases, lines, rng) for _ in open_]
        points = [along(x, k, g.nodes) for x, k, g in zip(through, open_, grids, strict=True)]
        found = np.split(values(np.concatenate(points)), len(open_))
        squares += sum(float(np.sum(np.abs(v) ** 2)) for v in found)
        count += sum(v.size for v in found)
        scale = (squares / count) ** 0.5
        high: dict[int, np.ndarray] = {}
        if lines + peaks.lines <= affordable:
            high = peaks.climb(values, {k: g.nodes for k, g in zip(open_, grids, strict=True)})
        for k, basis, v in zip(list(open_), grids, found, strict=True):
            rows = _relative(v.reshape(lines, size, -1), scale)
            if k in high:
                rms = np.sqrt(np.mean(np.abs(high[k]) ** 2, axis=(1, 2), keepdims=True))
                rows = np.concatenate([rows, _relative(high[k], rms)])
            tail = _tail(rows, basis.from_values)
            degree = int(np.sum(tail > _NEGLIGIBLE * tol)) - 1
            if k in high and peaks.hidden(high[k]):
                degree = size
            if degree < 3 * size // 4 or size > most:
                if degree >= 3 * size // 4:
                    degree = int(np.sum(tail > _PLATEAU * tail[-max(1, size // 8)]))
                out[k] = of_degree(bases[k], min(max(degree, 0), most))
                open_.remove(k)
        size = min(2 * size, most + 1)
    return out


def _relative(rows: np.ndarray, scale: Any) -> np.ndarray:
    """Divides sampled values by a scale, relative to which Chebyshev degrees are chosen."""
    return rows / np.where(scale > 0, scale, 1.0)


def of_degree(basis: Any, degree: int) -> Any:
    """Returns the Chebyshev basis of another degree on the same interval, to choose degrees."""
    return basis.of_degree(degree)


def uniform(bases: Sequence[Basis], count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws points (count, d) uniformly from the box of Chebyshev bases, to choose degrees."""
    low = np.array([b.low for b in bases])
    high = np.array([b.high for b in bases])
    return low + (high - low) * rng.random((count, len(bases)))


def _tail(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns, for each degree, the largest Chebyshev coefficient of that or a higher degree."""
    largest = np.abs(matrix @ rows).max(axis=(0, 2))
    return np.maximum.accumulate(largest[::-1])[::-1]


def slice_norms(cores: Cores) -> list[np.ndarray]:
    """Computes norms of the coefficient slices of a functional train, by which degrees are cut."""
    cores, exponent = right_orthogonal(list(cores))
    norms = []
    for k in range(len(cores)):
        norms.append(np.ldexp(np.sqrt((np.abs(cores[k]) ** 2).sum(axis=(0, 2))), exponent))
        if k < len(cores) - 1:
            cores[k], r = left_qr(cores[k])
            cores[k + 1] = absorb(r, cores[k + 1])
    return norms


def without_tails(
    bases: Sequence[Basis],
    free: Sequence[int],
    cores: Cores,
    norms: Sequence[np.ndarray],
    allowed: float,
) -> tuple[list[Basis], Cores]:
    """Removes the highest Chebyshev degrees of the given variables, up to a relative error."""
    out_bases, out_cores = list(bases), list(cores)
    for k in free:
        basis, size = bases[k], norms[k]
        rest = np.sqrt(np.cumsum(size[::-1] ** 2)[::-1])  # norm of all slices from each on
        keep = max(1, int(np.sum(rest > allowed * np.linalg.norm(size))))
        if keep < basis.size:
            out_bases[k], out_cores[k] = of_degree(basis, keep - 1), cores[k][:, :keep]
    return out_bases, out_cores
