"""Results lie where arguments do: on one device, on a mesh of either mode, or as JAX chooses."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tensorjax import mera, tt, tucker
from tests.placement_cases import CASES, missing

ALL = {
    f"{module.__name__.split('.')[-1]}.{name}": case
    for module, cases in CASES.items()
    for name, case in cases.items()
}
SLOW = {
    "convert.tt_to_mera", "mera.random", "mera.refine", "mera.to_tt", "mera.to_tt to tol",
    "optim.rank_adaptive", "tt.complete", "tt.cross", "tt.eigsh", "tt.riemannian_descent",
    "tt.solve", "tt.stream", "tt.stream_add", "tt.stream_train", "tt.value_and_riemannian_grad",
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
    pytest.param(case, id=name, marks=() if name in ON_MESHES else pytest.mark.slow)
    for name, case in ALL.items()
]
MODES = ("Auto", "Explicit")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", MESHED)
def test_values_on_meshes(case: Any, mode: str):
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType[mode],) * 2)
    rng = np.random.default_rng(0)
    given: list[Any] = []

    def put(tree: Any) -> Any:
        given.append(jax.tree.map(lambda x: jax.device_put(x, drawn(rng, mesh, x)), tree))
        return tree

    expected = case(put)
    found = case(replay(given))
    assert_same(found, expected)
    assert all(x.sharding.device_set == set(mesh.devices.flat) for x in arrays(found))
    try:
        with jax.set_mesh(mesh):
            compiled = jax.jit(lambda given: case(replay(given)))(given)
    except TypeError as error:
        if "jit" in str(error) or "concrete" in str(error):
            return  # for concrete arrays alone, and said so
        raise
    assert_same(compiled, expected)


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
        assert np.abs(a - b).max() <= 1e-5 * (1 + np.abs(b).max())


def values(tree: Any) -> list[Any]:
    """Numbers that do not depend on the gauge of trains."""
    formats = (tt.TT, tt.TTMatrix, tucker.Tucker, mera.MERA)
    leaves = jax.tree.leaves(jax.device_get(tree), is_leaf=lambda x: isinstance(x, formats))
    dense: Any = {tt.TT: tt, tt.TTMatrix: tt, tucker.Tucker: tucker, mera.MERA: mera}
    return [np.asarray(dense[type(x)].to_dense(x) if isinstance(x, formats) else x) for x in leaves]
