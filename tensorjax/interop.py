"""Tensors of this package as those of others, and back: NumPy, tensornetwork, quimb.

Example:
  >>> from tensorjax import interop, tt
  >>> [c.shape for c in interop.to_numpy(tt.ones((2, 3)))]
  [(1, 2, 1), (1, 3, 1)]

tensornetwork and quimb are optional: ``pip install "tensorjax[network]"`` brings the first,
``pip install quimb`` the second.

Known limits, with JAX 0.10 and NumPy 2: tensornetwork is no longer maintained, but its nodes,
edges, contractors (greedy, optimal, branch, auto) and node splittings work on the arrays put in
here, of JAX and of NumPy; the tests check it.
"""

import importlib
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores import balanced
from tensorjax.mera import MERA, Layer
from tensorjax.tt import TT, TTMatrix
from tensorjax.tucker import Tucker

__all__ = [
    "from_numpy",
    "from_quimb",
    "from_tensornetwork",
    "to_numpy",
    "to_quimb",
    "to_tensornetwork",
]

Format = TT | TTMatrix | Tucker | MERA


def _optional(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this conversion needs the package {error.name!r}: pip install {install}",
            name=error.name,
        ) from error


def _single(x: Any) -> None:
    """Checks that ``x`` is one tensor of a known format, and concrete."""
    if not isinstance(x, TT | TTMatrix | Tucker | MERA):
        raise TypeError(f"x: expected a TT, TTMatrix, Tucker or MERA, got {type(x).__name__}")
    if _check.is_traced(x):
        raise TypeError(
            "x: expected concrete arrays, got traced ones; convert outside jit and vmap"
        )
    if isinstance(x, TT | TTMatrix):
        batched = x.cores[0].ndim != (3 if isinstance(x, TT) else 4)
    elif isinstance(x, Tucker):
        batched = x.factors[0].ndim != 2
    else:
        batched = x.top.ndim != (len(x.layers[-1].isometries) if x.layers else x.top.ndim)
    if batched:
        raise ValueError("x: expected one tensor, got a batch of them; convert them one by one")


# NumPy -------------------------------------------------------------------------------------------


def to_numpy(x: Format) -> Any:
    """Plain NumPy arrays in lists and dictionaries, without any type of this package.

    Args:
      x: one tensor, with concrete arrays.

    Returns:
      TT and TTMatrix: the list of cores. Tucker: the pair (core, list of factors), the core an
      array or a list of cores. MERA: {"layers": [{"disentanglers": [...], "isometries": [...],
      "cuts": [...]}, ...], "top": array}.

    Example:
      >>> from tensorjax import interop, tt
      >>> print(interop.to_numpy(tt.ones((2,)))[0].ravel())
      [1. 1.]
    """
    _single(x)
    if isinstance(x, TT | TTMatrix):
        return [np.asarray(c) for c in x.cores]
    if isinstance(x, Tucker):
        dense = isinstance(x.core, jax.Array)
        core = np.asarray(x.core) if dense else [np.asarray(c) for c in x.core.cores]
        return core, [np.asarray(u) for u in x.factors]
    layers = [
        {
            "disentanglers": [np.asarray(u) for u in layer.disentanglers],
            "isometries": [np.asarray(w) for w in layer.isometries],
            "cuts": list(layer.wiring.cuts),
        }
        for layer in x.layers
    ]
    return {"layers": layers, "top": np.asarray(x.top)}


def from_numpy(data: Any) -> Format:
    """Undoes `to_numpy`; the format is told by the structure.

    Args:
      data: a list of cores (r, n, s) or (r, m, n, s); a pair (core, factors); or a dictionary with
        "layers" and "top".

    Raises:
      TypeError: another structure, or integers. ValueError: shapes that do not fit.

    Example:
      >>> import numpy as np
      >>> from tensorjax import interop
      >>> interop.from_numpy([np.ones((1, 2, 3), np.float32), np.ones((3, 4, 1), np.float32)])
      TT(shape=(2, 4), ranks=(1, 3, 1), dtype=float32)
    """
    if isinstance(data, dict) and set(data) == {"layers", "top"}:
        for k, x in enumerate(data["layers"]):
            if not {"disentanglers", "isometries"} <= set(x):
                raise ValueError(
                    f"data['layers'][{k}]: expected 'disentanglers' and 'isometries', got {set(x)}"
                )
        layers = [Layer(x["disentanglers"], x["isometries"], x.get("cuts")) for x in data["layers"]]
        return MERA(layers, data["top"])
    if isinstance(data, list | tuple) and len(data) == 2 and isinstance(data[1], list | tuple):
        core, factors = data
        return Tucker(TT(core) if isinstance(core, list | tuple) else core, factors)
    if isinstance(data, list | tuple) and data and {np.ndim(c) for c in data} <= {3, 4}:
        return (TT if np.ndim(data[0]) == 3 else TTMatrix)(data)
    raise TypeError(
        "data: expected a list of cores (r, n, s) or (r, m, n, s), a pair (core, factors) or a "
        f"dictionary with 'layers' and 'top', got {type(data).__name__}"
    )


