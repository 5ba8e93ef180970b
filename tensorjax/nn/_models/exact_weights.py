"""Exact dense weights of tensorised layers, in double precision on the host, and their errors."""

import math
from typing import Any

import jax
import numpy as np
import opt_einsum
from flax import nnx

from tensorjax.contract._numpy_einsum import numpy_einsum
from tensorjax.nn._convolution_base import TensorConv
from tensorjax.nn._embeddings import table_networks as networks
from tensorjax.nn._embeddings.embedding_base import Embedding
from tensorjax.nn._linear_layers import TensorLinearGeneral
from tensorjax.nn._parameters import check_bytes, parameter_count, values
from tensorjax.nn._weight_conversion import Certificate, certificates, double, relative_error


def exact_weight(layer: Any, max_bytes: int) -> np.ndarray:
    """Computes a tensorised layer's dense weight on the host in double precision, for exports.

    Raises:
      ValueError: the weight needs more than ``max_bytes``.
    """
    if isinstance(layer, TensorLinearGeneral):
        weight = exact_weight(layer.layer, max_bytes)
        return weight.reshape(*layer.in_features, *layer.out_features)
    graph, state = nnx.split(layer)
    layer = nnx.merge(graph, jax.tree.map(double, state))
    if isinstance(layer, Embedding):
        arrays, lookup = layer._network()
        arrays = networks.gated(lookup, arrays, values(layer.gates))
        terms, order = lookup.terms, lookup.order
        out = [*range(order), *(networks.column(k) for k in range(order))]
        sides, kept = (layer.num_shape, layer.feature_shape), (layer.num_embeddings, layer.features)
    elif isinstance(layer, TensorConv):
        arrays, network = layer.arrays(), layer.network()
        check_bytes(network.elements, np.float64, max_bytes)
        weight = _contracted(arrays, network.terms, list(range(len(network.modes))))
        shape = (layer.in_features, *layer.kernel_size, layer.out_features)
        return np.moveaxis(weight.reshape(shape), 0, -2)
    else:
        arrays, network = layer.arrays(), layer.network()
        terms, out = network.terms, list(range(len(network.modes)))
        sides = (network.in_shape, network.out_shape)
        kept = (layer.in_features, layer.out_features)
    shape = (math.prod(sides[0]), math.prod(sides[1]))
    check_bytes(math.prod(shape), np.float64, max_bytes)
    weight = _contracted(arrays, terms, out).reshape(shape)[: kept[0], : kept[1]]
    if getattr(layer, "padding_idx", None) is not None:
        weight[layer.padding_idx] = 0
    return weight


def _contracted(arrays: Any, terms: Any, out: list[int]) -> np.ndarray:
    """Computes a layer's exact weight, of axes ``out``, from its tensor network in NumPy."""
    # Renumbered: those of embeddings are large, and NumPy takes ASCII letters alone.
    labels = sorted({label for term in terms for label in term})
    letter = {label: opt_einsum.get_symbol(k) for k, label in enumerate(labels)}
    text = ["".join(letter[label] for label in term) for term in (*terms, out)]
    # Copied: of one operand alone NumPy returns a view.
    return np.array(numpy_einsum(f"{','.join(text[:-1])}->{text[-1]}", *map(np.asarray, arrays)))


def certify_export(new: Any, made: Any, exact: np.ndarray, given: Any) -> None:
    """Certifies an exported dense layer's exact weight: stores its rounding error.

    ``made`` is its weight as stored, ``exact`` that in double precision, ``given`` the old layer.
    """
    certificates[new] = Certificate(
        error=relative_error(made, exact),
        bound=None,
        least=0.0,
        ranks=(),
        numbers_before=parameter_count(given),
        numbers=parameter_count(new),
    )
