"""`optim.rank_adaptive` to a target size: cuts, changes of basis, moments, status, checkpoints."""

import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from tensorjax import optim
from tensorjax.optim._gate_updates import Gates, plus
from tensorjax.optim._packed_arrays import Counters
from tensorjax.optim._sizes_and_ranks import polynomial
from tensorjax.optim._target import basis_change as _basis_change
from tensorjax.optim._target import optimizer_moments as _optimizer_moments
from tensorjax.optim._target import target_update as _target_update
from tensorjax.optim._tensorised_layers import gated
from tensorjax.optim._trial_cuts import NUMBERS, Watch, fresh, judged, seen
from tests.oracles import compilations

SHAPES = [(1, 4, 5), (5, 6, 7), (7, 5, 4), (4, 6, 1)]


def drawn(rng: np.random.Generator, shapes: Any, dtype: Any = np.float32) -> dict[str, Any]:
    cores = [0.5 * rng.standard_normal(s) for s in shapes]
    if np.issubdtype(dtype, np.complexfloating):
        cores = [c + 0.5j * rng.standard_normal(c.shape) for c in cores]
    gates = [rng.uniform(0.5, 1.5, s[-1]) for s in shapes[:-1]]
    real = np.zeros(0, dtype).real.dtype
    return {"cores": [jnp.asarray(c, dtype) for c in cores],
            "gates": [jnp.asarray(g, real) for g in gates]}  # fmt: skip


def full(layer: dict[str, Any]) -> jax.Array:
    out = layer["cores"][0]
    for gate, core in zip(layer["gates"], layer["cores"][1:], strict=True):
        core = gate.astype(core.dtype).reshape(-1, *(1,) * (core.ndim - 1)) * core
        out = jnp.tensordot(out, core, 1)
    return out[0, ..., 0]


def problem(seed: int, noise: float = 0.0) -> Any:
    """A train to be fitted whose singular values fall, and parameters to begin with."""
    rng = np.random.default_rng(seed)
    target = drawn(rng, SHAPES)
    for k, gate in enumerate(target["gates"]):
        target["gates"][k] = jnp.asarray(0.5 ** np.arange(gate.size), gate.dtype)
    goal = full(target)
    goal = goal / jnp.sqrt(jnp.mean(goal**2))

    def loss(params: Any, key: Any) -> jax.Array:
        value = jnp.mean((full(params["a"]) - goal) ** 2)
        return value * (1 + noise * jax.random.normal(key))

    start = drawn(rng, SHAPES)
    start["gates"] = [jnp.ones_like(g) for g in start["gates"]]
    return loss, {"a": start, "bias": jnp.zeros(3)}


@functools.partial(jax.jit, static_argnums=(0, 1))
def scanned(optimizer: Any, loss: Any, params: Any, state: Any, keys: Any) -> Any:
    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, key)
        updates, state = optimizer.update(gradients, state, params, value=value)
        return (optax.apply_updates(params, updates), state), value

    return jax.lax.scan(step, (params, state), keys)


def trained(optimizer: Any, loss: Any, params: Any, steps: int, state: Any = None) -> Any:
    state = jax.jit(optimizer.init)(params) if state is None else state
    with jax.numpy_dtype_promotion("standard"):
        return scanned(optimizer, loss, params, state, jax.random.split(jax.random.key(0), steps))


INNER = {
    "adamw": lambda: optax.adamw(0.01),
    "sgd": lambda: optax.sgd(0.3),
    "momentum": lambda: optax.sgd(0.02, momentum=0.9),
    "lion": lambda: optax.lion(0.003),
    "adafactor": lambda: optax.adafactor(0.01),
    "lamb": lambda: optax.lamb(0.01),
    "muon": lambda: contrib.muon(0.01),
    "schedule_free": lambda: contrib.schedule_free_adamw(0.02),
    # Takes extra arguments, but not the loss; keeps parameters between two updates.
    "sam": lambda: contrib.sam(optax.adam(0.01), optax.sgd(1e-3), opaque_mode=False),
    "accumulated": lambda: optax.MultiSteps(optax.adam(0.01), 3).gradient_transformation(),
    "partition": lambda: optax.partition(
        {"core": optax.adam(0.01), "gate": optax.lion(0.003), "dense": optax.adam(0.01)},
        optim.labels,
    ),
}


