"""Formatting of bytes and seconds in the unit that fits."""


def size(nbytes: float) -> str:
    """Formats a number of bytes as text, in the largest of B, KiB, MiB, GiB, TiB that fits.

    >>> size(0), size(1000), size(3 << 19), size(23.2 * 2**30)
    ('0 B', '1000 B', '1.5 MiB', '23.2 GiB')
    """
    units = ["TiB", "GiB", "MiB", "KiB"]
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    while nbytes >= 1024 and units:
        nbytes, unit = nbytes / 1024, units.pop()
    return f"{nbytes:.1f} {unit}"


def time(seconds: float) -> str:
    """Formats a number of seconds as text, in µs, ms or s.

    >>> time(0), time(64e-6), time(0.01234), time(13.8), time(4000)
    ('0 s', '64 µs', '12.3 ms', '13.8 s', '4000 s')
    """
    if not seconds or seconds >= 1:
        return f"{seconds:.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
