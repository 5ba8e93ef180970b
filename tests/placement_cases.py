"""Calls of public functions on small arguments, put where a test wants them.

Every name that a package exports has a case here, or a reason for having none: a new function
without either fails `tests/test_placement.py`. A case gets ``put``, which places a pytree of
arrays, and calls the function with what it placed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from tensorjax import convert, interop, linalg, mera, nn, optim, pde, sketch, tt, tucker

Put = Callable[[Any], Any]
SHAPE = (4, 3, 4)  # a mesh of two or four devices can be laid over two of the modes
KEY = jax.random.key(7)


def train(seed: int = 0, rank: int = 2, shape: tuple[int, ...] = SHAPE) -> tt.TT:
    return tt.random(jax.random.key(seed), shape, rank, float)


def matrix(seed: int = 0) -> tt.TTMatrix:
    return tt.random_matrix(jax.random.key(seed), SHAPE, SHAPE, 2, float)


def definite() -> tt.TTMatrix:
    a = tt.identity((2, 2, 2), float)
    return a + 0.1 * tt.matmul(tt.transpose(a), a)


def tuckers() -> tucker.Tucker:
    return tucker.from_dense(tt.to_dense(train()), rank=2)


def state() -> mera.MERA:
    return mera.random(KEY, (2, 2, 2, 2), 2, dtype=float)


def dense() -> jax.Array:
    return tt.to_dense(train())


def square(seed: int = 0) -> jax.Array:
    x = jax.random.normal(jax.random.key(seed), (4, 4), float)
    return x + x.T


def tangents() -> tuple[tt.TT, tt.TT]:
    x = train()
    return x, tt.tangent_project(x, train(1))


def streamed(put: Put) -> tt.Stream:
    return tt.stream_add(put(tt.stream(KEY, SHAPE, 3, float)), put(train()))


def placed_layer(layer: Any, put: Put) -> Any:
    nnx.update(layer, put(nnx.state(layer)))
    return layer


def linear() -> nnx.Linear:
    return nnx.Linear(8, 6, rngs=nnx.Rngs(0))


def embed() -> nnx.Embed:
    return nnx.Embed(12, 8, rngs=nnx.Rngs(0))


def params() -> Any:
    cores = [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))]
    return {"cores": cores, "gates": [jnp.array([1.0, 0.0, 0.2])]}


def arrays(module: nnx.Module) -> Any:
    return nnx.state(module)


def map_of(kind: Callable[..., Any]) -> Any:
    return kind(KEY, 12, 4, dtype=float)


TT_CASES: dict[str, Callable[[Put], Any]] = {
    "TT": lambda put: tt.TT(put(train()).cores),
    "TTMatrix": lambda put: tt.TTMatrix(put(matrix()).cores),
    "argmax": lambda put: tt.argmax(put(train()))[0],
    "argmin": lambda put: tt.argmin(put(train()))[0],
    "add": lambda put: tt.add(put(train()), put(train(1))),
    "bilinear_form": lambda put: tt.bilinear_form(put(train()), put(matrix()), put(train(1))),
    "broadcast_to": lambda put: tt.broadcast_to(put(tt.sum(train(), 1, keepdims=True)), SHAPE),
    "dimension_distribution": lambda put: tt.dimension_distribution(put(train())),
    "mean_dimension": lambda put: tt.mean_dimension(put(train())),
    "moment": lambda put: tt.moment(put(train()), 3),
    "pairwise_inner": lambda put: tt.pairwise_inner([put(train()), put(train(1))]),
    "pinv": lambda put: tt.pinv(put(train()), 1),
    "power": lambda put: tt.power(put(train()), 2),
    "sobol": lambda put: tt.sobol(put(train()), 0),
    "variance_components": lambda put: tt.variance_components(put(train())),
    "chain_operator": lambda put: tt.chain_operator(3, site=put(jnp.eye(2)), dtype=float),
    "complete": lambda put: tt.complete(
        put(jnp.asarray(np.indices((3, 3)).reshape(2, -1).T)), put(jnp.ones(9)), (3, 3), 1,
        max_iterations=2,
    )[0],
    "concatenate": lambda put: tt.concatenate([put(train()), put(train(1))], axis=1),
    "conj": lambda put: tt.conj(put(train())),
    "real": lambda put: tt.real(put(train().astype(complex)) * 1j),
    "imag": lambda put: tt.imag(put(train().astype(complex)) * 1j),
    "contract_modes": lambda put: tt.contract_modes(put(train()), {0: put(jnp.ones(4))}),
    "cross": lambda put: tt.cross(
        lambda i: np.ones(len(i)), (4, 4, 4), tol=1e-3, key=put(KEY)
    )[0],
    "conditional": lambda put: tt.conditional(put(train()), {1: 0}, squared=True),
    "cumsum": lambda put: tt.cumsum(put(train()), 1),
    "diagonal": lambda put: tt.diagonal(put(matrix())),
    "diagonal_matrix": lambda put: tt.diagonal_matrix(put(train())),
    "divide": lambda put: tt.divide(
        put(train()), put(tt.ones(SHAPE, float)), tol=1e-8, key=put(KEY)
    )[0],
    "distance": lambda put: tt.distance(put(train()), put(train(1))),
    "effective_ranks": lambda put: tt.effective_ranks(put(train())),
    "eigsh": lambda put: tt.eigsh(put(definite()), k=1, tol=1e-6)[:2],
    "evaluate": lambda put: tt.evaluate(put(train()), put(jnp.zeros((5, 3), int))),
    "from_dense": lambda put: tt.from_dense(put(dense()), rank=2),
    "from_dense to tol": lambda put: tt.from_dense(put(dense()), tol=1e-8),
    "from_dense to both": lambda put: tt.from_dense(put(dense()), rank=2, tol=1e-8),
    "map by a free key": lambda put: tt.map(lambda u: u * u, put(train()), tol=1e-4, key=KEY)[0],
    "hadamard": lambda put: tt.hadamard(put(train()), put(train(1))),
    "hadamard to tol": lambda put: tt.hadamard(put(train()), put(train(1)), tol=1e-8),
    "hadamard to rank": lambda put: tt.hadamard(put(train()), put(train(1)), rank=4),
    "inner": lambda put: tt.inner(put(train()), put(train(1))),
    "kron": lambda put: tt.kron(put(train()), put(train(1))),
    "linear_combination": lambda put: tt.linear_combination(
        [put(train()), put(train(1))], rank=4
    ),
    "linear_combination to tol": lambda put: tt.linear_combination(
        [put(train()), put(train(1))], tol=1e-8
    ),
    "map": lambda put: tt.map(np.square, put(train()), tol=1e-8, key=put(KEY))[0],
    "matmul": lambda put: tt.matmul(put(matrix()), put(matrix(1))),
    "mean": lambda put: tt.mean(put(train()), 1),
    "mean of all": lambda put: tt.mean(put(train())),
    "meshgrid": lambda put: tt.meshgrid(put(jnp.ones(4)), put(jnp.ones(2))),
    "mode_product": lambda put: tt.mode_product(put(train()), put(jnp.ones((4, 3))), 1),
    "matmul to tol": lambda put: tt.matmul(put(matrix()), put(matrix(1)), tol=1e-8),
    "matrix_from_dense": lambda put: tt.matrix_from_dense(
        put(jnp.ones((4, 4))), (2, 2), (2, 2), rank=1
    ),
    "matrix_from_dense to tol": lambda put: tt.matrix_from_dense(
        put(jnp.ones((4, 4))), (2, 2), (2, 2), tol=1e-4
    ),
    "matvec": lambda put: tt.matvec(put(matrix()), put(train())),
    "matvec to tol": lambda put: tt.matvec(put(matrix()), put(train()), tol=1e-8),
    "matvec to rank": lambda put: tt.matvec(put(matrix()), put(train()), rank=4),
    "norm": lambda put: tt.norm(put(train())),
    "log_density": lambda put: tt.log_density(
        put(train()), put(jnp.zeros((5, 3), int)), squared=True
    ),
    "marginal": lambda put: tt.marginal(put(train()), 1, squared=True),
    "log_norm": lambda put: tt.log_norm(put(train())),
    "normalize": lambda put: tt.normalize(put(train())),
    "ones_like": lambda put: tt.ones_like(put(train())),
    "orthogonalize": lambda put: tt.orthogonalize(put(train()), 1),
    "singular_values": lambda put: tt.singular_values(put(train())),
    "pad_modes": lambda put: tt.pad_modes(put(train()), [(0, 0), (1, 0), (0, 0)]),
    "permute": lambda put: tt.permute(put(train()), (2, 0, 1)),
    "permute to rank": lambda put: tt.permute(put(train()), (2, 0, 1), rank=2),
    "reshape": lambda put: tt.reshape(put(train()), (4, 2, 6)),
    "reverse": lambda put: tt.reverse(put(train())),
    "sum": lambda put: tt.sum(put(train()), 0),
    "tensordot": lambda put: tt.tensordot(put(train()), put(train(1)), ([0, 1], [0, 1])),
    "trace": lambda put: tt.trace(put(matrix())),
    "var": lambda put: tt.var(put(train())),
    "zeros_like": lambda put: tt.zeros_like(put(train())),
    "indexing": lambda put: (put(train())[1], put(train())[:, 1:, None], put(matrix())[0]),
    "pad": lambda put: tt.pad(put(train()), 4),
    "random": lambda put: tt.random(put(KEY), SHAPE, 2),
    "random_matrix": lambda put: tt.random_matrix(put(KEY), SHAPE, SHAPE, 2),
    "rank_one": lambda put: tt.rank_one([put(jnp.ones(4)), put(jnp.ones(3))]),
    "rank_one_matrix": lambda put: tt.rank_one_matrix([put(jnp.ones((4, 2))), put(jnp.eye(3))]),
    "retract": lambda put: tt.retract(*map(put, tangents()), 2),
    "round": lambda put: tt.round(put(train()) + put(train()), rank=2),
    "round by svd": lambda put: tt.round(put(train()) + put(train()), rank=2, method="svd"),
    "round to tol": lambda put: tt.round(put(train()) + put(train()), tol=1e-8),
    "round to both": lambda put: tt.round(put(train()), rank=2, tol=1e-8),
    "round a matrix": lambda put: tt.round(put(matrix()), tol=1e-8),
    "sample": lambda put: tt.sample(put(KEY), put(tt.ones(SHAPE, float)), 3),
    "sample of entries": lambda put: tt.sample(
        put(KEY), put(tt.ones(SHAPE, float)), 3, squared=False
    ),
    "scale": lambda put: tt.scale(put(train()), 2.0),
    "scale operators": lambda put: (put(train()) + 1.0) / 3 - put(train(1)) * 2,
    "solve": lambda put: tt.solve(put(definite()), put(tt.ones((2, 2, 2), float)), tol=1e-6)[0],
    "stream": lambda put: tt.stream(put(KEY), SHAPE, 3, float),
    "stream_add": streamed,
    "stream_train": lambda put: tt.stream_train(streamed(put)),
    "tangent_inner": lambda put: tt.tangent_inner(put(tangents()[1]), put(tangents()[1])),
    "tangent_project": lambda put: tt.tangent_project(put(train()), put(train(1))),
    "tangent_sum": lambda put: tt.tangent_sum([put(tangents()[1])] * 2),
    "to_dense": lambda put: tt.to_dense(put(train())),
    "to_dense of a matrix": lambda put: tt.to_dense(put(matrix())),
    "transport": lambda put: tt.transport(put(train(1)), put(tangents()[1])),
    "transpose": lambda put: tt.transpose(put(matrix())),
    "trim": lambda put: tt.trim(put(tt.pad(train(), 4))),
    "value_and_riemannian_grad": lambda put: tt.value_and_riemannian_grad(tt.norm)(put(train())),
    "riemannian_grad": lambda put: tt.riemannian_grad(tt.norm)(put(train())),
    "riemannian_descent": lambda put: tt.riemannian_descent(0.1).update(
        put(tangents()[1]), put(tt.riemannian_descent(0.1).init(tangents()[0])),
        put(tangents()[0]),
    ),
}  # fmt: skip

GRID = tt.quantics_grid([0.0, 1.0], [1.0, 2.0], 2)
QUANTICS_CASES: dict[str, Callable[[Put], Any]] = {
    "circulant": lambda put: tt.quantics.circulant(put(train())),
    "constant": lambda put: tt.quantics.constant(GRID, put(jnp.ones(()))),
    "cosine": lambda put: tt.quantics.cosine(GRID, put(jnp.ones(2))),
    "exponential": lambda put: tt.quantics.exponential(GRID, put(jnp.ones(2))),
    "polynomial": lambda put: tt.quantics.polynomial(GRID, put(jnp.ones((2, 3)))),
    "sine": lambda put: tt.quantics.sine(GRID, put(jnp.ones(2)), put(jnp.ones(()))),
    "toeplitz": lambda put: tt.quantics.toeplitz(put(train(0, 2, (2, 4, 3)))),
}  # fmt: skip

TUCKER_CASES: dict[str, Callable[[Put], Any]] = {
    "Tucker": lambda put: tucker.Tucker(put(tuckers()).core, put(tuckers()).factors),
    "add": lambda put: tucker.add(put(tuckers()), put(tuckers())),
    "hadamard": lambda put: tucker.hadamard(put(tuckers()), put(tuckers())),
    "hooi": lambda put: tucker.hooi(put(dense()), rank=2)[0],
    "mode_product": lambda put: tucker.mode_product(put(tuckers()), put(jnp.ones((2, 3))), 1),
    "nonnegative": lambda put: tucker.nonnegative(
        put(jnp.abs(dense())), rank=2, key=put(KEY), max_sweeps=3
    )[0],
    "random": lambda put: tucker.random(put(KEY), SHAPE, 2),
    "to_tt": lambda put: tucker.to_tt(put(tuckers())),
    "distance": lambda put: tucker.distance(put(tuckers()), put(tuckers())),
    "evaluate": lambda put: tucker.evaluate(put(tuckers()), put(jnp.zeros((5, 3), int))),
    "from_dense": lambda put: tucker.from_dense(put(dense()), rank=2),
    "from_dense to tol": lambda put: tucker.from_dense(put(dense()), tol=1e-8),
    "from_dense to both": lambda put: tucker.from_dense(put(dense()), rank=2, tol=1e-8),
    "inner": lambda put: tucker.inner(put(tuckers()), put(tuckers())),
    "norm": lambda put: tucker.norm(put(tuckers())),
    "ones_like": lambda put: tucker.ones_like(put(tuckers())),
    "orthogonalize": lambda put: tucker.orthogonalize(put(tuckers())),
    "pad": lambda put: tucker.pad(put(tuckers()), 3),
    "round": lambda put: tucker.round(put(tuckers()), rank=2),
    "round to tol": lambda put: tucker.round(put(tuckers()), tol=1e-8),
    "round a train core": lambda put: tucker.round(
        put(convert.tt_to_tucker(train(), rank=2)[0]), tol=1e-8
    ),
    "scale": lambda put: tucker.scale(put(tuckers()), 2.0),
    "real": lambda put: tucker.real(put(tuckers().astype(complex)) * 1j),
    "imag": lambda put: tucker.imag(put(tuckers().astype(complex)) * 1j),
    "scale operators": lambda put: put(tuckers()) + 1.0,
    "to_dense": lambda put: tucker.to_dense(put(tuckers())),
}  # fmt: skip

MERA_CASES: dict[str, Callable[[Put], Any]] = {
    "MERA": lambda put: mera.MERA(put(state()).layers, put(state()).top),
    "Layer": lambda put: mera.Layer(*(lambda x: (x.disentanglers, x.isometries))(
        put(state().layers[0])
    )),
    "expectation": lambda put: mera.expectation(put(state()), put(jnp.eye(2)), 1),
    "inner": lambda put: mera.inner(put(state()), put(state())),
    "norm": lambda put: mera.norm(put(state())),
    "random": lambda put: mera.random(put(KEY), (2, 2, 2, 2), 2, dtype=float),
    "refine": lambda put: mera.refine(put(state()), put(train(0, 2, (2, 2, 2, 2))), steps=1)[0],
    "rank_one_matrix": lambda put: tt.rank_one_matrix([put(jnp.ones((4, 2))), put(jnp.eye(3))]),
    "retract": lambda put: mera.retract(put(state()), put(state())),
    "sample": lambda put: mera.sample(put(KEY), put(state()), 3),
    "tangent": lambda put: mera.tangent(put(state()), put(state())),
    "to_dense": lambda put: mera.to_dense(put(state())),
    "to_tt": lambda put: mera.to_tt(put(state())),
    "to_tt to tol": lambda put: mera.to_tt(put(state()), tol=1e-8),
}  # fmt: skip

CONVERT_CASES: dict[str, Callable[[Put], Any]] = {
    "tt_to_mera": lambda put: convert.tt_to_mera(put(train(0, 2, (2, 2, 2, 2))), tol=1e-3)[0],
    "tt_to_tucker": lambda put: convert.tt_to_tucker(put(train()), rank=2),
    "tt_to_tucker to tol": lambda put: convert.tt_to_tucker(put(train()), tol=1e-8),
}  # fmt: skip

SKETCH_CASES: dict[str, Callable[[Put], Any]] = {
    **{
        name: lambda put, name=name: getattr(sketch, name)(put(KEY), 12, 4, dtype=float)
        for name in ("cp_rows", "gaussian", "khatri_rao", "sparse", "tt_rows", "ttrp")
    },
    "apply": lambda put: sketch.apply(put(map_of(sketch.ttrp)), put(jnp.ones((8, 12)))),
    "apply a sparse map": lambda put: sketch.apply(
        put(map_of(sketch.sparse)), put(jnp.ones((8, 12)))
    ),
    "apply to a train": lambda put: sketch.apply(
        put(sketch.ttrp(KEY, SHAPE, (2, 2, 2), dtype=float)), put(train())
    ),
    "to_tt_matrix": lambda put: sketch.to_tt_matrix(put(map_of(sketch.ttrp))),
    "variance": lambda put: sketch.variance(put(map_of(sketch.ttrp)), put(jnp.ones((5, 12)))),
}  # fmt: skip

LINALG_CASES: dict[str, Callable[[Put], Any]] = {
    "adjoint": lambda put: linalg.adjoint(put(square())),
    "eigh": lambda put: linalg.eigh(put(square())),
    "energy": lambda put: linalg.energy(put(square())),
    "gram": lambda put: linalg.gram(put(square())),
    "matmul": lambda put: linalg.matmul(put(square()), put(square(1))),
    "polar": lambda put: linalg.polar(put(square())),
    "qr": lambda put: linalg.qr(put(square())),
    "svd": lambda put: linalg.svd(put(square())),
    "triangle": lambda put: linalg.triangle(put(square())),
    "truncated_svd": lambda put: linalg.truncated_svd(put(square()), rank=2),
    "truncated_svd to tol": lambda put: linalg.truncated_svd(put(square()), tol=1e-2),
}  # fmt: skip

INTEROP_CASES: dict[str, Callable[[Put], Any]] = {
    "from_numpy": lambda put: interop.from_numpy(list(put(train()).cores)),
}

NN_CASES: dict[str, Callable[[Put], Any]] = {
    **{
        name: lambda put, name=name: placed_layer(
            getattr(nn, name)(8, 6, rank=2, order=2, rngs=nnx.Rngs(0)), put
        )(put(jnp.ones((4, 8), jnp.float32)))
        for name in ("TTLinear", "TTMatrixLinear", "TuckerLinear", "CPLinear")
    },
    **{
        name: lambda put, name=name: placed_layer(
            getattr(nn, name)(12, 8, rank=2, order=2, rngs=nnx.Rngs(0)), put
        )(put(jnp.arange(4)))
        for name in ("TTEmbedding", "TuckerEmbedding", "CPEmbedding")
    },
    **{
        name: lambda put, name=name: placed_layer(
            getattr(nn, name)(4, 8, (3,), rank=2, rngs=nnx.Rngs(0)), put
        )(put(jnp.ones((4, 6, 4), jnp.float32)))
        for name in ("TTConv", "TuckerConv", "CPConv", "LowRankConv")
    },
    "adapt": lambda put: arrays(nn.adapt(placed_layer(linear(), put), 2)),
    "merge_adapters": lambda put: arrays(
        nn.merge_adapters(placed_layer(nn.adapt(linear(), 2), put))
    ),
    "detensorize": lambda put: arrays(nn.detensorize(placed_layer(
        nn.TTLinear(8, 6, rank=2, rngs=nnx.Rngs(0)), put
    ))),
    "from_conv": lambda put: arrays(nn.from_conv(
        placed_layer(nnx.Conv(4, 8, (3,), rngs=nnx.Rngs(0)), put), rank=2
    )[0]),
    "to_conv": lambda put: arrays(nn.to_conv(placed_layer(
        nn.TTConv(4, 8, (3,), rank=2, rngs=nnx.Rngs(0)), put
    ))),
    "from_embedding": lambda put: arrays(
        nn.from_embedding(placed_layer(embed(), put), tol=0.1)[0]
    ),
    "from_linear": lambda put: arrays(nn.from_linear(placed_layer(linear(), put), tol=0.1)[0]),
    "from_linear to Tucker": lambda put: arrays(
        nn.from_linear(placed_layer(linear(), put), tol=0.1, format="tucker")[0]
    ),
    "tensorize": lambda put: arrays(
        nn.tensorize(nnx.Sequential(placed_layer(linear(), put)), {"*": nn.TT(rank=2)})
    ),
    "to_embedding": lambda put: arrays(nn.to_embedding(placed_layer(
        nn.TTEmbedding(12, 8, rank=2, rngs=nnx.Rngs(0)), put
    ))),
    "to_linear": lambda put: arrays(nn.to_linear(placed_layer(
        nn.TTLinear(8, 6, rank=2, rngs=nnx.Rngs(0)), put
    ))),
}  # fmt: skip

OPTIM_CASES: dict[str, Callable[[Put], Any]] = {
    "canonical": lambda put: optim.canonical(put(params())),
    "dequantize": lambda put: optim.dequantize(put(optim.quantize(params(), key=None))),
    "prune": lambda put: optim.prune(put(params()), 20),
    "quantize": lambda put: optim.quantize(put(params()), key=None),
    "rank_adaptive": lambda put: optim.rank_adaptive(optax.sgd(0.1)).update(
        put(params()), put(optim.rank_adaptive(optax.sgd(0.1)).init(params())), put(params()),
        value=put(jnp.asarray(1.0)),
    ),
    "shrink": lambda put: optim.shrink(put(params()), put(optax.adam(0.1).init(params()))),
    "straight_through": lambda put: optim.straight_through(put(params()), key=None),
}  # fmt: skip

BOX = pde.Box.fourier(2, 8, 5.0)
GAUSSIAN = pde.Gaussian(np.zeros(2), np.eye(2))


def started(put: Put) -> Any:
    problem = pde.OrnsteinUhlenbeck(-np.eye(2), 0.1 * np.eye(2), GAUSSIAN, BOX)
    state = pde.State(put(density()), pde.affine(np.eye(2)), 0.0)
    limits = {"edge_limit": 1.0, "resolution_limit": 1.0}
    return pde.integrate(problem, t1=0.1, dt=0.05, tol=1e-3, start=state, **limits).ys[-1].v


def density() -> tt.TT:
    return GAUSSIAN.train(BOX, pde.affine(np.eye(2)), 1e-6)


PDE_CASES: dict[str, Callable[[Put], Any]] = {
    "evaluate": lambda put: pde.evaluate(
        put(density()), pde.affine(np.eye(2)), BOX, np.zeros((3, 2))
    ),
    "integrate": started,
    "mass": lambda put: pde.mass(put(density()), pde.affine(np.eye(2)), BOX),
    "moments": lambda put: pde.moments(put(density()), pde.affine(np.eye(2)), BOX),
}  # fmt: skip


def patched(put: Put) -> Any:
    trains = [put(train(0, 2, (4, 3))), put(train(0, 1, (3,)))]
    return tt.patches.PatchedTT((2, 4, 3), [(0,), (1, 2)], trains)


PATCHES_CASES: dict[str, Callable[[Put], Any]] = {
    "PatchedTT": patched,
    "add": lambda put: tt.patches.add(patched(put), patched(put)),
    "evaluate": lambda put: tt.patches.evaluate(patched(put), np.zeros((5, 3), int)),
    "inner": lambda put: tt.patches.inner(patched(put), patched(put)),
    "norm": lambda put: tt.patches.norm(patched(put)),
    "ones_like": lambda put: tt.patches.ones_like(patched(put)),
    "sum": lambda put: tt.patches.sum(patched(put)),
    "to_dense": lambda put: tt.patches.to_dense(patched(put)),
    "to_tt": lambda put: tt.patches.to_tt(patched(put), tol=1e-3),
}


def functional(put: Put, seed: int = 0) -> Any:
    bases = [tt.functions.Chebyshev(n - 1, 0.0, 2.0) for n in SHAPE]
    return tt.functions.FunctionTrain(bases, put(train(seed)))


FUNCTIONS_CASES: dict[str, Callable[[Put], Any]] = {
    "FunctionTrain": functional,
    "add": lambda put: tt.functions.add(functional(put), functional(put, 1)),
    "derivative": lambda put: tt.functions.derivative(functional(put), 0),
    "evaluate": lambda put: tt.functions.evaluate(functional(put), put(jnp.ones((4, 3)))),
    "gradient": lambda put: tt.functions.gradient(functional(put), put(jnp.ones((4, 3)))),
    "inner": lambda put: tt.functions.inner(functional(put), functional(put, 1)),
    "integrate": lambda put: tt.functions.integrate(functional(put)),
    "integrate some": lambda put: tt.functions.integrate(functional(put), 1),
    "multiply": lambda put: tt.functions.multiply(functional(put), functional(put, 1)),
    "norm": lambda put: tt.functions.norm(functional(put)),
    "ones_like": lambda put: tt.functions.ones_like(functional(put)),
    "round": lambda put: tt.functions.round(functional(put), rank=1),
}

CASES = {
    tt: TT_CASES,
    tt.functions: FUNCTIONS_CASES,
    tt.patches: PATCHES_CASES,
    tt.quantics: QUANTICS_CASES,
    tucker: TUCKER_CASES,
    mera: MERA_CASES,
    convert: CONVERT_CASES,
    sketch: SKETCH_CASES,
    linalg: LINALG_CASES,
    interop: INTEROP_CASES,
    nn: NN_CASES,
    optim: OPTIM_CASES,
    pde: PDE_CASES,
}
_NO_ARRAYS = "takes no arrays"
_NUMPY = "returns NumPy arrays or Python numbers"
_STEP = "array arithmetic of one factorisation, as JAX does it"
EXEMPT: dict[Any, dict[str, str]] = {
    tt: {
        **dict.fromkeys(("identity", "ones", "quantics_grid", "unit", "zeros"), _NO_ARRAYS),
        **dict.fromkeys(("ones_matrix", "zeros_matrix"), _NO_ARRAYS),
        **dict.fromkeys(("index_to_quantics", "quantics_to_index"), _NUMPY),
        "integrate": _NUMPY,
        "riemannian_cg": "as riemannian_descent",
    },
    tt.functions: dict.fromkeys(
        ("compose", "fit", "interpolate"), "functions and samples on the host"
    ),
    tt.patches: {"cross": "the trains are those of tt.cross"},
    tt.quantics: dict.fromkeys(
        (
            "affine", "box", "delta", "derivative", "fourier", "inverse_laplacian", "laplacian",
            "shift", "step", "weights",
        ),
        _NO_ARRAYS,
    ),
    tucker: {},
    mera: {
        "conjugate_gradient": "an optimiser: `refine` runs it",
        "stiefel": "an optimiser: `refine` runs it",
        "causal_cone": _NO_ARRAYS,
        "wirings": _NO_ARRAYS,
    },
    convert: {},
    sketch: {
        "johnson_lindenstrauss_min_dim": _NO_ARRAYS,
        "variance_bound": _NUMPY,
    },
    linalg: {
        **dict.fromkeys(
            ("Method", "choose", "epsilon", "exponents_held", "factor_dtype"), _NO_ARRAYS
        ),
        **dict.fromkeys(("host_energy", "is_host", "squares_fit"), _NUMPY),
        **dict.fromkeys(
            (
                "after", "exponent_of", "exponent_of_nonzero", "identity_like",
                "leading_eigenvectors", "left_basis",
                "normalized", "orthonormal_rows", "power_of_two", "project", "random_like",
                "range_finder", "root", "scale_columns", "scaled", "square_factor",
                "where_positive",
            ),
            _STEP,
        ),
    },
    interop: {
        "to_numpy": _NUMPY,
        "to_quimb": "foreign objects",
        "from_quimb": "foreign objects, which hold NumPy arrays",
        "to_tensornetwork": "foreign objects",
        "from_tensornetwork": "foreign objects, whose arrays become cores as they are",
    },
    nn: {
        "factor": _NO_ARRAYS,
        "from_linen": "Flax' layers with the parameters that are there",
        "summary": "returns text",
        "choose": "returns specs",
        "Adapted": "a dense layer of Flax, whose products are left to JAX, beside a tensorised one",
        "certificates": _NUMPY,
        **dict.fromkeys(("CP", "TT", "Dense", "LowRank", "Spec", "Tucker"), _NO_ARRAYS),
        **dict.fromkeys(("Embedding", "TensorConv", "TensorLinear"), "base class"),
        **dict.fromkeys(("PaddedEmbed", "TensorLinearGeneral"), "made by `tensorize`"),
    },
    optim: {
        **dict.fromkeys(("labels", "ranks", "size", "status"), _NUMPY),
        "shrink_model": "`shrink` in place",
        "Quantized": "made by `quantize`",
        **dict.fromkeys(("load", "save"), "files"),
    },
    pde: {
        **dict.fromkeys(("affine", "affine_generator"), "maps, of NumPy arrays"),
        **dict.fromkeys(("edge_mass", "marginal", "resolution"), _NUMPY),
        **dict.fromkeys(("entropy", "flux", "kullback_leibler", "sample"), _NUMPY),
        "square_root": "a search on the host, of NumPy arrays",
        "rank_reducing_map": "a search on the host: the map is of NumPy arrays",
        **dict.fromkeys(("committor", "expectation", "first_passage"), _NO_ARRAYS),
        **dict.fromkeys(("slow_modes", "stationary", "survival"), _NO_ARRAYS),
        **dict.fromkeys(("load", "save"), "files"),
    },
}  # fmt: skip


def missing(module: Any) -> set[str]:
    """Exported functions, and classes that are called, without a case or a reason for none."""
    known = {*(name.split()[0] for name in CASES[module]), *EXEMPT[module]}
    return {n for n in module.__all__ if n not in known and _computes(getattr(module, n))}


def _computes(x: Any) -> bool:
    if isinstance(x, type):  # results of functions, and descriptions, apart
        return issubclass(x, nnx.Module)
    return callable(x)
