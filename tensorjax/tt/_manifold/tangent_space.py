"""Tangent space of trains of fixed TT-ranks: projection, retraction, transport, sums."""

import functools
from collections.abc import Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _check, linalg
from tensorjax._cores import interfaces as interfaces
from tensorjax._cores.contractions import absorb
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.scaling import carried, near_one, renewed_after, settled, shared_out
from tensorjax._cores.unfoldings import tall
from tensorjax._formats.trains import TT, Train, TTMatrix, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax._typing import Scalar
from tensorjax.tt._broadcasting import aligned, check_alike
from tensorjax.tt._exact_arithmetic import add
from tensorjax.tt._folding import as_train, fold, unfold
from tensorjax.tt._manifold.frames_and_variations import (
    NOTHING,
    Arrays,
    Frame,
    frame,
    is_tame,
    point,
    project,
    shared,
    split,
    tangent,
    times_power,
)
from tensorjax.tt._rounding.orthogonalize import are_small, orthogonal_cores
from tensorjax.tt._rounding.round import round

Retraction = Literal["svd", "projector_splitting"]
_EVEN = 16  # powers of two that norms of cores may be off one in a sum of trains


@placed
@as_train
def tangent_project(x: Train, z: Train) -> Train:
    """Projects a tensor train orthogonally on the tangent space of the manifold at x: P_x z.

    Args:
      x: TT of shape n and TT-ranks r_k, which are its true ones: where a bond is not of full rank,
        the manifold has no tangent space, and the result is that of one nearby. Or a TTMatrix.
      z: of the same kind and shape.

    Returns:
      Train of ranks 2 r_k. `tangent_sum` and `tangent_inner` work on its variations alone.

    Raises:
      TypeError: ``x`` and ``z`` are not trains of one kind. ValueError: shapes differ, ranks of
        ``x`` that its modes do not allow, NaN or Inf. OverflowError: ``z`` has more cores than the
        dtype has powers of two, and a norm that it does not hold (on a CPU; elsewhere NaN).

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
    a: Any
    b: Any
    a, b = aligned(point(x), z.astype(linalg.factor_dtype(z.dtype)))
    _check.finite("z", b)
    even = not is_tame(a, b)
    out = _projected(a, b, even)
    if even and choose_kernel("tt.tangent_project", (a, b)) is NUMPY:
        _check_in_range(out)
    return cast(Any, out)


def _projected(x: TT, z: TT, even: bool) -> TT:
    """Projects a tensor train on the tangent space at a train x, by NumPy or in a JAX program."""

    def work() -> int:
        pairs = zip(x.cores, z.cores, strict=True)
        return sum((c.size + d.size) * (len(c) + len(d)) for c, d in pairs)

    cores = (*x.cores, *z.cores)
    facts = {"dtype": x.dtype, "key": "projected", "work": work}
    if even or choose_kernel("tt.tangent_project, products", cores, **facts) is not NUMPY:
        return _tangent_project(x, z, even)
    near, other = (TT._unchecked(tuple(map(np.asarray, t.cores))) for t in (x, z))
    with _blas_threads.one_thread(are_small(near.cores)):
        xi = project(frame(near)[0], other, even=False)
    return TT._unchecked(tuple(on_device(xi.cores)))


def _check_in_range(xi: TT) -> None:
    """Raises OverflowError if the size of a tangent projection is out of the dtype's range."""
    if not all(np.isfinite(np.asarray(c)).all() for c in xi.cores):
        raise OverflowError(
            f"z: the size of its projection leaves the range of {xi.dtype} with {xi.order} cores; "
            "project tt.normalize(z), and scale what comes of it"
        )


@jax.jit(static_argnums=2)
def _tangent_project(x: TT, z: TT, even: bool) -> TT:
    return project(frame(x)[0], z, even)


@placed
def transport(x: Train, xi: Train) -> Train:
    """Transports a tangent vector to the tangent space at another tensor train x, by projection.

    Args:
      x: TT or TTMatrix, the point to move to.
      xi: of the same kind and shape, a tangent vector at another point.

    Returns:
      Train of twice the ranks of ``x``.

    Raises:
      TypeError: not two trains of one kind. ValueError: as of `tangent_project`.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> x, y, z = (tt.random(k, (4, 5, 6), 2) for k in jax.random.split(jax.random.key(0), 3))
      >>> tt.transport(y, tt.tangent_project(x, z)).ranks
      (1, 4, 4, 1)

    Source: P.-A. Absil, R. Mahony, R. Sepulchre, "Optimization Algorithms on Matrix Manifolds"
    (2008), section 8.1.3.
    """
    return tangent_project(x, xi)


