"""Sweeps of TT-rounding on lists of cores (r, n, s): sketched, Gram-matrix and truncating.

Bonds are numbered 0 … d−2; bond k lies between cores k and k+1. A *right factor* F of bond k is a
matrix (r_k, f) with F Fᴴ the Gram matrix of everything right of the bond, exactly or by a sketch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax import _native, linalg
from tensorjax._cores.unfoldings import Cores, absorb, tall, times_right, wide
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import CPP, HOST

_VECTOR = 8  # float64 elements of the widest SIMD vectors (AVX-512)
Basis = Callable[[Any], Any]  # matrix (m, f) -> isometry (m, r) onto its leading left subspace


class InaccurateGram(ArithmeticError):
    """Exception for Gram matrices whose roundoff is too large for the rounding error asked."""


def scaled_back(cores: Cores, exponent: Any) -> Cores:
    """Multiplies a rounded train by 2^exponent: its last core, or all if the exponent is large."""
    share = jnp.where(jnp.abs(exponent) < 100, 0, exponent // len(cores))
    last = exponent - share * (len(cores) - 1)
    exponents = [share] * (len(cores) - 1) + [last]
    return [linalg.scaled(c, e) for c, e in zip(cores, exponents, strict=True)]


class RightFactor(NamedTuple):
    """Factor F of a Gram matrix G = F Fᴴ, and the norm of G, for a rounding sweep."""

    matrix: Any
    norm: float


def right_factors(cores: Cores) -> tuple[list[RightFactor], Any]:
    """Factors the Gram matrices of all cores right of each bond; also returns the squared norm.

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


def sketches(cores: Cores, width: int, key: Any) -> Cores:
    """Sketches the right unfoldings of a train at all bonds with one random train.

    ω_i are the rows of a random matrix for every mode and H is one random orthogonal matrix: each
    step costs one small product more than a Khatri–Rao sketch of as many columns, but mixes them,
    so that no column is left with a product of d random numbers.
    """
    sizes = [c.shape[1] for c in cores]
    draw, mix = random_train(cores, width, key)
    ends = np.cumsum(sizes)
    factors: Cores = []
    f = None
    for k in range(len(cores) - 1, 0, -1):
        core, omega = cores[k], draw[ends[k] - sizes[k] : ends[k]]
        image = core if f is None else times_right(core, f)  # a last core broadcasts over columns
        f = linalg.matmul((image * omega[None]).sum(1), mix)
        size = linalg.where_positive(linalg.energy(f) / f.size, 1.0) ** 0.5
        f = f / size.astype(f.dtype)
        factors.append(f)
    return factors[::-1]


def random_train(cores: Cores, width: int, key: Any) -> tuple[Any, Any]:
    """Draws the random train that sketches unfoldings in randomised TT-rounding."""
    modes = sum(c.shape[1] for c in cores)
    if width == 0:
        return jnp.zeros((modes, 0), cores[0].dtype), jnp.zeros((0, 0), cores[0].dtype)
    keys = (None, None) if key is None else jax.random.split(key)
    # Without a key both are constants of the program: H is not factorised anew in every call.
    like = np.empty((), cores[0].dtype) if key is None else cores[0]
    draw = linalg.random_like(keys[0], (modes, width), like)
    mix = linalg.qr(linalg.random_like(keys[1], (width, width), like))[0]
    return (draw, mix) if linalg.is_host(cores[0]) else (jnp.asarray(draw), jnp.asarray(mix))


def left_sweep(cores: Cores, factors: Cores, basis: Sequence[Basis]) -> tuple[Cores, Any]:
    """Rounds a train from left to right: projects each bond on a basis of its left unfolding.

    Returns:
      The cores, and the exponent of two by which to scale them back.
    """
    out: Cores = []
    core, exponent = linalg.normalized(cores[0])
    for k, f in enumerate(factors):
        matrix = tall(core)
        u = basis[k](linalg.matmul(matrix, f))
        out.append(u.reshape(*core.shape[:2], -1))
        core, e = linalg.normalized(absorb(_coordinates(u, matrix), cores[k + 1]))
        exponent = exponent + e
    return [*out, core], exponent


def _coordinates(u: Any, matrix: Any) -> Any:
    """Projects a matrix on a basis u, uᴴ matrix, in TT-rounding; corrects it on the host.

    Tolerances near roundoff need it: over seven bonds that lack alone adds up to 15 eps.
    """
    w = linalg.project(u, matrix)
    return w + linalg.project(u, matrix - u @ w) if linalg.is_host(u) else w


