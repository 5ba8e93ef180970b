"""Transformations that go by names of groups: labels and masks by paths, as of a whole model."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True)
class Named:
    """A transformation that is given a group under its name.

    Attributes:
      transformation: of Optax's form.
      name: of the group.
    """

    transformation: Any
    name: str

    def init(self, params: Any) -> Any:
        """State for the parameters of the group."""
        return self.transformation.init({self.name: params})

    def update(self, gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """Updates of the group, and its new state."""
        trees = {self.name: gradient}, state, {self.name: params}
        updates, state = self.transformation.update(*trees)
        return updates[self.name], state


def named(transformation: Any, name: str, params: Any) -> Any:
    """What is to be given the parameters of a group, so that it does what it does to a whole model.

    The transformation itself, so that groups of one structure share its programs, where the name
    makes no difference, or where it takes no mapping from names of groups.

    Args:
      transformation: of Optax's form.
      name: of the group.
      params: shapes and dtypes of the group.

    >>> import optax
    >>> def label(params):
    ...     frozen = lambda path, _: "still" if "head" in jax.tree_util.keystr(path) else "moves"
    ...     return jax.tree_util.tree_map_with_path(frozen, params)
    >>> moves = {"moves": optax.sgd(0.1), "still": optax.set_to_zero()}
    >>> optimizer = optax.multi_transform(moves, label)
    >>> params = jax.ShapeDtypeStruct((2,), np.float32)
    >>> named(optimizer, "body", params) is optimizer, named(optimizer, "head", params).name
    (True, 'head')
    """
    leaves, structure = jax.tree.flatten(params)
    kinds = tuple((tuple(x.shape), np.dtype(x.dtype)) for x in leaves)
    return _named(transformation, name, structure, kinds)


@functools.lru_cache(maxsize=4096)
def _named(transformation: Any, name: str, structure: Any, kinds: tuple[Any, ...]) -> Any:
    by_name = Named(transformation, name)
    try:
        found = _traced(by_name, structure, kinds)
    except Exception:
        return transformation
    try:
        alone = _alone(transformation, structure, kinds)
    except Exception:
        return by_name
    return transformation if _same(found, alone) else by_name


def _traced(transformation: Any, structure: Any, kinds: tuple[Any, ...]) -> list[Any]:
    """What a transformation computes."""
    params = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*kind) for kind in kinds])
    with jax.numpy_dtype_promotion("standard"):
        init, state = jax.make_jaxpr(transformation.init, return_shape=True)(params)
        return [init, jax.make_jaxpr(transformation.update)(params, state, params)]


_alone = functools.lru_cache(maxsize=256)(_traced)


def _same(some: list[Any], others: list[Any]) -> bool:
    return all(
        str(a.jaxpr) == str(b.jaxpr) and all(map(np.array_equal, a.consts, b.consts))
        for a, b in zip(some, others, strict=True)
    )
