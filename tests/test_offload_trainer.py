"""Training by layers equals training in one program, and does not depend on where things live."""

import contextlib
import gc
import itertools
import json
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload
from tensorjax.offload._training.weak_cache import WeakCache
from tests import offload_cases as cases
from tests.oracles import compilations

SLOW = pytest.mark.slow


def one_program(steps: int, optimizer: Any) -> tuple[list[float], Any]:
    """The same training, its gradient and update compiled as a whole."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x = None
        for layer in cases.layers():
            x = layer.apply(tuple(params[g] for g in layer.uses), x, batch, None)
        return x

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, batch)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    params = jax.tree.map(jnp.asarray, cases.params())
    state, losses = jax.jit(optimizer.init)(params), []
    for number in range(steps):
        params, state, value = step(params, state, cases.batch(number))
        losses.append(float(value))
    return losses, jax.device_get(params)


def largest(wanted: Any, got: Any) -> float:
    """Largest difference, relative to the largest number of each array."""
    pairs = zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True)
    return max(float(np.max(np.abs(x - y)) / np.max(np.abs(x))) for x, y in pairs)


@pytest.mark.parametrize(
    ("microbatches", "clip", "activations"),
    [(1, None, "recompute"), (2, 0.5, "keep"), (4, None, "offload")],
)
def test_steps_equal_those_of_one_program(
    microbatches: int, clip: float | None, activations: Any
) -> None:
    # Momentum: Adam divides by gradients, and makes much of roundoff where they vanish.
    optimizer = optax.sgd(0.05, momentum=0.9)
    whole = optimizer if clip is None else optax.chain(optax.clip_by_global_norm(clip), optimizer)
    losses, params = one_program(5, whole)
    engine = offload.Engine(activations=activations)
    with offload.Trainer(
        cases.layers(),
        cases.params(),
        optimizer,
        microbatches=microbatches,
        clip=clip,
        engine=engine,
    ) as trainer:
        steps = [trainer.step(cases.batch(number)) for number in range(5)]
        got = trainer.params()
    np.testing.assert_allclose([s.loss for s in steps], losses, rtol=1e-6)
    assert largest(params, got) < 1e-6
    if clip is not None:
        assert max(s.norm for s in steps if s.norm is not None) > clip  # or nothing was clipped


def label(params: Any) -> Any:
    """By names of groups and of arrays, as one does who keeps some layers as they are."""

    def of(path: Any, x: Any) -> str:
        name = jax.tree_util.keystr(path)
        if "block1" in name or "table" in name:
            return "still"
        return "slow" if "block2" in name or x.ndim == 1 else "fast"

    return jax.tree_util.tree_map_with_path(of, params)


def named(params: Any) -> Any:
    """As one does who knows the names; it takes no single group."""
    rates = {"table": "slow", "block0": "fast", "block1": "still", "block2": "fast",
             "block3": "still"}  # fmt: skip
    return {name: rates[name] for name in params}


@pytest.mark.parametrize("choose", [label, named])
def test_labels_find_groups_by_name(tmp_path: Path, choose: Any) -> None:
    """And those that are kept as they are take no states."""
    kinds = {
        "fast": optax.sgd(0.1, momentum=0.9),
        "slow": optax.sgd(0.01),
        "still": optax.set_to_zero(),
    }
    optimizer = optax.chain(
        optax.add_decayed_weights(
            0.1, lambda p: jax.tree_util.tree_map_with_path(lambda q, _: "block0" in str(q), p)
        ),
        optax.multi_transform(kinds, choose),
    )
    losses, params = one_program(6, optimizer)
    with offload.Trainer(cases.layers(), cases.params(), optimizer) as trainer:
        got = [trainer.step(cases.batch(number)).loss for number in range(6)]
        np.testing.assert_allclose(got, losses, rtol=1e-6)
        assert largest(params, trainer.params()) < 1e-6
        assert cases.equal(trainer.params()["block1"], cases.params()["block1"])
        wanted = trainer.params()
    for last in (3, 6):  # the second one goes on from the store
        with (
            cases.store(tmp_path) as store,
            offload.Trainer(cases.layers(), cases.params(), optimizer, store=store) as trainer,
        ):
            for number in range(trainer.steps, last):
                assert trainer.step(cases.batch(number)).loss == got[number]
            trainer.commit()
            found = trainer.params()
            assert not [name for name in store.names if name.startswith("block1/state")]
    assert cases.equal(found, wanted)


def test_groups_treated_alike_by_name_share_programs(tmp_path: Path) -> None:
    """And spare memory: no more is kept than of groups without names."""
    kinds = {"train": optax.adam(1e-3), "still": optax.set_to_zero()}
    optimizer = optax.multi_transform(
        kinds, lambda p: {k: "train" if k.startswith("block") else "still" for k in p}
    )
    counts = []
    for _ in range(2):
        with (
            cases.store(tmp_path) as store,
            offload.Trainer(cases.layers(), cases.params(), optimizer, store=store) as trainer,
            compilations() as found,
        ):
            for number in range(3):
                trainer.step(cases.batch(number))
            trainer.commit()
            spare = trainer._pipeline.updater._spare
            assert sum(map(len, spare._held.values())) <= 3  # two of blocks, and the table's
            made = {id(group.optimizer._programs[1]) for group in trainer._groups.values()}
            assert len(made) == 2
        counts.append(len(found))
    assert counts[0] > counts[1] == 0


@pytest.mark.parametrize(
    ("schedule", "gradient_bytes"),
    [("overlap", None), ("overlap", 0), ("after_backward", 0), ("one_step_stale", None)],
)
def test_evaluations_between_steps_change_nothing(
    tmp_path: Path, schedule: Any, gradient_bytes: Any
) -> None:
    """Also while updates of the step before are under way, and where little has room."""
    options = {"schedule": schedule, "microbatches": 2, "key": jax.random.key(3)}
    wanted = cases.train(8, **options)
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(
            cases.layers(), cases.params(), cases.optimizer(), store=store, commit_every=3,
            gradient_bytes=gradient_bytes, **options,
        ) as trainer,
    ):  # fmt: skip
        got = []
        for number in range(8):
            before = [trainer.evaluate(cases.batch(99)) for _ in range(number % 3)]
            got.append(trainer.step(cases.batch(number)).loss)
            assert len({*before}) <= 1
        assert got == wanted[0]
        assert cases.equal(trainer.params(), wanted[1])
        found, params = trainer.evaluate(cases.batch(99)), trainer.params()
    if schedule != "one_step_stale":
        x = None
        for layer in cases.layers():
            x = layer.apply(tuple(params[g] for g in layer.uses), x, cases.batch(99), None)
        assert found == pytest.approx(float(x), rel=1e-6)


def test_an_evaluation_that_fails_is_named_and_gone_on_after(tmp_path: Path) -> None:
    wanted = cases.train(3)
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(cases.layers(), cases.params(), cases.optimizer(), store=store) as trainer,
    ):
        trainer.step(cases.batch(0))
        with pytest.raises(TypeError, match="incompatible shapes") as caught:
            trainer.evaluate({"x": np.ones((4, 24), "f"), "y": np.ones((4, 7), "f")})
        assert "in the last layer, 'last', step 2" in caught.value.__notes__
        bad = {"x": np.full((4, 24), np.nan, "f"), "y": np.ones((4, 24), "f")}
        assert np.isnan(trainer.evaluate(bad))
        losses = [trainer.step(cases.batch(number)).loss for number in (1, 2)]
        assert losses == wanted[0][1:]
        assert cases.equal(trainer.params(), wanted[1])


@pytest.fixture(scope="module")
def in_memory() -> dict[Any, Any]:
    return {}


FULL = {"clip": 0.5, "microbatches": 2}


@pytest.mark.parametrize(
    ("name", "common", "options"),
    [
        ("disk", FULL, {"commit_every": 3}),
        ("gradients wait on disk", FULL, {"gradient_bytes": 0, "commit_every": 4}),
        ("some in memory", FULL, {"in_memory": ("block1", "table"), "commit_every": 1}),
        ("after the backward pass", FULL, {"schedule": "after_backward"}),
        ("pipelined", FULL, {"schedule": "pipelined", "gradient_bytes": 0}),
        ("by turns", FULL, {"schedule": "sequential", "lookahead": 1}),
        ("no clipping", {}, {"lookahead": 3}),
        ("no clipping, after the backward pass", {}, {"schedule": "after_backward"}),
        ("half precision", {"compute_dtype": jnp.bfloat16}, {"commit_every": 2}),
        ("half parameters", {"dtype": jnp.bfloat16, "microbatches": 2}, {"gradient_bytes": 0}),
        ("half parameters, clipped", {"dtype": jnp.bfloat16, "clip": 0.5}, {"commit_every": 2}),
        (
            "stale half parameters",
            {"dtype": jnp.bfloat16, "schedule": "one_step_stale"},
            {"commit_every": 2},
        ),
        ("random layers", {"key": jax.random.key(5)}, {"commit_every": 2}),
        (
            "room for one gradient",
            {"microbatches": 2},
            {"gradient_bytes": 0, "gradient_overflow": "wait", "lookahead": 1, "commit_every": 2},
        ),
        (
            "room for two",
            {},
            {"gradient_bytes": 8 * (cases.WIDTH**2 + cases.WIDTH), "gradient_overflow": "wait"},
        ),
        ("stale", {"schedule": "one_step_stale", "clip": 0.5}, {"commit_every": 2}),
    ],
)
def test_where_things_live_changes_nothing(
    tmp_path: Path, in_memory: dict[Any, Any], name: str, common: Any, options: Any
) -> None:
    """Twenty steps from disk, bit for bit those in memory."""
    kind = str(sorted(common.items()))
    if kind not in in_memory:
        in_memory[kind] = cases.train(20, **common)
    wanted = in_memory[kind]
    got = cases.train(20, lambda: cases.store(tmp_path), **{**common, **options})
    assert got[0] == wanted[0]
    assert cases.equal(got[1], wanted[1])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 256])
def test_gradients_are_summed_in_single_precision(shared: bool, parts: int) -> None:
    """In bfloat16, 256 times 3/256 would be 2."""

    def first(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return batch["x"] + (params[0]["w"] if shared else 0)

    def last(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return jnp.mean((x + params[-1]["w"]).astype(jnp.float32))

    layers = [
        offload.Layer(name="first", apply=first, uses=("w" if shared else "first",)),
        offload.Layer(name="last", apply=last, uses=("w",)),
    ]
    params = {"w": {"w": jnp.zeros((), jnp.bfloat16)}, **({} if shared else {"first": {}})}
    batch = {"x": jnp.ones(256, jnp.bfloat16)}
    with offload.Trainer(layers, params, optax.sgd(3.0), microbatches=parts) as trainer:
        trainer.step(batch)
        found = trainer.params()["w"]["w"]
    assert (found.dtype, float(found)) == (jnp.bfloat16, -6.0 if shared else -3.0)


@pytest.mark.parametrize(
    ("dtype", "compute_dtype", "nbytes"),
    [("float32", None, 4), ("bfloat16", None, 2), ("float32", "bfloat16", 4)],
)
def test_gradients_wait_in_the_dtype_of_the_parameters(
    dtype: str, compute_dtype: Any, nbytes: int
) -> None:
    params = cases.params(dtype=dtype)
    with offload.Trainer(
        cases.layers(), params, cases.optimizer(), compute_dtype=compute_dtype,
        schedule="after_backward", microbatches=2,
    ) as trainer:  # fmt: skip
        trainer.step(cases.batch(0))
        peak = trainer.statistics()["gradient_peak_bytes"]
    assert peak == nbytes * sum(x.size for x in jax.tree.leaves(params))


def test_staleness_changes_results() -> None:
    exact, stale = (cases.train(4, schedule=s)[0] for s in ("overlap", "one_step_stale"))
    assert exact[0] == stale[0]
    assert exact[1] != stale[1]


def test_few_layers_are_on_the_device_at_once(tmp_path: Path) -> None:
    layer = 4 * (cases.WIDTH**2 + cases.WIDTH)
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(cases.layers(), cases.params(), cases.optimizer(), store=store) as trainer,
    ):
        # Many steps: what is handed over may be used before the thread that fetches looks at it.
        for number in range(40):
            trainer.step(cases.batch(number))
        found = trainer.statistics()
    assert layer < found["device_peak_bytes"] <= 2 * layer
    assert found["activation_peak_bytes"] == (cases.DEPTH + 1) * 8 * cases.WIDTH * 4


def test_the_device_does_not_share_memory_with_staging() -> None:
    raw = np.zeros(4096 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    view = raw[start : start + 4096].view(np.float32)
    view.flags.writeable = False
    placed = offload.Engine().place("a", {"w": view})
    jax.block_until_ready(placed)
    raw[:] = 255
    assert not np.any(np.asarray(placed["w"]))


def test_state_that_passes_through_is_not_a_view_of_staging(tmp_path: Path) -> None:
    """An optimiser that returns part of its state as it came keeps its numbers."""

    def init(params: Any) -> Any:
        return jax.tree.map(lambda p: p + jnp.ones_like(p), params)

    def update(gradient: Any, state: Any, params: Any) -> Any:
        return jax.tree.map(lambda g: -g * jnp.asarray(1e-3, g.dtype), gradient), state

    transformation = optax.GradientTransformation(init, update)
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(cases.layers(), cases.params(), transformation, store=store) as trainer,
    ):
        for number in range(6):
            trainer.step(cases.batch(number))
        for name, _, state in trainer.groups():
            wanted = jax.tree.map(lambda p: p + np.float32(1), cases.params()[name])
            assert cases.equal(state, wanted)


def test_updates_come_in_the_order_of_their_use(tmp_path: Path) -> None:
    """Clipped updates are all ready at once: the first layer is updated first."""
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(
            cases.layers(), cases.params(), cases.optimizer(), store=store, clip=1.0
        ) as trainer,
    ):
        trainer.step(cases.batch(0))
        trainer.flush()
        spans = trainer.trace.spans("update")
    assert [span.name for span in sorted(spans, key=lambda s: s.start)] == list(cases.NAMES)


def test_a_trace_opens_in_perfetto_and_as_a_picture(tmp_path: Path) -> None:
    with (
        cases.store(tmp_path / "store") as store,
        offload.Trainer(cases.layers(), cases.params(), cases.optimizer(), store=store) as trainer,
    ):
        for number in range(3):
            trainer.step(cases.batch(number))
        trainer.commit()
    trainer.trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {e["args"]["name"].split()[0] for e in events if e["name"] == "thread_name"}
    assert {"compute", "read", "update", "write", "commit"} <= named
    rows: dict[int, list[Any]] = {}
    for event in events:
        if event["ph"] == "X":
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():  # one row shows one thing at a time
        assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(spans))
    axes = trainer.trace.picture().axes[0]
    assert axes.get_yticklabels()[0].get_text() == "compute"


def test_layers_on_a_mesh(tmp_path: Path) -> None:
    """Matrices split by columns over two devices, the batch over two: four devices in all."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    columns, whole = (NamedSharding(mesh, spec) for spec in (P(None, "model"), P()))
    shardings = {name: {"w": columns, "b": whole} for name in cases.NAMES[1:]}
    engine = offload.Engine(
        shardings={"table": {"w": whole}, **shardings}, data=NamedSharding(mesh, P("data"))
    )
    wanted, params = cases.train(3)
    losses, got = cases.train(3, lambda: cases.store(tmp_path), engine=engine)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert largest(params, got) < 1e-3  # Adam, and sums in another order
    assert engine.place("block0", got["block0"])["w"].sharding == columns


