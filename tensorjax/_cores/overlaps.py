"""Inner products, norms and distances of trains from their cores."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.orthogonalization import short
from tensorjax._cores.unfoldings import Cores, tall, wide
from tensorjax.linalg._arrays import adjoint, energy, is_host, matmul, root
from tensorjax.linalg._powers_of_two import normalized, scaled


def bond_overlap(x: Any, y: Any) -> Any:
    """Computes the overlap of two cores, the first conjugated, over their left bonds and modes."""
    return matmul(adjoint(tall(x)), tall(y))


def right_overlap(x: Any, y: Any) -> Any:
    """Computes the overlap of two cores, the first conjugated, over their modes and right bonds."""
    return matmul(wide(x).conj(), wide(y).T)


def difference(xs: Any, ys: Any) -> tuple[Any, Any]:
    """Computes ‖x − y‖ of trains from cores, not from overlaps, as (m, e) with value m·2^e."""
    xp = np if is_host(xs[0]) else jnp
    left, right = (xp.ones((1, 1), xs[0].dtype), -xp.ones((1, 1), xs[0].dtype))
    exponents = [0, 0]
    for a, b in zip(xs, ys, strict=True):
        # Each train is scaled on its own: magnitudes of their partial products may be far apart.
        small = [normalized(a), normalized(b)]
        # r holds both trains' left parts side by side: r = [left | right].
        pair = [tall(absorb(m, c)) for m, (c, _) in zip((left, right), small, strict=True)]
        # A triangle of both, not their Gram matrices: nothing is squared, and nothing cancels.
        r = short(xp.concatenate(pair, axis=-1))
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


def overlap(x: Cores, y: Cores) -> Any:
    """Computes the overlap ⟨x, y⟩ of two trains of host cores, without scaling."""
    e = np.ones((1, 1), x[0].dtype)
    for c, d in zip(x, y, strict=True):
        e = bond_overlap(c, absorb(e, d))
    return e[0, 0]


def distance(x: Cores, y: Cores) -> float:
    """Computes the distance ‖x − y‖ of two trains of host cores by QR, not from overlaps."""
    # As `difference`, without its scaling, which would take two thirds of the time for small cores:
    # residuals of solvers are measured in every step.
    f = np.ones((2, 1), x[0].dtype)
    for p, q in zip(reversed(x), reversed(y), strict=True):
        parts = [times_right(p, f[: p.shape[-1]]), times_right(q, f[p.shape[-1] :])]
        f = adjoint(short(adjoint(np.concatenate([wide(c) for c in parts]))))
    return float(np.linalg.norm(f[0] - f[1]))


def norm(x: Cores) -> float:
    """Computes the norm ‖x‖ of a train of host cores as its distance from zero, without scaling."""
    return distance(x, [0 * c[:1, :, :1] for c in x])


def agree(found: Cores, given: Cores, tol: float) -> bool:
    """Whether a train of host cores approximates another to a relative error ``tol``."""
    wide = given[0].dtype
    error, e = difference(given, [c.astype(wide) for c in found])
    size, exponent = difference(given, [np.zeros((1, c.shape[1], 1), wide) for c in given])
    return bool(np.ldexp(error, e - exponent) <= tol * size)