@placed
def tangent_inner(xi: Train, eta: Train) -> jax.Array:
    """Computes the inner product of two tangent vectors at one point, by their variations.

    Args:
      xi: train that `tangent_project`, `tangent_sum` or `riemannian_grad` returned.
      eta: one at the same point. It is not checked that the points agree.

    Returns:
      Scalar in the dtype of the trains.

    Raises:
      TypeError: no trains of one kind. ValueError: ranks that are none of two tangent vectors.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> x, z = (tt.random(k, (4, 5, 6), 2) for k in jax.random.split(jax.random.key(0)))
      >>> xi = tt.tangent_project(x, z)
      >>> bool(abs(tt.tangent_inner(xi, xi) / tt.norm(xi) ** 2 - 1) < 1e-4)
      True

    O(d n r²) operations, where `inner` of the trains takes O(d n r³).

    Source: Steinlechner (2016), see `retract`: in this gauge it is the sum over the variations.
    """
    a: Any = xi
    b: Any = eta
    if isinstance(a, TTMatrix):
        check_alike(a, b)
        a, b = fold(a), fold(b)
    (_, first, p), (_, second, q) = _parts("xi", a), _parts("eta", b, a)
    pairs = zip(first, second, strict=True)
    products = [jnp.vdot(a, b, precision=jax.lax.Precision.HIGHEST) for a, b in pairs]
    return times_power([jnp.stack(products).sum()], p + q)[0]


@placed
def tangent_sum(tangents: Sequence[Train], weights: Sequence[Scalar] | None = None) -> Train:
    """Sums tangent vectors at one train with weights; TT-ranks are twice those of the train.

    Args:
      tangents: one or more trains that `tangent_project`, `tangent_sum` or `riemannian_grad`
        returned, all at one point, which is not checked.
      weights: as many scalars, traced or not; ones if None.

    Returns:
      Tangent vector at the same point, a train of the kind, shape and ranks of the others.

    Raises:
      ValueError: no tangent vectors, other ranks, or another number of weights.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> x, z = (tt.random(k, (4, 5, 6), 2) for k in jax.random.split(jax.random.key(0)))
      >>> xi = tt.tangent_project(x, z)
      >>> tt.tangent_sum([xi, xi], [2.0, -1.0]).ranks
      (1, 4, 4, 1)

    Source: Steinlechner (2016), see `retract`: the variations of tangent vectors are added.
    """
    tangents = _check.several("tangents", tangents, "tangent vectors")
    ones = [1.0] * len(tangents)
    weights = ones if weights is None else _check.several("weights", weights, "numbers")
    for k, w in enumerate(weights):
        _check.scalar(f"weights[{k}]", w)
    if not tangents or len(tangents) != len(weights):
        raise ValueError(
            "tangents: expected one or more, with one weight each, "
            f"got {len(tangents)} and {len(weights)} weights"
        )
    like: Any = tangents[0]
    if isinstance(like, TTMatrix):
        for t in tangents:
            check_alike(like, t)
        flat = tangent_sum([fold(t) for t in tangents if isinstance(t, TTMatrix)], weights)
        return cast(Any, unfold(flat, like.row_shape, like.col_shape))
    terms = [_parts(f"tangents[{i}]", t, cast(Any, like)) for i, t in enumerate(tangents)]
    powers = [p for *_, p in terms]
    whole = max(powers) if all(isinstance(p, int) for p in powers) else _largest(powers)
    total: list[Any] = []
    for i, (w, (_, term, p)) in enumerate(zip(weights, terms, strict=True)):
        scaled = times_power([jnp.asarray(w).astype(d.dtype) * d for d in term], p - whole)
        total = scaled if i == 0 else [a + b for a, b in zip(total, scaled, strict=True)]
    order = len(total)
    # What was shared stays shared, as evenly as it was.
    share = whole // (order - 1) if order > 1 else 0
    return cast(Any, tangent(terms[0][0], total, share * (order - 1), share))


def _largest(powers: Sequence[Any]) -> Any:
    return functools.reduce(jnp.maximum, map(jnp.asarray, powers))


def _parts(name: str, xi: Any, like: TT | None = None) -> tuple[Frame, Arrays, Any]:
    single(name, xi, TT)
    if any(r % 2 for r in xi.ranks[1:-1]) or (like is not None and like.ranks != xi.ranks):
        expected = "even interior TT-ranks" if like is None else f"TT-ranks {like.ranks}"
        raise ValueError(
            f"{name}: expected a tangent vector, as tt.tangent_project makes them, of {expected}, "
            f"got {xi.ranks}"
        )
    return split(xi)