def turned(
    layout: Any, leaves: Any, moving: Any, moments: Any, stays: Any, balanced: Any = None
) -> tuple[dict[int, jax.Array], list[jax.Array]]:
    """Parts and moments after an update that cuts nothing and changes the bases."""
    members = {k for layer in layout.layers for k in (*layer.cores, *layer.gates)}

    @jax.jit
    def update(leaves: Any, moments: Any, stays: Any) -> Any:
        moves = [jnp.zeros_like(x) for x in leaves]
        none = _target_update._undecided(layout, moves)
        counters = Counters.below(_basis_change.counters_of(layout, leaves, moving))
        moments = _basis_change.cut_and_changed(
            layout, leaves, moves, none, moving, moments, jnp.stack([*stays]), jnp.array(True),
            balanced or [False] * len(layout.layers), counters,
        )  # fmt: skip
        return {k: plus(leaves[k], moves[k]) for k in members}, moments

    return update(leaves, moments, stays)


def test_a_change_of_basis_keeps_what_a_layer_does_and_moves_its_moments(rng) -> None:
    for dtype, shapes in [(np.float64, SHAPES), (np.complex128, SHAPES),
                          (np.float64, [(1, 2, 3, 4), (4, 3, 2, 5), (5, 3, 2, 1)])]:  # fmt: skip
        layer = drawn(rng, shapes, dtype)
        gone = int(rng.integers(layer["gates"][0].size))
        layer["gates"][0] = layer["gates"][0].at[gone].set(0.0)
        layer["cores"][0] = layer["cores"][0].at[..., gone].set(0.0)
        layer["cores"][1] = layer["cores"][1].at[gone].set(0.0)
        goal = full(drawn(rng, shapes, dtype))

        def loss(params: Any, goal: Any = goal) -> jax.Array:
            return jnp.sum(jnp.abs(full(params) - goal) ** 2)

        layout, leaves = gated(layer), jax.tree.leaves(layer)
        slope = jax.jit(jax.grad(loss))
        gradient = slope(layer)
        state = optax.trace(0.9).init(layer)._replace(trace=gradient)
        moving = _optimizer_moments.moments_of(layout, leaves, state)
        given = [jax.tree.leaves(state)[n] for n, *_ in moving]
        new, moments = turned(layout, leaves, moving, given, [jnp.array(False)])
        after = jax.tree.unflatten(jax.tree.structure(layer), [new[k] for k in range(len(leaves))])
        np.testing.assert_allclose(full(after), full(layer), atol=1e-10)
        rank = layer["gates"][0].size
        np.testing.assert_array_equal(after["gates"][0], np.arange(rank) < rank - 1)
        wanted = optim.canonical(layer)
        for a, b in zip(after["cores"], wanted["cores"], strict=True):
            np.testing.assert_allclose(np.linalg.norm(a), np.linalg.norm(b), rtol=1e-3)
        # A momentum is an average of gradients: it is now that of the new parameters.
        there = jax.tree.leaves(slope(after))
        for (_, k, _), moment in zip(moving, moments, strict=True):
            if k in layout.layers[0].cores:
                np.testing.assert_allclose(moment, there[k], atol=1e-7 * np.abs(there[k]).max())


def test_tucker_and_shut_layers_keep_what_they_do(rng) -> None:
    tucker = {
        "core": jnp.asarray(rng.standard_normal((2, 3, 5))),
        "factors": [jnp.asarray(rng.standard_normal(s)) for s in ((5, 2), (2, 3, 3), (4, 3, 5))],
        "gates": [jnp.asarray(rng.uniform(0.5, 2, n)) for n in (2, 3, 5)],
    }

    def whole(x: Any) -> jax.Array:
        parts = [
            f.reshape(-1, g.size) * g[None] for f, g in zip(x["factors"], x["gates"], strict=True)
        ]
        return jnp.einsum("abc,ia,jb,kc->ijk", x["core"], *parts)

    layout, leaves = gated(tucker), jax.tree.leaves(tucker)
    new, _ = turned(layout, leaves, [], [], [jnp.array(False)])
    after = jax.tree.unflatten(jax.tree.structure(tucker), [new[k] for k in range(len(leaves))])
    np.testing.assert_allclose(whole(after), whole(tucker), atol=1e-10)
    new, _ = turned(layout, leaves, [], [], [jnp.array(False)], balanced=[True])
    after = jax.tree.unflatten(jax.tree.structure(tucker), [new[k] for k in range(len(leaves))])
    np.testing.assert_allclose(whole(after), whole(tucker), atol=1e-10)
    found = {k: jax.jacobian(lambda x, k=k: whole({**after, k: x}))(after[k])
             for k in ("core", "factors")}  # fmt: skip
    size = whole(after).size
    norms = [float(jnp.linalg.norm(d.reshape(size, -1), 2)) for d in jax.tree.leaves(found)]
    np.testing.assert_allclose(norms, norms[0], rtol=1e-6)
    # A side that is zero, as that of adapters at their start, has no singular vectors: it stays.
    adapter = drawn(rng, [(1, 6, 3), (3, 6, 1)], np.float64)
    adapter["cores"][1] = jnp.zeros_like(adapter["cores"][1])
    layout, leaves = gated(adapter), jax.tree.leaves(adapter)
    new, _ = turned(layout, leaves, [], [], [jnp.array(False)])
    np.testing.assert_allclose(new[0], adapter["cores"][0] * adapter["gates"][0][None, None])
    np.testing.assert_array_equal(new[2], 1)


