"""The types: what they check, what they are to JAX and Python, and their operators."""

import copy
import functools
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tensorjax import convert, nn, tt, tucker
from tensorjax._cores import dense_decompositions
from tests.oracles import DTYPES, cores, dense, eps, error, norm, normal, wide

SHAPE, ROWS, COLS = (2, 3, 2), (2, 1, 3), (2, 3, 2)


def train(rng, shape=SHAPE, rank=2, dtype=np.float64) -> tt.TT:
    return tt.TT(cores(rng, shape, rank, dtype))


def square(rng, dtype=np.float64) -> tt.TTMatrix:
    """A TT-matrix from SHAPE to SHAPE."""
    flat = cores(rng, [n * n for n in SHAPE], 2, dtype)
    return tt.TTMatrix([c.reshape(len(c), n, n, -1) for c, n in zip(flat, SHAPE, strict=True)])


def close(x, y, dtype=np.float64) -> bool:
    return error(x, y) <= 100 * eps(dtype) * max(norm(y), 1.0)


# Properties and the pytree -----------------------------------------------------------------------


def test_properties(rng):
    t = train(rng, (2, 3, 4), [2, 5])
    assert (t.shape, t.ranks, t.order, t.size) == ((2, 3, 4), (1, 2, 5, 1), 3, 4 + 30 + 20)
    a = tt.random_matrix(jax.random.key(0), ROWS, COLS, 2)
    assert (a.row_shape, a.col_shape, a.shape) == (ROWS, COLS, (6, 12))
    assert repr(t) == "TT(shape=(2, 3, 4), ranks=(1, 2, 5, 1), dtype=float64)"
    assert "row_shape=(2, 1, 3), col_shape=(2, 3, 2)" in repr(a)


def test_copies_hold_the_same_numbers(rng):
    for t in (train(rng), square(rng, np.complex64)):
        leaves, tree = jax.tree.flatten(t)
        others = [
            pickle.loads(pickle.dumps(t)),
            copy.copy(t),
            copy.deepcopy(t),
            tree.unflatten(leaves),
            jax.device_put(t),
            jax.device_put(t, jax.devices()[1]),
            jax.tree.map(lambda x: x, t),
        ]
        for other in others:
            assert type(other) is type(t)
            assert other.ranks == t.ranks
            assert all(
                (x == np.asarray(y)).all() for x, y in zip(t.cores, other.cores, strict=True)
            )
        assert others[-2].cores[0].devices() == {jax.devices()[1]}


def test_a_train_is_frozen_and_its_tree_is_open(rng):
    t = train(rng)
    with pytest.raises(AttributeError):
        t.cores = ()  # type: ignore[misc]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(t)]
    assert paths == [".cores[0]", ".cores[1]", ".cores[2]"]
    # JAX puts anything in the place of leaves.
    assert jax.tree.map(lambda _: None, t).cores == (None, None, None)
    assert "ShapeDtypeStruct" in repr(jax.eval_shape(lambda x: x, t).cores[0])
    assert repr(jax.tree.structure(t))


def test_vmap_makes_a_batch_with_the_shape_and_ranks_of_one():
    keys = jax.random.split(jax.random.key(0), 5)
    batch = jax.vmap(lambda key: tt.random(key, (2, 3, 4), 2))(keys)
    one = tt.random(keys[0], (2, 3, 4), 2)
    assert (batch.shape, batch.ranks, batch.size) == (one.shape, one.ranks, one.size)
    assert batch.cores[0].shape == (5, 1, 2, 2)
    assert "batch=(5,)" in repr(batch)
    assert tt.TT(batch.cores).ranks == one.ranks
    matrices = jax.vmap(lambda key: tt.random_matrix(key, ROWS, COLS, 2))(keys)
    assert (matrices.row_shape, matrices.shape) == (ROWS, (6, 12))


BATCHED = {
    "hadamard": lambda t: tt.hadamard(t, t),
    "inner": lambda t: tt.inner(t, t),
    "norm": tt.norm,
    "distance": lambda t: tt.distance(t, t),
    "to_dense": tt.to_dense,
    "evaluate": lambda t: tt.evaluate(t, [0, 0, 0]),
    "contract_modes": lambda t: tt.contract_modes(t, {1: jnp.ones(3)}),
    "concatenate": lambda t: tt.concatenate([t, t]),
    "orthogonalize": lambda t: tt.orthogonalize(t, 1),
    "round": lambda t: tt.round(t, rank=1),
    "trim": tt.trim,
    "effective_ranks": tt.effective_ranks,
    "pad": lambda t: tt.pad(t, 3),
}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_outside_vmap_is_refused(rng, name, size):
    t = train(rng)
    batch = jax.tree.map(lambda c: jnp.stack([c] * size), t)
    with pytest.raises(ValueError, match="vmap"):
        BATCHED[name](batch)


