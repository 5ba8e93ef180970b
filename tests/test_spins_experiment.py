"""The experiment `spins`: its exact values, its measurements, and a tiny run from end to end."""

import json

import jax
import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the experiments have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")

from experiments.__main__ import main
from experiments.spins import exact, measure
from experiments.spins.main import Config
from tensorjax import mera, tt

ORDER, DISTANCES = 8, [1, 2, 4]


@pytest.fixture(scope="module")
def ground() -> np.ndarray:
    """The exact ground state of eight spins, by a dense eigensolver."""
    h = tt.chain_operator(ORDER, site=-measure.Z, bond=-np.kron(measure.X, measure.X))
    w, v = np.linalg.eigh(np.asarray(tt.to_dense(h)))
    assert w[0] == pytest.approx(exact.energy(ORDER), abs=1e-12)
    return v[:, 0].reshape((2,) * ORDER)


def test_free_fermions_give_the_values_of_the_dense_ground_state(ground: np.ndarray) -> None:
    truth = measure.exactly(ORDER, DISTANCES)
    found = measure.of_train(tt.from_dense(ground, tol=1e-13), DISTANCES)
    assert found.energy == pytest.approx(truth.energy, abs=1e-11)
    np.testing.assert_allclose(found.field, truth.field, atol=1e-11)
    np.testing.assert_allclose(found.correlations, truth.correlations, atol=1e-11)
    assert measure.pairs(ORDER, DISTANCES) == [(3, 4), (3, 5), (2, 6)]
    # Without a field all spins are parallel; with a strong one, all lie along it.
    assert exact.correlation(ORDER, 1, 6, field=1e-9) == pytest.approx(1)
    assert exact.magnetization(ORDER, field=1e9).min() == pytest.approx(1)


def test_a_mera_and_its_train_measure_the_same() -> None:
    m = mera.random(jax.random.key(0), (2,) * ORDER, 2, dtype=float)
    from_cones = measure.of_mera(m, DISTANCES)
    from_train = measure.of_train(mera.to_tt(m), DISTANCES)
    for a, b in zip(from_cones, from_train, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.slow
def test_a_tiny_run_leaves_its_tables_and_its_figure(tmp_path) -> None:
    options = ["--order", "8", "--mera-tols", "0.2", "--steps", "3", "--distances", "1", "4"]
    assert main(["run", "spins", "--quick", "--results", str(tmp_path), *options]) == 0
    line = json.loads((tmp_path / "spins" / "runs.jsonl").read_text())
    assert {table["file"] for table in line["tables"]} == {"energy.csv", "correlations.csv"}
    metrics = line["metrics"]
    assert metrics["converged"] is True
    assert metrics["energy_exact"] == pytest.approx(exact.energy(8))
    assert abs(metrics["energy_error_tt"]) < 1e-9
    folder = tmp_path / "spins" / line["run"]
    assert (folder / "spins.png").stat().st_size > 10_000
    rows = (folder / "energy.csv").read_text().splitlines()
    assert len(rows) == 1 + 4  # TT, rounded, tree, refined


@pytest.mark.parametrize("options", [{"order": 7}, {"mera_tols": ()}, {"disentangle": ()}])
def test_bad_options_are_named(options) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        Config(**options)
