"""Small dense models for `comera/compress`: MLP, vision transformer, GRU, and GPT-2; their data."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

Kind = Literal["mlp", "vit", "gru", "gpt2"]
HEADS = 4
# Tokens of a row of text, size of its vocabulary, and files of Python's library that are read.
LENGTH, VOCABULARY, FILES = 32, 512, 300


class Samples(NamedTuple):
    """Inputs and labels for training and test; images are (n, pixels), texts (n, tokens)."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def digits() -> Samples:
    """Loads scikit-learn's digits, 8 × 8 pixels in [0, 1], 1200 of them for training."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(found.data))
    x, y = found.data[order].astype(np.float32) / 16, found.target[order].astype(np.int32)
    return Samples(x[:1200], y[:1200], x[1200:], y[1200:])


def images(path: Path, most: int) -> Samples:
    """Loads images of a file with arrays x_train, y_train, x_test, y_test; pixels in [0, 1]."""
    with np.load(path) as file:
        x, y, tx, ty = (file[n] for n in ("x_train", "y_train", "x_test", "y_test"))
    x, tx = (a.reshape(len(a), -1).astype(np.float32) / 255 for a in (x[:most], tx))
    return Samples(x, y[:most].astype(np.int32), tx, ty.astype(np.int32))


def texts(most: int) -> Samples:
    """Cuts Python's standard library into rows of tokens; labels are the tokens that follow."""
    from experiments._texts import bpe, library

    found, skipped = library.sources(library.default_folder(), tests=False, limit=FILES, seed=0)
    parts, _ = library.texts(found, skipped, held_out=0.1, seed=0)
    tokenizer = bpe.byte_level(parts["train"], VOCABULARY)

    def rows(split: str, most: int) -> np.ndarray:
        stream = np.concatenate([*bpe.encode(tokenizer, parts[split])])
        count = (len(stream) - 1) // LENGTH
        chosen = np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))
        return stream[chosen[:, None] * LENGTH + np.arange(LENGTH + 1)].astype(np.int32)

    train, test = rows("train", most), rows("test", 2048)
    return Samples(train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:])


class Perceptron(nnx.Module):
    """Multilayer perceptron with ReLU between its linear layers."""

    def __init__(self, widths: tuple[int, ...], rngs: nnx.Rngs) -> None:
        pairs = itertools.pairwise(widths)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Computes the logits of a batch of images."""
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class Block(nnx.Module):
    """Pre-LN transformer block without biases."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        kept: dict[str, Any] = {"use_bias": False, "rngs": rngs}
        self.norms = nnx.List([nnx.LayerNorm(width, **kept) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(HEADS, width, decode=False, **kept)
        self.up = nnx.Linear(width, 4 * width, **kept)
        self.down = nnx.Linear(4 * width, width, **kept)

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Applies attention and MLP."""
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Vision(nnx.Module):
    """Vision transformer of two blocks on square patches; the mean over patches is classified."""

    def __init__(self, side: int, patch: int, width: int, classes: int, rngs: nnx.Rngs) -> None:
        self.side, self.patch = side, patch
        self.embed = nnx.Linear(patch * patch, width, use_bias=False, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Computes the logits of a batch of images."""
        n, p = self.side // self.patch, self.patch
        x = x.reshape(-1, n, p, n, p).swapaxes(2, 3).reshape(len(x), n * n, p * p)
        x = self.embed(x)
        x = x + positions(x.shape[1], x.shape[2], 0.5)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x).mean(1))


class Recurrent(nnx.Module):
    """GRU over the rows of an image; the last state is classified."""

    def __init__(self, side: int, width: int, classes: int, rngs: nnx.Rngs) -> None:
        self.side, self.width = side, width
        self.cell = nnx.GRUCell(side, width, rngs=rngs)
        self.out = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Computes the logits of a batch of images."""
        begin = jnp.zeros((len(x), self.width), x.dtype)
        rows = x.reshape(len(x), -1, self.side).swapaxes(0, 1)
        return self.out(jax.lax.scan(self.cell, begin, rows)[0])


class Decoder(nnx.Module):
    """Language model of two blocks, as GPT-2 but without biases."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCABULARY, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Computes the logits of the tokens that follow."""
        x, mask = self.embed(ids), nnx.make_causal_mask(ids)
        x = x + positions(x.shape[1], x.shape[2], 0.1)
        for block in self.blocks:
            x = block(x, mask)
        return self.out(self.norm(x))


def positions(length: int, width: int, size: float) -> jax.Array:
    """Computes sinusoidal positions (length, width), as large as what they are added to."""
    angles = np.arange(length)[:, None] / 100 ** (np.arange(0, width, 2) / width)
    waves = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, -1)
    return jnp.asarray(size * waves[:, :width], jnp.float32)


def builder(kind: Kind, data: Samples) -> Callable[[int], Callable[[nnx.Rngs], nnx.Module]]:
    """Returns a function from the width to what builds the dense model from `nnx.Rngs`.

    The width of transformers is rounded up to a multiple of the number of heads.
    """
    classes = int(data.y.max()) + 1
    pixels = data.x.shape[1]
    side = round(pixels**0.5)
    patch = 2 if side <= 8 else 4

    def heads(width: int) -> int:
        return -(-width // HEADS) * HEADS

    def at(width: int) -> Callable[[nnx.Rngs], nnx.Module]:
        return {
            "mlp": lambda rngs: Perceptron((pixels, width, width, classes), rngs),
            "vit": lambda rngs: Vision(side, patch, heads(width), classes, rngs),
            "gru": lambda rngs: Recurrent(side, width, classes, rngs),
            "gpt2": lambda rngs: Decoder(heads(width), rngs),
        }[kind]

    return at
