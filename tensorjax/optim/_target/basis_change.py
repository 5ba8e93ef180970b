"""Change of basis of the bonds of gated layers under jit: cores, gates and optimiser moments.

Every bond of a train or a Tucker layer goes into the basis of its singular vectors, as `canonical`
has it, with shapes that stay: dead indices are zeros behind the live ones. Trains of all shapes are
padded to one loop (`train_bases`), and Tucker layers of equal shapes are another.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._cores.contractions import times_axis
from tensorjax._cores.unfoldings import tall
from tensorjax.linalg._arrays import adjoint
from tensorjax.linalg._qr import after
from tensorjax.optim._gate_updates import Decision, Gates, applied, plus, same_dtype
from tensorjax.optim._packed_arrays import Counters, _whole, like, most_alike, picked, widest
from tensorjax.optim._target.bond_bases import (
    Bases,
    Factorisations,
    Kinds,
    bases,
    gates_moved,
    powers_of_tucker,
)
from tensorjax.optim._target.optimizer_moments import kind_of
from tensorjax.optim._target.train_bases import Cut, Train, Trains, joined
from tensorjax.optim._tensorised_layers import Layer, Layout

Arrays = list[list[jax.Array]]  # for each part of a layer, the parameter and its moments


def cut_and_changed(
    layout: Layout, leaves: list[Any], moves: list[Any], decision: Decision,
    moving: list[tuple[int, int, bool]], moments: list[jax.Array], stays: jax.Array,
    due: jax.Array, balanced: list[bool], counters: Counters,
) -> list[jax.Array]:  # fmt: skip
    """Applies a pruning decision to the optimiser updates, then changes bond bases if due.

    A change of basis takes all bonds to the basis of their singular vectors, and the moments too.

    Args:
      layout: of the parameters.
      leaves: the parameters.
      moves: of all parameters, replaced in place.
      decision: on the gates.
      moving: what `moments_of` lists.
      moments: these arrays of the optimiser's state.
      stays: (layers,), whether the bases of each layer stay as they are.
      due: whether bases change at all.
      balanced: of each layer, whether the norms of its derivatives by the cores are made equal,
        for steps along gradients (`by_gradient`).
      counters: from outside of the condition in which this is, at least `counters_of` many.

    Returns:
      The moments.
    """
    alike = [n for n, layer in enumerate(layout.layers) if _is_uniform(layer, leaves, moves)]
    rest = [n for n in range(len(layout.layers)) if n not in set(alike)]
    gates = Gates.of(layout)
    cut = Cut(gates.rows(decision.gates, 0), gates.rows(decision.fate, 0), decision.still)
    args = moving, moments, stays, due, balanced, counters
    new, moments = _changed(layout, leaves, moves, cut, *args, alike)
    if rest:
        applied(layout, leaves, moves, decision, tried=True, done=alike)
        full = list(leaves)
        for k in (k for n in rest for k in (*layout.layers[n].cores, *layout.layers[n].gates)):
            full[k] = plus(leaves[k], moves[k])
        args = moving, moments, stays, due, balanced, counters
        turned, moments = _changed(layout, full, None, None, *args, rest)
        for k, value in turned.items():
            x, after = same_dtype(leaves[k], value)
            moves[k] = jnp.where(due, like((after - x).astype(moves[k].dtype), moves[k]), moves[k])
    for k, move in new.items():
        moves[k] = move
    return moments


def _is_uniform(layer: Layer, leaves: list[Any], moves: list[Any]) -> bool:
    """Whether a layer whose basis changes is a train with one dtype of cores, and of gates."""
    kinds = [
        {(jnp.result_type(leaves[k]), jnp.result_type(moves[k])) for k in parts}
        for parts in (layer.cores, layer.gates)
    ]
    return layer.kind == "tt" and all(len(kind) == 1 for kind in kinds)


def _changed(
    layout: Layout, leaves: list[Any], moves: list[Any] | None, cut: Cut | None,
    moving: list[tuple[int, int, bool]], moments: list[jax.Array], stays: jax.Array,
    due: jax.Array, balanced: list[bool], counters: Counters, numbers: Iterable[int],
) -> tuple[dict[int, jax.Array], list[jax.Array]]:  # fmt: skip
    """Changes the bond bases of some layers and their moments, after a rank cut if there is one.

    Returns:
      (new cores and gates by position, or their moves if moves are given; new moments).
    """
    groups: list[tuple[list[list[tuple[int, list[int]]]], Trains | _Tuckers]] = []
    for kind, members in _groups(layout, leaves, moves, moving, moments, balanced, numbers):
        layers = [layout.layers[n] for n in members]
        owned = [[(p, [m for m, (_, k, _) in enumerate(moving) if k == p])
                  for p in (*layer.cores, *layer.gates)] for layer in layers]  # fmt: skip
        arrays = [
            [[_whole(jnp.asarray(leaves[p])), *(_whole(moments[m]) for m in ms)] for p, ms in each]
            for each in owned
        ]
        kinds = [
            [["parameter", *(kind_of(moments[m], leaves[p], moving[m][2]) for m in ms)]
             for p, ms in each]
            for each in owned
        ]  # fmt: skip
        even = [balanced[n] for n in members]
        if kind == "tt":
            places = _places(layout)
            trains = [
                Train(
                    layer, own, names, n, same,
                    None if moves is None else [_whole(jnp.asarray(moves[p])) for p, _ in parts],
                    *places[n],
                )
                for layer, own, names, n, same, parts in zip(
                    layers, arrays, kinds, members, even, owned, strict=True
                )
            ]  # fmt: skip
            groups.append((owned, Trains.of(trains)))
        else:
            groups.append((owned, _Tuckers(layers[0], kinds[0], arrays, members, even[0])))

    def change(packed: list[list[jax.Array]]) -> list[list[jax.Array]]:
        order = Factorisations()
        return [
            (g.moved if isinstance(g, Trains) and cut is not None else g.change)(each, stays, order)
            for (_, g), each in zip(groups, packed, strict=True)
        ]

    def same(packed: list[list[jax.Array]]) -> list[list[jax.Array]]:
        return packed if cut is None else [[x[:, 1:] for x in each] for each in packed]

    packed = [group.pack() for _, group in groups]
    if cut is not None:
        packed = [
            group.cut(each, cut) if isinstance(group, Trains) else each
            for (_, group), each in zip(groups, packed, strict=True)
        ]
    # The arrays that a branch returns are held in memory: else XLA would compute a change once more
    # for each part that is cut out of them.
    packed = jax.lax.cond(due, change, same, packed)
    new: dict[int, jax.Array] = {}
    out = list(moments)
    for (owned, group), each in zip(groups, packed, strict=True):
        for parts, found in zip(owned, group.unpack(each, counters), strict=True):
            for (p, ms), (value, *moved) in zip(parts, found, strict=True):
                new[p] = _as(value, leaves[p] if moves is None else _wide(leaves[p], moves[p]))
                for m, moment in zip(ms, moved, strict=True):
                    out[m] = _as(moment, moments[m])
    return new, out


def _places(layout: Layout) -> list[tuple[int, int]]:
    """Returns the numbers of first bonds and cores of layers whose bases change, over all."""
    bonds = itertools.accumulate((len(layer.gates) for layer in layout.layers), initial=0)
    parts = (len(layer.cores) + len(layer.gates) for layer in layout.layers)
    return [*zip(bonds, itertools.accumulate(parts, initial=0), strict=True)]


def counters_of(layout: Layout, leaves: list[Any], moving: list[tuple[int, int, bool]]) -> int:
    """Returns the number of scalars that `Counters` needs to slice the arrays of all layers."""
    parts = [k for layer in layout.layers for k in (*layer.cores, *layer.gates)]
    shapes = [jnp.shape(leaves[k]) for k in (*parts, *(k for _, k, _ in moving))]
    return max(most_alike(shapes), len(layout.layers))


def _groups(
    layout: Layout, leaves: list[Any], moves: list[Any] | None,
    moving: list[tuple[int, int, bool]], moments: list[Any], balanced: list[bool],
    members: Iterable[int],
) -> list[tuple[str, list[int]]]:  # fmt: skip
    """Groups layers for a change of basis in one loop, by dtypes and shapes.

    Returns:
      (kind, positions of the layers) of each group.
    """
    groups: dict[Any, list[int]] = {}
    for number in members:
        layer = layout.layers[number]
        if layer.kind == "cp" or not layer.gates:
            continue
        parts, held, dtypes = (*layer.cores, *layer.gates), [], []
        for p in parts:
            own = [(m, h) for m, (_, k, h) in enumerate(moving) if k == p]
            held.append([h for _, h in own])
            dtypes.append([jnp.result_type(x) for x in (leaves[p], *(moments[m] for m, _ in own))])
        if layer.kind == "tt":
            key: Any = "tt", str(widest(*(d for each in dtypes for d in each)))
            if moves is not None:  # one dtype for all cores, one for all gates, likewise of moves
                ends = layer.cores[0], layer.gates[0]
                key += tuple(str(jnp.result_type(x[k])) for x in (leaves, moves) for k in ends)
        else:
            even = balanced[number]
            key = layer.kind, layer.shapes, layer.ranks, repr(held), repr(dtypes), even
        groups.setdefault(key, []).append(number)
    out = []
    for (kind, *_), numbers in groups.items():
        together = [[*range(len(numbers))]]
        if kind == "tt":
            together = joined([layout.layers[n] for n in numbers])
        out += [(kind, [numbers[n] for n in each]) for each in together]
    return out


@dataclasses.dataclass(frozen=True)
class _Tuckers:
    """Tucker layers of equal shapes, whose bond bases change in one loop.

    Attributes:
      layer: one of them.
      kinds: for each part and array, what it holds.
      arrays: for each layer and part, the parameter and its moments.
      numbers: of the layers.
      balanced: whether the norms of the derivatives by core and factors are made equal.
    """

    layer: Layer
    kinds: list[list[str]]
    arrays: list[Arrays]
    numbers: list[int]
    balanced: bool

    def pack(self) -> list[jax.Array]:
        """Stacks Tucker layers' cores, gates, moments to change bases: (layers, arrays, …)."""
        out = []
        for values in zip(*self.arrays, strict=True):
            dtype = widest(*values[0])
            out.append(jnp.stack([jnp.stack([x.astype(dtype) for x in own]) for own in values]))
        return out

    def change(
        self, packed: list[jax.Array], stays: jax.Array, order: Factorisations
    ) -> list[jax.Array]:
        """Changes stacked Tucker layers to the bases of their bonds' singular vectors."""
        rests = picked(stays, np.array(self.numbers))
        if len(self.arrays) == 1:
            own = [x[0] for x in packed]
            return [x[None] for x in self._one(own, rests[0], order)]
        zero = jnp.zeros((1,), jnp.float32)

        def body(last: jax.Array, given: Any) -> tuple[jax.Array, Any]:
            inner = Factorisations((last,))
            values, rest = given
            out = self._one(values, rest, inner)
            return after(zero, *inner.done), out

        last, found = jax.lax.scan(body, after(zero, *order.done), (packed, rests))
        order.done = (last,)
        return found

    def _one(
        self, arrays: list[jax.Array], stays: jax.Array, order: Factorisations
    ) -> list[jax.Array]:
        """Changes the bond bases of one Tucker layer and its moments; gates become 0 or 1."""
        layer = self.layer
        found = _tucker_bases(layer, [values[0] for values in arrays], order)
        if self.balanced:
            found = found.balanced(powers_of_tucker(len(layer.gates)))
        return _tucker_changed(layer, self.kinds, arrays, stays, found)

    def unpack(self, packed: list[jax.Array], counters: Counters) -> list[Arrays]:
        """Splits Tucker layers, in new bases, into parameter and moments of each array."""
        out: list[Arrays] = [[] for _ in self.arrays]
        for values in packed:
            layers, count, *shape = values.shape
            places = [(n, a) for n in range(layers) for a in range(count)]
            found = counters.pieces(values, places, [tuple(shape)] * len(places))
            for n in range(layers):
                out[n].append(found[n * count : (n + 1) * count])
        return out


