"""Functional trains against NumPy, SciPy and closed forms, with drawn functions."""

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import interpolate as scipy_interpolate

from tensorjax import tt
from tensorjax.tt.functions import interpolation

functions = tt.functions
# One dtype by default: every other one compiles the same programs again.
DTYPES = [float, *(pytest.param(t, marks=pytest.mark.slow) for t in (np.float32, complex))]
SEEDS = [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))]


def spline(rng: np.random.Generator, degree: int, most: int = 5) -> tt.functions.BSpline:
    """Splines on [−1, 2] with random knots, some of them repeated up to jumps."""
    inside = np.sort(rng.uniform(-1, 2, rng.integers(0, most)))
    inside = np.repeat(inside, rng.integers(1, degree + 2, len(inside)))
    return functions.BSpline([-1.0, *inside, 2.0], degree)


def smooth_spline(rng: np.random.Generator, degree: int) -> tt.functions.BSpline:
    return functions.BSpline([-1.0, *np.sort(rng.uniform(-1, 2, 3)), 2.0], degree)


def drawn(seed: int, dtype: Any = float, rank: int = 3) -> tt.functions.FunctionTrain:
    rng = np.random.default_rng(seed)
    bases = [
        functions.Chebyshev(int(rng.integers(1, 6)), -1.0, 2.0),
        smooth_spline(rng, int(rng.integers(1, 4))),
        functions.Chebyshev(int(rng.integers(0, 4)), 3.0, 3.5),
    ]
    shape = tuple(b.size for b in bases)
    return functions.FunctionTrain(bases, tt.random(jax.random.key(seed), shape, rank, dtype))


def points(f: tt.functions.FunctionTrain, count: int, seed: int = 0) -> np.ndarray:
    low, high = np.array(f.domain).T
    inside = low + (high - low) * np.random.default_rng(seed).random((count, f.ndim))
    inside[:2] = low, high
    return inside


def by_hand(f: tt.functions.FunctionTrain, x: np.ndarray) -> np.ndarray:
    """Values from the dense coefficients, with the polynomials of NumPy and splines of SciPy."""
    held = np.broadcast_to(np.asarray(tt.to_dense(f.coefficients)), (len(x), *f.coefficients.shape))
    for k, b in enumerate(f.bases):
        if isinstance(b, functions.Chebyshev):
            t = 2 * (x[:, k] - b.low) / b.length - 1
            rows = np.polynomial.chebyshev.chebvander(t, b.degree)
        else:
            make = scipy_interpolate.BSpline.design_matrix
            rows = make(x[:, k], b.clamped, b.degree).toarray()
        held = (rows[(..., *[None] * (held.ndim - 2))] * held).sum(axis=1)
    return held


@pytest.mark.parametrize("seed", SEEDS)
def test_splines_are_those_of_scipy(seed: int):
    rng = np.random.default_rng(seed)
    for degree in range(5):
        b = spline(rng, degree)
        c = rng.standard_normal(b.size)
        f = scipy_interpolate.BSpline(b.clamped, c, degree)
        x = np.sort(np.concatenate([rng.uniform(-1, 2, 20), b.knots, b.nodes]))
        np.testing.assert_allclose(b.values(x) @ c, f(x), atol=1e-12)
        if degree == (seed + 2) % 5:
            np.testing.assert_allclose(np.asarray(b.values(jnp.asarray(x))) @ c, f(x), atol=1e-12)
        np.testing.assert_allclose(b.from_values @ f(b.nodes), c, atol=1e-10)
        np.testing.assert_allclose(b.integrals @ c, f.integrate(-1, 2), atol=1e-12)
        np.testing.assert_allclose(b.values(x) @ b.constant, 1, atol=1e-12)
        b = smooth_spline(rng, degree + 1)
        c = rng.standard_normal(b.size)
        of, matrix = b.derivative()
        x = rng.uniform(-1, 2, 20)
        expected = scipy_interpolate.BSpline(b.clamped, c, degree + 1).derivative()(x)
        np.testing.assert_allclose(of.values(x) @ matrix @ c, expected, atol=1e-10)
        other = spline(rng, int(rng.integers(0, 3)))
        e = rng.standard_normal(other.size)
        one, two = b.values(x) @ c, other.values(x) @ e
        both, at, back = b.product(other)
        values = back @ ((b.values(at) @ c) * (other.values(at) @ e))
        np.testing.assert_allclose(both.values(x) @ values, one * two, atol=1e-10)
        both, left, right = b.common(other)
        np.testing.assert_allclose(both.values(x) @ (left @ c), one, atol=1e-10)
        np.testing.assert_allclose(both.values(x) @ (right @ e), two, atol=1e-10)


