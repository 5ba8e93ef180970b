"""Tensordot: product of two trains that sums over pairs of modes."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb, einsum, times_right
from tensorjax._cores.scaling import balanced, near_one, shared_out
from tensorjax._formats.overflow_checks import held
from tensorjax._formats.trains import TT, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._arrays.reductions import _mode
from tensorjax.tt._arrays.reshaping import permute
from tensorjax.tt._exact_arithmetic import conj
from tensorjax.tt._products import inner_product_kernels


@placed
def tensordot(x: TT, y: TT, axes: int | tuple[Any, Any] = 2) -> Any:
    """Contracts pairs of modes of two trains, as `numpy.tensordot`.

    Args:
      x: TT.
      y: TT.
      axes: how many of the last modes of ``x`` are summed with the first ones of ``y``; or the two
        lists of modes.

    Returns:
      TT of the modes of ``x`` that remain, then those of ``y``; a scalar if none does. Where the
      modes are the last ones of ``x`` and the first ones of ``y``, in order, nothing is rounded and
      the ranks stay; elsewhere modes are permuted before, to roundoff, and ranks may grow.

    Raises:
      ValueError: sizes that differ, or modes out of range or given twice. OverflowError: the dtype
        cannot hold a scalar result, as of `inner`.

    Example:
      >>> from tensorjax import tt
      >>> tt.tensordot(tt.ones((2, 3, 4)), tt.ones((3, 4, 5)), 2).shape
      (2, 5)

    Source: ours; of neighbouring modes as in Oseledets (2011), section 4.2, after `permute`.
    """
    single("x", x, TT)
    single("y", y, TT)
    left, right = _summed(x, y, axes)
    kept = [k for k in range(x.order) if k not in left]
    rest = [k for k in range(y.order) if k not in right]
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x = permute(x.astype(dtype), [*kept, *left])
    y = permute(y.astype(dtype), [*right, *rest])
    facts = {
        "dtype": np.dtype(dtype),
        "key": ("tensordot", len(left)),
        "shapes": tuple([c.shape for c in (*x.cores, *y.cores)]),
        "work": lambda: sum(c.size * max(c.shape) for t in (x, y) for c in t.cores),
    }
    if choose_kernel("tt.tensordot", (*x.cores, *y.cores), **facts) is NUMPY:
        out = _joined_on_host(x, y, len(left))
    else:
        out = _joined_by_program(x, y, len(left))
    if isinstance(out, TT):
        return out
    powers = functools.partial(inner_product_kernels.powers, conj(x), y)
    return held("the contraction of all modes", out, powers, "normalize the trains by tt.normalize")


def _joined_on_host(x: TT, y: TT, count: int) -> Any:
    """Computes a `tensordot` of one train's last modes with another's first, by NumPy."""
    x, y = jax.tree.map(np.asarray, (x, y))
    with np.errstate(all="ignore"):
        cores, scalar, exponent = _joined(x, y, count)
        if scalar is not None:
            return on_device([np.asarray(linalg.scaled(scalar, exponent))])[0]
        fit = linalg.exponents_held(x.dtype)
        return TT._unchecked(tuple(on_device(balanced(cores, exponent, fit=fit))))


def _summed(x: TT, y: TT, axes: Any) -> tuple[list[int], list[int]]:
    """Converts the axes of `tensordot` to the lists of modes to sum over in both trains."""
    if isinstance(axes, int | np.integer):
        count = _check.integer("axes", axes, low=0, high=min(x.order, y.order))
        left, right = list(range(x.order - count, x.order)), list(range(count))
    else:
        given = [
            [a] if isinstance(a, int | np.integer) else _check.several("axes", a, "modes")
            for a in _check.several("axes", axes, "two lists of modes, or their number")
        ]
        if len(given) != 2 or len(given[0]) != len(given[1]):
            raise ValueError(f"axes: expected two lists of as many modes, got {axes}")
        left, right = ([_mode(k, t.order) for k in a] for a, t in zip(given, (x, y), strict=True))
    if len(set(left)) < len(left) or len(set(right)) < len(right):
        raise ValueError(f"axes: expected modes given once, got {axes}")
    sizes = [x.shape[k] for k in left], [y.shape[k] for k in right]
    if sizes[0] != sizes[1]:
        raise ValueError(f"axes: expected modes of equal sizes, got {sizes[0]} and {sizes[1]}")
    return left, right


@jax.jit(static_argnums=2)
def _joined_by_program(x: TT, y: TT, count: int) -> Any:
    cores, scalar, exponent = _joined(x, y, count)
    if scalar is not None:
        return linalg.scaled(scalar, exponent)
    return TT._unchecked(tuple(shared_out(cores, exponent, at=max(x.order - count - 1, 0))))


def _joined(x: TT, y: TT, count: int) -> tuple[list[Any], Any, Any]:
    """Contracts a train's last modes with another train's first ones, for `tensordot`.

    Returns the cores that remain, or a scalar, and the exponent of two that either is to be
    multiplied by.
    """
    first, summed = list(x.cores[: x.order - count]), x.cores[x.order - count :]
    last = list(y.cores[count:])
    bond, exponent = _transfer(summed, y.cores[:count], x.dtype)
    if last:
        last[0] = absorb(bond, last[0])
    elif first:
        first[-1] = times_right(first[-1], bond)
    else:
        return [], bond[0, 0], exponent
    return [*first, *last], None, exponent


def _transfer(xs: Sequence[Any], ys: Sequence[Any], dtype: Any) -> tuple[Any, Any]:
    """Contracts the modes that `tensordot` sums over to a matrix m·2^e between outer bonds.

    The smaller one of these two bonds is carried along.
    """
    if not xs:
        return np.ones((1, 1), dtype), 0
    left, right = xs[0].shape[0], ys[-1].shape[-1]
    pairs, exponent = list(zip(xs, ys, strict=True)), 0
    if left <= right:
        carried, expression = np.eye(left, dtype=dtype)[..., None], "zab,aic,bid->zcd"
    else:
        carried, expression = np.eye(right, dtype=dtype)[None], "cdz,aic,bid->abz"
        pairs.reverse()
    for given in pairs:
        (a, b), e = near_one(given)
        exponent += e
        carried, e = linalg.normalized(einsum(expression, carried, a, b))
        exponent += e
    return carried.reshape(left, right), exponent
