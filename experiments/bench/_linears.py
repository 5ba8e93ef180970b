"""Group "linear" of `bench/layers`: y = x W + bias, and gradients of x and all parameters.

A call makes y, or y and the gradient for a given cotangent. Trains have the shapes and the rank of
the authors' transformer. tensorly-torch has no trains of vectors: its "blocktt" is a TT-matrix,
here of the same rank, and of the rank that gives it about as many parameters as ours.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.bench._solving import Answer, Problem, Way, found, torch_device, waited
from tensorjax import nn

BATCHES = (1, 32, 128, 512, 4096)
_RANK = 30
SHAPES = (
    ((12, 8, 8), (8, 8, 12)),
    ((12, 8, 8), (12, 16, 16)),
    ((12, 16, 16), (8, 8, 12)),
)
_SMALL = (((4, 4), (4, 6)),)
# Time of dense JAX over ours: nowhere below 1, and this for 768 → 3072 with the gradient.
_GOAL, _GOAL_ROWS, _GOAL_SHAPE = 4.0, 512, (768, 3072)


def problems(
    small: bool, shapes: Sequence[Any] = SHAPES, batches: Sequence[int] = BATCHES
) -> list[Problem]:
    """Returns problems for every shape and batch size: forward, and forward + backward."""
    out = []
    for sides in _SMALL if small else shapes:
        layer = nn.TTLinear(
            *map(math.prod, sides),
            rank=4 if small else _RANK,
            in_shape=sides[0],
            out_shape=sides[1],
            rngs=nnx.Rngs(0),
        )
        sizes = (layer.in_features, layer.out_features)
        for rows in (1, 16) if small else batches:
            work = _Work(layer, rows)
            for backward in (False, True):
                name = f"{sizes[0]} → {sizes[1]}, {rows} rows, forward"
                name += " + backward" if backward else ""
                far = backward and rows >= _GOAL_ROWS and sizes == _GOAL_SHAPE
                goal = None if small else _GOAL if far else 1.0
                out.append(Problem(name, work.ways(backward), goal))
    return out


def costs(program: Any) -> Answer:
    """Returns the operations and temporary bytes of a compiled program, as XLA counts them."""
    found = program.cost_analysis()
    found = found[0] if isinstance(found, list) else found
    memory = program.memory_analysis()
    return {
        "flops": (found or {}).get("flops"),
        "temp bytes": getattr(memory, "temp_size_in_bytes", None),
    }


def flat(apply: Callable[..., Any], params: Any) -> tuple[Callable[..., Any], list[jax.Array]]:
    """Converts a function of parameters to one of a list of arrays; returns both.

    No container is timed then.
    """
    leaves, tree = jax.tree.flatten(params)
    return lambda leaves, *rest: apply(tree.unflatten(leaves), *rest), [*map(jnp.asarray, leaves)]


class _Work:
    """Linear layer with a batch of inputs, cotangents, and the right answer."""

    def __init__(self, layer: nn.TTLinear, rows: int):
        self.layer = layer
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((rows, layer.in_features), np.float32)
        self.cotangent = rng.standard_normal((rows, layer.out_features), np.float32)
        self.arrays = (jnp.asarray(self.x), jnp.asarray(self.cotangent))
        self.dense = nn.to_linear(layer)
        self.y = self.x @ np.asarray(self.dense.kernel[...])

    def ways(self, backward: bool) -> list[Way]:
        """Returns the ways to compute the layer: ours, the released formula, dense JAX, peers."""
        plan = self.layer.plan(len(self.x))
        ways = [
            self._jax_module(backward, "tensorjax", "", self.layer, {"kind": plan.kind}),
            self._jax_way(backward, "released formula", "halves", halves, _trained(self.layer)),
            self._jax_module(backward, "JAX", "dense", self.dense),
        ]
        torch = found("torch")
        if torch is None:
            return ways
        dense = torch.nn.Linear(self.layer.in_features, self.layer.out_features)
        with torch.no_grad():
            dense.weight.copy_(torch.tensor(np.array(self.dense.kernel[...]).T))
            dense.bias.zero_()
        ways.append(self._torch_way(torch, backward, "torch", "dense", dense, exact=True))
        if (tltorch := found("tltorch")) is not None:
            ranks = dict.fromkeys((max(self.layer.ranks), _equal_rank(self.layer)))
            for rank in ranks:
                for way in ("factorized", "reconstructed"):
                    module = _factorized(tltorch, self.layer, rank, way)
                    variant = f"blocktt, {way}, rank {rank}"
                    ways.append(self._torch_way(torch, backward, "tensorly-torch", variant, module))
        return ways

    def error(self, y: Any) -> float:
        """Computes the relative error of a layer's output."""
        return float(np.linalg.norm(np.asarray(y) - self.y) / np.linalg.norm(self.y))

    def _jax_module(
        self, backward: bool, library: str, variant: str, module: Any, extra: Any = None
    ) -> Way:
        graph, params = nnx.split(module)
        return self._jax_way(
            backward, library, variant, lambda p, x: nnx.merge(graph, p)(x), params, extra
        )

    def _jax_way(
        self,
        backward: bool,
        library: str,
        variant: str,
        apply: Callable[..., Any],
        params: Any,
        extra: Answer | None = None,
    ) -> Way:
        """Returns the way of a JAX function, compiled, with its operations and temporary bytes."""
        apply, leaves = flat(apply, params)

        def both(leaves: Any, x: Any, cotangent: Any) -> Any:
            y, pull = jax.vjp(apply, leaves, x)
            return y, pull(cotangent)

        def forward(leaves: Any, x: Any, cotangent: Any) -> Any:
            return (apply(leaves, x),)

        args = (leaves, *self.arrays)
        program = jax.jit(both if backward else forward)

        def answer(result: Any) -> Answer:
            counted = costs(program.lower(*args).compile())
            numbers = sum(leaf.size for leaf in leaves)
            found = {"error": self.error(result[0]), "parameters": numbers}
            return {**found, **counted, **(extra or {})}

        return Way(library, variant, lambda: jax.block_until_ready(program(*args)), answer)

    def _torch_way(
        self,
        torch: Any,
        backward: bool,
        library: str,
        variant: str,
        module: Any,
        exact: bool = False,
    ) -> Way:
        device = torch_device(torch)
        module = module.to(device)
        x = torch.from_numpy(self.x).to(device).requires_grad_(backward)
        cotangent = torch.from_numpy(self.cotangent).to(device)
        parameters = list(module.parameters())

        def call() -> Any:
            if not backward:
                with torch.no_grad():
                    return module(x)
            y = module(x)
            return y, torch.autograd.grad(y, [x, *parameters], cotangent)

        def answer(result: Any) -> Answer:
            y = (result[0] if backward else result).detach().cpu().numpy()
            found: Answer = {"parameters": sum(p.numel() for p in parameters)}
            return {**found, "error": self.error(y)} if exact else found

        return Way(library, variant, waited(torch, call), answer)


