"""Search for disentanglers: unitaries on two sites that lower the rank of the bond between.

A pair x (r₁, n₁, n₂, r₂) holds the norm of a train, its outer legs in orthonormal bases. A unitary
r on the legs (n₁, n₂) changes the spectrum across the middle, that of (r₁ n₁) × (n₂ r₂), and of no
other cut; wanted is the least rank K beyond which it has no more energy than may be discarded. The
MERA's disentangler is rᴴ.

A search tries multiples of the least K that is possible, from below, and then those between by
bisection. (From above it would fail: far over the least rank the solutions have many directions
that do not matter, and convergence is slow.) From several starts at once (closed forms, the
identity, that of little Rényi entropy, random ones) each try goes through

1. *Procrustes* steps (Batselier, Cichocki, Wong, arXiv 1912.09775): b is the best approximation of
   rank K, and r the unitary that takes x nearest to b. The energy beyond K never grows, but falls
   linearly, and slowly.
2. *Gauss–Newton* steps, ours: to first order, a step z (skew-Hermitian) leaves beyond K the part of
   (1 + z) x outside the leading spaces, which is linear in z. Least squares, damped (Levenberg,
   Marquardt) and solved by conjugate gradients, converge quadratically where that part can vanish.

No unitary gets below K = max(⌈rank of x's left leg / n₁⌉, ⌈rank of its right leg / n₂⌉): reaching
that bound ends a search with a proof.

A closed form serves pairs with a saturated bond on one side. Suppose that some unitary r takes the
pair x (r₁, n₁ n₂, r₂) to one of rank K across the middle, so that r x = Σ_k L[a, i, k] R[k, j, b],
and that r₁ = n₁ K. The vectors x[a, ·, ·] then span all of rᴴ (C^n₁ ⊗ W) with a space W of
dimension K in C^n₂ ⊗ C^r₂. Let P be the projector on it: every
contraction of P over the right leg, Σ C[b, c] P[(·, b), (·, c)], is rᴴ (1 ⊗ h) r with some h. The
eigenspaces of one contraction by a random Hermitian C are rᴴ (C^n₁ ⊗ e_j), each with a basis of its
own; the blocks of a second one between them are multiples of the unitaries that align these bases.
Mirrored, the same holds where r₂ = n₂ K. (Ours.)

All of it runs by NumPy, on the host, since matrix shapes differ from pair to pair.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import join, times_mode, times_right
from tensorjax._cores.unfoldings import tall
from tensorjax.convert._disentangler_iterations import least_entropy, lowered_tail, normal

# A disentangler stores n₁² n₂² elements: one that cannot lower the rank to this share is not
# searched for, nor one with more elements than the whole train.
_WORTH = 0.5
# Ranks to try, in multiples of the lower bound: an exact low rank usually is among them.
_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_POLISH = 8  # steps from a closed form, which noise may have spoilt
_ROUNDS = 3  # times that fresh random starts are drawn at the least rank possible


class Options(NamedTuple):
    """Options of the search for disentanglers in a conversion from TT to MERA."""

    method: str = "procrustes"
    gauge: str = "center"
    restarts: int = 8
    iterations: int = 60
    key: jax.Array | None = None
    progress: Callable[[str], None] | None = None
    layer: int = 0
    cut: int = 0
    most: float = math.inf  # elements of the train

    def generator(self, *numbers: int) -> np.random.Generator:
        """Returns a NumPy random generator, seeded by the key and the disentangler's position."""
        data = (0, 0) if self.key is None else _check.seed(self.key)
        return np.random.default_rng([*map(int, data), self.layer, self.cut, *numbers])


class Found(NamedTuple):
    """Result of a disentangler search: the unitary (None for the identity) and its method."""

    u: np.ndarray | None
    bound: int = 1
    iterations: int = 0
    how: str = "identity"


def find(x: np.ndarray, seen: np.ndarray, tail: float, plain: int, options: Options) -> Found:
    """Searches for a disentangler that lowers the rank between two neighbouring sites of a train.

    Args:
      x: (r₁, n₁, n₂, r₂) of norm one.
      seen: the same pair in the gauge in which iterations look at it.
      tail: energy that may be discarded at the cut.
      plain: rank without a disentangler.
      options: the method, and its parameters.
    """
    m = x.shape[1] * x.shape[2]
    if options.method == "identity" or m == 1:
        return Found(None)
    if options.method == "qr":
        q = np.linalg.qr(x.transpose(1, 2, 3, 0).reshape(m, -1), mode="complete")[0]
        return Found(linalg.adjoint(q), how="QR")
    bound = _lower_bound(x, tail)
    if bound > _WORTH * plain or m**2 > options.most:
        return Found(None, bound)
    if options.method == "entropy":
        starts = _starts(options.generator(), m, options.restarts, x.dtype)
        small = _compressed(seen, plain)
        found = [least_entropy(small, u, options.iterations) for u in starts]
        return Found(min(found, key=lambda x: x[1])[0], bound, options.iterations, "entropy")
    return _Search(x, seen, tail, options).run(bound, plain)


