"""Arithmetic on core and factors of a Tucker tensor: products, scaling, QR, modes of size 0."""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._cores import scaling
from tensorjax._cores.contractions import times_mode
from tensorjax._cores.scaling import balanced, near_one, shared_out
from tensorjax._cores.unfoldings import unfold
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._transfer import on_device
from tensorjax.tucker._types import Tucker


def times(core: Any, matrices: Sequence[Any]) -> Any:
    """Multiplies each mode of a Tucker core, dense or a train, by a matrix."""
    if isinstance(core, TT):
        pairs = zip(core.cores, matrices, strict=True)
        return TT._unchecked(tuple(times_mode(c, m) for c, m in pairs))
    xp = np if linalg.is_host(core) else jnp
    for k, m in enumerate(matrices):
        if m is None:
            continue
        image = linalg.matmul(m, unfold(core, k))
        core = xp.moveaxis(image.reshape(len(image), *core.shape[:k], *core.shape[k + 1 :]), 0, k)
    return core


def with_dense_core(t: Tucker) -> Tucker:
    """Multiplies out the core of a Tucker tensor if it is a train; returns others unchanged."""
    if not isinstance(t.core, TT):
        return t
    return Tucker._unchecked(t.core._namespace.to_dense(t.core), t.factors)


def orthonormalized(t: Tucker) -> tuple[Any, list[Any]]:
    """Orthonormalises Tucker factors by QR; returns the updated core and the factors."""
    pairs = [linalg.qr(u) for u in t.factors]
    return times(t.core, [r for _, r in pairs]), [q for q, _ in pairs]


def near_one_parts(t: Tucker) -> tuple[Tucker, Any]:
    """Scales core and factors of a Tucker tensor near one by powers of two; returns exponent."""
    leaves, structure = jax.tree.flatten(t)
    leaves, exponent = near_one(leaves)
    return jax.tree.unflatten(structure, leaves), exponent


def scaled_back(core: Any, factors: Sequence[Any], exponent: Any) -> Tucker:
    """Multiplies a Tucker tensor by 2^exponent: its core, or the factors too against overflow."""
    if linalg.is_host(core):
        # Of double precision, which single precision has to hold.
        *factors, core = balanced([*factors, core], int(exponent))
        return Tucker._unchecked(core, tuple(factors))
    if isinstance(core, TT) and linalg.is_host(core.cores[0]):
        core = TT._unchecked(tuple(balanced(list(core.cores), int(exponent))))
        return Tucker._unchecked(core, tuple(factors))
    if isinstance(core, TT):
        return Tucker._unchecked(
            TT._unchecked(tuple(shared_out(core.cores, exponent))), tuple(factors)
        )
    *factors, core = shared_out([*factors, core], exponent)
    return Tucker._unchecked(core, tuple(factors))


def cast_in_range(t: Tucker, dtype: Any) -> Tucker:
    """Casts core and factors; float16 may not hold the norm in the core: they then share it."""
    if isinstance(t.core, TT):
        core = TT._unchecked(tuple(scaling.cast_in_range(t.core.cores, dtype)))
        return Tucker._unchecked(core, tuple(u.astype(dtype) for u in t.factors))
    *factors, core = scaling.cast_in_range([*t.factors, t.core], dtype)
    return Tucker._unchecked(core, tuple(factors))


def first_on_host(key: str, work: Callable[[], int], *tensors: Tucker) -> bool:
    """Whether NumPy computes with core and factors of Tucker tensors with dense cores, not JAX."""
    if any(isinstance(t.core, TT) or 0 in t.shape for t in tensors):
        return False
    return is_first_on_host(key, work, *tensors)


def is_first_on_host(key: Hashable, work: Callable[[], int], *tensors: Tucker) -> bool:
    """Whether NumPy computes with core and factors of Tucker tensors with any core, not JAX.

    Args:
      key: of the program that would serve it: its name, with all that it is compiled for but types.
      work: its multiplications, about.
      *tensors: that it is called with.
    """
    leaves = jax.tree.leaves(tensors)
    facts = {"dtype": leaves[0].dtype, "key": ("tucker", key), "work": work}
    return choose_kernel("tucker.to_dense", leaves, **facts) is NUMPY


def finite_on_host(f: Callable[[], Any]) -> Any:
    """Computes core and factors of a result by NumPy; None if they are not finite.

    A program then serves the call: products of Inf and NaN differ by their order, and NumPy warns.
    """
    with np.errstate(all="ignore"):
        found = f()
    return found if all(np.isfinite(x).all() for x in jax.tree.leaves(found)) else None


def from_host(t: Tucker) -> Tucker:
    """Transfers core and factors of a Tucker tensor from the host to JAX."""
    leaves, structure = jax.tree.flatten(t)
    return jax.tree.unflatten(structure, on_device(leaves))


def on_host(t: Tucker) -> Tucker:
    """Copies core and factors of a Tucker tensor to the host as NumPy arrays, double precision."""
    wide = np.result_type(linalg.factor_dtype(t.dtype), np.float64)
    return jax.tree.map(lambda leaf: np.asarray(leaf).astype(wide, copy=False), t)


def with_entries(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of Tucker tensors to accept factors of modes of size 0.

    As `tensorjax._formats.zero_padding`: such a mode has one index, of zeros, meanwhile.
    """

    @functools.wraps(f)
    def wrapper(t: Tucker, *args: Any, **options: Any) -> Any:
        if 0 not in t.shape:
            return f(t, *args, **options)
        wide: list[Any] = [_widened(a) if isinstance(a, Tucker) else a for a in (t, *args)]
        return cut_modes(f(*wide, **options), t.shape)

    return wrapper


def _widened(t: Tucker) -> Tucker:
    factors = (u if len(u) else np.zeros((1, u.shape[1]), u.dtype) for u in t.factors)
    return Tucker._unchecked(t.core, tuple(map(jnp.asarray, factors)))


def cut_modes(out: Any, shape: Sequence[int]) -> Any:
    """Cuts the factors of a `Tucker` result to mode sizes ``shape``; returns others unchanged."""
    if not isinstance(out, Tucker):
        return out
    factors = tuple(u[:n] for u, n in zip(out.factors, shape, strict=True))
    return Tucker._unchecked(out.core, factors)
