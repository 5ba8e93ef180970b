"""Encoder, code model, DLRM and dense tables: ids out of range are NaN, −100 is no target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")

from flax import nnx

from tensorjax import nn
from tensorjax.models.code import CodeModel
from tensorjax.models.dlrm import DLRM, DLRMConfig
from tensorjax.models.encoder import Encoder, EncoderConfig

SPECS = {"dense": nn.Dense(), "tt": nn.TT(rank=3)}
CONFIG = EncoderConfig.tiny(vocabulary=60, features=16, heads=2, hidden=24, layers=1, segments=1)
WRONG = (-1, -100, 10**6, 2**32 + 2)
BY_SPEC = [n if n == "dense" else pytest.param(n, marks=pytest.mark.slow) for n in SPECS]


def compiled(model, function):
    """A function of a model and arrays, compiled for the model."""
    model.eval()
    graph, state = nnx.split(model)
    run = jax.jit(lambda state, *arrays: function(nnx.merge(graph, state), *arrays))
    return lambda *arrays: np.asarray(run(state, *arrays))


def with_one(ids, value, place):
    """The ids with another one at a place."""
    out = ids.copy()
    out[place] = value
    return out


@pytest.mark.parametrize("name", BY_SPEC)
def test_rows_with_an_id_out_of_range_are_nan_and_no_others(name, rng) -> None:
    spec = SPECS[name]
    model = Encoder(CONFIG, linear=spec, embedding=spec, rngs=nnx.Rngs(0))
    run = compiled(model, lambda model, *ids: model(*ids))
    tokens, segments = rng.integers(1, 60, (3, 7)), np.zeros((3, 7), np.int64)
    exact = run(tokens, segments)
    for wrong in (60, *WRONG):
        place = tuple(rng.integers(0, (3, 7)))
        for given in (
            (with_one(tokens, wrong, place), segments),
            (tokens, with_one(segments, wrong, place)),
        ):
            found = run(*given)
            assert np.isnan(found[place[0]]).all(), wrong
            others = np.arange(3) != place[0]
            np.testing.assert_allclose(found[others], exact[others], rtol=1e-5)


@pytest.mark.parametrize("name", BY_SPEC)
def test_masked_language_models_ignore_targets_and_mark_positions(name, rng) -> None:
    spec = SPECS[name]
    model = CodeModel(CONFIG, linear=spec, embedding=spec, rngs=nnx.Rngs(0))
    run = compiled(model, lambda model, *x: jnp.stack(model.loss(*x)))
    tokens, positions = rng.integers(1, 60, (3, 7)), rng.integers(0, 7, (3, 4))
    targets = rng.integers(0, 60, (3, 4))
    ignored = rng.uniform(size=targets.shape) < 0.4
    ignored[0, 0] = True
    found = run(tokens, np.where(ignored, -100, targets), positions)
    wanted = compiled(model, lambda model, *x: jnp.stack(model.loss(*x[:3], weights=x[3])))(
        tokens, targets, positions, (~ignored).astype(np.float32)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert found[1] == (~ignored).sum()
    np.testing.assert_array_equal(run(tokens, np.full_like(targets, -100), positions), 0)
    place = tuple(rng.integers(0, (3, 4)))
    for wrong in WRONG:
        assert np.isnan(run(tokens, targets, with_one(positions, wrong, place))[0])
        if wrong != -100:
            assert np.isnan(run(tokens, with_one(targets, wrong, place), positions)[0])


def test_labels_of_texts_are_counted_as_those_of_tokens(rng) -> None:
    model = Encoder(CONFIG, rngs=nnx.Rngs(0))
    run = compiled(model, lambda model, *x: jnp.stack(model.loss(*x)))
    tokens = rng.integers(1, 60, (4, 5))
    total, count = run(tokens, np.array([2, -100, 0, -100]))
    logits = compiled(model, lambda model, x: model(x))(tokens).astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert (total, count) == (pytest.approx(-log_p[0, 2] - log_p[2, 0], rel=1e-5), 2)
    for wrong in (3, -1, 10**6):
        assert np.isnan(run(tokens, np.array([2, wrong, 0, 1]))[0])
    with pytest.raises(ValueError, match=r"labels: expected ids in \[0, 3\) or -100, got 3"):
        model.loss(tokens, np.array([2, 3, 0, 1]))


@pytest.mark.parametrize("name", BY_SPEC)
def test_categories_out_of_range_make_their_logit_nan(name, rng) -> None:
    config = DLRMConfig.tiny(tables=(1, 60, 300))  # Flax's table of one row takes any id
    model = DLRM(config, embedding=SPECS[name], rngs=nnx.Rngs(0))
    run = compiled(model, lambda model, *x: model(*x))
    dense = rng.normal(size=(5, 4)).astype(np.float32)
    ids = rng.integers(0, config.tables, (5, 3))
    exact = run(dense, ids)
    for column, rows in enumerate(config.tables):
        for wrong in (rows, *WRONG):
            k = int(rng.integers(0, 5))
            found = run(dense, with_one(ids, wrong, (k, column)))
            assert np.isnan(found[k]), (column, wrong)
            np.testing.assert_allclose(np.delete(found, k), np.delete(exact, k), rtol=1e-5)
    with pytest.raises(ValueError, match="categories: expected ids"):  # 32 bits would hold 1 of it
        model(dense, with_one(ids, 2**32 + 1, (0, 1)))


def test_padded_tables_do_not_count_from_the_end(rng) -> None:
    for rows in (1, 9):
        layer = nn.Dense().embedding(rows, 4, padding_idx=0, rngs=nnx.Rngs(0))
        found = layer(jnp.array([0, rows - 1, rows, -1, -rows], jnp.int8))
        assert np.isnan(found[2:]).all()
        assert np.isfinite(found[:2]).all()
        assert not found[0].any()