def _lower_bound(x: np.ndarray, tail: float) -> int:
    r, n, k, s = x.shape
    left = linalg.gram(x.reshape(r, -1))
    right = linalg.gram(x.reshape(-1, s).T)
    ranks = [_rank(np.linalg.eigvalsh(g)[::-1], tail) for g in (left, right)]
    return max(-(-ranks[0] // n), -(-ranks[1] // k))


def _rank(energies: np.ndarray, tail: float) -> int:
    """Returns the least rank that discards at most ``tail``, in the search for a disentangler."""
    noise = 16 * np.finfo(energies.dtype).eps * max(energies[0], 0)
    rest = np.cumsum(np.maximum(energies[::-1], 0))[::-1]
    return max(1, int(np.sum(rest > tail + len(energies) * noise)))


def _compressed(x: np.ndarray, k: int) -> np.ndarray:
    """Projects the outer legs of a two-site tensor, for a cheaper search for disentanglers.

    Projections lower the energy beyond any rank, so what fails here fails for the whole pair.
    """
    r, n, m, s = x.shape
    size = k + 3 * n * m // 2
    a, b = min(r, -(-size // n)), min(s, -(-size // m))
    if 2 * a * b > r * s:
        return x
    left = x.reshape(r, -1)
    u = np.linalg.eigh(linalg.gram(left))[1][:, : -a - 1 : -1]
    rest = linalg.project(u, left).reshape(a, n, m, s)
    v = np.linalg.eigh(linalg.gram(tall(rest).T))[1][:, : -b - 1 : -1].conj()
    return join(rest, v)


def _beyond(y: np.ndarray, k: int) -> float:
    """Estimates a two-site tensor's energy beyond rank k, in the search for a disentangler."""
    matrix = y.reshape(y.shape[0] * y.shape[1], -1)
    mixed = linalg.random_like(None, (matrix.shape[1], min(k, *matrix.shape)), matrix)
    mixed = linalg.matmul(linalg.adjoint(matrix), linalg.matmul(matrix, mixed))
    q = linalg.qr(linalg.matmul(matrix, mixed))[0]
    mixed = linalg.matmul(linalg.adjoint(matrix), q)
    return float(linalg.energy(matrix - linalg.matmul(q, linalg.adjoint(mixed))))


class _Search:
    """Search for the disentangler of two sites that leaves the lowest rank between them."""

    def __init__(self, x: np.ndarray, seen: np.ndarray, tail: float, options: Options):
        self.x, self.tail, self.options = x, tail, options
        self.seen = seen / np.linalg.norm(seen)
        self.count = 0

    def run(self, bound: int, plain: int) -> Found:
        """Tries ranks upwards until a disentangler reaches one within tolerance, then bisects."""
        top = max(bound, int(_WORTH * plain))
        low, best, u = bound - 1, 0, None
        for k in sorted({bound * step for step in _LADDER if bound * step < top} | {top}):
            u = self.attempt(k, rounds=_ROUNDS if k == bound else 1)
            if u is not None:
                best = k
                break
            low = k
        while u is not None and best - low > 1:
            k = (low + best) // 2
            better = self.attempt(k, near=u)
            if better is None:
                low = k
            else:
                u, best = better, k
        how = "closed form" if self.count == 0 else "procrustes"
        return Found(u, bound, self.count, "identity" if u is None else how)

    def attempt(self, k: int, *, rounds: int = 1, near: Any = None) -> np.ndarray | None:
        """Returns a disentangler for rank k within the discarded energy allowed, or None."""
        closed = []
        for u in candidates(self.x, k, self.options.generator()):
            if _beyond(applied(u, self.x), k) <= self.tail:
                return u
            closed.append(u)
        u, f = self.lowered(self.x, closed, k, _POLISH)
        if f <= self.tail:
            return u
        m = self.x.shape[1] * self.x.shape[2]
        small = _compressed(self.seen, k)
        whole = small.shape == self.x.shape and self.options.gauge == "center"
        for number in range(rounds):
            rng = self.options.generator(k, number)
            starts = _starts(rng, m, self.options.restarts, self.x.dtype, near)
            starts = [u, self.warmed(small, starts[0]), *starts]
            v, f = self.lowered(small, starts, k, self.options.iterations)
            if f <= self.tail and not whole:
                v, f = self.lowered(self.x, [v], k, self.options.iterations)
            if f <= self.tail:
                return v
        return None

    def warmed(self, x: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Improves a disentangler, in the search, by a few steps that lower the entropy."""
        count = self.options.iterations // 4 + 1
        self.count += count
        return least_entropy(x, start, count)[0]

    def lowered(
        self, x: np.ndarray, starts: Sequence[np.ndarray], k: int, iterations: int
    ) -> tuple[np.ndarray, float]:
        """Improves the search's disentanglers for rank k by Procrustes and Gauss–Newton steps."""
        u, tail, count = lowered_tail(
            x, starts, k, self.tail, self.options.generator(k), iterations
        )
        self.count += count
        return u, tail


def _starts(
    rng: np.random.Generator, m: int, count: int, dtype: Any, near: Any = None
) -> list[np.ndarray]:
    """Returns where a search starts: the identity or a given disentangler, then random ones.

    Half of the real ones have each sign of the determinant, as no continuous path joins the signs.
    """
    first = np.eye(m, dtype=dtype) if near is None else near
    random = linalg.qr(normal(rng, (count, m, m), dtype))[0]
    random[::2, :, 0] *= -1
    return [first, *random]


def applied(u: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Applies a disentangler, a unitary on two sites, to the middle legs of a two-site tensor."""
    r, n, k, s = x.shape
    return times_mode(x.reshape(r, n * k, s), u).reshape(x.shape)


def candidates(x: np.ndarray, k: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yields closed-form disentanglers to search for rank k, one from each side of a tensor.

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