def oversampled(ranks: Sequence[int], asked: int | None) -> int:
    """Returns the number of extra columns of a rounding sketch: as asked, or at least ten."""
    widest = max(ranks, default=1)
    least = -(-(widest + linalg.OVERSAMPLE) // _VECTOR) * _VECTOR - widest
    return least if asked is None else asked


def random_round(cores: Cores, key: Any, ranks: Sequence[int], extra: int) -> tuple[Cores, Any]:
    """Rounds a train to ranks by a random range finder, then truncation from right to left.

    The first sweep leaves a left-orthogonal train, ``extra`` ranks wider than asked; the second
    takes those off again, bond after bond, by the singular values of the whole unfolding. Returns
    the cores, and the exponent of two by which to scale them back.
    """
    factors = sketches(cores, max(ranks) + extra, key)
    modes = [c.shape[1] for c in cores]
    wider, weights = [], []  # cores, and small matrices that make their columns orthonormal
    core, exponent = linalg.normalized(cores[0])
    for k, f in enumerate(factors):
        matrix = tall(core)
        # No wider than the space right of the bond: more columns would be dependent.
        columns = min(ranks[k] + extra, math.prod(modes[k + 1 :]))
        w, q = _range_rows(matrix, f[:, :columns])
        wider.append(linalg.adjoint(q).reshape(-1, modes[k], q.shape[0]))
        weights.append(linalg.adjoint(w))
        projected, e = linalg.normalized(linalg.matmul(w, linalg.matmul(q, matrix)))
        core = absorb(projected, cores[k + 1])
        exponent = exponent + e
    if extra == 0:
        pairs = zip(wider, weights, strict=True)
        return [*(times_right(c, w) for c, w in pairs), core], exponent
    return truncate_back([*wider, core], weights, ranks), exponent


def truncate_back(
    cores: Cores, weights: Sequence[Any], ranks: Sequence[int], *, exact: bool = False
) -> Cores:
    """Truncates a left-orthogonal train to ranks by a sweep from right to left.

    Args:
      cores: JAX arrays.
      weights: d−1 small matrices that make the columns of the cores orthonormal; None where they
        are.
      ranks: d−1.
      exact: by SVD alone, without a conditional. Derivative rules need it: of a conditional that
        `jax.vmap` batches inside a rule JAX has no transpose.
    """
    if exact:
        return _truncated_back(cores, weights, ranks, _svd_cut)[0]
    out, too_deep = _truncated_back(cores, weights, ranks, _gram_cut)

    def careful(cores: Cores) -> Cores:
        return _truncated_back(cores, weights, ranks, _svd_cut)[0]

    # One decision for the whole train: a conditional at every bond costs more than it saves.
    return lax.cond(too_deep, careful, lambda _: out, cores)


def _range_rows(matrix: Any, f: Any) -> tuple[Any, Any]:
    """Returns w, q in randomised rounding: w @ q has orthonormal rows that span (matrix @ f)ᴴ."""
    rows, inner = matrix.shape
    if rows <= f.shape[1]:
        eye = linalg.identity_like(rows, matrix)
        return eye, eye
    image = linalg.adjoint(matrix)
    image = image if inner <= f.shape[1] else linalg.matmul(linalg.adjoint(f), image)
    return linalg.orthonormal_rows(image)


def _truncated_back(
    cores: Cores, weights: Sequence[Any], ranks: Sequence[int], cut: Any
) -> tuple[Cores, Any]:
    """Truncates a left-orthogonal train; also returns whether Gram matrices were too coarse.

    Cores are only ever multiplied by isometries: the singular values go along apart, and are never
    divided by. Also returns whether any cut was too deep for Gram matrices.
    """
    out, too_deep = [cores[-1]], jnp.zeros((), bool)
    seen = wide(cores[-1])
    bonds = zip(cores[:-1], weights, ranks, strict=True)
    for core, w, rank in reversed(list(bonds)):
        u, energies, deep = cut(seen, rank)
        too_deep = too_deep | deep
        out[-1] = absorb(linalg.adjoint(u), out[-1])
        core = times_right(core, u if w is None else linalg.matmul(w, u))
        seen = linalg.scale_columns(tall(core), linalg.root(energies)).reshape(len(core), -1)
        out.append(core)
    return out[::-1], too_deep


def _gram_cut(seen: Any, rank: int) -> tuple[Any, Any, Any]:
    return linalg.leading_eigenvectors(linalg.gram(seen), rank)


def _svd_cut(seen: Any, rank: int) -> tuple[Any, Any, Any]:
    u, energies, _ = linalg.left_basis(seen, rank=rank, method="svd")
    return u, energies, False


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
    """Whether a Gram matrix of TT-rounding is factored by pivoted Cholesky in C++."""
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
    """Estimates the squared spectral norm of a matrix by three power iterations."""
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
    """Raises InaccurateGram if an energy is near over- or underflow; else returns it.

    Raises:
      InaccurateGram: it overflows, or is so small that what is left out of it may vanish.
    """
    if not 2.0**-500 < energy < 2.0**500:
        raise InaccurateGram
    return energy


def _cholesky(g: Any, shift: float) -> Any:
    """Factors a Gram matrix plus a shift by Cholesky; raises the shift until that succeeds."""
    eye = np.eye(len(g), dtype=g.dtype)
    for _ in range(8):
        try:
            return np.linalg.cholesky(g + shift * eye)
        except np.linalg.LinAlgError:
            shift *= 4
    raise InaccurateGram
