"""TT-rounding of cores to an error or to ranks, by SVDs, Gram matrices or random sketches."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import linalg
from tensorjax._cores.gram_rounding import InaccurateGram, gram_round
from tensorjax._cores.randomized_rounding import differentiable_random_round
from tensorjax._cores.scaling import balanced
from tensorjax._cores.truncation_sweeps import svd_round
from tensorjax._cores.unfoldings import Cores
from tensorjax.linalg import Method


def compressed(
    cores: list[Any],
    ranks: Sequence[int] | None,
    share: Any,
    method: Method,
    key: Any,
    extra: int = linalg.OVERSAMPLE,
) -> tuple[list[Any], Any]:
    """Rounds the cores of a train to ranks, to a share of discarded energy, or to both.

    Returns the cores, and the exponent of two by which to scale them back.
    """
    if len(cores) == 1:
        return cores, 0
    if method == "gram" and ranks is None:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return gram_round(cores, share), 0
        except InaccurateGram:
            method = "svd"
    if method == "randomized" and ranks is not None:
        return differentiable_random_round(cores, key, tuple(ranks), extra)
    return svd_round(cores, ranks, share)


def rounded(x: Cores, tol: float, max_rank: int | None = None) -> Cores:
    """Rounds cores on the host, by SVDs or Gram matrices, to a relative error and maximal rank."""
    if len(x) == 1:
        return x
    share = tol**2 / (len(x) - 1)
    method = linalg.choose("auto", share, x[0].dtype, levels=1)
    out = balanced(*compressed(x, None, tol**2, method, None))
    if max_rank is None or max(len(c) for c in out) <= max_rank:
        return out
    bounds = [min(max_rank, len(c)) for c in out[1:]]
    return balanced(*compressed(out, bounds, None, "svd", None))
