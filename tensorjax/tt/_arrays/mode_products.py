"""Products of modes of a train with vectors, which contract them, and with matrices."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb, times_mode, times_right, weighted_sum
from tensorjax._cores.products import is_in_range, times_in_range
from tensorjax._cores.scaling import balanced, shared_out
from tensorjax._formats.overflow_checks import Powers, held
from tensorjax._formats.trains import TT, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import copied, on_device
from tensorjax._typing import ArrayLike
from tensorjax.tt._folding import rearranged
from tensorjax.tt._products import inner_product_kernels

# Squared norms between which host arrays are multiplied as they are: products of three are in range
# of single precision.
_LOW, _HIGH = 2.0**-40, 2.0**40


@placed
def contract_modes(t: TT, vectors: Mapping[int, Any]) -> Any:
    """Contracts modes of a train with vectors: Σ_{i_k} x[…, i_k, …] v_k[i_k] for each k.

    Args:
      t: TT of order d.
      vectors: {mode: vector (n_mode,)}; modes 0 … d−1, negative ones count from the end.

    Returns:
      TT of the remaining modes, or a scalar if none remains.

    Raises:
      ValueError: a mode is out of range or given twice, or a vector has the wrong length.
      OverflowError: the dtype cannot hold a scalar result, as of `inner`.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> tt.contract_modes(tt.ones((2, 3, 4)), {1: jnp.ones(3)}).shape
      (2, 4)

    Source: Oseledets (2011), section 4.2 (multidimensional contraction). Ours: intermediate results
    are kept in range by exact powers of two.
    """
    return contraction(t, vectors, "the contraction of all modes")


def contraction(t: TT, vectors: Mapping[int, Any], name: str | None) -> Any:
    """Contracts modes of a train with vectors; overflow of a scalar result raises an error.

    Without a name a scalar out of the range of the dtype is inf or 0.
    """
    single("t", t, TT)
    chosen: dict[int, Any] = {}
    shape, dtype = t.shape, t.dtype  # looked up in every core
    order = len(shape)
    for mode, vector in _check.mapping("vectors", vectors, "a vector for each mode").items():
        k = _check.integer("mode", mode, low=-order, high=order - 1) % order
        v = _check.inexact(f"vectors[{mode}]", vector)
        if k in chosen or v.shape != (shape[k],):
            problem = "given twice" if k in chosen else f"shape {v.shape}"
            raise ValueError(
                f"vectors[{mode}]: expected one vector of shape ({shape[k]},), got {problem}"
            )
        if v.dtype != dtype:
            kind = jax.dtypes.canonicalize_dtype(v.dtype)
            v = v.astype(jnp.promote_types(kind, dtype))
        chosen[k] = v
    numpy = choose_kernel("tt.contract_modes", (t, chosen)) is NUMPY
    out = (_contracted_by_numpy if numpy else _contract_modes)(t, chosen)
    if isinstance(out, TT) or name is None:
        return out

    def powers() -> Powers:
        # Σ t_i ∏ v_k[i_k] is the inner product with the train of the conjugate vectors.
        conjugate = TT._unchecked(tuple(chosen[k].conj()[None, :, None] for k in range(order)))
        return inner_product_kernels.powers(conjugate, t)

    return held(name, out, powers, "scale the train by tt.normalize")


@jax.jit
def _contract_modes(t: TT, vectors: dict[int, jax.Array]) -> Any:
    dtype = jnp.result_type(t.dtype, *(v.dtype for v in vectors.values()))
    pending: Any = None  # what the modes contracted since the last core make of the bond
    exponent: Any = jnp.zeros((), jnp.int32)
    cores: list[jax.Array] = []
    at = 0  # the core that takes the exponent
    for k, core in enumerate(t.cores):
        core = core.astype(dtype)
        if k in vectors:
            v, e = linalg.normalized(vectors[k].astype(dtype))
            matrix = weighted_sum(core, v)
            matrix = matrix if pending is None else linalg.matmul(pending, matrix)
            pending, more = linalg.normalized(matrix)
            exponent = exponent + e + more
        elif pending is not None:
            at = len(cores)
            cores.append(absorb(pending, core))
            pending = None
        else:
            cores.append(core)
    if not cores:
        assert pending is not None
        return linalg.scaled(pending[0, 0], exponent)
    if pending is not None:
        at = len(cores) - 1
        cores[-1] = times_right(cores[-1], pending)
    return TT._unchecked(tuple(shared_out(cores, exponent, at=at) if vectors else cores))


def _contracted_by_numpy(t: TT, vectors: Mapping[int, np.ndarray]) -> Any:
    """Contracts modes of a train with vectors by NumPy; returns a train, or a scalar.

    Cores far from contracted modes stay the arrays that they are.
    """
    dtypes = {np.dtype(t.dtype), *(v.dtype for v in vectors.values())}
    dtype = dtypes.pop() if len(dtypes) == 1 else functools.reduce(jnp.promote_types, dtypes)
    kind = linalg.factor_dtype(dtype)
    small = {k: _tame(np.asarray(v).astype(kind, copy=False)) for k, v in vectors.items()}
    exponent = sum(e for _, e in small.values())
    pending: Any = None  # what the modes contracted since the last core make of the bond
    cores: list[Any] = []
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for k, core in enumerate(t.cores):
            if k in small:
                core, e = _tame(np.asarray(core).astype(kind, copy=False))
                matrix = np.matmul(small[k][0], core)
                pending, more = _tame(matrix if pending is None else pending @ matrix)
                exponent += e + more
            elif pending is not None:
                core, e = linalg.normalized(np.asarray(core).astype(kind, copy=False))
                cores.append(absorb(pending, core))
                exponent, pending = exponent + e, None
            else:
                cores.append(core)
        if not cores:
            assert pending is not None
            value = linalg.scaled(pending, exponent) if exponent else pending
            return on_device([np.asarray(value[0, 0]).astype(dtype)])[0]
        if pending is not None:
            core, e = linalg.normalized(np.asarray(cores[-1]).astype(kind, copy=False))
            cores[-1], exponent = times_right(core, pending), exponent + e
        cores = _shared_out(cores, exponent, kind, linalg.exponents_held(dtype))
    return TT._unchecked(tuple(_placed(c.astype(dtype)) for c in cores))


def _tame(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Scales an array of a mode product by a power of two to norm near one; returns that too."""
    if _LOW < np.vdot(x, x).real < _HIGH:
        return x, 0
    scaled, e = linalg.normalized(x)
    return scaled, int(e)


