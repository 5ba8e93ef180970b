"""Paths of plain keys to the leaves of a parameter tree, and the layers that they name."""

from collections.abc import Container, Hashable, Iterator
from typing import Any, NoReturn

import jax

Path = tuple[Hashable, ...]


def tokens(path: Any) -> Path:
    """Converts a JAX key path to a tuple of plain keys: "0" becomes 0; drops a final "value"."""
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
    """Flattens a parameter tree to leaves, and a tuple of plain keys as path of each.

    Raises:
      ValueError: two leaves with one path.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = tuple(tokens(path) for path, _ in pairs)
    if len(set(paths)) < len(paths):
        raise_repeated(next(path for path in paths if paths.count(path) > 1))
    return paths, [leaf for _, leaf in pairs], structure


def raise_repeated(path: Path) -> NoReturn:
    """Raises ValueError for a path of plain keys that two leaves of a parameter tree have."""
    raise ValueError(
        f"params: expected a path of its own for every array, got two at "
        f"{'/'.join(map(str, path))!r}; a number and texts like '7' and '07' are one key here: "
        "rename one of them"
    )


def parameter_of(path: Path, known: Container[Path]) -> Path | None:
    """Finds the model parameter that an array in the optimiser's state belongs to, by its path."""
    ends = (path[start:] for start in range(len(path)))
    return next((end for end in ends if end in known), None)


def parts(path: Path) -> Iterator[tuple[str, int]]:
    """Yields which part of a tensorised layer, as a core, a leaf's path names, by how many keys."""
    # Only with an integer key below, as of a list: a module may have one of these names too.
    if len(path) > 1 and path[-2] in ("cores", "factors", "gates") and isinstance(path[-1], int):
        yield str(path[-2]), 2
    if path and path[-1] in ("core", "bias"):
        yield str(path[-1]), 1
