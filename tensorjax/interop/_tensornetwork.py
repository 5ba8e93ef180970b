"""Conversion of tensors to and from connected nodes of the package tensornetwork."""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax.interop._checks_and_imports import Format, optional, single
from tensorjax.mera import MERA, Layer
from tensorjax.tt import TT, TTMatrix
from tensorjax.tucker import Tucker


def to_tensornetwork(x: Format, backend: str = "jax") -> tuple[list[Any], list[Any]]:
    """Converts a tensor to connected nodes of the package tensornetwork.

    Args:
      x: one tensor, with concrete arrays.
      backend: of the nodes, "jax" or "numpy".

    Returns:
      (nodes, edges): the nodes in order, named, with named axes; and the dangling edges in the
      order of the modes (of a TTMatrix all rows, then all columns), as contractors want them in
      ``output_edge_order``. Outer bonds of size one are left out.

    Raises:
      ModuleNotFoundError: tensornetwork is not installed.

    Example:
      >>> import tensornetwork
      >>> from tensorjax import interop, tt
      >>> nodes, edges = interop.to_tensornetwork(tt.ones((2, 3, 4)))
      >>> tensornetwork.contractors.auto(nodes, output_edge_order=edges).tensor.shape
      (2, 3, 4)

    Source: ours.
    """
    single(x)
    tn = optional("tensornetwork", '"tensorjax[network]"')
    if backend not in ("jax", "numpy"):
        raise ValueError(f"backend: expected 'jax' or 'numpy', got {backend!r}")
    legs, order = _described(x)
    convert = jnp.asarray if backend == "jax" else np.asarray
    nodes, ends = [], {}
    for name, array, axes in legs:
        node = tn.Node(convert(array), name=name, axis_names=[a for a, _ in axes], backend=backend)
        nodes.append(node)
        for axis, (_, label) in enumerate(axes):
            if label in ends:
                tn.connect(ends[label], node[axis])
            else:
                ends[label] = node[axis]
    return nodes, [ends[label] for label in order]


_Legs = list[tuple[str, Any, list[tuple[str, Any]]]]


def _described(x: Format) -> tuple[_Legs, list[Any]]:
    """Lists a tensor's arrays as tensornetwork nodes, with names of axes and labels of edges.

    Each with its name; then the labels of the modes.
    """
    if isinstance(x, TT):
        return _chain("tt", x.cores, [[("mode", k)] for k in range(x.order)]), list(range(x.order))
    if isinstance(x, TTMatrix):
        d = x.order
        modes = [[("row", k), ("column", d + k)] for k in range(d)]
        return _chain("tt", x.cores, modes), list(range(2 * d))
    if isinstance(x, Tucker):
        inner = [f"rank {k}" for k in range(x.order)]
        legs: _Legs = []
        if isinstance(x.core, jax.Array):
            legs.append(("core", x.core, [(name, name) for name in inner]))
        else:
            legs += _chain("core", x.core.cores, [[("mode", name)] for name in inner])
        for k, u in enumerate(x.factors):
            legs.append((f"factor[{k}]", u, [("mode", k), ("rank", inner[k])]))
        return legs, list(range(x.order))
    return _layered(x), list(range(x.order))


def _chain(name: str, cores: Sequence[Any], modes: list[list[tuple[str, Any]]]) -> _Legs:
    legs: _Legs = []
    last = len(cores) - 1
    for k, core in enumerate(cores):
        axes = [("left", f"bond {k}"), *modes[k], ("right", f"bond {k + 1}")]
        if k == last:
            core, axes = core[..., 0], axes[:-1]
        if k == 0:
            core, axes = core[0], axes[1:]
        legs.append((f"{name}[{k}]", core, axes))
    return legs


