"""Norms and rounding at any scale of the cores, and loops that keep their shapes.

Cores are scaled by powers of ten that are drawn, so that products of cores leave the range though
the tensor does not; what is right is computed at scale one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import contract, convert, mera, sketch, tt, tucker
from tensorjax._cores import products, scaling
from tensorjax._kernels import first_calls
from tests.oracles import compilations, cores, dense, error, multiplied, norm

SHAPE = (2, 3, 2, 2)


def scaled(rng, dtype, most):
    """A train, and the same with cores times powers of ten up to ``most`` whose product is one."""
    x = cores(rng, SHAPE, 2, dtype)
    powers = rng.integers(-most, most + 1, len(SHAPE))
    powers = np.clip(powers - np.round(powers.mean()).astype(int), -most, most)
    powers[-1] -= powers.sum()
    y = [(c * np.float64(10.0) ** p).astype(dtype) for c, p in zip(x, powers, strict=True)]
    return tt.TT([jnp.asarray(c) for c in x]), tt.TT([jnp.asarray(c) for c in y])


EVERYWHERE = np.stack(np.unravel_index(np.arange(np.prod(SHAPE)), SHAPE), -1)
OF_SUMS = {
    "evaluate": (lambda s, x: tt.evaluate(s, EVERYWHERE), lambda a, b: a),
    "norm": (lambda s, x: tt.norm(s), lambda a, b: np.linalg.norm(a)),
    "inner": (tt.inner, np.vdot),
    "distance": (tt.distance, lambda a, b: np.linalg.norm(a - b)),
    "hadamard": (lambda s, x: tt.evaluate(tt.hadamard(s, s), EVERYWHERE), lambda a, b: a * a),
}


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 10), (np.float64, 90), (np.complex64, 9)])
def test_sums_of_trains_whose_cores_differ_in_size(rng, dtype, most):
    """In opposite ways: what scales a core as a whole must not lose the blocks of one train."""
    powers = rng.integers(-most, most + 1, 3)
    powers = np.append(powers, -powers.sum())
    trains, exact = [], []
    for sign in (1, -1):
        x = cores(rng, SHAPE, 2, dtype)
        exact.append(multiplied(x).ravel())
        given = [c * np.float64(10.0) ** (sign * p) for c, p in zip(x, powers, strict=True)]
        trains.append(tt.TT([jnp.asarray(c.astype(dtype)) for c in given]))
    x, y = trains
    s = x + y
    by_xla = jax.jit(products._sum_by_xla)(list(x.cores), list(y.cores))
    for a, b in zip(s.cores, by_xla, strict=False):  # that of C++, if there is any, bit for bit
        np.testing.assert_array_equal(a, b)
    for name, (function, wanted) in OF_SUMS.items():
        right = wanted(sum(exact), exact[0])
        assert error(function(s, x), right) <= 1e3 * np.finfo(dtype).eps * norm(right), name
    if dtype is np.float64:
        square = lambda a: tt.norm(x + tt.scale(y, a)) ** 2  # noqa: E731
        slopes = jax.vmap(jax.grad(square))(jnp.array([1.0, -2.0]))
        wanted = [2 * np.vdot(exact[0] + a * exact[1], exact[1]) for a in (1, -2)]
        np.testing.assert_allclose(slopes, wanted, rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_scalars_that_the_dtype_does_not_hold(rng, dtype):
    x = cores(rng, (2,) * 4, 2, dtype)
    whole, unit = multiplied(x).reshape((2,) * 4), 1j if dtype is np.complex64 else 1.0
    for power in rng.integers(60, 110, 1).tolist():
        small, large = (
            tt.TT([jnp.asarray((c * 10.0 ** (e / 4)).astype(dtype)) for c in x])
            for e in (-power, power)
        )
        number = float(f"1e{power}") * unit
        found = [
            small * number, large / number * unit**2, jax.jit(lambda t, n=number: t * n)(small),
            tt.linear_combination([small], [number]),
            tt.linear_combination([small], [number], rank=2),
        ]  # fmt: skip
        for t in found:
            assert error(dense(t), whole * unit) <= 1e-4 * norm(whole)
    for weight in (np.inf, jnp.nan, np.float32("inf")):
        with pytest.raises(ValueError, match=r"weights\[1\]: expected finite"):
            tt.linear_combination([small, large], [1.0, weight])


def of_norm_beyond_half(seed, first=False):
    """A train of signs whose entries float16 holds, and its norm not; and its dense array.

    With ``first`` only its first core is not one of ones.
    """
    shape = (4, 5, 4)
    rng = np.random.default_rng(seed)
    signs = [rng.choice([-1.0, 1.0], n) for n in shape]
    size = float(rng.uniform(2e4, 6e4))
    place = int(rng.integers(3))
    vectors = [s * (size if k == place else 1.0) for k, s in enumerate(signs)]
    if first:
        vectors[0] = size * signs[0]
        vectors[1:] = [np.ones(n) for n in shape[1:]]
    x = tt.rank_one([v.astype(np.float16) for v in vectors])
    return x, multiplied([np.asarray(c).astype(np.float64) for c in x.cores]).reshape(shape)


TUCKER_ONE = tucker.Tucker(np.ones((1, 1, 1), np.float16), [np.ones((n, 1), np.float16)
                                                             for n in (4, 5, 4)])  # fmt: skip
HALF = {
    "orthogonalize": lambda x: tt.orthogonalize(x, 1),
    "round(tol=)": lambda x: tt.round(x + x, tol=0.1) * 0.5,
    "round(rank=)": lambda x: tt.round(x, rank=1),
    "hadamard(tol=)": lambda x: tt.hadamard(x, tt.ones(x.shape, np.float16), tol=0.1),
    "linear_combination(rank=)": lambda x: tt.linear_combination([x, x], [0.5, 0.5], rank=1),
    "permute(tol=)": lambda x: tt.permute(tt.permute(x, (2, 0, 1), tol=0.1), (1, 2, 0), tol=0.1),
    "reshape(tol=)": lambda x: tt.reshape(tt.reshape(x, (20, 4), tol=0.1), x.shape, tol=0.1),
    "pinv": lambda x: tt.pinv(tt.pinv(x * 1e-4, 1), 1) * 1e4,
    "scaled": lambda x: tt.orthogonalize(x * 1e-4, 1) * 1e4,
    "divided": lambda x: tt.orthogonalize(x * 1e-4, 1) / 1e-4,
    "tt_to_tucker(rank=)": lambda x: tucker.to_tt(convert.tt_to_tucker(x, rank=1)[0]),
    "tucker.round": lambda x: tucker.to_tt(
        tucker.round(tucker.mode_product(TUCKER_ONE, jnp.diag(x.cores[0][0, :, 0]), 0), rank=1)),
    "tucker.orthogonalize": lambda x: tucker.to_tt(
        tucker.orthogonalize(tucker.mode_product(TUCKER_ONE, jnp.diag(x.cores[0][0, :, 0]), 0))),
}  # fmt: skip
COMPILED = ("linear_combination(rank=)", "tt_to_tucker(rank=)", "tucker.round")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in COMPILED else n for n in HALF]
)
def test_norms_that_half_precision_does_not_hold_are_shared(name):
    for seed in range(2):
        x, exact = of_norm_beyond_half(seed, first="tucker." in name)
        found = HALF[name](x)
        assert found.dtype == np.float16
        assert error(dense(found), exact) <= 0.02 * norm(exact), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in HALF if "tol=" not in n])
def test_norms_that_half_precision_does_not_hold_are_shared_in_programs(name):
    x, exact = of_norm_beyond_half(2, first="tucker." in name)
    assert error(dense(jax.jit(HALF[name])(x)), exact) <= 0.02 * norm(exact)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_scalars_in_range_do_not_leave_it_in_one_core(rng, dtype):
    """Large ones beside a core that holds the norm, small ones beside cores of opposite sizes."""
    for _ in range(3):
        shape = tuple(rng.integers(2, 5, 3).tolist())
        signs = rng.choice([-1.0, 1.0], shape).astype(dtype)
        power = float(10.0 ** rng.uniform(37.2, 38.4))
        t = tt.from_dense(signs, tol=1e-4)
        for factor in (power, dtype(power)):
            for found in (t * factor, t / (1 / factor), tt.linear_combination([t], [factor])):
                assert error(dense(found) / power, signs) <= 1e-4 * norm(signs)
        k, m = rng.choice(3, 2, replace=False)
        cores_ = list(tt.from_dense(signs, tol=1e-4).cores)
        cores_[k], cores_[m] = cores_[k] * dtype(1e-28), cores_[m] * dtype(1e28)
        small = tt.TT(cores_)
        for found in (small * 1e-30, small / 1e30, small * dtype(1e-30)):
            assert error(dense(found) * 1e30, signs) <= 1e-4 * norm(signs)


# Data of 64 bits while JAX has 32 -----------------------------------------------------------------

GRID = tt.quantics_grid(0.0, 1.0, 3)
DATA = {
    "from_dense": lambda x: tt.from_dense(x, tol=0.1),
    "matrix_from_dense": lambda x: tt.matrix_from_dense(x, (3,), (4,), rank=1),
    "tucker.from_dense": lambda x: tucker.from_dense(x, rank=1),
    "tucker.hooi": lambda x: tucker.hooi(x, rank=1),
    "tucker.nonnegative": lambda x: tucker.nonnegative(np.abs(x), rank=1, key=jax.random.key(0)),
    "complete": lambda x: tt.complete(np.indices((3, 4)).reshape(2, -1).T, x.ravel(), (3, 4), 1),
    "rank_one": lambda x: tt.rank_one([x[0], np.ones(2)]),
    "meshgrid": lambda x: tt.meshgrid(x[0], x[0]),
    "chain_operator": lambda x: tt.chain_operator(2, site=x[:2, :2]),
    "contract_modes": lambda x: tt.contract_modes(tt.ones((4, 2)), {0: x[0]}),
    "mode_product": lambda x: tt.mode_product(tt.ones((4, 2)), x, 0),
    "a @ x": lambda x: tt.identity((4,)) @ x[0],
    "quantics.constant": lambda x: tt.quantics.constant(GRID, float(np.abs(x).max())),
    "sketch.apply": lambda x: sketch.apply(sketch.khatri_rao(jax.random.key(0), (3, 4), 2), x),
    "mera.expectation": lambda x: mera.expectation(
        mera.random(jax.random.key(0), (2,) * 4, 2), x[:2, :2], 0),
    "einsum": lambda x: contract.einsum("ij->i", x),
    "einsum of a number": lambda x: contract.einsum(",->", float(np.abs(x).max()), 2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_data_beyond_single_precision_are_refused_where_they_become_that(rng, name):
    """They became Inf or zeros: a finite check of the 64-bit data had passed."""
    x = rng.choice([-1.0, 1.0], (3, 4)) * rng.uniform(1, 2, (3, 4))
    with jax.enable_x64(False):
        for power in (rng.integers(40, 300), -rng.integers(40, 300)):
            with pytest.raises(
                ValueError, match=r"expected numbers that float32 holds, got .*e[+-]"
            ):
                DATA[name](x * 10.0**power)
        x[0, 0] = 1e-60  # beside others that are in range: zero to within roundoff
        DATA[name](x)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float16])
def test_functions_on_quantics_grids_in_dtypes_that_do_not_hold_them(rng, dtype):
    """What is not to be held is refused; what one core does not hold all share."""
    name, eps = np.dtype(dtype).name, np.finfo(dtype).eps
    for power in rng.integers(40, 300, 2) * [1, -1]:
        with pytest.raises(ValueError, match=f"value: expected numbers that {name} holds, got"):
            tt.quantics.constant(GRID, 10.0**power, dtype=dtype)
        rate = float(np.sign(power) * rng.uniform(0.3, 1))
        with pytest.raises(OverflowError, match=f"dtype: {name} cannot hold the result in 3 cores"):
            tt.quantics.exponential(tt.quantics_grid(1000.0, 1001.0, 3), rate, dtype=dtype)
    length, bits = (1.0, int(rng.integers(15, 40))) if dtype is np.float16 else (1e-30, 50)
    w = tt.quantics.weights(tt.quantics_grid(0.0, length, bits), dtype=dtype)
    total = np.prod([np.asarray(c).astype(np.complex128).sum() for c in w.cores])
    assert abs(total - length) <= bits * eps * length * (length != 1)
    one = tt.quantics_grid(0.0, 1.0, 1)
    tiny = 2.0 ** int(rng.integers(-24, -15))
    if dtype is np.float16:  # in whose programs subnormal numbers are normal ones
        found = tt.quantics.constant(one, tiny, dtype=dtype).cores[0]
        np.testing.assert_array_equal(np.asarray(found, np.float64), tiny)
    for lost in (tiny * 1.0001, 1e-40) if dtype is np.float16 else (2.0**-130,):
        with pytest.raises(ValueError, match=f"{name} holds, got"):
            tt.quantics.constant(one, lost, dtype=dtype)
    with jax.enable_x64(False):
        assert contract.einsum("i,->", np.full(2, 1, dtype), 2.0) == 4
        for number in (1e60, 1e-60, 10**60):
            with pytest.raises(ValueError, match=f"operand 1: expected numbers that {name} holds"):
                contract.einsum("i,->", np.ones(2, dtype), number)


def test_integers_beyond_32_bits_are_refused_where_they_become_that(rng):
    x = np.array([2**31 - 1, -(2**31)])
    with jax.enable_x64(False):
        contract.einsum("i->i", x)
        for far in (2 ** int(rng.integers(31, 62)), -(2 ** int(rng.integers(32, 62)))):
            for call in (contract.einsum, contract.plan("i->i", (2,)).on_host):
                given = ("i->i",) if call is contract.einsum else ()
                with pytest.raises(ValueError, match=f"operand 0: .*int32 holds, got {far}"):
                    call(*given, np.array([far, 1]))
    assert int(contract.einsum("i->", np.array([2**40, 1]))) == 2**40 + 1


def test_tucker_sums_of_parts_that_differ_in_size(rng):
    one = np.float32(1e25)
    x, y = (tucker.random(jax.random.key(k), (3, 4), 2, dtype=np.float32) for k in range(2))
    large = tucker.Tucker(x.core * one, [x.factors[0] / one, x.factors[1]])
    small = tucker.Tucker(y.core / one, [y.factors[0] * one, y.factors[1]])
    right = np.asarray(tucker.to_dense(x) + tucker.to_dense(y))
    s = large + small
    assert error(tucker.to_dense(s), right) <= 1e-5 * norm(right)
    assert error(tucker.norm(s), norm(right)) <= 1e-5 * norm(right)


FUNCTIONS = {
    "norm": tt.norm,
    "log_norm": jax.jit(tt.log_norm),
    "normalize": jax.jit(tt.normalize),
    "round": lambda x: tt.round(x + x, rank=2),
    "to_dense": tt.to_dense,
    "to_dense under jit": jax.jit(tt.to_dense),
    "orthogonalize": jax.jit(lambda x: tt.orthogonalize(x, 1)),
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
    for y in (tt.orthogonalize(x, 7), jax.jit(lambda x: tt.orthogonalize(x, 7))(x)):
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


def unit_matrix(shape):
    return tt.identity(shape, dtype=np.float32)


def tucker_of(x):
    return tucker.Tucker(jnp.ones((1,) * x.order, jnp.float32), [c[0] for c in x.cores])


SCALARS = {  # of two trains of rank one, which are multiples of each other: value, and its power
    "inner": (lambda x, y: tt.inner(x, y), lambda a, b, n, d: a + b + d * np.log10(n)),
    "sum": (lambda x, y: tt.sum(x), lambda a, b, n, d: a + d * np.log10(n)),
    "tensordot": (lambda x, y: tt.tensordot(x, y, 4), lambda a, b, n, d: a + b + d * np.log10(n)),
    "trace": (lambda x, y: tt.trace(tt.diagonal_matrix(x)), lambda a, b, n, d: a + d * np.log10(n)),
    "bilinear_form": (
        lambda x, y: tt.bilinear_form(x, unit_matrix(x.shape), y),
        lambda a, b, n, d: a + b + d * np.log10(n),
    ),
    "tucker.inner": (
        lambda x, y: tucker.inner(tucker_of(x), tucker_of(y)),
        lambda a, b, n, d: a + b + d * np.log10(n),
    ),
    "tucker.norm": (
        lambda x, y: tucker.norm(tucker_of(x)),
        lambda a, b, n, d: a + d / 2 * np.log10(n),
    ),
}


@pytest.mark.parametrize("name", SCALARS)
def test_scalars_beyond_the_range_are_refused(rng, name):
    """Exactly where the dtype cannot hold them, and never under a transformation."""
    value, power = SCALARS[name]
    refused = 0
    d, n = 4, 3
    for lowest, highest in [(-60, -30), (-30, 30), (30, 60)] * 2:
        logs = rng.uniform(lowest / d, highest / d, (2, d))
        x, y = (tt.rank_one([np.full(n, 10.0**e, np.float32) for e in row]) for row in logs)
        wanted = power(*logs.sum(axis=1), n, d)
        if -37 < wanted < 38:
            assert np.log10(float(value(x, y))) == pytest.approx(wanted, abs=1e-4)
        elif not -46 < wanted < 39:  # between, the draw is too near the border
            refused += 1
            with pytest.raises(OverflowError, match=f"1e.{abs(round(wanted))}, is out of the"):
                value(x, y)
    assert refused
    assert float(jax.jit(value)(x, y)) == np.inf


def test_zeros_that_are_roundoff_of_their_terms_are_zero():
    x = tt.rank_one([np.array([1, 1e-30], np.float32)] * 3)
    assert float(tt.inner(x, tt.unit((2,) * 3, (1, 1, 1), dtype=np.float32))) == 0
    assert float(tt.inner(tt.unit((2, 3), (0, 1)), tt.unit((2, 3), (1, 1)))) == 0
    assert float(tt.sum(tt.zeros((2, 3)))) == 0
    assert float(tt.distance(x * 1e-30, x * 1e-30)) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_products_of_two_cores_beyond_the_range(rng, count):
    """Cores whose own squares overflow, or vanish, though the dtype holds them."""
    for kind in (np.float64, np.complex128):
        plain = cores(rng, (2,) * count, 2, kind)
        powers = [int(p) for p in rng.choice([-900, -600, 600, 900], count)]
        x = tt.TT([times_power(c, p) for c, p in zip(plain, powers, strict=True)])
        wanted = np.log(norm(dense(tt.TT(plain)))) + sum(powers) * np.log(2)
        assert float(jax.jit(tt.log_norm)(x)) == pytest.approx(wanted, rel=1e-12)
        assert float(tt.norm(tt.normalize(x))) == pytest.approx(1, rel=1e-12)


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


# Sweeps -----------------------------------------------------------------------------------------

MODES = (2, 3, 2, 2)
KEY = jax.random.key(0)
EVERY = np.stack(np.indices(MODES), -1).reshape(-1, 4)[::3]


def times_power(x, power):
    """x · 2^power, exact, in double precision."""
    wide = np.asarray(x).astype(np.complex128 if jnp.iscomplexobj(x) else np.float64)
    return wide * np.ldexp(1.0, power // 2) * np.ldexp(1.0, power - power // 2)


def drawn_powers(rng, count, most):
    """Powers of two up to ``most`` in size, mostly near it, that add up to zero."""
    half = rng.integers(most // 2, most + 1, count // 2)
    return rng.permutation([*half, *-half, *[0] * (count % 2)]).tolist()


def drawn(rng, dtype, most):
    """Arguments of the functions below, plain and with cores of drawn sizes; and the powers."""
    kind = jnp.complex64 if dtype == jnp.complex64 else np.float64
    square = [
        c.reshape(len(c), n, n, -1)
        for n, c in zip(MODES, cores(rng, [n * n for n in MODES], 2, kind), strict=True)
    ]
    given = [cores(rng, MODES, 2, kind), cores(rng, MODES, 2, kind), square]
    given = [[jnp.asarray(c).astype(dtype) for c in train] for train in given]
    powers = [drawn_powers(rng, len(train), most) for train in given]
    sized = [
        [jnp.asarray(times_power(c, p)).astype(dtype) for c, p in zip(train, ps, strict=True)]
        for train, ps in zip(given, powers, strict=True)
    ]
    built = [[tt.TT(x), tt.TT(y), tt.TTMatrix(a)] for x, y, a in (given, sized)]
    return *built, powers[0]


def ones(x, *modes):
    return {k: jnp.ones(MODES[k], x.dtype) for k in modes}


SWEEPS = {
    "evaluate": lambda x, y, a: tt.evaluate(x, EVERY),
    "contract_modes": lambda x, y, a: tt.contract_modes(x, ones(x, 0, 2)),
    "contract_modes, all": lambda x, y, a: tt.contract_modes(x, ones(x, 0, 1, 2, 3)),
    "to_dense of a matrix": lambda x, y, a: tt.to_dense(a),
    "hadamard": lambda x, y, a: tt.hadamard(x, y, rank=3),
    "matvec": lambda x, y, a: tt.matvec(a, x, rank=3),
    "matmul": lambda x, y, a: tt.matmul(a, a, rank=3),
    "linear_combination": lambda x, y, a: tt.linear_combination([x, (x, y), (a, y)], rank=4),
    "stream": lambda x, y, a: tt.stream_train(
        functools.reduce(
            tt.stream_add, [x, (x, y), (a, y)], tt.stream(KEY, MODES, (2, 6, 2), x.dtype)
        )
    ),
    "tangent_project": lambda x, y, a: tt.tangent_project(x, y),
    "tangent_inner": lambda x, y, a: tt.tangent_inner(*[tt.tangent_project(x, z) for z in (x, y)]),
    "tangent_sum": lambda x, y, a: tt.tangent_sum([tt.tangent_project(x, z) for z in (x, y)]),
    "retract": lambda x, y, a: tt.retract(x, tt.tangent_project(x, y)),
    "retract by splitting": lambda x, y, a: tt.retract(
        x, tt.tangent_project(x, y), method="projector_splitting"
    ),
    "riemannian_grad": lambda x, y, a: tt.riemannian_grad(lambda t: tt.inner(t, y).real)(x),
}
DYNAMIC = {
    "hadamard": lambda x, y, a: tt.hadamard(x, y, tol=1e-4),
    "linear_combination": lambda x, y, a: tt.linear_combination([x, (x, y), (a, y)], tol=1e-4),
    "by gram": lambda x, y, a: tt.linear_combination([x, (a, y)], tol=1e-2, method="gram"),
}
MANNERS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: (
        lambda *a: jax.tree.map(
            lambda x: x[0], jax.vmap(f)(*jax.tree.map(lambda x: jnp.stack([x, x]), a))
        )
    ),
}
FIRST = {("evaluate", "jit"), ("contract_modes, all", "jit"), ("tangent_project", "eager")}


def near(found, wanted, dtype, slack=300):
    """Whether two results agree; trains as tensors."""
    if isinstance(found, tt.TT | tt.TTMatrix):
        found, wanted = (multiplied_near_one(t) for t in (found, wanted))
    found, wanted = (np.asarray(times_power(x, 0)) for x in (found, wanted))
    eps = max(float(jnp.finfo(dtype).eps), 1e-12)
    return np.isfinite(found).all() and error(found, wanted) <= slack * eps * norm(wanted)


def multiplied_near_one(t):
    """All entries of a train, multiplied in double precision with cores near one."""
    exponents = [int(np.frexp(np.abs(times_power(c, 0)).max())[1]) for c in t.cores]
    out = np.ones((1, 1))
    for c, e in zip(t.cores, exponents, strict=True):
        c = times_power(c, -e)
        out = (out @ c.reshape(len(c), -1)).reshape(-1, c.shape[-1])
    return times_power(out, sum(exponents))


@pytest.mark.parametrize(
    ("name", "manner"),
    [
        pytest.param(n, m, marks=() if (n, m) in FIRST else pytest.mark.slow)
        for n in SWEEPS
        for m in MANNERS
    ],
)
def test_sweeps_do_not_depend_on_drawn_powers_of_two(rng, name, manner):
    plain, sized, _ = drawn(rng, np.float32, 60)
    f = MANNERS[manner](SWEEPS[name])
    assert near(f(*sized), f(*plain), np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "most"), [(np.float64, 530), (jnp.complex64, 60)])
@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_in_other_dtypes(rng, name, dtype, most):
    plain, sized, _ = drawn(rng, dtype, most)
    assert near(SWEEPS[name](*sized), SWEEPS[name](*plain), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evaluate", "contract_modes", "hadamard", "tangent_project"])
def test_sweeps_in_half_precision(rng, name):
    plain, sized, _ = drawn(rng, jnp.bfloat16, 60)
    f = jax.jit(SWEEPS[name])
    assert near(f(*sized), f(*plain), jnp.bfloat16, slack=20)


@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 60), (np.float64, 530)])
def test_products_to_a_tolerance(rng, name, dtype, most):
    plain, sized, _ = drawn(rng, dtype, most)
    found, wanted = (DYNAMIC[name](*trains) for trains in (sized, plain))
    assert found.ranks == wanted.ranks
    assert near(found, wanted, dtype, slack=1e-3 / np.finfo(dtype).eps)


# Exact products write every core of the result: no product of cores may leave the range, though
# those of the factors, which may be large beside small ones, are in it.
PRODUCTS = {
    "hadamard": lambda x, y, a: x * y,
    "hadamard of matrices": lambda x, y, a: a * a,
    "matvec": lambda x, y, a: a @ x,
    "matmul": lambda x, y, a: a @ a,
    "linear_combination": lambda x, y, a: tt.linear_combination([(x, y), (x, y)]),
}


@pytest.mark.parametrize("manner", ["eager", "program"])
@pytest.mark.parametrize(
    "name", [n if n == "matvec" else pytest.param(n, marks=pytest.mark.slow) for n in PRODUCTS]
)
def test_exact_products_of_cores_far_from_one(rng, monkeypatch, name, manner):
    if manner == "program":  # as after many calls
        monkeypatch.setattr(first_calls._counted, "is_first", lambda *_: False)
    f = PRODUCTS[name]
    for dtype, most in ((np.float32, 100), (jnp.complex64, 100), (np.float64, 800)):
        plain, sized, _ = drawn(rng, dtype, most)
        assert near(f(*sized), f(*plain), dtype, slack=1000)


def test_products_of_ordinary_cores_are_the_same_to_the_last_digit(rng):
    plain, _, _ = drawn(rng, np.float32, 0)
    x, y, _ = plain
    for a, b, c in zip(x.cores, y.cores, jax.jit(tt.hadamard)(x, y).cores, strict=True):
        exact = np.einsum("aib,cid->acibd", a, b).reshape(c.shape)
        assert (np.asarray(c) == exact).all()


# Under a transformation nothing can be refused: exact operations that multiply cores with cores.
EXACT = PRODUCTS | {
    "tensordot": lambda x, y, a: tt.tensordot(x, y, ([1, 3], [1, 3])),
}


@pytest.mark.parametrize("manner", [jax.jit, pytest.param(jax.vmap, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        n if n in ("hadamard", "tensordot") else pytest.param(n, marks=pytest.mark.slow)
        for n in EXACT
    ],
)
def test_exact_operations_of_cores_far_from_one_under_transformations(rng, name, manner):
    for dtype in (np.float32, jnp.complex64)[: 1 if manner is jax.jit else 2]:
        plain, sized, _ = drawn(rng, dtype, 100)
        if manner is jax.vmap:
            plain, sized = (jax.tree.map(lambda c: c[None], given) for given in (plain, sized))
        f = manner(lambda x, y, a: tt.normalize(EXACT[name](x, y, a)))
        wanted, found = f(*plain), f(*sized)
        if manner is jax.vmap:
            wanted, found = (jax.tree.map(lambda c: c[0], t) for t in (wanted, found))
        assert near(found, wanted, dtype, slack=1000)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_with_a_core_of_zeros_are_zero_at_any_size(rng, dtype):
    x = [jnp.asarray(c) for c in cores(rng, (2,) * 4, 2, dtype)]
    power = dtype(10.0) ** (0.75 * np.log10(np.finfo(dtype).max))
    place = int(rng.integers(4))
    x = tt.TT([c * (0 if k == place else power) for k, c in enumerate(x)])
    full = tt.TT([c if c.any() else c + power for c in x.cores])
    for f in (
        tt.hadamard,
        jax.jit(tt.hadamard),
        jax.jit(lambda a, b: tt.matvec(tt.diagonal_matrix(a), b)),
    ):
        for other in (x, full):
            assert not np.asarray(tt.to_dense(f(x, other))).any()


SLOPES = {
    "evaluate": lambda x, y: tt.evaluate(x, EVERY).real.sum(),
    "contract_modes": lambda x, y: tt.contract_modes(x, ones(x, 0, 1, 2, 3)),
    "hadamard": lambda x, y: tt.norm(tt.hadamard(x, y, rank=2)),
    "tangent_project": lambda x, y: tt.norm(tt.tangent_project(y, x)),
}


@pytest.mark.parametrize(
    "name", [n if n == "evaluate" else pytest.param(n, marks=pytest.mark.slow) for n in SLOPES]
)
def test_derivatives_have_the_sizes_of_the_cores(rng, name):
    plain, sized, powers = drawn(rng, np.float32, 60)
    slope = jax.jit(jax.grad(SLOPES[name]))
    wanted, found = (slope(x, y) for x, y, _ in (plain, sized))
    for a, b, p in zip(wanted.cores, found.cores, powers, strict=True):
        assert error(times_power(b, p), a) <= 1e-4 * norm(a)


def test_tangent_vectors_at_points_beyond_the_range():
    x = tt.rank_one([np.full(2, 1e6, np.float32)] * 7)  # of norm 1.1e43
    log = float(tt.log_norm(x))
    xi = tt.tangent_project(x, x)
    assert all(np.isfinite(np.asarray(c)).all() for c in xi.cores)
    assert float(tt.log_norm(xi)) == pytest.approx(log, rel=1e-6)
    # What all cores share is read off again.
    tripled = tt.tangent_sum([xi, tt.transport(x, xi)], [2.0, 1.0])
    assert float(tt.log_norm(tripled)) == pytest.approx(log + np.log(3), rel=1e-6)


@pytest.mark.parametrize("kind", ["f4", "c8", "f8"])
@pytest.mark.parametrize("options", [{"tol": 1e-5}, {"tol": 1e-5, "rank": 6}, {"rank": 6}], ids=str)
def test_sums_of_trains_of_opposite_sizes_are_rounded(rng, kind, options):
    """Terms whose cores lie side by side, and differ by more than the dtype holds."""
    shape, dtype = (2, 3, 1, 2, 2, 3, 2), np.dtype(kind)
    wide = np.result_type(dtype, np.float64)
    terms = [cores(rng, shape, 2, wide) for _ in range(3)]
    rising = sorted(drawn_powers(rng, len(shape), {"f4": 100, "c8": 60, "f8": 900}[kind]))
    powers = [rising, [-p for p in rising], [0] * len(shape)]
    x, y, z = (
        tt.TT([times_power(c, p).astype(dtype) for c, p in zip(*pair, strict=True)])
        for pair in zip(terms, powers, strict=True)
    )
    wanted = sum(dense(tt.TT([c.astype(dtype) for c in train])) for train in terms)
    found = multiplied_near_one(tt.round(x + y + z, **options))
    assert error(found.ravel(), wanted.ravel()) <= 2e-5 * norm(wanted)


# Tucker tensors and MERAs -----------------------------------------------------------------------


def tucker_pair(rng, train, most):
    """A Tucker tensor of float32, and the same with arrays times powers of two."""
    core = cores(rng, (2, 3, 2), 2, np.float32) if train else [rng.standard_normal((2, 3, 2))]
    arrays = [*core, *(rng.standard_normal((4, s)) for s in (2, 3, 2))]
    arrays = [np.asarray(a, np.float32) for a in arrays]
    powers = drawn_powers(rng, len(arrays), most)
    sized = [times_power(a, p).astype(np.float32) for a, p in zip(arrays, powers, strict=True)]
    return [tucker.Tucker(tt.TT(a[:3]) if train else a[0], a[-3:]) for a in (arrays, sized)]


TUCKER = {
    "to_dense": tucker.to_dense,
    "evaluate": lambda t: tucker.evaluate(t, np.stack(np.indices((4, 4, 4)), -1)),
    "norm": tucker.norm,
    "inner": lambda t: tucker.inner(t, t),
    "orthogonalize": lambda t: tucker.to_dense(tucker.orthogonalize(t)),
    "round": lambda t: tucker.to_dense(tucker.round(tucker.add(t, t), rank=2)),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    "name", [n if n == "inner" else pytest.param(n, marks=pytest.mark.slow) for n in TUCKER]
)
def test_tucker_tensors_of_arrays_of_opposite_sizes(rng, name, train):
    plain, sized = tucker_pair(rng, train, 60)
    for f in (TUCKER[name], jax.jit(TUCKER[name])):
        assert near(f(sized), f(plain), np.float32)


@pytest.mark.parametrize("rising", [True, False])
def test_conversion_to_a_mera_of_cores_of_opposite_sizes(rng, rising):
    given = cores(rng, (2,) * 4, 2, np.float64)
    # Products of two neighbours leave the range of double precision.
    powers = sorted(drawn_powers(rng, 4, 1000), reverse=not rising)
    sized = [times_power(c, p) for c, p in zip(given, powers, strict=True)]
    found, wanted = (
        convert.tt_to_mera(tt.TT([jnp.asarray(c) for c in train]), tol=1e-3, restarts=0)
        for train in (sized, given)
    )
    assert found[0].size == wanted[0].size
    assert found[1].error == pytest.approx(wanted[1].error, rel=1e-3, abs=1e-6)
    assert near(mera.to_dense(found[0]), mera.to_dense(wanted[0]), np.float32)


def test_overlaps_of_meras_of_opposite_sizes():
    m = mera.random(KEY, (2,) * 4, 2, dtype=np.float32)
    large, small = m * 2.0**100, m * 2.0**-100
    assert float(mera.inner(large, small)) == pytest.approx(1, rel=1e-5)
    assert float(mera.inner(large, large)) == np.inf
    operator = 2.0**-90 * np.eye(2, dtype=np.float32)
    found = mera.expectation(m * 2.0**65, operator, [1], normalized=False)
    assert float(found) == pytest.approx(2.0**40, rel=1e-5)


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


def test_norms_beside_the_largest_number_and_of_differences(rng):
    for size in (1e38, 2.4e38):
        x = tt.rank_one([jnp.ones(2, jnp.float32), jnp.full(3, size, jnp.float32)])
        exact = size * 6**0.5
        with jax.numpy_dtype_promotion("standard"):
            logs = [float(f(x)) for f in (tt.log_norm, jax.jit(tt.log_norm))]
        assert logs == pytest.approx([np.log(exact)] * 2, rel=1e-5)
        for _ in range(12):  # the host first, then a program
            if exact < float(np.finfo(np.float32).max):
                assert float(tt.norm(x)) == pytest.approx(exact, rel=1e-5)
            else:
                with pytest.raises(OverflowError, match="out of the range"):
                    tt.norm(x)
    for seed in range(12):
        x = tt.random(jax.random.key(seed), (4, 5, 6), 3, jnp.float32)
        assert 0 <= float(tt.norm(x - tt.orthogonalize(x, 1))) < 1e-2 * float(tt.norm(x))


def product_of(ones):
    """The product of cores (1, 1, 1), as mantissa and exponent of a power of two."""
    mantissa, exponent = 1.0, 0
    for core in ones:
        m, e = np.frexp(float(np.asarray(core).ravel()[0]))
        assert np.isfinite(m)
        assert m != 0
        mantissa, shift = np.frexp(mantissa * m)
        exponent += int(e + shift)
    return mantissa, exponent


def test_exponents_are_shared_by_all_cores_of_long_trains(rng):
    """Whatever the number of cores: one alone cannot take a remainder of hundreds of powers."""
    for dtype in (np.float32, np.float64):
        counts = [int(rng.integers(65, 80)), *rng.integers(2, 1200, 5).tolist()]
        for count in counts:
            own = rng.uniform(0.5, 1, count)
            most = min(int(0.8 * jnp.finfo(dtype).maxexp) * count, 10**5)
            exponent = int(rng.integers(-most, most + 1))
            ones = [np.full((1, 1, 1), x, dtype) for x in own]
            wanted = product_of(ones)
            held = scaling.balanced(ones, exponent, fit=scaling.exponents_held(np.dtype(dtype)))
            found = [held, scaling.scaled_train(ones, exponent)]
            if count == counts[0]:
                power = jnp.asarray(exponent, jnp.int32)
                given = [jnp.asarray(x) for x in ones]
                found.append(jax.jit(scaling.scaled_back)(given, power))
                found.append(jax.jit(scaling.shared_out)(given, power))
            for cores_found in found:
                mantissa, power = product_of(cores_found)
                assert np.ldexp(mantissa, power - wanted[1] - exponent) == pytest.approx(wanted[0])


@pytest.mark.parametrize("sign", [1, -1])
def test_long_trains_whose_norm_single_precision_does_not_hold(rng, sign):
    """Nothing is compiled for them either: programs of hundreds of cores take many seconds."""
    sites = int(rng.integers(140, 420))
    power = sign * rng.uniform(40, 90) / sites
    exact = [c / np.linalg.norm(c) for c in cores(rng, (2,) * sites, 3, np.float64)]
    exact = [c * r**0.5 for c, r in zip(exact, [c.shape[0] for c in exact], strict=True)]
    scale = tt.log_norm(tt.TT([jnp.asarray(c) for c in exact]))
    exact = [c * np.exp(-float(scale) / sites) for c in exact]  # of norm one
    t = tt.TT([jnp.asarray((c * 10.0**power).astype(np.float32)) for c in exact])
    one = tt.TT([jnp.asarray(c) for c in exact])
    wanted = power * sites * np.log(10)
    swapped = [1, 0, *range(2, sites)]
    with compilations() as programs:
        assert float(tt.log_norm(t)) == pytest.approx(wanted, rel=1e-4)
        with pytest.raises(OverflowError, match="the norm, about 1e"):
            tt.norm(t)
        results = {
            "normalize": tt.normalize(t),
            "orthogonalize": tt.orthogonalize(t, int(rng.integers(sites))),
            "round": tt.round(t, tol=1e-5),
        }
    assert programs == []
    results["sum"] = tt.round(t + t, tol=1e-5)
    results["hadamard"] = tt.hadamard(t, tt.ones((2,) * sites, np.float32), tol=1e-5)
    results["permute"] = tt.permute(tt.permute(t, swapped, rank=6), swapped, rank=3)
    for name, u in results.items():
        assert all(np.isfinite(np.asarray(c)).all() for c in u.cores), name
        assert float(tt.distance(tt.normalize(u).astype(np.float64), one)) < 1e-3, name
        size = {"normalize": 0.0, "sum": wanted + np.log(2)}.get(name, wanted)
        assert float(tt.log_norm(u)) == pytest.approx(size, abs=1e-2), name
    if sign > 0:
        with pytest.raises(OverflowError, match="the distance, about 1e"):
            tt.distance(t, 2 * t)


@pytest.mark.slow
def test_projections_of_trains_of_more_cores_than_powers_of_two(rng):
    a = tt.TT([jnp.asarray(c) for c in cores(rng, (2,) * 300, 2, np.float32)])
    a = tt.normalize(a)
    large = tt.TT([c * np.float32(10.0**0.15) for c in a.cores])  # of norm 1e45
    with jax.disable_jit():  # XLA takes a minute to compile so many cores
        with pytest.raises(OverflowError, match=r"z: .* 300 cores; project tt.normalize"):
            tt.tangent_project(large, large)
        assert float(tt.distance(tt.tangent_project(a, a), a)) < 1e-3


def test_complex_scalars_beside_the_largest_number_are_held():
    y = tt.rank_one([np.array([3e38 + 3e38j], np.complex64), np.ones(1, np.complex64)])
    assert complex(tt.sum(y)) == pytest.approx(3e38 + 3e38j, rel=1e-6)
    with pytest.raises(OverflowError, match=r"the sum, about 1e.40"):
        tt.sum(tt.kron(y, y) * 1e-37)


@pytest.mark.parametrize("size", [1.0, 1e10, 1e18])
def test_exact_products_of_terms_of_opposite_sizes_in_single_precision(rng, size):
    """Without double precision, in which the terms would be far apart and yet in range."""
    with jax.enable_x64(False):
        first, second = (
            [rng.standard_normal((1, 4, 1)).astype(np.float32) for _ in range(2)] for _ in range(2)
        )
        s = np.float32(size)
        left = np.concatenate([first[0] * s, second[0] / s], axis=2)
        right = np.concatenate([first[1] / s, second[1] * s], axis=0)
        x = np.einsum("aib,bjc->ij", left.astype(float), right.astype(float))
        t = tt.TT([left, right])
        assert error(dense(tt.hadamard(t, t, tol=1e-5)), x * x) <= 2e-5 * norm(x * x)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_decompositions_near_the_top_of_the_range(rng, dtype):
    """Norms that one core cannot hold are shared, on the host and in programs of static ranks."""
    top = 0.9 * np.finfo(dtype).max

    def full(t):
        out = np.ones(())
        for c in t.cores:
            out = np.tensordot(out, np.asarray(c).astype(np.longdouble), 1 if out.ndim else 0)
        return out.reshape(t.shape)

    shape = tuple(rng.integers(2, 5, 3).tolist())
    train = functools.partial(tt.from_dense, rank=16)
    by_hosvd = functools.partial(tucker.from_dense, rank=shape)
    calls = [(train, full), (by_hosvd, lambda t: full(tucker.to_tt(t)))]
    programs = [jax.jit(call) for call, _ in calls]
    by_sweeps = functools.partial(tt.round, rank=16, method="svd")
    for _ in range(3):
        x = rng.standard_normal(shape)
        x = (x / np.abs(x).max() * top).astype(dtype)
        tensors = [
            whole(f(x))
            for (call, whole), program in zip(calls, programs, strict=True)
            for f in (call, program)
        ]
        for found in (*tensors, full(by_sweeps(train(x)))):
            far = np.abs(found / top - x.astype(np.longdouble) / top).max()
            assert far <= 300 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_to_ranks_of_more_cores_than_the_exponent_of_the_norm(rng, dtype, sign):
    """No core may take alone what is left after equal shares: it may be all of the exponent."""
    most = np.finfo(dtype).maxexp
    # In double precision these are more than a thousand sites: once, and not many times as many.
    for _ in range(2 if dtype == np.float32 else 1):
        sites = int(rng.integers(1.2 * most, (3 if dtype == np.float32 else 1.5) * most))
        power = sign * int(rng.integers(1.05 * most, min(1.2 * most, sites)))
        one = tt.normalize(tt.TT(cores(rng, (2,) * sites, 2, np.float64)))
        t = tt.TT([(x * 2.0 ** (power / sites)).astype(dtype) for x in one.cores])
        for options in ({"rank": 1}, {"rank": 2}, {"rank": 1, "tol": 1e-3}):
            found = [np.asarray(x).astype(np.float64) for x in tt.round(t, **options).cores]
            assert all(np.isfinite(x).all() and x.any() for x in found)
        assert float(tt.log_norm(tt.round(t, rank=2))) == pytest.approx(
            float(tt.log_norm(t)), rel=1e-4
        )


@pytest.mark.parametrize("options", [{"rank": 3}, {"tol": 1e-4}, {"rank": 9, "tol": 1e-4}])
@pytest.mark.filterwarnings("error")
def test_tucker_tensors_of_trains_whose_norm_single_precision_does_not_hold(rng, options):
    """On the host and, for drawn sizes once, in a program; cores of one index absorb others."""
    for k in range(4):
        shape = tuple(rng.integers(1, 5, int(rng.integers(3, 7))).tolist())
        x = tt.normalize(tt.TT(cores(rng, shape, 3, np.float64)))
        power = int(rng.choice([-1, 1])) * int(rng.integers(130, 200))
        t = tt.TT([(c * 2.0 ** (power / len(shape))).astype(np.float32) for c in x.cores])
        calls = [functools.partial(convert.tt_to_tucker, **options)]
        if k == 0 and options == {"rank": 3}:
            calls.append(jax.jit(calls[0]))
        for call in calls:
            found, _ = call(t)
            assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(found))
            log = float(tt.log_norm(found.core))
            lost = 0.5 if "tol" not in options else 1e-3  # ranks cost energy
            assert log == pytest.approx(power * np.log(2), abs=lost)


def test_what_cores_of_tucker_tensors_cannot_hold_is_refused():
    x = tt.TT([jnp.full((1, 100, 1), 3e38, jnp.float32)])
    for options in ({"rank": 1}, {"tol": 1e-4}):
        with pytest.raises(OverflowError, match=r"convert tt\.normalize"):
            convert.tt_to_tucker(x, **options)


def test_trains_of_meras_near_the_top_of_the_range(rng):
    """Their programs took squares of columns; NumPy's QR did not."""
    m = mera.random(jax.random.key(int(rng.integers(100))), (2,) * 6, 2)
    given = mera.MERA(m.layers, m.top * (0.9e38 / jnp.abs(m.top).max()), check=False)
    x = np.asarray(mera.to_dense(given)).astype(np.float64)
    to_rank = functools.partial(mera.to_tt, rank=8)
    for call in (jax.jit(mera.to_tt), mera.to_tt, to_rank):
        found = multiplied([np.asarray(c).astype(np.float64) for c in call(given).cores])
        assert error(found.reshape(x.shape), x) <= 1e-5 * norm(x)


