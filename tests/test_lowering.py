"""Every static public function of the formats, lowered for GPUs and TPUs on whatever is here.

A new public function needs a case in `CASES`, or a reason in `NOT_LOWERED`.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from tensorjax import _native, convert, mera, parallel, sketch, tt, tucker
from tensorjax._kernels import conditions
from tensorjax._native.cpu_primitive import on_cpu
from tests.lowering import (
    PLATFORMS,
    check_portable,
    custom_calls,
    exported_for,
    foreign_calls,
    lowered_for,
)

ROOT = Path(__file__).resolve().parents[1]
MODULES = (tt, tt.functions, tt.patches, tt.quantics, tucker, mera, sketch, convert, parallel)
DYNAMIC = "its ranks follow from numbers: it runs outside jit, which it says when traced"
HOST = "computes on the host with Python's and NumPy's numbers, no program"
OPTIMISER = "Optax's: its steps are retract, transport and tangent_project, or their like here"
NOT_LOWERED = {
    "tt.argmax": DYNAMIC,
    "tt.argmin": DYNAMIC,
    "tucker.hooi": DYNAMIC,
    "tucker.nonnegative": DYNAMIC,
    "tt.cross": DYNAMIC,
    "tt.divide": DYNAMIC,
    "tt.map": DYNAMIC,
    "tt.complete": DYNAMIC,
    "tt.effective_ranks": DYNAMIC,
    "tt.eigsh": DYNAMIC,
    "tt.solve": DYNAMIC,
    "tt.trim": DYNAMIC,
    "tt.chain_operator": HOST,
    "tt.index_to_quantics": HOST,
    "tt.integrate": "calls a function from the host, as tt.cross",
    "tt.quantics_grid": HOST,
    "tt.quantics_to_index": HOST,
    "functions.compose": DYNAMIC,
    "functions.fit": DYNAMIC,
    "functions.interpolate": DYNAMIC,
    "patches.cross": DYNAMIC,
    "tt.riemannian_cg": OPTIMISER,
    "tt.riemannian_descent": OPTIMISER,
    "mera.conjugate_gradient": OPTIMISER,
    "mera.stiefel": OPTIMISER,
    "mera.refine": "a loop on the host, which reads the loss of every step",
    "mera.causal_cone": HOST,
    "mera.wirings": HOST,
    "sketch.johnson_lindenstrauss_min_dim": HOST,
    "sketch.variance_bound": HOST,
    "sketch.sparse": "how many entries are stored is drawn: it runs outside jit",
    "convert.tt_to_mera": DYNAMIC,
    "parallel.FsdpTp": "makes a layout, see parallel.layout",
    "parallel.Megatron": "makes a layout, see parallel.layout",
    "parallel.Single": "makes a layout, see parallel.layout",
    "parallel.Summa": "makes a layout, see parallel.layout",
    "parallel.mesh": HOST,
    "parallel.memory": HOST,
    "parallel.traffic": HOST,
    "parallel.plan": HOST,
    "parallel.shard": "places arrays on devices that are there",
    "parallel.shardings": HOST,
    "parallel.state_shardings": HOST,
}


def given(dtype: Any) -> dict[str, Any]:
    """Operands of all cases, small: nothing is run."""
    key = jax.random.key(0)
    x = tt.random(key, (3, 2, 3), 2, dtype)
    factors = [jnp.ones((n + 1, n), dtype) for n in x.shape]
    return {
        "key": key,
        "x": x,
        "wide": tt.random(key, (3, 2, 3, 2), 4, dtype),
        "a": tt.random_matrix(key, (3, 2, 3), (3, 2, 3), 2, dtype),
        "z": jnp.ones(x.shape, dtype),
        "w": jnp.ones((18, 18), dtype),
        "v": jnp.ones(3, dtype),
        "t": tucker.Tucker(x, factors),
        "u": tucker.Tucker(jnp.ones(x.shape, dtype), factors),
        "m": mera.random(key, (2,) * 4, 2, dtype=dtype),
        "p": sketch.ttrp(key, (8, 32), (2, 2), dtype=dtype),
        "rows": jnp.ones((3, 256), dtype),
        "small": jnp.ones((2, 18), dtype),
        "s": tt.stream(key, x.shape, 2, dtype),
    }


def through(name: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """A product by columns and one by rows, on the blocks of a layout."""
    layout = parallel.layout(name, None if name == "single" else parallel.mesh(2, 2))
    axes = {"up": ("embed", "mlp"), "down": ("mlp", "embed")}
    specs = jax.tree.map(layout.spec, axes, is_leaf=lambda node: isinstance(node, tuple))

    def pair(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return layout.row(jax.nn.gelu(layout.column(x, params["up"])), params["down"])

    run = layout.over(pair, (specs, layout.x_spec()), layout.x_spec())
    return run({"up": w[:16, :16], "down": w[:16, :16]}, x[:16, :16].reshape(4, 4, 16))


Case = Callable[..., Any]
LAYOUTS = [name for name in parallel.NAMES if name != "2.5d"]


def _complex(t: Any) -> Any:
    return t.astype(jnp.complex64 if t.dtype == jnp.float32 else jnp.complex128)


def patched(x: tt.TT) -> tt.patches.PatchedTT:
    return tt.patches.PatchedTT((2, *x.shape), [(0,), (1, 0)], [x, x[0]])


def functional(x: tt.TT) -> tt.functions.FunctionTrain:
    first, *others = (tt.functions.Chebyshev(n - 1, 0.0, 2.0) for n in x.shape)
    spline = tt.functions.BSpline([0.0, 1.0, 2.0], first.degree - 1)
    return tt.functions.FunctionTrain([spline, *others], x)


def at_points(function: Case) -> Case:
    return lambda x: function(functional(x), jnp.full((2, x.ndim), 0.5, x.dtype).real)


GRID = tt.quantics_grid([0.0, 0.0], [1.0, 1.0], 3)
LINE = tt.quantics_grid(0.0, 1.0, 4)
CASES: dict[str, tuple[Case, str]] = {
    # name: the call, and the operands it takes; those after "|" get no gradient
    "tt.add": (tt.add, "x x"),
    "tt.bilinear_form": (lambda x, a, y: tt.bilinear_form(x, a, y), "x a x"),
    "tt.broadcast_to": (lambda x: tt.broadcast_to(tt.sum(x, 1, keepdims=True), x.shape), "x"),
    "tt.dimension_distribution": (tt.dimension_distribution, "x"),
    "tt.mean_dimension": (tt.mean_dimension, "x"),
    "tt.moment": (lambda x: tt.moment(x, 2), "x"),
    "tt.ones_matrix": (lambda v: tt.ones_matrix((2, 3), (3, 2), v.dtype) * v[0], "v"),
    "tt.pairwise_inner": (lambda x, y: tt.pairwise_inner([x, y]), "x x"),
    "tt.pinv": (lambda x: tt.pinv(x, 1), "x"),
    "tt.power": (lambda x: tt.power(x, 2), "x"),
    "tt.sobol": (lambda x: tt.sobol(x, 0), "x"),
    "tt.variance_components": (tt.variance_components, "x"),
    "tt.zeros_matrix": (lambda v: tt.zeros_matrix((2, 3), (3, 2), v.dtype) * v[0], "v"),
    "tt.concatenate": (lambda x, y: tt.concatenate([x, y]), "x x"),
    "tt.conj": (tt.conj, "x"),
    "tt.real": (lambda x: tt.real(_complex(x) * 1j + _complex(x)), "x"),
    "tt.imag": (lambda x: tt.imag(_complex(x) * 1j + _complex(x)), "x"),
    "tt.contract_modes": (lambda x, v: tt.contract_modes(x, {0: v, 2: v}), "x v"),
    "tt.conditional": (lambda x: tt.conditional(x, {1: 0}, squared=True), "x"),
    "tt.cumsum": (lambda x: tt.cumsum(x, 1), "x"),
    "tt.diagonal": (tt.diagonal, "a"),
    "tt.diagonal_matrix": (tt.diagonal_matrix, "x"),
    "tt.distance": (tt.distance, "x x"),
    "tt.evaluate": (lambda x: tt.evaluate(x, np.array([[0, 1, 2], [-1, 0, 0]])), "x"),
    "tt.from_dense": (lambda z: tt.from_dense(z, rank=1), "z"),
    "tt.from_dense by svd": (lambda z: tt.from_dense(z, rank=2, tol=0.1), "z"),
    "tt.hadamard": (tt.hadamard, "x x"),
    "tt.hadamard to a rank": (lambda x, y: tt.hadamard(x, y, rank=2), "wide wide"),
    "tt.identity": (lambda v: tt.scale(tt.identity((2, 3), dtype=v.dtype), v[0]), "v"),
    "tt.inner": (tt.inner, "x x"),
    "tt.inner of a matrix": (tt.inner, "a a"),
    "tt.kron": (tt.kron, "x x"),
    "tt.linear_combination": (
        lambda x, y, a: tt.linear_combination([x, (x, y), (a, y)], [1.0, 2.0, -1.0], rank=2),
        "x x a",
    ),
    "tt.matmul": (tt.matmul, "a a"),
    "tt.mean": (lambda x: tt.mean(x, 1), "x"),
    "tt.meshgrid": (lambda v: tt.meshgrid(v, v), "v"),
    "tt.log_density": (lambda x: tt.log_density(x, np.array([[0, 1, -1]]), squared=True), "x"),
    "tt.log_density of entries": (
        lambda x: tt.log_density(tt.real(_complex(x)), np.array([[0, 1, 2]])),
        "x",
    ),
    "tt.marginal": (lambda x: tt.marginal(x, 1, squared=True), "x"),
    "tt.mode_product": (lambda x, v: tt.mode_product(x, v[None], 0), "x v"),
    "tt.pad_modes": (lambda x: tt.pad_modes(x, [(1, 0)] * 3), "x"),
    "tt.permute": (lambda x: tt.permute(x, (2, 0, 1)), "x"),
    "tt.permute to a rank": (lambda x: tt.permute(x, (2, 0, 1), rank=1), "x"),
    "tt.reshape": (lambda x: tt.reshape(x, (3, 6)), "x"),
    "tt.reshape that splits": (lambda x: tt.reshape(x, (6, 3)), "x"),
    "tt.reverse": (tt.reverse, "x"),
    "tt.sum": (lambda x: tt.sum(x) * tt.sum(x[0, :, None, 1:]), "x"),
    "tt.tensordot": (lambda x, y: tt.tensordot(x, y, ([2, 1], [0, 1])), "x x"),
    "tt.trace": (lambda a: tt.trace(a) * a[0, 1] * tt.norm(a[(1, slice(0, 1), 0), :]), "a"),
    "tt.unit": (lambda v: tt.unit((2, 3), (1, 2), v.dtype) * v[0], "v"),
    "tt.var": (lambda x: tt.var(x) * tt.norm(tt.var(x, 1)), "x"),
    "tt.zeros_like": (lambda x: tt.zeros_like(x) + x, "x"),
    "tt.matmul to a rank": (lambda a, b: tt.matmul(a, b, rank=2), "a a"),
    "tt.matrix_from_dense": (
        lambda w: tt.matrix_from_dense(w, (3, 2, 3), (3, 2, 3), rank=2),
        "w",
    ),
    "tt.matvec": (tt.matvec, "a x"),
    "tt.matvec to a rank": (lambda a, x: tt.matvec(a, x, rank=2), "a x"),
    "tt.norm": (tt.norm, "x"),
    "tt.log_norm": (tt.log_norm, "x"),
    "tt.normalize": (tt.normalize, "x"),
    "tt.ones": (lambda v: tt.scale(tt.ones((2, 3), dtype=v.dtype), v[0]), "v"),
    "tt.ones_like": (lambda x: tt.add(x, tt.ones_like(x)), "x"),
    "tt.orthogonalize": (lambda x: tt.orthogonalize(x, 1), "x"),
    "tt.singular_values": (tt.singular_values, "x"),
    "tt.pad": (lambda x: tt.pad(x, 3), "x"),
    "tt.random": (lambda key: tt.random(key, (2, 3), 2), "| key"),
    "tt.random_matrix": (lambda key: tt.random_matrix(key, (2, 3), (3, 2), 2), "| key"),
    "tt.rank_one": (lambda v: tt.rank_one([v, v]), "v"),
    "tt.rank_one_matrix": (lambda w: tt.rank_one_matrix({1: w}, order=3), "w"),
    "tt.retract": (lambda x: tt.retract(x, tt.tangent_project(x, x)), "x"),
    "tt.riemannian_grad": (tt.riemannian_grad(tt.norm), "| x"),
    "tt.round": (lambda x: tt.round(x + x, rank=3), "wide"),
    "tt.round by svd": (lambda x: tt.round(x, rank=2, method="svd"), "wide"),
    "tt.round by gram": (lambda x: tt.round(x, rank=2, method="gram"), "wide"),
    "tt.round with a key": (lambda x, key: tt.round(x + x, rank=2, key=key), "wide | key"),
    "tt.round with tol": (lambda x: tt.round(x, rank=2, tol=0.1), "wide"),
    "tt.round in batches": (
        jax.vmap(lambda s, x: tt.round(x * s, rank=2, method="randomized"), (0, None)),
        "v wide",
    ),
    "tt.sample": (lambda key, x: tt.sample(key, x, 3), "| key x"),
    "tt.sample of entries": (
        lambda key, x: tt.sample(key, tt.real(_complex(x)), 3, squared=False),
        "| key x",
    ),
    "tt.scale": (lambda x, v: tt.scale(x, v[0]), "x v"),
    "tt.stream": (lambda key: tt.stream(key, (3, 2, 3), 2), "| key"),
    "tt.stream_add": (tt.stream_add, "s x"),
    "tt.stream_train": (tt.stream_train, "s"),
    "tt.tangent_inner": (
        lambda x, y: tt.tangent_inner(tt.tangent_project(x, y), tt.tangent_project(x, y)),
        "x x",
    ),
    "tt.tangent_project": (tt.tangent_project, "x x"),
    "tt.tangent_sum": (
        lambda x, y: tt.tangent_sum([tt.tangent_project(x, y), tt.tangent_project(x, x)]),
        "x x",
    ),
    "tt.to_dense": (tt.to_dense, "x"),
    "tt.transport": (lambda x, y: tt.transport(x, tt.tangent_project(y, y)), "x x"),
    "tt.transpose": (tt.transpose, "a"),
    "tt.value_and_riemannian_grad": (tt.value_and_riemannian_grad(tt.norm), "| x"),
    "tt.zeros": (lambda x: tt.add(x, tt.zeros(x.shape, dtype=x.dtype)), "x"),
    **{
        f"quantics.{name}": (lambda v, build=build: tt.scale(build(v.dtype), v[0]), "v")
        for name, build in {
            "affine": lambda dtype: tt.quantics.affine(LINE, 3, dtype=dtype),
            "box": lambda dtype: tt.quantics.box(GRID, 0.2, 0.7, dtype=dtype),
            "delta": lambda dtype: tt.quantics.delta(GRID, 0.5, dtype=dtype),
            "derivative": lambda dtype: tt.quantics.derivative(GRID, 1, dtype=dtype),
            "inverse_laplacian": lambda dtype: tt.quantics.inverse_laplacian(LINE, dtype=dtype),
            "laplacian": lambda dtype: tt.quantics.laplacian(GRID, dtype=dtype),
            "shift": lambda dtype: tt.quantics.shift(GRID, 3, dtype=dtype),
            "step": lambda dtype: tt.quantics.step(GRID, 0.3, dtype=dtype),
            "weights": lambda dtype: tt.quantics.weights(GRID, dtype=dtype),
        }.items()
    },
    "functions.add": (lambda x, y: functional(x) + functional(y), "x x"),
    "functions.derivative": (lambda x: tt.functions.derivative(functional(x), 0), "x"),
    "functions.evaluate": (at_points(tt.functions.evaluate), "x"),
    "functions.gradient": (at_points(tt.functions.gradient), "x"),
    "functions.inner": (lambda x, y: tt.functions.inner(functional(x), functional(y)), "x x"),
    "functions.integrate": (lambda x: tt.functions.integrate(functional(x)), "x"),
    "functions.multiply": (lambda x, y: functional(x) * functional(y), "x x"),
    "functions.norm": (lambda x: tt.functions.norm(functional(x)), "x"),
    "functions.ones_like": (
        lambda x: x.cores[0][0, 0, 0] * tt.functions.ones_like(functional(x)),
        "x",
    ),
    "functions.round": (lambda x: tt.functions.round(functional(x), rank=1), "x"),
    "patches.add": (lambda x, y: tt.patches.add(patched(x), patched(y)), "x x"),
    "patches.evaluate": (lambda x: tt.patches.evaluate(patched(x), np.zeros((2, 4), int)), "x"),
    "patches.inner": (lambda x, y: tt.patches.inner(patched(x), patched(y)), "x x"),
    "patches.norm": (lambda x: tt.patches.norm(patched(x)), "x"),
    "patches.ones_like": (lambda x: x.cores[0][0, 0, 0] * tt.patches.ones_like(patched(x)), "x"),
    "patches.sum": (lambda x: tt.patches.sum(patched(x)), "x"),
    "patches.to_dense": (lambda x: tt.patches.to_dense(patched(x)), "x"),
    "patches.to_tt": (lambda x: tt.patches.to_tt(patched(x)), "x"),
    "quantics.circulant": (tt.quantics.circulant, "x"),
    "quantics.constant": (lambda v: tt.quantics.constant(GRID, v[0]), "v"),
    "quantics.cosine": (lambda v: tt.quantics.cosine(GRID, v[:2], v[2]), "v"),
    "quantics.exponential": (lambda v: tt.quantics.exponential(GRID, v[:2]), "v"),
    "quantics.fourier": (
        lambda v: v[0] * tt.norm(tt.quantics.fourier(GRID, tol=0.1)).astype(v.dtype),
        "v",
    ),
    "quantics.polynomial": (lambda v: tt.quantics.polynomial(GRID, v[:, None] * v[None, :2]), "v"),
    "quantics.sine": (lambda v: tt.quantics.sine(GRID, v[:2], v[2]), "v"),
    "quantics.toeplitz": (lambda x: tt.quantics.toeplitz(tt.permute(x, (1, 0, 2))), "x"),
    "tucker.add": (tucker.add, "t u"),
    "tucker.hadamard": (tucker.hadamard, "t t"),
    "tucker.mode_product": (
        lambda t: tucker.mode_product(t, jnp.ones((2, t.shape[0]), t.dtype), 0),
        "t",
    ),
    "tucker.random": (lambda key: tucker.random(key, (2, 3), 2), "| key"),
    "tucker.to_tt": (lambda t: tucker.to_tt(t), "t"),
    "tucker.real": (lambda t: tucker.real(_complex(t)), "t"),
    "tucker.imag": (lambda t: tucker.imag(_complex(t)), "t"),
    "tucker.distance": (tucker.distance, "t u"),
    "tucker.evaluate": (lambda t: tucker.evaluate(t, np.zeros((2, 3), int)), "t"),
    "tucker.from_dense": (lambda z: tucker.from_dense(z, rank=2), "z"),
    "tucker.inner": (tucker.inner, "t u"),
    "tucker.norm": (tucker.norm, "t"),
    "tucker.ones_like": (lambda t: tucker.add(t, tucker.ones_like(t)), "t"),
    "tucker.orthogonalize": (tucker.orthogonalize, "t"),
    "tucker.pad": (lambda t: tucker.pad(t, 4), "t"),
    "tucker.round": (lambda t: tucker.round(t, rank=2), "u"),
    "tucker.round of a train": (lambda t: tucker.round(t, rank=2, core_rank=1), "t"),
    "tucker.scale": (lambda t, v: tucker.scale(t, v[0]), "t v"),
    "tucker.to_dense": (tucker.to_dense, "t"),
    "mera.expectation": (lambda m, w: mera.expectation(m, w[:4, :4], (1, 2)), "m w"),
    "mera.inner": (mera.inner, "m m"),
    "mera.norm": (mera.norm, "m"),
    "mera.random": (lambda key: mera.random(key, (2,) * 4, 2), "| key"),
    "mera.retract": (mera.retract, "m m"),
    "mera.sample": (lambda key, m: mera.sample(key, m, 2), "| key m"),
    "mera.tangent": (mera.tangent, "m m"),
    "mera.to_dense": (mera.to_dense, "m"),
    "mera.to_tt": (lambda m: mera.to_tt(m, rank=2), "m"),
    "sketch.apply": (sketch.apply, "p rows"),
    "sketch.apply to a train": (
        lambda key, x: sketch.apply(sketch.ttrp(key, x.shape, 4, dtype=x.dtype), x),
        "| key x",
    ),
    "sketch.cp_rows": (
        lambda key, z: sketch.apply(sketch.cp_rows(key, (3, 6), 4, dtype=z.dtype), z),
        "| key small",
    ),
    "sketch.gaussian": (
        lambda key, z: sketch.apply(sketch.gaussian(key, 18, 4, dtype=z.dtype), z),
        "| key small",
    ),
    "sketch.khatri_rao": (
        lambda key, z: sketch.apply(sketch.khatri_rao(key, (3, 6), 4, dtype=z.dtype), z),
        "| key small",
    ),
    "sketch.tt_rows": (
        lambda key, z: sketch.apply(sketch.tt_rows(key, (3, 6), 4, dtype=z.dtype), z),
        "| key small",
    ),
    "sketch.to_tt_matrix": (sketch.to_tt_matrix, "p"),
    "sketch.ttrp": (lambda key: sketch.ttrp(key, (3, 6), (2, 2)), "| key"),
    "sketch.variance": (
        lambda z: sketch.variance(sketch.ttrp(jax.random.key(0), (3, 6), 4, dtype=z.dtype), z),
        "small",
    ),
    "convert.tt_to_tucker": (lambda x: convert.tt_to_tucker(x, rank=2)[0], "x"),
    **{f"parallel.layout {name}": (functools.partial(through, name), "w w") for name in LAYOUTS},
    "parallel.summa": (
        lambda x, w: parallel.summa(x, w, parallel.mesh(2, 2)),
        "w w",
    ),
}


def public(module: ModuleType) -> list[str]:
    """Names of the public functions of a module."""
    short = module.__name__.split(".")[-1]
    names = [name for name in module.__all__ if name != "TTRandomProjection"]
    found = {name: getattr(module, name) for name in names}
    return [f"{short}.{name}" for name, x in found.items() if callable(x) and type(x) is not type
            and not isinstance(x, type)]  # fmt: skip


def test_every_public_function_has_a_case_or_a_reason() -> None:
    covered = {name.split(" ")[0] for name in CASES} | NOT_LOWERED.keys()
    known = {name for module in MODULES for name in public(module)}
    missing = sorted(known - covered)
    assert not missing, f"add a case to CASES, or a reason to NOT_LOWERED: {missing}"
    assert not covered - known, "of no public function"
    assert not NOT_LOWERED.keys() & {name.split(" ")[0] for name in CASES}


@pytest.fixture(autouse=True)
def many_numbers_or_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code takes what is small too."""
    monkeypatch.setattr(conditions, "LARGE_INPUT", 1)


