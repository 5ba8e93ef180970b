"""Tensors such as y_k ∂_j v and A v, split at every bond into tangent and normal parts.

A *family* is a set of such sums that differ in what they do to one side: the y_k ∂_j v for all j
and k, an operator applied to v, or another train. Its cores are Σ_t K_t ⊗ B_t, with small matrices
K_t that link the states of two bonds and cores B_t; at every bond, what a family has on either side
is split into a part inside the space that v spans there and a part orthogonal to it, so that no
difference of large numbers is ever taken.

v holds grid values, weighted for the L² norm (`Modes`); cores of operators are factored into few
matrices of a mode (`links_of`).
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.contractions import absorb, einsum, times_right
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._arguments import hosted_cores
from tensorjax.pde._generators.canonical_form import Point

Link = tuple[np.ndarray, np.ndarray]  # K (t, s, s') and B (t, j, n, j')
_ENDS = np.ones((1, 1, 1)), np.ones((1, 1, 1))
# Rows at which the blocks of an operator's core are compared.
_ROWS = 12


class Family(NamedTuple):
    """Tensor split at every TT bond into factors in the tangent space of a train and normal to it.

    Attributes:
      seen: left of the bond, (r, n, s, j): the modes before p projected on U_{<p}.
      inside: U_pᵀ seen, (r', s, j); (I − U_p U_pᵀ) seen is what `outside` returns.
      new: right of the bond, (s, j, n, l): all but mode p + 1 projected on V_{>p+1}, and that one
        on what is orthogonal to V_{p+1}.
      overlap: of the right of the bond with V_{>p}, (s, j, l).
      links: of mode p + 1.
    """

    seen: list[np.ndarray]
    inside: list[np.ndarray]
    new: list[np.ndarray]
    overlap: list[np.ndarray]
    links: list[Link]


def singles(point: Point, state: Point, modes: Any) -> Family:
    """Splits ∂_k v and y_k v, for all axes k, at every TT bond into tangent and normal factors.

    Left of bond p they are the modes 1 … p, right of it the modes p + 1 … d.
    """
    d = state.order
    left = [(np.eye(2 * k, 2 * k + 2)[None], u[None]) for k, u in enumerate(state.left)]
    right = [
        (np.eye(2 * (d - k), 2 * (d - k) - 2, -2)[None], v[None])
        for k, v in enumerate(state.right, start=1)
    ]
    lefts, rights = state.left, state.right
    if point is not state:
        lefts, rights = _projected(point, state)
    fresh = (
        [modes.pair(k, u) for k, u in enumerate(lefts)],
        [modes.pair(k, v) for k, v in enumerate(rights, start=1)],
    )
    start = np.zeros((1, 0, 1))
    return _family(point, left, right, (start, start.swapaxes(0, 1)), state.bonds, fresh)


def _projected(point: Point, state: Point) -> tuple[Cores, Cores]:
    """Projects a train on another's left and right bases at every bond: its tangent factors."""
    lefts, rights = [], []
    env = np.ones((1, 1))
    for u, c in zip(point.left, state.left, strict=True):
        lefts.append(absorb(env, c))
        env = bond_overlap(u, lefts[-1])
    env = np.ones((1, 1))
    for v, c in zip(reversed(point.right), reversed(state.right), strict=True):
        rights.append(times_right(c, env))
        env = einsum("ant,bnt->ab", rights[-1], v)
    return lefts, rights[::-1]


def applied(point: Point, links: Sequence[Link]) -> Family:
    """Splits A v, for a factored TT-matrix A, at every TT bond into tangent and normal factors."""
    left = [(k, o[:, None] @ u[None]) for (k, o), u in zip(links, point.left, strict=False)]
    right = [(k, o[:, None] @ v[None]) for (k, o), v in zip(links[1:], point.right, strict=True)]
    return _family(point, left, right, _ENDS, point.bonds)


def another(point: Point, cores: Cores) -> Family:
    """Splits a tensor train at every bond into factors tangent to the train v and normal to it."""
    links = [(_ENDS[0], c[None]) for c in cores]
    return _family(point, links[:-1], links[1:], _ENDS)


def _family(
    point: Point,
    left: Sequence[Link],
    right: Sequence[Link],
    ends: tuple[np.ndarray, np.ndarray],
    bonds: Sequence[np.ndarray] | None = None,
    fresh: tuple[Cores, Cores] | None = None,
) -> Family:
    """Splits a tensor at every TT bond into tangent and normal factors, by sweeps over the cores.

    ``bonds`` go between left and right, ``fresh`` are states that start.
    """
    seen, inside = [], []
    env = ends[0]
    for k, (u, link) in enumerate(zip(point.left, left, strict=True)):
        if fresh is None:
            part = np.ascontiguousarray(einsum("isj,tsq,tjnk->inqk", env, *link))
        else:
            part = _handed_left(env, link[1][0], fresh[0][k])
        env = einsum("inr,insj->rsj", u, part)
        seen.append(part if bonds is None else einsum("insj,jk->insk", part, bonds[k]))
        inside.append(env if bonds is None else einsum("rsj,jk->rsk", env, bonds[k]))
    new, overlap = [], []
    env = ends[1]
    for k in range(len(point.right) - 1, -1, -1):
        v = point.right[k]
        if fresh is None:
            part = np.ascontiguousarray(einsum("tsq,tjnk,qkl->sjnl", *right[k], env))
        else:
            part = _handed_right(env, right[k][1][0], fresh[1][k])
        env = einsum("sjnl,knl->sjk", part, v)
        new.append(part - einsum("sjk,knl->sjnl", env, v))
        overlap.append(env)
    return Family(seen, inside, new[::-1], overlap[::-1], list(right))


def _handed_left(env: np.ndarray, core: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """Extends the left tangent and normal factors of ∂_k v and y_k v by a TT-core."""
    i, s, _ = env.shape
    _, n, after = core.shape
    out = np.empty((i, n, s + 2, after))
    out[:, :, :s] = einsum("isj,jnk->insk", env, core)
    out[:, :, s:] = fresh.transpose(1, 2, 0, 3)
    return out


def _handed_right(env: np.ndarray, core: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """Extends the right tangent and normal factors of ∂_k v and y_k v by a TT-core."""
    s, _, bra = env.shape
    out = np.empty((s + 2, *core.shape[:2], bra))
    out[:2] = fresh
    out[2:] = einsum("jnk,skl->sjnl", core, env)
    return out


def outside(point: Point, family: Family) -> list[np.ndarray]:
    """Returns the left factors of a tensor, at every TT bond, less their tangent projection."""
    triples = zip(point.left, family.seen, family.inside, strict=True)
    return [seen - einsum("inr,rsj->insj", u, inside) for u, seen, inside in triples]


def grams(a: Family, b: Family) -> list[np.ndarray]:
    """Computes, bond by bond, the Gram matrices of two tensors' right factors normal to a train.

    They are sums of products of orthogonal parts, and so as accurate as those.
    """
    out: list[np.ndarray] = []
    for x, y, ka, kb in zip(
        reversed(a.new), reversed(b.new), reversed(a.links), reversed(b.links), strict=True
    ):
        g = einsum("ajnl,bknl->ajbk", x, y)
        if out:
            g = g + _transfer(ka, kb, out[-1])
        out.append(g)
    return out[::-1]


def _transfer(a: Link, b: Link, g: np.ndarray) -> np.ndarray:
    """Moves a Gram matrix of right normal factors over one TT-core, to the next bond leftwards."""
    (ka, ba), (kb, bb) = a, b
    (_, ja, n, pa), (_, jb, _, pb) = ba.shape, bb.shape
    sa, sb = ka.shape[1], kb.shape[1]
    paired = ja * jb * pa * pb * (n + g.shape[0] * g.shape[2])
    if paired <= sa * sb * n * (ja * pa * pb + ja * jb * pb):
        # Pairs of bonds as one: the matrix between them does not know of the states.
        moved = einsum("tjnp,uknq,apbq->tujkab", ba, bb, g)
        return einsum("tsa,urb,tujkab->sjrk", ka, kb, moved)
    half = einsum("tsa,tjnp,apbq->sjnbq", ka, ba, g)
    return einsum("sjnbq,urb,uknq->sjrk", half, kb, bb)


class Modes(NamedTuple):
    """Grid points and ∂ of every axis, L²-weighted, for tangent and normal factors.

    Attributes:
      points: y of every axis.
      d1: ∂ of every axis.
      root: square roots of the quadrature weights, up to a factor; None where they are all equal.
    """

    points: list[np.ndarray]
    d1: list[np.ndarray]
    root: list[np.ndarray] | None

    def pair(self, k: int, core: np.ndarray) -> np.ndarray:
        """Applies ∂ and y to the mode of core k, for tangent and normal factors: (2, r, n, s)."""
        return np.stack([self.d1[k] @ core, self.points[k][:, None] * core])

    def weighted(self, cores: Cores) -> Cores:
        """Weights a train by roots of quadrature weights, as tangent and normal factors need it."""
        if self.root is None:
            return cores
        return [w[:, None] * c for w, c in zip(self.root, cores, strict=True)]

    def values(self, cores: Cores) -> Cores:
        """Divides tangent or normal trains by the square roots of the quadrature weights."""
        if self.root is None:
            return cores
        return [c / w[:, None] for w, c in zip(self.root, cores, strict=True)]

    def matrices(self, k: int, o: np.ndarray) -> np.ndarray:
        """Converts operators along axis k to L²-weighted values, for tangent and normal factors."""
        return o if self.root is None else self.root[k][:, None] * o / self.root[k]


@functools.lru_cache(maxsize=32)
def modes_of(box: Any) -> Modes:
    """Builds the `Modes` of a grid for tangent and normal factors: L²-weighted points and ∂."""
    points = [np.asarray(a.points) for a in box.axes]
    d1 = [np.asarray(a.d1) for a in box.axes]
    root = [np.sqrt(a.weights / np.mean(a.weights)) for a in box.axes]
    if all(np.allclose(w, 1, rtol=1e-12, atol=0) for w in root):
        return Modes(points, d1, None)
    return Modes(points, [w[:, None] * d / w for w, d in zip(root, d1, strict=True)], root)


def links_of(operator: Any, modes: Modes) -> list[Link]:
    """Factors an operator's cores as Σ_t K_t ⊗ O_t, for the tangent and normal factors of A v."""
    pairs = [_factored(c) for c in hosted_cores(operator)]
    return [(k, modes.matrices(i, o)) for i, (k, o) in enumerate(pairs)]


def _factored(core: np.ndarray) -> Link:
    """Factors a TT-matrix core as Σ_t K_t ⊗ O_t with few O_t (n, n), for tangent-normal factors.

    The blocks of a differential operator's core are combinations of a few matrices. Those are found
    among the blocks themselves, by comparing some of their rows; the norm of the whole core tells
    whether the rest follows. Where it does not, every block is a matrix of its own.
    """
    r, n, m, s = core.shape
    rows = np.unique(np.linspace(0, n - 1, min(_ROWS, n)).astype(int))
    sample = core[:, rows].transpose(0, 3, 1, 2).reshape(r * s, -1)
    chosen, weights = _spanning(sample)
    if chosen:
        o = core[np.array(chosen) // s, :, :, np.array(chosen) % s]
        flat = o.reshape(len(chosen), -1)
        found = float(np.vdot(weights.T @ weights, flat @ flat.T))
        if abs(found - float(np.vdot(core, core))) <= 1e-11 * found:
            return np.ascontiguousarray(weights.T).reshape(-1, r, s), np.ascontiguousarray(o)
    blocks = core.transpose(0, 3, 1, 2).reshape(r * s, -1)
    chosen = np.nonzero(np.any(blocks, axis=1))[0]
    k = np.zeros((len(chosen), r * s))
    k[np.arange(len(chosen)), chosen] = 1
    return k.reshape(-1, r, s), blocks[chosen].reshape(-1, n, m)


def _spanning(rows: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Selects rows of an operator core that span all its rows, for tangent-normal factors."""
    norms = np.linalg.norm(rows, axis=1)
    live = norms > 0
    rest = np.where(live[:, None], rows / np.where(live, norms, 1)[:, None], 0)
    unit, chosen = rest, []
    while len(chosen) < min(rows.shape):
        sizes = np.vecdot(rest, rest)
        pivot = int(np.argmax(sizes))
        if sizes[pivot] < 1e-24:
            break
        chosen.append(pivot)
        q = rest[pivot] / np.sqrt(sizes[pivot])
        rest = rest - np.outer(rest @ q, q)
    if not chosen:
        return [], np.zeros((len(rows), 0))
    # Least squares on rows of norm one: what the elimination knows of them has lost digits by then.
    found = np.linalg.lstsq(unit[chosen].T, unit.T, rcond=None)[0].T
    found[np.abs(found) < 1e-13] = 0
    return chosen, found * norms[:, None] / norms[chosen]
