"""Arithmetic of concrete patched trains on the host: no program for each of their many ranks."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._cores.contractions import absorb
from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax._cores.overlaps import overlap
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._transfer import on_device
from tensorjax.tt._to_dense import dense
from tensorjax.tt.patches.patched_train import PatchedTT, Prefix


def on_host(*patched: PatchedTT) -> bool:
    """Whether NumPy computes with the trains of all patches: they are concrete, and on one CPU."""
    return choose_kernel("tt.patches.inner", [p.trains for p in patched]) is NUMPY


def inner(x: PatchedTT, y: PatchedTT) -> jax.Array:
    """Computes the inner product of concrete patched trains by NumPy, in double precision."""
    return _scalar("inner product", _product(x, y), jnp.result_type(x.dtype, y.dtype))


def _product(x: PatchedTT, y: PatchedTT) -> Any:
    total: Any = 0.0
    left, right = ([_orthogonal(t) for t in p.trains] for p in (x, y))
    with np.errstate(all="ignore"):
        for i, j in overlapping(x.prefixes, y.prefixes):
            (s, e), (t, f) = left[i], right[j]
            a, b = x.prefixes[i], y.prefixes[j]
            value = overlap(_within(s, b[len(a) :]), _within(t, a[len(b) :]))
            total = total + linalg.scaled(np.asarray(value), e + f)
    return total


def overlapping(left: Sequence[Prefix], right: Sequence[Prefix]) -> Iterator[tuple[int, int]]:
    """Finds the pairs of patches, by position, of which one prefix begins with the other."""
    places: dict[Prefix, list[int]] = defaultdict(list)
    inside: dict[Prefix, list[int]] = defaultdict(list)  # patches within each, themselves too
    for j, b in enumerate(right):
        places[b].append(j)
        for k in range(len(b) + 1):
            inside[b[:k]].append(j)
    for i, a in enumerate(left):
        wider = (j for k in range(len(a)) for j in places.get(a[:k], ()))
        for j in (*wider, *inside.get(a, ())):
            yield i, j


def norm(p: PatchedTT, *, overlaps: bool) -> jax.Array:
    """Computes the norm of a concrete patched train, whose patches may overlap, by NumPy."""
    if overlaps:
        size = math.sqrt(max(0.0, np.real(_product(p, p))))
    else:
        size = math.hypot(*map(norm_of, p.trains))
    return _scalar("norm", size, jnp.finfo(p.dtype).dtype)


def norm_of(train: TT) -> float:
    """Computes the norm of one patch's train by NumPy, in double precision."""
    cores, exponent = _orthogonal(train)
    return float(np.ldexp(np.linalg.norm(cores[0]), exponent))


def sum(p: PatchedTT) -> jax.Array:
    """Sums the entries of a concrete patched train by NumPy, in double precision."""
    total: Any = 0.0
    with np.errstate(all="ignore"):
        for train in p.trains:
            v, exponent = np.ones((1, 1)), 0
            for core in _wide(train):
                v, e = linalg.normalized(absorb(v, core).sum(axis=1))
                exponent += e
            total = total + linalg.scaled(v[0, 0], exponent)
    return _scalar("sum", total, p.dtype)


def to_dense(p: PatchedTT) -> jax.Array:
    """Converts a concrete patched train to a dense array by NumPy, in double precision."""
    out = np.zeros(p.shape, p.dtype)
    with np.errstate(all="ignore"):
        for prefix, train in zip(p.prefixes, p.trains, strict=True):
            out[prefix] += dense(TT._unchecked(tuple(_wide(train))), True).astype(p.dtype)
    return on_device([out])[0]


def _wide(train: TT) -> Cores:
    """Copies the cores of a patch's train to the host, in double precision."""
    return [np.asarray(c, np.result_type(c.dtype, np.float64)) for c in train.cores]


def _orthogonal(train: TT) -> tuple[Cores, int]:
    """Returns a patch's train right-orthogonal, so that overlaps with it stay in range."""
    return right_orthogonal(_wide(train))


def _within(cores: Cores, digits: Prefix) -> Cores:
    """Fixes leading indices of a patch's train: that of the smaller patch behind them."""
    row = np.ones((1, 1))
    for core, digit in zip(cores, digits, strict=False):
        row = absorb(row, core[:, [digit]])[:, 0]
    first, *rest = cores[len(digits) :]
    return [absorb(row, first), *rest]


def _scalar(name: str, value: Any, dtype: Any) -> jax.Array:
    """Returns a scalar of patched trains in its dtype; raises OverflowError if it is too large."""
    with np.errstate(over="ignore"):
        out = np.asarray(value).astype(dtype)
    if np.isinf(out):
        raise OverflowError(
            f"the {name} of the patched trains is out of the range of {jnp.dtype(dtype).name}; "
            "scale them first"
        )
    return on_device([out])[0]
