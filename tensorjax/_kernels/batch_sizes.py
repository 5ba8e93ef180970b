"""Batch-size bucketing: sizes are rounded up to a few values, so that few programs compile."""

# Smaller batches are padded to this size, so that they share one program.
_LEAST_BATCH = 64
# Larger batches are padded to multiples of an eighth of a power of two: at most an eighth more.
_STEPS = 8


def rounded_up(count: int) -> int:
    """Rounds a batch size up to one of a few sizes, so that few programs are compiled.

    Example:
      >>> [rounded_up(n) for n in (1, 65, 1000, 5000)]
      [64, 128, 1024, 5120]
    """
    power = 1 << max(count - 1, 0).bit_length()
    step = power // 2 // _STEPS if power > _LEAST_BATCH * _STEPS else power
    return max(_LEAST_BATCH, -(-count // step) * step)
