"""Change of basis of many tensor trains at once: all cores, padded, in one loop.

A program that changes every train on its own takes seconds of XLA's time for each, as every array
of another shape is a kernel to compile. Here first, middle and last cores are three arrays, padded
by zeros to common bonds and modes, and the sweeps are loops over all middle cores: the program is
that of one train. Zeros behind the live indices are what dead indices are anyhow.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.unfoldings import tall, wide
from tensorjax.linalg._arrays import adjoint
from tensorjax.optim._explicit_sharding import widest
from tensorjax.optim._layers.tensorised_layers import Layer
from tensorjax.optim._size_polynomial import picked
from tensorjax.optim._target.bond_bases import (
    Factorisations,
    Kinds,
    bases,
    gates_moved,
    powers_of_train,
)

# Trains share a loop while padding costs this factor of memory at most, or so many entries.
WASTE, SMALL = 4, 2**16
Places = list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Train:
    """Arrays of one train of which all bases are changed: cores and gates with their moments.

    Attributes:
      arrays: for each part, cores and then gates, the parameter and its moments.
      kinds: for each part and array, what it holds, as `kind_of` says.
      stays: whether the train stays as it is.
      balanced: whether the norms of its derivatives by the cores are made equal.
    """

    layer: Layer
    arrays: list[list[jax.Array]]
    kinds: list[list[str]]
    stays: jax.Array
    balanced: bool = False


@dataclasses.dataclass(frozen=True)
class _Chains:
    """Numbering of cores and bonds in arrays that hold all trains whose bases change together.

    A bond has the number of the core on its left: first cores, one for each train, then middle
    ones, train by train.

    Attributes:
      owners: (middle cores,), the train of each.
      starts: (middle cores,), whether it is the first one of its train.
      ends: (middle cores,), whether it is the last one.
      before: (middle cores,), the bond on its left.
      last: (trains,), the last bond of each.
      behind: (bonds,), its right part among the middle cores and, after those, the last ones.
    """

    owners: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    before: np.ndarray
    last: np.ndarray
    behind: np.ndarray

    @classmethod
    def of(cls, inner: Sequence[int]) -> "_Chains":
        """Numbers the bonds of trains with so many middle cores each."""
        trains, total = len(inner), sum(inner)
        owners = np.repeat(np.arange(trains), inner)
        place = np.concatenate([np.arange(n) for n in (*inner, 0)])
        starts = place == 0
        ends = place == np.array(inner, int)[owners] - 1
        every = np.arange(total)
        before = np.where(starts, owners, trains + every - 1)
        stops = np.cumsum(inner)
        last = np.where(np.array(inner) > 0, trains + stops - 1, np.arange(trains))
        behind = np.zeros(trains + total, int)
        behind[before] = every
        behind[last] = total + np.arange(trains)
        return cls(owners, starts, ends, before, last, behind)


def joined(layers: Sequence[Layer]) -> list[list[int]]:
    """Groups trains that change bases in one loop, by shapes, so that padding costs little."""
    alike: dict[Any, list[int]] = {}
    for number, layer in enumerate(layers):
        alike.setdefault(layer.shapes, []).append(number)
    groups: list[list[int]] = []
    for numbers in sorted(alike.values(), key=lambda ns: _entries([layers[ns[0]]])[0]):
        both = [*(groups[-1] if groups else ()), *numbers]
        padded, held = _entries([layers[n] for n in both])
        if groups and padded <= max(WASTE * held, SMALL):
            groups[-1] = both
        else:
            groups.append(numbers)
    return groups


def _entries(layers: Sequence[Layer]) -> tuple[int, int]:
    """Counts the entries of trains that change basis together, with padding and without."""
    sizes = [[_sizes(shape) for shape in layer.shapes] for layer in layers]
    rank = max(s for each in sizes for _, _, s in each)
    ends = sum(max(each[k][1] for each in sizes) for k in (0, -1)) * rank * len(layers)
    inner = [n for each in sizes for _, n, _ in each[1:-1]]
    held = sum(math.prod(s) for each in sizes for s in each)
    return ends + len(inner) * max(inner, default=0) * rank**2, held


def _sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return shape[0], math.prod(shape[1:-1]), shape[-1]


@dataclasses.dataclass(frozen=True)
class Trains:
    """Trains of one group as padded arrays, whose bonds change to singular bases in one loop.

    Attributes:
      trains: of one group, as `joined` makes them.
      dtype: the widest of all arrays.
    """

    trains: list[Train]
    dtype: Any

    @classmethod
    def of(cls, trains: list[Train]) -> "Trains":
        """Collects the trains of one group for a change of basis."""
        every = (x for train in trains for values in train.arrays for x in values)
        return cls(trains, widest(jnp.float32, *every))

    @property
    def lengths(self) -> list[int]:
        """Number of cores of every train."""
        return [len(train.layer.shapes) for train in self.trains]

    @property
    def places(self) -> tuple[Places, Places, Places]:
        """Positions (train, part) of the first, of the middle and of the last cores."""
        every = enumerate(self.lengths)
        first, inner, last = [], [], []
        for n, length in every:
            first.append((n, 0))
            inner += [(n, k) for k in range(1, length - 1)]
            last.append((n, length - 1))
        return first, inner, last

    @property
    def bonds(self) -> Places:
        """Positions (train, part) of the gates: of first cores' bonds, then of middle ones'."""
        first, inner, _ = self.places
        return [(n, self.lengths[n] + k) for n, k in (*first, *inner)]

    def pack(self) -> list[jax.Array]:
        """Stacks first, last and middle cores, and gates: (…, arrays, r, n, s), (…, arrays, r)."""
        first, inner, last = self.places
        rank = max(r for train in self.trains for r in train.layer.ranks)
        gates = [[x.astype(self.dtype) for x in self.trains[n].arrays[p]] for n, p in self.bonds]
        out = [_padded(gates, (rank,)), self._stacked(first, (1, rank)),
               self._stacked(last, (rank, 1))]  # fmt: skip
        return out + ([self._stacked(inner, (rank, rank))] if inner else [])

    def change(self, packed: list[jax.Array], order: Factorisations) -> list[jax.Array]:
        """Transforms all of them, as `pack` gives them, to the bases of singular vectors."""
        gates, firsts, lasts, *inners = packed
        first, inner, last = self.places
        chains = _Chains.of([n - 2 for n in self.lengths])
        ends = firsts[:, 0], inners[0][:, 0] if inners else None, lasts[:, 0]
        gate, owners = gates[:, 0], np.array([n for n, _ in self.bonds])
        lefts, rights = _sides(*ends, gate, chains, order)
        sizes = np.array([len(self.trains[n].arrays[p][0]) for n, p in self.bonds])
        stays = picked(jnp.stack([train.stays for train in self.trains]), owners)
        found = bases(gate, lefts, rights, sizes, order).but(stays).balanced(self._powers())
        held = np.zeros(gates.shape[:2], bool)
        for row, names in enumerate(self._kinds(self.bonds)):
            held[row, : len(names)] = np.array(names) == "parameter"
        new = gates_moved(found.live, gates.real, held).astype(gates.dtype)
        count = len(self.trains)
        below, above = found.below, found.above
        out = [
            jnp.where(stays[:, None, None], gates, new),
            _moved(firsts, self._kinds(first), None, _at(below, np.arange(count))),
            _moved(lasts, self._kinds(last), _at(above, chains.last), None),
        ]
        if inners:
            sides = _at(above, chains.before), _at(below, count + np.arange(len(inner)))
            out.append(_moved(inners[0], self._kinds(inner), *sides))
        return out

    def unpack(self, packed: list[jax.Array]) -> list[list[list[jax.Array]]]:
        """Returns, for each train and part, the parameter and its moments."""
        first, inner, last = self.places
        out: list[list[list[jax.Array]]] = [[[] for _ in train.arrays] for train in self.trains]
        for places, values in zip((self.bonds, first, last, inner), packed, strict=False):
            for row, (n, p) in enumerate(places):
                own = self.trains[n].arrays[p]
                size = _sizes(own[0].shape) if own[0].ndim > 1 else own[0].shape
                cut = tuple(slice(length) for length in size)
                out[n][p] = [values[(row, a, *cut)].reshape(x.shape) for a, x in enumerate(own)]
        return out

    def _powers(self) -> np.ndarray:
        """Powers of norms that balance the trains, as `Bases.balanced` takes them."""
        out = np.zeros((2, len(self.bonds), len(self.bonds)))
        for n, train in enumerate(self.trains):
            own = [row for row, (owner, _) in enumerate(self.bonds) if owner == n]
            if train.balanced:
                out[np.ix_([0, 1], own, own)] = powers_of_train(len(own))
        return out

    def _kinds(self, places: Places) -> list[list[str]]:
        return [self.trains[n].kinds[p] for n, p in places]

    def _stacked(self, places: Places, bonds: tuple[int, int]) -> jax.Array:
        """Stacks cores and their moments: (cores, arrays, r, n, s), bonds padded to two ranks."""
        sizes = [_sizes(self.trains[n].layer.shapes[p]) for n, p in places]
        mode = max(m for _, m, _ in sizes)
        rows = [
            [x.reshape(size).astype(self.dtype) for x in self.trains[n].arrays[p]]
            for (n, p), size in zip(places, sizes, strict=True)
        ]
        return _padded(rows, (bonds[0], mode, bonds[1]))


def _padded(rows: list[list[jax.Array]], shape: tuple[int, ...]) -> jax.Array:
    """Stacks cores or gates of many trains to one array, padded by zeros to one shape."""
    most = max(map(len, rows))
    none = jnp.zeros(shape, rows[0][0].dtype)
    every = [x for row in rows for x in (*row, *[none] * (most - len(row)))]
    pads = [[(0, n - m) for n, m in zip(shape, x.shape, strict=True)] for x in every]
    stack = jnp.stack([jnp.pad(x, pad) for x, pad in zip(every, pads, strict=True)])
    return stack.reshape(len(rows), most, *shape)


def _at(pair: tuple[jax.Array, jax.Array], places: np.ndarray) -> tuple[jax.Array, jax.Array]:
    return picked(pair[0], places), picked(pair[1], places)


def _sides(
    firsts: jax.Array, inners: jax.Array | None, lasts: jax.Array, gate: jax.Array,
    chains: _Chains, order: Factorisations,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Computes the QR triangles on both sides of all bonds of trains whose bases change."""
    count = len(firsts)
    with jax.default_matmul_precision("highest"):
        lefts = order.triangle(jax.vmap(tall)(firsts) * gate[:count, None])
        rights = adjoint(order.triangle(adjoint(jax.vmap(wide)(lasts))))
        if inners is None:
            return lefts, picked(rights, chains.behind)
        scaled = inners * gate[count:, None, None]

        def left(last: jax.Array, given: Any) -> tuple[jax.Array, jax.Array]:
            core, begin, start = given
            found = Factorisations().triangle(tall(absorb(jnp.where(start, begin, last), core)))
            return found, found

        def right(last: jax.Array, given: Any) -> tuple[jax.Array, jax.Array]:
            core, begin, start = given
            part = wide(times_right(core, jnp.where(start, begin, last)))
            found = adjoint(Factorisations().triangle(adjoint(part)))
            return found, found

        begins = (picked(x, chains.owners) for x in (lefts, rights))
        # The loops wait for what was factored before: they start from it.
        given = scaled, next(begins), jnp.asarray(chains.starts)
        end, inner_lefts = jax.lax.scan(left, rights[0], given)
        given = scaled, next(begins), jnp.asarray(chains.ends)
        end, inner_rights = jax.lax.scan(right, end, given, reverse=True)
        order.done = (end,)
        both = jnp.concatenate([inner_rights, rights])
        return jnp.concatenate([lefts, inner_lefts]), picked(both, chains.behind)


def _moved(values: jax.Array, kinds: list[list[str]], left: Any, right: Any) -> jax.Array:
    """Transforms stacked cores of many trains to new bases of their left and right bonds."""
    known = Kinds.of(kinds, values)
    if left is not None:
        values = jax.vmap(jax.vmap(absorb))(known.matrices(left), values)
    if right is not None:
        values = jax.vmap(jax.vmap(times_right))(values, known.matrices(right).mT)
    return values
