"""Measured peak speed of a device in matrix products, to which utilisations are relative."""

import time
from typing import Any

import jax
import jax.numpy as jnp


def measured_peak(dtype: Any) -> float:
    """Measures the floating-point operations per second of square matrix products on one device."""
    size = 1024  # large enough to reach the peak, and done in milliseconds
    x = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    times, end = [], time.perf_counter() + 0.5  # others may hold a core for a while
    while len(times) < 8 or time.perf_counter() < end:
        start = time.perf_counter()
        product(x, x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)