def _trained(layer: nn.TTLinear) -> tuple[Any, ...]:
    bias = layer.bias
    assert bias is not None
    return (*(c[...] for c in layer.cores), *(g[...] for g in layer.gates), bias[...])


def halves(params: tuple[Any, ...], x: Any) -> Any:
    """Computes a tensor-train layer by its two halves: (x A) B + bias, at any batch size."""
    *weights, bias = params
    order = (len(weights) + 1) // 2
    cores, gates = weights[:order], weights[order:]
    cores = [c * g[None, None] for c, g in zip(cores, gates, strict=False)] + [cores[-1]]
    size, left, split = 1, cores[0], 0
    for k, core in enumerate(cores):  # the input half ends where the modes make up all features
        size *= core.shape[1]
        split = k + 1
        if size == x.shape[1]:
            break
    parts = []
    for part in (cores[:split], cores[split:]):
        left = part[0]
        for core in part[1:]:
            left = jnp.einsum("anb,bmc->anmc", left, core)
            left = left.reshape(left.shape[0], -1, core.shape[2])
        parts.append(left)
    return (x @ parts[0][0]) @ parts[1][..., 0] + bias[None]


def _equal_rank(layer: nn.TTLinear) -> int:
    """Returns the rank at which a TT-matrix has at most as many parameters as the layer's train."""
    ours = sum(math.prod(c.shape) for c in layer.cores)
    sizes = [n * m for n, m in zip(layer.in_shape, layer.out_shape, strict=True)]
    rank = 1
    while (
        sizes[0] * (rank + 1) + sizes[-1] * (rank + 1) + sum(sizes[1:-1]) * (rank + 1) ** 2 <= ours
    ):
        rank += 1
    return rank


def _factorized(tltorch: Any, layer: nn.TTLinear, rank: int, implementation: str) -> Any:
    order = len(layer.in_shape)
    return tltorch.FactorizedLinear(
        layer.in_shape,
        layer.out_shape,
        bias=True,
        factorization="blocktt",
        rank=(1, *(rank,) * (order - 1), 1),
        implementation=implementation,
    )
