"""Change of basis of many tensor trains at once: all cores, padded, in one loop.

A program that changes every train on its own takes seconds of XLA's time for each, as every array
of another shape is a kernel to compile. Here first, middle and last cores are three arrays, padded
by zeros to common bonds and modes, and the sweeps are loops over all middle cores: the program is
that of one train. Zeros behind the live indices are what dead indices are anyhow.
"""

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.unfoldings import tall, wide
from tensorjax.linalg._arrays import adjoint
from tensorjax.optim._gate_updates import plus
from tensorjax.optim._packed_arrays import Counters, picked, widest
from tensorjax.optim._target.bond_bases import (
    Factorisations,
    Kinds,
    bases,
    gates_moved,
    powers_of_train,
)
from tensorjax.optim._tensorised_layers import Layer

# Trains share a loop while padding costs this factor of memory at most, or so many entries.
WASTE, SMALL = 4, 2**16
Places = list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Train:
    """Tensor train whose bond bases change: its cores and gates with their optimiser moments.

    Attributes:
      arrays: for each part, cores and then gates, the parameter and its moments.
      kinds: for each part and array, what it holds, as `kind_of` says.
      number: of the layer.
      balanced: whether the norms of its derivatives by the cores are made equal.
      moves: for each part, its move in an update that cuts; None: nothing is cut.
      bond: number of its first bond among those of all layers.
      part: number of its first part among those of all layers.
    """

    layer: Layer
    arrays: list[list[jax.Array]]
    kinds: list[list[str]]
    number: int
    balanced: bool = False
    moves: list[jax.Array] | None = None
    bond: int = 0
    part: int = 0

    def held(self, part: int) -> list[jax.Array]:
        """Returns arrays of a train's core or gate: parameter, update if ranks are cut, moments."""
        value, *moments = self.arrays[part]
        return [value, *([self.moves[part]] if self.moves is not None else []), *moments]


class Cut(NamedTuple):
    """Pruning decision on gates of trains whose bases change, as matrices with one row per bond.

    Attributes:
      gates: (bonds, most entries), moves of the gates.
      fates: likewise, of their indices, as `Decision` has them.
      still: for each core and gate, whether the inner optimiser holds it fixed.
    """

    gates: jax.Array
    fates: jax.Array
    still: jax.Array


