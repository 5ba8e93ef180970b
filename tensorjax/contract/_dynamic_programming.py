"""Dynamic programming over subsets of tensors: optimal contraction trees.

A network is given as bit masks of labels, one per operand, each label in at least two operands or
in one and the output. An order is a list of pairs in static single assignment form: operands are
``0 … n−1`` and the k-th product is ``n + k``.

`all_subsets` finds the optimal tree of a few terms. It costs each subset as its cheapest split into
two, 3ᵏ / 2 splits for k terms; these are the same for all problems of k terms, so NumPy evaluates
all of their costs at once, some twenty times as fast as a loop. `connected_subsets` is the dynamic
programme of Pfeifer, Haegeman and Verstraete, Phys. Rev. E 90, 033315 (2014), over all connected
subsets of terms.
"""

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

# Share of the secondary cost that is added to the primary one, to break ties.
_TIE = 1e-9
_EXACT = 16  # operands up to which dynamic programming always runs to the end
_PAIRS = 1_500_000  # pairs of subsets that it examines in about a second
_EVALUATION = 10  # a pair whose product is evaluated takes as long as so many that are skipped


Path = tuple[tuple[int, int], ...]
_LARGE = 1 << 64  # makes the secondary cost a tie-break


class Effort:
    """Time budget of dynamic programming and other path searches, by estimates and not a clock."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def part(self, parts: int) -> "Effort":
        """Splits off an equal share of the time budget for dynamic programming and searches."""
        taken = Effort(self.left if parts == 1 or math.isinf(self.left) else self.left / parts)
        if not math.isinf(self.left):
            self.left -= taken.left
        return taken

    def trials(self, each: float, most: int, share: float) -> int:
        """Returns how many trials fit the time budget beside dynamic programming; deducts them."""
        if math.isinf(self.left):
            return most
        count = max(min(int(share * self.left / each), most), 0)
        self.left -= count * each
        return count


class Graph:
    """Tensor network for dynamic programming: labels as bit masks, and costs of products.

    Args:
        terms: labels (small integers) of each operand.
        output: labels of the result.
        sizes: size of each label.
        minimize: ``"flops"`` or ``"bytes"`` first; the other one breaks ties.
    """

    def __init__(
        self,
        terms: Sequence[Sequence[int]],
        output: Sequence[int],
        sizes: Sequence[int],
        minimize: str = "flops",
    ) -> None:
        self.terms = [_mask(term) for term in terms]
        self.output = _mask(output)
        self.sizes = sizes
        self.weights = (1, _LARGE) if minimize == "bytes" else (_LARGE, 1)
        self._volumes: dict[int, int] = {0: 1}

    def first_cost(self, cost: int) -> int:
        """Extracts a product's cost from one with a tie-break, for dynamic programming."""
        return cost // _LARGE

    def volume(self, labels: int) -> int:
        """Returns a tensor's entries for dynamic programming, its labels given as a bit mask."""
        known = self._volumes.get(labels)
        if known is None:
            rest = labels & (labels - 1)
            known = self.volume(rest) * self.sizes[(labels ^ rest).bit_length() - 1]
            self._volumes[labels] = known
        return known

    def cost(self, left: int, right: int, result: int) -> int:
        """Computes a product's cost for dynamic programming from bit masks of labels."""
        union = left | right
        touched = self.volume(union)
        flops = touched if union == result else 2 * touched
        moved = self.volume(left) + self.volume(right) + self.volume(result)
        return flops * self.weights[0] + moved * self.weights[1]


def _mask(labels: Iterable[int]) -> int:
    return sum(1 << label for label in set(labels))


def bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Best(NamedTuple):
    """Cheapest way, by dynamic programming, to contract a subset: cost, labels, last pair."""

    cost: int
    labels: int
    pair: tuple[int, int] | None


