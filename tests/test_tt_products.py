"""Sums and products rounded without being formed, against rounding what is formed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tensorjax._kernels.table import CALL, PROGRAM, TABLE, Candidate
from tests.oracles import cores, dense, error, infinite, norm, normal

SHAPE = (3, 4, 2, 5)


@pytest.fixture(autouse=True)
def programs_to_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """First calls are programs here too; those by NumPy are tested in test_first_calls.py."""
    for name in ("tt.linear_combination(rank=)", "tt.round(rank=, tol=)"):
        monkeypatch.setitem(TABLE, name, {CALL: (Candidate(PROGRAM),)})


def train(rng: np.random.Generator, rank: Any, dtype: Any = float, shape: Any = SHAPE) -> tt.TT:
    return tt.TT([jnp.asarray(c) for c in cores(rng, shape, rank, dtype)])


def matrix(rng: np.random.Generator, rank: int, rows: Any, columns: Any, dtype: Any = float) -> Any:
    pairs = zip(rows, columns, strict=True)
    made = cores(rng, [m * n for m, n in zip(rows, columns, strict=True)], rank, dtype)
    return tt.TTMatrix(
        [jnp.asarray(c).reshape(len(c), m, n, -1) for c, (m, n) in zip(made, pairs, strict=True)]
    )


ROWS = (2, 3, 4, 2)


def operands(rng: np.random.Generator, dtype: Any = np.float64) -> dict[str, Any]:
    return {
        "x": train(rng, 3, dtype),
        "y": train(rng, 4, dtype),
        "a": matrix(rng, 3, ROWS, SHAPE, dtype),
        "b": matrix(rng, 2, SHAPE, (2, 2, 3, 1), dtype),
        "c": matrix(rng, 2, ROWS, SHAPE, dtype),
    }


PRODUCTS = {
    "hadamard": lambda o, **kw: tt.hadamard(o["x"], o["y"], **kw),
    "hadamard of matrices": lambda o, **kw: tt.hadamard(o["a"], o["c"], **kw),
    "matvec": lambda o, **kw: tt.matvec(o["a"], o["x"], **kw),
    "matmul": lambda o, **kw: tt.matmul(o["a"], o["b"], **kw),
}


SLOW = pytest.mark.slow
MATRICES = ("hadamard of matrices", "matmul")


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.complex128, marks=SLOW)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_full_rank_are_exact(rng: np.random.Generator, name: str, dtype: Any):
    o = operands(rng, dtype)
    exact = PRODUCTS[name](o)
    for options in ({"rank": 60}, {"tol": 1e-12}):
        found = PRODUCTS[name](o, **options)
        assert type(found) is type(exact)
        assert found.dtype == exact.dtype
        assert error(dense(found), dense(exact)) < 1e-11 * norm(dense(exact))
        assert max(found.ranks) <= max(exact.ranks)


@pytest.mark.parametrize(
    "name", ["hadamard", "matvec", *(pytest.param(n, marks=SLOW) for n in MATRICES)]
)
def test_products_to_a_rank_are_near_the_best(rng: np.random.Generator, name: str):
    o = operands(rng)
    exact = PRODUCTS[name](o)
    best = tt.round(exact, rank=5, method="svd")
    found = PRODUCTS[name](o, rank=5, key=jax.random.key(1))
    assert found.ranks == best.ranks
    # Neither is the best train of these ranks, but both are near it.
    near = error(dense(best), dense(exact))
    assert 0.98 * near < error(dense(found), dense(exact)) < 1.2 * near
    jitted = jax.jit(lambda o: PRODUCTS[name](o, rank=5, key=jax.random.key(1)))(o)
    assert error(dense(jitted), dense(found)) < 1e-11 * norm(dense(exact))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_a_sum_of_many_terms_and_products(rng: np.random.Generator, dtype: Any):
    x = [train(rng, r, dtype) for r in (1, 2, 3, 2)]
    square = matrix(rng, 2, SHAPE, SHAPE, dtype)
    terms = [x[0], (x[1], x[2]), (square, x[3]), x[1]]
    weights = [2.0, -1.0, 0.5, 1.0]
    expected = (
        2 * dense(x[0]) - dense(x[1]) * dense(x[2])
        + 0.5 * (dense(square) @ dense(x[3]).ravel()).reshape(SHAPE) + dense(x[1])
    )  # fmt: skip
    tiny = 1e-5 if dtype == np.float32 else 1e-12
    exact = tt.linear_combination(terms, weights)
    assert exact.ranks[1:-1] == (1 + 6 + 4 + 2,) * 3
    for found in (exact, tt.linear_combination(terms, weights, rank=40),
                  tt.linear_combination(terms, weights, tol=max(tiny, 1e-12))):  # fmt: skip
        assert found.dtype == dtype
        assert error(dense(found), expected) < 2 * tiny * norm(expected)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-9])
def test_the_tolerance_is_kept_and_ranks_are_not_wasted(seed: int, tol: float):
    """Sums of many smooth functions, whose singular values decay."""
    rng = np.random.default_rng(seed)
    points = np.linspace(0, 1, 6)
    terms = [
        tt.rank_one([jnp.asarray(np.exp(-a * points**2) + b) for a, b in rng.uniform(0, 3, (5, 2))])
        for _ in range(30)
    ]
    x = tt.linear_combination(terms[:15], tol=1e-14)
    y = tt.linear_combination(terms[15:], tol=1e-14)
    exact = tt.hadamard(x, y)
    found = tt.hadamard(x, y, tol=tol, key=jax.random.key(seed))
    assert tt.distance(found, exact) <= tol * tt.norm(exact)
    least = tt.round(exact, tol=0.3 * tol)
    assert max(found.ranks) <= max(least.ranks) + 1


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("tol", [0.3, 1e-3, 1e-12])
def test_gram_matrices_prove_the_tolerance(rng: np.random.Generator, dtype: Any, tol: float):
    x = [train(rng, r, dtype) for r in (1, 2, 3, 2)]
    square = matrix(rng, 2, SHAPE, SHAPE, dtype)
    terms, weights = [x[0], (x[1], x[2]), (square, x[3]), x[0]], [2.0, -1.0, 0.5, 1.0]
    exact = tt.linear_combination(terms, weights)
    found = tt.linear_combination(terms, weights, tol=tol, method="gram")
    assert tt.distance(found, exact) <= tol * tt.norm(exact)
    assert max(found.ranks) <= max(tt.round(exact, tol=0.9 * tol).ranks)
    with pytest.raises(ValueError, match="expected tol= alone"):
        tt.linear_combination(terms, weights, rank=2, method="gram")


def test_rank_and_tol_together_have_the_shapes_of_rank(rng: np.random.Generator):
    x = train(rng, 2)
    found = jax.jit(lambda t: tt.linear_combination([t, t, t], rank=5, tol=1e-8))(x)
    assert max(found.ranks) == 5
    assert max(tt.effective_ranks(found)) == 2
    assert tt.distance(found, x * 3.0) < 1e-10 * tt.norm(x)


def test_no_intermediate_has_the_rank_of_the_product():
    """Rank 48: cores of the product would take 4·48⁴ numbers each, and a bond 48² × 48²."""
    x = tt.random(jax.random.key(0), (4,) * 6, 48, float)
    y = tt.random(jax.random.key(1), (4,) * 6, 48, float)
    program = jax.jit(lambda x, y: tt.hadamard(x, y, rank=48)).lower(x, y).compile()
    memory = program.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 4 * 48**4 * 8
    flops = program.cost_analysis()["flops"]
    assert flops < 8 * 6 * 4 * 48**3 * 56


def test_gradients_are_those_of_finite_differences(rng: np.random.Generator):
    x, y = train(rng, 3), train(rng, 2)
    probe = jnp.asarray(normal(rng, SHAPE))

    def f(x: tt.TT) -> jax.Array:
        return jnp.vdot(tt.to_dense(tt.hadamard(x, y, rank=3)), probe)

    direction = train(rng, 3)
    slope = sum(jnp.vdot(a, b) for a, b in zip(jax.grad(f)(x).cores, direction.cores, strict=True))
    h = 1e-6
    moved = [jax.tree.map(lambda a, b, s=s: a + s * h * b, x, direction) for s in (1, -1)]
    numeric = (f(moved[0]) - f(moved[1])) / (2 * h)
    assert abs(slope - numeric) < 1e-6 * abs(numeric)


@pytest.mark.slow
def test_long_trains():
    x = tt.random(jax.random.key(0), (4,) * 30, 3, jnp.float32) * 1e29
    found = tt.linear_combination([x, x, x], [1.0, 1.0, -1.0], rank=3)
    assert tt.distance(found / 1e20, x / 1e20) < 1e-4 * tt.norm(x / 1e20)


def test_trains_of_one_core_and_zero(rng: np.random.Generator):
    one = train(rng, 1, shape=(4,))
    for options in ({"rank": 1}, {"tol": 1e-8}):
        assert error(dense(tt.hadamard(one, one, **options)), dense(one) ** 2) < 1e-14
    zero = tt.hadamard(train(rng, 2), tt.zeros(SHAPE, float), tol=1e-8)
    assert norm(dense(zero)) == 0
    assert max(zero.ranks) == 1


def test_bad_input_is_named(rng: np.random.Generator):
    x, a = train(rng, 2), matrix(rng, 2, ROWS, SHAPE)
    with pytest.raises(ValueError, match="terms: expected one or more"):
        tt.linear_combination([])
    with pytest.raises(ValueError, match="one weight each"):
        tt.linear_combination([x], [1.0, 2.0])
    with pytest.raises(ValueError, match="terms: expected one shape"):
        tt.linear_combination([x, (a, x)])
    with pytest.raises(TypeError, match=r"terms\[1\]: expected a TT, or a pair"):
        tt.linear_combination([x, a])
    with pytest.raises(ValueError, match=r"terms\[0\]: expected a second factor of shape"):
        tt.linear_combination([(a, tt.ones(ROWS, float))])
    with pytest.raises(ValueError, match="expected finite"):
        tt.hadamard(x, infinite(x), rank=2)
    with pytest.raises(ValueError, match="tol: expected at least"):
        tt.hadamard(x, x, tol=1e-17)
    with pytest.raises(TypeError, match="tol= alone"):
        jax.jit(lambda t: tt.hadamard(t, t, tol=1e-3))(x)
