"""Patched trains: sums of trains on parts of a tensor whose leading indices are given."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import jax.numpy as jnp

from tensorjax import _check
from tensorjax._formats.arithmetic_operators import Namespace, Summable
from tensorjax._formats.pytree_base import FrozenPytree, shown
from tensorjax._formats.trains import TT, single
from tensorjax._typing import DType

Prefix = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class PatchedTT(
    Summable,
    FrozenPytree,
    fields=("shape", "prefixes", "trains"),
    static=("shape", "prefixes"),
    decode=lambda saved: (tuple(saved[0]), tuple(tuple(prefix) for prefix in saved[1])),
):
    """Patched train: sum of trains on patches, parts of a tensor with given leading indices.

    Entries outside of all patches are zero; where patches overlap, they add. A function that needs
    high TT-ranks at few places has low ones in patches. The trains may have any dtype of `TT`.

    Attributes:
      shape: mode sizes (n_1, …, n_d).
      prefixes: leading indices (i_1, …, i_k), k < d, of each patch; () is the whole tensor.
      trains: train of each patch, over the modes behind its prefix: shape (n_{k+1}, …, n_d).

    Raises:
      ValueError: no patches, a prefix outside of the shape, a train of another shape.
      TypeError: a patch that is no TT.

    Operators: ``+`` and ``-`` between patched trains, and with scalars; ``*`` and ``/`` by scalars.

    Example:
      >>> from tensorjax import tt
      >>> p = tt.patches.PatchedTT((2, 3, 4), [(0,), (1, 2)], [tt.ones((3, 4)), tt.ones((4,))])
      >>> p
      PatchedTT(shape=(2, 3, 4), patches=2, largest rank=1, dtype=float32)
      >>> float(tt.patches.sum(2 * p))
      32.0

    Source: G. Grosso, M. Ritter et al., "Adaptive patching for tensor train computations" (2025),
    recalled from its abstract. Ours: patches that overlap.
    """

    shape: tuple[int, ...]
    prefixes: tuple[Prefix, ...]
    trains: tuple[TT, ...]
    dense_name: ClassVar[str] = "tt.patches.to_dense"
    _namespace = Namespace("tensorjax.tt.patches")

    def __init__(
        self, shape: Sequence[int], prefixes: Sequence[Sequence[int]], trains: Sequence[TT]
    ):
        sizes = _check.shape("shape", shape)
        leads = tuple(
            tuple(_check.several("prefixes", prefix, "digits"))
            for prefix in _check.several("prefixes", prefixes, "sequences of digits")
        )
        trains = _check.several("trains", trains, "trains")
        if not leads or len(leads) != len(trains):
            raise ValueError(
                "prefixes: expected one or more, with one train each, "
                f"got {len(leads)} and {len(trains)} trains"
            )
        for lead, train in zip(leads, trains, strict=True):
            _check_patch(sizes, lead, train)
        self._set(sizes, leads, tuple(trains))

    @property
    def ndim(self) -> int:
        """Number of modes d of a patched train."""
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        """Common dtype of all trains of a patched train, by JAX's promotion rules."""
        return jnp.result_type(*(t.dtype for t in self.trains))

    @property
    def size(self) -> int:
        """Number of stored entries in all cores of a patched train."""
        return sum(t.size for t in self.trains)

    def _carry(self, f: Callable[[Any], Any], dtype: Any) -> Self:
        return self._unchecked(
            self.shape, self.prefixes, tuple(t._carry(f, dtype) for t in self.trains)
        )

    def _shift(self, exponent: int) -> Self:
        trains = tuple(t._shift(exponent) for t in self.trains)
        return self._unchecked(self.shape, self.prefixes, trains)

    @shown
    def __repr__(self) -> str:
        largest = max(r for t in self.trains for r in t.ranks)
        return (
            f"PatchedTT(shape={self.shape}, patches={len(self.trains)}, largest rank={largest}, "
            f"dtype={jnp.dtype(self.dtype).name})"
        )


def _check_patch(shape: tuple[int, ...], prefix: Prefix, train: Any) -> None:
    """Raises an error that names the patch of a `PatchedTT` whose prefix or train does not fit."""
    inside = all(isinstance(i, int) and 0 <= i < n for i, n in zip(prefix, shape, strict=False))
    if not inside or len(prefix) >= len(shape):
        raise ValueError(
            f"prefixes: expected leading indices into shape {shape}, fewer than modes, got {prefix}"
        )
    single(f"train of patch {prefix}", train, TT)
    if train.shape != shape[len(prefix) :]:
        raise ValueError(
            f"trains: expected shape {shape[len(prefix) :]} for patch {prefix}, got {train.shape}"
        )
