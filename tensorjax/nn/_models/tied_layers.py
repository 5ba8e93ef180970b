"""Tied layers of a model, which share a parameter, before and after their replacement."""

from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from tensorjax.nn._linear_over_axes import TensorLinearGeneral
from tensorjax.nn._models.traversal import places
from tensorjax.nn._specs import Spec

Found = Sequence[tuple[Any, list[str], Spec]]
Tie = tuple[str, list[Any]]  # attribute, and the layers whose parameter of that name is one
_WEIGHTS = ("cores", "core", "factors", "gates")


def ties(model: Any, found: Found) -> list[Tie]:
    """Lists the sets of layers that share a parameter and are to be replaced by tensorised ones.

    Raises:
      ValueError: layers that could not stay tied: one of them is not replaced, or by another spec,
        or folds the same weight otherwise.
    """
    holders: dict[int, list[tuple[Any, str, str]]] = {}
    for module, paths in places(model).values():
        for name, value in vars(module).items():
            if isinstance(value, nnx.Variable):
                place = "/".join(filter(None, (paths[0], name)))
                holders.setdefault(id(value), []).append((module, name, place))
    specs = {id(layer): spec for layer, _, spec in found}
    made: list[Tie] = []
    for held in holders.values():
        if len(held) == 1 or not any(id(module) in specs for module, _, _ in held):
            continue
        alike = {(_form(module), specs.get(id(module)), name) for module, name, _ in held}
        if len(alike) > 1:
            tied = " and ".join(place for _, _, place in held)
            raise ValueError(
                f"rules: expected layers with parameters of their own, but {tied} are one; replace "
                "all of them by one spec, share the whole layer, or leave these dense by the spec "
                "None"
            )
        made.append((held[0][1], [module for module, _, _ in held]))
    return made


def _form(layer: Any) -> tuple[Any, ...]:
    """Returns a layer's type and sizes, which must be equal for layers that share a weight."""
    sides = ("in_features", "out_features", "num_embeddings", "features", "padding_idx", "axis")
    return (type(layer), *(getattr(layer, side, None) for side in sides))


def tie(made: Mapping[int, Any], found: Sequence[Tie]) -> None:
    """Makes the tensorised replacements of tied layers share one set of parameters."""
    for name, layers in found:
        first, *others = (_inner(made[id(layer)]) for layer in layers)
        for other in others:
            for part in ("bias",) if name == "bias" else _WEIGHTS:
                value: Any = getattr(first, part, None)
                if isinstance(value, nnx.List):  # a list of their own, of the same parameters
                    value = nnx.List(list(value))
                if value is not None:
                    setattr(other, part, value)


def _inner(layer: Any) -> Any:
    return layer.layer if isinstance(layer, TensorLinearGeneral) else layer
