"""Nuclear norms of a tensor train's unfoldings, and their gradient in the coordinate motion."""

from collections.abc import Callable

import numpy as np

from tensorjax._cores.contractions import einsum
from tensorjax._cores.unfoldings import Cores
from tensorjax.pde._generators.canonical_form import Point
from tensorjax.pde._generators.tangent_normal_factors import Family, Modes

# Positions of ∂ and y in `Modes.pair`.
_D, _Y = 0, 1


def nuclear_norms(point: Point, smoothing: float) -> float:
    """Computes the smoothed nuclear norms, Σ √(σ² + ε²) − ε, of a tensor train's unfoldings."""
    return float(sum((np.hypot(s, smoothing) - smoothing).sum() for s in point.spectra))


def nuclear_norms_gradient(
    point: Point, modes: Modes, singles: Family, smoothing: float
) -> np.ndarray:
    """Computes the gradient (d, d) of a TT's nuclear norms in the coordinate motion Σ y.

    With W = σ/√(σ² + ε²), U_{≤p} W_p V_{>p} is the derivative of Σ_i √(σ_i² + ε²) over the singular
    values of the unfolding at bond p, the nuclear norm for ε = 0; under v_t = −Σ_jk Σ_jk y_k ∂_j v
    their sum over all bonds falls at the rate Σ·g.
    """
    d = point.order
    weights = [s / np.hypot(s, smoothing) for s in point.spectra]
    bonds = [w * s for w, s in zip(weights, point.bonds, strict=True)]
    out = np.zeros((d, 2, d, 2))
    for p, (inside, overlap, w) in enumerate(
        zip(singles.inside, singles.overlap, weights, strict=True), start=1
    ):
        both = einsum("iak,bki,i->ab", inside, overlap, w)
        out[:p, :, p:] += both.reshape(p, 2, d - p, 2)
    _one_side(out, point.left, bonds, modes.pair)
    # The other side is the first one of the train read backwards.
    mirrored = [v.transpose(2, 1, 0) for v in reversed(point.right)]
    turned = np.zeros_like(out)
    _one_side(turned, mirrored, bonds[::-1], lambda k, core: modes.pair(d - 1 - k, core))
    out += turned[::-1, :, ::-1].transpose(2, 3, 0, 1)
    found = out[:, _D, :, _Y] + out[:, _Y, :, _D].T
    np.fill_diagonal(found, 0)
    return found


def _one_side(
    out: np.ndarray, cores: Cores, bonds: list[np.ndarray], pair: Callable[..., np.ndarray]
) -> None:
    """Adds the contributions of modes left of each TT bond to the gradient of the nuclear norms."""
    one, two = np.zeros((0, 1, 1)), np.zeros((0, 1, 1))
    where: list[tuple[int, int, int, int]] = []
    for k, (u, s) in enumerate(zip(cores, bonds, strict=True)):
        derived = pair(k, u)
        crossed = np.concatenate([one[_D::2], one[_Y::2]])
        ops = np.repeat([_Y, _D], len(one) // 2)
        seen = einsum("mab,mbns->mans", crossed, derived[ops])
        two = np.concatenate([_passed(u, two), _overlap(u, seen)])
        where += [(a, _D, k, _Y) for a in range(k)] + [(a, _Y, k, _D) for a in range(k)]
        one = np.concatenate([_passed(u, one), _overlap(u, derived)])
        if where:
            a, p, b, q = np.array(where).T
            out[a, p, b, q] += einsum("mij,ji->m", two, s)


def _passed(u: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """Moves bond matrices (m, r, r) of the nuclear norms' gradient over a core U: Uᵀ (M ⊗ 1) U."""
    return einsum("mab,ans,bnt->mst", matrices, u, u)


def _overlap(u: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Contracts cores (m, r, n, s) with a core U for the nuclear norms' gradient: (m, s, s)."""
    return einsum("ans,mant->mst", u, seen)
