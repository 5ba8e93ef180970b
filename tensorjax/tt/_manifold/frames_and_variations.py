"""Frames of trains of fixed TT-ranks, and variations of their cores: tangent vectors.

A tangent vector at x is Σ_k U_1 … U_{k−1} δ_k V_{k+1} … V_d, with the left-orthogonal cores U and
the right-orthogonal cores V of x, and U_kᴴ δ_k = 0 but for the last k. It is kept as a tensor train
of twice the ranks, whose cores are the blocks

    [δ_1 U_1],   [V_k 0; δ_k U_k],   [V_d; δ_d],

so that every function on trains takes it. The variations δ_k can be read off again, and by the
gauge they are orthonormal coordinates: inner products and sums cost as much as on cores.

Where the variations leave the range of the dtype, as at a point of norm 1e40 in float32, all cores
share a power of two, which is read off again at the orthonormal columns of the first one.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores import interfaces as interfaces
from tensorjax._cores.contractions import absorb
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.ranks import cut_ranks
from tensorjax._cores.scaling import settled
from tensorjax._cores.unfoldings import tall
from tensorjax._formats.trains import TT, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed, placed_by, spec_like
from tensorjax.tt._rounding.orthogonalize import orthogonal_cores

Arrays = tuple[jax.Array, ...]
# Exponent that stands for a zero: far below that of any number.
NOTHING = -(2**20)


class Frame(NamedTuple):
    """Frame of tangent vectors at a train: its left- and right-orthogonal cores.

    Attributes:
      left: U_1 … U_{d−1}, left-orthogonal.
      right: V_2 … V_d, right-orthogonal.
    """

    left: Arrays
    right: Arrays


def _like_cores(out: Any, arguments: Any) -> list[Any]:
    """Returns shardings for frame and variations, from those of the train's cores."""
    cores, found = jax.tree.leaves(arguments), jax.tree.leaves(out)
    bonds = len(cores) - 1
    # A frame is followed by the last core alone, or by one array for each, and an exponent.
    extra = sum(x.ndim == 0 for x in found)
    behind = cores[len(cores) + 2 * bonds - (len(found) - extra) :]
    given = [*cores[:-1], *cores[1:], *behind, *cores[:extra]]
    return [spec_like(x, c) for x, c in zip(found, given, strict=True)]


@placed_by(_like_cores)
def frame(x: TT) -> tuple[Frame, jax.Array, Any]:
    """Computes the frame of the tangent space at a train: its left- and right-orthogonal cores."""
    left, exponent = orthogonal_cores(x, x.order - 1)
    exponent = settled(exponent)
    *others, last = x.cores
    x = TT._unchecked((*others, linalg.after(last, left[-1])))
    right, _ = orthogonal_cores(x, 0)
    return Frame(tuple(left[:-1]), tuple(right[1:])), left[-1], exponent


@placed
def tangent(at: Frame, deltas: Sequence[jax.Array], exponent: Any = 0, share: Any = 0) -> TT:
    """Builds a tangent vector from its frame and variations: a train of twice the TT-ranks.

    Every core takes 2^share of that: see `shared`.
    """
    deltas = times_power(deltas, exponent - share * (len(deltas) - 1))
    if len(deltas) == 1:
        return TT._unchecked(tuple(deltas))
    lefts, rights = (times_power(cores, share) for cores in at)
    xp = np if all(map(linalg.is_host, (*lefts, *deltas))) else jnp
    cores = [xp.concatenate([deltas[0], lefts[0]], axis=2)]
    for u, delta, v in zip(lefts[1:], deltas[1:-1], rights[:-1], strict=True):
        top = xp.concatenate([v, xp.zeros_like(v)], axis=2)
        cores.append(xp.concatenate([top, xp.concatenate([delta, u], axis=2)], axis=0))
    cores.append(xp.concatenate([rights[-1], deltas[-1]], axis=0))
    return TT._unchecked(tuple(cores))


def times_power(arrays: Sequence[jax.Array], exponent: Any) -> list[jax.Array]:
    """Multiplies frame and variations by 2^exponent; unchanged for a static zero."""
    if not arrays or (isinstance(exponent, int) and exponent == 0):
        return list(arrays)
    dtype = jnp.finfo(arrays[0].dtype).dtype
    one = jnp.ones((), dtype)
    # Two factors, computed once: one may be out of range where the result is not.
    half = exponent // 2
    first, second = (settled(linalg.scaled(one, e)) for e in (half, exponent - half))
    return [a * first.astype(a.dtype) * second.astype(a.dtype) for a in arrays]


