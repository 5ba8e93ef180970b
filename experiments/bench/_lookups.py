"""Groups "embedding" and "embedding-step" of `bench/layers`: lookups of a table.

In the first, of 32,000 × 768 and with Zipf-distributed ids, all competitors look up the same ids in
the same table, the compressed one of ours. A call makes the rows, or the rows and the gradient with
respect to all parameters for a given cotangent. The second has other tables and uniform ids: rows,
and whole training steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.bench._linears import costs, flat
from experiments.bench._solving import Answer, Problem, Way, found, torch_device, waited
from tensorjax import nn

COUNTS = (1, 32, 128, 512, 4096)
# The authors' shapes for the 30,522 word pieces of BERT.
_FULL = {"num_shape": (16, 20, 10, 10), "feature_shape": (4, 4, 8, 6), "rank": 32}
_SMALL = {"num_shape": (8, 10, 10), "feature_shape": (4, 4, 4), "rank": 8}
# Rows, features, ids and rank of training steps.
_STEPS = (
    (10_000, 256, 256, 16), (10_000, 256, 2048, 16), (10_000, 256, 2048, 64),
    (10_000, 256, 16_384, 16), (10_000, 16, 2048, 16), (40_000, 16, 20_000, 32),
    (15_000, 24, 6000, 10), (6000, 96, 6000, 16), (100_000, 64, 4096, 16), (30_522, 768, 4096, 30),
)  # fmt: skip
# Where a goal is set: forward + backward of the largest number of ids.
_GOAL = 3.0


def problems(small: bool, counts: Sequence[int] = COUNTS) -> list[Problem]:
    """Returns problems for every number of ids: forward, and forward + backward."""
    shapes = _SMALL if small else _FULL
    sizes = [int(np.prod(shapes[name])) for name in ("num_shape", "feature_shape")]
    layer = nn.TTEmbedding(*sizes, **shapes, rngs=nnx.Rngs(0))
    cores = [np.asarray(core[...]) for core in layer.cores]
    table = np.asarray(layer.table())
    out = []
    for count in (1, 300) if small else counts:
        ids = zipf_ids(count, sizes[0])
        for backward in (False, True):
            name = f"{sizes[0]} × {sizes[1]}, {count} ids ({len(np.unique(ids))} distinct)"
            work = _Work(ids, table, cores, backward)
            name += ", forward + backward" if backward else ", forward"
            goal = _GOAL if backward and count == COUNTS[-1] else None
            out.append(Problem(name, [*_ours(layer, work), *_dense(work), *_torch(work)], goal))
    return out


def steps(small: bool) -> list[Problem]:
    """Returns problems of lookups and of training steps by Adam, beside a dense table.

    "table()[ids]" makes the whole table in every call.
    """
    out = []
    for rows, features, count, rank in [(100, 8, 16, 2)] if small else _STEPS:
        rng = np.random.default_rng(0)
        ids = jnp.asarray(rng.integers(0, rows, count).astype(np.int32))
        target = jnp.asarray(rng.standard_normal((count, features), np.float32))
        ours = nn.TTEmbedding(rows, features, rank=rank, rngs=nnx.Rngs(0))
        dense = nnx.Embed(rows, features, rngs=nnx.Rngs(0))
        name = f"{rows} × {features}, {count} ids, rank {rank}"
        whole = _forward(ours, lambda layer, ids: layer.table()[ids], ids)
        forward = [
            _untold("tensorjax", "", _forward(ours, lambda layer, ids: layer(ids), ids)),
            _untold("JAX", "dense", _forward(dense, lambda layer, ids: layer(ids), ids)),
            _untold("tensorjax", "table()[ids]", whole),
        ]
        step = [
            _untold("tensorjax", "", _step(ours, ids, target)),
            _untold("JAX", "dense", _step(dense, ids, target)),
        ]
        out.append(Problem(f"{name}, forward", forward))
        out.append(Problem(f"{name}, step", step, 1.0))
    return out


def _untold(library: str, variant: str, call: Callable[[], Any]) -> Way:
    """Returns a way of which the table says the time alone."""
    return Way(library, variant, call, lambda _: {})


def _forward(layer: Any, apply: Callable[..., Any], ids: jax.Array) -> Callable[[], Any]:
    graph, params = nnx.split(layer)
    program = jax.jit(lambda params, ids: apply(nnx.merge(graph, params), ids))
    return lambda: jax.block_until_ready(program(params, ids))


def _step(layer: Any, ids: jax.Array, target: jax.Array) -> Callable[[], Any]:
    """Returns a call that makes one training step by Adam, which goes on from the last one."""
    graph, params = nnx.split(layer)
    optimizer = optax.adam(1e-3)

    def step(params: Any, state: Any, ids: jax.Array, target: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean((nnx.merge(graph, params)(ids) - target) ** 2)

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    program = jax.jit(step, donate_argnums=(0, 1))
    held = [jax.tree.map(jnp.array, params), optimizer.init(params)]

    def call() -> Any:
        held[:] = program(*held, ids, target)
        return jax.block_until_ready(held[0])

    return call


def zipf_ids(count: int, rows: int) -> np.ndarray:
    """Draws Zipf-distributed ids (exponent 1.3); frequent ones are anywhere in the table."""
    rng = np.random.default_rng(0)
    return rng.permutation(rows)[np.minimum(rng.zipf(1.3, count) - 1, rows - 1)].astype(np.int32)


class _Work:
    """Ids, table, cotangent and right answer of an embedding problem."""

    def __init__(self, ids: np.ndarray, table: np.ndarray, cores: list[Any], backward: bool):
        self.ids, self.table, self.cores, self.backward = ids, table, cores, backward
        rng = np.random.default_rng(1)
        self.cotangent = rng.standard_normal((len(ids), table.shape[1]), np.float32)
        self.rows = table[ids]

    def error(self, rows: Any) -> float:
        difference = np.linalg.norm(np.asarray(rows) - self.rows)
        return float(difference / np.linalg.norm(self.rows))

    def jax_way(self, library: str, variant: str, lookup: Callable[..., Any], params: Any) -> Way:
        """Returns the way of a JAX lookup, compiled, with its operations and temporary bytes."""
        apply, leaves = flat(lookup, params)

        def both(leaves: Any, ids: Any, cotangent: Any) -> Any:
            rows, pull = jax.vjp(lambda p: apply(p, ids), leaves)
            return rows, pull(cotangent)[0]

        def forward(leaves: Any, ids: Any, cotangent: Any) -> Any:
            return (apply(leaves, ids),)

        args = (leaves, jnp.asarray(self.ids), jnp.asarray(self.cotangent))
        compiled = jax.jit(both if self.backward else forward)

        def answer(result: Any) -> Answer:
            counted = costs(compiled.lower(*args).compile())
            numbers = sum(x.size for x in leaves)
            return {"error": self.error(result[0]), "parameters": numbers, **counted}

        return Way(library, variant, lambda: jax.block_until_ready(compiled(*args)), answer)


def _ours(layer: nn.TTEmbedding, work: _Work) -> list[Way]:
    graph, params = nnx.split(layer)

    def planned(params: Any, ids: Any) -> Any:
        return nnx.merge(graph, params)(ids)

    return [
        work.jax_way("tensorjax", "", planned, params),
        work.jax_way("tensorjax", "one core at a time", _one_by_one, work.cores),
        work.jax_way("tensorjax", "halves, all ids", _halves, work.cores),
    ]


def _index(cores: list[Any], ids: Any) -> list[Any]:
    return list(jnp.unravel_index(ids, [c.shape[1] for c in cores]))


def _one_by_one(cores: list[Any], ids: Any) -> Any:
    """Looks up rows by multiplying slices of one core after the other, as most libraries do."""
    rows = jnp.ones((len(ids), 1, 1), cores[0].dtype)
    for core, index in zip(cores, _index(cores, ids), strict=True):
        rows = jnp.einsum("bxr,rbys->bxys", rows, core[:, index])
        rows = rows.reshape(len(ids), -1, core.shape[-1])
    return rows[..., 0]


def _halves(cores: list[Any], ids: Any) -> Any:
    """Looks up rows from the two halves of the train, multiplied out for all ids.

    This is the released formula.
    """
    split = len(cores) // 2
    places = _index(cores, ids)
    gathered = []
    for part in (slice(0, split), slice(split, None)):
        half, index = cores[part][0], places[part][0]
        for core, place in zip(cores[part][1:], places[part][1:], strict=True):
            left, m, n, _ = half.shape
            half = jnp.einsum("amnb,bxyc->amxnyc", half, core)
            half = half.reshape(left, m * core.shape[1], n * core.shape[2], -1)
            index = index * core.shape[1] + place
        gathered.append(half[:, index])
    rows = jnp.einsum("abxr,rbyc->abxyc", *gathered)
    return rows.reshape(len(ids), -1)


def _dense(work: _Work) -> list[Way]:
    def gather(table: Any, ids: Any) -> Any:
        return jnp.take(table, ids, axis=0)

    return [work.jax_way("JAX", "dense gather", gather, jnp.asarray(work.table))]


def _torch(work: _Work) -> list[Way]:
    torch = found("torch")
    if torch is None:
        return []
    ways = []
    for sparse in (False, True) if work.backward else (False,):
        layer = torch.nn.Embedding(*work.table.shape, sparse=sparse)
        layer.weight.data = torch.tensor(work.table)
        variant = "sparse gradient" if sparse else "dense"
        ways.append(_torch_way(torch, "torch", variant, layer, work))
    if (tltorch := found("tltorch")) is not None:
        ways.append(
            _torch_way(torch, "tensorly-torch", "blocktt", _factorized(tltorch, work), work)
        )
    return ways


def _factorized(tltorch: Any, work: _Work) -> Any:
    torch = found("torch")
    layer = tltorch.FactorizedEmbedding(
        *work.table.shape,
        auto_tensorize=False,
        tensorized_num_embeddings=tuple(c.shape[1] for c in work.cores),
        tensorized_embedding_dim=tuple(c.shape[2] for c in work.cores),
        factorization="blocktt",
        rank=(1, *(c.shape[3] for c in work.cores)),
        dtype=torch.float32,
    )
    for factor, core in zip(layer.weight.factors, work.cores, strict=True):
        factor.data = torch.tensor(core)
    return layer


def _torch_way(torch: Any, library: str, variant: str, layer: Any, work: _Work) -> Way:
    device = torch_device(torch)
    layer = layer.to(device)
    ids = torch.tensor(work.ids).long().to(device)
    cotangent = torch.tensor(work.cotangent).to(device)
    parameters = list(layer.parameters())

    def call() -> Any:
        if not work.backward:
            with torch.no_grad():
                return layer(ids)
        rows = layer(ids)
        return rows, torch.autograd.grad(rows, parameters, cotangent)

    def answer(result: Any) -> Answer:
        rows = result[0] if work.backward else result
        return {
            "error": work.error(rows.detach().cpu().numpy()),
            "parameters": sum(p.numel() for p in parameters),
        }

    return Way(library, variant, waited(torch, call), answer)
