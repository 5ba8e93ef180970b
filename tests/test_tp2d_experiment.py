"""The experiment `tp2d`: its meshes, its options, and a tiny run from end to end."""

import csv
import json
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")

from experiments.__main__ import main
from experiments.tp2d import main as tp2d
from experiments.tp2d.main import Config
from experiments.tp2d.steps import mesh_shape


@pytest.mark.parametrize(
    ("name", "devices", "shape"),
    [
        ("1d", 4, (1, 4)),
        ("1d+sequence", 16, (1, 16)),
        ("summa", 4, (2, 2)),
        ("2d", 8, (2, 4)),
        ("fsdp+tp", 6, (2, 3)),
        ("2.5d", 2, (2, 1, 1)),
        ("2.5d", 4, (4, 1, 1)),
        ("2.5d", 8, (2, 2, 2)),
        ("2.5d", 16, (4, 2, 2)),
        ("2.5d", 9, (9, 1, 1)),
        ("2.5d", 45, (5, 3, 3)),
        ("2.5d", 7, (7, 1, 1)),
        ("2.5d", 1, (1, 1, 1)),
    ],
)
def test_meshes_are_as_square_as_they_can_be(name: str, devices: int, shape: Any) -> None:
    assert mesh_shape(name, devices) == shape


@pytest.mark.parametrize(
    "change",
    [{"devices": ()}, {"devices": (2,)}, {"layouts": ("3d",)}, {"layouts": ()}, {"repeats": 0}],
)
def test_bad_options_are_refused(change: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Config(**change)


def test_layouts_of_odd_numbers_of_devices_are_planned() -> None:
    rows = list(tp2d.scaling(Config(scaled=(1, 9))))
    assert {row["layout"] for row in rows} == {"2.5d"}  # sixteen heads


def test_equality_needs_four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    run: Any = types.SimpleNamespace(console=types.SimpleNamespace(print=said.append))
    monkeypatch.setattr(tp2d.jax, "device_count", lambda: 1)
    assert list(tp2d.equality(Config.quick(), run)) == []
    assert said == ["equality: expected 4 devices, there are 1, left out"]


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests have eight devices: sixteen are left out, and said to be.
    monkeypatch.setattr(tp2d, "simulate", lambda count: None)
    sizes = {"length": 16, "features": 32, "layers": 2}
    monkeypatch.setattr(tp2d, "CASES", {"T/H = 4": (8, sizes)})
    options = ["--devices", "4", "16", "--layouts", "1d", "summa", "--heads", "4"]
    options += ["--vocabulary", "60", "--results", str(tmp_path)]
    assert main(["run", "tp2d", "--quick", *options]) == 0
    folder = tmp_path / "tp2d"
    (line,) = (folder / "runs.jsonl").read_text().splitlines()
    done = json.loads(line)
    assert done["metrics"]["largest error of a gradient"] <= 1e-5
    assert done["metrics"]["wire of summa / 1d at T/H = 4, 4 devices"] < 1

    def rows(name: str) -> list[dict[str, str]]:
        return list(csv.DictReader((folder / done["run"] / f"{name}.csv").read_text().splitlines()))

    assert [(row["devices"], row["layout"]) for row in rows("costs")] == [
        ("1", "single"),
        ("4", "1d"),
        ("4", "summa"),
    ]
    for row in rows("costs"):
        assert float(row["wire predicted"]) == pytest.approx(float(row["wire"]), rel=0.02)
    (choice,) = rows("choices")
    assert choice["least wire"] == choice["least wire, planned"] == choice["quicker, planned"]
    assert float(choice["summa wire / 1d"]) < 1
    four = {row["layout"]: row for row in rows("scaling") if row["devices"] == "4"}
    assert float(four["summa"]["speed / 1D (paper, recalled)"]) == 1.84
    assert float(four["1d"]["speed / 1D"]) == 1
    assert all(0 < float(row["efficiency"]) <= 1 for row in rows("scaling"))
