"""Plans of tensorised layers: costs, what is formed, and what the compiled programs hold."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tensorjax import contract, nn

SHAPES = {
    "768→768": ((12, 8, 8), (8, 8, 12)),
    "768→3072": ((12, 8, 8), (12, 16, 16)),
    "3072→768": ((12, 16, 16), (8, 8, 12)),
}
BATCHES = (1, 32, 128, 512, 4096)


def layer(name: str, **options: Any) -> nn.TTLinear:
    n, m = SHAPES[name]
    return nn.TTLinear(
        math.prod(n),
        math.prod(m),
        rank=30,
        in_shape=n,
        out_shape=m,
        rngs=nnx.Rngs(0),
        **options,
    )


def shape_of(name: str, **options: Any) -> nn.TTLinear:
    """A layer without numbers, which is all that plans and compilation need."""
    return nnx.eval_shape(lambda: layer(name, **options))


def forward(state: Any, graph: Any, x: Any) -> jax.Array:
    return nnx.merge(graph, state)(x)


def backward(state: Any, graph: Any, x: Any, dy: Any) -> Any:
    y, pull = jax.vjp(lambda s, v: forward(s, graph, v), state, x)
    return y, pull(dy)


def compiled(module: Any, rows: int, dtype: Any = jnp.float32) -> tuple[Any, Any]:
    graph, state = nnx.split(module)
    x = jax.ShapeDtypeStruct((rows, module.in_features), dtype)
    dy = jax.ShapeDtypeStruct((rows, module.out_features), dtype)
    one = jax.jit(forward, static_argnums=1).lower(state, graph, x).compile()
    both = jax.jit(backward, static_argnums=1).lower(state, graph, x, dy).compile()
    return one, both


def sizes(text: str) -> set[int]:
    """Numbers of elements of all arrays that a compiled program mentions."""
    shapes = re.findall(r"\b(?:f16|bf16|f32|f64|s32|u32|pred)\[([\d,]*)\]", text)
    return {math.prod(map(int, s.split(","))) if s else 1 for s in shapes}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", BATCHES)
def test_the_plan_is_within_a_tenth_of_the_best_path(name: str, rows: int):
    plan = shape_of(name).plan(rows)
    network = plan.contraction
    searched = [
        contract.plan(network.expr, *network.shapes, optimize=optimize)
        for optimize in ("auto", "greedy", "optimal")
    ]
    least = min(p.grad.flops for p in [*searched, *(c.contraction for c in plan.candidates)])
    assert network.grad.flops <= 1.1 * least
    assert plan.cost <= min(c.cost for c in plan.candidates)
    assert {"halves", "chain", "dense"} <= {c.kind for c in plan.candidates}
    assert plan.kind != "dense"
    # Forward and backward are one tree: three times the products, less where nothing is summed.
    assert 2.8 * network.flops < network.grad.flops <= 3 * network.flops


def test_no_fixed_path_wins_at_every_batch():
    plans = [shape_of("768→3072").plan(b) for b in BATCHES]
    paths = {p.contraction.path for p in plans}
    assert len(paths) > 1
    assert plans[-1].kind == "halves"
    assert plans[-1].flops == pytest.approx(9.5e8, rel=0.05)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    "rows", [30, pytest.param(1, marks=pytest.mark.slow), pytest.param(520, marks=pytest.mark.slow)]
)
def test_compiled_programs_hold_no_dense_weight_and_the_flops_planned(name: str, rows: int):
    module = shape_of(name)
    plan = module.plan(rows)
    elements = module.in_features * module.out_features
    for program, flops in zip(compiled(module, rows), (plan.flops, plan.grad.flops), strict=True):
        found = program.cost_analysis()["flops"]
        assert found == pytest.approx(flops, rel=0.04)
        assert elements not in sizes(program.as_text())


def test_a_dense_plan_says_so_and_forms_the_weight():
    full = nn.TTLinear(64, 64, rank=64, in_shape=(8, 8), out_shape=(8, 8), rngs=nnx.Rngs(0))
    plan = full.plan(5000)
    assert plan.kind == "dense"
    assert "W is formed" in str(plan)
    assert plan.grad.flops < 1.3 * 3 * 2 * 5000 * 64 * 64
    program = compiled(full, 5000)[1]
    assert 64 * 64 in sizes(program.as_text())
    x = jax.random.normal(jax.random.key(0), (5000, 64), jnp.float32)
    assert jnp.allclose(full(x), x @ full.weight(), atol=1e-4)


@pytest.mark.parametrize("rows", [1, 128, 4096])
def test_what_is_kept_for_the_backward_pass(rows: int):
    """Input, arrays and intermediates of the tree, as planned; never the weight."""
    module = shape_of("768→3072", use_bias=False)
    plan = module.plan(rows)
    graph, state = nnx.split(module)
    x = jax.ShapeDtypeStruct((rows, 768), jnp.float32)
    pull = jax.eval_shape(lambda s, v: jax.vjp(lambda *a: forward(a[0], graph, a[1]), s, v)[1],
                          state, x)  # fmt: skip
    kept = sum(4 * leaf.size for leaf in jax.tree.leaves(pull))
    given = 4 * x.size + 2 * 4 * module.numbers  # cores, with and without gates
    assert kept <= given + 1.05 * plan.contraction.residual_bytes + 1000
    assert all(leaf.size != 768 * 3072 for leaf in jax.tree.leaves(pull))


def limited(share: float) -> tuple[nn.TTLinear, nn.TTLinear]:
    """A layer without and with a limit, a share of the bytes that 8 rows take without."""
    options: Any = {"rank": 8, "order": 3, "param_dtype": jnp.float64}
    free = nn.TTLinear(64, 64, **options, rngs=nnx.Rngs(0))
    limit = int(share * free.plan(8).grad.peak_bytes)
    return free, nn.TTLinear(64, 64, **options, memory_limit=limit, rngs=nnx.Rngs(0))


def test_a_memory_limit_is_kept_or_named():
    _, bound = nnx.eval_shape(lambda: limited(0.98))
    plan = bound.plan(8)
    assert plan.grad.peak_bytes <= bound.memory_limit
    assert plan.contraction.remat
    assert plan.contraction.slices
    _, bound = nnx.eval_shape(lambda: limited(0.1))
    with pytest.raises(ValueError, match=r"memory_limit: got .* no way to contract 8 rows"):
        bound.plan(8)


@pytest.mark.slow
def test_slices_and_recomputation_leave_the_gradient_as_it_is():
    x = jax.random.normal(jax.random.key(0), (8, 64))
    gradient = nnx.jit(nnx.grad(lambda m: jnp.sum(jnp.sin(m(x)))))
    found, wanted = map(gradient, reversed(limited(0.98)))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert jnp.allclose(a, b, atol=1e-10)


def test_plans_are_remembered_and_programs_compiled_once():
    one, two = (nn.TTLinear(24, 30, rank=4, rngs=nnx.Rngs(k)) for k in range(2))
    assert one.plan(32) is two.plan(32)
    assert one.plan((4, 8)) is one.plan(32)
    assert one.plan(32) is not one.plan(33)
    traces = []

    @nnx.jit
    def apply(module: Any, x: Any) -> jax.Array:
        traces.append(x.shape)
        return module(x)

    x = jnp.ones((2, 24), jnp.float32)
    for module in (one, two, one):
        apply(module, x)
    assert len(traces) == 1


def test_the_table_names_every_candidate():
    plan = shape_of("768→3072").plan(32)
    text = str(plan)
    lines = text.splitlines()
    assert lines[0] == f"{plan.kind}, 32 rows: W is never formed"
    assert len(lines) == 2 + len(plan.candidates)
    assert [line.split()[0] for line in lines[2:]] == [c.kind for c in plan.candidates]
    with pytest.raises(AttributeError):
        plan.kind = "dense"  # type: ignore


def test_half_precision_is_planned_as_such():
    plan = shape_of("768→768", dtype=jnp.bfloat16).plan(32)
    assert plan.contraction.dtype == jnp.bfloat16
    assert plan.bytes < shape_of("768→768").plan(32).bytes


@pytest.mark.parametrize("kind", [nn.TuckerLinear, nn.CPLinear])
@pytest.mark.parametrize(
    "rows", [700, pytest.param(1, marks=pytest.mark.slow), pytest.param(33, marks=pytest.mark.slow)]
)
def test_the_other_formats_are_planned_too(kind: Any, rows: int):
    module = nnx.eval_shape(lambda: kind(96, 120, rank=4, order=2, rngs=nnx.Rngs(0)))
    plan = module.plan(rows)
    network = plan.contraction
    best = contract.plan(network.expr, *network.shapes)
    assert plan.cost <= best.grad.flops + 4 * best.grad.bytes
    for program, flops in zip(compiled(module, rows), (plan.flops, plan.grad.flops), strict=True):
        assert program.cost_analysis()["flops"] == pytest.approx(flops, rel=0.06)
        assert plan.kind == "dense" or 96 * 120 not in sizes(program.as_text())


def test_a_train_of_two_cores_is_a_low_rank_matrix():
    module = nn.LowRank(4).linear(96, 120, rngs=nnx.Rngs(0))
    plan = module.plan(64)
    assert plan.contraction.flops == 2 * 64 * 4 * (96 + 120)
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    u, v = (np.asarray(c[...]) for c in module.cores)
    assert np.allclose(module(x), x @ u[0] @ v[..., 0], atol=1e-4)
