"""Optional backends that need special hardware or drivers: kvikio and entry points. Untested here.

`kvikio` moves bytes by NVIDIA's cuFile (GPUDirect Storage where the driver has it). Others, an SPDK
block device for example, register a function under the entry point group ``tensorjax.offload``; it
is called with the options of the store and returns an object with the methods of `Backend`.
"""

import importlib.util
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tensorjax.offload._errors import CorruptError
from tensorjax.offload._store.backends.protocol import Backend
from tensorjax.offload._store.backends.threads import ThreadBackend
from tensorjax.offload._store.disk.files import DiskFile, Say

GROUP = "tensorjax.offload"


class KvikioFile(DiskFile):
    """Data file read and written by NVIDIA's kvikio; untested, as it needs a GPU and driver."""

    def __init__(self, path: Path, *, say: Say):
        super().__init__(path, direct=False, say=say)
        import kvikio  # type: ignore[import-not-found]

        self._cufile = kvikio.CuFile(str(path), "r+")
        say("kvikio: this way was never tested by the authors of tensorjax")

    def read(self, offset: int, memory: memoryview) -> None:
        """Reads bytes of the data file from ``offset`` on into all of ``memory``, by kvikio."""
        self._all(self._cufile.pread, offset, memory)

    def write(self, offset: int, memory: memoryview) -> None:
        """Writes all of ``memory`` to the data file at ``offset``, by kvikio."""
        self._all(self._cufile.pwrite, offset, memory)

    def _all(self, call: Callable[..., Any], offset: int, memory: memoryview) -> None:
        done = 0
        while done < len(memory):
            moved = call(memory[done:], file_offset=offset + done).get()
            if moved <= 0:
                raise CorruptError(f"{self.path} ends at byte {self.size()}")
            done += moved

    def close(self) -> None:
        """Closes kvikio's handle of the data file, and the file."""
        self._cufile.close()
        super().close()


def kvikio(**options: Any) -> Backend:
    """Constructs a thread-pool backend whose threads read and write by kvikio."""
    options = {"name": "kvikio (untested)", **options}
    return ThreadBackend(lambda path, _, say: KvikioFile(path, say=say), **options)


def plugins() -> dict[str, Callable[..., Backend]]:
    """Returns the constructors of the installed plug-in I/O backends, by name."""
    found: dict[str, Callable[..., Backend]] = {}
    if importlib.util.find_spec("kvikio") is not None:
        found["kvikio"] = kvikio
    for entry in entry_points(group=GROUP):
        found[entry.name] = lambda entry=entry, **options: entry.load()(**options)
    return found