def of_powers(rng, powers):
    """Random cores in single precision times powers of two, and the tensor in double."""
    given = [c / np.abs(c).max() for c in cores(rng, SHAPE, 2, np.float32)]
    given = [scaling.scaled(c, int(p)) for c, p in zip(given, powers, strict=True)]
    whole = multiplied([c.astype(np.float64) for c in given]).reshape(SHAPE)
    return [jnp.asarray(c) for c in given], whole


def test_products_of_modes_that_one_array_cannot_hold(rng):
    """The others share what it cannot; products of merged cores cancel."""
    power = int(rng.integers(100, 126))
    low = -(power // 2)
    given, whole = of_powers(rng, (low, power, low, 0))
    w = scaling.scaled(rng.standard_normal((5, 3)).astype(np.float32), 40)
    right = np.moveaxis(np.tensordot(w.astype(np.float64), whole, (1, 1)), 0, 1)
    found = tt.mode_product(tt.TT(given), w, 1)
    made = multiplied([np.asarray(c, np.float64) for c in found.cores])
    assert error(made.reshape(right.shape), right) <= 1e-5 * norm(right)

    x = tucker.Tucker(tt.TT(given), [jnp.full((n, n), 2, jnp.float32) for n in SHAPE])
    found = tucker.mode_product(x, scaling.scaled(w, 85), 1)
    made = multiplied(found.core.cores).reshape(SHAPE)
    for u in found.factors:  # the first axis is multiplied and goes to the end: all do once
        made = np.tensordot(made, np.asarray(u, np.float64), (0, 1))
    sums = 2.0**89 * whole.sum() * w.astype(np.float64).sum(1)
    right = np.broadcast_to(sums[:, None, None], (2, 5, 2, 2))
    assert error(made, right) <= 1e-5 * norm(made)

    given, whole = of_powers(rng, (power, power, -power, -power))
    found = tt.reshape(tt.TT(given), (6, 4))
    made = multiplied([np.asarray(c, np.float64) for c in found.cores])
    assert error(made.reshape(SHAPE), whole) <= 1e-5 * norm(whole)


@pytest.mark.parametrize("sign", [1, -1])
def test_trains_that_fewer_cores_cannot_hold_are_refused(rng, sign):
    given, _ = of_powers(rng, rng.integers(100, 120, 4) * sign)
    with pytest.raises(OverflowError, match=r"cannot hold the cores .* tt\.normalize"):
        tt.reshape(tt.TT(given), (6, 4))
    number = float(10.0 ** (sign * rng.uniform(5, 30)))
    full = tt.TT([jnp.full_like(c, 3e38 if sign > 0 else 1.2e-38) for c in given])
    w = np.full((5, 3), number, np.float32)
    with pytest.raises(OverflowError, match="with the matrix in 4 arrays"):
        tt.mode_product(full, w, 1)
    factors = [jnp.full((n, 1), c[0, 0, 0]) for n, c in zip(SHAPE, full.cores, strict=True)]
    core = jnp.full((1,) * 4, full.cores[0][0, 0, 0])
    with pytest.raises(OverflowError, match="with the matrix in 5 arrays"):
        tucker.mode_product(tucker.Tucker(core, factors), w, 1)
    for call, match in (
        (lambda: full * number, "factor: .* times this TT is out of the range"),
        (lambda: full / (1 / number), "divisor: this TT over .* is out of the range"),
    ):
        with pytest.raises(OverflowError, match=match):
            call()


def test_products_that_are_zero_or_of_subnormal_cores(rng):
    small = [jnp.full((1, 3, 1), 1e-38, jnp.float32)] * 4
    for w in (np.zeros((1, 3), np.float32), np.array([[1e-30, -1e-30, 0]], np.float32)):
        assert not any(np.asarray(tt.mode_product(tt.TT(small), w, 1).cores[1]).ravel())
    large = [small[0] * 0 + np.float32(10.0 ** rng.uniform(20, 35)) for _ in range(2)]
    x = tt.TT([np.full((1, 3, 1), 1e-40, np.float32), *large])
    w = np.eye(3, dtype=np.float32)
    exact = multiplied([np.asarray(c, np.float64) for c in x.cores])
    made = multiplied([np.asarray(c, np.float64) for c in tt.mode_product(x, w, 0).cores])
    assert error(made, exact) <= 1e-4 * norm(exact)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float16, jnp.bfloat16])
