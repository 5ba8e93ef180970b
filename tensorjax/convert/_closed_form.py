"""Disentanglers in closed form, for pairs whose bond on one side is saturated.

Suppose that some unitary r takes the pair x (r₁, n₁ n₂, r₂) to one of rank K across the middle, so
that r x = Σ_k L[a, i, k] R[k, j, b], and that r₁ = n₁ K. The vectors x[a, ·, ·] then span all of
rᴴ (C^n₁ ⊗ W) with a space W of dimension K in C^n₂ ⊗ C^r₂. Let P be the projector on it: every
contraction of P over the right leg, Σ C[b, c] P[(·, b), (·, c)], is rᴴ (1 ⊗ h) r with some h. The
eigenspaces of one contraction by a random Hermitian C are rᴴ (C^n₁ ⊗ e_j), each with a basis of its
own; the blocks of a second one between them are multiples of the unitaries that align these bases.
Mirrored, the same holds where r₂ = n₂ K. (Ours.)
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import linalg

_HIGHEST = jax.lax.Precision.HIGHEST


@functools.partial(jax.jit, static_argnames="draws")
def candidates(x: jax.Array, k: Any, key: Any, draws: int = 1) -> jax.Array:
    """Unitaries (2·draws, m, m) for rank k, exact if a side is saturated and k is the least rank.

    Args:
      x: (r₁, n₁, n₂, r₂).
      k: the rank wanted; traced, so that other ranks compile nothing.
      key: of the random contractions.
      draws: pairs of contractions for each side.
    """
    first, second = jax.random.split(key)
    left = _from_left(x, k, first, draws)
    n, m = x.shape[1:3]
    right = _from_left(x.transpose(3, 2, 1, 0), k, second, draws)
    right = right.reshape(-1, m, n, m, n).transpose(0, 2, 1, 4, 3)
    return jnp.concatenate([left, right.reshape(left.shape)])


def _from_left(x: jax.Array, k: Any, key: Any, draws: int) -> jax.Array:
    r, n, second, s = x.shape
    m = n * second
    # An orthonormal basis of the span, its leading n·k vectors.
    q, t = linalg.qr(linalg.adjoint(x.reshape(r, m * s)))
    q = linalg.matmul(q, linalg.svd(t)[0])
    q = jnp.where((jnp.arange(q.shape[1]) < n * k)[None, :], q, 0)
    basis = linalg.adjoint(q).reshape(-1, m, s)

    def contraction(key: Any) -> jax.Array:
        c = jax.random.normal(key, (s, s), x.dtype)
        moved = linalg.matmul(basis, c + linalg.adjoint(c))
        h = jnp.einsum("amb,apb->mp", moved, basis.conj(), precision=_HIGHEST)
        return (h + linalg.adjoint(h)) / 2

    def one(key: Any) -> jax.Array:
        first, other = jax.random.split(key)
        _, vectors = linalg.eigh(contraction(first))
        spaces = vectors.reshape(m, second, n).transpose(1, 0, 2)
        blocks = linalg.matmul(
            linalg.adjoint(spaces)[:, None], linalg.matmul(contraction(other), spaces)[None]
        )
        # Bases are aligned with that of the space which is tied to all others best.
        tie = jnp.sum(jnp.square(jnp.abs(blocks)), (-2, -1))
        hub = jnp.argmax(jnp.min(tie + jnp.diag(jnp.full(second, jnp.inf)), 1))
        turn, _ = linalg.polar(blocks[hub])
        itself = (jnp.arange(second) == hub)[:, None, None]
        turn = jnp.where(itself, jnp.eye(n, dtype=x.dtype), turn)
        aligned = linalg.matmul(spaces, linalg.adjoint(turn))
        return linalg.adjoint(aligned.transpose(1, 2, 0).reshape(m, m))

    return jax.vmap(one)(jax.random.split(key, draws))