def test_a_failing_disk_ends_the_training(tmp_path: Path, monkeypatch: Any) -> None:
    with cases.store(tmp_path) as store:
        trainer = offload.Trainer(cases.layers(), cases.params(), cases.optimizer(), store=store)
        trainer.step(cases.batch(0))

        def fail(*args: Any, **options: Any) -> Any:
            raise OSError("the disk is gone")

        monkeypatch.setattr(store, "read_many", fail)
        with pytest.raises(RuntimeError, match="cannot go on") as found:
            _ = [trainer.step(cases.batch(number)) for number in range(1, 4)]
        assert "the disk is gone" in str(found.value.__cause__)
        for use in (trainer.commit, lambda: trainer.step(cases.batch(8))):
            with pytest.raises(RuntimeError, match="half-way"):
                use()
        trainer.close()
        with pytest.raises(RuntimeError, match="closed"):
            trainer.step(cases.batch(9))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"layers": []}, "layers"),
        ({"layers": [*cases.layers(), cases.layers()[1]]}, "more than once"),
        ({"params": {"table": {"w": jnp.zeros((2, 2))}}}, "missing"),
        ({"microbatches": 0}, "microbatches"),
        ({"clip": -1.0}, "clip"),
        ({"clip": "1"}, "clip: expected a positive norm or None, got '1'"),
        ({"schedule": "later"}, "schedule"),
        ({"commit_every": 2}, "store"),
        ({"in_memory": ("nothing",)}, "in_memory"),
        ({"device_bytes": 10}, "largest layer"),
    ],
)
def test_bad_options_are_named(change: Any, match: str) -> None:
    given = {"layers": cases.layers(), "params": cases.params(), **change}
    with pytest.raises(ValueError, match=match):
        offload.Trainer(given.pop("layers"), given.pop("params"), cases.optimizer(), **given)


