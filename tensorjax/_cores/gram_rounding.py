"""TT-rounding of host cores by Gram matrices, with an error where these are too inaccurate."""

from typing import Any, NamedTuple

import numpy as np

from tensorjax import _native, linalg
from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.unfoldings import Cores, tall, wide
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import CPP, HOST


class InaccurateGram(ArithmeticError):
    """Exception for Gram matrices whose roundoff is too large for the rounding error asked."""


class RightFactor(NamedTuple):
    """Factor F of a Gram matrix G = F Fᴴ, and the norm of G, for a rounding sweep."""

    matrix: Any
    norm: float


def right_factors(cores: Cores) -> tuple[list[RightFactor], Any]:
    """Factors the Gram matrices of a train's right parts at all bonds; returns ‖x‖² too.

    Raises:
      InaccurateGram: a Gram matrix overflows, or is so small that its products may vanish.
    """
    factors: list[RightFactor] = []
    g: Any = None
    for core in reversed(cores):
        if factors and _is_pivoted(g):
            g = linalg.gram(wide(times_right(core, factors[-1].matrix)))
        else:  # a factor that is shifted is not passed on: shifts would add up
            weighted = core if g is None else times_right(core, g)
            g = linalg.matmul(wide(weighted), linalg.adjoint(wide(core)))
        factors.append(gram_factor(g))
    return factors[-2::-1], in_reach(g[0, 0].real)


def gram_round(cores: Cores, share: float) -> Cores:
    """Rounds a train of host cores by Gram matrices; discards at most a share of its energy.

    Raises:
      InaccurateGram: roundoff in the Gram matrices is not small beside what may be discarded.
    """
    if choose_kernel("tt.round(tol=), Gram sweep", cores, HOST) is CPP:
        found = _native.gram_round(cores, share)
        if found:
            return found
    factors, total = right_factors(cores)
    tail = share * total / (len(cores) - 1)
    out: Cores = []
    core = cores[0]
    for k, f in enumerate(factors):
        matrix = tall(core)
        u = gram_basis(matrix, f, tail)
        out.append(u.reshape(*core.shape[:2], -1))
        core = absorb(linalg.project(u, matrix), cores[k + 1])
    # Projections are orthogonal, so the energy that is missing now is the error.
    if not total - linalg.energy(tall(core)) <= share * total:
        raise InaccurateGram
    return [*out, core]


def _is_pivoted(g: Any) -> bool:
    """Whether Gram rounding of host cores factors a Gram matrix by C++, by pivoted Cholesky."""
    return choose_kernel("tt.round(tol=), Gram factor", (g,), HOST) is CPP


def gram_basis(matrix: Any, f: RightFactor, tail: float) -> Any:
    """Computes the leading left subspace of an unfolding in TT-rounding, by a Gram matrix.

    Raises:
      InaccurateGram: roundoff is not small beside ``tail``.
    """
    noise = np.finfo(matrix.real.dtype).eps * f.norm * _spectral_energy(matrix)
    if not 4 * noise <= tail:
        raise InaccurateGram
    seen = linalg.matmul(matrix, f.matrix)
    return linalg.left_basis(seen, tail=tail - 2 * noise, method="gram").u


def _spectral_energy(a: Any) -> float:
    """Estimates ‖A‖₂² of a matrix by three power iterations, to bound noise of Gram rounding."""
    v = np.ones(a.shape[1], a.dtype) + np.linspace(0, 0.5, a.shape[1], dtype=a.dtype)
    estimate = 0.0
    for _ in range(3):
        w = linalg.adjoint(a) @ (a @ v)
        norm = np.linalg.norm(v)
        estimate = float(np.linalg.norm(w) / norm) if norm > 0 else 0.0
        v = w / (np.linalg.norm(w) or 1.0)
    return estimate


def gram_factor(g: Any) -> RightFactor:
    """Factors a host Gram matrix of TT-rounding by Cholesky: pivoted in C++, or shifted.

    Raises:
      InaccurateGram: there is no factor, or the matrix is far from one in size.
    """
    norm = in_reach(float(np.linalg.norm(g)))
    roundoff = 2 * np.finfo(g.real.dtype).eps * np.trace(g).real
    if _is_pivoted(g):
        return RightFactor(_native.pivoted_cholesky(g, roundoff), norm)
    return RightFactor(_cholesky(g, roundoff), norm)


def in_reach(energy: Any) -> Any:
    """Returns an energy; raises InaccurateGram if it is near over- or underflow.

    Raises:
      InaccurateGram: it overflows, or is so small that what is left out of it may vanish.
    """
    if not 2.0**-500 < energy < 2.0**500:
        raise InaccurateGram
    return energy


def _cholesky(g: Any, shift: float) -> Any:
    """Factors a Gram matrix of TT-rounding by a shifted Cholesky; raises the shift on failure."""
    eye = np.eye(len(g), dtype=g.dtype)
    for _ in range(8):
        try:
            return np.linalg.cholesky(g + shift * eye)
        except np.linalg.LinAlgError:
            shift *= 4
    raise InaccurateGram
