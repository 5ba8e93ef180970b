"""Layers stacked over a leading axis, as for scans: split to single layers, and stacked again.

A tensorised layer whose gates have leading axes is a stack, as `flax.nnx.vmap` or the GPT-2 of
`tensorjax.models` makes it. Rank-adaptive training sees its copies as layers of their own, each
with its own ranks; the arrays of the model stay stacked.
"""

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tensorjax.optim._tensorised_leaves import Layout, Path, flatten, parts


@dataclasses.dataclass(frozen=True)
class Stacks:
    """Stacked tensorised layers of a parameter tree.

    Attributes:
      structure: of the tree.
      paths: of its leaves.
      axes: for each leaf, how many leading axes it is stacked over.
      shapes: of the leaves.
    """

    structure: Any
    paths: tuple[Path, ...]
    axes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, params: Any) -> "Stacks":
        """Finds the stacked layers of a parameter tree: those whose gates have leading axes."""
        paths, leaves, structure = flatten(params)
        shapes = tuple(tuple(jnp.shape(leaf)) for leaf in leaves)
        groups: dict[Path, dict[str, list[int]]] = {}
        for position, path in enumerate(paths):
            for name, count in parts(path):
                group = groups.setdefault(path[: len(path) - count], {})
                group.setdefault(name, []).append(position)
        axes = [0] * len(paths)
        for group in groups.values():
            count = _leading(group, shapes)
            for position in (p for places in group.values() for p in places):
                axes[position] = count
        return cls(structure, paths, tuple(axes), shapes)

    def split(self, tree: Any, name: str = "updates") -> Any:
        """Returns the tree of single layers: nested dicts, with a copy's number below its layer.

        A tree without stacked layers is returned as it is. ``name`` is for errors.

        Raises:
          ValueError: a tree of another structure or other shapes than the parameters.
        """
        if not any(self.axes) or tree is None:
            return tree
        leaves = jax.tree.leaves(tree)
        if [tuple(jnp.shape(x)) for x in leaves] != [*self.shapes]:
            raise ValueError(
                f"{name}: expected the same structure and shapes as the parameters; after a shrink "
                "they, and the state, have to be new"
            )
        out: dict[str, Any] = {}
        for path, count, leaf in zip(self.paths, self.axes, leaves, strict=True):
            if not count:
                _put(out, path, leaf)
                continue
            each = jnp.reshape(leaf, (-1, *jnp.shape(leaf)[count:]))
            for copy, place in enumerate(_copies(path, len(each))):
                _put(out, place, each[copy])
        return out

    def join(self, tree: Any) -> Any:
        """Stacks the tree of single layers again, in the containers of the parameters."""
        if not any(self.axes):
            return tree
        paths, leaves, _ = flatten(tree)
        found = dict(zip(paths, leaves, strict=True))
        out = []
        for path, count, shape in zip(self.paths, self.axes, self.shapes, strict=True):
            lead = shape[:count]
            if not count:
                out.append(found[_key(path)])
                continue
            each = [found[_key(place)] for place in _copies(path, math.prod(lead))]
            if isinstance(each[0], str):  # a label
                out.append(each[0])
                continue
            out.append(jnp.stack(each).reshape(*lead, *jnp.shape(each[0])))
        return jax.tree.unflatten(self.structure, out)

    def siblings(self, layout: Layout) -> list[list[int]]:
        """Returns, for every stacked layer, the positions of its copies among the split layers."""
        tops = {
            _key(path[: len(path) - next(n for _, n in parts(path))])
            for path, count in zip(self.paths, self.axes, strict=True)
            if count
        }
        found: dict[Path, list[int]] = {}
        for position, layer in enumerate(layout.layers):
            if layer.path[:-1] in tops:
                found.setdefault(layer.path[:-1], []).append(position)
        return [*found.values()]


def _leading(group: dict[str, list[int]], shapes: Sequence[tuple[int, ...]]) -> int:
    """Counts the leading axes over which a layer's parts are stacked; 0 for what is no stack."""
    gates = [shapes[p] for p in group.get("gates", ())]
    cores = [shapes[p] for name in ("cores", "core", "factors") for p in group.get(name, ())]
    counts = {len(shape) - 1 for shape in gates}
    if not gates or not cores or len(counts) != 1:
        return 0
    (count,) = counts
    lead = gates[0][:count]
    every = [*gates, *cores, *(shapes[p] for p in group.get("bias", ()))]
    return count if all(shape[:count] == lead for shape in every) else 0


def _copies(path: Path, count: int) -> list[Path]:
    """Returns the paths of a stacked leaf's copies: the number stands above the part's name."""
    at = len(path) - next(n for _, n in parts(path))
    return [(*path[:at], copy, *path[at:]) for copy in range(count)]


def _put(out: dict[str, Any], path: Path, leaf: Any) -> None:
    for key in path[:-1]:
        out = out.setdefault(str(key), {})
    out[str(path[-1])] = leaf


def _key(path: Path) -> Path:
    """Returns a path as `flatten` has it of nested dicts with strings for keys."""

    def token(key: Hashable) -> Hashable:
        return int(key) if isinstance(key, str) and key.isdecimal() else key

    return tuple(token(str(key)) for key in path)


def by_single_layers(
    optimizer: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimiser to see stacked layers as single ones; its state is of the single layers.

    Parameters without stacked layers are handed on as they are.
    """

    def init(params: Any) -> Any:
        return optimizer.init(Stacks.of(params).split(params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None or isinstance(params, optax.LookaheadParams):
            return optimizer.update(updates, state, params, **extra)  # which says what is wrong
        stacks = Stacks.of(params)
        split = stacks.split(updates), state, stacks.split(params)
        moves, state = optimizer.update(*split, **extra)
        return stacks.join(moves), state

    return optax.GradientTransformationExtraArgs(init, update)
