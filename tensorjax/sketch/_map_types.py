"""Types of random maps (random projections): Kronecker (TT), dense, sparse, TT rows, CP rows.

Every type is a frozen pytree of arrays, holding entries of mean 0 and variance 1; the scale that
makes E‖f(x)‖² = ‖x‖² is applied with the map. Static fields are hashable, so a map passes through
jit, vmap and grad, and a batch of maps is `jax.vmap` of a constructor over keys.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.pytree_base import serializable, shown
from tensorjax._formats.random_arrays import on_host
from tensorjax._transfer import on_device
from tensorjax._typing import DType, DTypeLike

Cls = TypeVar("Cls", bound=type)


@dataclasses.dataclass(frozen=True)
class Law:
    """Law of the entries of a `RandomMap`: mean 0, variance 1, a given fourth moment.

    Attributes:
      name: "rademacher" (±1, Δ = 1), "gaussian" (Δ = 3) or "sparse" (±√s with probability 1/(2s)
        each, else 0; Δ = s).
      fourth_moment: Δ.
    """

    name: str
    fourth_moment: float

    def draw(
        self, key: Any, shapes: Sequence[tuple[int, ...]], dtype: Any
    ) -> tuple[jax.Array, ...]:
        """Draws arrays of independent entries by the law of a type of random map.

        Signs depend neither on the dtype nor on JAX's 64-bit mode.
        """
        drawn = on_host(self, key, shapes, dtype)
        if drawn is not None:
            return tuple(on_device(drawn))
        return _draw(self, key, tuple(shapes), jnp.dtype(dtype))

    def __call__(self, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draws one array of independent entries by the law of a type of random map."""
        return _draw_one(self, key, shape, dtype)


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _draw(law: Law, key: Any, shapes: tuple[tuple[int, ...], ...], dtype: Any) -> Any:
    keys = jax.random.split(key, len(shapes))
    out: dict[int, jax.Array] = {}
    for shape in dict.fromkeys(shapes):  # one program for all cores of one shape
        places = [k for k, other in enumerate(shapes) if other == shape]
        drawn = jax.vmap(lambda key, n=shape: _draw_one(law, key, n, dtype))(keys[np.array(places)])
        out.update(zip(places, drawn, strict=True))
    return tuple(out[k] for k in range(len(shapes)))


def _draw_one(law: Law, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    if law.name == "rademacher":
        return signs(key, shape, dtype)
    wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
    if law.name == "gaussian":
        # A half-precision draw has too few bits for its tails: its variance is not one.
        return jax.random.normal(key, shape, wide).astype(dtype)
    s = law.fourth_moment
    u = jax.random.uniform(key, shape, jnp.float32)
    kept = jnp.where(u < 0.5 / s, -math.sqrt(s), math.sqrt(s))
    return jnp.where(u < 1 / s, kept, 0.0).astype(dtype)


def signs(key: Any, shape: Sequence[int], dtype: Any) -> jax.Array:
    """Draws random signs ±1, the law of entries of a type of random map."""
    bits = jax.random.bits(key, tuple(shape), jnp.uint8)
    return 1 - 2 * (bits & 1).astype(dtype)


def law(distribution: str, s: float = 3.0) -> Law:
    """Returns the law of entries of a random map's type by name: distribution, fourth moment."""
    moments = {"rademacher": 1.0, "gaussian": 3.0, "sparse": _check.number("s", s, low=1)}
    _check.choice("distribution", distribution, moments)
    return Law(distribution, moments[distribution])


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Projection:
    """Abstract base class of the random maps f: R^N → R^M.

    Attributes:
      in_shape: the modes (n_1, …, n_d) that an input is folded to.
      in_size: N. It may be less than ∏ n_k: the input is then padded by zeros at its end.
      out_size: M. It may be less than ∏ m_k: the first M entries are then the output.
      law: the distribution of the stored entries.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> p = sketch.gaussian(jax.random.key(0), (8, 8), 64)
      >>> isinstance(p, sketch.Projection), p.in_shape, p.in_size, p.out_size
      (True, (8, 8), 64, 64)

    Source: ours.
    """

    _array_ndim: ClassVar[int]
    in_shape: tuple[int, ...]
    in_size: int
    out_size: int
    law: Law

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Modes of the random map's output: (M,) if its rows have no product structure."""
        return (self.out_size,)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Interior TT-ranks of the random map or of each row; empty if there are none."""
        return tuple(c.shape[-1] for c in getattr(self, "cores", ())[:-1])

    @property
    def dtype(self) -> DType:
        """Dtype of the random map's stored entries."""
        return jax.tree.leaves(self)[-1].dtype

    @property
    def size(self) -> int:
        """Number of the random map's stored entries."""
        return sum(math.prod(a.shape[-self._array_ndim :]) for a in jax.tree.leaves(self))

    def astype(self, dtype: DTypeLike) -> Self:
        """Returns the random map with its stored floating-point entries cast to ``dtype``.

        Args:
          dtype: floating or complex.

        Returns:
          Map of the same type and shapes.

        Raises:
          TypeError: an integer dtype; entries of a map are floating-point.
        """
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f"dtype: expected a floating-point or complex dtype, got {jnp.dtype(dtype)}"
            )

        def cast(a: Any) -> Any:
            return a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.inexact) else a

        return jax.tree.map(cast, self)

    def __getstate__(self) -> dict[str, Any]:
        # Fields alone: not what calls keep with the map.
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @shown
    def __repr__(self) -> str:
        modes = f"{_times(self.in_shape)} → {_times(self.out_shape)}"
        ranks = f", ranks {self.ranks}" if any(r > 1 for r in self.ranks) else ""
        return f"{type(self).__name__}({modes}, {self.law.name}{ranks})"