def test_dtypes_that_are_not_floating_are_named() -> None:
    params = cases.params()
    params["block1"]["b"] = np.arange(cases.WIDTH)
    with pytest.raises(
        TypeError, match=r"params: block1\['b'\]: expected a floating dtype, got int"
    ):
        offload.Trainer(cases.layers(), params, cases.optimizer())
    given = cases.layers(), cases.params(), cases.optimizer()
    for wrong in ("int8", "bf16"):
        with pytest.raises(TypeError, match=f"compute_dtype: expected a floating .*, got '{wrong}"):
            offload.Trainer(*given, compute_dtype=wrong)


def test_bad_batches_and_optimisers_are_named() -> None:
    with pytest.raises(TypeError, match="optimizer"):
        offload.Trainer(cases.layers(), cases.params(), "adam")
    with (
        offload.Trainer(
            cases.layers(), cases.params(), cases.optimizer(), microbatches=3
        ) as trainer,
        pytest.raises(ValueError, match="3 microbatches"),
    ):
        trainer.step(cases.batch(0))


def test_masks_and_labels_of_the_whole_model_are_named() -> None:
    params = cases.params()
    by_group = {name: name.startswith("block") for name in params}
    by_leaf = jax.tree.map(lambda x: np.ndim(x) > 1, params)
    labels = jax.tree.map(lambda yes: "yes" if yes else "no", by_group)
    for optimizer in (
        optax.masked(optax.adam(0.1), by_group),
        optax.chain(optax.masked(optax.add_decayed_weights(0.1), by_leaf), optax.sgd(0.1)),
        optax.adamw(0.1, mask=by_leaf),
        optax.partition({"yes": optax.sgd(0.1), "no": optax.set_to_zero()}, labels),
    ):
        with pytest.raises(ValueError, match=r"for each group by itself.*functions of the param"):
            offload.Trainer(cases.layers(), params, optimizer)


