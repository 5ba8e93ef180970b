"""Choice of format, mode shapes and ranks for every layer of a model, by size or by error."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from flax import nnx

from tensorjax import _check
from tensorjax.nn._linear_general import flat
from tensorjax.nn._models.replacement import replacement
from tensorjax.nn._models.rules import Rules, matched, pattern, rules_with
from tensorjax.nn._models.spec_candidates import Candidate, candidates, hull, slope
from tensorjax.nn._models.stacked_layers import lead
from tensorjax.nn._models.summary import numbers, table
from tensorjax.nn._models.tied_layers import Found, ties
from tensorjax.nn._models.traversal import is_module
from tensorjax.nn._specs import TT, LowRank, Spec, Tucker

Init = Literal["svd", "random"]


@dataclasses.dataclass(frozen=True)
class Choice(Mapping[str, Spec | None]):
    """Specifications chosen for a model's layers: rules for `tensorize`, with a table of them.

    Attributes:
      specs: the spec of each layer by its path, as a pattern; None stays dense.
      errors: bounds of the relative errors of the weights; of fresh layers, what a weight with
        singular values of energy 1 / k would lose.
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
    init: Init = "svd",
) -> Choice:
    """Chooses format, mode shapes and ranks of a model's layers for a total size or an error.

    For each layer all formats (low rank, trains and Tucker over the good factorisations of its
    features, or over channels and window of a convolution, and to stay dense) are compared by the
    singular values of the unfoldings of its weight. By ``size`` or ``ratio``, parameters go one
    step after the other to the layer in which they lower the error of the composition most, −Σ
    log(1 − error²): on convex hulls over size that is the least sum up to the last step; what is
    left then goes to the best specs between two corners of the hulls. By ``tol`` every layer gets
    the smallest spec whose error bound fulfils it.

    Args:
      model: any NNX module.
      rules: "auto", or patterns and specs as for `tensorize`: formats and shapes given there are
        kept, and what has ranks is left as it is.
      size: parameters of the whole tensorised model, biases and all others included, at most.
      ratio: the same as the share that the model is to shrink by.
      tol: relative error of every weight, at most.
      init: "svd" reads the weights; "random", for fresh layers, takes the energy of the k-th
        singular value of every unfolding to fall as 1 / k.

    Returns:
      `Choice`, to be printed, changed by ``dict(choice) | {…}``, and passed to `tensorize`.

    Raises:
      TypeError: ``model`` is no NNX module; with "svd", abstract parameters.
      ValueError: not exactly one of size, ratio and tol, a size below that of ranks of one, a CP
        spec without a rank.

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
    if not is_module(model):
        raise TypeError(f"model: expected an NNX module, got {type(model).__name__}")
    if sum(x is not None for x in (size, ratio, tol)) != 1:
        raise ValueError(
            f"size: expected one of size=, ratio= and tol=, got {size!r}, {ratio!r} and {tol!r}"
        )
    automatic = isinstance(rules, str)
    if automatic and rules != "auto":
        raise ValueError(
            'rules: expected patterns and specs, such as {"*": nn.TT()}, or "auto", got '
            f"{rules!r}"
        )
    pairs = [("*", _AUTO)] if automatic else rules_with(rules, None)
    every = matched(model, pairs)
    found = [place for place in every if _is_open(place[2])]
    leaders = _leaders(model, found)
    lists = {
        id(x): _listed(x, paths[0], spec, init) for x, paths, spec in found if id(x) in leaders
    }
    rest = numbers(model) - sum(options.weight for options in lists.values())
    for layer, _, spec in every:
        if getattr(spec, "rank", None) is not None:
            rest += _grown(layer, spec)
    if tol is not None:
        tol = float(_check.tolerance(tol, np.float64))
        kept = {key: options.cheapest(tol) for key, options in lists.items()}
    else:
        now = numbers(model)
        most = _most(now, size, ratio)
        kept = _filled(lists, *_allocated(lists, rest, most, None if ratio is None else now))
    total = rest + sum(candidate.numbers for candidate in kept.values())
    leading = {member: key for key, members in leaders.items() for member in members}
    chosen = [(layer, paths[0], kept[leading[id(layer)]]) for layer, paths, _ in found]
    fixed = {pattern(paths[0]): spec for layer, paths, spec in every if not _is_open(spec)
             and spec is not _AUTO}  # fmt: skip
    specs = {pattern(path): candidate.spec for _, path, candidate in chosen}
    return Choice(
        specs | fixed,
        {pattern(path): math.sqrt(candidate.bound) for _, path, candidate in chosen},
        {pattern(path): (_weight(x), candidate.numbers) for x, path, candidate in chosen},
        total,
    )


# Stands for "auto" in rules; its format is not used.
_AUTO = TT()


@dataclasses.dataclass(frozen=True)
class _Options:
    """Layer of `choose` with its candidate specs, its dense size and its number of copies."""

    found: list[Candidate]
    weight: int
    copies: int

    def cheapest(self, tol: float) -> Candidate:
        """Returns the smallest candidate with error up to ``tol``, or the last."""
        fits = (c for c in self.found if math.sqrt(c.bound) <= tol)
        return next(fits, self.found[-1])

    def within(self, size: int) -> Candidate:
        """Returns the best candidate of at most a size."""
        return [c for c in self.found if c.numbers <= size][-1]


def _is_open(spec: Any) -> bool:
    """Whether the choice of specs has to find a layer's ranks, as its own spec gives none."""
    return getattr(spec, "rank", None) is None


def _weight(layer: Any) -> int:
    kernel = layer.embedding if isinstance(layer, nnx.Embed) else layer.kernel
    return math.prod(kernel.shape)


def _leaders(model: Any, found: Found) -> dict[int, list[int]]:
    """Maps the first layer of every tied set to all layers of the set, for the choice of specs."""
    groups = {id(layer): [id(layer)] for layer, _, _ in found}
    for name, layers in ties(model, found):
        if name != "bias":
            first, *others = dict.fromkeys(map(id, layers))
            for other in others:
                groups[first] += groups.pop(other)
    return groups


def _listed(layer: Any, path: str, spec: Spec, init: str) -> _Options:
    if not (spec is _AUTO or isinstance(spec, TT | Tucker | LowRank)):
        raise ValueError(
            f"{path}: expected a spec with its rank, or TT, Tucker or LowRank to choose the ranks "
            f"of, got {spec}"
        )
    if isinstance(layer, nnx.LinearGeneral):
        layer = flat(layer)
    try:
        options = candidates(layer, None if spec is _AUTO else spec, init == "svd")
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{path or 'the model itself'}: {error}") from error
    return _Options(options, _weight(layer), math.prod(lead(layer)))


def _grown(layer: Any, spec: Spec) -> int:
    """Counts the parameters that a layer gains by a spec of given rank, to choose other specs."""
    new = nnx.eval_shape(lambda: replacement(layer, spec, "random", None, "own", nnx.Rngs(0)))
    return numbers(new) - numbers(layer)


def _most(now: int, size: Any, ratio: Any) -> int:
    """Returns the largest size that chosen specs may have, from a valid ``size`` or ``ratio``."""
    given: Any = size if ratio is None else ratio
    name = "size" if ratio is None else "ratio"
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float | np.integer | np.floating)
        or not 0 < given < math.inf
    ):
        raise ValueError(f"{name}: expected a positive number, got {given!r}")
    return int(given) if ratio is None else int(now / ratio)


def _allocated(
    lists: Mapping[int, _Options], rest: int, most: int, now: int | None
) -> tuple[dict[int, Candidate], int]:
    """Chooses a candidate for every layer, greedily by error decrease per parameter.

    On convex hulls the steps of every layer come in descending order of their slopes.

    Args:
      lists: of the layers chosen for.
      rest: parameters outside of them.
      most: parameters of all.
      now: those of the model, if a ratio of them was asked for.

    Returns:
      (choice of every layer, parameters left).
    """
    corners = {key: hull(options.found) for key, options in lists.items()}
    taken = dict.fromkeys(lists, 0)
    left = most - rest - sum(options.found[0].numbers for options in lists.values())
    if left < 0:
        least = most - left
        asked = f"size: expected at least {least:,} parameters"
        if now is not None:
            asked = f"ratio: expected at most {math.floor(1e3 * now / least) / 1e3:g}, for at least"
            asked += f" {least:,} of {now:,} parameters"
        raise ValueError(
            f"{asked}, of which {rest:,} are outside the layers chosen for, got {most:,}; "
            f"tensorise more of the model, or {'allow a larger size' if now is None else 'less'}"
        )
    steps = [
        (-lists[key].copies * slope(a, b), key, k + 1, b.numbers - a.numbers)
        for key, found in corners.items()
        for k, (a, b) in enumerate(itertools.pairwise(found))
    ]
    for _, key, k, cost in sorted(steps, key=lambda step: (step[0], step[2])):
        if taken[key] == k - 1 and cost <= left:
            taken[key] = k
            left -= cost
    return {key: corners[key][k] for key, k in taken.items()}, left


def _filled(
    lists: Mapping[int, _Options], kept: dict[int, Candidate], left: int
) -> dict[int, Candidate]:
    """Spends parameters that a choice of specs leaves where they reduce a layer's error most."""
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
