"""Traversal of Flax NNX models: all modules with their paths, tied layers, replacement in place."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from tensorjax.nn._linear_layers import TensorLinearGeneral
from tensorjax.nn._specs import Spec


def places(model: Any) -> dict[int, tuple[Any, list[str]]]:
    """Traverses a Flax NNX model: lists every module, by identity, with all paths to it."""
    found: dict[int, tuple[Any, list[str]]] = {}

    def visit(module: Any, path: tuple[str, ...], above: frozenset[int]) -> None:
        if id(module) in above:
            return  # a cycle
        found.setdefault(id(module), (module, []))[1].append("/".join(path))
        for steps, child in children(module):
            visit(child, (*path, *steps), above | {id(module)})

    visit(model, (), frozenset())
    return found


def children(module: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Traverses a Flax NNX module's direct submodules, with paths, also from lists and dicts."""
    for name, value in vars(module).items():
        if isinstance(value, nnx.Pytree):
            yield (name,), value
        elif isinstance(value, list | tuple | dict):
            for keys, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=is_module):
                if is_module(leaf):
                    yield (name, *(_key_name(key) for key in keys)), leaf


def swap(model: Any, made: Mapping[int, Any]) -> None:
    """Replaces submodules of a Flax NNX model in place, by a map from identities to new ones."""
    for module, _ in places(model).values():
        for name, value in list(vars(module).items()):
            if isinstance(value, nnx.Pytree):
                if id(value) in made:
                    setattr(module, name, made[id(value)])
            elif isinstance(value, list | tuple | dict):
                new = jax.tree.map(lambda x: made.get(id(x), x), value, is_leaf=is_module)
                old_leaves = jax.tree.leaves(value, is_leaf=is_module)
                if any(id(leaf) in made for leaf in old_leaves):
                    setattr(module, name, nnx.data(new))


def rewrite_variables(model: Any, change: Callable[[nnx.Variable], nnx.Variable]) -> None:
    """Replaces every variable of a Flax NNX model by ``change(variable)``; shared ones stay so.

    ``change`` returns a variable that is to stay as it is.
    """
    made: dict[int, nnx.Variable] = {}

    def new(x: Any) -> Any:
        if not isinstance(x, nnx.Variable):
            return x
        if id(x) not in made:
            made[id(x)] = change(x)
            made[id(made[id(x)])] = made[id(x)]  # reached again by another path
        return made[id(x)]

    def stop(x: Any) -> bool:
        return isinstance(x, nnx.Variable) or is_module(x)

    for module, _ in places(model).values():
        for name, value in list(vars(module).items()):
            if isinstance(value, nnx.Variable):
                if new(value) is not value:
                    setattr(module, name, new(value))
            elif isinstance(value, list | tuple | dict):
                leaves = jax.tree.leaves(value, is_leaf=stop)
                if any(new(leaf) is not leaf for leaf in leaves):
                    setattr(module, name, nnx.data(jax.tree.map(new, value, is_leaf=stop)))


def is_module(x: Any) -> bool:
    """Whether an object is a Flax NNX module or another NNX node."""
    return isinstance(x, nnx.Pytree)


def check_module(model: Any, advice: str = "") -> None:
    """Raises TypeError unless the argument ``model`` is an NNX module."""
    if not is_module(model):
        name = type(model).__name__
        raise TypeError(f"model: expected an NNX module, got {name}{advice and f'; {advice}'}")


def _key_name(key: Any) -> str:
    return str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key))))


Found = Sequence[tuple[Any, list[str], Spec]]
Tie = tuple[str, list[Any]]  # attribute, and the layers whose parameter of that name is one
_WEIGHTS = ("cores", "core", "factors", "gates")


def ties(model: Any, found: Found) -> list[Tie]:
    """Traverses layers to be replaced, and lists the sets of tied ones, which share a parameter.

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
    """Returns a layer's type and sizes, which must be equal for tied layers."""
    sides = ("in_features", "out_features", "num_embeddings", "features", "padding_idx", "axis")
    return (type(layer), *(getattr(layer, side, None) for side in sides))


def tie(made: Mapping[int, Any], found: Sequence[Tie]) -> None:
    """Ties modules of a model: replacements of tied layers share one set of parameters."""
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
