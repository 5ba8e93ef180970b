"""Copies of public dataclasses: replace, deepcopy, pickle; trains whose leaves are no arrays."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorjax
from tensorjax import convert, mera, pde, sketch, tt


def public_dataclasses() -> list[type]:
    found: dict[type, None] = {}
    for module in pkgutil.walk_packages(tensorjax.__path__, "tensorjax."):
        if any(part.startswith("_") for part in module.name.split(".")):
            continue
        for name, x in vars(importlib.import_module(module.name)).items():
            ours = inspect.isclass(x) and x.__module__.startswith("tensorjax.")
            if ours and dataclasses.is_dataclass(x) and not name.startswith("_"):
                found[x] = None
    return list(found)


@pytest.mark.parametrize("kind", public_dataclasses(), ids=lambda x: f"{x.__module__}.{x.__name__}")
def test_fields_are_what_the_constructor_takes(kind: Any):
    """So that `dataclasses.replace`, which passes all of them, can make another one."""
    taken = set(inspect.signature(kind.__init__).parameters)
    assert {f.name for f in dataclasses.fields(kind) if f.init} <= taken


def problems(rng: np.random.Generator) -> list[pde.Problem]:
    box = pde.Box.fourier(2, 32, 6.0)
    start = pde.Gaussian(rng.normal(0, 0.1, 2), np.diag(rng.uniform(0.5, 1, 2)))
    matrix, offset = rng.normal(size=(2, 2)), rng.normal(size=2)
    drift = [pde.Sin([0.0, 1.0]), (pde.Power([1.0, 0.0], 0.0, 2),)]
    plain = pde.FokkerPlanck(drift, None, start, box, matrix=matrix, cross_tol=1e-7)
    wells = pde.Separable({0: np.tanh, 1: np.cos})
    return [
        pde.OrnsteinUhlenbeck(matrix, np.eye(2), start, box, offset=offset),
        pde.Liouville(matrix, start, box, offset=offset),
        plain,
        pde.FokkerPlanck(np.tanh, 0.1, start, box),
        pde.AdvectionDiffusionReaction(
            drift, 0.3, start, box, reaction=(0.0, 1.0, -1.0), potential=wells, source=start
        ),
        pde.AdvectionDiffusionReaction(None, 0.2, start, box, matrix=matrix),
        pde.Kramers(friction=0.7, start=start, box=box),
    ]


def same(a: Any, b: Any) -> None:
    at = pde.AffineMap.identity(2)
    one, two = (p.right_side(at, 0.1) for p in (a, b))
    assert len(one.operators) == len(two.operators)
    for x, y in zip(one.operators, two.operators, strict=True):
        np.testing.assert_allclose(*(np.asarray(tt.to_dense(z)) for z in (x, y)), atol=1e-6)
    for x, y in zip(a.initial_cores(at, 1e-5), b.initial_cores(at, 1e-5), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-9)


def test_problems_can_be_replaced_and_copied(rng: np.random.Generator):
    for problem in problems(rng):
        same(dataclasses.replace(problem), problem)
        same(copy.deepcopy(problem), problem)
        same(pickle.loads(pickle.dumps(problem)), problem)
        if "start" in {f.name for f in dataclasses.fields(problem) if f.init}:
            other = pde.Gaussian(np.zeros(2), np.diag([0.7, 0.9]))
            moved: Any = dataclasses.replace(problem, start=other)
            assert moved.start is other
            assert moved.box is problem.box


def test_replaced_coefficients_are_those_of_a_new_problem(rng: np.random.Generator):
    first, liouville, planck, *_ = problems(rng)
    matrix = rng.normal(size=(2, 2))
    for p in (first, liouville, planck):
        found: Any = dataclasses.replace(p, matrix=matrix)
        np.testing.assert_array_equal(found.matrix, matrix)
        x = rng.normal(size=(5, 2))
        change = x @ (matrix - np.asarray(p.matrix)).T
        np.testing.assert_allclose(found.velocity(x) - p.velocity(x), change, atol=1e-12)
    with pytest.raises(ValueError, match="matrix"):
        dataclasses.replace(first, matrix=np.eye(3))


def formats() -> dict[str, Any]:
    key = jax.random.key(0)
    train = tt.random(key, (3, 4, 2), 2)
    return {
        "TT": train,
        "FunctionTrain": tt.functions.FunctionTrain(
            [tt.functions.BSpline([0, 1], 2), *(tt.functions.Chebyshev(n - 1) for n in (4, 2))],
            train,
        ),
        "PatchedTT": tt.patches.PatchedTT((2, *train.shape), [(1,)], [train]),
        "TTMatrix": tt.random_matrix(key, (2, 3), (3, 2), 2),
        "Tucker": convert.tt_to_tucker(train, tol=1e-5)[0],
        "MERA": mera.random(key, (2,) * 6, 2),
        "Kronecker": sketch.ttrp(key, 12, 4),
    }


LEAVES = {
    "None": lambda x: None,
    "bool": lambda x: True,
    "int": lambda x: 3,
    "object": lambda x: object,
    "abstract": lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
    "array": lambda x: x,
    "numpy": np.asarray,
}


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("name", formats())
def test_formats_of_any_leaves_can_be_mapped_and_copied(name: str, leaf: str):
    t = jax.tree.map(LEAVES[leaf], formats()[name])
    expected = jax.tree.leaves(t, is_leaf=lambda x: x is None)
    for x in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert type(x) is type(t)
        found = jax.tree.leaves(x, is_leaf=lambda x: x is None)
        assert jax.tree.structure(x) == jax.tree.structure(t)
        for a, b in zip(found, expected, strict=True):
            assert (a == b) if leaf in ("None", "bool", "int", "object", "abstract") else True
            if leaf in ("array", "numpy"):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["TT", "TTMatrix", "Tucker", "MERA"])
def test_orbax_restores_formats_to_abstract_targets(name: str, tmp_path: Any):
    checkpoint = pytest.importorskip("orbax.checkpoint")
    t = formats()[name]
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=jnp.asarray(x).sharding), t
    )
    with checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "t", t)
        saver.wait_until_finished()
        back = saver.restore(tmp_path / "t", target)
    assert type(back) is type(t)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(t), strict=True):
        np.testing.assert_array_equal(a, b)
