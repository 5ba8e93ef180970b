"""Truncation of a spectrum by a rank and an energy budget: singular directions to keep."""

from typing import NamedTuple

from tensorjax.linalg._arrays import Array, is_host
from tensorjax.linalg._arrays import namespace as _xp
from tensorjax.linalg._subspaces.choose import GRAM_NOISE, Method, gram_floor


class Cut(NamedTuple):
    """Truncation of a spectrum: directions kept, which of these are nonzero, discarded energy."""

    rank: int
    mask: Array | None
    discarded: Array


def cut_spectrum(
    energies: Array, rank: int | None, tail: Array | None, share: float | None, method: Method
) -> Cut:
    """Cuts a spectrum: decides how many directions to keep, by a rank and an energy budget."""
    xp = _xp(energies)
    if share is not None:
        tail = share * energies.sum(-1)
    noise = GRAM_NOISE * gram_floor(energies.dtype, 2) if method == "gram" else 0.0
    suffix = xp.flip(xp.cumsum(xp.flip(energies, -1), -1), -1)
    size = energies.shape[-1]
    count = size if rank is None else min(rank, size)
    mask = None
    if tail is not None:
        allowed = xp.maximum(tail - noise * suffix[..., 0], 0)
        mask = suffix > xp.asarray(allowed)[..., None]
        if is_host(energies):
            count = min(count, int(mask.sum(-1).max(initial=1)))
        mask = mask[..., :count]
        if is_host(energies) and mask.all():
            mask = None
    zero = xp.zeros_like(suffix[..., :1])
    kept = count if mask is None else xp.sum(mask, -1)
    index = xp.broadcast_to(xp.asarray(kept), suffix.shape[:-1])[..., None]
    discarded = xp.take_along_axis(xp.concatenate([suffix, zero], -1), index, -1)[..., 0]
    return Cut(count, mask, discarded)