def shared(top: Any, exponent: Any, order: int, dtype: Any) -> Any:
    """Returns the exponent by which to scale frame and variations of each core to stay in range.

    The variations are 2^exponent δ, with entries of size up to 2^top.
    """
    low, high = linalg.exponents_held(dtype)
    whole = top + exponent
    fits = (low < whole) & (whole < high) | (top < NOTHING // 2) | (order == 1)
    return settled(jnp.where(fits, 0, whole // order))


@placed_by(_like_cores)
def split(xi: TT) -> tuple[Frame, Arrays, Any]:
    """Splits a tangent vector into frame, variations and exponent; the inverse of `tangent`."""
    left, deltas, right = blocks(xi)
    share = _share_of(xi)
    at = Frame(*(tuple(times_power(cores, -share)) for cores in (left, right)))
    return at, deltas, share * (xi.order - 1)


def blocks(xi: TT) -> tuple[Arrays, Arrays, Arrays]:
    """Reads left cores, variations and right cores off a tangent vector, as they are."""
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


def _share_of(xi: TT) -> Any:
    """Returns the exponent by which frame and variations of each core are scaled."""
    if xi.order == 1:
        return 0
    first = xi.cores[0]
    hosted = choose_kernel("tt.tangent_project", (first,)) is NUMPY
    u = np.asarray(first) if hosted else jax.lax.stop_gradient(first)
    xp: Any = np if hosted else jnp
    u = u[..., first.shape[-1] // 2 :]
    u, e = linalg.normalized(u)
    size = linalg.energy(tall(u)) / u.shape[2]
    power = xp.round(xp.log2(linalg.where_positive(size, 1.0)) / 2)
    e = e + xp.where(xp.isfinite(power), power, 0).astype(np.int32)
    return int(e) if hosted else e


@placed_by(lambda out, arguments: list(map(spec_like, out, arguments[0][1])))
def gauged(at: Frame, deltas: Sequence[jax.Array]) -> Arrays:
    """Makes the variations of a tangent vector orthogonal to its left cores (gauge condition)."""
    out = []
    for u, delta in zip(at.left, deltas[:-1], strict=True):
        u, flat = tall(u), tall(delta)
        flat = flat - linalg.matmul(u, linalg.matmul(linalg.adjoint(u), flat))
        out.append(flat.reshape(delta.shape))
    return (*out, deltas[-1])


def is_tame(*trains: TT) -> bool:
    """Whether cores are so near one that frames and variations need no scaling."""
    if choose_kernel("tt.tangent_project", trains) is not NUMPY:
        return False
    for t in trains:
        low = high = now = 0.0
        for c in t.cores:
            size = linalg.host_energy(np.asarray(c))
            if not 0 < size < math.inf:
                return False
            now += math.log2(size / min(c.shape[0], c.shape[-1])) / 2
            low, high = min(low, now), max(high, now)
        # As products of neighbours grow, or shrink, where singular values are about alike.
        if high - low > int(jnp.finfo(t.dtype).maxexp) * 3 / 4:
            return False
    return True


@placed
def project(at: Frame, z: TT, even: bool = True) -> TT:
    """Projects a train on the tangent space of a frame: computes the variations; returns a train.

    With ``even`` every core of z goes over a power of two of its own, and the result takes the
    product of these; see `is_tame` for where that is not needed.
    """
    cores, exponent = evened(z.cores) if even else (list(z.cores), 0)
    rights = [interfaces.edge(cores[0], operator=False)]
    for v, c in list(zip(at.right, cores[1:], strict=True))[::-1]:
        rights.append(interfaces.right_overlap(rights[-1], v, c))
    left = rights[0]
    deltas = []
    for k, c in enumerate(cores):
        seen = absorb(left, c)
        if k < z.order - 1:
            deltas.append(linalg.matmul(seen, rights.pop().T))
            left = bond_overlap(at.left[k], seen)
        else:
            deltas.append(seen)
    # The variations are near one but for what products of evened cores grow or shrink by.
    room = int(jnp.finfo(z.dtype).maxexp) // 3
    share = settled(jnp.where(abs(exponent) < room, 0, exponent // z.order)) if even else 0
    return tangent(at, gauged(at, deltas), exponent, share)


def evened(cores: Sequence[jax.Array]) -> tuple[list[jax.Array], Any]:
    """Scales frame and variations so that products of neighbouring cores keep their size.

    The norm of an orthogonal core is the root of its rank; a core near that one is left near one.
    """
    out, exponents = [], []
    for c in cores:
        e = linalg.exponent_of(c)
        size = linalg.energy(tall(c * linalg.power_of_two(-e, c.dtype))) / min(c.shape[::2])
        most = int(jnp.finfo(c.dtype).maxexp) - 2  # both 2^most and 2^(−most) are normal numbers
        e = jnp.clip(e + linalg.exponent_of(size) // 2, -most, most)
        out.append(c * linalg.power_of_two(-e, c.dtype))
        exponents.append(e)
    return out, settled(sum(exponents))


def point(x: Any) -> TT:
    """Checks the tensor train of which a frame is computed; widens half precision."""
    single("x", x, TT)
    if cut_ranks(x.ranks, x.shape) != x.ranks:
        raise ValueError(
            f"x: expected TT-ranks that its modes {x.shape} allow, got {x.ranks}; "
            "tt.orthogonalize(x, 0) removes the rest"
        )
    _check.finite("x", x)
    return x.astype(linalg.factor_dtype(x.dtype))
