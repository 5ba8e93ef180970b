"""Rows of the benchmark `bench/history`: one fixed call of each part of the toolkit."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import pde, sketch, tt

Call = Callable[[], Any]


def yardstick() -> Call:
    """Returns work of NumPy alone, the unit in which times of different machines are compared."""
    a = np.random.default_rng(0).normal(size=(400, 400))
    return lambda: np.linalg.eigh(a @ a.T)


def rows() -> dict[str, Callable[[], Call]]:
    """Returns, by name, functions that build a row's input and return the call to be timed."""
    return {
        "tt.from_dense, 32^4, tol 1e-6": _tt_svd,
        "tucker.from_dense, 40^3, tol 1e-6": _hosvd,
        "tt.round(tol=), d 20, n 10, r 60": lambda: _rounding(tol=1e-6),
        "tt.round(rank=), d 20, n 10, r 60": lambda: _rounding(rank=30),
        "tt.matvec(rank=), d 20, n 10": _matvec,
        "tt.inner, d 20, n 10, r 60": _inner,
        "tt.evaluate, 10^4 points": _evaluation,
        "tt.cross, d 10, n 20, tol 1e-6": _cross,
        "tt.solve, 2^20 unknowns": _solve,
        "tt.eigsh, 16 sites": _eigsh,
        "pde.integrate, d 4": _integration,
        "sketch.apply, 10^3 rows": _projection,
        "nn.TTLinear, forward and backward": _layer,
        "optim.rank_adaptive, a step": _training,
    }


def _smooth(shape: tuple[int, ...]) -> np.ndarray:
    axes = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij", sparse=True)
    return np.asarray(1 / (1 + sum(axes)))


def _random(rank: int, seed: int = 0) -> tt.TT:
    return tt.random(jax.random.key(seed), (10,) * 20, rank, float)


def _tt_svd() -> Call:
    x = _smooth((32,) * 4)
    return lambda: tt.from_dense(x, tol=1e-6)


def _hosvd() -> Call:
    from tensorjax import tucker

    x = _smooth((40,) * 3)
    return lambda: tucker.from_dense(x, tol=1e-6)


def _rounding(**options: Any) -> Call:
    x = _random(30)
    y = x + x * 0.5
    return lambda: tt.round(y, **options)


def _matvec() -> Call:
    a = tt.random_matrix(jax.random.key(1), (10,) * 20, (10,) * 20, 3, float)
    x = _random(10)
    return lambda: tt.matvec(a, x, rank=10)


def _inner() -> Call:
    x, y = _random(60), _random(60, seed=1)
    return lambda: tt.inner(x, y)


def _evaluation() -> Call:
    x = _random(20)
    indices = np.random.default_rng(0).integers(0, 10, (10_000, 20))
    return lambda: tt.evaluate(x, indices)


def _cross() -> Call:
    def function(indices: np.ndarray) -> np.ndarray:
        return 1 / (1 + indices.sum(axis=1) / 20)

    return lambda: tt.cross(function, (20,) * 10, tol=1e-6, key=jax.random.key(0))[0]


def _solve() -> Call:
    grid = tt.quantics_grid(0.0, 1.0, 20)
    a = tt.quantics.laplacian(grid)
    b = tt.ones((2,) * 20, float)
    return lambda: tt.solve(a, b, tol=1e-6)[0]


def _eigsh() -> Call:
    x, z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, -1.0]])
    chain = tt.chain_operator(16, site=-1.0 * x, bond=-1.0 * np.kron(z, z))
    return lambda: tt.eigsh(chain, tol=1e-6)[1]


def _integration() -> Call:
    d = 4
    drift = 0.3 * np.eye(d, k=1) + np.diag(-np.ones(d))
    start = pde.Gaussian(np.zeros(d), 0.5 * np.eye(d))
    problem = pde.OrnsteinUhlenbeck(drift, 0.1 * np.eye(d), start, pde.Box.fourier(d, 24, 4.0))
    return lambda: pde.integrate(problem, t1=0.2, tol=1e-4, coordinates="fixed")


def _projection() -> Call:
    p = sketch.ttrp(jax.random.key(0), (10,) * 4, (2, 2, 3, 2))
    x = np.random.default_rng(0).normal(size=(1000, 10_000)).astype(np.float32)
    return lambda: sketch.apply(p, x)


def _model() -> Any:
    from flax import nnx

    from tensorjax import nn

    return nn.TTLinear(512, 512, rank=16, rngs=nnx.Rngs(0))


def _layer() -> Call:
    from flax import nnx

    graph, state = nnx.split(_model())
    x = jnp.ones((64, 512), jnp.float32)

    @jax.jit
    def gradient(state: Any) -> Any:
        return jax.grad(lambda s: jnp.sum(nnx.merge(graph, s)(x) ** 2))(state)

    return lambda: gradient(state)


def _training() -> Call:
    import optax
    from flax import nnx

    from tensorjax import optim

    _, params = nnx.split(_model(), nnx.Param)
    optimizer = optim.rank_adaptive(optax.adam(1e-3), compress_to=2, by=100)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        return optimizer.update(params, state, params, value=jnp.float32(1.0))

    return lambda: step(params, state)
