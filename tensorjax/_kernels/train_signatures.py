"""Signatures of concrete trains, by which calls are served as calls with others alike were before.

The checks of a call, and the choice of its kernel, take as long as the product of some small cores.
Both follow from kinds, shapes, dtypes and devices alone. Cores never change: these are kept with
the train, and what was chosen for a pair of trains holds for all pairs alike.
"""

import operator
from typing import Any

import jax
import numpy as np

from tensorjax import _check, _native, _placement

_MOST_SIGNATURES = 4096
_NAME = "_signature"
_COMMITTED = operator.attrgetter("committed")


class Signature:
    """Signature of a train: kind, shapes and dtype of its cores; trains alike share one object.

    Attributes:
      kind: TT or TTMatrix.
      shapes: of the cores, none of which is empty.
      dtype: of all cores.
    """

    __slots__ = ("dtype", "kind", "shapes")

    def __init__(self, kind: type, shapes: tuple[tuple[int, ...], ...], dtype: np.dtype) -> None:
        self.kind, self.shapes, self.dtype = kind, shapes, dtype


_signatures: dict[Any, Signature] = {}
_known: set[tuple[str, Signature, Signature]] = set()


def signature(t: Any) -> Signature | None:
    """Returns the signature cached with a train; None if every call has to check its cores.

    These are all that are not single trains of JAX arrays of one enabled dtype, free to move, on
    the only device: those with traced or committed cores among them.
    """
    try:
        found = vars(t)[_NAME]
    except (KeyError, TypeError):
        found = _signed(t)
    return found if found is None or _check.is_enabled(found.dtype) else None


def is_known(operation: str, x: Any, y: Any) -> bool:
    """Whether a call with two trains was remembered for others of their signatures."""
    left, right = signature(x), signature(y)
    if left is None or right is None:
        return False
    return (operation, left, right) in _known and not _native.status()


def remember(operation: str, x: Any, y: Any) -> None:
    """Records that one C++ program serves a call with two trains of these signatures."""
    left, right = signature(x), signature(y)
    if left is None or right is None:
        return
    if len(_known) >= _MOST_SIGNATURES:
        _known.clear()
    _known.add((operation, left, right))


def forget_pairs() -> None:
    """Forgets, for tests, the pairs of known trains."""
    _known.clear()


def _signed(t: Any) -> Signature | None:
    """Computes the signature of a train and caches it with the train; None if it has none."""
    if not hasattr(t, "_core_ndim"):
        return None
    found = None
    try:
        cores = t.cores
        dtypes = [c.dtype for c in cores]
        shapes = tuple([c.shape for c in cores])
        plain = all(len(s) == t._core_ndim and 0 not in s for s in shapes)
        free = _placement._is_alone() and not any(map(_COMMITTED, cores))
        if plain and free and dtypes.count(dtypes[0]) == len(dtypes):
            if len(_signatures) >= _MOST_SIGNATURES:
                _signatures.clear()
            key = type(t), shapes, dtypes[0]
            found = _signatures.setdefault(key, Signature(*key))
    except (AttributeError, IndexError, TypeError, jax.errors.ConcretizationTypeError):
        pass  # tracers, arrays of NumPy, or leaves of any kind
    vars(t)[_NAME] = found
    return found
