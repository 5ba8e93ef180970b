"""Data, tensor (1D, FSDP, SUMMA, 2.5D) and sequence parallel layouts, with predicted costs.

Names by task:

  plan      plan Plan Candidate Machine
  layouts   layout NAMES Layout Single Megatron FsdpTp Summa; mesh summa
  arrays    shard shardings state_shardings
  measure   memory Memory traffic Traffic, of compiled programs

``help(parallel.plan)`` describes a function, ``help(parallel.Layout)`` a class.

A model is written once, on local blocks, and calls its layout for all communication:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from tensorjax import parallel
    >>> layout = parallel.layout("summa", parallel.mesh(1, 1))
    >>> axes = {"up": ("embed", "mlp"), "down": ("mlp", "embed")}
    >>> specs = jax.tree.map(layout.spec, axes, is_leaf=lambda node: isinstance(node, tuple))
    >>> def mlp(params, x):
    ...     return layout.row(jax.nn.gelu(layout.column(x, params["up"])), params["down"])
    >>> run = layout.over(mlp, (specs, layout.x_spec()), layout.x_spec())
    >>> run({"up": jnp.ones((4, 16)), "down": jnp.ones((16, 4))}, jnp.ones((2, 3, 4))).shape
    (2, 3, 4)
"""

from tensorjax import _extras

with _extras.needed_by(__name__):
    from tensorjax.parallel._alpha_beta_model import Machine
    from tensorjax.parallel._compiled_programs import Memory, Traffic, memory, traffic
    from tensorjax.parallel._layout import Layout
    from tensorjax.parallel._layout_planner import Candidate, Plan, plan
    from tensorjax.parallel._named_layouts import (
        NAMES,
        FsdpTp,
        Megatron,
        Single,
        Summa,
        layout,
        mesh,
    )
    from tensorjax.parallel._parameter_shardings import shard, shardings, state_shardings
    from tensorjax.parallel._summa import summa

__all__ = [
    "NAMES",
    "Candidate",
    "FsdpTp",
    "Layout",
    "Machine",
    "Megatron",
    "Memory",
    "Plan",
    "Single",
    "Summa",
    "Traffic",
    "layout",
    "memory",
    "mesh",
    "plan",
    "shard",
    "shardings",
    "state_shardings",
    "summa",
    "traffic",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring
