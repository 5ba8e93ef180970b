"""Streaming sum of tensor trains, stored as two sketches of fixed size (streaming TT)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.ranks import feasible_ranks
from tensorjax._cores.scaling import cast_in_range, settled
from tensorjax._formats.random_arrays import one_on_host, split_keys
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import constants, copied, on_device
from tensorjax._typing import DTypeLike, Scalar
from tensorjax.linalg._powers_of_two import normalized
from tensorjax.tt._rounding import sums_by_sketches_or_grams as fused
from tensorjax.tt._rounding.sums_of_products import factors_of, shape_of, term_of

# Singular values of a sketch below this many eps of the largest carry nothing but roundoff.
_CUTOFF = 100
_MOST_CUT = 0.1  # of half precision: the largest ones themselves are no roundoff


class Stream(NamedTuple):
    """State of a streaming sum of tensor trains: random sketches of fixed size; a pytree.

    Attributes:
      draws: random vectors of every mode, for the sketches from the left and from the right.
      mixes: the random orthogonal matrix of each.
      cores: Ψ_k (l_{k−1}, n_k, r_k): both sketches around mode k.
      bonds: Ω_k (l_k, r_k): both sketches at bond k.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> s = tt.stream(jax.random.key(0), (4, 5, 6), 4)
      >>> [c.shape[1] for c in s.cores], [b.shape[1] for b in s.bonds]
      ([4, 5, 6], [4, 4])

    Source: Kressner, Vandereycken, Voorhaar (2023), see `stream`.
    """

    draws: tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]
    mixes: tuple[jax.Array, jax.Array]
    cores: tuple[jax.Array, ...]
    bonds: tuple[jax.Array, ...]


jax.export.register_namedtuple_serialization(Stream, serialized_name="tensorjax.tt.Stream")


@placed
def stream(
    key: jax.Array, shape: Sequence[int], rank: int | Sequence[int], dtype: DTypeLike | None = None
) -> Stream:
    """Creates an empty streaming sum of tensor trains, stored as random sketches of fixed size.

    Args:
      key: `jax.random.key`, of the random sketches.
      shape: mode sizes.
      rank: TT-ranks of the sum to be taken, one int (cut where a bond cannot need as much) or one
        per interior bond; a few more than it needs, for accuracy.
      dtype: floating or complex; JAX's default float if None.

    Returns:
      `Stream`, an empty sum.

    Raises:
      ValueError: an empty shape, sizes or ranks below 1, wrong number of ranks.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> s = tt.stream(jax.random.key(0), (4, 5, 6), 4)
      >>> terms = [tt.random(k, (4, 5, 6), 1) for k in jax.random.split(jax.random.key(1), 3)]
      >>> for x in terms:
      ...     s = tt.stream_add(s, x)
      >>> exact = tt.linear_combination(terms)
      >>> bool(tt.distance(tt.stream_train(s), exact) < 1e-3 * tt.norm(exact))
      True

    Source: D. Kressner, B. Vandereycken, R. Voorhaar, "Streaming tensor train approximation", SIAM
    J. Sci. Comput. 45 (2023), algorithm 1. Departures: sketches are those of `round`, and the left
    ones are twice as wide as the right ones.
    """
    shape = _check.shape("shape", shape)
    ranks = feasible_ranks(rank, shape)
    dtype = _check.inexact_dtype(dtype)
    _check.key(key)
    lefts = [2 * r + linalg.OVERSAMPLE for r in ranks]
    draws, mixes = [], []
    for k, widths in zip(split_keys(key, 2), (lefts, ranks), strict=True):
        first, second = split_keys(k, 2)
        width = max(widths, default=1)
        # Of variance one: the sketches of a train have about its norm.
        vectors = _drawn(_symmetric, first, (sum(shape), width), jnp.finfo(dtype).dtype)
        vectors = (vectors * np.asarray(3**0.5, vectors.dtype)).astype(dtype)
        ends = [sum(shape[: i + 1]) for i in range(len(shape))]
        draws.append(tuple(vectors[e - n : e] for n, e in zip(shape, ends, strict=True)))
        wide = linalg.factor_dtype(dtype)
        mix = linalg.qr(_drawn(jax.random.normal, second, (width, width), wide))[0]
        mixes.append(mix.astype(dtype))
    xp = constants()
    cores = [
        xp.zeros((a, n, b), dtype) for a, n, b in zip([1, *lefts], shape, [*ranks, 1], strict=True)
    ]
    bonds = [xp.zeros((a, b), dtype) for a, b in zip(lefts, ranks, strict=True)]
    state = Stream((draws[0], draws[1]), (mixes[0], mixes[1]), tuple(cores), tuple(bonds))
    leaves, tree = jax.tree.flatten(state)
    return jax.tree.unflatten(tree, copied(leaves))


def _symmetric(key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
    return jax.random.uniform(key, shape, dtype, -1, 1)


def _drawn(draw: Any, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> Any:
    """Draws a random sketch array of a streaming sum of trains, by NumPy where possible."""
    hosted = linalg.factor_dtype(dtype) == dtype  # NumPy has no QR of half precision
    found = one_on_host(draw, key, shape, dtype) if hosted else None
    return draw(key, shape, dtype) if found is None else found


@placed
def stream_add(
    state: Stream, term: TT | tuple[TT, TT] | tuple[TTMatrix, TT], weight: Scalar = 1.0
) -> Stream:
    """Adds a weighted tensor train, or product of trains, to a streaming sum, in any order.

    Args:
      state: Stream.
      term: a TT, or a pair of TT (x, y) for x * y, or a pair (A, x) for A x; as in
        `linear_combination`, products are not materialised.
      weight: scalar.

    Returns:
      `Stream` of the same shapes.

    Raises:
      TypeError: a term of another kind, or a complex one in a real stream.
      ValueError: another shape, NaN or Inf, a weight that the dtype of the stream cannot hold.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> s = tt.stream_add(tt.stream(jax.random.key(0), (4, 5, 6), 4), tt.ones((4, 5, 6)), 2.0)
      >>> print(f"{tt.stream_train(s)[0, 0, 0]:.3f}")
      2.000

    Source: Kressner, Vandereycken, Voorhaar (2023), see `stream`.
    """
    trains = term_of("term", term)
    shape = tuple(c.shape[1] for c in _known(state).cores)
    if shape_of(trains) != shape:
        raise ValueError(f"term: expected shape {shape}, got {shape_of(trains)}")
    _check.finite("term", trains)
    dtype = state.cores[0].dtype
    if not jnp.issubdtype(dtype, jnp.complexfloating) and any(
        jnp.issubdtype(t.dtype, jnp.complexfloating) for t in trains
    ):
        raise TypeError(
            f"term: expected a real one for a stream of {dtype}, got a complex one; make the "
            "stream with a complex dtype"
        )
    return _on_host_first("stream_add", _added, _put, state, trains, _factor(weight, dtype))


def _factor(weight: Any, dtype: Any) -> Any:
    """Casts the weight of a streaming sum's term to its dtype; ValueError if it does not fit."""
    _check.scalar("weight", weight)
    with np.errstate(all="ignore"):
        try:
            cast = (weight if isinstance(weight, jax.Array) else np.asarray(weight)).astype(dtype)
        except OverflowError:  # an integer beyond all floats
            cast = np.asarray(np.inf)
    if not _check.is_traced(cast) and not np.isfinite(np.asarray(cast)):
        raise ValueError(
            f"weight: expected a finite number that {dtype} holds, got {_check.short(weight)}; "
            "scale the term, or take a stream of a wider dtype"
        )
    return cast if isinstance(cast, jax.Array) else copied([cast])[0]


