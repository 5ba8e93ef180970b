"""`optim.rank_adaptive` to a target size: cuts, changes of basis, moments, status, checkpoints."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from tensorjax import optim
from tensorjax.optim import _basis_change
from tensorjax.optim._tensorised_leaves import gated

SHAPES = [(1, 4, 5), (5, 6, 7), (7, 5, 4), (4, 6, 1)]


def drawn(rng: np.random.Generator, shapes: Any, dtype: Any = np.float32) -> dict[str, Any]:
    cores = [0.5 * rng.standard_normal(s) for s in shapes]
    if np.issubdtype(dtype, np.complexfloating):
        cores = [c + 0.5j * rng.standard_normal(c.shape) for c in cores]
    gates = [rng.uniform(0.5, 1.5, s[-1]) for s in shapes[:-1]]
    real = np.zeros(0, dtype).real.dtype
    return {"cores": [jnp.asarray(c, dtype) for c in cores],
            "gates": [jnp.asarray(g, real) for g in gates]}  # fmt: skip


def full(layer: dict[str, Any]) -> jax.Array:
    out = layer["cores"][0]
    for gate, core in zip(layer["gates"], layer["cores"][1:], strict=True):
        core = gate[:, None, None].astype(core.dtype) * core
        out = jnp.tensordot(out, core, 1)
    return out[0, ..., 0]


def problem(seed: int, noise: float = 0.0) -> Any:
    """A train to be fitted whose singular values fall, and parameters to begin with."""
    rng = np.random.default_rng(seed)
    target = drawn(rng, SHAPES)
    for k, gate in enumerate(target["gates"]):
        target["gates"][k] = jnp.asarray(0.5 ** np.arange(gate.size), gate.dtype)
    goal = full(target)
    goal = goal / jnp.sqrt(jnp.mean(goal**2))

    def loss(params: Any, key: Any) -> jax.Array:
        value = jnp.mean((full(params["a"]) - goal) ** 2)
        return value * (1 + noise * jax.random.normal(key))

    start = drawn(rng, SHAPES)
    start["gates"] = [jnp.ones_like(g) for g in start["gates"]]
    return loss, {"a": start, "bias": jnp.zeros(3)}


@functools.partial(jax.jit, static_argnums=(0, 1))
def scanned(optimizer: Any, loss: Any, params: Any, state: Any, keys: Any) -> Any:
    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, key)
        updates, state = optimizer.update(gradients, state, params, value=value)
        return (optax.apply_updates(params, updates), state), value

    return jax.lax.scan(step, (params, state), keys)


def trained(optimizer: Any, loss: Any, params: Any, steps: int, state: Any = None) -> Any:
    state = jax.jit(optimizer.init)(params) if state is None else state
    with jax.numpy_dtype_promotion("standard"):
        return scanned(optimizer, loss, params, state, jax.random.split(jax.random.key(0), steps))


INNER = {
    "adamw": lambda: optax.adamw(0.01),
    "sgd": lambda: optax.sgd(0.05),
    "momentum": lambda: optax.sgd(0.02, momentum=0.9),
    "lion": lambda: optax.lion(0.003),
    "rmsprop": lambda: optax.rmsprop(0.003),
    "adafactor": lambda: optax.adafactor(0.01),
    "lamb": lambda: optax.lamb(0.01),
    "adagrad": lambda: optax.adagrad(0.1),
    "muon": lambda: contrib.muon(0.01),
    "schedule_free": lambda: contrib.schedule_free_adamw(0.02),
    "prodigy": lambda: contrib.prodigy(0.5),
    "novograd": lambda: optax.novograd(0.01),
    "accumulated": lambda: optax.MultiSteps(optax.adam(0.01), 3).gradient_transformation(),
    "partition": lambda: optax.partition(
        {"core": optax.adam(0.01), "gate": optax.lion(0.003), "dense": optax.adam(0.01)},
        optim.labels,
    ),
}


@pytest.mark.parametrize(
    "name", [n if n == "adamw" else pytest.param(n, marks=pytest.mark.slow) for n in INNER]
)
def test_every_inner_optimiser_meets_the_size_by_its_update(name: str) -> None:
    loss, params = problem(3)
    target = 0.4 * optim.size(params)
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optim.rank_adaptive(INNER[name](), size=target, by=200)
        (after, state), values = trained(optimizer, loss, params, 300)
    assert optim.size(after) == float(state.size) <= target
    assert optim.status(state).status == "converged"
    assert float(values[-1]) < 0.3 * float(values[0])
    assert all(float(g.min()) >= 0 for g in after["a"]["gates"])
    small, moments = optim.shrink(after, state) if name != "adafactor" else optim.shrink(
        after, state, fresh=optimizer)  # fmt: skip
    np.testing.assert_allclose(full(small["a"]), full(after["a"]), atol=1e-6)
    assert optim.size(small) == optim.size(after)
    # Training goes on from the smaller arrays.
    (again, _), _ = trained(optimizer, loss, small, 2, moments)
    assert optim.size(again) == optim.size(small)