def _joiner(masks: Sequence[int], needed: int) -> Callable[[int, int, int], int]:
    """Returns a function that computes labels of two subsets' product, for dynamic programming.

    The labels ``needed`` outside are kept, and those that a mask outside the subset carries.
    """
    owners: dict[int, int] = {}
    for i, mask in enumerate(masks):
        for label in bits(mask & ~needed):
            owners[label] = owners.get(label, 0) | 1 << i

    def join(left: int, right: int, subset: int) -> int:
        result = left | right
        for label in bits(left & right & ~needed):
            if not owners[label] & ~subset:
                result ^= 1 << label
        return result

    return join


def all_subsets(
    graph: Graph, masks: Sequence[int], needed: int, bound: int
) -> dict[int, _Best] | None:
    """Finds the optimal tree by dynamic programming over all subsets; None if ``bound`` is met."""
    groups: dict[tuple[int, bool], int] = {}  # labels of the same terms are one label
    for label in bits(functools.reduce(operator.or_, masks)):
        members = sum(1 << i for i, mask in enumerate(masks) if mask >> label & 1)
        key = members, bool(needed >> label & 1)
        groups[key] = groups.get(key, 1) * graph.sizes[label]
    members, wanted = zip(*(groups or {((1 << len(masks)) - 1, False): 1}), strict=True)
    sizes = list(groups.values()) or [1]
    flops = graph.weights[0] > graph.weights[1]
    tree = cheapest(members, wanted, sizes, len(masks), flops=flops)
    if not tree:
        return None
    join = _joiner(masks, needed)
    best = {1 << i: _Best(0, mask, None) for i, mask in enumerate(masks)}
    for subset in reversed(tree):  # parts before what they are parts of
        left, right = (best[part] for part in tree[subset])
        labels = join(left.labels, right.labels, subset)
        cost = left.cost + right.cost + graph.cost(left.labels, right.labels, labels)
        best[subset] = _Best(cost, labels, tree[subset])
    return best if best[(1 << len(masks)) - 1].cost < bound else None


def connected_subsets(graph: Graph, bound: int, effort: Effort) -> Path | None:
    """Finds the optimal contraction path over connected subsets, by dynamic programming."""
    n = len(graph.terms)
    budget = effort.left * _PAIRS if n > _EXACT else math.inf
    join = _joiner(graph.terms, graph.output)
    for scale in (4096, 256, 16, 1):
        cap = bound // scale
        levels: list[dict[int, _Best]] = [{} for _ in range(n + 1)]
        levels[1] = {1 << i: _Best(0, mask, None) for i, mask in enumerate(graph.terms)}
        for size in range(2, n + 1):
            budget = _grow(graph, levels, size, cap, join, budget)
            if budget < 0:
                return None
        if levels[n]:
            return _unfold({k: v for level in levels for k, v in level.items()}, n)
    return None