@dataclasses.dataclass(frozen=True)
class _Chains:
    """Indices of cores and bonds in arrays that hold several trains of different lengths.

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
        """Computes indices of cores and bonds in padded arrays from each train's middle cores."""
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
    """Groups tensor trains of like shapes, to change their bond bases in one padded loop."""
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
    """Counts the entries of trains that are padded to one shape, with padding and without."""
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
    """Tensor trains padded to one shape, whose bonds get singular vectors as bases in one loop.

    Attributes:
      trains: of one group, as `joined` makes them.
      dtype: the widest of all arrays.
    """

    trains: list[Train]
    dtype: Any

    @classmethod
    def of(cls, trains: list[Train]) -> "Trains":
        """Builds padded `Trains` of tensor trains whose bond bases change in one loop."""
        every = (x for t in trains for part in range(len(t.arrays)) for x in t.held(part))
        return cls(trains, widest(jnp.float32, *every))

    @property
    def lengths(self) -> list[int]:
        """Number of cores of every train."""
        return [len(train.layer.shapes) for train in self.trains]

    @property
    def places(self) -> tuple[Places, Places, Places]:
        """Indices (train, part) of the first, of the middle and of the last cores of all trains."""
        every = enumerate(self.lengths)
        first, inner, last = [], [], []
        for n, length in every:
            first.append((n, 0))
            inner += [(n, k) for k in range(1, length - 1)]
            last.append((n, length - 1))
        return first, inner, last

    @property
    def bonds(self) -> Places:
        """Indices (train, part) of the gates: of first cores' bonds, then of middle ones'."""
        first, inner, _ = self.places
        return [(n, self.lengths[n] + k) for n, k in (*first, *inner)]

    def pack(self) -> list[jax.Array]:
        """Stacks first, last, middle cores and gates of trains whose bases change, with moments."""
        first, inner, last = self.places
        rank = max(r for train in self.trains for r in train.layer.ranks)
        sizes = [(len(self.trains[n].arrays[p][0]),) for n, p in self.bonds]
        out = [self._stacked(self.bonds, sizes, (rank,))]
        for places, bonds in ((first, (1, rank)), (last, (rank, 1)), (inner, (rank, rank))):
            if places:
                sizes = [_sizes(self.trains[n].layer.shapes[p]) for n, p in places]
                mode = max(m for _, m, _ in sizes)
                out.append(self._stacked(places, sizes, (bonds[0], mode, bonds[1])))
        return out

    def cut(self, packed: list[jax.Array], decision: Cut) -> list[jax.Array]:
        """Applies a cut of ranks to the updates of tensor trains, before their bases change."""
        first, inner, last = self.places
        chains = _Chains.of([n - 2 for n in self.lengths])
        count, rank = len(self.trains), packed[0].shape[-1]
        bonds = np.array([self.trains[n].bond + p - self.lengths[n] for n, p in self.bonds])
        gates, fates = (picked(x, bonds)[:, :rank] for x in (decision.gates, decision.fates))
        starts, ends = fates[:, :, None, None], fates[:, None, None]
        masks = [ends[:count], picked(starts, chains.last)]
        if inner:
            masks.append(jnp.maximum(picked(starts, chains.before), ends[count:]))
        out = [packed[0].at[:, 1].set(gates.astype(self.dtype))]
        for places, own, values in zip((first, last, inner), masks, packed[1:], strict=False):
            parts = np.array([self.trains[n].part + p for n, p in places])
            x, move = values[:, 0], values[:, 1]
            still = picked(decision.still, parts)[:, None, None, None]
            held = jnp.where(own == 1, -x, jnp.zeros_like(x))
            out.append(values.at[:, 1].set(jnp.where((own == 0) | still, move, held)))
        return out

    def moved(
        self, packed: list[jax.Array], stays: jax.Array, order: Factorisations
    ) -> list[jax.Array]:
        """Computes the optimiser updates that take pruned trains to bases of singular vectors.

        Args:
          packed: of `cut`.
          stays: of all layers, whether it stays as it is.
          order: of factorisations.

        Returns:
          Moves and moments, packed.
        """
        every = [self._dtypes(places) for places in (self.bonds, *self.places)]
        dtypes = [every[0], every[1], every[3], every[2]]
        full = [
            jnp.concatenate([plus(_cast(x[:, :1], own), _cast(x[:, 1:2], both)).astype(self.dtype),
                             x[:, 2:]], 1)
            for x, (own, both) in zip(packed, dtypes, strict=False)
        ]  # fmt: skip
        out = []
        for x, new, (own, both) in zip(
            packed, self.change(full, stays, order), dtypes, strict=False
        ):
            move = (_cast(new[:, :1], own) - _cast(x[:, :1], own)).astype(both)
            out.append(jnp.concatenate([move.astype(self.dtype), new[:, 1:]], 1))
        return out

    def _dtypes(self, places: Places) -> tuple[Any, Any]:
        """Returns the dtype of the trains' parameters, and the widest of these and the updates."""
        if not places:
            return self.dtype, self.dtype
        n, p = places[0]
        value, move, *_ = self.trains[n].held(p)
        return value.dtype, widest(value, move)

    def change(
        self, packed: list[jax.Array], stays: jax.Array, order: Factorisations
    ) -> list[jax.Array]:
        """Transforms padded trains to the bases of their bonds' singular vectors.

        Args:
          packed: of `pack`, or without some arrays that are not to change.
          stays: of all layers, whether it stays as it is.
          order: of factorisations.
        """
        gates, firsts, lasts, *inners = packed
        first, inner, last = self.places
        chains = _Chains.of([n - 2 for n in self.lengths])
        ends = firsts[:, 0], inners[0][:, 0] if inners else None, lasts[:, 0]
        gate, owners = gates[:, 0], np.array([n for n, _ in self.bonds])
        lefts, rights = _sides(*ends, gate, chains, order)
        sizes = np.array([len(self.trains[n].arrays[p][0]) for n, p in self.bonds])
        stays = picked(stays, np.array([self.trains[n].number for n in owners], int))
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

    def unpack(self, packed: list[jax.Array], counters: Counters) -> list[list[list[jax.Array]]]:
        """Splits padded trains, in new bases, into parameter and moments of each array."""
        first, inner, last = self.places
        out: list[list[list[jax.Array]]] = [[[] for _ in train.arrays] for train in self.trains]
        for places, values in zip((self.bonds, first, last, inner), packed, strict=False):
            rows: list[tuple[int, ...]] = []
            sizes: list[tuple[int, ...]] = []
            for row, (n, p) in enumerate(places):
                own = self.trains[n].arrays[p]  # the parameter or, of a cut, the move, first
                size = _sizes(own[0].shape) if own[0].ndim > 1 else own[0].shape
                rows += [(row, a) for a in range(len(own))]
                sizes += [size] * len(own)
            found = iter(counters.pieces(values, rows, sizes))
            for n, p in places:
                out[n][p] = [next(found).reshape(x.shape) for x in self.trains[n].arrays[p]]
        return out

    def _powers(self) -> np.ndarray:
        """Exponents of norms that balance each train's cores, as `Bases.balanced` takes them."""
        out = np.zeros((2, len(self.bonds), len(self.bonds)))
        for n, train in enumerate(self.trains):
            own = [row for row, (owner, _) in enumerate(self.bonds) if owner == n]
            if train.balanced:
                out[np.ix_([0, 1], own, own)] = powers_of_train(len(own))
        return out

    def _kinds(self, places: Places) -> list[list[str]]:
        return [self.trains[n].kinds[p] for n, p in places]

    def _stacked(
        self, places: Places, sizes: list[tuple[int, ...]], shape: tuple[int, ...]
    ) -> jax.Array:
        """Stacks arrays of trains whose bases change, padded to one shape: (parts, arrays, …)."""
        rows = [[x.astype(self.dtype) for x in self.trains[n].held(p)] for n, p in places]
        columns = []
        for a in range(max(map(len, rows))):
            flat = [
                x[a].ravel() if a < len(x) else jnp.zeros((math.prod(size),), self.dtype)
                for x, size in zip(rows, sizes, strict=True)
            ]
            columns.append(_padded(jnp.concatenate(flat), sizes, shape))
        return jnp.stack(columns, 1)


