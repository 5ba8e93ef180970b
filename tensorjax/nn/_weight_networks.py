"""Structure of TT, Tucker and CP weights as tensor networks: axes, shapes, gates, paths.

The axes are numbered: first the modes of the weight, those of the input before those of the output,
then the bonds. `tensorjax.nn._contraction_plans` turns a network and a batch size into a
contraction.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from tensorjax import contract
from tensorjax._placement import placed_by, spec_like

Tree = Any  # of positions of operands: an int, or a pair of trees


class WeightNetwork(NamedTuple):
    """Structure of a layer's weight as a tensor network, as hashable data: axes and shapes.

    Attributes:
      modes: n_1, …, n_p, m_1, …, m_q.
      split: p.
      terms: for each array the labels of its axes; modes have the labels 0, …, p+q−1.
      halves: the arrays of the input half and of the output half, of a TT-matrix those of the
        first and of the last cores, in the order in which they are multiplied where a half is
        materialised.
      gated: how many multiplications it takes to absorb the gates.
    """

    modes: tuple[int, ...]
    split: int
    terms: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    halves: tuple[tuple[int, ...], tuple[int, ...]]
    gated: int

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Mode sizes of the input side of a tensorised layer's weight."""
        return self.modes[: self.split]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Mode sizes of the output side of a tensorised layer's weight."""
        return self.modes[self.split :]

    @property
    def elements(self) -> int:
        """Number of elements of a layer's dense weight W, padding included."""
        return math.prod(self.modes)


def train(modes: Sequence[int], split: int, ranks: Sequence[int]) -> WeightNetwork:
    """Builds the network structure of a TT weight, W[i_1 … i_d] = G_1[i_1] D_1 … G_d[i_d]."""
    order = len(modes)
    full = (1, *ranks, 1)
    shapes = tuple((full[k], n, full[k + 1]) for k, n in enumerate(modes))
    return WeightNetwork(
        modes=tuple(modes),
        split=split,
        terms=tuple((order + k, k, order + k + 1) for k in range(order)),
        shapes=shapes,
        # From the outer end of each half: the ranks are least there.
        halves=(tuple(range(split)), tuple(range(order - 1, split - 1, -1))),
        gated=sum(math.prod(shapes[k]) for k in absorbing(shapes)),
    )


def train_matrix(
    rows: Sequence[int], columns: Sequence[int], ranks: Sequence[int]
) -> WeightNetwork:
    """Builds the network structure of a TT-matrix weight: core k holds row and column mode k."""
    order = len(rows)
    full = (1, *ranks, 1)
    shapes = tuple(
        (full[k], n, m, full[k + 1]) for k, (n, m) in enumerate(zip(rows, columns, strict=True))
    )
    half = (order + 1) // 2
    return WeightNetwork(
        modes=(*rows, *columns),
        split=order,
        terms=tuple((2 * order + k, k, order + k, 2 * order + k + 1) for k in range(order)),
        shapes=shapes,
        halves=(tuple(range(half)), tuple(range(order - 1, half - 1, -1))),
        gated=sum(math.prod(shapes[k]) for k in absorbing(shapes)),
    )


def tucker(modes: Sequence[int], split: int, ranks: Sequence[int]) -> WeightNetwork:
    """Builds the network structure of a Tucker weight Σ C[a_1 … a_d] Π_k D_k[a_k] U_k[i_k, a_k].

    The arrays come in the order in which one after the other can be multiplied to the input: the
    factors of the input, the core, the factors of the output.
    """
    order = len(modes)
    factors = [((k, order + k), (modes[k], ranks[k])) for k in range(order)]
    core = (tuple(range(order, 2 * order)), tuple(ranks))
    arrays = [*factors[:split], core, *factors[split:]]
    return WeightNetwork(
        modes=tuple(modes),
        split=split,
        terms=tuple(term for term, _ in arrays),
        shapes=tuple(shape for _, shape in arrays),
        halves=((split, *range(split)), tuple(range(split + 1, order + 1))),
        gated=sum(n * r for n, r in zip(modes, ranks, strict=True)),
    )


def canonical(modes: Sequence[int], split: int, rank: int) -> WeightNetwork:
    """Builds the network structure of a CP weight W[i_1 … i_d] = Σ_a D[a] Π_k U_k[i_k, a]."""
    order = len(modes)
    return WeightNetwork(
        modes=tuple(modes),
        split=split,
        terms=tuple((k, order) for k in range(order)),
        shapes=tuple((n, rank) for n in modes),
        halves=(tuple(range(split)), tuple(range(split, order))),
        gated=min(modes) * rank,
    )


def contracted(arrays: Sequence[Any], terms: Any, out: Sequence[int]) -> jax.Array:
    """Contracts the arrays of a weight's tensor network to a dense array of the axes ``out``."""
    interleaved = [x for pair in zip(arrays, map(list, terms), strict=True) for x in pair]
    return contract.einsum(*interleaved, [*out], precision="highest")


def absorbing(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns, for every gate of a TT weight, which neighbouring core, the smaller, absorbs it."""
    sizes = [math.prod(shape) for shape in shapes]
    return tuple(k if sizes[k] <= sizes[k + 1] else k + 1 for k in range(len(sizes) - 1))


def _as_given(out: list[jax.Array], arguments: Any) -> list[Any]:
    """Returns shardings by which a weight's arrays stay placed when gates are multiplied in."""
    given = [x for x in jax.tree.leaves(arguments) if isinstance(x, jax.Array)]
    return [spec_like(x, next(y for y in given if y.shape == x.shape)) for x in out]


@placed_by(_as_given)
def gated_train(cores: Sequence[jax.Array], gates: Sequence[jax.Array]) -> list[jax.Array]:
    """Multiplies every gate of a TT weight into the smaller of its neighbouring cores."""
    out = list(cores)
    for k, taker in enumerate(absorbing([c.shape for c in cores])):
        gate = gates[k].astype(out[taker].dtype)
        ones = (1,) * (out[taker].ndim - 1)
        out[taker] = out[taker] * gate.reshape((-1, *ones) if taker > k else (*ones, -1))
    return out


@placed_by(_as_given)
def gated_tucker(
    core: jax.Array, factors: Sequence[jax.Array], gates: Sequence[jax.Array], split: int
) -> list[jax.Array]:
    """Multiplies a Tucker weight's gates into its factors; returns the network's arrays."""
    out = [u * g.astype(u.dtype)[None, :] for u, g in zip(factors, gates, strict=True)]
    return [*out[:split], core, *out[split:]]


@placed_by(_as_given)
def gated_canonical(factors: Sequence[jax.Array], gate: jax.Array) -> list[jax.Array]:
    """Multiplies the gate of a CP layer's weight into the smallest factor of its network."""
    out = list(factors)
    k = min(range(len(out)), key=lambda k: out[k].size)
    out[k] = out[k] * gate.astype(out[k].dtype)[None, :]
    return out
