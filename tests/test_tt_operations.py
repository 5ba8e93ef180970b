"""Trains beside arrays: broadcasting, dense factors, keepdims, powers, extrema of matrices."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import compilations, cores, dense, error, norm, normal

LONG = pytest.mark.slow  # compiling takes long
SEEDS = [0, *(pytest.param(k, marks=LONG) for k in range(1, 8))]


def drawn(rng, shape, dtype=np.float64, rank=2):
    return tt.TT(cores(rng, shape, rank, dtype))


def drawn_matrix(rng, rows, columns, dtype=np.float64, rank=2):
    flat = cores(rng, [m * n for m, n in zip(rows, columns, strict=True)], rank, dtype)
    sizes = zip(flat, rows, columns, strict=True)
    return tt.TTMatrix([c.reshape(len(c), m, n, -1) for c, m, n in sizes])


def close(out, expected, tol=1e-11):
    expected = np.asarray(expected)
    found = dense(out) if isinstance(out, tt.TT | tt.TTMatrix) else np.asarray(out)
    assert (found.shape, out.dtype) == (expected.shape, expected.dtype)
    assert error(found, expected) <= tol * max(norm(expected), 1)


def sizes(rng, most=4):
    return tuple(int(n) for n in rng.integers(1, 4, rng.integers(1, most + 1)))


def thinned(rng, shape):
    """The shape with some of its sizes replaced by one."""
    return tuple(n if rng.integers(2) else 1 for n in shape)


@pytest.mark.parametrize("seed", SEEDS)
def test_modes_of_size_one_are_broadcast(seed):
    rng = np.random.default_rng(seed)
    shape = sizes(rng)
    x, y = (drawn(rng, thinned(rng, shape), np.complex128) for _ in range(2))
    for f in (operator.add, operator.sub, operator.mul):
        close(f(x, y), f(dense(x), dense(y)))
    close(tt.broadcast_to(x, shape), np.broadcast_to(dense(x), shape))
    rows, columns = shape, tuple(int(n) for n in rng.integers(1, 4, len(shape)))
    a = drawn_matrix(rng, thinned(rng, rows), thinned(rng, columns))
    b = drawn_matrix(rng, rows, columns)
    ones = tt.ones_matrix(rows, columns, float)
    close(a + b, dense(a * ones) + dense(b))
    close(tt.hadamard(a, b, rank=99), dense(a * ones) * dense(b))


def test_what_does_not_broadcast(rng):
    x = drawn(rng, (2, 3))
    for other in ((2, 2), (3,), (1, 2, 3)):
        for f in (operator.add, operator.mul, operator.sub):
            with pytest.raises(ValueError, match="one shape"):
                f(x, drawn(rng, other))
    for shape in ((2, 4), (2, 3, 1), (4, 3), (1, 3)):
        with pytest.raises(ValueError, match="ones may grow"):
            tt.broadcast_to(x, shape)
    with pytest.raises(ValueError, match="one shape"):  # side by side nothing is repeated
        tt.concatenate([x, drawn(rng, (2, 1))], axis=0)
    with pytest.raises(TypeError):
        x / x


def test_a_vector_and_an_integer_apart_are_refused_whatever_parts_them(rng):
    t = drawn(rng, (3, 2, 2))
    for key in ((slice(None), 0, ..., [1]), (None, 0, ..., 0, [1, 0]), (0, None, [1, 0])):
        with pytest.raises(IndexError, match="beside the vector"):
            t[key]
    close(t[range(2), 0], dense(t)[range(2), 0])
    close(t[(0, -1), :], dense(t)[(0, -1), :])
    a = drawn_matrix(rng, (2, 2), (3, 1))
    close(a[3, 2, ...], dense(a)[3, 2, ...])
    close(a[..., 3, 2], dense(a)[..., 3, 2])


@pytest.mark.parametrize("seed", SEEDS)
def test_matrices_with_dense_arrays(seed):
    rng = np.random.default_rng(seed)
    rows = sizes(rng)
    columns = tuple(int(n) for n in rng.integers(1, 4, len(rows)))
    a = drawn_matrix(rng, rows, columns, (np.float64, np.complex128)[seed % 2])
    full = dense(a).astype(a.dtype)
    (m, n), lead = full.shape, tuple(rng.integers(0, 4, rng.integers(0, 3)))
    with compilations() as compiled:
        for shape in ((n,), (n, 3), (*lead, n, int(rng.integers(0, 3)))):
            # In one dtype: trains of two follow JAX's setting of promotion, strict in the tests.
            x = normal(rng, shape).astype(a.dtype)
            close(a @ x, full @ x)
        for shape in ((m,), (5, m), (*lead, m)):
            close((x := normal(rng, shape).astype(a.dtype)) @ a, x @ full)
        close(a @ np.arange(n), full @ np.arange(n))  # integers
    assert not compiled or 0 in lead or 0 in shape


def test_matrices_with_dense_arrays_under_transformations(rng):
    a, x = drawn_matrix(rng, (2, 3), (3, 2)), jnp.asarray(normal(rng, (4, 6, 5)))
    close(jax.jit(lambda a, x: a @ x)(a, x), dense(a) @ np.asarray(x))
    close(jax.vmap(lambda x: x.T @ a)(x), np.asarray(x).swapaxes(1, 2) @ dense(a))
    slope = jax.grad(lambda a: ((a @ x) ** 2).sum())(a)
    assert all(np.isfinite(np.asarray(c)).all() for c in slope.cores)
    far = tt.TTMatrix([a.cores[0] * 1e200, a.cores[1] * 1e-200])
    large = tt.TTMatrix([a.cores[0] * 1e200, a.cores[1] * 1e200]) @ (x[0] * 1e-300)
    close(far @ x[0], dense(a) @ np.asarray(x[0]))
    close(large * 1e-100, dense(a) @ np.asarray(x[0]))
    for wrong in (np.ones(5), np.ones((5, 2))):
        with pytest.raises(ValueError, match="6 entries"):
            a @ wrong
    with pytest.raises(ValueError, match="6 entries"):
        np.ones((6, 5)) @ a


@pytest.mark.parametrize("seed", SEEDS)
def test_reductions_keep_dimensions(seed):
    rng = np.random.default_rng(seed)
    dtype = (np.complex128, np.float64)[seed % 2]
    t = drawn(rng, sizes(rng, 3), dtype)
    a = drawn_matrix(rng, (2, 3), (3, 2), dtype, 1)
    axes = rng.permutation(t.ndim)[: rng.integers(0, t.ndim + 1)] - t.ndim * rng.integers(2)
    for ours, theirs in ((tt.sum, np.sum), (tt.mean, np.mean), (tt.var, np.var)):
        for axis in (None, tuple(map(int, axes)), 0):
            close(ours(t, axis, keepdims=True), theirs(dense(t), axis=axis, keepdims=True))
        for axis in (None, 0, -1):
            close(ours(a, axis, keepdims=True), theirs(dense(a), axis=axis, keepdims=True))
    for axis in (0, 1, -1):
        close(tt.cumsum(a, axis), np.cumsum(dense(a), axis=axis))


def test_powers(rng):
    for t in (drawn(rng, (2, 3, 2)), drawn_matrix(rng, (2, 2), (1, 3))):
        for k in (0, 1, 2, 3):
            close(t**k, dense(t) ** k)
        close(tt.power(t, 5, tol=1e-12), dense(t) ** 5, 1e-9)
        assert max(tt.power(t, 3, rank=2).ranks) <= 2
    for bad in (-1, 1.5, True):
        with pytest.raises(ValueError, match="exponent"):
            tt.power(t, bad)
    with pytest.raises(TypeError):
        t**0.5


def test_functions_of_matrices_and_of_broadcast_trains(rng, key):
    a = tt.ones_matrix((2, 3), (3, 2), float) + drawn_matrix(rng, (2, 1), (1, 2), rank=1) ** 2
    out, info = tt.map(np.sqrt, a, tol=1e-9, key=key)
    assert info.status == "converged"
    close(out, np.sqrt(dense(a)), 1e-8)
    x, y = drawn(rng, (3, 1, 4), rank=1), drawn(rng, (1, 2, 4), rank=1) ** 2 + 1
    out, info = tt.divide(x, y, tol=1e-9, key=key)
    close(out, dense(x) / dense(y), 1e-8)
    with pytest.raises(TypeError, match="one kind"):
        tt.map(np.add, x, a, tol=1e-6, key=key)


def test_extrema_of_matrices(rng):
    a = drawn_matrix(rng, (2, 3, 1), (3, 2, 2))
    for find, exact in ((tt.argmax, dense(a).max()), (tt.argmin, dense(a).min())):
        value, index, info = find(a)
        assert info.status == "certified"
        assert float(value) == pytest.approx(float(a[index]), rel=1e-12)
        assert float(value) == pytest.approx(exact, rel=1e-12)


def test_matrices_that_fold_alike_are_told_apart(rng):
    a, b = drawn_matrix(rng, (2, 3), (3, 2)), drawn_matrix(rng, (3, 2), (2, 3))
    folded = drawn(rng, (6, 6))
    for f in (tt.inner, tt.distance, tt.tangent_project, tt.retract):
        with pytest.raises(ValueError, match="one shape"):
            f(a, b)
        for pair in ((a, folded), (folded, a)):
            with pytest.raises(TypeError, match=r"two TTMatrix|expected a TT"):
                f(*pair)


def test_riemannian_gradients_of_matrices(rng):
    x, goal = drawn_matrix(rng, (2, 3), (3, 2), rank=1), drawn_matrix(rng, (2, 3), (3, 2))
    value, gradient = tt.value_and_riemannian_grad(lambda a: tt.distance(a, goal) ** 2 / 2)(x)
    expected = tt.tangent_project(x, x - goal)
    close(gradient, dense(expected))
    assert float(tt.tangent_inner(gradient, gradient)) == pytest.approx(norm(dense(gradient)) ** 2)
    close(tt.tangent_sum([gradient, gradient], [2.0, -1.0]), dense(gradient))
    step = tt.retract(x, -0.1 * gradient)
    assert (step.ranks, step.row_shape) == (x.ranks, x.row_shape)
    assert float(tt.distance(step, goal)) ** 2 / 2 < float(value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["descent", "cg"])
def test_riemannian_optimisers_of_matrices(rng, name):
    optax = pytest.importorskip("optax")
    goal = drawn_matrix(rng, (2, 3), (3, 2), rank=1)
    x = drawn_matrix(rng, (2, 3), (3, 2), rank=1)

    def loss(a):
        return tt.distance(a, goal) ** 2 / 2

    optimizer = tt.riemannian_cg() if name == "cg" else tt.riemannian_descent(0.3, momentum=0.3)
    state, first = optimizer.init(x), float(loss(x))
    for _ in range(5):
        value, gradient = tt.value_and_riemannian_grad(loss)(x)
        extra = {"value": value, "value_fn": loss} if name == "cg" else {}
        updates, state = optimizer.update(gradient, state, x, **extra)
        x = optax.apply_updates(x, updates)
    assert isinstance(x, tt.TTMatrix)
    assert float(loss(x)) < 0.5 * first
