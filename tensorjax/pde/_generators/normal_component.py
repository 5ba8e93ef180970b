"""Normal component of a right side, which the coordinate generators minimise: normal equations.

At a train v with the tangent space T of its TT-manifold, N = 1 − P_T, the coordinate motion
ẏ = Σ y adds −Σ_jk Σ_jk b_jk, b_jk = y_k ∂_j v, to the right side Q, and

    ‖N(Q − Σ_jk Σ_jk b_jk)‖² = ‖NQ‖² − 2 Σ·r + Σ·A Σ,   A_pq = ⟨N b_p, N b_q⟩,  r_p = ⟨N b_p, NQ⟩.

With L_p the projection on U_{≤p} and R_p that on V_{>p}, the tangent projection is
Σ_p (L_{p−1} − L_p) R_p + L_{d−1}, and so N = Σ_{p<d} (L_{p−1} − L_p)(1 − R_p): a sum of orthogonal
projections, each a product of one on the left of bond p and one on its right. The forms are
therefore sums over the bonds of products of two small Gram matrices. The tensors N b are seen
through their orthogonal parts, and nothing is subtracted: ⟨b, b⟩ − ⟨Pb, Pb⟩ would lose all digits
below √eps.

Of b_jk only the bonds between j and k see anything; of an operator with few matrices per mode, as
much as its bonds hold. Neither Qv nor any b is materialised.

In d dimensions the normal equations have d² − d unknowns, and an eigendecomposition of all of them
takes d⁶ operations. Where v has low ranks most of their entries are zero: at rank one the motions
y_k ∂_j v and y_j ∂_k v of every pair of axes are alone with each other. Matrices are sparse from
some size on, and every connected block has an eigendecomposition of its own (`spectrum`).

Source: the problem is that of Dektor, Venturi, "Coordinate-adaptive integration of PDEs on tensor
manifolds" (arXiv 2307.05914), of which we know abstract and introduction; the formula for the
normal component and the sweeps are ours.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from tensorjax._cores import products
from tensorjax._cores.contractions import einsum
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._generators import tangent_normal_factors as families
from tensorjax.pde._generators.canonical_form import Point
from tensorjax.pde._generators.tangent_normal_factors import Family, Link, Modes
from tensorjax.pde._stepping import sketched_sums
from tensorjax.pde._stepping.sketched_sums import Train

# Positions of ∂ and y in `Modes.pair`.
_D, _Y = 0, 1
# Axes from which on the Gram matrix is sparse.
_SPARSE = 8
# Share of its entries up to which a sparse Gram matrix is cheaper than a dense one.
_FULL = 0.1
# Share of the tolerance to which sums of wide operators' images are rounded.
_PART = 1e-3
# Operators on the lower and on the higher one of two modes.
_KINDS = ((_D, _Y), (_Y, _D), (_D, _D))


class Motions(NamedTuple):
    """Index table of the tensors y_k ∂_j v and ∂_a ∂_b v whose normal components are computed.

    Attributes:
      low: a of each.
      high: b.
      kind: what acts on a and on b: ∂ and y, y and ∂, or ∂ and ∂.
      moving: d² − d; so many are the b_jk, row by row, and the rest are ∂_a ∂_b.
    """

    low: np.ndarray
    high: np.ndarray
    kind: np.ndarray
    moving: int


@functools.lru_cache(maxsize=64)
def motions(d: int, second: bool) -> Motions:
    """Builds the index table of y_k ∂_j v (j ≠ k) and ∂_a ∂_b v, for their normal components."""
    j, k = np.nonzero(~np.eye(d, dtype=bool))
    kind = np.where(j < k, 0, 1)
    low, high = np.minimum(j, k), np.maximum(j, k)
    if second:
        a, b = np.triu_indices(d, 1)
        low, high = np.concatenate([low, a]), np.concatenate([high, b])
        kind = np.concatenate([kind, np.full(len(a), 2)])
    return Motions(low, high, kind, len(j))


@functools.lru_cache(maxsize=512)
def _across(d: int, p: int, second: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists the y_k ∂_j v with a normal component at TT bond p: j and k on different sides."""
    m = motions(d, second)
    which = np.nonzero((m.low < p) & (m.high >= p))[0]
    ops = np.array(_KINDS)[m.kind[which]]
    left = 2 * m.low[which] + ops[:, 0]
    right = 2 * (m.high[which] - p) + ops[:, 1]
    return which, left, right


class Singles(NamedTuple):
    """Normal components' factors: ∂_k v and y_k v at every TT bond, and their normal parts.

    Attributes:
      family: v with one operator on one mode.
      outside: the parts left of every bond orthogonal to U_p, (r, n, s, j).
    """

    family: Family
    outside: list[np.ndarray]


