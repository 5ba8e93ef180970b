"""Decorator by which functions accept Tucker tensors with modes of size 0, padded by zeros."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax.tucker._types import Tucker


def with_entries(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of Tucker tensors so that it accepts modes of size 0.

    As `tensorjax._formats.empty_modes`: such a mode has one index, of zeros, meanwhile.
    """

    @functools.wraps(f)
    def wrapper(t: Tucker, *args: Any, **options: Any) -> Any:
        if 0 not in t.shape:
            return f(t, *args, **options)
        wide: list[Any] = [_widened(a) if isinstance(a, Tucker) else a for a in (t, *args)]
        return cut(f(*wide, **options), t.shape)

    return wrapper


def _widened(t: Tucker) -> Tucker:
    factors = (u if len(u) else np.zeros((1, u.shape[1]), u.dtype) for u in t.factors)
    return Tucker._unchecked(t.core, tuple(map(jnp.asarray, factors)))


def cut(out: Any, shape: Sequence[int]) -> Any:
    """Cuts the modes of a `Tucker` result to ``shape``; returns other results unchanged."""
    if not isinstance(out, Tucker):
        return out
    factors = tuple(u[:n] for u, n in zip(out.factors, shape, strict=True))
    return Tucker._unchecked(out.core, factors)
