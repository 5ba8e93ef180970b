"""Functions compiled once for all values of the constants that they close over.

`jax.jit` compiles anew for every function object, and constants are part of what it compiles. A
right side is a new function at every call, with the coefficients of its problem inside. Tracing it
separates operations from constants: two right sides of the same operations are the same program,
whatever their coefficients.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from tensorjax import _check


class Program:
    """Traced JAX function that takes its floating-point constants as arguments, to compile once.

    Args:
      closed: as traced.
      shape: of what it returns, a pytree.
    """

    def __init__(self, closed: jex.ClosedJaxpr, shape: Any):
        self._jaxpr = closed.jaxpr
        self._tree = jax.tree.structure(shape)
        # Integers are indices and masks: as arguments they would make gathers out of slices.
        self._inside = {i: np.asarray(c) for i, c in enumerate(closed.consts) if not _is_float(c)}
        inside = tuple((i, *_bytes(c)) for i, c in self._inside.items())
        # The text of a program says all but its constants and the functions that it calls by name.
        self._key = str(closed.jaxpr), self._tree, inside, tuple(_unprinted(closed.jaxpr))

    def __call__(self, constants: Sequence[Any], *args: Any) -> Any:
        """Evaluates a function that is compiled once, with the given constants and arguments."""
        given = iter(constants)
        consts = [
            self._inside[i] if i in self._inside else next(given)
            for i in range(len(self._jaxpr.constvars))
        ]
        f = jex.jaxpr_as_fun(jex.ClosedJaxpr(self._jaxpr, consts))
        return jax.tree.unflatten(self._tree, f(*jax.tree.leaves(args)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def separated(f: Callable[..., Any], *args: Any) -> tuple[Program, list[Any]]:
    """Traces a function to a `Program`, compiled once, and the constants it takes as arguments."""

    def fresh(*xs: Any) -> Any:  # tracing is remembered by the function object
        return f(*xs)

    closed, shape = jax.make_jaxpr(fresh, return_shape=True)(*args)
    constants = [c for c in closed.consts if _is_float(c)]
    return Program(closed, shape), [c if _check.is_traced(c) else jnp.asarray(c) for c in constants]


def _is_float(c: Any) -> bool:
    return _check.is_traced(c) or jnp.issubdtype(c.dtype, jnp.inexact)


def _bytes(c: Any) -> tuple[str, tuple[int, ...], bytes]:
    c = np.asarray(c)
    return str(c.dtype), c.shape, c.tobytes()


def _unprinted(jaxpr: Any) -> Iterator[Any]:
    """Yields constants that the text of a jaxpr hides, for the key of a function compiled once."""
    for eqn in jaxpr.eqns:
        for value in jax.tree.leaves(eqn.params):
            if isinstance(value, jex.ClosedJaxpr):
                yield from map(_bytes, value.consts)
                yield from _unprinted(value.jaxpr)
            elif isinstance(value, jex.Jaxpr):
                yield from _unprinted(value)
            elif callable(value) and not isinstance(value, type):
                yield value
