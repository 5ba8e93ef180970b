"""Contraction order: which pair of operands to multiply next.

Costs here are those of the program that is run: ``2·(entries touched)`` for a product that
sums over a label, ``1·(entries touched)`` for one that does not (an outer or entry-wise
product). A network is given as bit masks of labels, one per operand, each label in at least
two operands or in one and the output. An order is a list of pairs in static single
assignment form: operands are ``0 … n−1`` and the k-th product is ``n + k``.

The search is opt_einsum's `optimal` for a few operands. For more, greedy and randomised
orders (by cotengra where it is installed, by opt_einsum otherwise) are the starting points
for two exact methods: dynamic programming over all connected subsets (Pfeifer, Haegeman and
Verstraete, Phys. Rev. E 90, 033315 (2014)) while that is affordable, and re-ordering every
small subtree optimally until nothing improves.
"""

import contextlib
import functools
import importlib.util
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import opt_einsum

Path = tuple[tuple[int, int], ...]
Strategy = str | Callable[..., Any] | tuple[tuple[int, ...], ...]

_OPTIMAL = 6  # operands up to which opt_einsum's exhaustive search takes milliseconds
_WINDOW = 8  # leaves of the subtrees that are re-ordered
_WHOLE = 11  # operands up to which one such subtree is the whole network
_PAIRS = 1_500_000  # pairs of subsets that dynamic programming may look at: about a second
_TRIALS = 16  # randomised orders tried
_LARGE = 1 << 64  # makes the secondary cost a tie-break

_NAMED = (
    "optimal", "dp", "dynamic-programming", "greedy", "eager", "opportunistic", "auto-hq",
    "branch-all", "branch-2", "branch-1", "random-greedy", "random-greedy-128",
)  # fmt: skip


class _Best(NamedTuple):
    """Cheapest known way to multiply a subset of terms."""

    cost: int
    labels: int
    pair: tuple[int, int] | None