def _on_host_first(key: str, f: Any, program: Any, *given: Any) -> Any:
    """Computes a function of a streaming sum of tensor trains, by NumPy or in a JAX program."""
    leaves, dtype = jax.tree.leaves(given), given[0].cores[0].dtype

    def work() -> int:
        return sum(c.size * max(c.shape, default=1) for c in leaves)

    if choose_kernel("tt.stream_add", leaves, dtype=dtype, key=key, work=work) is not NUMPY:
        return program(*given)
    host = jax.tree.map(np.asarray, given)
    if not _finite(host):  # of which NumPy has no SVD
        return program(*given)
    with np.errstate(all="ignore"):
        found = f(*host)
    if not _finite(found):
        return program(*given)
    out, tree = jax.tree.flatten(found)
    return jax.tree.unflatten(tree, on_device(out))


def _finite(tree: Any) -> bool:
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def _known(state: Any) -> Stream:
    if not isinstance(state, Stream):
        raise TypeError(f"state: expected a Stream, got {_check.short(state)}")
    return state


def _added(state: Stream, trains: Any, weight: Any) -> Stream:
    xp = np if linalg.is_host(state.cores[0]) else jnp
    (term,), exponents = fused.near_one([factors_of(trains, state.cores[0].dtype)])
    powers = [e for (e,) in exponents]
    order = len(term)
    lefts, rights = [normalized(weight * fused.edge(term))], [(fused.edge(term), 0)]
    for k in range(order - 1):
        mirrored = tuple(c.swapaxes(0, -1) for c in term[k])
        f = fused.through(mirrored, lefts[-1][0], state.draws[0][k])
        f, e = normalized(linalg.matmul(f, state.mixes[0]))
        lefts.append((f, settled(lefts[-1][1] + powers[k] + e)))
        j = order - 1 - k
        f = fused.through(term[j], rights[-1][0], state.draws[1][j])
        f, e = normalized(linalg.matmul(f, state.mixes[1]))
        rights.append((f, settled(rights[-1][1] + powers[j] + e)))
    rights = rights[::-1]
    cores, bonds = [], []
    for k, old in enumerate(state.cores):
        (f, p), (right, q) = lefts[k], rights[k]
        left = xp.moveaxis(f, -1, 0)[: old.shape[0]]
        right = right.reshape(-1, right.shape[-1])[:, : old.shape[2]]
        image = fused.from_left(left, term[k]).reshape(*old.shape[:2], -1)
        new = times_right(image, right)
        cores.append(old + linalg.scaled(new, p + powers[k] + q))
    for k, old in enumerate(state.bonds):
        (f, p), (right, q) = lefts[k + 1], rights[k]
        left = xp.moveaxis(f, -1, 0).reshape(f.shape[-1], -1)
        right = right.reshape(-1, right.shape[-1])
        new = linalg.matmul(left[: old.shape[0]], right[:, : old.shape[1]])
        bonds.append(old + linalg.scaled(new, p + q))
    return state._replace(cores=tuple(cores), bonds=tuple(bonds))


