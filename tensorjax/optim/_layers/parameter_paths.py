"""Paths of plain keys to the leaves of a parameter tree, and the layers that they name."""

from collections.abc import Container, Hashable, Iterator
from typing import Any

import jax

Path = tuple[Hashable, ...]


def tokens(path: Any) -> Path:
    """Converts a JAX key path to a parameter's path: "0" becomes 0, a final "value" is dropped."""
    out = [_token(key) for key in path]
    if path and isinstance(path[-1], jax.tree_util.GetAttrKey) and out[-1] == "value":
        out.pop()
    return tuple(out)


def _token(key: Any) -> Hashable:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            value = getattr(key, attribute)
            return int(value) if isinstance(value, str) and value.isdecimal() else value
    return str(key)


def flatten(tree: Any) -> tuple[tuple[Path, ...], list[Any], Any]:
    """Flattens a parameter tree to paths of plain keys, in which layers are found, and leaves."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    return tuple(tokens(path) for path, _ in pairs), [leaf for _, leaf in pairs], structure


def parameter_of(path: Path, known: Container[Path]) -> Path | None:
    """Finds the leaf of the parameter tree that a path in the optimiser's state ends with."""
    ends = (path[start:] for start in range(len(path)))
    return next((end for end in ends if end in known), None)


def parts(path: Path) -> Iterator[tuple[str, int]]:
    """Yields name and number of keys of the layer part, as a core, that a leaf's path ends in."""
    # Only with an integer key below, as of a list: a module may have one of these names too.
    if len(path) > 1 and path[-2] in ("cores", "factors", "gates") and isinstance(path[-1], int):
        yield str(path[-2]), 2
    if path and path[-1] in ("core", "bias"):
        yield str(path[-1]), 1
