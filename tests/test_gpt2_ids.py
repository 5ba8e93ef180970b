"""Ids and targets that a compiled GPT-2 cannot refuse, and sums of gradients, by layout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="the models have an extra of their own")

from flax import nnx
from jax.sharding import PartitionSpec as P

from tensorjax import _ids, nn, parallel
from tensorjax.models import gpt2
from tensorjax.models.gpt2 import GPT2, GPT2Config

VOCABULARY = 121  # padded to 128 rows, which are split
LAYOUTS = {
    "single": (),
    "2d": (2, 2),
    "1d+sequence": (1, 4),
    "1d": (1, 4),
    "fsdp+tp": (4, 2),
    "summa": (2, 4),
    "2.5d": (2, 2, 2),
}
FEW = ("single", "2d", "1d+sequence")
BY_LAYOUT = [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in LAYOUTS]


@functools.cache
def model(**options) -> GPT2:
    config = GPT2Config.tiny(vocabulary=VOCABULARY, heads=8, layers=1)
    key = jax.random.key(1, impl="unsafe_rbg")
    return GPT2(config, rngs=nnx.Rngs(key), **options)


def layout_of(name: str) -> parallel.Layout:
    sizes = LAYOUTS[name]
    if not sizes:
        return parallel.Single()
    return parallel.layout(name, parallel.mesh(*sizes[:2], depth=sizes[2] if sizes[2:] else 1))


def by_layout(model: GPT2, layout: parallel.Layout):
    """(parameters, tokens, targets) ↦ (sum of losses, count), and the parameters where they lie."""
    graph, params = nnx.split(model)
    specs = jax.tree.map(lambda axes: layout.spec(tuple(axes)), model.axes())
    data = layout.data_spec()

    def local(params, tokens, targets):
        return nnx.merge(graph, params).loss(tokens, targets, layout=layout)

    run = layout.over(local, (specs, data, data), (P(), P()))
    return run, parallel.shard(params, specs, layout.mesh)


@pytest.mark.parametrize("name", BY_LAYOUT)
def test_ids_out_of_range_are_nan_and_ignored_targets_count_for_none(name, rng) -> None:
    run, params = by_layout(model(), layout_of(name))

    @jax.jit
    def mean(params, tokens, targets):
        def both(params):
            total, count = run(params, tokens, targets)
            return total / jnp.where(count > 0, count, 1), (total, count)

        return jax.value_and_grad(both, has_aux=True)(params)

    tokens, targets = rng.integers(0, VOCABULARY, (2, 8, 16))
    targets[rng.uniform(size=targets.shape) < 0.4] = _ids.IGNORED
    (_, (total, count)), gradient = mean(params, tokens, targets)
    # The reference leaves ignored targets out by their weights, as any other id.
    kept = targets != _ids.IGNORED
    graph, whole_params = nnx.split(model())
    wanted, _ = jax.jit(lambda p, t, y, w: nnx.merge(graph, p).loss(t, y, w))(
        whole_params, tokens, np.where(kept, targets, 0), kept.astype(np.float32)
    )
    assert float(count) == kept.sum()
    assert float(total) == pytest.approx(float(wanted), rel=1e-5)
    assert all(np.isfinite(np.asarray(g)).all() for g in jax.tree.leaves(gradient))
    for wrong in (VOCABULARY, 127, 128, -1, -99, _ids.IGNORED, 2**31 - 1, 2**32 + 5, -(2**40)):
        place = tuple(rng.integers(0, tokens.shape))
        for which in (0, 1) if wrong != _ids.IGNORED else (0,):
            given = [tokens.copy(), targets.copy()]
            given[which][place] = wrong
            (loss, _), _ = mean(params, *given)
            assert np.isnan(float(loss)), (wrong, which)
    # No target counts: no loss, and no gradient that is NaN.
    (loss, (total, count)), gradient = mean(params, tokens, np.full_like(targets, _ids.IGNORED))
    assert (float(loss), float(total), float(count)) == (0, 0, 0)
    assert not any(np.asarray(g).any() for g in jax.tree.leaves(gradient))


def test_narrow_and_unsigned_ids_are_held_against_the_vocabulary(rng) -> None:
    run, params = by_layout(model(), parallel.Single())
    loss = jax.jit(lambda params, tokens, targets: run(params, tokens, targets)[0])
    tokens = rng.integers(0, VOCABULARY, (2, 5))
    exact = float(loss(params, tokens, tokens))
    for dtype in ("int8", "uint32"):
        assert float(loss(params, tokens.astype(dtype), tokens.astype(dtype))) == exact
        wrong = tokens.astype(dtype)
        wrong[1, 2] = 127 if dtype == "int8" else 200
        assert np.isnan(float(loss(params, wrong, tokens)))
        assert np.isnan(float(loss(params, tokens, wrong)))


def test_concrete_ids_raise_and_ignored_targets_do_not() -> None:
    tokens = np.array([[3, 1, 4]])
    with pytest.raises(ValueError, match=r"tokens: expected ids in \[0, 121\), got -100"):
        model().loss(np.array([[3, -100, 4]]), tokens)
    with pytest.raises(ValueError, match=r"targets: expected ids in \[0, 121\) or -100, got 121"):
        model().loss(tokens, np.array([[3, 121, 4]]))
    total, count = model().loss(tokens, np.array([[3, -100, -100]]))
    assert (np.isfinite(float(total)), float(count)) == (True, 1)


def test_batches_for_offloading_leave_ignored_targets_out(rng) -> None:
    tokens = rng.integers(0, VOCABULARY, (3, 6))
    targets = np.where(rng.uniform(size=(3, 6)) < 0.5, -100, tokens)
    made = gpt2.batch(tokens, targets)
    assert made["weights"].mean() == pytest.approx(1)
    np.testing.assert_array_equal(made["weights"] == 0, targets == -100)
    with pytest.raises(ValueError, match="targets that are not −100"):
        gpt2.batch(tokens, np.full((3, 6), -100))
    # What the last layer makes of it is the mean over the targets that count.
    graph, params = nnx.split(model())
    total, count = jax.jit(lambda p: nnx.merge(graph, p).loss(tokens, targets))(params)
    groups = gpt2.groups(model())
    x, batch = None, {k: jnp.asarray(v) for k, v in made.items()}
    for layer in gpt2.layers(model().config):
        names = layer.uses or (layer.name,)
        x = jax.jit(layer.apply)(tuple(groups[name] for name in names), x, batch, None)
    assert float(x) == pytest.approx(float(total / count), rel=1e-5)


@pytest.mark.parametrize("spec", [nn.Dense(), pytest.param(nn.TT(rank=4), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["fsdp+tp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("2.5d", "1d+sequence"))]
)
def test_sums_of_half_precision_gradients_are_in_single(name, spec, rng) -> None:
    """Collectives that add over the axes of the batch, in the program as it is handed to XLA."""
    layout = layout_of(name)
    run, params = by_layout(model(dtype=jnp.bfloat16, linear=spec), layout)
    tokens = rng.integers(0, VOCABULARY, (8, 16))

    def loss(params):
        total, count = run(params, tokens, tokens)
        return total / count

    with jax.numpy_dtype_promotion("standard"):
        jaxpr = jax.make_jaxpr(jax.grad(loss))(params)
    sums = [
        eqn for eqn in _equations(jaxpr.jaxpr) if eqn.primitive.name in ("psum_invariant", "psum",
                                                                        "reduce_scatter")
    ]  # fmt: skip
    data = set(layout.batch)
    over_batch = [e for e in sums if data & set(e.params.get("axes") or e.params["axis_name"])]
    assert over_batch or not data
    assert {v.aval.dtype for e in over_batch for v in e.outvars} <= {np.dtype(np.float32)}


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def test_a_sum_of_half_precision_gradients_loses_nothing_over_devices(rng) -> None:
    """Eight devices hold 1 and small parts of a gradient, which in bfloat16 would vanish."""
    layout = parallel.layout("fsdp+tp", parallel.mesh(8, 1))
    x = np.ones((8, 4, 8), np.float32)
    x[1:] = 2.0**-9 * rng.integers(1, 3, (7, 4, 8))
    w = jnp.zeros((8, 8), jnp.float32)

    def loss(w, x):
        return jax.lax.psum(layout.column(x, w).astype(jnp.float32).sum(), ("r", "c"))

    run = layout.over(loss, (layout.spec(("embed", "mlp")), layout.x_spec()), P())
    found = jax.jit(jax.grad(run))(w, jnp.asarray(x, jnp.bfloat16))
    wanted = np.broadcast_to(x.sum((0, 1))[:, None], (8, 8))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