def lower(name: str, dtype: str) -> None:
    call, needs = CASES[name]
    operands = given(jnp.dtype(dtype))
    moving, _, still = needs.partition("|")
    fixed = [operands[n] for n in still.split()]

    def function(*args: Any) -> Any:
        return call(*args[: len(moving.split())], *fixed)

    args = [operands[n] for n in moving.split()]
    if still and not args:
        check_portable(call, *fixed, differentiable=False)
    else:
        check_portable(function, *args)


# What compiled code may serve on a CPU, by every way to it; these cases run by default.
CHOSEN = (
    "tt.hadamard", "tt.inner", "tt.norm", "tt.matvec to a rank", "tt.round",
    "tt.round with a key", "tt.round in batches", "sketch.apply",
)  # fmt: skip
DEFAULT = {(name, "float64") for name in CHOSEN}
every = [
    pytest.param(name, dtype, marks=() if (name, dtype) in DEFAULT else pytest.mark.slow)
    for name in CASES
    for dtype in ("float32", "float64")
]


@pytest.mark.parametrize(("name", "dtype"), every)
def test_static_functions_lower_for_accelerators(name: str, dtype: str) -> None:
    lower(name, dtype)


@pytest.mark.skipif(bool(_native.status()), reason=_native.status())
@pytest.mark.parametrize("name", [name for name in CHOSEN if "batches" not in name])
def test_programs_run_here_call_compiled_code_and_exported_ones_do_not(name: str) -> None:
    """Both give the same, up to how random sketches of a rank that suffices fall out."""
    call, needs = CASES[name]
    operands = given(jnp.dtype("float64"))
    args = [operands[n] for n in needs.replace("|", "").split()]
    assert any("tensorjax" in c for c in custom_calls(jax.jit(call).lower(*args).as_text()))
    for platforms in (["cpu"], ["cpu", *PLATFORMS]):
        exported = exported_for(call, *args, platform=platforms)
        assert not foreign_calls(exported.mlir_module(), platforms)
    if name == "tt.round with a key":
        return  # a rank below that of the train: as near as each sketch brings it
    if name == "tt.matvec to a rank":
        args = [args[0], tt.round(args[1], rank=1)]
        exported = exported_for(call, *args, platform=platforms)
    for got, want in zip(*map(jax.tree.leaves, map(as_array, [exported.call(*args), call(*args)])),
                         strict=True):  # fmt: skip
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def as_array(x: Any) -> Any:
    return tt.to_dense(x) if isinstance(x, tt.TT) else x


