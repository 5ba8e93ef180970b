"""Size of tensorised layers (parameters, bytes or FLOPs) as a polynomial of the ranks.

Parameters, bytes and FLOPs are all sums of terms, coefficient × product of ranks, linear in every
rank. The same polynomial, taken at ‖D‖₁ in place of the ranks, is the surrogate of CoMERA.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax.optim._layers.parameter_paths import tokens
from tensorjax.optim._layers.tensorised_layers import Layer, Layout, input_modes

Measure = Literal["numbers", "bytes", "flops"]
Term = tuple[int, tuple[int, ...]]  # coefficient, and the gates whose ranks multiply it


def checked(measure: str) -> Measure:
    """Checks in what a model's size is measured: "numbers", "bytes" or "flops"; returns it."""
    return _check.choice("measure", measure, get_args(Measure))


def check_flops(params: Any, measure: Measure) -> None:
    """Raises ValueError for "flops" of a linear TT-matrix without a bias, which is like a lookup.

    Only parameters of `flax.nnx` say what they are of.
    """
    if measure != "flops":
        return

    def marked(node: Any) -> bool:
        return getattr(node, "linear_matrix", False) is True

    for path, node in jax.tree_util.tree_flatten_with_path(params, is_leaf=marked)[0]:
        if marked(node):
            place = "/".join(map(str, tokens(path)))
            raise ValueError(
                f'measure: expected "numbers" or "bytes", got "flops" with {place}, a core of a '
                "linear TT-matrix without a bias: in plain arrays, as optimisers have them, "
                "nothing tells it from a lookup, whose operations are others; give the layer a bias"
            )


def terms(layer: Layer, measure: Measure, rows: int) -> Iterator[Term]:
    """Yields the terms of a tensorised layer's size as a polynomial of its ranks."""
    if measure == "flops":
        yield from {"tt": _train_flops, "tucker": _tucker_flops, "cp": _cp_flops}[layer.kind](
            layer, rows
        )
        return
    for core, (shape, dtype) in enumerate(zip(layer.shapes, layer.dtypes, strict=True)):
        gates, axes = _gates(layer, core)
        fixed = math.prod(n for axis, n in enumerate(shape) if axis not in axes)
        yield fixed * (jnp.dtype(dtype).itemsize if measure == "bytes" else 1), gates


def _gates(layer: Layer, core: int) -> tuple[tuple[int, ...], set[int]]:
    """Returns the gates on a core's bonds, and the axes of the core that these bonds are."""
    found = [(g, axis) for g, bonds in enumerate(layer.bonds) for c, axis in bonds if c == core]
    return tuple(g for g, _ in found), {axis for _, axis in found}


def _train_flops(layer: Layer, rows: int) -> Iterator[Term]:
    modes = [layer.modes(k) for k in range(len(layer.shapes))]
    sizes = [math.prod(m) for m in modes]
    if len(sizes) == 1:
        return
    if all(len(m) == 2 for m in modes) and layer.outputs is not None:  # a linear TT-matrix
        for k, (n, m) in enumerate(modes):  # core by core, from the left
            done, left = (math.prod(x[s] for x in part) for s, part in
                          ((1, modes[:k]), (0, modes[k + 1 :])))  # fmt: skip
            yield 2 * rows * done * n * m * left, _gates(layer, k)[0]
        return
    if any(len(m) > 1 for m in modes):  # a lookup: one row of every core, from the left
        for k in range(1, len(modes)):
            made = math.prod(m[-1] for m in modes[: k + 1])
            yield 2 * rows * made, _gates(layer, k)[0]
        return
    split = input_modes(sizes, layer.outputs)
    for k in range(1, split):
        yield 2 * math.prod(sizes[: k + 1]), _gates(layer, k)[0]
    for k in range(split, len(sizes) - 1):
        yield 2 * math.prod(sizes[k:]), _gates(layer, k)[0]
    yield 2 * rows * (math.prod(sizes[:split]) + math.prod(sizes[split:])), (split - 1,)


def _tucker_flops(layer: Layer, rows: int) -> Iterator[Term]:
    modes = [shape[:-1] for shape in layer.shapes[1:]]
    sizes, every = [m[-1] for m in modes], tuple(range(len(modes)))
    if any(len(m) > 1 for m in modes):  # a lookup: the core, times one row of every factor
        for k in every:
            yield 2 * rows * math.prod(sizes[: k + 1]), every[k:]
        return
    split = input_modes(sizes, layer.outputs) if len(sizes) > 1 else 1
    for k in range(split):
        yield 2 * rows * math.prod(sizes[k:split]), every[: k + 1]
    yield 2 * rows, every
    for k in range(split, len(sizes)):
        yield 2 * rows * math.prod(sizes[split : k + 1]), every[k:]


