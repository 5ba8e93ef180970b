"""What can go wrong with a store, one class for each thing a caller may want to catch."""


class StoreError(RuntimeError):
    """A store cannot do what was asked; the message says why and what to do."""


class CapacityError(StoreError):
    """The capacity, the disk or the staging pool is too small; the message has the numbers."""


class CorruptError(StoreError):
    """What was read is not what was written; the message names the tensors."""


class LockedError(StoreError):
    """Another process holds the store."""


class MismatchError(StoreError):
    """The store on disk is of another version, model or process than the one asked for."""


class StoreWarning(UserWarning):
    """The store works, but not as fast or as safely as it could."""