# Construction ------------------------------------------------------------------------------------


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape)


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, "cores: .*none", lambda: tt.TT([])),
        (ValueError, r"cores\[0\]: .*\(2, 3\)", lambda: tt.TT([ones(2, 3)])),
        (ValueError, r"cores\[1\]: .*\(2, 3\)", lambda: tt.TT([ones(1, 2, 2), ones(2, 3)])),
        (ValueError, "r_0 = 2", lambda: tt.TT([ones(2, 3, 1)])),
        (ValueError, "r_d = 2", lambda: tt.TT([ones(1, 3, 2)])),
        (ValueError, "got 2 and 3", lambda: tt.TT([ones(1, 3, 2), ones(3, 3, 1)])),
        (ValueError, r"cores\[0\]: .*ranks of at least 1", lambda: tt.TT([ones(1, 1, 0)])),
        (TypeError, r"cores\[0\]: .*int", lambda: tt.TT([ones(1, 3, 1).astype(int)])),
        (TypeError, r"cores\[0\]: .*bool", lambda: tt.TT([ones(1, 3, 1) > 0])),
        (ValueError, r"cores\[0\]: .*\(1, 3, 1\)", lambda: tt.TTMatrix([ones(1, 3, 1)])),
        (ValueError, "shape", lambda: tt.ones(())),
        (ValueError, "shape.*-1", lambda: tt.zeros((2, -1))),
        (ValueError, "shape.*-1", lambda: tt.identity((-1,))),
        (ValueError, "shape.*2.5", lambda: tt.ones((2.5,))),  # type: ignore[arg-type]
        (ValueError, "rank.*got 0", lambda: tt.random(jax.random.key(0), (2, 3), 0)),
        (ValueError, "rank.*got 2", lambda: tt.random(jax.random.key(0), (2, 3), [1, 2])),
        (TypeError, "dtype.*int", lambda: tt.random(jax.random.key(0), (2, 3), 1, int)),
        (ValueError, "col_shape", lambda: tt.random_matrix(jax.random.key(0), (2,), (2, 3), 1)),
        (ValueError, r"vectors\[1\]: .*\(2, 2\)", lambda: tt.rank_one([ones(2), ones(2, 2)])),
        (TypeError, r"vectors\[0\]: .*int", lambda: tt.rank_one([np.arange(3)])),
        (ValueError, "none", lambda: tt.rank_one([])),
        (TypeError, "dtype.*int", lambda: tt.ones((2, 3), int)),
        (TypeError, "dtype.*int", lambda: tt.identity((2, 3), int)),
        (ValueError, "present ranks", lambda: tt.pad(tt.ones((2, 2)) + 1.0, 1)),
        (ValueError, "rank", lambda: tt.pad(tt.ones((2, 2)), [2, 2])),
        (TypeError, "tt.trim", lambda: jax.jit(tt.trim)(tt.ones((2, 2)))),
    ],
)
def test_bad_construction_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("dtype", [*DTYPES, jnp.bfloat16])
def test_constructors_give_the_arrays_they_name(rng, dtype):
    vectors = [normal(rng, (n,)).astype(dtype) for n in (2, 3)]
    assert close(dense(tt.rank_one(vectors)), np.multiply.outer(*map(wide, vectors)), dtype)
    assert (dense(tt.ones((2, 3), dtype)) == np.ones((2, 3))).all()
    assert (dense(tt.zeros((2, 3), dtype)) == 0).all()
    assert (dense(tt.identity((2, 3), dtype)) == np.eye(6)).all()
    made = [tt.rank_one(vectors), tt.ones((2, 3), dtype), tt.identity((2,), dtype)]
    made += [tt.random(jax.random.key(0), (2, 3), 2, dtype)]
    assert all(t.dtype == dtype for t in made)


def test_random_entries_have_mean_0_and_variance_1(key):
    """500 trains of 60 entries; entries of one train are uncorrelated but not independent."""
    draw = jax.vmap(lambda k: tt.to_dense(tt.random(k, (4, 3, 5), 3)))(jax.random.split(key, 500))
    means, squares = draw.mean(axis=(1, 2, 3)), (draw**2).mean(axis=(1, 2, 3))
    for sample, expected in ((means, 0.0), (squares, 1.0)):
        standard_error = sample.std() / len(sample) ** 0.5
        assert abs(sample.mean() - expected) < 4 * standard_error
    a, b = (tt.random(key, (4, 3), 2) for _ in range(2))
    assert all((c == e).all() for c, e in zip(a.cores, b.cores, strict=True))


