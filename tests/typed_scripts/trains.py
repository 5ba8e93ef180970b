"""A physicist's script: trains, operators, solvers and contractions, checked by strict checkers.

What JAX itself leaves untyped is said where it is used; nothing of tensorjax needs it.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, assert_type

import jax
import numpy as np

import tensorjax
from tensorjax import contract, convert, linalg, tt, tucker

P = ParamSpec("P")
R = TypeVar("R")


def jit(f: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function by `jax.jit`, which forgets its signature."""
    return jax.jit(f)  # pyright: ignore[reportUnknownMemberType]


@jit
def step(t: tt.TT) -> tt.TT:
    return tt.round(t + 0.1 * (t * t) - t / 3, rank=2)


def energy(h: tt.TTMatrix, x: tt.TT) -> float:
    value = x @ (h @ x)
    assert_type(value, jax.Array)
    return float(value / tt.norm(x) ** 2)


def main() -> None:
    key = jax.random.key(0)
    t = tt.random(key, (3, 4, 5), rank=2)
    assert_type(t * 2.0, tt.TT)
    assert_type(-(np.float32(2) + t), tt.TT)
    assert_type(step(t), tt.TT)
    assert_type(tt.norm(step(t)), jax.Array)
    assert_type(tt.log_norm(t), jax.Array)
    assert_type(t[1:, ..., ::2], tt.TT)
    assert_type(t.T.shape, tuple[int, ...])
    assert_type(tt.to_dense(t), jax.Array)
    print(t.dtype, t.ranks, tt.evaluate(t, [[0, 1, 2], [2, 3, 4]]).shape)

    a = tt.identity((3, 4, 5)) + tt.random_matrix(key, (3, 4, 5), (3, 4, 5), rank=1) * 0.01
    assert_type(a, tt.TTMatrix)
    assert_type(a @ t, tt.TT)
    assert_type(t @ a, tt.TT)
    assert_type(a @ a.T, tt.TTMatrix)
    assert_type(tt.norm(a), jax.Array)
    x, info = tt.solve(a, a @ t, tol=1e-3)
    assert_type(x, tt.TT)
    values, states, found = tt.eigsh(a + a.T, k=1, tol=1e-3)
    print(info.status, found.status, values, len(states), energy(a, x))

    fitted, history = tt.cross(lambda i: 1.0 / (1.0 + i.sum(1)), (4, 4, 4), tol=1e-4, key=key)
    print(tt.distance(fitted, tt.round(fitted, tol=1e-3)), history.error)
    best, index, extremum = tt.argmax(fitted)
    print(best, index, extremum, tt.sum(fitted), tt.sum(fitted, axis=0))

    core, cut = convert.tt_to_tucker(t, tol=1e-5)
    assert_type(core * 2 + core, tucker.Tucker)
    assert_type(tucker.norm(core), jax.Array)
    u, s, vh = linalg.svd(np.eye(3))
    plan = contract.plan("ij,jk->ik", (3, 4), (4, 5))
    assert_type(plan(np.ones((3, 4)), np.ones((4, 5))), jax.Array)
    print(cut.error, u.shape, s.shape, vh.shape, plan.flops)
    tensorjax.show_versions()


if __name__ == "__main__":
    main()