def _layered(m: MERA) -> _Legs:
    legs: _Legs = []
    below: list[Any] = list(range(m.order))
    for depth, layer in enumerate(m.layers):
        for k, (u, (i, j)) in enumerate(zip(layer.disentanglers, layer.wiring.pairs, strict=True)):
            above = [f"{depth} middle {i}", f"{depth} middle {j}"]
            names = ("bottom1", "bottom2", "top1", "top2")
            labels = [below[i], below[j], *above]
            cut = layer.wiring.cuts[k]
            legs.append((f"disentangler[{depth}][{cut}]", u, list(zip(names, labels, strict=True))))
            below[i], below[j] = above
        tops = []
        for k, (w, block) in enumerate(zip(layer.isometries, layer.wiring.blocks, strict=True)):
            tops.append(f"{depth} top {k}")
            axes = [(f"bottom{n + 1}", below[i]) for n, i in enumerate(block)]
            legs.append((f"isometry[{depth}][{k}]", w, [*axes, ("top", tops[-1])]))
        below = list(tops)
    legs.append(("top", m.top, [(f"leg{k + 1}", label) for k, label in enumerate(below)]))
    return legs


def from_tensornetwork(nodes: Sequence[Any] | tuple[Sequence[Any], Sequence[Any]]) -> Format:
    """Converts nodes of the package tensornetwork to a tensor of this library.

    Args:
      nodes: those that `to_tensornetwork` gave, their tensors changed or not, known by their names;
        or any open chain, in order, each node with one dangling edge (TT) or two (TTMatrix, row
        first) and edges to its neighbours, of which several become one bond. Outer bonds, dangling
        edges of size one at the ends, may be there or not; two dangling edges each of two nodes
        are rows and columns, unless axes are named "left" and "right". Or the pair (nodes, edges)
        that `to_tensornetwork` returns, its dangling edges in the order of the modes.

    Returns:
      TT, TTMatrix, Tucker or MERA, by the names of the nodes.

    Raises:
      ValueError: the nodes are no such network; edges that are not those of its modes, in order.
      TypeError: no nodes, or a set of them, which has no order; tensors that NumPy cannot read.
      ModuleNotFoundError: tensornetwork is not installed.

    Example:
      >>> from tensorjax import interop, tt
      >>> interop.from_tensornetwork(interop.to_tensornetwork(tt.ones((2, 3))))
      TT(shape=(2, 3), ranks=(1, 1, 1), dtype=float32)

    Source: ours.
    """
    tn = optional("tensornetwork", '"tensorjax[network]"')
    nodes, edges = _parts(nodes)
    _check_nodes(nodes, tn)
    found = _format_of(nodes)
    if edges is not None and not _are_its_modes(edges, nodes, found):
        raise ValueError(
            "nodes: expected a pair (nodes, edges) with the dangling edges of all modes in order, "
            "as to_tensornetwork returns it, got other edges; pass the nodes alone, and permute "
            "the modes of what comes of them"
        )
    return found


def _parts(given: Any) -> tuple[Any, Any]:
    """Splits the output of `to_tensornetwork` into nodes and edges; edges may be None."""
    is_pair = isinstance(given, tuple) and len(given) == 2
    return given if is_pair and all(isinstance(x, list | tuple) for x in given) else (given, None)


def _are_its_modes(edges: Sequence[Any], nodes: Sequence[Any], found: Format) -> bool:
    """Whether given edges are those that `to_tensornetwork` returns as the tensor's modes."""
    legs, order = _described(found)
    named = {node.name: node for node in nodes}
    places = {label: (name, axis) for name, _, axes in legs for axis, label in axes}
    expected = []
    for label in order:
        name, axis = places[label]
        if name not in named or axis not in (named[name].axis_names or []):
            return False
        expected.append(named[name][axis])
    return len(edges) == len(expected) and all(a is b for a, b in zip(edges, expected, strict=True))


def _format_of(nodes: Sequence[Any]) -> Format:
    """Converts checked tensornetwork nodes to a tensor, in the format that their names tell."""
    named = {node.name: _tensor(node) for node in nodes}
    alone = len(named) == 1 and "leg1" in nodes[0].axis_names  # else a node of that name
    if "top" in named and ("isometry[0][0]" in named or alone):
        return _mera_of(named)
    if any(str(name).startswith("factor[") for name in named):
        factors = [named[f"factor[{k}]"] for k in range(len(named)) if f"factor[{k}]" in named]
        if "core" in named:
            return Tucker(named["core"], factors)
        core = [n for n in nodes if n.name.startswith("core[")]
        return Tucker(TT(_chained(core, around=nodes)), factors)
    cores = _chained(nodes, around=nodes)
    return (TT if cores[0].ndim == 3 else TTMatrix)(cores)


