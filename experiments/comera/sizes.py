"""Parameter counts of models that are not built, and search for a wanted size."""

import math
from collections.abc import Callable

import jax
from flax import nnx

from tensorjax import optim


class TooLarge(ValueError):
    """Raised if no model is as small as asked for."""


def count(build: Callable[[nnx.Rngs], nnx.Module], label: str | None = None) -> int:
    """Counts the parameters of the model that ``build`` makes, without allocating arrays.

    With a label of `optim.labels`, only of parameters that have it.

    >>> count(lambda rngs: nnx.Linear(1_000_000, 1_000_000, rngs=rngs))
    1000001000000
    """
    model = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    params = nnx.state(model, nnx.Param)
    leaves, labels = jax.tree.leaves(params), jax.tree.leaves(optim.labels(params))
    pairs = zip(leaves, labels, strict=True)
    return sum(math.prod(x.shape) for x, found in pairs if label in (None, found))


def largest(numbers: Callable[[int], int], target: int, high: int) -> int:
    """Finds the largest k in [1, high] with numbers(k) ≤ target, by bisection.

    ``numbers`` must not decrease.

    Raises:
        TooLarge: Not even k = 1 is small enough.

    >>> largest(lambda k: k * k, 50, 100)
    7
    """
    if numbers(1) > target:
        raise TooLarge(
            f"target: expected at least {numbers(1)} parameters, those of the smallest model, "
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
