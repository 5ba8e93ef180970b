"""Tensor-train types TT and TTMatrix: frozen pytrees of cores, with NumPy's operators.

They lie under all formats, for a Tucker tensor may hold a train as its core and a MERA turns into
one, and peers do not import each other. The functions on trains are those of `tensorjax.tt`, which
operators import at their first use: a train carries its namespace, as arrays do in the array API
standard.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from types import EllipsisType
from typing import Any, ClassVar, Self, TypeVar, cast, overload

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.scaling import shared_out
from tensorjax._formats.arithmetic_operators import (
    Namespace,
    Summable,
    floating,
    not_exact,
    whole_power,
)
from tensorjax._formats.array_protocol_errors import is_scalar
from tensorjax._formats.pytree_base import dtypes_of, rebuilt, serializable, shown
from tensorjax._typing import DType, DTypeLike, JaxOrHost, Scalar

# Indices of a train that keep a mode of it whatever its order is: an integer may take the last one.
Whole = slice | EllipsisType | tuple[slice | EllipsisType | None, ...]

_shared_out = jax.jit(shared_out)


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class _Train(Summable):
    """Base class of TT and TTMatrix: a tuple of cores linked by bonds.

    Everything is read off trailing axes, so that `jax.vmap` over trains gives a train whose cores
    carry leading batch axes and whose ``shape`` and ``ranks`` are still right.
    """

    cores: tuple[jax.Array, ...]
    _core_ndim: ClassVar[int]
    _core_axes: ClassVar[str]
    dense_name: ClassVar[str] = "tt.to_dense"
    entrywise_name: ClassVar[str] = "tt.map({0}, t, tol=, key=)"
    _namespace = Namespace("tensorjax.tt")

    def __init__(self, cores: Iterable[Any]):
        object.__setattr__(self, "cores", _checked_cores(type(self), cores))

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_with_keys(
            cls,
            lambda t: (((jax.tree_util.GetAttrKey("cores"), t.cores),), None),
            lambda _, children: cls._unchecked(*children),
            lambda t: ((t.cores,), None),
        )
        serializable(cls)

    @classmethod
    def _unchecked(cls, cores: Any) -> Self:
        """Builds a train without validating its cores, for pytree leaves of any kind."""
        self = object.__new__(cls)
        object.__setattr__(self, "cores", cores)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (type(self), (self.cores,), dtypes_of(self))

    @property
    def ranks(self) -> tuple[int, ...]:
        """TT-ranks (r_0, …, r_d) of a train of either type, with r_0 = r_d = 1."""
        left, cores = -self._core_ndim, self.cores
        return (*[c.shape[left] for c in cores], cores[-1].shape[-1])

    @property
    def order(self) -> int:
        """Number of cores d of a train of either type, TT or TTMatrix."""
        return len(self.cores)

    @property
    def dtype(self) -> DType:
        """Common dtype of the cores of a TT or TTMatrix, by JAX's promotion rules."""
        dtypes = [c.dtype for c in self.cores]
        # Counted, not gathered in a set: to hash dtypes takes longer than to find them the same.
        return dtypes[0] if dtypes.count(dtypes[0]) == len(dtypes) else jnp.result_type(*dtypes)

    @property
    def size(self) -> int:
        """Number of stored entries in all cores of a TT or TTMatrix (batch axes left out)."""
        return sum(math.prod(c.shape[-self._core_ndim :]) for c in self.cores)

    @property
    def nbytes(self) -> int:
        """Bytes of all cores of a TT or TTMatrix (batch axes included)."""
        return sum(c.nbytes for c in self.cores)

    def astype(self, dtype: DTypeLike) -> Self:
        """Returns the train with every core cast to ``dtype``.

        Args:
          dtype: floating or complex.

        Returns:
          Train of the same kind, shape and TT-ranks.

        Raises:
          TypeError: complex cores and a real dtype, see `tensorjax.tt.real`; an integer dtype.
        """
        floating(self, dtype, "take tt.real(t) or tt.imag(t) first")
        if all(c.dtype == dtype for c in self.cores):
            return self
        return self._unchecked(tuple(c.astype(dtype) for c in self.cores))

    def _carry(self, f: Callable[[Any], Any], dtype: Any) -> Self:
        cores = self.cores
        if any(c.dtype != dtype for c in cores):
            cores = tuple(c.astype(dtype) for c in self.astype(dtype).cores)
        return self._unchecked((*cores[:-1], f(cores[-1])))

    def _shift(self, exponent: int) -> Self:
        return self._unchecked(tuple(_shared_out(self.cores, exponent)))

    def __mul__(self, other: Self | Scalar) -> Self:
        if type(other) is type(self):
            return self._namespace.hadamard(self, other)
        return super().__mul__(cast(Scalar, other))

    def __pow__(self, exponent: int) -> Self:
        number = whole_power(self, exponent)
        if number is not None:
            return self._namespace.power(self, number)
        if is_scalar(exponent) and not isinstance(exponent, bool):
            raise not_exact(self, "such a power", "map(lambda x: x**p, t, tol=, key=)")
        return super().__pow__(exponent)  # type: ignore[misc]

    def __truediv__(self, other: Scalar) -> Self:
        if isinstance(other, TT | TTMatrix):
            raise not_exact(self, "a quotient", "divide(x, y, tol=, key=)")
        return super().__truediv__(other)

    def __rtruediv__(self, other: Any) -> Any:
        if is_scalar(other):
            raise not_exact(self, "a reciprocal", "map(lambda x: 1 / x, t, tol=, key=)")
        return super().__rtruediv__(other)  # type: ignore[misc]

    @shown
    def __repr__(self) -> str:
        batch = self.cores[0].shape[: -self._core_ndim]
        prefix = f"batch={batch}, " if batch else ""
        return (
            f"{type(self).__name__}({prefix}{self._shape_repr()}, ranks={self.ranks}, "
            f"dtype={jnp.dtype(self.dtype).name})"
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        raise TypeError("an abstract train has no entries")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes of the tensor that a train of either type stands for."""
        raise TypeError("an abstract train has no shape")

    def _shape_repr(self) -> str:
        raise TypeError("an abstract train has no shape")


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class TT(_Train):
    """Tensor in tensor-train format: x[i_1, …, i_d] = G_1[:, i_1, :] ⋯ G_d[:, i_d, :].

    Attributes:
      cores: d arrays; ``cores[k]`` has shape (r_{k-1}, n_k, r_k), with r_0 = r_d = 1. Leading
        axes, equal in all cores, are a batch (as `jax.vmap` makes them).

    Raises:
      ValueError: cores do not chain.
      TypeError: a dtype that is neither floating nor complex; 64-bit cores, of NumPy too, where
        jax_enable_x64 is off. All functions refuse trains of such cores. Dense data follow JAX's
        rule, which rounds them to 32 bits there: so do `tensorjax.tt.from_dense` and its like.

    Operators are NumPy's: ``+``, ``-`` and ``*`` are entry-wise between trains or with a scalar;
    ``@`` treats a train as the vector of its entries, as ``TTMatrix @ TT`` does.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> t = tt.TT([jnp.ones((1, 4, 2)), jnp.ones((2, 5, 1))])
      >>> t
      TT(shape=(4, 5), ranks=(1, 2, 1), dtype=float32)
      >>> (t + t).ranks, t[:, 1:4].shape, float(t[0, 0])
      ((1, 4, 1), (4, 3), 2.0)

    Source: I. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011), eq. (1.3).
    """

    _core_ndim: ClassVar[int] = 3
    _core_axes: ClassVar[str] = "(r_left, n, r_right)"

    @property
    def shape(self) -> tuple[int, ...]:
        """Mode sizes (n_1, …, n_d) of a train of type TT."""
        return (*[c.shape[-2] for c in self.cores],)  # in half the time of a generator

    @property
    def ndim(self) -> int:
        """Number of modes d of a train of type TT."""
        return self.order

    @property
    def T(self) -> "TT":
        """Train with its modes in reverse order, as `numpy.ndarray.T`."""
        return self._namespace.reverse(self)

    def _shape_repr(self) -> str:
        return f"shape={self.shape}"

    @overload
    def __getitem__(self, key: Whole) -> "TT": ...
    @overload
    def __getitem__(self, key: Any) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        return self._namespace.item(self, key)

    @overload
    def __matmul__(self, other: "TT") -> jax.Array: ...
    @overload
    def __matmul__(self, other: "TTMatrix") -> "TT": ...
    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, TT):
            return self._namespace.inner(self._namespace.conj(self), other)
        if isinstance(other, TTMatrix):
            return self._namespace.matvec(self._namespace.transpose(other), self)
        return super().__matmul__(other)  # type: ignore[misc]


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class TTMatrix(_Train):
    """Tensor-train format of a matrix, with rows (i_1, …, i_d) and columns (j_1, …, j_d).

    A[i, j] = G_1[:, i_1, j_1, :] ⋯ G_d[:, i_d, j_d, :].

    Attributes:
      cores: d arrays; ``cores[k]`` has shape (r_{k-1}, m_k, n_k, r_k): m_k rows, n_k columns.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> a = tt.TTMatrix([jnp.ones((1, 2, 3, 2)), jnp.ones((2, 4, 5, 1))])
      >>> a
      TTMatrix(row_shape=(2, 4), col_shape=(3, 5), ranks=(1, 2, 1), dtype=float32)
      >>> a.shape, (a @ jnp.ones((15, 7))).shape, (jnp.ones((9, 8)) @ a).shape
      ((8, 15), (8, 7), (9, 15))

    ``a @ x`` and ``x @ a`` take a TTMatrix, a TT or a dense array, with leading axes as in NumPy.

    Source: Oseledets (2011), section 4.3.
    """

    _core_ndim: ClassVar[int] = 4
    _core_axes: ClassVar[str] = "(r_left, m, n, r_right)"

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Row mode sizes (m_1, …, m_d) of a train of type TTMatrix."""
        return tuple(c.shape[-3] for c in self.cores)

    @property
    def col_shape(self) -> tuple[int, ...]:
        """Column mode sizes (n_1, …, n_d) of a train of type TTMatrix."""
        return tuple(c.shape[-2] for c in self.cores)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (∏ m_k, ∏ n_k) of the matrix that a TTMatrix stands for."""
        return math.prod(self.row_shape), math.prod(self.col_shape)

    @property
    def ndim(self) -> int:
        """Number of axes of the matrix that a TTMatrix stands for, always 2."""
        return 2

    @property
    def T(self) -> "TTMatrix":
        """Transposed TTMatrix, without conjugation."""
        return self._namespace.transpose(self)

    def _shape_repr(self) -> str:
        return f"row_shape={self.row_shape}, col_shape={self.col_shape}"

    def __getitem__(self, key: Any) -> Any:
        return self._namespace.matrix_item(self, key)

    @overload
    def __matmul__(self, other: TT) -> TT: ...
    @overload
    def __matmul__(self, other: "TTMatrix") -> "TTMatrix": ...
    @overload
    def __matmul__(self, other: JaxOrHost) -> jax.Array: ...
    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, TT):
            return self._namespace.matvec(self, other)
        if isinstance(other, TTMatrix):
            return self._namespace.matmul(self, other)
        if _is_array(other):
            return self._namespace.dense_product(self, other)
        return super().__matmul__(other)  # type: ignore[misc]

    def __rmatmul__(self, other: JaxOrHost) -> jax.Array:
        if _is_array(other):
            return self._namespace.dense_before(self, other)
        return super().__rmatmul__(other)  # type: ignore[misc]


# One of the two kinds: what a function of either returns is of the kind it takes.
Train = TypeVar("Train", TT, TTMatrix)


def _is_array(x: Any) -> bool:
    """Whether the other operand of `TTMatrix`'s ``@`` is a dense array with axes, NumPy or JAX."""
    return isinstance(x, np.ndarray | jax.Array) and x.ndim > 0