def _cast(x: jax.Array, dtype: Any) -> jax.Array:
    """Casts slices of padded trains' arrays to their own dtypes: real gates, complex cores."""
    return (x if jnp.issubdtype(dtype, jnp.complexfloating) else x.real).astype(dtype)


def _padded(flat: jax.Array, sizes: list[tuple[int, ...]], shape: tuple[int, ...]) -> jax.Array:
    """Pads arrays of trains whose bases change, joined to a vector, to one shape: (arrays, …).

    By computed positions: padded one by one they would be a kernel to compile for every shape.
    """
    if flat.size > np.iinfo(np.int32).max:
        ends = np.cumsum([0, *map(math.prod, sizes)])
        parts = [flat[a:b].reshape(s) for (a, b), s in zip(pairwise(ends), sizes, strict=True)]
        pads = [[(0, n - m) for n, m in zip(shape, size, strict=True)] for size in sizes]
        return jnp.stack([jnp.pad(x, pad) for x, pad in zip(parts, pads, strict=True)])
    starts = np.cumsum([0, *map(math.prod, sizes[:-1])]).astype(np.int32)
    table = np.array(sizes, np.int32).T
    lead = (slice(None), *(None,) * len(shape))
    place, inside = jnp.zeros((1,) * (len(shape) + 1), jnp.int32), np.array(True)
    for axis, lengths in enumerate(table):
        step = jax.lax.broadcasted_iota(jnp.int32, (1, *shape), axis + 1)
        inside = inside & (step < jnp.asarray(lengths)[lead])
        place = place * jnp.asarray(lengths)[lead] + step
    place = jnp.where(inside, place + jnp.asarray(starts)[lead], jnp.int32(0))
    return jnp.where(inside, picked(flat, place), jnp.zeros((), flat.dtype))


def _at(pair: tuple[jax.Array, jax.Array], places: np.ndarray) -> tuple[jax.Array, jax.Array]:
    return picked(pair[0], places), picked(pair[1], places)


def _sides(
    firsts: jax.Array, inners: jax.Array | None, lasts: jax.Array, gate: jax.Array,
    chains: _Chains, order: Factorisations,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Computes QR triangles on both sides of every bond of trains, to find its singular vectors."""
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
