"""Padding of the modes of a train with zeros, as numpy.pad."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.trains import TT, single
from tensorjax._placement import placed
from tensorjax.tt._core_moves import rearranged


@placed
def pad_modes(t: TT, widths: Sequence[tuple[int, int]]) -> TT:
    """Zero-pads the modes of a train before and after, as `numpy.pad`; the TT-ranks stay.

    Args:
      t: TT.
      widths: (before, after) per mode.

    Returns:
      TT of the TT-ranks of ``t``, whose k-th mode has size before + n_k + after.

    Raises:
      ValueError: another number of pairs than modes, or negative widths.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.pad_modes(tt.ones((2,)), [(1, 0)])))
      [0. 1. 1.]

    Source: ours.
    """
    single("t", t, TT)
    widths = _check.several("widths", widths, "pairs (before, after)")
    if len(widths) != t.order:
        raise ValueError(f"widths: expected {t.order} pairs (before, after), got {len(widths)}")
    if any(np.ndim(pair) != 1 for pair in widths):
        raise ValueError(f"widths: expected pairs (before, after), got {widths}")
    pairs = [tuple(_check.integer("widths", w, low=0) for w in pair) for pair in widths]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"widths: expected pairs (before, after), got {widths}")

    def padded(core: Any, pair: tuple[int, int]) -> Any:
        return (np if linalg.is_host(core) else jnp).pad(core, [(0, 0), pair, (0, 0)])

    return TT._unchecked(rearranged("pad_modes", t.cores, padded, pairs))