# tensornetwork -----------------------------------------------------------------------------------


def to_tensornetwork(x: Format, backend: str = "jax") -> tuple[list[Any], list[Any]]:
    """Connected nodes of the package tensornetwork, for its contractors.

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
    """
    _single(x)
    tn = _optional("tensornetwork", '"tensorjax[network]"')
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
    """Every tensor with its name, and a name and a label for each axis; labels of the modes."""
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


def from_tensornetwork(nodes: Sequence[Any]) -> Format:
    """A tensor out of nodes of the package tensornetwork.

    Args:
      nodes: those that `to_tensornetwork` gave, their tensors changed or not, known by their names;
        or any open chain, in order, each node with one dangling edge (TT) or two (TTMatrix, row
        first) and edges to its neighbours, of which several become one bond.

    Raises:
      ValueError: the nodes are no such network.
      TypeError: no nodes, or a set of them, which has no order; tensors that NumPy cannot read.
      ModuleNotFoundError: tensornetwork is not installed.

    Example:
      >>> from tensorjax import interop, tt
      >>> interop.from_tensornetwork(interop.to_tensornetwork(tt.ones((2, 3)))[0])
      TT(shape=(2, 3), ranks=(1, 1, 1), dtype=float32)
    """
    tn = _optional("tensornetwork", '"tensorjax[network]"')
    _check_nodes(nodes, tn)
    named = {node.name: _tensor(node) for node in nodes}
    if "top" in named and (len(named) == 1 or "isometry[0][0]" in named):
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
    """The tensor of a node, its axes in the order of their names where these are ours."""
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
    """Cores (left, modes…, right) of an open chain; other edges to ``around`` count as modes."""
    position = {id(node): k for k, node in enumerate(nodes)}
    known = {id(node) for node in around}
    cores: list[Any] = []
    bond: list[Any] = []  # the edges to the node before, in the order of its axes
    for k, node in enumerate(nodes):
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
        if tuple(map(bool, found)) != tuple(map(bool, inner)) or len(ends[0]) not in (1, 2):
            raise ValueError(
                f"nodes[{k}]: expected {inner} edges to the left and right and 1 or 2 others, got "
                f"{found} and {len(ends[0])}; give an open chain in order"
            )
        names = node.axis_names or []
        if sorted(names[axis] for axis in ends[0] if names) == ["column", "row"]:
            ends[0].sort(key=lambda axis, names=names: names[axis] == "column")
        left = [node.edges.index(edge) for edge in bond]
        bond = [node.edges[axis] for axis in ends[1]]
        array = _tensor_of(node, k)
        modes = [array.shape[axis] for axis in ends[0]]
        rank = math.prod(array.shape[axis] for axis in left)
        cores.append(array.transpose([*left, *ends[0], *ends[1]]).reshape(rank, *modes, -1))
    return cores


def _tensor_of(node: Any, k: int) -> Any:
    array = node.tensor
    return array if isinstance(array, jax.Array) else _check.inexact(f"nodes[{k}]", array)


# quimb -------------------------------------------------------------------------------------------


def to_quimb(x: TT | TTMatrix) -> Any:
    """quimb's MatrixProductState of a TT, or its MatrixProductOperator of a TTMatrix.

    Args:
      x: one train, with concrete arrays. Rows of a TTMatrix become quimb's upper ("k") indices.

    Raises:
      TypeError: another format. ModuleNotFoundError: quimb is not installed.
    """
    _single(x)
    if not isinstance(x, TT | TTMatrix):
        raise TypeError(f"x: expected a TT or TTMatrix, got {type(x).__name__}; see mera.to_tt")
    qtn = _optional("quimb.tensor", "quimb")
    cores = [np.asarray(c) for c in x.cores]
    if cores[0].dtype.kind == "V":  # bfloat16, which quimb's linear algebra does not know
        cores = [c.astype(np.float32) for c in cores]
    if isinstance(x, TT):
        return qtn.MatrixProductState(_open_ends(cores), shape="lpr")
    return qtn.MatrixProductOperator(_open_ends(cores), shape="ludr")


