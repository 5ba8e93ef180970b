"""Fast transfer of NumPy arrays to JAX, with a sixth of the overhead of `jax.device_put`."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from tensorjax._placement import _default_device

LINE = 64  # bytes of a cache line, to which XLA aligns the memory of arrays on CPUs
# Bytes up to which memory of NumPy is shared: larger memory costs much to hold twice, and little to
# copy beside what it takes to compute its numbers.
SHARED = 2**20


def on_device(arrays: Sequence[Any], like: Any = None) -> list[jax.Array]:
    """Transfers NumPy arrays to JAX as `jax.device_put` does, with less overhead.

    It takes JAX some 40 µs an array to find that nothing special is asked; small trains of many
    cores take less to compute.

    On a CPU, XLA shares memory that begins at a whole cache line, as that of `aligned` does up to
    a size, and copies other memory. What is shared belongs to NumPy: programs to which the array
    is donated allocate memory for their results.

    Args:
      arrays: of NumPy.
      like: a sharding to commit them to instead.
    """
    put = _fast() if like is None else None
    if (
        put is None
        or not put.at_top()
        or not jax.sharding.get_abstract_mesh().empty
        # A guard takes transfers of the private function for implicit ones, which it may forbid.
        or jax.config.jax_transfer_guard_host_to_device not in (None, "allow")  # type: ignore[attr-defined]
    ):
        return jax.device_put(list(arrays), like)
    device = _default_device()
    return put.all(arrays, device, put.place(device))


class FreshArrays(list[np.ndarray]):
    """List of arrays that nothing else refers to, in memory made by `aligned`."""


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Makes an array of NumPy, without values; its memory `on_device` shares on a CPU if small.

    XLA takes memory as it is where it begins at a whole cache line. From elsewhere it copies, to
    fresh pages, which for some hundred kilobytes takes as long as to decompose them. Arrays of more
    than `SHARED` bytes begin within a line and are copied: XLA reuses the memory of donated arrays
    only where it is its own.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.__array_interface__["data"][0] % LINE
    if size > SHARED:
        start = (start + LINE // 2) % LINE
    return raw[start : start + size].view(dtype).reshape(shape)


def on_lines(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Copies an array of NumPy in a dtype to memory made by `aligned`."""
    out = aligned(array.shape, dtype)
    out[...] = array
    return out


def split_at_lines(block: np.ndarray, shapes: Iterable[tuple[int, ...]]) -> FreshArrays:
    """Splits a block of `aligned` into arrays, each of which begins a whole number of lines on.

    They are copied where they take less than half of the block, which they would keep alive.
    """
    line, places, at = LINE // block.itemsize, [], 0
    for shape in shapes:
        size = math.prod(shape)
        places.append((at, at + size, shape))
        at -= -size // line * line
    if at < len(block) // 2:
        block = on_lines(block[:at], block.dtype)
    return FreshArrays(block[start:end].reshape(shape) for start, end, shape in places)


def copied(arrays: Iterable[Any]) -> list[jax.Array]:
    """Copies NumPy arrays to JAX without the compilation that `jnp.asarray` may need.

    That one compiles a program for every new shape, and transfers alone share the memory.
    """
    given = list(arrays)
    if not jax.sharding.get_abstract_mesh().empty:
        return [jnp.asarray(x) for x in given]
    host = [np.array(x) for x in given if not isinstance(x, jax.Array)]
    if not host:
        return given
    moved = iter(on_device(host))
    return [x if isinstance(x, jax.Array) else next(moved) for x in given]


def constants() -> Any:
    """Returns NumPy, whose constants need no compilation, or jax.numpy while JAX traces.

    A program would store the constants of NumPy, and makes its own ones.
    """
    put = _fast()
    on_a_cpu = put is not None and _default_device().platform == "cpu"
    return np if on_a_cpu and put.at_top() else jnp  # type: ignore[union-attr]


class _Fast:
    """Wrapper of JAX's private transfer function, on which `jax.device_put` is built.

    Attributes:
      at_top: whether no program is being traced.
      place: the sharding of an array on one device.
    """

    def __init__(self) -> None:
        from jax._src import core
        from jax._src.lib import xla_client  # type: ignore[attr-defined]

        self.at_top: Callable[[], bool] = core.trace_state_clean
        self._put = xla_client.batched_device_put
        self._type = functools.lru_cache(maxsize=4096)(core.ShapedArray)
        self.place: Any = functools.lru_cache(maxsize=64)(SingleDeviceSharding)

    def all(self, arrays: Sequence[np.ndarray], device: Any, place: Any) -> list[jax.Array]:
        put, of_type, devices = self._put, self._type, [device]
        out, held = [], None  # cores of a train have one dtype, which is looked at once
        for x in arrays:
            dtype = x.dtype
            if dtype is held or jax.dtypes.canonicalize_dtype(dtype) == dtype:
                held = dtype
                out.append(put(of_type(x.shape, dtype), place, [x], devices, False))
            else:
                out.append(jax.device_put(x))
        return out


@functools.cache
def _fast() -> _Fast | None:
    """Returns the fast transfer of arrays to JAX, or None if this JAX lacks it or differs."""
    try:
        fast = _Fast()
        sample = np.arange(6.0, dtype=np.float32).reshape(2, 3)
        device = _default_device()
        (made,) = fast.all([sample], device, fast.place(device))
        expected = jax.device_put(sample)
        alike = all(getattr(made, a) == getattr(expected, a) for a in ("aval", "sharding"))
        if (
            alike
            and made.committed == expected.committed
            and bool((np.asarray(made) == sample).all())
        ):
            return fast
    except Exception:  # whatever a later version may do to what is private
        pass
    return None
