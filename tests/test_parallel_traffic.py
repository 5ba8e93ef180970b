"""Bytes of compiled programs: counted right in small ones, predicted right in a decoder."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tensorjax import parallel
from tests import tiny_decoder as tiny

ROWS = PartitionSpec(("r", "c"))


def compiled(f: Any, out: Any, n: int = 128) -> Any:
    """A program on 2 × 4 devices, each with n / 8 numbers of 4 bytes."""
    mesh = parallel.mesh(2, 4)
    g = jax.shard_map(f, mesh=mesh, in_specs=ROWS, out_specs=out)
    return jax.jit(g).lower(jax.ShapeDtypeStruct((n,), jnp.float32)).compile()


def test_bytes_of_each_kind() -> None:
    def gather(x: jax.Array) -> jax.Array:
        return jax.lax.all_gather(x, "c", tiled=True)

    def scatter(x: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(x, "c", tiled=True)

    def total(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, ("r", "c"))

    def pass_on(x: jax.Array) -> jax.Array:
        return jax.lax.ppermute(x, "c", [(i, (i + 1) % 4) for i in range(4)])

    def exchange(x: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x, "c", 0, 0, tiled=True)

    here = 16 * 4  # bytes of each device's block
    for f, out, kind, sent in [
        (gather, ROWS, "all-gather", 3 * here),
        (scatter, ROWS, "reduce-scatter", 3 / 4 * here),
        (total, PartitionSpec(), "all-reduce", 2 * 7 / 8 * here),
        (pass_on, ROWS, "collective-permute", here),
        (exchange, ROWS, "all-to-all", 3 / 4 * here),
    ]:
        found = parallel.traffic(compiled(f, out))
        assert (dict(found.bytes), dict(found.counts)) == ({kind: sent}, {kind: 1})
        assert found.total == sent
        assert kind in str(found)


def test_loops_count_as_often_as_they_run() -> None:
    def inner(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return jax.lax.psum(x, "c") * jnp.cos(x), None

    def outer(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
        x, _ = jax.lax.scan(inner, x, None, length=3)
        return jax.lax.all_gather(x, "r", tiled=True)[:16], None

    def f(x: jax.Array) -> jax.Array:
        return jax.lax.scan(outer, x, None, length=5)[0]

    found = parallel.traffic(compiled(f, ROWS))
    assert found.counts == {"all-gather": 5, "all-reduce": 15}
    assert found.bytes == {"all-gather": 5 * 64, "all-reduce": 15 * 2 * 3 / 4 * 64}


def test_a_loop_without_an_end_is_refused() -> None:
    def f(x: jax.Array) -> jax.Array:
        def go(x: jax.Array) -> jax.Array:
            return jax.lax.pmax(x.sum(), ("r", "c")) < 10

        return jax.lax.while_loop(go, lambda x: x + jax.lax.psum(x, "c"), x)

    with pytest.raises(ValueError, match=r"compiled: .*number of rounds"):
        parallel.traffic(compiled(f, ROWS))


# In the words of XLA for GPU and TPU, which no test machine has.
ASYNCHRONOUS = """HloModule m

%other (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %s = (f32[8]{0}, f32[32]{0}) all-gather-start(%p), replica_groups=[2,4]<=[8], dimensions={0}
  ROOT %d = f32[32]{0:T(128)} all-gather-done(%s)
}

%none (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}

