"""Dense embeddings into trains and back: certificates, guards, and what is kept."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tensorjax import nn


def planted(rank: int = 3, dtype: Any = jnp.float64, **options: Any) -> nnx.Embed:
    layer = nn.TTEmbedding(97, 30, rank=rank, order=3, param_dtype=dtype, rngs=nnx.Rngs(0),
                           **options)  # fmt: skip
    return nn.to_embedding(layer)


@pytest.mark.parametrize("gates", ["singular values", "ones"])
@pytest.mark.slow
def test_planted_tables_are_found_by_tolerance_and_by_rank(gates: Any):
    dense = planted()
    table = np.asarray(dense.embedding[...])
    for options in ({"tol": 1e-8}, {"rank": 3}, {"tol": 1e-8, "rank": 5}):
        layer, certificate = nn.from_embedding(dense, order=3, gates=gates, **options)
        assert layer.ranks == certificate.ranks
        # The padding of 97 × 30 was cut from the planted train, and is zero here.
        assert max(layer.ranks) <= 12 if "tol" in options else layer.ranks == (3, 3)
        error = np.linalg.norm(np.asarray(layer.table()) - table) / np.linalg.norm(table)
        assert certificate.error == pytest.approx(error, rel=1e-6, abs=1e-14)
        assert certificate.numbers == layer.numbers
        assert certificate.numbers_before == 97 * 30
        assert (certificate.bound == 1e-8) == (error <= 1e-8 and "tol" in options)
        assert all(np.all(np.asarray(g) <= 1 + 1e-12) for g in layer.gates)
        if gates == "ones":
            assert all(np.all(np.asarray(g) == 1) for g in layer.gates)


def test_exact_sizes_are_found_exactly():
    start = nn.TTEmbedding(120, 24, rank=2, num_shape=(4, 5, 6), feature_shape=(2, 3, 4),
                           param_dtype=jnp.float64, rngs=nnx.Rngs(3))  # fmt: skip
    dense = nn.to_embedding(start)
    layer, certificate = nn.from_embedding(
        dense, tol=1e-10, num_shape=(4, 5, 6), feature_shape=(2, 3, 4), padding_idx=None
    )
    assert layer.ranks == start.ranks == (2, 2)
    assert certificate.error < 1e-12
    assert certificate.bound == 1e-10
    assert certificate.compression == 120 * 24 / layer.numbers
    ids = np.arange(120)
    np.testing.assert_allclose(layer(ids), start(ids), rtol=1e-9, atol=1e-9)
    assert "→" in str(certificate)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_full_ranks_lose_nothing(order: int, rng: Any):
    dense = nnx.Embed(40, 12, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    layer, certificate = nn.from_embedding(dense, rank=10**6, order=order)
    assert len(layer.cores) == order
    assert len(layer.gates) == order - 1
    assert certificate.error < 1e-13
    np.testing.assert_allclose(layer.table(), dense.embedding[...], atol=1e-12)


def test_dtypes_options_and_padding_are_kept():
    dense = nnx.Embed(50, 8, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    layer, _ = nn.from_embedding(dense, rank=100, order=2, padding_idx=4, capacity=9,
                                 out_of_range="clip")  # fmt: skip
    assert (layer.dtype, layer.capacity, layer.out_of_range) == (jnp.bfloat16, 9, "clip")
    assert layer.cores[0].dtype == jnp.float32
    assert not np.any(layer(4))
    back = nn.to_embedding(layer)
    assert isinstance(back, nnx.Embed)
    assert back.dtype == jnp.bfloat16
    assert back.embedding.dtype == jnp.float32
    assert not np.any(back.embedding[...][4])
    np.testing.assert_allclose(np.delete(back.embedding[...], 4, 0),
                               np.delete(dense.embedding[...], 4, 0), atol=1e-5)  # fmt: skip
    ids = jnp.array([0, 7, 49])
    np.testing.assert_array_equal(back(ids), layer.table()[ids].astype(jnp.bfloat16))


@pytest.mark.parametrize("kind", [nn.TuckerEmbedding, nn.CPEmbedding])
def test_every_format_is_exported(kind: Any):
    layer = kind(97, 30, rank=3, order=2, rngs=nnx.Rngs(0))
    dense = nn.to_embedding(layer)
    ids = jnp.arange(97)
    np.testing.assert_allclose(dense(ids), layer(ids), rtol=1e-4, atol=1e-5)


def test_a_table_of_zeros():
    dense = nnx.Embed(20, 6, embedding_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    layer, certificate = nn.from_embedding(dense, tol=1e-4, order=2)
    assert certificate.error == 0
    assert not np.any(layer(np.arange(20)))
    layer, _ = nn.from_embedding(dense, rank=3, order=2)
    assert layer.ranks == (3,)
    grads = nnx.grad(lambda m: m(np.arange(20)).sum())(layer)
    assert max(float(abs(g).max()) for g in jax.tree.leaves(grads)) > 0


def test_bad_input_is_named():
    dense = planted(dtype=jnp.float32)
    with pytest.raises(TypeError, match=r"layer: expected a flax\.nnx\.Embed, got Linear"):
        nn.from_embedding(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), tol=1e-3)  # type: ignore
    with pytest.raises(TypeError, match="layer: expected a compressed embedding"):
        nn.to_embedding(dense)  # type: ignore
    with pytest.raises(ValueError, match="got neither"):
        nn.from_embedding(dense)
    with pytest.raises(ValueError, match="tol: expected"):
        nn.from_embedding(dense, tol=-1.0)
    with pytest.raises(ValueError, match="gates: expected"):
        nn.from_embedding(dense, tol=1e-3, gates="none")  # type: ignore
    with pytest.raises(ValueError, match="num_shape: expected factors"):
        nn.from_embedding(dense, tol=1e-3, num_shape=(4, 4))
    with pytest.raises(ValueError, match="max_bytes: expected at least"):
        nn.from_embedding(dense, tol=1e-3, max_bytes=1000)
    big = nn.TTEmbedding(10**9, 1024, rank=2, rngs=nnx.Rngs(0))
    assert big(10**9 - 1).shape == (1024,)  # the layer itself is small
    with pytest.raises(ValueError, match="max_bytes: expected at least"):
        nn.to_embedding(big)
    dense.embedding[...] = dense.embedding[...].at[3, 4].set(jnp.nan)
    with pytest.raises(ValueError, match=r"layer\.embedding: expected finite"):
        nn.from_embedding(dense, tol=1e-3)
    with pytest.raises(TypeError, match="layer: expected concrete parameters"):
        jax.eval_shape(
            lambda key: nn.from_embedding(nnx.Embed(9, 4, rngs=nnx.Rngs(key)), rank=2)[0],
            jax.random.key(0),
        )
