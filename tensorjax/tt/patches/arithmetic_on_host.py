"""Arithmetic of concrete patched trains on the host: no program for each of their many ranks."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._cores.contractions import absorb
from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax._cores.scaling import norms_near_one
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.overflow_checks import held, power_of_ten
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._transfer import on_device
from tensorjax.tt._products.inner_product_kernels import host_overlap
from tensorjax.tt._to_dense import dense
from tensorjax.tt.patches.patched_train import PatchedTT, Prefix

Scaled = tuple[Any, int]  # m and e of a number m·2^e

# Squared norms of what is carried from core to core between which it is not scaled.
_LOW, _HIGH = 2.0**-60, 2.0**60
_MOST = 2000  # powers of two below the largest term at which any other one vanishes


def on_host(*patched: PatchedTT) -> bool:
    """Whether NumPy computes with the trains of all patches: they are concrete, and on one CPU."""
    return choose_kernel("tt.patches.inner", [p.trains for p in patched]) is NUMPY


def inner(x: PatchedTT, y: PatchedTT) -> jax.Array:
    """Computes the inner product of concrete patched trains by NumPy, in double precision."""

    def bound() -> float:
        left, right = ([_power(t) for t in p.trains] for p in (x, y))
        return max(left[i] + right[j] for i, j in overlapping(x.prefixes, y.prefixes))

    dtype = jnp.result_type(x.dtype, y.dtype)
    return _scalar("inner product", _product(x, y), dtype, bound)


def _product(x: PatchedTT, y: PatchedTT) -> Scaled:
    terms: list[Scaled] = []
    with np.errstate(all="ignore"):
        left = [norms_near_one(_wide(t)) for t in x.trains]
        right = left if x is y else [norms_near_one(_wide(t)) for t in y.trains]
        for i, j in overlapping(x.prefixes, y.prefixes):
            a, b = x.prefixes[i], y.prefixes[j]
            s, e = _within(*left[i], b[len(a) :])
            t, f = _within(*right[j], a[len(b) :])
            value, more = host_overlap(s, t)
            terms.append((value, e + f + more))
        return _total(terms)


def _total(terms: Sequence[Scaled]) -> Scaled:
    """Adds numbers m·2^e of patches by NumPy at the exponent of the largest one."""
    near = [(*linalg.normalized(np.asarray(m)), e) for m, e in terms]
    top = max((more + e for m, more, e in near if m != 0), default=0)
    total: Any = 0.0
    for m, more, e in near:
        total = total + linalg.scaled(np.asarray(m), max(more + e - top, -_MOST))
    return total, top


def _root(square: Any, exponent: int) -> Scaled:
    """Computes the root of a number m·2^e, of roundoff below zero as of zero; NaN stays NaN."""
    half = exponent // 2
    rest = np.ldexp(np.real(square), exponent - 2 * half)
    return abs(rest * 0) if rest <= 0 else np.sqrt(rest), half


def overlapping(left: Sequence[Prefix], right: Sequence[Prefix]) -> Iterator[tuple[int, int]]:
    """Finds on the host the pairs of patches of which one prefix begins with the other."""
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
    with np.errstate(all="ignore"):
        # The QR factors of Inf are NaN.
        if overlaps or not all(np.isfinite(np.asarray(c)).all() for t in p.trains for c in t.cores):
            size = _root(*_product(p, p))
        else:
            parts = [_orthogonal_norm(t) for t in p.trains]
            size = _root(*_total([(m * m, 2 * e) for m, e in parts]))

    def bound() -> float:
        return max(map(_power, p.trains)) if overlaps else -math.inf

    return _scalar("norm", size, jnp.finfo(p.dtype).dtype, bound)


def norm_of(train: TT) -> float:
    """Computes the norm of one patch's train by NumPy, in double precision."""
    return float(np.ldexp(*_orthogonal_norm(train)))


def _orthogonal_norm(train: TT) -> Scaled:
    cores, exponent = right_orthogonal(_wide(train))
    return np.linalg.norm(cores[0]), exponent


def _power(train: TT) -> float:
    """Computes by NumPy log10 of the norm of one patch's train."""
    return power_of_ten(*_orthogonal_norm(train))


def sum(p: PatchedTT) -> jax.Array:
    """Sums the entries of a concrete patched train by NumPy, in double precision."""
    terms: list[Scaled] = []
    with np.errstate(all="ignore"):
        for train in p.trains:
            cores, exponent = norms_near_one(_wide(train))
            v = np.ones((1, 1))
            for core in cores:
                v = absorb(v, core).sum(axis=1)
                if not _LOW < np.vdot(v, v).real < _HIGH:
                    v, e = linalg.normalized(v)
                    exponent += e
            terms.append((v[0, 0], exponent))
        total = _total(terms)

    def bound() -> float:  # Cauchy–Schwarz, with a train of ones
        return max(_power(t) + math.log10(math.prod(t.shape)) / 2 for t in p.trains)

    return _scalar("sum", total, p.dtype, bound)


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


def _within(cores: Cores, exponent: int, digits: Prefix) -> tuple[Cores, int]:
    """Fixes, by NumPy, leading indices of a patch's train, to restrict it to a smaller patch."""
    row = np.ones((1, 1))
    for core, digit in zip(cores, digits, strict=False):
        row, e = linalg.normalized(absorb(row, core[:, [digit]])[:, 0])
        exponent += e
    first, *rest = cores[len(digits) :]
    return [absorb(row, first), *rest], exponent


def _scalar(name: str, value: Scaled, dtype: Any, bound: Callable[[], float]) -> jax.Array:
    """Casts a scalar m·2^e, computed by NumPy, to the dtype of patched trains, if that holds it."""
    with np.errstate(all="ignore"):
        out = np.asarray(linalg.scaled(np.asarray(value[0]), value[1])).astype(dtype)
    return held(
        f"the {name} of the patched trains",
        on_device([out])[0],
        lambda: (power_of_ten(*value), bound),
        "scale them first",
    )