class Graph:
    """A network as bit masks, with the cost of a product.

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

    def volume(self, labels: int) -> int:
        """Number of entries of an array with these labels."""
        known = self._volumes.get(labels)
        if known is None:
            rest = labels & (labels - 1)
            known = self.volume(rest) * self.sizes[(labels ^ rest).bit_length() - 1]
            self._volumes[labels] = known
        return known

    def cost(self, left: int, right: int, result: int) -> int:
        """Cost of multiplying arrays labelled ``left`` and ``right`` into ``result``."""
        union = left | right
        touched = self.volume(union)
        flops = touched if union == result else 2 * touched
        moved = self.volume(left) + self.volume(right) + self.volume(result)
        return flops * self.weights[0] + moved * self.weights[1]


class _Tree:
    """A contraction tree whose subtrees can be exchanged."""

    def __init__(self, graph: Graph, path: Path) -> None:
        self.graph = graph
        self.labels = _path_labels(graph, path)
        n = len(graph.terms)
        self.children = {n + k: pair for k, pair in enumerate(path)}
        self.root = n + len(path) - 1
        self._next = self.root + 1
        self._settled: set[tuple[int, ...]] = set()

    def node_cost(self, node: int) -> int:
        left, right = self.children[node]
        return self.graph.cost(self.labels[left], self.labels[right], self.labels[node])

    def order(self) -> list[int]:
        """Inner nodes, every node after its children; the last child is finished first."""
        stack, found = [self.root], []
        while stack:
            node = stack.pop()
            if node in self.children:
                found.append(node)
                stack.extend(self.children[node])
        return found[::-1]

    def path(self) -> Path:
        """The products in the order that holds the least memory.

        Of two subtrees the one that needs more room beyond its result goes first. Operands
        are alive throughout, so they do not count.
        """
        room, size = dict.fromkeys(range(len(self.graph.terms)), 0), {}
        for node in self.order():
            a, b = self.children[node]
            size[node] = self.graph.volume(self.labels[node])
            held_a, held_b = size.get(a, 0), size.get(b, 0)
            first, last = max(room[a], held_a + room[b]), max(room[b], held_b + room[a])
            if first < last:
                self.children[node] = (b, a)
            room[node] = max(min(first, last), held_a + held_b + size[node])
        order = self.order()
        ids = {node: len(self.graph.terms) + k for k, node in enumerate(order)}
        pairs = (self.children[node] for node in order)
        return tuple((ids.get(a, a), ids.get(b, b)) for a, b in pairs)

    def refine(self, window: int) -> None:
        """Re-orders subtrees of at most ``window`` leaves until none improves."""
        improved = True
        while improved:
            improved = False
            for node in reversed(self.order()):
                # A node may have vanished when a subtree above it was exchanged.
                if node in self.children and self._refine_at(node, window):
                    improved = True

    def _refine_at(self, root: int, window: int) -> bool:
        inner, leaves = [root], list(self.children[root])
        while len(leaves) < window:
            opened = [leaf for leaf in leaves if leaf in self.children]
            if not opened:
                break
            node = max(opened, key=self.node_cost)
            inner.append(node)
            leaves.remove(node)
            leaves.extend(self.children[node])
        key = (root, *sorted(leaves))
        if len(leaves) < 3 or key in self._settled:
            return False
        self._settled.add(key)
        current = sum(map(self.node_cost, inner))
        masks = [self.labels[leaf] for leaf in leaves]
        best = _all_subsets(self.graph, masks, self.labels[root], current)
        if best is None:
            return False
        for node in inner:
            del self.children[node]
        self._graft(best, (1 << len(leaves)) - 1, leaves, root)
        return True

    def _graft(self, best: dict[int, _Best], subset: int, leaves: list[int], node: int) -> None:
        pair = []
        for part in best[subset].pair or ():
            if best[part].pair is None:
                pair.append(leaves[part.bit_length() - 1])
                continue
            self.labels[self._next] = best[part].labels
            pair.append(self._next)
            self._next += 1
            self._graft(best, part, leaves, pair[-1])
        self.children[node] = (pair[0], pair[1])


def _mask(labels: Iterable[int]) -> int:
    return sum(1 << label for label in set(labels))


def _path_labels(graph: Graph, path: Path) -> dict[int, int]:
    """Labels of every operand and intermediate of a path."""
    labels = dict(enumerate(graph.terms))
    uses = [0] * len(graph.sizes)
    for mask in (*graph.terms, graph.output):
        for label in _bits(mask):
            uses[label] += 1
    for k, (a, b) in enumerate(path):
        result = labels[a] | labels[b]
        for label in _bits(labels[a] & labels[b]):
            uses[label] -= 1
            if uses[label] == 1:
                result ^= 1 << label
        labels[len(graph.terms) + k] = result
    return labels


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def path_cost(graph: Graph, path: Path) -> int:
    """Total cost of a path."""
    labels, n = _path_labels(graph, path), len(graph.terms)
    return sum(graph.cost(labels[a], labels[b], labels[n + k]) for k, (a, b) in enumerate(path))


def _joiner(masks: Sequence[int], needed: int) -> Callable[[int, int, int], int]:
    """How to label the product of two disjoint subsets of ``masks``.

    The labels ``needed`` outside are kept, and those that a mask outside the subset carries.
    """
    owners: dict[int, int] = {}
    for i, mask in enumerate(masks):
        for label in _bits(mask & ~needed):
            owners[label] = owners.get(label, 0) | 1 << i

    def join(left: int, right: int, subset: int) -> int:
        result = left | right
        for label in _bits(left & right & ~needed):
            if not owners[label] & ~subset:
                result ^= 1 << label
        return result

    return join


def _all_subsets(
    graph: Graph, masks: Sequence[int], needed: int, bound: int
) -> dict[int, _Best] | None:
    """Optimal order of a few terms, outer products included, or None if ``bound`` stands."""
    join = _joiner(masks, needed)
    full = (1 << len(masks)) - 1
    best = {1 << i: _Best(0, mask, None) for i, mask in enumerate(masks)}
    for subset in range(3, full + 1):
        if subset & (subset - 1) == 0:
            continue
        labels, cheapest, pair = -1, bound, None
        part = (subset - 1) & subset
        while part > (rest := subset ^ part):
            left, right = best.get(part), best.get(rest)
            if left and right and left.cost + right.cost < cheapest:
                if labels < 0:
                    labels = join(left.labels, right.labels, subset)
                cost = left.cost + right.cost + graph.cost(left.labels, right.labels, labels)
                if cost < cheapest:
                    cheapest, pair = cost, (part, rest)
            part = (part - 1) & subset
        if pair:
            best[subset] = _Best(cheapest, labels, pair)
    return best if full in best else None


def _connected_subsets(graph: Graph, bound: int) -> Path | None:
    """Optimal order without outer products, if cheaper than ``bound`` and found in time."""
    n, budget = len(graph.terms), _PAIRS
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
    budget: int,
) -> int:
    """Fills ``levels[size]`` with subsets reachable below ``cap``; returns the budget left."""
    found = levels[size]
    for half in range(1, size // 2 + 1):
        touching = _by_label(levels[size - half])
        for a, (cost_a, labels_a, _) in levels[half].items():
            for label in _bits(labels_a):
                below = (1 << label) - 1
                budget -= len(touching.get(label, ()))
                if budget < 0:
                    return budget
                for b, (cost_b, labels_b, _) in touching.get(label, ()):
                    # Two sets that share several labels are met at the lowest one.
                    if a & b or labels_a & labels_b & below:
                        continue
                    known = found.get(a | b)
                    limit = known.cost if known else cap
                    if cost_a + cost_b >= limit:
                        continue
                    labels = known.labels if known else join(labels_a, labels_b, a | b)
                    cost = cost_a + cost_b + graph.cost(labels_a, labels_b, labels)
                    if cost < limit:
                        found[a | b] = _Best(cost, labels, (a, b))
    return budget


def _by_label(level: dict[int, _Best]) -> dict[int, list[tuple[int, _Best]]]:
    touching: dict[int, list[tuple[int, _Best]]] = {}
    for subset, entry in level.items():
        for label in _bits(entry.labels):
            touching.setdefault(label, []).append((subset, entry))
    return touching


def _unfold(best: dict[int, _Best], n: int) -> Path:
    """The path of the tree recorded in ``best`` for the set of all terms."""
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


def _linear_to_ssa(path: Iterable[Sequence[int]], n: int) -> Path:
    """Pairs in single assignment form; a step over many operands goes left to right."""
    nodes, pairs = list(range(n)), []
    steps = list(path)
    if steps and steps[0] == "einsum_path":  # what numpy.einsum_path puts first
        steps = steps[1:]
    for step in steps:
        inside = all(isinstance(i, int) and 0 <= i < len(nodes) for i in step)
        if not (inside and step and len(set(step)) == len(step)):
            raise ValueError(
                f"optimize: expected steps of distinct positions below {len(nodes)} (operands "
                f"left at that step), got {tuple(step)}; a product goes to the end of the list"
            )
        chosen = [nodes[i] for i in step]
        nodes = [node for i, node in enumerate(nodes) if i not in step]
        while len(chosen) > 1:
            pairs.append((chosen[0], chosen[1]))
            chosen = [n + len(pairs) - 1, *chosen[2:]]
        nodes.extend(chosen)
    if len(nodes) != 1:
        raise ValueError(
            f"optimize: expected a path that leaves one operand, got {len(nodes)} left of {n}; "
            "add the missing steps"
        )
    return tuple(pairs)


def to_linear(path: Path, n: int) -> tuple[tuple[int, ...], ...]:
    """The path in opt_einsum's form: positions in a list that products are appended to."""
    if n == 1:
        return ((0,),)
    nodes, steps = list(range(n)), []
    for k, (a, b) in enumerate(path):
        i, j = sorted((nodes.index(a), nodes.index(b)))
        steps.append((i, j))
        del nodes[j], nodes[i]
        nodes.append(n + k)
    return tuple(steps)


