"""Step of GPT-2 (loss and gradient) in a layout: compiled, run, timed."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tensorjax import parallel
from tensorjax.models.gpt2 import GPT2, GPT2Config

# Programs that are compiled to be read, or run once: quicker to compile on a CPU, with the same
# collectives.
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


class Step:
    """Loss and gradient of a GPT-2 in a parallel layout, as one jitted function.

    Args:
        config: Sizes of the model.
        layout: How it lies on the devices.
        batch: Sequences, of the longest length.
    """

    def __init__(self, config: GPT2Config, layout: parallel.Layout, batch: int) -> None:
        self.config, self.layout, self.batch = config, layout, batch
        model = nnx.eval_shape(lambda: GPT2(config, rngs=nnx.Rngs(0)))
        graph, self.shapes = nnx.split(model)
        self.specs = jax.tree.map(lambda axes: layout.spec(tuple(axes)), model.axes())
        self.data = layout.data_spec()

        def local(params: Any, tokens: jax.Array, targets: jax.Array) -> Any:
            return nnx.merge(graph, params).loss(tokens, targets, layout=layout)

        sums = layout.over(local, (self.specs, self.data, self.data), (P(), P()))

        def loss(params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
            total, count = sums(params, tokens, targets)
            return total / count

        on_cpu = jax.default_backend() == "cpu"
        self._step = jax.jit(
            jax.value_and_grad(loss), compiler_options=_QUICKLY if on_cpu else None
        )

    def compiled(self) -> Any:
        """Compiles the step without allocating arrays; returns the program."""
        shape = (self.batch, self.config.length)
        ids = self._shape(jax.ShapeDtypeStruct(shape, jnp.int32), self.data)
        params = jax.tree.map(self._shape, self.shapes, self.specs)
        return self._step.lower(params, ids, ids).compile()

    def _shape(self, x: Any, spec: P) -> jax.ShapeDtypeStruct:
        mesh = self.layout.mesh
        where = None if mesh is None else NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    def placed(self, params: Any, seed: int) -> tuple[Any, Any, Any]:
        """Places parameters, random tokens and targets on the devices of the layout."""
        rng = np.random.default_rng(seed)
        tokens = rng.integers(0, self.config.vocabulary, (self.batch, self.config.length + 1))
        tokens = tokens.astype(np.int32)
        specs = (self.specs, self.data, self.data)
        return parallel.shard((params, tokens[:, :-1], tokens[:, 1:]), specs, self.layout.mesh)

    def __call__(self, params: Any, seed: int = 0) -> tuple[Any, Any]:
        """Computes loss and gradient on random tokens."""
        return self._step(*self.placed(params, seed))

    def seconds(self, params: Any, repeats: int) -> float:
        """Measures the median seconds of a compiled step with placed arguments."""
        arguments = self.placed(params, 0)
        jax.block_until_ready(self._step(*arguments))
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            jax.block_until_ready(self._step(*arguments))
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def parameters(config: GPT2Config, seed: int) -> Any:
    """Draws GPT-2 parameters without zeros, so that every gradient can be compared."""

    def draw(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        _, params = nnx.split(GPT2(config, rngs=nnx.Rngs(first)))
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(second, len(leaves))
        noise = [
            0.1 * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)
        ]
        return jax.tree.map(jnp.add, params, jax.tree.unflatten(tree, noise))

    # One program; a model drawn number by number would compile many small ones.
    return jax.device_get(jax.jit(draw)(jax.random.key(seed)))


def largest_error(found: Any, wanted: Any) -> float:
    """Computes the largest relative error of all arrays, in Frobenius norms."""

    def one(a: Any, b: Any) -> float:
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        return float(np.linalg.norm((a - b).ravel()) / np.linalg.norm(b.ravel()))

    return max(jax.tree.leaves(jax.tree.map(one, found, wanted)))


def mesh_shape(name: str, devices: int) -> tuple[int, ...]:
    """Returns the mesh shape for a layout: as square as possible, a line for 1D.

    2.5D has an even depth if it can.
    """
    if name.startswith("1d"):
        return (1, devices)
    if name == "2.5d":
        deep = [s for s in range(1, devices) if devices % (s * s) == 0 and devices > s * s]
        side = max([s for s in deep if devices % (2 * s * s) == 0] or deep or [1])
        return (devices // side**2, side, side)
    rows = max(r for r in range(1, devices + 1) if devices % r == 0 and r * r <= devices)
    return (rows, devices // rows)


def make(name: str, shape: Sequence[int]) -> parallel.Layout:
    """Builds a layout by name on a mesh of a given shape."""
    depth = shape[0] if len(shape) > 2 else 1
    return parallel.layout(name, parallel.mesh(shape[-2], shape[-1], depth=depth))
