"""The manifold of tensor trains of fixed TT-ranks: tangent spaces, retractions, transport.

A tangent vector at x is Σ_k U_1 … U_{k−1} δ_k V_{k+1} … V_d, with the left-orthogonal cores U and
the right-orthogonal cores V of x, and U_kᴴ δ_k = 0 but for the last k. It is kept as a tensor train
of twice the ranks, whose cores are the blocks

    [δ_1 U_1],   [V_k 0; δ_k U_k],   [V_d; δ_d],

so that every function on trains takes it. The variations δ_k can be read off again, and by the
gauge they are orthonormal coordinates: inner products and sums cost as much as on cores.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax import _check, linalg
from tensorjax._cores import absorb, cut_ranks, tall
from tensorjax._placement import placed, placed_by, spec_like
from tensorjax._train import TT, single
from tensorjax.tt import _interfaces as interfaces
from tensorjax.tt._algebra import _aligned, add
from tensorjax.tt._round import _orthogonalized, orthogonal_cores, round

Arrays = tuple[jax.Array, ...]
Retraction = Literal["svd", "projector_splitting"]


class Frame(NamedTuple):
    """The orthogonal cores of a point on the manifold.

    Attributes:
      left: U_1 … U_{d−1}, left-orthogonal.
      right: V_2 … V_d, right-orthogonal.
    """

    left: Arrays
    right: Arrays


def _like_cores(out: Any, arguments: Any) -> list[Any]:
    """The arrays of a frame, and the variations behind them, are sharded as the train's cores."""
    cores, found = jax.tree.leaves(arguments), jax.tree.leaves(out)
    bonds = len(cores) - 1
    # A frame is followed by the last core alone, or by one array for each.
    behind = cores[len(cores) + 2 * bonds - len(found) :]
    given = [*cores[:-1], *cores[1:], *behind]
    return [spec_like(x, c) for x, c in zip(found, given, strict=True)]


@placed_by(_like_cores)
def frame(x: TT) -> tuple[Frame, jax.Array]:
    """The frame at x, and the last core C of x = U_1 … U_{d−1} C."""
    left, exponent = orthogonal_cores(x, x.order - 1)
    *others, last = x.cores
    x = TT._unchecked((*others, linalg.after(last, left[-1])))
    right, _ = orthogonal_cores(x, 0)
    return Frame(tuple(left[:-1]), tuple(right[1:])), linalg.scaled(left[-1], exponent)


@placed
def tangent(at: Frame, deltas: Sequence[jax.Array]) -> TT:
    """The tangent vector with the variations δ_1 … δ_d, as a train of twice the ranks."""
    if len(deltas) == 1:
        return TT._unchecked(tuple(deltas))
    cores = [jnp.concatenate([deltas[0], at.left[0]], axis=2)]
    for u, delta, v in zip(at.left[1:], deltas[1:-1], at.right[:-1], strict=True):
        top = jnp.concatenate([v, jnp.zeros_like(v)], axis=2)
        cores.append(jnp.concatenate([top, jnp.concatenate([delta, u], axis=2)], axis=0))
    cores.append(jnp.concatenate([at.right[-1], deltas[-1]], axis=0))
    return TT._unchecked(tuple(cores))


@placed_by(_like_cores)
def split(xi: TT) -> tuple[Frame, Arrays]:
    """The frame and the variations of a tangent vector: what `tangent` was given."""
    if xi.order == 1:
        return Frame((), ()), xi.cores
    left, deltas, right = [], [], []
    for k, c in enumerate(xi.cores):
        a = c.shape[0] // 2 if k > 0 else 0
        b = c.shape[2] // 2 if k < xi.order - 1 else c.shape[2]
        deltas.append(c[a:, :, :b])
        if k > 0:
            right.append(c[:a, :, :b])
        if k < xi.order - 1:
            left.append(c[a:, :, b:])
    return Frame(tuple(left), tuple(right)), tuple(deltas)


@placed_by(lambda out, arguments: list(map(spec_like, out, arguments[0][1])))
def gauged(at: Frame, deltas: Sequence[jax.Array]) -> Arrays:
    """The variations with what lies in the span of U_k taken out, for all k but the last."""
    out = []
    for u, delta in zip(at.left, deltas[:-1], strict=True):
        u, flat = tall(u), tall(delta)
        flat = flat - linalg.matmul(u, linalg.matmul(linalg.adjoint(u), flat))
        out.append(flat.reshape(delta.shape))
    return (*out, deltas[-1])


