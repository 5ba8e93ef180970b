"""Bond-wise splitting of y_k ∂_j v, A v and other tensors into tangent and normal parts.

A *family* is a set of such sums that differ in what they do to one side: the y_k ∂_j v for all j
and k, an operator applied to v, or another train. Its cores are Σ_t K_t ⊗ B_t, with small matrices
K_t that link the states of two bonds and cores B_t; at every bond, what a family has on either side
is split into a part inside the space that v spans there and a part orthogonal to it, so that no
difference of large numbers is ever taken.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.unfoldings import Cores, absorb, tall, times_right, wide
from tensorjax.pde._generators.canonical_form import Point

Link = tuple[np.ndarray, np.ndarray]  # K (t, s, s') and B (t, j, n, j')
_ENDS = np.ones((1, 1, 1)), np.ones((1, 1, 1))


class Family(NamedTuple):
    """Tensor split at every bond into left and right factors, inside and outside a train's bases.

    Attributes:
      seen: left of the bond, (r n, s, j): the modes before p projected on U_{<p}.
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
    """Computes the bond-wise parts of ∂ and y applied to every single mode of a state.

    Left of bond p they are the modes 1 … p, right of it the modes p + 1 … d.
    """
    d = state.order
    left = [(_steps(2 * k, 2 * k + 2, 0), u[None]) for k, u in enumerate(state.left)]
    right = [
        (_steps(2 * (d - k), 2 * (d - k) - 2, -2), v[None])
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
    """Projects the cores of a state on the bases left and right of a point's bonds."""
    lefts, rights = [], []
    env = np.ones((1, 1))
    for u, c in zip(point.left, state.left, strict=True):
        lefts.append(absorb(env, c))
        env = tall(u).T @ tall(lefts[-1])
    env = np.ones((1, 1))
    for v, c in zip(reversed(point.right), reversed(state.right), strict=True):
        rights.append(times_right(c, env))
        env = wide(rights[-1]) @ wide(v).T
    return lefts, rights[::-1]


def applied(point: Point, links: Sequence[Link]) -> Family:
    """Computes the bond-wise parts of a TT-matrix Σ_t K_t ⊗ O_t, O (t, n, n), applied to v."""
    left = [(k, o[:, None] @ u[None]) for (k, o), u in zip(links, point.left, strict=False)]
    right = [(k, o[:, None] @ v[None]) for (k, o), v in zip(links[1:], point.right, strict=True)]
    return _family(point, left, right, _ENDS, point.bonds)


def another(point: Point, cores: Cores) -> Family:
    """Computes the bond-wise parts of an arbitrary train at a point."""
    links = [(_ENDS[0], c[None]) for c in cores]
    return _family(point, links[:-1], links[1:], _ENDS)


def _steps(rows: int, columns: int, offset: int) -> np.ndarray:
    """Returns the matrix K that passes on the states of a bond-wise sum, (1, rows, columns)."""
    return np.eye(rows, columns, offset)[None]


def _family(
    point: Point,
    left: Sequence[Link],
    right: Sequence[Link],
    ends: tuple[np.ndarray, np.ndarray],
    bonds: Sequence[np.ndarray] | None = None,
    fresh: tuple[Cores, Cores] | None = None,
) -> Family:
    """Computes bond-wise parts by one sweep from the left and one from the right.

    ``bonds`` go between left and right, ``fresh`` are states that start.
    """
    seen, inside = [], []
    env = ends[0]
    for k, (u, link) in enumerate(zip(point.left, left, strict=True)):
        if fresh is None:
            part = _append_left(env, link)  # (i, n, s, j)
        else:
            part = _handed_left(env, link[1][0], fresh[0][k])
        part = part.reshape(-1, part.shape[2] * part.shape[3])
        env = (tall(u).T @ part).reshape(u.shape[2], -1, link[1].shape[3])
        part = part.reshape(len(part), *env.shape[1:])
        seen.append(part if bonds is None else part @ bonds[k])
        inside.append(env if bonds is None else env @ bonds[k])
    new, overlap = [], []
    env = ends[1]
    for k in range(len(point.right) - 1, -1, -1):
        v = wide(point.right[k])
        if fresh is None:
            part = _append_right(right[k], env)  # (s, j, n, l)
        else:
            part = _handed_right(env, right[k][1][0], fresh[1][k])
        flat = part.reshape(part.shape[0] * part.shape[1], -1)
        env = flat @ v.T
        new.append((flat - env @ v).reshape(part.shape))
        env = env.reshape(*part.shape[:2], -1)
        overlap.append(env)
    return Family(seen, inside, new[::-1], overlap[::-1], list(right))


def _append_left(env: np.ndarray, link: Link) -> np.ndarray:
    """Appends the next core to the left parts (i, s, j) of bond-wise sums: (i, n, s', j')."""
    k, b = link
    t, j, n, after = b.shape
    parts = np.tensordot(env, k, (1, 1)).transpose(0, 3, 2, 1)  # (i, s', t, j)
    i, s = parts.shape[:2]
    out = parts.reshape(i * s, t * j) @ b.reshape(t * j, n * after)
    return np.ascontiguousarray(out.reshape(i, s, n, after).swapaxes(1, 2))


def _append_right(link: Link, env: np.ndarray) -> np.ndarray:
    """Contracts a core with the bond-wise right parts (s', j', l): (s, j, n, l)."""
    k, b = link
    t, j, n, after = b.shape
    parts = np.tensordot(k, env, (2, 0)).transpose(0, 2, 1, 3)  # (t, j', s, l)
    s, bra = parts.shape[2:]
    flat = b.transpose(1, 2, 0, 3).reshape(j * n, t * after)
    out = flat @ parts.reshape(t * after, s * bra)
    return np.ascontiguousarray(out.reshape(j, n, s, bra).transpose(2, 0, 1, 3))


def _handed_left(env: np.ndarray, core: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """Contracts bond-wise left parts where all states are passed on unchanged and two start."""
    i, s, j = env.shape
    _, n, after = core.shape
    out = np.empty((i, n, s + 2, after))
    old = env.reshape(i * s, j) @ core.reshape(j, n * after)
    out[:, :, :s] = old.reshape(i, s, n, after).swapaxes(1, 2)
    out[:, :, s:] = fresh.transpose(1, 2, 0, 3)
    return out


def _handed_right(env: np.ndarray, core: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """Contracts bond-wise right parts where two states start and all others are passed on."""
    s, _, bra = env.shape
    j, n, after = core.shape
    out = np.empty((s + 2, j, n, bra))
    out[:2] = fresh
    out[2:] = (core.reshape(j * n, after) @ env).reshape(s, j, n, bra)
    return out


def outside(point: Point, family: Family) -> list[np.ndarray]:
    """Returns bond-wise left parts orthogonal to U_p, (I − U_p U_pᵀ) seen, each (r n, s j)."""
    out = []
    for u, seen, inside in zip(point.left, family.seen, family.inside, strict=True):
        flat = seen.reshape(len(seen), -1)
        out.append(flat - tall(u) @ inside.reshape(len(inside), -1))
    return out


def grams(a: Family, b: Family) -> list[np.ndarray]:
    """Computes Gram matrices of bond-wise right parts orthogonal to V_{>p}, at every bond.

    They are sums of products of orthogonal parts, and so as accurate as those.
    """
    out: list[np.ndarray] = []
    for x, y, ka, kb in zip(
        reversed(a.new), reversed(b.new), reversed(a.links), reversed(b.links), strict=True
    ):
        g = x.reshape(x.shape[0] * x.shape[1], -1) @ y.reshape(y.shape[0] * y.shape[1], -1).T
        g = g.reshape(*x.shape[:2], *y.shape[:2])
        if out:
            g = g + _transfer(ka, kb, out[-1])
        out.append(g)
    return out[::-1]


def _transfer(a: Link, b: Link, g: np.ndarray) -> np.ndarray:
    """Transfers a Gram matrix (s, j, s', j') of bond-wise right parts to the bond on the left."""
    (ka, ba), (kb, bb) = a, b
    (t, ja, n, pa), (u, jb, _, pb) = ba.shape, bb.shape
    sa, sb = ka.shape[1], kb.shape[1]
    paired = ja * jb * pa * pb * (n + g.shape[0] * g.shape[2])
    if paired <= sa * sb * n * (ja * pa * pb + ja * jb * pb):
        # Pairs of bonds as one: the matrix between them does not know of the states.
        m = ba.swapaxes(2, 3).reshape(-1, n) @ bb.swapaxes(2, 3).reshape(-1, n).T
        m = m.reshape(t, ja, pa, u, jb, pb).transpose(0, 3, 1, 4, 2, 5)
        flat = g.transpose(1, 3, 0, 2).reshape(pa * pb, -1)
        moved = (m.reshape(-1, pa * pb) @ flat).reshape(t, u, ja * jb, g.shape[0], g.shape[2])
        moved = (ka[:, None, None] @ moved @ kb.mT[None, :, None]).sum((0, 1))
        return moved.reshape(ja, jb, sa, sb).transpose(2, 0, 3, 1)
    out = np.zeros((sa, ja, sb, jb))
    for k, x in zip(ka, ba, strict=True):
        for q, y in zip(kb, bb, strict=True):
            h = np.tensordot(np.tensordot(k, g, (1, 0)), q, (2, 1))  # (sa, pa, pb, sb)
            h = np.tensordot(x, h, (2, 1))  # (ja, n, sa, pb, sb)
            h = h.transpose(2, 0, 4, 1, 3).reshape(-1, n * pb)
            out += (h @ y.reshape(jb, -1).T).reshape(sa, ja, sb, jb)
    return out
