"""The plan: its bound, what it puts where, and that a trainer follows it."""

import contextlib
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload
from tensorjax.offload._planning import machine_speed, placement_costs, placement_search
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer
from tensorjax.offload._training.updates.parameter_groups import make_groups
from tests import offload_cases as cases

MACHINE = offload.Machine(read=1e9, write=0.5e9, place=1e10, update=1e8)
SECONDS = {layer.name: (0.01, 0.03) for layer in cases.layers()}


def planned(**changes: Any) -> offload.Plan:
    options = {"machine": MACHINE, "device_bytes": 1 << 30, "host_bytes": 1 << 30,
               "seconds": SECONDS, **changes}  # fmt: skip
    return offload.plan(
        cases.layers(), cases.params(), cases.optimizer(), cases.batch(0), **options
    )


BLOCK = 4 * (cases.WIDTH**2 + cases.WIDTH)
TABLE = 4 * 24 * cases.WIDTH
# A gradient that arrives, the table's that is not whole, an update's results with a count.
WORK = BLOCK + TABLE + 3 * BLOCK + 4


def test_the_bound() -> None:
    times = offload.Times(compute=2, read=1, write=3, update=1, first=0.5, layer=0.2)
    assert times.bound == pytest.approx(3.2)  # writes take longest
    assert times.after_backward == 5
    times = offload.Times(compute=4, read=1, write=3, update=1, first=0.5, layer=0.2)
    assert times.bound == 4.5  # the first layer's update waits for the last gradient
    with pytest.raises(ValueError, match="read"):
        offload.Times(compute=1, read=-1, write=1, update=1, first=1, layer=1)


def test_all_in_memory_where_it_fits() -> None:
    found = planned()
    assert set(found.in_memory) == set(cases.NAMES)
    assert {row[3:] for row in found.rows} == {("resident", "host")}
    assert found.chosen.times.read == found.chosen.times.write == 0
    assert found.chosen.activations == "keep"  # which recomputes nothing
    assert found.seconds == found.bound


def test_a_small_host_leaves_layers_on_disk_in_even_distances() -> None:
    found = planned(host_bytes=WORK + 2 * BLOCK + 3 * BLOCK + 3 * TABLE + 1000)
    assert found.in_memory == ("table", "block1")
    assert "3 of block0 ... block3" in str(found)
    assert 2 * BLOCK <= (found.gradient_bytes or 0) < 3 * BLOCK
    moved = 3 * 3 * BLOCK + 3 * 4  # parameters, two moments and a count of three blocks
    assert found.chosen.times.write == pytest.approx(moved / MACHINE.write)
    assert found.chosen.times.read == pytest.approx(moved / MACHINE.read)  # all stays on the device


def test_a_small_device_recomputes_and_streams() -> None:
    inputs = (cases.DEPTH + 1) * 8 * cases.WIDTH * 4
    found = planned(device_bytes=4 * BLOCK + inputs, host_bytes=WORK + 2 * BLOCK)
    assert found.chosen.activations in ("recompute", "offload")
    assert {row[3:] for row in found.rows} == {("streamed", "disk")}
    assert next(c for c in found.choices if c.activations == "keep").refusal
    assert found.weights == 2 * BLOCK
    shown = str(found)
    assert "predicted step" in shown
    assert "P*" in shown
    assert f"block0 ... block{cases.DEPTH - 1}, each of {cases.DEPTH}" in shown
    assert "keep: needs" in shown


