"""Detection of tensorised layers in a parameter tree, by the names and shapes of leaves.

A layer is known by the names of siblings in one mapping:

- tensor train: ``cores`` (r_{k-1}, n_k, r_k), or (r_{k-1}, m_k, n_k, r_k) for a TT-matrix, and
  ``gates``, one vector on every bond;
- Tucker: ``core`` (s_1, …, s_D), ``factors`` (n_k, s_k) or (m_k, n_k, s_k), and ``gates``, one for
  each axis of the core;
- CP: ``factors`` (n_k, R) or (m_k, n_k, R), and ``gates``, one vector for all of them.

Cores, factors and gates are lists, or mappings with the keys 0, 1, …; anything else by these names
is dense, but for vectors called gates that stand alone: those are an error. A layer whose gates
have leading axes is a stack, as of `flax.nnx.vmap` or the GPT-2 of `tensorjax.models`: `Stacks`
splits it to single layers, each with its own ranks, and stacks it again.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._typing import PyTree
from tensorjax.optim._layers.parameter_paths import Path, flatten, parts, raise_repeated

Bond = tuple[int, int]  # position of a core in its layer, and the axis

LOOKED_FOR = (
    "a mapping that holds gates beside cores (tensor train), core and factors (Tucker) or factors "
    "(CP)"
)


@dataclasses.dataclass(frozen=True)
class Layer:
    """Tensorised layer in a parameter tree: which leaves are its cores and gates, its bonds.

    Attributes:
      path: of the mapping that holds it.
      kind: of format.
      cores: positions of cores (Tucker: the core, then the factors) among the leaves.
      gates: positions of the gates among the leaves.
      shapes: of the cores.
      dtypes: of the cores.
      bonds: for each gate, the (core, axis) pairs that its bond joins.
      outputs: length of the bias, if there is one.
    """

    path: Path
    kind: Literal["tt", "tucker", "cp"]
    cores: tuple[int, ...]
    gates: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    bonds: tuple[tuple[Bond, ...], ...]
    outputs: int | None

    @property
    def name(self) -> str:
        """Path of the tensorised layer as text, joined by slashes."""
        return "/".join(map(str, self.path)) or "(top)"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank of every bond of the layer, which is the length of its gate."""
        return tuple(self.shapes[core][axis] for ((core, axis), *_) in self.bonds)

    def modes(self, core: int) -> tuple[int, ...]:
        """Returns the mode sizes of a core of the layer: its axes that are not bonds."""
        axes = {axis for bonds in self.bonds for c, axis in bonds if c == core}
        if self.kind == "tt":  # the outer bonds of size one have no gate
            axes |= {0, len(self.shapes[core]) - 1}
        return tuple(n for axis, n in enumerate(self.shapes[core]) if axis not in axes)


@dataclasses.dataclass(frozen=True)
class Layout:
    """All tensorised layers of a parameter tree, with the paths of all leaves.

    Attributes:
      layers: in the order of the leaves.
      paths: of all leaves, without what flax's variables add.
    """

    layers: tuple[Layer, ...]
    paths: tuple[Path, ...]

    @property
    def gates(self) -> tuple[int, ...]:
        """Indices of all rank gates among the leaves of a parameter tree, layer by layer."""
        return tuple(leaf for layer in self.layers for leaf in layer.gates)

    def by_path(self, values: Mapping[int, Any]) -> dict[Any, Any]:
        """Nests values of the rank gates, given by position, in dicts by the keys of their paths.

        Dicts, since Python has to flatten other containers in every call of a compiled step.
        """
        tree: dict[Any, Any] = {}
        for position in self.gates:
            *above, last = self.paths[position]
            node = tree
            for key in above:
                node = node.setdefault(key, {})
            node[last] = values[position]
        return _sortable(tree)

    def of_gates(self, tree: Any) -> dict[int, Any]:
        """Returns the leaves of a tree that `by_path` made, by position of the gate."""
        # In the order in which JAX flattens it, whatever that order is.
        order = jax.tree.leaves(self.by_path({position: position for position in self.gates}))
        known = dict(zip(order, jax.tree.leaves(tree), strict=True))
        return {position: known[position] for position in self.gates}


def _sortable(tree: Any) -> Any:
    """Writes the keys of nested dicts so that JAX can sort them and `flatten` reads them back.

    Names and numbers from zero may stand side by side, and become text. Other keys, such as tuples
    and negative numbers, are those of a dict that JAX has sorted, and stay as they are.
    """
    if not isinstance(tree, dict):
        return tree
    if all(type(key) is str or (isinstance(key, int) and key >= 0) for key in tree):
        keys = [f"{key:06d}" if isinstance(key, int) else key for key in tree]
    else:
        keys = [*tree]
    return {key: _sortable(node) for key, node in zip(keys, tree.values(), strict=True)}


