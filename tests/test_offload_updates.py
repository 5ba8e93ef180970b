"""The order of updates on the host."""

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tensorjax import offload
from tensorjax.offload._training.storage.process_shards import Shards
from tensorjax.offload._training.storage.storage import HostStorage, Reading, StoreStorage
from tensorjax.offload._training.storage.tensor_packing import TensorPacking
from tensorjax.offload._training.trace import Trace
from tensorjax.offload._training.updates import labelled_transformations
from tensorjax.offload._training.updates import updater as _updates
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer
from tensorjax.offload._training.updates.parameter_groups import Group, begin, make_groups, specs
from tensorjax.offload._training.updates.updater import Updater


class SlowStorage(HostStorage):
    """A storage whose readings of one pytree arrive when they are let go."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow, self.arrived, self.asked = slow, threading.Event(), threading.Event()

    def read(self, *packings: TensorPacking, deadline: float, step: int) -> Reading:
        found = super().read(*packings, deadline=deadline, step=step)
        if packings[0].name != self.slow:
            return found
        self.asked.set()
        return Slow(found, self.arrived)


class Slow:
    """A reading that arrives late."""

    def __init__(self, inner: Reading, arrived: threading.Event) -> None:
        self._inner, self._arrived = inner, arrived
        self.release = inner.release

    def ready(self) -> bool:
        return self._arrived.is_set()

    begun = ready

    def when_ready(self, call: Callable[[], None]) -> None:
        def wait() -> None:
            self._arrived.wait(30)
            call()

        threading.Thread(target=wait, daemon=True).start()

    def arrays(self) -> list[list[Any]]:
        assert self._arrived.wait(30)
        return self._inner.arrays()


def make(
    storage: HostStorage,
    done: dict[str, threading.Event],
    order: list[str],
    names: Sequence[str] = ("urgent", "later"),
    gradient_bytes: int | None = None,
) -> Updater:
    """Updates of a few groups of one shape."""
    optimizer = HostOptimizer(optax.sgd(0.1))
    groups, gradient = {}, {"w": jnp.ones(3)}
    for name in names:
        params = {"w": jnp.zeros(3)}
        state = optimizer.init(params)
        trees = {"params": params, "state": state, "gradient": gradient}
        packing = {part: TensorPacking(f"{name}/{part}", tree) for part, tree in trees.items()}
        groups[name] = Group(
            name, packing["params"], packing["state"], None, packing["gradient"], storage, optimizer
        )
        storage.held[f"{name}/params"] = jax.tree.leaves(params)
        storage.held[f"{name}/state"] = jax.tree.leaves(state)
    done.update((name, threading.Event()) for name in groups)

    def updated(name: str, version: int, arrays: list[Any]) -> None:
        order.append(name)
        done[name].set()

    return Updater(
        groups, spill=None, gradient_bytes=gradient_bytes, lookahead=2, early=True, staging=None,
        together=False, start=0, due=lambda name, version: float(version), updated=updated,
        written=lambda name, version: None, failed=lambda error: None, trace=Trace(),
    )  # fmt: skip


def test_an_update_does_not_wait_for_the_state_of_a_more_urgent_one() -> None:
    storage, order = SlowStorage("urgent/params"), []
    done: dict[str, threading.Event] = {}
    updater = make(storage, done, order)
    try:
        updater.offer("urgent", {"w": jnp.ones(3)}, 1, 0.0)
        assert storage.asked.wait(30)
        updater.offer("later", {"w": jnp.ones(3)}, 1, 1.0)
        assert done["later"].wait(30)
        assert order == ["later"]
        storage.arrived.set()
        updater.settle()
    finally:
        storage.arrived.set()
        updater.close()
    assert order == ["later", "urgent"]


def test_a_gate_holds_only_what_comes_after_it() -> None:
    """What was let go is updated behind the next gate: the forward pass waits for it."""
    storage, order = SlowStorage("urgent/params"), []
    done: dict[str, threading.Event] = {}
    updater = make(storage, done, order)
    try:
        updater.gate()
        updater.offer("urgent", {"w": jnp.ones(3)}, 1, 0.0)
        updater.release()
        updater.gate()
        updater.offer("later", {"w": jnp.ones(3)}, 1, 1.0)
        storage.arrived.set()
        assert done["urgent"].wait(30)
        assert order == ["urgent"]
        updater.release()
        updater.settle()
    finally:
        storage.arrived.set()
        updater.close()
    assert order == ["urgent", "later"]


def test_a_commit_waits_for_updates_that_have_not_begun() -> None:
    """Those to the version that is committed go on, and those beyond it wait."""
    storage, order = SlowStorage("urgent/params"), []
    done: dict[str, threading.Event] = {}
    updater = make(storage, done, order)
    settled = threading.Event()

    def settle() -> None:
        updater.settle_at(1)
        settled.set()

    try:
        updater.offer("later", {"w": jnp.ones(3)}, 1, 1.0)
        assert done["later"].wait(30)
        updater.offer("urgent", {"w": jnp.ones(3)}, 1, 2.0)
        assert storage.asked.wait(30)
        updater.hold_back(1)
        threading.Thread(target=settle, daemon=True).start()
        updater.offer("later", {"w": jnp.ones(3)}, 2, 1.5)
        assert not settled.wait(0.1)
        storage.arrived.set()
        assert settled.wait(30)
        assert order == ["later", "urgent"]
        updater.hold_back(math.inf)
        updater.settle()
    finally:
        storage.arrived.set()
        updater.close()
    assert order == ["later", "urgent", "later"]


def test_an_update_keeps_the_scale_that_it_was_let_go_with() -> None:
    """Though another one is told before it begins."""
    storage = SlowStorage("urgent/params")
    updater = make(storage, {}, [])
    try:
        updater.gate()
        updater.offer("urgent", {"w": jnp.ones(3)}, 1, 0.0)
        updater.release(np.float32(0.5))
        updater.gate()
        updater.offer("later", {"w": jnp.ones(3)}, 1, 1.0)
        updater.release(np.float32(0.25))
        storage.arrived.set()
        updater.settle()
    finally:
        storage.arrived.set()
        updater.close()
    for name, scale in (("urgent", 0.5), ("later", 0.25)):
        np.testing.assert_allclose(storage.held[f"{name}/params"][0], -0.1 * scale, rtol=1e-6)


@pytest.mark.parametrize(("coming", "first"), [("543210", "5"), ("54210", "4")])
def test_what_has_been_there_longest_is_updated_first_while_nothing_is_urgent(
    coming: str, first: str
) -> None:
    """Its memory is what others wait for; but near the end of a backward pass, deadlines count."""
    order: list[str] = []
    done: dict[str, threading.Event] = {}
    storage = AskedStorage("")
    updater = make(storage, done, order, "543210")
    try:
        updater.hold_back(0)
        updater.expect({name: (1, float(name)) for name in coming}, gated=False)
        assert storage.enough.wait(30)  # both states are there before their gradients
        for name in "54":
            updater.offer(name, {"w": jnp.ones(3)}, 1, float(name))
        updater.hold_back(math.inf)
        assert done["5"].wait(30)
        assert done["4"].wait(30)
    finally:
        updater.close()
    assert order[0] == first


class AskedStorage(HostStorage):
    """A storage that holds the parameters of one group, and knows what was asked for."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self._held, self.asked, self.enough = held, [], threading.Event()

    def holds(self, packing: TensorPacking) -> bool:
        return packing.name == f"{self._held}/params"

    def read(self, *packings: TensorPacking, deadline: float, step: int) -> Reading:
        self.asked.append(packings[0].name[0])
        if len(self.asked) == 2:
            self.enough.set()
        return super().read(*packings, deadline=deadline, step=step)


