"""Canonical form of tensor trains: orthogonal bases and singular values at every bond.

At every bond v = U_{≤p} S_p V_{>p}, with U left-orthogonal and V right-orthogonal cores. They span
the tangent space of the manifold of the ranks of v; see
`tensorjax.pde._generators.normal_component`.
"""

from typing import NamedTuple

import numpy as np

from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.orthogonalization import left_qr, right_lq, right_orthogonal
from tensorjax._cores.ranks import cut_ranks
from tensorjax._cores.unfoldings import Cores, tall

# Singular values below this share of the largest are roundoff, and would span noise.
_ROUNDOFF = 1e-14


class Point(NamedTuple):
    """Canonical form of a tensor train, v = U_1 … U_p S_p V_{p+1} … V_d at every bond p.

    Attributes:
      left: U_1 … U_{d−1}.
      right: V_2 … V_d.
      bonds: S_1 … S_{d−1}, square; diagonal in `canonical`, near it in `truncated`.
      spectra: the singular values of the train that `canonical` was given, cut as ``bonds`` are.
      scale: ‖v‖ of that train.
      whole: the only core of a train of one mode.
    """

    left: Cores
    right: Cores
    bonds: list[np.ndarray]
    spectra: list[np.ndarray]
    scale: float
    whole: np.ndarray

    @property
    def order(self) -> int:
        """Number of modes d of a tensor train in canonical form."""
        return len(self.left) + 1

    @property
    def ranks(self) -> tuple[int, ...]:
        """TT-ranks of the interior bonds of a tensor train in canonical form."""
        return tuple(len(s) for s in self.bonds)

    @property
    def centers(self) -> Cores:
        """Cores C_k of a tensor train's mixed canonical forms v = U_{<k} C_k V_{>k}, for all k."""
        if not self.left:
            return [self.whole]
        firsts = [times_right(u, s) for u, s in zip(self.left, self.bonds, strict=True)]
        return [*firsts, absorb(self.bonds[-1], self.right[-1])]

    @property
    def cores(self) -> Cores:
        """Cores of a tensor train in canonical form, all but the last left-orthogonal."""
        return [*self.left, self.centers[-1]]


def canonical(cores: Cores) -> Point:
    """Computes the canonical form of a tensor train; drops singular values at roundoff.

    Returns:
      Point; of a train that is zero, its ``scale`` is zero and the rest one of rank one.

    Source: G. Vidal, "Efficient classical simulation of slightly entangled quantum computations",
    Phys. Rev. Lett. 91 (2003); the two sweeps are those of Oseledets (2011), algorithm 2.
    """
    right, _ = right_orthogonal(cores, scale=False)
    scale = float(np.linalg.norm(right[0]))
    left, bonds, spectra, turned = [], [], [], []
    center = right[0]
    for v in right[1:]:
        u, s, w = np.linalg.svd(tall(center), full_matrices=False)
        keep = max(int((s > _ROUNDOFF * scale).sum()), 1)
        u, s, w = u[:, :keep], s[:keep], w[:keep]
        left.append(u.reshape(*center.shape[:2], keep))
        if turned:
            turned[-1] = times_right(turned[-1], w.T)
        turned.append(absorb(w, v))
        center = s[:, None, None] * turned[-1]
        bonds.append(np.diag(s))
        spectra.append(s)
    return Point(left, turned, bonds, spectra, scale, cores[0])


def truncated_ranks(point: Point, tol: float) -> tuple[int, ...]:
    """Computes the TT-ranks to which a canonical form may be cut at error ``tol``."""
    if not point.left:
        return ()
    share = (tol * point.scale) ** 2 / len(point.bonds)
    ranks = []
    for s in point.spectra:
        tail = np.cumsum(s[::-1] ** 2)[::-1]  # energy from each singular value on
        ranks.append(max(int((tail > share).sum()), 1))
    sizes = [c.shape[1] for c in (*point.left, point.right[-1])]
    return cut_ranks((1, *ranks, 1), sizes)[1:-1]


def leading(point: Point, ranks: tuple[int, ...]) -> Point:
    """Slices the canonical form of a tensor train to smaller ranks; cheap, but not orthogonal."""
    if ranks == point.ranks:
        return point
    ends = (1, *ranks, 1)
    left = [u[: ends[k], :, : ends[k + 1]] for k, u in enumerate(point.left)]
    right = [v[: ends[k], :, : ends[k + 1]] for k, v in enumerate(point.right, start=1)]
    bonds = [s[:r, :r] for s, r in zip(point.bonds, ranks, strict=True)]
    spectra = [s[:r] for s, r in zip(point.spectra, ranks, strict=True)]
    return Point(left, right, bonds, spectra, point.scale, point.whole)


def truncated(point: Point, ranks: tuple[int, ...]) -> Point:
    """Truncates the canonical form of a tensor train to smaller ranks and reorthogonalises it.

    The projections on leading left singular vectors commute with each other, and so what goes is no
    more than what a truncation bond by bond would leave out.
    """
    if ranks == point.ranks:
        return point
    blocks = leading(point, ranks)
    left, after, from_left = [], [], np.ones((1, 1))
    for u in blocks.left:
        q, from_left = left_qr(absorb(from_left, u))
        left.append(q)
        after.append(from_left)
    right, before, from_right = [], [], np.ones((1, 1))
    for v in reversed(blocks.right):
        from_right, q = right_lq(times_right(v, from_right))
        right.append(q)
        before.append(from_right)
    bonds = [a * s @ b for a, s, b in zip(after, blocks.spectra, before[::-1], strict=True)]
    return blocks._replace(left=left, right=right[::-1], bonds=bonds)