def _open_ends(cores: list[np.ndarray]) -> list[np.ndarray]:
    """Cores without the outer bonds of size one, as quimb has them."""
    first, last = cores[0], cores[-1]
    if len(cores) == 1:
        return [first[0, ..., 0]]
    return [first[0], *cores[1:-1], last[..., 0]]


def from_quimb(x: Any) -> TT | TTMatrix:
    """A TT of quimb's MatrixProductState, or a TTMatrix of its MatrixProductOperator.

    Args:
      x: with open boundary; bonds may be missing (rank one) or several. Its ``exponent``, the
        prefactor that `equalize_norms_` takes out of the tensors, goes back into the cores.

    Raises:
      TypeError: another object; arrays that NumPy cannot read, such as PyTorch's with gradients.
      ValueError: a ring; tensors beside those of the sites, as gates that are not contracted;
        bonds between sites that are no neighbours.
      ModuleNotFoundError: quimb is not installed.
    """
    qtn = _optional("quimb.tensor", "quimb")
    if isinstance(x, qtn.MatrixProductState):
        outer = [[x.site_ind(k)] for k in x.sites]
    elif isinstance(x, qtn.MatrixProductOperator):
        outer = [[x.upper_ind(k), x.lower_ind(k)] for k in x.sites]
    else:
        raise TypeError(
            "x: expected a MatrixProductState or MatrixProductOperator of quimb, got "
            f"{type(x).__name__}{_advice(x)}"
        )
    if getattr(x, "cyclic", False):
        raise ValueError("x: expected an open boundary, got a ring; open it in quimb first")
    tensors = _site_tensors(x, outer)
    bonds = [set(a.inds) & set(b.inds) for a, b in itertools.pairwise(tensors)]
    around = [set(), *bonds, set()]
    cores = []
    for k, tensor in enumerate(tensors):
        left, right = sorted(around[k]), sorted(around[k + 1])
        if sorted(tensor.inds) != sorted([*left, *outer[k], *right]):
            raise ValueError(
                f"x[{x.sites[k]}]: expected the indices {outer[k]} and bonds to its neighbours "
                f"alone, got {tensor.inds}; contract or compress it to a chain in quimb first"
            )
        data = np.asarray(_check.inexact(f"x[{x.sites[k]}]", tensor.data))
        data = data.transpose([tensor.inds.index(i) for i in (*left, *outer[k], *right)])
        sides = [math.prod(tensor.ind_size(i) for i in side) for side in (left, right)]
        cores.append(data.reshape(sides[0], *(tensor.ind_size(i) for i in outer[k]), sides[1]))
    cores = _times_power(cores, float(getattr(x, "exponent", 0.0) or 0.0))
    return (TT if cores[0].ndim == 3 else TTMatrix)(cores)


def _advice(x: Any) -> str:
    if hasattr(x, "tensor_map"):
        return "; bring the network into one of these forms in quimb, or pass its dense array"
    return ""


def _site_tensors(x: Any, outer: list[list[str]]) -> list[Any]:
    """The tensor of every site, checked to be all that there is."""
    if x.num_tensors != len(outer):
        raise ValueError(
            f"x: expected one tensor for each of {len(outer)} sites, got {x.num_tensors}; contract "
            "gates into the chain first, for example by gate_(…, contract='swap+split'), or "
            "compress it"
        )
    tensors = [x[k] for k in x.sites]
    for site, tensor, names in zip(x.sites, tensors, outer, strict=True):
        if not hasattr(tensor, "inds") or not set(names) <= set(tensor.inds):
            got = getattr(tensor, "inds", "several tensors")
            raise ValueError(f"x[{site}]: expected one tensor with the indices {names}, got {got}")
    return tensors


def _times_power(cores: list[np.ndarray], exponent: float) -> list[np.ndarray]:
    """Cores times 10^exponent, that quimb keeps outside of them (`equalize_norms_`)."""
    if exponent == 0:
        return cores
    if exponent == -math.inf:
        return [np.zeros_like(cores[0]), *cores[1:]]
    if not math.isfinite(exponent):
        raise ValueError(f"x: expected a finite exponent, got {exponent}; look for NaN or Inf in x")
    # In powers of two, which all cores share, for 10^exponent need not be in range.
    whole = math.floor(exponent * math.log2(10))
    rest = 2.0 ** (exponent * math.log2(10) - whole)
    *first, last = cores
    return balanced([*first, last * np.asarray(rest, last.dtype)], whole)
