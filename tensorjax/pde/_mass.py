"""The mass of a train on the host, and mass put right."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tensorjax._cores import Cores

Conserve = Literal["rescale", "project"]


def mass_of(cores: Cores, weights: Sequence[Any]) -> float:
    """∫ v dy by the quadrature weights of every axis."""
    left = np.ones(1)
    for c, w in zip(cores, weights, strict=True):
        left = left @ (w @ c)
    return float(left[0])


def marginals(cores: Cores, weights: Sequence[Any]) -> tuple[float, list[Any]]:
    """∫ v dy, and for every axis the integral of v over all others, (n_k,).

    Args:
      cores: of v.
      weights: quadrature weights of every axis, (n_k,).
    """
    rights = [np.ones(1)]
    for c, w in zip(reversed(cores), reversed(weights), strict=True):
        rights.append(w @ c @ rights[-1])
    out, left = [], np.ones(1)
    for c, w, right in zip(cores, weights, reversed(rights[:-1]), strict=True):
        out.append(np.tensordot(left, c, (0, 0)) @ right)
        left = left @ np.tensordot(w, c, (0, 1))
    return float(left[0]), out


def conserved(
    cores: Cores, weights: Sequence[Any], target: float, how: Conserve
) -> tuple[Cores, str]:
    """v changed so that ∫ v dy is ``target``.

    "rescale" multiplies v. "project" adds the multiple of P g, the orthogonal projection on the
    space that the bonds span of g, the product of the marginals of v: a weighted projection, for g
    is small where v is, which leaves the ranks and what is orthogonal to it as they are.

    Args:
      cores: right-orthogonal but for the first.
      weights: quadrature weights of every axis.
      target: the mass in y.
      how: "rescale" or "project".

    Returns:
      The cores, and what was wrong, if the mass could not be put right: empty if it could.

    Source: the weighted projection is that of W. Guo, J.-M. Qiu, "A conservative low rank tensor
    method for the Vlasov dynamics" (2022), with one moment; its weight and its restriction to the
    span of the bonds are ours.
    """
    mass, parts = marginals(cores, weights)
    size = sum(float(np.abs(p) @ np.abs(w)) for p, w in zip(parts, weights, strict=True))
    if not abs(mass) * len(parts) > 1e-12 * size:
        return cores, "the mass is zero: nothing to scale"
    first, *others = cores
    if how == "rescale":
        return [first * (target / mass), *others], ""
    bond, unit = np.ones(1), np.ones(1)  # of g, and of the constant with its weights
    for c, g, w in reversed(list(zip(others, parts[1:], weights[1:], strict=True))):
        bond, unit = g @ c @ bond, w @ c @ unit
    change = parts[0][None, :, None] * bond
    slope = float(weights[0] @ (change[0] @ unit))
    if slope == 0:
        return cores, "the weight of the projection has no mass"
    return [first + (target - mass) / slope * change, *others], ""
