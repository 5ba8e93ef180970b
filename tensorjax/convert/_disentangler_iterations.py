"""Iterations on disentanglers of two-site tensors: Procrustes, Gauss–Newton, least Rényi entropy.

All of it runs by NumPy, on the host: matrix shapes differ from pair to pair and from rank to rank,
so that JAX would compile a program for nearly every factorisation.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax import linalg
from tensorjax._cores.contractions import einsum
from tensorjax.linalg._riemannian_optimization import cayley, line_search, skew

# A start that steps did not improve by this share in so many steps is given up.
_STALLED, _CHECKED_EVERY = 0.05, 8
_INNER = 30  # conjugate-gradient steps in one Gauss–Newton step


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Draws normal entries by NumPy, real or complex, for iterations on disentanglers."""
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def unfolded(y: np.ndarray, n: int) -> np.ndarray:
    """Unfolds two-site tensors (…, r₁, n₁ n₂, r₂) for iterations to (r₁ n₁) × (n₂ r₂)."""
    *batch, r, m, s = y.shape
    return y.reshape(*batch, r * n, m // n * s)


def pairing(y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the adjoint of z ↦ z y for a two-site tensor y, used by disentangler iterations.

    With a batch of tensors y, (b, r₁, m, r₂), there is a map for each.
    """
    right = np.ascontiguousarray(y.conj().swapaxes(-1, -2))
    expression = "imj,ijp->mp" if y.ndim == 3 else "bimj,bijp->bmp"
    return lambda a: einsum(expression, a.reshape(y.shape), right)


class _States(NamedTuple):
    """Batch of disentanglers of a pair of sites under Procrustes steps, each with its goal."""

    u: np.ndarray  # (b, m, m) unitary so far
    y: np.ndarray  # (b, r₁, m, r₂), u x
    q: np.ndarray  # left bases, leading first, some columns wider than k
    v: np.ndarray  # right bases, k columns
    tail: np.ndarray  # (b,)
    damping: np.ndarray  # (b,)
    mark: np.ndarray  # (b,), tail at the last check
    active: np.ndarray  # (b,) booleans

    def of(self, which: np.ndarray) -> "_States":
        """Selects candidate disentanglers from a batch by an index array."""
        return _States(*(x[which] for x in self))

    def with_better(self, which: np.ndarray, **new: np.ndarray) -> "_States":
        """Replaces disentanglers of a batch where new ones discard less energy (tail)."""
        better = new["tail"] < self.tail[which]
        fields = {name: getattr(self, name).copy() for name in new}
        for name, value in new.items():
            fields[name][which[better]] = value[better]
        return self._replace(**fields)


class _Goal(NamedTuple):
    k: int  # the rank wanted
    n: int  # dimension of the left one of the middle legs
    tail: float  # energy beyond k that is small enough
    scale: float  # energy of the pair


def lowered_tail(
    x: np.ndarray,
    starts: Sequence[np.ndarray],
    k: int,
    goal: float,
    rng: np.random.Generator,
    iterations: int,
) -> tuple[np.ndarray, float, int]:
    """Lowers a two-site tensor's energy beyond rank k by iterations on disentanglers.

    Procrustes steps first, a third of ``iterations``, then Gauss–Newton steps. Returns the best
    unitary, its energy beyond k, and the steps taken.
    """
    r, n, second, s = x.shape
    x = x.reshape(r, n * second, s)
    limit = min(r * n, second * s)
    k = min(k, limit)
    width = min(limit, max(16, 1 << k.bit_length()))
    sketch = normal(rng, (second * s, width), x.dtype)
    wanted = _Goal(k, n, goal, float(linalg.energy(x.reshape(r, -1))))
    states = _first(np.stack(starts), x, sketch, wanted)
    states, slow = _stepped(_procrustes, states, wanted, iterations // 3)
    states, fast = _stepped(_gauss_newton, states, wanted, iterations)
    best = int(states.tail.argmin())
    return states.u[best], float(states.tail[best]), slow + fast


def _first(u: np.ndarray, x: np.ndarray, sketch: np.ndarray, goal: _Goal) -> _States:
    y = _applied(u, x[None])
    q = linalg.qr(linalg.matmul(unfolded(y, goal.n), sketch))[0]
    q, _, _ = _truncated(y, q, goal)
    q, v, tail = _truncated(y, q, goal)
    damping = np.full_like(tail, 0.1 * goal.scale / u.shape[-1])
    return _States(u, y, q, v, tail, damping, tail, np.ones(len(u), bool))


def _applied(u: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Applies candidate disentanglers (b, m, m) to two-site tensors, for a Procrustes step."""
    return linalg.matmul(u[:, None], y)


def _truncated(y: np.ndarray, q: np.ndarray, goal: _Goal) -> tuple[Any, Any, np.ndarray]:
    """Computes bases of two-site tensors and energies beyond rank k, in Procrustes iterations."""
    matrix = unfolded(y, goal.n)
    q = linalg.qr(linalg.matmul(matrix, linalg.matmul(linalg.adjoint(matrix), q)))[0]
    v, t = linalg.qr(linalg.matmul(linalg.adjoint(matrix), q))
    a, _, bh = linalg.svd(t)
    q = linalg.matmul(q, linalg.adjoint(bh))
    lead = q[..., : goal.k]
    rest = matrix - linalg.matmul(lead, linalg.matmul(linalg.adjoint(lead), matrix))
    return q, linalg.matmul(v, a[..., : goal.k]), linalg.energy(rest)


def _stepped(
    step: Callable[[_States, _Goal], _States], states: _States, goal: _Goal, most: int
) -> tuple[_States, int]:
    """Repeats Procrustes or Gauss–Newton steps on all disentanglers, to the goal or ``most``."""
    states = states._replace(active=np.ones_like(states.active), mark=states.tail)
    best = before = states.tail.min()
    count = 0
    while count < most and states.active.any():
        # At the goal, go on while a step still gains a factor of ten.
        if best <= goal.tail and best > 0.1 * before:
            break
        states = step(states, goal)
        if count % _CHECKED_EVERY == _CHECKED_EVERY - 1:
            active = states.active & (states.tail <= (1 - _STALLED) * states.mark)
            states = states._replace(active=active, mark=states.tail)
        count += 1
        before, best = best, states.tail.min()
    return states, count


def _procrustes(states: _States, goal: _Goal) -> _States:
    """Takes Procrustes steps on disentanglers, towards best rank-k two-site tensors."""
    which = np.flatnonzero(states.active)
    now = states.of(which)
    lead = now.q[..., : goal.k]
    b = linalg.matmul(lead, linalg.matmul(linalg.adjoint(lead), unfolded(now.y, goal.n)))
    a, _, bh = linalg.svd(pairing(now.y)(b))
    w = linalg.matmul(a, bh)
    y = _applied(w, now.y)
    q, v, tail = _truncated(y, now.q, goal)
    return states.with_better(which, u=linalg.matmul(w, now.u), y=y, q=q, v=v, tail=tail)


def _gauss_newton(states: _States, goal: _Goal) -> _States:
    """Takes damped Gauss–Newton steps on disentanglers, to lower energies beyond rank k."""
    which = np.flatnonzero(states.active)
    now = states.of(which)
    w = cayley(_least_squares(now, goal))
    y = _applied(w, now.y)
    q, v, tail = _truncated(y, now.q, goal)
    damping = states.damping.copy()
    damping[which] *= np.where(tail < now.tail, 0.3, 4.0)
    states = states.with_better(which, u=linalg.matmul(w, now.u), y=y, q=q, v=v, tail=tail)
    return states._replace(damping=damping)


def _least_squares(states: _States, goal: _Goal) -> np.ndarray:
    """Solves damped least squares of disentanglers' Gauss–Newton steps by conjugate gradients."""
    y, v, lead = states.y, states.v, states.q[..., : goal.k]
    paired, to_lead, to_v = pairing(y), linalg.adjoint(lead), linalg.adjoint(v)
    damping = states.damping[:, None, None]

    def outside(t: np.ndarray) -> np.ndarray:
        t = t - lead @ (to_lead @ t)
        return t - (t @ v) @ to_v

    def image_of(z: np.ndarray) -> np.ndarray:
        return skew(paired(outside(unfolded(_applied(z, y), goal.n)))) + damping * z

    residual = -skew(paired(outside(unfolded(y, goal.n))))
    z, p, before = np.zeros_like(residual), residual, _squared(residual)
    # The nearer the goal, the more exactly the linear problem is solved.
    enough = before * np.minimum(0.01, states.tail / goal.scale)
    for _ in range(_INNER):
        going = before > enough  # those at their end are multiplied on, and change no more
        if not going.any():
            break
        image = image_of(p)
        curvature = (p.conj() * image).sum(axis=(1, 2)).real
        step = np.where(curvature > 0, before / np.where(curvature > 0, curvature, 1), before)
        step = np.where(going, step, 0)[:, None, None]
        z = z + step * p
        residual = residual - step * image
        now = np.where(going, _squared(residual), before)
        turn = np.where(going & (before > 0), now / np.where(before > 0, before, 1), 0)
        p = np.where(going[:, None, None], residual + turn[:, None, None] * p, p)
        before = now
    return z


def _squared(z: np.ndarray) -> np.ndarray:
    return np.square(np.abs(z)).sum(axis=(1, 2))


def least_entropy(x: np.ndarray, u: np.ndarray, iterations: int) -> tuple[np.ndarray, float]:
    """Minimises a two-site tensor's Rényi entropy over unitaries by iterations; returns both.

    Conjugate gradients in the Lie algebra of skew-Hermitian matrices, with the Polak–Ribière rule.
    The entropy of order two needs matrix products only.

    Args:
      x: pair (r₁, n₁, n₂, r₂).
      u: unitary (n₁ n₂, n₁ n₂) to start from.
      iterations: steps taken.
    """
    r, n, second, s = x.shape
    x = (x / np.linalg.norm(x)).reshape(r, n * second, s)
    direction, past = np.zeros_like(u), np.zeros_like(u)
    length = np.float64(1)
    for _ in range(iterations):
        y = linalg.matmul(u, x)
        value, gradient = _entropy_and_gradient(y, n)
        g = skew(gradient)
        before = linalg.energy(past)
        turn = max(np.vdot(g, g - past).real, 0) / before if before > 0 else 0.0
        d = turn * direction - g
        slope = np.vdot(d, g).real
        if slope >= 0:
            d, slope = -g, -linalg.energy(g)
        t = line_search(_along(d, y, n), value, slope, length)
        u = linalg.matmul(cayley(t * d), u)
        direction, past, length = d, g, 2 * (t if t > 0 else np.float64(0.5))
    return u, float(_entropy(linalg.matmul(u, x), n))


def _along(d: np.ndarray, y: np.ndarray, n: int) -> Callable[[Any], Any]:
    return lambda t: _entropy(linalg.matmul(cayley(t * d), y), n)


def _entropy(y: np.ndarray, n: int) -> np.float64:
    return -np.log(linalg.energy(linalg.gram(_wide(unfolded(y, n)))))


def _entropy_and_gradient(y: np.ndarray, n: int) -> tuple[np.float64, np.ndarray]:
    """Computes, in iterations, a two-site tensor's Rényi entropy and its gradient."""
    matrix = unfolded(y, n)
    rows = matrix.shape[0] <= matrix.shape[1]
    g = linalg.gram(matrix if rows else linalg.adjoint(matrix))
    size = linalg.energy(g)
    moved = linalg.matmul(g, matrix) if rows else linalg.matmul(matrix, g)
    return -np.log(size), pairing(y)(moved) * (-4 / size)


def _wide(matrix: np.ndarray) -> np.ndarray:
    return matrix if matrix.shape[0] <= matrix.shape[1] else linalg.adjoint(matrix)