def test_saved_programs_hold_formats() -> None:
    operands = given(jnp.dtype("float64"))
    for name in ("x", "a", "t", "u", "m", "p", "s"):
        saved = exported_for(lambda x: x, operands[name], platform="cpu").serialize()
        back = jax.export.deserialize(saved).call(operands[name])
        assert jax.tree.structure(back) == jax.tree.structure(operands[name])
    saved = exported_for(lambda t: tt.round(t + t, rank=3), operands["x"], platform="cpu")
    back = jax.export.deserialize(saved.serialize()).call(operands["x"])
    np.testing.assert_allclose(tt.to_dense(back), 2 * tt.to_dense(operands["x"]), atol=1e-12)


def doubled(static: float, x: jax.Array) -> list[jax.Array]:
    return [static * x]


def never(static: float, x: jax.Array) -> list[jax.Array]:
    raise AssertionError("traced for a program that does not hold it")


def choose(native: Case, otherwise: Case, x: jax.Array, **options: Any) -> jax.Array:
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
    return on_cpu(native, otherwise, x, static=(2.0,), results=results, **options)[0]


def test_only_what_a_program_holds_is_traced() -> None:
    x = jnp.arange(24.0).reshape(2, 3, 4)
    here, elsewhere = (
        functools.partial(choose, *pair) for pair in ((doubled, never), (never, doubled))
    )
    twice = jax.vmap(jax.jit(jax.vmap(here, 0, 1)), 1, 1)  # axes (3, 2 | 4) of the operand change
    np.testing.assert_array_equal(twice(x), 2 * x.transpose(2, 1, 0))
    for f in (here, jax.jit(here), jax.vmap(here)):
        np.testing.assert_array_equal(f(x), 2 * x)
    for platform in ("cpu", "cuda", "tpu", ["cpu", "cuda"]):
        assert "stablehlo.multiply" in lowered_for(elsewhere, x, platform=platform)
    text = jax.jit(elsewhere).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.multiply" in text
    assert jax.jit(here).trace(x).lower(lowering_platforms=("cpu",))


