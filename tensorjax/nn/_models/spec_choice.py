"""Choice of format, mode shapes and ranks for every layer of a model, by size or by error."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from flax import nnx

from tensorjax import _check
from tensorjax.nn._linear_layers import flat
from tensorjax.nn._models.path_rules import Rules, matched, pattern, rules_with
from tensorjax.nn._models.size_allocation import (
    AUTO,
    Listed,
    Totals,
    allocated,
    check_least,
    check_open,
    filled,
    grown,
    is_open,
    named,
    of_rank,
    order_of,
    weight_size,
)
from tensorjax.nn._models.spec_candidates import candidates, error_bound, is_random
from tensorjax.nn._models.stacked_layers import lead
from tensorjax.nn._models.summary import table
from tensorjax.nn._models.traversal import Found, check_module, ties
from tensorjax.nn._parameters import parameter_count
from tensorjax.nn._specs import Spec

Init = Literal["svd", "random"]


@dataclasses.dataclass(frozen=True)
class Choice(Mapping[str, Spec | None]):
    """Specs chosen for a model's layers, format and ranks: rules for `tensorize`, as a table.

    Attributes:
      specs: the spec of each layer by its path, as a pattern; None stays dense.
      errors: bounds of the relative errors of the weights; none of fresh layers with init="random"
        or before a training, and none where an unfolding is too large to decompose.
      sizes: parameters of each layer's weight, before and after.
      size: parameters of the whole model at most.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> dense = nn.to_linear(nn.TTLinear(64, 96, rank=2, rngs=nnx.Rngs(0)))
      >>> choice = nn.choose(nnx.Sequential(dense), tol=1e-3)
      >>> [(path, type(spec).__name__, spec.rank) for path, spec in choice.items()]
      [('layers/0', 'TT', (2, 2, 2))]
    """

    specs: dict[str, Spec | None]
    errors: dict[str, float]
    sizes: dict[str, tuple[int, int]]
    size: int

    def __getitem__(self, path: str) -> Spec | None:
        return self.specs[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def __str__(self) -> str:
        rows = []
        for path, spec in self.specs.items():
            before, now = self.sizes.get(path, ("", ""))
            name = "dense" if spec is None else type(spec).__name__
            shapes = [getattr(spec, f"{side}_shape", None) for side in ("in", "out")]
            shapes = shapes if any(shapes) else [
                getattr(spec, f"{side}_shape", None) for side in ("num", "feature")
            ]  # fmt: skip
            folds = " | ".join("·".join(map(str, side)) for side in shapes if side)
            rank = getattr(spec, "rank", "")
            ranks = " ".join(map(str, rank)) if isinstance(rank, tuple) else str(rank or "")
            lost = f"{self.errors[path]:.2g}" if path in self.errors else ""
            counts = [f"{n:,}" if n != "" else "" for n in (before, now)]
            rows.append((path, name, folds, ranks, lost, *counts))
        rows.append(("all", "", "", "", "", "", f"{self.size:,}"))
        head = ("path", "format", "modes", "ranks", "error ≤", "weight", "parameters")
        return table(head, rows)


def choose(
    model: object,
    rules: Rules | Literal["auto"] = "auto",
    *,
    size: int | None = None,
    ratio: float | None = None,
    tol: float | None = None,
    compress_to: float | None = None,
    init: Init = "svd",
) -> Choice:
    """Chooses format, mode shapes and ranks of a model's layers for a total size or an error.

    For each layer all formats (low rank, trains, TT-matrices and Tucker over the good
    factorisations of its features, or over channels and window of a convolution, and to stay dense)
    are compared by the singular values of the unfoldings of its weight. By ``size`` or ``ratio``,
    parameters go one step after the other to the layer in which they lower the error of the
    composition most, −Σ log(1 − error²): on convex hulls over size that is the least sum up to the
    last step; what is left then goes to the best specs between two corners of the hulls. By ``tol``
    every layer gets the smallest spec whose error bound fulfils it.

    The TT-matrices that random weights get by "auto" save parameters and optimiser state, not time:
    of about 256 features and more they are multiplied as dense matrices where there are many rows,
    and `TT` or `LowRank`, given in ``rules``, are faster.

    Args:
      model: any NNX module.
      rules: "auto", or patterns and specs as for `tensorize`: formats and shapes given there are
        kept, and what has ranks is left as it is.
      size: parameters of the whole tensorised model, biases and all others included, at most.
      ratio: the same as the share that the model is to shrink by.
      tol: relative error of every weight, at most.
      compress_to: for a training that cuts the model to so many times fewer parameters, by
        ``optim.rank_adaptive(inner, compress_to=…)``: formats, shapes and layers that stay dense
        are those of ``ratio=compress_to``, and the ranks are larger, for about twice that size.
      init: "svd" reads the weights; "random" is for fresh layers, of which no spectrum tells where
        ranks are needed: all bonds get one rank, the largest that fits, some one more; "auto" takes
        TT-matrices in the shapes of `TTMatrix` (with both sides factored where only these are as
        small), and for embeddings and convolutions trains in those of `TT`, or stays dense where
        they are not smaller. So it is with "auto" and with ``compress_to``, too, if the singular
        values of all weights are as of random ones, and the size can be met so; smaller ones are
        met by all formats, compared as of other weights.

    Returns:
      `Choice`, to be printed, changed by ``dict(choice) | {…}``, and passed to `tensorize`.

    Raises:
      TypeError: ``model`` is no NNX module; with "svd", abstract parameters.
      ValueError: not exactly one of size, ratio, tol and compress_to, tol with "random", a size
        below that of ranks of one, a CP spec without a rank.

    Example:
      >>> import jax
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> rngs = nnx.Rngs(0)
      >>> model = nnx.Sequential(nnx.Linear(64, 96, rngs=rngs), nnx.Linear(96, 8, rngs=rngs))
      >>> choice = nn.choose(model, ratio=4)
      >>> choice.size <= sum(p.size for p in jax.tree.leaves(nnx.state(model))) // 4
      True

    Source: ours; error bounds of Oseledets, "Tensor-train decomposition" (SIAM J. Sci. Comput. 33,
    2011), theorem 2.2, and De Lathauwer, De Moor, Vandewalle (SIAM J. Matrix Anal. Appl. 21, 2000).
    """
    check_module(model)
    if sum(x is not None for x in (size, ratio, tol, compress_to)) != 1:
        raise ValueError(
            f"size: expected one of size=, ratio=, tol= and compress_to=, got {size!r}, {ratio!r}, "
            f"{tol!r} and {compress_to!r}"
        )
    automatic = isinstance(rules, str)
    if automatic and rules != "auto":
        raise ValueError(
            'rules: expected patterns and specs, such as {"*": nn.TT()}, or "auto", got '
            f"{rules!r}"
        )
    pairs = [("*", AUTO)] if automatic else rules_with(rules, None)
    if tol is not None and init == "random":
        raise ValueError('tol: expected None with init="random"; tolerances are for init="svd"')
    if tol is not None:
        return _chosen(model, pairs, init, tol=float(_check.tolerance(tol, np.float64)))
    now = parameter_count(model)
    name, given = next(
        (name, x) for name, x in (("size", size), ("ratio", ratio), ("compress_to", compress_to))
        if x is not None
    )  # fmt: skip
    most = _most(name, given, None if name == "size" else now)
    fewer = None if name == "size" else (name, now)
    final = _chosen(model, pairs, init, most=most, fewer=fewer, trained=name == "compress_to")
    if name != "compress_to":
        return final
    begin = min(int(_START * most), now)
    begun = _chosen(model, _without_ranks(final), init, most=begin, trained=True)
    return dataclasses.replace(
        begun,
        specs={path: begun.specs.get(path) for path in final},  # dense ones too
        sizes=final.sizes | begun.sizes,
    )


# Size at which a training begins that cuts ranks, over that at which it ends: as the examples of
# `optim.rank_adaptive` have it.
_START = 2.0
_LARGEST_RANK = 4096  # of a common one


def _chosen(
    model: Any,
    pairs: Sequence[tuple[str, Any]],
    init: Init,
    *,
    most: int = 0,
    fewer: tuple[str, int] | None = None,
    tol: float | None = None,
    trained: bool = False,
) -> Choice:
    """Chooses the formats and ranks of a model's layers by total size or by weight error.

    Args:
      model: the model.
      pairs: patterns and specs.
      init: whether weights are read.
      most: parameters of all, without ``tol``.
      fewer: name of the option that asks for a share of the model, and the model's parameters.
      tol: relative error of every weight.
      trained: whether a training follows, as `candidates` takes it.
    """
    every = matched(model, pairs)
    found = [place for place in every if is_open(place[2])]
    leaders = _leaders(model, found)
    automatic = any(spec is AUTO for *_, spec in found)
    least = math.inf  # parameters with ranks of one, where all weights look random
    if tol is None and (init == "random" or trained or automatic):
        own = [(x, paths[0], spec) for x, paths, spec in found if id(x) in leaders]
        if init == "random" or all(named(path, is_random, x) for x, path, _ in own):
            read = init == "svd" and not trained
            totals = Totals(model, every, own)
            if totals.total(1) > most:
                totals = Totals(model, every, own, factored=True)
            least = totals.total(1)
            if init == "random":
                check_least(least, totals.fixed, most, fewer)
            if least <= most:
                return _of_one_rank(totals, every, leaders, most, read)
    lists = {
        id(x): _listed(x, paths[0], spec, trained) for x, paths, spec in found if id(x) in leaders
    }
    rest = parameter_count(model) - sum(options.weight for options in lists.values())
    for layer, _, spec in every:
        if getattr(spec, "rank", None) is not None:
            rest += grown(layer, spec)
    if tol is not None:
        kept = {key: options.cheapest(tol) for key, options in lists.items()}
    else:
        kept = filled(lists, *allocated(lists, rest, most, fewer, least))
    total = rest + sum(candidate.numbers for candidate in kept.values())
    leading = {member: key for key, members in leaders.items() for member in members}
    chosen = [(layer, paths[0], kept[leading[id(layer)]]) for layer, paths, _ in found]
    fixed = {pattern(paths[0]): spec for layer, paths, spec in every if not is_open(spec)
             and spec is not AUTO}  # fmt: skip
    specs = {pattern(path): candidate.spec for _, path, candidate in chosen}
    return Choice(
        specs | fixed,
        {pattern(path): math.sqrt(candidate.bound) for _, path, candidate in chosen},
        {pattern(path): (weight_size(x), candidate.numbers) for x, path, candidate in chosen},
        total,
    )


def _of_one_rank(
    totals: Totals, every: Found, leaders: dict[int, list[int]], most: int, read: bool
) -> Choice:
    """Chooses every layer's spec with one common rank, the largest within a size; then one more.

    Of random weights no spectrum tells where ranks are needed.

    Args:
      totals: of the model, with the layers to choose for.
      every: its layers that rules match.
      leaders: as of `_leaders`.
      most: parameters of all, at least those of ranks of one.
      read: whether weights are read, for the bounds of their errors; all specs are "auto" then.
    """
    own, gain, total = totals.own, totals.gain, totals.total
    low, high = 1, 2
    while high < _LARGEST_RANK and total(high) <= most:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(middle) <= most else (low, middle)
    ranks, size = [low] * len(own), total(low)
    for k in sorted(range(len(own)), key=lambda k: gain(k, low + 1) - gain(k, low)):
        if 0 < gain(k, low + 1) - gain(k, low) <= most - size:
            size += gain(k, low + 1) - gain(k, low)
            ranks[k] += 1
    kept = {}
    for k, ((x, path, spec), rank) in enumerate(zip(own, ranks, strict=True)):
        dense = spec is AUTO and gain(k, rank) == 0
        bound = 0.0 if dense else None
        if read and not dense:
            linear = isinstance(x, nnx.Linear | nnx.LinearGeneral)
            order = order_of(x) if totals.factored and linear else None
            bound = named(path, error_bound, x, rank, order)
        kept[id(x)] = (
            None if dense else of_rank(x, spec, rank, totals.factored),
            gain(k, rank),
            bound,
        )
    leading = {member: key for key, members in leaders.items() for member in members}
    specs: dict[str, Spec | None] = {}
    sizes, errors = {}, {}
    for layer, paths, spec in every:
        path = pattern(paths[0])
        if not is_open(spec):
            specs[path] = spec
            continue
        specs[path], more, bound = kept[leading[id(layer)]]
        sizes[path] = weight_size(layer), weight_size(layer) + more
        if read and bound is not None:
            errors[path] = math.sqrt(bound)
    return Choice(specs, errors, sizes, size)


def _without_ranks(choice: Choice) -> list[tuple[str, Spec | None]]:
    """Returns chosen layer specifications as rules, without the ranks that were chosen."""
    return [
        (path, spec if spec is None or path not in choice.sizes else _bare(spec))
        for path, spec in choice.items()
    ]


def _bare(spec: Any) -> Spec:
    return dataclasses.replace(spec, rank=None)


def _leaders(model: Any, found: Found) -> dict[int, list[int]]:
    """Maps the first of every set of tied layers, for which specs are chosen, to the whole set."""
    groups = {id(layer): [id(layer)] for layer, _, _ in found}
    for name, layers in ties(model, found):
        if name != "bias":
            first, *others = dict.fromkeys(map(id, layers))
            for other in others:
                groups[first] += groups.pop(other)
    return groups


def _listed(layer: Any, path: str, spec: Spec, trained: bool) -> Listed:
    check_open(path, spec)
    if isinstance(layer, nnx.LinearGeneral):
        layer = flat(layer)
    kept = None if spec is AUTO else spec
    options = named(path, functools.partial(candidates, trained=trained), layer, kept)
    return Listed(options, weight_size(layer), math.prod(lead(layer)))


def _most(name: str, given: Any, now: int | None = None) -> int:
    """Returns the most parameters for a choice of specs: given, or a share of ``now``."""
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float | np.integer | np.floating)
        or not 0 < given < math.inf
    ):
        raise ValueError(f"{name}: expected a positive number, got {given!r}")
    return int(given) if now is None else int(now / given)