@pytest.mark.parametrize(("held", "asked"), [("", "32"), ("2", "23"), ("1", "13"), ("0", "32")])
def test_states_whose_parameters_are_held_are_read_first(held: str, asked: str) -> None:
    """The backward pass has them just now; of the three whose gradients come next."""
    storage = AskedStorage(held)
    updater = make(storage, {}, [], "3210")
    try:
        updater.expect({name: (1, float(name)) for name in "3210"}, gated=False)
        assert storage.enough.wait(30)
    finally:
        updater.close()
    assert "".join(storage.asked) == asked


class FullStorage(SlowStorage):
    """A storage without memory for "urgent" while the state of "later" is held."""

    def __init__(self) -> None:
        super().__init__("urgent/params")
        self.read_again, self.early = 0, threading.Event()

    def read(self, *packings: TensorPacking, deadline: float, step: int) -> Reading:
        found = super().read(*packings, deadline=deadline, step=step)
        if packings[0].name == self.slow:
            return found
        self.read_again += 1
        self.early.set()
        return Held(found, self.arrived)

    def starved(self) -> bool:
        return not self.arrived.is_set()


class Held:
    """A reading whose end is another one's beginning."""

    def __init__(self, inner: Reading, released: threading.Event) -> None:
        self.ready, self.begun, self.arrays = inner.ready, inner.begun, inner.arrays
        self.when_ready = inner.when_ready
        self.release = released.set


