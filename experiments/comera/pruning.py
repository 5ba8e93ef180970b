"""Pruning of ranks to a target at once, by their importance for the loss."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._process_settings import compiler_options
from experiments.comera.training import Programs, State
from tensorjax import optim

BATCHES, BATCH = 128, 8  # of training samples, for the gradients of the gates


def cut(programs: Programs, state: State, target: float, seed: int) -> State:
    """Returns a training state with trains in canonical form, pruned to a target size.

    All of Adam's moments begin anew: those of the trains are of other bases.

    Args:
        programs: Of the late stage.
        state: At the end of the early one.
        target: S₀, in parameters of the tensorised layers.
        seed: Of the samples on which importance is found.
    """
    params = optim.canonical(state.params)
    importance = squared_gradients(programs, params, state.rest, seed)
    params = optim.prune(params, target, importance=importance)

    def restarted(found: Any) -> Any:
        if not isinstance(found, optax.ScaleByAdamState):
            return found
        zero = jax.tree.map(jnp.zeros_like, found)
        return optax.ScaleByAdamState(*zero)

    inner = jax.tree.map(
        restarted, state.opt_state.inner, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState)
    )
    opt_state = state.opt_state._replace(inner=inner, size_target=jnp.float32(target))
    params, opt_state = optim.shrink(params, opt_state)
    # The steps give up what they are given, and the optimiser begins with one zero in many places.
    copied = jax.tree.map(lambda x: jnp.array(np.array(x)), (params, opt_state))
    return state._replace(params=copied[0], opt_state=copied[1])


def squared_gradients(programs: Programs, params: Any, rest: Any, seed: int) -> Any:
    """Computes the mean squared gradients of the gates over training batches.

    Other parameters have a zero. Of batches and not of samples, which takes a fraction of the time;
    without dropout.
    """
    data = {name: jnp.asarray(a) for name, a in programs.task.splits["train"].items()}
    drawn = np.random.default_rng([seed, 1])
    rows = drawn.integers(0, len(next(iter(data.values()))), (BATCHES, BATCH), np.int32)
    keys = jax.random.split(jax.random.key(seed), BATCHES)

    def means(params: Any, rest: Any, data: Any, given: Any) -> Any:
        def add(total: Any, given: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
            key, chosen = given
            batch = {name: array[chosen] for name, array in data.items()}

            def loss(params: Any) -> jax.Array:
                model = nnx.merge(programs.eval_graph, params, rest)
                return programs.task.loss(model, batch, key)

            gradient = jax.grad(loss)(params)

            def added(label: str, t: jax.Array, g: jax.Array) -> jax.Array:
                return t + g * g / BATCHES if label == "gate" else t

            return jax.tree.map(added, labels, total, gradient), None

        labels = optim.labels(params)
        zero = jax.tree.map(
            lambda label, p: jnp.zeros_like(p) if label == "gate" else jnp.zeros((), p.dtype),
            labels, params,
        )  # fmt: skip
        return jax.lax.scan(add, zero, given)[0]

    compiled = jax.jit(means, compiler_options=compiler_options(programs.hasty, unoptimised=True))
    return compiled(params, rest, data, (keys, jnp.asarray(rows)))
