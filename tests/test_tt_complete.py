"""Completion of planted trains, of noisy ones, and of a photograph."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import compilations, cores, dense, norm

SHAPE = (8, 9, 10)


def planted(seed: int, dtype: Any = np.float64, count: int = 600, rank: Any = 2) -> Any:
    x = tt.random(jax.random.key(seed), SHAPE, rank, dtype)
    indices = np.random.default_rng(seed).integers(0, SHAPE, (count, 3))
    return x, indices, np.asarray(tt.evaluate(x, indices))


@pytest.mark.parametrize("method", ["als", "riemannian"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_planted_trains_are_found(method: Any, dtype: Any):
    for seed in range(3):
        x, indices, values = planted(seed, dtype)
        with compilations() as compiled:
            found, info = tt.complete(indices, values, SHAPE, 2, method=method, tol=1e-7)
        assert not compiled
        assert info.status == "reached"
        assert info.error <= 1e-7
        assert info.advice == ""
        assert found.dtype == dtype
        assert tt.distance(found, x) < 1e-6 * tt.norm(x)
        assert info.held_out_error < 1e-6
        assert info.iterations == len(info.history)


def test_ranks_are_adapted_to_the_samples():
    x, indices, values = planted(1, rank=(2, 3), count=700)
    found, info = tt.complete(indices, values, SHAPE, 6, adapt=True, tol=1e-7)
    assert info.status == "reached"
    assert info.ranks == found.ranks
    assert info.ranks in ((1, 2, 3, 1), (1, 3, 3, 1))  # all bonds may rise at once
    assert tt.distance(found, x) < 1e-6 * tt.norm(x)


def test_noise_is_not_fitted_and_the_held_out_error_tells():
    rng = np.random.default_rng(0)
    x, indices, values = planted(2, count=700)
    noise = 0.05 * np.std(values)
    noisy = values + noise * rng.standard_normal(values.shape)
    found, info = tt.complete(indices, noisy, SHAPE, 8, adapt=True, held_out=0.2)
    assert max(info.ranks) <= 3
    assert tt.distance(found, x) < 0.05 * tt.norm(x)
    assert 0.5 < info.held_out_error / (noise / np.sqrt(np.mean(noisy**2))) < 1.6
    _, wide = tt.complete(indices, noisy, SHAPE, 8, held_out=0.2)
    assert wide.held_out_error > 2 * info.held_out_error
    assert wide.error < info.error
    assert wide.advice


def test_the_same_key_gives_the_same_result_and_callbacks_stop():
    _, indices, values = planted(3)
    a, first = tt.complete(indices, values, SHAPE, 2, key=jax.random.key(5))
    b, second = tt.complete(indices, values, SHAPE, 2, key=jax.random.key(5))
    assert first.history == second.history
    assert all(bool((c == d).all()) for c, d in zip(a.cores, b.cores, strict=True))
    seen: list[int] = []
    _, info = tt.complete(
        indices, values, SHAPE, 2, tol=0.0, callback=lambda n, *_: seen.append(n) or n == 3
    )
    assert info.status == "stopped"
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("method", ["als", "riemannian"])
def test_a_start_is_gone_on_with_and_iterations_are_limited(method: Any):
    x, indices, values = planted(4)
    near = tt.round(x + tt.random(jax.random.key(9), SHAPE, 2, float) * 1e-2, rank=2)
    _, info = tt.complete(
        indices, values, SHAPE, 2, method=method, x0=near, max_iterations=2, tol=0.0
    )
    assert info.status == "max_iterations"
    assert info.iterations == 2
    assert info.error < 5e-3


def test_single_precision_and_one_mode():
    _, indices, values = planted(0, np.float32)
    found, info = tt.complete(indices, jnp.asarray(values), SHAPE, 2, tol=1e-4)
    assert found.dtype == jnp.float32
    assert info.error <= 1e-4
    values = np.arange(5.0) + 1
    found, _ = tt.complete(np.arange(5)[:, None], values, (5,), 1, held_out=0.0)
    assert np.abs(np.asarray(tt.to_dense(found)) - values).max() < 1e-6


def test_bad_input_is_named():
    x, indices, values = planted(0)
    with pytest.raises(ValueError, match="values: expected one for each row"):
        tt.complete(indices, values[:-1], SHAPE, 2)
    with pytest.raises(ValueError, match="indices: expected mode 1"):
        tt.complete(indices + np.array([0, 5, 0]), values, SHAPE, 2)
    with pytest.raises(TypeError, match="indices: expected integers"):
        tt.complete(indices + 0.5, values, SHAPE, 2)
    with pytest.raises(TypeError, match="values: expected a floating"):
        tt.complete(indices, values.astype(int), SHAPE, 2)
    with pytest.raises(ValueError, match="values: expected finite"):
        tt.complete(indices, np.where(values > 0, values, np.nan), SHAPE, 2)
    with pytest.raises(ValueError, match="method: expected"):
        tt.complete(indices, values, SHAPE, 2, method="svt")  # type: ignore
    with pytest.raises(ValueError, match="held_out: expected a number in"):
        tt.complete(indices, values, SHAPE, 2, held_out=1.5)
    with pytest.raises(ValueError, match="adapt: expected samples held out"):
        tt.complete(indices, values, SHAPE, 2, held_out=0.0, adapt=True)
    with pytest.raises(ValueError, match="x0: expected shape"):
        tt.complete(indices, values, SHAPE, 3, x0=x)
    with pytest.raises(ValueError, match="values: expected at least one sample"):
        tt.complete(indices[:0], values[:0], SHAPE, 2)
    with pytest.raises(ValueError, match="ridge: expected a number"):
        tt.complete(indices, values, SHAPE, 2, ridge=-1.0)


def test_ranks_that_the_samples_cannot_determine_are_not_reached(rng):
    """Without samples held out, which would deny the fit: more degrees of freedom than samples."""
    for seed in range(3):
        shape = tuple(int(n) for n in rng.integers(4, 7, 3))
        where = np.stack([rng.integers(0, n, 12) for n in shape], axis=1)
        where = np.unique(where, axis=0)
        values = rng.standard_normal(len(where))
        key = jax.random.key(seed)
        found, info = tt.complete(where, values, shape, 90, held_out=0.0, key=key)
        assert found.ranks == (1, shape[0], min(shape[2], shape[0] * shape[1]), 1)  # cut
        assert (info.status, info.error <= 1e-6) == ("overfit", True)
        assert "lower the ranks" in info.advice


def test_a_fit_that_held_out_samples_deny_is_not_reached(rng):
    """Ranks above those of the tensor: samples are met to the tolerance by many other tensors."""
    met = 0
    for _ in range(5):
        shape = tuple(rng.integers(5, 9, 4).tolist())
        x = dense(tt.TT(cores(rng, shape, 2, np.float64)))
        where = np.stack([rng.integers(0, n, 700) for n in shape], 1)
        key = jax.random.key(int(rng.integers(1000)))
        for rank in (2, 4):
            y, info = tt.complete(where, x[tuple(where.T)], shape, rank, key=key)
            if info.status == "reached":
                met += 1
                assert info.held_out_error <= 1e-4
                # Of the ranks of the tensor: of higher ones some entries may be determined by none.
                assert rank == 4 or norm(dense(y) - x) <= 1e-4 * norm(x)
            else:
                assert info.advice
    assert met >= 4


def test_completions_do_not_depend_on_the_scale_of_the_values(rng):
    shape = (5, 6, 4)
    x = dense(tt.TT(cores(rng, shape, 2, np.float64)))
    where = np.stack([rng.integers(0, n, 300) for n in shape], 1)
    found = []
    for scale in (1.0, *10.0 ** rng.integers(150, 290, 2), *10.0 ** -rng.integers(150, 290, 2)):
        y, info = tt.complete(where, scale * x[tuple(where.T)], shape, 2)
        assert norm(dense(tt.scale(y, 1 / scale)) - x) <= 1e-4 * norm(x)
        found.append((info.status, info.iterations))
    assert len({*found}) == 1
    y, info = tt.complete(where, np.zeros(len(where)), shape, 2)
    assert (info.status, info.error, info.held_out_error) == ("reached", 0.0, 0.0)
    assert not dense(y).any()


@pytest.mark.parametrize(
    ("dtype", "most"), [(np.float16, 3), (np.float32, 37), (np.complex64, 37), (np.float64, 300)]
)
def test_norms_that_no_core_of_a_completion_holds(rng, dtype: Any, most: int):
    """The norm of a long train is beyond the dtype whose entries are in range, at any scale."""
    for scale in 10.0 ** rng.integers(0, most + 1, 2):
        order = int(rng.integers(most, most + 40)) if most < 300 else 40
        signs = [rng.choice([-1.0, 1.0], 10) for _ in range(order)]
        shape = (10,) * order
        where = rng.integers(0, 10, (300, order))
        values = np.prod([s[i] for s, i in zip(signs, where.T, strict=True)], 0) * scale
        place = int(rng.integers(order))  # the start, too, has its size somewhere
        start = tt.rank_one([(s * (scale if k == place else 1)).astype(dtype)
                             for k, s in enumerate(signs)])  # fmt: skip
        x, info = tt.complete(where, values.astype(dtype), shape, 1, x0=start, tol=0.05)
        assert info.status == "reached"
        assert x.dtype == dtype
        found = np.asarray(tt.evaluate(x, where)).astype(np.complex128)
        assert np.abs(found / scale - values / scale).max() <= 0.05


def test_samples_that_repeat_entries_do_not_hide_that_a_fit_is_overfitted(rng):
    """The samples of noise held out had been fitted as well, and the status was "reached"."""
    shape = (5, 4, 6)
    where = np.stack(np.unravel_index(rng.permutation(120)[:60], shape), 1)
    for held_out in (0.0, 0.2):
        given = np.tile(where, (3, 1)), np.tile(rng.standard_normal(60), 3)
        _, info = tt.complete(*given, shape, 6, tol=1e-3, held_out=held_out)
        assert info.error <= 1e-3
        assert info.status == "overfit"
        assert not info.held_out_error < 0.7


@pytest.mark.parametrize("method", ["als", pytest.param("riemannian", marks=pytest.mark.slow)])
def test_statuses_and_advice_say_what_the_errors_say(method: Any):
    """Overfitted are samples fitted better than those held out; advice is of the method."""
    seen = set()
    for seed in range(4):
        for true, rank, count, noise in ((3, 1, 300, 0.0), (2, 4, 200, 0.1), (2, 2, 100, 0.0)):
            rng = np.random.default_rng([seed, true, rank])
            x = dense(tt.TT(cores(rng, (5, 6, 4), true, np.float64)))
            where = rng.integers(0, x.shape, (count, 3))
            values = x[tuple(where.T)] + noise * x.std() * rng.standard_normal(count)
            options = {"method": method, "restarts": 1, "max_iterations": 80}
            key = jax.random.key(seed)
            _, info = tt.complete(where, values, x.shape, rank, key=key, **options)
            seen.add(info.status)
            *_, (_, fitted, unseen) = info.history
            if info.status == "overfit":
                assert unseen > 1.5 * fitted
            assert not (info.status == "overfit" and rank == 1)
            assert ("lower the ranks" in info.advice) <= (info.held_out_error > 1.5 * info.error or
                                                          info.status == "overfit")  # fmt: skip
            assert method == "als" or "ridge" not in info.advice
    assert {"overfit", "converged"} <= seen