@placed
@as_train
def retract(
    x: Train, xi: Train, rank: int | Sequence[int] | None = None, *, method: Retraction = "svd"
) -> Train:
    """Retracts x + ξ, a train plus a tangent vector, to the manifold of trains of fixed TT-ranks.

    Args:
      x: TT or TTMatrix.
      xi: of the same kind and shape; a tangent vector at ``x`` for a retraction in the strict
        sense, any train for a step-truncation.
      rank: TT-ranks of the result, as in `round`; those of ``x`` if None.
      method: "svd", x + ξ rounded: quasi-optimal, of second order. "projector_splitting": one step
        of the integrator with x + t ξ: no SVD and nothing divided by small singular values; the
        ranks are those of ``x``, and a train of these ranks is met exactly.

    Returns:
      Train of ``rank``.

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
    _check.choice("method", method, ("svd", "projector_splitting"))
    at: Any
    step: Any
    at, step = aligned(point(x), cast(Any, xi))
    _check.finite("xi", step)
    if method == "svd":
        rank = (at.ranks[1:-1] or 1) if rank is None else rank
        return cast(Any, round(add(_evened(at), _evened(step)), rank=rank, method="svd"))
    if rank is not None:
        bounds = [max(r, 1) for r in at.ranks[1:-1]]
        wanted = _check.bond_ranks(rank, [2**62] * len(bounds))
        if any(w != r for w, r in zip(wanted, bounds, strict=True)):
            raise ValueError(
                f"rank: expected the TT-ranks of x, {tuple(bounds)}, for projector_splitting, "
                f'got {rank!r}; method="svd" changes ranks'
            )
    return _split_step(at, step)


def _evened(t: TT) -> TT:
    """Scales the cores of x or of a tangent vector near one, before `retract` rounds their sum."""
    if choose_kernel("tt.tangent_project", (t,)) is NUMPY:
        with np.errstate(over="ignore"):
            squares = [linalg.host_energy(np.asarray(c)) for c in t.cores]
        if all(4.0**-_EVEN < s < 4.0**_EVEN for s in squares):
            return t
    return _even(t)


@jax.jit
def _even(t: TT) -> TT:
    return TT._unchecked(tuple(shared_out(*near_one(t.cores))))


@jax.jit
def _split_step(x: TT, xi: TT) -> TT:
    """Retracts x + ξ in the tangent space to fixed ranks by projector splitting."""
    start, own = orthogonal_cores(x, 0)
    cores, exponent = near_one(xi.cores)
    renewed = renewed_after(cores)
    rights: list[tuple[Any, Any]] = [(interfaces.edge(start[0], operator=False), 0)]
    for v, c, renew in list(zip(start[1:], cores[1:], renewed[1:], strict=True))[::-1]:
        right, e = rights[-1]
        rights.append(carried(interfaces.right_overlap(right, v, c), e, renew))
    left, center, out = rights[0][0], start[0], []
    for k, c in enumerate(cores):
        right, e = rights[x.order - 1 - k]
        seen = absorb(left, c)
        center, own = _sum(center, own, linalg.matmul(seen, right.T), exponent + e)
        if k == x.order - 1:
            break
        u, s = linalg.qr(tall(center))
        out.append(u.reshape(center.shape))
        image = bond_overlap(out[-1], seen)
        left, exponent = carried(image, exponent, renewed[k])
        # What the increment has added right of the bond is taken off again.
        s, own = _sum(s, own, -linalg.matmul(left, right.T), exponent + e)
        center = absorb(s, start[k + 1])
    return TT._unchecked(tuple(shared_out([*out, center], own)))


def _sum(a: jax.Array, p: Any, b: jax.Array, q: Any) -> tuple[jax.Array, Any]:
    """Adds a·2^p + b·2^q in a retraction from the tangent space, as mantissa and exponent."""
    sizes = [
        jnp.where((m != 0).any(), linalg.exponent_of(m) + e, NOTHING) for m, e in ((a, p), (b, q))
    ]
    whole = jnp.maximum(*sizes)
    whole = settled(jnp.where(whole < NOTHING // 2, 0, whole))
    return linalg.scaled(a, p - whole) + linalg.scaled(b, q - whole), whole


@placed
def moved(x: TT, xi: TT, step: Any) -> TT:
    """Takes a step x + step·ξ in the tangent space, and retracts it to the TT-ranks of x by SVD."""
    return round(_moved(x, xi, step), rank=x.ranks[1:-1] or 1, method="svd")


def _moved(x: TT, xi: TT, step: Any) -> TT:
    at, deltas, power = split(xi)
    cores, exponent = near_one(x.cores)
    left = interfaces.edge(cores[0], operator=False)
    for u, c, renew in zip(at.left, cores, renewed_after(cores), strict=False):
        left, exponent = carried(interfaces.left_overlap(left, u, c), exponent, renew)
    step = jnp.asarray(step).astype(x.dtype)
    shifted = [step * d for d in deltas]
    last = absorb(left, cores[-1])
    # Both over the exponent of the larger one.
    largest = functools.reduce(jnp.maximum, [jnp.abs(d).max() for d in shifted])
    pairs = [(last, exponent), (largest, power)]
    sizes = [jnp.where((a != 0).any(), linalg.exponent_of(a) + e, NOTHING) for a, e in pairs]
    top = settled(jnp.maximum(*sizes))
    whole = jnp.where(top < NOTHING // 2, 0, top)
    shifted = [linalg.scaled(d, power - whole) for d in shifted]
    shifted[-1] = shifted[-1] + linalg.scaled(last, exponent - whole)
    return tangent(at, shifted, whole, shared(top - whole, whole, x.order, x.dtype))
