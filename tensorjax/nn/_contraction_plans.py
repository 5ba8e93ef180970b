"""Planning of a tensorised layer's contraction y = x W: forward and backward cost per batch.

Every way to compute y = x W without changing the result is a tree of pairwise products over x and
the arrays of W. Its reverse-mode derivative walks the same tree backwards and makes two products of
the same cost for each, so a tree is a plan for both directions: forward and backward together cost
three times the forward pass, and need no product that the forward pass did not leave the factors
for. No backward pass of the same tree is cheaper: each of its products is a message between two
nodes of the tree that has x, the arrays and the cotangent as leaves, and each message is computed
once. That is why there is no derivative written by hand: JAX's own has the operations and the
residuals of one (x, the intermediates of the tree; W only if the tree materialises it), and
forward mode works too.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import opt_einsum

from tensorjax import contract
from tensorjax.contract import Cost
from tensorjax.nn._weight_networks import Tree, WeightNetwork

# Machine model: floating-point operations in the time of moving one byte. Trees of the same arrays
# have the same number of products, so a launch cost would not distinguish them.
_PER_BYTE = 4.0
# With more operands the search is greedy, since an exact one takes seconds.
_EXACT = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """Contraction order that a tensorised linear layer may use, with its modelled cost.

    Attributes:
      kind: "halves", "chain", "path" or "dense", as for `LayerPlan`.
      contraction: its plan.
      cost: of forward + backward by the model, in operations.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> candidates = nn.TTLinear(64, 96, rank=4, rngs=nnx.Rngs(0)).plan(32).candidates
      >>> candidates[0].cost == min(c.cost for c in candidates)
      True
      >>> sorted(c.kind for c in candidates)
      ['chain', 'dense', 'halves', 'path']
    """

    kind: str
    contraction: contract.Plan
    cost: float


@dataclasses.dataclass(frozen=True, eq=False)
class LayerPlan:
    """Cheapest contraction order of y = x W for one batch size, with its cost and alternatives.

    Attributes:
      kind: "halves": the arrays in two parts, whose products are A and B, then (x A) B. A has the
        arrays of the input's modes and B those of the output's, so that W = A B; of a TT-matrix A
        has the first half of the cores and B the others, with a mode of either side each. "chain":
        the arrays one after the other, starting from x. "path": the best order that a search found;
        with more than 10 operands, x included, a greedy one. "dense": W is materialised, by halves
        or as the search found, and multiplied once; its gradient is then projected on the arrays.
      batch: rows of x.
      flops: operations of the forward pass, gates and bias included.
      bytes: bytes that its steps read and write.
      peak_bytes: largest number of bytes alive at a time in the forward pass.
      grad: the three for forward + backward, with respect to x and all parameters.
      cost: of forward + backward by the model of `candidates`, in operations.
      candidates: all ways compared, the cheapest first. The model is operations + 4 × bytes: a
        machine that makes four operations while it moves a byte, and does not do both at once.
      contraction: the plan of the contraction, without gates and bias.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TTLinear(64, 96, rank=4, rngs=nnx.Rngs(0))
      >>> plan = layer.plan(32)
      >>> plan.batch, plan.kind in ("halves", "chain", "path", "dense")
      (32, True)
    """

    kind: str
    batch: int
    flops: int
    bytes: int
    peak_bytes: int
    grad: Cost
    cost: float
    candidates: tuple[Candidate, ...]
    contraction: contract.Plan = dataclasses.field(repr=False)

    def table(self) -> str:
        """Formats a layer's candidate contraction orders and their costs as a table."""
        rows: list[tuple[str, ...]] = [
            ("kind", "forward flops", "fwd+bwd flops", "bytes", "peak", "cost", "path")
        ]
        for c in self.candidates:
            plan = c.contraction
            steps = " ".join(",".join(map(str, step)) for step in plan.path)
            costs = (f"{number:.3g}" for number in (plan.flops, *plan.grad, c.cost))
            rows.append((c.kind, *costs, steps))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) for row in rows]
        formed = "W is formed" if self.kind == "dense" else "W is never formed"
        return "\n".join(
            [f"{self.kind}, {self.batch} rows: {formed}"] + [line.rstrip() for line in lines]
        )

    def __str__(self) -> str:
        return self.table()


@functools.lru_cache(maxsize=4096)
def plan_layer(
    network: WeightNetwork,
    batch: int,
    dtype: np.dtype,
    bias: bool,
    precision: Any,
    memory_limit: int | None,
) -> LayerPlan:
    """Chooses the cheapest contraction order of a layer's y = x W for ``batch`` rows; cached.

    Raises:
      ValueError: no candidate keeps ``memory_limit``, which holds for forward + backward.
    """
    expression, shapes = _einsum(network, batch)

    def planned(optimize: Any, minimize: str = "flops") -> contract.Plan:
        return contract.plan(
            expression,
            *shapes,
            dtype=dtype,
            optimize=optimize,
            minimize=minimize,
            precision=precision,
            memory_limit=memory_limit,
            limit_grad=memory_limit is not None,
        )

    count = len(shapes)
    options = [(kind, path(tree, count), "flops") for kind, tree in _trees(network).items()]
    # An exact search takes seconds for more operands than these.
    search = "auto" if count <= _EXACT else "greedy"
    options += [("path", search, "flops"), ("path", search, "bytes")]
    found: dict[tuple[Any, ...], Candidate] = {}
    for kind, optimize, minimize in options:
        try:
            plan = planned(optimize, minimize)
        except ValueError:
            if memory_limit is None:
                raise
            continue  # out of reach of this tree
        kind = "dense" if _forms_weight(network, plan) else kind
        found.setdefault(plan.path, Candidate(kind, plan, _cost(plan)))
    if not found:
        fixed = 2 * (sum(map(math.prod, shapes)) + batch * math.prod(network.out_shape))
        raise ValueError(
            f"memory_limit: got {memory_limit} bytes, but no way to contract {batch} rows forward "
            f"and backward keeps it; input, arrays, output and their gradients alone are "
            f"{fixed * dtype.itemsize}; raise the limit or use a smaller batch or dtype"
        )
    candidates = tuple(sorted(found.values(), key=lambda c: c.cost))
    return _chosen(network, batch, dtype, bias, candidates)


