"""Attention of GPT-2: chosen when a program is lowered; the fused one of cuDNN under layouts."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering import custom_calls

pytest.importorskip("flax", reason="the models have an extra of their own")

from flax import nnx
from jax.sharding import PartitionSpec as P

from tensorjax import parallel
from tensorjax.models.gpt2 import GPT2, GPT2Config
from tensorjax.models.gpt2._attention import _plain_p, attend

LAYOUTS = {"1d": (1, 4), "1d+sequence": (1, 4), "fsdp+tp": (2, 2), "2d": (2, 2), "summa": (2, 2)}
JAXS = jax.nn.dot_product_attention


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def untyped(q, k, v, options):
    """Attention with the fault of cuDNN's: the results differ along no axis of the mesh."""
    return _plain_p.bind(JAXS(q, k, v, implementation="xla", **dict(options)))


def _forward(q, k, v, options):
    # Like cuDNN's: residuals, results and gradients say nothing of the axes they differ along.
    out, pull = jax.vjp(lambda *x: JAXS(*x, implementation="xla", **dict(options)), q, k, v)
    return _plain_p.bind(out), jax.tree.map(_plain_p.bind, pull)


untyped.defvjp(_forward, lambda options, pull, g: tuple(map(_plain_p.bind, pull(g))))


@pytest.fixture
def like_cudnn(monkeypatch):
    def call(q, k, v, *, implementation=None, **options):
        if implementation != "cudnn":
            return JAXS(q, k, v, implementation=implementation, **options)
        return untyped(q, k, v, tuple(options.items()))

    monkeypatch.setattr(jax.nn, "dot_product_attention", call)


@functools.cache
def model(attention: str, **options) -> GPT2:
    config = GPT2Config.tiny(heads=8, **options)
    key = jax.random.key(1, impl="unsafe_rbg")
    return GPT2(config, attention=attention, rngs=nnx.Rngs(key))


def loss_and_gradient(model: GPT2, layout: parallel.Layout, tokens):
    graph, params = nnx.split(model)
    specs = jax.tree.map(lambda axes: layout.spec(tuple(axes)), model.axes())
    data = layout.data_spec()
    run = layout.over(
        lambda p, t: nnx.merge(graph, p).loss(t, t, layout=layout), (specs, data), (P(), P())
    )
    value = jax.value_and_grad(lambda p: run(p, tokens)[0])
    return jax.jit(value)(parallel.shard(params, specs, layout.mesh))


@pytest.mark.parametrize("remat", ["none", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [n if n == "2d" else pytest.param(n, marks=pytest.mark.slow) for n in LAYOUTS]
)
def test_fused_attention_changes_no_number_under_a_layout(name, remat, like_cudnn, rng) -> None:
    tokens = jnp.asarray(rng.integers(0, 120, (4, 8)), jnp.int32)
    layout = parallel.layout(name, parallel.mesh(*LAYOUTS[name]))
    found = loss_and_gradient(model("cudnn", remat=remat), layout, tokens)
    wanted = loss_and_gradient(model("xla"), parallel.Single(), tokens)
    assert float(found[0]) == pytest.approx(float(wanted[0]), rel=1e-5)
    for g, w in zip(jax.tree.leaves(found[1]), jax.tree.leaves(wanted[1]), strict=True):
        a, b = np.asarray(g), np.asarray(w)
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


def test_jaxs_call_of_cudnn_is_differentiated_under_a_layout(monkeypatch) -> None:
    """With its checks of versions and devices replaced, the program is made on a CPU."""
    module = sys.modules["jax._src.cudnn.fused_attention_stablehlo"]
    monkeypatch.setattr(module, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(module, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(module, "is_cuda_compute_capability_equal", lambda capability: False)
    layout = parallel.layout("2d", parallel.mesh(2, 2))
    spec = layout.data_spec("batch", "length", "heads")

    def loss(q, k, v):
        y = attend(q, k, v, "cudnn", is_causal=True)
        return jax.lax.psum(y.astype(jnp.float32).sum(), ("r", "c"))

    run = layout.over(loss, (spec, spec, spec), P())
    x = jax.ShapeDtypeStruct((2, 64, 4, 32), jnp.bfloat16)
    text = str(jax.make_jaxpr(jax.grad(run, (0, 1, 2)))(x, x, x))
    assert "dot_product_attention_bwd" in text


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_attention_is_chosen_by_the_platform_of_the_program(dtype) -> None:
    x = jax.ShapeDtypeStruct((2, 128, 4, 16), dtype)

    def loss(q, k, v):
        return attend(q, k, v, None, is_causal=True).astype(jnp.float32).sum()

    with jax.numpy_dtype_promotion("standard"):
        programs = {
            platform: jax.export.export(jax.jit(jax.grad(loss)), platforms=[platform])(x, x, x)
            for platform in ("cpu", "cuda", "tpu")
        }
    calls = {name for p in programs.values() for name in custom_calls(p.mlir_module())}
    assert not calls
    # Half precision is multiplied as it is, but for CPUs, which widen it.
    half = {p for p, program in programs.items() if "xbf16>) -> " in _products(program)}
    assert half == (set() if dtype == jnp.float32 else {"cuda", "tpu"})


def _products(program) -> str:
    lines = program.mlir_module().splitlines()
    return "\n".join(line for line in lines if "stablehlo.dot_general" in line)
