"""What the system's malloc does with memory that is freed."""

import ctypes

# Of malloc.h: one arena, nothing by mmap, nothing cut off at the top.
_KEEP = {-8: 1, -4: 0, -1: 2**31 - 1}


def keep_memory() -> None:
    """Lets glibc's malloc keep what this process frees, as other allocators do.

    By default large arrays, and whatever the threads of XLA allocate, go back to the system as soon
    as they are freed: results of megabytes then come in fresh pages at every call, which take
    longer than the arithmetic on them, and how often that happens is chance. The process stays as
    large as it was at most. Other systems' allocators are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in _KEEP.items():
        mallopt(option, value)
