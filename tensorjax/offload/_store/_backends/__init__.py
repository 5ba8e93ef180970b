"""I/O backends, which move bytes between file and staging memory: protocol, kinds and choice."""

from tensorjax.offload._store._backends._base import Backend
from tensorjax.offload._store._backends._choose import available, choose
from tensorjax.offload._store._backends._threads import ThreadBackend

__all__ = ["Backend", "ThreadBackend", "available", "choose"]
