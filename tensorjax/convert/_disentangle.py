"""Disentanglers: unitaries on a pair of sites that lower the rank of the bond between them.

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
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax import linalg
from tensorjax._stiefel import cayley, line_search, skew
from tensorjax.convert._closed_form import candidates

# A disentangler costs n₁² n₂² numbers: one that lowers the rank less than this is not looked for,
# nor one that costs more than the whole train.
_WORTH = 0.5
# A start that Gauss–Newton steps did not improve by this share in so many steps is given up.
_STALLED, _CHECKED_EVERY = 0.05, 8
# Ranks that are tried, in multiples of the bound: a planted one usually is among them.
_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_POLISH = 8  # steps from a closed form, which noise may have spoilt
_INNER = 30  # conjugate-gradient steps in one Gauss–Newton step
_ROUNDS = 3  # times that fresh random starts are drawn at the least rank possible


class Options(NamedTuple):
    """What a search is asked for; see `tensorjax.convert.tt_to_mera`."""

    method: str = "procrustes"
    gauge: str = "center"
    restarts: int = 8
    iterations: int = 60
    key: jax.Array | None = None
    progress: Callable[[str], None] | None = None
    layer: int = 0
    cut: int = 0
    most: float = math.inf  # numbers in the train


class Found(NamedTuple):
    """A unitary on the legs (n₁ n₂) of a pair, or None for the identity, and how it was found."""

    u: np.ndarray | None
    bound: int = 1
    iterations: int = 0
    how: str = "identity"


def find(x: np.ndarray, seen: np.ndarray, tail: float, plain: int, options: Options) -> Found:
    """A disentangler of the pair ``x``.

    Args:
      x: (r₁, n₁, n₂, r₂) of norm one.
      seen: the same pair in the gauge in which iterations look at it.
      tail: energy that may be discarded at the cut.
      plain: rank without a disentangler.
      options: the method, and its numbers.
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
    key = jax.random.key(0) if options.key is None else options.key
    key = jax.random.fold_in(jax.random.fold_in(key, options.layer), options.cut)
    if options.method == "entropy":
        starts = _starts(key, m, options.restarts, x.dtype)
        us, entropies, count = _least_entropy(
            _padded(_compressed(seen, plain)), starts, options.iterations
        )
        best = int(np.argmin(np.asarray(entropies)))
        return Found(np.asarray(us[best]), bound, int(count), "entropy")
    return _Search(x, seen, tail, key, options).run(bound, plain)


def applied(u: np.ndarray, x: np.ndarray) -> np.ndarray:
    """u on the middle legs of a pair."""
    r, n, k, s = x.shape
    return linalg.matmul(u, x.reshape(r, n * k, s)).reshape(x.shape)


