"""Variance components, moments, many inner products, bilinear forms, pseudo-inverses of trains."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import compilations, cores, dense, error, norm

LONG = pytest.mark.slow  # compiling takes long
SEEDS = [0, 1, *(pytest.param(k, marks=LONG) for k in range(2, 10))]


def drawn(rng, shape, dtype=np.float64, rank=3):
    return tt.TT(cores(rng, shape, rank, dtype))


def drawn_matrix(rng, rows, columns, dtype):
    flat = cores(rng, [m * n for m, n in zip(rows, columns, strict=True)], 2, dtype)
    sizes = zip(flat, rows, columns, strict=True)
    return tt.TTMatrix([c.reshape(len(c), m, n, -1) for c, m, n in sizes])


def case(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 4, rng.integers(2, 5)))
    weights = None if seed % 2 else [0.1 + rng.random(n) for n in shape]
    plain = [np.ones(n) for n in shape] if weights is None else weights
    return rng, drawn(rng, shape, (np.float64, np.complex128)[seed // 2 % 2]), weights, [
        w / w.sum() for w in plain]  # fmt: skip


def averaged(x, k, weights):
    return np.expand_dims(np.tensordot(weights[k], x, (0, k)), k)


def components(x, weights):
    """Variances of the ANOVA components by their definition, (2, …, 2)."""
    out = np.zeros((2,) * x.ndim)
    for digits in itertools.product((0, 1), repeat=x.ndim):
        part = x
        for k, digit in enumerate(digits):
            mean = averaged(part, k, weights)
            part = part - mean if digit else np.broadcast_to(mean, part.shape)
        square = np.abs(part) ** 2
        for k in range(x.ndim):
            square = averaged(square, k, weights)
        out[digits] = square.item() if any(digits) else 0
    return out


@pytest.mark.parametrize("seed", SEEDS)
def test_sobol_indices_and_variance_components(seed):
    rng, t, weights, probabilities = case(seed)
    exact = components(dense(t), probabilities)
    counts, total, d = np.indices(exact.shape), exact.sum(), t.order
    found = tt.variance_components(t, weights=weights)
    np.testing.assert_allclose(dense(found), exact, atol=1e-12 * total)
    modes = [int(k) for k in rng.permutation(d)[: rng.integers(1, d + 1)]]
    inside = counts[modes].sum(0)
    outside = counts.sum(0) - inside
    for kind, chosen in (("closed", outside == 0), ("total", inside > 0),
                         ("component", (outside == 0) & (inside == len(modes)))):  # fmt: skip
        with compilations() as compiled:
            value = tt.sobol(t, [k - d for k in modes], kind=kind, weights=weights)
        assert compiled == []
        share = exact[chosen].sum() / total if total > 0 else np.nan  # it varies nowhere
        assert float(value) == pytest.approx(share, abs=1e-12, nan_ok=True)
    mask = drawn(rng, (2,) * d, rank=2)
    value = tt.sobol(t, mask, weights=weights, normalize=False)
    assert float(value) == pytest.approx((dense(mask) * exact).sum(), abs=1e-11 * total)
    if total == 0:
        assert np.isnan(tt.mean_dimension(t, weights=weights))
        return
    dimension = (counts.sum(0) * exact).sum() / total
    assert float(tt.mean_dimension(t, weights=weights)) == pytest.approx(dimension, abs=1e-11)
    shares = [exact[counts.sum(0) == k].sum() / total for k in range(1, d + 1)]
    np.testing.assert_allclose(tt.dimension_distribution(t, weights=weights), shares, atol=1e-12)


def test_sensitivities_beside_a_large_mean_of_many_modes_and_under_jit(rng):
    t = drawn(rng, (3, 2, 4))
    values = [float(tt.sobol(x, 1)) for x in (t, t + 1e6)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert float(jax.jit(lambda t: tt.sobol(t, 1))(t)) == pytest.approx(values[0], rel=1e-10)
    long = tt.rank_one([1e20 * jnp.arange(1.0, 4.0)] * 60)
    first = 1 / (1 + 1 / 6)  # of the squares of one factor, the mean's share is 6/7
    exact = first**60 * (1 / 6) / (1 - first**60)
    assert float(tt.sobol(long, 7)) == pytest.approx(exact, rel=1e-10)
    for call, what in (
        (lambda: tt.sobol(t, 3), "modes"), (lambda: tt.sobol(t, []), "one or more"),
        (lambda: tt.sobol(t, [0, -3]), "each once"), (lambda: tt.sobol(t, 0, kind="first"), "kind"),
        (lambda: tt.sobol(t, drawn(rng, (2, 2))), "mask"),
        (lambda: tt.sobol(t, 0, weights=[np.ones(3)]), "3 vectors"),
        (lambda: tt.sobol(t, 0, weights=[np.ones(3), -np.ones(2), None]), "at least 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            call()


@pytest.mark.parametrize("seed", SEEDS)
def test_moments_all_and_conditional(seed):
    rng, t, weights, probabilities = case(seed)
    x = dense(t)
    axis = sorted(int(k) for k in rng.permutation(t.order)[: rng.integers(0, t.order + 1)])

    def mean(y):
        for k in axis:
            y = averaged(y, k, probabilities)
        return y

    for power, central in ((1, False), (2, True), (3, False)):
        expected = mean((x - mean(x) if central else x) ** power).squeeze(tuple(axis))
        found = tt.moment(t, power, axis, central=central, weights=weights)
        found = dense(found) if isinstance(found, tt.TT) else np.asarray(found)
        assert found.shape == expected.shape
        assert error(found, expected) <= 1e-11 * max(norm(expected), 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_and_bilinear_forms(seed):
    rng = np.random.default_rng(seed)
    dtype, d = (np.float64, np.complex128)[seed % 2], int(rng.integers(1, 5))
    rows, columns = (tuple(int(n) for n in rng.integers(1, 4, d)) for _ in range(2))
    a = drawn_matrix(rng, rows, columns, dtype)
    xs = [drawn(rng, rows, dtype, int(r)) for r in rng.integers(1, 4, 3)]
    ys = [drawn(rng, columns, dtype, int(r)) for r in rng.integers(1, 4, 2)]
    x, y = (np.array([dense(t).ravel() for t in side]) for side in (xs, ys))
    twice = [a, 2 * a]
    with compilations() as compiled:
        form = tt.bilinear_form(xs[0], a, ys[1])
        pairs = tt.pairwise_inner(xs, ys, matrix=a)
        gram = tt.pairwise_inner(xs)
        matrices = tt.pairwise_inner(twice)
    assert compiled == []
    np.testing.assert_allclose(form, x[0].conj() @ dense(a) @ y[1], atol=1e-12)
    np.testing.assert_allclose(pairs, x.conj() @ dense(a) @ y.T, atol=1e-12)
    np.testing.assert_allclose(gram, x.conj() @ x.T, atol=1e-12)
    np.testing.assert_allclose(matrices, norm(dense(a)) ** 2 * np.array([[1, 2], [2, 4]]))


def test_pairs_and_forms_under_transformations_and_in_range(rng):
    a, x, y = drawn_matrix(rng, (2, 3), (3, 2), np.float64), drawn(rng, (2, 3)), drawn(rng, (3, 2))
    exact = dense(x).ravel() @ dense(a) @ dense(y).ravel()
    value, slope = jax.jit(jax.value_and_grad(tt.bilinear_form))(x, a, y)
    assert float(value) == pytest.approx(exact)
    assert all(np.isfinite(np.asarray(c)).all() for c in slope.cores)
    pairs = jax.jit(lambda xs, ys: tt.pairwise_inner(xs, ys, matrix=a))([x, 2 * x], [y])
    np.testing.assert_allclose(pairs, [[exact], [2 * exact]])
    far = [tt.TT([x.cores[0] * s, x.cores[1] / s]) for s in (1e250, 1e-250)]
    np.testing.assert_allclose(tt.pairwise_inner(far), norm(dense(x)) ** 2 * np.ones((2, 2)))
    for wrong, kind in (
        (lambda: tt.pairwise_inner([]), ValueError), (lambda: tt.pairwise_inner(x), TypeError),
        (lambda: tt.pairwise_inner([x], [y]), ValueError),
        (lambda: tt.pairwise_inner([x, a]), TypeError),
        (lambda: tt.bilinear_form(y, a, x), ValueError),
    ):  # fmt: skip
        with pytest.raises(kind, match="expected"):
            wrong()


@pytest.mark.parametrize("seed", SEEDS)
def test_pseudo_inverses_of_unfoldings(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(2, 5)))
    t = drawn(rng, shape, (np.float64, np.complex128)[seed % 2])
    t = t + t if seed % 3 else t  # ranks that are not those of the tensor
    k = int(rng.integers(1, len(shape)))
    exact = np.linalg.pinv(dense(t).reshape(int(np.prod(shape[:k])), -1), rcond=1e-10)
    expected = exact.T.reshape(shape)
    found = [tt.pinv(t, k), tt.pinv(t, k - len(shape), tol=1e-9)]
    if seed > 1:
        found.append(jax.jit(lambda t: tt.pinv(t, k, tol=1e-9))(t))
    for out in found:
        assert error(dense(out), expected) <= 1e-9 * norm(expected)
    scaled = tt.pinv(t * 1e-200, k) * 1e-200
    assert error(dense(scaled), expected) <= 1e-9 * norm(expected)
    for split in (0, len(shape), 1.0):
        with pytest.raises(ValueError, match="split"):
            tt.pinv(t, split)


def test_central_moments_of_entries_far_from_zero(rng):
    """Which lose what the subtraction of the mean loses, and not a power of that."""
    for _ in range(3):
        shape = tuple(rng.integers(1, 5, 4).tolist())
        t = tt.TT([jnp.asarray(c) for c in cores(rng, shape, 2, np.float64)])
        shift = 10.0 ** rng.uniform(0, 7)
        x = np.asarray(tt.to_dense(t))
        axes = tuple(np.flatnonzero(rng.random(4) < 0.6).tolist()) or (1,)
        for power in (2, 3, 4):
            for axis in (None, axes):
                apart = x - x.mean(axis, keepdims=True)
                found = tt.moment(t + shift, power, axis, central=True)
                found = tt.to_dense(found) if isinstance(found, tt.TT) else found
                size = np.abs(apart).max() or 1.0
                allowed = 1e4 * np.finfo(float).eps * (shift + np.abs(x).max()) / size
                exact = (apart**power).mean(axis)
                assert np.abs(found - exact).max() <= max(allowed, 1e-12) * size**power


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.complex128])
def test_variances_over_modes_and_sobol_indices_do_not_depend_on_the_mean(rng, kind):
    """Squares of two parts of x − mean would cancel where they are alike."""
    shape = tuple(int(n) for n in rng.integers(2, 5, 4))
    plain = drawn(rng, shape, kind, 2)
    eps = float(jnp.finfo(kind).eps)
    size = 1e3 if kind is np.float32 else float(10 ** rng.uniform(3, 7))
    t = plain + plain.cores[0].dtype.type(size)
    x = dense(plain)  # the shift changes neither variances nor indices
    for axis in (0, (0, 2), (1, 3)):
        wanted = x.var(axis=axis)
        found = dense(tt.var(t, axis=axis))
        assert error(found, wanted) <= 100 * eps * size * np.abs(x).max()
    for mode in range(len(shape)):
        assert float(tt.sobol(t, mode)) == pytest.approx(
            float(tt.sobol(plain, mode)), abs=100 * eps * size
        )


def test_constants_have_no_sensitivities():
    for constant in (tt.ones((3, 2, 4)), tt.zeros((3, 2, 4))):
        assert np.isnan(float(tt.sobol(constant, 0)))
        assert np.isnan(float(tt.mean_dimension(constant)))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_variances_far_below_the_mean_are_kept(kind):
    """Of trains that hold them in cores of their own, however many entries there are."""
    many = 45 if kind is np.float32 else 110
    seldom = [np.array([0.99, 0.01])] * (many - 1)
    first = [np.array([1, -1], kind), *[np.array([1, 0], kind)] * (many - 1)]
    apart = tt.add(tt.ones((2,) * many, kind), tt.rank_one(first))
    share = 0.99 ** (many - 1)  # of the first mode in all that depends on it
    found = float(tt.sobol(apart, 0, weights=[np.array([0.5, 0.5]), *seldom]))
    assert found == pytest.approx(share, rel=1e-3)
    one = tt.add(tt.ones((2,) * 45, kind), tt.unit((2,) * 45, (0,) * 45, kind))
    assert float(tt.sobol(one, 0, kind="total")) == pytest.approx(0.5, rel=1e-3)
