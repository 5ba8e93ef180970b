"""Tensorised layers are found by their names, and their size is a polynomial of the ranks."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tensorjax import optim
from tensorjax.optim._stacked_layers import Stacks
from tensorjax.optim._tensorised_layers import find


def ones(*shape: int) -> jax.Array:
    return jnp.ones(shape, jnp.float32)


TRAIN = {"cores": [ones(1, 4, 3), ones(3, 5, 2), ones(2, 6, 1)], "gates": [ones(3), ones(2)]}
LOOKUP = {"cores": [ones(1, 4, 2, 3), ones(3, 5, 3, 1)], "gates": [ones(3)]}
TUCKER = {"core": ones(2, 3), "factors": [ones(6, 2), ones(7, 3)], "gates": [ones(2), ones(3)]}
CP = {"factors": [ones(6, 4), ones(7, 4)], "gates": [ones(4)]}
SINGLE = {"cores": [ones(1, 9, 1)], "gates": []}
EVERY = {"train": TRAIN, "lookup": LOOKUP, "tucker": TUCKER, "cp": CP, "single": SINGLE,
         "dense": {"kernel": ones(3, 3), "bias": ones(3)}}  # fmt: skip
NUMBERS = {"train": 12 + 30 + 12, "lookup": 24 + 45, "tucker": 6 + 12 + 21, "cp": 52, "single": 9}


@jax.tree_util.register_pytree_with_keys_class
class TwoKeys:
    """A node of two children, whose keys no dict could hold side by side in a sorted order."""

    def __init__(self, first: Any, second: Any, names: tuple[Any, Any]) -> None:
        self.both, self.names = (first, second), names

    def tree_flatten_with_keys(self) -> Any:
        keys = (jax.tree_util.DictKey(name) for name in self.names)
        return tuple(zip(keys, self.both, strict=True)), self.names

    @classmethod
    def tree_unflatten(cls, names: Any, both: Any) -> "TwoKeys":
        return cls(*both, names)


def test_size_and_ranks_of_every_format():
    for name, numbers in NUMBERS.items():
        assert optim.size({name: EVERY[name]}) == numbers
    assert optim.size(EVERY) == sum(NUMBERS.values())
    assert optim.size(EVERY, measure="bytes") == 4 * sum(NUMBERS.values())
    everything = sum(x.size for x in jax.tree.leaves(EVERY))
    assert optim.size(EVERY, everything=True) == everything
    assert optim.size(EVERY, everything=True, measure="bytes") == 4 * everything
    assert optim.ranks(EVERY) == {
        "cp": (4,), "lookup": (3,), "single": (), "train": (3, 2), "tucker": (2, 3),
    }  # fmt: skip
    assert optim.size({"kernel": ones(2, 2)}) == 0
    assert optim.ranks(TRAIN) == {"(top)": (3, 2)}


def test_dead_gates_are_not_counted():
    gates = [jnp.array([1.0, 0.0, 0.2]), jnp.array([0.005, 0.3])]
    assert optim.size(TRAIN | {"gates": gates}) == 4 * 2 + 5 * 4 + 6 * 2
    assert optim.size(TRAIN | {"gates": gates}, threshold=1e-2) == 4 * 2 + 5 * 2 + 6
    assert optim.ranks(TRAIN | {"gates": gates}, threshold=0.25) == {"(top)": (1, 1)}
    empty = {"gates": [gates[0], jnp.zeros(2)]}
    assert optim.size(TRAIN | empty) == 0
    for measure in ("numbers", "bytes"):
        for everything in (False, True):
            f = lambda p, m=measure, e=everything: optim.size(p, measure=m, everything=e)  # noqa: E731
            assert float(jax.jit(f)(TRAIN | {"gates": gates})) == f(TRAIN | {"gates": gates})
            assert float(jax.jit(f)(TRAIN | empty)) == f(TRAIN | empty)
    with pytest.raises(TypeError, match="ranks: how many gates live"):
        jax.jit(optim.ranks)(TRAIN)


def flops(f: Any, *args: Any) -> float:
    return jax.jit(f).lower(*args).compile().cost_analysis()["flops"]


def test_flops_are_those_of_the_products_described():
    rows, shapes = 50, [(1, 6, 5), (5, 8, 7), (7, 4, 6), (6, 10, 1)]
    cores = [jnp.ones(s, jnp.float32) for s in shapes]
    layer = {"cores": cores, "gates": [jnp.ones(s[2], jnp.float32) for s in shapes[:-1]]}

    def apply(x: jax.Array, cores: Any) -> jax.Array:
        a = jnp.tensordot(cores[0], cores[1], 1).reshape(48, 7)
        b = jnp.tensordot(cores[2], cores[3], 1).reshape(7, 40)
        return (x @ a) @ b

    counted = optim.size(layer, measure="flops", rows=rows)
    assert counted == 2 * (48 * 5 * 7 + 40 * 7 * 6 + rows * 7 * (48 + 40))
    assert counted == pytest.approx(flops(apply, jnp.ones((rows, 48), jnp.float32), cores), rel=0.1)
    # A bias tells where the outputs begin; without one the most even split is taken.
    moved = layer | {"bias": jnp.zeros(10)}
    assert optim.size(moved, measure="flops") != optim.size(layer, measure="flops")
    # A TT-matrix with a bias is a linear layer, core by core; a lookup has none.
    layer = {"cores": [jnp.ones((1, 6, 3, 5)), jnp.ones((5, 4, 7, 1))], "gates": [jnp.ones(5)]}
    assert optim.size(layer | {"bias": jnp.zeros(20)}, measure="flops", rows=rows) == (
        2 * rows * (6 * 3 * 4 * 5 + 3 * 4 * 7 * 5)
    )
    # Without a bias only the layer knows: it is refused, where it would count as a lookup.
    from flax import nnx

    from tensorjax import nn

    for given in (
        nn.from_linear(nnx.Linear(16, 16, use_bias=False, rngs=nnx.Rngs(0)), rank=4,
                       format="tt-matrix")[0],
        nnx.vmap(lambda key: nn.TTMatrixLinear(16, 16, rank=4, use_bias=False, rngs=nnx.Rngs(key)))(
            jax.random.split(jax.random.key(0), 2)),
    ):  # fmt: skip
        params = nnx.state(given, nnx.Param)
        assert optim.size(params) > 0
        init = optim.rank_adaptive(optax.sgd(0.1), size=9, by=9, measure="flops").init
        prune = functools.partial(optim.prune, target=9, measure="flops")
        for call in (functools.partial(optim.size, measure="flops"), init, prune):
            with pytest.raises(ValueError, match=r"cores/0, a core of a linear TT-matrix"):
                call(params)
    table = nn.TTEmbedding(16, 16, rank=4, order=2, rngs=nnx.Rngs(0))
    assert optim.size(nnx.state(table, nnx.Param), measure="flops") > 0
    for name in ("lookup", "tucker", "cp"):
        one, two = (optim.size(EVERY[name], measure="flops", rows=n) for n in (1, 2))
        assert 0 < one < two <= 2 * one
    with pytest.raises(ValueError, match="everything: expected measure"):
        optim.size(layer, measure="flops", everything=True)


def test_any_container_will_do():
    from flax import nnx
    from flax.core import freeze

    class Gated(nnx.Module):
        def __init__(self) -> None:
            self.cores = nnx.List([nnx.Param(c) for c in TRAIN["cores"]])
            self.gates = nnx.List([nnx.Param(g) for g in TRAIN["gates"]])
            self.bias = nnx.Param(jnp.zeros(6))

    state = nnx.state(Gated(), nnx.Param)
    strings = {k: {str(n): x for n, x in enumerate(v)} for k, v in TRAIN.items()}
    for tree in (state, nnx.to_pure_dict(state), {"params": strings}, freeze({"params": strings}),
                 (TRAIN,), [None, {"a": TRAIN}]):  # fmt: skip
        assert optim.size(tree) == NUMBERS["train"]
        assert list(optim.ranks(tree).values()) == [(3, 2)]
    labels = nnx.to_pure_dict(optim.labels(state))
    assert labels == {
        "bias": "dense",
        "cores": dict.fromkeys(range(3), "core"),
        "gates": {0: "gate", 1: "gate"},
    }
    twelve = {"cores": {str(k): ones(1, 2, 1) for k in range(12)},
              "gates": {str(k): ones(1) for k in range(11)}}  # fmt: skip
    assert optim.ranks(twelve) == {"(top)": (1,) * 11}  # 10 after 9, not after 1


def test_keys_of_any_kind_lead_to_the_gates(rng) -> None:
    """Tuples, negative integers, fractions and names with digits; from the state as well."""

    def drawn() -> Any:
        shapes = jax.tree.map(np.shape, TRAIN, is_leaf=lambda x: hasattr(x, "shape"))
        return {part: [jnp.asarray(rng.random(s), jnp.float32) for s in shapes[part]]
                for part in ("cores", "gates")}  # fmt: skip

    keys: dict[str, list[Any]] = {
        "tuples": [("enc", 1), ("enc", 0), ("dec", int(rng.integers(-9, 9)))],
        "integers": [-1, 0, int(rng.integers(2, 99)), -int(rng.integers(2, 99))],
        "numbers": [0.5, 2, -float(rng.random())],
        "truths": [True, False],
        "names": ["10", "9", "-1", "a/b", "x"],
        "none": [None],
    }
    params: Any = {kind: {key: drawn() for key in found} for kind, found in keys.items()}
    params["stack"] = {(-1, "s"): stacked(drawn(), 2)}
    params["list"] = [drawn() for _ in range(11)]
    optimizer = optim.rank_adaptive(optax.adam(1e-2), compress_to=1.5, by=4)
    state = optimizer.init(params)
    layout = find(Stacks.of(params).split(params))
    numbered = {place: n for n, place in enumerate(layout.gates)}
    assert layout.of_gates(layout.by_path(numbered)) == numbered
    for kind in keys:
        for layer in params[kind].values():
            layer["gates"][0] = layer["gates"][0].at[1].set(0)
    small, state = optim.shrink(params, state)
    assert small["tuples"]["enc", 1]["gates"][0].shape == (2,)
    moves, _ = jax.eval_shape(  # the state has shrunk along
        lambda p, s: optimizer.update(p, s, p, value=jnp.float32(1.0)), small, state
    )
    assert jax.tree.map(np.shape, moves) == jax.tree.map(np.shape, small)


@pytest.mark.parametrize("names", [("7", "07"), ("007", "7"), (True, "1")])
def test_keys_that_count_as_one_are_refused(names: tuple[Any, str]) -> None:
    params = {"x": {names[0]: TRAIN}, "y": {names[1]: TRAIN}}
    assert optim.size(params) == 2 * NUMBERS["train"]
    both: Any = [{"x": TRAIN}, TwoKeys(TRAIN, TRAIN, names)]
    optimizer = optim.rank_adaptive(optax.adam(1e-2), compress_to=1.5, by=4)
    for call in (optim.size, optim.ranks, optim.labels, optimizer.init, optim.shrink):
        with pytest.raises(ValueError, match=r"a path of its own .* rename one"):
            call(both)


def test_a_layer_in_a_stacked_one_is_not_taken_for_a_copy() -> None:
    params = {"blocks": stacked(TRAIN, 2) | {"1": dict(TRAIN)}}
    with pytest.raises(ValueError, match="two at 'blocks/1/cores/0'"):
        optim.rank_adaptive(optax.adam(1e-2)).init(params)
    named = {"blocks": stacked(TRAIN, 2) | {"inner": dict(TRAIN)}}
    optim.rank_adaptive(optax.adam(1e-2)).init(named)


def test_labels():
    assert optim.labels(EVERY) == {
        "train": {"cores": ["core"] * 3, "gates": ["gate"] * 2},
        "lookup": {"cores": ["core"] * 2, "gates": ["gate"]},
        "tucker": {"core": "core", "factors": ["core"] * 2, "gates": ["gate"] * 2},
        "cp": {"factors": ["core"] * 2, "gates": ["gate"]},
        "single": {"cores": ["core"], "gates": []},
        "dense": {"kernel": "dense", "bias": "dense"},
    }


def test_modules_that_have_the_names_of_parts_are_dense():
    dense = {"kernel": ones(3, 3), "bias": ones(3)}
    tree = {"lstm": {"gates": dense}, "cpu": {"cores": dense, "factors": dense}, "tt": TRAIN,
            "glu": {"gates": [ones(3, 3)]}}  # fmt: skip
    assert optim.ranks(tree) == {"tt": (3, 2)}
    labels = optim.labels(tree)
    assert set(jax.tree.leaves([labels[k] for k in ("lstm", "cpu", "glu")])) == {"dense"}
    with pytest.raises(ValueError, match=r"^\(top\): expected .* got gates alone"):
        optim.ranks({"gates": [ones(3)]})


def test_layers_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="a: expected 2 gates"):
        optim.size({"a": TRAIN | {"gates": TRAIN["gates"][:1]}})
    with pytest.raises(ValueError, match="a/gates/1: expected one number for every index"):
        optim.size({"a": TRAIN | {"gates": [ones(3), ones(3)]}})
    with pytest.raises(TypeError, match="gates/0: expected real floating"):
        optim.size(TRAIN | {"gates": [jnp.ones(3, int), ones(2)]})
    with pytest.raises(ValueError, match="vmap the optimiser"):
        optim.ranks(CP | {"gates": [np.stack([g, g]) for g in CP["gates"]]})
    with pytest.raises(ValueError, match="measure: expected one of"):
        optim.size(TRAIN, measure="seconds")  # type: ignore


# Stacked layers ----------------------------------------------------------------------------------


def stacked(tree: Any, copies: int = 3) -> Any:
    return jax.tree.map(lambda x: np.stack([x] * copies), tree)


def test_stacked_layers_count_as_single_ones():
    tree = {"blocks": stacked(TRAIN), "cp": stacked(stacked(CP, 2)), "one": TRAIN, "bias": ones(3)}
    each = optim.ranks(TRAIN)["(top)"]
    found = optim.ranks(tree)
    assert [found[f"blocks/{k}"] for k in range(3)] == [each] * 3
    assert found["one"] == each
    assert len([name for name in found if name.startswith("cp/")]) == 6
    assert optim.size(tree) == 4 * optim.size(TRAIN) + 6 * optim.size(CP)
    assert set(jax.tree.leaves(optim.labels(tree)["blocks"])) == {"core", "gate"}


def test_stacked_layers_train_as_single_ones_do():
    """Drawn gates and gradients: the same moves, sizes and shrunk arrays, layer by layer."""
    rng = np.random.default_rng(0)
    single = [jax.tree.map(lambda x: rng.random(x.shape).astype("f"), TRAIN) for _ in range(3)]
    slopes = [jax.tree.map(lambda x: rng.normal(size=x.shape).astype("f"), TRAIN) for _ in single]
    optimizer = optim.rank_adaptive(optax.adam(0.1), threshold=0.3, size_weight=1.0)

    def trained(params: Any, gradients: Any) -> Any:
        state = optimizer.init(params)
        for _ in range(4):
            moves, state = optimizer.update(gradients, state, params, value=1.0)
            params = optax.apply_updates(params, moves)
        return params, state

    def stack(trees: Any) -> Any:
        return {"blocks": jax.tree.map(lambda *x: np.stack(x), *trees), "rest": ones(2)}

    whole, state = trained(stack(single), stack(slopes))
    numbered = {str(k): tree for k, tree in enumerate(single)} | {"rest": ones(2)}
    alone, _ = trained(numbered, dict(zip("012", slopes, strict=True)) | {"rest": ones(2)})
    for k in range(3):
        one = jax.tree.map(lambda x, k=k: x[k], whole["blocks"])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, alone[str(k)])
    assert optim.size(whole) == optim.size(alone) < optim.size(stack(single))
    small, cut = optim.shrink(whole, state)
    most = np.max([optim.ranks(whole)[f"blocks/{k}"] for k in range(3)], axis=0)
    assert [g.shape for g in small["blocks"]["gates"]] == [(3, n) for n in most]
    assert optim.ranks(small) == optim.ranks(whole)
    slopes = jax.tree.map(np.ones_like, small)
    assert optimizer.update(slopes, cut, small, value=1.0)[0]["rest"].shape == (2,)
