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
    """Raised if a store's capacity, disk or staging memory is too small; the message has sizes.

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
    """Raised if a store's data or index is missing, cut or changed; names the tensors if known.

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
    """Raised if a tensor store is open already, in another process or in this one.

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
    """Raised if a tensor store is of another format, model, optimiser or process than expected.

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


def listed(names: Sequence[str], most: int = 5) -> str:
    """Formats the first few tensor names for an error message, with the count of the others."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
