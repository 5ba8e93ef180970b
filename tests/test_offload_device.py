"""A device that is not the host: here another one of the CPU, as an accelerator would be."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload
from tensorjax.offload._training.storage import arrays
from tensorjax.offload._training.storage.storage import HostStorage
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer
from tests import offload_cases as cases


@pytest.fixture
def device() -> Iterator[Any]:
    """What JAX computes on if no device is named, in all threads."""
    found = jax.devices()[-1]
    jax.config.update("jax_default_device", found)
    yield found
    jax.config.update("jax_default_device", None)


class Watched(offload.Engine):
    """Notes on which devices parameters, inputs, cotangents and gradients lie."""

    seen: set[Any]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen = set()

    def forward(self, *arguments: Any) -> Any:
        return self._noted(super().forward(*arguments), arguments[1:3])

    def backward(self, *arguments: Any) -> Any:
        return self._noted(super().backward(*arguments), arguments[1:3])

    def last(self, *arguments: Any) -> Any:
        return self._noted(super().last(*arguments), arguments[1:3])

    def _noted(self, result: Any, arguments: Any) -> Any:
        leaves = jax.tree.leaves((result, arguments))
        self.seen |= {d for x in leaves if isinstance(x, jax.Array) for d in x.devices()}
        return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.5, "microbatches": 2},
        {"compute_dtype": "bfloat16"},
        {"activations": "keep"},
        {"activations": "offload", "schedule": "one_step_stale"},
    ],
    ids=lambda options: " ".join(options),
)
@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_layers_compute_on_the_device_and_the_optimizer_on_the_host(
    tmp_path: Path, device: Any, stored: bool, options: dict[str, Any]
) -> None:
    options = dict(options)
    engine = Watched(activations=options.pop("activations", "recompute"))
    store = cases.store(tmp_path) if stored else None
    with offload.Trainer(
        cases.layers(), cases.params(), cases.optimizer(), store=store, engine=engine, **options
    ) as trainer:
        losses = [trainer.step(cases.batch(n)).loss for n in range(3)]
        found = trainer.params()
        held = [state for _, _, state in trainer.groups()]
        storages = [getattr(group.storage, "held", {}) for group in trainer._groups.values()]
    if store is not None:
        store.close()
    assert engine.seen == {device}
    kept = [x for x in jax.tree.leaves((held, storages)) if isinstance(x, jax.Array)]
    assert {d for x in kept for d in x.devices()} <= {arrays.cpu()}
    jax.config.update("jax_default_device", None)  # the fixture does it again
    activations = engine.activations
    expected = cases.train(3, engine=offload.Engine(activations=activations), **options)
    assert losses == expected[0]
    assert cases.equal(found, expected[1])


def test_a_training_on_the_device_goes_on_from_its_store(tmp_path: Path, device: Any) -> None:
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(cases.layers(), cases.params(), optax.adam(1e-3), store=store) as trainer,
    ):
        losses = [trainer.step(cases.batch(n)).loss for n in range(2)]
        trainer.commit()
        losses.append(trainer.step(cases.batch(2)).loss)
    engine = Watched()
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(
            cases.layers(), cases.params(), optax.adam(1e-3), store=store, engine=engine
        ) as trainer,
    ):
        assert trainer.step(cases.batch(2)).loss == losses[2]
    assert engine.seen == {device}


def test_first_states_are_made_on_the_host(device: Any) -> None:
    """Those of Adam depend on no number of the parameters: JAX would take any device for them."""
    optimizer = HostOptimizer(optax.adam(1e-3))
    params = {"w": np.ones((3, 4), np.float32)}
    state = optimizer.init(params)
    assert {d for x in jax.tree.leaves(state) for d in x.devices()} == {arrays.cpu()}
    on_device = jax.tree.map(jnp.asarray, params)
    assert jax.tree.leaves(on_device)[0].devices() == {device}
    state = optimizer.init(on_device)
    assert {d for x in jax.tree.leaves(state) for d in x.devices()} == {arrays.cpu()}


def test_what_comes_from_the_device_is_not_copied(device: Any) -> None:
    """XLA does not write to memory that is somebody else's, but to what is owned."""
    x = jnp.arange(1 << 16, dtype=jnp.float32)
    begun = arrays.begin([x])
    (found,) = arrays.to_host(begun)
    assert found.devices() == {arrays.cpu()}
    assert arrays.lends(device)
    assert not arrays.lends(arrays.cpu())
    assert found.unsafe_buffer_pointer() == begun[0].unsafe_buffer_pointer()
    owned = arrays.owned(x)
    assert owned.devices() == {arrays.cpu()}
    pointer = owned.unsafe_buffer_pointer()
    doubled = jax.jit(lambda a: 2 * a, donate_argnums=0)(owned)
    assert doubled.unsafe_buffer_pointer() == pointer
    assert np.array_equal(np.asarray(x), np.arange(1 << 16))


