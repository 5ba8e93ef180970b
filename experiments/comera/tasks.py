"""Tasks to learn: data, model, loss and score, each at three scales."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._texts.types import Corpus
from experiments.comera import ordering
from experiments.comera.data._types import PairTask, TabularTask
from tensorjax.models.code import CodeModel
from tensorjax.models.dlrm import DLRM, DLRMConfig
from tensorjax.models.encoder import Encoder, EncoderConfig

Scale = Literal["tiny", "default", "published"]
Arrays = dict[str, np.ndarray]
Batch = Mapping[str, jax.Array]

MASKED = 0.3  # share of the tokens that are hidden; BERT hides 15 %, but trains for longer
FIRST = 5  # ids below this are special tokens
# Rows of text that a validation and a test look at, evenly spaced; None for all.
LOOKED_AT = {"tiny": (128, 256), "default": (2048, 4096), "published": (None, None)}


@dataclass(frozen=True, eq=False)
class Task:
    """Task at one scale: data splits, model sizes, loss and score.

    Attributes:
        name: Of the option ``--tasks``.
        data: Source of the data, in words.
        metric: The score that validation chooses by, larger is better.
        splits: Arrays of "train", "valid" and "test", each with a row a sample.
        config: Sizes of the dense model.
        make: Builds the model of a configuration from the specs of its layers.
        narrow: The configuration of a smaller dense model, larger for larger k.
        widest: The k at which ``narrow`` gives back about the dense model.
        loss: Of a model on a batch, a scalar; the key serves what is drawn.
        outputs: Of a model on a batch, one row a sample, for ``score``.
        score: Metrics of the outputs on a split.
        batch: Samples a step.
        steps: Steps of a training.
        evaluated: Samples a step of evaluation.
        facts: What there is to know of the data.
    """

    name: str
    data: str
    metric: str
    splits: Mapping[str, Arrays]
    config: Any
    make: Callable[..., nnx.Module]
    narrow: Callable[[Any, int], Any]
    widest: int
    loss: Callable[[Any, Batch, jax.Array], jax.Array]
    outputs: Callable[[Any, Batch], jax.Array]
    score: Callable[[np.ndarray, Arrays], dict[str, float]]
    batch: int
    steps: int
    evaluated: int
    facts: Mapping[str, Any]

    def settings(self) -> dict[str, Any]:
        """Returns all settings of a task that its results depend on."""
        sizes = {name: len(next(iter(split.values()))) for name, split in self.splits.items()}
        return {
            "task": self.name, "data": self.data, "config": dataclasses.asdict(self.config),
            "batch": self.batch, "steps": self.steps, "samples": sizes, "facts": self.facts,
        }  # fmt: skip


def tabular(
    name: str, data: str, found: TabularTask, *, scale: Scale, batch: int, steps: int
) -> Task:
    """Returns a task of binary classification of tables, by DLRM, scored by the area under ROC.

    Whether a flight is late, or an advertisement is clicked.
    """
    sizes: dict[str, Any] = {
        "tiny": {"features": 8, "bottom": (16,), "top": (32,), "table_from": 200},
        "default": {"features": 16, "bottom": (64,), "top": (64, 32), "linear_from": 2048},
        "published": {},
    }[scale]
    config = DLRMConfig(dense=found.train.dense.shape[1], tables=found.tables, **sizes)
    splits = {
        split: {"dense": part.dense, "ids": part.ids, "labels": part.labels}
        for split, part in (("train", found.train), ("valid", found.valid), ("test", found.test))
    }

    def logits(model: DLRM, batch: Batch) -> jax.Array:
        # A no-op but for the models whose tables were cut: those share rows ("hashing trick").
        rows = jnp.asarray(model.config.tables, jnp.int32)
        return model(batch["dense"], batch["ids"] % rows[None])

    def loss(model: DLRM, batch: Batch, key: jax.Array) -> jax.Array:
        labels = batch["labels"].astype(jnp.float32)
        return optax.losses.sigmoid_binary_cross_entropy(logits(model, batch), labels).mean()

    def narrow(config: DLRMConfig, k: int) -> DLRMConfig:
        return dataclasses.replace(config, tables=tuple(min(k, rows) for rows in config.tables))

    return Task(
        name=name, data=data, metric="AUC", splits=splits, config=config, make=DLRM, narrow=narrow,
        widest=max(found.tables), loss=loss, outputs=logits, score=_binary, batch=batch,
        steps=steps, evaluated=4096, facts=found.facts,
    )  # fmt: skip


def _binary(outputs: np.ndarray, split: Arrays) -> dict[str, float]:
    from sklearn.metrics import roc_auc_score

    labels = split["labels"]
    logits = outputs.astype(np.float64)
    return {
        "AUC": 100 * float(roc_auc_score(labels, logits)),
        "accuracy": 100 * float(np.mean((logits > 0) == labels)),
        "loss": float(np.mean(np.logaddexp(0, logits) - labels * logits)),
    }


def code(name: str, data: str, found: Corpus, *, scale: Scale, batch: int, steps: int) -> Task:
    """Returns a task of predicting masked tokens of source code, scored by accuracy.

    Ids are those of the corpus in the order of `ordering.by_neighbours`, for all models alike.
    """
    ids = ordering.by_neighbours(found.train, found.vocabulary, FIRST)
    found = dataclasses.replace(
        found, train=ids[found.train], valid=ids[found.valid], test=ids[found.test]
    )
    config = _encoder(scale, found.vocabulary, found.train.shape[1], classes=1)
    # Else a training this short ends before attention has found the neighbours.
    config = dataclasses.replace(config, linear_biases=True)
    chosen = max(1, round(MASKED * found.train.shape[1]))
    valid, test = LOOKED_AT[scale]
    splits = {
        "train": {"tokens": found.train},
        "valid": hidden(_spaced(found.valid, valid), chosen, seed=1),
        "test": hidden(_spaced(found.test, test), chosen, seed=2),
    }

    def loss(model: CodeModel, batch: Batch, key: jax.Array) -> jax.Array:
        inputs, positions, targets, weights = hide(
            key, batch["tokens"], chosen, found.vocabulary, found.special.mask
        )
        logits = model(inputs, positions, batch["tokens"] != found.special.pad)
        each = optax.losses.softmax_cross_entropy_with_integer_labels(logits, targets)
        return jnp.sum(each * weights) / jnp.maximum(jnp.sum(weights), 1)

    def outputs(model: CodeModel, batch: Batch) -> jax.Array:
        logits = model(batch["inputs"], batch["positions"], batch["inputs"] != found.special.pad)
        each = optax.losses.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        right = (jnp.argmax(logits, -1) == batch["targets"]).astype(logits.dtype)
        w = batch["weights"]
        return jnp.stack([jnp.sum(x * w, 1) for x in (right, each, jnp.ones_like(w))], axis=1)

    def score(outputs: np.ndarray, split: Arrays) -> dict[str, float]:
        right, nll, number = outputs.astype(np.float64).sum(0)
        return {"accuracy": float(100 * right / number), "loss": float(nll / number)}

    return Task(
        name=name, data=data, metric="accuracy", splits=splits, config=config, make=CodeModel,
        narrow=_narrow, widest=_widest(config), loss=loss, outputs=outputs, score=score,
        batch=batch, steps=steps, evaluated=256, facts=found.facts,
    )  # fmt: skip


def hide(
    key: jax.Array, tokens: jax.Array, chosen: int, vocabulary: int, mask: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Masks tokens as BERT does: of ``chosen`` positions 80 % masked, 10 % random, 10 % kept.

    Returns:
        (tokens with some replaced, positions, true tokens there, weights: 0 where a row has fewer
        tokens that are not special than ``chosen``).
    """
    where, what, new = jax.random.split(key, 3)
    draw = jax.random.uniform(where, tokens.shape)
    value, positions = jax.lax.top_k(jnp.where(tokens >= FIRST, draw, -1.0), chosen)
    targets = jnp.take_along_axis(tokens, positions, axis=1)
    how = jax.random.uniform(what, positions.shape)
    drawn = jax.random.randint(new, positions.shape, FIRST, vocabulary, tokens.dtype)
    put = jnp.where(how < 0.8, mask, jnp.where(how < 0.9, drawn, targets))
    put = jnp.where(value >= 0, put, targets)
    rows = jnp.arange(tokens.shape[0])[:, None]
    inputs = tokens.at[rows, positions].set(put.astype(tokens.dtype))
    return inputs, positions, targets, (value >= 0).astype(jnp.float32)


