"""Executor of a planned contraction with NumPy, on the host, without compilation."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorjax.contract._cost_model_input import Model, Slices, levels
from tensorjax.contract._einsum_parser import Network
from tensorjax.contract._pairwise_products import Step


def run(model: Model, slices: Slices, operands: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    """Contracts NumPy arrays on the host, in the order and slices of a contraction plan.

    Products are summed in ``dtype``, which NumPy's matrix products have to know.
    """
    network = model.network
    terms = [_reduced(network, i, x.astype(dtype)) for i, x in enumerate(operands)]
    loops = levels(model, slices)
    output = network.reduced_output
    if not loops:
        return _contracted(model, terms).reshape(network.output_shape)
    out = np.zeros([network.sizes[label] for label in output], dtype)
    for index in itertools.product(*(range(count) for _, count in loops)):
        chosen = {
            label: slice(k * (size := network.sizes[label] // count), (k + 1) * size)
            for (label, count), k in zip(loops, index, strict=True)
        }
        parts = [_cut(x, network.reduced[i], chosen) for i, x in enumerate(terms)]
        _cut(out, output, chosen)[...] += _contracted(model, parts)
    return out.reshape(network.output_shape)


def _cut(x: np.ndarray, labels: str, chosen: Mapping[str, slice]) -> np.ndarray:
    return x[(*(chosen.get(label, slice(None)) for label in labels), ...)]


def _reduced(network: Network, operand: int, x: np.ndarray) -> np.ndarray:
    """Reduces a NumPy operand before a planned contraction runs on the host: diagonals, sums."""
    labels, kept = network.squeezed(operand), network.reduced[operand]
    x = x.reshape([n for n in network.shapes[operand] if n != 1])
    numbers = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return np.einsum(x, [numbers[label] for label in labels], [numbers[label] for label in kept])


def _contracted(model: Model, terms: Sequence[np.ndarray]) -> np.ndarray:
    """Executes all products of a contraction by NumPy on the host."""
    count, labels = len(terms), model.network.reduced[0]
    values = dict(enumerate(terms))
    for k, step in enumerate(model.steps):
        values[count + k] = _product(step, values.pop(step.left), values.pop(step.right))
        labels = step.labels
    ((_, value),) = values.items()
    return value.transpose([labels.index(label) for label in model.network.reduced_output])


def _product(step: Step, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Executes one product of a contraction on the host by NumPy's batched matrix product."""
    sizes = dict(zip(step.left_labels + step.right_labels, left.shape + right.shape, strict=True))
    rows, columns = step.free(step.left_labels), step.free(step.right_labels)
    a = left.transpose([step.left_labels.index(c) for c in step.batch + rows + step.summed])
    b = right.transpose([step.right_labels.index(c) for c in step.batch + step.summed + columns])
    batch, m, k, n = (
        math.prod(sizes[c] for c in group) for group in (step.batch, rows, step.summed, columns)
    )
    result = a.reshape(batch, m, k) @ b.reshape(batch, k, n)
    return result.reshape([sizes[c] for c in step.labels])