def singles(point: Point, state: Point, modes: Modes) -> Singles:
    """Computes the factors of ∂_k v and y_k v at every bond, for their normal components."""
    family = families.singles(point, state, modes)
    return Singles(family, families.outside(point, family))


def gram(at: Singles, second: bool) -> Any:
    """Computes the Gram matrix of the normal components of all y_k ∂_j v.

    From some size on it is sparse: what is below the roundoff of the largest entry is left out.
    """
    rights = families.grams(at.family, at.family)
    lefts = [einsum("inaj,inbk->ajbk", x, x) for x in at.outside]
    if len(lefts) + 1 < _SPARSE:
        return _dense_gram(lefts, rights, second)
    found = _sparse_gram(lefts, rights, second)
    dense = found is None
    return scipy.sparse.csr_array(_dense_gram(lefts, rights, second)) if dense else found


def _sparse_gram(lefts: list[np.ndarray], rights: list[np.ndarray], second: bool) -> Any:
    """Builds the Gram matrix of normal components of y_k ∂_j v, sparse; None if not sparse."""
    d = len(lefts) + 1
    sides = [(_entries(x), _entries(g)) for x, g in zip(lefts, rights, strict=True)]
    sizes = [tuple(np.linalg.norm(x, axis=1) for x in s) for s in sides]
    least = np.finfo(float).eps / 4 * max(float(x.max() * g.max()) for x, g in sizes)
    kept = [
        (np.nonzero(x * g.max() > least)[0], np.nonzero(g * x.max() > least)[0]) for x, g in sizes
    ]
    count = len(motions(d, second).low)
    if sum(len(left) * len(right) for left, right in kept) > _FULL * count**2:
        return None
    parts = []
    for p, ((x, g), (left, right)) in enumerate(zip(sides, kept, strict=True), start=1):
        place = _places(d, p, second)
        (a, b), (c, e) = np.divmod(left, 2 * p), np.divmod(right, 2 * (d - p))
        row, column = place[a[:, None], c], place[b[:, None], e]
        seen = (row >= 0) & (column >= 0)
        parts.append(((x[left] @ g[right].T)[seen], row[seen], column[seen]))
    entries, row, column = (np.concatenate(x) for x in zip(*parts, strict=True))
    return scipy.sparse.csr_array((entries, (row, column)), shape=(count, count))


def _entries(gram: np.ndarray) -> np.ndarray:
    """Transposes a Gram array (a, j, b, k) of normal components to the matrix (a b, j k)."""
    a, j, b, k = gram.shape
    return gram.transpose(0, 2, 1, 3).reshape(a * b, j * k)


def _places(d: int, p: int, second: bool) -> np.ndarray:
    """Returns the index of the normal component of y_k ∂_j v for pairs of states at a TT bond."""
    which, left, right = _across(d, p, second)
    out = np.full((2 * p, 2 * (d - p)), -1)
    out[left, right] = which
    return out


def _dense_gram(lefts: list[np.ndarray], rights: list[np.ndarray], second: bool) -> np.ndarray:
    """Builds the dense Gram matrix of the normal components of all y_k ∂_j v."""
    d = len(lefts) + 1
    kinds = _KINDS if second else _KINDS[:2]
    total = np.zeros((len(kinds), len(kinds), d, d, d, d))
    for p, (x, g) in enumerate(zip(lefts, rights, strict=True), start=1):
        q = d - p
        both = einsum("ajbk,cjdk->abcd", x, g).reshape(p, 2, p, 2, q, 2, q, 2)
        for i, (a, b) in enumerate(kinds):
            for j, (e, f) in enumerate(kinds):
                part = both[:, a, :, e, :, b, :, f].transpose(0, 2, 1, 3)
                total[i, j, :p, p:, :p, p:] += part
    m = motions(d, second)
    return total[m.kind[:, None], m.kind, m.low[:, None], m.high[:, None], m.low, m.high]


def load(at: Singles, point: Point, family: Family, second: bool) -> np.ndarray:
    """Computes inner products of a tensor's normal component with those of all y_k ∂_j v."""
    d = point.order
    out = np.zeros(len(motions(d, second).low))
    rights = families.grams(at.family, family)
    for p, (x, part, g) in enumerate(zip(at.outside, family.seen, rights, strict=True), start=1):
        which, left, right = _across(d, p, second)
        # x is orthogonal to U_p already.
        lefts = einsum("inaj,insk->ajsk", x, part)
        out[which] += einsum("ajsk,bjsk->ab", lefts, g)[left, right]
    return out


def inner(point: Point, a: Family, b: Family) -> float:
    """Computes the inner product of two tensors' normal components."""
    lefts = families.outside(point, a), families.outside(point, b)
    total = 0.0
    for x, y, g in zip(*lefts, families.grams(a, b), strict=True):
        total += float(np.vdot(einsum("insj,intk->sjtk", x, y), g))
    return total