def _chosen(
    network: WeightNetwork,
    batch: int,
    dtype: np.dtype,
    bias: bool,
    candidates: tuple[Candidate, ...],
) -> LayerPlan:
    best = candidates[0].contraction
    # A gate: product with a core forward; backward one more, and one that is summed.
    out = batch * math.prod(network.out_shape) if bias else 0
    forward, backward = network.gated + out, 3 * network.gated + out
    moved = 2 * network.gated + 2 * out
    forward_moved, backward_moved = moved * dtype.itemsize, 2 * moved * dtype.itemsize
    grad = Cost(
        best.grad.flops + forward + backward,
        best.grad.bytes + forward_moved + backward_moved,
        best.grad.peak_bytes,
    )
    return LayerPlan(
        kind=candidates[0].kind,
        batch=batch,
        flops=best.flops + forward,
        bytes=best.bytes + forward_moved,
        peak_bytes=best.peak_bytes,
        grad=grad,
        cost=candidates[0].cost,
        candidates=candidates,
        contraction=best,
    )


def _cost(plan: contract.Plan) -> float:
    return plan.grad.flops + _PER_BYTE * plan.grad.bytes


def _einsum(network: WeightNetwork, batch: int) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Writes the contraction y = x W to be planned as an einsum: expression and operand shapes."""
    order = len(network.modes)
    row = opt_einsum.get_symbol(1 + max(max(term) for term in network.terms))

    def text(axes: Any) -> str:
        return "".join(opt_einsum.get_symbol(axis) for axis in axes)

    terms = [row + text(range(network.split)), *map(text, network.terms)]
    result = row + text(range(network.split, order))
    return f"{','.join(terms)}->{result}", ((batch, *network.in_shape), *network.shapes)


def _trees(network: WeightNetwork) -> dict[str, Tree]:
    """Returns the contraction orders "halves", "chain" and "dense" of y = x W as trees."""
    count = len(network.terms)
    left, right = (fold([k + 1 for k in half]) for half in network.halves)
    return {
        "halves": ((0, left), right),
        "chain": fold(range(count + 1)),
        "dense": (0, (left, right)),
    }


def _forms_weight(network: WeightNetwork, plan: contract.Plan) -> bool:
    """Whether a contraction order of y = x W computes the dense W, or an array as large."""
    inputs, _ = plan.expr.split("->")
    terms = [frozenset(term) for term in inputs.split(",")]
    sizes: dict[str, int] = {}
    for term, shape in zip(inputs.split(","), plan.shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    everything = frozenset(range(len(terms)))
    output = frozenset(plan.expr.split("->")[1])
    for product in leaves(plan.path, len(terms)):
        if 0 in product:
            continue
        inside = frozenset().union(*(terms[k] for k in product))
        outside = output.union(*(terms[k] for k in everything - product))
        elements = math.prod(sizes[label] for label in inside & outside)
        if elements >= network.elements:
            return True
    return False


def leaves(steps: Sequence[Sequence[int]], count: int) -> list[frozenset[int]]:
    """Returns, for each intermediate of a layer's contraction, which operands it is made of."""
    nodes = [frozenset({k}) for k in range(count)]
    found = []
    for step in steps:
        product = frozenset().union(*(nodes[k] for k in step))
        nodes = [node for k, node in enumerate(nodes) if k not in step] + [product]
        found.append(product)
    return found


def fold(positions: Sequence[int]) -> Tree:
    """Builds the contraction tree that multiplies a layer's operands from left to right."""
    tree: Tree = positions[0]
    for position in positions[1:]:
        tree = (tree, position)
    return tree


def path(tree: Tree, count: int) -> tuple[tuple[int, int], ...]:
    """Converts the nested contraction tree of a layer's plan to an opt_einsum path.

    Example:
      >>> path(((0, 1), (2, 3)), 4)
      ((0, 1), (0, 1), (0, 1))
    """
    nodes: list[Tree] = list(range(count))
    steps: list[tuple[int, int]] = []

    def multiply(node: Tree) -> None:
        if isinstance(node, int):
            return
        for child in node:
            multiply(child)
        i, j = sorted(nodes.index(child) for child in node)
        steps.append((i, j))
        del nodes[j], nodes[i]
        nodes.append(node)

    multiply(tree)
    return tuple(steps)
