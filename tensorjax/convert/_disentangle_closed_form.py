"""Closed-form disentanglers for pairs of sites with a saturated bond on one side.

Suppose that some unitary r takes the pair x (r₁, n₁ n₂, r₂) to one of rank K across the middle, so
that r x = Σ_k L[a, i, k] R[k, j, b], and that r₁ = n₁ K. The vectors x[a, ·, ·] then span all of
rᴴ (C^n₁ ⊗ W) with a space W of dimension K in C^n₂ ⊗ C^r₂. Let P be the projector on it: every
contraction of P over the right leg, Σ C[b, c] P[(·, b), (·, c)], is rᴴ (1 ⊗ h) r with some h. The
eigenspaces of one contraction by a random Hermitian C are rᴴ (C^n₁ ⊗ e_j), each with a basis of its
own; the blocks of a second one between them are multiples of the unitaries that align these bases.
Mirrored, the same holds where r₂ = n₂ K. (Ours.)

All of it runs by NumPy, on the host, since matrix shapes differ from pair to pair.
"""

from collections.abc import Iterator

import numpy as np

from tensorjax import linalg
from tensorjax._cores.contractions import times_right
from tensorjax.convert._two_site_tensors import normal


def candidates(x: np.ndarray, k: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yields closed-form disentanglers for rank k, one from each side of a two-site tensor.

    The one from a side is exact if that side is saturated and k is the least rank.

    Args:
      x: (r₁, n₁, n₂, r₂).
      k: the rank wanted.
    """
    n, m = x.shape[1:3]
    yield _from_left(x, k, rng)
    right = _from_left(x.transpose(3, 2, 1, 0), k, rng)
    yield right.reshape(m, n, m, n).transpose(1, 0, 3, 2).reshape(right.shape)


def _from_left(x: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    r, n, second, s = x.shape
    m = n * second
    # An orthonormal basis of the span, its leading n·k vectors.
    q, t = linalg.qr(linalg.adjoint(x.reshape(r, m * s)))
    q = linalg.matmul(q, linalg.svd(t)[0][:, : n * k])
    basis = linalg.adjoint(q).reshape(-1, m, s)
    by_row = basis.transpose(1, 0, 2).reshape(m, -1)

    def contraction() -> np.ndarray:
        c = normal(rng, (s, s), x.dtype)
        moved = times_right(basis, c + linalg.adjoint(c)).transpose(1, 0, 2).reshape(m, -1)
        h = linalg.matmul(moved, linalg.adjoint(by_row))
        return (h + linalg.adjoint(h)) / 2

    _, vectors = linalg.eigh(contraction())
    spaces = vectors.reshape(m, second, n).transpose(1, 0, 2)
    image = linalg.matmul(contraction(), spaces)
    blocks = linalg.matmul(linalg.adjoint(spaces)[:, None], image[None])
    # Bases are aligned with that of the space which is tied to all others best.
    tie = np.sum(np.square(np.abs(blocks)), (-2, -1))
    hub = int(np.argmax(np.min(tie + np.diag(np.full(second, np.inf)), 1)))
    a, _, bh = np.linalg.svd(blocks[hub])
    turn = linalg.matmul(a, bh)
    turn[hub] = np.eye(n)
    aligned = linalg.matmul(spaces, linalg.adjoint(turn))
    return linalg.adjoint(aligned.transpose(1, 2, 0).reshape(m, m))
