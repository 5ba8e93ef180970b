"""Reads of a store that several users share."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax.offload import TensorStore
from tensorjax.offload._training.storage.storage import StoreStorage
from tensorjax.offload._training.storage.tensor_packing import TensorPacking
from tensorjax.offload._training.trace import Trace

MIB = 1 << 20


@pytest.fixture
def packings() -> dict[str, TensorPacking]:
    like = jax.ShapeDtypeStruct((MIB // 4,), jnp.float32)
    return {part: TensorPacking(f"layer/{part}", {"w": like}) for part in ("params", "state")}


@pytest.fixture
def store(tmp_path: Path, packings: dict[str, TensorPacking]) -> Iterator[Any]:
    with TensorStore(tmp_path / "store", 16 * MIB, backend="threads", staging=32 * MIB) as store:
        for packing in packings.values():
            store.reserve(packing.specs)
        yield store


def write(storage: StoreStorage, packings: dict[str, TensorPacking], value: float) -> None:
    parts = [(b, [np.full(MIB // 4, value, np.float32)]) for b in packings.values()]
    storage.write(*parts, deadline=0.0, step=0)
    storage.settle()


def moved(store: Any) -> int:
    return store.statistics().reads.bytes


def values(reading: Any) -> list[float]:
    return [float(arrays[0][-1]) for arrays in reading.arrays()]


def test_what_is_held_is_not_read_again(store: Any, packings: dict[str, TensorPacking]) -> None:
    storage = StoreStorage(store, Trace())
    write(storage, packings, 1.0)
    params, state = packings["params"], packings["state"]
    weights = storage.read(params, deadline=0.0, step=0)
    update = storage.read(params, state, deadline=5.0, step=0)
    assert values(weights) == [1.0]
    assert values(update) == [1.0, 1.0]
    assert moved(store) == 2 * MIB
    weights.release()
    assert values(update) == [1.0, 1.0]  # the other one still holds it
    update.release()
    again = storage.read(params, deadline=0.0, step=0)
    assert values(again) == [1.0]
    assert moved(store) == 3 * MIB
    again.release()
    again.release()  # a second release does nothing
    assert store._transport.queue.reading.used == 0


def test_a_write_ends_the_sharing(store: Any, packings: dict[str, TensorPacking]) -> None:
    storage = StoreStorage(store, Trace())
    write(storage, packings, 1.0)
    before = storage.read(packings["params"], deadline=0.0, step=0)
    assert values(before) == [1.0]
    write(storage, packings, 2.0)
    after = storage.read(packings["params"], deadline=0.0, step=0)
    assert values(after) == [2.0]
    assert values(before) == [1.0]
    before.release()
    third = storage.read(packings["params"], deadline=0.0, step=0)
    assert moved(store) == 2 * MIB  # it joined the second
    after.release()
    assert values(third) == [2.0]
    third.release()
    assert store._transport.queue.reading.used == 0


def test_who_joins_a_read_hastens_it(
    store: Any, packings: dict[str, TensorPacking], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters that were asked for with a state come by themselves, the state may be late."""
    storage = StoreStorage(store, Trace())
    write(storage, packings, 1.0)
    hastened: list[tuple[set[str], float]] = []
    monkeypatch.setattr(
        store, "hasten", lambda names, *, deadline: hastened.append((set(names), deadline))
    )
    asked: dict[str, Future[Any]] = {}
    monkeypatch.setattr(
        store, "read_many", lambda names, *, deadline: asked.setdefault(next(iter(names)), Future())
    )
    both = storage.read(*packings.values(), deadline=9.0, step=0)
    params = storage.read(packings["params"], deadline=2.0, step=0)
    assert [*asked] == ["layer/params/w", "layer/state/w"]
    assert hastened == [({"layer/params/w"}, 2.0)]
    asked["layer/params/w"].set_result({})
    assert params.ready()
    assert not both.ready()


def test_bundles_read_together_do_not_hold_part_of_their_memory(tmp_path: Path) -> None:
    """Parameters in the middle of the pool would leave two holes, none large enough."""
    page, found = 4096, []
    packings = [
        TensorPacking(name, {f"x{n}": np.zeros(size * page // 4, np.float32) for n, size in sizes})
        for name, sizes in [("s", [(0, 30)]), ("p", [(0, 100)]), ("t", [(0, 100), (1, 100)])]
    ]
    with TensorStore(tmp_path, 1 << 24, backend="memory", staging=430 * page, block=page) as store:
        small, params, state = packings
        storage = StoreStorage(store, Trace())
        for packing in packings:
            store.reserve(packing.specs)
            zeros = [np.zeros(leaf.shape, leaf.dtype) for leaf in packing.leaves]
            storage.write((packing, zeros), deadline=0, step=0)
        storage.settle()
        for storage.together in (False, True):
            first = storage.read(small, deadline=0, step=0)
            first.arrays()
            both = storage.read(params, state, deadline=1, step=0)
            part = storage.read(params, deadline=1, step=0)
            if not storage.together:
                part.arrays()
            found.append(part.ready())
            first.release()
            if storage.together:
                assert [len(x) for x in both.arrays()] == [1, 2]
            part.release()
            both.release()
        assert found == [True, False]


def test_a_read_that_fails_half_way_holds_nothing(
    store: Any, packings: dict[str, TensorPacking], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = StoreStorage(store, Trace())
    write(storage, packings, 1.0)
    reads = store.read_many

    def read_many(names: Any, *, deadline: float) -> Any:
        if "layer/state/w" in names:
            raise RuntimeError("no")
        return reads(names, deadline=deadline)

    monkeypatch.setattr(store, "read_many", read_many)
    with pytest.raises(RuntimeError, match="no"):
        storage.read(*packings.values(), deadline=0.0, step=0)
    reading = storage.read(packings["params"], deadline=0.0, step=0)
    assert values(reading) == [1.0]
    reading.release()
    # The read that was given up gives its memory back when it is done, in a thread of the store.
    patience = time.monotonic() + 60
    while store._transport.queue.reading.used and time.monotonic() < patience:
        time.sleep(0.001)
    assert store._transport.queue.reading.used == 0


def test_what_was_released_is_not_there(store: Any, packings: dict[str, TensorPacking]) -> None:
    storage = StoreStorage(store, Trace())
    write(storage, packings, 1.0)
    reading = storage.read(packings["params"], deadline=0.0, step=0)
    reading.release()
    with pytest.raises(ValueError, match="released"):
        reading.arrays()


def test_a_reading_is_ready_once_all_of_it_is(
    store: Any, packings: dict[str, TensorPacking]
) -> None:
    storage = StoreStorage(store, Trace())
    write(storage, packings, 1.0)
    first = storage.read(packings["params"], deadline=0.0, step=0)
    both = storage.read(packings["params"], packings["state"], deadline=0.0, step=0)
    told: list[bool] = []
    both.when_ready(lambda: told.append(both.ready()))
    assert values(both) == [1.0, 1.0]
    assert both.ready()
    assert told
    assert all(told)
    first.release()
    both.release()
