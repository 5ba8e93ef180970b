"""Structure of embedding tables in TT, Tucker or CP format: tensor networks, their gates, rows.

The matrix has rows i = (i_1 … i_D) and columns j = (j_1 … j_D), both folded into modes, and is a
network of arrays: the cores of a TT-matrix, the factors of a CP or Tucker tensor. A row is that
network with the row modes fixed.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from tensorjax._placement import placed_by, spec_like
from tensorjax.nn._weight_networks import absorbing, contracted

# Row modes have the numbers below this one; ids have it. Sorted, the other axes come in the order
# in which a train has them, so that the halves are (rows, columns, bond) and (rows, bond, columns).
ROWS = 64


class LookupNetwork(NamedTuple):
    """Structure of an embedding's table as a tensor network of row and column modes. Hashable.

    Attributes:
      terms: for each array the labels of its axes: row mode k is k, and the axes that stay are
        `column` k and `bond` k.
      gates: for each gate the array it is multiplied into, and along which of its axes.
    """

    terms: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    gates: tuple[tuple[int, int], ...] = ()

    @property
    def order(self) -> int:
        """Number of the row modes in an embedding table's network."""
        return len({axis for term in self.terms for axis in term if axis < ROWS})

    @property
    def sizes(self) -> dict[int, int]:
        """Sizes of all axes of an embedding's tensor network, by their labels."""
        pairs = zip(self.terms, self.shapes, strict=True)
        return {a: n for term, shape in pairs for a, n in zip(term, shape, strict=True)}

    @property
    def rows(self) -> tuple[int, ...]:
        """Sizes of the row modes in an embedding table's network."""
        return tuple(self.sizes[k] for k in range(self.order))

    @property
    def columns(self) -> tuple[int, ...]:
        """Sizes of the column modes in an embedding table's network."""
        return tuple(self.sizes[column(k)] for k in range(self.order))


def bond(k: int) -> int:
    """Returns the label of the bond left of mode k in an embedding's tensor network."""
    return ROWS + 1 + 2 * k


def column(k: int) -> int:
    """Returns the label of column mode k in an embedding's tensor network."""
    return ROWS + 2 + 2 * k


def train(shapes: Sequence[tuple[int, ...]]) -> LookupNetwork:
    """Builds the network of a table that is a TT-matrix, E[i, j] = G_1[i_1, j_1] … G_D[i_D, j_D].

    The shapes are of the cores (r, m, n, s).
    """
    terms = tuple((bond(k), k, column(k), bond(k + 1)) for k in range(len(shapes)))
    gates = tuple((taker, bond(k + 1)) for k, taker in enumerate(absorbing(shapes)))
    return LookupNetwork(terms, tuple(shapes), gates)


def is_train(network: LookupNetwork) -> bool:
    """Whether the network of an embedding's table is that of a TT-matrix."""
    return all(len(s) == 4 for s in network.shapes) and network == train(network.shapes)


def canonical(shapes: Sequence[tuple[int, ...]]) -> LookupNetwork:
    """Builds the network of a table in CP format, E[i, j] = Σ_a Π_k U_k[i_k, j_k, a].

    The shapes are of the factors, of three axes.
    """
    shared = bond(len(shapes))
    terms = tuple((k, column(k), shared) for k in range(len(shapes)))
    return LookupNetwork(terms, tuple(shapes), ((0, shared),))


def tucker(shapes: Sequence[tuple[int, ...]]) -> LookupNetwork:
    """Builds the network of a Tucker table, Σ_a C[a_1 … a_D] Π_k U_k[i_k, j_k, a_k].

    The shapes are of the core, and then of the factors.
    """
    order = len(shapes) - 1
    factors = tuple((k, column(k), bond(k)) for k in range(order))
    terms = (tuple(bond(k) for k in range(order)), *factors)
    return LookupNetwork(terms, tuple(shapes), tuple((k + 1, bond(k)) for k in range(order)))


def _as_given(out: list[jax.Array], arguments: Any) -> list[Any]:
    """Returns the shardings that an embedding's arrays keep when gates are multiplied in."""
    arrays = arguments[0][1]
    return [spec_like(x, given) for x, given in zip(out, arrays, strict=True)]


@placed_by(_as_given)
def gated(
    network: LookupNetwork,
    arrays: Sequence[jax.Array],
    gates: Sequence[jax.Array],
    spared: Sequence[int] = (),
) -> list[jax.Array]:
    """Multiplies gates into the arrays of an embedding table, except for those in ``spared``."""
    out = list(arrays)
    for number, ((k, axis), gate) in enumerate(zip(network.gates, gates, strict=True)):
        if number not in spared:
            out[k] = scaled(out[k], network.terms[k], axis, gate)
    return out


def scaled(array: jax.Array, axes: Sequence[int], axis: int, gate: jax.Array) -> jax.Array:
    """Multiplies an array of an embedding table by a gate along a labelled axis."""
    shape = [gate.shape[0] if a == axis else 1 for a in axes]
    return array * gate.astype(array.dtype).reshape(shape)


def dense(network: LookupNetwork, operands: Sequence[Any]) -> jax.Array:
    """Contracts the network of an embedding's table to the dense table (rows, columns)."""
    axes = [*range(network.order), *map(column, range(network.order))]
    whole = contracted(operands, network.terms, axes)
    return whole.reshape(math.prod(network.rows), math.prod(network.columns))


IDS = ROWS
