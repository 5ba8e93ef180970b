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
            found = through(lefts[-1], last, seen.rows[-1])[:, 0]
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
    for u, rows in zip(at.left, seen.rows, strict=False):
        lefts.append(through(lefts[-1], u, rows))
    for v, rows in zip(at.right[::-1], seen.rows[::-1], strict=False):
        rights.append(through(rights[-1], v.transpose(2, 1, 0), rows))
    return lefts, rights[::-1]


def _variations(
    lefts: Sequence[np.ndarray], rights: Sequence[np.ndarray], weights: np.ndarray, seen: Samples
) -> list[Any]:
    """Sums conj(L_i) w_i conj(R_i) of Riemannian completion over each index's samples, by mode."""
    out = []
    for left, right, rows in zip(lefts, rights, seen.rows, strict=True):
        weighted = weights[:, None] * right.conj()
        slices = [linalg.matmul(left[at].conj().T, weighted[at]) for at in rows]
        out.append(np.stack(slices, 1))
    return out


def _entries(
    lefts: Sequence[np.ndarray],
    rights: Sequence[np.ndarray],
    deltas: Sequence[Any],
    seen: Samples,
) -> np.ndarray:
    """Evaluates a tangent vector of given variations at the samples of Riemannian completion."""
    total = np.zeros(len(seen.values), seen.values.dtype)
    for left, right, delta, rows in zip(lefts, rights, deltas, seen.rows, strict=True):
        total += (through(left, delta, rows) * right).sum(1)
    return total


def _inner(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    return sum(float(np.vdot(x, y).real) for x, y in zip(xs, ys, strict=True))