def environments(layer: dict[str, Any]) -> list[float]:
    """Largest singular values of the derivatives of a train by each of its cores."""

    def with_core(core: jax.Array, k: int) -> jax.Array:
        return full({**layer, "cores": [*layer["cores"][:k], core, *layer["cores"][k + 1 :]]})

    return [
        float(jnp.linalg.norm(jax.jacobian(with_core)(core, k).reshape(-1, core.size), 2))
        for k, core in enumerate(layer["cores"])
    ]


@pytest.mark.slow
def test_derivatives_by_the_cores_become_equally_large_for_steps_along_gradients(rng) -> None:
    drawn_shapes: Any = [[(1, 5, 5), *SHAPES[1:]], [(1, 6, 4), (4, 2, 5, 5), (5, 5, 1)]]
    shapes = drawn_shapes[int(rng.integers(2))]
    layers = {
        name: jax.tree.map(lambda x: 3 * x, drawn(rng, shapes, np.float64)) for name in ("a", "b")
    }
    optimizers = {"free": optax.sgd(0.1, momentum=0.9), "adam": optax.adam(0.1)}
    labels = {"a": "free", "b": "adam"}
    inner = optax.partition(optimizers, jax.tree_util.tree_map_with_path(
        lambda path, _: labels[path[0].key], layers))  # fmt: skip
    layout, leaves = gated(layers), jax.tree.leaves(layers)
    state = inner.init(layers)
    balanced = _optimizer_moments.by_gradient(layout, state)
    assert [balanced[[layer.name for layer in layout.layers].index(name)] for name in "ab"] == [
        True, False,
    ]  # fmt: skip
    moving = _optimizer_moments.moments_of(layout, leaves, state)
    gradients = jax.grad(lambda p: sum(jnp.sum(jnp.sin(full(x))) for x in p.values()))(layers)
    pulls = jax.tree.leaves(gradients)
    new, moments = turned(
        layout, leaves, moving, [pulls[k] for _, k, _ in moving], [jnp.array(False)] * 2,
        balanced=balanced,
    )  # fmt: skip
    after = jax.tree.unflatten(jax.tree.structure(layers), [new[k] for k in range(len(leaves))])
    for name in "ab":
        np.testing.assert_allclose(full(after[name]), full(layers[name]), rtol=1e-9, atol=1e-9)
    wanted, unequal = environments(after["a"]), environments(after["b"])
    np.testing.assert_allclose(wanted, wanted[0], rtol=1e-6)
    assert max(wanted) < 0.9 * max(unequal)
    there = jax.tree.leaves(jax.grad(lambda p: sum(jnp.sum(jnp.sin(full(x))) for x in p.values()))(
        after))  # fmt: skip
    cores = {k for layer in layout.layers for k in layer.cores}
    for (_, k, _), moment in zip(moving, moments, strict=True):
        if k in cores and bool(jnp.any(pulls[k] < 0)):  # else taken for a square
            np.testing.assert_allclose(moment, there[k], atol=1e-7 * np.abs(there[k]).max())
    # A frozen layer, or one of no clear basis, is left as it is.
    still, _ = turned(layout, leaves, [], [], [jnp.array(True)] * 2, balanced)
    for k, x in still.items():
        np.testing.assert_array_equal(x, leaves[k])


@pytest.mark.parametrize(
    ("name", "grows"),
    [("sgd", False), ("momentum", True), ("lion", False), ("adamw", False), ("adafactor", False),
     ("lamb", False), ("muon", False), ("schedule_free", False), ("sam", False),
     ("accumulated", False), ("partition", False)],
)  # fmt: skip
def test_optimisers_whose_steps_grow_with_the_gradient_are_known(name: str, grows: bool) -> None:
    _, params = problem(0)
    with jax.numpy_dtype_promotion("standard"):
        state = jax.eval_shape(lambda p: INNER[name]().init(p), params)
    assert _optimizer_moments.by_gradient(gated(params), state) == [grows]


