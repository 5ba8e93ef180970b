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
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check

Path = tuple[Hashable, ...]


def tokens(path: Any) -> Path:
    """Converts a JAX key path to plain keys, to detect tensorised layers; drops a final "value"."""
    out = [_token(key) for key in path]
    if path and isinstance(path[-1], jax.tree_util.GetAttrKey) and out[-1] == "value":
        out.pop()
    return tuple(out)


def _token(key: Any) -> Hashable:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            value = getattr(key, attribute)
            return int(value) if isinstance(value, str) and value.isdecimal() else value
    return str(key)


def flatten(tree: Any) -> tuple[tuple[Path, ...], list[Any], Any]:
    """Flattens a parameter tree to leaves with paths, by which tensorised layers are detected.

    Raises:
      ValueError: two leaves with one path.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = tuple(tokens(path) for path, _ in pairs)
    if len(set(paths)) < len(paths):
        raise_repeated(next(path for path in paths if paths.count(path) > 1))
    return paths, [leaf for _, leaf in pairs], structure


def raise_repeated(path: Path) -> NoReturn:
    """Raises ValueError for two leaves with one path, as paths detect tensorised layers."""
    raise ValueError(
        f"params: expected a path of its own for every array, got two at "
        f"{'/'.join(map(str, path))!r}; a number and texts like '7' and '07' are one key here: "
        "rename one of them"
    )


def parameter_of(path: Path, known: Container[Path]) -> Path | None:
    """Finds the layers' parameter that an array in the optimiser's state belongs to, by path."""
    ends = (path[start:] for start in range(len(path)))
    return next((end for end in ends if end in known), None)


def parts(path: Path) -> Iterator[tuple[str, int]]:
    """Yields which part of a tensorised layer, as a core, a leaf's path names, by how many keys."""
    # Only with an integer key below, as of a list: a module may have one of these names too.
    if len(path) > 1 and path[-2] in ("cores", "factors", "gates") and isinstance(path[-1], int):
        yield str(path[-2]), 2
    if path and path[-1] in ("core", "bias"):
        yield str(path[-1]), 1


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
        """Nests values of the layers' gates, given by position, in dicts by keys of their paths.

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
        """Returns the leaves of a tree that `Layout.by_path` made, by position of the gate."""
        # In the order in which JAX flattens it, whatever that order is.
        order = jax.tree.leaves(self.by_path({position: position for position in self.gates}))
        known = dict(zip(order, jax.tree.leaves(tree), strict=True))
        return {position: known[position] for position in self.gates}


def _sortable(tree: Any) -> Any:
    """Writes the keys of a dict of tensorised layers so that JAX can sort keys of several types.

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


def trainable(params: Any, keep_one: bool) -> Layout:
    """Finds the layers that the rank-adaptive optimiser trains; ValueError for invalid gates."""
    layout = gated(params)
    leaves = jax.tree.leaves(params)
    for layer in layout.layers:
        for number, gate in enumerate(leaves[k] for k in layer.gates):
            seen = not _check.is_traced(gate) and getattr(gate, "is_fully_addressable", True)
            if seen and gate.size:
                _check_gate(f"{layer.name}/gates/{number}", np.asarray(gate), keep_one)
    return layout


def _check_gate(where: str, gate: np.ndarray, keep_one: bool) -> None:
    if gate.min() < 0:
        raise ValueError(
            f"{where}: expected gates >= 0, got {gate.min():.4g}; take its absolute value, and the "
            "sign into a core beside it"
        )
    if keep_one and not gate.any():
        raise ValueError(
            f"{where}: expected a gate that is not zero, got none; pass keep_one=False where a "
            "layer may be its bias alone"
        )


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


def input_modes(sizes: Sequence[int], outputs: int | None) -> int:
    """Guesses which modes of a tensorised layer are inputs, by bias length or most even split."""
    cuts = range(1, len(sizes))
    right = {k: math.prod(sizes[k:]) for k in cuts}
    if outputs is not None and any(right[k] >= outputs for k in cuts):
        return max(k for k in cuts if right[k] >= outputs)
    return min(cuts, key=lambda k: abs(math.log(right[k] / math.prod(sizes[:k]))))
