"""Input of the cost model and the executor: a planned contraction's network, steps and slices."""

import dataclasses
import math
from collections.abc import Mapping

from tensorjax.contract._einsum_parser import Network
from tensorjax.contract._pairwise_products import Step

Slices = Mapping[str, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """Contraction as its cost model and executor see it: network, pairwise steps, dtype sizes.

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
        """Whether a contraction uses an operand as it is, without sums, diagonals or casts."""
        same = self.network.squeezed(operand) == self.network.reduced[operand]
        return same and self.operand_sizes[operand] == self.common_size

    def operand_bytes(self, operand: int) -> int:
        return math.prod(self.network.shapes[operand]) * self.operand_sizes[operand]

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a planned contraction's operands and result together."""
        operands = range(len(self.network.shapes))
        return sum(map(self.operand_bytes, operands)) + self.output_bytes

    @property
    def output_bytes(self) -> int:
        return self.network.elements(self.network.output) * self.item_size


def looped(model: Model, slices: Slices) -> frozenset[int]:
    """Returns which operands and products of a sliced contraction depend on the slice index."""
    n = len(model.network.reduced)
    found = {i for i, term in enumerate(model.network.reduced) if set(term) & slices.keys()}
    for k, step in enumerate(model.steps):
        if step.left in found or step.right in found:
            found.add(n + k)
    return frozenset(found)


def levels(model: Model, slices: Slices) -> list[tuple[str, int]]:
    """Lists the sliced labels of a contraction with their slice counts, outermost loop first."""
    output = model.network.reduced_output
    outer = [(label, slices[label]) for label in output if label in slices]
    return outer + [(label, count) for label, count in slices.items() if label not in output]
