"""Choice of format, shapes and ranks for a model, by size and by error."""

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tensorjax import nn, optim


def numbers(model: Any) -> int:
    return sum(p.size for p in jax.tree.leaves(nnx.state(model, nnx.Param)))


def decaying(n: int, m: int, share: float, seed: int = 0) -> nnx.Linear:
    """A dense layer whose singular values fall by a factor."""
    rng, k = np.random.default_rng(seed), min(n, m)
    u, v = (np.linalg.qr(rng.standard_normal((side, k)))[0] for side in (n, m))
    layer = nnx.Linear(n, m, rngs=nnx.Rngs(0))
    layer.kernel.set_value(jnp.asarray((u * share ** np.arange(k)) @ v.T, jnp.float32))
    return layer


def model(seed: int = 0) -> nnx.Sequential:
    rngs = nnx.Rngs(seed)
    train = nn.to_linear(nn.TTLinear(48, 60, rank=4, order=2, rngs=rngs))
    blocks = nnx.vmap(lambda key: nnx.Linear(60, 60, rngs=nnx.Rngs(key)))(
        jax.random.split(jax.random.key(seed), 2)
    )
    attention = nnx.MultiHeadAttention(2, 48, decode=False, rngs=rngs)
    embed = nnx.Embed(200, 48, rngs=rngs)
    return nnx.Sequential(
        embed, attention, decaying(48, 48, 0.7), train, blocks, nnx.Linear(60, 5, rngs=rngs)
    )


