"""Trains as densities over multi-indices, against dense arrays: samples, marginals, logarithms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import normal

COUNT = 4000


def drawn_density(rng):
    shape = tuple(rng.integers(1, 5, rng.integers(2, 5)).tolist())
    x = rng.uniform(0.1, 1, shape) * (rng.uniform(size=shape) < 0.7)
    x[(0,) * len(shape)] = 1.0
    return tt.from_dense(x, tol=1e-14), x / x.sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_samples_have_the_probabilities_of_the_entries(compiled):
    rng = np.random.default_rng(0)
    draw = jax.jit(tt.sample, static_argnames=("count", "squared")) if compiled else tt.sample
    for seed in range(2 if compiled else 6):
        t, p = drawn_density(rng)
        index = np.asarray(draw(jax.random.key(seed), t, count=COUNT, squared=False))
        seen = np.zeros(p.shape)
        np.add.at(seen, tuple(index.T), 1)
        likely = p > 1e-12
        chi = ((seen - COUNT * p)[likely] ** 2 / (COUNT * p[likely])).sum()
        freedom = likely.sum() - 1
        assert chi <= freedom + 5 * np.sqrt(2 * freedom) + 5
        assert seen[~likely].sum() <= 1


def test_host_and_program_draw_the_same():
    t, _ = drawn_density(np.random.default_rng(1))
    key = jax.random.key(3)
    program = jax.jit(lambda t: tt.sample(key, t, 50, squared=False))(t)
    assert (np.asarray(program) == np.asarray(tt.sample(key, t, 50, squared=False))).all()


@pytest.mark.parametrize("squared", [False, True])
def test_marginals_conditionals_and_logarithms(squared):
    rng = np.random.default_rng(2)
    for trial in range(2 if squared else 6):
        t, p = drawn_density(rng)
        if squared:
            z = normal(rng, p.shape, np.complex128)
            t, p = tt.from_dense(z, tol=1e-14), np.abs(z) ** 2 / np.sum(np.abs(z) ** 2)
        d = p.ndim
        keep = sorted(rng.permutation(d)[: rng.integers(1, d + 1)].tolist())
        others = tuple(k for k in range(d) if k not in keep)
        found = tt.marginal(t, keep, squared=squared)
        assert np.allclose(tt.to_dense(found), p.sum(others), atol=1e-13)
        given = dict.fromkeys(keep[: d - 1], 0)
        rest = p[tuple(given.get(k, slice(None)) for k in range(d))]
        found = tt.conditional(t, given, squared=squared)
        assert np.allclose(tt.to_dense(found), rest / rest.sum(), atol=1e-13)
        index = np.stack(np.indices(p.shape), -1)
        likely = p > 1e-10
        logs = np.asarray(
            tt.log_density(t, index - np.array(p.shape) * (trial % 2), squared=squared)
        )
        assert np.allclose(logs[likely], np.log(p[likely]))
        if trial == 0:
            jitted = jax.jit(lambda t, i: tt.log_density(t, i, squared=squared))(t, index)
            assert np.allclose(np.asarray(jitted)[likely], logs[likely])


def test_long_trains_stay_in_range():
    t = tt.rank_one([jnp.array([1.0, 3.0])] * 600)  # the entries sum to 4^600
    assert np.isclose(tt.log_density(t, [1] * 600), 600 * np.log(0.75))
    assert np.allclose(tt.to_dense(tt.marginal(t, [300])), [0.25, 0.75])
    drawn = tt.sample(jax.random.key(0), t, 20, squared=False)
    assert abs(np.mean(drawn) - 0.75) < 5 * np.sqrt(0.1875 / drawn.size)


def test_negative_entries_are_clipped_or_refused():
    t = tt.from_dense(np.array([[0.5, -0.1], [0.6, 0.0]]), tol=1e-14)
    drawn = np.asarray(tt.sample(jax.random.key(0), t, 200, squared=False))
    assert (drawn[:, 1] == 0).all()
    logs = np.asarray(tt.log_density(t, [[0, 0], [0, 1]]))
    assert np.isfinite(logs[0])
    assert np.isnan(logs[1])
    for call in (
        lambda t: tt.sample(jax.random.key(0), t, 3, squared=False),
        lambda t: tt.marginal(t, 0),
        lambda t: tt.conditional(t, {0: 0}),
    ):
        with pytest.raises(ValueError, match="positive sum"):
            call(-1.0 * tt.ones((2, 3)))
        with pytest.raises(TypeError, match="real train"):
            call(tt.ones((2, 3), complex))
        traced = np.asarray(jax.tree.leaves(jax.jit(call)(-1.0 * tt.ones((2, 3))))[0])
        assert (traced == -1).all() or np.isnan(traced).all()


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("modes given once", lambda t: tt.marginal(t, [0, 0])),
        ("at least one mode", lambda t: tt.marginal(t, [])),
        ("axis", lambda t: tt.marginal(t, 5)),
        ("modes of given", lambda t: tt.conditional(t, {7: 0})),
        ("given once", lambda t: tt.conditional(t, {0: 0, -2: 1})),
        ("at least one mode", lambda t: tt.conditional(t, {0: 0, 1: 0})),
        ("given", lambda t: tt.conditional(t, {0: 2})),
        ("indices", lambda t: tt.log_density(t, [2, 0])),
    ],
)
def test_wrong_arguments_are_named(message, call):
    with pytest.raises(ValueError, match=message):
        call(tt.ones((2, 3)))


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_log_density_of_a_train_whose_sum_is_not_finite(rng, bad: float, squared: bool):
    shape = tuple(int(n) for n in rng.integers(2, 5, 4))
    cores = [rng.uniform(0.5, 1, (1, n, 1)) for n in shape]
    k = int(rng.integers(4))
    cores[k][0, -1, 0] = bad
    t = tt.TT([jnp.asarray(c) for c in cores])
    index = np.zeros((3, 4), int)
    for found in (
        tt.log_density(t, index, squared=squared),
        jax.jit(lambda t: tt.log_density(t, index, squared=squared))(t),
    ):
        assert np.isnan(found).all()


@pytest.mark.parametrize("squared", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_densities_of_any_scale_are_the_same(rng, squared: bool):
    """Cores at the ends of the range, whose products and squares leave it."""
    shape = tuple(int(n) for n in rng.integers(2, 4, 3))
    ranks = [1, 2, 2, 1]
    cores = [
        rng.uniform(0.5, 1, (r, n, s)).astype(np.float32)
        for r, n, s in zip(ranks, shape, ranks[1:], strict=False)
    ]
    calls = {
        "marginal": lambda t: tt.to_dense(tt.marginal(t, [0, 2], squared=squared)),
        "conditional": lambda t: tt.to_dense(tt.conditional(t, {1: 0}, squared=squared)),
        "log_density": lambda t: tt.log_density(t, [[0, 1, 0]], squared=squared),
        "sample": lambda t: tt.sample(jax.random.key(0), t, 5, squared=squared),
    }
    for name, call in calls.items():
        program, wanted = jax.jit(call), call(tt.TT([jnp.asarray(c) for c in cores]))
        for powers in ((126, 126, 126), (-100, -100, -100), (100, -100, 90)):
            pairs = zip(cores, powers, strict=True)
            t = tt.TT([jnp.asarray(c * np.float32(2.0**p)) for c, p in pairs])
            for found in (call(t), program(t)):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("squared", [False, True])
def test_what_is_no_density_is_said(rng, squared: bool):
    calls = [
        lambda t: tt.marginal(t, 0, squared=squared),
        lambda t: tt.conditional(t, {0: 1}, squared=squared),
    ]
    programs = [jax.jit(call) for call in calls]
    for bad in ("nan", "inf", "-inf", "zero", *["negative"] * (not squared)):
        cores = [rng.uniform(0.5, 1, (1, n, 1)) for n in (2, 3, 2)]
        if bad in ("zero", "negative"):
            cores[1] = cores[1] * (0.0 if bad == "zero" else -1.0)
        else:
            cores[1][0, int(rng.integers(3))] = float(bad)
        t = tt.TT([jnp.asarray(c) for c in cores])
        what = {"zero": "got zero", "negative": "negative one.*squared"}.get(bad, "got NaN or Inf")
        for call, program in zip(calls, programs, strict=True):
            with pytest.raises(ValueError, match=f"positive sum.*{what}"):
                call(t)
            assert all(np.isnan(c).any() for c in program(t).cores[:1])
        if bad not in ("zero", "negative"):  # no warning of NumPy
            for value in (tt.var(t), tt.distance(t, tt.ones(t.shape)), tt.moment(t, 2)):
                assert not np.isfinite(value)
