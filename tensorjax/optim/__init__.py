"""Rank-adaptive training and rank pruning of tensorised models, as Optax transformations.

Names by task:

  train        rank_adaptive RankAdaptiveState status Status labels
  ranks        ranks size shrink shrink_model canonical prune
  checkpoints  save load
  eight bits   quantize dequantize straight_through Quantized

``help(optim.rank_adaptive)`` describes a function.

`rank_adaptive` wraps any Optax optimiser and trains under two objectives, loss and size; `shrink`
then removes dead gates, and the core slices on their bonds, from parameters and optimiser moments.
`canonical` and `prune` cut a model to a given size in one step. All work on any tree of arrays, in
which tensorised layers are recognised by their names: cores (or core, factors) beside gates.

Example: a matrix of rank one, fitted by a tensor train of rank four, which finds the rank:
  >>> import jax, jax.numpy as jnp, optax
  >>> from tensorjax import optim
  >>> target = jnp.outer(jnp.linspace(0.5, 1.5, 6), jnp.ones(5))
  >>> keys = jax.random.split(jax.random.key(0))
  >>> cores = [jax.random.normal(keys[0], (1, 6, 4)), jax.random.normal(keys[1], (4, 5, 1))]
  >>> params = {"cores": cores, "gates": [jnp.ones(4)]}
  >>> def loss(p):
  ...     return jnp.mean((p["cores"][0][0] * p["gates"][0] @ p["cores"][1][..., 0] - target) ** 2)
  >>> optimizer = optim.rank_adaptive(optax.adam(0.05))
  >>> state = optimizer.init(params)
  >>> @jax.jit
  ... def step(params, state):
  ...     value, gradients = jax.value_and_grad(loss)(params)
  ...     updates, state = optimizer.update(gradients, state, params, value=value)
  ...     return optax.apply_updates(params, updates), state
  >>> for _ in range(1500):
  ...     params, state = step(params, state)
  >>> optim.ranks(params), optim.size(params)
  ({'(top)': (1,)}, 11)
  >>> params, state = optim.shrink(params, state)
  >>> params["cores"][0].shape
  (1, 6, 1)

Source: Yang et al., "CoMERA: Computing- and Memory-Efficient Training via Rank-Adaptive Tensor
Optimization" (arXiv 2405.14377).
"""

from tensorjax import _extras

with _extras.needed_by(__name__):
    from tensorjax.optim._checkpoints import load, save
    from tensorjax.optim._options_and_state import RankAdaptiveState
    from tensorjax.optim._pruning import canonical, prune
    from tensorjax.optim._quantized_cores import Quantized, dequantize, quantize, straight_through
    from tensorjax.optim._rank_adaptive import rank_adaptive
    from tensorjax.optim._shrink import shrink, shrink_model
    from tensorjax.optim._sizes_and_ranks import ranks, size
    from tensorjax.optim._stacked_layers import labels
    from tensorjax.optim._status import Status, status

__all__ = [
    "Quantized",
    "RankAdaptiveState",
    "Status",
    "canonical",
    "dequantize",
    "labels",
    "load",
    "prune",
    "quantize",
    "rank_adaptive",
    "ranks",
    "save",
    "shrink",
    "shrink_model",
    "size",
    "status",
    "straight_through",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring
