"""Slicing of contractions under a memory limit: which indices to cut, into how many slices.

Cutting an index of size n into c slices replaces it by one of size n / c and repeats what
depends on it c times, so only divisors are used. Products that depend on no sliced index are
made once, before the loop.
"""

import math
from collections.abc import Iterable, Iterator

from tensorjax.contract._costs import forward_walk, gradient_walk
from tensorjax.contract._pairwise_products import Model, Slices

_LARGEST = 6  # values whose indices are tried first


class Unreachable(Exception):
    """Raised if no slicing of a contraction fits the memory limit; `least` is the smallest peak."""

    def __init__(self, least: int) -> None:
        super().__init__(least)
        self.least = least


def choose(model: Model, limit: int, gradient: bool) -> dict[str, int]:
    """Chooses a slicing of a contraction that brings its peak memory under a limit at low cost.

    Args:
        model: the contraction.
        limit: bytes.
        gradient: whether the limit holds for forward + backward or for forward alone.

    Returns:
        Number of slices of each sliced label; empty if the contraction fits as it is.

    Raises:
        Unreachable: if nothing fits.
    """
    search = _Search(model, limit, gradient)
    if search.excess({}) == 0:
        return {}
    slices = search.descend()
    if slices is None:
        slices = search.finest()
        if search.excess(slices) > 0:
            raise Unreachable(search.least)
    return search.coarsen(slices)


class _Search:
    """Greedy search for a slicing of a contraction: the number of slices of each index."""

    def __init__(self, model: Model, limit: int, gradient: bool) -> None:
        self.model = model
        self.limit = limit
        self.gradient = gradient
        self.least = -1
        sizes = model.network.sizes
        labels = dict.fromkeys("".join(model.network.reduced)) if model.steps else {}
        self.counts = {label: _divisors(sizes[label]) for label in labels if sizes[label] > 1}
        self._known: dict[tuple[tuple[str, int], ...], tuple[int, int]] = {}

    def measure(self, slices: Slices) -> tuple[int, int]:
        """Returns the bytes of a slicing beyond the limit, summed, and its operations."""
        key = tuple(sorted(slices.items()))
        if key not in self._known:
            if self.gradient:
                ledger = gradient_walk(self.model, slices, remat=bool(slices))
            else:
                ledger = forward_walk(self.model, slices)
            excess = sum(max(0, level - self.limit) for level in ledger.levels)
            cost = ledger.cost()
            self.least = cost.peak_bytes if self.least < 0 else min(self.least, cost.peak_bytes)
            self._known[key] = (excess, cost.flops)
        return self._known[key]

    def excess(self, slices: Slices) -> int:
        return self.measure(slices)[0]

    def descend(self) -> dict[str, int] | None:
        """Refines a slicing one index at a time until peak memory fits the limit; or None."""
        slices: dict[str, int] = {}
        while (excess := self.excess(slices)) > 0:
            for labels in (self.largest(slices), self.counts):
                trials = [t for t in self.finer(slices, labels) if self.excess(t) < excess]
                if trials:
                    break
            else:
                return None
            slices = min(trials, key=self.score)
        return slices

    def largest(self, slices: Slices) -> list[str]:
        """Returns the labels of the largest intermediates, whose slicing is likely to help."""
        network = self.model.network

        def size(labels: str) -> int:
            return math.prod(network.sizes[c] // slices.get(c, 1) for c in labels)

        values = [*network.reduced, *(step.labels for step in self.model.steps)]
        top = sorted(values, key=size, reverse=True)[:_LARGEST]
        found = dict.fromkeys("".join(top))
        return [label for label in found if label in self.counts]

    def score(self, slices: Slices) -> tuple[float, int, int, int]:
        """Scores a slicing by excess memory times operations; the lowest is best."""
        excess, flops = self.measure(slices)
        network = self.model.network
        # Slices of a leading axis are contiguous: their gradients are written in place.
        strided = sum(
            label in term[1:] for label in slices for term in (*network.reduced, network.output)
        )
        return float(excess) * float(flops), flops, strided, math.prod(slices.values())

    def finer(self, slices: Slices, labels: Iterable[str]) -> Iterator[dict[str, int]]:
        """Yields slicings of a contraction in which one of ``labels`` is cut into more slices."""
        for label in labels:
            last = slices.get(label, 1)
            for count in self.counts[label]:
                if count >= 2 * last:
                    last = count
                    yield {**slices, label: count}

    def finest(self) -> dict[str, int]:
        """Returns the slicing of a contraction that cuts every index into slices of length one."""
        return {label: counts[-1] for label, counts in self.counts.items()}

    def coarsen(self, slices: dict[str, int]) -> dict[str, int]:
        """Reduces a slicing's numbers of slices as far as the memory limit allows."""
        for label in sorted(slices, key=lambda c: self.counts[c][-1]):
            for count in (1, *self.counts[label]):
                if count >= slices[label]:
                    break
                trial = {**slices, label: count}
                if count == 1:
                    del trial[label]
                if self.excess(trial) == 0:
                    slices = trial
                    break
        return slices


def _divisors(size: int) -> list[int]:
    """Returns possible numbers of slices for slicing an index: the divisors of its size above 1."""
    small = [d for d in range(1, int(size**0.5) + 1) if size % d == 0]
    return sorted({*small, *(size // d for d in small)} - {1})


def _contenders(models: list[Model]) -> list[Model]:
    """Returns contractions to try slicing: the two of least operations, one of least memory."""
    smallest = min(models, key=lambda model: forward_walk(model, {}).cost().peak_bytes)
    return list(dict.fromkeys([*models[:2], smallest]))


def fit(
    models: list[Model], minimize: str, limit: int | None, limit_grad: bool
) -> tuple[Model, dict[str, int]]:
    """Finds the cheapest contraction, by slicing as a memory limit demands, and its slices."""

    def weight(model: Model, slices: Slices) -> tuple[int, ...]:
        cost = forward_walk(model, slices).cost()._asdict()
        first = cost.pop("peak_bytes" if minimize == "peak" else minimize)
        return (first, *cost.values())

    if limit is None:
        return min(models, key=lambda model: weight(model, {})), {}
    fitting, least = [], math.inf
    for model in _contenders(models):
        try:
            slices = choose(model, limit, limit_grad)
        except Unreachable as error:
            least = min(least, error.least)
        else:
            rounds = math.prod(slices.values())
            fitting.append((weight(model, slices), rounds, len(fitting), model, slices))
    if not fitting:
        what = "forward + backward" if limit_grad else "the forward pass"
        fixed = (1 + limit_grad) * models[0].fixed_bytes
        raise ValueError(
            f"memory_limit: got {limit} bytes, but slicing brings {what} of "
            f"{models[0].network.expr!r} down to no less than {least}, of which {fixed} are the "
            f"operands and the result{' and their gradients' if limit_grad else ''}; expected a "
            "limit of at least that: raise it, use a smaller dtype or shard the operands"
        )
    return min(fitting)[3:]
