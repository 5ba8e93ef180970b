"""Training with more than the memory holds: a tensor store on disk.

Needs the extra ``offload``. `TensorStore` keeps tensors in one preallocated file, moves them
asynchronously past the page cache, and commits them atomically.
"""

from tensorjax.offload._backends import Backend
from tensorjax.offload._backends import available as backends
from tensorjax.offload._errors import (
    CapacityError,
    CorruptError,
    LockedError,
    MismatchError,
    StoreError,
    StoreWarning,
)
from tensorjax.offload._lease import Lease, Leases
from tensorjax.offload._statistics import Statistics, Traffic
from tensorjax.offload._store import TensorStore

__all__ = [
    "Backend",
    "CapacityError",
    "CorruptError",
    "Lease",
    "Leases",
    "LockedError",
    "MismatchError",
    "Statistics",
    "StoreError",
    "StoreWarning",
    "TensorStore",
    "Traffic",
    "backends",
]