def _lower_bound(x: np.ndarray, tail: float) -> int:
    r, n, k, s = x.shape
    left = linalg.gram(x.reshape(r, -1))
    right = linalg.gram(x.reshape(-1, s).T)
    ranks = [_rank(np.linalg.eigvalsh(g)[::-1], tail) for g in (left, right)]
    return max(-(-ranks[0] // n), -(-ranks[1] // k))


def _rank(energies: np.ndarray, tail: float) -> int:
    """The least rank that discards no more than ``tail``; never too large for roundoff's sake."""
    noise = 16 * np.finfo(energies.dtype).eps * max(energies[0], 0)
    rest = np.cumsum(np.maximum(energies[::-1], 0))[::-1]
    return max(1, int(np.sum(rest > tail + len(energies) * noise)))


def _compressed(x: np.ndarray, k: int) -> np.ndarray:
    """A pair on the leading vectors of its outer legs: smaller, still overdetermined for rank k.

    Projections lower the energy beyond any rank, so what fails here fails for the whole pair.
    """
    r, n, m, s = x.shape
    size = k + 3 * n * m // 2
    a, b = min(r, -(-size // n)), min(s, -(-size // m))
    if 2 * a * b > r * s:
        return x
    left = x.reshape(r, -1)
    u = np.linalg.eigh(linalg.gram(left))[1][:, : -a - 1 : -1]
    rest = linalg.project(u, left).reshape(-1, s)
    v = np.linalg.eigh(linalg.gram(rest.T))[1][:, : -b - 1 : -1].conj()
    return linalg.matmul(rest, v).reshape(a, n, m, b)


def _padded(x: np.ndarray) -> jax.Array:
    """Zeros on the outer legs, up to a power of four: few programs are compiled for many pairs."""
    r, *_, s = x.shape
    more = [max(16, 4 ** math.ceil(math.log(size, 4) - 1e-9)) - size for size in (r, s)]
    return jnp.asarray(np.pad(x, ((0, more[0]), (0, 0), (0, 0), (0, more[1]))))


def _beyond(y: np.ndarray, k: int) -> float:
    """Energy of a pair across the middle that the range of k mixed columns leaves out."""
    matrix = y.reshape(y.shape[0] * y.shape[1], -1)
    mixed = linalg.random_like(None, (matrix.shape[1], min(k, *matrix.shape)), matrix)
    mixed = linalg.matmul(linalg.adjoint(matrix), linalg.matmul(matrix, mixed))
    q = linalg.qr(linalg.matmul(matrix, mixed))[0]
    mixed = linalg.matmul(linalg.adjoint(matrix), q)
    return float(linalg.energy(matrix - linalg.matmul(q, linalg.adjoint(mixed))))


class _Search:
    """The least rank that a disentangler of one pair reaches."""

    def __init__(self, x: np.ndarray, seen: np.ndarray, tail: float, key: Any, options: Options):
        self.x, self.tail, self.key, self.options = x, tail, key, options
        self.seen = seen / np.linalg.norm(seen)
        self.count = 0

    def run(self, bound: int, plain: int) -> Found:
        """Climbs multiples of the bound, then looks between the last two."""
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
        """A unitary that leaves no more than the tail beyond rank k, if one is found."""
        closed = []
        seed = np.random.default_rng(np.asarray(jax.random.key_data(self.key)).ravel())
        for u in candidates(self.x, k, seed):
            if _beyond(applied(u, self.x), k) <= self.tail:
                return u
            closed.append(u)
        full = _padded(self.x)
        closed = jnp.asarray(np.stack(closed))
        u, f = self.lowered(full, closed, k, self.key, _POLISH)
        if f <= self.tail:
            return np.asarray(u)
        m = self.x.shape[1] * self.x.shape[2]
        small = _padded(_compressed(self.seen, k))
        whole = small.shape == full.shape and self.options.gauge == "center"
        for number in range(rounds):
            key = jax.random.fold_in(self.key, rounds * k + number)
            starts = _starts(key, m, self.options.restarts, self.x.dtype, near)
            starts = jnp.concatenate([u[None], self.warmed(small, starts), starts])
            v, f = self.lowered(small, starts, k, key, self.options.iterations)
            if f <= self.tail and not whole:
                again = jnp.broadcast_to(v, closed.shape)  # as many as before: the same program
                v, f = self.lowered(full, again, k, key, self.options.iterations)
            if f <= self.tail:
                return np.asarray(v)
        return None

    def warmed(self, x: jax.Array, starts: jax.Array) -> jax.Array:
        """What few entropy steps make of the first start."""
        us, _, count = _least_entropy(x, starts[:1], self.options.iterations // 4 + 1)
        self.count += int(count)
        return us

    def lowered(
        self, x: jax.Array, starts: jax.Array, k: int, key: Any, iterations: int
    ) -> tuple[Any, float]:
        """The best of all starts after Procrustes and Gauss–Newton steps; its energy beyond k."""
        limit = min(x.shape[0] * x.shape[1], x.shape[2] * x.shape[3])
        # A power of two: few programs are compiled for many ranks.
        width = min(limit, max(16, 1 << k.bit_length()))
        us, tails, count = _iterate(x, starts, k, self.tail, key, width, iterations)
        self.count += int(count)
        best = int(np.argmin(np.asarray(tails)))
        return us[best], float(tails[best])


def _starts(key: Any, m: int, count: int, dtype: Any, near: Any = None) -> jax.Array:
    """The identity or what is known to be near, and random unitaries.

    Half of the real ones have each sign of the determinant: no path joins the two halves.
    """
    first = jnp.eye(m, dtype=dtype) if near is None else jnp.asarray(near)
    random = linalg.qr(jax.random.normal(key, (count, m, m), dtype))[0]
    random = random.at[::2, :, 0].multiply(-1)
    return jnp.concatenate([first[None], random])


# Iterations on one pair, from many starts at once ------------------------------------------------


class _State(NamedTuple):
    u: jax.Array  # (m, m) unitary so far
    y: jax.Array  # (r₁, m, r₂), u x
    q: jax.Array  # left basis, leading first, some columns wider than k
    v: jax.Array  # right basis, columns from k on zero
    tail: jax.Array
    damping: jax.Array
    mark: jax.Array  # tail at the last check
    active: jax.Array


def _unfolded(y: jax.Array, n: int) -> jax.Array:
    r, m, s = y.shape
    return y.reshape(r * n, m // n * s)


def _truncated(y: jax.Array, q: jax.Array, k: Any, n: int) -> tuple[Any, Any, Any]:
    """One step of subspace iteration: left basis, right basis cut at k, energy beyond k."""
    matrix = _unfolded(y, n)
    q = linalg.qr(linalg.matmul(matrix, linalg.matmul(linalg.adjoint(matrix), q)))[0]
    v, t = linalg.qr(linalg.matmul(linalg.adjoint(matrix), q))
    a, _, bh = linalg.svd(t)
    q = linalg.matmul(q, linalg.adjoint(bh))
    v = jnp.where(_kept(q, k), linalg.matmul(v, a), 0)
    lead = jnp.where(_kept(q, k), q, 0)
    rest = matrix - linalg.matmul(lead, linalg.matmul(linalg.adjoint(lead), matrix))
    tail = linalg.energy(rest)
    # A start that broke down must not hide the others.
    return q, v, jnp.where(jnp.isnan(tail), jnp.inf, tail)


def _kept(q: jax.Array, k: Any) -> jax.Array:
    return (jnp.arange(q.shape[1]) < k)[None, :]


@functools.partial(jax.jit, static_argnames="width")
def _iterate(
    x: jax.Array, starts: jax.Array, k: Any, goal: Any, key: Any, width: int, iterations: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Lowers the energy of a pair (r₁, n₁, n₂, r₂) beyond rank k until one start reaches the goal.

    Procrustes steps first, a third of ``iterations``, then Gauss–Newton steps. ``k`` is traced and
    ``width`` ≥ k static. Returns the unitaries, the energies beyond k, and the steps taken.
    """
    r, n, second, s = x.shape
    x = x.reshape(r, n * second, s)
    scale = linalg.energy(x.reshape(r, -1))
    sketch = jax.random.normal(key, (second * s, width), x.dtype)

    def first(u: jax.Array) -> _State:
        y = linalg.matmul(u, x)
        q = linalg.qr(linalg.matmul(_unfolded(y, n), sketch))[0]
        q, _, _ = _truncated(y, q, k, n)
        q, v, tail = _truncated(y, q, k, n)
        damping = 0.1 * scale / (n * second)
        return _State(u, y, q, v, tail, damping, tail, jnp.ones((), bool))

    def loop(
        step: Callable[[_State], _State], state: _State, most: int
    ) -> tuple[_State, jax.Array]:
        def going(carry: tuple[_State, jax.Array, jax.Array]) -> jax.Array:
            now, count, before = carry
            best = jnp.min(now.tail)
            # At the goal, go on while a step still gains a factor of ten.
            reached = (best <= goal) & (best > 0.1 * before)
            return jnp.any(now.active) & (count < most) & ~reached

        def body(carry: tuple[_State, jax.Array, jax.Array]) -> Any:
            now, count, _ = carry
            new = jax.vmap(step)(now)
            due = count % _CHECKED_EVERY == _CHECKED_EVERY - 1
            active = new.active & ~(due & (new.tail > (1 - _STALLED) * new.mark))
            new = new._replace(active=active, mark=jnp.where(due, new.tail, new.mark))
            return new, count + 1, jnp.min(now.tail)

        state, count, _ = lax.while_loop(
            going, body, (state, jnp.zeros((), jnp.int32), jnp.min(state.tail))
        )
        return state._replace(active=jnp.ones_like(state.active), mark=state.tail), count

    state = jax.vmap(first)(starts)
    state, slow = loop(lambda state: _procrustes(state, k, n), state, iterations // 3)
    state, fast = loop(lambda state: _gauss_newton(state, k, n, scale), state, iterations)
    return state.u, state.tail, slow + fast


def _procrustes(state: _State, k: Any, n: int) -> _State:
    """The unitary that takes the pair nearest to its best approximation of rank k."""
    y = state.y
    lead = jnp.where(_kept(state.q, k), state.q, 0)
    matrix = _unfolded(y, n)
    b = linalg.matmul(lead, linalg.matmul(linalg.adjoint(lead), matrix)).reshape(y.shape)
    w, _ = linalg.polar(jnp.einsum("amb,apb->mp", b, y.conj(), precision=lax.Precision.HIGHEST))
    y = linalg.matmul(w, y)
    q, v, tail = _truncated(y, state.q, k, n)
    new = state._replace(u=linalg.matmul(w, state.u), y=y, q=q, v=v, tail=tail)
    return _chosen(state.active & (tail < state.tail), new, state)


def _gauss_newton(state: _State, k: Any, n: int, scale: jax.Array) -> _State:
    y, damping = state.y, state.damping
    lead = jnp.where(_kept(state.q, k), state.q, 0)

    def outside(t: jax.Array) -> jax.Array:
        t = t - linalg.matmul(lead, linalg.matmul(linalg.adjoint(lead), t))
        return t - linalg.matmul(linalg.matmul(t, state.v), linalg.adjoint(state.v))

    def change(z: jax.Array) -> jax.Array:
        return outside(_unfolded(linalg.matmul(z, y), n))

    def adjoint_change(t: jax.Array) -> jax.Array:
        product = jnp.einsum(
            "amb,apb->mp", t.reshape(y.shape), y.conj(), precision=lax.Precision.HIGHEST
        )
        return skew(product)

    right = -adjoint_change(outside(_unfolded(y, n)))
    size = linalg.energy(right)
    # The nearer the goal, the more exactly the linear problem is solved.
    enough = size * jnp.minimum(0.01, state.tail / scale)

    def going(carry: Any) -> jax.Array:
        return state.active & (carry[3] > enough) & (carry[4] < _INNER)

    def conjugate_gradient(carry: Any) -> Any:
        z, residual, p, before, count = carry
        image = adjoint_change(change(p)) + damping.astype(p.dtype) * p
        step = before / linalg.where_positive(jnp.vdot(p, image).real, 1.0)
        residual = residual - step.astype(p.dtype) * image
        now = linalg.energy(residual)
        turn = (now / linalg.where_positive(before, 1.0)).astype(p.dtype)
        return z + step.astype(p.dtype) * p, residual, residual + turn * p, now, count + 1

    start = jnp.zeros_like(right), right, right, size, jnp.zeros((), jnp.int32)
    z = lax.while_loop(going, conjugate_gradient, start)[0]
    w = cayley(z)
    moved = linalg.matmul(w, y)
    q, v, tail = _truncated(moved, state.q, k, n)
    new = state._replace(
        u=linalg.matmul(w, state.u), y=moved, q=q, v=v, tail=tail, damping=0.3 * damping
    )
    return _chosen(state.active & (tail < state.tail), new, state._replace(damping=4 * damping))


def _chosen(take: jax.Array, new: _State, old: _State) -> _State:
    return jax.tree.map(lambda a, b: jnp.where(take, a, b), new, old)


@functools.partial(jax.jit, static_argnames="iterations")
def _least_entropy(
    x: jax.Array, starts: jax.Array, iterations: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Unitaries of small Rényi entropy −log Tr ρ² across the middle, by Riemannian descent.

    Conjugate gradients in the Lie algebra of skew-Hermitian matrices, with the Polak–Ribière rule.
    The entropy of order two needs matrix products only. Returns unitaries, entropies, steps taken.
    """
    r, n, second, s = x.shape
    x = x.reshape(r, n * second, s)
    x = x / jnp.sqrt(linalg.energy(x.reshape(r, -1))).astype(x.dtype)

    def entropy(z: jax.Array, y: jax.Array) -> jax.Array:
        matrix = _unfolded(linalg.matmul(cayley(z), y), n)
        matrix = matrix if matrix.shape[0] <= matrix.shape[1] else linalg.adjoint(matrix)
        return -jnp.log(linalg.energy(linalg.matmul(matrix, linalg.adjoint(matrix))))

    def one(u: jax.Array) -> tuple[jax.Array, jax.Array]:
        zero = jnp.zeros_like(u)

        def step(carry: Any, _: None) -> tuple[Any, None]:
            u, direction, past, length = carry
            y = linalg.matmul(u, x)
            value, gradient = jax.value_and_grad(entropy)(zero, y)
            g = skew(gradient.conj())
            before = linalg.energy(past)
            turn = jnp.maximum(jnp.vdot(g, g - past).real, 0) / linalg.where_positive(before, 1.0)
            d = -g + jnp.where(before > 0, turn, 0).astype(g.dtype) * direction
            slope = jnp.vdot(d, g).real
            d, slope = (
                jnp.where(slope < 0, a, b) for a, b in ((d, -g), (slope, -linalg.energy(g)))
            )
            t = line_search(lambda t: entropy(t.astype(d.dtype) * d, y), value, slope, length)
            u = linalg.matmul(cayley(t.astype(d.dtype) * d), u)
            return (u, d, g, 2 * linalg.where_positive(t, 0.5)), None

        first = u, zero, zero, jnp.ones((), x.real.dtype)
        (u, *_), _ = lax.scan(step, first, None, length=iterations)
        return u, entropy(zero, linalg.matmul(u, x))

    us, entropies = jax.vmap(one)(starts)
    return us, entropies, jnp.asarray(iterations)
