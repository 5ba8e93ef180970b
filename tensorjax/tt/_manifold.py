"""The manifold of tensor trains of fixed TT-ranks: tangent spaces, retractions, transport.

A tangent vector at x is Σ_k U_1 … U_{k−1} δ_k V_{k+1} … V_d, with the left-orthogonal cores U and
the right-orthogonal cores V of x, and U_kᴴ δ_k = 0 but for the last k. It is kept as a tensor train
of twice the ranks, whose cores are the blocks

    [δ_1 U_1],   [V_k 0; δ_k U_k],   [V_d; δ_d],

so that every function on trains takes it. The variations δ_k can be read off again, and by the
gauge they are orthonormal coordinates: inner products and sums cost as much as on cores.

Where the variations leave the range of the dtype, as at a point of norm 1e40 in float32, all cores
share a power of two, which is read off again at the orthonormal columns of the first one.
"""

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from tensorjax import _check, linalg
from tensorjax import _scaling as scaling
from tensorjax._cores import absorb, cut_ranks, tall
from tensorjax._placement import placed, placed_by, spec_like
from tensorjax._train import TT, single
from tensorjax.tt import _interfaces as interfaces
from tensorjax.tt._algebra import _aligned, add
from tensorjax.tt._build import feasible_ranks
from tensorjax.tt._round import orthogonal, round

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
    # A frame is followed by the last core alone, or by one array for each, and an exponent.
    behind = cores[len(cores) + 2 * bonds + 1 - len(found) :]
    given = [*cores[:-1], *cores[1:], *behind, cores[0]]
    return [spec_like(x, c) for x, c in zip(found, given, strict=True)]


@placed_by(_like_cores)
@jax.jit
def frame(x: TT) -> tuple[Frame, jax.Array, Any]:
    """The frame at x, C near one and e: x = 2^e U_1 … U_{d−1} C."""
    left, exponent = orthogonal(x.cores, x.order - 1)
    *others, last = x.cores
    right, _ = orthogonal([*others, linalg.after(last, left[-1])], 0)
    return Frame(tuple(left[:-1]), tuple(right[1:])), left[-1], exponent


@placed
@jax.jit
def tangent(at: Frame, deltas: Sequence[jax.Array], exponent: Any = None) -> TT:
    """The tangent vector of the variations 2^exponent δ_1 … δ_d, a train of twice the ranks."""
    share: Any = None
    if exponent is not None:
        deltas, share = _in_range(deltas, exponent)
    if len(deltas) == 1:
        return TT._unchecked(tuple(deltas))
    cores = [jnp.concatenate([deltas[0], at.left[0]], axis=2)]
    for u, delta, v in zip(at.left[1:], deltas[1:-1], at.right[:-1], strict=True):
        top = jnp.concatenate([v, jnp.zeros_like(v)], axis=2)
        cores.append(jnp.concatenate([top, jnp.concatenate([delta, u], axis=2)], axis=0))
    cores.append(jnp.concatenate([at.right[-1], deltas[-1]], axis=0))
    if share is not None:
        cores = [linalg.scaled(c, share) for c in cores]
    return TT._unchecked(tuple(cores))


