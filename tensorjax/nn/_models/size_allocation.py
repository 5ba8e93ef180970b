"""Allocation of a model's size to its layers: of candidates, or by one rank for all of them."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from flax import nnx

from tensorjax.nn._mode_factors import factor
from tensorjax.nn._models.dense_layer_replacement import replacement
from tensorjax.nn._models.spec_candidates import Candidate
from tensorjax.nn._models.stacked_layers import copies, lead
from tensorjax.nn._models.traversal import Found
from tensorjax.nn._parameters import parameter_count
from tensorjax.nn._specs import TT, LowRank, Spec, TTMatrix, Tucker

T = TypeVar("T")
# Stands for "auto" in rules; its format is not used.
AUTO = TT()


def is_open(spec: Any) -> bool:
    """Whether a layer's specification gives no rank, so that a size is to be allocated to it."""
    return getattr(spec, "rank", None) is None


def check_open(path: str, spec: Any) -> None:
    """Raises ValueError for a specification without a rank to which no size can be allocated."""
    if not (spec is AUTO or isinstance(spec, TT | TTMatrix | Tucker | LowRank)):
        raise ValueError(
            f"{path}: expected a spec with its rank, or TT, TTMatrix, Tucker or LowRank to choose "
            f"the ranks of, got {spec}"
        )


def weight_size(layer: Any) -> int:
    """Counts the elements of a dense layer's weight, for size allocation, copies included."""
    return math.prod(_shape(layer))


def _shape(layer: Any) -> tuple[int, ...]:
    return (layer.embedding if isinstance(layer, nnx.Embed) else layer.kernel).shape


def grown(layer: Any, spec: Spec) -> int:
    """Counts, for size allocation, the parameters that tensorising a dense layer adds."""
    count = max(1, math.prod(lead(layer)))
    one = copies(layer)[0]
    new = nnx.eval_shape(lambda: replacement(one, spec, "random", None, "own", nnx.Rngs(0)))
    return count * (parameter_count(new) - parameter_count(one))


def of_rank(layer: Any, spec: Any, rank: int, factored: bool = False) -> Spec:
    """Returns a layer's specification with the rank allocated to it; "auto" becomes a TT-matrix.

    Args:
      layer: dense.
      spec: without a rank.
      rank: of all bonds.
      factored: whether TT-matrices by "auto" have both sides factored, short ones too.
    """
    if spec is AUTO and isinstance(layer, nnx.Linear | nnx.LinearGeneral):
        spec = TTMatrix(order=order_of(layer) if factored else None)
    return dataclasses.replace(spec, rank=rank)


def order_of(layer: Any) -> int:
    """Returns the order of the TT-matrix of a linear layer with both sides factored."""
    sides = (layer.in_features, layer.out_features)
    return max(2, *(len(factor(math.prod(np.atleast_1d(n).tolist()))) for n in sides))


def named(path: str, call: Callable[..., T], *arguments: Any) -> T:
    """Calls a function of size allocation for one layer; adds the layer's path to raised errors."""
    try:
        return call(*arguments)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{path or 'the model itself'}: {error}") from error


class Totals:
    """Parameter counts, for size allocation, of a model as functions of one rank for all layers.

    Attributes:
      own: layers to choose for, one of every tied set, with path and spec.
      rest: parameters of the model with these layers dense.
      fixed: parameters outside of them.
      factored: as `of_rank` takes it. Of rank one, TT-matrices with both sides factored are the
        smallest, and still have weights of full rank.
    """

    def __init__(
        self, model: Any, every: Found, own: Sequence[tuple[Any, str, Any]], factored: bool = False
    ) -> None:
        for _, path, spec in own:
            check_open(path, spec)
        fixed = [(x, spec) for x, _, spec in every if not is_open(spec)]
        self.own, self.factored = own, factored
        self.rest = parameter_count(model) + sum(grown(x, spec) for x, spec in fixed)
        self.fixed = self.rest - sum(weight_size(x) for x, *_ in own)
        self._known: dict[Any, int] = {}  # layers alike count alike

    def gain(self, place: int, rank: int) -> int:
        """Counts, for size allocation, a layer's parameters at some rank beyond the dense one."""
        layer, path, spec = self.own[place]
        key = type(layer), _shape(layer), str(getattr(layer, "in_features", "")), spec, rank
        if key not in self._known:
            self._known[key] = named(path, grown, layer, of_rank(layer, spec, rank, self.factored))
        # By "auto" layers stay dense that would not be smaller.
        return min(self._known[key], 0) if spec is AUTO else self._known[key]

    def total(self, rank: int) -> int:
        """Counts, for size allocation, the model's parameters if all layers have some rank."""
        return self.rest + sum(self.gain(k, rank) for k in range(len(self.own)))


