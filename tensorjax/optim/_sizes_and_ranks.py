"""Sizes and ranks of tensorised models; the size as a polynomial of the ranks.

Parameters, bytes and FLOPs are all sums of terms, coefficient × product of ranks, linear in every
rank. The same polynomial, taken at ‖D‖₁ in place of the ranks, is the surrogate of CoMERA.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._typing import PyTree
from tensorjax.optim._packed_arrays import padded, picked
from tensorjax.optim._stacked_layers import Stacks
from tensorjax.optim._tensorised_layers import (
    Layer,
    Layout,
    check_concrete,
    find,
    flatten,
    input_modes,
    tokens,
)

Measure = Literal["numbers", "bytes", "flops"]
Term = tuple[int, tuple[int, ...]]  # coefficient, and the gates whose ranks multiply it


def checked(measure: str) -> Measure:
    """Checks the unit of a model's size: "numbers", "bytes" or "flops"; returns it."""
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
    """Returns the gates on a core's bonds, whose ranks they give, and the axes that these are."""
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


def exactly(layer: Layer, ranks: Sequence[int], measure: Measure, rows: int) -> int:
    """Evaluates one layer's size at given ranks in exact integers; zero if a rank is zero."""
    if layer.gates and min(ranks) == 0:
        return 0
    return sum(c * math.prod(ranks[g] for g in gates) for c, gates in terms(layer, measure, rows))


def total(layout: Layout, ranks: Sequence[Sequence[Any]], measure: Measure, rows: int) -> int:
    """Adds the sizes of all tensorised layers at given ranks, in exact integers."""
    pairs = zip(layout.layers, ranks, strict=True)
    return sum(exactly(layer, r, measure, rows) for layer, r in pairs)


def size(
    params: PyTree,
    *,
    measure: Measure = "numbers",
    threshold: float = 0.0,
    rows: int = 1,
    everything: bool = False,
) -> int | jax.Array:
    """Measures the size of a model's tensorised layers, without indices whose rank gate is zero.

    With ρ the number of gates of a bond above the threshold, a tensor train has Σ_k n_k ρ_{k−1} ρ_k
    parameters (n_k the product of row and column mode for a TT-matrix), a Tucker layer
    Π_k ρ_k + Σ_k n_k ρ_k, a CP layer Σ_k n_k ρ. A layer with an empty bond has none.

    Args:
      params: any tree of parameters: an nnx.State, a dict, Linen's {"params": …}. Dense parameters
        need not be there.
      measure: "numbers"; "bytes", in the dtypes of the cores; or "flops", multiplications and
        additions of a forward pass. A linear tensor train is counted as the paper contracts it: the
        input cores to one matrix A, the output cores to B, then (x A) B. Where inputs end is read
        from the length of the bias; without one, the most even split is taken. Tucker: factors on
        the inputs, the core, factors on the outputs. CP: A and B are Khatri–Rao products. A lookup
        (cores with row and column modes) takes one row of every core, from the left; with a bias
        such cores are a linear TT-matrix, multiplied to the input one by one (a program that forms
        the weight has other ones). Without a bias they count as a lookup in plain arrays, and
        parameters of `tensorjax.nn.TTMatrixLinear` are refused. Biases and products with the gates
        are not counted.
      threshold: gates at or below it count as dead.
      rows: inputs (or lookups) of the forward pass, for "flops".
      everything: counts gates, biases and all other parameters too ("numbers" and "bytes").

    Returns:
      int; a scalar float32 array where ``params`` are traced.

    Raises:
      ValueError: gates that do not fit their cores, an unknown measure, "flops" of a linear
        TT-matrix without a bias.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import optim
      >>> layer = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> optim.size(layer), optim.size(layer, measure="bytes"), optim.size(layer, everything=True)
      (27, 108, 30)

    Source: Yang et al., "CoMERA" (arXiv 2405.14377), for a tensor train in "numbers" and "flops";
    Tucker, CP, lookups and bytes are ours.
    """
    measure = checked(measure)
    rows = _check.integer("rows", rows, low=1)
    threshold = checked_threshold(threshold)
    if everything and measure == "flops":
        raise ValueError(
            'everything: expected measure "numbers" or "bytes", got "flops": what dense parameters '
            "are used for is not known"
        )
    check_flops(params, measure)
    params = Stacks.of(params).split(params)
    layout = find(params)
    _, leaves, _ = flatten(params)
    other = _rest(layout, leaves, measure) if everything else 0
    gates = [leaves[k] for k in layout.gates]
    if not gates or not _check.is_traced(gates):
        counted = [live_ranks(layer, leaves, threshold) for layer in layout.layers]
        extra = sum(sum(r) for r in counted) if everything else 0
        if everything and measure == "bytes":
            extra = sum(
                n * jnp.result_type(leaves[g]).itemsize
                for layer, r in zip(layout.layers, counted, strict=True)
                for n, g in zip(r, layer.gates, strict=True)
            )
        return total(layout, counted, measure, rows) + other + extra
    ranks = jnp.stack([jnp.sum(g > threshold, dtype=jnp.float32) for g in gates])
    value = polynomial(layout, measure, rows).of_living(ranks) + other
    if everything:
        width = [jnp.result_type(g).itemsize if measure == "bytes" else 1 for g in gates]
        value += jnp.sum(ranks * jnp.asarray(width, jnp.float32))
    return value


