"""Folding of TT-matrices to trains and back, and rearrangement of the entries of each core."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._formats.zero_padding import narrowed, widened
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._transfer import copied
from tensorjax.tt._broadcasting import check_alike

P = ParamSpec("P")
R = TypeVar("R")


def fold(a: TTMatrix) -> TT:
    """Reshapes a TT-matrix to a tensor train whose modes pair row and column indices."""
    return TT._unchecked(
        tuple(c.reshape(*c.shape[:-3], c.shape[-3] * c.shape[-2], c.shape[-1]) for c in a.cores)
    )


def unfold(t: TT, row_shape: Sequence[int], col_shape: Sequence[int]) -> TTMatrix:
    """Reshapes a tensor train with paired modes to a TT-matrix; the inverse of `fold`."""
    pairs = zip(t.cores, row_shape, col_shape, strict=True)
    return TTMatrix._unchecked(
        tuple(c.reshape(*c.shape[:-2], m, n, c.shape[-1]) for c, m, n in pairs)
    )


def folded(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of tensor trains so that it takes TT-matrices too, by folding them.

    It gets trains, with the modes of a TT-matrix folded, and never an empty mode.
    """
    run: Callable[..., Any] = f

    @functools.wraps(f)
    def on_folded(x: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, TT) and 0 not in x.shape:
            return run(x, *args, **kwargs)
        for a in args:  # folded, modes (2, 3) and (3, 2) are alike, and so is a train of modes 6
            if isinstance(a, TT | TTMatrix):
                check_alike(x, a)
        flat = x if isinstance(x, TT) else fold(x)
        out = narrowed(run(widened(flat), *map(_flat, args), **kwargs), flat.shape)
        if isinstance(x, TT):
            return out
        sides = x.row_shape, x.col_shape
        if isinstance(out, tuple):
            return tuple(unfold(t, *sides) for t in out)
        return unfold(out, *sides) if isinstance(out, TT) else out

    return on_folded


def _flat(a: Any) -> Any:
    a = fold(a) if isinstance(a, TTMatrix) else a
    return widened(a) if isinstance(a, TT) else a


def as_train(f: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function of trains to take TT-matrices by folding, with a type check.

    Signatures stay those written: of TT and TTMatrix, though ``f`` is called with a TT alone.
    """
    first, on_folded = next(iter(inspect.signature(f).parameters)), folded(f)

    @functools.wraps(f)
    def wrapper(x: Any, *args: Any, **kwargs: Any) -> Any:
        single(first, x)
        return on_folded(x, *args, **kwargs)

    return cast(Callable[P, R], wrapper)


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
