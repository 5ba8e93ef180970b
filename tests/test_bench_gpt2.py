"""The benchmark of GPT-2: all ways to write it are one model, and a run says what was not run."""

import functools
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")

from flax import nnx

from experiments.__main__ import main
from experiments.bench import _decoders, gpt2
from tensorjax.models.gpt2 import GPT2, GPT2Config

CONFIG = GPT2Config.tiny(vocabulary=61, length=8)


@pytest.fixture(autouse=True)
def as_in_a_run():
    """The modes of JAX that a run sets."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def test_all_ways_give_the_same_logits() -> None:
    rng = np.random.default_rng(0)
    graph, params = nnx.split(nnx.eval_shape(lambda: GPT2(CONFIG, rngs=nnx.Rngs(0))))
    params = jax.tree.map(
        lambda x: jnp.asarray(0.3 * rng.standard_normal(x.shape), x.dtype), params
    )
    model = nnx.merge(graph, params)
    tokens = jnp.asarray(rng.integers(0, 61, (2, 8)), jnp.int32)
    wanted = jax.jit(lambda p: nnx.merge(graph, p)(tokens))(params)
    other, filled = _decoders.flax_params(model, jnp.float32)
    found = jax.jit(lambda p: nnx.merge(other, p)(tokens))(filled)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    nano = functools.partial(_decoders.nano, config=CONFIG, dtype=jnp.float32)
    found = jax.jit(nano)(_decoders.plain(model), tokens)
    np.testing.assert_allclose(found[..., :61], wanted, rtol=1e-4, atol=1e-4)


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match="repeats: expected at least 1"):
        gpt2.Config(repeats=0)
    with pytest.raises(ValueError, match=r"cases: expected names among 3 × 96, .* got '7B'"):
        gpt2.Config(cases=("7B",))
    with pytest.raises(ValueError, match="peak: expected positive TFLOP/s, got 0"):
        gpt2.Config(peak=0)


@pytest.mark.slow
def test_a_quick_run_compares_all_ways(tmp_path) -> None:
    assert main(["run", "bench/gpt2", "--quick", "--results", str(tmp_path)]) == 0
    home = tmp_path / "bench" / "gpt2"
    line = json.loads((home / "runs.jsonl").read_text())
    assert line["metrics"]["flax / ours, tiny"] > 0
    rows = (home / line["run"] / "steps.csv").read_text().splitlines()
    others = 1 if importlib.util.find_spec("torch") else 0
    assert len(rows) == 1 + 4 + others + 1
    assert "not run: no GPU at hand" in rows[-1]
    names = rows[0].split(",")
    errors = [float(row.split(",")[names.index("loss error")]) for row in rows[1:-1]]
    assert max(errors) <= 1e-5
