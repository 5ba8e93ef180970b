"""The rank-adaptive optimiser: objective, pruning, stages, wrappers, errors."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tensorjax import optim

MODES, RANKS = (3, 4, 4, 3), (3, 5, 3)


def train(seed: int = 0, ranks: Any = RANKS, dtype: Any = jnp.float64) -> dict[str, Any]:
    """A gated tensor train with a bias, as tensorjax.nn lays it out."""
    keys = iter(jax.random.split(jax.random.key(seed), len(MODES)))
    bonds = (1, *ranks, 1)
    cores = [
        jax.random.normal(next(keys), (a, n, b), dtype) / 2
        for a, n, b in zip(bonds[:-1], MODES, bonds[1:], strict=True)
    ]
    gates = [jnp.linspace(1.0, 0.5, r, dtype=dtype) for r in ranks]
    return {"cores": cores, "gates": gates, "bias": jnp.zeros(MODES[-1], dtype)}


def model(seed: int = 0, dtype: Any = jnp.float64) -> dict[str, Any]:
    return {"layers": [train(seed, dtype=dtype), train(seed + 1, (2, 4, 3), dtype)],
            "head": {"kernel": jnp.ones((2, 2), dtype)}}  # fmt: skip


def full(layer: dict[str, Any]) -> jax.Array:
    out = layer["cores"][0]
    for gate, core in zip(layer["gates"], layer["cores"][1:], strict=True):
        out = jnp.tensordot(out, gate[:, None, None] * core, 1)
    return out[0, ..., 0] + layer["bias"][None, None, None]


def loss(params: dict[str, Any]) -> jax.Array:
    target = jnp.linspace(-1, 1, int(np.prod(MODES))).reshape(MODES)
    total = sum(jnp.mean((full(x) - target.astype(x["bias"].dtype)) ** 2) for x in params["layers"])
    return total + jnp.mean(params["head"]["kernel"] ** 2)


@functools.partial(jax.jit, static_argnums=0)
def run(optimizer: Any, params: Any, state: Any, steps: Any) -> tuple[Any, Any]:
    """Steps under one compilation, whatever their number."""

    def step(_: Any, carry: Any) -> tuple[Any, Any]:
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params, value=value)
        return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, steps, step, (params, state))


@functools.partial(jax.jit, static_argnums=0)
def single_step(
    optimizer: Any, gradients: Any, state: Any, params: Any, value: Any
) -> tuple[Any, Any]:
    return optimizer.update(gradients, state, params, value=jnp.asarray(value))


def trained(optimizer: Any, params: Any, steps: int) -> tuple[Any, Any]:
    return run(optimizer, params, jax.jit(optimizer.init)(params), steps)


def surrogate(params: Any) -> jax.Array:
    total = 0.0
    for layer in params["layers"]:
        norms = [1.0, *(jnp.abs(g).sum() for g in layer["gates"]), 1.0]
        total += sum(n * a * b for n, a, b in zip(MODES, norms[:-1], norms[1:], strict=True))
    return total


def squares(params: Any) -> jax.Array:
    return sum((core**2).sum() for layer in params["layers"] for core in layer["cores"])


def assert_close(a: Any, b: Any, tol: float = 1e-12, rtol: float | None = None) -> None:
    rtol = tol if rtol is None else rtol
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=tol), a, b)


INNER = {
    "sgd": lambda: optax.sgd(0.05),
    "momentum": lambda: optax.sgd(0.05, momentum=0.9),
    "adam": lambda: optax.adam(0.02),
    "adamw": lambda: optax.adamw(0.02, weight_decay=0.0),
    "lion": lambda: optax.lion(0.01),
    "rmsprop": lambda: optax.rmsprop(0.01),
    "adafactor": lambda: optax.adafactor(0.02),
    "lamb": lambda: optax.lamb(0.02),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.02)),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.02),
    "partition": lambda: optax.partition(
        {"core": optax.adam(0.02), "gate": optax.lion(0.01), "dense": optax.adam(0.01)},
        optim.labels,
    ),
    "accumulated": lambda: optax.MultiSteps(
        optax.adam(0.02), 2, accumulator_dtype=jnp.float64
    ).gradient_transformation(),
}


QUICK = ("adam", "partition")
TABLE = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in INNER]


@pytest.mark.parametrize("name", TABLE)
def test_without_weights_it_is_the_inner_optimiser_bit_for_bit(name: str):
    with jax.numpy_dtype_promotion("standard"):
        inner = optax.with_extra_args_support(INNER[name]())
        wrapped = optim.rank_adaptive(inner, size_weight=0.0, core_weight=0.0)
        a, inner_state = trained(inner, model(), 5)
        b, state = trained(wrapped, model(), 5)
    jax.tree.map(np.testing.assert_array_equal, (a, inner_state), (b, state.inner))
    assert int(state.count) == 5


@pytest.mark.parametrize("name", TABLE)
def test_every_inner_optimiser_loses_ranks_and_dead_gates_stay_dead(name: str):
    optimizer = optim.rank_adaptive(
        INNER[name](), size_weight=5.0, core_weight=1e-3, switch=60, size_fraction=0.6
    )
    with jax.numpy_dtype_promotion("standard"):
        params, state = trained(optimizer, model(), 30)
        early = optim.ranks(params)
        params, state = run(optimizer, params, state, 120)
    start, late = optim.ranks(model()), optim.ranks(params)
    for name, before in start.items():
        assert all(
            1 <= c <= b <= a for a, b, c in zip(before, early[name], late[name], strict=True)
        )
    assert optim.size(params) == float(state.size)
    assert optim.size(params) < optim.size(model())
    assert optim.size(params, threshold=1e-2) == optim.size(params)  # zero, or above
    for layer in params["layers"]:
        for k, gate in enumerate(layer["gates"]):
            dead = np.asarray(gate) == 0
            assert not np.asarray(layer["cores"][k])[..., dead].any()
            assert not np.asarray(layer["cores"][k + 1])[dead].any()


def test_the_early_gradient_is_that_of_the_formula():
    gamma, beta, rate = 0.3, 0.02, 1e-6
    optimizer = optim.rank_adaptive(
        optax.sgd(rate), size_weight=gamma, core_weight=beta, size_scale=1.0
    )
    params = model()
    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    updates, _ = single_step(optimizer, gradients, optimizer.init(params), params, value)
    whole = jax.jit(jax.grad(lambda p: loss(p) + gamma * surrogate(p) + beta * squares(p)))
    wanted = whole(params)
    assert_close(updates, jax.tree.map(lambda g: -rate * g, wanted), 1e-6 * rate, 1e-6)


@pytest.mark.parametrize(("loss_target", "on_loss"), [(0.0, True), (100.0, False)])
def test_the_late_gradient_follows_the_larger_term(loss_target: float, on_loss: bool):
    w1, w2, mix = 2.0, 3.0, 0.25
    rate = 1e-6
    optimizer = optim.rank_adaptive(
        optax.sgd(rate), core_weight=0.0, size_weight=0.0, switch=0, size_target=100.0,
        loss_target=loss_target, loss_weight=w1, late_size_weight=w2, mix=mix,
    )  # fmt: skip
    params = model()
    scale = optim.size(params)
    gradients = jax.grad(loss)(params)
    updates, state = single_step(optimizer, gradients, optimizer.init(params), params, 5.0)
    a, b = (w1 + mix, mix) if on_loss else (mix, w2 + mix)
    wanted = jax.grad(lambda p: a * loss(p) + b * surrogate(p) / scale)(params)
    assert_close(updates, jax.tree.map(lambda g: -rate * g, wanted), 1e-6 * rate, 1e-6)
    assert bool(state.late)
    assert float(state.loss_target) == loss_target


def test_the_largest_gate_of_a_bond_stays_or_the_layer_goes():
    params = model()
    kept, state = trained(optim.rank_adaptive(optax.sgd(0.02), size_weight=1e4), params, 3)
    assert set(optim.ranks(kept).values()) == {(1, 1, 1)}
    assert all(float(g.max()) > 1e-2 for layer in kept["layers"] for g in layer["gates"])
    assert float(state.size) == 2 * sum(MODES)
    gone, state = trained(
        optim.rank_adaptive(optax.sgd(0.02), size_weight=1e4, keep_one=False), params, 3
    )
    assert set(optim.ranks(gone).values()) == {(0, 0, 0)}
    assert float(state.size) == 0 == optim.size(gone)
    small, _ = optim.shrink(gone, keep_one=False)
    assert [c.shape for c in small["layers"][0]["cores"]] == [
        (1, 3, 0), (0, 4, 0), (0, 4, 0), (0, 3, 1),
    ]  # fmt: skip
    np.testing.assert_array_equal(full(small["layers"][0]), full(gone["layers"][0]))


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_the_late_stage_ends_at_its_size_and_never_below(share: float):
    params = model()
    optimizer = optim.rank_adaptive(
        optax.adam(0.03), size_weight=0.0, switch=5, size_fraction=share, late_size_weight=50.0,
        loss_target=10.0,
    )  # fmt: skip
    params, state = trained(optimizer, params, 200)
    found = optim.status(state)
    assert found.stage == "late"
    assert found.status == "converged"
    assert found.size == optim.size(params) <= found.size_target
    # One more index on some bond would be too much.
    assert found.size_target - found.size <= max(MODES) * 5 * 2
    after, later = run(optimizer, params, state, 50)
    assert optim.ranks(after) == optim.ranks(params)
    assert float(later.size) == found.size


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_a_late_threshold_that_grows_meets_the_size_by_its_deadline(share: float):
    params, start, deadline = model(), 2, 6
    still = optim.rank_adaptive(  # nothing presses, and nothing moves
        optax.sgd(0.0), size_weight=0.0, core_weight=0.0, late_size_weight=0.0, mix=0.0,
        switch=start, size_fraction=share,
        late_threshold=lambda n: jnp.where(n < deadline, 0.0, jnp.inf),
    )  # fmt: skip
    before, state = trained(still, params, deadline)
    assert optim.size(before) == optim.size(params)
    after, state = run(still, before, state, 1)
    target = share * optim.size(params)
    assert optim.size(after) == float(state.size) <= target
    assert target - float(state.size) <= max(MODES) * 5 * 2
    for old, new in zip(params["layers"], after["layers"], strict=True):
        for gate, kept in zip(old["gates"], new["gates"], strict=True):
            dead = np.asarray(kept) == 0
            assert not dead.all()
            np.testing.assert_array_equal(np.asarray(kept)[~dead], np.asarray(gate)[~dead])
    again, state = run(still, after, state, 3)
    assert optim.ranks(again) == optim.ranks(after)


def test_a_late_threshold_takes_the_smallest_gates_and_no_others():
    params = model()
    gates = [g for layer in params["layers"] for g in layer["gates"]]
    sizes = np.random.default_rng(3).permutation(sum(g.size for g in gates)) + 1.0
    parts = iter(np.split(sizes, np.cumsum([g.size for g in gates])[:-1]))
    for layer in params["layers"]:
        layer["gates"] = [jnp.asarray(next(parts), g.dtype) for g in layer["gates"]]
    still = optim.rank_adaptive(
        optax.sgd(0.0), size_weight=0.0, core_weight=0.0, late_size_weight=0.0, mix=0.0,
        switch=0, size_fraction=0.5, late_threshold=1e6,
    )  # fmt: skip
    after, _ = trained(still, params, 2)
    kept = np.concatenate([np.asarray(g) for layer in after["layers"] for g in layer["gates"]])
    bond = np.repeat(np.arange(len(gates)), [g.size for g in gates])
    largest = np.array([sizes[bond == b].max() for b in range(len(gates))])[bond]
    dead = kept == 0
    free = ~dead & (sizes < largest)  # the largest of a bond stays in any case
    assert 0 < dead.sum() < dead.size
    assert sizes[dead].max() < sizes[free].min()


def test_status_says_what_is_infeasible():
    params = model()
    optimizer = optim.rank_adaptive(
        optax.adam(0.03), switch=5, size_fraction=0.2, loss_target=1e-9, loss_decay=0.5,
        late_size_weight=100.0, loss_weight=1e-3,
    )  # fmt: skip
    state = optimizer.init(params)
    assert "early" in str(optim.status(state))
    _, state = run(optimizer, params, state, 1500)
    found = optim.status((state,), patience=50)
    assert found.status == "infeasible"
    assert "loss has stayed" in found.advice
    assert optim.status(state, patience=10**6).status == "running"
    with pytest.raises(ValueError, match="expected one state"):
        optim.status(optax.adam(1.0).init(params))


def test_losses_that_are_not_finite_are_left_out_and_counted():
    params = model()
    optimizer = optim.rank_adaptive(optax.sgd(1e-3), switch=1, size_fraction=0.5, loss_decay=0.9)
    state = optimizer.init(params)
    zeros = optax.tree.zeros_like(params)
    for value in (2.0, np.nan, np.inf, 4.0):
        _, new = single_step(optimizer, zeros, state, params, value)
        if not np.isfinite(value):
            assert (new.loss, new.mass, new.late) == (state.loss, state.mass, state.late)
        state = new
    average = (0.1 * 0.9 * 2 + 0.1 * 4) / (0.1 * 0.9 + 0.1)
    found = optim.status(state)
    assert found.loss == pytest.approx(average)
    assert found.skipped == 2
    lost = optim.status(state._replace(skipped=jnp.array(30), count=jnp.array(50)))
    assert lost.status == "collapsed"
    assert "30 of 50 losses" in lost.advice
    assert found.stage == "late"
    assert "not finite" in str(found)


def test_switches_may_look_at_loss_and_size():
    params = model()
    whole = optim.size(params)
    optimizer = optim.rank_adaptive(
        optax.sgd(1e-3), size_fraction=0.5,
        switch=lambda count, loss, size: (loss < 1.0) & (size == whole) & (count > 0),
    )  # fmt: skip
    state, stages = optimizer.init(params), []
    for value in (0.5, 0.5, 30.0):
        _, state = single_step(optimizer, optax.tree.zeros_like(params), state, params, value)
        stages.append(bool(state.late))
    assert stages == [False, True, True]
    assert float(state.size_target) == whole / 2


def test_the_scale_does_not_drift_with_core_regularisation():
    params = model()
    before = float(squares(params))
    drifting, _ = trained(
        optim.rank_adaptive(optax.adam(0.01), size_weight=1e-1, core_weight=0.0), params, 1500
    )
    bounded, _ = trained(
        optim.rank_adaptive(optax.adam(0.01), size_weight=1e-1, core_weight=1e-3), params, 1500
    )
    assert float(squares(drifting)) > 2 * float(squares(bounded))
    assert float(squares(bounded)) < before


@pytest.mark.slow
def test_proximal_steps_are_soft_thresholds():
    params = model()
    rate, gamma = 1e-3, 0.5
    plain = optim.rank_adaptive(optax.sgd(rate), size_weight=gamma, core_weight=0.0)
    soft = optim.rank_adaptive(
        optax.sgd(rate), size_weight=gamma, core_weight=0.0, proximal=optax.constant_schedule(rate)
    )
    # Of plain gradient descent, the two are the same where no gate meets zero.
    assert_close(trained(plain, params, 3)[0], trained(soft, params, 3)[0], 1e-7)
    shrunk, state = trained(
        optim.rank_adaptive(optax.adam(1e-3), size_weight=gamma, proximal=0.5), params, 40
    )
    assert float(state.size) == optim.size(shrunk) < optim.size(params)


@pytest.mark.slow
def test_weights_may_be_schedules_of_the_count():
    params = model()
    schedule = optax.piecewise_constant_schedule(0.5, {2: 0.0})
    both = [
        optim.rank_adaptive(optax.sgd(1e-2), size_weight=w, core_weight=c)
        for w, c in [(schedule, 0.1), (0.5, lambda _: 0.1)]
    ]
    (a, s), (b, t) = (trained(x, params, 2) for x in both)
    assert_close(a, b, 1e-7)
    (a, s), (b, t) = run(both[0], a, s, 1), run(both[1], b, t, 1)
    gap = a["layers"][0]["gates"][0] - b["layers"][0]["gates"][0]
    assert np.abs(gap).max() > 1e-4


@pytest.mark.parametrize("dtype", [jnp.bfloat16, pytest.param(jnp.float32, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_narrow_gates_are_zero_or_above_the_threshold(dtype: Any):
    params = model(dtype=dtype)
    optimizer = optim.rank_adaptive(optax.adam(0.02), size_weight=0.5)
    with jax.numpy_dtype_promotion("standard"):
        params, state = trained(optimizer, params, 60)
    gates = np.concatenate(
        [np.asarray(g, np.float32) for layer in params["layers"] for g in layer["gates"]]
    )
    assert np.all((gates == 0) | (gates > np.float32(1e-2)))
    assert (gates == 0).any()
    assert params["layers"][0]["gates"][0].dtype == dtype
    assert float(state.size) == optim.size(params)


@pytest.mark.slow
def test_masks_chains_accumulation_and_hyperparameters_around_it():
    params = model()
    inner = optim.rank_adaptive(optax.sgd(0.05), size_weight=1.0)
    direct, _ = trained(inner, params, 20)
    mask = {"layers": True, "head": False}
    masked = optax.chain(
        optax.masked(inner, mask),
        optax.masked(optax.sgd(0.05), {"layers": False, "head": True}),
    )
    got, state = trained(masked, params, 20)
    assert_close(got, direct)
    assert optim.status(state).count == 20
    twice = optax.MultiSteps(inner, 2, accumulator_dtype=jnp.float64)
    with jax.numpy_dtype_promotion("standard"):
        got, state = trained(twice.gradient_transformation(), params, 40)
    assert optim.status(state).count == 20
    assert_close(got, direct, 1e-6)
    injected = optax.inject_hyperparams(optim.rank_adaptive, static_args=("inner",))(
        optax.sgd(0.05), size_weight=1.0
    )
    got, state = trained(injected, params, 20)
    assert_close(got, direct, 1e-6)
    assert "size_weight" in state.hyperparams


def test_states_can_be_donated_vmapped_and_scanned():
    optimizer = optim.rank_adaptive(
        optax.adam(0.02), size_weight=0.5, switch=10, size_fraction=0.5, loss_target=9.0
    )
    many = jax.tree.map(lambda *x: jnp.stack(x), *(model(k) for k in range(3)))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any) -> Any:
        return jax.vmap(lambda p, s: run(optimizer, p, s, 20))(params, state)

    params, state = step(many, jax.vmap(optimizer.init)(many))
    for k in range(3):
        alone, own = trained(optimizer, model(k), 20)
        assert_close(jax.tree.map(lambda x, k=k: x[k], params), alone, 1e-9)
        assert optim.ranks(jax.tree.map(lambda x, k=k: x[k], params)) == optim.ranks(alone)
        assert float(own.size) == float(state.size[k])
    with pytest.raises(ValueError, match="of a vmapped state"):
        optim.status(state)


def test_a_state_made_outside_jit_can_be_donated_and_holds_no_nan():
    params = model()
    optimizer = optim.rank_adaptive(optax.sgd(0.02), switch=2, size_fraction=0.5)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, params: Any) -> Any:
        return optimizer.update(params, state, params, value=jnp.asarray(1.0))[1]

    with jax.debug_nans(True), jax.debug_infs(True):
        state = optimizer.init(params)
        assert np.isnan(optim.status(state).size_target)
        for _ in range(4):
            state = step(state, params)
    assert optim.status(state).size_target == optim.size(params) / 2


def test_a_target_below_all_ranks_one_is_infeasible_at_once_and_not_pressed_for():
    params = {"layers": [train(ranks=(1, 1, 1))], "head": {"kernel": jnp.ones((2, 2))}}
    params["layers"][0]["cores"] = train()["cores"]
    params["layers"][0]["gates"] = [jnp.eye(1, r)[0] for r in RANKS]
    optimizer = optim.rank_adaptive(optax.sgd(0.1), size_fraction=0.5, switch=1, core_weight=0.0)
    zeros = optax.tree.zeros_like(params)
    state = optimizer.init(params)
    # The hook of a training loop may begin the late stage itself.
    moves, state = single_step(optimizer, zeros, state._replace(late=jnp.array(True)), params, 1.0)
    assert not any(np.asarray(g).any() for g in moves["layers"][0]["gates"])
    found = optim.status(state)
    assert found.size_target == sum(MODES) / 2
    assert found.status == "infeasible"
    assert "below 14, the size of all ranks one" in found.advice


@pytest.mark.parametrize(
    ("axes", "proximal"),
    [
        ("Explicit", None),
        pytest.param("Auto", None, marks=pytest.mark.slow),
        pytest.param("Explicit", 1.0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_sharded_cores_and_gates_give_what_replicated_ones_give(axes: str, proximal: float | None):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType[axes],))
    optimizer = optim.rank_adaptive(optax.adam(0.1), size_weight=2.0, proximal=proximal)
    params = {"mode": train(), "bond": train(ranks=(3, 4, 3))}
    specs = {
        ("mode", 1): PartitionSpec(None, "x"), ("bond", 1): PartitionSpec(None, None, "x"),
        ("bond", 2): PartitionSpec("x"),
    }  # fmt: skip

    def put(x: Any, spec: Any) -> Any:
        return jax.device_put(x, NamedSharding(mesh, spec))

    spread = {
        name: {
            "cores": [put(c, specs.get((name, k), PartitionSpec()))
                      for k, c in enumerate(layer["cores"])],
            "gates": [put(g, PartitionSpec("x" if g.shape == (4,) else None))
                      for g in layer["gates"]],
            "bias": put(layer["bias"], PartitionSpec()),
        }
        for name, layer in params.items()
    }  # fmt: skip

    def steps(params: Any) -> Any:
        state = optimizer.init(params)
        for _ in range(10):
            # Not zero: what no gradient has ever moved may be frozen, and its gates stay.
            small = optax.tree.full_like(params, 1e-6)
            moves, state = single_step(optimizer, small, state, params, 1.0)
            params = optax.apply_updates(params, moves)
        return params, state

    replicated, state = steps(params)
    with jax.set_mesh(mesh):
        sharded, other = steps(spread)
    assert len(sharded["bond"]["gates"][1].sharding.device_set) == 4
    assert float(state.size) == float(other.size) < optim.size(params)
    assert_close(jax.device_get(sharded), jax.device_get(replicated), 1e-9)
    small, _ = optim.shrink(sharded, other)
    assert optim.size(small) == float(state.size)


def test_what_cannot_work_inside_is_refused():
    params = model()
    outside = optax.MultiSteps(optim.rank_adaptive(optax.sgd(0.1), proximal=0.1), 2)
    outside.init(params)
    twice = optax.MultiSteps(optax.sgd(0.1), 2)
    for inner in (twice, optax.chain(twice.gradient_transformation())):
        with pytest.raises(ValueError, match=r"proximal: expected None with optax\.MultiSteps"):
            optim.rank_adaptive(inner, proximal=0.1).init(params)
    pair = optax.LookaheadParams.init_synced(params)
    inner = optax.lookahead(optax.sgd(0.1), 2, 0.5)
    for given in (pair, params):
        with pytest.raises(ValueError, match=r"got optax\.lookahead, which does not hand the loss"):
            optim.rank_adaptive(inner).init(given)
    around = optax.lookahead(optim.rank_adaptive(optax.sgd(0.1)), 2, 0.5)
    with pytest.raises(ValueError, match=r"which optax\.lookahead does not"):
        around.update(params, around.init(pair), pair)


def test_gates_that_would_die_at_once_are_refused():
    optimizer = optim.rank_adaptive(optax.sgd(0.1))
    layer = train()
    negative = layer | {"gates": [-layer["gates"][0], *layer["gates"][1:]]}
    with pytest.raises(ValueError, match="a/gates/0: expected gates >= 0, got -1"):
        optimizer.init({"a": negative})
    empty = layer | {"gates": [*layer["gates"][:2], jnp.zeros(3)]}
    with pytest.raises(ValueError, match="gates/2: expected a gate that is not zero"):
        optimizer.init(empty)
    optim.rank_adaptive(optax.sgd(0.1), keep_one=False).init(empty)


def test_bad_input_is_named():
    params = model()
    optimizer = optim.rank_adaptive(optax.sgd(0.1))
    state = optimizer.init(params)
    value = jnp.asarray(1.0)
    with pytest.raises(ValueError, match="value: expected the loss of this step, got none"):
        jax.jit(optimizer.update)(params, state, params)
    with pytest.raises(ValueError, match="params: expected the parameters"):
        optimizer.update(params, state, value=value)
    with pytest.raises(ValueError, match="value: expected a real scalar"):
        optimizer.update(params, state, params, value=jnp.ones(3))
    with pytest.raises(ValueError, match="updates: expected gradients of the same structure"):
        optimizer.update(params["layers"], state, params, value=value)
    with pytest.raises(ValueError, match=r"gates beside cores .* or factors \(CP\); got none"):
        optimizer.init({"kernel": jnp.ones((2, 2))})
    bare = {"a": {"cores": params["layers"][0]["cores"]}}
    with pytest.raises(ValueError, match="got cores without gates in a"):
        optimizer.init(bare)
    with pytest.raises(ValueError, match=r"head: expected .*, got gates alone"):
        optimizer.init({"head": {"gates": [jnp.ones(3)]}})
    ones = {"switch": 1, "size_target": 27.0}
    with pytest.raises(ValueError, match="size_target: expected at least 28"):
        optim.rank_adaptive(optax.sgd(0.1), **ones).init(params)
    optim.rank_adaptive(optax.sgd(0.1), keep_one=False, **ones).init(params)
    with pytest.raises(ValueError, match="size_fraction: expected at least 0"):
        optim.rank_adaptive(optax.sgd(0.1), switch=1, size_fraction=1e-3).init(params)
    with pytest.raises(TypeError, match=r"inner: expected an Optax transformation"):
        optim.rank_adaptive(optax.adam)
    late = {"switch": 3, "size_fraction": 0.5}
    for options, match in [
        ({"switch": 3}, "expected one of them with switch"),
        ({"size_target": 3.0}, "none without"),
        ({"late_threshold": 3.0}, "late_threshold: expected None without switch"),
        ({"loss_target": 0.1}, "loss_target: expected None without switch"),
        ({"late_threshold": -1.0, **ones}, "late_threshold: expected a number >= 0"),
        ({"switch": 3, "size_fraction": 2.0}, "size_fraction: expected a share"),
        ({"size_weight": -1.0}, "size_weight: expected a number >= 0"),
        ({"size_weight": None}, "size_weight: expected a number or a function, got None"),
        ({"threshold": True}, "threshold: expected a number, got True"),
        ({"loss_target": math.inf, **late}, "loss_target: expected a finite number"),
        ({"switch": math.nan, "size_fraction": 0.5}, "switch: expected a number or a function"),
        ({"loss_decay": 1.0}, "loss_decay"),
        ({"size_scale": 0.0}, "size_scale: expected a positive number"),
        ({"measure": "seconds"}, "measure: expected one of .*'bytes', 'flops'"),
        ({"rows": 0, "measure": "flops"}, "rows: expected an integer"),
    ]:
        with pytest.raises(ValueError, match=match):
            optim.rank_adaptive(optax.sgd(0.1), **options)


# Frozen parameters -------------------------------------------------------------------------------

FREEZERS = {
    "partition": lambda labels: optax.partition(
        {"frozen": optax.set_to_zero(), "free": optax.adam(0.02)}, labels
    ),
    "masked": lambda labels: optax.chain(
        optax.adam(0.02),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda x: x == "frozen", labels)),
    ),
    "rate": lambda labels: optax.partition(
        {"frozen": optax.sgd(lambda _: 0.0), "free": optax.sgd(0.05)}, labels
    ),
    "accumulated": lambda labels: optax.MultiSteps(
        FREEZERS["partition"](labels), 2, accumulator_dtype=jnp.float64
    ).gradient_transformation(),
}
PRESSURES = {
    "early": {},
    "proximal": {"proximal": 0.05},
    "late": {"switch": 20, "size_fraction": 0.8, "late_threshold": lambda n: 0.001 * n},
    "whole": {"switch": 20, "size_fraction": 0.7, "keep_one": False},
}


@pytest.mark.parametrize(
    ("freezer", "pressure"),
    [
        ("partition", "late"),
        *(pytest.param(f, p, marks=pytest.mark.slow) for f in FREEZERS for p in PRESSURES
          if (f, p) not in {("partition", "late"), ("accumulated", "proximal")}),  # it is refused
    ],
)  # fmt: skip
def test_frozen_is_frozen(rng, freezer, pressure):
    """Whole layers, and single cores and gates drawn, with gates under the threshold among them."""
    params = model()
    gates = params["layers"][0]["gates"]
    gates[1] = gates[1].at[2].set(5e-3)
    labels = jax.tree.map(lambda _: "frozen" if rng.random() < 0.3 else "free", params)
    labels["layers"][0] = jax.tree.map(lambda _: "frozen", params["layers"][0])
    labels["layers"][1]["gates"][0] = "free"
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optim.rank_adaptive(
            FREEZERS[freezer](labels), size_weight=5.0, core_weight=1e-3, **PRESSURES[pressure]
        )
        after, state = trained(optimizer, params, 120)
    for label, a, b in zip(*map(jax.tree.leaves, (labels, params, after)), strict=True):
        if label == "frozen":
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(full(params["layers"][0]), full(after["layers"][0]))
    ranks = optim.ranks(after)
    assert ranks["layers/0"] == optim.ranks(params)["layers/0"]
    assert sum(ranks["layers/1"]) < sum((2, 4, 3))  # the others go on losing ranks
    assert float(state.size) == optim.size(after)


FIRST_FREEZERS = {
    **FREEZERS,
    "before": lambda labels: optax.chain(
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda x: x == "frozen", labels)),
        optax.adam(0.02),
    ),
    "finite": lambda labels: optax.apply_if_finite(FREEZERS["partition"](labels), 3),
}


@pytest.mark.parametrize(
    ("freezer", "pressure"),
    [
        ("before", "proximal"),
        *(pytest.param(f, p, marks=pytest.mark.slow) for f in FIRST_FREEZERS
          for p in ("early", "proximal")
          if (f, p) not in {("before", "proximal"), ("accumulated", "proximal")}),
    ],
)  # fmt: skip
def test_frozen_is_frozen_before_its_first_gradient(rng, freezer, pressure):
    """A frozen layer whose outputs go through a weight that is zero at first, or through none."""
    params = {**model(), "scale": jnp.zeros(())}
    for k in rng.permutation(3)[:2]:
        gates = params["layers"][0]["gates"]
        gates[k] = gates[k].at[int(rng.integers(gates[k].size))].set(5e-3)
    labels = jax.tree.map(lambda _: "free", params)
    labels["layers"][0] = jax.tree.map(lambda _: "frozen", params["layers"][0])
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optim.rank_adaptive(
            FIRST_FREEZERS[freezer](labels), size_weight=1e-9, core_weight=0.0,
            **PRESSURES[pressure],
        )  # fmt: skip
    wake = int(rng.integers(1, 5))

    def objective(params, count):
        target = jnp.linspace(-1, 1, int(np.prod(MODES))).reshape(MODES)
        below = jnp.where(count < wake, 0.0, params["scale"]) * full(params["layers"][0])
        return jnp.mean((below + full(params["layers"][1]) - target) ** 2)

    def step(count, carry):
        params, state = carry
        value, gradients = jax.value_and_grad(objective)(params, count)
        updates, state = optimizer.update(gradients, state, params, value=value)
        return optax.apply_updates(params, updates), state

    with jax.numpy_dtype_promotion("standard"):
        start = params, optimizer.init(params)
        after, _ = jax.jit(lambda c: jax.lax.fori_loop(0, 30, step, c))(start)
    jax.tree.map(np.testing.assert_array_equal, params["layers"][0], after["layers"][0])
    assert not np.array_equal(params["layers"][1]["cores"][0], after["layers"][1]["cores"][0])


def test_a_target_below_what_frozen_layers_have_is_infeasible():
    params = model()
    labels = jax.tree.map(lambda _: "free", params)
    labels["layers"][0] = jax.tree.map(lambda _: "frozen", params["layers"][0])
    inner = optax.partition({"frozen": optax.set_to_zero(), "free": optax.adam(0.02)}, labels)
    optimizer = optim.rank_adaptive(inner, switch=5, size_fraction=0.3)
    _, state = trained(optimizer, params, 30)
    found = optim.status(state)
    assert found.status == "infeasible"
    assert "frozen layers as they are" in found.advice
    whole = optim.size({"layers": params["layers"][:1]})
    assert float(state.least) == whole + sum(MODES)


# Cuts that bring the loss near chance ------------------------------------------------------------


def orthogonal(seed: int, noise: float) -> Any:
    """A loss whose target no smaller rank fits, with noise of a minibatch, and its parameters."""
    rng = np.random.default_rng(seed)
    matrix = np.linalg.qr(rng.standard_normal((12, 12)))[0].reshape(MODES)

    def loss(params: Any, key: Any) -> jax.Array:
        value = 12 * jnp.mean((full(params["layers"][0]) - matrix) ** 2)
        return value * (1 + noise * jax.random.normal(key))

    return loss, {"layers": [train(seed, (3, 12, 3))]}


def followed(optimizer: Any, loss: Any, params: Any, steps: int) -> Any:
    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, key)
        updates, state = optimizer.update(gradients, state, params, value=value)
        return (optax.apply_updates(params, updates), state), (value, state.watch.refused)

    keys = jax.random.split(jax.random.key(1), steps)
    return jax.jit(lambda c: jax.lax.scan(step, c, keys))((params, optimizer.init(params)))


@pytest.mark.parametrize(
    ("seed", "noise"),
    [(5, 0.0), *(pytest.param(s, n, marks=pytest.mark.slow) for s in (1, 2) for n in (0.0, 0.1))],
)
def test_a_cut_to_chance_is_undone_and_named(seed: int, noise: float):
    loss, params = orthogonal(seed, noise)
    optimizer = optim.rank_adaptive(
        optax.adam(0.02), size_weight=0.0, switch=300, size_fraction=0.2,
        late_threshold=lambda n: jnp.where(n < 310, 0.01, 1e6),
    )  # fmt: skip
    (after, state), (values, refused) = followed(optimizer, loss, params, 420)
    assert int(refused[-1]) >= 1
    first = int(np.argmax(np.asarray(refused) > 0))
    # Back where it was: the gates, the size, and so the loss, but for the steps of the trial.
    assert float(values[first]) > 0.5  # chance, the loss of zero, is 1: it is below the first loss
    assert float(values[first + 1]) < 0.75 * float(values[first])
    found = optim.status(state)
    assert found.advice
    assert found.size > found.size_target
    assert found.status in ("infeasible", "collapsed", "running")
    assert optim.size(after) == found.size


@pytest.mark.parametrize("shift", [0.0, pytest.param(-50.0, marks=pytest.mark.slow)])
def test_a_trained_model_that_a_cut_ruins_is_named(shift: float):
    """Its first loss is not chance, which no loss tells; `status` is not silent all the same."""
    objective, params = orthogonal(3, 0.0)
    params, _ = trained_plainly(objective, params)
    optimizer = optim.rank_adaptive(
        optax.adam(0.02), size_weight=0.0, switch=5, size_fraction=0.2,
        late_threshold=lambda n: jnp.where(n < 10, 0.01, 1e6),
    )  # fmt: skip
    state = followed(optimizer, lambda p, k: objective(p, k) + shift, params, 60)[0][1]
    found = optim.status(state)
    assert found.loss > found.loss_target + 0.3
    assert "above" in found.advice or found.status in ("collapsed", "infeasible")


def trained_plainly(objective: Any, params: Any) -> tuple[Any, Any]:
    adam = optax.adam(0.02)

    def step(_: Any, carry: Any) -> tuple[Any, Any]:
        params, state = carry
        updates, state = adam.update(jax.grad(objective)(params, jax.random.key(0)), state)
        return optax.apply_updates(params, updates), state

    with jax.numpy_dtype_promotion("standard"):
        return jax.jit(lambda c: jax.lax.fori_loop(0, 400, step, c))((params, adam.init(params)))


def test_a_loss_near_chance_in_the_late_stage_is_named():
    """Whatever brought it there: here the losses themselves, handed in."""
    params = model()
    optimizer = optim.rank_adaptive(
        optax.sgd(1e-3), switch=6, size_fraction=0.9, size_weight=0.0, loss_decay=0.5
    )
    state, zeros = optimizer.init(params), optax.tree.ones_like(params)
    for value in (2.3, 2.2, 1.0, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4):
        _, state = single_step(optimizer, zeros, state, params, value)
    assert optim.status(state).status != "collapsed"
    for value in (2.3, 2.3, 2.3):
        _, state = single_step(optimizer, zeros, state, params, value)
    found = optim.status(state)
    assert found.status == "collapsed"
    assert "near that of the beginning" in found.advice