@placed
def project(at: Frame, z: TT) -> TT:
    """The orthogonal projection of z on the tangent space at a frame."""
    rights = [interfaces.edge(z.cores[0], operator=False)]
    for v, c in zip(reversed(at.right), reversed(z.cores), strict=False):
        rights.append(interfaces.right_overlap(rights[-1], v, c))
    left = rights[0]
    deltas = []
    for k, c in enumerate(z.cores):
        seen = absorb(left, c)
        deltas.append(linalg.matmul(seen, rights[z.order - 1 - k].T))
        if k < z.order - 1:
            left = linalg.matmul(linalg.adjoint(tall(at.left[k])), tall(seen))
    return tangent(at, gauged(at, deltas))


@placed
def moved(x: TT, xi: TT, step: Any) -> TT:
    """x + step·ξ for a tangent vector at x, retracted to the ranks of x by SVD."""
    at, deltas = split(xi)
    left = interfaces.edge(x.cores[0], operator=False)
    for u, c in zip(at.left, x.cores, strict=False):
        left = interfaces.left_overlap(left, u, c)
    step = jnp.asarray(step).astype(x.dtype)
    shifted = [step * d for d in deltas]
    shifted[-1] = shifted[-1] + absorb(left, x.cores[-1])
    return round(tangent(at, shifted), rank=x.ranks[1:-1] or 1, method="svd")


def point(x: Any) -> TT:
    """Checks that x can be a point of the manifold of its ranks, in a dtype to factor in."""
    single("x", x, TT)
    if cut_ranks(x.ranks, x.shape) != x.ranks:
        raise ValueError(
            f"x: expected TT-ranks that its modes {x.shape} allow, got {x.ranks}; "
            "tt.orthogonalize(x, 0) removes the rest"
        )
    _check.finite("x", x)
    return x.astype(linalg.factor_dtype(x.dtype))


@placed
def tangent_project(x: TT, z: TT) -> TT:
    """P_x z, the orthogonal projection of z on the tangent space of the manifold at x.

    Args:
      x: TT of shape n and TT-ranks r_k, which are its true ones: where a bond is not of full rank,
        the manifold has no tangent space, and the result is that of one nearby.
      z: TT of the same shape.

    Returns:
      TT of ranks 2 r_k. `tangent_sum` and `tangent_inner` work on its variations alone.

    Raises:
      TypeError: ``x`` or ``z`` is no TT. ValueError: shapes differ, ranks of ``x`` that its modes
        do not allow, NaN or Inf.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> x, z = (tt.random(k, (4, 5, 6), 2) for k in jax.random.split(jax.random.key(0)))
      >>> xi = tt.tangent_project(x, z)
      >>> xi.ranks, bool(tt.distance(tt.tangent_project(x, xi), xi) < 1e-4 * tt.norm(xi))
      ((1, 4, 4, 1), True)

    Source: C. Lubich, I. Oseledets, B. Vandereycken, "Time integration of tensor trains", SIAM J.
    Numer. Anal. 53 (2015), theorem 3.1; O(d n r R (r + R)) operations for z of ranks R.
    """
    single("z", z, TT)
    x, z = _aligned(point(x), z)
    _check.finite("z", z)
    return _tangent_project(x, z)


@jax.jit
def _tangent_project(x: TT, z: TT) -> TT:
    return project(frame(x)[0], z)


@placed
def transport(x: TT, xi: TT) -> TT:
    """Moves a tangent vector of another point to the tangent space at x, by projection.

    Args:
      x: TT, the point to move to.
      xi: TT, a tangent vector at a point of the same shape.

    Returns:
      TT of twice the ranks of ``x``.

    Source: P.-A. Absil, R. Mahony, R. Sepulchre, "Optimization Algorithms on Matrix Manifolds"
    (2008), section 8.1.3.
    """
    return tangent_project(x, xi)


@placed
def tangent_inner(xi: TT, eta: TT) -> jax.Array:
    """⟨ξ, η⟩ of two tangent vectors at one point, a scalar; ξ is conjugated.

    Args:
      xi: TT that `tangent_project`, `tangent_sum` or `riemannian_grad` returned.
      eta: one at the same point. It is not checked that the points agree.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> x, z = (tt.random(k, (4, 5, 6), 2) for k in jax.random.split(jax.random.key(0)))
      >>> xi = tt.tangent_project(x, z)
      >>> bool(abs(tt.tangent_inner(xi, xi) / tt.norm(xi) ** 2 - 1) < 1e-4)
      True

    O(d n r²) operations, where `inner` of the trains takes O(d n r³).
    """
    pairs = zip(_variations("xi", xi), _variations("eta", eta, xi), strict=True)
    products = [jnp.vdot(a, b, precision=jax.lax.Precision.HIGHEST) for a, b in pairs]
    return jnp.stack(products).sum()


