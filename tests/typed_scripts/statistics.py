"""A statistician's script: entries, samples, functions, patches and first passages, all typed.

What JAX itself leaves untyped is said where it is used; nothing of tensorjax needs it.
"""

from typing import assert_type

import jax
import numpy as np

from tensorjax import pde, tt, tucker


def entries(t: tt.TT) -> float:
    total = 0.0
    for row in t:
        total += float(tt.norm(row) if isinstance(row, tt.TT) else row)
    assert_type(len(t), int)
    assert_type(t.nbytes, int)
    assert_type(t**2, tt.TT)
    assert_type(+t, tt.TT)
    value, index, info = tt.argmax(t)
    assert_type(value, jax.Array)
    assert_type(index, tuple[int, ...])
    assert_type(info.bound, float)
    print(info.status == "certified", tt.effective_ranks(t))
    assert_type(tt.concatenate([t, t]), tt.TT)
    assert_type(tt.broadcast_to(t[:1], t.shape), tt.TT)
    assert_type(tt.permute(t, range(t.order)[::-1]), tt.TT)
    assert_type(tt.reshape(t, (-1,)), tt.TT)
    assert_type(tt.cumsum(t, 0), tt.TT)
    assert_type(tt.pad_modes(t, [(0, 1)] * t.order), tt.TT)
    assert_type(tt.unit(t.shape, index), tt.TT)
    assert_type(tt.sum(t), jax.Array)
    assert_type(tt.mean(t, 0, keepdims=True), tt.TT)
    assert_type(tt.moment(t, 2), jax.Array)
    assert_type(tt.meshgrid(np.ones(3), np.ones(4)), list[tt.TT])
    assert_type(tt.singular_values(t), list[jax.Array])
    return total + float(value)


def densities(t: tt.TT) -> None:
    key = jax.random.key(0)
    square = tt.hadamard(t, t, rank=4)
    assert_type(tt.sample(key, t, 5), jax.Array)
    assert_type(tt.marginal(t, [0]), tt.TT)
    assert_type(tt.conditional(square, {0: 1}), tt.TT)
    assert_type(tt.log_density(t, tt.sample(key, t, 5)), jax.Array)
    assert_type(tt.sobol(t, 0), jax.Array)
    assert_type(tt.variance_components(t), tt.TT)
    out, info = tt.map(np.exp, 0.1 * t, tol=1e-3, key=key)
    print(out, info.error, info.evaluations, tt.moment(t, 2), tt.mean_dimension(t))
    held = tt.stream_add(tt.stream(key, t.shape, 3), t)
    assert_type(tt.stream_train(held), tt.TT)


def functions() -> None:
    f, info = tt.functions.interpolate(lambda x: np.exp(-x.sum(1)), [(0, 1)] * 2, tol=1e-4)
    assert_type(f, tt.functions.FunctionTrain)
    print(info.status == "converged")
    pair, _ = tt.functions.interpolate(np.cos, [(0, 1)] * 2, tol=1e-4, components=2)
    assert_type(pair, tuple[tt.functions.FunctionTrain, ...])
    assert_type(f([[0.1, 0.2]]), jax.Array)
    assert_type(tt.functions.gradient(f, [0.1, 0.2]), jax.Array)
    assert_type(tt.functions.derivative(f, 0), tt.functions.FunctionTrain)
    print(tt.functions.integrate(f), tt.functions.norm(f * f))
    parts, found = tt.patches.cross(
        lambda i: 1.0 / (1.0 + i.sum(1)), (4, 4, 4), tol=1e-3, key=jax.random.key(1)
    )
    assert_type(parts, tt.patches.PatchedTT)
    print(found.status, tt.patches.evaluate(parts, [[0, 1, 2]]), tt.patches.to_tt(parts, tol=1e-2))
    grid = tt.quantics_grid(0.0, 1.0, bits=4)
    assert_type(tt.quantics.cosine(grid, 2.0), tt.TT)
    assert_type(tt.quantics.laplacian(grid), tt.TTMatrix)
    assert_type(tt.quantics.weights(grid), tt.TT)


def tensors() -> None:
    x = np.ones((3, 4, 5)) + np.arange(5)
    fitted, report = tucker.hooi(x, rank=2, max_sweeps=3)
    assert_type(fitted, tucker.Tucker)
    assert_type(report.error, float)
    assert_type(tucker.to_tt(fitted), tt.TT)
    assert_type(tucker.mode_product(fitted, np.ones((2, 4)), 1), tucker.Tucker)
    assert_type(tucker.evaluate(fitted, [[0, 1, 2]]), jax.Array)
    assert_type(fitted * fitted, tucker.Tucker)


def passages() -> None:
    start = pde.Gaussian([0.0], [[0.1]])
    motion = pde.FokkerPlanck(None, 0.5, start, pde.Box.fourier(1))
    time = pde.first_passage(motion, pde.Box([pde.Axis("chebyshev", 16, -1.0, 2.0)]))
    assert_type(time, pde.Passage)
    print(time([[0.0], [1.0]]))


def main() -> None:
    t = tt.random(jax.random.key(0), (3, 4, 5), rank=2)
    print(entries(t))
    densities(t)
    functions()
    tensors()
    passages()


if __name__ == "__main__":
    main()