%scattered (p: bf16[32]) -> bf16[8] {
  %p = bf16[32]{0} parameter(0)
  ROOT %r = bf16[8]{0} reduce-scatter(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}

ENTRY %main (p: f32[8], q: bf16[32]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %a = f32[8]{0} all-reduce-start(%p), replica_groups={{0,1},{2,3}}, to_apply=%add
  %b = f32[8]{0} all-reduce-done(%a)
  %c = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%b), source_target_pairs={{0,1},{1,0}}
  %e = f32[8]{0} collective-permute-done(%c)
  %still = f32[8]{0} collective-permute(%e), source_target_pairs={{0,0},{1,1}}
  %g = ((bf16[32]{0}), bf16[8]{0}) async-start(%q), calls=%scattered
  %h = bf16[8]{0} async-done(%g), calls=%scattered
  ROOT %f = f32[8]{0} conditional(%i, %e, %e), branch_computations={%other, %none}
}
"""  # noqa: E501


def test_started_collectives_groups_by_iota_and_branches() -> None:
    found = parallel.traffic(ASYNCHRONOUS)
    assert found.bytes == {
        "all-gather": 3 / 4 * 128,
        "all-reduce": 2 * 1 / 2 * 32,
        "collective-permute": 32,
        "reduce-scatter": 3 * 16,
    }
    assert set(found.counts.values()) == {1}


@pytest.mark.parametrize(
    ("groups", "count"),
    [
        ("mesh['a'=1,'b'=2,'c'=4] {'c'}", 4),
        ("mesh['a'=3,'b'=2] {'a','b'}", 6),
        ("mesh['a'=2,'b'=8] {'a', 'b':(2)4}", 8),
        ("mesh['a'=1,'b'=4], device_ids=([2,2]T(1,0)) {'b'}", 4),
        ("mesh['a'=2,'b'=3], device_ids=(0,2,4,1,3,5) {'b'}", 3),
        ("mesh['a'=2,'b'=3], device_ids=([6]) {'a'}", 2),
    ],
)
def test_groups_named_by_the_axes_of_a_mesh(groups: str, count: int) -> None:
    line = f"  %a = f32[24]{{0}} all-reduce(%p), replica_groups={groups}, to_apply=%add"
    found = parallel.traffic("ENTRY %main (p: f32[24]) -> f32[24] {\n" + line + "\n}")
    assert found.bytes == {"all-reduce": 2 * (count - 1) / count * 96}


def test_groups_that_cannot_be_read_are_shown() -> None:
    line = f"  %a = f32[24]{{0}} all-reduce(%{'p' * 200}), replica_groups=new[8], to_apply=%add"
    with pytest.raises(ValueError, match=r"got 'replica_groups=new\[8\]"):
        parallel.traffic("ENTRY %main (p: f32[24]) -> f32[24] {\n" + line + "\n}")


def test_sums_over_a_mesh_in_another_order() -> None:
    """XLA groups the devices of a mesh that it has transposed."""
    where = NamedSharding(parallel.mesh(2, 4), PartitionSpec(("c", "r")))
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=where)
    program = jax.jit(lambda a, b: (a**2).sum() + (b**2).sum()).lower(x, x).compile()
    assert 2 * 7 / 8 * 8 <= parallel.traffic(program).total <= 20  # at once, or axis by axis


@pytest.mark.parametrize("name", parallel.NAMES[1:])
def test_the_norm_of_a_gradient_under_every_layout(name: str) -> None:
    """What a training step sends beside loss and gradient: a few bytes, in groups of its own."""
    mesh = parallel.mesh(2, 2, depth=2 if name == "2.5d" else 1)
    layout = parallel.layout(name, mesh)
    axes = {"up": ("embed", "mlp"), "down": ("mlp", "embed"), "scale": ("embed",)}
    shapes = {"up": (16, 64), "down": (64, 16), "scale": (16,)}
    tree = {
        key: jax.ShapeDtypeStruct(
            shapes[key], jnp.float32, sharding=NamedSharding(mesh, layout.spec(axes[key]))
        )
        for key in axes
    }

    def norm(tree: Any) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))

    found = parallel.traffic(jax.jit(norm).lower(tree).compile())
    assert 0 < found.total <= 64
    assert set(found.counts) == {"all-reduce"}


def test_memory_is_that_of_one_device() -> None:
    mesh = parallel.mesh(2, 4)
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, ROWS))
    plain = parallel.memory(jax.jit(lambda x: x + 1).lower(x).compile())
    assert (plain.arguments, plain.outputs, plain.aliases) == (2048, 2048, 0)
    donated = parallel.memory(jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile())
    assert donated.total == plain.total - 2048


def step(layout: parallel.Layout, config: tiny.Config, batch: int) -> Any:
    """The compiled loss and gradient; no array is made."""
    params = jax.eval_shape(lambda: tiny.init(config))
    ids, targets, weights = jax.eval_shape(lambda: tiny.data(config, batch))
    specs = parallel.shardings(tiny.specs(layout), layout.mesh)
    params = jax.tree.map(
        lambda p, s: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=s), params, specs
    )
    f = jax.jit(jax.value_and_grad(tiny.loss(layout, config)), compiler_options=tiny.QUICKLY)
    return f.lower(params, ids, targets, weights).compile()