def test_over_several_devices_only_what_each_has_for_itself_is_called() -> None:
    """By axes that the compiler splits, by explicit ones, and inside `jax.shard_map`."""
    here, elsewhere = (
        functools.partial(choose, *pair) for pair in ((doubled, never), (never, doubled))
    )
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
        x = jax.device_put(jnp.ones((8, 3)), jax.NamedSharding(mesh, P("d")))
        for f in (jax.jit(elsewhere), jax.jit(jax.vmap(elsewhere))):
            np.testing.assert_array_equal(f(x), 2 * np.ones((8, 3)))
        with jax.set_mesh(mesh):
            spread = jax.jit(jax.shard_map(here, in_specs=P("d"), out_specs=P("d")))
            np.testing.assert_array_equal(spread(x), 2 * np.ones((8, 3)))


@pytest.mark.slow
def test_nothing_need_be_set_in_the_environment() -> None:
    code = (
        "import jax; jax.config.update('jax_enable_x64', True)\n"
        "from tensorjax import tt\n"
        "from tests.lowering import exported_for, foreign_calls\n"
        "x = tt.random(jax.random.key(0), (4, 5, 6), 3)\n"
        "f = lambda t: (tt.round(t + t, rank=3), tt.norm(t))\n"
        "for p in ('cuda', 'tpu', 'cpu'):\n"
        "    print(sorted(foreign_calls(exported_for(f, x, platform=p).mlir_module(), p)))\n"
    )
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("TENSORJAX", "XLA_FLAGS"))}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, text=True, capture_output=True, cwd=ROOT,
        env={**plain, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.stdout.split() == ["[]"] * 3


NUMBERS = "b, 3"
SYMBOLIC: dict[str, tuple[Case, str, str]] = {
    # name: the call, the operands it takes, and the sizes of what it is called with
    "tt.evaluate": (lambda i, x: tt.evaluate(x, i), "x", NUMBERS),
    "tt.log_density": (lambda i, x: tt.log_density(x, i, squared=True), "x", NUMBERS),
    "tucker.evaluate": (lambda i, t: tucker.evaluate(t, i), "t", NUMBERS),
    "tucker.evaluate, dense core": (lambda i, u: tucker.evaluate(u, i), "u", "b, 2, 3"),
    "sketch.apply": (lambda z, p: sketch.apply(p, z), "p", "b, 256"),
    **{
        f"sketch.apply of {name}": (
            lambda z, key, draw=draw: sketch.apply(draw(key), z), "key", sizes
        )
        for name, draw, sizes in (
            ("tt_rows", lambda key: sketch.tt_rows(key, (3, 6), 4), "b, 2, 18"),
            ("sparse", lambda _: SPARSE, "b, 18"),
        )
    },
}  # fmt: skip
SPARSE = sketch.sparse(jax.random.key(1), 18, 4)
QUICK = ("sketch.apply", "sketch.apply of sparse")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SYMBOLIC]
)
def test_numbers_of_rows_and_of_entries_may_be_symbolic(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.undo()  # limits as they are
    call, needs, sizes = SYMBOLIC[name]
    operands = [given(jnp.dtype("float32"))[n] for n in needs.split()]
    shape = jax.export.symbolic_shape(sizes)
    whole = "evaluate" in name or "density" in name
    like = jax.ShapeDtypeStruct(shape, jnp.int32 if whole else jnp.float32)
    exported = exported_for(call, like, *operands, platform=["cpu", *PLATFORMS])
    rng = np.random.default_rng(len(name))
    size = (int(rng.integers(3, 2000)), *shape[1:])
    drawn = rng.integers(-2, 2, size) if whole else rng.normal(size=size)
    drawn = drawn.astype(like.dtype)
    wanted = np.asarray(call(drawn, *operands))
    found = exported.call(drawn, *operands)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
