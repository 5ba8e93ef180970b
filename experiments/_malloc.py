"""Settings of glibc's malloc for freed memory: keep it in the process, or return it."""

import ctypes

# Of malloc.h: one arena, nothing by mmap, nothing cut off at the top.
_KEEP = {-8: 1, -4: 0, -1: 2**31 - 1}
# All from a mebibyte on by mmap, for good: by default glibc moves that limit up to 32 MiB.
_RETURN = {-3: 2**20}


def keep_memory() -> None:
    """Makes glibc's malloc keep what this process frees, instead of returning it to the system.

    By default large arrays, and whatever the threads of XLA allocate, go back to the system as soon
    as they are freed: results of megabytes then come in fresh pages at every call, which take
    longer than the arithmetic on them, and how often that happens is chance. The process stays as
    large as it was at most. Other systems' allocators are left as they are.
    """
    _set(_KEEP)


def return_memory() -> None:
    """Makes glibc's malloc return large arrays to the system as soon as they are freed.

    By default arrays below 32 MiB stay with the arena of the thread that made them, and each thread
    of XLA and of a trainer has one: the process becomes several times as large as what is alive in
    it. What is made anew comes in fresh pages, which takes time. To be called first: what is in an
    arena stays there. Other systems' allocators are left as they are.
    """
    _set(_RETURN)


def _set(options: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in options.items():
        mallopt(option, value)
