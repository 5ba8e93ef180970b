"""Results lie where arguments do: on one device, on a mesh of either mode, or as JAX chooses."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tensorjax import _placement, mera, nn, tt, tucker
from tests.placement_cases import CASES, KEY, missing

ALL = {
    f"{module.__name__.split('.')[-1]}.{name}": case
    for module, cases in CASES.items()
    for name, case in cases.items()
}
SLOW = {
    "convert.tt_to_mera", "linalg.truncated_svd", "mera.MERA", "mera.expectation", "mera.inner",
    "mera.norm", "mera.random", "mera.refine", "mera.retract", "mera.sample", "mera.tangent",
    "mera.to_tt", "mera.to_tt to tol", "nn.CPEmbedding", "nn.CPLinear", "nn.TuckerEmbedding",
    "nn.TuckerLinear", "nn.from_linear to Tucker", "optim.rank_adaptive", "sketch.cp_rows",
    "sketch.khatri_rao", "sketch.tt_rows", "tt.TTMatrix", "tt.complete", "tt.cross", "tt.eigsh",
    "tt.random_matrix", "tt.riemannian_descent", "tt.riemannian_grad", "tt.sample", "tt.solve",
    "tt.stream", "tt.stream_add", "tt.stream_train", "tt.transport", "tt.value_and_riemannian_grad",
    "tucker.round a train core",
}  # fmt: skip
ON_DEVICES = [
    pytest.param(case, id=name, marks=pytest.mark.slow if name in SLOW else ())
    for name, case in ALL.items()
]


def arrays(tree: Any) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]


def test_every_public_function_has_a_case():
    assert {m.__name__: missing(m) for m in CASES} == {m.__name__: set() for m in CASES}


@pytest.mark.parametrize("case", ON_DEVICES)
def test_results_stay_on_the_device(case: Any):
    device = jax.devices()[3]
    for x in arrays(case(lambda tree: jax.device_put(tree, device))):
        assert x.devices() == {device}
        assert x.committed


# What runs on meshes by default; all the rest is slow.
ON_MESHES = {
    "tt.distance", "tt.evaluate", "tt.hadamard", "tt.inner", "tt.matvec", "tt.norm", "tt.round",
    "tt.to_dense", "sketch.apply", "tucker.norm", "nn.TTEmbedding", "nn.TTLinear",
}  # fmt: skip
# Under jit: by tolerance ranks depend on data, and some functions take concrete arrays alone.
MESHED = [
    pytest.param(name, modes, id="-".join((name, *modes)), marks=marks)
    for name in ALL
    # The stricter mode by default: what it takes Auto takes.
    for modes, marks in (
        [(("Explicit",), ()), (("Auto",), pytest.mark.slow)]
        if name in ON_MESHES
        else [(("Explicit", "Auto"), pytest.mark.slow)]
    )
    # Products of arrays by themselves are left to JAX, which asks for `out_sharding`.
    if name not in ("linalg.gram", "linalg.matmul")
]
MODES = (pytest.param("Auto", marks=pytest.mark.slow), "Explicit")


# JAX differentiates on explicit meshes, and optimisers start, in the context of the mesh alone.
IN_CONTEXT = ("optim.", "tt.riemannian", "tt.value_and")


@pytest.mark.parametrize(("name", "modes"), MESHED)
def test_values_on_meshes(name: str, modes: tuple[str, ...]):
    given: list[Any] = []

    def put(tree: Any) -> Any:
        given.append(tree)
        return tree

    expected = ALL[name](put)
    for mode in modes:
        check_on_a_mesh(name, given, expected, mode)


def check_on_a_mesh(name: str, arguments: list[Any], expected: Any, mode: str):
    case, rng = ALL[name], np.random.default_rng(0)
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType[mode],) * 2)
    given = jax.tree.map(lambda x: jax.device_put(x, drawn(rng, mesh, x)), arguments)
    try:
        with jax.set_mesh(mesh):
            compiled = jax.jit(lambda given: case(replay(given)))(given)
    except TypeError as error:
        if "jit" not in str(error) and "concrete" not in str(error):
            raise
        compiled = None  # for concrete arrays alone, and said so
    if compiled is not None:
        assert_same(compiled, expected)
        if mode == "Auto":  # operation by operation JAX asks for more on explicit meshes alone
            return
    with jax.set_mesh(mesh) if name.startswith(IN_CONTEXT) else contextlib.nullcontext():
        found = case(replay(given))
    assert_same(found, expected)
    assert all(x.sharding.device_set == set(mesh.devices.flat) for x in arrays(found))


def replay(given: list[Any]) -> Callable[[Any], Any]:
    """Hands a case the arguments that were placed before, in their order."""
    left = iter(given)
    return lambda _: next(left)


def drawn(rng: np.random.Generator, mesh: Any, x: jax.Array) -> NamedSharding:
    """The mesh's axes laid over drawn axes of the array that their sizes divide."""
    spec: list[Any] = [None] * x.ndim
    for name, parts in mesh.shape.items():
        fits = [k for k, n in enumerate(x.shape) if n % parts == 0 and spec[k] is None]
        if fits:
            spec[rng.choice(fits)] = name
    return NamedSharding(mesh, P(*spec))