@pytest.mark.slow
def test_random_cuts_one_rank_where_the_bond_is_small_and_takes_many_at_their_word(key):
    assert tt.random(key, (2, 3, 4, 2), 9).ranks == (1, 2, 6, 2, 1)
    assert tt.random(key, (2, 3, 4, 2), np.int64(9)).ranks == (1, 2, 6, 2, 1)
    assert tt.random(key, (2, 3, 4, 2), [9, 9, 9]).ranks == (1, 9, 9, 9, 1)


def test_padding_is_counted_and_trimmed(rng):
    for t in (train(rng), square(rng), train(rng, (4,)), 0 * train(rng)):
        padded = tt.pad(t, 5)
        assert padded.ranks == (1, *[5] * (t.order - 1), 1)
        alive = (1,) * (t.order + 1) if norm(dense(t)) == 0 else t.ranks
        assert tt.effective_ranks(padded) == alive
        assert tt.trim(padded).ranks == alive
        assert tuple(map(int, jax.jit(tt.effective_ranks)(padded))) == alive
        for same in (padded, tt.trim(padded)):
            assert (dense(same) == dense(t)).all()
    # Dead on one side is dead.
    half = tt.TT([np.ones((1, 2, 3)), np.ones((3, 2, 1)) * np.array([1.0, 0, 1])[:, None, None]])
    assert tt.trim(half).ranks == (1, 2, 1)


# Operators ---------------------------------------------------------------------------------------