@pytest.mark.parametrize(
    "name",
    [n if n == "adamw" else pytest.param(n, marks=pytest.mark.slow) for n in INNER],
)
def test_every_inner_optimiser_meets_the_size_by_its_update(name: str) -> None:
    loss, params = problem(3)
    target = 0.4 * optim.size(params)
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optim.rank_adaptive(INNER[name](), size=target, by=200)
        (after, state), values = trained(optimizer, loss, params, 300)
    assert optim.size(after) == float(state.size) <= target
    assert optim.status(state).status == "converged"
    assert float(values[-1]) < 0.3 * float(values[0])
    assert all(float(g.min()) >= 0 for g in after["a"]["gates"])
    small, moments = optim.shrink(after, state) if name != "adafactor" else optim.shrink(
        after, state, fresh=optimizer)  # fmt: skip
    np.testing.assert_allclose(full(small["a"]), full(after["a"]), atol=1e-6)
    assert optim.size(small) == optim.size(after)
    # Training goes on from the smaller arrays.
    (again, _), _ = trained(optimizer, loss, small, 2, moments)
    assert optim.size(again) == optim.size(small)


def test_one_undone_cut_of_an_index_is_not_the_last_try(rng) -> None:
    together = int(rng.integers(1, 7))  # as copies of a stacked layer lose an index each at once
    watch = fresh({}, 64, 2.0)._replace(low=jnp.float32(0.1), last=jnp.float32(0.1))
    found = []
    for loss in (0.2, *[1.9] * 20):
        # The cut of before is judged; then, without one on trial, the next one is allowed.
        tried = watch._replace(tried=jnp.int32(8), total=jnp.float32(8 * loss))
        watch, _ = judged(tried, 1.0, 9.0, jnp.float32(together), 64)
        watch, verdict = judged(watch, 1.0, 9.0, jnp.float32(0), 64)
        found.append(float(verdict.most))
    assert found[0] == 64
    single = [most for most in found if most == 1]
    assert len(single) >= 5 if together > 1 else len(single) == 4
    assert found[-1] == 0
    assert int(watch.refused) == 20


def test_what_the_inner_optimiser_freezes_stays_bit_for_bit(rng) -> None:
    loss, params = problem(4)
    frozen = drawn(rng, SHAPES)
    params = {**params, "b": frozen}
    labels = {"a": "free", "b": "frozen", "bias": "free"}
    inner = optax.partition(
        {"free": optax.adam(0.01), "frozen": optax.set_to_zero()},
        jax.tree.map(lambda label, tree: jax.tree.map(lambda _: label, tree), labels, params,
                     is_leaf=lambda x: isinstance(x, str)),
    )  # fmt: skip
    target = optim.size({"b": frozen}) + 0.4 * optim.size({"a": params["a"]})
    optimizer = optim.rank_adaptive(inner, size=target, by=100)

    def both(p: Any, key: Any) -> jax.Array:
        return loss(p, key) + jnp.mean(full(p["b"]) * full(p["a"]))

    (after, state), _ = trained(optimizer, both, params, 120)
    jax.tree.map(np.testing.assert_array_equal, after["b"], frozen)
    assert optim.size(after) <= target
    low = optim.rank_adaptive(inner, size=optim.size({"b": frozen}), by=20)
    _, state = trained(low, both, params, 30)[0]
    found = optim.status(state)
    assert found.status == "infeasible"
    assert "let more layers train" in found.advice


@pytest.mark.parametrize(
    ("seed", "paper"),
    [(5, True), *(pytest.param(s, p, marks=pytest.mark.slow) for s in (5, 6)
                  for p in (True, False) if (s, p) != (5, True))],
)  # fmt: skip
def test_a_trained_model_is_cut_whatever_its_first_loss(seed: int, paper: bool) -> None:
    loss, params = problem(seed)
    (params, _), before = trained(
        optax.with_extra_args_support(optax.adam(0.01)), loss, params, 150
    )
    options: Any = {"size": 0.3 * optim.size(params), "by": 200}
    if paper:
        options = {
            "size_weight": 0.0, "switch": 100, "size_fraction": 0.4,
            "late_threshold": lambda n: jnp.where(n < 120, 0.01, (n - 110.0) / 50),
        }  # fmt: skip
    (_, state), values = trained(
        optim.rank_adaptive(optax.adam(0.01), **options), loss, params, 500
    )
    found = optim.status(state)
    assert found.size <= found.size_target
    assert int(state.watch.refused) == 0
    assert float(values[-1]) < 0.5 * float(before[0])


