"""Concatenation of tensor trains along a mode."""

from collections.abc import Sequence

import jax.numpy as jnp

from tensorjax import _check
from tensorjax._formats.trains import single
from tensorjax._placement import placed
from tensorjax.tt._algebra import Train, add
from tensorjax.tt._broadcasting import aligned


@placed
def concatenate(trains: Sequence[Train], axis: int = 0) -> Train:
    """Concatenates trains along one mode (TT-matrices: along its rows); TT-ranks add.

    Args:
      trains: TT or TTMatrix, equal in all modes but ``axis``.
      axis: the mode, 0 … d−1 (negative counts from the end).

    Returns:
      Train of the kind of the first, whose mode ``axis`` has the sum of their sizes.

    Raises:
      TypeError: no trains, or trains of two kinds.
      ValueError: the other modes differ, or ``axis`` is out of range.

    Example:
      >>> from tensorjax import tt
      >>> tt.concatenate([tt.ones((2, 3)), tt.zeros((2, 4))], axis=1).shape
      (2, 7)

    Source: ours; a sum of trains padded by zeros, Oseledets (2011), section 4.1.
    """
    trains = _check.several("trains", trains, "trains")
    if not trains or any(type(t) is not type(trains[0]) for t in trains):
        raise TypeError(
            "trains: expected one or more trains of one kind, got "
            f"{sorted({type(t).__name__ for t in trains}) or 'none'}"
        )
    for k, t in enumerate(trains):
        single(f"trains[{k}]", t)
    order = trains[0].order
    axis = _check.integer("axis", axis, low=-order, high=order - 1) % order
    sizes = [t.cores[axis].shape[1] for t in trains]
    total, start, out = sum(sizes), 0, None
    for t, size in zip(trains, sizes, strict=True):
        core = t.cores[axis]
        widths = [(0, 0)] * core.ndim
        widths[1] = (start, total - start - size)
        padded = type(t)._unchecked((*t.cores[:axis], jnp.pad(core, widths), *t.cores[axis + 1 :]))
        # Aligned before: of modes that are joined side by side none is broadcast, as in NumPy.
        out = padded if out is None else add(*aligned(out, padded))
        start += size
    return out  # type: ignore[return-value]
