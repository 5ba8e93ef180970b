"""Tensors without entries, of which some mode has size 0: every operation against NumPy."""

import itertools
import warnings

import jax
import numpy as np
import pytest

from tensorjax import mera, tt, tucker
from tests.oracles import dense, normal, tucker_dense

DTYPES = (np.float64, np.complex128, np.float32, np.complex64)


def drawn(rng, shape, dtype, rank=2):
    ranks = [1, *[rank] * (len(shape) - 1), 1]
    pairs = zip(itertools.pairwise(ranks), shape, strict=True)
    return tt.TT([normal(rng, (r, n, s), dtype) for (r, s), n in pairs])


def drawn_matrix(rng, rows, columns, dtype):
    flat = drawn(rng, [m * n for m, n in zip(rows, columns, strict=True)], dtype)
    sizes = zip(flat.cores, rows, columns, strict=True)
    return tt.TTMatrix([c.reshape(len(c), m, n, c.shape[2]) for c, m, n in sizes])


def array(x):
    if isinstance(x, tt.TT | tt.TTMatrix):
        assert min(x.ranks) >= 1
        return dense(x)
    return tucker_dense(x) if isinstance(x, tucker.Tucker) else np.asarray(x)


def check(name, given, call, expected, under_jit):
    """Compares a call with NumPy, by itself or under jit; the trains are arguments of both."""
    found = array(jax.jit(call)(*given) if under_jit else call(*given))
    expected = np.asarray(expected)
    assert found.shape == expected.shape, name
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def shapes(rng, orders=range(1, 6)):
    """A drawn shape of each order, with zeros in drawn places."""
    for order in orders:
        shape = rng.integers(1, 4, order)
        shape[rng.integers(0, order, int(rng.integers(1, 3)))] = 0
        yield tuple(int(n) for n in shape)


def cases_of_trains(rng, shape, dtype):
    """Names, arguments, calls and results of NumPy for a train without entries."""
    t, u, one = (drawn(rng, s, dtype) for s in (shape, shape, [1] * len(shape)))
    x, o = np.zeros(shape, dtype), array(one)
    axes = [int(k) for k in rng.permutation(len(shape))]
    yield "to_dense", (t,), tt.to_dense, x
    yield "add, sub, scale", (t, u), lambda t, u: 2 * (t + u) / 3 - t, x
    yield "a constant", (t,), lambda t: 1 + t, x
    yield "products", (t, u), lambda t, u: t * u * t**2, x
    yield "broadcast", (t, one), lambda t, one: t * one + one, x * o + o
    yield "broadcast_to", (one,), lambda one: tt.broadcast_to(one, shape), np.zeros(shape)
    yield "inner", (t, u), tt.inner, 0
    yield "norms", (t,), lambda t: tt.norm(t) + tt.norm(tt.normalize(t)), 0
    yield "log_norm", (t,), tt.log_norm, -np.inf
    yield "distance", (t, u), tt.distance, 0
    yield "pairwise", (t, u), lambda t, u: tt.pairwise_inner([t, u]), np.zeros((2, 2))
    yield "bilinear", (t, u), lambda t, u: tt.bilinear_form(t, tt.identity(shape, dtype), u), 0
    yield from reductions_of_trains(rng, t, x)
    yield from cases_of_modes(rng, t, u, x)
    yield from products_over_modes(rng, t, u, x)
    yield from cases_of_shapes_and_ranks(t, u, x, axes)


def reductions_of_trains(rng, t, x):
    full = tuple(k for k, n in enumerate(x.shape) if n)
    for axis in (None, x.shape.index(0), full, ()):
        for ours, theirs in ((tt.sum, np.sum), (tt.mean, np.mean), (tt.var, np.var)):
            keep = bool(rng.integers(2))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy warns of means of nothing, JAX does not
                result = theirs(x, axis=axis, keepdims=keep)
            name = f"{ours.__name__} {axis} {keep}"
            yield name, (t,), lambda t, f=ours, a=axis, k=keep: f(t, a, keepdims=k), result