# Numbers that are not finite.


def _root(params: Any, x: Any, batch: Any, key: Any) -> Any:
    """Its gradient is infinite where the parameters are zero, though the value is not."""
    return batch["x"] @ params[0]["w"] + jnp.sqrt(params[0]["zero"])[None]


def _square(params: Any, x: Any, batch: Any, key: Any) -> Any:
    return jnp.mean((x * params[0]["w"][None] - batch["y"]) ** 2)


def _rooted(zero: float, clip: float | None) -> offload.Trainer:
    ones = np.ones((3, 4), np.float32)
    params = {"a": {"w": ones, "zero": zero * ones[0]}, "b": {"w": ones[0]}}
    layers = [offload.Layer(name="a", apply=_root), offload.Layer(name="b", apply=_square)]
    return offload.Trainer(layers, params, optax.sgd(0.1), clip=clip)


def _ones(times: float) -> dict[str, np.ndarray]:
    return {"x": np.full((2, 3), times, np.float32), "y": np.zeros((2, 4), np.float32)}


def test_a_loss_that_is_not_finite_is_reported_before_anything_is_applied(tmp_path: Path) -> None:
    """The committed state is that of before, of two microbatches the right one is named."""
    wrong = cases.batch(2)
    wrong["y"][-1, 0] = np.nan
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(
            cases.layers(), cases.params(), cases.optimizer(), store=store, microbatches=2,
            commit_every=1,
        ) as trainer,
    ):  # fmt: skip
        for number in range(2):
            trainer.step(cases.batch(number))
        with pytest.raises(FloatingPointError, match="nan of microbatch 1 in step 3; nothing"):
            trainer.step(wrong)
    _, params = cases.train(1, microbatches=2)
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(cases.layers(), cases.params(), cases.optimizer(), store=store) as again,
    ):
        assert again.steps == 1  # of the second step it was not known whether it was good
        assert cases.equal(again.params(), params)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_is_reported_and_not_applied(clip: float | None) -> None:
    with _rooted(0.0, clip) as trainer:
        with pytest.raises(FloatingPointError, match=r"a: expected a finite gradient.* step 1"):
            trainer.step(_ones(1.0))
        with pytest.raises(RuntimeError, match="half-way"):
            trainer.params()
        storage: Any = trainer._groups["a"].storage
        w, zero = storage.held["a/params"]
        assert np.all(np.asarray(w) == 1)
        assert np.all(np.asarray(zero) == 0)


def test_a_norm_that_overflows_is_reported() -> None:
    """Each gradient is finite, their norm is not: by it all would be scaled to zero."""
    message = "clip: the norm of all gradients is inf"
    clipped = _weighed(np.float64, 1.0)
    with clipped as trainer, pytest.raises(FloatingPointError, match=message):
        trainer.step(np.full((1, 300), 1.7e308))
    with _rooted(1.0, 1.0) as trainer:  # the squares of these are beyond single precision
        assert 1e19 < trainer.step(_ones(1e12)).norm < np.inf
        moved = [x - y for x, y in zip(*map(jax.tree.leaves, (trainer.params(), {
            "a": {"w": np.ones((3, 4)), "zero": np.ones(4)}, "b": {"w": np.ones(4)}
        })), strict=True)]  # fmt: skip
    norm = np.sqrt(sum(np.sum(x.astype(float) ** 2) for x in moved))
    assert norm == pytest.approx(0.1, rel=1e-4)


