"""Rearrangement of the entries of each core of a tensor train, by NumPy or by JAX programs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._transfer import copied


def rearranged(
    name: str, cores: Sequence[Any], move: Callable[..., Any], *others: Sequence[Any]
) -> tuple[Any, ...]:
    """Rearranges the entries of each core of a tensor train by a function, in NumPy or in JAX.

    Args:
      name: of the operation, by which first calls are counted.
      move: function of a core, of NumPy or of JAX, and of one of each of ``others``.
      *others: sequences as long as ``cores``, of what is concrete.
    """
    facts = {
        "dtype": cores[0].dtype,
        "key": ("rearranged", name),
        "work": lambda: sum(c.size for c in cores),
    }
    hosted = choose_kernel("tt.transpose", cores, **facts) is NUMPY
    given = [np.asarray(c) for c in cores] if hosted else cores
    out = [move(*pair) for pair in zip(given, *others, strict=True)]
    return tuple(copied(out))
