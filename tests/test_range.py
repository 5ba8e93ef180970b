"""Norms and rounding at any scale of the cores, and loops that keep their shapes.

Cores are scaled by powers of ten that are drawn, so that products of cores leave the range though
the tensor does not; what is right is computed at scale one.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import cores, dense, error, norm

SHAPE = (2, 3, 2, 2)


def scaled(rng, dtype, most):
    """A train, and the same with cores times powers of ten up to ``most`` whose product is one."""
    x = cores(rng, SHAPE, 2, dtype)
    powers = rng.integers(-most, most + 1, len(SHAPE))
    powers = np.clip(powers - np.round(powers.mean()).astype(int), -most, most)
    powers[-1] -= powers.sum()
    y = [(c * np.float64(10.0) ** p).astype(dtype) for c, p in zip(x, powers, strict=True)]
    return tt.TT([jnp.asarray(c) for c in x]), tt.TT([jnp.asarray(c) for c in y])


FUNCTIONS = {
    "norm": tt.norm,
    "log_norm": tt.log_norm,
    "normalize": tt.normalize,
    "round": lambda x: tt.round(x + x, rank=2),
    "to_dense": tt.to_dense,
    "to_dense under jit": jax.jit(tt.to_dense),
    "orthogonalize": lambda x: tt.orthogonalize(x, 1),
    "evaluate": lambda x: tt.evaluate(x, np.stack(np.indices(SHAPE), -1)),
    "contract_modes": lambda x: tt.to_dense(
        tt.contract_modes(x, {0: np.ones(2, x.dtype), 2: np.ones(2, x.dtype)})
    ),
    "round by svd": lambda x: tt.round(x + x, rank=2, method="svd"),
}
SOME = {*FUNCTIONS} - {"round", "round by svd"}


@pytest.mark.parametrize(
    "name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in FUNCTIONS]
)
@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 15), (np.float64, 60)])
def test_results_do_not_depend_on_the_scale_of_the_cores(rng, name, dtype, most):
    plain, extreme = scaled(rng, dtype, most)
    wanted, found = (FUNCTIONS[name](x) for x in (plain, extreme))
    if isinstance(found, tt.TT):  # the oracle has no protection: the sizes of cores evened out
        found = tt.scale(tt.normalize(found), tt.norm(found))
    wanted, found = (dense(x) if isinstance(x, tt.TT) else x for x in (wanted, found))
    assert np.isfinite(found).all()
    assert error(found, wanted) <= 1e3 * np.finfo(dtype).eps * norm(wanted)


def test_a_norm_that_the_centre_cannot_hold_is_shared():
    x = tt.ones((100,) * 40, dtype=np.float32)
    y = tt.orthogonalize(x, 7)
    assert all(np.isfinite(np.asarray(c)).all() for c in y.cores)
    assert float(tt.log_norm(y)) == pytest.approx(40 * np.log(10), rel=1e-6)
    drawn = np.asarray(tt.sample(jax.random.key(0), x, 200))
    assert abs(drawn.mean() - 49.5) <= 5 * 28.9 / drawn.size**0.5


@pytest.mark.parametrize("sites", [63, 200, 333])
def test_normalized_trains_of_many_sites_in_single_precision(rng, sites):
    for value in (100.0, 1e-3, float(rng.uniform(1, 50))):
        a = tt.rank_one([np.full(3, value, np.float32)] * sites)
        assert float(tt.norm(tt.normalize(a))) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize(("value", "sites"), [(10.0, 309), (0.1, 330)])
def test_norms_that_no_scalar_holds(value, sites):
    a = tt.rank_one([np.full(1, value)] * sites)
    with pytest.raises(OverflowError, match="out of the range"):
        tt.norm(a)
    assert float(jax.jit(tt.norm)(a)) == (np.inf if value > 1 else 0.0)
    assert float(tt.log_norm(a)) == pytest.approx(sites * np.log(value), rel=1e-13)
    assert float(tt.norm(tt.normalize(a))) == pytest.approx(1, rel=1e-12)


def test_zero_trains_have_no_direction():
    for zero in (tt.zeros((2, 3)), tt.TTMatrix([np.zeros((1, 2, 3, 1))])):
        assert float(tt.norm(zero)) == 0
        assert float(tt.log_norm(zero)) == -np.inf
        assert float(tt.norm(tt.normalize(zero))) == 0
        slopes = jax.tree.leaves(jax.grad(tt.log_norm)(zero))
        assert all((np.asarray(g) == 0).all() for g in slopes)


def test_derivatives_of_the_logarithm(rng):
    x = tt.TT([jnp.asarray(c) for c in cores(rng, SHAPE, 2, np.float64)])
    slopes = jax.grad(tt.log_norm)(x), jax.grad(lambda t: jnp.log(tt.norm(t)))(x)
    for a, b in zip(*map(jax.tree.leaves, slopes), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), rel=1e-10, abs=1e-12)


# Ranks ------------------------------------------------------------------------------------------

LOOPS = {
    "round": lambda x, y, rank: tt.round(x, rank=rank),
    "round of a sum": lambda x, y, rank: tt.pad(tt.round(x + y, rank=(2, 3, 3, 2)), rank),
    "round alone": lambda x, y, rank: tt.round(x, rank=rank, tol=1e-6),
    "hadamard": lambda x, y, rank: tt.hadamard(x, y, rank=rank),
    "matvec": lambda x, y, rank: tt.matvec(tt.identity(x.shape, x.dtype), x, rank=rank),
    "linear_combination": lambda x, y, rank: tt.linear_combination([x, y], rank=rank),
    "linear_combination to a tolerance": lambda x, y, rank: tt.linear_combination(
        [x, y], rank=rank, tol=1e-6
    ),
}


@pytest.mark.parametrize(
    "name",
    [n if n.startswith("round") else pytest.param(n, marks=pytest.mark.slow) for n in LOOPS],
)
@pytest.mark.parametrize("rank", [4, (3, 4, 3, 5)], ids=str)
def test_padded_loops_keep_their_shapes(rng, name, rank):
    shape = (2,) * 5
    x, y = (tt.TT([jnp.asarray(c) for c in cores(rng, shape, 2, np.float64)]) for _ in range(2))
    start = tt.pad(x, rank)

    @jax.jit
    def run(start):
        step = lambda x, _: (LOOPS[name](x, y, rank), None)  # noqa: E731
        return jax.lax.scan(step, start, None, length=2)[0]

    out = run(start)
    assert out.ranks == start.ranks == LOOPS[name](start, y, rank).ranks
    assert np.isfinite(dense(out)).all()


@pytest.mark.parametrize("tol", [None, 1e-6])
def test_sums_of_trains_are_cut_by_what_their_modes_allow(rng, tol):
    y = tt.TT([jnp.asarray(c) for c in cores(rng, (2,) * 5, (2, 4, 4, 2), np.float64)])
    assert tt.round(y + y, rank=4, tol=tol).ranks == y.ranks
    assert tt.linear_combination([y, y], rank=4, tol=tol).ranks == y.ranks
