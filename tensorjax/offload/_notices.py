"""Notices of a tensor store to its user: warnings, log entries, and the list of them."""

import functools
import logging
import threading
import warnings

_LOG = logging.getLogger("tensorjax.offload")


class StoreWarning(UserWarning):
    """Warning that a tensor store works, but slower or less safely than it could.

    Example:
        >>> import tempfile, warnings
        >>> from tensorjax import offload
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", offload.StoreWarning)
        ...     offload.TensorStore(tempfile.mkdtemp(), capacity=8192, backend="buffered").close()
        >>> [str(w.message) for w in caught if w.category is offload.StoreWarning]
        ['the page cache is used: speeds are not those of the disk']
    """


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