@pytest.mark.parametrize("init", ["svd", pytest.param("random", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "ratio",
    [pytest.param(1.5, marks=pytest.mark.slow), 5.0, pytest.param(12.0, marks=pytest.mark.slow)],
)
def test_a_model_gets_the_size_that_is_asked_for(ratio: float, init: Any):
    dense = model()
    rngs = nnx.Rngs(1) if init == "random" else None
    small = nn.tensorize(dense, ratio=ratio, init=init, rngs=rngs)
    choice = nn.choose(dense, ratio=ratio, init=init)
    assert numbers(small) <= choice.size <= numbers(dense) / ratio
    # What is known by spectra may come out smaller; ranks are steps.
    assert choice.size >= 0.85 * numbers(dense) / ratio
    if init == "svd":
        for path, certificate in nn.certificates(small).items():
            assert certificate.error <= choice.errors[path.removesuffix("/layer")] + 1e-5
    assert nn.summary(small)


def test_formats_follow_the_spectra():
    chosen = nn.choose(model(), tol=1e-3)
    kinds = {path: type(spec).__name__ for path, spec in chosen.items()}
    assert kinds["layers/2"] == "LowRank"
    assert kinds["layers/3"] == "TT"
    assert kinds["layers/0"] == kinds["layers/4"] == "NoneType"  # nothing to gain: dense
    small = nn.tensorize(model(), "auto", tol=1e-3)
    for certificate in nn.certificates(small).values():
        assert certificate.error <= 1e-3 == certificate.bound
    text = str(chosen)
    assert "layers/3" in text
    assert text.splitlines()[-1].split() == ["all", f"{chosen.size:,}"]


def test_the_best_layers_get_the_parameters():
    """At one size the sum of squared errors is below that of equal ranks."""
    dense = nnx.Sequential(decaying(40, 40, 0.5), decaying(40, 40, 0.95, 1))
    equal = nn.tensorize(dense, {"*": nn.LowRank(10)})
    chosen = nn.tensorize(dense, {"*": nn.LowRank()}, size=numbers(equal))
    assert numbers(chosen) <= numbers(equal)

    def lost(model: Any) -> float:
        return sum(c.error**2 for c in nn.certificates(model).values())

    assert lost(chosen) < 0.8 * lost(equal)


def test_rules_fix_formats_shapes_and_ranks():
    dense = model()
    rules = {
        "layers/0": nn.TT(rank=2, order=2),
        "layers/2": nn.TT(in_shape=(6, 8), out_shape=(8, 6)),
        "layers/3": nn.Tucker(order=2),
        "layers/4": nn.LowRank(),
        "*": None,
    }
    choice = nn.choose(dense, rules, size=numbers(dense) // 2)
    small = nn.tensorize(dense, choice)
    assert numbers(small) <= choice.size <= numbers(dense) // 2
    assert small.layers[0].ranks == (2,)
    assert small.layers[2].in_shape == (6, 8)
    assert isinstance(small.layers[3], nn.TuckerLinear)
    assert isinstance(small.layers[5], nnx.Linear)
    same = nn.tensorize(dense, rules, size=numbers(dense) // 2)
    assert nnx.graphdef(same) == nnx.graphdef(small)
    tied = nnx.Sequential(decaying(40, 40, 0.9), nnx.Linear(40, 40, rngs=nnx.Rngs(0)))
    tied.layers[1].kernel = tied.layers[0].kernel
    pair = nn.tensorize(tied, ratio=3)
    assert pair.layers[0].cores[0] is pair.layers[1].cores[0]
    assert numbers(tied) / 4 < numbers(pair) <= numbers(tied) / 3


@pytest.mark.parametrize(
    "fewer", [4.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (2.0, 8.0))]
)
def test_a_model_for_a_training_to_a_size_can_be_cut_to_it(fewer: float):
    """Layers stay dense only where the size at the end has room, so that no target is refused."""
    rngs = nnx.Rngs(0)
    layers = [nnx.Linear(n, m, rngs=rngs) for n, m in ((48, 60), (60, 60), (60, 5))]
    dense = nnx.Sequential(*layers)
    choice = nn.choose(dense, compress_to=fewer, init="random")
    final = nn.choose(dense, ratio=fewer, init="random")
    assert choice.keys() == final.keys()
    kinds = [type(s) for s in choice.values()]
    assert kinds == [type(s) for s in final.values()]
    assert nn.TTMatrix in kinds
    assert nn.LowRank not in kinds
    assert dict(nn.choose(dense, compress_to=fewer)) == dict(choice)  # its weights are random
    small = nn.tensorize(dense, choice, init="random", rngs=rngs)
    assert final.size < numbers(small) == choice.size <= 2 * numbers(dense) / fewer
    params = nnx.state(small, nnx.Param)
    state = optim.rank_adaptive(optax.adam(1e-3), compress_to=fewer, by=10).init(params)
    assert "nothing to prune" not in optim.status(state).advice
    with pytest.raises(ValueError, match="compress_to: expected at most"):
        nn.choose(dense, compress_to=1e6)


def test_random_weights_keep_their_norm_where_a_training_begins(rng) -> None:
    """Truncation would leave deep models little of the signal; what is trained is converted."""
    rngs, width = nnx.Rngs(int(rng.integers(99))), int(rng.integers(4, 7)) * 8
    stack = nnx.vmap(lambda key: nnx.Linear(width, width, rngs=nnx.Rngs(key)))
    fresh = {
        "embed": nnx.Embed(200, width, rngs=rngs),
        "conv": nnx.Conv(16, width, (3, 3), rngs=rngs),
        "general": nnx.LinearGeneral(width, (4, width // 4), rngs=rngs),
        "stack": stack(jax.random.split(jax.random.key(0), 2)),
    }
    for dense in (nnx.Dict(fresh), nnx.Dict(fresh | {"trained": decaying(width, width, 0.8)})):
        small = nn.tensorize(dense, compress_to=3)
        back, found = nn.detensorize(small), nn.certificates(small)
        assert found
        for path, certificate in found.items():
            name = path.split("/")[0]
            a, b = (
                np.asarray(getattr(m[name], "embedding" if name == "embed" else "kernel")[...])
                for m in (dense, back)
            )
            error = np.linalg.norm(a - b) / np.linalg.norm(a)
            assert certificate.error == pytest.approx(error, abs=1e-3), name
            if name == "trained":
                continue
            assert np.linalg.norm(b) == pytest.approx(np.linalg.norm(a), rel=1e-4), name
            layer = getattr(small[name], "layer", small[name])
            assert all(bool(jnp.all(gate[...] == 1)) for gate in layer.gates), name
    dense = nnx.Dict({"general": fresh["general"]})
    tucker = nn.tensorize(dense, nn.Tucker(), compress_to=3)
    assert isinstance(tucker["general"].layer, nn.TuckerLinear)
    a, b = (np.linalg.norm(m["general"].kernel[...]) for m in (dense, nn.detensorize(tucker)))
    assert b == pytest.approx(a, rel=1e-4)


@pytest.mark.slow
def test_a_training_by_default_that_learns_nothing_says_so() -> None:
    rngs = nnx.Rngs(0)
    dense = nnx.Sequential(nnx.Linear(24, 32, rngs=rngs), nnx.relu, nnx.Linear(32, 10, rngs=rngs))
    graph, params = nnx.split(nn.tensorize(dense, compress_to=2))
    x = jax.random.normal(jax.random.key(0), (64, 24), jnp.float32)
    y = jnp.arange(64) % 10
    optimizer = optim.rank_adaptive(optax.sgd(1e-6), compress_to=2, by=10)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            out = nnx.merge(graph, params)(x)
            return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params, value=value)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(20):
        params, state = step(params, state)
    found = optim.status(state)
    assert found.status == "collapsed"
    assert "learnt nothing" in found.advice


@pytest.mark.slow
def test_spectra_are_looked_at_before_a_training_too():
    dense = model()
    choice = nn.choose(dense, compress_to=5)
    assert isinstance(choice["layers/2"], nn.LowRank)
    assert isinstance(choice["layers/3"], nn.TT)
    small = nn.tensorize(dense, compress_to=5)
    assert numbers(dense) / 5 < numbers(small) <= choice.size <= numbers(dense) / 2.5
    rules = {"layers/3": nn.TT(in_shape=(6, 8)), "*": nn.LowRank()}
    kept = nn.choose(dense, rules, compress_to=3)
    assert kept["layers/3"].in_shape == (6, 8)  # type: ignore[union-attr]
    assert numbers(dense) / 3 < kept.size <= numbers(dense) / 1.5


def test_every_layer_has_candidates_or_is_named() -> None:
    """Of convolutions and embeddings TT-matrices are trains; what has no candidates says why."""
    rngs = nnx.Rngs(0)
    dense = nnx.Dict(
        conv=nnx.Conv(8, 12, (3, 3), rngs=rngs), embed=nnx.Embed(90, 16, rngs=rngs),
        linear=decaying(24, 40, 0.8),
    )  # fmt: skip
    by: list[dict[str, Any]] = [{"ratio": 1.2}, {"tol": 0.5}]
    for options in (*by, {"compress_to": 3}):
        choice = nn.choose(dense, {"*": nn.TTMatrix()}, **options)
        assert {type(found) for found in choice.values()} == {nn.TTMatrix}
        if "compress_to" in options:
            assert isinstance(nn.tensorize(dense, choice)["conv"], nn.TTConv)
    for options in by:
        with pytest.raises(ValueError, match=r"embed: expected TT, TTMatrix or LowRank .* Tucker"):
            nn.choose(dense, {"*": nn.Tucker()}, **options)
    wide = nnx.Dict(wide=nnx.Linear(2049, 2, rngs=rngs))
    for spec, found in (
        (nn.TTMatrix(in_shape=(2049, 1), out_shape=(1, 2)), True),
        (nn.Tucker(in_shape=(2049,)), False),
    ):
        for options in by:
            if found:
                assert len(nn.choose(wide, {"*": spec}, **options)) == 1
                continue
            with pytest.raises(ValueError, match=r"wide: expected modes .*2,049 .*give it a rank"):
                nn.choose(wide, {"*": spec}, **options)


class Blocks(nnx.Module):
    """Stacked blocks, and two heads that share a kernel."""

    def __init__(self, rngs: nnx.Rngs):
        keys = jax.random.split(rngs.params(), 2)
        self.blocks = nnx.vmap(lambda key: nnx.Linear(40, 40, rngs=nnx.Rngs(key)))(keys)
        self.heads = nnx.List([nnx.Linear(40, 40, rngs=rngs) for _ in range(2)])
        self.heads[1].kernel = self.heads[0].kernel

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.scan(lambda block, x: x + nnx.relu(block(x)), in_axes=(0, nnx.Carry),
                     out_axes=nnx.Carry)(self.blocks, x)  # fmt: skip
        return self.heads[0](x) + nnx.relu(self.heads[1](x))


@pytest.mark.parametrize("trained", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_matrices_by_default_are_cut_saved_and_exported(trained: bool, tmp_path: Any) -> None:
    """After a training by default, or with gates that are set to zero, whose program is small."""
    dense = Blocks(nnx.Rngs(0))
    fewer, steps = 3.0, 6

    def begun(seed: int) -> Any:
        small = nn.tensorize(Blocks(nnx.Rngs(seed)), compress_to=fewer)
        transform: Any = optax.adam(1e-2)
        if trained:
            transform = optim.rank_adaptive(transform, compress_to=fewer, by=4)
        return small, nnx.Optimizer(small, transform, wrt=nnx.Param)

    small, optimizer = begun(0)
    assert isinstance(small.blocks, nn.TTMatrixLinear)
    assert small.heads[0].cores[0] is small.heads[1].cores[0]
    x = jax.random.normal(jax.random.key(0), (32, 40), jnp.float32)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> jax.Array:
        value, slopes = nnx.value_and_grad(lambda m: jnp.mean((m(x) - x) ** 2))(model)
        optimizer.update(model, slopes, value=value)
        return value

    if trained:
        values = [float(step(small, optimizer)) for _ in range(steps)]
        assert values[-1] < values[0]
    else:
        for layer in (small.blocks, small.heads[0]):
            gate = layer.gates[0]
            gate.set_value(gate[...].at[..., gate.shape[-1] // 3 :].set(0))
    before = small(x)
    optim.shrink_model(small, optimizer)
    np.testing.assert_allclose(small(x), before, rtol=1e-4, atol=1e-5)
    assert numbers(small) <= numbers(dense) / fewer
    assert small.heads[0].cores[0] is small.heads[1].cores[0]
    optim.save(tmp_path / "step", small, optimizer)
    again, restored = begun(1)
    optim.load(tmp_path / "step", again, restored)
    np.testing.assert_array_equal(again(x), small(x))
    assert again.heads[0].cores[0] is again.heads[1].cores[0]
    for a, b in zip(*(jax.tree.leaves(nnx.state(o)) for o in (optimizer, restored)), strict=True):
        np.testing.assert_array_equal(a, b)
    back = nn.detensorize(small)
    assert back.heads[0].kernel is back.heads[1].kernel
    assert back.blocks.kernel.shape == (2, 40, 40)
    np.testing.assert_allclose(back(x), small(x), rtol=1e-3, atol=1e-4)


def test_one_rank_for_all():
    small = nn.tensorize(model(), rank=3)
    assert small.layers[3].ranks == (3, 3, 3)
    small = nn.tensorize(model(), {"layers/3": nn.Tucker(order=1), "*": nn.LowRank(2)}, rank=3)
    assert small.layers[3].ranks == (3, 3)
    assert small.layers[2].ranks == (2,)


def test_bad_targets_are_named():
    dense = model()
    with pytest.raises(ValueError, match="size: expected at least"):
        nn.tensorize(dense, size=100)
    with pytest.raises(ValueError, match="ratio: expected at most"):
        nn.tensorize(dense, ratio=1e6)
    for wrong in (-1, 0, float("nan"), "3", True):
        with pytest.raises(ValueError, match="ratio: expected a positive number"):
            nn.tensorize(dense, ratio=wrong)  # type: ignore
    every = "rank=, size=, ratio=, compress_to= and tol="
    with pytest.raises(ValueError, match=f"expected one of {every}, got size"):
        nn.tensorize(dense, size=1000, ratio=3)
    with pytest.raises(ValueError, match="got ratio and tol"):
        nn.tensorize(dense, ratio=3, tol=0.1)
    with pytest.raises(ValueError, match='rank: expected None with rules="auto"'):
        nn.tensorize(dense, "auto", rank=3)
    with pytest.raises(
        ValueError, match='expected size=, ratio=, tol= or compress_to= with "auto"'
    ):
        nn.tensorize(dense, "auto")
    with pytest.raises(ValueError, match="layers/2: expected a spec with its rank"):
        nn.tensorize(dense, {"layers/2": nn.CP()}, ratio=1.5)
    with pytest.raises(ValueError, match="size: expected one of size="):
        nn.choose(dense)
    with pytest.raises(ValueError, match='or "auto", got'):
        nn.choose(dense, "all", ratio=2)  # type: ignore
    with pytest.raises(TypeError, match="expected an NNX module"):
        nn.choose([dense], ratio=2)
    abstract = nnx.eval_shape(lambda: nnx.Sequential(nnx.Linear(40, 40, rngs=nnx.Rngs(0))))
    with pytest.raises(TypeError, match="layers/0: layer: expected concrete parameters"):
        nn.choose(abstract, ratio=2)
    assert nn.choose(abstract, ratio=2, init="random").size <= 820


def test_a_size_is_used_where_the_best_specs_are_far_apart(rng) -> None:
    for fold in range(3):
        width, inputs = int(rng.integers(16, 40)) * 8, int(rng.integers(5, 20))
        rngs = nnx.Rngs(fold)
        model = nnx.Sequential(nnx.Linear(inputs, width, rngs=rngs), nnx.relu,
                               nnx.Linear(width, width, rngs=rngs), nnx.relu,
                               nnx.Linear(width, 3, rngs=rngs))  # fmt: skip
        whole = sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
        for ratio in (float(rng.uniform(2, 5)), float(rng.uniform(5, 10))):
            for rules in ("auto", nn.TT()):
                found = nn.choose(model, rules, ratio=ratio, init="random")
                assert 0.85 * whole / ratio <= found.size <= whole / ratio
                if rules == "auto":  # its weights are random, whatever is asked for
                    assert dict(nn.choose(model, size=int(whole / ratio))) == dict(found)
                weights = [s for s in found.specs.values() if s is not None]
                assert all(np.max(s.rank) > 1 for s in weights)  # type: ignore[attr-defined]


def largest(dense: nnx.Module, name: str = "ratio", **options: Any) -> float:
    """The largest ratio that can be met, as the error of a larger one says."""
    with pytest.raises(ValueError, match=f"{name}: expected at most") as caught:
        nn.choose(dense, **{name: 1e6}, **options)
    found = re.search(r"at most ([\d.]+),", str(caught.value))
    assert found
    return float(found[1])


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3))])
def test_fresh_models_meet_all_sizes_that_any_format_can(seed: int) -> None:
    """One rank in the shapes by default does not reach the smallest; the limit named is true."""
    rng, rngs = np.random.default_rng(seed), nnx.Rngs(seed)
    n, m, k = (8 * int(rng.integers(3, 10)) for _ in range(3))
    dense = nnx.Sequential(nnx.Linear(n, m, rngs=rngs), nnx.Linear(m, k, rngs=rngs))
    trained = nnx.Sequential(decaying(n, m, 0.7), decaying(m, k, 0.7))
    whole, one, most = numbers(dense), largest(dense, init="random"), largest(dense)
    assert most > one
    assert most >= largest(trained)
    for ratio in (one, float(rng.uniform(one, most)), most):
        choice = nn.choose(dense, ratio=ratio)
        assert choice.size <= whole / ratio
        assert choice.errors.keys() == choice.keys()
    last = largest(dense, "compress_to")
    for fewer in (float(rng.uniform(one, last)), last):
        choice = nn.choose(dense, compress_to=fewer)
        assert choice.size <= 2 * whole / fewer
        small = nn.tensorize(dense, choice)
        assert numbers(small) <= choice.size
        # The size at the end can be met: it would be refused.
        optimizer = optim.rank_adaptive(optax.sgd(1e-3), compress_to=fewer, by=9)
        optimizer.init(nnx.state(small, nnx.Param))


@pytest.mark.parametrize("seed", range(4))
def test_small_sizes_are_met_by_matrices_of_full_rank(seed: int) -> None:
    """A side of few features is factored too before low rank takes the place of TT-matrices."""
    rng = np.random.default_rng(seed)
    widths = [64, *(8 * rng.integers(2, 5, 2)), 64]
    wide = [16 * int(n) for n in rng.integers(6, 12, 2)]
    sizes = [widths[0], wide[0], int(widths[1]), wide[1], widths[3]]
    pairs = list(itertools.pairwise(sizes))
    dense = nnx.Sequential(*(nnx.Linear(a, b, rngs=nnx.Rngs(seed)) for a, b in pairs))

    def least(spec: nn.TTMatrix) -> int:
        made = (spec.linear(a, b, rngs=nnx.Rngs(0)) for a, b in pairs)
        return sum(numbers(layer) for layer in made)

    whole, factored = least(nn.TTMatrix(rank=1)), least(nn.TTMatrix(rank=1, order=2))
    assert factored < whole
    fewer = numbers(dense) / ((whole + factored) / 2)
    for init in ("svd", "random"):
        choice = nn.choose(dense, compress_to=fewer, init=init)
        assert all(isinstance(spec, nn.TTMatrix) and spec.order == 2 for spec in choice.values())
    small = nn.tensorize(dense, compress_to=fewer)
    for layer in small.layers:
        assert np.linalg.matrix_rank(nn.to_linear(layer).kernel[...]) == min(
            layer.in_features, layer.out_features
        )


def test_errors_of_fresh_weights_are_bounded_too(rng) -> None:
    rngs, width = nnx.Rngs(int(rng.integers(99))), int(rng.integers(20, 60))
    dense = nnx.Dict(
        wide=nnx.Linear(width, 75, rngs=rngs), attention=nnx.MultiHeadAttention(
            2, 48, decode=False, rngs=rngs), conv=nnx.Conv(12, 20, (3, 3), rngs=rngs),
        embed=nnx.Embed(150, 32, rngs=rngs), last=nnx.Linear(32, 3, rngs=rngs),
    )  # fmt: skip
    choice = nn.choose(dense, ratio=float(rng.uniform(1.5, 3)))
    assert choice.errors.keys() == choice.keys()
    found = nn.certificates(nn.tensorize(dense, choice))
    assert len(found) == sum(spec is not None for spec in choice.values())
    for path, certificate in found.items():
        assert 0 < certificate.error <= choice.errors[path.removesuffix("/layer")] + 1e-5
    assert all(choice.errors[path] == 0 for path, spec in choice.items() if spec is None)
    assert not nn.choose(dense, ratio=2, init="random").errors


@pytest.mark.parametrize(
    ("init", "window"),
    [("svd", (3, 3)), *(pytest.param(i, w, marks=pytest.mark.slow)
                        for i, w in [("random", (3, 3)), ("svd", (5,)), ("random", (1,))])],
)  # fmt: skip
def test_convolutions_get_formats_and_ranks_too(rng, init: Any, window: tuple[int, ...]) -> None:
    rngs, inside = nnx.Rngs(0), int(rng.integers(12, 24))
    conv = nn.to_conv(nn.TTConv(inside, 20, window, rank=2, rngs=rngs))
    other = nnx.Conv(20, 24, window, strides=2, rngs=rngs)
    dense = nnx.Sequential(conv, other, nnx.Linear(24, 30, rngs=rngs))
    ratio = float(rng.uniform(2, 5)) if len(window) == 2 else 1.5
    choice = nn.choose(dense, ratio=ratio, init=init)
    given = {"init": init, "rngs": rngs} if init == "random" else {}
    small = nn.tensorize(dense, choice, **given)
    assert numbers(small) <= choice.size <= numbers(dense) / ratio
    x = rng.standard_normal((2, *[7] * len(window), inside)).astype(np.float32)
    assert small(x).shape == dense(x).shape
    # What has small ranks is kept as it is, at its size.
    exact = nn.choose(nnx.Sequential(conv), tol=1e-4)
    assert exact.sizes["layers/0"][1] <= nn.TT(2).from_conv(conv)[0].numbers
    found = nn.tensorize(nnx.Sequential(conv), exact)
    np.testing.assert_allclose(found(x), conv(x), atol=1e-4)
    # Formats that are given are kept; others are named.
    kept = nn.choose(dense, {"layers/1": nn.Tucker()}, ratio=1.3)
    assert isinstance(kept["layers/1"], nn.Tucker)
    with pytest.raises(ValueError, match="layers/1: expected a spec with its rank"):
        nn.choose(dense, {"layers/1": nn.CP()}, ratio=1.3)
