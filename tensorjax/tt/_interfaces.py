"""Interfaces (environments) of ⟨y|A|x⟩ and ⟨y|x⟩, and local operators; NumPy or JAX.

A left interface sums up everything left of a bond, a right interface everything right of it: arrays
(r_y, r_A, r_x), or (r_y, r_x) without an operator. y is conjugated. With orthogonal cores outside
the sites in hand, the local operators are A restricted to the tensors that those sites can reach.
"""

from typing import Any

from jax import lax

from tensorjax import linalg
from tensorjax.linalg._arrays import namespace

Array = Any
_HIGHEST = lax.Precision.HIGHEST


def dot(a: Array, b: Array, axes: Any) -> Array:
    if linalg.is_host(a):
        return namespace(a).tensordot(a, b, axes)
    return namespace(a).tensordot(a, b, axes, precision=_HIGHEST)


def edge(like: Array, *, operator: bool = True) -> Array:
    """Returns the interface at either end of the trains: a one."""
    return linalg.identity_like(1, like).reshape((1, 1, 1) if operator else (1, 1))


def left(interface: Array, y: Array, a: Array, x: Array) -> Array:
    """Updates a left interface: (r_y, r_A, r_x) of the next bond, through y, a and x."""
    t = dot(dot(interface, x, (2, 0)), a, ((1, 2), (0, 2)))  # (y, x', m, a')
    return dot(y.conj(), t, ((0, 1), (0, 2))).swapaxes(1, 2)


def right(interface: Array, y: Array, a: Array, x: Array) -> Array:
    """Updates a right interface: (r_y, r_A, r_x) of the bond before, through y, a and x."""
    t = dot(dot(x, interface, (2, 2)), a, ((1, 3), (2, 3)))  # (x, y', a, m)
    return dot(y.conj(), t, ((1, 2), (3, 1))).swapaxes(1, 2)


def left_overlap(interface: Array, y: Array, x: Array) -> Array:
    """Updates a left interface without an operator: (r_y, r_x) of the next bond."""
    return dot(y.conj(), dot(interface, x, (1, 0)), ((0, 1), (0, 1)))


def right_overlap(interface: Array, y: Array, x: Array) -> Array:
    """Updates a right interface without an operator: (r_y, r_x) of the bond before."""
    return dot(y.conj(), dot(x, interface, (2, 1)), ((1, 2), (1, 2)))


def apply_one(lefts: Array, a: Array, rights: Array, x: Array) -> Array:
    """Applies an operator between its interfaces at one site: (r, n, r') to (r, m, r')."""
    t = dot(dot(lefts, x, (2, 0)), a, ((1, 2), (0, 2)))
    return dot(t, rights, ((1, 3), (2, 1)))


def apply_two(lefts: Array, a: Array, b: Array, rights: Array, x: Array) -> Array:
    """Applies an operator between interfaces at two sites: (r, n, n', r'') to (r, m, m', r'')."""
    t = dot(dot(lefts, x, (2, 0)), a, ((1, 2), (0, 2)))  # (y, n', x'', m, a')
    t = dot(t, b, ((1, 4), (2, 0)))  # (y, x'', m, m', a'')
    return dot(t, rights, ((1, 4), (2, 1)))
