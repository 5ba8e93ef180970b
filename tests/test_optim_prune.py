"""`optim.canonical` and `optim.prune`: ranks cut to a size at once."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tensorjax import optim


def train(rng: np.random.Generator, shapes, dtype=np.float64) -> dict:
    """A train with gates that are not one."""
    cores = [rng.standard_normal(s) for s in shapes]
    if np.issubdtype(dtype, np.complexfloating):
        cores = [c + 1j * rng.standard_normal(c.shape) for c in cores]
    gates = [jnp.asarray(rng.uniform(0.3, 2.0, s[-1]), jnp.zeros(0, dtype).real.dtype)
             for s in shapes[:-1]]  # fmt: skip
    return {"cores": [jnp.asarray(c, dtype) for c in cores], "gates": gates}


def dense(layer: dict) -> np.ndarray:
    """All entries of a train, a Tucker or a CP layer."""
    wide = jax.tree.map(lambda x: np.asarray(x, np.result_type(x.dtype, np.float64)), layer)
    if "cores" in wide:
        out = np.ones((1, 1))
        for core, gate in itertools.zip_longest(wide["cores"], wide["gates"]):
            core = core.reshape(core.shape[0], -1, core.shape[-1])
            out = np.tensordot(out, core if gate is None else core * gate, 1)
            out = out.reshape(1, -1, out.shape[-1])
        return out.ravel()
    if "core" in wide:
        out = wide["core"]
        for factor, gate in zip(wide["factors"], wide["gates"], strict=True):
            # The first axis goes to the end, so that after all they are in order again.
            out = np.tensordot(out, (factor * gate).reshape(-1, gate.size), (0, 1))
        return out.ravel()
    (gate,) = wide["gates"]
    a, b = (f.reshape(-1, gate.size) for f in wide["factors"])
    return ((a * gate) @ b.T).ravel()


SHAPES = {
    "train": [(1, 4, 3), (3, 5, 4), (4, 3, 2), (2, 6, 1)],
    "matrix": [(1, 2, 3, 3), (3, 4, 2, 5), (5, 3, 2, 1)],
}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_layers_stay_what_they_are(rng, kind, dtype) -> None:
    layer = train(rng, SHAPES[kind], dtype)
    found = optim.canonical({"a": layer, "bias": jnp.ones(3)})
    assert found["bias"].shape == (3,)
    for new, old in zip(jax.tree.leaves(found["a"]), jax.tree.leaves(layer), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    assert all((gate == 1).all() for gate in found["a"]["gates"])
    whole = dense(layer)
    error = np.linalg.norm(dense(found["a"]) - whole) / np.linalg.norm(whole)
    assert error < 20 * jnp.finfo(dtype).eps


def test_singular_values_go_to_both_sides_of_a_bond(rng) -> None:
    layer = train(rng, SHAPES["train"])
    whole = dense(layer).reshape(4, 5, 3, 6)
    cores = [np.asarray(c) for c in optim.canonical(layer)["cores"]]
    for bond in (1, 2, 3):
        left, right = np.ones((1, 1)), np.ones((1, 1))
        for core in cores[:bond]:
            left = np.tensordot(left, core, 1).reshape(-1, core.shape[-1])
        for core in reversed(cores[bond:]):
            right = np.tensordot(core, right, 1).reshape(core.shape[0], -1)
        rows = math.prod(whole.shape[:bond])
        values = np.linalg.svd(whole.reshape(rows, -1), compute_uv=False)[: left.shape[1]]
        np.testing.assert_allclose(left.T @ left, np.diag(values), atol=1e-12 * values[0])
        np.testing.assert_allclose(right @ right.T, np.diag(values), atol=1e-12 * values[0])


def test_indices_of_rounding_error_die(rng) -> None:
    layer = train(rng, [(1, 4, 3), (3, 5, 1)])
    twice = {
        "cores": [jnp.concatenate([layer["cores"][0]] * 2, axis=2),
                  jnp.concatenate([layer["cores"][1]] * 2, axis=0)],
        "gates": [jnp.concatenate([layer["gates"][0]] * 2)],
    }  # fmt: skip
    found = optim.canonical(twice)
    np.testing.assert_array_equal(found["gates"][0], [1, 1, 1, 0, 0, 0])
    np.testing.assert_allclose(dense(found), dense(twice), atol=1e-12)
    small, _ = optim.shrink(found)
    np.testing.assert_allclose(dense(small), dense(twice), atol=1e-12)
    nothing = {**layer, "cores": [jnp.zeros_like(core) for core in layer["cores"]]}
    nothing = optim.canonical(nothing)
    assert not dense(nothing).any()
    np.testing.assert_array_equal(nothing["gates"][0], [1, 0, 0])


def test_coarse_numbers_lose_no_rank(rng) -> None:
    layer = train(rng, [(1, 256, 8), (8, 128, 1)], jnp.bfloat16)
    found = optim.canonical(layer)
    assert optim.ranks(found) == {"(top)": (8,)}
    assert np.linalg.norm(dense(found) - dense(layer)) < 0.02 * np.linalg.norm(dense(layer))


def test_dead_layers_stay_dead(rng) -> None:
    layer = train(rng, SHAPES["train"])
    dead = {**layer, "gates": [jnp.zeros_like(layer["gates"][0]), *layer["gates"][1:]]}
    for new, old in zip(*map(jax.tree.leaves, (optim.canonical(dead), dead)), strict=True):
        np.testing.assert_array_equal(new, old)


def test_factors_of_tucker_become_isometries(rng) -> None:
    layer = {
        "core": jnp.asarray(rng.standard_normal((2, 3, 9))),
        "factors": [jnp.asarray(rng.standard_normal(s)) for s in ((5, 2), (2, 3, 3), (4, 3, 9))],
        "gates": [jnp.asarray(rng.uniform(0.5, 2, n)) for n in (2, 3, 9)],
    }
    found = optim.canonical(layer)
    np.testing.assert_allclose(dense(found), dense(layer), atol=1e-12)
    assert [int((g > 0).sum()) for g in found["gates"]] == [2, 3, 6]  # no more than 2 · 3
    core = np.asarray(found["core"])
    for k, (factor, gate) in enumerate(zip(found["factors"], found["gates"], strict=True)):
        live = np.asarray(factor).reshape(-1, gate.size)[:, np.asarray(gate) > 0]
        np.testing.assert_allclose(live.T @ live, np.eye(live.shape[1]), atol=1e-12)
        rows = np.moveaxis(core, k, 0).reshape(core.shape[k], -1)
        gram = rows @ rows.T
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-12 * gram.max())
        assert (np.diff(np.diag(gram)) <= 1e-12 * gram.max()).all()


def test_factors_of_cp_have_no_other_basis(rng) -> None:
    layer = {"factors": [jnp.asarray(rng.standard_normal((n, 2))) for n in (3, 4)],
             "gates": [jnp.array([0.5, 2.0])]}  # fmt: skip
    for new, old in zip(*map(jax.tree.leaves, (optim.canonical(layer), layer)), strict=True):
        np.testing.assert_array_equal(new, old)


def test_what_cannot_be_brought_to_canonical_form_is_named(rng) -> None:
    layer = train(rng, SHAPES["train"])
    broken = {**layer, "cores": [layer["cores"][0].at[0, 0, 0].set(np.nan), *layer["cores"][1:]]}
    with pytest.raises(ValueError, match="expected finite numbers, got NaN or Inf in head"):
        optim.canonical({"head": broken})
    mixed = {**layer, "cores": [layer["cores"][0].astype(complex), *layer["cores"][1:]]}
    with pytest.raises(ValueError, match="all real or all complex, got both in head"):
        optim.canonical({"head": mixed})
    large = jax.tree.map(lambda x: 3e4 * jnp.sign(x).astype(jnp.float16), layer)
    with pytest.raises(ValueError, match="exceed float16"):
        optim.canonical(large)
    with pytest.raises(ValueError, match="at least one tensorised layer with gates"):
        optim.canonical({"w": jnp.ones(3)})
    with pytest.raises(TypeError, match="outside the transformation"):
        jax.jit(optim.canonical)(layer)


def gates_of(*values) -> dict:
    """A train of modes 4, 5, 6 with these gates."""
    first, second = (jnp.asarray(v, jnp.float32) for v in values)
    cores = [jnp.ones((1, 4, first.size)), jnp.ones((first.size, 5, second.size)),
             jnp.ones((second.size, 6, 1))]  # fmt: skip
    return {"cores": cores, "gates": [first, second]}


def worth_of(layer: dict, *values) -> dict:
    return {**layer, "gates": [jnp.asarray(v, jnp.float32) for v in values]}


def test_the_least_important_for_its_size_dies_first() -> None:
    layer = gates_of([1, 1, 1], [1, 1])
    # An index of the first bond is 4 + 5 · 2 = 14 numbers, one of the second 5 · 3 + 6 = 21.
    worth = worth_of(layer, [3.0, 1.5, 9.0], [1.9, 4.0])
    assert optim.size(layer) == 54
    steps = []
    for target in range(54, 14, -1):
        small = optim.prune(layer, target, importance=worth)
        assert optim.size(small) <= target
        steps.append((optim.size(small), tuple(optim.ranks(small)["(top)"])))
    # 1.9 / 21 before 1.5 / 14; then an index of the first bond is 9 numbers.
    assert list(dict.fromkeys(steps)) == [
        (54, (3, 2)), (33, (3, 1)), (24, (2, 1)), (15, (1, 1)),
    ]  # fmt: skip
    np.testing.assert_array_equal(optim.prune(layer, 24, importance=worth)["gates"][0], [1, 0, 1])


def test_gates_weigh_importance_and_the_dead_stay_dead() -> None:
    layer = gates_of([2.0, 0.5, 0.0], [1.0, 1.0])
    worth = worth_of(layer, [1.0, 4.0, 100.0], [50.0, 60.0])
    small = optim.prune(layer, 30, importance=worth)
    # 2² · 1 against 0.5² · 4: the second is less, whatever stands at the dead one.
    np.testing.assert_array_equal(small["gates"][0], [2.0, 0.0, 0.0])
    np.testing.assert_array_equal(optim.prune(layer, 30)["gates"][0], [2.0, 0.0, 0.0])
    again = optim.prune(layer, 1000)
    for new, old in zip(*map(jax.tree.leaves, (again, layer)), strict=True):
        np.testing.assert_array_equal(new, old)


def test_sizes_are_those_of_the_measure() -> None:
    layer = gates_of([1, 1, 1], [1, 1])
    small = optim.prune(layer, 200, measure="bytes")
    assert optim.size(small, measure="bytes") <= 200
    small = optim.prune(layer, 200, measure="flops", rows=3)
    assert optim.size(small, measure="flops", rows=3) <= 200


def test_layers_share_one_target(rng) -> None:
    params = {"a": gates_of([1, 1, 1], [1, 1]), "b": gates_of([1, 1], [1, 1, 1])}
    worth = {
        "a": worth_of(params["a"], [9, 9, 9], [9, 9]),
        "b": worth_of(params["b"], [1, 1], [1, 1, 1]),
    }
    small = optim.prune(params, optim.size(params["a"]) + 15, importance=worth)
    assert optim.ranks(small) == {"a": (3, 2), "b": (1, 1)}
    # Moments are cut with what has died.
    small, state = optim.shrink(small, optax.adam(1e-3).init(params))
    assert state[0].mu["b"]["cores"][1].shape == (1, 5, 1)


def test_bad_importance_and_targets_are_named() -> None:
    layer = gates_of([1, 1, 1], [1, 1])
    with pytest.raises(ValueError, match="target: expected at least 15, the size at rank one"):
        optim.prune(layer, 14)
    for target in (math.nan, -1, None, "x", True):
        with pytest.raises(ValueError, match="target: expected a number"):
            optim.prune(layer, target)
    for gate in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"gates >= 0 and finite, got .* in gates/1"):
            optim.prune(gates_of([1, 1, 1], [1, gate]), 1000)
    with pytest.raises(ValueError, match=r"gates/0, shape \(3,\), got \(2,\)"):
        optim.prune(layer, 20, importance=worth_of(layer, [1, 1], [1, 1]))
    with pytest.raises(ValueError, match=r"gates/0, shape .* got nothing"):
        optim.prune(layer, 20, importance={"other": jnp.ones(3)})
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="importance: expected numbers >= 0"):
            optim.prune(layer, 20, importance=worth_of(layer, [1, bad, 1], [1, 1]))
    with pytest.raises(TypeError, match="outside the transformation"):
        jax.jit(lambda p: optim.prune(p, 20))(layer)
