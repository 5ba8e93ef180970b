"""Identification of a training in its store: another model or optimiser cannot resume from it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax.offload._errors import MismatchError
from tensorjax.offload._training.passes.layers import Layer
from tensorjax.offload._training.storage.tensor_packing import TensorPacking
from tensorjax.offload._training.updates import parameter_groups
from tensorjax.offload._training.updates.parameter_groups import Group


def describe(layers: Sequence[Layer], groups: Mapping[str, Group]) -> dict[str, Any]:
    """Returns a training's fingerprint, JSON by which a store knows its model and optimiser.

    Returns:
      "layers": groups that each layer uses, in their order.
      "packed": path, dtype and shape of the small arrays that share a tensor, by its pytree.
      "states": kinds of the optimiser's states, by group: two may have arrays of the same names.
    """
    packings = (packing for group in groups.values() for packing in group.packings)
    return {
        "layers": [[*layer.uses] for layer in layers],
        "packed": {
            packing.name: [[leaf.path, leaf.dtype.name, [*leaf.shape]] for leaf in packing.small]
            for packing in packings
            if packing.small
        },
        "states": {name: _states(group) for name, group in groups.items()},
    }


def check(
    store: Any,
    held: Mapping[str, Any],
    layers: Sequence[Layer],
    groups: Mapping[str, Group],
    *,
    gradients: bool,
) -> None:
    """Raises MismatchError unless the fingerprint in a store is of this model and optimiser.

    Also reserves space for gradients, if they may wait in the store.

    Args:
      store: with a committed state.
      held: what `describe` said of it.
      gradients: whether gradients may wait in the store.

    Raises:
      MismatchError: it is of another one; arrays are named by their paths.
    """
    wanted = parameter_groups.specs(groups.values(), gradients=False)
    every = parameter_groups.specs(groups.values(), gradients=True)
    waiting = every.keys() - wanted.keys()
    # Names that are only reserved are of attempts that ended before their first commit.
    found = {n: store.spec(n) for n in store.written if n not in waiting}
    for name, leaves in held["packed"].items():
        found.pop(f"{name}/{TensorPacking.PACKED}", None)
        found |= {f"{name}/{path}": jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))
                  for path, dtype, shape in leaves}  # fmt: skip
    faults = [*_different(found, _arrays(groups)), *_other_states(held["states"], groups)]
    if not faults:
        faults += _other_layers(held["layers"], layers)
    if faults:
        raise MismatchError(
            "store: expected one of this model and optimiser, but "
            + "; ".join(faults[:5])
            + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
        )
    missing = {n: every[n] for n in waiting - set(store.names)}
    if gradients and missing:
        store.reserve(missing)


def _arrays(groups: Mapping[str, Group]) -> dict[str, Any]:
    return {
        f"{packing.name}/{leaf.path}": leaf
        for group in groups.values()
        for packing in group.packings
        for leaf in packing.leaves
    }


def _different(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yields, as text, how a fingerprint's arrays differ from those of a model and optimiser."""
    for name in sorted({*held, *wanted}):
        if name not in held:
            yield f"{name} is missing"
        elif name not in wanted:
            yield f"{name} is not part of this model and optimiser"
        else:
            here, there = (f"{jnp.dtype(x[name].dtype)}{tuple(x[name].shape)}"
                           for x in (held, wanted))  # fmt: skip
            if here != there:
                yield f"{name} is {here}, expected {there}"


def _other_states(held: Mapping[str, Any], groups: Mapping[str, Group]) -> Iterator[str]:
    for name, group in groups.items():
        if name in held and held[name] != (kinds := _states(group)):
            yield f"the optimiser's state of {name} is of kinds {held[name]}, expected {kinds}"


def _other_layers(held: Sequence[Any], layers: Sequence[Layer]) -> Iterator[str]:
    if len(held) != len(layers):
        yield f"it has {len(held)} layers, expected {len(layers)}"
    for number, (uses, layer) in enumerate(zip(held, layers, strict=False)):
        if uses != [*layer.uses]:
            yield f"its layer {number} uses {uses}, expected {[*layer.uses]} for {layer.name!r}"


def _states(group: Group) -> list[str]:
    """Returns class names of named tuples in an optimiser state, for the fingerprint."""
    state = group.state.unflatten(group.state.leaves)
    found: list[str] = []

    def see(node: Any) -> bool:
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            found.append(type(node).__name__)
        return False

    jax.tree.flatten(state, is_leaf=see)
    return found
