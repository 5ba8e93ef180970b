"""Slow modes of affine drift in closed form: derivatives of the stationary Gaussian."""

import heapq
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores import overlaps, products, rounding
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._discretization.affine_operators import affine_generator
from tensorjax.pde._discretization.grid import Box

# Relative error of the trains of modes; imaginary parts of eigenvalues that are real.
_EXACT, _REAL = 1e-13, 1e-12
# Eigenvectors, relative distances of eigenvalues: below this roundoff may have split those of one.
_SAME = 2e-5


class Mode(NamedTuple):
    """Slow eigenmode of a process with affine drift: real and imaginary part as tensor trains."""

    real: Cores
    imag: Cores | None


def derivatives_of_gaussian(
    matrix: Any, p: Cores, box: Box, map_matrix: Any, count: int
) -> list[tuple[complex, Mode]]:
    """Computes slow eigenmodes for affine drift: derivatives of the stationary Gaussian p.

    With A w = λ w, L (w·∇) p = λ (w·∇) p, and products of such derivatives have sums of
    eigenvalues. Of a complex pair the mode of positive imaginary part stands for both.

    Args:
      matrix: A, (d, d), stable.
      p: cores of the stationary density on the grid y = Γ x + s.
      box: of the grid.
      map_matrix: Γ.
      count: of modes, where a pair counts as two; one more where that would cut a pair in two.

    Returns:
      Pairs (eigenvalue, mode).

    Source: D. Liberzon, R. Brockett, "Spectral analysis of Fokker–Planck and related operators
    arising from linear stochastic differential equations", SIAM J. Control Optim. 38 (2000).
    """
    spectrum: Any = np.linalg.eig(np.asarray(matrix, np.float64))
    order = np.lexsort((-spectrum[0].imag, -spectrum[0].real))
    values, vectors = _independent(spectrum[0][order], spectrum[1][:, order])
    vectors = np.asarray(map_matrix) @ vectors
    out, found = [], 0
    for index in slowest(-values.real, 2 * count):
        rate = complex(values[list(index)].sum())
        real = abs(rate.imag) <= _REAL * abs(rate)
        if found >= count or (rate.imag < 0 and not real):
            continue
        mode = Mode(p, None)
        for k in index:
            mode = _derived(box, vectors[:, k], mode)
        out.append((complex(rate.real) if real else rate, _larger(mode) if real else mode))
        found += 1 if real else 2
    return out


def _independent(values: Any, vectors: Any) -> tuple[Any, Any]:
    """Leaves out eigenvectors of affine drift that earlier ones of the same eigenvalue span.

    A matrix that lacks eigenvectors seems to have them, apart by the root of roundoff, and a real
    eigenvalue of it may come as a complex pair.
    """
    kept: list[int] = []
    left_out: list[complex] = []
    for k, value in enumerate(values):
        near = [j for j in kept if abs(values[j] - value) <= _SAME * abs(value)]
        basis = np.linalg.qr(vectors[:, near])[0]
        rest = vectors[:, k] - basis @ (basis.conj().T @ vectors[:, k])
        if near and np.linalg.norm(rest) <= _SAME:
            left_out.append(complex(value))
        else:
            kept.append(k)
    values, vectors = values[kept].astype(complex), vectors[:, kept].astype(complex)
    for k, value in enumerate(values):
        if value.imag and value.conjugate() in left_out and value.conjugate() not in values:
            real, imag = vectors[:, k].real, vectors[:, k].imag
            larger = real if np.linalg.norm(real) >= np.linalg.norm(imag) else imag
            values[k], vectors[:, k] = value.real, larger / np.linalg.norm(larger)
    return values, vectors


def slowest(rates: np.ndarray, count: int) -> list[tuple[int, ...]]:
    """Lists the smallest sums of given ascending positive rates, as tuples of their indices."""
    heap: list[tuple[float, tuple[int, ...]]] = [(float(rates[0]), (0,))]
    out: list[tuple[int, ...]] = []
    while len(out) < count:
        total, index = heapq.heappop(heap)
        out.append(index)
        heapq.heappush(heap, (total + float(rates[index[-1]]), (*index, index[-1])))
        if index[-1] + 1 < len(rates):
            after = index[-1] + 1
            moved = total - float(rates[index[-1]]) + float(rates[after])
            heapq.heappush(heap, (moved, (*index[:-1], after)))
    return out


def _derived(box: Box, direction: Any, mode: Mode) -> Mode:
    """Computes the derivative of an eigenmode along a complex direction of the coordinates y."""
    parts = direction.real, direction.imag
    out: list[list[Cores]] = [[], []]
    for i, along in enumerate(parts):
        for j, train in enumerate(mode):
            if train is None or not np.any(along):
                continue
            operator = hosted_cores(affine_generator(box, None, along, None))
            new = products.matvec(operator, train)
            out[(i + j) % 2].append([-new[0], *new[1:]] if i and j else new)
    real, imag = (_summed(terms) if terms else None for terms in out)
    if real is None:  # a factor i does not matter
        assert imag is not None
        return Mode(imag, None)
    return Mode(real, imag)


def _summed(terms: list[Cores]) -> Cores:
    return rounding.rounded(products.combined(terms, [1.0] * len(terms)), _EXACT)


def _larger(mode: Mode) -> Mode:
    """Returns the larger of the real and imaginary parts of a mode with a real eigenvalue."""
    if mode.imag is None or overlaps.norm(mode.real) >= overlaps.norm(mode.imag):
        return Mode(mode.real, None)
    return Mode(mode.imag, None)
