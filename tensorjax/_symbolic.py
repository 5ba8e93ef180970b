"""Symbolic sizes of `jax.export`, and the size that contractions are planned for instead.

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
    """Returns the size to plan a contraction for: 1024 in place of a symbolic size."""
    return int(size) if is_static(size) else PLANNED


def is_static(size: Any) -> bool:
    """Whether a size is a concrete integer, not a symbolic size of `jax.export`."""
    return isinstance(size, int | np.integer)


def like(x: Any) -> Any:
    """Returns an array, or shape and dtype with 1024 for symbolic sizes, to plan contractions."""
    shape = getattr(x, "shape", ())
    if all(map(is_static, shape)):
        return x
    return jax.ShapeDtypeStruct(tuple(map(planned, shape)), x.dtype)


def no_limit(found: Any) -> ValueError:
    """Returns the ValueError for a memory limit with symbolic sizes of `jax.export`."""
    return ValueError(
        "memory_limit: expected sizes that are numbers, for what a contraction needs depends on "
        f"them, got {found}; plan without a limit, or export for fixed shapes"
    )
