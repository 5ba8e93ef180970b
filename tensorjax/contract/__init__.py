"""Contraction planner: plans an einsum-like network once and runs it under jit, vmap and grad.

`plan` finds the order in which to multiply the operands, counts what it costs, forward and
forward + backward, and slices it when it must fit into a given memory. The `Plan` is a
callable that works under `jax.jit`, `jax.vmap` and `jax.grad`.

    >>> import jax.numpy as jnp
    >>> from tensorjax import contract
    >>> p = contract.plan("ij,jk,kl->il", (8, 128), (128, 128), (128, 4))
    >>> p.path
    ((1, 2), (0, 1))
    >>> p.flops == 2 * 128 * 128 * 4 + 2 * 8 * 128 * 4
    True
    >>> p(jnp.ones((8, 128)), jnp.ones((128, 128)), jnp.ones((128, 4))).shape
    (8, 4)

What is counted. `Plan.flops` is in the unit of XLA's ``cost_analysis()["flops"]``: one per
multiplication or addition of the element type, so a complex multiply-add is 2, although it
is 8 real operations (`Plan.real_flops`). The two agree wherever products dominate, with these
exceptions. XLA counts the body of a loop once, so for a sliced plan it reports about
``plan.flops / number of slices``. On a CPU it may pad long sums over an index of one operand
to multiples of 32, and merge what `jax.checkpoint` was to recompute. `Plan.grad` is the cost
of `jax.value_and_grad` or `jax.vjp` with respect to all operands, value included; where
nothing reads the value, as in the gradient of a plain sum, XLA drops the last product.
"""

from tensorjax.contract._costs import Cost
from tensorjax.contract._plans_and_einsum import Plan, einsum, plan

__all__ = ["Cost", "Plan", "einsum", "plan"]
__dir__ = __all__.copy  # for `dir`: the public names alone
