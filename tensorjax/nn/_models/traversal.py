"""Traversal of Flax NNX models: modules with all their paths, and replacement in place."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from flax import nnx


def places(model: Any) -> dict[int, tuple[Any, list[str]]]:
    """Lists every module of a Flax NNX model, by identity, with all paths that lead to it."""
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
    """Yields a Flax NNX module's direct submodules, with paths, also from lists and dicts."""
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
