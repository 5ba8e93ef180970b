"""Local operators of one or several sites: operator cores between the interfaces on either side."""

import math
from collections.abc import Sequence

import numpy as np

from tensorjax._cores.unfoldings import join

Array = np.ndarray


class LocalOperator:
    """Local operator of neighbouring sites of a train: TT-matrix cores between two interfaces.

    Attributes:
      parts: left interface (r, a, r), operator cores (a, m, n, b), right interface (s, b, s).
    """

    def __init__(self, left: Array, sites: Sequence[Array], right: Array):
        self.parts = left, sites, right
        self._left = left.reshape(-1, left.shape[-1])
        self._sites = [a.transpose(1, 3, 0, 2).reshape(-1, a.shape[0] * a.shape[2]) for a in sites]
        self._right = right.transpose(1, 2, 0).reshape(-1, right.shape[0])

    def __call__(self, x: Array) -> Array:
        """Applies the local operator to the tensor of its sites, (r, n, …, r')."""
        # Products of matrices alone: the axes meet in the order in which they lie in memory.
        t = self._left @ x.reshape(len(x), -1)
        rows = self.parts[0].shape[0]
        for a, core in zip(self._sites, self.parts[1], strict=True):
            t = a @ t.reshape(rows, a.shape[1], -1)
            rows *= core.shape[1]
        return (t.reshape(rows, -1) @ self._right).reshape(x.shape)

    def dense(self) -> Array:
        """Returns the dense matrix of the local operator."""
        left, sites, right = self.parts
        t = left.swapaxes(1, 2)
        for a in [*sites, right.swapaxes(0, 1)]:
            t = join(t, a)
        # Rows and columns alternate: first all rows, then all columns.
        t = t.transpose(*range(0, t.ndim, 2), *range(1, t.ndim, 2))
        size = math.prod(t.shape[: t.ndim // 2])
        return t.reshape(size, size)