def test_chance_may_be_given() -> None:
    loss, params = problem(8)
    optimizer = optim.rank_adaptive(optax.sgd(0.0), size=100, by=50, chance=1.0)
    state = optimizer.init(params)
    assert float(state.watch.start) == 1.0
    (_, state), _ = trained(optimizer, lambda p, k: 0.1 + 0 * loss(p, k), params, 5, state)
    assert (float(state.watch.first), float(state.watch.start)) == (1.0, 1.0)
    with pytest.raises(ValueError, match="chance: expected a finite number"):
        optim.rank_adaptive(optax.sgd(0.1), chance=np.inf)


def test_compression_counts_all_parameters() -> None:
    rng = np.random.default_rng(0)
    params = {"a": drawn(rng, SHAPES), "bias": jnp.zeros(7), "w": jnp.ones((3, 3))}
    dense = 4 * 6 * 5 * 6 + 7 + 9
    optimizer = optim.rank_adaptive(optax.adam(0.01), compress_to=5, by=40)
    (after, state), _ = trained(optimizer, lambda p, k: jnp.mean(full(p["a"]) ** 2), params, 45)
    assert optim.size(after, everything=True) <= dense / 5
    assert optim.size(after) == float(state.size) >= 0.6 * (dense / 5 - 16)
    # The loss of the first cut, and one three times as high beside noise of the same size.
    target = float(jnp.maximum(state.loss_target, 1e-3))
    far = {"first": 1e3 * target, "given": True, "low": target}  # from chance
    noisy = state.watch._replace(noise=state.mass * target**2, **far)
    for factor, said in ((1, False), (3, True)):
        seen = state._replace(loss=factor * target * state.mass, loss_target=target, watch=noisy)
        found = optim.status(seen)
        assert (found.status, "allow a larger size" in found.advice) == ("converged", said)
    with pytest.raises(ValueError, match=r"compress_to: expected at most .* tensorise more"):
        optim.rank_adaptive(optax.adam(0.01), compress_to=100, by=40).init(params)
    with pytest.raises(ValueError, match="size: expected at least 21"):
        optim.rank_adaptive(optax.adam(0.01), size=20, by=40).init(params)


def test_status_tells_a_loss_that_never_fell_from_one_that_did() -> None:
    _, params = problem(8)
    optimizer = optim.rank_adaptive(optax.sgd(0.0), size=10**6, by=5, chance=1.0)
    state = optimizer.init(params)._replace(met=jnp.array(True), size_target=jnp.float32(50))
    for value, said in ((0.99, "collapsed"), (0.5, "converged")):
        seen = state._replace(count=jnp.int32(9), loss=jnp.float32(value), mass=jnp.float32(1))
        low = jnp.float32(1.0 if value > 0.9 else value)
        watch = seen.watch._replace(low=low, last=jnp.float32(value))
        seen = seen._replace(loss_target=jnp.float32(1.0), best=jnp.float32(value), watch=watch)
        found = optim.status(seen)
        assert (found.status, "has learnt nothing, 1" in found.advice) == (said, value > 0.9)


def test_a_loss_that_falls_fast_is_no_collapse() -> None:
    """Chance is then estimated low, and the average lags far behind the loss."""
    _, params = problem(8)
    begin = optim.rank_adaptive(optax.sgd(0.0), size=10**6, by=40).init(params)
    see = jax.jit(seen)
    for seed in range(4):
        rng, decay = np.random.default_rng(seed), 0.99
        first, fall = rng.uniform(1, 5), rng.uniform(0.15, 0.4)
        losses = [first * max(fall**n, 1e-4) for n in range(60)]
        watch, state = begin.watch, begin
        for n, value in enumerate([*losses, *[first] * 12]):
            if n == len(losses):
                assert float(watch.start) < float(state.loss / state.mass)
                assert optim.status(state).status == "converged"
            # Half of the loss is of the outputs, until the estimate of chance is final.
            given = np.float32(value), np.float32(value / 2)
            late = np.array(n >= 5)
            watch = see(watch, *given, late, np.array(True), np.float32(decay), late)
            state = state._replace(
                count=np.int32(n + 1), late=late, watch=watch,
                loss=decay * state.loss + (1 - decay) * value,
                mass=decay * state.mass + (1 - decay),
            )  # fmt: skip
            average = state.loss / state.mass
            state = state._replace(best=average, loss_target=average)
        assert float(watch.start) < 0.1 * first
        assert optim.status(state).status == "collapsed"


def test_status_says_why_nothing_was_pruned() -> None:
    loss, params = problem(2)
    optimizer = optim.rank_adaptive(optax.adam(1e-3), size=10**6, by=5)
    assert "nothing to prune" in optim.status(optimizer.init(params)).advice
    early = optim.rank_adaptive(optax.sgd(1e-6))
    (_, state), _ = trained(early, loss, params, 10)
    assert optim.status(state).advice == ""
    found = optim.status(state, patience=10)
    assert "nothing was pruned: the smallest gate is 1" in found.advice
    assert "compress_to" in found.advice


