"""Cost of a planned contraction: floating-point operations, bytes moved, peak bytes.

Operations are counted in XLA's unit, one per multiplication or addition of the element type:
a product that sums over an index costs 2 per triple of (output entry, summed entry), one that
does not costs 1 per entry, a sum of n numbers n − 1. Every step reads its operands from memory
and writes its result, and so does the copy of a factor that has to be transposed first. The
peak is the largest sum of buffers alive at one time, the operands (and, with gradients, the
cotangent and the gradients) included. What a backend adds or saves within a step, by
converting or fusing, is its own affair.

The program is walked in the order in which it runs, forward or forward and backward, and each
buffer is entered in a ledger when it appears and struck off after its last use.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tensorjax.contract._pairwise_products import Model, Slices, Step, levels, looped


class Cost(NamedTuple):
    """Cost of a contraction: operations, bytes moved, peak bytes.

    Attributes:
      flops: multiplications and additions of the element type (one complex multiply-add is 2).
      bytes: bytes read and written by all steps.
      peak_bytes: largest number of bytes alive at one time, operands and results included.

    Example:
      >>> from tensorjax import contract
      >>> contract.plan("ij,jk->ik", (2, 3), (3, 4)).grad.flops
      144

    Source: ours.
    """

    flops: int
    bytes: int
    peak_bytes: int


class _Ledger:
    """Running totals of operations, bytes moved and live bytes in a contraction's cost model."""

    def __init__(self) -> None:
        self.products = 0  # multiplications
        self.sums = 0  # additions
        self.moved = 0
        self.alive = 0
        self.levels: list[int] = []
        self.residual = 0  # alive between forward and backward, beside operands and result
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
    """Simulation of a contraction's forward and backward pass, to count its costs.

    Args:
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
        self.levels = levels(model, slices)
        self.rounds = math.prod(slices.values())

    # Sizes.

    def elements(self, labels: Iterable[str], cuts: Slices) -> int:
        sizes = self.model.network.sizes
        return math.prod(sizes[label] // cuts.get(label, 1) for label in labels)

    def size(self, node: int, cuts: Slices) -> int:
        item = self.model.common_size if node < self.n else self.model.item_size
        return self.elements(self.labels[node], cuts) * item

    def entries(self) -> list[int]:
        """Lists arrays that a loop over slices reads but does not compute, for the costs."""
        found = []
        for node in sorted(self.inside - set(range(self.n))):
            step = self.steps[node]
            found += [c for c in (step.left, step.right) if c < self.n or c not in self.inside]
        return found

    # Forward.

    def forward(self, keep: bool = False) -> None:
        """Counts a contraction's forward costs; with ``keep`` arrays stay for the backward pass."""
        for operand in range(self.n):
            self.ledger.hold(self.model.operand_bytes(operand))
        outside = [node for node in self.steps if node not in self.inside]
        self._run(outside, {}, keep=keep and not (self.remat and not self.inside))
        if self.inside:
            self._loop(keep)
        elif self.steps:
            self._finish()
        else:
            self._single()

    def _run(self, nodes: list[int], cuts: Slices, *, keep: bool) -> None:
        for node in nodes:
            step = self.steps[node]
            for child in (step.left, step.right):
                self._fetch(child, cuts)
            copies = self._copy(step, (step.left, step.right), cuts)
            self.ledger.hold(self.size(node, cuts))
            self._multiply(step.left, step.right, node, cuts)
            self.ledger.drop(copies)
            for child, sibling in ((step.left, step.right), (step.right, step.left)):
                if not (keep and self.needs_grad[sibling]):
                    self._release(child, cuts)

    def _fetch(self, child: int, cuts: Slices) -> None:
        """Counts the cost of preparing a contraction's operand: slices, sums, diagonals, casts."""
        if cuts:
            if self._is_entry(child) and child in self.inside:
                self.ledger.hold(self.size(child, self.slices))
                self.ledger.work(2 * self.size(child, self.slices))
        elif child < self.n and not self.model.ready(child):
            size = self.size(child, {})
            self.ledger.hold(size)
            self._prepare(child)

    def _prepare(self, operand: int) -> None:
        network = self.model.network
        distinct = self.elements(set(network.squeezed(operand)), {})
        sums = distinct - self.elements(network.reduced[operand], {})
        self.ledger.work(self.model.operand_bytes(operand) + self.size(operand, {}), 0, sums)

    def _release(self, child: int, cuts: Slices) -> None:
        if cuts:
            if child in self.inside:
                self.ledger.drop(self.size(child, self.slices))
        elif child >= self.n or not self.model.ready(child):
            self.ledger.drop(self.size(child, {}))

    def _is_entry(self, child: int) -> bool:
        return child < self.n or child not in self.inside

    def _multiply(self, left: int, right: int, result: int, cuts: Slices) -> None:
        union = set(self.labels[left]) | set(self.labels[right])
        touched = self.elements(union, cuts)
        adds = self.elements(union - set(self.labels[result]), cuts) > 1
        moved = self.size(left, cuts) + self.size(right, cuts) + self.size(result, cuts)
        self.ledger.work(moved, touched, touched if adds else 0)

    def _copy(self, step: Step, factors: tuple[int, int], cuts: Slices) -> int:
        """Counts the cost of transposing a product's factors into copies; returns their bytes."""
        thin = {label for label in cuts if self.elements(label, cuts) == 1}
        bare = step.without(thin)
        found = {step.left: bare.left_labels, step.right: bare.right_labels}
        sizes = [self.size(c, cuts) for c in factors if bare.copied(found[c])]
        for size in sizes:
            self.ledger.hold(size)
            self.ledger.work(2 * size)
        return sum(sizes)

    def _finish(self) -> None:
        """Counts the cost of transposing a contraction's result, if its axes need another order."""
        if self.labels[self.root] != self.model.network.reduced_output:
            self.ledger.hold(self.model.output_bytes)
            self.ledger.work(2 * self.model.output_bytes)
            self.ledger.drop(self.size(self.root, {}))

    def _single(self) -> None:
        self.ledger.hold(self.model.output_bytes)
        self._prepare(0)

    def _loop(self, keep: bool) -> None:
        ledger, entries = self.ledger, self.entries()
        for child in entries:
            if child < self.n:
                self._fetch(child, {})
        buffers = self._result_buffers()
        ledger.hold(sum(buffers))
        ledger.repeat = self.rounds
        self._run([node for node in self.steps if node in self.inside], self.slices, keep=False)
        size = self.size(self.root, self.slices)
        adds = any(label not in self.model.network.output for label in self.slices)
        adding = self.elements(self.labels[self.root], self.slices) if adds else 0
        ledger.work((2 + adds) * size, 0, adding)
        ledger.drop(size)
        ledger.repeat = 1
        ledger.drop(sum(buffers[1:]))
        if buffers[0] != self.model.output_bytes:
            ledger.hold(self.model.output_bytes)
            ledger.drop(buffers[0])
        if not keep:
            for child in entries:
                self._release(child, {})

    def _result_buffers(self) -> list[int]:
        """Returns, for costs, the bytes of a sliced result, and of its part in each loop."""
        buffers, cuts, output = [], {}, self.model.network.output
        for label, count in self.levels:
            item = self.model.item_size if label in output else self.model.sum_size
            # Loops over summed labels share one running sum.
            if label in output or not cuts.keys() - set(output):
                buffers.append(self.elements(output, cuts) * item)
            cuts[label] = count
        return buffers

    # Backward.

    def backward(self) -> None:
        """Counts a contraction's backward costs, after ``forward(keep=True)``."""
        self.ledger.hold(self.model.output_bytes)  # the cotangent that comes in
        outside = [node for node in self.steps if node not in self.inside]
        if self.inside:
            self._loop_back()
        elif not self.steps:
            self._return_gradient(0)
        else:
            if self.remat:
                self._recompute(outside, {})
            if self.labels[self.root] != self.model.network.reduced_output:
                self.ledger.work(2 * self.model.output_bytes)
                self.ledger.hold(self.size(self.root, {}))
        self._run_back(outside, {})

    def _recompute(self, nodes: list[int], cuts: Slices) -> None:
        """Counts the cost of all of a contraction's products but the last, made again backwards."""
        self._run(nodes[:-1], cuts, keep=True)
        step = self.steps[nodes[-1]]
        for child, sibling in ((step.left, step.right), (step.right, step.left)):
            self._fetch(child, cuts)
            if not self.needs_grad[sibling]:
                self._release(child, cuts)

    def _run_back(self, nodes: list[int], cuts: Slices) -> None:
        for node in reversed(nodes):
            step = self.steps[node]
            for child, sibling in ((step.left, step.right), (step.right, step.left)):
                if self.needs_grad[child]:
                    copies = self._copy(step, (child, sibling), cuts)
                    self.ledger.hold(self.size(child, cuts))
                    self._multiply(node, sibling, child, cuts)
                    self.ledger.drop(copies)
            for child, sibling in ((step.left, step.right), (step.right, step.left)):
                if self.needs_grad[sibling]:
                    self._release(child, cuts)  # the value
                if cuts and self.needs_grad[child] and self._is_entry(child):
                    self._accumulate(child)
                elif child < self.n and self.needs_grad[child] and not self.model.ready(child):
                    self._return_gradient(child)
            if not self._is_cotangent(node):
                self.ledger.drop(self.size(node, cuts))

    def _is_cotangent(self, node: int) -> bool:
        """Whether costs count a product's cotangent as the caller's, which is never freed."""
        same = self.labels[self.root] == self.model.network.reduced_output
        return node == self.root and same and not self.inside

    def _accumulate(self, child: int) -> None:
        """Counts the cost of adding one slice's gradient to the whole gradient of a contraction."""
        size = self.size(child, self.slices)
        self.ledger.work(3 * size, 0, self.elements(self.labels[child], self.slices))
        self.ledger.drop(size)

    def _return_gradient(self, operand: int) -> None:
        """Counts the cost of expanding the gradient of a reduced operand to the operand's shape."""
        size = self.size(operand, {})
        self.ledger.hold(self.model.operand_bytes(operand))
        self.ledger.work(size + self.model.operand_bytes(operand))
        if self.steps:
            self.ledger.drop(size)

    def _loop_back(self) -> None:
        ledger = self.ledger
        nodes = [node for node in self.steps if node in self.inside]
        entries = self.entries()
        kept = self._gradient_buffers(entries)
        passing = self._cotangent_copies()
        ledger.hold(sum(kept) + passing)
        ledger.repeat = self.rounds
        ledger.hold(self.size(self.root, self.slices))
        ledger.work(2 * self.size(self.root, self.slices))
        self._recompute(nodes, self.slices)
        self._run_back(nodes, self.slices)
        ledger.repeat = 1
        ledger.drop(sum(kept[1:]) + passing)
        for child in entries:
            self._release(child, {})
            if child < self.n and self.needs_grad[child] and not self.model.ready(child):
                self._return_gradient(child)

    def _gradient_buffers(self, entries: list[int]) -> list[int]:
        """Returns, for costs, bytes of a sliced contraction's gradients, and of parts in loops."""
        buffers, cuts = [], {}
        for label, count in self.levels:
            buffers.append(sum(self.size(c, cuts) for c in entries if self.needs_grad[c]))
            cuts[label] = count
        return buffers

    def _cotangent_copies(self) -> int:
        """Returns, for costs, bytes of cotangents copied as their slices are not contiguous."""
        total, cuts, output = 0, {}, self.model.network.reduced_output
        for label, count in self.levels:
            if label in output and self.elements(output[: output.index(label)], cuts) != 1:
                total += self.elements(output, cuts) * self.model.item_size
            cuts[label] = count
        return total


