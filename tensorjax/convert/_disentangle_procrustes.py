"""Procrustes and Gauss–Newton steps that lower the energy of a two-site tensor beyond a rank.

All of it runs by NumPy, on the host: matrix shapes differ from pair to pair and from rank to rank,
so that JAX would compile a program for nearly every factorisation.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax import linalg
from tensorjax.convert._two_site_tensors import normal, pairing, unfolded
from tensorjax.linalg._stiefel import cayley, skew

# A start that steps did not improve by this share in so many steps is given up.
_STALLED, _CHECKED_EVERY = 0.05, 8
_INNER = 30  # conjugate-gradient steps in one Gauss–Newton step


class _State(NamedTuple):
    u: np.ndarray  # (m, m) unitary so far
    y: np.ndarray  # (r₁, m, r₂), u x
    q: np.ndarray  # left basis, leading first, some columns wider than k
    v: np.ndarray  # right basis, k columns
    tail: float
    damping: float
    mark: float  # tail at the last check
    active: bool = True


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
    """Lowers a two-site tensor's energy beyond rank k by unitaries on its middle legs.

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
    states = [_first(u, x, sketch, wanted) for u in starts]
    states, slow = _stepped(_procrustes, states, wanted, iterations // 3)
    states, fast = _stepped(_gauss_newton, states, wanted, iterations)
    best = min(states, key=lambda state: state.tail)
    return best.u, best.tail, slow + fast


def _first(u: np.ndarray, x: np.ndarray, sketch: np.ndarray, goal: _Goal) -> _State:
    y = linalg.matmul(u, x)
    q = linalg.qr(linalg.matmul(unfolded(y, goal.n), sketch))[0]
    q, _, _ = _truncated(y, q, goal)
    q, v, tail = _truncated(y, q, goal)
    return _State(u, y, q, v, tail, 0.1 * goal.scale / len(u), tail)


def _truncated(y: np.ndarray, q: np.ndarray, goal: _Goal) -> tuple[Any, Any, float]:
    """Computes leading left and right bases of a two-site tensor, and its energy beyond rank k."""
    matrix = unfolded(y, goal.n)
    q = linalg.qr(linalg.matmul(matrix, linalg.matmul(linalg.adjoint(matrix), q)))[0]
    v, t = linalg.qr(linalg.matmul(linalg.adjoint(matrix), q))
    a, _, bh = linalg.svd(t)
    q = linalg.matmul(q, linalg.adjoint(bh))
    lead = q[:, : goal.k]
    rest = matrix - linalg.matmul(lead, linalg.matmul(linalg.adjoint(lead), matrix))
    return q, linalg.matmul(v, a[:, : goal.k]), float(linalg.energy(rest))


def _stepped(
    step: Callable[[_State, _Goal], _State], states: list[_State], goal: _Goal, most: int
) -> tuple[list[_State], int]:
    """Repeats a step on all candidate disentanglers until the goal, a stall, or ``most`` steps."""
    states = [state._replace(active=True, mark=state.tail) for state in states]
    best = before = min(state.tail for state in states)
    count = 0
    while count < most and any(state.active for state in states):
        # At the goal, go on while a step still gains a factor of ten.
        if best <= goal.tail and best > 0.1 * before:
            break
        states = [step(state, goal) if state.active else state for state in states]
        if count % _CHECKED_EVERY == _CHECKED_EVERY - 1:
            states = [_checked(state) for state in states]
        count += 1
        before, best = best, min(state.tail for state in states)
    return states, count


def _checked(state: _State) -> _State:
    active = state.active and state.tail <= (1 - _STALLED) * state.mark
    return state._replace(active=active, mark=state.tail)


def _procrustes(state: _State, goal: _Goal) -> _State:
    """Takes a Procrustes step: rotates a two-site tensor towards its best rank-k approximation."""
    y, lead = state.y, state.q[:, : goal.k]
    b = linalg.matmul(lead, linalg.matmul(linalg.adjoint(lead), unfolded(y, goal.n)))
    a, _, bh = linalg.svd(pairing(y)(b))
    w = linalg.matmul(a, bh)
    y = linalg.matmul(w, y)
    q, v, tail = _truncated(y, state.q, goal)
    if not tail < state.tail:
        return state
    return state._replace(u=linalg.matmul(w, state.u), y=y, q=q, v=v, tail=tail)


def _gauss_newton(state: _State, goal: _Goal) -> _State:
    """Takes a damped Gauss–Newton step to lower the energy of a two-site tensor beyond rank k."""
    w = cayley(_least_squares(state, goal))
    y = linalg.matmul(w, state.y)
    q, v, tail = _truncated(y, state.q, goal)
    if not tail < state.tail:
        return state._replace(damping=4 * state.damping)
    damping = 0.3 * state.damping
    return state._replace(u=linalg.matmul(w, state.u), y=y, q=q, v=v, tail=tail, damping=damping)


def _least_squares(state: _State, goal: _Goal) -> np.ndarray:
    """Solves the damped least squares of a Gauss–Newton step by conjugate gradients."""
    y, v, lead = state.y, state.v, state.q[:, : goal.k]
    paired, to_lead, to_v = pairing(y), linalg.adjoint(lead), linalg.adjoint(v)

    def outside(t: np.ndarray) -> np.ndarray:
        t = t - lead @ (to_lead @ t)
        return t - (t @ v) @ to_v

    def image_of(z: np.ndarray) -> np.ndarray:
        return skew(paired(outside(unfolded(z @ y, goal.n)))) + state.damping * z

    residual = -skew(paired(outside(unfolded(y, goal.n))))
    z, p, before = np.zeros_like(residual), residual, linalg.energy(residual)
    # The nearer the goal, the more exactly the linear problem is solved.
    enough = before * min(0.01, state.tail / goal.scale)
    for _ in range(_INNER):
        if not before > enough:
            break
        image = image_of(p)
        curvature = np.vdot(p, image).real
        step = before / curvature if curvature > 0 else before
        z = z + step * p
        residual = residual - step * image
        now = linalg.energy(residual)
        p = residual + (now / before) * p
        before = now
    return z
