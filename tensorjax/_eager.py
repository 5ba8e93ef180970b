"""Eager evaluation of calls with concrete arguments while JAX traces a program."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

from tensorjax._check import is_traced

P = ParamSpec("P")
R = TypeVar("R")


def evaluated_eagerly(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator that evaluates calls with concrete arguments eagerly, even while JAX traces."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except TypeError:  # JAX's own among them: what was concrete may be so no more on the way
            if is_traced(args, options):
                raise
        with jax.ensure_compile_time_eval():
            return function(*args, **options)

    return wrapped