def _tucker_changed(
    layer: Layer, kinds: list[list[str]], arrays: list[jax.Array], stays: jax.Array, found: Bases
) -> list[jax.Array]:
    """Changes the basis of core, factors, gates and moments of one Tucker layer."""
    out = []
    for part, (old, names) in enumerate(zip(arrays, kinds, strict=True)):
        if part < len(layer.cores):
            new = _core_moved(layer, part, old, Kinds.of([names], old[None]), found)
        else:
            bond = part - len(layer.cores)
            held = np.array([name == "parameter" for name in names])
            live = found.live[bond : bond + 1, : old.shape[1]]
            new = gates_moved(live, old[None], held[None])[0]
        new = new if jnp.iscomplexobj(old) else new.real
        out.append(jnp.where(stays, old, new.astype(old.dtype)))
    return out


def _core_moved(layer: Layer, part: int, new: jax.Array, kinds: Kinds, found: Bases) -> jax.Array:
    """Changes the basis of one core or factor of a Tucker layer, with its moments."""
    for bond, ends in enumerate(layer.bonds):
        # The factor is on the left, and the core is named first.
        for (core, axis), pair in zip(ends, (found.above, found.below), strict=True):
            if core == part:
                n = new.shape[axis + 1]
                cut = pair[0][bond : bond + 1, :n, :n], pair[1][bond : bond + 1, :n, :n]
                matrices = kinds.matrices(cut)[0]
                dtype = widest(matrices, new)
                new = jax.vmap(times_axis, (0, 0, None))(
                    new.astype(dtype), matrices.astype(dtype), axis
                )
    return new