def _check_nodes(nodes: Any, tn: Any) -> None:
    if hasattr(nodes, "tensors") and hasattr(nodes, "center_position"):  # FiniteMPS, InfiniteMPS
        raise TypeError(
            f"nodes: expected a list of nodes, got a {type(nodes).__name__}; of a FiniteMPS pass "
            "its tensors (left, physical, right) to tt.TT(mps.tensors), an InfiniteMPS is no tensor"
        )
    if not isinstance(nodes, list | tuple):
        raise TypeError(
            f"nodes: expected a list of nodes, in order, got a {type(nodes).__name__}; "
            "a single node goes into a list, and a set of nodes has no order"
        )
    if not nodes:
        raise ValueError("nodes: expected at least one, got none")
    for k, node in enumerate(nodes):
        if not isinstance(node, tn.AbstractNode):
            raise TypeError(f"nodes[{k}]: expected a node, got a {type(node).__name__}")
        if any(edge.is_trace() for edge in node.edges):
            raise ValueError(
                f"nodes[{k}]: expected edges to other nodes, got one from the node to itself; "
                "contract it first, by tensornetwork.contract_trace_edges"
            )


# The axes of nodes that `to_tensornetwork` makes, in their order; a user may have changed it.
_AXES = ("mode", "bottom", "leg", "top", "rank")
_AXIS = re.compile(rf"({'|'.join(_AXES)}) ?(\d*)")


def _tensor(node: Any) -> Any:
    """Returns a tensornetwork node's array, axes ordered as `to_tensornetwork` makes them."""
    array = node.tensor
    if not isinstance(array, jax.Array):
        array = _check.inexact(f"the node {node.name!r}", array)
    names = node.axis_names or []
    parts = [_AXIS.fullmatch(str(name)) for name in names]
    if not all(parts):
        return array
    places = [(_AXES.index(p[1]), int(p[2] or 0)) for p in parts if p is not None]
    return array.transpose(sorted(range(len(places)), key=places.__getitem__))


def _mera_of(named: dict[str, Any]) -> MERA:
    layers = []
    blocks = len([name for name in named if name.startswith("isometry[0][")])
    while f"isometry[{len(layers)}][0]" in named:
        depth = len(layers)
        cuts = [k for k in range(blocks) if f"disentangler[{depth}][{k}]" in named]
        ws = [named[f"isometry[{depth}][{k}]"] for k in range(blocks)
              if f"isometry[{depth}][{k}]" in named]  # fmt: skip
        layers.append(Layer([named[f"disentangler[{depth}][{k}]"] for k in cuts], ws, cuts))
    return MERA(layers, named["top"])


def _chained(nodes: Sequence[Any], around: Sequence[Any]) -> list[Any]:
    """Returns the cores (left, modes…, right) of a train from tensornetwork nodes in a chain."""
    sides = [_sides(nodes, k, around) for k in range(len(nodes))]
    outer = _outer_bonds(nodes, [modes for _, modes, _ in sides])
    cores: list[Any] = []
    bond: list[Any] = []  # the edges to the node before, in the order of its axes
    for k, (node, (_, modes, right)) in enumerate(zip(nodes, sides, strict=True)):
        modes = [axis for axis in modes if axis not in outer[k]]
        names = node.axis_names or []
        if sorted(names[axis] for axis in modes if names) == ["column", "row"]:
            modes.sort(key=lambda axis, names=names: names[axis] == "column")
        left = [node.edges.index(edge) for edge in bond]
        bond = [node.edges[axis] for axis in right]
        array = _tensor_of(node, k)
        sizes = [array.shape[axis] for axis in modes]
        rank = math.prod(array.shape[axis] for axis in left)
        ordered = array.transpose([*outer[k], *left, *modes, *right])
        cores.append(ordered.reshape(rank, *sizes, -1))
    return cores


_Sides = tuple[list[int], list[int], list[int]]


