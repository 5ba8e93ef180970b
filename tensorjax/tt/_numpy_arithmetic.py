"""NumPy arithmetic of trains as lists of cores, for loops whose ranks change at every step.

The public functions compile a program for each combination of ranks; nothing is compiled here.
"""

from typing import Any

import numpy as np

from tensorjax import linalg
from tensorjax._cores.scaling import balanced
from tensorjax._cores.unfoldings import Cores, absorb, tall, times_right, wide
from tensorjax.tt._rounding.rounding import _compress


def product(a: Cores, x: Cores) -> Cores:
    """Multiplies A x by NumPy: cores (a, m, n, b) and (r, n, s) give bonds (a r), (b s)."""
    out = []
    for p, c in zip(a, x, strict=True):
        t = np.tensordot(p, c, (2, 1)).transpose(0, 3, 1, 2, 4)  # (a, r, m, b, s)
        out.append(t.reshape(t.shape[0] * t.shape[1], t.shape[2], -1))
    return out


def combined(terms: list[Cores], weights: Any) -> Cores:
    """Computes the sum Σ w x of trains exactly, by NumPy, with block-diagonal cores."""
    if len(terms[0]) == 1:
        return [sum(w * t[0] for w, t in zip(weights, terms, strict=True))]
    first = np.concatenate([w * t[0] for w, t in zip(weights, terms, strict=True)], -1)
    last = np.concatenate([t[-1] for t in terms], 0)
    return [first, *(_blocks(list(c)) for c in list(zip(*terms, strict=True))[1:-1]), last]


def _blocks(cores: Cores) -> Any:
    rows, columns = (sum(c.shape[i] for c in cores) for i in (0, 2))
    out = np.zeros((rows, cores[0].shape[1], columns), np.result_type(*cores))
    r = s = 0
    for c in cores:
        out[r : r + c.shape[0], :, s : s + c.shape[2]] = c
        r, s = r + c.shape[0], s + c.shape[2]
    return out


def overlap(x: Cores, y: Cores) -> Any:
    """Computes ⟨x, y⟩ of two trains by NumPy arithmetic, x conjugated."""
    e = np.ones((1, 1), x[0].dtype)
    for c, d in zip(x, y, strict=True):
        e = linalg.adjoint(tall(c)) @ tall(absorb(e, d))
    return e[0, 0]


def distance(x: Cores, y: Cores) -> float:
    """Computes ‖x − y‖ of two trains, by NumPy's QR, not squares: accurate to a few eps."""
    f = np.ones((2, 1), x[0].dtype)
    for p, q in zip(reversed(x), reversed(y), strict=True):
        parts = [times_right(p, f[: p.shape[-1]]), times_right(q, f[p.shape[-1] :])]
        f = np.concatenate([wide(c) for c in parts])
        if f.shape[1] > f.shape[0]:
            f = linalg.adjoint(linalg.triangle(linalg.adjoint(f)))
    return float(np.linalg.norm(f[0] - f[1]))


def norm(x: Cores) -> float:
    """Computes the norm ‖x‖ of a train by NumPy arithmetic, as accurately as `distance`."""
    return distance(x, [0 * c[:1, :, :1] for c in x])


def right_orthogonal(x: Cores, *, scale: bool = True) -> tuple[Cores, int]:
    """Right-orthogonalises x by NumPy over 2^e, an entry near 1 in the first core; returns e too.

    e is 0 if no scale is asked for.
    """
    out, exponent = list(x), 0
    for k in range(len(x) - 1, -1, -1):
        size = np.abs(out[k]).max() if scale else 0
        if size > 0:
            e = int(np.frexp(size)[1])
            out[k], exponent = out[k] * 2.0**-e, exponent + e
        if k:
            q, r = linalg.qr(linalg.adjoint(wide(out[k])))
            out[k] = linalg.adjoint(q).reshape(-1, *out[k].shape[1:])
            out[k - 1] = times_right(out[k - 1], linalg.adjoint(r))
    return out, exponent


def scaled(x: Cores, exponent: int) -> Cores:
    """Multiplies a train by 2^exponent in NumPy, shared by the cores: one alone might overflow."""
    share, rest = divmod(exponent, len(x))
    return [c * 2.0 ** (share + (rest if k == 0 else 0)) for k, c in enumerate(balanced(x))]


def rounded(x: Cores, tol: float, max_rank: int | None = None) -> Cores:
    """Rounds a train to lower TT-ranks by NumPy arithmetic, at the relative error ``tol``."""
    if len(x) == 1:
        return x
    share = tol**2 / (len(x) - 1)
    method = linalg.choose("auto", share, x[0].dtype, levels=1)
    out = balanced(*_compress(x, None, tol**2, method, None))
    if max_rank is None or max(len(c) for c in out) <= max_rank:
        return out
    bounds = [min(max_rank, len(c)) for c in out[1:]]
    return balanced(*_compress(out, bounds, None, "svd", None))
