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
from tensorjax.offload._training.storage.storage import StoreHome
from tensorjax.offload._training.storage.tensor_packing import Bundle
from tensorjax.offload._training.trace import Trace

MIB = 1 << 20


@pytest.fixture
def bundles() -> dict[str, Bundle]:
    like = jax.ShapeDtypeStruct((MIB // 4,), jnp.float32)
    return {part: Bundle(f"layer/{part}", {"w": like}) for part in ("params", "state")}


@pytest.fixture
def store(tmp_path: Path, bundles: dict[str, Bundle]) -> Iterator[Any]:
    with TensorStore(tmp_path / "store", 16 * MIB, backend="threads", staging=32 * MIB) as store:
        for bundle in bundles.values():
            store.reserve(bundle.specs)
        yield store


def write(home: StoreHome, bundles: dict[str, Bundle], value: float) -> None:
    parts = [(b, [np.full(MIB // 4, value, np.float32)]) for b in bundles.values()]
    home.write(*parts, deadline=0.0, step=0)
    home.settle()


def moved(store: Any) -> int:
    return store.statistics().reads.bytes


def values(reading: Any) -> list[float]:
    return [float(arrays[0][-1]) for arrays in reading.arrays()]


def test_what_is_held_is_not_read_again(store: Any, bundles: dict[str, Bundle]) -> None:
    home = StoreHome(store, Trace())
    write(home, bundles, 1.0)
    params, state = bundles["params"], bundles["state"]
    weights = home.read(params, deadline=0.0, step=0)
    update = home.read(params, state, deadline=5.0, step=0)
    assert values(weights) == [1.0]
    assert values(update) == [1.0, 1.0]
    assert moved(store) == 2 * MIB
    weights.release()
    assert values(update) == [1.0, 1.0]  # the other one still holds it
    update.release()
    again = home.read(params, deadline=0.0, step=0)
    assert values(again) == [1.0]
    assert moved(store) == 3 * MIB
    again.release()
    again.release()  # a second release does nothing
    assert store._transport.queue.reading.used == 0


def test_a_write_ends_the_sharing(store: Any, bundles: dict[str, Bundle]) -> None:
    home = StoreHome(store, Trace())
    write(home, bundles, 1.0)
    before = home.read(bundles["params"], deadline=0.0, step=0)
    assert values(before) == [1.0]
    write(home, bundles, 2.0)
    after = home.read(bundles["params"], deadline=0.0, step=0)
    assert values(after) == [2.0]
    assert values(before) == [1.0]
    before.release()
    third = home.read(bundles["params"], deadline=0.0, step=0)
    assert moved(store) == 2 * MIB  # it joined the second
    after.release()
    assert values(third) == [2.0]
    third.release()
    assert store._transport.queue.reading.used == 0


def test_who_joins_a_read_hastens_it(
    store: Any, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters that were asked for with a state come by themselves, the state may be late."""
    home = StoreHome(store, Trace())
    write(home, bundles, 1.0)
    hastened: list[tuple[set[str], float]] = []
    monkeypatch.setattr(
        store, "hasten", lambda names, *, deadline: hastened.append((set(names), deadline))
    )
    asked: dict[str, Future[Any]] = {}
    monkeypatch.setattr(
        store, "read_many", lambda names, *, deadline: asked.setdefault(next(iter(names)), Future())
    )
    both = home.read(*bundles.values(), deadline=9.0, step=0)
    params = home.read(bundles["params"], deadline=2.0, step=0)
    assert [*asked] == ["layer/params/w", "layer/state/w"]
    assert hastened == [({"layer/params/w"}, 2.0)]
    asked["layer/params/w"].set_result({})
    assert params.ready()
    assert not both.ready()


def test_bundles_read_together_do_not_hold_part_of_their_memory(tmp_path: Path) -> None:
    """Parameters in the middle of the pool would leave two holes, none large enough."""
    page, found = 4096, []
    bundles = [
        Bundle(name, {f"x{n}": np.zeros(size * page // 4, np.float32) for n, size in sizes})
        for name, sizes in [("s", [(0, 30)]), ("p", [(0, 100)]), ("t", [(0, 100), (1, 100)])]
    ]
    with TensorStore(tmp_path, 1 << 24, backend="memory", staging=430 * page, block=page) as store:
        small, params, state = bundles
        home = StoreHome(store, Trace())
        for bundle in bundles:
            store.reserve(bundle.specs)
            zeros = [np.zeros(leaf.shape, leaf.dtype) for leaf in bundle.leaves]
            home.write((bundle, zeros), deadline=0, step=0)
        home.settle()
        for home.together in (False, True):
            first = home.read(small, deadline=0, step=0)
            first.arrays()
            both = home.read(params, state, deadline=1, step=0)
            part = home.read(params, deadline=1, step=0)
            if not home.together:
                part.arrays()
            found.append(part.ready())
            first.release()
            if home.together:
                assert [len(x) for x in both.arrays()] == [1, 2]
            part.release()
            both.release()
        assert found == [True, False]


def test_a_read_that_fails_half_way_holds_nothing(
    store: Any, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = StoreHome(store, Trace())
    write(home, bundles, 1.0)
    reads = store.read_many

    def read_many(names: Any, *, deadline: float) -> Any:
        if "layer/state/w" in names:
            raise RuntimeError("no")
        return reads(names, deadline=deadline)

    monkeypatch.setattr(store, "read_many", read_many)
    with pytest.raises(RuntimeError, match="no"):
        home.read(*bundles.values(), deadline=0.0, step=0)
    reading = home.read(bundles["params"], deadline=0.0, step=0)
    assert values(reading) == [1.0]
    reading.release()
    # The read that was given up gives its memory back when it is done, in a thread of the store.
    patience = time.monotonic() + 60
    while store._transport.queue.reading.used and time.monotonic() < patience:
        time.sleep(0.001)
    assert store._transport.queue.reading.used == 0


def test_what_was_released_is_not_there(store: Any, bundles: dict[str, Bundle]) -> None:
    home = StoreHome(store, Trace())
    write(home, bundles, 1.0)
    reading = home.read(bundles["params"], deadline=0.0, step=0)
    reading.release()
    with pytest.raises(ValueError, match="released"):
        reading.arrays()


def test_a_reading_is_ready_once_all_of_it_is(store: Any, bundles: dict[str, Bundle]) -> None:
    home = StoreHome(store, Trace())
    write(home, bundles, 1.0)
    first = home.read(bundles["params"], deadline=0.0, step=0)
    both = home.read(bundles["params"], bundles["state"], deadline=0.0, step=0)
    told: list[bool] = []
    both.when_ready(lambda: told.append(both.ready()))
    assert values(both) == [1.0, 1.0]
    assert both.ready()
    assert told
    assert all(told)
    first.release()
    both.release()
