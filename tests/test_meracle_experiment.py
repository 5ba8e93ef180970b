"""The experiment `meracle`: its data, its baseline, and a tiny run from end to end."""

import json

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the experiments have an extra of their own")
pytest.importorskip("sklearn", reason="the experiments have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")

from experiments.__main__ import main
from experiments.meracle import chain, control, heat, image, plain, planted
from experiments.meracle.main import Config
from tensorjax import convert, mera


def test_the_heat_solution_obeys_its_equation() -> None:
    u = heat.solution()
    assert u.shape == heat.SHAPE
    assert np.prod(heat.PRIMES) == u.size
    # Late and away from the start only few sines are left: differences see the equation there.
    x, y, t = 30, 20, 100
    steps = [1 / (n + 1) for n in heat.SHAPE[:2]]
    second_x = (u[x + 1, y, t] - 2 * u[x, y, t] + u[x - 1, y, t]) / steps[0] ** 2
    second_y = (u[x, y + 1, t] - 2 * u[x, y, t] + u[x, y - 1, t]) / steps[1] ** 2
    rate = (u[x, y, t + 1] - u[x, y, t - 1]) * (heat.SHAPE[2] - 1) / 2
    assert rate == pytest.approx(0.02 * second_x + 0.01 * second_y, rel=0.01)


def test_scales_and_pixels_undo_each_other(rng: np.random.Generator) -> None:
    pixels = rng.standard_normal((16, 16))
    sites = image.by_scale(pixels)
    assert sites.shape == (4,) * 4
    assert (image.by_pixel(sites) == pixels).all()
    # The first site tells the quadrant.
    assert (sites[3].ravel().sum() - pixels[8:, 8:].sum()) == pytest.approx(0, abs=1e-12)
    assert image.grey(32).shape == (32, 32)


@pytest.mark.slow
def test_the_plain_baseline_finds_what_one_disentangler_hides(rng: np.random.Generator) -> None:
    hidden, train = planted.train_of(3, 2, 0)
    cores = plain.right_orthogonal([np.asarray(c) for c in train.cores])
    assert plain.layer(cores, [99] * 5, 1e-6) == list(train.ranks[2:-2:2])
    _, info = convert.tt_to_mera(train, tol=1e-6, layers=1)
    wanted = [cut.rank for cut in info.layers[0].cuts]
    found = plain.layer(cores, wanted, 1e-6)
    assert all(w <= f for w, f in zip(wanted, found, strict=True))
    assert found[1:4] == wanted[1:4]
    assert mera.to_tt(hidden).shape == train.shape


@pytest.mark.slow
def test_a_tiny_run_leaves_its_tables_and_its_figure(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(chain, "ORDER", 5)
    monkeypatch.setattr(control, "CASES", ((2, 3, 6),))
    options = ["--seeds", "1", "--cases", "3", "2", "--tols", "0.1", "--size", "16"]
    options += ["--timed", "1"]
    assert main(["run", "meracle", "--quick", "--results", str(tmp_path), *options]) == 0
    line = json.loads((tmp_path / "meracle" / "runs.jsonl").read_text())
    tables = {table["file"] for table in line["tables"]}
    assert tables == {f"{n}.csv" for n in ("heat", "chain", "image", "planted", "speed", "control")}
    assert line["metrics"]["planted_errors_within_tol"] is True
    assert line["metrics"]["heat_errors_within_tol"] is True
    assert line["metrics"]["control_gains_reported"] == 0
    folder = tmp_path / "meracle" / line["run"]
    assert (folder / "meracle.png").stat().st_size > 10_000
    assert "reference program" in (folder / "planted.csv").read_text()


@pytest.mark.parametrize(
    "options", [{"size": 100}, {"size": 8}, {"seeds": 0}, {"trains": 0}, {"timed": 0}]
)
def test_bad_options_are_named(options) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        Config(**options)