def test_options_that_do_not_go_together_are_named() -> None:
    for options, match in [
        ({"compress_to": 10}, "by: expected the update"),
        ({"by": 10}, "expected one of them with by.* got none"),
        ({"compress_to": 10, "size": 3, "by": 10}, "got both"),
        ({"compress_to": 0.5, "by": 10}, "compress_to: expected a number >= 1"),
        ({"compress_to": 2, "by": 0}, "by: expected an integer"),
        ({"compress_to": 2, "by": 10, "measure": "bytes"}, "give size in that measure"),
        ({"size": -1.0, "by": 10}, "size: expected a positive number"),
        ({"size": 9, "by": 10, "size_weight": 1.0}, "size_weight: expected the default"),
        ({"size": 9, "by": 10, "keep_one": False}, "keep_one: expected the default"),
        ({"size": 9, "by": 10, "switch": 3, "size_fraction": 0.5}, "expected the default"),
    ]:
        with pytest.raises(ValueError, match=match):
            optim.rank_adaptive(optax.sgd(0.1), **options)


def test_checkpoints_do_not_mind_shapes(tmp_path) -> None:
    _, params = problem(1)
    params["a"]["gates"][1] = params["a"]["gates"][1].at[2:5].set(0.0)
    optimizer = optax.chain(optax.clip(1.0), optax.adam(0.01))
    small, state = optim.shrink(params, optimizer.init(params))
    optim.save(tmp_path / "x", small, state, {"key": jax.random.key(3)})
    found = optim.load(tmp_path / "x", params, optimizer.init(params), {"key": jax.random.key(0)})
    jax.tree.map(np.testing.assert_array_equal, found[:2], (small, state))
    assert found[2]["key"] == jax.random.key(3)
    with pytest.raises(ValueError, match="trees: expected those that were saved"):
        optim.load(tmp_path / "x", params)
    with pytest.raises(FileNotFoundError, match="path: expected a checkpoint"):
        optim.load(tmp_path / "y", params)


def test_sums_over_bonds_and_slopes_of_the_size_are_those_of_single_bonds(rng) -> None:
    layers = {}
    for n in range(int(rng.integers(2, 5))):
        ranks = (1, *rng.integers(1, 6, int(rng.integers(1, 4))), 1)
        layers[str(n)] = {"cores": [np.ones((a, 3, b), "f") for a, b in itertools.pairwise(ranks)],
                          "gates": [rng.random(r).astype("f") for r in ranks[1:-1]]}  # fmt: skip
    layout, leaves = gated(layers), jax.tree.leaves(layers)
    gates = Gates.of(layout)
    single = [np.where(rng.random(leaves[k].shape) < 0.3, 0, leaves[k]) for k in layout.gates]
    forms = [polynomial(layout, measure, 3) for measure in ("numbers", "flops")]

    @jax.jit
    def found(flat: jax.Array) -> Any:
        sums = gates.per_bond(flat)
        return sums, gates.largest(flat, flat != 0), [
            (form.slopes(sums), jax.grad(form)(sums)) for form in forms
        ]  # fmt: skip

    sums, largest, slopes = found(np.concatenate(single))
    np.testing.assert_allclose(sums, [g.sum() for g in single], rtol=1e-6)
    top = [(np.arange(g.size) == g.argmax()) & (g > 0) for g in single]
    np.testing.assert_array_equal(largest, np.concatenate(top))
    for slope, wanted in slopes:
        np.testing.assert_allclose(slope, wanted, rtol=1e-5)


def test_the_program_of_a_decision_does_not_grow_with_the_gates(rng) -> None:
    def operations(rank: int) -> list[str]:
        params = drawn(rng, [(1, 4, rank), (rank, 5, rank), (rank, 4, 1)])
        optimizer = optim.rank_adaptive(optax.sgd(0.1), switch=1, size_fraction=0.5)
        state = jax.eval_shape(optimizer.init, params)

        def update(params: Any, state: Any) -> Any:
            return optimizer.update(params, state, params, value=jnp.float32(1))

        text = jax.jit(update).trace(params, state).lower().as_text()
        return [word for word in text.split() if word.startswith(("stablehlo.", '"stablehlo.'))]

    small, large = operations(3), operations(int(rng.integers(100, 200)))
    assert len(small) == len(large)
    # On CPUs a sum by scattering is a loop of one step per gate: only the order of a cut needs it.
    assert sum("scatter" in word for word in large) <= 1