def _sides(nodes: Sequence[Any], k: int, around: Sequence[Any]) -> _Sides:
    """Splits axes of a tensornetwork node in a chain: to the previous, outwards, to the next."""
    position = {id(node): j for j, node in enumerate(nodes)}
    known = {id(node) for node in around}
    node = nodes[k]
    ends: dict[int, list[int]] = {-1: [], 0: [], 1: []}
    for axis, edge in enumerate(node.edges):
        other = edge.node2 if edge.node1 is node else edge.node1
        if not edge.is_dangling() and id(other) not in known:
            raise ValueError(
                f"nodes[{k}]: expected edges to nodes of the list only, got one to the node "
                f"{other.name!r} outside of it; give all nodes that are connected"
            )
        # The train core of a Tucker tensor has an edge to a factor for each mode.
        step = position.get(id(other), k) - k
        if step not in ends:
            raise ValueError(
                f"nodes[{k}]: expected edges to its neighbours in the list only, got one to "
                f"nodes[{position[id(other)]}]; give an open chain in order"
            )
        ends[step].append(axis)
    inner = int(k > 0), int(k < len(nodes) - 1)
    found = len(ends[-1]), len(ends[1])
    # Two more at the ends, for outer bonds of size one.
    most = 2 + (not inner[0]) + (not inner[1])
    if tuple(map(bool, found)) != tuple(map(bool, inner)) or not 1 <= len(ends[0]) <= most:
        raise ValueError(
            f"nodes[{k}]: expected {inner} edges to the left and right and 1 or 2 others, got "
            f"{found} and {len(ends[0])}; give an open chain in order"
        )
    return ends[-1], ends[0], ends[1]


def _outer_bonds(nodes: Sequence[Any], open_axes: Sequence[list[int]]) -> list[list[int]]:
    """Finds axes of size one at the ends of a chain of tensornetwork nodes that are bonds.

    All nodes of a train have equally many modes: one more at an end is an outer bond.
    """
    last, counts = len(nodes) - 1, [len(axes) for axes in open_axes]
    modes = _modes_of_chain(nodes, open_axes)
    out: list[list[int]] = [[] for _ in nodes]
    for k, axes in enumerate(open_axes):
        extra = counts[k] - modes
        ends = [0] * (k == 0) + [-1] * (k == last)
        ones = [axis for axis in axes if nodes[k].tensor.shape[axis] == 1]
        if extra > len(ends) or extra > len(ones):
            raise ValueError(
                f"nodes[{k}]: expected {modes} edges to no other node, as others have, and outer "
                f"bonds of size 1 at the ends of the chain, got {counts[k]} edges of sizes "
                f"{tuple(nodes[k].tensor.shape[axis] for axis in axes)}"
            )
        named = [axis for axis in ones if _name(nodes[k], axis) in ("left", "right")]
        ones = named if len(named) == extra else ones
        out[k] = [ones.pop(end) for end in (ends if extra == 2 else ends[:1])] if extra else []
    return out


def _modes_of_chain(nodes: Sequence[Any], open_axes: Sequence[list[int]]) -> int:
    """Returns how many modes each tensornetwork node of a chain has, 1 (TT) or 2 (TT-matrix)."""
    counts = [len(axes) for axes in open_axes]
    if len(nodes) == 1:
        return counts[0] - 2 if counts[0] > 2 else counts[0]
    if counts != [2, 2]:
        return min(2, *counts)
    names = [{_name(node, a) for a in axes} for node, axes in zip(nodes, open_axes, strict=True)]
    if "left" in names[0] and "right" in names[1]:
        return 1
    sizes = [nodes[k].tensor.shape[open_axes[k][-k]] for k in range(2)]
    if sizes != [1, 1] or not {"left", "right"} & (names[0] | names[1]):
        return 2
    raise ValueError(
        "nodes: expected a chain whose modes are known, got two nodes of two open edges, the first "
        'and the last of size 1, and only one named "left" or "right": these may be rows and '
        "columns, or outer bonds; name the axes "
        '"row" and "column", or "left" and "right", or remove the outer bonds'
    )


def _name(node: Any, axis: int) -> str:
    return str(node.axis_names[axis]) if node.axis_names else ""


def _tensor_of(node: Any, k: int) -> Any:
    array = node.tensor
    return array if isinstance(array, jax.Array) else _check.inexact(f"nodes[{k}]", array)
