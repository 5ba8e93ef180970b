"""Rounding of a train by SVDs, Gram matrices or random sketches, to an error or to ranks."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import linalg
from tensorjax._cores.orthogonalization import triangles
from tensorjax._cores.rounding_sweeps import (
    Basis,
    InaccurateGram,
    gram_round,
    left_sweep,
    random_round,
)
from tensorjax._cores.scaling import balanced
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
        return _random_round(cores, key, tuple(ranks), extra)
    return svd_round(cores, ranks, share)


def svd_round(cores: list[Any], ranks: Sequence[int] | None, share: Any) -> tuple[list[Any], Any]:
    factors = triangles(cores)
    # Shares of what is left at each bond: never more than shares of the whole.
    part = None if share is None else share / (len(cores) - 1)
    bases = [_svd_basis(r, part) for r in ranks or [None] * len(factors)]
    return left_sweep(cores, factors, bases)


_random_round = jax.custom_jvp(random_round, nondiff_argnums=(2, 3))


@_random_round.defjvp
def _random_round_jvp(ranks: tuple[int, ...], extra: int, primals: Any, tangents: Any) -> Any:
    """Differentiates randomised TT-rounding as if it truncated by exact SVDs.

    It truncates from right to left too, so that the values agree where the sketch misses nothing.
    """
    (cores, _), (moved, _) = primals, tangents

    def exact(cores: list[Any]) -> tuple[list[Any], Any]:
        mirrored, exponent = svd_round(_mirrored(cores), ranks[::-1], None)
        return _mirrored(mirrored), exponent

    return jax.jvp(exact, (cores,), (moved,))


def _mirrored(cores: list[Any]) -> list[Any]:
    return [c.transpose(2, 1, 0) for c in reversed(cores)]


def _svd_basis(rank: int | None, share: Any) -> Basis:
    def basis(matrix: Any) -> Any:
        r = None if rank is None else min(rank, *matrix.shape)
        return linalg.left_basis(matrix, rank=r, share=share, method="svd").u

    return basis


def rounded(x: Cores, tol: float, max_rank: int | None = None) -> Cores:
    """Rounds a train of host cores to a relative error and to a maximal TT-rank."""
    if len(x) == 1:
        return x
    share = tol**2 / (len(x) - 1)
    method = linalg.choose("auto", share, x[0].dtype, levels=1)
    out = balanced(*compressed(x, None, tol**2, method, None))
    if max_rank is None or max(len(c) for c in out) <= max_rank:
        return out
    bounds = [min(max_rank, len(c)) for c in out[1:]]
    return balanced(*compressed(out, bounds, None, "svd", None))
