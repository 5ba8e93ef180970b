"""Optax transformations of one group whose labels and masks use paths of the whole model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend
import numpy as np

from tensorjax.offload._training.weak_cache import WeakCache, Wrapper


@dataclass(frozen=True)
class Named(Wrapper):
    """Optax transformation that wraps a parameter group as ``{name: group}``, to label by path.

    Attributes:
      transformation: of Optax's form.
    """

    transformation: Any
    name: str

    @property
    def inner(self) -> Any:
        """Optax transformation that a labelled transformation wraps."""
        return self.transformation

    @property
    def kind(self) -> str:
        """Name of the parameter group for which an Optax transformation is labelled."""
        return self.name

    @classmethod
    def around(cls, inner: Any, kind: Any) -> "Named":
        """Wraps an Optax transformation for the parameter group of a given name."""
        return cls(inner, kind)

    def init(self, params: Any) -> Any:
        """Initialises a labelled transformation's state for parameters wrapped under a name."""
        return self.transformation.init({self.name: params})

    def update(self, gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """Computes a labelled transformation's update of a group wrapped under its name."""
        trees = {self.name: gradient}, state, {self.name: params}
        updates, state = self.transformation.update(*trees)
        return updates[self.name], state


def named(transformation: Any, name: str, params: Any) -> Any:
    """Returns an optimiser for one parameter group that labels and masks it as in the whole model.

    The transformation itself, so that groups of one structure share its programs, where the name
    makes no difference, or where it takes no mapping from names of groups.

    Args:
      transformation: of Optax's form.
      params: shapes and dtypes of the group.

    Raises:
      ValueError: the transformation fits neither the group nor the mapping of its name to it.

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
    by_name, these = Named(transformation, name), kind(params)
    try:
        found = _traced(by_name, *these)
    except Exception as by_names:
        try:
            _traced(transformation, *these)
        except ValueError as alone:  # of trees that do not fit; others are raised where it is used
            raise ValueError(
                f"optimizer: expected one that can be made for each group by itself, got, for "
                f"{name!r} with the mapping {{{name!r}: …}}: {by_names}; labels and masks that are "
                "trees of the whole model fit none, so make them functions of the parameters, such "
                "as optax.masked(inner, lambda params: ...)"
            ) from alone
        except Exception:
            return transformation
        return transformation
    try:
        alone = _traced(transformation, *these)
    except Exception:
        return by_name
    return transformation if _same(found, alone) else by_name


def alike(some: Named, other: Named, params: Any) -> bool:
    """Whether two groups' labelled Optax transformations trace to equal programs."""
    these = kind(params)
    try:
        return _same(_traced(some, *these), _traced(other, *these))
    except Exception:
        return False


def kind(params: Any) -> tuple[Any, Any]:
    """Returns structure, shapes and dtypes of parameters, to compare labelled transformations."""
    leaves, structure = jax.tree.flatten(params)
    return structure, tuple((tuple(x.shape), np.dtype(x.dtype)) for x in leaves)


@WeakCache
def _traced(transformation: Any, structure: Any, kinds: tuple[Any, ...]) -> list[Any]:
    """Traces init and update of a labelled transformation to lists, for comparison with others."""
    params = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*kind) for kind in kinds])
    with jax.numpy_dtype_promotion("standard"):
        init, state = jax.make_jaxpr(transformation.init, return_shape=True)(params)
        update = jax.make_jaxpr(transformation.update)(params, state, params)
    return [(_listing(closed.jaxpr), [*_constants(closed)]) for closed in (init, update)]


def _listing(jaxpr: Any) -> list[Any]:
    """Lists the equations of a traced labelled transformation, variables numbered, to compare them.

    Two jaxprs print alike if and only if their listings are equal; printing takes ten times longer,
    and a model has a trace for every layer.
    """
    numbers: dict[Any, int] = {}

    def number(x: Any) -> Any:
        if isinstance(x, jax.extend.core.Literal):
            return repr(x.val), str(x.aval)
        return numbers.setdefault(x, len(numbers)), str(x.aval)

    def parameter(value: Any) -> Any:
        if _is_closed(value):
            return _listing(value.jaxpr)
        if isinstance(value, jax.extend.core.Jaxpr):
            return _listing(value)
        if isinstance(value, tuple | list):
            return [parameter(x) for x in value]
        return str(value)

    def numbered(variables: Any) -> list[Any]:
        return [number(x) for x in variables]

    lines: list[Any] = [numbered([*jaxpr.constvars, *jaxpr.invars])]
    for equation in jaxpr.eqns:
        parameters = [(name, parameter(value)) for name, value in equation.params.items()]
        before, after = numbered(equation.invars), numbered(equation.outvars)
        lines.append((equation.primitive.name, before, after, parameters))
    return [*lines, numbered(jaxpr.outvars)]


def _same(some: list[Any], others: list[Any]) -> bool:
    return all(
        listing == other and _equal(constants, their)
        for (listing, constants), (other, their) in zip(some, others, strict=True)
    )


def _equal(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(np.array_equal, some, others))


def _constants(closed: Any) -> Iterator[Any]:
    """Yields the constants, such as masks, in the jaxprs of a labelled Optax transformation."""
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        for inner in jax.tree.leaves([*equation.params.values()], is_leaf=_is_closed):
            if _is_closed(inner):
                yield from _constants(inner)


def _is_closed(x: Any) -> bool:
    return isinstance(x, jax.extend.core.ClosedJaxpr)