def test_trains_of_all_shapes_change_their_bases_in_one_loop(rng) -> None:
    # Trains of other shapes and orders are padded to the same loop.
    alike: list[Any] = [[(1, 4, 3), (3, 5, 2), (2, 3, 1)]] * int(rng.integers(2, 4))
    shapes = [*alike, [(1, 3, 2), (2, 4, 1)], [(1, 2, 3, 4), (4, 3, 2, 5), (5, 3, 2, 2), (2, 4, 1)]]
    layers = {str(n): drawn(rng, s, np.float64) for n, s in enumerate(shapes)}
    layers["0"]["gates"][1] = layers["0"]["gates"][1].at[0].set(0.0)
    stays = [jnp.array(bool(n == 1)) for n in range(len(shapes))]

    def alone(layers: Any, stays: Any) -> Any:
        layout, leaves = gated(layers), jax.tree.leaves(layers)
        state = optax.adam(0.1).init(layers)
        state = (state[0]._replace(mu=layers, nu=jax.tree.map(jnp.square, layers)), state[1])
        moving = _optimizer_moments.moments_of(layout, leaves, state)
        moments = [jax.tree.leaves(state)[n] for n, *_ in moving]
        new, moved = turned(layout, leaves, moving, moments, stays)
        found: dict[int, list[jax.Array]] = {k: [x] for k, x in new.items()}
        for (_, k, _), x in zip(moving, moved, strict=True):
            found[k].append(x)
        return jax.tree.unflatten(jax.tree.structure(layers), [found[k] for k in sorted(found)])

    together = jax.jit(alone)(layers, stays)
    single = jax.jit(alone)
    for n, (name, layer) in enumerate(layers.items()):
        one = single({"0": layer}, stays[n : n + 1])["0"]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), together[name], one)
    # One copy of the change in the program, however many layers there are.
    text = jax.jit(alone).lower(layers, stays).as_text()
    less = {k: layers[k] for k in ("0", str(len(shapes) - 1))}
    small = jax.jit(alone).lower(less, [stays[0], stays[-1]]).as_text()
    assert text.count("lapack") == small.count("lapack") > 0
    assert text.count("call @svd") == small.count("call @svd") > 0


@pytest.mark.slow
def test_equal_layers_share_their_compiled_kernels(rng) -> None:
    shapes = [(1, 4, int(rng.integers(3, 6))), (0, 5, 1)]
    shapes[1] = (shapes[0][2], *shapes[1][1:])
    layer = drawn(rng, shapes)

    def kernels(count: int) -> int:
        """Different bodies of fusions in the compiled update, whatever their values are named."""
        params = dict.fromkeys(map(str, range(count)), layer)
        optimizer = optim.rank_adaptive(optax.sgd(0.1), compress_to=2, by=40)
        state = jax.eval_shape(optimizer.init, params)
        update = jax.jit(lambda p, s: optimizer.update(p, s, p, value=jnp.float32(1.0)))
        text = update.lower(params, state).compile().as_text()
        bodies = re.split(r"\n(?=[%E])", text)
        named = {body.split(" ", 1)[0]: body.split("\n", 1)[-1] for body in bodies}
        found = set()
        for name in re.findall(r" fusion\(.*?calls=(%[\w.\-]+)", text):
            body = re.sub(r", metadata=\{[^}]*\}|calls=\S+", "", named[name])
            names: dict[str, str] = {}
            found.add(re.sub(
                r"%[\w.\-]+", lambda m: names.setdefault(m[0], str(len(names))), body  # noqa: B023
            ))  # fmt: skip
        return len(found)

    few, many = kernels(2), kernels(6)
    # Packing, sums over bonds and the like see all layers, in one kernel each; kernels of a layer
    # of its own would be four times some.
    assert many <= few + few // 4, (few, many)


def test_the_program_of_an_update_grows_with_the_layers_and_not_with_their_square() -> None:
    optimizer = optim.rank_adaptive(optax.sgd(0.1), switch=9, size_fraction=0.5)

    def instructions(count: int) -> int:
        layer = drawn(np.random.default_rng(0), [(1, 4, 3), (3, 5, 1)])
        params = dict.fromkeys(map(str, range(count)), layer)
        state = jax.eval_shape(optimizer.init, params)
        update = jax.jit(lambda p, s: optimizer.update(p, s, p, value=jnp.float32(1.0)))
        return update.lower(params, state).compile().as_text().count(" = ")

    few, more, most = map(instructions, (1, 4, 7))
    assert most - more < 1.15 * (more - few)


def entry(text: str) -> list[str]:
    """Instructions that a compiled program runs in every call, outside of conditions."""
    return re.findall(r"^ +(?:ROOT )?(%\S+ = .*)$", text[text.index("\nENTRY") :], re.M)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="kernels as XLA makes them for CPUs")
