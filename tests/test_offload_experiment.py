"""The experiment `offload`: its options, its waiting device, and a tiny run from end to end."""

import csv
import itertools
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")
pytest.importorskip("xxhash", reason="the store has an extra of its own")

from experiments.__main__ import main
from experiments.offload import budgets
from experiments.offload import main as offloading
from experiments.offload.emulated import Emulated
from experiments.offload.main import Config, fitting, setting
from experiments.offload.memory import peak
from experiments.offload.variants import BESIDE, VARIANTS

TINY = {"layers": 2, "heads": 2, "features": 32, "vocabulary": 100, "length": 16}
DEEPER = {"layers": 4, "features": 128, "vocabulary": 256}  # its text is bytes


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": ()},
        {"sizes": ("huge",)},
        {"steps": 0},
        {"compute": (), "real": False},
        {"rounds": 0},
        {"memory": -1},
    ],
)
def test_bad_options_are_refused(change: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Config(**change)


@pytest.mark.slow
def test_ways_that_need_more_memory_than_they_may_take_are_left_out(tmp_path: Path) -> None:
    """GPT-2 XL has 1.56 billion numbers: with Adam's states 17.4 GiB."""
    xl = setting(Config(sizes=("xl",)), "xl", tmp_path)
    able, short = fitting(xl, Config(memory=16 << 10), real=False)
    assert [v.name for v in able] == [v.name for v in VARIANTS if v.disk]
    assert [*short] == ["in memory", "host offload"]
    needs = int(short["in memory"].split()[1])
    assert 17.4 * 1024 < needs < 20 * 1024
    assert not fitting(xl, Config(memory=needs), real=False)[1]
    # These cores have the device's parameters in the same memory.
    assert [*fitting(xl, Config(memory=needs), real=True)[1]] == ["in memory"]
    with pytest.raises(ValueError, match="memory: expected at least"):
        fitting(xl, Config(memory=1 << 10), real=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the page cache")
def test_a_run_without_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less memory than the staging of the ways with a store."""
    monkeypatch.setattr(offloading, "SIZES", {"tiny": TINY})
    options = ["--length", "8", "--steps", "1", "--rounds", "2", "--memory", "10"]
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        assert main(["run", "offload", "--quick", *options, "--results", str(tmp_path)]) == 0
    done = json.loads((tmp_path / "offload" / "runs.jsonl").read_text())
    table = tmp_path / "offload" / done["run"] / "steps.csv"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["way"] for row in rows] == ["in memory", "host offload"]
    assert all(float(row["of P*"]) > 0 and not row["speed"] for row in rows)
    said = [name for name in done["metrics"] if name.startswith("left out: tiny")]
    assert len(said) == len(VARIANTS) - 2


def test_the_emulated_device_takes_the_time_it_is_given(tmp_path: Path) -> None:
    engine = setting(Config(sizes=("tiny",)), "tiny", tmp_path).emulated(0.4)
    layers = setting(Config(sizes=("tiny",)), "tiny", tmp_path).layers()
    start = time.perf_counter()
    for layer in layers[:-1]:
        x, _ = engine.wait(engine.forward(layer, (), None, None, None))
    _, dy, sums = engine.last(layers[-1], (), x, None, None, 1.0, None)
    for layer in reversed(layers[:-1]):
        dy, sums = engine.backward(layer, (), x, None, None, None, dy, None)
    assert time.perf_counter() - start < 0.3  # as a device, it is given what it computes later
    engine.wait(dy)
    assert 0.4 <= time.perf_counter() - start < 0.8
    assert {leaf.dtype for leaf in jax.tree.leaves(sums)} == {np.dtype(np.float32)}


def test_the_emulated_device_writes_gradients_to_memory_that_nobody_sees() -> None:
    """And to the same one again later, which costs the cores nothing."""
    given = {"w": np.full((30, 40), 0.5, np.float32), "b": np.full(5, 0.5, np.float32)}
    engine = Emulated({"a": given}, {"a": (0.0, 0.0)})
    assert engine.lends
    a, b = engine.fetch((given, True)), engine.fetch((given, True))
    assert a[1] is b[1] is True
    for found in (a[0], b[0]):
        jax.tree.map(np.testing.assert_array_equal, found, given)
    places = [x[0]["w"].ctypes.data for x in (a, b)]
    assert abs(places[0] - places[1]) >= given["w"].nbytes
    assert all(x.ctypes.data % 64 == 0 for x in jax.tree.leaves((a[0], b[0])))  # XLA takes a view
    row = a[0]["w"][1]  # it may be seen by a view alone
    del a
    other = engine.fetch(given)
    assert other["w"].ctypes.data not in places
    assert np.array_equal(row, given["w"][1])
    del row, b, other, found
    again = [engine.fetch(given) for _ in range(2)]
    assert {x["w"].ctypes.data for x in again} == {*places}
    jax.tree.map(np.testing.assert_array_equal, again[1], given)
    with pytest.raises(MemoryError, match="more than"):
        [engine.fetch(given) for _ in range(3)]


def test_peak_memory_is_seen() -> None:
    with peak(0.001) as found:
        held = np.ones(1 << 23)
        time.sleep(0.1)
    assert held.nbytes * 0.9 < found.grown < held.nbytes * 4


@pytest.mark.filterwarnings("ignore:the page cache")
def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloading, "SIZES", {"tiny": TINY})
    options = ["--length", "8", "--steps", "1", "--real", "--folder", str(tmp_path)]
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        assert main(["run", "offload", "--quick", *options, "--results", str(tmp_path)]) == 0
    folder = tmp_path / "offload"
    done = json.loads((folder / "runs.jsonl").read_text())
    rows = list(csv.DictReader((folder / done["run"] / "steps.csv").read_text().splitlines()))
    assert [row["way"] for row in rows] == 2 * [variant.name for variant in VARIANTS]
    for row in rows:
        on_disk = row["way"].startswith("disk")
        assert (float(row["read"]) > 0) == (float(row["written"]) > 0) == on_disk
        share = float(row["P*"]) / float(row["seconds"])
        assert float(row["of P*"]) == pytest.approx(share)
    device = {row["device"] for row in rows}
    assert device == {"emulated × 1", "these cores"}
    goals = [
        (row["device"], row["way"], row["what"])
        for row in table(folder / done["run"] / "goals.csv")
    ]
    assert len(goals) == len({*goals})
    for way, others in BESIDE.items():
        for where, other in itertools.product(device, others):
            assert (where, way, f"speed over {other!r}") in goals
    assert json.loads((folder / done["run"] / "trace-tiny-real-overlap-cores.json").read_text())
    assert (folder / done["run"] / "trace-tiny-emulated-overlap-1.png").exists()
    assert not list(tmp_path.glob("offload-*"))  # stores are removed


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.slow
def test_a_tiny_run_under_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the model on disk, gradients of two layers in memory: all ways train alike."""
    monkeypatch.setattr(budgets, "SIZES", {"tiny": {**TINY, **DEEPER}})
    options = ["--size", "tiny", "--host", "0.012", "--device", "0.02", "--staging", "8",
               "--microbatches", "2", "--steps", "1", "--results", str(tmp_path)]  # fmt: skip
    assert main(["run", "offload/budgets", "--quick", *options]) == 0
    (folder,) = (p for p in (tmp_path / "offload/budgets").iterdir() if p.is_dir())
    rows = {row["way"]: row for row in table(folder / "budgets.csv")}
    assert [*rows] == ["overlap", "after backward", "in memory"]
    assert float(rows["overlap"]["read"]) > 0
    assert float(rows["in memory"]["read"]) == 0
    losses = {row["way"]: row for row in table(folder / "losses.csv")}
    assert losses["overlap"]["last loss"] == losses["after backward"]["last loss"]
    ends = [float(row["last loss"]) for row in losses.values()]
    assert ends[2] == pytest.approx(ends[0], rel=1e-5)
    assert (folder / "trace-tiny-overlap.json").exists()


@pytest.mark.slow
def test_an_emulated_device_waits_under_budgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it was told, in steps that are no shorter; there is nothing in its memory."""
    monkeypatch.setattr(budgets, "SIZES", {"tiny": {**TINY, **DEEPER}})
    options = ["--size", "tiny", "--host", "0.012", "--device", "0.02", "--staging", "8",
               "--dtype", "bfloat16", "--optimizer", "lion", "--emulated", "0.3", "--steps", "1",
               "--microbatches", "2", "--results", str(tmp_path)]  # fmt: skip
    assert main(["run", "offload/budgets", "--quick", *options]) == 0
    (folder,) = (p for p in (tmp_path / "offload/budgets").iterdir() if p.is_dir())
    rows = {row["way"]: row for row in table(folder / "budgets.csv")}
    assert [*rows] == ["overlap", "after backward"]
    assert all(float(row["s"]) > 0.3 for row in rows.values())
    assert "compute 300 ms" in (folder / "plan.txt").read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"size": "huge"},
        {"host": 0.0},
        {"steps": 0},
        {"ways": ("naive",)},
        {"emulated": -1.0},
        {"emulated": float("nan")},
        {"emulated": 1.0, "ways": ("in memory",)},
    ],
)
def test_bad_budgets_are_refused(change: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        budgets.Config(**change)
