"""Changes of basis of stacked and sharded layers; L-BFGS memory after cuts and such changes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tensorjax import optim

SHAPES = [(1, 4, 4), (4, 6, 4), (4, 4, 1)]


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    """A train whose middle core is far larger than the others."""
    cores = [jnp.asarray(s * rng.standard_normal(shape))
             for s, shape in zip((0.2, 3.0, 0.4), SHAPES, strict=True)]  # fmt: skip
    return {"cores": cores, "gates": [jnp.ones(4), jnp.ones(4)]}


def full(layer: dict[str, Any]) -> jax.Array:
    a, b, c = layer["cores"]
    left, right = layer["gates"]
    return jnp.einsum("aib,b,bjc,c,ckd->ijk", a, left, b, right, c)


def environments(layer: dict[str, Any]) -> np.ndarray:
    """Largest singular values of the derivatives of a train by each of its cores."""

    def norm(k: int) -> jax.Array:
        def of(core: jax.Array) -> jax.Array:
            cores = [*layer["cores"][:k], core, *layer["cores"][k + 1 :]]
            return full({**layer, "cores": cores})

        core = layer["cores"][k]
        return jnp.linalg.norm(jax.jacobian(of)(core).reshape(-1, core.size), 2)

    return np.array([norm(k) for k in range(len(SHAPES))])


def loss(params: Any) -> jax.Array:
    """Of single trains and of stacks of them, in the order of their names."""
    every = [x if x["cores"][0].ndim > 3 else jax.tree.map(lambda a: a[None], x)
             for _, x in sorted(params.items())]  # fmt: skip
    joined = jax.tree.map(lambda *x: jnp.concatenate(x), *every)
    return jnp.mean((jax.vmap(full)(joined) - 0.3) ** 2)


def stepped(optimizer: Any, params: Any, until: Any) -> tuple[Any, Any, Any, Any]:
    """Updates until a condition on the states before and after one; returns both sides of it."""

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(loss)(params)
        moves, state = optimizer.update(gradients, state, params, value=value)
        return optax.apply_updates(params, moves), state

    state = optimizer.init(params)
    for _ in range(60):
        new, following = step(params, state)
        if until(params, state, new, following):
            return params, state, new, following
        params, state = new, following
    raise AssertionError("the condition was never met")


def turned(_: Any, before: Any, __: Any, after: Any) -> bool:
    """Whether an update has changed the bases."""
    return int(after.tick) > int(before.tick) and int(after.tick) % 2 == 0


def test_copies_of_a_stack_are_balanced_as_single_layers_are(rng) -> None:
    count = 2
    single = {str(n): drawn(rng) for n in range(count)}
    stack = {"all": jax.tree.map(lambda *x: jnp.stack(x), *single.values())}
    optimizer = optim.rank_adaptive(optax.sgd(1e-9, momentum=0.9), size=count * 60, by=80)
    old, _, alone, state = stepped(optimizer, single, turned)
    _, _, together, of_stack = stepped(optimizer, stack, turned)
    for n, (name, layer) in enumerate(alone.items()):
        np.testing.assert_allclose(full(layer), full(old[name]), atol=1e-6)
        copy = jax.tree.map(lambda x, n=n: x[n], together["all"])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), copy, layer)
        norms = environments(layer)
        np.testing.assert_allclose(norms, norms[0], rtol=1e-5)
        assert max(norms) < 0.9 * max(environments(old[name]))
    assert int(of_stack.tick) == int(state.tick)
    for a, b in zip(jax.tree.leaves(of_stack.inner), jax.tree.leaves(state.inner), strict=False):
        assert a.dtype == b.dtype


@pytest.mark.slow
def test_sharded_layers_are_balanced_as_replicated_ones_are(rng) -> None:
    axes = str(rng.choice(["Explicit", "Auto"]))
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType[axes],))
    params = {"a": drawn(rng), "b": drawn(rng)}
    specs = {
        ("a", 0): PartitionSpec(None, None, "x"), ("a", 1): PartitionSpec("x"),
        ("b", 1): PartitionSpec(None, None, "x"), ("b", 2): PartitionSpec(None, "x"),
    }  # fmt: skip

    def put(x: Any, spec: Any) -> Any:
        return jax.device_put(x, NamedSharding(mesh, spec))

    spread = {
        name: {
            "cores": [put(c, specs.get((name, k), PartitionSpec()))
                      for k, c in enumerate(layer["cores"])],
            "gates": [put(g, PartitionSpec()) for g in layer["gates"]],
        }
        for name, layer in params.items()
    }  # fmt: skip
    optimizer = optim.rank_adaptive(optax.sgd(1e-9, momentum=0.9), size=120, by=80)

    def updated(optimizer: Any, params: Any) -> Any:
        # With gradients that are no function of the sharding: what is looked at is the update.
        step = jax.jit(lambda p, s, g: optimizer.update(g, s, p, value=jnp.float32(1.0)))
        state = optimizer.init(params)
        gradients = jax.tree.map(lambda x: 1e-3 * x, params)
        while int(state.tick) % 2 or int(state.tick) < 0:
            moves, state = step(params, state, gradients)
            params = optax.apply_updates(params, moves)
        return params, state

    alone, state = updated(optimizer, params)
    with jax.set_mesh(mesh):
        sharded, other = updated(optimizer, spread)
    assert len(sharded["b"]["cores"][1].sharding.device_set) == 4
    assert int(other.tick) == int(state.tick)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a), b, atol=1e-9),
        (sharded, other.inner), (alone, state.inner),
    )  # fmt: skip
    for layer in alone.values():
        norms = environments(layer)
        np.testing.assert_allclose(norms, norms[0], rtol=1e-5)


@pytest.mark.slow
def test_memory_of_curvature_begins_anew_where_parameters_jump(rng) -> None:
    inner = optax.chain(optax.scale_by_lbfgs(memory_size=3), optax.scale(-1e-3))
    optimizer = optim.rank_adaptive(inner, size=100, by=200)
    found = []

    def jumped(before_params: Any, before: Any, params: Any, after: Any) -> bool:
        cut, turn = float(after.size) < float(before.size), turned(None, before, None, after)
        memory = after.inner[0]
        held = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(memory.diff_params_memory))
        assert held > 0 or int(memory.count) <= 1
        if cut or turn:
            for x in jax.tree.leaves(memory):
                np.testing.assert_array_equal(x, 0)
            found.append("cut" if cut else "turn")
        return {"cut", "turn"} <= set(found)

    _, _, params, state = stepped(optimizer, {"a": drawn(rng), "b": drawn(rng)}, jumped)
    # The descent goes on.
    gradients = jax.grad(loss)(params)
    moves, _ = optimizer.update(gradients, state, params, value=loss(params))
    pairs = zip(jax.tree.leaves(gradients), jax.tree.leaves(moves), strict=True)
    assert sum(float(jnp.vdot(a, b)) for a, b in pairs) < 0
