"""Models of a wanted number of parameters: counted without being built."""

import math
from collections.abc import Callable

import jax
from flax import nnx


def count(build: Callable[[nnx.Rngs], nnx.Module]) -> int:
    """Number of parameters of the model that ``build`` makes; no array is made.

    >>> count(lambda rngs: nnx.Linear(1_000_000, 1_000_000, rngs=rngs))
    1000001000000
    """
    model = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    shapes = (x.shape for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
    return sum(math.prod(shape) for shape in shapes)


def largest(numbers: Callable[[int], int], target: int, high: int) -> int:
    """The largest k in [1, high] with numbers(k) ≤ target, where ``numbers`` does not decrease.

    Raises:
        ValueError: Not even k = 1 is small enough.

    >>> largest(lambda k: k * k, 50, 100)
    7
    """
    if numbers(1) > target:
        raise ValueError(
            f"target: expected at least {numbers(1)} numbers, those of the smallest model, "
            f"got {target}; ask for less compression"
        )
    low = 1
    while low < high:
        middle = (low + high + 1) // 2
        if numbers(middle) <= target:
            low = middle
        else:
            high = middle - 1
    return low