def _checked_cores(cls: type[_Train], cores: Iterable[Any]) -> tuple[jax.Array, ...]:
    out = tuple(
        _check.core(f"cores[{k}]", c)
        for k, c in enumerate(_check.several("cores", cores, "arrays"))
    )
    ndim = cls._core_ndim
    if not out:
        raise ValueError("cores: expected at least one core, got none")
    batch = out[0].shape[:-ndim]
    for k, c in enumerate(out):
        if c.ndim < ndim or c.shape[:-ndim] != batch:
            lead = f" after batch axes {batch}" if batch else ""
            raise ValueError(f"cores[{k}]: expected shape {cls._core_axes}{lead}, got {c.shape}")
        if not (c.shape[-ndim] and c.shape[-1]):
            raise ValueError(f"cores[{k}]: expected ranks of at least 1, got {c.shape}")
    left = [c.shape[-ndim] for c in out]
    right = [c.shape[-1] for c in out]
    if left[0] != 1 or right[-1] != 1:
        raise ValueError(
            "cores: expected first and last rank 1 (open boundary), "
            f"got r_0 = {left[0]} and r_d = {right[-1]}"
        )
    for k in range(len(out) - 1):
        if right[k] != left[k + 1]:
            raise ValueError(
                f"cores[{k}], cores[{k + 1}]: expected the bond between them to have one rank, "
                f"got {right[k]} and {left[k + 1]}"
            )
    return out