@pytest.mark.parametrize(
    ("clip", "options"),
    [(None, {}), (0.5, {}), (None, {"compute_dtype": "bfloat16", "microbatches": 2})],
    ids=str,
)
@pytest.mark.parametrize(
    "more",
    [0, 4 * BLOCK, 40 * BLOCK,
     *(pytest.param(n * BLOCK, marks=pytest.mark.slow) for n in (1, 12))],
)  # fmt: skip
def test_a_trainer_keeps_what_the_plan_says(
    tmp_path: Path, clip: float | None, options: Any, more: int
) -> None:
    more += BLOCK if options else 0  # results for the device
    found = planned(host_bytes=WORK + more, clip=clip is not None, **options)
    assert found.chosen.host_bytes <= WORK + more
    with (
        cases.store(tmp_path, backend="memory") as store,
        offload.Trainer(
            cases.layers(), cases.params(), cases.optimizer(), clip=clip, **found.options(store)
        ) as trainer,
    ):
        for number in range(4):
            trainer.step(cases.batch(number))
        trainer.flush()
        counted = trainer.statistics()
        halves = 1.5 if options else 1.0  # parameters for the device beside those of the host
        lives = sum(halves * r[1] + r[2] for r in found.rows if r[0] in found.in_memory)
        host = lives + counted["host_peak_bytes"] + counted["handed_peak_bytes"]
    assert host <= found.chosen.host_bytes