def test_a_state_that_takes_the_memory_of_a_more_urgent_one_is_given_back() -> None:
    storage, order = FullStorage(), []
    done: dict[str, threading.Event] = {}
    updater = make(storage, done, order)
    try:
        updater.expect({"later": (1, 1.0), "urgent": (1, 0.0)}, gated=False)
        updater.offer("urgent", {"w": jnp.ones(3)}, 1, 0.0)
        assert done["urgent"].wait(30)
        updater.offer("later", {"w": jnp.ones(3)}, 1, 1.0)
        updater.settle()
    finally:
        storage.arrived.set()
        updater.close()
    assert order == ["urgent", "later"]
    assert storage.read_again == 2


@pytest.mark.parametrize("full", [False, True])
def test_only_for_want_of_memory_is_a_state_read_again(
    monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    """The gradient of "later" waits for the room that "urgent" has, whose state is read late."""
    monkeypatch.setattr(_updates, "_TICK", 0.01)
    storage, order = FullStorage(), []
    if not full:
        monkeypatch.setattr(storage, "starved", lambda: False)
    done: dict[str, threading.Event] = {}
    updater = make(storage, done, order, gradient_bytes=1)
    try:
        updater.expect({"urgent": (1, 0.0), "later": (1, 1.0)}, gated=False)
        assert storage.early.wait(30)  # the state of "later" is there, its gradient is not
        updater.offer("urgent", {"w": jnp.ones(3)}, 1, 0.0)
        blocked = threading.Thread(
            target=updater.offer, args=("later", {"w": jnp.ones(3)}, 1, 1.0), daemon=True
        )
        blocked.start()
        assert storage.arrived.wait(30 if full else 0.3) == full
        storage.arrived.set()
        assert done["urgent"].wait(30)
        blocked.join(30)
        updater.settle()
    finally:
        storage.arrived.set()
        updater.close()
    assert order == ["urgent", "later"]
    assert storage.read_again == 1 + full


def test_several_states_give_way_to_one_read(tmp_path: Path) -> None:
    """Three early states of two units cut nine units up; the device needs six in one place."""
    pytest.importorskip("xxhash", reason="the store has an extra of its own")
    unit = 1 << 20
    like = jax.ShapeDtypeStruct((unit // 4,), jnp.float32)
    shapes, optimizer = dict.fromkeys("abc", like), HostOptimizer(optax.trace(0.9))
    with offload.TensorStore(
        tmp_path / "store", 64 * unit, backend="memory", staging=12 * unit
    ) as store:
        storage = StoreStorage(store, Trace())
        groups = make_groups(shapes, optimizer, store=storage, in_memory=())
        store.reserve(specs(groups.values(), gradients=False))
        store.reserve({"device": jax.ShapeDtypeStruct((6 * unit,), np.uint8)})
        begin(groups, dict.fromkeys("abc", np.zeros(unit // 4, np.float32)), Shards(shapes, {}))
        store.write("device", np.ones(6 * unit, np.uint8)).result(30)
        assert store.statistics().staging_reads == 9 * unit
        updater = Updater(
            groups, spill=None, gradient_bytes=None, lookahead=9, early=True, staging=None,
            together=False, start=0, due=lambda name, version: 9.0,
            updated=lambda name, version, arrays: None, written=lambda name, version: None,
            failed=lambda error: None, trace=Trace(),
        )  # fmt: skip
        try:
            updater.gate()
            updater.expect({name: (1, 10.0 + n) for n, name in enumerate("abc")}, gated=True)
            while store.statistics().staging_peak < 6 * unit:
                time.sleep(0.01)
            store.read("device", deadline=0.0).result(30).release()
            for name in "cba":
                updater.offer(name, jnp.ones(unit // 4, jnp.float32), 1, 10.0)
            updater.release()
            updater.settle()
        finally:
            updater.close()


def test_traces_are_listed_alike_where_they_print_alike() -> None:
    """Of drawn programs, with loops and branches, that differ in a constant or an order, or not."""
    rng = np.random.default_rng(5)

    def program(kind: int, scale: float) -> Any:
        def f(x: jax.Array, y: jax.Array) -> Any:
            first = [x * scale + y, y + x * scale, jnp.sin(x) * scale][kind % 3]
            if kind < 3:
                return first
            looped = jax.lax.fori_loop(0, 2 + kind % 2, lambda _, z: z * scale, first)
            return jax.lax.cond(looped[0] > 0, lambda z: z + scale, jnp.cos, looped)

        return jax.make_jaxpr(f)(jnp.ones(2), jnp.ones(2)).jaxpr

    drawn = [program(int(rng.integers(6)), float(rng.integers(1, 3))) for _ in range(16)]
    pairs = list(itertools.combinations(drawn, 2))
    same = [str(a) == str(b) for a, b in pairs]
    assert any(same)
    assert not all(same)
    assert [
        labelled_transformations._listing(a) == labelled_transformations._listing(b)
        for a, b in pairs
    ] == same
