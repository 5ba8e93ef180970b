"""Summary table of a tensorised model's layers, and the certificates of converted ones."""

import math
from typing import Any

from flax import nnx

from tensorjax.nn._convolution_base import TensorConv
from tensorjax.nn._embeddings.embedding_base import Embedding
from tensorjax.nn._linear_base import TensorLinear
from tensorjax.nn._models.stacked_layers import lead
from tensorjax.nn._models.traversal import check_module, places
from tensorjax.nn._parameters import parameter_count
from tensorjax.nn._weight_conversion import Certificate
from tensorjax.nn._weight_conversion import certificates as measured


def summary(model: object) -> str:
    """Formats a table of a tensorised model's layers: shapes, ranks, parameters, compression.

    Args:
      model: any NNX module.

    Returns:
      A text: one line per layer, shared ones once, with path, class, features, modes, ranks, the
      parameters of a dense layer, the parameters now, and their ratio; the last line is the whole
      model.

    Raises:
      TypeError: ``model`` is no NNX module.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TT(rank=4).linear(64, 96, rngs=nnx.Rngs(0))
      >>> print(nn.summary(nnx.List([layer])))
      path  layer     features  modes       ranks  dense  parameters  ratio
      0     TTLinear  64 → 96   8·8 | 8·12  4 4 4  6,240         444   14.1
      all                                          6,240         444   14.1

    Source: ours.
    """
    check_module(model)
    rows, saved, seen = [], 0, set[int]()
    for layer, paths in places(model).values():
        if isinstance(layer, TensorLinear | TensorConv | Embedding | nnx.Linear | nnx.Embed):
            sizes, bias = _sizes(layer)
            dense, now = (math.prod(sizes) + bias) * math.prod(lead(layer)), parameter_count(layer)
            weights = _weights(layer)
            saved += 0 if weights & seen else dense - now  # tied weights are stored once
            seen |= weights
            name, features = type(layer).__name__, f"{sizes[0]} → {sizes[1]}"
            rows.append((paths[0], name, features, *_folds(layer), *_counts(dense, now)))
        elif isinstance(getattr(layer, "kernel", None), nnx.Variable):
            own = [v for v in vars(layer).values() if isinstance(v, nnx.Param)]
            now = sum(math.prod(v.shape) for v in own)
            rows.append((paths[0], type(layer).__name__, "as it is", "", "", *_counts(now, now)))
    total = parameter_count(model)
    rows.append(("all", "", "", "", "", *_counts(total + saved, total)))
    return table(
        ("path", "layer", "features", "modes", "ranks", "dense", "parameters", "ratio"), rows
    )


def _weights(layer: Any) -> set[int]:
    """Returns the ids of a layer's parameters without bias, so that a summary knows tied layers."""
    nodes = nnx.iter_graph(layer)
    return {id(v) for path, v in nodes if isinstance(v, nnx.Param) and path[-1] != "bias"}


def _sizes(layer: Any) -> tuple[tuple[int, int], int]:
    """Returns rows and columns of a layer's weight, and the length of its bias, for a summary."""
    if isinstance(layer, Embedding | nnx.Embed):
        return (layer.num_embeddings, layer.features), 0
    window = math.prod(layer.kernel_size) if isinstance(layer, TensorConv) else 1
    return (
        window * layer.in_features,
        layer.out_features,
    ), 0 if layer.bias is None else layer.out_features


def _folds(layer: Any) -> tuple[str, str]:
    """Formats mode sizes and ranks of a layer for a summary; empty for a dense layer."""
    if isinstance(layer, TensorLinear):
        sides = (layer.in_shape, layer.out_shape)
    elif isinstance(layer, TensorConv):
        sides = (layer.modes[:-1], layer.modes[-1:])
    elif isinstance(layer, Embedding):
        sides = (layer.num_shape, layer.feature_shape)
    else:
        return "", ""
    modes = " | ".join("·".join(map(str, side)) for side in sides)
    return modes, " ".join(map(str, layer.ranks))


def _counts(dense: int, now: int) -> tuple[str, str, str]:
    return f"{dense:,}", f"{now:,}", f"{dense / now:.3g}" if now else ""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Formats a model's summary as a table with aligned columns, the last three to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[-3:] = [cell.strip().rjust(len(cell)) for cell in cells[-3:]]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def certificates(model: object) -> dict[str, Certificate]:
    """Summarises errors of a model's converted layers: returns their certificates by path.

    After `tensorize` they are the errors of the truncations, after `detensorize` those of rounding
    the dense weights to their dtype. They are of the moment of
    conversion, whatever training did since; copies and checkpoints of a model have none.

    Args:
      model: any NNX module.

    Returns:
      {path of a layer: `Certificate`}, of shared layers once.

    Raises:
      TypeError: ``model`` is no NNX module.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> model = nnx.Sequential(nnx.Linear(64, 96, rngs=nnx.Rngs(0)))
      >>> nn.certificates(nn.tensorize(model, {"*": nn.TT(rank=8)}))["layers/0"].ranks
      (8, 8, 8)

    Source: ours.
    """
    check_module(model)
    layers = [  # lists of modules have no hash
        place for place in places(model).values() if type(place[0]).__hash__ is not None
    ]
    return {paths[0]: measured[layer] for layer, paths in layers if layer in measured}