def test_a_loss_is_recorded_by_few_kernels(rng) -> None:
    values = jnp.asarray(rng.uniform(0, 1, 3), jnp.float32)
    flags = jnp.asarray(rng.integers(0, 2, 3).astype(bool))

    def record(numbers: jax.Array, values: jax.Array, flags: jax.Array) -> jax.Array:
        return seen(Watch(numbers, {}), *values[:2], *flags[:2], values[2], flags[2]).numbers

    numbers = jnp.asarray(rng.uniform(0, 1, len(NUMBERS)), jnp.float32)
    lines = entry(jax.jit(record).lower(numbers, values, flags).compile().as_text())
    made = [line for line in lines if not re.search(r" (parameter|constant|copy)\(", line)]
    assert len(made) <= 2, made


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="layouts as XLA chooses them for CPUs")
def test_no_core_is_copied_between_two_cuts(rng) -> None:
    shape = (int(rng.integers(3, 6)), *rng.integers(6, 9, 2).tolist(), 1)
    layer = drawn(rng, [(1, 4, 5, 3), (3, 4, 5, shape[0]), shape])
    optimizer = optim.rank_adaptive(optax.adam(0.1), compress_to=2, by=40)

    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params, value=jnp.float32(1.0))
        return optax.apply_updates(params, updates), state

    state = optimizer.init(layer)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(layer, state, layer).compile()
    size = "[" + ",".join(map(str, shape[:-1]))
    copied = [
        line for line in entry(compiled.as_text())
        if size in line.split(" = ")[1].split(" ")[0] and re.search(r" copy\(|_copy", line)
    ]  # fmt: skip
    assert not copied, copied


def test_copies_of_a_stack_keep_the_same_ranks_as_one_array_holds_them(rng) -> None:
    layers = [drawn(rng, SHAPES) for _ in range(2)]
    params = {"blocks": jax.tree.map(lambda *x: jnp.stack(x), *layers), "one": drawn(rng, SHAPES)}

    def loss(p: Any, key: Any) -> jax.Array:
        return jnp.mean(jax.vmap(full)(p["blocks"]) ** 2) + jnp.mean((full(p["one"]) - 1) ** 2)

    target = 0.5 * optim.size(params)
    optimizer = optim.rank_adaptive(optax.adam(0.01), size=target, by=20)
    (after, state), _ = trained(optimizer, loss, params, 25)
    found = optim.ranks(after)
    assert found["blocks/0"] == found["blocks/1"]
    small, _ = optim.shrink(after, state)
    held = sum(x.size for layer in small.values() for x in layer["cores"])
    assert held == optim.size(after) <= target


def test_updates_outside_of_jit_compile_once() -> None:
    params = problem(2)[1]
    optimizer = optim.rank_adaptive(optax.adam(0.01), size=120, by=6)
    value, gradients = jax.value_and_grad(lambda params: jnp.mean(full(params["a"]) ** 2))(params)
    _, state = optimizer.update(gradients, optimizer.init(params), params, value=value)
    _, state = optimizer.update(gradients, state, params, value=value)
    with compilations() as compiled:
        _, state = optimizer.update(gradients, state, params, value=value)
    assert len(compiled) < 3  # a small condition; that of the cuts is not among them
    assert int(state.count) == 3


def test_updates_can_be_differentiated_and_hold_optimisers_that_read_their_state() -> None:
    params = {"a": drawn(np.random.default_rng(2), [(1, 6, 5), (5, 7, 1)])}

    def moved(rate: Any) -> jax.Array:
        optimizer = optim.rank_adaptive(optax.sgd(rate), size=40, by=6)
        moves, _ = optimizer.update(params, optimizer.init(params), params, value=jnp.float32(1.0))
        return sum((jnp.sum(x) for x in jax.tree.leaves(moves["a"])), jnp.float32(0))

    low, high = jnp.float32(0.01), jnp.float32(0.02)
    both = jax.jit(jax.value_and_grad(moved))
    (first, found), (last, _) = both(low), both(high)
    # Difference of sums in float32.
    assert float(found) == pytest.approx(float((last - first) / (high - low)), rel=1e-2)

    def every_other(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda x: -0.01 * x * (int(state) % 2), updates), state + 1

    inner = optax.GradientTransformation(lambda params: jnp.zeros((), int), every_other)
    optimizer = optim.rank_adaptive(inner, size=40, by=6)
    state = optimizer.init(params)
    for n in range(2):
        moves, state = optimizer.update(params, state, params, value=jnp.float32(1.0))
        assert bool(moves["a"]["cores"][0].any()) == (n == 1)
