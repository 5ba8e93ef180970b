"""Singular values of trains at every bond, against those of the dense unfoldings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import cores, dense


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_they_are_those_of_the_unfoldings(seed: int, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 6, rng.integers(1, 6)))
    rank = int(rng.integers(1, 7))
    sides = (
        (np.prod(shape[:k], dtype=int), np.prod(shape[k:], dtype=int)) for k in range(1, len(shape))
    )
    ranks = [int(min(rank, *side)) for side in sides]
    # Drawn and contracted by NumPy: no program for every shape.
    t = tt.TT(jax.device_put(cores(rng, shape, ranks, dtype)))
    x = dense(t)
    eps = np.finfo(dtype).eps
    programs = (
        [tt.singular_values] if seed % 3 else [tt.singular_values, jax.jit(tt.singular_values)]
    )
    for values in (f(t) for f in programs):
        assert len(values) == len(shape) - 1
        for k, s in enumerate(values, 1):
            exact = np.linalg.svd(x.reshape(np.prod(shape[:k], dtype=int), -1), compute_uv=False)
            assert s.dtype == np.finfo(dtype).dtype
            assert len(s) <= t.ranks[k]
            np.testing.assert_allclose(s, exact[: len(s)], atol=50 * eps * exact[0])
            assert np.all(exact[len(s) :] <= 50 * eps * exact[0])


def test_of_a_matrix_rows_and_columns_stay_together() -> None:
    a = tt.random_matrix(jax.random.key(0), (2, 3), (4, 2), 3, float)
    dense = np.asarray(tt.to_dense(a)).reshape(2, 3, 4, 2).transpose(0, 2, 1, 3).reshape(8, 6)
    (s,) = tt.singular_values(a)
    np.testing.assert_allclose(s, np.linalg.svd(dense, compute_uv=False)[:3], rtol=1e-12)


def test_range_and_faults() -> None:
    x = tt.ones((100,) * 40, np.float32)
    assert np.isinf(tt.singular_values(x)[0]).all()  # 1e40
    assert tt.singular_values(tt.normalize(x))[7] == pytest.approx([1.0])
    assert tt.singular_values(tt.zeros((2, 3)))[0].tolist() == [0.0]
    assert tt.singular_values(tt.ones((3,))) == []
    with pytest.raises(ValueError, match="NaN"):
        tt.singular_values(tt.TT([jnp.full((1, 2, 1), jnp.nan), jnp.ones((1, 2, 1))]))
    with pytest.raises(TypeError, match="TTMatrix"):
        tt.singular_values(np.ones(3))  # type: ignore[arg-type]
