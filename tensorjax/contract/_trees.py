"""Contraction trees: their cost, and the improvement of their subtrees.

Costs here are those of the program that is run: ``2·(entries touched)`` for a product that
sums over a label, ``1·(entries touched)`` for one that does not (an outer or entry-wise
product). Networks and orders are written as in `tensorjax.contract._dynamic_programming`, whose
`all_subsets` `Tree.refine` applies to every small subtree of a large one.
"""

from tensorjax.contract._dynamic_programming import Effort, Graph, Path, _Best, all_subsets, bits

_ORDERS = 2_000_000  # splits that `all_subsets` costs in about a second, a thousand or more at once


class Tree:
    """Contraction tree of a tensor network, whose subtrees can be re-ordered."""

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
        """Returns the products of a contraction tree in the order of execution."""
        stack, found = [self.root], []
        while stack:
            node = stack.pop()
            if node in self.children:
                found.append(node)
                stack.extend(self.children[node])
        return found[::-1]

    def path(self) -> Path:
        """Returns the products of a contraction tree in the order that needs least memory.

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

    def refine(self, window: int, effort: Effort) -> None:
        """Improves a contraction tree: reorders subtrees of up to ``window`` leaves optimally.

        Costly ones come first, until none improves.

        Ends earlier where the effort does.
        """
        improved = True
        while improved:
            improved = False
            for node in sorted(self.order(), key=self.node_cost, reverse=True):
                for costly in (True, False):
                    if effort.left <= 0:
                        return
                    # A node may have vanished when a subtree above it was exchanged.
                    if node in self.children and self._refine_at(node, window, costly, effort):
                        improved = True

    def _refine_at(self, root: int, window: int, costly: bool, effort: Effort) -> bool:
        """Re-orders one subtree of a contraction tree optimally; returns whether that improved it.

        It grows from ``root`` by its costliest or shallowest nodes.
        """
        inner, leaves = [root], list(self.children[root])
        while len(leaves) < window:
            opened = [leaf for leaf in leaves if leaf in self.children]
            if not opened:
                break
            node = max(opened, key=self.node_cost) if costly else opened[0]
            inner.append(node)
            leaves.remove(node)
            leaves.extend(self.children[node])
        key = (root, *sorted(leaves))
        if len(leaves) < 3 or key in self._settled:
            return False
        self._settled.add(key)
        effort.left -= 3 ** len(leaves) / 2 / _ORDERS
        current = sum(map(self.node_cost, inner))
        masks = [self.labels[leaf] for leaf in leaves]
        best = all_subsets(self.graph, masks, self.labels[root], current)
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


def _path_labels(graph: Graph, path: Path) -> dict[int, int]:
    """Computes labels, as bit masks, of all nodes of a contraction tree given as a path."""
    labels = dict(enumerate(graph.terms))
    uses = [0] * len(graph.sizes)
    for mask in (*graph.terms, graph.output):
        for label in bits(mask):
            uses[label] += 1
    for k, (a, b) in enumerate(path):
        result = labels[a] | labels[b]
        for label in bits(labels[a] & labels[b]):
            uses[label] -= 1
            if uses[label] == 1:
                result ^= 1 << label
        labels[len(graph.terms) + k] = result
    return labels


def path_cost(graph: Graph, path: Path) -> int:
    """Computes the cost of a contraction tree given as a path, in operations."""
    labels, n = _path_labels(graph, path), len(graph.terms)
    return sum(graph.cost(labels[a], labels[b], labels[n + k]) for k, (a, b) in enumerate(path))
