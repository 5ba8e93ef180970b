"""Trains sharded over a mesh of four simulated devices: by their modes, and as batches."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tensorjax import tt

BY_MODE = P(None, "devices", None)


@pytest.fixture(params=["Auto", "Explicit"])
def mesh(request: Any) -> Any:
    return jax.make_mesh((4,), ("devices",), axis_types=(AxisType[request.param],))


def sharded(t: Any, mesh: Any, spec: P) -> Any:
    return jax.tree.map(lambda c: jax.device_put(c, NamedSharding(mesh, spec)), t)


def is_sharded(t: Any, spec: P) -> bool:
    return all(
        c.sharding.is_equivalent_to(NamedSharding(c.sharding.mesh, spec), c.ndim)
        for c in jax.tree.leaves(t)
    )


def pair(rank: int = 3) -> tuple[tt.TT, tt.TT]:
    keys = jax.random.split(jax.random.key(0))
    x, y = (tt.random(k, (8, 4, 12, 8), rank, float) for k in keys)
    return x, y


OPERATIONS = {
    "add": lambda x, y: tt.add(x, y),
    "hadamard": lambda x, y: tt.hadamard(x, y),
    "fused hadamard": lambda x, y: tt.hadamard(x, y, rank=4),
    "round to a rank": lambda x, y: tt.round(x + y, rank=4),
    "round by SVD": lambda x, y: tt.round(x + y, rank=4, method="svd"),
    "round to a tolerance": lambda x, y: tt.round(x + y + x, tol=1e-8),
    "tangent_project": lambda x, y: tt.tangent_project(x, y),
}


HEAVY = {"fused hadamard", "round by SVD", "tangent_project"}
CASES = [pytest.param(n, marks=pytest.mark.slow if n in HEAVY else ()) for n in OPERATIONS]


@pytest.mark.parametrize("name", CASES)
def test_modes_stay_sharded(mesh: Any, name: str):
    x, y = pair()
    here = OPERATIONS[name](x, y)
    there = OPERATIONS[name](*(sharded(t, mesh, BY_MODE) for t in (x, y)))
    assert is_sharded(there, BY_MODE)
    gathered = tt.TT([np.asarray(c) for c in there.cores])
    assert tt.distance(gathered, here) < 1e-12 * tt.norm(here)


def test_numbers_of_sharded_trains(mesh: Any):
    x, y = pair()
    xs, ys = (sharded(t, mesh, BY_MODE) for t in (x, y))
    assert abs(tt.inner(xs, ys) - tt.inner(x, y)) < 1e-12 * tt.norm(x) * tt.norm(y)
    assert abs(tt.norm(xs) - tt.norm(x)) < 1e-12 * tt.norm(x)
    where = np.random.default_rng(0).integers(0, x.shape, (64, 4))
    expected = np.asarray(tt.evaluate(x, where))
    spread = jax.device_put(jnp.asarray(where), NamedSharding(mesh, P("devices")))
    for train, indices in ((xs, where), (x, spread), (xs, spread)):
        found = tt.evaluate(train, indices)
        assert np.abs(np.asarray(found) - expected).max() < 1e-12 * np.abs(expected).max()
        if indices is spread:
            assert is_sharded(found, P("devices"))


def batch(count: int) -> tt.TT:
    keys = jax.random.split(jax.random.key(1), count)
    return jax.vmap(lambda k: tt.random(k, (4, 4, 4, 4), 4, float))(keys)


def test_ten_thousand_trains_rounded_under_shard_map(mesh: Any):
    trains = batch(10_000)

    def each(t: tt.TT) -> tt.TT:
        return jax.vmap(lambda t: tt.round(t, rank=2))(t)

    here = jax.jit(each)(trains)
    spread = jax.shard_map(each, mesh=mesh, in_specs=P("devices"), out_specs=P("devices"))
    program = jax.jit(spread).lower(sharded(trains, mesh, P("devices"))).compile()
    # Trains do not meet: no collective at all.
    assert not collectives(program)
    there = program(sharded(trains, mesh, P("devices")))
    assert is_sharded(there, P("devices"))
    for a, b in zip(here.cores, there.cores, strict=True):
        assert np.abs(np.asarray(a) - np.asarray(b)).max() < 1e-12


def test_collectives_of_an_inner_product(mesh: Any):
    """One sum of r × r numbers per core, one maximum of all exponents, one gather per inner core.

    The gathers come with matrix products over (r, n) as one axis, which no sharding by n survives.
    """
    x, y = (sharded(t, mesh, BY_MODE) for t in pair())
    found = collectives(jax.jit(tt.inner).lower(x, y).compile())
    assert found == {"all-reduce": x.order + 1, "all-gather": x.order - 2}


def collectives(program: Any) -> dict[str, int]:
    """Collectives of a compiled program, by kind."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    text = program.as_text()
    counts = {k: len(re.findall(rf"^.* = .* {k}(?:-start)?\(", text, re.M)) for k in kinds}
    return {k: n for k, n in counts.items() if n}