def energy(point: Point, parts: Sequence[Family]) -> float:
    """Computes the squared norm of the normal component of a sum."""
    out = 0.0
    for i, a in enumerate(parts):
        out += inner(point, a, a) + 2 * sum(inner(point, a, b) for b in parts[:i])
    return max(out, 0.0)


class Form(NamedTuple):
    """Squared normal component of a PDE's right side, quadratic in the coordinate motion Σ y.

    Attributes:
      whole: ⟨N m, N m'⟩ of all `motions`, (count, count), dense or sparse.
      known: what the affine part of Q is in terms of them, (count,).
      rest: ⟨N m, NZ⟩ with the sum Z of all else in Q, (count,).
      energy: ‖NZ‖², or None if it was not asked for.
      load: r, (d² − d,), feedback included.
      family: v with one operator on one mode.
      others: those whose sum is Z.
    """

    whole: Any
    known: np.ndarray
    rest: np.ndarray
    energy: float | None
    load: np.ndarray
    family: Family
    others: list[Family]

    @property
    def gram(self) -> Any:
        """Gram matrix of the normal components of y_k ∂_j v, j ≠ k, row by row."""
        return self.whole[: len(self.load), : len(self.load)]

    def cost(self, sigma: np.ndarray) -> float:
        """Computes the norm of a right side's normal component if coordinates move with Σ y.

        Affine parts cancel before they are squared.
        """
        if self.energy is None:
            raise ValueError("energy: expected a form that was made with measure=True")
        left = self.known.copy()
        left[: len(self.load)] -= off_diagonal(sigma)
        total = left @ (self.whole @ left) + 2 * left @ self.rest + self.energy
        return float(np.sqrt(max(total, 0.0)))


class Terms(NamedTuple):
    """Terms whose normal component is taken: affine part, other operators, source and reaction.

    Attributes:
      affine: coefficients with ``matrix`` and ``diffusion``, or None.
      operators: other operators, factored.
      wide: operators of many matrices per mode, as cores (r, n, n, s).
      source: cores of a train, or None.
      reaction: cores of v and a tolerance ↦ cores, or None.
    """

    affine: Any
    operators: list[list[Link]]
    wide: list[Cores]
    source: Cores | None
    reaction: Any


def form(
    point: Point,
    state: Point,
    modes: Modes,
    terms: Terms,
    *,
    tol: float,
    feedback: Cores | None = None,
    measure: bool = False,
) -> Form:
    """Computes the squared normal component of a PDE's right side, quadratic in the motion Σ y.

    Args:
      point: of d ≥ 2 modes.
      modes: of its box.
      terms: the right side.
      tol: relative error of the reaction.
      feedback: a train added to Q, but not in ``others`` and ``energy``.
      measure: whether ``energy`` is asked for.
    """
    second = terms.affine is not None and terms.affine.diffusion is not None
    at = singles(point, state, modes)
    whole = gram(at, second)
    count = motions(point.order, second).moving
    others = other_families(point, terms, tol)
    rest = np.zeros(whole.shape[0])
    for family in others:
        rest = rest + load(at, point, family, second)
    known = _coefficients(terms.affine, count, len(rest))
    total = whole[:count] @ known + rest[:count]
    if feedback is not None:
        total = total + load(at, point, families.another(point, feedback), second)[:count]
    left = energy(point, others) if measure else None
    return Form(whole, known, rest, left, total, at.family, others)


def other_families(point: Point, terms: Terms, tol: float) -> list[Family]:
    """Splits the non-affine terms of a right side into factors, for their normal component."""
    others = [families.applied(point, o) for o in terms.operators]
    if terms.wide:
        images = [Train(products.matvec(o, point.cores)) for o in terms.wide]
        total = sketched_sums.rounded(images, [1.0] * len(images), _PART * tol)
        others.append(families.another(point, total.cores))
    if terms.source is not None:
        others.append(families.another(point, terms.source))
    if terms.reaction is not None:
        others.append(families.another(point, terms.reaction(point.cores, tol)))
    return others


def _coefficients(affine: Any, moving: int, count: int) -> np.ndarray:
    """Expands the affine part of a right side in y_k ∂_j v, ∂_a ∂_b v, for its normal component."""
    out = np.zeros(count)
    if affine is None:
        return out
    if affine.matrix is not None:
        out[:moving] = off_diagonal(np.asarray(affine.matrix, np.float64))
    if affine.diffusion is not None:
        s = np.asarray(affine.diffusion, np.float64)
        m = motions(len(s), True)
        a, b = m.low[moving:], m.high[moving:]
        out[moving:] = s[a, b] + s[b, a]
    return out


