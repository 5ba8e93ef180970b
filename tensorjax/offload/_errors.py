"""Exceptions of the tensor store, one class per kind of failure, and names in their messages."""

import errno
from collections.abc import Iterable, Sequence

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # errors of a disk that has no room left


class StoreError(RuntimeError):
    """Base class of a tensor store's exceptions; the message gives the cause and the remedy.

    Attributes:
        tensors: Names of all tensors that are concerned; a message names the first few.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tensorjax import offload
        >>> with offload.TensorStore(tempfile.mkdtemp(), capacity=8192) as store:
        ...     try:
        ...         store.reserve({"w": np.zeros(10_000)})
        ...     except offload.StoreError as error:
        ...         print(type(error).__name__)
        CapacityError
    """

    def __init__(self, message: str, tensors: Iterable[str] = ()):
        super().__init__(message)
        self.tensors = tuple(tensors)


class CapacityError(StoreError):
    """Raised if a store's capacity, disk or staging memory is too small; the message has sizes."""


class CorruptError(StoreError):
    """Raised if a store's data or index is missing, cut or changed; names the tensors if known."""


class LockedError(StoreError):
    """Raised if a tensor store is open already, in another process or in this one."""


class MismatchError(StoreError, ValueError):
    """Raised if a tensor store is of another format, model, optimiser or process than expected."""


def listed(names: Sequence[str], most: int = 5) -> str:
    """Formats the first few tensor names for an error message, with the count of the others."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
