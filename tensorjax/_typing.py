"""Type aliases of public signatures: array-likes, scalars, dtypes, keys, ranks, paths, pytrees.

Checkers see through them; an annotation is `Any` only where the type of a result hangs on values
that no annotation knows (an index, the axes of a sum), or where options are handed on as they are.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import jax
import numpy as np
import numpy.typing as npt

# Arrays of JAX or NumPy, numbers, and nested sequences of numbers.
ArrayLike: TypeAlias = jax.typing.ArrayLike | npt.ArrayLike
# A number of Python, NumPy or JAX, or an array of shape (); shapes are no part of types.
Scalar: TypeAlias = jax.typing.ArrayLike
DType: TypeAlias = np.dtype[Any]
DTypeLike: TypeAlias = jax.typing.DTypeLike
HostArray: TypeAlias = npt.NDArray[Any]
JaxOrHost: TypeAlias = jax.Array | HostArray
# Of `jax.random.key`, or of `jax.random.PRNGKey`.
Key: TypeAlias = jax.Array
# Of problems that draw on the host: a key, or a generator of NumPy.
KeyOrGenerator: TypeAlias = Key | np.random.Generator
# An upper bound for all bonds, or one per bond.
Rank: TypeAlias = int | Sequence[int]
Shape: TypeAlias = Sequence[int]
Path: TypeAlias = str | os.PathLike[str]
PrecisionLike: TypeAlias = jax.lax.PrecisionLike
# As `jax.lax.with_sharding_constraint` or `jax.numpy` take it.
OutSharding: TypeAlias = jax.sharding.Sharding | jax.sharding.PartitionSpec | None
# Any tree of arrays (a tree of parameters, a state): every object is one.
PyTree: TypeAlias = object
# The same kind of array comes out as goes in.
AnyArray = TypeVar("AnyArray", bound=jax.Array | HostArray)
Tree = TypeVar("Tree")


class Shaped(Protocol):
    """Protocol of an object with a shape: a tensor train, or a sparse array of SciPy or JAX."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes of a tensor train or sparse array."""
        ...


class Optimizer(Protocol):
    """Type of optimisers in Optax's form for annotations: a protocol of init and update."""

    @property
    def init(self) -> Callable[..., Any]:
        """Type of the function ``init(params) -> state`` of an optimiser in Optax's form."""
        ...

    @property
    def update(self) -> Callable[..., Any]:
        """Type of an optimiser's function ``update(…)``, which returns (updates, state)."""
        ...
