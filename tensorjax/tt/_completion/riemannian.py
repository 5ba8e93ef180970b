"""Riemannian conjugate gradients for tensor completion, by NumPy, on the host.

The gradient of half the squared misfit is the projection of the residuals, a tensor with as many
entries as there are samples, on the tangent space. With row vectors L_i of the left-orthogonal and
column vectors R_i of the right-orthogonal cores at sample i its variations are sums of residuals
times conj(L_i) and conj(R_i) over the samples of one index, and a tangent vector's entries at the
samples are sums of L_i δ_k R_i over k: nothing larger than the samples times the ranks is made.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensorjax import _blas_threads, linalg
from tensorjax._cores.rounding import compressed
from tensorjax._cores.scaling import balanced
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.tt._completion.als import Samples, through
from tensorjax.tt._manifold.frames_and_variations import Frame, blocks, gauged, project, tangent
from tensorjax.tt._rounding.orthogonalize import are_small, orthogonal_cores


def steps(cores: Cores, seen: Samples) -> Iterator[Cores]:
    """Generates iterates of completion by Riemannian conjugate gradients at fixed TT-ranks.

    Polak–Ribière directions, transported by projection; a step is the minimiser along its direction
    in the tangent space, and is rounded to the ranks.

    Args:
      cores: to start from, of double precision; their bonds need not be of full rank.
      seen: the samples to fit.

    Yields:
      The cores after every step.
    """
    with _blas_threads.one_thread(are_small(cores)):
        at, last = _frame(cores)
    direction = past = None
    size = 0.0
    while True:
        with _blas_threads.one_thread(are_small(cores)):
            lefts, rights = _sides(at, seen)
            found = through(lefts[-1], last, seen, len(cores) - 1)[:, 0]
            rest = seen.values - found
            gradient = gauged(at, _variations(lefts, rights, -rest, seen))
            now = _inner(gradient, gradient)
            along = [-g for g in gradient]
            if direction is not None and past is not None:
                carried, before = (blocks(project(at, z, even=False))[1] for z in (direction, past))
                rise = now - _inner(gradient, before)
                beta = max(rise, 0.0) / (size or 1.0)
                if beta * _inner(gradient, carried) < now:  # downhill
                    along = [a + beta * c for a, c in zip(along, carried, strict=True)]
            image = _entries(lefts, rights, along, seen)
            step = float(np.vdot(image, rest).real) / (float(np.vdot(image, image).real) or 1.0)
            direction, past, size = tangent(at, along), tangent(at, gradient), now
            *others, end = (step * a for a in along)
            moved = list(tangent(at, [*others, end + last]).cores)
            ranks = [c.shape[0] for c in cores[1:]]
            cores = balanced(*compressed(moved, ranks, None, "svd", None))
            at, last = _frame(cores)
        yield cores


def _frame(cores: Cores) -> tuple[Frame, Any]:
    """Computes the frame at a train of host cores for Riemannian completion, and its last core."""
    x = TT._unchecked(tuple(cores))
    left, exponent = orthogonal_cores(x, x.order - 1)
    right, _ = orthogonal_cores(x, 0)
    return Frame(tuple(left[:-1]), tuple(right[1:])), linalg.scaled(left[-1], int(exponent))


def _sides(at: Any, seen: Samples) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Multiplies cores left and right of each mode at samples, for Riemannian completion."""
    ones = np.ones((len(seen.values), 1), seen.values.dtype)
    lefts, rights = [ones], [ones]
    for k, u in enumerate(at.left):
        lefts.append(through(lefts[-1], u, seen, k))
    for k in range(len(at.right), 0, -1):
        rights.append(through(rights[-1], at.right[k - 1].transpose(2, 1, 0), seen, k))
    return lefts, rights[::-1]


def _variations(
    lefts: Sequence[np.ndarray], rights: Sequence[np.ndarray], weights: np.ndarray, seen: Samples
) -> list[Any]:
    """Sums conj(L_i) w_i conj(R_i) of Riemannian completion over each index's samples, by mode."""
    out = []
    for left, right, rows, order in zip(lefts, rights, seen.rows, seen.order, strict=True):
        a, b = left.conj(), weights[:, None] * right.conj()
        counts = np.array([len(at) for at in rows])
        if a.shape[1] == 1 or b.shape[1] == 1:  # at the ends of the train
            sums = _sums((a * b).take(order, axis=0), counts)
            out.append(sums.reshape(-1, a.shape[1], b.shape[1]))
            continue
        # Rows of one index lie together: to pick them one by one takes longer than the products.
        a, b = a.take(order, axis=0).T, b.take(order, axis=0)
        ends = np.cumsum(counts)
        slices = [np.matmul(a[:, i:j], b[i:j]) for i, j in zip(ends - counts, ends, strict=True)]
        out.append(np.stack(slices))
    return [core.swapaxes(0, 1) for core in out]


def _sums(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums so many rows after another, some of them none, for Riemannian completion: (n, r)."""
    starts = np.minimum(np.cumsum(counts) - counts, len(rows) - 1)
    # `reduceat` takes one row where there are none.
    return np.where(counts[:, None] > 0, np.add.reduceat(rows, starts, axis=0), 0)


def _entries(
    lefts: Sequence[np.ndarray],
    rights: Sequence[np.ndarray],
    deltas: Sequence[Any],
    seen: Samples,
) -> np.ndarray:
    """Evaluates a tangent vector of given variations at the samples of Riemannian completion."""
    total = np.zeros(len(seen.values), seen.values.dtype)
    for k, (left, right, delta) in enumerate(zip(lefts, rights, deltas, strict=True)):
        total += np.vecdot(right.conj(), through(left, delta, seen, k))
    return total


def _inner(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    return sum(float(np.vdot(x, y).real) for x, y in zip(xs, ys, strict=True))