@placed
def tangent_sum(tangents: Sequence[TT], weights: Sequence[Any] | None = None) -> TT:
    """Σ_i w_i ξ_i of tangent vectors at one point: the ranks stay twice those of the point.

    Args:
      tangents: one or more TT that `tangent_project`, `tangent_sum` or `riemannian_grad` returned,
        all at one point, which is not checked.
      weights: as many scalars, traced or not; ones if None.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> x, z = (tt.random(k, (4, 5, 6), 2) for k in jax.random.split(jax.random.key(0)))
      >>> xi = tt.tangent_project(x, z)
      >>> tt.tangent_sum([xi, xi], [2.0, -1.0]).ranks
      (1, 4, 4, 1)
    """
    tangents = list(tangents)
    weights = [1.0] * len(tangents) if weights is None else list(weights)
    if not tangents or len(tangents) != len(weights):
        raise ValueError(
            "tangents: expected one or more, with one weight each, "
            f"got {len(tangents)} and {len(weights)} weights"
        )
    terms = [_variations(f"tangents[{i}]", t, tangents[0]) for i, t in enumerate(tangents)]
    total = terms[0]
    for i, (w, term) in enumerate(zip(weights, terms, strict=True)):
        scaled = [jnp.asarray(w).astype(d.dtype) * d for d in term]
        total = scaled if i == 0 else [a + b for a, b in zip(total, scaled, strict=True)]
    return tangent(split(tangents[0])[0], total)


def _variations(name: str, xi: Any, like: TT | None = None) -> Arrays:
    single(name, xi, TT)
    if any(r % 2 for r in xi.ranks[1:-1]) or (like is not None and like.ranks != xi.ranks):
        expected = "even interior TT-ranks" if like is None else f"TT-ranks {like.ranks}"
        raise ValueError(
            f"{name}: expected a tangent vector, as tt.tangent_project makes them, of {expected}, "
            f"got {xi.ranks}"
        )
    return split(xi)[1]


@placed
def retract(
    x: TT, xi: TT, rank: int | Sequence[int] | None = None, *, method: Retraction = "svd"
) -> TT:
    """A train of low TT-ranks near x + ξ: the way from a tangent vector back to the manifold.

    Args:
      x: TT.
      xi: TT of the same shape; a tangent vector at ``x`` for a retraction in the strict sense, any
        train for a step-truncation.
      rank: TT-ranks of the result, as in `round`; those of ``x`` if None.
      method: "svd", x + ξ rounded: quasi-optimal, of second order. "projector_splitting": one step
        of the integrator with x + t ξ: no SVD and nothing divided by small singular values; the
        ranks are those of ``x``, and a train of these ranks is met exactly.

    Returns:
      TT of ``rank``.

    Raises:
      ValueError: shapes differ, an unknown method, NaN or Inf, or "projector_splitting" with
        another ``rank`` than that of ``x``.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> x, z = (tt.random(k, (4, 5, 6), 2) for k in jax.random.split(jax.random.key(0)))
      >>> tt.retract(x, tt.tangent_project(x, z), 2).ranks
      (1, 2, 2, 1)

    Source: M. Steinlechner, "Riemannian optimization for high-dimensional tensor completion", SIAM
    J. Sci. Comput. 38 (2016), section 3.4 ("svd"); Lubich, Oseledets, Vandereycken (2015), section
    4 ("projector_splitting").
    """
    single("xi", xi, TT)
    if method not in ("svd", "projector_splitting"):
        raise ValueError(f'method: expected "svd" or "projector_splitting", got {method!r}')
    x, xi = _aligned(point(x), xi)
    _check.finite("xi", xi)
    if method == "svd":
        rank = (x.ranks[1:-1] or 1) if rank is None else rank
        return round(add(x, xi), rank=rank, method="svd")
    if rank is not None:
        bounds = [max(r, 1) for r in x.ranks[1:-1]]
        wanted = _check.bond_ranks(rank, [2**62] * len(bounds))
        if any(w != r for w, r in zip(wanted, bounds, strict=True)):
            raise ValueError(
                f"rank: expected the TT-ranks of x, {tuple(bounds)}, for projector_splitting, "
                f'got {rank!r}; method="svd" changes ranks'
            )
    return _split_step(x, xi)


@jax.jit
def _split_step(x: TT, xi: TT) -> TT:
    """One step of projector splitting, left to right, with the increment ξ."""
    start = _orthogonalized(x, 0).cores
    rights = [interfaces.edge(start[0], operator=False)]
    for v, c in zip(reversed(start[1:]), reversed(xi.cores), strict=False):
        rights.append(interfaces.right_overlap(rights[-1], v, c))
    left, center, cores = rights[0], start[0], []
    for k, c in enumerate(xi.cores):
        right = rights[x.order - 1 - k].T
        seen = absorb(left, c)
        center = center + linalg.matmul(seen, right)
        if k == x.order - 1:
            break
        u, s = linalg.qr(tall(center))
        cores.append(u.reshape(center.shape))
        left = linalg.matmul(linalg.adjoint(u), tall(seen))
        center = absorb(s - linalg.matmul(left, right), start[k + 1])
    return TT._unchecked((*cores, center))