def _times(shape: Sequence[int]) -> str:
    return "·".join(map(str, shape))


def _encoded(aux: Any) -> list[Any]:
    return [dataclasses.astuple(x) if isinstance(x, Law) else x for x in aux]


def _decoded(saved: list[Any]) -> tuple[Any, ...]:
    in_shape, in_size, out_size, kind = saved
    return tuple(in_shape), in_size, out_size, Law(*kind)


@dataclass_transform(frozen_default=True)
def _map_type(*arrays: str) -> Callable[[Cls], Cls]:
    """Returns a decorator that makes a class of random maps a frozen dataclass and a pytree."""

    def wrap(cls: Cls) -> Cls:
        cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        static = [f.name for f in dataclasses.fields(cls) if f.name not in arrays]  # type: ignore
        jax.tree_util.register_dataclass(cls, data_fields=list(arrays), meta_fields=static)
        serializable(cls, _encoded, _decoded)
        return cls

    return wrap


@_map_type("cores")
class Kronecker(Projection):
    """Random map f(x) = (M ∏ r_k)^{-1/2} A x with A a TT-matrix: a Kronecker product at rank 1.

    Attributes:
      cores: ``cores[k]`` has shape (r_{k-1}, m_k, n_k, r_k).

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.ttrp(jax.random.key(0), (25, 25, 16), (4, 3, 2))
      Kronecker(25·25·16 → 4·3·2, rademacher)

    Source: Feng, Tang, He, Zhou, Liao, arXiv 2010.10797, see `ttrp`.
    """

    _array_ndim: ClassVar[int] = 4
    cores: tuple[jax.Array, ...]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Modes (m_1, …, m_d) of the Kronecker map's output."""
        return tuple(c.shape[-3] for c in self.cores)


@_map_type("matrix")
class Dense(Projection):
    """Dense random map f(x) = M^{-1/2} W x, with a stored matrix W of iid entries.

    Attributes:
      matrix: W, of shape (M, N).

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.gaussian(jax.random.key(0), (8, 8), 64)
      Dense(8·8 → 64, gaussian)

    Source: Johnson and Lindenstrauss (1984), see `gaussian`.
    """

    _array_ndim: ClassVar[int] = 2
    matrix: jax.Array


@_map_type("index", "sign")
class Sparse(Projection):
    """Sparse random map f(x) = (s/M)^{1/2} S x, with about M N / s entries ±1, the others 0.

    Attributes:
      index: (capacity,) int32, ascending places i N + j in S; M N where nothing is stored.
      sign: (capacity,) ±1; 0 where nothing is stored.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.sparse(jax.random.key(0), 10_000, 24, s="sqrt")
      Sparse(10000 → 24, sparse)

    Source: Achlioptas (2003), see `sparse`.
    """

    _array_ndim: ClassVar[int] = 1
    index: jax.Array
    sign: jax.Array

    @property
    def size(self) -> int:
        """Number of nonzeros of the sparse random map; under jit, its storage capacity."""
        if _check.is_traced(self.sign):
            return self.sign.shape[-1]
        batch = math.prod(self.sign.shape[:-1])
        return round(int(jnp.count_nonzero(self.sign)) / batch)


@_map_type("cores")
class TTRows(Projection):
    """Random map of M independent rows, row i the tensor train (M ∏ r_k)^{-1/2} C_1[i] ⋯ C_d[i].

    Attributes:
      cores: ``cores[k]`` has shape (M, r_{k-1}, n_k, r_k).

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.tt_rows(jax.random.key(0), (4, 5, 6), 7, rank=2)
      TTRows(4·5·6 → 7, gaussian, ranks (2, 2))

    Source: Rakhshan and Rabusseau (2020), see `tt_rows`.
    """

    _array_ndim: ClassVar[int] = 4
    cores: tuple[jax.Array, ...]


@_map_type("factors")
class CPRows(Projection):
    """Random map of M independent CP rows, (M T)^{-1/2} Σ_t a_1[i, t] ⊗ … ⊗ a_d[i, t].

    Attributes:
      factors: ``factors[k]`` has shape (M, T, n_k).

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.cp_rows(jax.random.key(0), (4, 5, 6), 7, rank=2).terms
      2

    Source: Rakhshan and Rabusseau (2020), see `tt_rows`.
    """

    _array_ndim: ClassVar[int] = 3
    factors: tuple[jax.Array, ...]

    @property
    def terms(self) -> int:
        """Number T of rank-one terms in a row of the random map."""
        return self.factors[0].shape[-2]


def accumulator(dtype: Any) -> Any:
    """Returns the dtype in which a type of random map is applied: float32 or wider."""
    return promoted(dtype, jnp.float32)


def promoted(a: Any, b: Any) -> Any:
    """Returns the common dtype of a random map and its input, as JAX promotes types."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(jax.dtypes.canonicalize_dtype(a), jax.dtypes.canonicalize_dtype(b))