def assert_same(found: Any, expected: Any) -> None:
    for a, b in zip(values(found), values(expected), strict=True):
        assert np.abs(a - b).max(initial=0) <= 1e-5 * (1 + np.abs(b).max(initial=0))


def values(tree: Any) -> list[Any]:
    """Numbers that do not depend on the gauge of trains."""
    formats = (tt.TT, tt.TTMatrix, tucker.Tucker, mera.MERA)
    leaves = jax.tree.leaves(jax.device_get(tree), is_leaf=lambda x: isinstance(x, formats))
    dense: Any = {tt.TT: tt, tt.TTMatrix: tt, tucker.Tucker: tucker, mera.MERA: mera}
    return [
        np.asarray(dense[type(x)].to_dense(x) if isinstance(x, formats) else x, complex)
        for x in leaves
    ]


BATCHED = {
    "norm": tt.norm,
    "inner": lambda t: tt.inner(t, t),
    "dense": tt.to_dense,
    "hadamard": lambda t: tt.hadamard(t, t),
    "round": lambda t: tt.round(t + t, rank=2),
    "distance": lambda t: tt.distance(t, 2 * t),
    "sum of modes": lambda t: tt.contract_modes(t, {1: jnp.ones(4)}),
    "orthogonalize": lambda t: tt.orthogonalize(t, 1),
}


@pytest.mark.parametrize("modes", [None, "m"])
@pytest.mark.parametrize(
    "name",
    [n if n in ("norm", "round") else pytest.param(n, marks=pytest.mark.slow) for n in BATCHED],
)
def test_batches_over_one_axis_of_a_mesh_and_modes_over_another(name: str, modes: str | None):
    mesh = jax.make_mesh((2, 2), ("b", "m"), axis_types=(AxisType.Explicit,) * 2)
    each = jax.vmap(BATCHED[name])
    given = jax.vmap(lambda k: tt.random(k, (4, 4, 2), 2, float))(jax.random.split(KEY, 4))
    there = NamedSharding(mesh, P("b", None, modes))
    spread = jax.tree.map(lambda c: jax.device_put(c, there), given)
    expected = jax.tree.leaves(each(given))
    with jax.set_mesh(mesh):
        for found in (each(spread), jax.jit(each)(spread)):
            for x, y in zip(jax.tree.leaves(found), expected, strict=True):
                assert jax.typeof(x).sharding.spec[0] == "b"
                assert np.abs(np.asarray(x) - np.asarray(y)).max() < 1e-12 * np.abs(y).max()


@pytest.mark.parametrize("mode", MODES)
def test_gradients_on_meshes(mode: str):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType[mode],))
    x, y = (tt.random(k, (4, 8, 4), 2, float) for k in jax.random.split(KEY))
    there = NamedSharding(mesh, P(None, "x"))

    def loss(x: tt.TT, y: tt.TT) -> jax.Array:
        z = tt.round(tt.hadamard(x, y) + x, rank=2)
        entries = tt.evaluate(z, np.zeros((3, 3), int))
        return tt.norm(z) ** 2 + jnp.sum(entries) + tt.distance(x, y)

    expected = jax.jit(jax.grad(loss))(x, y)
    xs, ys = jax.tree.map(lambda c: jax.device_put(c, there), (x, y))
    with jax.set_mesh(mesh):
        found = jax.jit(jax.grad(loss))(xs, ys)
        outside = jax.grad(tt.norm)(xs)
    for a, b, c in zip(found.cores, expected.cores, outside.cores, strict=True):
        assert mode == "Auto" or jax.typeof(a).sharding.spec == P(None, "x", None)
        assert mode == "Auto" or jax.typeof(c).sharding.spec == P(None, "x", None)
        assert np.abs(np.asarray(a) - np.asarray(b)).max() < 1e-9


def test_arguments_on_different_devices_are_refused_by_jax():
    one, two = (jax.device_put(tt.ones((2, 3), float), d) for d in jax.devices()[1:3])
    for f in (tt.distance, tt.inner, tt.add, lambda x, y: tt.hadamard(x, y, tol=1e-3)):
        with pytest.raises(ValueError, match="incompatible devices"):
            f(one, two)


def test_uncommitted_arguments_leave_results_to_jax():
    for device in (jax.devices()[0], jax.devices()[2]):
        with jax.default_device(device):
            x = tt.ones((4, 4), float)
            found = (tt.round(x + x, tol=1e-3), tt.distance(x, x), tt.pad(x, 3), tt.ones_like(x))
        for y in arrays(found):
            assert y.devices() == {device}
            assert not y.committed