def find(params: Any) -> Layout:
    """Finds the tensorised layers of a parameter tree, by the names of sibling leaves.

    Raises:
      ValueError: gates without cores, and shapes that do not fit.
      TypeError: gates that are not real.
    """
    paths, leaves, _ = flatten(params)
    groups: dict[Path, dict[str, Any]] = {}
    for position, path in enumerate(paths):
        for name, place in parts(path):
            groups.setdefault(path[: len(path) - place], {}).setdefault(name, {})[
                path[-1] if place == 2 else 0
            ] = position
    layers = []
    for path, group in groups.items():
        layer = _layer(path, group, leaves)
        if layer is not None:
            layers.append(layer)
    return Layout(tuple(layers), paths)


def gated(params: Any) -> Layout:
    """Finds the tensorised layers of a parameter tree; ValueError if none has rank gates."""
    layout = find(params)
    if not layout.gates:
        bare = ", ".join(layer.name for layer in layout.layers[:3])
        raise ValueError(
            f"params: expected at least one tensorised layer with gates, that is {LOOKED_FOR}; "
            + (f"got cores without gates in {bare}" if bare else "got none")
            + "; build the model with nn.TT, nn.Tucker or nn.CP, or put the optimiser where the "
            "parameters are not masked"
        )
    return layout


def _layer(path: Path, group: dict[str, Any], leaves: list[Any]) -> Layer | None:
    def listed(name: str) -> tuple[int, ...]:
        return tuple(position for _, position in sorted(group.get(name, {}).items()))

    gates, cores, factors = listed("gates"), listed("cores"), listed("factors")
    if cores:
        kind, parts = "tt", cores
    elif gates and factors:
        kind, parts = ("tucker" if "core" in group else "cp"), listed("core") + factors
    elif any(jnp.ndim(leaves[p]) == 1 for p in gates):
        raise ValueError(
            f"{'/'.join(map(str, path)) or '(top)'}: expected {LOOKED_FOR}, got gates alone; a "
            "masked or partitioned optimiser goes inside rank_adaptive, which has to see both"
        )
    else:
        return None
    shapes = tuple(tuple(jnp.shape(leaves[p])) for p in parts)
    bias = listed("bias")
    layer = Layer(
        path,
        kind,
        parts,
        gates,
        shapes,
        tuple(jnp.result_type(leaves[p]) for p in parts),
        _bonds(kind, shapes) if gates else (),
        jnp.shape(leaves[bias[0]])[0] if bias and jnp.ndim(leaves[bias[0]]) == 1 else None,
    )
    _check_gates(layer, [leaves[p] for p in gates])
    return layer


def _bonds(kind: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[Bond, ...], ...]:
    last = [len(shape) - 1 for shape in shapes]
    if kind == "tt":
        return tuple(((k, last[k]), (k + 1, 0)) for k in range(len(shapes) - 1))
    if kind == "tucker":
        return tuple(((0, k - 1), (k, last[k])) for k in range(1, len(shapes)))
    return (tuple((k, last[k]) for k in range(len(shapes))),)


def _check_gates(layer: Layer, gates: list[Any]) -> None:
    if len(gates) != len(layer.bonds):
        raise ValueError(
            f"{layer.name}: expected {len(layer.bonds)} gates, one on every bond of "
            f"{len(layer.shapes)} arrays, got {len(gates)}"
        )
    for number, (gate, bonds) in enumerate(zip(gates, layer.bonds, strict=True)):
        where = f"{layer.name}/gates/{number}"
        if not jnp.issubdtype(jnp.result_type(gate), jnp.floating):
            raise TypeError(f"{where}: expected real floating numbers, got {jnp.result_type(gate)}")
        sizes = {layer.shapes[c][axis] if axis < len(layer.shapes[c]) else -1 for c, axis in bonds}
        if len(sizes) != 1 or jnp.shape(gate) != (*sizes,):
            raise ValueError(
                f"{where}: expected one number for every index of its bond, got shape "
                f"{jnp.shape(gate)} beside arrays of shapes "
                f"{', '.join(str(layer.shapes[c]) for c, _ in bonds)}; of stacked layers "
                "all arrays have the same leading axes, else vmap the optimiser over them"
            )


def check_concrete(name: str, leaves: Any) -> None:
    """Raises TypeError if the parameters of tensorised layers are traced by JAX."""
    if _check.is_traced(leaves):
        raise TypeError(
            f"{name}: how many gates live depends on the data, which jit, vmap and grad cannot "
            "trace; call it between steps, outside the transformation"
        )


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
        """Returns, for every layer stacked by `nnx.vmap`, the numbers of its single layers."""
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


def input_modes(sizes: Sequence[int], outputs: int | None) -> int:
    """Guesses which modes of a tensorised layer are inputs, by bias length or most even split."""
    cuts = range(1, len(sizes))
    right = {k: math.prod(sizes[k:]) for k in cuts}
    if outputs is not None and any(right[k] >= outputs for k in cuts):
        return max(k for k in cuts if right[k] >= outputs)
    return min(cuts, key=lambda k: abs(math.log(right[k] / math.prod(sizes[:k]))))
