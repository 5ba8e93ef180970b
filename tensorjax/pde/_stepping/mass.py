"""Mass of tensor trains ∫ v dy, and its correction within the tangent space.

Truncation is a small error in L², but what it cuts lies spread over the box, and such a function
has much mass for its norm: at an error tol ‖v‖ as much as tol ‖v‖ √|box|. Mass restored in the
shape of v, which is narrow, would be an error many times as large. So it is restored as the
function with the most mass for its norm, the constant: faded out before the edge of the box, where
y·∇v would amplify it, and projected on the tangent space at v, so that no rank rises.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.orthogonalization import left_qr, right_orthogonal
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.unfoldings import Cores

# The constant is faded out as exp(−(x/a)^p), x from −1 to 1 along an axis, a and p as here.
_WIDTH, _POWER = 0.6, 8


class Quadrature(NamedTuple):
    """Quadrature weights of a grid, for the mass of tensor trains and its correction.

    Attributes:
      weights: of every axis, (n_k,).
      faded: the weights times what fades out towards the ends.
    """

    weights: list[Any]
    faded: list[Any]


@functools.lru_cache(maxsize=32)
def quadrature(box: Any) -> Quadrature:
    """Builds the quadrature weights of a grid for the mass of tensor trains."""
    faded = []
    for a in box.axes:
        x = (2 * a.points - a.low - a.high) / (a.high - a.low)
        fades = np.exp(-((x / _WIDTH) ** _POWER))
        faded.append(a.weights * (1.0 if a.kind == "periodic" else fades))
    return Quadrature(box.weights, faded)


def mass_of(cores: Cores, weights: Sequence[Any]) -> float:
    """Computes the mass ∫ v dy of a tensor train by quadrature on a grid."""
    left = np.ones(1)
    for c, w in zip(cores, weights, strict=True):
        left = left @ (w @ c)
    return float(left[0])


class Corrected(NamedTuple):
    """Tensor train corrected to a given mass, with the norm of the correction.

    Attributes:
      cores: right-orthogonal but for the first.
      norm: of what was added to each core, the root of the sum of squares. Where singular values
        of v are as small as that, it may be much larger than the change that was planned.
    """

    cores: Cores
    norm: float


def corrected(cores: Cores, at: Quadrature, target: float) -> Corrected | None:
    """Corrects a tensor train to a given mass ∫ v dy at the same TT-ranks; None if impossible.

    With h the faded constant and P the projection on the tangent space at v, the sum of
    P_k = L_{k−1} (1 − L_k) R_k over the cores k, a P h is added core by core, each P_k taken at
    what the cores before have become: every addend is then a change of one core. The last one
    compensates the changes by the others.

    Args:
      cores: right-orthogonal but for the first.
      at: quadrature of the box.
      target: the mass in y.

    Source: W. Guo, J.-M. Qiu, "A conservative low rank tensor method for the Vlasov dynamics"
    (2022), keep moments by parts of v that are left out of the truncation, at one rank more. Ours:
    the correction within the tangent space.
    """
    defect = target - mass_of(cores, at.weights)
    gain = sum(mass for _, mass, _ in _sweep(cores, at, 0.0))
    if not (gain > 0 and np.isfinite(defect)):
        return None
    share = defect / gain
    *others, last = _sweep(cores, at, share)
    change, mass, core = last
    out = [c for _, _, c in others]
    lacks = target - mass_of([*out, core], at.weights)
    more = lacks / mass if mass > 0 else 0.0
    out.append(core + more * change)
    parts = [share * np.linalg.norm(c) for c, _, _ in others]
    parts.append((share + more) * np.linalg.norm(change))
    return Corrected(right_orthogonal(out, scale=False)[0], float(np.linalg.norm(parts)))


def _sweep(cores: Cores, at: Quadrature, share: float) -> Iterator[tuple[Any, float, Any]]:
    """Yields, core by core, the change that corrects a train's mass, its mass, and the new core.

    All cores but the last come out left-orthogonal.
    """
    rights = [(np.ones(1), np.ones(1))]
    for c, w, g in zip(cores[:0:-1], at.weights[:0:-1], at.faded[:0:-1], strict=True):
        mass, seen = rights[-1]
        rights.append(((w @ c) @ mass, (g @ c) @ seen))
    mass_left, seen_left = np.ones(1), np.ones(1)
    core = cores[0]
    for k, (w, g) in enumerate(zip(at.weights, at.faded, strict=True)):
        mass_right, seen_right = rights[len(cores) - 1 - k]
        change = seen_left[:, None, None] * g[:, None] * seen_right
        if k < len(cores) - 1:
            u, _ = left_qr(core)
            change = change - times_right(u, bond_overlap(u, change))
        mass = float(mass_left @ (w @ change) @ mass_right)
        core = core + share * change
        if k == len(cores) - 1:
            yield change, mass, core
            return
        q, rest = left_qr(core)
        yield change, mass, q
        mass_left, seen_left = mass_left @ (w @ q), seen_left @ (g @ q)
        core = absorb(rest, cores[k + 1])
