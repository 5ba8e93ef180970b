"""Measures of tensorised models: size at live ranks, and the ranks."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._typing import PyTree
from tensorjax.optim._layers.parameter_paths import flatten
from tensorjax.optim._layers.tensorised_layers import Layer, Layout, Stacks, check_concrete, find
from tensorjax.optim._size_polynomial import Measure, check_flops, checked, polynomial, total


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
    """Measures all parameters outside of cores and gates, as a count or in bytes."""
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
