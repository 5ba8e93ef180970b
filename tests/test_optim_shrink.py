"""Physical shrink: the same function, the same next steps, one compilation."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tensorjax import optim

MODES, RANKS = (3, 4, 4, 3), (3, 5, 3)
DEAD = ((1,), (0, 3), ())


def train(seed: int = 0, dead: Any = DEAD) -> dict[str, Any]:
    bonds = (1, *RANKS, 1)
    keys = jax.random.split(jax.random.key(seed), 4)
    cores = [
        jax.random.normal(k, (a, n, b)) / 2
        for k, a, n, b in zip(keys, bonds[:-1], MODES, bonds[1:], strict=True)
    ]
    gates = [jnp.linspace(1.0, 0.5, r).at[jnp.array(d, int)].set(0.0)
             for r, d in zip(RANKS, dead, strict=True)]  # fmt: skip
    return {"cores": cores, "gates": gates, "bias": jnp.zeros(MODES[-1])}


def full(layer: dict[str, Any]) -> jax.Array:
    out = layer["cores"][0]
    for gate, core in zip(layer["gates"], layer["cores"][1:], strict=True):
        out = jnp.tensordot(out, gate[:, None, None] * core, 1)
    return out[0, ..., 0] + layer["bias"][None, None, None]


def loss(params: dict[str, Any]) -> jax.Array:
    target = jnp.linspace(-1, 1, int(np.prod(MODES))).reshape(MODES)
    return jnp.mean((full(params["a"]) - target) ** 2) + jnp.sum(params["kernel"] ** 2)


def factors(params: dict[str, Any]) -> dict[str, Any]:
    return {"a": params, "kernel": jnp.ones((2, 2))}


@functools.partial(jax.jit, static_argnums=0)
def step(update: Any, params: Any, state: Any) -> tuple[Any, Any]:
    with jax.numpy_dtype_promotion("standard"):
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = update(gradients, state, params, value=value)
        return optax.apply_updates(params, updates), state


def steps(optimizer: Any, params: Any, state: Any, count: int) -> tuple[Any, Any]:
    for _ in range(count):
        params, state = step(optimizer.update, params, state)
    return params, state


def wrap(inner: Any) -> Any:
    return optim.rank_adaptive(
        inner, size_weight=0.05, switch=6, size_fraction=0.9, loss_target=5.0
    )


OPTIMIZERS = {
    "sgd": lambda: wrap(optax.sgd(0.05)),
    "momentum": lambda: wrap(optax.sgd(0.05, momentum=0.9, nesterov=True)),
    "adam": lambda: wrap(optax.adam(0.02)),
    "adamw": lambda: wrap(optax.adamw(0.02, weight_decay=1e-2)),
    "lion": lambda: wrap(optax.lion(0.01)),
    "rmsprop": lambda: wrap(optax.rmsprop(0.01, momentum=0.5)),
    "adabelief": lambda: wrap(optax.adabelief(0.01)),
    "clipped": lambda: wrap(optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.02))),
    "ema": lambda: wrap(optax.chain(optax.ema(0.9), optax.sgd(0.1))),
    "injected": lambda: wrap(optax.inject_hyperparams(optax.adam)(learning_rate=0.02)),
    "partition": lambda: wrap(
        optax.partition(
            {"core": optax.adam(0.02), "gate": optax.sgd(0.02, 0.9), "dense": optax.adam(0.01)},
            optim.labels,
        )
    ),
    "mask": lambda: optax.chain(
        optax.masked(wrap(optax.adam(0.02)), {"a": True, "kernel": False}),
        optax.masked(optax.sgd(0.1), {"a": False, "kernel": True}),
    ),
    "inside": lambda: wrap(optax.MultiSteps(optax.adam(0.02), 2, accumulator_dtype=float)),
    "outside": lambda: optax.MultiSteps(wrap(optax.adam(0.02)), 2, accumulator_dtype=float),
    "schedule-free": lambda: wrap(optax.contrib.schedule_free_adamw(0.02)),
    "ademamix": lambda: wrap(optax.contrib.ademamix(0.01)),
}


QUICK = ("adam", "partition")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in OPTIMIZERS]
)
def test_the_function_stays_and_the_next_steps_are_those_of_masked_training(name: str):
    optimizer = OPTIMIZERS[name]()
    params = factors(train())
    params, state = steps(optimizer, params, optimizer.init(params), 5)
    small, moments = optim.shrink(params, state)
    assert optim.ranks(small) == optim.ranks(params)
    assert optim.ranks(small) == optim.ranks(small, threshold=float("-inf"))
    np.testing.assert_allclose(full(small["a"]), full(params["a"]), rtol=1e-14, atol=1e-15)
    assert jax.tree.structure(moments) == jax.tree.structure(state)
    shapes = jax.tree.map(jnp.shape, jax.eval_shape(optimizer.init, small))
    assert jax.tree.map(jnp.shape, moments) == shapes
    large, _ = steps(optimizer, params, state, 6)
    small, _ = steps(optimizer, small, moments, 6)
    np.testing.assert_allclose(full(small["a"]), full(large["a"]), rtol=1e-10, atol=1e-12)
    again, _ = optim.shrink(large)
    after, _ = optim.shrink(small)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12), after, again)


def test_kept_ranks_are_rounded_up_to_a_bucket():
    params = factors(train())
    for bucket, shapes in [
        (1, [(1, 3, 2), (2, 4, 3), (3, 4, 3), (3, 3, 1)]),
        (2, [(1, 3, 2), (2, 4, 4), (4, 4, 3), (3, 3, 1)]),
        (4, [(1, 3, 3), (3, 4, 4), (4, 4, 3), (3, 3, 1)]),
    ]:
        small, none = optim.shrink(params, bucket=bucket)
        assert none is None
        assert [c.shape for c in small["a"]["cores"]] == shapes
        assert optim.ranks(small) == optim.ranks(params)
        np.testing.assert_allclose(full(small["a"]), full(params["a"]), atol=1e-15)
    empty = factors(train(dead=((1,), range(5), ())))
    small, _ = optim.shrink(empty)
    assert [g.shape for g in small["a"]["gates"]] == [(2,), (1,), (3,)]
    small, _ = optim.shrink(empty, keep_one=False)
    assert [g.shape for g in small["a"]["gates"]] == [(0,)] * 3
    np.testing.assert_array_equal(full(small["a"]), full(empty["a"]))
    half, _ = optim.shrink(params, threshold=0.6)
    assert optim.ranks(half) == optim.ranks(params, threshold=0.6)


def test_tucker_and_cp():
    keys = iter(jax.random.split(jax.random.key(0), 9))
    tucker = {
        "core": jax.random.normal(next(keys), (3, 4)),
        "factors": [jax.random.normal(next(keys), s) for s in [(5, 3), (2, 6, 4)]],
        "gates": [jnp.array([0.0, 1, 2]), jnp.array([1.0, 0, 0, 3])],
    }
    cp = {
        "factors": [jax.random.normal(next(keys), s) for s in [(5, 3), (6, 3)]],
        "gates": [jnp.array([0.0, 1, 2])],
    }
    (a, b), state = optim.shrink((tucker, cp), optax.adam(1.0).init((tucker, cp)))

    def whole(x: Any) -> jax.Array:
        core = x["core"] * x["gates"][0][:, None] * x["gates"][1][None]
        return jnp.einsum("ab,ia,mnb->imn", core, *x["factors"])

    np.testing.assert_allclose(whole(a), whole(tucker), rtol=1e-13)
    np.testing.assert_allclose(
        (b["factors"][0] * b["gates"][0][None]) @ b["factors"][1].T,
        (cp["factors"][0] * cp["gates"][0][None]) @ cp["factors"][1].T,
        rtol=1e-13,
    )
    assert state[0].mu[0]["core"].shape == (2, 2)
    assert state[0].nu[1]["factors"][1].shape == (6, 2)


def test_moments_of_other_shapes_are_named_or_started_anew():
    params = factors(train())
    optimizer = optax.contrib.galore(1e-2, rank=2, weight_dimension_numbers=(
        lambda p: jax.tree.map(
            lambda x: optax.contrib.GaLoreDimensionNumbers((0, 1), 2) if x.ndim == 3 else None, p
        )))  # fmt: skip
    state = optimizer.init(params)
    with pytest.raises(ValueError, match=r"opt_state: expected moments .* at .*cores/0"):
        optim.shrink(params, state)
    small, moments = optim.shrink(params, state, fresh=optimizer)
    assert jax.tree.map(jnp.shape, moments) == jax.tree.map(jnp.shape, optimizer.init(small))
    with pytest.raises(ValueError, match="fresh: expected the optimiser that made opt_state"):
        optim.shrink(params, state, fresh=optax.sgd(1.0))
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=3)
    with pytest.raises(ValueError, match="v_row"):
        optim.shrink(params, optimizer.init(params))
    whole = factors(train(dead=((), (), ())))
    state = optimizer.init(whole)
    kept, moments = optim.shrink(whole, state)  # nothing is dead, so nothing has to be cut
    jax.tree.map(np.testing.assert_array_equal, (kept, moments), (whole, state))
    with pytest.raises(TypeError, match="shrink: how many gates live"):
        jax.jit(optim.shrink)(params)
    with pytest.raises(ValueError, match="params: expected at least one tensorised layer"):
        optim.shrink({"kernel": jnp.ones((2, 2))})
    with pytest.raises(ValueError, match="bucket: expected an integer"):
        optim.shrink(params, bucket=0)


@pytest.mark.parametrize("lost", [-0.5, float("nan")])
def test_gates_that_would_be_lost_though_they_are_not_dead_are_refused(lost: float):
    params = factors(train())
    params["a"]["gates"][1] = params["a"]["gates"][1].at[2].set(lost)
    with pytest.raises(ValueError, match=rf"gates >= 0, got {lost} in a/gates/1"):
        optim.shrink(params)
    if lost < 0:
        small, _ = optim.shrink(params, threshold=-1.0)
        assert small["a"]["gates"][1].shape == (5,)
    for bad in (float("nan"), None):
        for refuses in (optim.shrink, optim.size, optim.ranks):
            with pytest.raises(ValueError, match=f"threshold: expected a number, got {bad}"):
                refuses(train(), threshold=bad)


def test_new_moments_do_not_ask_whether_the_smaller_model_could_meet_its_target():
    layer = {
        "cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.array([1.0, 0.0, 0.0])],
    }  # fmt: skip
    optimizer = optim.rank_adaptive(optax.sgd(0.1, momentum=0.9), switch=5, size_fraction=0.5)
    small, state = optim.shrink(layer, optimizer.init(layer), fresh=optimizer)
    wanted = jax.eval_shape(optimizer.init, small)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, wanted)
    with pytest.raises(ValueError, match="size_fraction: expected at least 1"):
        optimizer.init(small)  # a training that begins with it: half of nothing to spare


def test_state_that_cannot_be_cut_is_never_left_in_silence():
    params = factors(train())
    for inner in (optax.flatten(optax.adam(0.1)), optax.sm3(0.1)):
        optimizer = wrap(inner)
        state = optimizer.init(params)
        with pytest.raises(ValueError, match="opt_state: expected moments"):
            optim.shrink(params, state)
        small, moments = optim.shrink(params, state, fresh=optimizer)
        wanted = jax.eval_shape(optimizer.init, small)
        assert jax.tree.map(jnp.shape, moments) == jax.tree.map(jnp.shape, wanted)
        assert moments.count is state.count


def test_moments_of_one_parameter_are_all_kept_or_all_new():
    gates = [jnp.ones(4).at[1].set(0.0)]
    params = {"factors": [jnp.ones((4, 4)), jnp.ones((4, 4))], "gates": gates}
    optimizer = optax.contrib.galore(1e-2, rank=4, weight_dimension_numbers=lambda p: jax.tree.map(
        lambda x: optax.contrib.GaLoreDimensionNumbers() if x.ndim == 2 else None, p
    ))  # fmt: skip
    state = jax.tree.map(lambda x: x + jnp.ones_like(x), optimizer.init(params))
    with pytest.raises(ValueError, match="expected no projections"):
        optim.shrink(params, state)
    small, moments = optim.shrink(params, state, fresh=optimizer)
    wanted = optimizer.init(small)
    assert jax.tree.map(jnp.shape, moments) == jax.tree.map(jnp.shape, wanted)
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(moments), jax.tree.leaves(wanted), strict=True
    ):
        if "factors" in jax.tree_util.keystr(path):
            np.testing.assert_array_equal(x, y)


def test_a_layer_without_gates_below_one_with_keeps_its_moments():
    bare = {"cores": train()["cores"]}
    params = train() | {"sub": bare}
    small, state = optim.shrink(params, optax.adam(0.1).init(params))
    assert [m.shape for m in state[0].mu["sub"]["cores"]] == [c.shape for c in bare["cores"]]
    assert jax.tree.map(jnp.shape, state[0].mu) == jax.tree.map(jnp.shape, small)


def module() -> Any:
    from flax import nnx

    class Gated(nnx.Module):
        def __init__(self) -> None:
            layer = train()
            self.cores = nnx.List([nnx.Param(c) for c in layer["cores"]])
            self.gates = nnx.List([nnx.Param(g) for g in layer["gates"]])
            self.bias = nnx.Param(layer["bias"])
            self.seen = nnx.BatchStat(jnp.zeros(()))

        def __call__(self) -> jax.Array:
            parts = {"cores": [c[...] for c in self.cores], "gates": [g[...] for g in self.gates]}
            return full(parts | {"bias": self.bias[...]})

    return Gated()


@pytest.mark.parametrize("parts", ["plain", "partition"])
def test_nnx_modules_shrink_in_place_and_compile_once_more(parts: str):
    from flax import nnx

    model, traces = module(), []
    inner = optax.adam(0.02)
    if parts == "partition":
        inner = optax.partition(
            {"core": inner, "gate": optax.sgd(0.02, 0.9), "dense": inner}, optim.labels
        )
    optimizer = nnx.Optimizer(model, wrap(inner), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> jax.Array:
        traces.append(1)
        value, gradients = nnx.value_and_grad(lambda m: jnp.mean((m() - 1.0) ** 2))(model)
        with jax.numpy_dtype_promotion("standard"):
            optimizer.update(model, gradients, value=value)
        return value

    for _ in range(3):
        step(model, optimizer)
    assert len(traces) == 1
    graph, state = nnx.split((model, optimizer))
    other, other_optimizer = nnx.merge(graph, jax.tree.map(jnp.copy, state))
    before = model()
    optim.shrink_model(model, optimizer)
    assert [g.shape for g in model.gates] == [(2,), (3,), (3,)]
    np.testing.assert_allclose(model(), before, rtol=1e-14, atol=1e-15)
    for _ in range(4):
        a, b = step(model, optimizer), step(other, other_optimizer)
        np.testing.assert_allclose(a, b, rtol=1e-10)
    assert len(traces) == 2
    assert optim.status(optimizer.opt_state).count == 7
    optim.shrink_model(model)
    assert int(optimizer.step[...]) == 7


def test_layers_that_share_gates_are_refused_and_shared_layers_are_not():
    from flax import nnx

    from tensorjax import nn

    class Pair(nnx.Module):
        def __init__(self) -> None:
            self.a, self.b = (nn.TT(rank=3).linear(12, 12, rngs=nnx.Rngs(k)) for k in range(2))
            for gate in self.a.gates:
                gate[...] = gate[...] * jnp.where(jnp.arange(gate.size) == 1, 0, 1).astype("f")

    pair = Pair()
    pair.b = pair.a
    before = pair.b(jnp.ones((2, 12), "f"))
    optim.shrink_model(pair)
    np.testing.assert_allclose(pair.b(jnp.ones((2, 12), "f")), before, rtol=1e-5, atol=1e-6)
    assert {g.size for g in pair.a.gates} == {2}
    pair = Pair()
    pair.b.gates = pair.a.gates
    with pytest.raises(ValueError, match="got those of a in b too"):
        optim.shrink_model(pair)


def test_orbax_saves_and_restores_across_a_shrink(tmp_path: Path):
    ocp = pytest.importorskip("orbax.checkpoint")
    optimizer = wrap(optax.adam(0.02))
    params = factors(train())
    params, state = steps(optimizer, params, optimizer.init(params), 3)
    params, state = optim.shrink(params, state)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", (params, state))
        checkpointer.wait_until_finished()
        saved = checkpointer.metadata(tmp_path / "step").item_metadata.tree[0]
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), saved)
        like = (like, jax.eval_shape(optimizer.init, like))
        restored = checkpointer.restore(tmp_path / "step", like)
    jax.tree.map(np.testing.assert_array_equal, restored, (params, state))
    on, _ = steps(optimizer, *restored, 2)
    jax.tree.map(np.testing.assert_array_equal, on, steps(optimizer, params, state, 2)[0])


def test_orbax_saves_and_restores_a_shrunk_model_and_its_optimizer(tmp_path: Path):
    ocp = pytest.importorskip("orbax.checkpoint")
    from flax import nnx

    from tensorjax import nn

    def made() -> Any:
        layer = nn.TTLinear(12, 12, rank=4, order=2, rngs=nnx.Rngs(0))
        for gate in layer.gates:
            gate[...] = jnp.linspace(1.0, 0.02, gate.shape[0], dtype=gate.dtype)
        model = nnx.Sequential(layer, nnx.Dropout(0.1, rngs=nnx.Rngs(1)))
        tx = optim.rank_adaptive(optax.adam(1e-2), size_weight=2.0, switch=4, size_fraction=0.5)
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> jax.Array:
        loss = nnx.value_and_grad(lambda m: jnp.mean((m(jnp.ones((3, 12), "f")) - 1) ** 2))
        value, grads = loss(model)
        optimizer.update(model, grads, value=value)
        return value

    model, optimizer = made()
    for _ in range(12):
        step(model, optimizer)
    before = model.layers[0].cores[1].shape
    optim.shrink_model(model, optimizer)
    assert model.layers[0].cores[1].shape != before
    with ocp.StandardCheckpointer() as checkpointer:
        path = tmp_path / "step"
        checkpointer.save(path, jax.tree.leaves(nnx.state((model, optimizer))))
        checkpointer.wait_until_finished()
        again = made()
        saved = list(checkpointer.metadata(path).item_metadata.tree)
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in saved]
        structure = jax.tree.structure(nnx.state(again))
        arrays = checkpointer.restore(path, like)
        nnx.update(again, jax.tree.unflatten(structure, arrays))
    for _ in range(2):
        np.testing.assert_array_equal(step(*again), step(model, optimizer))
    assert again[0].layers[0].ranks == model.layers[0].ranks