def _tucker_bases(layer: Layer, parts: list[jax.Array], order: Factorisations) -> Bases:
    """Computes for a change of basis of a Tucker layer the singular vectors of its bonds."""
    dtype = widest(jnp.float32, *parts[: len(layer.cores)])
    core, *factors = (x.astype(dtype) for x in parts[: len(layer.cores)])
    gates = [gate.astype(dtype) for gate in parts[len(layer.cores) :]]
    most = max(gate.size for gate in gates)
    with jax.default_matmul_precision("highest"):
        lefts = [
            order.triangle(tall(f) * gate[None, :]) for f, gate in zip(factors, gates, strict=True)
        ]
        rights = []
        for k in range(len(lefts)):
            rest = core
            for j, other in enumerate(lefts):
                rest = rest if j == k else times_axis(rest, other, j)
            rows = jnp.moveaxis(rest, k, 0).reshape(rest.shape[k], -1)
            rights.append(adjoint(order.triangle(adjoint(rows))))

        def padded(arrays: list[jax.Array]) -> jax.Array:
            return jnp.stack([jnp.pad(x, [(0, most - n) for n in x.shape]) for x in arrays])

        sizes = np.array([gate.size for gate in gates])
        return bases(padded(gates), padded(lefts), padded(rights), sizes, order)


def _as(new: jax.Array, old: Any) -> jax.Array:
    """Casts an array after a change of basis to the dtype and sharding that it had before."""
    dtype = jnp.result_type(old)
    new = (new if jnp.issubdtype(dtype, jnp.complexfloating) else new.real).astype(dtype)
    return like(new, old)


def _wide(x: Any, move: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), widest(x, move))