def cases_of_modes(rng, t, u, x):
    for k in range(x.ndim):
        w = normal(rng, (4 * int(rng.integers(2)), x.shape[k]), x.dtype)
        product = np.moveaxis(np.tensordot(w, x, (1, k)), 0, k)
        yield f"mode_product {k}", (t, w), lambda t, w, k=k: tt.mode_product(t, w, k), product
        yield f"cumsum {k}", (t,), lambda t, k=k: tt.cumsum(t, k), x
        v = normal(rng, (x.shape[k],), x.dtype)
        result = np.tensordot(x, v, (k, 0))
        yield f"contract {k}", (t, v), lambda t, v, k=k: tt.contract_modes(t, {k: v}), result
        result = np.concatenate([x, x], k)
        yield f"concatenate {k}", (t, u), lambda t, u, k=k: tt.concatenate([t, u], k), result
        yield f"orthogonalize {k}", (t,), lambda t, k=k: tt.orthogonalize(t, k), x


def products_over_modes(rng, t, u, x):
    zero, order = x.shape.index(0), x.ndim
    y = drawn(rng, (2, x.shape[zero], 3), x.dtype)
    result = np.tensordot(x, np.zeros(y.shape), ([zero], [1]))
    yield "tensordot", (t, y), lambda t, y: tt.tensordot(t, y, ([zero], [1])), result
    yield "tensordot of all", (t, u), lambda t, u: tt.tensordot(t, u, order), 0
    yield "kron", (t, u), tt.kron, np.zeros(x.shape * 2)
    yield "pad_modes", (t,), lambda t: tt.pad_modes(t, [(1, 2)] * order), np.pad(x, (1, 2))
    yield "pad", (t,), lambda t: tt.pad(t, 5), x


def cases_of_shapes_and_ranks(t, u, x, axes):
    yield "conj, T", (t,), lambda t: tt.conj(t).T, x.T
    yield "parts", (t,), lambda t: tt.real(t) - tt.imag(t), x.real
    yield "permute", (t,), lambda t: tt.permute(t, axes), x.transpose(axes)
    yield "permute rank", (t,), lambda t: tt.permute(t, axes, rank=2), x.transpose(axes)
    for new in ((0,), (2, 0, 3), (3, 2, 0, 1), x.shape[::-1], (-1,), (5, -1)):
        yield f"reshape {new}", (t,), lambda t, s=new: tt.reshape(t, s), x.reshape(new)
    for method in ("auto", "svd", "gram", "randomized"):
        yield method, (t,), lambda t, m=method: tt.round(t + t, rank=1, method=m), x
    yield "round to both", (t,), lambda t: tt.round(t + t, rank=2, tol=0.1), x
    yield "hadamard to rank", (t, u), lambda t, u: tt.hadamard(t, u, rank=2), x
    yield "sum to rank", (t, u), lambda t, u: tt.linear_combination([t, (t, u)], rank=2), x
    yield "from_dense", (x,), lambda x: tt.from_dense(x, rank=2), x
    yield "diagonal_matrix", (t,), tt.diagonal_matrix, np.zeros((0, 0))
    yield "None", (t,), lambda t: t[None, ..., None], x[None, ..., None]
    yield "t[0:0]", (t,), lambda t: t[0:0], x[0:0]
    yield "t[..., []]", (t,), lambda t: t[..., []], x[..., []]
    for k in [k for k, n in enumerate(x.shape) if n]:
        key = (*[slice(None)] * k, -1)
        yield f"t[{key}]", (t,), lambda t, key=key: t[key], x[key]


def cases_outside_jit(rng, shape, dtype):
    t = drawn(rng, shape, dtype)
    x, order = np.zeros(shape), len(shape)
    for method in ("auto", "svd", "gram", "randomized"):
        yield method, (t,), lambda t, m=method: tt.round(t + t, tol=1e-2, method=m), x
    yield "trim", (t,), tt.trim, x
    yield "effective_ranks", (t,), lambda t: np.array(tt.effective_ranks(t)), np.ones(order + 1)
    yield "singular_values", (t,), lambda t: len(tt.singular_values(t)), order - 1
    yield "permute", (t,), lambda t: tt.permute(t, range(order)[::-1], tol=0.1), x.T
    yield "reshape", (t,), lambda t: tt.reshape(t, (2, -1, 4), tol=0.1), np.zeros((2, 0, 4))
    yield "hadamard", (t,), lambda t: tt.hadamard(t, t, tol=0.1), x
    terms = {"method": "gram", "tol": 0.1}
    yield "sum by grams", (t,), lambda t: tt.linear_combination([t, t], **terms), x
    yield "from_dense", (x,), lambda x: tt.from_dense(x, tol=0.1), x
    for make in (tt.zeros, tt.ones, lambda s: tt.random(jax.random.key(0), s, 3)):
        yield "constructors", (), lambda make=make: make(shape), x
    yield "likes", (t,), lambda t: tt.zeros_like(t) + tt.ones_like(t), x
    yield "rank_one", (), lambda: tt.rank_one([np.ones(n) for n in shape]), x
    yield "meshgrid", (), lambda: tt.meshgrid(*[np.ones(n) for n in shape])[0], x
    yield "evaluate", (t,), lambda t: tt.evaluate(t, np.zeros((2, 0, order), int)), np.ones((2, 0))
    yield "astype", (t,), lambda t: t.astype(np.complex64), x
    yield "tucker", (x,), lambda x: tucker.from_dense(x, tol=0.1), x