def _by_opt_einsum(graph: Graph, finder: Callable[..., Any]) -> Path:
    inputs = [frozenset(_bits(mask)) for mask in graph.terms]
    with _fixed_seed():
        linear = finder(inputs, frozenset(_bits(graph.output)), dict(enumerate(graph.sizes)), None)
    return _linear_to_ssa(linear, len(graph.terms))


def _by_cotengra(graph: Graph) -> Path:
    import cotengra

    inputs = [tuple(_bits(mask)) for mask in graph.terms]
    with _fixed_seed(), warnings.catch_warnings():
        # cotengra warns about its own optional dependencies, which this search does not use.
        warnings.simplefilter("ignore")
        search = cotengra.HyperOptimizer(
            methods=["greedy", "labels"], max_repeats=_TRIALS, parallel=False, optlib="random"
        )
        linear = search(inputs, tuple(_bits(graph.output)), dict(enumerate(graph.sizes)))
    return _linear_to_ssa(linear, len(graph.terms))


@contextlib.contextmanager
def _fixed_seed() -> Iterator[None]:
    """Makes searches that draw from Python's global generator repeatable, and restores it."""
    state = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)


def _starting_points(graph: Graph) -> list[Path]:
    n = len(graph.terms)
    if n <= _OPTIMAL:
        return [_by_opt_einsum(graph, opt_einsum.paths.optimal)]
    found = [
        _by_opt_einsum(graph, opt_einsum.paths.greedy),
        _by_opt_einsum(graph, opt_einsum.path_random.random_greedy_128),
        _by_opt_einsum(
            graph, opt_einsum.path_random.RandomGreedy(minimize="size", max_repeats=_TRIALS)
        ),
    ]
    if n > _WHOLE and importlib.util.find_spec("cotengra"):
        found.append(_by_cotengra(graph))
    return found


