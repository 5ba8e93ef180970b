"""Interfaces (environments) of ⟨y|A|x⟩ and ⟨y|x⟩, and local operators; NumPy or JAX.

A left interface sums up everything left of a bond, a right interface everything right of it: arrays
(r_y, r_A, r_x), or (r_y, r_x) without an operator. y is conjugated. With orthogonal cores outside
the sites in hand, the local operators are A restricted to the tensors that those sites can reach.
"""

import math
from collections.abc import Sequence
from typing import Any

from tensorjax import linalg
from tensorjax._cores.contractions import einsum, join

Array = Any


def edge(like: Array, *, operator: bool = True) -> Array:
    """Returns the interface (environment) at an end of a tensor train: one entry, equal to 1."""
    return linalg.identity_like(1, like).reshape((1, 1, 1) if operator else (1, 1))


def left(interface: Array, y: Array, a: Array, x: Array) -> Array:
    """Extends a left interface (environment) of ⟨y|A|x⟩ by one site, to the next bond."""
    return einsum("yax,yms,amnb,xnt->sbt", interface, y.conj(), a, x)


def right(interface: Array, y: Array, a: Array, x: Array) -> Array:
    """Extends a right interface of ⟨y|A|x⟩ by one site: returns that of the previous bond."""
    return einsum("sbt,yms,amnb,xnt->yax", interface, y.conj(), a, x)


def left_overlap(interface: Array, y: Array, x: Array) -> Array:
    """Extends a left interface of ⟨y|x⟩ by one site: returns that of the next bond."""
    return einsum("yx,yns,xnt->st", interface, y.conj(), x)


def right_overlap(interface: Array, y: Array, x: Array) -> Array:
    """Extends a right interface of ⟨y|x⟩ by one site: returns that of the previous bond."""
    return einsum("st,yns,xnt->yx", interface, y.conj(), x)


def apply_one(lefts: Array, a: Array, rights: Array, x: Array) -> Array:
    """Applies the local operator of one site, a core between two interfaces, to a core."""
    return einsum("yax,amnb,sbt,xnt->yms", lefts, a, rights, x)


class LocalOperator:
    """Operator on neighbouring sites between interfaces: left one, TT-matrix cores, right one.

    Attributes:
      parts: left interface (r, a, r), operator cores (a, m, n, b), right interface (s, b, s).
    """

    def __init__(self, left: Array, sites: Sequence[Array], right: Array):
        self.parts = left, sites, right
        self._left = left.reshape(-1, left.shape[-1])
        self._sites = [a.transpose(1, 3, 0, 2).reshape(-1, a.shape[0] * a.shape[2]) for a in sites]
        self._right = right.transpose(1, 2, 0).reshape(-1, right.shape[0])

    def __call__(self, x: Array) -> Array:
        """Applies the local operator to a tensor (r, n, …, r') of its sites."""
        # Products of matrices alone: the axes meet in the order in which they lie in memory.
        t = self._left @ x.reshape(len(x), -1)
        rows = self.parts[0].shape[0]
        for a, core in zip(self._sites, self.parts[1], strict=True):
            t = a @ t.reshape(rows, a.shape[1], -1)
            rows *= core.shape[1]
        return (t.reshape(rows, -1) @ self._right).reshape(x.shape)

    def dense(self) -> Array:
        """Returns the dense matrix of a local operator between two interfaces of trains."""
        left, sites, right = self.parts
        t = left.swapaxes(1, 2)
        for a in [*sites, right.swapaxes(0, 1)]:
            t = join(t, a)
        # Rows and columns alternate: first all rows, then all columns.
        t = t.transpose(*range(0, t.ndim, 2), *range(1, t.ndim, 2))
        size = math.prod(t.shape[: t.ndim // 2])
        return t.reshape(size, size)