def test_an_owned_array_shares_no_memory(device: Any) -> None:
    for make in (np.array, jnp.array):
        given = make(np.arange(64.0, dtype=np.float32))
        found = arrays.owned(given)
        assert found.devices() == {arrays.cpu()}
        if isinstance(given, np.ndarray):
            given[:] = -1
        assert np.array_equal(np.asarray(found), np.arange(64.0))


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_is_found_on_the_device(device: Any, clip: Any) -> None:
    """The loss is finite, the gradient of a root at zero is not."""

    def first(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return batch["x"] * params[0]

    def last(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return jnp.sum(jnp.sqrt(x) * params[0])

    layers = [offload.Layer(name="a", apply=first), offload.Layer(name="b", apply=last)]
    params = {"a": np.ones((1, 3), np.float32), "b": np.ones((1, 3), np.float32)}
    with (
        pytest.raises(FloatingPointError, match="a: expected a finite gradient"),
        offload.Trainer(layers, params, optax.sgd(0.1), clip=clip) as trainer,
    ):
        trainer.step({"x": np.zeros((1, 3), np.float32)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "bool", "float64"])
def test_no_bit_changes_on_the_way_to_the_host(device: Any, dtype: str) -> None:
    """Subnormal numbers and NaN included."""
    bits = np.random.default_rng(0).integers(0, 256, 1 << 12, np.uint8)
    bits[:64] = np.arange(64) % 2  # tiny numbers
    given = bits.view(jnp.dtype(dtype)) if dtype != "bool" else bits > 99
    there = jax.device_put(given, device)
    (found,) = arrays.to_host([there])
    assert np.asarray(found).tobytes() == given.tobytes()
    assert np.asarray(arrays.owned(there)).tobytes() == given.tobytes()


def test_a_batch_may_lie_on_the_host(device: Any) -> None:
    given = jax.device_put(cases.batch(0), arrays.cpu())
    with offload.Trainer(cases.layers(), cases.params(), optax.sgd(0.1)) as trainer:
        assert trainer.step(given).loss > 0


@pytest.mark.parametrize("elsewhere", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("options", [{}, {"clip": 0.5}, {"compute_dtype": "bfloat16"}], ids=str)
def test_what_lives_in_memory_is_updated_in_its_place(
    request: pytest.FixtureRequest, elsewhere: bool, options: dict[str, Any]
) -> None:
    if elsewhere:
        request.getfixturevalue("device")
    with offload.Trainer(cases.layers(), cases.params(), cases.optimizer(), **options) as trainer:
        storage = trainer._groups["block0"].storage

        def places() -> dict[str, list[int]]:
            trainer.flush()
            assert isinstance(storage, HostStorage)
            held = {name: x for name, x in storage.held.items() if not name.endswith("/weights")}
            return {name: [x.unsafe_buffer_pointer() for x in xs] for name, xs in held.items()}

        trainer.step(cases.batch(0))
        before = places()
        for number in (1, 2):
            trainer.step(cases.batch(number))
            assert places() == before
        # Results take no memory, but for the parameters of another dtype.
        assert (trainer.statistics()["update_peak_bytes"] > 0) == ("compute_dtype" in options)


class Ordered(offload.Engine):
    """Notes what the device is given, and when that is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def backward(self, layer: offload.Layer, *arguments: Any) -> Any:
        self.noted.append(layer.name)
        return super().backward(layer, *arguments)

    def last(self, layer: offload.Layer, *arguments: Any) -> Any:
        self.noted.append(layer.name)
        return super().last(layer, *arguments)

    def wait(self, value: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            self.noted.append("")
        return super().wait(value)


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_a_device_is_given_a_layer_while_it_computes_another(
    tmp_path: Path, device: Any, stored: bool
) -> None:
    """Not where parameters are read, which would wait for all that it was given."""
    engine = Ordered()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(cases.store(tmp_path)) if stored else None
        trainer = stack.enter_context(
            offload.Trainer(
                cases.layers(), cases.params(), cases.optimizer(), store=store, engine=engine
            )
        )
        trainer.step(cases.batch(0))
        trainer.flush()
        engine.noted.clear()
        trainer.step(cases.batch(1))
    pairs = itertools.pairwise(engine.noted)
    assert any(a and b for a, b in pairs) != stored


def test_an_accelerator_adds_up_what_layers_share(device: Any) -> None:
    """So that comes once; from the host's own device each layer's comes."""
    came = []
    for lent in (True, False):
        if not lent:
            jax.config.update("jax_default_device", None)
        with offload.Trainer(cases.layers(), cases.params(), cases.optimizer()) as trainer:
            trainer.step(cases.batch(0))
            trainer.flush()
            came.append([span.name for span in trainer.trace.spans("gradient")].count("table"))
    assert came == [1, 2]


def test_neighbours_that_share_a_group_may_be_given_together(device: Any) -> None:
    """What the first gave is added to while it is still waited for."""

    def first(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return batch["x"] @ params[0]

    def last(params: Any, x: Any, batch: Any, key: Any) -> jax.Array:
        return jnp.mean((x @ params[0].T - batch["x"]) ** 2)

    layers = [
        offload.Layer(name="in", apply=first, uses=("tied",)),
        offload.Layer(name="out", apply=last, uses=("tied",)),
    ]
    params = {"tied": np.ones((3, 2), np.float32)}
    batch = {"x": np.eye(4, 3, dtype=np.float32)}
    found = []
    for _ in range(2):
        with offload.Trainer(layers, params, optax.adam(0.1), microbatches=2) as trainer:
            losses = [trainer.step(batch).loss for _ in range(4)]
            found.append((losses, trainer.params()))
        jax.config.update("jax_default_device", None)
    assert found[0][0] == found[1][0]
    assert cases.equal(found[0][1], found[1][1])


def test_memory_of_parameters_is_used_again_once_the_device_has_them(
    tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are lent, so that results need some. Those that wait for room are left alone."""
    first, block, *_, last = cases.layers()
    params, names = cases.params(), [f"block{n}" for n in range(12)]
    layers = [first, *(offload.Layer(name=name, apply=block.apply) for name in names), last]
    rng = np.random.default_rng(5)
    blocks = {
        name: jax.tree.map(lambda x: x + rng.normal() / 20, params["block0"]) for name in names
    }
    blocks = jax.tree.map(lambda x: np.asarray(x, np.float32), blocks)
    reused, update = [], HostOptimizer.update

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        spare = arguments[4]
        reused.append(spare is not None and spare[0] is not None)
        return update(self, *arguments, **options)

    def losses(store: Any) -> list[float]:
        with offload.Trainer(
            layers, {"table": params["table"], **blocks}, cases.optimizer(), store=store
        ) as trainer:
            return [trainer.step(cases.batch(number)).loss for number in range(12)]

    expected = losses(None)
    monkeypatch.setattr(HostOptimizer, "update", noted)
    with cases.store(tmp_path) as store:
        assert losses(store) == expected
    assert any(reused)
    assert not all(reused)
