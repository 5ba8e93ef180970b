"""Randomised TT-rounding to ranks, its derivative rule, and the random train of its sketches.

Bonds are numbered 0 … d−2; bond k lies between cores k and k+1. A *right factor* F of bond k is a
matrix (r_k, f) with F Fᴴ the Gram matrix of everything right of the bond, exactly or by a sketch.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.truncation_sweeps import svd_round, truncate_back
from tensorjax._cores.unfoldings import Cores, tall

_VECTOR = 8  # float64 elements of the widest SIMD vectors (AVX-512)


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


def oversampled(ranks: Sequence[int], asked: int | None) -> int:
    """Returns the extra columns of a sketch in TT-rounding: as asked, or at least ten."""
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


differentiable_random_round = jax.custom_jvp(random_round, nondiff_argnums=(2, 3))


@differentiable_random_round.defjvp
def _random_round_jvp(ranks: tuple[int, ...], extra: int, primals: Any, tangents: Any) -> Any:
    """Differentiates randomised TT-rounding as if it truncated by exact SVDs.

    It truncates from right to left too, so that the values agree where the sketch misses nothing.
    """
    (cores, _), (moved, _) = primals, tangents

    def exact(cores: list[Any]) -> tuple[list[Any], Any]:
        mirrored, exponent = svd_round(_mirrored(cores), ranks[::-1], None)
        return _mirrored(mirrored), exponent

    return jax.jvp(exact, (cores,), (moved,))


def _range_rows(matrix: Any, f: Any) -> tuple[Any, Any]:
    """Returns w, q in randomised rounding: w @ q has orthonormal rows that span (matrix @ f)ᴴ."""
    rows, inner = matrix.shape
    if rows <= f.shape[1]:
        eye = linalg.identity_like(rows, matrix)
        return eye, eye
    image = linalg.adjoint(matrix)
    image = image if inner <= f.shape[1] else linalg.matmul(linalg.adjoint(f), image)
    return linalg.orthonormal_rows(image)


def _mirrored(cores: list[Any]) -> list[Any]:
    return [c.transpose(2, 1, 0) for c in reversed(cores)]