def scalars(dtype):
    """What may stand beside an array of this dtype in NumPy without changing it."""
    number = np.dtype(dtype).type(2.5)
    return [2, 2.5, number, np.asarray(number), jnp.asarray(number)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_do_what_numpy_does(rng, dtype):
    for x, y in ((train(rng, dtype=dtype), train(rng, rank=1, dtype=dtype)),
                 (square(rng, dtype), square(rng, dtype))):  # fmt: skip
        for f in (operator.add, operator.sub, operator.mul):
            assert close(dense(f(x, y)), f(dense(x), dense(y)), dtype)
            for s in scalars(dtype):
                for z in (f(x, s), f(s, x)):
                    assert z.dtype == dtype
                    assert type(z) is type(x)
                assert close(dense(f(x, s)), f(dense(x), wide(s)), dtype), (f, s)
                assert close(dense(f(s, x)), f(wide(s), dense(x)), dtype), (f, s)
        assert close(dense(-x), -dense(x), dtype)
        assert close(dense(x / 4), dense(x) / 4, dtype)
        assert close(dense(sum([x, y])), dense(x) + dense(y), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_does_what_numpy_does(rng, dtype):
    x, y = train(rng, dtype=dtype), train(rng, rank=1, dtype=dtype)
    a, b = square(rng, dtype), square(rng, dtype)
    flat = dense(x).ravel(), dense(y).ravel()
    assert close(wide(x @ y), flat[0] @ flat[1], dtype)  # no conjugation, as in NumPy
    assert close(dense(a @ x).ravel(), dense(a) @ flat[0], dtype)
    assert close(dense(x @ a).ravel(), flat[0] @ dense(a), dtype)
    assert close(dense(a @ b), dense(a) @ dense(b), dtype)
    assert close(wide(x @ a @ y), flat[0] @ dense(a) @ flat[1], dtype)


def test_a_scalar_may_be_traced(rng):
    x = train(rng)
    for f in (operator.mul, operator.add, operator.sub):
        for g in (f, lambda a, b, f=f: f(b, a)):
            assert close(dense(jax.jit(g)(x, 2.5)), g(dense(x), 2.5))


def test_unlike_operands_are_refused(rng):
    x, a = train(rng), square(rng)
    array = dense(x)
    others = [a, array, jnp.asarray(array), [1.0], None, "x"]
    for f in (operator.add, operator.sub, operator.mul):
        for other in others:
            for pair in ((x, other), (other, x)):
                with pytest.raises(TypeError):
                    f(*pair)
    for f in (lambda: x @ array.ravel(), lambda: a @ 2.0, lambda: 2 / x, lambda: x / x):
        with pytest.raises(TypeError):
            f()
    other = train(rng, (3, 2, 2))
    for f in (operator.add, operator.sub, operator.mul, operator.matmul):
        with pytest.raises(ValueError, match="expected trains of one shape, got"):
            f(x, other)
    with pytest.raises(ValueError, match=r"x: expected shape \(2, 3, 2\).*got \(3, 2, 2\)"):
        _ = a @ other


def test_complex_scalars_promote_like_numpy():
    """In JAX's default mode; the strict one allows no scalar that changes the dtype."""
    with jax.numpy_dtype_promotion("standard"):
        x = tt.ones((2, 3), np.float32)
        for s in (2j, np.complex64(2j), jnp.complex64(2j)):
            for z, expected in ((s * x, 2j), (x + s, 1 + 2j), (s - x, 2j - 1)):
                assert z.dtype == np.complex64
                assert (dense(z) == expected).all()
        assert (np.int64(3) * x).dtype == np.float32
        assert (x + tt.ones((2, 3), np.complex64)).dtype == np.complex64


# Cores of NumPy, as jax.device_get gives them ----------------------------------------------------


def hosted_calls():
    """Functions of a train, another one and a square TT-matrix, of one shape."""
    key, one = jax.random.key(0), np.ones(3, np.float32)
    return {
        "round tol": lambda x, y, a: tt.round(x, tol=1e-3),
        "round gram": lambda x, y, a: tt.round(x, tol=1e-2, method="gram"),
        "round rank": lambda x, y, a: tt.round(x, rank=1),
        "round both": lambda x, y, a: tt.round(x, rank=2, tol=1e-3),
        "round matrix": lambda x, y, a: tt.round(a, tol=1e-3),
        "pad": lambda x, y, a: tt.pad(x, 4),
        "trim": lambda x, y, a: tt.trim(x),
        "hadamard rank": lambda x, y, a: tt.hadamard(x, y, rank=2),
        "hadamard tol": lambda x, y, a: tt.hadamard(x, y, tol=1e-3),
        "matvec": lambda x, y, a: tt.matvec(a, x, rank=2),
        "matmul": lambda x, y, a: tt.matmul(a, a, tol=1e-3),
        "linear_combination": lambda x, y, a: tt.linear_combination([x, (a, y)], tol=1e-3),
        "by gram": lambda x, y, a: tt.linear_combination([x, y], tol=1e-2, method="gram"),
        "operators": lambda x, y, a: (2 * x - y / 3 + 1, -x, x * y, a @ a @ x, x @ y, x @ a),
        "numbers": lambda x, y, a: (tt.norm(x), tt.inner(x, y), tt.distance(x, y), x[1, 2, 0]),
        "entries": lambda x, y, a: tt.evaluate(x, [[0, 1, 2], [1, 0, -1]]),
        "contract_modes": lambda x, y, a: tt.contract_modes(x, {1: one.astype(x.dtype)}),
        "reductions": lambda x, y, a: (tt.mean(x, 0), tt.var(x), tt.trace(a), tt.sum(a, 0)),
        "shapes": lambda x, y, a: (x[:, 1:, None], tt.reshape(x, (6, 4)), tt.permute(x, (2, 0, 1))),
        "orthogonalize": lambda x, y, a: (tt.orthogonalize(x, 1), tt.normalize(x)),
        "tangent": lambda x, y, a: tt.retract(x, tt.tangent_project(x, y)),
        "solve": lambda x, y, a: tt.solve(0.01 * a + tt.identity(x.shape, x.dtype), x, tol=1e-3)[0],
        "complete": lambda x, y, a: tt.sample(key, x, 3),
        "argmax": lambda x, y, a: tt.argmax(x)[:2],
        "tucker": lambda x, y, a: tucker.to_dense(convert.tt_to_tucker(x, tol=1e-3)[0]),
        "jit": lambda x, y, a: jax.jit(lambda u, v: tt.round(u + v, rank=2))(x, y),
    }


SLOW_HOSTED = ("tangent", "solve", "shapes", "reductions", "tucker", "jit", "operators", "matvec")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW_HOSTED)) for n in hosted_calls()]
)
@pytest.mark.parametrize("x64", [False, True])
def test_trains_of_numpy_arrays_give_what_those_of_jax_give(rng, name, x64):
    call, shape = hosted_calls()[name], (2, 3, 4)
    for dtype in (np.float32, np.float64)[: 1 + x64]:
        drawn = [tt.TT([jnp.asarray(c) for c in cores(rng, shape, 2, dtype)]) for _ in range(2)]
        a = tt.random_matrix(jax.random.key(1), shape, shape, 2, dtype)
        with jax.enable_x64(x64):
            wanted, found = call(*drawn, a), call(*jax.device_get((*drawn, a)))
        assert jax.tree.structure(wanted) == jax.tree.structure(found)
        for p, q in zip(tensors(wanted), tensors(found), strict=True):
            assert (p.dtype, p.shape) == (q.dtype, q.shape)
            assert np.allclose(p, q, rtol=1e-3, atol=1e-4)