def cases_of_matrices(rng, shape, dtype):
    rows = tuple(int(n) for n in rng.integers(0, 4, len(shape)))
    a, b, back = (drawn_matrix(rng, *p, dtype) for p in [(rows, shape)] * 2 + [(shape, rows)])
    square, t = drawn_matrix(rng, shape, shape, dtype), drawn(rng, shape, dtype)
    x, inner, order = np.zeros(a.shape), np.zeros((a.shape[0],) * 2), len(shape)
    yield "to_dense", (a,), tt.to_dense, x
    yield "sums and products", (a, b), lambda a, b: a * b - 2 * a, x
    yield "matvec", (a, t), tt.matvec, np.zeros(rows)
    yield "matvec to rank", (a, t), lambda a, t: tt.matvec(a, t, rank=2), np.zeros(rows)
    yield "vecmat", (t, back), lambda t, a: t @ a, np.zeros(rows)
    yield "matmul", (a, back), tt.matmul, inner
    yield "matmul to rank", (a, back), lambda a, b: tt.matmul(a, b, rank=2), inner
    yield "matmul of none", (back, a), tt.matmul, np.zeros((0, 0))
    w = normal(rng, (2, 0, 3), dtype)
    yield "a @ dense", (a, w), lambda a, w: a @ w, np.zeros((2, a.shape[0], 3))
    yield "dense @ a", (back, w), lambda a, w: w.swapaxes(1, 2) @ a, np.zeros((2, 3, a.shape[0]))
    yield "T", (a,), lambda a: a.T, x.T
    yield "norm", (a,), tt.norm, 0
    yield "inner", (a, b), tt.inner, 0
    yield "sum", (a,), tt.sum, 0
    yield "sum of columns", (a,), lambda a: tt.sum(a, 1), np.zeros(rows)
    yield "mean", (a,), tt.mean, np.nan
    yield "cumsum", (a,), lambda a: tt.cumsum(a, 1), x
    yield "trace", (square,), tt.trace, 0
    yield "diagonal", (square,), tt.diagonal, np.zeros(shape)
    yield "round", (a,), lambda a: tt.round(a + a, rank=2), x
    yield "orthogonalize", (a,), lambda a: tt.orthogonalize(a, 0), x
    yield "kron", (a, b), tt.kron, np.zeros((a.shape[0] ** 2, 0))
    yield "concatenate", (a, b), lambda a, b: tt.concatenate([a, b]), np.zeros(
        (2 * a.shape[0], 0)
    )  # fmt: skip
    block = (*[slice(None)] * (order - 1), slice(0, 0))
    yield "a[rows]", (a,), lambda a: a[block, :], np.zeros((0, 0))
    yield "reshape", (a,), lambda a: tt.reshape(a, (rows[::-1], shape[::-1])), x


def cases_of_tuckers(rng, shape, dtype, core_rank):
    key = jax.random.key(int(rng.integers(99)))
    t, u = (tucker.random(k, shape, 2, dtype, core_rank=core_rank) for k in jax.random.split(key))
    x, zero = np.zeros(shape), shape.index(0)
    yield "to_dense", (t,), tucker.to_dense, x
    yield "arithmetic", (t, u), lambda t, u: 2 * t - u / 3 + 1, x
    yield "hadamard", (t, u), tucker.hadamard, x
    yield "norm", (t,), tucker.norm, 0
    yield "inner", (t, u), tucker.inner, 0
    yield "distance", (t, u), tucker.distance, 0
    yield "round", (t,), lambda t: tucker.round(t, rank=1), x
    yield "round to both", (t,), lambda t: tucker.round(t, rank=1, tol=0.1), x
    yield "orthogonalize", (t,), tucker.orthogonalize, x
    yield "parts", (t,), lambda t: tucker.real(t) + tucker.imag(t), x
    yield "to_tt", (t,), tucker.to_tt, x
    yield "t[0:0]", (t,), lambda t: t[0:0, ..., None], x[0:0, ..., None]
    w = np.ones((3, 0), dtype)
    product = np.moveaxis(np.tensordot(w, x, (1, zero)), 0, zero)
    yield "mode_product", (t,), lambda t: tucker.mode_product(t, w, zero), product


