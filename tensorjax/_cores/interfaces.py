"""Interfaces (environments) of ⟨y|A|x⟩ and ⟨y|x⟩, and local operators; NumPy or JAX.

A left interface sums up everything left of a bond, a right interface everything right of it: arrays
(r_y, r_A, r_x), or (r_y, r_x) without an operator. y is conjugated. With orthogonal cores outside
the sites in hand, the local operators are A restricted to the tensors that those sites can reach.
"""

from typing import Any

from tensorjax import linalg
from tensorjax._cores.contraction import einsum

Array = Any


def edge(like: Array, *, operator: bool = True) -> Array:
    """Returns the interface (environment) at an end of a train: an array whose one entry is 1."""
    return linalg.identity_like(1, like).reshape((1, 1, 1) if operator else (1, 1))


def left(interface: Array, y: Array, a: Array, x: Array) -> Array:
    """Extends a left interface of ⟨y|A|x⟩ by one site: returns that of the next bond."""
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