def tensors(tree):
    """Dense arrays of the trains in a tree, whose cores are not unique, and its other leaves."""
    trains = lambda t: isinstance(t, tt.TT | tt.TTMatrix)  # noqa: E731
    leaves = jax.tree.leaves(tree, is_leaf=trains)
    return [np.asarray(dense(t) if trains(t) else t) for t in leaves]


def test_numpy_trains_of_64_bits_are_refused_where_jax_has_32(rng):
    x = tt.TT._unchecked(tuple(cores(rng, (2, 3, 4), 2, np.float64)))
    calls = [tt.norm, tt.to_dense, tt.trim, lambda x: x + x, lambda x: x * x]
    calls += [lambda x: tt.pad(x, 4), lambda x: tt.round(x, tol=0.1)]
    with jax.enable_x64(False):
        for call in calls:
            with pytest.raises(TypeError, match="jax_enable_x64"):
                call(x)
        assert tt.norm(x.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("seed", range(3))
def test_products_of_matrices_are_kronecker_products(seed):
    rng = np.random.default_rng(seed)
    sizes = [(int(m), int(n)) for m, n in rng.integers(1, 4, (rng.integers(1, 5), 2))]
    given = [rng.normal(size=s) + 1j * rng.normal(size=s) for s in sizes]
    a = tt.rank_one_matrix(given)
    assert (a.row_shape, a.col_shape) == tuple(zip(*sizes, strict=True))
    assert set(a.ranks) == {1}
    assert error(dense(a), functools.reduce(np.kron, given)) <= 1e-14
    order, n = int(rng.integers(4, 7)), int(rng.integers(1, 4))
    some = {int(k): rng.normal(size=(n, n)) for k in rng.choice(order, 2, replace=False)}
    whole = [some.get(k, np.eye(n)) for k in range(order)]
    assert error(dense(tt.rank_one_matrix(some, order)), functools.reduce(np.kron, whole)) <= 1e-13
    assert tt.rank_one_matrix(some).order == max(some) + 1


@pytest.mark.parametrize(
    ("error_type", "message", "call"),
    [
        (ValueError, "at least", lambda: tt.rank_one_matrix([])),
        (ValueError, "expected shape", lambda: tt.rank_one_matrix([np.ones(3)])),
        (ValueError, "order: expected 1", lambda: tt.rank_one_matrix([np.eye(2)], 3)),
        (ValueError, "sites of matrices", lambda: tt.rank_one_matrix({-1: np.eye(2)})),
        (ValueError, "order", lambda: tt.rank_one_matrix({3: np.eye(2)}, order=3)),
        (ValueError, "give a sequence", lambda: tt.rank_one_matrix({}, order=3)),
        (ValueError, "give a sequence", lambda: tt.rank_one_matrix({1: np.ones((2, 3))})),
        (
            ValueError, "give a sequence",
            lambda: tt.rank_one_matrix({0: np.eye(2), 2: np.eye(3)}),
        ),
        (TypeError, "matrices", lambda: tt.rank_one_matrix({1: np.eye(2, dtype=int)})),
    ],
)  # fmt: skip
def test_products_of_matrices_that_do_not_fit(error_type, message, call):
    with pytest.raises(error_type, match=message):
        call()


def test_data_of_64_bits_that_become_32_are_told_of_once(caplog):
    dense_decompositions._say_narrowed.cache_clear()
    x = np.random.default_rng(0).normal(size=(3, 4))
    with jax.enable_x64(False):
        nn.tensorize(nnx.Linear(4, 6, rngs=nnx.Rngs(0)), {"": nn.TT(rank=2)})
        tt.cross(lambda i: 1.0 + i.sum(1), (2, 3), tol=1e-4, key=jax.random.key(0))
        assert not caplog.records  # nothing that had 64 bits was given
        for call in (tt.from_dense, tucker.from_dense):
            assert call(x, tol=1e-3).dtype == np.float32
    assert [r.levelname for r in caplog.records if "jax_enable_x64" in r.message] == ["WARNING"]
    assert tt.from_dense(x, tol=1e-3).dtype == np.float64


@pytest.mark.parametrize("f", [tt.trace, tt.diagonal, lambda a: tt.eigsh(a, k=1, tol=1e-6)])
def test_arrays_in_place_of_operators_are_told_how_to_convert_them(f) -> None:
    with pytest.raises(TypeError, match=r"expected a TTMatrix, got .*tt\.matrix_from_dense"):
        f(np.eye(4))
