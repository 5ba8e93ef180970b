"""Tucker type, a frozen pytree of core and factors with NumPy's operators, and argument checks."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.scaling import shared_out
from tensorjax._formats.arithmetic_operators import Multipliable, Namespace, floating
from tensorjax._formats.pytree_base import FrozenPytree, shown
from tensorjax._formats.trains import TT, single
from tensorjax._typing import ArrayLike, DType, DTypeLike, JaxOrHost, Scalar


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class Tucker(Multipliable, FrozenPytree, fields=("core", "factors")):
    """Tensor in Tucker format: x = core ×_1 U_1 ×_2 U_2 … ×_d U_d.

    Attributes:
      core: (s_1, …, s_d), or a `tensorjax.tt.TT` of that shape.
      factors: d arrays U_k of shape (n_k, s_k).

    Raises:
      ValueError: the factors do not fit the core.
      TypeError: integer dtypes; 64 bits where jax_enable_x64 is off, see `tensorjax.tt.TT`.

    Operators are NumPy's: ``+``, ``-`` and ``*`` are entry-wise between Tucker tensors or with a
    scalar, ``/`` is by a scalar, ``t**2`` takes integer powers; ``t[3, :, 2:5]`` is indexed as an
    array is.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1, 2)), [jnp.ones((3, 1)), jnp.ones((4, 2))])
      >>> t - 2 * t
      Tucker(shape=(3, 4), ranks=(2, 4), core=dense, dtype=float32)

    Source: L. De Lathauwer, B. De Moor, J. Vandewalle, "A multilinear singular value
    decomposition", SIAM J. Matrix Anal. Appl. 21 (2000).
    """

    core: Any
    factors: tuple[jax.Array, ...]
    dense_name: ClassVar[str] = "tucker.to_dense"
    entrywise_name: ClassVar[str] = "tt.map({0}, tucker.to_tt(t), tol=, key=)"
    _namespace = Namespace("tensorjax.tucker")

    def __init__(self, core: JaxOrHost | TT, factors: Iterable[ArrayLike]):
        checked = tuple(
            _check.core(f"factors[{k}]", u)
            for k, u in enumerate(_check.several("factors", factors, "matrices"))
        )
        if isinstance(core, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
            core = _check.core("core", core)
        elif isinstance(core, TT):
            single("core", core, TT)
        else:
            raise TypeError(f"core: expected an array or a TT, got {type(core).__name__}")
        for k, u in enumerate(checked):
            if u.ndim != 2 or k >= len(core.shape) or u.shape[1] != core.shape[k]:
                expected = core.shape[k] if k < len(core.shape) else "no such mode"
                raise ValueError(
                    f"factors[{k}]: expected shape (n, {expected}) to fit the core {core.shape}, "
                    f"got {u.shape}"
                )
        if len(checked) != len(core.shape):
            raise ValueError(
                f"factors: expected one per mode of the core {core.shape}, got {len(checked)}"
            )
        self._set(core, checked)

    @property
    def shape(self) -> tuple[int, ...]:
        """Mode sizes (n_1, …, n_d) of the Tucker tensor."""
        return tuple(u.shape[-2] for u in self.factors)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Multilinear ranks (s_1, …, s_d) of the Tucker tensor."""
        return tuple(u.shape[-1] for u in self.factors)

    @property
    def order(self) -> int:
        """Number of modes d of the Tucker tensor."""
        return len(self.factors)

    @property
    def ndim(self) -> int:
        """Number of modes d of the Tucker tensor, as of an array."""
        return self.order

    def __getitem__(self, key: Any) -> Any:
        return self._namespace.item(self, key)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __mul__(self, other: "Tucker | Scalar") -> Self:
        if isinstance(other, Tucker):
            return self._namespace.hadamard(self, other)
        return super().__mul__(other)

    @property
    def dtype(self) -> DType:
        """Common dtype of the Tucker core and factors, by JAX's promotion rules."""
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(self)}
        return dtypes.pop() if len(dtypes) == 1 else jnp.result_type(*dtypes)

    @property
    def size(self) -> int:
        """Number of stored elements, Tucker core and factors (of one tensor of a batch)."""
        core = self.core.size if isinstance(self.core, TT) else math.prod(self.ranks)
        return core + sum(math.prod(u.shape[-2:]) for u in self.factors)

    @property
    def nbytes(self) -> int:
        """Bytes of the Tucker core and factors (batch axes included)."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

    def astype(self, dtype: DTypeLike) -> "Tucker":
        """Returns the Tucker tensor with core and factors cast to ``dtype``.

        Args:
          dtype: floating or complex.

        Returns:
          Tucker of the same shape and ranks.

        Raises:
          TypeError: complex arrays and a real dtype, see `tensorjax.tucker.real`; an integer dtype.
        """
        floating(self, dtype, "take tucker.real(t) or tucker.imag(t) first")
        return jax.tree.map(lambda leaf: leaf.astype(dtype), self)

    def _carry(self, f: Callable[[Any], Any], dtype: Any) -> "Tucker":
        t = self if all(x.dtype == dtype for x in jax.tree.leaves(self)) else self.astype(dtype)
        core = t.core._carry(f, dtype) if isinstance(t.core, TT) else f(t.core)
        return Tucker._unchecked(core, t.factors)

    def _shift(self, exponent: int) -> "Tucker":
        return _shared_out(self, exponent)

    @shown
    def __repr__(self) -> str:
        array = hasattr(self.core, "ndim") and not isinstance(self.core, TT)
        kind = "dense" if array else repr(self.core)
        return (
            f"Tucker(shape={self.shape}, ranks={self.ranks}, core={kind}, "
            f"dtype={jnp.dtype(self.dtype).name})"
        )


@jax.jit
def _shared_out(t: Tucker, exponent: Any) -> Tucker:
    leaves, structure = jax.tree.flatten(t)
    return jax.tree.unflatten(structure, shared_out(leaves, exponent))


def kind(name: str, t: Any) -> None:
    """Checks an argument's type: TypeError unless a `Tucker`, or batch, of an enabled dtype."""
    if not isinstance(t, Tucker):
        raise TypeError(
            f"{name}: expected a Tucker, got {type(t).__name__}; build one with tucker.from_dense"
        )
    _check.held(name, t, host=True)


def one(name: str, t: Any) -> None:
    """Checks the type of an argument: raises unless a single Tucker tensor, not a batch of them."""
    kind(name, t)
    if t.factors[0].ndim != 2:
        raise ValueError(
            f"{name}: expected one Tucker, got a batch of them {t.factors[0].shape[:-2]}; "
            "map the function over it with jax.vmap"
        )


def check_core_rank(t: Tucker, core_rank: Any) -> None:
    """Checks an argument's core type: ValueError if ``core_rank`` is given for a dense core."""
    if core_rank is not None and not isinstance(t.core, TT):
        raise ValueError(
            f"core_rank: expected None, for the core is dense, got {core_rank!r}; "
            "TT-ranks are those of a core that is a TT"
        )
