"""What training from disk keeps in memory: staging, two layers, activations; whatever the depth."""

import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload
from tensorjax.offload._training.storage.storage import HostStorage
from tensorjax.offload._training.storage.tensor_packing import TensorPacking
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer
from tensorjax.offload._training.updates.parameter_groups import Group, Handed, Spare
from tests import offload_cases as cases

DEPTH = 24


def deep() -> tuple[list[offload.Layer], dict[str, Any]]:
    """Many blocks between a small table's two uses."""
    first, block, *_, last = cases.layers()
    params = cases.params()
    names = [f"block{n}" for n in range(DEPTH)]
    layers = [first, *(offload.Layer(name=name, apply=block.apply) for name in names), last]
    return layers, {"table": params["table"], **dict.fromkeys(names, params["block0"])}


@pytest.mark.parametrize("clip", [None, 1.0])
def test_memory_does_not_grow_with_depth(tmp_path: Path, clip: float | None) -> None:
    """Parameters on the device, gradients and results: not above those of two layers."""
    layers, params = deep()
    block = cases.WIDTH * (cases.WIDTH + 1) * 4
    table = params["table"]["w"].nbytes
    allowed = 2 * 4 * block  # parameters, gradients and both of Adam's states of two blocks
    with (
        cases.store(tmp_path) as store,
        offload.Trainer(
            layers, params, cases.optimizer(), store=store, clip=clip, gradient_bytes=2 * block
        ) as trainer,
    ):
        for number in range(4):
            trainer.step(cases.batch(number))
        found = trainer.statistics()
    assert found["device_peak_bytes"] <= 2 * block
    assert found["gradient_peak_bytes"] <= 2 * block
    assert found["update_peak_bytes"] <= 3 * block + 64
    # One more gradient is there while another is written; that of the table waits for its sum.
    assert found["host_peak_bytes"] <= 6 * block + table + 64
    assert found["device_peak_bytes"] + found["host_peak_bytes"] <= allowed + table + 64
    assert found["host_peak_bytes"] < DEPTH * block / 3


def test_gradients_that_wait_in_the_store_change_nothing(tmp_path: Path) -> None:
    layers, params = deep()
    found = []
    ways: list[tuple[bool, dict[str, Any]]] = [
        (False, {}), (True, {}), (True, {"gradient_bytes": 200_000})
    ]  # fmt: skip
    for stored, options in ways:
        store = cases.store(tmp_path / str(len(found))) if stored else None
        try:
            with offload.Trainer(
                layers, params, cases.optimizer(), store=store, **options
            ) as trainer:
                for number in range(4):
                    trainer.step(cases.batch(number))
                found.append(trainer.params())
        finally:
            if store is not None:
                store.close()
    assert cases.equal(found[0], found[1])
    assert cases.equal(found[0], found[2])


STORED, SGD = SimpleNamespace(in_place=False), HostOptimizer(optax.sgd(0.1))


def sized(name: str, width: int, *, lent: bool = False, storage: Any = STORED) -> Group:
    """A group of some numbers, with two arrays of state."""
    params = {"w": jax.ShapeDtypeStruct((width,), jnp.float32)}
    trees = {"params": params, "state": [params, params], "gradient": params}
    packings = {part: TensorPacking(f"{name}/{part}", tree) for part, tree in trees.items()}
    return Group(name=name, weights=None, storage=storage, lent=lent, optimizer=SGD, **packings)


def test_memory_is_kept_for_one_update_only() -> None:
    a, b, small, large = sized("a", 8), sized("b", 8), sized("c", 1), sized("d", 16)
    spare = Spare([a, b, small, large], bounded=True)
    assert a.results == 3 * 32
    arrays = [np.zeros(8), np.ones(8)]
    spare.keep(large, arrays[:1], arrays)
    assert spare.nbytes == 0  # the only one of its kind
    spare.keep(a, arrays[:1], arrays)
    assert spare.nbytes == 64
    assert spare.take(small) is None
    assert spare.take(b)[1]["w"] is arrays[1]  # what a small one could do without
    assert (spare.nbytes, spare.take(a)) == (0, None)
    spare.keep(b, arrays[:1], arrays)
    assert spare.take(large) is None
    assert spare.nbytes == 0  # there would be more than the largest needs


def test_unbounded_memory_is_kept_for_every_kind() -> None:
    a, b, c, large = sized("a", 8), sized("b", 8), sized("c", 8), sized("d", 16)
    spare = Spare([a, b, c, large], bounded=False)
    for group in (a, b, c, large):
        spare.keep(group, [np.ones(8)], [np.zeros(8), np.full(8, len(group.name))])
    assert spare.nbytes == 2 * 64 + 128  # of a third of a kind, nothing
    assert spare.take(large) is not None
    assert spare.take(large) is None
    assert spare.nbytes == 2 * 64
    assert None not in (spare.take(c), spare.take(a))
    assert (spare.take(b), spare.nbytes) == (None, 0)


def test_what_lives_in_memory_is_updated_there() -> None:
    here, there = sized("a", 8, storage=HostStorage()), sized("b", 8)
    assert (here.into, there.into) == ("place", "gradient")
    assert (here.results, there.results) == (0, 3 * 32)
    spare = Spare([here, there, sized("c", 8)], bounded=False)
    spare.keep(here, [np.ones(8)], [np.ones(8)] * 2)
    assert spare.nbytes == 0
    spare.keep(there, [np.ones(8)], [np.ones(8)] * 2)
    assert spare.take(here) is None  # which has no use for it
    assert spare.nbytes == 64


@pytest.mark.parametrize("bounded", [False, True])
def test_lent_gradients_leave_parameters_to_the_next_update(bounded: bool) -> None:
    a, b = sized("a", 8, lent=True), sized("b", 8, lent=True)
    assert (a.into, a.results) == ("spare", 3 * 32)
    spare = Spare([a, b], bounded=bounded)
    params = [np.ones(8)]
    spare.keep(a, params, [np.zeros(8)] * 2)
    assert spare.nbytes == 3 * 32
    found = spare.take(b)
    assert found[0]["w"] is params[0]
    assert spare.nbytes == 0


def test_parameters_that_are_handed_on_are_not_written_to() -> None:
    """As long as somebody sees them: meanwhile memory that is free goes first."""
    groups = [sized(name, 8, lent=True) for name in "abc"]
    spare = Spare(groups, bounded=False)
    handed = Handed([np.ones(8)])
    free, state = [np.ones(8)], [np.zeros(8)] * 2
    spare.keep(groups[0], free, state)
    spare.keep(groups[1], [*handed], state, weakref.ref(handed))
    assert spare.take(groups[2])[0]["w"] is free[0]
    params, kept = spare.take(groups[2])
    assert params is None
    assert kept[0]["w"] is state[0]
    assert spare.nbytes == 0
    spare.keep(groups[1], [*handed], state, weakref.ref(handed))
    array = handed[0]
    del handed
    assert spare.take(groups[2])[0]["w"] is array


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """Resident memory: with three times the layers it is the same, and within what is allowed."""
    grown = []
    for depth in (24, 72):
        program = Path(__file__).with_name("offload_memory_process.py")
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path / str(depth)), str(depth)],
            check=True, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        numbers, allowed, found = map(int, done.stdout.split()[-3:])
        slack = 16 << 20  # what threads, programs and malloc have besides
        assert found <= allowed + slack
        grown.append((16 * numbers, found))
    assert grown[1][0] > 200 << 20  # bytes of parameters, gradients and states
    assert grown[1][1] < grown[0][1] + (16 << 20)
