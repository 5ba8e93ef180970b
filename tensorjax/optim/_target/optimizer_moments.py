"""Moments in an optimiser's state that a change of bond bases transforms or resets."""

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tensorjax.optim._tensorised_layers import Layout, Path, flatten, parameter_of

# Fields of Optax' states that hold parameters, not gradients: of schedule-free optimisers, DoG and
# COCOB, Prodigy, MADGRAD, Mechanic and SAM. They go where the parameters go.
PARAMETERS = frozenset({"z", "init_params", "init_particles", "params0", "x0", "cache"})
# Fields of Optax' states of optimisers whose step does not follow the scale of the gradient: Adam,
# Lion and Muon and their kin, Adafactor, Adagrad, Adadelta, Adan, Rprop, Prodigy, MADGRAD, COCOB.
# `optax.sign_sgd` has no state to be known by.
NORMALISED = frozenset({"mu", "nu", "v", "n", "v_row", "v_col", "sum_of_squares", "e_g",
                        "step_sizes", "exp_avg_sq", "grad_sum_sq", "subgradients"})  # fmt: skip


def moments_of(layout: Layout, leaves: list[Any], state: Any) -> list[tuple[int, int, bool]]:
    """Lists the optimiser moments of cores and gates that a change of bond bases transforms.

    Arrays of the state of other shapes than their parameter's, such as those of `optax.adafactor`,
    are left out: they stay as they are, and follow by their own decay.
    """
    members = {k for layer in layout.layers for k in (*layer.cores, *layer.gates)}
    known: dict[Path, int] = {layout.paths[k]: k for k in members}
    paths, arrays, _ = flatten(state)
    out = []
    for n, (path, array) in enumerate(zip(paths, arrays, strict=True)):
        owner = parameter_of(path, known)
        k = None if owner is None else known[owner]
        if k is None or jnp.shape(array) != jnp.shape(leaves[k]):
            continue
        if not jnp.issubdtype(jnp.result_type(array), jnp.inexact):
            continue
        before: tuple[Hashable, ...] = path[: len(path) - len(layout.paths[k])]
        out.append((n, k, not PARAMETERS.isdisjoint(before)))
    return out


def kind_of(value: jax.Array, parameter: jax.Array, held: bool) -> str:
    """Classifies an optimiser moment by how new bond bases change it: as gradient, square, ….

    Those which are real beside complex parameters are squares. Of the others those are taken for
    squares, whatever their name, which have no negative entry: "unknown" before the data is seen.
    """
    if held:
        return "parameter"
    if jnp.iscomplexobj(value):
        return "gradient"
    return "square" if jnp.iscomplexobj(parameter) else "unknown"


def by_gradient(layout: Layout, state: Any) -> list[bool]:
    """Marks the layers whose optimiser moments are of gradients, without normalisation.

    So it is with momentum and with L-BFGS. Plain gradient descent keeps no record of gradients by
    which it could be known.
    """
    known: dict[Path, int] = {layout.paths[k]: k for layer in layout.layers for k in layer.cores}
    recorded, normalised = set(), set()
    for path in flatten(state)[0]:
        owner = parameter_of(path, known)
        if owner is not None and len(path) > len(owner):
            found = normalised if path[-len(owner) - 1] in NORMALISED else recorded
            found.add(known[owner])
    return [
        not recorded.isdisjoint(layer.cores) and normalised.isdisjoint(layer.cores)
        for layer in layout.layers
    ]


def curvature_of(state: Any) -> list[int]:
    """Lists the arrays of an optimiser's L-BFGS memory, which a rank cut or basis change resets.

    Differences of parameters and of gradients in two bases say nothing of curvature, and those
    across a cut are no step of a descent: their product may be negative, which
    `optax.scale_by_lbfgs` does not look at. The memory begins anew, with zeros, as it has it.
    """

    def known(node: Any) -> bool:
        return isinstance(node, optax.ScaleByLBFGSState)

    out, place = [], 0
    for node in jax.tree.leaves(state, is_leaf=known):
        count = len(jax.tree.leaves(node))
        out += range(place, place + count) if known(node) else []
        place += count
    return out
