"""What can go wrong with a store, one class for each thing a caller may want to catch."""

import errno
import functools
import logging
import threading
import warnings
from collections.abc import Iterable

_LOG = logging.getLogger("tensorjax.offload")
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # errors of a disk that has no room left


class StoreError(RuntimeError):
    """A store cannot do what was asked; the message says why and what to do.

    Attributes:
        tensors: Names of all tensors that are concerned; a message names the first few.
    """

    def __init__(self, message: str, tensors: Iterable[str] = ()):
        super().__init__(message)
        self.tensors = tuple(tensors)


class CapacityError(StoreError):
    """The capacity, the disk or the staging pool is too small; the message has the numbers."""


class CorruptError(StoreError):
    """What was read is not what was written; the message names the tensors."""


class LockedError(StoreError):
    """Another process holds the store."""


class MismatchError(StoreError, ValueError):
    """The store is of another version, model, optimiser or process than the one asked for."""


class StoreWarning(UserWarning):
    """The store works, but not as fast or as safely as it could."""


class Notices(list[str]):
    """What the store had to say; a warning too, or in other threads than the main one a log."""

    def __call__(self, message: str) -> None:
        self.append(message)
        if threading.current_thread() is threading.main_thread():
            warnings.warn(message, StoreWarning, stacklevel=4)
        else:  # warnings that are errors would end a thread of the store
            _LOG.warning(message)

    def once(self, message: str) -> None:
        """Keeps a notice for `statistics`, and logs it for the first store of the process alone."""
        self.append(message)
        _logged(message)


@functools.cache
def _logged(message: str) -> None:
    _LOG.warning(message)
