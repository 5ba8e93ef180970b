"""Every layout computes what one device computes, gradients included, and holds 1/p of it."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tensorjax import parallel
from tests import tiny_decoder as tiny
from tests.oracles import compilations

CONFIG, BATCH = tiny.Config(), 8
MESHES = [(1, 4), (2, 2), (4, 1), (2, 4)]
QUICK = [
    ("1d", 2, 2, 1, {}),
    ("1d+sequence", 2, 4, 1, {}),
    ("fsdp+tp", 2, 4, 1, {}),
    ("2d", 4, 1, 1, {}),
    ("2d", 2, 4, 1, {"overlap": True}),
    ("summa", 1, 4, 1, {}),
    ("summa", 2, 2, 1, {}),
    ("summa", 2, 4, 1, {"overlap": True}),
    ("2.5d", 2, 2, 2, {}),
    ("1d", 2, 2, 1, {"rules": {"batch": "r", "mlp": "c", "heads": "c", "vocab": "c"}}),
]
ALL = [
    *((name, *m, 1, {}) for name, m in itertools.product(parallel.NAMES[1:-1], MESHES)),
    ("fsdp+tp", 2, 2, 2, {}),
    ("2.5d", 2, 2, 2, {"replicate": False}),
    ("2.5d", 1, 4, 2, {"rows": "scatter"}),
    ("1d+sequence", 2, 4, 1, {"rules": dict.fromkeys(("mlp", "heads", "vocab", "length"), "c")}),
]
CASES = QUICK + [pytest.param(c, marks=pytest.mark.slow) for c in ALL if c not in QUICK]


def make(name: str, r: int, c: int, d: int = 1, options: Any = None) -> parallel.Layout:
    return parallel.layout(name, parallel.mesh(r, c, depth=d), **(options or {}))


def error(found: Any, wanted: Any) -> float:
    """Largest relative error of all leaves, each in its own Frobenius norm."""

    def one(a: jax.Array, b: jax.Array) -> float:
        a, b = (np.asarray(v, np.float64).ravel() for v in (a, b))
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))

    return max(jax.tree.leaves(jax.tree.map(one, found, wanted)))


def gradient(layout: parallel.Layout, params: Any, batch: Any) -> Any:
    f = jax.value_and_grad(tiny.loss(layout, CONFIG, parts=True), has_aux=True)
    return jax.jit(f, compiler_options=tiny.QUICKLY)(params, *batch)


@pytest.fixture(scope="module")
def alone() -> Any:
    params, batch = tiny.init(CONFIG), tiny.data(CONFIG, BATCH)
    return params, batch, gradient(parallel.Single(), params, batch)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_and_gradients_are_those_of_one_device(alone: Any, case: Any) -> None:
    params, batch, wanted = alone
    layout = make(*case)
    params = parallel.shard(params, tiny.specs(layout), layout.mesh)
    (loss, parts), slopes = gradient(layout, params, batch)
    assert error(loss, wanted[0][0]) <= 1e-5
    assert error(parts, wanted[0][1]) <= 1e-5
    # The padding's rows of the table have no gradient; the others are compared one by one.
    padding = slopes["tokens"][CONFIG.vocabulary :]
    np.testing.assert_array_equal(padding, np.zeros_like(padding))
    assert error(slopes, wanted[1]) <= 1e-5
    for slope, param in zip(jax.tree.leaves(slopes), jax.tree.leaves(params), strict=True):
        assert slope.sharding.is_equivalent_to(param.sharding, param.ndim)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", parallel.NAMES[1:-1])
def test_every_parameter_and_moment_takes_its_part(name: str, mesh: tuple[int, int]) -> None:
    layout = make(name, *mesh)
    shapes = jax.eval_shape(lambda: tiny.init(CONFIG))
    specs = tiny.specs(layout)
    adam = optax.adam(1e-3)
    placed = parallel.shardings(specs, layout.mesh)
    state = parallel.state_shardings(adam, shapes, specs, layout.mesh)
    for where in (placed, state[0].mu, state[0].nu):
        for shape, sharding in zip(jax.tree.leaves(shapes), jax.tree.leaves(where), strict=True):
            shard = sharding.shard_shape(shape.shape)
            assert np.prod(shard) * layout.devices == np.prod(shape.shape)
    assert state[0].count.is_fully_replicated


@pytest.mark.parametrize(
    ("optimizer", "count"),
    [
        (optax.adamw(optax.linear_schedule(0.0, 1.0, 10)), 4),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-2, momentum=0.9)), 2),
        (optax.masked(optax.adam(1e-3), {"w": True, "b": False}), 2),
        (optax.multi_transform({"a": optax.adam(1e-3), "z": optax.set_to_zero()},
                               {"w": "z", "b": "a"}), 2),
        (optax.MultiSteps(optax.adam(1e-3), 4), 6),
        (optax.adafactor(1e-3), 1),  # the matrix is factored: its rows and columns are everywhere
        (optax.sgd(1e-2), 0),
    ],
)  # fmt: skip
def test_states_of_optimisers_lie_as_their_parameters(optimizer: Any, count: int) -> None:
    layout = make("2d", 2, 2)
    params = {"w": jnp.ones((256, 512)), "b": jnp.ones((512,))}
    specs = {"w": layout.spec(("embed", "mlp")), "b": layout.spec(("mlp",))}
    where = parallel.state_shardings(optimizer, params, specs, layout.mesh)
    state = jax.jit(optimizer.init, out_shardings=where)(params)
    split = [x for x in jax.tree.leaves(state) if not x.sharding.is_fully_replicated]
    assert len(split) == count
    for x in split:
        assert x.addressable_shards[0].data.size * 4 == x.size
        assert x.sharding.spec == specs["w" if x.ndim == 2 else "b"]


def test_replicas_of_weights_are_replicas() -> None:
    layout = make("2.5d", 2, 2, 2)
    where = parallel.shardings(layout.spec(("embed", "mlp")), layout.mesh)
    assert where.shard_shape((32, 128)) == (16, 64)
    layout = make("2.5d", 2, 2, 2, {"replicate": False})
    where = parallel.shardings(layout.spec(("embed", "mlp")), layout.mesh)
    assert where.shard_shape((32, 128)) == (8, 64)


TEN = [(name, *m) for name, m in itertools.product(parallel.NAMES[1:-1], MESHES)]
TEN_CASES = [
    c if c == ("2d", 2, 2) else pytest.param(c, marks=pytest.mark.slow)
    for c in [*TEN, ("2.5d", 2, 2, 2)]
]


def ten_steps(layout: parallel.Layout, params: Any, state: Any, batch: Any) -> Any:
    """Parameters, moments and losses of ten steps of Adam."""
    loss, adam = tiny.loss(layout, CONFIG), optax.adam(1e-2)

    def step(params: Any, state: Any) -> tuple[Any, Any, jax.Array]:
        value, slopes = jax.value_and_grad(loss)(params, *batch)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = adam.update(slopes, state)
        return optax.apply_updates(params, updates), state, value

    step = jax.jit(step, compiler_options=tiny.QUICKLY)
    losses = []
    for _ in range(10):
        params, state, value = step(params, state)
        losses.append(float(value))
    return params, state, losses


@pytest.fixture(scope="module")
def ten_alone(alone: Any) -> list[float]:
    params, batch, _ = alone
    return ten_steps(parallel.Single(), params, optax.adam(1e-2).init(params), batch)[-1]


@pytest.mark.parametrize("case", TEN_CASES, ids=str)
def test_training_keeps_its_shardings_and_its_numbers(
    alone: Any, ten_alone: list[float], case: Any
) -> None:
    """Ten steps of Adam, state sharded as the weights."""
    params, batch, _ = alone
    layout, adam = make(*case), optax.adam(1e-2)
    specs = tiny.specs(layout)
    placed = parallel.shard(params, specs, layout.mesh)
    where = parallel.state_shardings(adam, params, specs, layout.mesh)
    state = jax.jit(adam.init, out_shardings=where)(placed)
    new, moments, losses = ten_steps(layout, placed, state, batch)
    np.testing.assert_allclose(losses, ten_alone, rtol=1e-4)
    assert losses[-1] < 0.9 * losses[0]
    for tree in (new, moments[0].mu):
        for x, spec in zip(jax.tree.leaves(tree), jax.tree.leaves(placed), strict=True):
            assert x.sharding.is_equivalent_to(spec.sharding, x.ndim)


def test_norm_bears_a_large_mean(rng: np.random.Generator) -> None:
    """Nothing cancels where blocks are combined: a mean of 10⁴ costs what it costs one device."""
    layout = make("2d", 2, 2)
    x = jnp.asarray(1e4 + rng.normal(size=(4, 2, 16)), jnp.float32)
    ones = jnp.ones(16, jnp.float32)
    spec = layout.spec(("embed",))

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        return layout.norm(x, scale, scale, 1e-5)

    found = layout.over(norm, (layout.x_spec(), spec), layout.x_spec())(x, ones)
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True) + 1
    # The mean of numbers of 10⁴ is known to 10⁴ eps = 10⁻³.
    np.testing.assert_allclose(found, exact, atol=0.01)


def test_dropout_keys_follow_the_blocks() -> None:
    """The same numbers where devices hold the same block, others where they hold others."""
    layout = make("fsdp+tp", 2, 2)

    def local(x: jax.Array) -> jax.Array:
        seed = jax.random.key_data(layout.key(jax.random.key(0), x))
        return seed[None]

    seeds = layout.over(local, layout.x_spec(), layout.data_spec("batch", "seed"))(
        jnp.ones((4, 2, 4))
    )
    assert not np.array_equal(seeds[0], seeds[1])
    alone = parallel.Single()
    key = jax.random.key(0)
    assert (alone.key(key, jnp.ones(2)) == key).all()


@pytest.mark.parametrize("logit", [-jnp.inf, jnp.inf, jnp.nan])
@pytest.mark.parametrize("left_out", ["target", "weight"])
def test_tokens_that_are_left_out_do_not_count_whatever_their_logits_are(logit, left_out, rng):
    z = jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 5, (2, 3)))
    odd = z.at[1, 2, targets[1, 2]].set(logit)
    weights = jnp.asarray(rng.uniform(0.5, 2, (2, 3)), jnp.float32)
    without = weights.at[1, 2].set(0)
    if left_out == "target":
        targets = targets.at[1, 2].set(-100)
    else:
        weights = without

    def loss(z, weights):
        return parallel.Single().cross_entropy(z, targets, weights, 5)[0]

    value, gradient = jax.value_and_grad(loss)(odd, weights)
    wanted, slopes = jax.value_and_grad(loss)(z, without)
    assert value == wanted
    np.testing.assert_array_equal(gradient, slopes)
    assert not gradient[1, 2].any()


def test_weights_of_zero_have_the_losses_as_gradient(rng):
    z = jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 5, (2, 3)))
    weights = jnp.asarray(rng.uniform(size=(2, 3)) < 0.5, jnp.float32)

    def loss(weights):
        return parallel.Single().cross_entropy(z, targets, weights, 5)[0]

    losses = jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, targets[..., None], -1)[..., 0]
    np.testing.assert_allclose(jax.grad(loss)(weights), losses, rtol=1e-5)


def test_a_vocabulary_larger_than_its_table_is_refused():
    single, z = parallel.Single(), jnp.zeros((1, 1, 4))
    ids, ones = jnp.zeros((1, 1), int), jnp.ones((1, 1))
    for call in (
        lambda: single.embed(jnp.ones((4, 3)), ids, vocabulary=6),
        lambda: single.cross_entropy(z, ids, ones, 6),
        lambda: single.gather(z, 6),
    ):
        with pytest.raises(ValueError, match="vocabulary: expected at most the 4 words"):
            call()


def test_arrays_without_a_spec_that_fits_are_named():
    mesh = parallel.mesh(1, 1)
    for x, spec, message in (
        (np.ones(4), None, r"specs\['a'\]: expected a PartitionSpec, got None"),
        (np.ones(()), jax.sharding.PartitionSpec("r"), r"tree\['a'\]: expected a shape"),
    ):
        with pytest.raises(ValueError, match=message):
            parallel.shard({"a": x}, {"a": spec}, mesh)
    with pytest.raises(TypeError, match="memory_limit: expected a number"):
        parallel.plan(CONFIG, 2, 4, memory_limit="1")


@pytest.mark.parametrize("overlap", [False, True])
def test_summa_outside_of_jit_is_compiled_once(overlap):
    mesh, x = parallel.mesh(2, 2), jnp.ones((4, 4))
    parallel.summa(x, x, mesh, overlap=overlap)
    with compilations() as seen:
        found = parallel.summa(x, x, mesh, overlap=overlap)
    assert not seen
    np.testing.assert_array_equal(found, np.full((4, 4), 4))