def _rest(layout: Layout, leaves: list[Any], measure: Measure) -> int:
    """Measures the size of parameters outside of cores and gates, as a count or in bytes."""
    known = {p for layer in layout.layers for p in (*layer.cores, *layer.gates)}
    return sum(
        math.prod(jnp.shape(leaf)) * (jnp.result_type(leaf).itemsize if measure == "bytes" else 1)
        for position, leaf in enumerate(leaves)
        if position not in known
    )


def checked_threshold(threshold: Any) -> Any:
    """Checks the threshold above which rank gates count as ranks; ValueError if no number."""
    if _check.is_traced(threshold):
        return threshold
    try:
        fits = not math.isnan(threshold)
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(
            f"threshold: expected a number, got {threshold!r}; 0 is that of gates that were pruned"
        )
    return threshold


def live_ranks(layer: Layer, leaves: list[Any], threshold: float) -> tuple[int, ...]:
    """Counts the ranks of a layer: at each bond, the gates above a threshold."""
    return tuple(int(np.sum(np.asarray(leaves[g]) > threshold)) for g in layer.gates)


def ranks(params: PyTree, *, threshold: float = 0.0) -> dict[str, tuple[int, ...]]:
    """Returns the ranks of every tensorised layer: at each bond, the gates above a threshold.

    Args:
      params: any tree of parameters.
      threshold: gates at or below it count as dead; −inf gives the ranks of the arrays.

    Returns:
      {path of the layer: one rank per gate}. The top of the tree is "(top)".

    Raises:
      TypeError: traced parameters: how many gates live depends on the data.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import optim
      >>> gates = [jnp.array([1.0, 0.0, 0.2])]
      >>> layer = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": gates}
      >>> optim.ranks({"head": layer}), optim.ranks({"head": layer}, threshold=float("-inf"))
      ({'head': (2,)}, {'head': (3,)})

    Source: Yang et al., "CoMERA" (arXiv 2405.14377), where ρ_k counts the gates of bond k above τ.
    """
    params = Stacks.of(params).split(params)
    layout = find(params)
    _, leaves, _ = flatten(params)
    check_concrete("ranks", [leaves[k] for k in layout.gates])
    threshold = checked_threshold(threshold)
    return {layer.name: live_ranks(layer, leaves, threshold) for layer in layout.layers}


def sizes_of_all(layout: Layout, leaves: list[Any]) -> tuple[int, int]:
    """Returns sizes of a model: with dense layers in place of tensorised ones, and outside them."""
    dense = 0
    for layer in layout.layers:
        if not layer.gates:
            continue
        whole = 1
        for core in range(len(layer.cores)):
            for n in layer.modes(core):
                whole *= n
        dense += whole
    inside = {k for layer in layout.layers if layer.gates for k in (*layer.cores, *layer.gates)}
    outside = sum(int(jnp.size(x)) for k, x in enumerate(leaves) if k not in inside)
    return dense, outside
