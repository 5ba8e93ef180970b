"""Layers stacked by `nnx.vmap` in a parameter tree, as single layers; labels of all parameters."""

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._typing import PyTree
from tensorjax.optim._tensorised_layers import Layout, Path, find, flatten, parts, raise_repeated


@dataclasses.dataclass(frozen=True)
class Stacks:
    """Conversion between layers stacked by `nnx.vmap` and single layers, in a parameter tree.

    Attributes:
      axes: for each leaf, how many leading axes it is stacked over.
    """

    structure: Any
    paths: tuple[Path, ...]
    axes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, params: Any) -> "Stacks":
        """Finds the layers stacked by `nnx.vmap` in a parameter tree, by leading axes of gates."""
        paths, leaves, structure = flatten(params)
        shapes = tuple(tuple(np.shape(leaf)) for leaf in leaves)
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
        """Splits layers stacked by `nnx.vmap` in a parameter tree into single ones.

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
        """Stacks single layers again, in the pytree structure of the original parameters."""
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
        """Returns, for each stacked layer in a parameter tree, the numbers of its single ones."""
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
    """Counts the leading axes over which a tensorised layer is stacked; 0 for one layer."""
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
    """Returns a stacked parameter's paths in the tree of single layers, one for each copy."""
    at = len(path) - next(n for _, n in parts(path))
    return [(*path[:at], copy, *path[at:]) for copy in range(count)]


def _put(out: dict[str, Any], path: Path, leaf: Any) -> None:
    node = out
    for key in path[:-1]:
        node = node.setdefault(str(key), {})
    if str(path[-1]) in node:  # of a layer in a stacked one, by the number of one of the copies
        raise_repeated(path)
    node[str(path[-1])] = leaf


def _key(path: Path) -> Path:
    """Converts a stacked parameter's path to its path in the tree of single layers."""

    def token(key: Hashable) -> Hashable:
        return int(key) if isinstance(key, str) and key.isdecimal() else key

    return tuple(token(str(key)) for key in path)


def labels(params: PyTree) -> Any:
    """Labels every parameter "core", "gate" or "dense", for `optax.partition`.

    Made for `optax.partition`, which takes the function itself; the rates of the paper's released
    program would be::

        inner = optax.partition(
            {
                "core": optax.adamw(1e-4, weight_decay=0.0),
                "gate": optax.adamw(1e-3, weight_decay=0.0),
                "dense": optax.adamw(5e-5, weight_decay=0.0),
            },
            optim.labels,
        )
        optimizer = optim.rank_adaptive(inner, switch=1000, size_fraction=0.5)

    Args:
      params: any tree of parameters, or of gradients.

    Returns:
      The same tree, with a string in place of every array.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import optim
      >>> cores = [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))]
      >>> optim.labels({"cores": cores, "gates": [jnp.ones(3)], "bias": jnp.zeros(5)})
      {'bias': 'dense', 'cores': ['core', 'core'], 'gates': ['gate']}

    Source: ours; the three learning rates are those of the released program of Yang et al.,
    "CoMERA" (arXiv 2405.14377).
    """
    stacks = Stacks.of(params)
    single = stacks.split(params)
    layout = find(single)
    named = dict.fromkeys(range(len(layout.paths)), "dense")
    for layer in layout.layers:
        named |= dict.fromkeys(layer.cores, "core") | dict.fromkeys(layer.gates, "gate")
    return stacks.join(jax.tree.unflatten(jax.tree.structure(single), list(named.values())))
