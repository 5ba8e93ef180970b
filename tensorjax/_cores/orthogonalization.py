"""QR sweeps over the cores of a train."""

from typing import Any

import numpy as np

from tensorjax._cores.contractions import times_right
from tensorjax._cores.scaling import in_range
from tensorjax._cores.unfoldings import Cores, tall, wide
from tensorjax.linalg._arrays import adjoint
from tensorjax.linalg._qr import qr, triangle


def left_qr(core: Any) -> tuple[Any, Any]:
    """Orthogonalises a core from the left by QR: returns a left-orthogonal core and R."""
    q, r = qr(tall(core))
    return q.reshape(*core.shape[:-1], -1), r


def right_lq(core: Any) -> tuple[Any, Any]:
    """Orthogonalises a core from the right by LQ: returns L and a right-orthogonal core."""
    q, r = qr(adjoint(wide(core)))
    return adjoint(r), adjoint(q).reshape(-1, *core.shape[1:])


def triangles(cores: Cores) -> Cores:
    """Orthogonalises a train right to left by QR, and returns only the triangle F of each bond.

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


def right_orthogonal(x: Cores, *, scale: bool = True) -> tuple[Cores, int]:
    """Right-orthogonalises a train of host cores, scaled by 2^−e; returns e too, 0 if unscaled."""
    out, exponent = list(x), 0
    for k in range(len(x) - 1, -1, -1):
        size = np.abs(out[k]).max() if scale else 0
        if size > 0:
            e = int(np.frexp(size)[1])  # a power of two: scaling by it rounds nothing
            out[k], exponent = out[k] * 2.0**-e, exponent + e
        if k:
            left, out[k] = right_lq(out[k])
            out[k - 1] = times_right(out[k - 1], left)
    return out, exponent


def short(a: Any) -> Any:
    """Replaces a tall unfolding by R of its orthogonalisation by QR, of the same Gram matrix."""
    return triangle(a) if a.shape[0] > a.shape[1] else a
