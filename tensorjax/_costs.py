"""Cost of a planned contraction: floating-point operations, bytes moved, peak bytes.

Operations are counted in XLA's unit, one per multiplication or addition of the element type:
a product that sums over an index costs 2 per triple of (output entry, summed entry), one that
does not costs 1 per entry, a sum of n numbers n − 1. Every step reads its operands from memory
and writes its result. The peak is the largest sum of buffers alive at one time, the operands
(and, with gradients, the cotangent and the gradients) included; buffers that a backend adds
to transpose or convert within a step are its own affair.

The program is walked in the order in which it runs, forward or forward and backward, and each
buffer is entered in a ledger when it appears and struck off after its last use.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tensorjax._einsum import Network
from tensorjax._steps import Step

Slices = Mapping[str, int]


class Cost(NamedTuple):
    """Cost of a program.

    Attributes:
        flops: multiplications and additions of the element type (one complex multiply-add is 2).
        bytes: bytes read and written by all steps.
        peak_bytes: largest number of bytes alive at one time, operands and results included.
    """

    flops: int
    bytes: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """All that the cost of a contraction depends on, except slicing and rematerialisation.

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
        """Whether an operand enters its product as it is (up to a reshape)."""
        same = self.network.squeezed(operand) == self.network.reduced[operand]
        return same and self.operand_sizes[operand] == self.common_size

    def operand_bytes(self, operand: int) -> int:
        return math.prod(self.network.shapes[operand]) * self.operand_sizes[operand]

    @property
    def output_bytes(self) -> int:
        return self.network.elements(self.network.output) * self.item_size


def looped(model: Model, slices: Slices) -> frozenset[int]:
    """Numbers of the operands and steps that depend on a sliced label."""
    n = len(model.network.reduced)
    found = {i for i, term in enumerate(model.network.reduced) if set(term) & slices.keys()}
    for k, step in enumerate(model.steps):
        if step.left in found or step.right in found:
            found.add(n + k)
    return frozenset(found)


class _Ledger:
    """Running totals of a walk through a program."""

    def __init__(self) -> None:
        self.products = 0  # multiplications
        self.sums = 0  # additions
        self.moved = 0
        self.alive = 0
        self.levels: list[int] = []
        self.repeat = 1

    def hold(self, size: int) -> None:
        self.alive += size
        self.levels.append(self.alive)

    def drop(self, size: int) -> None:
        self.alive -= size

    def work(self, moved: int, products: int = 0, sums: int = 0) -> None:
        self.moved += moved * self.repeat
        self.products += products * self.repeat
        self.sums += sums * self.repeat

    def cost(self) -> Cost:
        return Cost(self.products + self.sums, self.moved, max(self.levels, default=0))


