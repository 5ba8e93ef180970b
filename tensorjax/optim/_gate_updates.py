"""Updates of rank gates: which are pruned by threshold, and the moves of gates and cores then."""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax.optim._packed_arrays import _whole, like, picked, widest
from tensorjax.optim._tensorised_layers import Layer, Layout


@dataclasses.dataclass(frozen=True)
class Gates:
    """Conversion of all layers' rank gates to one vector, and back.

    Attributes:
      bonds: (gates in all,), the bond of each.
      owners: (bonds,), the layer of each bond.
    """

    bonds: np.ndarray
    owners: np.ndarray
    lengths: tuple[int, ...]
    layers: int

    @classmethod
    def of(cls, layout: Layout) -> "Gates":
        """Builds the conversion of the rank gates of all layers in a `Layout` to one vector."""
        lengths = [n for layer in layout.layers for n in layer.ranks]
        owners = [k for k, layer in enumerate(layout.layers) for _ in layer.gates]
        bonds = np.repeat(np.arange(len(lengths)), lengths)
        return cls(bonds, np.array(owners, int), tuple(lengths), len(layout.layers))

    def join(self, gates: Sequence[jax.Array]) -> jax.Array:
        """Concatenates the rank gates of all bonds to one vector, in float32 or wider."""
        dtype = widest(jnp.float32, *gates)
        return jnp.concatenate([_whole(jnp.asarray(g)).astype(dtype) for g in gates])

    def split(self, flat: jax.Array) -> list[jax.Array]:
        """Splits the vector of all rank gates into one vector per bond."""
        ends = np.cumsum((0, *self.lengths))
        return [flat[a:b] for a, b in itertools.pairwise(ends)]

    def per_bond(self, flat: jax.Array) -> jax.Array:
        """Sums the vector of all rank gates over each bond, in single precision."""
        return jnp.sum(self.rows(flat.astype(jnp.float32), 0), 1)

    def largest(self, flat: jax.Array, live: jax.Array) -> jax.Array:
        """Marks the largest nonzero rank gate of every bond, the first of equal ones."""
        if not self.bonds.size:
            return live
        rows = self.rows(jnp.where(live, flat, -jnp.inf), -jnp.inf)
        starts = np.cumsum((0, *self.lengths))[:-1]
        first = jnp.asarray(starts, jnp.int32) + jnp.argmax(rows, 1).astype(jnp.int32)
        order = jnp.arange(flat.size, dtype=jnp.int32)
        return live & (order == picked(first, self.bonds))

    def rows(self, flat: jax.Array, fill: float) -> jax.Array:
        """Reshapes the vector of all rank gates to a matrix with one padded row per bond.

        A sum by scattering would be a loop of one step per gate on CPUs.
        """
        starts = np.cumsum((0, *self.lengths))[:-1, None]
        columns = np.arange(max(self.lengths, default=0))[None]
        inside = columns < np.array(self.lengths, int)[:, None]
        filled = jnp.concatenate([flat, jnp.full((1,), fill, flat.dtype)])
        return picked(filled, np.where(inside, starts + columns, flat.size))


class Decision(NamedTuple):
    """Pruning decision of one optimiser update: updates of rank gates, and which become zero.

    Attributes:
      gates: moves of the gates.
      dead: which of them are zero from now on.
      fate: of each index: 0, it moves; 1, it is zero from now on; 2, it waits for a verdict.
      still: for each core and gate, whether the inner optimiser holds it fixed.
    """

    gates: jax.Array
    dead: jax.Array
    fate: jax.Array
    still: jax.Array


def plus(x: Any, move: Any) -> jax.Array:
    """Adds an update to a gate or core, as `optax.apply_updates` does."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.asarray(x + move).astype(jnp.result_type(x))


def same_dtype(x: Any, move: Any) -> tuple[jax.Array, jax.Array]:
    """Casts a gate or core and its update to their common dtype."""
    dtype = widest(x, move)
    return jnp.asarray(x).astype(dtype), jnp.asarray(move).astype(dtype)


def applied(
    layout: Layout,
    params: list[Any],
    moves: list[Any],
    decision: Decision,
    tried: bool,
    done: Collection[int] = (),
) -> None:
    """Overwrites the optimiser updates of gates and cores, in place, by a pruning decision.

    Args:
      params: leaves of the parameters.
      moves: of all parameters, which are replaced.
      tried: whether cuts may be undone: slices of a cut on trial keep their values.
      done: numbers of layers that are left out.
    """
    split, places = Gates.of(layout).split, layout.gates
    left = {k for n, layer in enumerate(layout.layers) if n not in done for k in layer.gates}
    for k, own in zip(places, split(decision.gates), strict=True):
        if k not in left:
            continue
        moves[k] = like(own.astype(widest(params[k], moves[k])), moves[k])
    fates, part = dict(zip(places, split(decision.fate), strict=True)), 0
    for n, layer in enumerate(layout.layers):
        for core, own in () if n in done else core_masks(layer, fates, jnp.maximum):
            k = layer.cores[core]
            x, move = same_dtype(params[k], moves[k])
            own = like(jnp.broadcast_to(own, x.shape), x)
            held = jnp.where(own == 1, -x, jnp.zeros_like(x)) if tried else -x
            moves[k] = jnp.where((own == 0) | decision.still[part + core], move, held)
        part += len(layer.cores) + len(layer.gates)


def gates_moved(
    gates: jax.Array, move: jax.Array, dead: jax.Array, held: jax.Array, limit: jax.Array, eps: Any
) -> jax.Array:
    """Computes gate updates that set pruned gates to zero and hold others above the threshold.

    Args:
      gates: before.
      dead: which of them are zero afterwards.
      held: which of them stay above the threshold.
    """
    x, move = same_dtype(gates, move)
    # A sum of parameter and move is rounded: the second term covers that.
    eps = jnp.asarray(eps, x.dtype)
    least = limit.astype(x.dtype) * (1 + 4 * eps) + eps * jnp.abs(x)
    return jnp.where(dead, -x, jnp.where(held, least - x, move))


def core_masks(
    layer: Layer, of_gates: dict[int, jax.Array], both: Callable[[Any, Any], Any]
) -> Iterator[tuple[int, jax.Array]]:
    """Yields each core with a mask of the bond indices that the updates of rank gates prune.

    Args:
      of_gates: by position of the gate, one entry for each index of the bond.
      both: combines entries of two bonds.

    Yields:
      (core, array that broadcasts against it).
    """
    found: dict[int, jax.Array] = {}
    for k, bonds in zip(layer.gates, layer.bonds, strict=True):
        for core, axis in bonds:
            shape = [1] * len(layer.shapes[core])
            shape[axis] = -1
            own = of_gates[k].reshape(shape)
            found[core] = both(found[core], own) if core in found else own
    yield from found.items()
