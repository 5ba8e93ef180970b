"""Who moves the bytes: one protocol, several ways, and the choice among them."""

from tensorjax.offload._store._backends._base import Backend
from tensorjax.offload._store._backends._choose import available, choose
from tensorjax.offload._store._backends._threads import ThreadBackend

__all__ = ["Backend", "ThreadBackend", "available", "choose"]
