"""The planner against compiled programs, its choice, and what the layouts refuse."""

import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from experiments.tp2d.main import CASES as CASES_OF_THEORY
from experiments.tp2d.steps import Step
from tensorjax import parallel
from tensorjax.models.gpt2 import GPT2Config
from tests import tiny_decoder as tiny
from tests.test_parallel_traffic import step

MIB = 2**20


def decoder(**changes: Any) -> Any:
    sizes = {"layers": 12, "features": 768, "heads": 12, "vocabulary": 50257, "length": 1024}
    return types.SimpleNamespace(**{**sizes, **changes})


def small(**changes: Any) -> tiny.Config:
    sizes = {"layers": 3, "features": 64, "heads": 4, "vocabulary": 250, "padded": 256}
    return tiny.Config(**{**sizes, "length": 32, "remat": True, **changes})


LONG = {"layers": 2, "length": 256, "features": 128, "heads": 8, "vocabulary": 256}
CASES = [
    ("1d", (2, 2), 8, small()),
    ("1d+sequence", (2, 2), 8, small()),
    ("fsdp+tp", (2, 4), 8, small()),
    ("2d", (2, 2), 8, small()),
    ("summa", (2, 4), 8, small()),
    ("summa", (4, 2), 4, small(remat=False)),
    ("2.5d", (2, 2, 2), 8, small()),
    pytest.param(("1d", (2, 2), 4, small(remat=False)), marks=pytest.mark.slow),
    pytest.param(("1d", (2, 2), 4, small(**LONG)), marks=pytest.mark.slow),
    pytest.param(("fsdp+tp", (2, 2), 4, small(**LONG)), marks=pytest.mark.slow),
    pytest.param(("summa", (2, 2), 4, small(**LONG)), marks=pytest.mark.slow),
    pytest.param(("2d", (2, 2), 16, small(remat=False)), marks=pytest.mark.slow),
    pytest.param(("2.5d", (2, 2, 2), 8, small(remat=False)), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_predictions_are_those_of_compiled_programs(case: Any) -> None:
    name, shape, batch, config = case
    mesh = parallel.mesh(*shape[-2:], depth=shape[0] if len(shape) > 2 else 1)
    program = step(parallel.layout(name, mesh), config, batch)
    (wanted,) = parallel.plan(
        config, mesh.size, batch, layouts=[name], meshes=[shape], remat=config.remat, states=0
    ).candidates
    memory, sent = parallel.memory(program), parallel.traffic(program).total
    assert wanted.sent == pytest.approx(sent, rel=0.02)
    assert wanted.arguments == pytest.approx(memory.arguments, rel=0.01)
    assert wanted.gradients == pytest.approx(memory.outputs, rel=0.01)
    assert wanted.temporary == pytest.approx(memory.temporary, rel=0.15)


@pytest.mark.parametrize(
    ("remat", "name"),
    [
        ("full", "2d"),
        ("none", "fsdp+tp"),
        ("dots", "summa"),
        pytest.param("dots", "1d", marks=pytest.mark.slow),
        pytest.param("dots", "1d+sequence", marks=pytest.mark.slow),
        pytest.param("dots", "fsdp+tp", marks=pytest.mark.slow),
    ],
)
def test_predictions_for_gpt2(remat: Any, name: str) -> None:
    """What is computed again is read off the configuration."""
    config = GPT2Config.tiny(features=64, heads=8, length=32, vocabulary=250, remat=remat)
    program = Step(config, parallel.layout(name, parallel.mesh(2, 2)), 8).compiled()
    (wanted,) = parallel.plan(config, 4, 8, layouts=[name], meshes=[(2, 2)], states=0).candidates
    memory = parallel.memory(program)
    assert wanted.sent == pytest.approx(parallel.traffic(program).total, rel=0.02)
    assert wanted.arguments == pytest.approx(memory.arguments, rel=0.02)
    whole = parallel.memory(Step(config, parallel.Single(), 8).compiled()).arguments
    assert memory.arguments <= 1.1 * whole / 4
    assert wanted.temporary == pytest.approx(memory.temporary, rel=0.15)


UNUSUAL = [  # the table of tokens or the weights hold more than the activations
    ("fsdp+tp", (2, 4), 8, {"layers": 5, "features": 320, "length": 24, "vocabulary": 50257}),
    ("2d", (4, 2), 4, {"layers": 3, "features": 96, "length": 24, "vocabulary": 12000}),
    ("2.5d", (2, 2, 2), 8, {"layers": 5, "features": 384, "length": 192, "vocabulary": 50257}),
    ("2.5d", (2, 1, 4), 8, {"layers": 5, "features": 320, "length": 48, "vocabulary": 12000}),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", UNUSUAL, ids=str)
def test_predictions_for_large_vocabularies_and_few_tokens(case: Any) -> None:
    name, shape, batch, sizes = case
    remat: Any = "none" if shape == (2, 1, 4) else "full"
    config = GPT2Config(**sizes, heads=8, dropout=0.0, remat=remat)
    mesh = parallel.mesh(*shape[-2:], depth=shape[0] if len(shape) > 2 else 1)
    program = Step(config, parallel.layout(name, mesh), batch).compiled()
    (wanted,) = parallel.plan(
        config, 8, batch, layouts=[name], meshes=[shape], remat=remat == "full", states=0
    ).candidates
    assert wanted.temporary == pytest.approx(parallel.memory(program).temporary, rel=0.15)
    assert wanted.sent == pytest.approx(parallel.traffic(program).total, rel=0.15)


def test_two_dimensions_pay_off_for_long_batches_only() -> None:
    """At T/H = 8 SUMMA sends and holds less than 1D, at T/H = 1 it sends more."""
    for batch, better in [(16, "summa"), (2, "1d")]:
        config = small()
        found = parallel.plan(
            config, 4, batch, layouts=["1d", "summa"], machine=parallel.Machine(latency=0.0)
        )
        assert found.best.name == better
        programs = {
            name: step(parallel.layout(name, parallel.mesh(2, 2)), config, batch)
            for name in ("1d", "summa")
        }
        sent = {name: parallel.traffic(program).total for name, program in programs.items()}
        assert min(sent, key=lambda name: sent[name]) == better
        if better == "summa":
            held = {name: parallel.memory(p).temporary for name, p in programs.items()}
            assert held["summa"] < held["1d"]


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES_OF_THEORY))
def test_the_steps_of_theory_at_four_devices(case: str) -> None:
    """T/H = 8: SUMMA below 1D in wire and temp; 1: above in wire, below in temp; 1/8: above."""
    batch, sizes = CASES_OF_THEORY[case]
    config = GPT2Config(**sizes, heads=16, vocabulary=2048, dropout=0.0, remat="full")
    found = parallel.plan(
        config, 4, batch, layouts=["1d", "summa"], meshes=[(2, 2)], states=0,
        machine=parallel.Machine(latency=0.0),
    )  # fmt: skip
    alone = parallel.memory(Step(config, parallel.Single(), batch).compiled())
    (single,) = parallel.plan(config, 1, batch, layouts=["single"], states=0).candidates
    assert single.temporary == pytest.approx(alone.temporary, rel=0.15)
    held, sent = {}, {}
    for name in ("1d", "summa"):
        program = Step(config, parallel.layout(name, parallel.mesh(2, 2)), batch).compiled()
        memory, wire = parallel.memory(program), parallel.traffic(program).total
        assert found[name].sent == pytest.approx(wire, rel=0.15)
        assert found[name].temporary == pytest.approx(memory.temporary, rel=0.15)
        assert found[name].arguments == pytest.approx(memory.arguments, rel=0.15)
        assert memory.arguments <= 1.1 * alone.arguments / 4
        held[name], sent[name] = memory.temporary, wire
    lesser = "summa" if case == "T/H = 8" else "1d"
    assert min(sent, key=lambda name: sent[name]) == lesser
    assert min(("1d", "summa"), key=lambda name: found[name].sent) == lesser
    assert found.best.name == lesser
    smaller = "1d" if case == "T/H = 1/8" else "summa"
    assert min(held, key=lambda name: held[name]) == smaller
    assert min(("1d", "summa"), key=lambda name: found[name].temporary) == smaller


def test_bytes_of_a_block_are_those_of_the_theory() -> None:
    """8 T H (p − 1)/p for 1D, 2 (7 T H + 12 H²)(q − 1)/q² for SUMMA, by one block more."""
    t, h = 4 * 1024, 768
    for name, remat, wanted in [
        ("1d", False, 8 * t * h * 3 / 4),
        ("1d", True, 10 * t * h * 3 / 4),
        ("summa", False, 2 * (7 * t * h + 12 * h**2) / 4),
        ("summa", True, 3 * (7 * t * h + 12 * h**2) / 4),
        ("2d", False, 2 * (4 * t * h + 12 * h**2) / 4),
        ("fsdp+tp", False, (8 * t * h + 24 * h**2) / 4),
    ]:
        one, two = (
            parallel.plan(decoder(layers=n), 4, 4, layouts=[name], remat=remat).candidates[0]
            for n in (1, 2)
        )
        assert two.sent - one.sent == pytest.approx(4 * wanted, rel=0.005)


def test_the_table_and_its_choice() -> None:
    found = parallel.plan(decoder(), 4, 32)
    text = str(found)
    assert text.splitlines()[0].split()[:3] == ["layout", "mesh", "args"]
    assert text.splitlines()[1].split()[0] == found.best.name
    assert {c.name for c in found.candidates} == set(parallel.NAMES[1:])
    assert found.best.seconds == min(c.seconds for c in found.candidates if not c.refusal)
    tight = parallel.plan(decoder(), 4, 32, memory_limit=0.99 * found.best.memory)
    assert tight.best.memory < found.best.memory
    assert "does not fit" in str(tight)
    with pytest.raises(ValueError, match="memory_limit: expected at least"):
        _ = parallel.plan(decoder(), 4, 32, memory_limit=1e6).best
    alone = parallel.plan(decoder(), 1, 8, layouts=["single"]).best
    assert (alone.sent, alone.messages) == (0, 0)
    with pytest.raises(KeyError, match=r"one of \['1d'.*, got 'single'"):
        _ = found["single"]


def test_layouts_that_do_not_split_are_named_in_the_table() -> None:
    xl = decoder(layers=48, features=1600, heads=25)
    found = parallel.plan(xl, 2, 8)
    assert "heads: expected a multiple of 2" in found["1d"].refusal
    assert "got 25" in str(found)
    assert not found["fsdp+tp"].refusal  # one column
    assert "batch: expected a multiple of 2" in parallel.plan(decoder(), 2, 3)["2.5d"].refusal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": 0}, "devices: expected an integer >= 1"),
        ({"batch": 0}, "batch: expected an integer >= 1"),
        ({"layouts": ["3d"]}, "layouts: expected names among single, 1d"),
        ({"layouts": []}, "layouts: expected names among .* got none"),
        ({"meshes": [(2, 3)]}, r"meshes: .* product is devices = 4, got \(2, 3\)"),
        ({"meshes": [(4,)]}, r"meshes: .* got \(4,\)"),
        ({"meshes": [(-2, -2)]}, r"meshes: expected .* positive mode sizes"),
        ({"length": 1025}, r"length: expected an integer in \[1, 1024\], got 1025"),
        ({"itemsize": 0}, r"itemsize: expected an integer in \[1, 8\]"),
        ({"param_itemsize": -1}, "param_itemsize: expected"),
        ({"states": -1}, "states: expected a number >= 0, got -1"),
        ({"states": float("nan")}, "states: expected a number >= 0, got nan"),
        ({"remat": "some"}, "remat: expected a bool or one of .* got 'some'"),
        ({"memory_limit": 0}, "memory_limit: expected a positive number"),
    ],
)
def test_plan_refuses(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parallel.plan(decoder(), **{"devices": 4, "batch": 8, **change})
    for machine in ({"flops": 0}, {"bandwidth": -1.0}, {"latency": float("nan")}):
        with pytest.raises(ValueError, match=r"expected (a positive number|seconds)"):
            parallel.Machine(**machine)


def test_plan_wants_the_configuration_of_a_decoder() -> None:
    with pytest.raises(TypeError, match=r"config: expected layers, .* got int without layers"):
        parallel.plan(3, 4, 8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"config\.layers: expected an integer >= 1, got 0"):
        parallel.plan(decoder(layers=0), 4, 8)
    with pytest.raises(TypeError, match=r"machine: expected a parallel\.Machine"):
        parallel.plan(decoder(), 4, 8, machine=1e12)  # type: ignore[arg-type]


def test_what_is_computed_again_is_that_of_the_configuration() -> None:
    for remat, flag in [("none", False), ("full", True), ("dots", "dots")]:
        config = decoder(remat=remat)
        assert parallel.plan(config, 4, 8) == parallel.plan(config, 4, 8, remat=flag)
    kept, none, all_ = (
        parallel.plan(decoder(remat=r), 4, 8)["2d"] for r in ("dots", "none", "full")
    )
    assert kept.wire == all_.wire
    assert all_.sent > none.sent
    assert none.temporary > kept.temporary > all_.temporary
    assert none.compute < kept.compute < all_.compute
    for found in (kept, none, all_):
        assert 0 < found.activations < found.temporary


def test_half_precision_is_that_of_the_computation() -> None:
    whole, half, both = (
        parallel.plan(decoder(), 4, 8, itemsize=n, param_itemsize=m)["1d"]
        for n, m in ((4, 4), (2, 4), (2, 2))
    )
    assert (half.arguments, half.gradients) == (whole.arguments, whole.gradients)
    assert both.gradients == whole.gradients / 2
    assert whole.sent / 2 <= half.sent < 0.51 * whole.sent
    # Few words against many: logits are in single precision always.
    config = decoder(layers=2, features=128, heads=4, length=64, vocabulary=200_000)
    whole, half = (parallel.plan(config, 4, 8, itemsize=n)["1d"] for n in (4, 2))
    assert half.temporary > 0.9 * whole.temporary


def test_where_all_layouts_are_refused_the_reasons_are_given() -> None:
    refused = parallel.plan(GPT2Config.xl(), 2, 3)
    with pytest.raises(ValueError, match=r"layouts: .* all are refused:\n(.|\n)*got 25"):
        _ = refused.best
    found = parallel.plan(GPT2Config(vocabulary=1024), 3, 3)["1d"]
    assert found.refusal.endswith("3 blocks, got 1024 rows; take a vocabulary of 1152")
    alone = parallel.plan(decoder(), 4, 8, layouts=["single"])
    with pytest.raises(ValueError, match="expected one device for layout 'single', got 4"):
        _ = alone.best
    assert parallel.plan(decoder(), 1, 8).best.name == "single"
    assert repr(refused) == str(refused)


def test_meshes_larger_than_the_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected at least 4 × 4 = 16 devices, got 8"):
        parallel.mesh(4, 4)
    with pytest.raises(ValueError, match=r"2 × 1 × 2 = 4 devices, got 3"):
        parallel.mesh(1, 2, depth=2, devices=jax.devices()[:3])
    with pytest.raises(ValueError, match="rows: expected an integer >= 1, got 0"):
        parallel.mesh(0, 2)
    assert parallel.mesh(1, 2, devices=jax.devices()[5:]).devices.ravel()[0].id == 5
    kinds = {kind.name for kind in parallel.mesh(2, 4).axis_types}
    assert kinds == {"Auto"}


def test_what_does_not_split_is_refused_with_its_numbers() -> None:
    mesh = parallel.mesh(2, 4)
    summa, sequence = parallel.Summa(mesh), parallel.Megatron(mesh, sequence=True)
    assert summa.local("vocab", 50257) == 12565
    assert summa.padded("vocab", 50257) == 50260
    assert summa.local("heads", 12) == 3
    with pytest.raises(
        ValueError, match=r"heads: .*multiple of 4 .*got 25; take a multiple of 4 that divides"
    ):
        summa.local("heads", 25)
    with pytest.raises(ValueError, match=r"batch: .*multiple of 2 .*got 7; take 6 or 8"):
        summa.local("batch", 7)
    with pytest.raises(ValueError, match=r"length: .*multiple of 8 .*r=2 × c=4, got 1023"):
        sequence.local("length", 1023)
    with pytest.raises(ValueError, match=r"length: .*multiple of 8 .*got 15; take 8 or 16"):
        sequence.embed(jnp.ones((8, 8)), jnp.zeros((2, 15), jnp.int32))
    with pytest.raises(ValueError, match=r"embed: .*multiple of 8 .*got 4; take 8"):
        sequence.local("embed", 4)
    with pytest.raises(ValueError, match=r"\['w'\]: expected a shape that .*got \(6, 8\)"):
        parallel.shard({"w": jnp.ones((6, 8))}, {"w": PartitionSpec("c", "r")}, mesh)
    table = jnp.ones((4, 8))
    with pytest.raises(ValueError, match=r"length: expected a number in \[1, 4\].* got 5"):
        parallel.Single().positions(table, 5)


def test_batches_that_do_not_split_are_named_by_what_runs_on_blocks() -> None:
    layout = parallel.layout("2d", parallel.mesh(2, 2))
    for spec in (layout.data_spec(), layout.x_spec()):
        run = layout.over(lambda x: x, (spec,), spec)
        with pytest.raises(ValueError, match=r"^batch: expected a multiple of 2 .* got 3; take 2"):
            run(jnp.ones((3, 4, 8)))
        assert run(jnp.ones((4, 4, 8))).shape == (4, 4, 8)


@pytest.mark.parametrize("name", ["1d", "1d+sequence", "fsdp+tp"])
def test_options_of_other_layouts_are_named(name: str) -> None:
    message = f"overlap: expected no such option for layout '{name}'"
    with pytest.raises(ValueError, match=re.escape(message)):
        parallel.layout(name, parallel.mesh(2, 2), overlap=True)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"words": "r"}, "expected keys among"),
        ({"batch": "x"}, "expected axes of the mesh"),
        ({"mlp": "r"}, "mlp, heads and vocab on the same axes"),
        ({"length": "r"}, "expected length on no axis or on those of mlp"),
        ({"length": "c"}, "length or features on mesh axes, got both"),
        ({"batch": None}, "expected embed on axes that split the batch"),
        ({"batch": ("r", "c")}, "batch and mlp on different axes"),
    ],
)
def test_rules_that_contradict_each_other(rules: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"rules: .*{message}"):
        parallel.Summa(parallel.mesh(2, 4), rules=rules)