class Walk:
    """A walk through the forward program, then, on request, through the backward one.

    Args:
        model: the contraction.
        slices: number of slices of each sliced label.
        remat: whether intermediates are dropped after the forward pass and recomputed.
    """

    def __init__(self, model: Model, slices: Slices, remat: bool) -> None:
        self.model = model
        self.slices = slices
        self.remat = remat or bool(slices)
        self.ledger = _Ledger()
        self.n = len(model.network.reduced)
        self.inside = looped(model, slices)
        self.steps = dict(enumerate(model.steps, start=self.n))
        self.root = self.n + len(model.steps) - 1
        self.needs_grad = dict(enumerate(model.differentiable))
        for node, step in self.steps.items():
            self.needs_grad[node] = self.needs_grad[step.left] or self.needs_grad[step.right]
        self.labels = dict(enumerate(model.network.reduced))
        self.labels.update((node, step.labels) for node, step in self.steps.items())
        self.rounds = math.prod(slices.values())
        self.sum_rounds = math.prod(
            count for label, count in slices.items() if label not in model.network.output
        )

    # Sizes.

    def elements(self, labels: Iterable[str], sliced: bool) -> int:
        sizes = self.model.network.sizes
        if not sliced:
            return math.prod(sizes[label] for label in labels)
        return math.prod(sizes[label] // self.slices.get(label, 1) for label in labels)

    def size(self, node: int, sliced: bool) -> int:
        item = self.model.common_size if node < self.n else self.model.item_size
        return self.elements(self.labels[node], sliced) * item

    def entries(self) -> list[int]:
        """Values made before the loop over slices that the loop reads."""
        found = []
        for node in sorted(self.inside - set(range(self.n))):
            step = self.steps[node]
            found += [c for c in (step.left, step.right) if c < self.n or c not in self.inside]
        return found

    # Forward.

    def forward(self, keep: bool = False) -> None:
        """Walks through the forward program; ``keep`` holds what a backward pass reads."""
        for operand in range(self.n):
            self.ledger.hold(self.model.operand_bytes(operand))
        outside = [node for node in self.steps if node not in self.inside]
        self._run(outside, keep=keep and not (self.remat and not self.inside), sliced=False)
        if self.inside:
            self._loop(keep)
        elif self.steps:
            self._finish()
        else:
            self._single()

    def _run(self, nodes: list[int], *, keep: bool, sliced: bool) -> None:
        for node in nodes:
            step = self.steps[node]
            for child in (step.left, step.right):
                self._fetch(child, sliced)
            copies = self._copy(step, (step.left, step.right), sliced)
            self.ledger.hold(self.size(node, sliced))
            self._multiply(step.left, step.right, node, sliced)
            self.ledger.drop(copies)
            for child, sibling in ((step.left, step.right), (step.right, step.left)):
                if not (keep and self.needs_grad[sibling]):
                    self._release(child, sliced)

    def _fetch(self, child: int, sliced: bool) -> None:
        """Brings an operand into the form in which it is multiplied."""
        if sliced:
            if self._is_entry(child) and child in self.inside:
                self.ledger.hold(self.size(child, True))
                self.ledger.work(2 * self.size(child, True))
        elif child < self.n and not self.model.ready(child):
            size = self.size(child, False)
            self.ledger.hold(size)
            self._prepare(child)

    def _prepare(self, operand: int) -> None:
        network = self.model.network
        distinct = self.elements(set(network.squeezed(operand)), False)
        sums = distinct - self.elements(network.reduced[operand], False)
        self.ledger.work(self.model.operand_bytes(operand) + self.size(operand, False), 0, sums)

    def _release(self, child: int, sliced: bool) -> None:
        if sliced:
            if child in self.inside:
                self.ledger.drop(self.size(child, True))
        elif child >= self.n or not self.model.ready(child):
            self.ledger.drop(self.size(child, False))

    def _is_entry(self, child: int) -> bool:
        return child < self.n or child not in self.inside

    def _multiply(self, left: int, right: int, result: int, sliced: bool) -> None:
        union = set(self.labels[left]) | set(self.labels[right])
        touched = self.elements(union, sliced)
        adds = self.elements(union - set(self.labels[result]), sliced) > 1
        moved = self.size(left, sliced) + self.size(right, sliced) + self.size(result, sliced)
        self.ledger.work(moved, touched, touched if adds else 0)

    def _copy(self, step: Step, factors: tuple[int, int], sliced: bool) -> int:
        """Holds the transposed copies of a step's factors; returns their size."""
        sizes = [self.size(c, sliced) for c in factors if step.copied(self.labels[c])]
        for size in sizes:
            self.ledger.hold(size)
            self.ledger.work(2 * size)
        return sum(sizes)

    def _finish(self) -> None:
        """The final transposition, if there is one."""
        if self.labels[self.root] != self.model.network.reduced_output:
            self.ledger.hold(self.model.output_bytes)
            self.ledger.work(2 * self.model.output_bytes)
            self.ledger.drop(self.size(self.root, False))

    def _single(self) -> None:
        self.ledger.hold(self.model.output_bytes)
        self._prepare(0)

    def _loop(self, keep: bool) -> None:
        ledger, entries = self.ledger, self.entries()
        for child in entries:
            if child < self.n:
                self._fetch(child, False)
        ledger.hold(self._total_bytes())
        if self._has_partial():
            ledger.hold(self._partial_bytes())
        ledger.repeat = self.rounds
        self._run([node for node in self.steps if node in self.inside], keep=False, sliced=True)
        part = self.elements(self.labels[self.root], True)
        adds = part if self.sum_rounds > 1 else 0
        ledger.work((2 + bool(adds)) * self.size(self.root, True), 0, adds)
        ledger.drop(self.size(self.root, True))
        ledger.repeat = 1
        if self._has_partial():
            ledger.drop(self._partial_bytes())
        if self._total_bytes() != self.model.output_bytes:
            ledger.hold(self.model.output_bytes)
            ledger.drop(self._total_bytes())
        if not keep:
            for child in entries:
                self._release(child, False)

    def _has_partial(self) -> bool:
        """Whether sums over slices build up beside the output, one part of it at a time."""
        return 1 < self.sum_rounds < self.rounds

    def _partial_bytes(self) -> int:
        return self.elements(self.labels[self.root], True) * self.model.sum_size

    def _total_bytes(self) -> int:
        """Bytes of the output while the loop runs."""
        item = self.model.sum_size if self.sum_rounds == self.rounds else self.model.item_size
        return self.elements(self.model.network.output, False) * item

    # Backward.

    def backward(self) -> None:
        """Continues a walk through ``forward(keep=True)`` with the backward program."""
        self.ledger.hold(self.model.output_bytes)  # the cotangent that comes in
        outside = [node for node in self.steps if node not in self.inside]
        if self.inside:
            self._loop_back()
        elif not self.steps:
            self._return_gradient(0)
        else:
            if self.remat:
                self._recompute(outside, sliced=False)
            if self.labels[self.root] != self.model.network.reduced_output:
                self.ledger.work(2 * self.model.output_bytes)
                self.ledger.hold(self.size(self.root, False))
        self._run_back(outside, sliced=False)

    def _recompute(self, nodes: list[int], sliced: bool) -> None:
        """Runs a part of the forward program again, except its last product."""
        self._run(nodes[:-1], keep=True, sliced=sliced)
        step = self.steps[nodes[-1]]
        for child, sibling in ((step.left, step.right), (step.right, step.left)):
            self._fetch(child, sliced)
            if not self.needs_grad[sibling]:
                self._release(child, sliced)

    def _run_back(self, nodes: list[int], *, sliced: bool) -> None:
        for node in reversed(nodes):
            step = self.steps[node]
            for child, sibling in ((step.left, step.right), (step.right, step.left)):
                if self.needs_grad[child]:
                    copies = self._copy(step, (child, sibling), sliced)
                    self.ledger.hold(self.size(child, sliced))
                    self._multiply(node, sibling, child, sliced)
                    self.ledger.drop(copies)
            for child, sibling in ((step.left, step.right), (step.right, step.left)):
                if self.needs_grad[sibling]:
                    self._release(child, sliced)  # the value
                if sliced and self.needs_grad[child] and self._is_entry(child):
                    self._accumulate(child)
                elif child < self.n and self.needs_grad[child] and not self.model.ready(child):
                    self._return_gradient(child)
            if not self._is_cotangent(node):
                self.ledger.drop(self.size(node, sliced))

    def _is_cotangent(self, node: int) -> bool:
        """Whether the cotangent of a step is the one that came in, which is not ours to drop."""
        same = self.labels[self.root] == self.model.network.reduced_output
        return node == self.root and same and not self.inside

    def _accumulate(self, child: int) -> None:
        """Adds the gradient of a slice to that of the whole."""
        size = self.size(child, True)
        self.ledger.work(3 * size, 0, self.elements(self.labels[child], True))
        self.ledger.drop(size)

    def _return_gradient(self, operand: int) -> None:
        """Spreads the gradient of a reduced operand over the operand itself."""
        size = self.size(operand, False)
        self.ledger.hold(self.model.operand_bytes(operand))
        self.ledger.work(size + self.model.operand_bytes(operand))
        if self.steps:
            self.ledger.drop(size)

    def _loop_back(self) -> None:
        ledger = self.ledger
        nodes = [node for node in self.steps if node in self.inside]
        entries = self.entries()
        for child in entries:
            if self.needs_grad[child]:
                ledger.hold(self.size(child, False))
        ledger.repeat = self.rounds
        ledger.hold(self.size(self.root, True))
        ledger.work(2 * self.size(self.root, True))
        self._recompute(nodes, sliced=True)
        self._run_back(nodes, sliced=True)
        ledger.repeat = 1
        for child in entries:
            self._release(child, False)
            if child < self.n and self.needs_grad[child] and not self.model.ready(child):
                self._return_gradient(child)


def forward_walk(model: Model, slices: Slices) -> _Ledger:
    """Ledger of the forward program."""
    walk = Walk(model, slices, remat=False)
    walk.forward()
    return walk.ledger


def gradient_walk(model: Model, slices: Slices, remat: bool) -> _Ledger:
    """Ledger of the forward program followed by the backward one."""
    walk = Walk(model, slices, remat)
    walk.forward(keep=True)
    walk.backward()
    return walk.ledger


def breakdown(model: Model, slices: Slices) -> Iterator[tuple[str, str, str, int, int]]:
    """Number, factors, expression, operations and bytes of every step that does something."""
    walk = Walk(model, slices, remat=False)
    network = model.network

    def spent() -> tuple[int, int]:
        ledger, walk.ledger = walk.ledger, _Ledger()
        return ledger.products + ledger.sums, ledger.moved

    for i, term in enumerate(network.terms):
        if not model.ready(i) or not model.steps:
            walk._prepare(i)
            yield f"{i}", f"operand {i}", f"{term}->{network.reduced[i]}", *spent()
    for node, step in walk.steps.items():
        walk.ledger.repeat = walk.rounds if node in walk.inside else 1
        walk._multiply(step.left, step.right, node, node in walk.inside)
        text = f"{step.left_labels},{step.right_labels}->{step.labels}"
        yield f"{node}", f"{step.left}, {step.right}", text, *spent()
