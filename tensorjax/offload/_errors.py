"""Exceptions and warnings of the tensor store, one class per kind of failure."""

import errno
import functools
import logging
import threading
import warnings
from collections.abc import Iterable

_LOG = logging.getLogger("tensorjax.offload")
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # errors of a disk that has no room left


class StoreError(RuntimeError):
    """Base class of the store's errors; the message gives the cause and the remedy.

    Attributes:
        tensors: Names of all tensors that are concerned; a message names the first few.
    """

    def __init__(self, message: str, tensors: Iterable[str] = ()):
        super().__init__(message)
        self.tensors = tuple(tensors)


class CapacityError(StoreError):
    """Raised if capacity, disk or staging memory is too small; the message gives the sizes."""


class CorruptError(StoreError):
    """Raised if stored data or an index is missing, cut or changed; names the tensors if known."""


class LockedError(StoreError):
    """Raised if the store is open already, in another process or in this one."""


class MismatchError(StoreError, ValueError):
    """Raised if a store has another format version, model, optimiser or process than asked for."""


class StoreWarning(UserWarning):
    """Warning that the store works, but slower or less safely than it could."""


class Notices(list[str]):
    """List of a tensor store's notices to the user, each also issued as a warning or log entry."""

    def __call__(self, message: str) -> None:
        self.append(message)
        if threading.current_thread() is threading.main_thread():
            warnings.warn(message, StoreWarning, stacklevel=4)
        else:  # warnings that are errors would end a thread of the store
            _LOG.warning(message)

    def once(self, message: str) -> None:
        """Logs a warning of the store once per process, and keeps it for `statistics`."""
        self.append(message)
        _logged(message)


@functools.cache
def _logged(message: str) -> None:
    _LOG.warning(message)