@pytest.mark.parametrize("degree", [0, 1, 2, 7, 40])
def test_chebyshev_is_that_of_numpy(degree: int, rng: np.random.Generator):
    b = functions.Chebyshev(degree, -2.0, 5.0)
    f = np.polynomial.Chebyshev(rng.standard_normal(degree + 1), [-2, 5])
    x = np.array([-2.0, 5.0, *rng.uniform(-2, 5, 20)])
    np.testing.assert_allclose(b.values(x) @ f.coef, f(x), atol=1e-11)
    np.testing.assert_allclose(b.from_values @ f(b.nodes), f.coef, atol=1e-11)
    whole = f.integ()(5.0) - f.integ()(-2.0)
    np.testing.assert_allclose(b.integrals @ f.coef, whole, atol=1e-10)
    square = (f * f).integ()
    np.testing.assert_allclose(f.coef @ b.gram @ f.coef, square(5.0) - square(-2.0), rtol=1e-10)
    of, matrix = b.derivative()
    np.testing.assert_allclose(of.values(x) @ matrix @ f.coef, f.deriv()(x), atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_operations_are_those_of_the_function(seed: int, dtype: Any):
    f, g = drawn(seed, dtype), drawn(seed + 10, dtype, rank=2)
    g = functions.FunctionTrain(  # other degrees on the same box
        [functions.Chebyshev(7, -1.0, 2.0), f.bases[1], functions.Chebyshev(1, 3.0, 3.5)],
        tt.random(jax.random.key(seed), (8, f.bases[1].size, 2), 2, dtype),
    )
    x = points(f, 9, seed)
    u, v = by_hand(f, x), by_hand(g, x)
    x = x.astype(np.float32) if dtype == np.float32 else x
    tol = 1e-3 if dtype == np.float32 else 1e-10
    scale = 1 + np.abs(u).max() + np.abs(v).max()

    def same(found: Any, expected: Any) -> None:
        np.testing.assert_allclose(found, expected, atol=tol * scale**2)

    assert f(x).dtype == f.dtype == np.dtype(dtype)
    same(f(x), u)
    same(f(x.reshape(3, 3, 3)), u.reshape(3, 3))
    same(jax.jit(jax.vmap(f))(jnp.asarray(x)), u)
    same((f + g)(x), u + v)
    same((2 * f - 1.5)(x), 2 * u - 1.5)
    same((f * g)(x), u * v)
    same(functions.round(f + f, tol=1e-5)(x), 2 * u)
    assert max(functions.round(f + f, tol=1e-5).ranks) <= max(f.ranks)
    for k, line in enumerate(np.asarray(functions.gradient(f, x)).T):
        same(functions.derivative(f, k)(x), line)


@pytest.mark.parametrize("dtype", [float, pytest.param(complex, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_integrals_are_those_of_a_quadrature(seed: int, dtype: Any):
    f, g = drawn(seed, dtype), drawn(seed, dtype, rank=1)
    nodes, weights = np.polynomial.legendre.leggauss(8)
    axes = []
    for b in f.bases:  # by pieces, on each of which a spline is a polynomial
        cuts = np.unique(getattr(b, "knots", (b.low, b.high)))
        half = np.diff(cuts)[:, None] / 2
        middle = (cuts[1:] + cuts[:-1])[:, None] / 2
        axes.append(((middle + half * nodes).ravel(), (half * weights).ravel()))
    x = np.stack(np.meshgrid(*(a for a, _ in axes), indexing="ij"), -1).reshape(-1, 3)
    w = np.einsum("i,j,k->ijk", *(b for _, b in axes)).ravel()
    u, v = by_hand(f, x), by_hand(g, x)
    np.testing.assert_allclose(functions.integrate(f), w @ u, atol=1e-10)
    np.testing.assert_allclose(functions.inner(f, g), w @ (u.conj() * v), atol=1e-9)
    np.testing.assert_allclose(functions.norm(f) ** 2, w @ np.abs(u) ** 2, rtol=1e-10)
    rest: Any = functions.integrate(f, [0, -1])
    assert rest.bases == f.bases[1:2]
    np.testing.assert_allclose(functions.integrate(rest), w @ u, atol=1e-10)
    # Rounding is best in L², to a factor: no coefficient of the rest is larger than what it cuts.
    cut = functions.round(f, rank=1)
    lost = functions.norm(f - cut) / functions.norm(f)
    half = functions.round(f, tol=float(lost) * 1.01)
    assert functions.norm(f - half) <= 1.02 * lost * functions.norm(f)


def drawn_function(seed: int) -> tuple[Callable[[np.ndarray], np.ndarray], list[tuple]]:
    """Smooth functions of Genz's families on boxes, real or complex."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 5))
    low = rng.uniform(-2, 1, d)
    high = low + rng.uniform(0.3, 3, d)
    c, w = 2 * rng.random(d), low + (high - low) * rng.random(d)
    kinds = [
        lambda x: np.exp(-((c * (x - w)) ** 2).sum(axis=1)),
        lambda x: np.cos(3 + (x * c).sum(axis=1)),
        lambda x: 1 / (1 + ((x - low) * c).sum(axis=1)),
        lambda x: np.exp(1j * (x * c).sum(axis=1)) / (3 + np.sin(x[:, 0])),
    ]
    return kinds[seed % len(kinds)], list(zip(low.tolist(), high.tolist(), strict=True))


@pytest.mark.parametrize(
    "seed", [0, 3, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 4, 5))]
)
def test_interpolation_says_its_error(seed: int):
    function, domain = drawn_function(seed)
    tol = 10.0 ** -(4 + 2 * (seed % 3))
    spent: list[int] = []

    def counted(x: np.ndarray) -> np.ndarray:
        spent.append(len(x))
        return function(x)

    f, info = functions.interpolate(counted, domain, tol=tol, key=jax.random.key(seed))
    assert info.status == "converged"
    assert info.advice == ""
    x = points(f, 500, seed + 1)
    true = function(x)
    error = np.sqrt(np.mean(np.abs(f(x) - true) ** 2) / np.mean(np.abs(true) ** 2))
    assert error <= 3 * tol
    assert info.evaluations >= sum(spent)
    assert info.bases == f.bases
    assert all(b.degree < 60 for b in f.bases)


def test_interpolation_that_cannot_converge_says_why():
    w = np.array([0.3, 0.6])
    kink = lambda x: np.exp(-np.abs(x - w).sum(axis=1))  # noqa: E731
    unit = [(0.0, 1.0)] * 2
    _, info = functions.interpolate(kink, unit, tol=1e-8, max_degree=30)
    assert info.status == "basis"
    assert info.error > 1e-8
    assert "BSpline" in info.advice
    knots = [functions.BSpline(np.sort([*np.linspace(0, 1, 9), *[c] * 3])) for c in w]
    f, info = functions.interpolate(kink, knots, tol=1e-4)
    assert info.status == "converged"
    assert f.bases == tuple(knots)
    _, info = functions.interpolate(kink, unit, tol=1e-8, max_evaluations=100)
    assert info.status != "converged"
    assert info.evaluations <= 100
    zero, info = functions.interpolate(lambda x: 0 * x[:, 0], unit, tol=1e-8)
    assert info.error == 0
    assert not np.any(zero(points(zero, 3)))


def test_composition():
    f, _ = functions.interpolate(lambda x: x.sum(axis=1), [(0, 1)] * 3, tol=1e-10)
    g = functions.FunctionTrain(f.bases, 0.5 * f.coefficients)
    h, info = functions.compose(lambda u, v: np.exp(-u) * v, f, g, tol=1e-8)
    x = points(f, 20)
    assert info.status == "converged"
    np.testing.assert_allclose(h(x), np.exp(-x.sum(1)) * x.sum(1) / 2, atol=1e-7)


def test_points_outside_of_the_box():
    f = drawn(0)
    x = points(f, 4)
    x[1, 1] = 2.5
    with pytest.raises(ValueError, match="1 outside, first"):
        f(x)
    found = np.asarray(jax.jit(f)(jnp.asarray(x)))
    assert np.isnan(found[1])
    assert np.isfinite(found[[0, 2, 3]]).all()
    assert np.isnan(jax.jit(functions.gradient)(f, jnp.asarray(x))[1]).all()


def test_long_batches_and_many_variables_stay_in_range(monkeypatch: pytest.MonkeyPatch):
    tiny = functions.FunctionTrain(
        [functions.Chebyshev(1)] * 20, 1e300 * tt.rank_one([1e-24 * np.ones(2)] * 20)
    )
    for evaluate in (tiny, jax.jit(tiny)):
        found = evaluate(jnp.ones(20))
        np.testing.assert_allclose(found, 2.0**20 * 1e-180, rtol=1e-10)
    monkeypatch.setattr("tensorjax.tt.functions.evaluation._PIECE", 100)
    f = drawn(4)
    x = points(f, 57)
    for evaluate in (f, jax.jit(f)):
        np.testing.assert_allclose(evaluate(jnp.asarray(x)), by_hand(f, x), atol=1e-10)


def test_errors_name_what_is_wrong():
    f = drawn(0)
    sizes = f.coefficients.shape
    with pytest.raises(ValueError, match="coefficients: expected shape"):
        functions.FunctionTrain(f.bases[:2], f.coefficients)
    with pytest.raises(TypeError, match=r"bases\[0\]"):
        functions.FunctionTrain([3], tt.ones(sizes[:1]))  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"x: expected shape"):
        f(np.ones(2))
    with pytest.raises(TypeError, match="real points"):
        f(np.ones(3, complex))
    other = functions.FunctionTrain(
        [functions.Chebyshev(n - 1, -1.0, 3.0) for n in sizes], f.coefficients
    )
    with pytest.raises(ValueError, match="variable 0: expected bases of one kind"):
        f + other
    with pytest.raises(ValueError, match="low < high"):
        functions.Chebyshev(2, 1.0, 1.0)
    for knots in ([0.0], [1.0, 0.0], [0.0, 0.0, 1.0], [0.0, np.nan, 1.0], [0, *[0.5] * 5, 1]):
        with pytest.raises(ValueError, match=r"knots|low"):
            functions.BSpline(knots)
    for bad in (lambda x: x[:-1], lambda x: x[:, None], lambda x: x[:, 0] * np.nan):
        with pytest.raises(ValueError, match="f: expected"):
            functions.interpolate(bad, [(0, 1)] * 2, tol=1e-3)
    with pytest.raises(ValueError, match="variable 1"):
        functions.interpolate(lambda x: x[:, 0], [(0, 1), 3], tol=1e-3)


def test_copies_and_exported_programs():
    f = drawn(1, complex)
    x = points(f, 5)
    for g in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert g.bases == f.bases
        np.testing.assert_array_equal(g(x), f(x))
    program = jax.export.export(jax.jit(lambda f: 2 * f))(f)
    again = jax.export.deserialize(bytearray(program.serialize()))
    twice = again.call(f)
    assert twice.bases == f.bases
    np.testing.assert_allclose(twice(x), 2 * f(x))


def sampled(seed: int, noise: float = 0.0) -> tuple[Any, np.ndarray, np.ndarray]:
    """A drawn function of TT-rank two at most beyond its first order, and samples of it."""
    rng = np.random.default_rng(seed)
    c = rng.uniform(0.5, 2, 4)

    def f(x: np.ndarray) -> np.ndarray:
        return np.sin(c[0] * x[:, 0]) * np.exp(-c[1] * x[:, 1]) + c[2] * x[:, 2] ** 2 + x[:, 3] * 0

    x = rng.random((200, 4))
    y = f(x)
    return f, x, 5 + y + noise * y.std() * rng.standard_normal(len(y))


SLOW_FITS = [pytest.param(s, n, marks=pytest.mark.slow) for s, n in ((0, 0.0), (2, 0.0), (3, 0.1))]


@pytest.mark.parametrize(("seed", "noise"), [(1, 0.1), *SLOW_FITS])
def test_fit_to_samples(seed: int, noise: float):
    true, x, y = sampled(seed, noise)
    bases = [functions.Chebyshev(5, 0.0, 1.0)] * 3 + [functions.BSpline.uniform(0.0, 1.0, 3)]
    f, info = functions.fit(x, y, bases, rank=3, tol=3e-3, max_sweeps=6)
    new = np.random.default_rng(seed + 10).random((500, 4))
    error = np.sqrt(np.mean((f(new) - 5 - true(new)) ** 2)) / np.std(true(new))
    assert error < max(0.01, 0.7 * noise)
    assert info.held_out_error < info.first_order_error
    assert info.status != "few"
    assert max(info.ranks) <= 3
    assert info.held_out_error == pytest.approx(min(e for *_, e in info.history))


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_ranks_of_a_fit_are_those_asked_for(seed: int):
    """A product with a drawn mean has TT-rank two: the mean takes one of the ranks."""
    rng = np.random.default_rng([77, seed])
    d, mean = int(rng.integers(2, 5)), 10 ** rng.uniform(-1, 2)
    a = rng.uniform(0.5, 2, d)

    def true(x: np.ndarray) -> np.ndarray:
        return np.asarray(mean + np.prod(np.sin(a * x + 0.3), axis=1))

    x, new = rng.random((300, d)), rng.random((500, d))
    bases = [functions.Chebyshev(5, 0.0, 1.0)] * d
    one, info = functions.fit(x, true(x), bases, rank=1, max_sweeps=6)
    assert max(one.ranks) == 1
    f, info = functions.fit(x, true(x), bases, rank=2, max_sweeps=6)
    assert max(f.ranks) <= max(info.ranks) <= 2
    assert np.std(f(new) - true(new)) < 0.01 * np.std(true(new))
    assert info.held_out_error == min(e for *_, e in info.history)


def test_fits_of_what_samples_do_not_determine(rng: np.random.Generator):
    x = rng.random((60, 3))
    bases = [functions.Chebyshev(3, 0.0, 1.0)] * 3
    _, info = functions.fit(x, rng.standard_normal(60), bases, rank=2, max_sweeps=3)
    assert info.status == "few"
    assert "samples" in info.advice
    constant, info = functions.fit(x, np.full(60, 2.5), bases)
    np.testing.assert_allclose(constant(x[:4]), 2.5)
    line, info = functions.fit(x[:, :1], 1j * x[:, 0] + 3, [functions.Chebyshev(2, 0.0, 1.0)])
    np.testing.assert_allclose(line(x[:4, :1]), 1j * x[:4, 0] + 3, atol=1e-6)
    for faulty, message in (
        ((x[:, :2], x[:, 0]), "shapes"),
        ((2 * x, x[:, 0]), "variable"),
        ((x, np.full(60, np.nan)), "values"),
        ((x[:3], x[:3, 0]), "four"),
    ):
        with pytest.raises(ValueError, match=message):
            functions.fit(*faulty, bases)


def test_tolerances_of_a_precision_count_as_the_user_gives_them() -> None:
    def single(x: np.ndarray) -> np.ndarray:
        return np.exp(-x.sum(axis=1)).astype(np.float32)

    eps = float(np.finfo(np.float32).eps)
    for times in (11, 15, 25):
        _, info = functions.interpolate(single, [(0, 1)] * 3, tol=times * eps)
        assert info.status == "converged"
    with pytest.raises(ValueError, match=f"10 eps = 1.2e-06 of float32, got {9 * eps:.2g}"):
        functions.interpolate(single, [(0, 1)] * 3, tol=9 * eps)


def two_narrow_peaks(seed: int) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray, float]:
    rng = np.random.default_rng(seed)
    d, width = int(rng.integers(4, 8)), rng.uniform(0.05, 0.09)
    centres = rng.uniform(0.1, 0.9, (2, d))

    def f(x: np.ndarray) -> np.ndarray:
        far = ((x[:, None] - centres) / width) ** 2
        return np.exp(-far.sum(axis=2)) @ np.array([1.0, 0.7])

    return f, centres, width


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3, 4, 5))]
)
def test_narrow_peaks_are_found_by_ascents(seed: int) -> None:
    """Random points see little of the peaks, yet their degrees and pivots are found."""
    function, centres, width = two_narrow_peaks(seed)
    d = centres.shape[1]
    f, info = functions.interpolate(function, [(0, 1)] * d, tol=1e-4, key=jax.random.key(seed))
    assert info.status == "converged"
    near = np.random.default_rng(seed).standard_normal((2, 300, d)) * width / 2
    x = np.clip(centres[:, None] + near, 0, 1)
    for one in x:
        true = function(one)
        assert np.linalg.norm(f(one) - true) <= 3e-4 * np.linalg.norm(true)
    # The error is measured where f is large, not at points that see nothing of it.
    assert 0 < info.error_std < info.error < 1e-4


def test_what_a_sample_of_one_value_cannot_tell_is_said() -> None:
    """A constant has no known error: a peak that no point meets may stand out of it."""

    def function(x: np.ndarray) -> np.ndarray:
        return 1 + 1e3 * (np.linalg.norm(x - 0.37, axis=1) < 1e-3)

    _, info = functions.interpolate(function, [(0, 1)] * 3, tol=1e-6)
    assert info.error_std > 1e-2
    assert "searched, a sample: " in info.message
    _, found = tt.cross(lambda i: function(i / 200), (200,) * 3, tol=1e-6, key=jax.random.key(0))
    assert found.error_std > 1e-2
    assert f"a sample of {found.evaluations} of 8e+06 entries" in found.message
    _, info = functions.interpolate(lambda x: x[:, 0], [(0, 1)], tol=1e-6)
    assert info.error_std > 0


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_random_points_of_a_search_are_the_share_asked_for(share: float) -> None:
    function = lambda x: np.tanh(30 * (x[:, 0] + 0.3 * x[:, 1] - 0.6))  # noqa: E731
    _, info = functions.interpolate(function, [(0, 1)] * 2, tol=1e-4, search=share)
    most = max(share * info.evaluations, 5000)  # as by default
    assert 0.7 * most <= info.searched <= most


def test_what_no_point_meets_is_not_certified() -> None:
    at = np.random.default_rng(4).uniform(0.2, 0.8, 6)

    def bump(x: np.ndarray) -> np.ndarray:
        return np.maximum(0, 1 - ((x - at) ** 2).sum(axis=1) / 0.01)

    _, info = functions.interpolate(bump, [(0, 1)] * 6, tol=1e-4, max_evaluations=9000)
    assert info.status == "zero"
    assert info.error_std == np.inf
    assert "smaller box" in info.advice
    assert info.evaluations <= 9000
    # A point where f is large leads there, though it cannot be resolved.
    _, info = functions.interpolate(
        bump, [(0, 1)] * 6, tol=1e-4, max_evaluations=9000, pivots=at[None] + 0.02
    )
    assert info.status not in ("zero", "converged")
    assert info.error > 0.5


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
@pytest.mark.parametrize("vectorized", [True, False])
def test_components_are_functions_found_together(seed: int, *, vectorized: bool) -> None:
    rng = np.random.default_rng(seed)
    d, count = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    a = rng.uniform(0.2, 2, (d, count)) * (1 if seed % 2 else 1j)
    asked: list[int] = []

    def function(x: np.ndarray) -> np.ndarray:
        asked.append(1 if x.ndim == 1 else len(x))
        return np.exp(-(x @ a)) * 10.0 ** np.arange(count)

    found, info = functions.interpolate(
        function, [(0, 1)] * d, tol=1e-5, key=jax.random.key(seed), vectorized=vectorized,
        components=count,
    )  # fmt: skip
    assert info.status == "converged"
    assert isinstance(found, tuple)
    assert len(found) == count
    x = rng.random((200, d))
    values = np.stack([f(x) for f in found], axis=1)
    true = function(x)
    assert np.linalg.norm(values - true) <= 3e-5 * np.linalg.norm(true)
    assert info.bases == found[0].bases
    assert info.evaluations >= sum(asked) - len(x)
    with pytest.raises(ValueError, match=f"give components={count}"):
        functions.interpolate(function, [(0, 1)] * d, tol=1e-5)
    with pytest.raises(ValueError, match="expected values of shape"):
        functions.interpolate(function, [(0, 1)] * d, tol=1e-5, components=count + 1)


def test_a_narrow_component_is_found() -> None:
    at = np.random.default_rng(1).uniform(0.2, 0.8, 5)

    def function(x: np.ndarray) -> np.ndarray:
        peak = np.exp(-300 * ((x - at) ** 2).sum(axis=1))
        return np.stack([0 * peak, peak, x[:, 0] * peak], axis=1)

    (zero, f, g), info = functions.interpolate(function, [(0, 1)] * 5, tol=1e-4, components=3)
    assert info.status == "converged"
    x = at + 0.02 * np.random.default_rng(2).standard_normal((200, 5))
    true = function(x)
    np.testing.assert_allclose(f(x), true[:, 1], atol=1e-3)
    np.testing.assert_allclose(g(x), true[:, 2], atol=1e-3)
    np.testing.assert_allclose(zero(x), 0, atol=1e-3)


@pytest.mark.parametrize("kind", ["tiny", "large", "half"])
def test_functions_of_any_size_and_precision(rng, kind):
    """Squares of their values are beyond double precision; and values in half precision."""
    size = {"tiny": 10.0 ** -rng.integers(160, 300), "large": 10.0 ** rng.integers(160, 300)}
    by, dtype = size.get(kind, 1.0), np.float16 if kind == "half" else np.float64
    f = lambda x: (by / (2 + x.sum(axis=1) ** 2)).astype(dtype)  # noqa: E731
    found, info = tt.functions.interpolate(f, [(-1, 1)] * 2, tol=1e-2)
    points = rng.uniform(-1, 1, (20, 2))
    right = f(points).astype(float)
    assert info.status == "converged"
    assert 0 < info.error <= 1e-2
    assert np.abs(np.asarray(found(points)) - right).max() <= 5e-2 * right.max()


@pytest.mark.parametrize("seed", [3, *(pytest.param(s, marks=pytest.mark.slow) for s in (0, 1, 2))])
def test_a_peak_beside_a_smooth_function_is_not_missed_in_silence(seed: int) -> None:
    """Random points meet its tail alone: errors there are small, but larger than all others."""
    rng = np.random.default_rng([94, seed])
    d = int(rng.integers(2, 5))
    at, k = rng.uniform(0.1, 0.9, d), rng.uniform(1, 4, d)
    width, height, tol = (
        10 ** rng.uniform(-2.2, -1.3),
        rng.uniform(1, 10),
        10 ** rng.uniform(-4, -2),
    )

    def function(x: np.ndarray) -> np.ndarray:
        peak = 1 / (1 + ((x - at) ** 2).sum(axis=1) / width**2)
        return np.prod(np.sin(k * x + 0.4), axis=1) + height * peak

    f, info = functions.interpolate(
        function, [(0, 1)] * d, tol=tol, key=jax.random.key(seed), max_evaluations=60_000
    )
    # Half of the points from a box about the peak, weighted by the inverse of their density.
    low, high = np.clip(at - 3 * width, 0, 1), np.clip(at + 3 * width, 0, 1)
    x = np.concatenate([rng.random((3000, d)), low + (high - low) * rng.random((3000, d))])
    inside = ((x >= low) & (x <= high)).all(axis=1)
    weights = 1 / (1 + inside / np.prod(high - low))
    true = function(x)
    wrong = np.asarray(f(x)) - true
    error = np.sqrt((weights @ wrong**2) / (weights @ true**2))
    assert error <= 3 * (info.error + 2 * info.error_std)
    assert info.status != "converged" or error <= 3 * tol
    assert "may have escaped" in info.message
    assert info.searched >= 1000


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_a_peak_whose_tail_is_below_the_tolerance_stands_out_of_a_sharper_train(seed: int) -> None:
    rng = np.random.default_rng([95, seed])
    d = int(rng.integers(2, 4))
    at, k, width = rng.uniform(0.2, 0.8, d), rng.uniform(1, 3, d), rng.uniform(0.008, 0.015) * d

    def function(x: np.ndarray) -> np.ndarray:
        return np.exp(-x @ k) + 5 * np.exp(-((x - at) ** 2).sum(axis=1) / width**2)

    tol, key = 1e-3, jax.random.key(seed)
    f, info = functions.interpolate(function, [(0, 1)] * d, tol=tol, key=key)
    x = np.clip(at + width * rng.standard_normal((2000, d)), 0, 1)
    wrong = np.asarray(f(x)) - function(x)
    assert info.status == "converged"
    assert np.linalg.norm(wrong) <= 10 * tol * np.linalg.norm(function(x))
    assert "would matter if larger than" in info.message


@pytest.mark.parametrize("how", ["raises", "NaN", "interrupt"])
def test_errors_after_convergence_give_the_best_train_if_asked_for(how: str) -> None:
    """At whatever evaluation f fails; the first train needs 1400 of them."""
    asked = [0, 0]

    def function(x: np.ndarray) -> np.ndarray:
        asked[0] += len(x)
        if asked[0] > asked[1] and how == "interrupt":
            raise KeyboardInterrupt
        if asked[0] > asked[1] and how == "raises":
            raise RuntimeError("no license")
        return np.exp(-x.sum(axis=1)) * (np.nan if asked[0] > asked[1] else 1)

    domain, tol = [(0, 1)] * 3, 1e-4
    asked[1] = 1 << 30
    _, whole = functions.interpolate(function, domain, tol=tol)
    assert whole.status == "converged"
    errors = {"raises": RuntimeError, "NaN": ValueError, "interrupt": KeyboardInterrupt}
    first = 1500
    for most in np.linspace(first, asked[0] - 1, 9).astype(int):
        asked[:] = 0, int(most)
        f, info = functions.interpolate(function, domain, tol=tol, on_error="return")
        assert info.status == "failed"
        assert {"raises": "no license", "NaN": "NaN", "interrupt": "interrupted"}[
            how
        ] in info.message
        assert "call again" in info.advice
        assert info.error <= tol
        assert f([0.5, 0.2, 0.3]) == pytest.approx(np.exp(-1), rel=1e-3)
    asked[:] = 0, first
    with pytest.raises(errors[how]):
        functions.interpolate(function, domain, tol=tol)
    asked[:] = 0, 10  # there is no train yet
    with pytest.raises(errors[how]):
        functions.interpolate(function, domain, tol=tol, on_error="return")


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_tests_of_a_train_cost_no_more_than_a_few_times_what_it_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng([97, seed])
    d = int(rng.integers(2, 5))
    a, b = rng.uniform(0.2, 2, d), rng.uniform(-1, 1, d)

    def function(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + ((x - b) ** 2) @ a)

    def cost(tol: float, search: float) -> int:
        key = jax.random.key(seed)
        out = functions.interpolate(function, [(-1, 1)] * d, tol=tol, key=key, search=search)
        return out[1].evaluations

    cases = ((1e-2, 0.05), (1e-4, 0.05), (1e-4, 0.5))
    tested = [cost(*case) for case in cases]
    monkeypatch.setattr(interpolation, "_TIMES", 0)
    monkeypatch.setattr(interpolation._Work, "hidden", lambda work, found: None)
    for case, whole in zip(cases, tested, strict=True):
        assert whole <= 4 * cost(*case) + 219 * d + 500  # an ascent, and a box about its end


def test_a_function_that_gives_out_the_same_array_again() -> None:
    values = np.zeros(1 << 16)

    def function(x: np.ndarray) -> np.ndarray:
        values[: len(x)] = np.exp(-x.sum(axis=1))
        return values[: len(x)]

    f, info = functions.interpolate(function, [(0, 1)] * 3, tol=1e-5)
    assert info.status == "converged"
    assert f([0.5, 0.2, 0.3]) == pytest.approx(np.exp(-1), rel=1e-4)


def test_no_error_of_few_points_outlives_more_of_them() -> None:
    """A first fit seems good at few points; the flat top of a part of f shows at more of them."""
    tests: Any = SimpleNamespace(random=1000, error=lambda bases, cores: (0.05, 0.0, 1.0))
    tests.extend = lambda bases, count: setattr(tests, "random", tests.random + count)
    values: Any = SimpleNamespace(left=1e9, spent=[100_000])
    info: Any = SimpleNamespace(status="converged", error=1e-7, error_std=0.0)

    class Work(interpolation._Work):
        fits = 0

        def fit(self, bases: Any, tol: float, before: Any) -> Any:
            self.fits += 1
            error = 2e-6 if self.fits == 1 else 0.05
            return interpolation.Fit([], [np.ones(1)], [np.ones(1)], [0.0], error, 0.0, 1.0, info)

        def grown(self, bases: Any, found: Any) -> None:
            return None

        def hidden(self, found: Any) -> None:
            return None

    rng = np.random.default_rng(0)
    work = Work(lambda x: x, values, tests, 1e-5, 1e-14, [], [], 60, {}, rng)
    assert work.run([]).error == 0.05
    assert tests.random > 1000


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_a_search_that_failed_says_no_error_that_it_cannot_know(seed: int) -> None:
    """Points drawn from a train that lacks some of many peaks find it right."""
    rng = np.random.default_rng([31, seed])
    at, width = rng.uniform(0.1, 0.9, (15, 4)), np.exp(rng.uniform(-4, -3, 15))

    def function(x: np.ndarray) -> np.ndarray:
        return np.exp(-(((x[:, None] - at) / width[:, None]) ** 2).sum(2)).sum(1)

    f, info = functions.interpolate(
        function, [(0, 1)] * 4, tol=1e-4, key=jax.random.key(seed), max_evaluations=5000
    )
    grid = [np.linspace(0, 1, 64)] * 4
    t, of_grid = tt.cross(
        function, (64,) * 4, grid=grid, tol=1e-4, key=jax.random.key(seed), max_evaluations=5000
    )
    x = np.concatenate(
        [a + w / 2 * rng.standard_normal((50, 4)) for a, w in zip(at, width, strict=True)]
    )
    x = np.clip(x, 0, 1)
    near = np.rint(63 * x).astype(int)
    for out, true, said in (
        (f(x), function(x), info),
        (tt.evaluate(t, near), function(near / 63), of_grid),
    ):
        wrong = np.linalg.norm(np.asarray(out) - true) / np.linalg.norm(true)
        assert said.status != "converged"
        assert wrong <= 3 * (said.error + 2 * said.error_std)
        assert said.error_std < np.inf or "nothing is known" in said.message