def _weighed(dtype: Any, clip: float) -> offload.Trainer:
    """A trainer whose gradient is the batch, and whose update is that, clipped."""

    def loss(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return jnp.sum(params[0]["w"] * batch[0])

    layers = [offload.Layer(name="a", apply=loss)]
    return offload.Trainer(layers, {"a": {"w": np.zeros(300, dtype)}}, optax.sgd(1.0), clip=clip)


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", *(pytest.param(d, marks=SLOW) for d in ("float64", "bfloat16"))]
)
def test_clipping_holds_in_any_dtype_and_range(rng: np.random.Generator, dtype: str) -> None:
    kind = jnp.finfo(dtype)
    with contextlib.ExitStack() as stack:
        for exponent in rng.integers(kind.minexp // 2, kind.maxexp - 1, 3).tolist():
            value = 2.0**exponent
            clip = max(value / 2.0 ** rng.integers(1, 20), float(kind.tiny) * 2.0**12)
            trainer = stack.enter_context(_weighed(jnp.dtype(dtype), clip))
            norm = trainer.step(np.full((1, 300), value, jnp.dtype(dtype))).norm
            assert norm == pytest.approx(value * 300**0.5, rel=1e-12)
            moved = np.linalg.norm(trainer.params()["a"]["w"].astype(float))
            assert moved == pytest.approx(min(clip, norm), rel=4 * float(kind.eps))


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_update_that_makes_parameters_not_finite_is_reported(
    tmp_path: Path, on_disk: bool
) -> None:
    """Adam's 1e-8 is 0 in float16, and 0/0 what it makes of a gradient of zeros."""
    params = {"a": np.float32(1), "h": np.full(3, -3, np.float16), "b": np.float32(0.01)}

    def first(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return batch["x"] + params[0]

    def dead(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return x * jax.nn.relu(params[0].sum()).astype(x.dtype)

    def last(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return jnp.mean((x * params[0] - 1) ** 2)

    layers = [
        offload.Layer(name=name, apply=apply)
        for name, apply in (("a", first), ("h", dead), ("b", last))
    ]
    batch = {"x": np.ones((4, 6), np.float32)}
    for _ in range(2):  # the second time from what was committed
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(cases.store(tmp_path)) if on_disk else None
            trainer = offload.Trainer(
                layers, params, optax.adam(1e-2), store=store, commit_every=1 if on_disk else None
            )
            stack.enter_context(trainer)
            assert trainer.steps == 0
            with pytest.raises(RuntimeError, match="cannot go on") as found:
                _ = [trainer.step(batch) for _ in range(9)]
            assert isinstance(found.value.__cause__, FloatingPointError)
            assert "h: the update of step 1 made NaN" in str(found.value.__cause__)


def test_first_parameters_that_are_not_finite_are_refused() -> None:
    params = cases.params()
    params["block1"]["b"][3] = np.inf
    with pytest.raises(ValueError, match="params: block1: expected finite numbers"):
        offload.Trainer(cases.layers(), params, cases.optimizer())


def test_an_error_of_a_layer_names_it() -> None:
    with offload.Trainer(cases.layers(), cases.params(), cases.optimizer()) as trainer:
        wrong = {"x": np.ones((8, 7), np.float32), "y": np.ones((8, 24), np.float32)}
        with pytest.raises(TypeError) as found:
            trainer.step(wrong)
    assert found.value.__notes__[-1] == "in the forward pass of layer 'first', step 1"


def test_stores_of_another_kind_are_named(tmp_path: Path) -> None:
    given = cases.layers(), cases.params(), cases.optimizer()
    with pytest.raises(TypeError, match="store: expected a TensorStore or None, got str"):
        offload.Trainer(*given, store=str(tmp_path))
    with cases.store(tmp_path) as store:
        assert not store.closed
    assert store.closed
    with pytest.raises(offload.StoreError, match="store: expected an open store"):
        offload.Trainer(*given, store=store)


def test_a_module_in_place_of_its_parameters_is_named() -> None:
    class Module:
        def __call__(self, x: Any) -> Any:
            return x

    given: dict[str, Any] = {**cases.params(), "block0": Module()}
    with pytest.raises(TypeError, match=r"params: block0: .* got Module, .* nnx\.state"):
        offload.Trainer(cases.layers(), given, cases.optimizer())


def test_a_store_is_one_trainer_s_at_a_time(tmp_path: Path) -> None:
    """A second one would take back what the first has written."""
    given = cases.layers(), cases.params(), cases.optimizer()
    with cases.store(tmp_path) as store:
        with offload.Trainer(*given, store=store) as trainer:
            trainer.step(cases.batch(0))
            with pytest.raises(offload.StoreError, match="store: another trainer goes on in it"):
                offload.Trainer(*given, store=store)
            trainer.step(cases.batch(1))
            trainer.commit()
        with pytest.raises(ValueError, match="params"):  # which takes nothing for good
            offload.Trainer(given[0], {}, given[2], store=store)
        with offload.Trainer(*given, store=store) as trainer:
            assert trainer.steps == 2
            assert not trainer.closed
        assert trainer.closed


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.5, "microbatches": 2, "commit_every": 1},
        {"gradient_bytes": 0, "device_bytes": None, "commit_every": 2},
        {"schedule": "one_step_stale", "clip": 0.5},
        {"schedule": "sequential"},
    ],
    ids=lambda options: " ".join(options) or "defaults",
)
@pytest.mark.parametrize("wrong", ["shape", pytest.param("loss", marks=pytest.mark.slow)])
def test_a_step_that_failed_before_its_updates_can_be_left_out(
    tmp_path: Path, options: dict[str, Any], wrong: str
) -> None:
    """As if the batch had never been: bit for bit, from disk, and in what is committed."""
    bad = cases.batch(9)
    if wrong == "shape":
        bad["x"] = bad["x"][:, :7]
    else:
        bad["y"][0, 0] = np.inf
    layers, params = cases.layers(head=True), cases.params(head=True)

    def opened(store: Any) -> offload.Trainer:
        return offload.Trainer(layers, params, cases.optimizer(), store=store, **options)

    def trained(store: Any, *, fails: bool) -> tuple[list[float], Any]:
        losses = []
        with opened(store) as trainer:
            for number in range(6):
                for _ in range(2 if fails and number in (0, 2, 3) else 0):
                    with pytest.raises((TypeError, FloatingPointError)):
                        trainer.step(bad)
                    assert trainer.steps == number
                losses.append(trainer.step(cases.batch(number)).loss)
            trainer.commit()
            return losses, trainer.params()

    with cases.store(tmp_path / "a") as store:
        expected = trained(store, fails=False)
    with cases.store(tmp_path / "b") as store:
        found = trained(store, fails=True)
    assert found[0] == expected[0]
    assert cases.equal(found[1], expected[1])
    with cases.store(tmp_path / "b") as store, opened(store) as again:
        assert again.steps == 6
        assert cases.equal(again.params(), expected[1])


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("raise SystemExit(3)", 3)])
def test_a_program_that_ends_without_closing_ends_as_it_says(
    tmp_path: Path, end: str, code: int
) -> None:
    """Not by a signal: its threads must not be in compiled code when the interpreter goes."""
    program = (
        "from tests import offload_cases as cases\n"
        "from tensorjax import offload\n"
        f"store = cases.store({str(tmp_path)!r})\n"
        "given = cases.layers(), cases.params(), cases.optimizer()\n"
        "trainer = offload.Trainer(*given, store=store)\n"
        "for number in range(3):\n"
        "    trainer.step(cases.batch(number))\n"
        f"{end}\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr


def test_layers_of_many_functions_are_compiled_once() -> None:
    """More of them than programs are remembered for other trainers."""
    traced: list[int] = []

    def layer(number: int) -> offload.Layer:
        def apply(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
            traced.append(number)
            x = batch["x"] if x is None else x
            y = x + params[0]["b"][None]
            return jnp.mean(y**2) if number == 79 else y

        return offload.Layer(name=f"l{number}", apply=apply)

    layers = [layer(number) for number in range(80)]
    params = {one.name: {"b": np.zeros(3, np.float32)} for one in layers}
    batch = {"x": np.ones((2, 3), np.float32)}
    with offload.Trainer(
        layers, params, cases.optimizer(), engine=offload.Engine(activations="keep")
    ) as trainer:
        trainer.step(batch)
        first = len(traced)
        trainer.step(batch)
    assert len(traced) == first


def test_another_trainer_of_the_same_layers_compiles_nothing() -> None:
    traced: list[int] = []

    def apply(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        traced.append(1)
        return jnp.mean((batch["x"] @ params[0]["w"]) ** 2)

    layers, params = (
        [offload.Layer(name="a", apply=apply)],
        {"a": {"w": np.ones((24, 2), np.float32)}},
    )
    counts = []
    for _ in range(2):
        with offload.Trainer(layers, params, cases.optimizer()) as trainer:
            trainer.step({"x": cases.batch(0)["x"]})
        counts.append(len(traced))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"gradient_overflow": "drop"}, "expected one of"),
        ({"gradient_overflow": "wait"}, "expected gradient_bytes"),
        ({"gradient_overflow": "wait", "gradient_bytes": 0, "clip": 1.0}, "clip"),
        ({"gradient_overflow": "wait", "gradient_bytes": 0, "schedule": "after_backward"}, "sched"),
    ],
)
def test_gradients_cannot_wait_for_updates_that_wait_for_them(options: Any, match: str) -> None:
    with pytest.raises(ValueError, match=rf"gradient_overflow: .*{match}"):
        offload.Trainer(cases.layers(), cases.params(), cases.optimizer(), **options)


