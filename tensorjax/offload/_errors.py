"""Exceptions and warnings of the tensor store, and the names and notices in their messages."""

import errno
import functools
import logging
import threading
import warnings
from collections.abc import Iterable, Sequence

_LOG = logging.getLogger("tensorjax.offload")

_LISTED = 5  # names in a message
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # errors of a disk that has no room left


class StoreError(RuntimeError):
    """Base class of a tensor store's errors; the message gives the cause and the remedy.

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
    """Error of a store whose capacity, disk or staging memory is too small; it tells sizes.

    Example:
        >>> import tempfile, numpy as np
        >>> from tensorjax import offload
        >>> with offload.TensorStore(tempfile.mkdtemp(), capacity=8192, backend="memory") as store:
        ...     try:
        ...         store.reserve({"w": np.zeros(10_000)})
        ...     except offload.CapacityError as error:
        ...         print(error)
        capacity: 163840 more bytes are needed for two slots of 1 tensors ('w'), 8192 of 8192 are
        free; pass a capacity of at least 163840
    """


class CorruptError(StoreError):
    """Error of a store whose data or index is missing, cut or changed; names tensors if known.

    Example:
        >>> import pathlib, tempfile, numpy as np
        >>> from tensorjax import offload
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with offload.TensorStore(folder, capacity=8192) as store:
        ...     store.reserve({"w": np.zeros(10)})
        ...     done = store.write("w", np.ones(10))
        ...     store.commit()
        >>> next(folder.glob("data-*")).unlink()
        >>> try:
        ...     offload.TensorStore(folder, capacity=8192)
        ... except offload.CorruptError as error:
        ...     print(str(error).partition(": ")[2], error.tensors)
        the file is missing, and these tensors are lost: 'w'; restore the folder from a copy ('w',)
    """


class LockedError(StoreError):
    """Error of a tensor store that is open already, in another process or in this one.

    Example:
        >>> import tempfile
        >>> from tensorjax import offload
        >>> folder = tempfile.mkdtemp()
        >>> with offload.TensorStore(folder, capacity=8192):
        ...     try:
        ...         offload.TensorStore(folder, capacity=8192)
        ...     except offload.LockedError:
        ...         print("in use")
        in use
    """


class MismatchError(StoreError, ValueError):
    """Error of a tensor store of another format, model, optimiser or process than expected.

    Example:
        >>> import tempfile
        >>> from tensorjax import offload
        >>> folder = tempfile.mkdtemp()
        >>> with offload.TensorStore(folder, capacity=8192, model={"layers": 2}) as store:
        ...     store.commit()
        >>> try:
        ...     offload.TensorStore(folder, capacity=8192, model={"layers": 3})
        ... except offload.MismatchError as error:
        ...     print(str(error).partition(": ")[2])
        another store than the one asked for: model.layers: the store has 2, asked for 3
    """


def listed(names: Sequence[str]) -> str:
    """Formats the first few tensor names for an error message, with the count of the others."""
    shown = ", ".join(repr(name) for name in names[:_LISTED])
    return shown + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


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
    """List of a store's notices, beside its errors; each is also a warning or log entry."""

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