def _automatic(graph: Graph) -> list[Path]:
    n = len(graph.terms)
    found = _starting_points(graph)
    found.sort(key=lambda path: path_cost(graph, path))
    refined = []
    for path in found[:2]:
        tree = _Tree(graph, path)
        tree.refine(n if n <= _WHOLE else _WINDOW)
        refined.append(tree.path())
    best = min(refined, key=lambda path: path_cost(graph, path))
    if n > _WHOLE:
        exact = _connected_subsets(graph, path_cost(graph, best))
        if exact:
            tree = _Tree(graph, exact)
            tree.refine(_WINDOW)
            best = tree.path()
    others = [_Tree(graph, path).path() for path in found]
    return list(dict.fromkeys([best, *refined, *others]))


def check_strategy(optimize: Any) -> Strategy:
    """Checks ``optimize`` and makes it hashable."""
    if isinstance(optimize, str):
        if optimize not in ("auto", "cotengra", *_NAMED):
            names = ", ".join(map(repr, ("auto", "cotengra", *_NAMED)))
            raise ValueError(
                f"optimize: expected one of {names}, or a path, got {optimize!r}; "
                "'auto' is the default"
            )
        if optimize == "cotengra" and not importlib.util.find_spec("cotengra"):
            raise ValueError("optimize: 'cotengra' is not installed; install it or use 'auto'")
        return optimize
    if callable(optimize):
        return optimize
    if isinstance(optimize, list | tuple) and all(
        isinstance(step, list | tuple) or step == "einsum_path" for step in optimize
    ):
        return tuple(tuple(s) if isinstance(s, list | tuple) else s for s in optimize)
    raise TypeError(
        "optimize: expected the name of a strategy, a path (a list of tuples of operand positions) "
        f"or a callable as opt_einsum takes, got {optimize!r}; 'auto' is the default"
    )


@functools.lru_cache(maxsize=4096)
def search(
    terms: tuple[tuple[int, ...], ...],
    output: tuple[int, ...],
    sizes: tuple[int, ...],
    strategy: Strategy,
    minimize: str,
) -> tuple[Path, ...]:
    """Finds contraction orders, the cheapest first, each scheduled for the least memory.

    An explicit path keeps the order of its steps.

    Args:
        terms: labels of each operand; every label in two of them or in the output as well.
        output: labels of the result.
        sizes: size of each label.
        strategy: what `check_strategy` returned.
        minimize: ``"flops"`` or ``"bytes"``.

    Returns:
        One path for a given strategy, several different ones for ``"auto"``.

    Raises:
        ValueError: if an explicit path does not fit the operands.
    """
    # Empty axes must not make every order look free.
    graph = Graph(terms, output, [max(size, 1) for size in sizes], minimize)
    if isinstance(strategy, tuple):
        return (_linear_to_ssa(strategy, len(terms)),)
    if len(terms) < 3:
        return (((0, 1),),) if len(terms) == 2 else ((),)
    if strategy == "auto":
        return tuple(_automatic(graph))
    if strategy == "cotengra":
        return (_Tree(graph, _by_cotengra(graph)).path(),)
    finder = opt_einsum.paths.get_path_fn(strategy) if isinstance(strategy, str) else strategy
    return (_Tree(graph, _by_opt_einsum(graph, finder)).path(),)
