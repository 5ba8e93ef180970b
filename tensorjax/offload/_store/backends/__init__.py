"""I/O backends, which move bytes between file and staging memory: protocol, kinds and choice."""

from tensorjax.offload._store.backends.backend_choice import available, choose
from tensorjax.offload._store.backends.protocol import Backend
from tensorjax.offload._store.backends.threads import ThreadBackend

__all__ = ["Backend", "ThreadBackend", "available", "choose"]
