"""What of an array is a process's own: pieces kept once, counted once, put back where they were."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax.offload import _processes
from tensorjax.offload._processes import Processes
from tensorjax.offload._training import commits
from tensorjax.offload._training.storage.process_shards import Part, Shards


class Device:
    def __init__(self, process: int) -> None:
        self.process_index = process


class Spread:
    """A sharding whose devices belong to several processes, as simulated ones do not."""

    def __init__(self, sharding: NamedSharding, owners: list[int]) -> None:
        self._sharding = sharding
        self._devices = {
            device: Device(owner)
            for device, owner in zip(sharding.mesh.devices.flat, owners, strict=True)
        }

    def devices_indices_map(self, shape: Any) -> dict[Any, Any]:
        found = self._sharding.devices_indices_map(shape)
        # In another order: the order of devices must not matter.
        return {self._devices[device]: found[device] for device in reversed(list(found))}

    def shard_shape(self, shape: Any) -> Any:
        return self._sharding.shard_shape(shape)


def mesh() -> Any:
    return jax.make_mesh((2, 2, 2), ("d", "r", "c"), axis_types=(AxisType.Auto,) * 3)


@pytest.mark.parametrize("owners", [[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3] * 2, [0, 1, 1, 1] * 2])
@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8, 4), P("r", "c")),
        ((8, 4), P(None, ("c", "r"))),
        ((8,), P(("c", "r", "d"))),
        ((8, 4), P()),
        ((2, 8, 4), P(None, "d")),
        ((), P()),
    ],
)
def test_parts_make_the_whole_and_count_once(shape: Any, spec: P, owners: list[int]) -> None:
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    sharding = Spread(NamedSharding(mesh(), spec), owners)
    counted = []
    for process in sorted(set(owners)):
        part = Part(shape, sharding, process)
        mine = part.cut(whole)
        assert mine.shape == part.shape
        assert mine.ndim == whole.ndim  # what goes by the number of axes sees no difference
        held = {float(x) for piece in part.pieces for x in whole[_slices(piece)].flat}
        assert mine.size == len(held)  # each number that is here, once
        counted += [x for block in part.counted(mine) for x in np.ravel(block)]
    assert sorted(counted) == list(whole.flat)


def _slices(piece: Any) -> tuple[slice, ...]:
    return tuple(slice(*bounds) for bounds in piece.index)


@pytest.mark.parametrize("spec", [P("r", "c"), P(("c", "r")), P(None, "d"), P()])
def test_parts_come_back_from_the_devices(spec: P) -> None:
    sharding = NamedSharding(mesh(), spec)
    whole = np.arange(32, dtype=np.float32).reshape(8, 4)
    part = Part(whole.shape, sharding, 0)
    mine = part.cut(whole.copy())
    placed = part.place(mine)
    assert placed.sharding == sharding
    mine[...] = -1  # what was placed are copies
    assert np.array_equal(placed, whole)
    assert np.array_equal(part.take(placed), part.cut(whole))
    with pytest.raises(ValueError, match="expected an array on"):
        part.take(jax.device_put(whole, NamedSharding(mesh(), P("c", "d"))))


def test_a_single_process_keeps_everything_as_it_is() -> None:
    tree = {"w": np.ones((4, 4))}
    shards = Shards({"a": tree}, {})
    assert shards.cut("a", tree) is tree
    assert shards.counted("a", tree) is tree
    assert shards.whole("a", tree) is tree
    assert shards.place("a", tree) is None


def test_groups_of_several_processes_need_shardings_over_all(monkeypatch: Any) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    shapes = {"a": {"w": jax.ShapeDtypeStruct((8, 4), np.float32)}}
    with pytest.raises(ValueError, match=r"shardings: expected those of every group.*'a'"):
        Shards(shapes, {})
    here = {"a": {"w": NamedSharding(mesh(), P("r"))}}  # all of process 0
    with pytest.raises(ValueError, match=r"a/w: expected devices of all 2 processes"):
        Shards(shapes, here)


def test_processes_that_do_not_come_are_waited_for_only_so_long(monkeypatch: Any) -> None:
    from jax._src import distributed

    def late(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: task 1 did not come")

    client = SimpleNamespace(wait_at_barrier=late, key_value_set=late)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed.global_state, "client", client)
    processes = Processes(patience=0.5)
    with pytest.raises(RuntimeError, match=r"commit of step 3: process 0 of 2 .* 0.5 s .* task 1"):
        processes.wait("commit of step 3")
    with pytest.raises(RuntimeError, match="opening the stores"):
        commits.same_step(processes, 3)


def test_stores_at_different_steps_are_refused() -> None:
    processes: Any = SimpleNamespace(number=1, count=3, exchange=lambda what, mine: [4, mine, None])
    with pytest.raises(ValueError, match="0 at step 4, of process 1 at step 5, of process 2 new"):
        commits.same_step(processes, 5)
    store = SimpleNamespace(process=(0, 1))
    with pytest.raises(ValueError, match="expected that of process 1 of 3, got that of process 0"):
        commits.same_process(processes, store)


def test_alone_there_is_nobody_to_wait_for() -> None:
    processes = _processes.Processes()
    processes.wait("nothing")
    assert processes.exchange("numbers", 3) == [3]
    assert processes.norm(2.5) == 2.5