def known(name: str, t: Any, *kinds: type[_Train], host: bool = True) -> None:
    """Checks an argument ``t``: raises TypeError if it is no TT or TTMatrix of an enabled dtype.

    Trains of NumPy's arrays are for functions that stay on the host (``host`` False) in any dtype.
    """
    kinds = kinds or (TT, TTMatrix)
    if not isinstance(t, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        how = "tt.from_dense" if TT in kinds else "tt.matrix_from_dense"
        raise TypeError(f"{name}: expected a {expected}, got {_got(t)}; build one with {how}")
    _check.held(name, t, host=host)


def _got(t: Any) -> str:
    """Names the type of a wrong argument for an error; says so if its ``v`` is a train."""
    inside = isinstance(getattr(t, "v", None), _Train)
    return f"{type(t).__name__}, whose train is its .v" if inside else type(t).__name__


def single(
    name: str, t: Any, *kinds: type[_Train], host: bool = True, entries: bool = False
) -> None:
    """Raises an error if ``t`` is not a train, TT or TTMatrix, or is a batch of trains.

    With ``entries`` no mode may be empty, as for what looks for an entry or draws from them.
    """
    known(name, t, *kinds, host=host)
    if t.cores[0].ndim != t._core_ndim:
        batch = t.cores[0].shape[: -t._core_ndim]
        raise ValueError(
            f"{name}: expected one {type(t).__name__}, got a batch of them {batch}; "
            "map the function over it with jax.vmap"
        )
    if entries and any(0 in c.shape for c in t.cores):
        sizes = t.shape if isinstance(t, TT) else (t.row_shape, t.col_shape)
        raise ValueError(
            f"{name}: expected a tensor with entries, got one of shape {sizes}: a mode of size 0 "
            "leaves none"
        )