def test_what_the_backward_pass_reads_the_update_need_not() -> None:
    """Of two layers on the device all is read for the forward pass, and with states once more."""
    inputs = (cases.DEPTH + 1) * 8 * cases.WIDTH * 4
    few = {"device_bytes": 4 * BLOCK + inputs, "host_bytes": WORK + 2 * BLOCK}
    whole = cases.DEPTH * BLOCK + TABLE
    away = whole - 2 * BLOCK  # what the device has no room for
    counts = 4 * len(cases.NAMES)
    read = planned(**few).chosen.times.read * MACHINE.read
    assert read == pytest.approx(3 * whole + counts + away)
    few = {"device_bytes": 3 * BLOCK + inputs // 2, "host_bytes": WORK + 3 * BLOCK}
    times = planned(compute_dtype="bfloat16", **few).chosen.times
    assert times.write * MACHINE.write == pytest.approx(3.5 * whole + counts)
    # Those of half precision are others: read for both passes.
    assert times.read * MACHINE.read == pytest.approx(3 * whole + counts + whole - 2 * BLOCK)


def test_clipping_makes_a_step_longer() -> None:
    slow = offload.Machine(read=1e7, write=1e7, place=1e10, update=1e8)
    few = {"host_bytes": 6 * BLOCK, "machine": slow}
    assert planned(clip=True, **few).seconds > planned(**few).seconds


def test_gradients_wait_where_the_disk_has_time_in_the_forward_pass() -> None:
    """Then they are worth more than groups in memory; not where nothing waits for the disk."""
    width, depth = 64, 20
    params = {f"layer{n}": jax.ShapeDtypeStruct((width, width), jnp.float32) for n in range(depth)}
    unit = 4 * width**2

    def linear(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return (batch if x is None else x) @ params[0]

    def loss(params: Any, x: Any, batch: Any, key: Any) -> Any:
        return jnp.mean(x @ params[0])

    layers = [offload.Layer(name=name, apply=linear) for name in params]
    layers[-1] = offload.Layer(name=layers[-1].name, apply=loss)
    disk = offload.Machine(read=2e8, write=1e8, place=1e10, update=1e9)
    written = 3 * depth * unit / 1e8

    def at(host_bytes: int, compute: float) -> offload.Plan:
        of_each = compute / depth
        return offload.plan(
            layers, params, optax.adam(0.1), jax.ShapeDtypeStruct((1, width), jnp.float32),
            machine=disk, device_bytes=8 * unit, host_bytes=host_bytes,
            activations=("recompute",), seconds=dict.fromkeys(params, (of_each / 3, of_each / 1.5)),
        )  # fmt: skip

    busy, least = at(18 * unit + 64, written), at(6 * unit + 64, written)
    assert least.gradient_bytes == 2 * unit + 60
    assert least.seconds > least.bound  # what the backward pass cannot write makes it wait
    assert 4 * unit < (busy.gradient_bytes or 0) < 10 * unit
    assert busy.bound <= busy.seconds < least.seconds
    calm = at(18 * unit + 64, 10 * written)
    assert 2 * unit <= (calm.gradient_bytes or 0) < 5 * unit
    assert calm.seconds == calm.bound
    assert len(calm.in_memory) > len(busy.in_memory)
    for found in (busy, least, calm):
        assert found.chosen.gradient_overflow == "wait"
        with pytest.raises(ValueError, match="store: expected one"):  # or all would be in memory
            found.options(None)


def test_host_memory_is_divided_as_well_as_by_trying_everything() -> None:
    """Groups of three sizes in any order, disks and updates of any speed, clipping or not."""
    rng = np.random.default_rng(0)
    for optimizer in (optax.sgd(0.1), optax.lion(0.1), optax.adam(0.1)) * 30:
        sizes = rng.choice([300, 20_000, 20_000, 20_000, 100_000], int(rng.integers(1, 7)))
        shapes = {f"g{n}": jax.ShapeDtypeStruct((size,), jnp.float32)
                  for n, size in enumerate(sizes)}  # fmt: skip
        host = HostOptimizer(optimizer, "bfloat16" if rng.random() < 0.5 else None)
        groups = make_groups(shapes, host, store=None, in_memory=())
        speeds = dict(zip(("read", "write", "update"), 10 ** rng.uniform(5, 7, 3), strict=True))
        forward = 10 ** rng.uniform(-3, 0)
        work = placement_costs.Work(
            activations="keep",
            layers=[offload.Layer(name=name, apply=lambda *_: None) for name in shapes],
            groups=groups, machine=offload.Machine(place=1e9, **speeds), forward=forward,
            backward=2 * forward, on_device=0, on_host=0, clip=rng.random() < 0.4,
        )  # fmt: skip
        total, needed = int(4 * sizes.sum()), placement_search.choose(work, 1 << 30, 0).refusal
        budget = int(needed.split()[1]) + int(rng.integers(5 * total))
        device = int(rng.choice([1 << 30, 8 * sizes.max() + total // 3]))
        found = placement_search.choose(work, device, budget)
        assert found.refusal == ""
        assert found.host_bytes <= budget
        assert found.seconds >= found.times.bound
        room = budget - int(needed.split()[1])
        room += placement_costs.update_bytes(groups, ())
        two = 0 if work.clip else 4 * int(np.sort(sizes)[-2:].sum())
        best = min(
            placement_search._choice(work, found.weights, list(some), room, "").seconds
            for count in range(len(groups) + 1)
            for some in itertools.combinations(groups, count)
            if not some
            or sum(placement_costs.stored_bytes(groups[name]) for name in some)
            <= room - two - placement_costs.update_bytes(groups, some)
        )
        assert found.seconds <= (1.15 if work.clip else 1.05) * best  # with fewer to store


def test_budgets_that_are_too_small_say_what_is_needed() -> None:
    with pytest.raises(ValueError, match=r"needs \d+ bytes of the device"):
        planned(device_bytes=BLOCK)
    with pytest.raises(ValueError, match=r"needs \d+ bytes of the host \(.*\), got 10"):
        planned(host_bytes=10)
    with pytest.raises(
        ValueError, match=r"of the device \(.*\), got 11 and needs .* host .*, got 10"
    ):
        planned(device_bytes=11, host_bytes=10)


def test_staging_memory_is_set_aside_where_there_is_a_store(tmp_path: Path) -> None:
    assert planned(staging="auto").staging is None  # everything is in memory
    some, aside = WORK + 2 * BLOCK + 3 * BLOCK + 3 * TABLE + 1000, 1 << 16
    without, found = planned(host_bytes=some), planned(host_bytes=some + aside, staging=aside)
    assert without.staging is None
    assert without.needs_store
    assert (found.in_memory, found.staging) == (without.in_memory, aside)
    automatic = 8 * BLOCK + (64 << 20)
    with pytest.raises(ValueError, match=f"no way fits beside {automatic} bytes of staging memory"):
        planned(host_bytes=some, staging="auto")


def test_a_plan_opens_its_store(tmp_path: Path) -> None:
    aside = 13 << 16  # three quarters of it for reads: parameters, two moments, a gradient
    found = planned(host_bytes=WORK + BLOCK + aside, staging=aside, clip=0.5)
    assert found.needs_store
    with (
        found.store(tmp_path, backend="threads", block=4096, model={"depth": 4}) as store,
        offload.Trainer(
            cases.layers(), cases.params(), cases.optimizer(), **found.options(store)
        ) as trainer,
    ):
        assert trainer.step(cases.batch(0)).norm is not None  # clipped, as planned
        assert store.statistics().staging <= aside
        assert store.statistics().allocated <= found.capacity == store.statistics().capacity


def test_times_of_some_layers_only_are_refused() -> None:
    with pytest.raises(ValueError, match="seconds: expected those of every layer, got none of 'fi"):
        planned(seconds={"block0": (1.0, 1.0)})


def test_ways_of_treating_activations_can_be_named() -> None:
    kinds = ("offload", "recompute")
    for asked in (kinds, [*kinds] * 2, {*kinds}, iter(kinds)):
        found = planned(activations=asked)
        assert tuple(choice.activations for choice in found.choices) == ("recompute", "offload")
    assert planned().chosen.activations not in kinds
    for wrong in ("keep", (), ("keep", "drop"), [["keep"]], 3):
        with pytest.raises(ValueError, match="activations: expected some of"):
            planned(activations=wrong)


def test_updates_of_integers_are_not_measured(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="dtype: expected a floating one, got 'int32'"):
        offload.measure(tmp_path, cases.optimizer(), dtype="int32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_are_measured_with_the_dtype_they_have(tmp_path: Path, dtype: str) -> None:
    seen = []

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        seen.append((updates.dtype, params.dtype))
        return updates, state

    transformation = optax.GradientTransformation(lambda params: (), update)
    machine = offload.measure(tmp_path, transformation, dtype=dtype, size=16 << 20)
    assert machine.update > 0
    assert {*seen} == {(jnp.dtype(dtype),) * 2}


@pytest.mark.parametrize("size", [5000, 100_000, 12 << 20])
def test_a_measurement_takes_the_bytes_that_are_given(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Store(offload.TensorStore):
        def close(self) -> None:
            found = self.statistics()
            seen.extend([found.reads.bytes, found.writes.bytes, found.allocated])
            super().close()

    monkeypatch.setattr(machine_speed, "TensorStore", Store)
    monkeypatch.setattr(machine_speed, "_update", lambda *_: 1.0)
    offload.measure(tmp_path, optax.sgd(0.1), size=size, backend="threads")
    wanted = 8 << 20 if size > 8 << 20 else size // 4096 * 4096
    assert seen == [wanted, 2 * wanted, 4 * wanted]
    assert [*tmp_path.iterdir()] == []


def test_times_of_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"repeats: expected .*got 0"):
        offload.layer_seconds([], {}, jnp.ones(2), offload.Engine(), repeats=0)


def test_a_plan_needs_a_machine() -> None:
    with pytest.raises(TypeError, match=r"machine: expected a Machine, as measure\(\).*, got 3"):
        planned(machine=3)


def test_a_trainer_follows_a_measured_plan(tmp_path: Path) -> None:
    machine = offload.measure(tmp_path, cases.optimizer(), size=16 << 20)
    found = planned(machine=machine, device_bytes=5 * BLOCK, host_bytes=5 * BLOCK, seconds=None)
    assert 0 < found.bound <= found.seconds + 1e-9
    wanted = cases.train(4)
    with (
        cases.store(tmp_path / "store") as store,
        offload.Trainer(
            cases.layers(), cases.params(), cases.optimizer(), **found.options(store)
        ) as trainer,
    ):
        losses = [trainer.step(cases.batch(n)).loss for n in range(4)]
        assert trainer.statistics()["device_peak_bytes"] <= found.weights
    assert losses == pytest.approx(wanted[0], rel=1e-6)


def linear(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
    return (batch["x"] if x is None else x) @ params[0]["w"]


def halved(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
    y = x.reshape(len(x), -1, 2).mean(-1)
    return y * jax.random.bernoulli(key, 0.5, y.shape).astype(y.dtype)


def squared(params: Any, x: jax.Array, batch: Any, key: Any) -> jax.Array:
    return jnp.mean((x @ params[0]["w"]) ** 2)


def test_layers_that_draw_and_change_shapes_can_be_planned() -> None:
    """Two layers of one function get inputs of different shapes."""
    applies = {"first": linear, "half": halved, "quarter": halved, "last": squared}
    layers = [offload.Layer(name=name, apply=apply) for name, apply in applies.items()]
    params = {"first": {"w": jnp.ones((24, 160), jnp.float32)}, "half": {}, "quarter": {},
              "last": {"w": jnp.ones((40, 2), jnp.float32)}}  # fmt: skip
    given: dict[str, Any] = {"machine": MACHINE, "device_bytes": 1 << 30, "host_bytes": 1 << 30}
    batch, key = cases.batch(0), jax.random.key(0)
    found = offload.plan(layers, params, optax.sgd(0.1), batch, key=key, **given)
    assert found.seconds > 0
    with pytest.raises(TypeError) as caught:
        offload.plan(layers, params, optax.sgd(0.1), batch, **given)
    assert "in layer 'half', which was measured" in caught.value.__notes__


@pytest.mark.parametrize(
    ("make", "looks"),
    [
        (lambda: optax.adamw(1e-3), False),
        (lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)), True),
        (lambda: optax.contrib.muon(1e-3), False),
        (lambda: optax.adafactor(1e-3), False),
        (
            lambda: optax.multi_transform(
                {"train": optax.adam(1e-3), "freeze": optax.set_to_zero()},
                lambda params: {k: "freeze" if k == "table" else "train" for k in params},
            ),
            False,
        ),
        (
            lambda: optax.multi_transform(
                {
                    "blocks": optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(1.0)),
                    "rest": optax.sgd(0.1),
                },
                lambda p: {k: "blocks" if k.startswith("block") else "rest" for k in p},
            ),
            True,
        ),
        (lambda: optax.contrib.prodigy(1.0), True),
        (lambda: optax.contrib.dadapt_adamw(1.0), True),
        (lambda: optax.contrib.mechanize(optax.adam(1e-3)), True),
        (lambda: optax.chain(optax.zero_nans(), optax.clip_by_global_norm(1.0)), True),
        (lambda: optax.apply_if_finite(optax.adam(1e-3), 5), False),
        (lambda: optax.MultiSteps(optax.adam(1e-3), 2), False),
    ],
)
def test_optimisers_that_look_across_groups_are_refused(make: Any, looks: bool) -> None:
    refused = pytest.raises(ValueError, match=r"Trainer\(clip=\)")
    with refused if looks else contextlib.nullcontext():
        offload.Trainer(cases.layers(), cases.params(), make()).close()


def test_what_just_fits_needs_no_store() -> None:
    """With clipping all gradients wait."""
    options = {"device_bytes": 1 << 30, "clip": 0.5}
    most = planned(**options).chosen.host_bytes
    found = planned(**options, host_bytes=most)
    assert planned(**options, host_bytes=most - 4).needs_store
    assert not found.needs_store
    with offload.Trainer(
        cases.layers(), cases.params(), cases.optimizer(), **found.options(None)
    ) as trainer:
        assert trainer.step(cases.batch(0)).norm is not None