def hidden(tokens: np.ndarray, chosen: int, *, seed: int, mask: int = 4) -> Arrays:
    """Masks fixed positions for evaluation, the same at every evaluation."""
    draw = np.random.default_rng(seed).random(tokens.shape)
    draw[tokens < FIRST] = -1
    positions = np.argsort(-draw, axis=1, kind="stable")[:, :chosen].astype(np.int32)
    known = np.take_along_axis(draw, positions, 1) >= 0
    targets = np.take_along_axis(tokens, positions, 1)
    inputs = tokens.copy()
    np.put_along_axis(inputs, positions, np.where(known, mask, targets).astype(tokens.dtype), 1)
    weights = known.astype(np.float32)
    return {"inputs": inputs, "positions": positions, "targets": targets, "weights": weights}


def pairs(
    name: str,
    data: str,
    found: PairTask,
    *,
    scale: Scale,
    batch: int,
    steps: int,
    learnt: int | None = None,
) -> Task:
    """Returns a task of classifying the relation of two texts, scored by accuracy."""
    length = found.train.tokens.shape[1]
    config = _encoder(scale, found.vocabulary, length, classes=len(found.classes))
    valid, test = LOOKED_AT[scale]
    splits = {
        split: {
            name: _spaced(getattr(part, name), limit) for name in ("tokens", "segments", "labels")
        }
        for split, part, limit in (
            ("train", found.train, learnt),
            ("valid", found.valid, valid),
            ("test", found.test, test),
        )
    }

    def outputs(model: Encoder, batch: Batch) -> jax.Array:
        return model(batch["tokens"], batch["segments"])

    def loss(model: Encoder, batch: Batch, key: jax.Array) -> jax.Array:
        return optax.losses.softmax_cross_entropy_with_integer_labels(
            outputs(model, batch), batch["labels"]
        ).mean()

    def score(outputs: np.ndarray, split: Arrays) -> dict[str, float]:
        logits, labels = outputs.astype(np.float64), split["labels"]
        top = logits.max(1)
        nll = top + np.log(np.exp(logits - top[:, None]).sum(1))
        nll -= logits[np.arange(len(labels)), labels]
        right = logits.argmax(1) == labels
        return {"accuracy": 100 * float(right.mean()), "loss": float(nll.mean())}

    return Task(
        name=name, data=data, metric="accuracy", splits=splits, config=config, make=Encoder,
        narrow=_narrow, widest=_widest(config), loss=loss, outputs=outputs, score=score,
        batch=batch, steps=steps, evaluated=256, facts=found.facts,
    )  # fmt: skip


def _spaced(array: np.ndarray, limit: int | None) -> np.ndarray:
    """Returns at most ``limit`` rows of an array, evenly spaced."""
    if limit is None or len(array) <= limit:
        return array
    return array[np.linspace(0, len(array) - 1, limit).round().astype(int)]


def _encoder(scale: Scale, vocabulary: int, length: int, classes: int) -> EncoderConfig:
    sizes: dict[str, Any] = {
        "tiny": {"features": 32, "layers": 1, "heads": 2, "hidden": 64},
        "default": {"features": 128, "layers": 2, "heads": 4, "hidden": 512},
        "published": {"dropout": 0.1, "norm_first": False, "sinusoids": False},
    }[scale]
    sizes = {"dropout": 0.0, "norm_first": True, "sinusoids": True, **sizes}
    return EncoderConfig(vocabulary=vocabulary, length=length, classes=classes, **sizes)


def _narrow(config: EncoderConfig, k: int) -> EncoderConfig:
    """Returns an encoder configuration of k features per head, with the MLP in proportion."""
    features = config.heads * k
    hidden = max(1, config.hidden * features // config.features)
    return dataclasses.replace(config, features=features, hidden=hidden)


def _widest(config: EncoderConfig) -> int:
    return config.features // config.heads
