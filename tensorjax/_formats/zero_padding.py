"""Zero-padding of arrays, and of tensor trains that have a mode of size 0.

A tensor without entries is the zero tensor of its shape. Where an algorithm factorises cores, an
empty mode gets one index, of zeros, before, and loses it again in the results (`widened`,
`narrowed`): neither LAPACK nor compiled code meets an empty array, norms are those of zero, and
ranks stay positive. What acts on cores one by one needs nothing of this.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._formats.trains import TT, Train, TTMatrix
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import PROGRAM
from tensorjax._placement import returned
from tensorjax._transfer import on_device


def zero_padded(x: Any, widths: list[tuple[int, int]]) -> jax.Array:
    """Pads a JAX array with zeros before and after each axis, as `jnp.pad`."""
    if not any(map(any, widths)):
        return x
    if choose_kernel("tt.pad", (x,)) is PROGRAM:
        return jnp.pad(x, widths)
    # On the host, and back: every new shape would compile a program.
    return returned(np.pad(np.asarray(x), widths), x)


def is_empty(t: TT | TTMatrix) -> bool:
    """Whether a train has a mode of size 0, of rows or of columns, and so no entries."""
    lead = 1 - t._core_ndim
    return any(0 in c.shape[lead:-1] for c in t.cores)


def widened(t: Train) -> Train:
    """Returns a train with a zero index in each empty mode; unchanged if it has entries."""
    return type(t)._unchecked(tuple(map(_with_entries, t.cores))) if is_empty(t) else t


def _with_entries(core: Any) -> Any:
    if 0 not in core.shape:
        return core
    return on_device([np.zeros([max(n, 1) for n in core.shape], core.dtype)])[0]


def narrowed(out: Any, shape: Sequence[int]) -> Any:
    """Removes from a result the index that `widened` gave to every empty mode of a train."""
    if isinstance(out, tuple):
        return tuple(narrowed(t, shape) for t in out)
    if not isinstance(out, TT) or out.shape == tuple(shape):
        return out
    return TT._unchecked(tuple(c[..., :n, :] for c, n in zip(out.cores, shape, strict=True)))


def zero_train(kind: type[Train], modes: Sequence[tuple[int, ...]], dtype: Any) -> Train:
    """Returns the zero train of rank one for modes of a train that has an empty mode."""
    return kind._unchecked(tuple(on_device([np.zeros((1, *mode, 1), dtype) for mode in modes])))
