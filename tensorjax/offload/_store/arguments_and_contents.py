"""Arguments of a `TensorStore`, checked, and contents of an open one: names, metadata, state."""

import copy
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat, cast

import jax

from tensorjax import _check
from tensorjax.offload._errors import StoreError, listed
from tensorjax.offload._store.disk.extents import ALIGN
from tensorjax.offload._store.disk.folder import Paths
from tensorjax.offload._store.disk.index import Index
from tensorjax.offload._store.tensor_states import Tensor


def folder(given: Any) -> Path:
    """Checks a store's argument ``path``: returns a `Path`; raises for other types and files."""
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"path: expected a folder's path, got {given!r}")
    found = Path(given)
    if found.is_file():
        raise NotADirectoryError(f"path: expected a folder, got the file {found}")
    return found


def amount(name: str, given: int | None, low: int) -> int | None:
    """Checks a store's argument in bytes: returns it, None or an int of at least ``low``."""
    return None if given is None else _check.integer(name, given, low=low)


def block(given: int | None) -> int | None:
    """Checks a store's argument ``block``, a size that is a multiple of 4096 bytes; returns it."""
    if given is not None and _check.integer("block", given, low=1) % ALIGN:
        raise ValueError(f"block: expected a multiple of {ALIGN}, got {given}")
    return given


def options(given: Any) -> dict[str, Any]:
    """Checks a store's argument ``options``, for the backend; TypeError if not a mapping."""
    if not isinstance(given, Mapping | None):
        raise TypeError(f"options: expected a mapping, or None, got {given!r}")
    return dict(given or {})


def named(name: str, given: Any) -> Any:
    """Checks that a store's argument maps tensor names to values; returns it unchanged."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}: expected a mapping from names, got {type(given).__name__}")
    return given


def deadline(given: Any) -> float:
    """Checks the argument ``deadline`` of reads and writes: a float; raises for NaN or others."""
    if isinstance(given, str) or not isinstance(given, SupportsFloat):
        raise TypeError(f"deadline: expected a number, got {given!r}")
    try:
        found = float(given)
    except OverflowError:
        return math.inf if cast(Any, given) > 0 else -math.inf
    if math.isnan(found):
        raise ValueError("deadline: expected a number, got NaN")
    return found


def barrier(given: Any) -> Callable[[], object] | None:
    """Checks a store's argument ``barrier``, called in commits of several processes, or None."""
    if given is not None and not callable(given):
        raise TypeError(f"barrier: expected a function, or None, got {given!r}")
    return given


class StoreContents:
    """Base class of `TensorStore`, on its contents: names, shapes, metadata and state."""

    _paths: Paths
    _index: Index
    _tensors: dict[str, Tensor]
    _open: bool
    _undecided: bool
    _pid: int

    @property
    def meta(self) -> Any:
        """Copy of the metadata in an open store's contents as of its last commit, or None."""
        return copy.deepcopy(self._index.meta)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors in a store's contents, in the order of their reservation."""
        return tuple(self._tensors)

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the tensors in a store's contents that were written, so can be read."""
        return tuple(name for name, tensor in self._tensors.items() if tensor.written)

    @property
    def uncommitted(self) -> tuple[str, ...]:
        """Names of the tensors in a store's contents that were written since its last commit.

        Those that share a block of the disk count together.
        """
        states = self._tensors.items()
        return tuple(name for name, t in states if t.slots.newest is not t.slots.committed)

    @property
    def process(self) -> tuple[int, int]:
        """Number of the process that a store's contents belong to, and count of processes."""
        return self._paths.process

    @property
    def closed(self) -> bool:
        """Whether a store was closed, so that its contents cannot be read or written any more."""
        return not self._open

    @property
    def commits(self) -> int:
        """Number of commits of a store's contents since its creation."""
        return self._index.commit

    def spec(self, name: str) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of a tensor in a store's contents.

        Args:
            name: Of a reserved tensor.

        Returns:
            `jax.ShapeDtypeStruct`.

        Raises:
            KeyError: if no such tensor is reserved.
        """
        place = self._tensor(name).place
        return jax.ShapeDtypeStruct(place.shape, place.dtype)

    def __repr__(self) -> str:
        state = f"commit {self.commits}" if self._open else "closed"
        return f"TensorStore({str(self._paths.folder)!r}, {len(self._tensors)} tensors, {state})"

    def _tensor(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except (KeyError, TypeError):
            raise KeyError(
                f"name: expected one of {len(self._tensors)} reserved tensors "
                f"({listed(self.names)}), got {name!r}"
            ) from None

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"{self._paths.folder}: the store is closed; open it again")
        if self._pid != os.getpid():
            raise StoreError(
                f"{self._paths.folder}: the store was opened by process {self._pid}, of which this "
                "one is a fork: its threads are not here; use the store there"
            )
        if self._undecided:
            raise StoreError(
                f"{self._paths.folder}: a commit was cut off, and which state holds is decided "
                "when the store is opened; close it and open it again"
            )