def test_gradients_that_wait_for_room_take_no_more(tmp_path: Path) -> None:
    """Neither of memory nor of the store, which has no place for them."""
    block = 4 * (cases.WIDTH**2 + cases.WIDTH)
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(
            cases.layers(), cases.params(), cases.optimizer(), store=store,
            gradient_bytes=block, gradient_overflow="wait",
        ) as trainer,
    ):  # fmt: skip
        for number in range(4):
            trainer.step(cases.batch(number))
        assert trainer.statistics()["gradient_peak_bytes"] <= block
        assert not [name for name in store.names if "/gradient/" in name]
    with offload.Trainer(
        cases.layers(), cases.params(), cases.optimizer(), gradient_bytes=0,
        gradient_overflow="wait",
    ) as trainer:  # fmt: skip
        losses = [trainer.step(cases.batch(number)).loss for number in range(4)]
    assert losses == cases.train(4)[0]


def test_a_batch_of_lists_is_named() -> None:
    with (
        offload.Trainer(cases.layers(), cases.params(), cases.optimizer()) as trainer,
        pytest.raises(TypeError, match="batch: expected arrays, got float; turn lists"),
    ):
        trainer.step({name: x.tolist() for name, x in cases.batch(0).items()})


def test_paths_that_become_one_are_refused(tmp_path: Path) -> None:
    """Of the store's tensors one would be lost, and two leaves be read as one."""
    large = np.ones((160, 160), np.float32)

    def apply(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return jnp.mean(batch @ jax.tree.leaves(params)[0])

    layers = [offload.Layer(name="a", apply=apply)]
    for params in ({"w": [large], "w.0": 2 * large}, {"packed": large, "b": np.ones(3, "f")}):
        with (
            cases.store(tmp_path) as store,
            pytest.raises(ValueError, match=r"a/params: expected paths .*: rename it"),
        ):
            offload.Trainer(layers, {"a": params}, optax.sgd(0.1), store=store)


@pytest.mark.parametrize("nothing", [{}, {"e": np.zeros((0, 3), np.float32)}], ids=len)
@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_a_layer_without_numbers(tmp_path: Path, stored: bool, nothing: Any) -> None:
    def first(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return batch["x"]

    def last(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
        return jnp.mean((x @ params[0]) ** 2)

    layers = [offload.Layer(name="a", apply=first), offload.Layer(name="b", apply=last)]
    params = {"a": nothing, "b": np.ones((3, 4), np.float32)}
    store = cases.store(tmp_path) if stored else None
    with offload.Trainer(layers, params, optax.adam(0.1), store=store) as trainer:
        losses = [trainer.step({"x": np.ones((2, 3), np.float32)}).loss for _ in range(3)]
    if store is not None:
        store.close()
    assert losses[0] > losses[2]


def test_groups_are_of_one_step() -> None:
    with offload.Trainer(cases.layers(), cases.params(), cases.optimizer()) as trainer:
        groups = trainer.groups()
        next(groups)
        trainer.step(cases.batch(0))
        with pytest.raises(RuntimeError, match="groups: expected no step meanwhile, got one"):
            next(groups)
        groups = trainer.groups()
        next(groups)
    with pytest.raises(RuntimeError, match="closed"):
        next(groups)


@pytest.mark.parametrize(
    ("loss", "error", "match"),
    [
        (lambda x: jnp.sum(x).astype("int32"), TypeError, "floating number, got int32"),
        (lambda x: (jnp.sum(x),) * 3, ValueError, "a scalar, got tuple"),
        (lambda x: x, ValueError, r"a scalar, got shape \(2, 4\)"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss: Any, error: Any, match: str) -> None:
    def apply(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return loss(batch["x"] @ params[0])

    layers = [offload.Layer(name="a", apply=apply)]
    params = {"a": np.ones((3, 4), np.float32)}
    with (
        offload.Trainer(layers, params, optax.sgd(0.1)) as trainer,
        pytest.raises(error, match=f"layers: expected the last one to return.* {match}"),
    ):
        trainer.step({"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"gradient_bytes": "64"}, "gradient_bytes"),
        ({"gradient_bytes": -1}, "gradient_bytes"),
        ({"in_memory": "table"}, "in_memory: expected names"),
        ({"in_memory": None}, "in_memory: expected names .* got None"),
        ({"in_memory": [["table"]]}, "in_memory: expected names"),
        ({"engine": "keep"}, "engine: expected Engine"),
        ({"trace": 1}, "trace: expected Trace"),
        ({"key": 0}, "key: expected one key"),
        ({"key": np.zeros((2, 2), np.uint32)}, "key: expected one key"),
        ({"clip": True}, "clip"),
        ({"params": [np.ones(3)]}, "params: expected a mapping"),
        ({"params": {"table": None}}, "params: table: expected a pytree of arrays, got None"),
        ({"params": {"table": lambda: None}}, "params: table: expected a pytree"),
        ({"params": {"table": 1.0}}, "params: table: expected an array, got float"),
        ({"params": {"table": np.ones(3, "complex64")}}, "params: table: expected a floating"),
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_another_kind_are_named(options: dict[str, Any], match: str) -> None:
    options = dict(options)
    layers, params = cases.layers(), options.pop("params", None)
    if params is None:
        params = cases.params()
    elif isinstance(params, dict):
        layers = [offload.Layer(name="table", apply=cases.last)]
    with pytest.raises((TypeError, ValueError), match=match):
        offload.Trainer(layers, params, cases.optimizer(), **options)


def test_names_of_groups_in_one_word_are_refused() -> None:
    with pytest.raises(TypeError, match="uses: expected a tuple of names, got 'wte'"):
        offload.Layer(name="a", apply=cases.last, uses="wte")  # type: ignore[arg-type]


def test_a_generator_says_what_is_in_memory(tmp_path: Path) -> None:
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(
            cases.layers(), cases.params(), cases.optimizer(), store=store,
            in_memory=(name for name in cases.NAMES),  # type: ignore[arg-type]
        ) as trainer,
    ):  # fmt: skip
        before = store.statistics().reads.bytes
        trainer.step(cases.batch(0))
        trainer.flush()
        assert store.statistics().reads.bytes == before


def test_an_empty_batch_is_refused() -> None:
    with (
        offload.Trainer(cases.layers(), cases.params(), cases.optimizer()) as trainer,
        pytest.raises(ValueError, match=r"batch: expected .* not empty, got shapes"),
    ):
        trainer.step(cases.batch(0, rows=0))


def test_a_layer_that_returns_only_integers_is_refused() -> None:
    """All would train, but those before it."""

    def rounded(params: Any, x: jax.Array, batch: Any, key: Any) -> Any:
        return x.astype(jnp.int32)

    layers = cases.layers()
    layers[2] = offload.Layer(name="block1", apply=rounded)
    with offload.Trainer(layers, cases.params(), cases.optimizer()) as trainer:
        with pytest.raises(TypeError, match=r"expected a floating array, .*, got int32") as found:
            trainer.step(cases.batch(0))
        assert "layer 'block1'" in str(found.value.__notes__)
        assert trainer.steps == 0


def test_a_first_layer_without_parameters_may_return_integers() -> None:
    def shifted(params: Any, x: None, batch: Any, key: Any) -> jax.Array:
        return batch["n"] + 1

    def looked_up(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
        return jnp.mean(params[0]["w"][x] ** 2)

    layers = [
        offload.Layer(name="shift", apply=shifted), offload.Layer(name="look", apply=looked_up)
    ]  # fmt: skip
    params = {"shift": {}, "look": {"w": np.ones((4, 2), np.float32)}}
    with offload.Trainer(layers, params, optax.sgd(0.5)) as trainer:
        batch = {"n": np.array([0, 1, 2, 0], np.int32)}
        losses = [trainer.step(batch).loss for _ in range(2)]
    assert losses[1] < losses[0] == 1.0


def test_integers_may_go_along() -> None:
    """Such as positions that a layer hands to the next."""

    def counted(params: Any, x: jax.Array, batch: Any, key: Any) -> Any:
        return {"x": cases.block(params, x, batch, key), "n": jnp.arange(3)}

    def uncounted(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return cases.block(params, x["x"], batch, key)

    layers = cases.layers()
    layers[2] = offload.Layer(name="block1", apply=counted)
    layers[3] = offload.Layer(name="block2", apply=uncounted)
    with offload.Trainer(layers, cases.params(), cases.optimizer()) as trainer:
        losses = [trainer.step(cases.batch(n)).loss for n in range(3)]
    assert losses == pytest.approx(cases.train(3)[0], rel=1e-6)


def test_one_program_updates_what_lives_on_disk_and_one_what_lives_in_memory(
    tmp_path: Path,
) -> None:
    """Blocks of one shape, drawn by JAX: some are read as views of NumPy, some were computed."""
    params = {
        name: (lambda p=p: jax.tree.map(jnp.asarray, p)) for name, p in cases.params().items()
    }
    optimizer = optax.adamw(2e-3)  # one of its own: nothing of it is compiled
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(
            cases.layers(), params, optimizer, store=store, in_memory=("table", "block0", "block2")
        ) as trainer,
    ):
        trainer.step(cases.batch(0))  # compiles the layers, which other tests may have done
        trainer.flush()
        with compilations() as compiled:
            for number in (1, 2, 3):
                trainer.step(cases.batch(number))
            trainer.flush()
        assert compiled == []
        with (
            offload.Trainer(cases.layers(), params, optimizer) as other,
            compilations() as compiled,
        ):
            other.step(cases.batch(0))
            other.flush()
        assert compiled == []


def test_two_threads_make_no_step_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go = threading.Event(), threading.Event()

    class Engine(offload.Engine):
        def forward(self, *arguments: Any) -> Any:
            inside.set()
            assert go.wait(30)
            return super().forward(*arguments)

    with offload.Trainer(
        cases.layers(), cases.params(), cases.optimizer(), engine=Engine()
    ) as trainer:
        other = threading.Thread(target=trainer.step, args=(cases.batch(0),))
        other.start()
        assert inside.wait(30)
        with pytest.raises(RuntimeError, match="another thread is in one"):
            trainer.step(cases.batch(0))
        go.set()
        other.join(30)
        assert trainer.steps == 1
        assert "step 1" in repr(trainer)


def test_a_trace_keeps_no_more_than_it_may() -> None:
    for capacity in (1, 3, 8):
        trace = offload.Trace(capacity)
        for number in range(20):
            trace.add("compute", "a", 0.0, 1.0, number)
            assert len(trace.spans()) <= capacity
        assert trace.spans()[-1].step == 19
    with pytest.raises(ValueError, match="capacity"):
        offload.Trace(0)


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_a_trainer_that_is_dropped_ends_its_threads(tmp_path: Path, stored: bool) -> None:
    """And its layers, its optimizer and what they capture are freed, but not the store."""

    def made(store: Any) -> list[Any]:
        table = jnp.full((24, 2), 0.5)

        def apply(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
            return jnp.mean((batch["x"] @ (table * params[0]["w"])) ** 2)

        def update(updates: Any, state: Any, params: Any = None) -> Any:
            return jax.tree.map(lambda g: -0.1 * table * g, updates), state

        def label(params: Any) -> Any:  # a function of the names of groups
            return {name: "all" if table.size else name for name in params}

        inner = optax.GradientTransformation(lambda params: (), update)
        transformation = optax.multi_transform({"all": inner}, label)
        layers = [offload.Layer(name="a", apply=apply)]
        trainer = offload.Trainer(
            layers, {"a": {"w": np.ones((24, 2), np.float32)}}, transformation, store=store
        )
        for _ in range(2):
            trainer.step({"x": cases.batch(0)["x"]})
        found = [weakref.ref(x) for x in (trainer, apply, update, table)]
        del trainer
        gc.collect()
        return found

    before = {*threading.enumerate()}
    with cases.store(tmp_path) if stored else contextlib.nullcontext() as store:
        with pytest.warns(ResourceWarning, match="dropped without close"):
            held = made(store)
        if stored:  # the next one waits for what ends there
            layers, params = [offload.Layer(name="a", apply=_square)], np.ones((24, 2), "f")
            with pytest.raises(offload.MismatchError, match="optimiser"):
                offload.Trainer(layers, {"a": {"w": params}}, optax.sgd(1), store=store)
        for thread in {*threading.enumerate()} - before:
            if thread.name.startswith("offload"):
                thread.join(30)
                assert not thread.is_alive()
        gc.collect()
        assert [ref() is None for ref in held] == [True] * 4


def test_methods_of_an_object_share_programs_and_do_not_keep_it() -> None:
    """After the trainers were closed; nor does an optimizer of another form than Optax's."""

    class Model:
        """Layers that are methods, and an optimizer of another form."""

        def __init__(self) -> None:
            self.table = jnp.full((24, 2), 0.5)

        def apply(self, params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
            return jnp.mean((batch["x"] @ (self.table * params[0]["w"])) ** 2)

        def init(self, params: Any) -> Any:
            return ()

        def update(self, updates: Any, state: Any, params: Any = None) -> Any:
            return jax.tree.map(lambda g: -0.1 * self.table * g, updates), state

    def trained() -> Any:
        model = Model()
        traced: list[Any] = []
        for _ in range(2):  # the second one compiles nothing
            layers = [offload.Layer(name="a", apply=model.apply)]
            params = {"a": {"w": np.ones((24, 2), np.float32)}}
            with offload.Trainer(layers, params, model) as trainer:  # type: ignore[arg-type]
                with compilations() as compiled:
                    trainer.step({"x": cases.batch(0)["x"]})
                    trainer.flush()
                traced.append((layers, len(compiled)))
        assert traced[0][1] > traced[1][1] == 0
        return weakref.ref(model)

    held = trained()
    gc.collect()
    assert held() is None


def test_a_method_s_programs_live_as_long_as_its_object_and_its_function() -> None:
    """Not as long as one of the equal methods; and objects that are equal are not the same."""

    class Number:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return True

        def plus(self, x: int) -> int:
            return self.value + x

    class Fixed(Number):
        def __hash__(self) -> int:
            return 1

    for kind in (Number, Fixed):
        made: list[Any] = []
        cache = WeakCache(lambda function, *_, made=made: made.append(function) or function)
        one, other = kind(1), kind(2)
        method = one.plus
        cache(method, "a")
        del method
        assert cache(one.plus, "a")(1) == 2
        assert cache(other.plus, "a")(1) == 3
        assert len(made) == len(cache) == 2
        pair = optax.GradientTransformation(one.plus, other.plus)  # type: ignore[arg-type]
        found = cache(pair, "b")
        del pair
        assert cache(optax.GradientTransformation(one.plus, other.plus), "b") is found  # type: ignore[arg-type]
        del one
        assert cache(other.plus, "a") is made[1]
        del other
        assert len(cache) == 0
        function = lambda self, x: 10 * x  # noqa: E731
        held, numbers = kind(0), [3, 4]
        assert cache(types.MethodType(function, held))(numbers[0]) == 30
        del function
        assert len(cache) == 0
        again = lambda self, x: 20 * x  # noqa: E731
        assert cache(types.MethodType(again, held))(numbers[1]) == 80


def test_settings_of_jax_reach_the_threads(tmp_path: Path) -> None:
    """Those that a `with` sets for the thread that makes the trainer."""
    params: Any = cases.params(dtype=np.float64)
    wanted: list[Any] = []
    precisions: list[Any] = []

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        precisions.append(jax.config.jax_default_matmul_precision)
        return jax.tree.map(lambda g: -1e-3 * g, updates), state

    optimizer = optax.GradientTransformation(lambda params: (), update)
    for wide in (True, False):  # in all threads, or only in this one
        jax.config.update("jax_enable_x64", wide)
        try:
            with (
                jax.enable_x64(True),
                jax.default_matmul_precision("highest"),
                cases.store(tmp_path / str(len(wanted))) as store,
                offload.Trainer(
                    cases.layers(), params, optimizer, store=store, commit_every=1, clip=1.0
                ) as trainer,
            ):
                losses = [trainer.step(cases.batch(number)).loss for number in range(2)]
                wanted.append((losses, trainer.params()))
        finally:
            jax.config.update("jax_enable_x64", True)
    assert wanted[0][0] == wanted[1][0]
    assert cases.equal(wanted[0][1], wanted[1][1])
    assert {*precisions} == {"highest"}


def test_a_thread_of_32_bits_makes_no_step_of_64() -> None:
    batch = np.ones((1, 300))
    with _weighed(np.float64, 1.0) as trainer:
        for call in (trainer.step, trainer.evaluate):
            with jax.enable_x64(False), pytest.raises(RuntimeError, match="64 bits, and JAX"):
                call(batch)
        assert trainer.step(batch).number == 1


def test_a_step_whose_loss_is_not_finite_leaves_no_gate() -> None:
    wrong = cases.batch(9)
    wrong["y"][0, 0] = np.nan
    options: Any = {"clip": 0.5}
    with offload.Trainer(cases.layers(), cases.params(), cases.optimizer(), **options) as trainer:
        for number in range(3):
            with pytest.raises(FloatingPointError, match="loss"):
                trainer.step(wrong)
            scheduler = trainer._pipeline.updater._scheduler
            assert scheduler.open
            assert not scheduler.gated
            trainer.flush()
            trainer.step(cases.batch(number))
        assert cases.equal(trainer.params(), cases.train(3, **options)[1])


def test_seconds_of_a_trace_are_found_in_one_pass() -> None:
    class Counted(int):
        """A step that counts how often it is looked at."""

        looks = 0

        def __eq__(self, other: object) -> bool:
            Counted.looks += 1
            return int(self) == other

        def __hash__(self) -> int:
            return hash(int(self))

    trace, order = offload.Trace(), np.random.default_rng(0).permutation(120) // 3
    for number, step in enumerate(order.tolist()):
        trace.add("compute", "a", 2.0 * number, 2.0 * number + 1, Counted(step))
        trace.add("read", "a", 0.0, 100.0, Counted(step))
    assert trace.seconds("compute", first=7) == dict.fromkeys(range(7, 40), 3.0)
    assert Counted.looks < 5 * len(order)


def test_a_picture_of_a_trace_is_not_kept() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    trace = offload.Trace()
    trace.add("compute", "a backward", 0.0, 1.0, 0)
    before = pyplot.get_fignums()
    figure = trace.picture()
    assert len(figure.legends) == 1
    assert pyplot.get_fignums() == before


def test_an_error_of_the_last_layer_is_not_said_to_be_of_a_backward_pass() -> None:
    def failing(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
        raise KeyError("labels")

    layers = cases.layers()
    layers[-1] = offload.Layer(name="last", apply=failing, uses=("table",))
    with offload.Trainer(layers, cases.params(), cases.optimizer()) as trainer:
        with pytest.raises(KeyError, match="labels") as found:
            trainer.step(cases.batch(0))
        assert found.value.__notes__[-1] == "in the last layer, 'last', step 1"


def test_parameters_that_are_too_wide_say_what_to_do() -> None:
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"got float64.*JAX_ENABLE_X64=1"):
        offload.Trainer(cases.layers(), cases.params(dtype=np.float64), cases.optimizer())