@pytest.mark.parametrize("mode", MODES)
def test_host_arithmetic_leaves_the_mesh_of_its_arguments(mode: str):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType[mode],))
    there = NamedSharding(mesh, P(None, "x"))
    t = jax.tree.map(lambda c: jax.device_put(c, there), tt.ones((4, 8, 3 * 4), float))
    for context in (contextlib.nullcontext, lambda: jax.set_mesh(mesh)):
        with context():
            for c in tt.trim(tt.round(t + t, tol=1e-3)).cores:
                assert c.sharding.mesh == mesh
                # In the context of an Auto mesh JAX itself puts new arrays on it, replicated.
                if mode == "Explicit" or context is contextlib.nullcontext:
                    assert c.sharding.spec == P(None, "x", None)
            length = tt.distance(t, t + t)
            assert length.sharding.is_equivalent_to(NamedSharding(mesh, P()), 0)
            assert length.sharding.mesh == mesh


@pytest.mark.parametrize("mode", MODES)
def test_layers_take_out_sharding(mode: str):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType[mode],) * 2)
    lookup = nn.TTEmbedding(40, 8, rank=3, rngs=nnx.Rngs(0))
    linear = nn.TTLinear(8, 12, rank=3, rngs=nnx.Rngs(0))
    ids = np.random.default_rng(0).integers(0, 40, (4, 6))
    rows, logits = lookup(ids), lookup.attend(lookup(ids))
    expected = linear(rows)
    with jax.set_mesh(mesh):
        for model in (lookup, linear):
            nnx.update(model, jax.device_put(nnx.state(model), NamedSharding(mesh, P())))
        for spec in (P("x"), P("x", "y"), P(None, "y")):
            spread = jax.device_put(ids, NamedSharding(mesh, spec))
            found = lookup(spread)
            if mode == "Explicit":
                assert found.sharding.is_equivalent_to(NamedSharding(mesh, spec), 3)
            for call in (linear, jax.jit(linear)):
                assert np.abs(np.asarray(call(found)) - np.asarray(expected)).max() < 1e-5
            for shape in (P("y", None, "x"), P(None, "x")):

                @jax.jit
                def run(ids: jax.Array, shape: P = shape) -> Any:
                    rows = lookup(ids, out_sharding=shape)
                    return rows, linear(rows, out_sharding=shape), lookup.attend(rows, P("x"))

                there = NamedSharding(mesh, shape)
                a, b, c = run(spread)
                assert a.sharding.is_equivalent_to(there, 3)
                assert b.sharding.is_equivalent_to(there, 3)
                assert c.sharding.is_equivalent_to(NamedSharding(mesh, P("x")), 3)
                for x, y in ((a, rows), (b, expected), (c, logits)):
                    assert np.abs(np.asarray(x) - np.asarray(y)).max() < 1e-5


@pytest.mark.parametrize("name", ["norm", "inner", "hadamard", "round"])
def test_gradients_stay_on_the_device_of_their_train(name: str):
    device = jax.devices()[3]
    t = jax.device_put(tt.random(jax.random.key(0), (3, 4, 2), rank=2, dtype=float), device)
    f = {
        "norm": tt.norm,
        "inner": lambda x: tt.inner(x, t),
        "hadamard": lambda x: tt.norm(tt.hadamard(x, x)),
        "round": lambda x: tt.norm(tt.round(x, rank=1)),
    }[name]
    for x in jax.tree.leaves(jax.value_and_grad(f)(t)):
        assert x.devices() == {device}


def test_a_mesh_of_the_only_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_placement, "_is_alone", lambda: True)
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    t = tt.ones((4, 8, 4), float)
    there = jax.device_put(t, NamedSharding(mesh, P(None, "x")))
    product = tt.hadamard(there, there)
    assert jax.typeof(product.cores[1]).sharding.spec == P(None, "x", None)
    assert tt.distance(product, there) < 1e-12
    batch = jax.device_put(jax.tree.map(lambda c: c[None], t), NamedSharding(mesh, P("x")))
    assert abs(jax.vmap(tt.norm)(batch)[0] - 128**0.5) < 1e-12
    with pytest.raises(ValueError, match="expected trains of one shape"):
        tt.inner(there, tt.ones((4, 8), float))


def test_constants_of_a_traced_program_keep_their_devices():
    device = jax.devices()[2]
    t = tt.ones((4, 4), float)
    t = jax.device_put(t + t, device)

    def inside(x: jax.Array) -> jax.Array:
        small = tt.round(t, tol=1e-3)  # concrete, though a program is being traced
        assert small.ranks == (1, 1, 1)
        return x * tt.norm(small)

    assert abs(jax.jit(inside)(jax.device_put(1.0, device)) - 8) < 1e-12