def forward_walk(model: Model, slices: Slices) -> _Ledger:
    """Simulates a contraction's forward pass for its costs: operations, bytes and peak."""
    walk = Walk(model, slices, remat=False)
    walk.forward()
    return walk.ledger


def gradient_walk(model: Model, slices: Slices, remat: bool) -> _Ledger:
    """Simulates forward and backward pass of a contraction for costs: operations, bytes, peak."""
    walk = Walk(model, slices, remat)
    walk.forward(keep=True)
    walk.ledger.residual = walk.ledger.alive - model.fixed_bytes
    walk.backward()
    return walk.ledger


def breakdown(model: Model, slices: Slices) -> Iterator[tuple[str, str, str, int, int]]:
    """Yields a row of a contraction's cost table per product: expression, operations, bytes."""
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
        walk._multiply(step.left, step.right, node, slices if node in walk.inside else {})
        text = f"{step.left_labels},{step.right_labels}->{step.labels}"
        yield f"{node}", f"{step.left}, {step.right}", text, *spent()


def table(plan: Any) -> str:
    """Formats a contraction's costs, operations and bytes by product, as a table with sums."""
    rows = [("step", "reads", "product", "flops", "bytes")]
    for node, reads, text, flops, moved in breakdown(plan._program.model, plan.slices):
        rows.append((node, reads, text, f"{flops:.3g}", f"{moved:.3g}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    cuts = ", ".join(f"{label} in {count}" for label, count in plan.slices.items()) or "none"
    lines += [
        f"forward             {_describe_cost(plan.flops, plan.bytes, plan.peak_bytes)}",
        f"forward + backward  {_describe_cost(*plan.grad)}",
        f"slices: {cuts}; {'rematerialised' if plan.remat else 'not rematerialised'}",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _describe_cost(flops: int, moved: int, peak: int) -> str:
    return f"{flops:.3g} flops, {moved:.3g} bytes moved, {peak:.3g} bytes at the peak"