def off_diagonal(matrix: np.ndarray) -> np.ndarray:
    """Returns the unknowns of normal equations: the off-diagonal entries of Σ, row by row."""
    return matrix[~np.eye(len(matrix), dtype=bool)]


def from_off_diagonal(values: np.ndarray, d: int) -> np.ndarray:
    """Builds Σ (d, d) of zero diagonal from the unknowns of normal equations, row by row."""
    out = np.zeros((d, d))
    out[~np.eye(d, dtype=bool)] = values
    return out


class Block(NamedTuple):
    """Diagonal blocks, all of one size, of normal equations, with their eigendecompositions.

    Attributes:
      index: rows of each, (blocks, size).
      values: eigenvalues, (blocks, size).
      vectors: (blocks, size, size).
    """

    index: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """Computes a vector's coefficients (blocks, size) in normal equations' eigenvectors."""
        return (self.vectors.swapaxes(1, 2) @ x[self.index][:, :, None])[:, :, 0]


class Spectrum(NamedTuple):
    """Eigendecomposition of the block-diagonal matrix of normal equations, block by block."""

    blocks: list[Block]
    size: int

    @property
    def largest(self) -> float:
        """Largest eigenvalue of the matrix of normal equations; zero if none is positive."""
        return max((float(b.values.max()) for b in self.blocks), default=0.0)

    def combined(self, coefficients: list[np.ndarray]) -> np.ndarray:
        """Computes a motion from its coefficients in eigenvectors of the normal equations."""
        out = np.zeros(self.size)
        for b, c in zip(self.blocks, coefficients, strict=True):
            out[b.index] = (b.vectors @ c[:, :, None])[:, :, 0]
        return out


def spectrum(matrix: Any) -> Spectrum:
    """Computes eigenvectors of a coordinate generator's normal equations, block by block."""
    n = matrix.shape[0]
    if not scipy.sparse.issparse(matrix):
        w, z = np.linalg.eigh(matrix)
        return Spectrum([Block(np.arange(n)[None], w[None], z[None])], n)
    _, labels = scipy.sparse.csgraph.connected_components(matrix, directed=False)
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = np.empty(n, int)
    place[order] = np.arange(n) - starts[labels[order]]
    entries = matrix.tocoo()
    blocks = []
    for size in np.unique(sizes):
        which = np.nonzero(sizes == size)[0]
        number = np.full(len(sizes), -1)
        number[which] = np.arange(len(which))
        mine = number[labels[entries.row]] >= 0
        rows, columns = entries.row[mine], entries.col[mine]
        dense = np.zeros((len(which), size, size))
        dense[number[labels[rows]], place[rows], place[columns]] = entries.data[mine]
        index = order[starts[which][:, None] + np.arange(size)]
        blocks.append(Block(index, *np.linalg.eigh(dense)))
    return Spectrum(blocks, n)


def filtered(found: Spectrum, load: np.ndarray, floor: float) -> np.ndarray:
    """Solves normal equations by the regularised pseudoinverse w/(w² + floor²)."""
    least = found.size * np.finfo(float).eps * max(found.largest, 0.0)
    parts = []
    for b in found.blocks:
        w = np.where(b.values > least, b.values, 0)
        bottom = w**2 + floor**2
        gain = np.where(bottom > 0, w / np.where(bottom > 0, bottom, 1), 0)
        parts.append(gain * b.coordinates(load))
    return found.combined(parts)


def visible(matrix: Any, load: np.ndarray, share: float) -> tuple[Any, np.ndarray]:
    """Sets small eigenvalues of normal equations (matrix, load) to zero, block by block."""
    found = spectrum(matrix)
    least = share * max(found.largest, 0.0)
    kept = found.combined([b.coordinates(load) * (b.values > least) for b in found.blocks])
    parts = [
        (b.vectors * np.where(b.values > least, b.values, 0)[:, None]) @ b.vectors.swapaxes(1, 2)
        for b in found.blocks
    ]
    if not scipy.sparse.issparse(matrix):
        return parts[0][0], kept
    rows = [
        np.broadcast_to(b.index[:, :, None], p.shape)
        for b, p in zip(found.blocks, parts, strict=True)
    ]
    columns = [
        np.broadcast_to(b.index[:, None], p.shape) for b, p in zip(found.blocks, parts, strict=True)
    ]
    entries, row, column = (np.concatenate([x.ravel() for x in y]) for y in (parts, rows, columns))
    return scipy.sparse.csr_array((entries, (row, column)), shape=matrix.shape), kept


def among(gram: Any, load: np.ndarray, kept: np.ndarray) -> tuple[Any, np.ndarray]:
    """Restricts normal equations for a coordinate motion Σ y to some entries of Σ."""
    if len(kept) == len(load):
        return gram, load
    return gram[kept][:, kept], load[kept]
