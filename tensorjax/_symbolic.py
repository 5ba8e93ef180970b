"""Sizes that `jax.export` leaves open, and the size that plans are made for in their place.

The order of the products of a contraction is right for any size; which is cheapest depends on it.
Where a size is symbolic (`jax.export.symbolic_shape`), orders are planned for 1024: some sequences
of tokens. From there on upwards the cheapest order hardly changes, for the arrays of a layer are
then small beside its input, and far below it any order is quick.
"""

from typing import Any

import jax
import numpy as np

PLANNED = 1024


def planned(size: Any) -> int:
    """The size itself, or `PLANNED` where it is symbolic."""
    return int(size) if is_static(size) else PLANNED


def is_static(size: Any) -> bool:
    """Whether a size, or a product of sizes, is a number."""
    return isinstance(size, int | np.integer)


def like(x: Any) -> Any:
    """What a plan needs to know of an array: itself, or a description with the sizes planned."""
    shape = getattr(x, "shape", ())
    if all(map(is_static, shape)):
        return x
    return jax.ShapeDtypeStruct(tuple(map(planned, shape)), x.dtype)


def no_limit(found: Any) -> ValueError:
    """Says that no limit of memory can be kept for sizes that are not known."""
    return ValueError(
        "memory_limit: expected sizes that are numbers, for what a contraction needs depends on "
        f"them, got {found}; plan without a limit, or export for fixed shapes"
    )