def _grow(
    graph: Graph,
    levels: list[dict[int, _Best]],
    size: int,
    cap: int,
    join: Callable[[int, int, int], int],
    budget: float,
) -> float:
    """Finds the cheapest trees of connected subsets of one size, a stage of dynamic programming."""
    found = levels[size]
    for half in range(1, size // 2 + 1):
        touching = _by_label(levels[size - half])
        for a, (cost_a, labels_a, _) in levels[half].items():
            for label in bits(labels_a):
                below = (1 << label) - 1
                for b, (cost_b, labels_b, _) in touching.get(label, ()):
                    budget -= 1
                    if cost_a + cost_b >= cap:
                        break  # they are sorted by cost
                    # Two sets that share several labels are met at the lowest one.
                    if a & b or labels_a & labels_b & below:
                        continue
                    known = found.get(a | b)
                    limit = known.cost if known else cap
                    if cost_a + cost_b >= limit:
                        continue
                    budget -= _EVALUATION
                    labels = known.labels if known else join(labels_a, labels_b, a | b)
                    cost = cost_a + cost_b + graph.cost(labels_a, labels_b, labels)
                    if cost < limit:
                        found[a | b] = _Best(cost, labels, (a, b))
                if budget < 0:
                    return budget
    return budget


def _by_label(level: dict[int, _Best]) -> dict[int, list[tuple[int, _Best]]]:
    """Groups subsets of tensors by the labels of their products, for dynamic programming."""
    touching: dict[int, list[tuple[int, _Best]]] = {}
    for subset, entry in sorted(level.items(), key=lambda item: item[1].cost):
        for label in bits(entry.labels):
            touching.setdefault(label, []).append((subset, entry))
    return touching


def _unfold(best: dict[int, _Best], n: int) -> Path:
    """Extracts the optimal path from dynamic programming's best pair of every subset."""
    stack, order = [(1 << n) - 1], []
    while stack:
        subset = stack.pop()
        pair = best[subset].pair
        if pair:
            order.append(subset)
            stack.extend(pair)
    ids = {1 << i: i for i in range(n)}
    path = []
    for subset in reversed(order):
        a, b = best[subset].pair or (0, 0)
        path.append((ids[a], ids[b]))
        ids[subset] = n + len(path) - 1
    return tuple(path)


class _Splits(NamedTuple):
    """Table of all splits of the subsets of k tensors in two, for dynamic programming.

    Attributes:
      left, right: the parts, as bit masks.
      levels: of each number of terms: the subsets, and where their splits begin and end; every
        subset of a level has as many splits.
    """

    left: np.ndarray
    right: np.ndarray
    levels: list[tuple[np.ndarray, int, int]]


@functools.cache
def _splits(count: int) -> _Splits:
    left: list[int] = []
    levels = []
    by_size: dict[int, list[int]] = {}
    for subset in range(3, 1 << count):
        if subset & (subset - 1):
            by_size.setdefault(subset.bit_count(), []).append(subset)
    whole: list[int] = []
    for subsets in (by_size[size] for size in sorted(by_size)):
        begin = len(left)
        for subset in subsets:
            part = (subset - 1) & subset
            while part > subset ^ part:
                left.append(part)
                whole.append(subset)
                part = (part - 1) & subset
        levels.append((np.array(subsets), begin, len(left)))
    lefts = np.array(left)
    return _Splits(lefts, np.array(whole) ^ lefts, levels)


def cheapest(
    members: Sequence[int], needed: Sequence[bool], sizes: Sequence[int], count: int, *, flops: bool
) -> dict[int, tuple[int, int]]:
    """Finds the cheapest contraction tree of few tensors by dynamic programming over subsets.

    Args:
      members: of each group of labels, the terms that carry it, as a bit mask.
      needed: whether the result carries the group.
      sizes: product of the sizes of its labels.
      count: of terms.
      flops: what comes first, operations or entries moved.

    Returns:
      {subset: its two parts} from the set of all terms downwards, by bit masks of terms; empty if
      the sizes are beyond the range of floating point.
    """
    splits, subsets = _splits(count), np.arange(1 << count)[:, None]
    carriers, wanted = np.array(members)[None], np.array(needed)[None]
    present = ((subsets & carriers) != 0) & (((carriers & ~subsets) != 0) | wanted)
    logs = np.log2(np.array(sizes, float))
    with np.errstate(over="ignore", invalid="ignore"):
        volume = np.exp2(present @ logs)
        union = present[splits.left] | present[splits.right]
        subset = splits.left | splits.right
        summed = union.sum(1) > present[subset].sum(1)
        operations = np.exp2(union @ logs) * np.where(summed, 2, 1)
        moved = volume[splits.left] + volume[splits.right] + volume[subset]
        cost = operations + _TIE * moved if flops else moved + _TIE * operations
        best, choice = np.zeros(1 << count), np.zeros(1 << count, int)
        for found, begin, end in splits.levels:
            part = slice(begin, end)
            total = best[splits.left[part]] + best[splits.right[part]] + cost[part]
            total = total.reshape(len(found), -1)
            chosen = np.argmin(total, 1)
            best[found] = np.take_along_axis(total, chosen[:, None], 1)[:, 0]
            choice[found] = begin + chosen + np.arange(len(found)) * total.shape[1]
    if not np.isfinite(best[-1]):
        return {}
    tree, todo = {}, [(1 << count) - 1]
    while todo:
        node = todo.pop()
        if node & (node - 1):
            tree[node] = int(splits.left[choice[node]]), int(splits.right[choice[node]])
            todo.extend(tree[node])
    return tree