@dataclasses.dataclass(frozen=True)
class Listed:
    """Layer to which a size is allocated: its candidates, dense size and number of copies."""

    found: list[Candidate]
    weight: int
    copies: int

    def cheapest(self, tol: float) -> Candidate:
        """Allocates a layer's smallest candidate format of error up to ``tol``, or the last one."""
        fits = (c for c in self.found if math.sqrt(c.bound) <= tol)
        return next(fits, self.found[-1])

    def within(self, size: int) -> Candidate:
        """Allocates a layer's most accurate candidate format of at most a given size."""
        return [c for c in self.found if c.numbers <= size][-1]


def allocated(
    lists: Mapping[int, Listed], rest: int, most: int, fewer: tuple[str, int] | None,
    other: float = math.inf,
) -> tuple[dict[int, Candidate], int]:  # fmt: skip
    """Allocates sizes to all layers: chooses formats greedily by error decrease per parameter.

    On convex hulls the steps of every layer come in descending order of their slopes.

    Args:
      lists: of the layers chosen for.
      rest: parameters outside of them.
      most: parameters of all.
      fewer: name of the option and those of the model, if a share of them was asked for.
      other: parameters of all in another form, for the error: more than ``most``.

    Returns:
      (choice of every layer, parameters left).
    """
    corners = {key: _hull(options.found) for key, options in lists.items()}
    taken = dict.fromkeys(lists, 0)
    left = most - rest - sum(options.found[0].numbers for options in lists.values())
    if left < 0:
        check_least(int(min(most - left, other)), rest, most, fewer)
    steps = [
        (-lists[key].copies * _slope(a, b), key, k + 1, b.numbers - a.numbers)
        for key, found in corners.items()
        for k, (a, b) in enumerate(itertools.pairwise(found))
    ]
    for _, key, k, cost in sorted(steps, key=lambda step: (step[0], step[2])):
        if taken[key] == k - 1 and cost <= left:
            taken[key] = k
            left -= cost
    return {key: corners[key][k] for key, k in taken.items()}, left


def filled(
    lists: Mapping[int, Listed], kept: dict[int, Candidate], left: int
) -> dict[int, Candidate]:
    """Allocates leftover parameters of a size limit to layers whose error they reduce most."""
    kept = dict(kept)
    while kept:
        better = {key: lists[key].within(now.numbers + left) for key, now in kept.items()}
        gains = {key: lists[key].copies * (kept[key].error - c.error) for key, c in better.items()}
        best = max(gains, key=lambda key: gains[key])
        if gains[best] <= 0:
            break
        left -= better[best].numbers - kept[best].numbers
        kept[best] = better[best]
    return kept


def check_least(least: int, rest: int, most: int, fewer: tuple[str, int] | None) -> None:
    """Raises ValueError if no size allocation, even at smallest ranks, is within ``most``."""
    if least <= most:
        return
    asked = f"size: expected at least {least:,} parameters"
    if fewer is not None:
        name, now = fewer
        asked = f"{name}: expected at most {math.floor(1e3 * now / least) / 1e3:.12g}, for at least"
        asked += f" {least:,} of {now:,} parameters"
    raise ValueError(
        f"{asked}, of which {rest:,} are outside the layers chosen for, got {most:,}; "
        f"tensorise more of the model, or {'allow a larger size' if fewer is None else 'less'}"
    )


def _hull(front: Sequence[Candidate]) -> list[Candidate]:
    """Selects a layer's candidates on the lower convex hull of error over size, to allocate it."""
    corners: list[Candidate] = []
    for new in front:
        while len(corners) > 1 and _slope(corners[-2], new) >= _slope(corners[-2], corners[-1]):
            corners.pop()
        corners.append(new)
    return corners


def _slope(a: Candidate, b: Candidate) -> float:
    """Returns the fall of squared error per parameter allocated from one candidate to another."""
    return (a.error - b.error) / max(b.numbers - a.numbers, 1)
