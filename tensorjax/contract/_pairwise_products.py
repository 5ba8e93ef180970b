"""Pairwise products of a planned contraction, the layouts of their axes, and its slices.

A product over summed indices is one batched matrix product. Its factors are merged into
arrays (batch, free, summed) or (batch, summed, free); a factor whose axes come in neither
order has to be transposed into a copy first. Which factor goes left and in which order the
shared indices stand is free, and is chosen here so that little has to be copied.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping

from tensorjax.contract._einsum_parser import Network
from tensorjax.contract._paths import Path

Slices = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Step:
    """Pairwise product of a contraction, run as one `jax.lax.dot_general`.

    Attributes:
        left: number of the first factor: an operand, or (number of operands) + (earlier step).
        right: number of the second factor.
        left_labels: axes of the first factor.
        right_labels: axes of the second factor.
        batch: labels of both factors that the result keeps.
        summed: labels of both factors that the result does not keep.
    """

    left: int
    right: int
    left_labels: str
    right_labels: str
    batch: str
    summed: str

    def free(self, labels: str) -> str:
        """Returns the labels that only one factor of a pairwise product has."""
        return "".join(c for c in labels if c not in self.batch and c not in self.summed)

    @property
    def labels(self) -> str:
        """Labels of a product's result: batch, then free axes of the first and second factor."""
        return self.batch + self.free(self.left_labels) + self.free(self.right_labels)

    def summed_last(self, labels: str) -> bool:
        """Whether a factor's axes are ordered batch, free, summed, as matrix products need."""
        return labels == self.batch + self.free(labels) + self.summed

    def summed_first(self, labels: str) -> bool:
        """Whether a factor's axes are ordered batch, summed, free, as matrix products need."""
        return labels == self.batch + self.summed + self.free(labels)

    def copied(self, labels: str) -> bool:
        """Whether a factor must be transposed into a copy before the matrix product.

        Without summed labels the product is entry-wise and reads its factors in any order.
        """
        return bool(self.summed) and not (self.summed_last(labels) or self.summed_first(labels))

    def without(self, thin: Collection[str]) -> "Step":
        """Returns a pairwise product without some labels, whose axes have been sliced away."""
        if not thin:
            return self
        texts = (self.left_labels, self.right_labels, self.batch, self.summed)
        return Step(
            self.left,
            self.right,
            *("".join(label for label in text if label not in thin) for text in texts),
        )


def build_steps(network: Network, path: Path) -> tuple[Step, ...]:
    """Builds the pairwise products of a contraction path, laid out for the fewest copies."""
    kinds = _kinds(network, path)
    labels = list(network.reduced)
    consumer = {node: k for k, pair in enumerate(path) for node in pair}
    steps = []
    for k, (a, b) in enumerate(path):
        batch, summed = kinds[k]
        following = kinds[consumer[len(labels)]] if len(labels) in consumer else None
        step = min(
            _layouts(a, b, labels[a], labels[b], batch, summed, network.reduced_output),
            key=lambda trial: _traffic(network, trial, following),
        )
        steps.append(step)
        labels.append(step.labels)
    return tuple(steps)


def _kinds(network: Network, path: Path) -> list[tuple[frozenset[str], frozenset[str]]]:
    """Classifies the labels that the two factors of each pairwise step share: batch or summed."""
    terms = [frozenset(term) for term in network.reduced]
    uses = dict.fromkeys(network.sizes, 0)
    for label in itertools.chain(*terms, network.reduced_output):
        uses[label] += 1
    kinds = []
    for a, b in path:
        shared = terms[a] & terms[b]
        for label in shared:
            uses[label] -= 1
        summed = frozenset(label for label in shared if uses[label] == 1)
        kinds.append((shared - summed, summed))
        terms.append((terms[a] | terms[b]) - summed)
    return kinds


