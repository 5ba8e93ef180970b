"""New sizes compile nothing, or one program for many of them."""

import jax
import numpy as np
import pytest

from tensorjax import convert, mera, sketch, tt
from tensorjax import tucker as tucker_
from tensorjax.sketch.estimator import TTRandomProjection
from tests.oracles import compilations, dense, tucker_dense

SIZES = 40  # drawn batches
MOST = 400  # rows in the largest


def drawn_sizes(rng):
    return rng.integers(1, MOST, SIZES).tolist()


def test_conversions_to_meras_compile_nothing_whatever_the_shapes(rng):
    # The first conversion of a process may compile what serves all others.
    convert.tt_to_mera(tt.ones((2,) * 4, np.float64), tol=1e-3)
    for seed in range(3):
        n, d, r = (int(rng.integers(*ends)) for ends in ((2, 5), (4, 7), (1, 3)))
        hidden = mera.random(jax.random.key(seed), (n,) * d, r, layers=1, dtype=np.float64)
        t = tt.round(mera.to_tt(hidden), tol=1e-12)
        with compilations() as compiled:
            m, info = convert.tt_to_mera(t, tol=1e-6, restarts=2)
            convert.tt_to_mera(t, tol=1e-2, disentangle="entropy", restarts=1, iterations=4)
            convert.tt_to_tucker(t, tol=1e-6)
        assert info.error <= 1e-6
        assert m.size <= hidden.size
        assert not compiled


@pytest.fixture(scope="module")
def train():
    return tt.random(jax.random.key(0), (3, 4, 5), 3, np.float64)


def evaluated(train, rng, wrap):
    found, _ = convert.tt_to_tucker(train, tol=1e-10)
    full = tucker_dense(found)

    def check(count):
        i = rng.integers(0, train.shape, (count, 3))
        x = tucker_.evaluate(found, wrap(i))
        assert x.shape == (count,)
        np.testing.assert_allclose(x, full[tuple(i.T)], atol=1e-10)

    return check


def sampled(train, rng, wrap):
    every = np.asarray(tt.sample(jax.random.key(1), train, MOST))

    def check(count):
        drawn = tt.sample(jax.random.key(1), train, count)
        np.testing.assert_array_equal(drawn, every[:count])

    return check


def applied(train, rng, wrap):
    p = sketch.ttrp(jax.random.key(0), 60, 12, dtype=np.float64)
    matrix = np.asarray(sketch.apply(p, np.eye(60)))

    def check(count):
        x = rng.standard_normal((count, 60))
        y = sketch.apply(p, wrap(x))
        assert y.shape == (count, 12)
        np.testing.assert_allclose(y, x @ matrix, atol=1e-10)

    return check


def inverted(train, rng, wrap):
    p = TTRandomProjection(n_components=12, random_state=0, order=2)
    p.fit(rng.standard_normal((30, 60)))

    def check(count):
        y = rng.standard_normal((count, 12))
        np.testing.assert_allclose(p.transform(p.inverse_transform(y)), y, atol=1e-10)

    return check


@pytest.mark.parametrize("wrap", [np.asarray, jax.device_put], ids=["numpy", "jax"])
@pytest.mark.parametrize("prepare", [evaluated, sampled, applied, inverted])
def test_few_programs_serve_all_batches(prepare, wrap, train, rng):
    if prepare in (sampled, inverted) and wrap is not np.asarray:
        pytest.skip("takes no array that may be of either kind")
    check = prepare(train, rng, wrap)
    sizes = drawn_sizes(rng)
    with compilations() as compiled:
        for count in sizes:
            check(count)
    most = 16 if prepare is inverted else 8
    assert len(compiled) <= most < len(set(sizes))


def test_samples_of_a_bucket_have_the_law_of_the_train(train):
    i = np.asarray(tt.sample(jax.random.key(2), train, 999))
    weights = dense(train) ** 2 / np.sum(dense(train) ** 2)
    counts = np.bincount(np.ravel_multi_index(i.T, train.shape), minlength=weights.size)
    expected = 999 * weights.ravel()
    assert np.sum((counts - expected) ** 2 / np.maximum(expected, 1)) < 2 * weights.size
