"""The experiment `ttrp`: its statistics, its loaders, and a tiny run from end to end."""

import dataclasses
import json
import math
import urllib.error
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the experiments have an extra of their own")
pytest.importorskip("sklearn", reason="the experiments have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")

from experiments.__main__ import main
from experiments.ttrp import data, distances, images, methods, scaling, structured
from experiments.ttrp.main import Config
from tensorjax import sketch


@pytest.fixture
def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random grey images of ten classes in Keras' layout."""
    return {
        "x_train": rng.integers(0, 256, (40, 8, 6), dtype=np.uint8),
        "y_train": rng.integers(0, 10, 40, dtype=np.uint8),
        "x_test": rng.integers(0, 256, (20, 8, 6), dtype=np.uint8),
        "y_test": rng.integers(0, 10, 20, dtype=np.uint8),
    }


def saved(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    path = folder / "images.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


# The statistic


def test_identity_keeps_every_distance(rng: np.random.Generator) -> None:
    points = rng.standard_normal((10, 7))
    assert distances.mean_ratio(points, points) == pytest.approx(1, abs=1e-15)
    assert distances.mean_ratio(-3 * points, points) == pytest.approx(3, abs=1e-14)


def test_the_statistic_is_the_mean_over_pairs() -> None:
    points = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    ratios = [3 / 5, 0 / 1, 3 / math.hypot(3, 3)]  # of the first coordinate alone
    assert distances.mean_ratio(points[:, :1], points) == pytest.approx(np.mean(ratios))


def test_the_statistic_of_many_draws_is_one_of_each(rng: np.random.Generator) -> None:
    points, projected = rng.standard_normal((4, 9)), rng.standard_normal((5, 4, 3))
    expected = [distances.mean_ratio(image, points) for image in projected]
    np.testing.assert_allclose(distances.mean_ratio(projected, points), expected, rtol=1e-14)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_block_of_a_kronecker_map_is_the_map_of_fewer_rows(
    key: jax.Array, rng: np.random.Generator, rank: int
) -> None:
    whole, shape = (3, 4, 2), (2, 4, 1)
    p = sketch.ttrp(key, (5, 4, 3), whole, rank=rank)
    cores = tuple(core[:, :m] for core, m in zip(p.cores, shape, strict=True))
    smaller = dataclasses.replace(p, cores=cores, out_size=math.prod(shape))
    x = rng.standard_normal((6, 60))
    part = distances.block(np.asarray(sketch.apply(p, x)), whole, shape)
    np.testing.assert_allclose(part, sketch.apply(smaller, x), atol=1e-13)


def test_a_block_of_independent_rows_is_the_map_of_fewer_rows(
    key: jax.Array, rng: np.random.Generator
) -> None:
    p = sketch.gaussian(key, 30, 12)
    rows = np.arange(12).reshape(3, 4)[:2, :3].ravel()
    smaller = dataclasses.replace(p, matrix=p.matrix[rows], out_size=6)
    x = rng.standard_normal((5, 30))
    part = distances.block(np.asarray(sketch.apply(p, x)), (3, 4), (2, 3))
    np.testing.assert_allclose(part, sketch.apply(smaller, x), atol=1e-13)


def test_moments_and_their_standard_errors(rng: np.random.Generator) -> None:
    samples = rng.standard_normal((2000, 50)) * 3 + 1
    found = [methods.moments(sample) for sample in samples]
    for name, exact in (("mean", 1.0), ("variance", 9.0)):
        values = np.array([f[name] for f in found])
        errors = np.array([f[f"{name} ±"] for f in found])
        assert abs(values.mean() - exact) < 5 * values.std() / math.sqrt(len(values))
        assert np.sqrt(np.mean(errors**2)) == pytest.approx(values.std(), rel=0.1)


def test_ttrp_agrees_with_the_reference() -> None:
    """Within five standard errors of a difference, at N = 10⁴ and M = 24."""
    (reference,) = (r for r in distances.REFERENCE if r["method"] == methods.TTRP.name)
    data_key, maps = jax.random.split(jax.random.key(1))
    points = jax.random.normal(data_key, (10, 10_000))
    keys = jax.random.split(maps, 400)
    sample = distances.mean_ratios(methods.TTRP, (25, 25, 16), [(4, 3, 2)], keys, points)[0]
    ours = methods.moments(sample)
    for name in ("mean", "variance"):
        error = math.sqrt(1 + 4) * ours[f"{name} ±"]  # theirs: a quarter of the draws
        assert abs(ours[name] - reference[name]) < 5 * error


# The maps


def test_factors_and_roots() -> None:
    assert methods.factors(24, 3) == (4, 3, 2)
    assert methods.factors(2500, 3) == (25, 10, 10)
    assert methods.factors(7, 2) == (7, 1)
    assert structured.roots(64) == {1: 64, 2: 8, 3: 4, 6: 2}
    assert structured.roots(1024) == {1: 1024, 2: 32, 5: 4, 10: 2}


@pytest.mark.parametrize("method", [methods.SPARSE, methods.VERY_SPARSE], ids=lambda m: m.name)
def test_storage_counts_the_nonzeros(method: methods.Method, key: jax.Array) -> None:
    shapes = (10, 8, 5), (3, 2, 2)
    expected = methods.storage(method, *shapes)
    assert abs(method.draw(key, *shapes).size - expected) <= 5 * math.sqrt(expected)


def test_draws_are_those_of_the_keys(key: jax.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the batches in which they are made."""
    monkeypatch.setattr(methods, "_DRAWN_AT_ONCE", 40)  # two maps of 16 numbers
    keys, x = jax.random.split(key, 6), np.eye(12)
    shapes = (4, 3), (2, 2)
    values = methods.over_draws(sketch.apply, methods.TTRP, shapes, keys, x)
    one_by_one = list(methods.single(methods.TTRP, shapes, keys))
    assert len(one_by_one) == len(keys)
    for k, p, value in zip(keys, one_by_one, values, strict=True):
        expected = sketch.apply(methods.TTRP.draw(k, *shapes), x)
        np.testing.assert_allclose(value, expected, atol=1e-14)
        np.testing.assert_allclose(sketch.apply(p, x), expected, atol=1e-14)


def test_the_sampled_variance_meets_the_exact_one() -> None:
    row = structured._sampled(methods.TTRP_GAUSSIAN, 2, 4, numbers=500_000, seed=3)
    assert row["exact"] == pytest.approx((1 + 2 / 4) ** 2 - 1)
    assert abs(row["mean"] - 1) < 5 * row["mean ±"]
    assert abs(row["variance"] - row["exact"]) < 5 * row["variance ±"]


def test_ten_factors_have_the_variance_of_the_issue() -> None:
    row = structured._exact([methods.GAUSSIAN, methods.TTRP_GAUSSIAN], 10, 2, seed=0)
    assert row[methods.TTRP_GAUSSIAN.name] == pytest.approx(1023)
    assert row[methods.GAUSSIAN.name] == pytest.approx(2 / 1024)


# The images


def test_a_file_in_keras_layout(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    arrays["y_test"] = arrays["y_test"][:, None]  # as Keras has it for some sets
    loaded = data.load(saved(tmp_path, arrays), openml=False)
    assert (loaded.name, loaded.shape) == ("images.npz", (8, 6))
    np.testing.assert_array_equal(loaded.y_test, arrays["y_test"].ravel())
    largest = arrays["x_train"].max()
    np.testing.assert_allclose(loaded.x_test, arrays["x_test"] / largest, rtol=1e-6)
    part = loaded.sample(7, 100, seed=0)
    assert (part.x_train.shape, part.y_train.shape) == ((7, 8, 6), (7,))
    assert len(part.x_test) == 20


@pytest.mark.parametrize(
    ("key_", "value", "message"),
    [
        ("y_test", None, r"expected the arrays x_train, y_train, x_test, y_test, got .*y_test$"),
        ("x_train", np.zeros((40, 8, 6, 3)), r"x_train: expected grey images.*\(40, 8, 6, 3\)"),
        ("x_train", np.zeros((0, 8, 6)), r"x_train: expected grey images"),
        ("x_test", np.full((20, 8, 6), "a"), r"x_test: expected grey images.*<U1"),
        ("x_test", np.full((20, 8, 6), np.nan), r"x_test: expected finite pixels"),
        ("x_test", np.zeros((20, 8, 5)), r"images of one size, got \(8, 6\) and \(8, 5\)"),
        ("y_train", np.zeros(39), r"one label for each of the 40 images.*got shape \(39,\)"),
        ("y_test", np.zeros((20, 2)), r"one label for each of the 20 images.*\(20, 2\)"),
        ("y_test", np.array([object()] * 20), r"expected numeric arrays, got one unread"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], key_: str, value: np.ndarray, message: str
) -> None:
    changed = {**arrays, key_: value}
    path = saved(tmp_path, {k: v for k, v in changed.items() if v is not None})
    with pytest.raises(ValueError, match=message):
        data.from_npz(path)


def test_what_is_no_npz_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="found nothing"):
        data.from_npz(tmp_path / "none.npz")
    path = tmp_path / "text.npz"
    path.write_text("x_train")
    with pytest.raises(ValueError, match=r"expected an \.npz file in Keras' layout"):
        data.from_npz(path)


def test_openml_offline_says_what_else_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
    with pytest.raises(ConnectionError, match=r"no route to host.*--data PATH"):
        data.load(None, openml=True)


def test_the_default_images_are_the_bundled_digits() -> None:
    loaded = data.load(None, openml=False)
    assert "digits" in loaded.name
    assert (len(loaded.x_train), len(loaded.x_test), loaded.shape) == (1297, 500, (8, 8))
    assert loaded.x_train.max() == 1


def test_images_split_each_side_for_four_modes() -> None:
    assert images.modes(images.TTRP_SPLIT, (28, 28)) == (7, 4, 7, 4)
    assert images.modes(methods.TTRP, (28, 28)) == (28, 28)


def test_compared_images_differ() -> None:
    x = np.array([[1.0], [1.0], [0.0], [2.0]])
    np.testing.assert_array_equal(images.distinct(x, 3), [[1.0], [0.0], [2.0]])
    with pytest.raises(ValueError, match="expected 4 different test images, got 3"):
        images.distinct(x, 4)


# The command


@pytest.mark.parametrize(
    "options", [{"data": Path("x.npz"), "openml": True}, {"draws": 1}, {"points": 3000}]
)
def test_options_that_contradict_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Config(**options)  # type: ignore[arg-type]


TINY = {
    "sizes": [60],
    "rows": [4, 8],
    "draws": [4],
    "points": [3],
    "sides": [2, 3],
    "train-size": [30],
    "test-size": [20],
    "classified": [2],
    "dense-sizes": [60],
    "batch": [2],
    "repeats": [1],
    "orders": [2],
    "train-draws": [2],
    "rank-one-rows": [2],
    "numbers": [1000],
}


@pytest.mark.slow
def test_a_tiny_run_leaves_tables_and_figure(
    tmp_path: Path, arrays: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distances, "METHODS", (methods.TTRP,))
    monkeypatch.setattr(images, "MAPS", (methods.TTRP,))
    monkeypatch.setattr(scaling, "DENSE_METHODS", (methods.TTRP,))
    monkeypatch.setattr(structured, "FEW_METHODS", (methods.TTRP_GAUSSIAN,))
    monkeypatch.setattr(structured, "MANY_ROWS", 4)
    options = [text for name, values in TINY.items() for text in (f"--{name}", *map(str, values))]
    options += ["--data", str(saved(tmp_path, arrays)), "--results", str(tmp_path / "out")]
    assert main(["run", "ttrp", "--quick", *options]) == 0
    (line,) = (tmp_path / "out" / "ttrp" / "runs.jsonl").read_text().splitlines()
    run = json.loads(line)
    folder = tmp_path / "out" / "ttrp" / run["run"]
    written = {path.name for path in folder.iterdir()}
    assert written == {
        "distances.csv",
        "distance_means.csv",
        "distance_variances.csv",
        "image_accuracy.csv",
        "images.csv",
        "scaling_dense.csv",
        "scaling_trains.csv",
        "train_distances.csv",
        "rank_one.csv",
        "rank_one_exact.csv",
        "ttrp.png",
    }
    assert run["metrics"]["images"] == "images.npz"
    assert (folder / "ttrp.png").read_bytes().startswith(b"\x89PNG")