def all_cases(rng, orders, under_jit):
    dtypes = itertools.cycle(rng.permutation(DTYPES))
    for shape, dtype in zip(shapes(rng, orders), dtypes, strict=False):
        yield from cases_of_trains(rng, shape, dtype)
        yield from cases_of_matrices(rng, shape, dtype)
        yield from cases_of_tuckers(rng, shape, dtype, None if rng.integers(2) else 2)
        if not under_jit:
            yield from cases_outside_jit(rng, shape, dtype)


@pytest.mark.parametrize(
    ("orders", "under_jit"),
    [
        ([2], False),
        pytest.param([1], False, marks=pytest.mark.slow),
        pytest.param([3], False, marks=pytest.mark.slow),
        pytest.param([3], True, marks=pytest.mark.slow),
    ],
)
def test_operations_are_those_of_numpy(rng, orders, under_jit):
    for name, given, call, expected in all_cases(rng, orders, under_jit):
        check(name, given, call, expected, under_jit)


def searches(shape, key):
    """Calls that look for entries, draw from them, or sum over the places of entries."""
    t, a = tt.zeros(shape, float), tt.identity(shape, float)
    order, x = len(shape), np.zeros(shape)
    return [
        lambda: tt.argmax(t),
        lambda: tt.argmin(t),
        lambda: tt.sample(key, t, 3),
        lambda: tt.solve(a, t, tol=0.1),
        lambda: tt.eigsh(a, tol=0.1),
        lambda: tt.pinv(t, 1),
        lambda: tt.cross(lambda i: np.ones(len(i)), shape, tol=0.1, key=key),
        lambda: tt.patches.cross(lambda i: np.ones(len(i)), shape, tol=0.1, key=key),
        lambda: tt.map(np.exp, t, tol=0.1, key=key),
        lambda: tt.divide(t, t, tol=0.1, key=key),
        lambda: tt.complete(np.zeros((3, order), int), np.zeros(3), shape, 1),
        lambda: tt.sobol(t, 0),
        lambda: tt.moment(t, 2),
        lambda: tt.marginal(t, [0]),
        lambda: tt.conditional(t, {0: 0}),
        lambda: tt.log_density(t, np.zeros((1, order), int)),
        lambda: tt.mean_dimension(t),
        lambda: tt.variance_components(t),
        lambda: tt.stream(key, shape, 2),
        lambda: tt.unit(shape, (0,) * order),
        lambda: tucker.hooi(x, rank=1),
        lambda: tucker.nonnegative(x, rank=1, key=key),
        lambda: mera.random(key, shape, 2),
    ]


def test_gradients_on_the_manifold_are_zero(rng):
    for shape in shapes(rng, [int(rng.integers(2, 5))]):
        t = tt.zeros(shape, float)
        a = tt.TTMatrix([c[..., None, :] for c in t.cores])
        for x in (t, a):
            f = tt.value_and_riemannian_grad(lambda x: tt.inner(x, x) / 2 + 1)
            value, gradient = f(x)
            assert value == 1
            assert type(gradient) is type(x)
            assert gradient.shape == x.shape
            assert gradient.ranks == tt.tangent_project(x, x).ranks
            np.testing.assert_array_equal(array(gradient), array(x))


def test_what_needs_entries_says_so(rng, key):
    """Searches, samples, solvers and statistics; and MERAs, whose sites have one index at least."""
    for shape in shapes(rng):
        for call in searches(shape, key):
            with pytest.raises(ValueError, match=r"entries|sizes|modes"):
                call()
    with pytest.raises(ValueError, match="ranks of at least 1"):
        tt.TT([np.ones((1, 2, 0)), np.ones((0, 2, 1))])
    with pytest.raises(ValueError, match="-1"):
        tt.reshape(tt.zeros((0, 3)), (0, -1))
    with pytest.raises(ValueError, match="shape"):
        tt.inner(tt.zeros((0, 3)), tt.zeros((1, 3)))
