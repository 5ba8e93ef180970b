"""Tangent spaces, retractions and Riemannian gradients against the dense Jacobian of the cores."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tensorjax import tt
from tests.oracles import cores, error, multiplied, norm, normal, wide

SHAPE, RANKS = (3, 4, 2, 5), (2, 3, 4)


def train(rng: np.random.Generator, ranks: Any = RANKS, dtype: Any = np.float64) -> tt.TT:
    return tt.TT([jnp.asarray(c) for c in cores(rng, SHAPE, ranks, dtype)])


def projector(x: tt.TT) -> np.ndarray:
    """On the tangent space at x: from an orthonormal basis of the range of the Jacobian."""
    arrays = [wide(c) for c in x.cores]
    columns = []
    for k, c in enumerate(arrays):
        for i in range(c.size):
            unit = np.zeros(c.size)
            unit[i] = 1
            changed = [*arrays[:k], unit.reshape(c.shape), *arrays[k + 1 :]]
            columns.append(multiplied(changed).ravel())
    u, s, _ = np.linalg.svd(np.stack(columns, 1), full_matrices=False)
    dimension = sum(c.size for c in arrays) - sum(r * r for r in x.ranks[1:-1])
    assert s[dimension - 1] > 1e-8 * s[0] > 1e4 * s[dimension]
    u = u[:, :dimension]
    return u @ u.conj().T


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_projection_is_that_on_the_range_of_the_jacobian(rng: np.random.Generator, dtype: Any):
    x, z = train(rng, dtype=dtype), train(rng, 6, dtype)
    xi = tt.tangent_project(x, z)
    expected = projector(x) @ wide(tt.to_dense(z)).ravel()
    assert xi.ranks == (1, 4, 6, 8, 1)
    assert error(wide(tt.to_dense(xi)).ravel(), expected) < 1e-12 * norm(expected)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_riemannian_gradient_is_the_projected_ambient_one(rng: np.random.Generator, dtype: Any):
    x = train(rng, dtype=dtype)
    z = normal(rng, SHAPE, dtype)

    def f(t: tt.TT) -> jax.Array:
        difference = tt.to_dense(t) - z
        return jnp.sum(jnp.abs(difference) ** 2) / 2 + jnp.sum(jnp.abs(difference) ** 4) / 4

    value, gradient = tt.value_and_riemannian_grad(f)(x)
    difference = wide(tt.to_dense(x)) - z
    ambient = difference * (1 + np.abs(difference) ** 2)
    expected = projector(x) @ ambient.ravel()
    assert error(wide(tt.to_dense(gradient)).ravel(), expected) < 1e-12 * norm(ambient)
    assert abs(value - f(x)) < 1e-12 * abs(value)
    jitted = jax.jit(tt.riemannian_grad(f))(x)
    assert error(tt.to_dense(jitted), tt.to_dense(gradient)) < 1e-12 * norm(ambient)


def test_the_ambient_gradient_is_never_formed():
    """A train with 4³⁰ entries."""
    x = tt.random(jax.random.key(0), (4,) * 30, 3, float)
    goal = tt.random(jax.random.key(1), (4,) * 30, 3, float)
    x, goal = x / tt.norm(x), goal / tt.norm(goal)
    gradient = tt.riemannian_grad(lambda t: tt.distance(t, goal) ** 2 / 2)(x)
    # The gradient of half the squared distance is P_x (x − goal).
    expected = tt.tangent_project(x, x - goal)
    assert tt.distance(gradient, expected) < 1e-12


def test_sums_and_products_of_tangent_vectors(rng: np.random.Generator):
    x = train(rng, dtype=np.complex128)
    xi, eta = (tt.tangent_project(x, train(rng, 5, np.complex128)) for _ in range(2))
    a, b = (wide(tt.to_dense(t)) for t in (xi, eta))
    assert abs(tt.tangent_inner(xi, eta) - np.vdot(a, b)) < 1e-12 * norm(a) * norm(b)
    total = tt.tangent_sum([xi, eta, xi], [2.0, 1j, -0.5])
    assert total.ranks == xi.ranks
    assert error(tt.to_dense(total), 1.5 * a + 1j * b) < 1e-12 * (norm(a) + norm(b))
    assert error(tt.to_dense(tt.tangent_sum([xi, eta])), a + b) < 1e-12 * (norm(a) + norm(b))
    y = train(rng, dtype=np.complex128)
    expected = projector(y) @ a.ravel()
    assert error(wide(tt.to_dense(tt.transport(y, xi))).ravel(), expected) < 1e-12 * norm(a)


@pytest.mark.parametrize("method", ["svd", "projector_splitting"])
def test_retractions_agree_with_the_sum_to_first_order(rng: np.random.Generator, method: Any):
    x = train(rng)
    xi = tt.tangent_project(x, train(rng, 5))
    errors = []
    for h in (1e-2, 1e-3):
        moved = tt.retract(x, tt.scale(xi, h), method=method)
        assert moved.ranks == x.ranks
        errors.append(float(tt.distance(moved, x + xi * h)))
    assert 60 < errors[0] / errors[1] < 160  # second order in h
    assert tt.distance(tt.retract(x, tt.scale(xi, 0.0), method=method), x) < 1e-12 * tt.norm(x)


def test_projector_splitting_is_exact_on_the_manifold(rng: np.random.Generator):
    x, y = train(rng), train(rng)
    found = tt.retract(x, y - x, method="projector_splitting")
    assert tt.distance(found, y) < 1e-11 * tt.norm(y)


def test_retraction_to_other_ranks_is_rounding(rng: np.random.Generator):
    x, z = train(rng), train(rng, 3)
    found = tt.retract(x, z, (2, 6, 5))
    assert found.ranks == (1, 2, 6, 5, 1)
    best = tt.round(x + z, rank=(2, 6, 5), method="svd")
    assert tt.distance(found, best) < 1e-12 * tt.norm(best)


def _goal(rng: np.random.Generator) -> Any:
    goal = train(rng)
    goal = goal / tt.norm(goal)
    start = goal + train(rng) * 0.02
    start = tt.round(start, rank=RANKS)

    def loss(t: tt.TT) -> jax.Array:
        return tt.distance(t, goal) ** 2 / 2

    return goal, start, loss


@pytest.mark.parametrize("momentum", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_descent_under_optax_converges_linearly(rng: np.random.Generator, momentum: float):
    goal, x, loss = _goal(rng)
    optimizer = optax.chain(tt.riemannian_descent(optax.constant_schedule(0.6), momentum=momentum))
    state = optimizer.init(x)

    @jax.jit
    def step(x: tt.TT, state: Any) -> Any:
        updates, state = optimizer.update(tt.riemannian_grad(loss)(x), state, x)
        with jax.numpy_dtype_promotion("standard"):
            return optax.apply_updates(x, updates), state

    before = float(tt.distance(x, goal))
    for _ in range(30):
        x, state = step(x, state)
    assert x.ranks == (1, *RANKS, 1)
    assert float(tt.distance(x, goal)) < 1e-6 * before


@pytest.mark.slow
def test_conjugate_gradient_beats_descent(rng: np.random.Generator):
    """On a loss that weights entries unequally, as completion does."""
    goal, x, _ = _goal(rng)
    weights = jnp.asarray(rng.uniform(0.05, 1, SHAPE))

    def loss(t: tt.TT) -> jax.Array:
        return jnp.sum(weights * (tt.to_dense(t) - tt.to_dense(goal)) ** 2) / 2

    losses = {}
    for name, optimizer in {
        "cg": tt.riemannian_cg(),
        "descent": tt.riemannian_descent(1.0),
    }.items():
        y, state = x, optimizer.init(x)

        @jax.jit
        def step(y: tt.TT, state: Any, optimizer: Any = optimizer) -> Any:
            value, gradient = tt.value_and_riemannian_grad(loss)(y)
            updates, state = optimizer.update(gradient, state, y, value=value, value_fn=loss)
            return jax.tree.map(jnp.add, y, updates), state

        values = [float(loss(y))]
        for _ in range(25):
            y, state = step(y, state)
            values.append(float(loss(y)))
        losses[name] = values
    assert all(b <= a for a, b in zip(losses["cg"], losses["cg"][1:], strict=False))
    assert losses["cg"][-1] < 1e-3 * losses["descent"][-1]


def test_order_one_and_vmap(rng: np.random.Generator):
    x, z = (tt.TT([jnp.asarray(normal(rng, (1, 5, 1)))]) for _ in range(2))
    assert error(tt.to_dense(tt.tangent_project(x, z)), tt.to_dense(z)) < 1e-14
    for method in ("svd", "projector_splitting"):
        found = tt.retract(x, z, method=method)
        assert error(tt.to_dense(found), tt.to_dense(x + z)) < 1e-14
    batch = [(train(rng), train(rng, 2)) for _ in range(3)]
    xs, zs = (jax.tree.map(lambda *a: jnp.stack(a), *t) for t in zip(*batch, strict=True))
    found = jax.vmap(tt.tangent_project)(xs, zs)
    for i, (a, b) in enumerate(batch):
        one = jax.tree.map(lambda c, i=i: c[i], found)
        assert tt.distance(one, tt.tangent_project(a, b)) < 1e-12 * tt.norm(b)


def test_single_precision_keeps_its_dtype(rng: np.random.Generator):
    x, z = train(rng, dtype=np.float32), train(rng, dtype=np.float32)
    xi = tt.tangent_project(x, z)
    assert xi.dtype == tt.retract(x, xi).dtype == jnp.float32
    gradient = tt.riemannian_grad(lambda t: tt.inner(t, t) / 2)(x)
    assert gradient.dtype == jnp.float32
    assert error(tt.to_dense(gradient), tt.to_dense(x)) < 1e-5 * norm(tt.to_dense(x))


def test_bad_input_is_named(rng: np.random.Generator):
    x, z = train(rng), train(rng, 2)
    xi = tt.tangent_project(x, z)
    with pytest.raises(TypeError, match="z: expected a TT"):
        tt.tangent_project(x, tt.to_dense(z))  # type: ignore
    with pytest.raises(ValueError, match="one shape"):
        tt.tangent_project(x, tt.ones((3, 4, 2, 4), float))
    with pytest.raises(ValueError, match="x: expected TT-ranks that its modes"):
        tt.tangent_project(train(rng, 20), z)
    with pytest.raises(ValueError, match="z: expected finite"):
        tt.tangent_project(x, tt.scale(z, jnp.nan))
    with pytest.raises(ValueError, match="method: expected"):
        tt.retract(x, xi, method="qr")  # type: ignore
    with pytest.raises(ValueError, match="rank: expected the TT-ranks of x"):
        tt.retract(x, xi, 2, method="projector_splitting")
    with pytest.raises(ValueError, match=r"tangents\[1\]: expected a tangent vector"):
        tt.tangent_sum([xi, x])
    with pytest.raises(ValueError, match="one weight each"):
        tt.tangent_sum([xi], [1.0, 2.0])
    with pytest.raises(ValueError, match="momentum"):
        tt.riemannian_descent(0.1, momentum=1.0)
    optimizer = tt.riemannian_descent(0.1)
    with pytest.raises(ValueError, match="gradient: expected a tangent vector"):
        optimizer.update(x, optimizer.init(x), x)