@pytest.mark.parametrize(
    ("name", "depth", "message"),
    [
        ("3d", 1, "layout: expected one of single, 1d"),
        ("2.5d", 1, "mesh: expected an axis 'd'"),
        ("summa", 2, "mesh: expected axes 'r', 'c'"),
    ],
)
def test_layout_refuses(name: str, depth: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parallel.layout(name, parallel.mesh(2, 2, depth=depth))
    with pytest.raises(ValueError, match="mesh: expected a mesh for layout '1d', got None"):
        parallel.layout("1d")
    with pytest.raises(ValueError, match="expected 'scatter' where features are not split"):
        parallel.Layout(
            "mine", parallel.mesh(2, 2), {"mlp": "c", "heads": "c", "vocab": "c"}, "gather"
        )
    with pytest.raises(ValueError, match="axes: expected names among"):
        parallel.Single().spec(("embed", "hidden"))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mesh", [(1, 4), (2, 2), (4, 1), (2, 4)])
def test_summa_is_a_product(mesh: tuple[int, int], overlap: bool, rng: Any) -> None:
    """Forward and backward, in float64, with a middle axis; shards as given."""
    where = parallel.mesh(*mesh)
    x, w, dy = (jnp.asarray(rng.normal(size=s)) for s in ((8, 3, 16), (16, 24), (8, 3, 24)))
    x, w = parallel.shard((x, w), (PartitionSpec("r", None, "c"), PartitionSpec("r", "c")), where)

    def run(x: jax.Array, w: jax.Array) -> Any:
        y, back = jax.vjp(lambda x, w: parallel.summa(x, w, where, overlap=overlap), x, w)
        return y, *back(dy)

    y, dx, dw = jax.jit(run, compiler_options=tiny.QUICKLY)(x, w)
    np.testing.assert_allclose(y, np.asarray(x) @ np.asarray(w), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dx, np.asarray(dy) @ np.asarray(w).T, rtol=1e-12, atol=1e-12)
    wanted = np.einsum("bln,blm->nm", x, dy)
    np.testing.assert_allclose(dw, wanted, rtol=1e-12, atol=1e-12)
    for a, b in ((dx, x), (dw, w)):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


def test_overlap_sends_the_same_bytes_around_a_ring() -> None:
    where = parallel.mesh(2, 4)
    x, w = jnp.ones((8, 16)), jnp.ones((16, 24))
    sent = []
    for overlap in (False, True):
        f = jax.jit(lambda x, w, o=overlap: parallel.summa(x, w, where, overlap=o))
        sent.append(parallel.traffic(f.lower(x, w).compile()))
    assert sent[0].total == sent[1].total
    assert sent[1].counts["collective-permute"] == 3


def test_summa_refuses() -> None:
    where = parallel.mesh(2, 4)
    with pytest.raises(ValueError, match=r"w: expected shape \(16, columns\).* got \(8, 8\)"):
        parallel.summa(jnp.ones((8, 16)), jnp.ones((8, 8)), where)
    with pytest.raises(ValueError, match=r"x: .*split into 2 equal blocks .* got 7"):
        parallel.summa(jnp.ones((7, 16)), jnp.ones((16, 8)), where)
    with pytest.raises(ValueError, match=r"w: .*split into 4 equal blocks .* got 6"):
        parallel.summa(jnp.ones((8, 16)), jnp.ones((16, 6)), where)
    with pytest.raises(ValueError, match="mesh: expected a mesh, or x that lies on one"):
        parallel.summa(jnp.ones((8, 16)), jnp.ones((16, 8)))
    other = jax.make_mesh((2, 4), ("a", "b"))
    with pytest.raises(ValueError, match=r"mesh: expected axes 'r' and 'c', got \('a', 'b'\)"):
        parallel.summa(jnp.ones((8, 16)), jnp.ones((16, 8)), other)
    placed = parallel.shard(jnp.ones((8, 16)), PartitionSpec("r", "c"), where)
    assert parallel.summa(placed, jnp.ones((16, 8))).shape == (8, 8)