def _cp_flops(layer: Layer, rows: int) -> Iterator[Term]:
    modes = [shape[:-1] for shape in layer.shapes]
    sizes = [m[-1] for m in modes]
    if any(len(m) > 1 for m in modes):
        yield rows * sum(math.prod(sizes[: k + 1]) for k in range(1, len(sizes))), (0,)
        yield rows * math.prod(sizes), (0,)
        return
    split = input_modes(sizes, layer.outputs) if len(sizes) > 1 else 1
    for part in (sizes[:split], sizes[split:]):
        yield sum(math.prod(part[: k + 1]) for k in range(1, len(part))), (0,)
        yield 2 * rows * math.prod(part), (0,)


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """Size of all tensorised layers as a polynomial of their ranks, which may be traced.

    Attributes:
      coefficients: (terms,).
      factors: (terms, degree), indices of gates; one past the last gate stands for the factor 1.
      owners: (terms,), the layer of each term.
      members: (layers, most gates of a layer), indices of gates, padded likewise.
    """

    coefficients: np.ndarray
    factors: np.ndarray
    owners: np.ndarray
    members: np.ndarray

    def __call__(self, ranks: jax.Array) -> jax.Array:
        """Evaluates the model size at real-valued ranks of shape (gates,)."""
        products = jnp.prod(self._values(ranks), axis=1)
        return jnp.sum(self.coefficients.astype(ranks.dtype) * products)

    def slopes(self, ranks: jax.Array) -> jax.Array:
        """Evaluates the derivatives of the model size in all ranks, of shape (gates,)."""
        values = self._values(ranks)
        # Products of the factors before and behind each one: the polynomial is linear in it.
        before = [self.coefficients.astype(ranks.dtype)]
        behind = [jnp.ones_like(before[0])]
        degree = values.shape[1]
        for k in range(degree - 1):
            before.append(before[-1] * values[:, k])
            behind.append(behind[-1] * values[:, degree - 1 - k])
        parts = [a * b for a, b in zip(before, behind[::-1], strict=True)]
        every = jnp.concatenate([*parts[:degree], jnp.zeros((1,), ranks.dtype)])
        places: list[list[int]] = [[] for _ in range(ranks.size)]
        for place, gate in enumerate(self.factors.T.ravel()):
            if gate < ranks.size:
                places[gate].append(place)
        return jnp.sum(picked(every, padded(places, every.size - 1)), 1)

    def _values(self, ranks: jax.Array) -> jax.Array:
        full = jnp.concatenate([ranks, jnp.ones((1,), ranks.dtype)])
        return picked(full, self.factors)

    def of_living(self, ranks: jax.Array) -> jax.Array:
        """Evaluates the model size at given ranks; layers with a rank of zero count as nothing."""
        alive = self.living(ranks).astype(ranks.dtype)
        products = jnp.prod(self._values(ranks), axis=1) * picked(alive, self.owners)
        return jnp.sum(self.coefficients.astype(ranks.dtype) * products)

    def living(self, ranks: jax.Array) -> jax.Array:
        """Marks the tensorised layers in which no rank is zero."""
        full = jnp.concatenate([ranks, jnp.ones((1,), ranks.dtype)])
        return jnp.all(picked(full, self.members) > 0, axis=1)


def picked(x: jax.Array, places: np.ndarray | jax.Array) -> jax.Array:
    """Gathers entries of an array at indices that must be in range, without bounds checks."""
    found = x.at[jnp.asarray(places, jnp.int32)]
    return found.get(mode="promise_in_bounds", wrap_negative_indices=False)


def polynomial(layout: Layout, measure: Measure, rows: int = 1) -> Polynomial:
    """Builds the size of all tensorised layers as a polynomial of their ranks, layer by layer."""
    listed: list[Term] = []
    owners: list[int] = []
    members: list[tuple[int, ...]] = []
    start = 0
    for number, layer in enumerate(layout.layers):
        for coefficient, gates in terms(layer, measure, rows):
            listed.append((coefficient, tuple(start + g for g in gates)))
            owners.append(number)
        members.append(tuple(range(start, start + len(layer.gates))))
        start += len(layer.gates)
    return Polynomial(
        np.array([float(c) for c, _ in listed]),
        padded([gates for _, gates in listed], start),
        np.array(owners, int),
        padded(members, start),
    )


def padded(lists: Sequence[Sequence[int]], fill: int) -> np.ndarray:
    columns = list(itertools.zip_longest(*lists, fillvalue=fill))
    return np.array(columns, int).reshape(-1, len(lists)).T


def exactly(layer: Layer, ranks: Sequence[int], measure: Measure, rows: int) -> int:
    """Evaluates one layer's size at given ranks in exact integers; zero if a rank is zero."""
    if layer.gates and min(ranks) == 0:
        return 0
    return sum(c * math.prod(ranks[g] for g in gates) for c, gates in terms(layer, measure, rows))


def total(layout: Layout, ranks: Sequence[Sequence[Any]], measure: Measure, rows: int) -> int:
    """Adds the sizes of all tensorised layers at given ranks, in exact integers."""
    pairs = zip(layout.layers, ranks, strict=True)
    return sum(exactly(layer, r, measure, rows) for layer, r in pairs)