def _placed(core: Any) -> jax.Array:
    return core if isinstance(core, jax.Array) else jax.device_put(core)


def _shared_out(cores: list[Any], exponent: int, kind: Any, fit: tuple[int, int]) -> list[Any]:
    """Multiplies the train of a mode product by 2^exponent: one core, or all if one overflows."""
    at = max((k for k, c in enumerate(cores) if linalg.is_host(c)), default=0)
    low, high = fit
    new = np.asarray(cores[at]).astype(kind, copy=False)
    if low < linalg.exponent_of(new) + exponent < high:
        return [*cores[:at], linalg.scaled(new, exponent), *cores[at + 1 :]] if exponent else cores
    return balanced([np.asarray(c).astype(kind) for c in cores], exponent, fit=fit)


def with_core(t: TT, k: int, core: Any) -> TT:
    """Returns a tensor train with one core replaced, as of a product of its mode with a matrix."""
    return TT._unchecked(tuple(copied((*t.cores[:k], core, *t.cores[k + 1 :]))))


@placed
def mode_product(t: TT, matrix: ArrayLike, mode: int) -> TT:
    """Contracts one mode of a train with a matrix, Σ_j matrix[i, j] x[…, j, …]; the ranks stay.

    Args:
      t: TT.
      matrix: (m, n_k), which makes the mode of size n_k one of size m.
      mode: k; negative ones count from the end.

    Returns:
      TT of the TT-ranks of ``t``, whose mode ``mode`` has size m, in the promoted dtype.

    Raises:
      ValueError: the matrix has another number of columns. OverflowError: the dtype cannot hold the
        product in as many cores; under transformations, where no size is known, the one core is
        multiplied as it is, and what it cannot hold is Inf or 0.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> tt.mode_product(tt.ones((2, 3)), jnp.ones((5, 3)), 1).shape
      (2, 5)

    Source: T. Kolda, B. Bader, "Tensor decompositions and applications", SIAM Rev. 51 (2009),
    section 2.5.
    """
    single("t", t, TT)
    k, w, dtype = _check.mode_matrix(matrix, mode, t.shape, t.dtype)
    t = t.astype(dtype)
    core = t.cores[k]
    if _check.is_traced(t, w):
        return with_core(t, k, times_mode(core, w))
    if not is_in_range(core, w):
        return TT._unchecked(tuple(times_in_range(t.cores, k, w, times_mode, "t")))

    def times(c: Any) -> Any:
        return times_mode(c, np.asarray(w) if linalg.is_host(c) else w)

    return with_core(t, k, rearranged("mode_product", [core], times)[0])