_put = jax.jit(_added)


@placed
def stream_train(state: Stream) -> TT:
    """Recovers a tensor train from a streaming sum, with the TT-ranks of the stream.

    Exact up to roundoff if the sum has at most those ranks, else a few times the best error;
    `round` removes ranks that were not needed.

    Args:
      state: Stream.

    Returns:
      TT of the shape, ranks and dtype that `stream` was given.

    Raises:
      TypeError: what is no Stream.

    Example:
      >>> import jax
      >>> from tensorjax import tt
      >>> s = tt.stream_add(tt.stream(jax.random.key(0), (4, 5, 6), 4), tt.ones((4, 5, 6)))
      >>> tt.stream_train(s).ranks
      (1, 4, 4, 1)

    Source: Kressner, Vandereycken, Voorhaar (2023), see `stream`; pseudo-inverses by SVD.
    """
    return _on_host_first("stream_train", _recovered, _recover, _known(state))


def _recovered(state: Stream) -> TT:
    xp = np if linalg.is_host(state.cores[0]) else jnp
    dtype = state.cores[0].dtype
    wide = linalg.factor_dtype(dtype)
    first, *others = [c.astype(wide) for c in state.cores]
    cores = [first]
    for bond, core in zip(state.bonds, others, strict=True):
        u, s, vh = linalg.svd(bond.astype(wide))
        kept = s > min(_CUTOFF * linalg.epsilon(dtype), _MOST_CUT) * s[0]
        inverse = xp.where(kept, 1 / xp.where(kept, s, 1), 0).astype(s.dtype)
        core = absorb(linalg.adjoint(u), core)
        cores.append(absorb(linalg.scale_columns(linalg.adjoint(vh), inverse), core))
    return TT._unchecked(tuple(cast_in_range(cores, dtype)))


_recover = jax.jit(_recovered)
