"""Helpers for tensor-train cores (r, n, s), in NumPy or JAX: unfoldings, scaling, QR sweeps."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from tensorjax import _check
from tensorjax._placement import returned, spec_like
from tensorjax.linalg._arrays import adjoint, is_host, matmul, root
from tensorjax.linalg._qr import qr, triangle
from tensorjax.linalg._scaling import energy, exponent_of, exponents_held, normalized, scaled

Cores = list[Any]


def tall(core: Any) -> Any:
    """Returns the left unfolding (r n, s) of a core."""
    return core.reshape(-1, core.shape[-1])


def wide(core: Any) -> Any:
    """Returns the right unfolding (r, n s) of a core."""
    return core.reshape(core.shape[0], -1)


def absorb(matrix: Any, core: Any) -> Any:
    """Multiplies a matrix into the left bond of a core: matrix @ core."""
    return matmul(matrix, wide(core)).reshape(-1, *core.shape[1:])


def times_right(core: Any, matrix: Any) -> Any:
    """Multiplies a matrix into the right bond of a core: core @ matrix."""
    return matmul(tall(core), matrix).reshape(*core.shape[:2], -1)


def times_mode(core: Any, matrix: Any) -> Any:
    """Multiplies a tensor-train core by a matrix along its mode."""
    return matmul(matrix[None], core)


def in_range(x: Any) -> Any:
    """Divides a core, or a factor of one, by a power of two so that its largest part is near 1."""
    return normalized(x)[0]


def factors_in_range(xs: Cores, ys: Cores, terms: int = 1) -> Cores:
    """Scales the cores ``ys`` by powers of two that cancel, so that their products are in range.

    They stay as they are where all products are in range as they are.

    Args:
      xs: host cores of the one factor.
      ys: those of the other, in the same dtype.
      terms: products in the sums that are taken.
    """
    own = [exponent_of(x) + exponent_of(y) for x, y in zip(xs, ys, strict=True)]
    low, high = exponents_held(ys[0].dtype)
    if min(own) >= low and max(own) <= high - terms.bit_length():
        return ys
    # Each as near to its own size as the dtype holds it well: the cores of both factors are held.
    wanted = [min(max(e, -(high // 2)), high // 2) for e in own]
    share, rest = divmod(sum(own) - sum(wanted), len(ys))
    moves = [w + share + (k < rest) - e for k, (w, e) in enumerate(zip(wanted, own, strict=True))]
    return [scaled(y, move) for y, move in zip(ys, moves, strict=True)]


def short(a: Any) -> Any:
    """Returns an unfolding, of a core, or its R, not taller than wide, with the same aᴴ a."""
    return triangle(a) if a.shape[0] > a.shape[1] else a


def zero_padded(x: Any, widths: list[tuple[int, int]]) -> jax.Array:
    """Pads a core, a JAX array, with zeros before and after each axis, as `jnp.pad`."""
    if not any(map(any, widths)):
        return x
    if _check.is_traced(x) or (isinstance(x, jax.Array) and len(x.devices()) > 1):
        return jnp.pad(x, widths)
    # On the host, and back: every new shape would compile a program.
    return returned(np.pad(np.asarray(x), widths), x)


def placed_like(cores: Sequence[Any], given: Sequence[jax.Array]) -> tuple[Any, ...]:
    """Shards cores over the mesh as the given cores are, on the axes whose sizes allow it."""
    return tuple(_placed(c, g) for c, g in zip(cores, given, strict=True))


def _placed(core: Any, given: jax.Array) -> Any:
    sharding = None if _check.is_traced(core, given) else getattr(given, "sharding", None)
    if not isinstance(sharding, NamedSharding):  # of NumPy's arrays there is none
        return core
    return jax.device_put(core, NamedSharding(sharding.mesh, spec_like(core, given)))


def cut_ranks(ranks: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Reduces TT-ranks r_0 … r_d of cores to the largest that modes and neighbours allow."""
    out = list(ranks)
    for k in range(1, len(sizes)):
        out[k] = min(out[k], out[k - 1] * sizes[k - 1])
    for k in reversed(range(1, len(sizes))):
        out[k] = min(out[k], out[k + 1] * sizes[k])
    return tuple(out)


def triangles(cores: Cores) -> Cores:
    """Computes right factors of a train's cores, up to a scale, by QR sweep without forming Q.

    The right factor of the bond between cores k and k+1 is a matrix (r_k, f) with F Fᴴ the Gram
    matrix of everything right of the bond.
    """
    factors: Cores = []
    f = None
    for core in reversed(cores[1:]):
        f = wide(core if f is None else times_right(core, f))
        f = in_range(adjoint(short(adjoint(f))))
        factors.append(f)
    return factors[::-1]


def difference(xs: Any, ys: Any) -> tuple[Any, Any]:
    """Computes ‖x − y‖ of two trains from their cores, as (m, e) with value m·2^e."""
    xp = np if is_host(xs[0]) else jnp
    left, right = (xp.ones((1, 1), xs[0].dtype), -xp.ones((1, 1), xs[0].dtype))
    exponents = [0, 0]
    for a, b in zip(xs, ys, strict=True):
        # Each train is scaled on its own: magnitudes of their partial products may be far apart.
        small = [normalized(a), normalized(b)]
        # r holds both trains' left parts side by side: r = [left | right].
        pair = [
            matmul(m, c.reshape(c.shape[0], -1)).reshape(-1, c.shape[-1])
            for m, (c, _) in zip((left, right), small, strict=True)
        ]
        stacked = xp.concatenate(pair, axis=-1)
        r = qr(stacked)[1] if stacked.shape[0] > stacked.shape[1] else stacked
        left, p = normalized(r[:, : a.shape[-1]])
        right, q = normalized(r[:, a.shape[-1] :])
        exponents = [
            e + size + more for e, (_, size), more in zip(exponents, small, (p, q), strict=True)
        ]
    # Of zeros the exponent says nothing.
    p, q = (
        xp.where((m != 0).any(), e, -(2**20)) for m, e in zip((left, right), exponents, strict=True)
    )
    both = xp.maximum(p, q)
    rest, e = normalized(scaled(left, p - both) + scaled(right, q - both))
    return root(energy(rest)), both + e
