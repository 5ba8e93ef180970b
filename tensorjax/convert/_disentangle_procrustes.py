"""Procrustes and Gauss–Newton steps that lower the energy of a two-site tensor beyond a rank.

All of it runs by NumPy, on the host: matrix shapes differ from pair to pair and from rank to rank,
so that JAX would compile a program for nearly every factorisation.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax import linalg
from tensorjax.convert._two_site_tensors import normal, pairing, unfolded
from tensorjax.linalg._riemannian_optimization import cayley, skew

# A start that steps did not improve by this share in so many steps is given up.
_STALLED, _CHECKED_EVERY = 0.05, 8
_INNER = 30  # conjugate-gradient steps in one Gauss–Newton step


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
    """Lowers a two-site tensor's energy beyond rank k by Procrustes and Gauss–Newton steps.

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
    """Computes leading bases of two-site tensors and the energies beyond rank k, for Procrustes."""
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