def _layouts(
    a: int,
    b: int,
    labels_a: str,
    labels_b: str,
    batch: frozenset[str],
    summed: frozenset[str],
    output: str,
) -> Iterator[Step]:
    """Yields all axis layouts of one pairwise product: which factor is left, and label order."""
    factors = ((a, labels_a), (b, labels_b))
    for (left, left_labels), (right, right_labels) in (factors, factors[::-1]):
        for order in (left_labels, right_labels):
            for batch_order in (order, output):
                if batch <= set(batch_order):
                    yield Step(
                        left,
                        right,
                        left_labels,
                        right_labels,
                        "".join(c for c in batch_order if c in batch),
                        "".join(c for c in order if c in summed),
                    )


def _traffic(
    network: Network, step: Step, following: tuple[frozenset[str], frozenset[str]] | None
) -> int:
    """Counts entries copied by a pairwise product and its successor for a given layout of axes."""
    moved = 0
    for labels in (step.left_labels, step.right_labels):
        if step.copied(labels):
            moved += 2 * network.elements(labels)
    if step.summed and step.summed_first(step.left_labels) and step.free(step.left_labels):
        # Matrix products of a transposed left factor are slower: about as one more reading.
        moved += network.elements(step.left_labels)
    if not _suits(step.labels, following, network.reduced_output):
        moved += 2 * network.elements(step.labels)
        if following is None and step.labels[-1:] != network.reduced_output[-1:]:
            # Rows are no longer copied whole: several times as slow.
            moved += 2 * network.elements(step.labels)
    return moved


def _suits(
    labels: str, following: tuple[frozenset[str], frozenset[str]] | None, output: str
) -> bool:
    """Whether the next pairwise product reads a result's axis order without a copy."""
    if following is None:
        return labels == output
    batch, summed = following
    head, rest = labels[: len(batch)], labels[len(batch) :]
    split = len(rest) - len(summed)
    edges = (set(rest[: len(summed)]), set(rest[split:]))
    return not summed or (set(head) == batch and summed in edges)


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """Contraction as a list of pairwise products: network, steps, sizes of dtypes.

    Attributes:
        network: the parsed expression.
        steps: its products in the order in which they run.
        operand_sizes: bytes per entry of each operand as given.
        common_size: bytes per entry of the type to which operands are converted.
        item_size: bytes per entry of intermediates and of the result.
        sum_size: bytes per entry of what sums over slices are held in.
        differentiable: whether a gradient reaches each operand.
    """

    network: Network
    steps: tuple[Step, ...]
    operand_sizes: tuple[int, ...]
    common_size: int
    item_size: int
    sum_size: int
    differentiable: tuple[bool, ...]

    def ready(self, operand: int) -> bool:
        """Whether pairwise products use an operand as it is, without sums, diagonals or casts."""
        same = self.network.squeezed(operand) == self.network.reduced[operand]
        return same and self.operand_sizes[operand] == self.common_size

    def operand_bytes(self, operand: int) -> int:
        return math.prod(self.network.shapes[operand]) * self.operand_sizes[operand]

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the operands and result of a contraction's pairwise products together."""
        operands = range(len(self.network.shapes))
        return sum(map(self.operand_bytes, operands)) + self.output_bytes

    @property
    def output_bytes(self) -> int:
        return self.network.elements(self.network.output) * self.item_size


def looped(model: Model, slices: Slices) -> frozenset[int]:
    """Returns which pairwise products, and operands of the network, depend on the slice index."""
    n = len(model.network.reduced)
    found = {i for i, term in enumerate(model.network.reduced) if set(term) & slices.keys()}
    for k, step in enumerate(model.steps):
        if step.left in found or step.right in found:
            found.add(n + k)
    return frozenset(found)


def levels(model: Model, slices: Slices) -> list[tuple[str, int]]:
    """Lists labels over which pairwise products are sliced, and counts, outermost loop first."""
    output = model.network.reduced_output
    outer = [(label, slices[label]) for label in output if label in slices]
    return outer + [(label, count) for label, count in slices.items() if label not in output]