def test_scalars_far_from_one_compile_nothing_where_one_core_holds_them(rng, dtype):
    x = tt.TT([c.astype(dtype) for c in cores(rng, (3, 2, 2), 2, np.float32)])
    exact = multiplied([np.asarray(c).astype(np.complex128) for c in x.cores])
    eps, most = float(jnp.finfo(dtype).eps), 4.0 if dtype is np.float16 else 30.0
    jax.block_until_ready(((x * 2.0).cores, (x / 2.0).cores))
    for power in (10.0 ** rng.uniform(most / 2, most, 2)).tolist():
        with compilations() as programs:
            found = [(x * power, power), (x * (1 / power), 1 / power), (x / power, 1 / power),
                     (x / (1 / power), power)]  # fmt: skip
        assert not programs, power
        for t, factor in found:
            made = multiplied([np.asarray(c).astype(np.complex128) for c in t.cores])
            assert t.dtype == x.dtype
            assert error(made, exact * factor) <= 4 * eps * norm(exact * factor)


@pytest.mark.parametrize("place", [0, 2])
def test_gradients_at_a_core_of_zeros_are_those_of_linear_forms(rng, place):
    """An operation is linear in a core: the value at a core is its product with the gradient."""
    x, y = (tt.TT([jnp.asarray(c) for c in cores(rng, (2,) * 4, 2, np.float32)]) for _ in range(2))

    def swapped(core):
        return tt.TT([core if k == place else c for k, c in enumerate(x.cores)])

    for f in (
        lambda t: tt.inner(t, y),
        lambda t: tt.to_dense(t)[1, 0, 1, 1],
        lambda t: tt.evaluate(tt.hadamard(t, y), [[1, 0, 1, 1]])[0],
    ):
        form = jax.jit(lambda core, f=f: f(swapped(core)))
        core = x.cores[place]
        found = jnp.vdot(jax.jit(jax.grad(form))(0 * core), core)
        np.testing.assert_allclose(found, form(core), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("f", [tt.matvec, tt.matmul])
def test_exact_products_are_exported_with_symbolic_modes(f):
    (n,) = jax.export.symbolic_shape("n")

    def train(kind, *modes):
        shapes = ((1, *modes, 2), (2, *modes, 1))
        return kind._unchecked(tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))

    other = train(tt.TT, 3) if f is tt.matvec else train(tt.TTMatrix, 3, 2)
    program = jax.export.export(jax.jit(lambda a, b: f(a, b).cores))
    found = program(train(tt.TTMatrix, n, 3), other).out_avals
    assert [c.shape[1] for c in found] == [n, n]
