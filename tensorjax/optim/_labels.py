"""Labels of the parameters of a tensorised model, for optimisers that treat kinds apart."""

from typing import Any

import jax

from tensorjax._typing import PyTree
from tensorjax.optim._stacked_layers import Stacks
from tensorjax.optim._tensorised_leaves import find


def labels(params: PyTree) -> Any:
    """Labels every parameter of a tensorised model "core", "gate" or "dense".

    Made for `optax.partition`, which takes the function itself; the rates of the paper's released
    program would be::

        inner = optax.partition(
            {
                "core": optax.adamw(1e-4, weight_decay=0.0),
                "gate": optax.adamw(1e-3, weight_decay=0.0),
                "dense": optax.adamw(5e-5, weight_decay=0.0),
            },
            optim.labels,
        )
        optimizer = optim.rank_adaptive(inner, switch=1000, size_fraction=0.5)

    Args:
      params: any tree of parameters, or of gradients.

    Returns:
      The same tree, with a string in place of every array.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import optim
      >>> cores = [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))]
      >>> optim.labels({"cores": cores, "gates": [jnp.ones(3)], "bias": jnp.zeros(5)})
      {'bias': 'dense', 'cores': ['core', 'core'], 'gates': ['gate']}

    Source: ours; the three learning rates are those of the released program of Yang et al.,
    "CoMERA" (arXiv 2405.14377).
    """
    stacks = Stacks.of(params)
    single = stacks.split(params)
    layout = find(single)
    named = dict.fromkeys(range(len(layout.paths)), "dense")
    for layer in layout.layers:
        named |= dict.fromkeys(layer.cores, "core") | dict.fromkeys(layer.gates, "gate")
    return stacks.join(jax.tree.unflatten(jax.tree.structure(single), list(named.values())))