def _in_range(deltas: Sequence[jax.Array], exponent: Any) -> tuple[list[jax.Array], Any]:
    """The variations times 2^exponent, and 0; or near one, and the power that all cores share."""
    top = largest_exponent([(d, 0) for d in deltas])
    whole = jnp.where(top > scaling.NOTHING // 2, top + exponent, 0)
    low, high = linalg.exponents_held(deltas[0].dtype)
    share = jnp.where((low < whole) & (whole < high), 0, whole // len(deltas))
    power = exponent - share * len(deltas)
    return [linalg.scaled(d, power) for d in deltas], share


def largest_exponent(pairs: Sequence[tuple[jax.Array, Any]]) -> Any:
    """That of the largest of the arrays x·2^e given as (x, e); `NOTHING` if all are zero."""
    found = []
    for x, e in pairs:
        found.append(jnp.where((x != 0).any(), linalg.exponent_of(x) + e, scaling.NOTHING))
    return jnp.stack(found).max()


@placed_by(_like_cores)
@jax.jit
def split(xi: TT) -> tuple[Frame, Arrays, Any]:
    """The frame, the variations and the exponent of a tangent vector, as `tangent` was given."""
    left, deltas, right = _blocks(xi)
    share = _shared(xi)
    left, deltas, right = (
        tuple(linalg.scaled(c, -share) for c in blocks) for blocks in (left, deltas, right)
    )
    return Frame(left, right), deltas, share * xi.order


def _blocks(xi: TT) -> tuple[Arrays, Arrays, Arrays]:
    if xi.order == 1:
        return (), xi.cores, ()
    left, deltas, right = [], [], []
    for k, c in enumerate(xi.cores):
        a = c.shape[0] // 2 if k > 0 else 0
        b = c.shape[2] // 2 if k < xi.order - 1 else c.shape[2]
        deltas.append(c[a:, :, :b])
        if k > 0:
            right.append(c[:a, :, :b])
        if k < xi.order - 1:
            left.append(c[a:, :, b:])
    return tuple(left), tuple(deltas), tuple(right)


def _shared(xi: TT) -> Any:
    """The power of two that all cores of a tangent vector share: U_1 has orthonormal columns."""
    if xi.order == 1:
        return jnp.zeros((), jnp.int32)
    u, e = linalg.normalized(jax.lax.stop_gradient(_blocks(xi)[0][0]))
    size = linalg.energy(tall(u)) / u.shape[2]
    power = jnp.round(jnp.log2(linalg.where_positive(size, 1.0)) / 2)
    return e + jnp.where(jnp.isfinite(power), power, 0).astype(jnp.int32)


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
    cores, exponent = scaling.near_one(z.cores)
    rights = _right_sides(at.right, cores)
    left, power = interfaces.edge(cores[0], operator=False), exponent
    deltas = []
    for k, c in enumerate(cores):
        seen = absorb(left, c)
        right, e = rights[z.order - 1 - k]
        deltas.append((linalg.matmul(seen, right.T), power + e))
        if k < z.order - 1:
            image = linalg.matmul(linalg.adjoint(tall(at.left[k])), tall(seen))
            left, e = linalg.normalized(image)
            power = power + e
    whole = largest_exponent(deltas)
    near = [linalg.scaled(d, e - whole) for d, e in deltas]
    return tangent(at, gauged(at, near), whole)


def _right_sides(vs: Sequence[jax.Array], cores: Sequence[jax.Array]) -> list[tuple[Any, Any]]:
    """Overlaps of what lies right of every bond, from the right end, near one with exponents."""
    out: list[tuple[Any, Any]] = [(interfaces.edge(cores[0], operator=False), 0)]
    for v, c in zip(reversed(vs), reversed(cores), strict=False):
        right, e = linalg.normalized(interfaces.right_overlap(out[-1][0], v, c))
        out.append((right, out[-1][1] + e))
    return out


@placed
def moved(x: TT, xi: TT, step: Any) -> TT:
    """x + step·ξ for a tangent vector at x, retracted to the ranks of x by SVD."""
    at, deltas, power = split(xi)
    cores, exponent = scaling.near_one(x.cores)
    left = interfaces.edge(cores[0], operator=False)
    for u, c in zip(at.left, cores, strict=False):
        left, e = linalg.normalized(interfaces.left_overlap(left, u, c))
        exponent = exponent + e
    step = jnp.asarray(step).astype(x.dtype)
    last = absorb(left, cores[-1])
    # Both over the exponent of the larger one.
    shifted = [step * d for d in deltas]
    whole = largest_exponent([(last, exponent), *((d, power) for d in shifted)])
    shifted = [linalg.scaled(d, power - whole) for d in shifted]
    shifted[-1] = shifted[-1] + linalg.scaled(last, exponent - whole)
    return round(tangent(at, shifted, whole), rank=x.ranks[1:-1] or 1, method="svd")


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
    _check_tangent("xi", xi)
    _check_tangent("eta", eta, xi)
    return _tangent_inner(xi, eta)


@jax.jit
def _tangent_inner(xi: TT, eta: TT) -> jax.Array:
    pairs = zip(_blocks(xi)[1], _blocks(eta)[1], strict=True)
    products = [jnp.vdot(a, b, precision=jax.lax.Precision.HIGHEST) for a, b in pairs]
    shared = (_shared(xi) + _shared(eta)) * (xi.order - 1)
    return scaling.restored(jnp.stack(products).sum(), shared)


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
    for i, t in enumerate(tangents):
        _check_tangent(f"tangents[{i}]", t, tangents[0])
    return _tangent_sum(tangents, weights)


@jax.jit
def _tangent_sum(tangents: list[TT], weights: list[Any]) -> TT:
    parts = [split(t) for t in tangents]
    whole = functools.reduce(jnp.maximum, (e for *_, e in parts))
    total: list[Any] = [0] * tangents[0].order
    for w, (_, deltas, e) in zip(weights, parts, strict=True):
        # A weight of the dtype: a power of two beside it costs nothing.
        by = linalg.scaled(jnp.asarray(w).astype(deltas[0].dtype), e - whole)
        total = [a + by * d for a, d in zip(total, deltas, strict=True)]
    return tangent(parts[0][0], total, whole)


def _check_tangent(name: str, xi: Any, like: TT | None = None) -> None:
    single(name, xi, TT)
    if any(r % 2 for r in xi.ranks[1:-1]) or (like is not None and like.ranks != xi.ranks):
        expected = "even interior TT-ranks" if like is None else f"TT-ranks {like.ranks}"
        raise ValueError(
            f"{name}: expected a tangent vector, as tt.tangent_project makes them, of {expected}, "
            f"got {xi.ranks}"
        )


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
        # x + ξ has more than its modes allow, but neither of them was padded.
        both = [a + b for a, b in zip(x.ranks[1:-1], xi.ranks[1:-1], strict=True)]
        rank = x.ranks[1:-1] if rank is None else feasible_ranks(rank, x.shape, both)
        rank = rank or 1
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
    start, own = orthogonal(x.cores, 0)
    cores, exponent = scaling.near_one(xi.cores)
    rights = _right_sides(start[1:], cores)
    left, center, out = rights[0][0], start[0], []
    for k, c in enumerate(cores):
        right, e = rights[x.order - 1 - k]
        seen = absorb(left, c)
        center, own = _sum_in_range(center, own, linalg.matmul(seen, right.T), exponent + e)
        if k == x.order - 1:
            break
        u, s = linalg.qr(tall(center))
        out.append(u.reshape(center.shape))
        left, e = linalg.normalized(linalg.matmul(linalg.adjoint(u), tall(seen)))
        exponent = exponent + e
        # What the increment has added right of the bond is taken off again.
        back = linalg.matmul(left, rights[x.order - 1 - k][0].T)
        s, own = _sum_in_range(s, own, -back, exponent + rights[x.order - 1 - k][1])
        center = absorb(s, start[k + 1])
    return TT._unchecked(tuple(scaling.held([*out, center], own, at=x.order - 1)))


def _sum_in_range(a: jax.Array, p: Any, b: jax.Array, q: Any) -> tuple[jax.Array, Any]:
    """a·2^p + b·2^q near one, and its exponent."""
    whole = jnp.maximum(largest_exponent([(a, p), (b, q)]), scaling.NOTHING)
    small, e = linalg.normalized(linalg.scaled(a, p - whole) + linalg.scaled(b, q - whole))
    return small, whole + e
