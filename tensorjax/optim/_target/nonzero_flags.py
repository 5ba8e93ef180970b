"""Nonzero flags of many arrays, by a program whose size does not grow with their number."""

from typing import Any

import jax
import jax.numpy as jnp

from tensorjax.optim._explicit_sharding import _whole
from tensorjax.optim._size_polynomial import padded, picked

# Arrays of more entries are not copied together.
SMALL = 2**16
BLOCK = 64


def any_nonzero(arrays: list[Any]) -> jax.Array:
    """Marks the arrays that have a nonzero entry; integer arrays count as zero.

    A reduction for every array takes XLA much time to compile. Small arrays are joined to rows of
    one block size, with zeros behind each.
    """
    flags = [jnp.zeros((), bool)] * len(arrays)
    alike: dict[Any, list[int]] = {}
    for n, x in enumerate(arrays):
        if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
            continue
        if jnp.size(x) > SMALL:
            flags[n] = jnp.any(x != 0)
        else:
            alike.setdefault(jnp.result_type(x), []).append(n)
    # Which flag of all that are found is that of an array.
    found, place = [jnp.stack([*flags, jnp.zeros((), bool)])], [*range(len(arrays))]
    for dtype, numbers in alike.items():
        pieces, rows, start = [], [], 0
        for n in numbers:
            x = _whole(jnp.asarray(arrays[n])).ravel()
            fill = -x.size % BLOCK
            pieces += [x, jnp.zeros((fill,), dtype)] if fill else [x]
            rows.append(range(start, start + (x.size + fill) // BLOCK))
            start += len(rows[-1])
            place[n] = sum(map(len, found)) + len(rows) - 1
        blocks = jnp.any(jnp.concatenate(pieces).reshape(start, BLOCK) != 0, 1)
        table = padded([tuple(row) for row in rows], start)
        blocks = jnp.append(blocks, jnp.zeros((), bool))
        found.append(jnp.any(picked(blocks, table.reshape(len(numbers), -1)), 1))
    every = jnp.concatenate(found)
    return picked(every, jnp.array(place, jnp.int32)) if arrays else every[:0]
