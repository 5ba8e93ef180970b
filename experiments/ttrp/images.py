"""Projected images: distance ratios, and accuracy of a nearest-neighbour classifier."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from experiments import Run
from experiments.ttrp.data import Images
from experiments.ttrp.distances import block, hull, mean_ratio
from experiments.ttrp.methods import (
    GAUSSIAN,
    SPARSE,
    TRP,
    TTRP,
    TTRP_2,
    Method,
    Shape,
    factors,
    moments,
    over_draws,
    single,
    storage,
    times,
)
from tensorjax import sketch

NEIGHBORS = 5
TTRP_SPLIT = dataclasses.replace(TTRP, name="TTRP Rademacher, d = 4", marker="D", line="--")
PCA = Method("PCA (fitted to the data)", sketch.gaussian, "#009e73", "*", "-")  # never drawn
RAW = Method("all pixels", sketch.gaussian, "#7f7f7f", "", ":")  # never drawn


def modes(method: Method, shape: Shape) -> Shape:
    """Returns the modes of an image or its projection: two, or four if each side is split.

    The order of modes does not matter to a Kronecker map: it only permutes the rows. So the pixels
    are left as they come, row by row.
    """
    return tuple(f for side in shape for f in factors(side, 2)) if method is TTRP_SPLIT else shape


MAPS = (GAUSSIAN, SPARSE, TRP, TTRP, TTRP_SPLIT, TTRP_2)


def measure(
    run: Run,
    images: Images,
    *,
    sides: Sequence[int],
    points: int,
    draws: int,
    classified: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Measures distance ratios and accuracy for every method and size; records tables."""
    usable = [side for side in sides if side < min(images.shape)]
    if not usable:
        raise ValueError(f"expected sides below those of the images {images.shape}, got {sides}")
    few = distinct(_flat(images.x_test), points)
    keys = jax.random.split(jax.random.key(seed), draws)
    rows = [_baseline(images)]
    for method in run.progress((*MAPS, PCA), "images, methods"):
        if method is PCA:
            rows += _pca(images, usable)
        else:
            rows += _projected(method, images, usable, few, keys, classified)
    _record(run, images, rows, points, draws, classified)
    return rows


def distinct(x: np.ndarray, count: int) -> np.ndarray:
    """Returns the first ``count`` different rows of x; ValueError if there are fewer."""
    _, first = np.unique(x, axis=0, return_index=True)
    if len(first) < count:
        raise ValueError(f"expected {count} different test images, got {len(first)}")
    return x[np.sort(first)[:count]]


def accuracy(train: np.ndarray, test: np.ndarray, images: Images) -> float:
    """Computes the test accuracy of a nearest-neighbour classifier on projected images."""
    from sklearn.neighbors import KNeighborsClassifier

    neighbors = min(NEIGHBORS, len(train))
    classifier = KNeighborsClassifier(neighbors, algorithm="brute").fit(train, images.y_train)
    return float(classifier.score(test, images.y_test))


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


def _baseline(images: Images) -> dict[str, Any]:
    exact = accuracy(_flat(images.x_train), _flat(images.x_test), images)
    return {"method": RAW.name, "M": math.prod(images.shape), "accuracy": exact}


def _pca(images: Images, sides: Sequence[int]) -> Iterator[dict[str, Any]]:
    from sklearn.decomposition import PCA as Components

    train, test = _flat(images.x_train), _flat(images.x_test)
    largest = min(max(sides) ** 2, *train.shape)
    fitted = Components(largest, random_state=0).fit(train)
    train, test = fitted.transform(train), fitted.transform(test)
    for m in (side**2 for side in sides if side**2 <= largest):
        result = accuracy(train[:, :m], test[:, :m], images)
        stored = (m + 1) * math.prod(images.shape)  # components and mean
        yield {"method": PCA.name, "M": m, "storage": stored, "accuracy": result}


def _projected(
    method: Method,
    images: Images,
    sides: Sequence[int],
    few: np.ndarray,
    keys: jax.Array,
    classified: int,
) -> Iterator[dict[str, Any]]:
    in_shape = modes(method, images.shape)
    shapes = [modes(method, (side, side)) for side in sides]
    whole = hull(shapes)
    projected = over_draws(sketch.apply, method, (in_shape, whole), keys, few)
    maps = itertools.islice(single(method, (in_shape, whole), keys), classified)
    scores = np.array([_scores(p, images, whole, shapes) for p in maps])
    for shape, score in zip(shapes, scores.T, strict=True):
        ratio = moments(mean_ratio(block(projected, whole, shape), few))
        yield {
            "method": method.name,
            "M": math.prod(shape),
            "modes": f"{times(in_shape)} → {times(shape)}",
            "storage": storage(method, in_shape, shape),
            "accuracy": float(score.mean()),
            "accuracy sd": float(score.std(ddof=1)) if len(score) > 1 else None,
            "ratio mean": ratio["mean"],
            "ratio variance": ratio["variance"],
            "ratio variance ±": ratio["variance ±"],
        }


def _scores(p: Any, images: Images, whole: Shape, shapes: Sequence[Shape]) -> list[float]:
    """Computes the accuracy after projection by each sub-map of a map."""
    cut = len(images.x_train)
    y = np.asarray(sketch.apply(p, np.concatenate([_flat(images.x_train), _flat(images.x_test)])))
    parts = (block(y, whole, shape) for shape in shapes)
    return [accuracy(part[:cut], part[cut:], images) for part in parts]


def _record(
    run: Run,
    images: Images,
    rows: list[dict[str, Any]],
    points: int,
    draws: int,
    classified: int,
) -> None:
    about = f"{images.name}, {len(images.x_train)} to train and {len(images.x_test)} to test"
    columns = sorted({row["M"] for row in rows[1:]})
    wide: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = wide.setdefault(row["method"], {"method": row["method"]})
        for m in columns if row["method"] == RAW.name else [row["M"]]:
            line[f"M = {m}"] = _cell(row)
    run.table(
        "image_accuracy",
        list(wide.values()),
        caption=f"Accuracy of {NEIGHBORS}-nearest neighbours, mean ± sd over {classified} draws: "
        f"{about}",
    )
    run.table(
        "images",
        [row for row in rows if "ratio mean" in row],
        caption=f"The maps on {about}: accuracy as above; ratio of pairwise distances of {points} "
        f"test images, over {draws} draws; storage in elements",
    )
    run.metric("images", images.name)
    run.metric("accuracy_of_all_pixels", rows[0]["accuracy"])


def _cell(row: dict[str, Any]) -> str:
    spread = row.get("accuracy sd")
    return f"{row['accuracy']:.3f}" + (f" ± {spread:.3f}" if spread is not None else "")
