"""Tensor trains split over devices: by their modes, or by the tokens that they are applied to."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the layers have an extra of their own")

from flax import nnx

from tensorjax import nn, parallel
from tensorjax.parallel import _tt_linear
from tests import tiny_decoder as tiny
from tests.test_parallel_layouts import error, make

FEATURES, WIDE = 16, 24
SHAPES = {
    "modes": {"in_shape": (8, 2), "out_shape": (24, 3)},
    "tokens": {"in_shape": (2, 8), "out_shape": (3, 24)},  # 3 and 2 do not split by 4
}


def layers(shapes: Any = SHAPES["modes"], **options: Any) -> list[Any]:
    """A train from the features to three times a wide axis, and one back, biases drawn too."""
    rng = np.random.default_rng(0)
    back = {"in_shape": shapes["out_shape"], "out_shape": shapes["in_shape"]}
    back["in_shape"] = (8, 3) if shapes is SHAPES["modes"] else (3, 8)
    options = {"rank": 4, "param_dtype": jnp.float32, **options}
    up = nn.TTLinear(FEATURES, 3 * WIDE, **shapes, **options, rngs=nnx.Rngs(0))
    down = nn.TTLinear(WIDE, FEATURES, **back, **options, rngs=nnx.Rngs(1))
    for layer in (up, down):
        layer.bias[...] = jnp.asarray(rng.normal(size=layer.bias.shape), jnp.float32)
    return [up, down]


def slopes(layout: parallel.Layout, pair: list[Any]) -> Any:
    """Output and gradients of everything, a function of parameters and x, and those."""
    graphs, params = zip(*(nnx.split(layer) for layer in pair), strict=True)

    def local(params: Any, x: jax.Array) -> jax.Array:
        up, down = map(nnx.merge, graphs, params)
        y = layout.column(x, up, fold=(3, WIDE))
        assert y.shape[1:] == (8, 3, WIDE // layout.ways(layout.wide))
        return layout.row(jnp.tanh(y).sum(axis=2), down)

    none = jax.tree.map(lambda _: jax.sharding.PartitionSpec(), params)
    f = layout.over(local, (none, layout.x_spec()), layout.x_spec())

    def loss(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = f(params, x)
        return (y**2).sum(), y

    x = jnp.asarray(np.random.default_rng(1).normal(size=(4, 8, FEATURES)), jnp.float32)
    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), (params, x)


@functools.cache
def program(name: str, mesh: tuple[int, int], way: str) -> Any:
    """`slopes` compiled, and their arguments."""
    f, arguments = slopes(make(name, *mesh), layers(SHAPES[way]))
    return jax.jit(f, compiler_options=tiny.QUICKLY).lower(*arguments).compile(), arguments


@pytest.mark.parametrize(
    ("name", "mesh", "way"),
    [
        ("1d", (2, 2), "tokens"),
        ("2d", (2, 2), "modes"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("1d+sequence", (2, 2), "tokens"),
                ("fsdp+tp", (2, 2), "tokens"),
                ("2d", (2, 4), "tokens"),
                ("2d", (4, 1), "modes"),
                ("summa", (1, 4), "modes"),
                ("summa", (2, 4), "modes"),
            ]
        ),
    ],
)
def test_trains_of_a_layout_are_those_of_one_device(
    name: str, mesh: tuple[int, int], way: str
) -> None:
    layout, pair = make(name, *mesh), layers(SHAPES[way])
    by_modes = bool(layout.features) and way == "modes"
    assert all(
        layout._by_modes(layer, fold) == by_modes
        for layer, fold in zip(pair, [(3, WIDE), ()], strict=True)
    )
    run, arguments = program(name, mesh, way)
    alone = jax.jit(slopes(parallel.Single(), pair)[0], compiler_options=tiny.QUICKLY)
    assert error(run(*arguments), alone(*arguments)) <= 1e-5


def test_modes_send_ranks_where_tokens_send_features() -> None:
    """Forward and backward, only T × rank numbers and gradients of the cores are added up."""
    sent = {way: parallel.traffic(program("2d", (2, 2), way)[0]) for way in SHAPES}
    assert set(sent["modes"].counts) == {"all-reduce"}
    tokens, rank, r, c = 4 * 8 // 2, 4, 2, 2
    cores = sum(layer.numbers for layer in layers())
    # z of both trains over the columns; gradients over all devices; the loss.
    ranks = 2 * (c - 1) / c * 2 * tokens * rank
    slopes = 2 * (r * c - 1) / (r * c) * (cores + 1)
    assert sent["modes"].total <= 4 * (2 * ranks + slopes)
    assert sent["modes"].total < sent["tokens"].total


def test_trains_that_do_not_split_by_modes_are_told() -> None:
    up, _ = layers()
    assert _tt_linear.splits(up, 4, (3, WIDE))
    assert not _tt_linear.splits(up, 3, (3, WIDE))
    assert not _tt_linear.splits(up, 4, (9, WIDE // 3))
    padded = nn.TTLinear(FEATURES, 22, rank=4, in_shape=(8, 2), out_shape=(8, 3), rngs=nnx.Rngs(0))
    assert not _tt_linear.splits(padded, 2, ())
    assert not _tt_linear.splits(layers(memory_limit=2**20)[0], 4, (3, WIDE))
    assert not _tt_linear.splits(nn.CPLinear(16, 16, rank=2, rngs=nnx.Rngs(0)), 2, ())
