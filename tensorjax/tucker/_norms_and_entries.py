"""Scalars from Tucker tensors: inner products, norms, distances, entries."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb, einsum
from tensorjax._cores.orthogonalization import short
from tensorjax._cores.overlaps import difference
from tensorjax._cores.scaling import near_one
from tensorjax._formats.overflow_checks import Powers, held, power_of_ten
from tensorjax._formats.trains import TT
from tensorjax._ids import counted
from tensorjax._kernels.batch_sizes import rounded_up
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import PROGRAM
from tensorjax._placement import placed, returned
from tensorjax._symbolic import is_static
from tensorjax._transfer import on_device
from tensorjax._typing import ArrayLike
from tensorjax.tucker._core_and_factors import (
    finite_on_host,
    first_on_host,
    near_one_parts,
    on_host,
    times,
    with_entries,
)
from tensorjax.tucker._sums_and_padding import aligned
from tensorjax.tucker._types import Tucker, one

# Elements that `evaluate` holds at a time: 256 MiB of float64.
_PIECE = 2**25
# Multiplications that take NumPy as long as to begin a small product.
_A_CALL = 100


@placed
def inner(x: Tucker, y: Tucker) -> jax.Array:
    """Computes the inner product ⟨x, y⟩ = Σ conj(x_i) y_i of Tucker tensors without overflow.

    Args:
      x: Tucker; conjugated.
      y: Tucker of the same shape. If one core is dense, so is the other made.

    Returns:
      Scalar in the promoted dtype.

    Raises:
      TypeError: an argument is no Tucker.
      ValueError: the shapes differ. OverflowError: the value is out of the range of the dtype,
        outside of transformations, as of `tensorjax.tt.inner`.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1, 1)), [jnp.ones((2, 1)), jnp.ones((3, 1))])
      >>> print(tucker.inner(t, t))
      6.0

    Source: ours; the inner product of the cores, with the matrices U_kᴴ V_k in between.
    """
    x, y = aligned(x, y)
    number = None
    if first_on_host("inner", lambda: x.core.size * sum(x.ranks), x, y):
        number = finite_on_host(lambda: _inner_on_host(x, y))
    value = _inner(x, y) if number is None else on_device([number])[0]
    return held("the inner product", value, lambda: _powers(x, y), "scale the tensors")


def _powers(x: Tucker, y: Tucker) -> Powers:
    """Returns log10 |⟨x, y⟩| of Tucker tensors and a function for log10 ‖x‖·‖y‖."""

    def bound() -> float:
        return sum(power_of_ten(*_mantissa_and_exponent(t, t)) for t in (x, y)) / 2

    return power_of_ten(*_mantissa_and_exponent(x, y)), bound


def _inner_on_host(x: Tucker, y: Tucker) -> np.ndarray:
    return np.asarray(linalg.scaled(*_scaled_inner(on_host(x), on_host(y)))).astype(x.dtype)


@jax.jit
def _inner(x: Tucker, y: Tucker) -> jax.Array:
    return linalg.scaled(*_scaled_inner(x, y))


@jax.jit
def _mantissa_and_exponent(x: Tucker, y: Tucker) -> tuple[jax.Array, Any]:
    return _scaled_inner(x, y)


def _scaled_inner(x: Tucker, y: Tucker) -> tuple[jax.Array, Any]:
    """Computes an inner product of Tucker tensors as (m, e), which means m·2^e."""
    # All in range by exact powers of two, so that only the value itself can overflow.
    (x, p), (y, q) = near_one_parts(x), near_one_parts(y)
    pairs = zip(x.factors, y.factors, strict=True)
    matrices, e = near_one([linalg.matmul(linalg.adjoint(u), v) for u, v in pairs])
    if isinstance(x.core, TT):
        value = x.core._namespace.inner(x.core, times(y.core, matrices))
    else:
        value = (x.core.conj() * times(y.core, matrices)).sum()
    return value, p + q + e


@placed
def norm(t: Tucker) -> jax.Array:
    """Computes the Frobenius norm ‖t‖ of a Tucker tensor, accurate to a few eps of its terms.

    The factors are orthogonalised, and the norm is that of the core: nothing is lost below √eps
    where ``t`` is a difference of nearly equal tensors.

    Args:
      t: Tucker.

    Returns:
      Real scalar, of the precision of ``t``.

    Raises:
      TypeError: ``t`` is no Tucker. OverflowError: the norm of a concrete tensor is out of the
        range of its dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> print(tucker.norm(tucker.Tucker(jnp.ones((1,)), [jnp.ones((9, 1))])))
      3.0

    Source: ours; QR factorisations of the factors.
    """
    one("t", t)
    return _measured(t, f=_norm, name="the norm")


@placed
def distance(x: Tucker, y: Tucker) -> jax.Array:
    """Computes the distance ‖x − y‖ of Tucker tensors, accurate to a few eps·(‖x‖ + ‖y‖).

    Args:
      x: Tucker.
      y: Tucker of the same shape. If one core is dense, so is the other made.

    Returns:
      Real scalar, of the promoted precision.

    Raises:
      TypeError: an argument is no Tucker.
      ValueError: the shapes differ.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1, 1)), [jnp.ones((4, 1)), jnp.ones((9, 1))])
      >>> bool(tucker.distance(t, t * (1 + 1e-6)) < 2e-6 * tucker.norm(t))
      True

    Source: ours; one QR factorisation for both factors of a mode.
    """
    return _measured(*aligned(x, y), f=_distance, name="the distance")


@with_entries
def _measured(*tensors: Tucker, f: Any, name: str) -> jax.Array:
    """Evaluates a norm or distance of Tucker tensors: by NumPy on the host, or in a JAX program."""
    dtype = tensors[0].dtype
    real = jnp.finfo(dtype).dtype
    if choose_kernel("tucker.norm", tensors) is PROGRAM:
        length, exponent = f(*(t.astype(linalg.factor_dtype(dtype)) for t in tensors))
        return jnp.ldexp(length, exponent).astype(real)
    with np.errstate(all="ignore"):
        length, exponent = f(*map(on_host, tensors))
        value = jax.device_put(np.ldexp(length, exponent).astype(real))
    # The distance of equal tensors is roundoff: zero is right for it.
    bound = math.inf if f is _distance else -math.inf
    powers = power_of_ten(length, exponent), lambda: bound
    return held(name, value, lambda: powers, "scale the tensor")


def _norm(t: Tucker) -> tuple[Any, Any]:
    core, exponent = _common_scale([t.core])
    factors = [_common_scale([u]) for u in t.factors]
    core = times(core[0], [short(u) for (u,), _ in factors])
    return _length(core, exponent + sum(e for _, e in factors))


def _distance(x: Tucker, y: Tucker) -> tuple[Any, Any]:
    xp = np if linalg.is_host(x.factors[0]) else jnp
    (a, b), exponent = _common_scale([x.core, y.core])
    left, right = [], []
    for u, v in zip(x.factors, y.factors, strict=True):
        # One basis for both factors: their tensors differ as their cores do.
        pair, e = _common_scale([u, v])
        r = short(xp.concatenate(pair, axis=-1))
        left.append(r[:, : u.shape[-1]])
        right.append(r[:, u.shape[-1] :])
        exponent = exponent + e
    a, b = times(a, left), times(b, right)
    if isinstance(a, TT):
        length, e = difference(a.cores, b.cores)
        return length, exponent + e
    return _length(a - b, exponent)


def agree(found: Tucker, given: Tucker, tol: float) -> bool:
    """Whether a Tucker tensor on the host approximates another to ``tol``, by the norm."""
    (error, e), (size, exponent) = _distance(given, found), _norm(given)
    return bool(np.ldexp(error, e - exponent) <= tol * size)


def _common_scale(parts: list[Any]) -> tuple[list[Any], Any]:
    """Divides Tucker tensors, for their norm or distance, by one power of two; returns it too.

    Trains stay as they are: their own functions keep them in range.
    """
    if isinstance(parts[0], TT):
        return parts, 0
    xp = np if linalg.is_host(parts[0]) else jnp
    exponent = functools.reduce(xp.maximum, map(linalg.exponent_of, parts))
    return [linalg.scaled(part, -exponent) for part in parts], exponent


def _length(core: Any, exponent: Any) -> tuple[Any, Any]:
    """Computes the Frobenius norm of a Tucker core, times 2^exponent, as (m, e)."""
    if isinstance(core, TT):
        xp = np if linalg.is_host(core.cores[0]) else jnp
        length, e = difference(core.cores, [xp.zeros((1, n, 1), core.dtype) for n in core.shape])
        return length, exponent + e
    core, e = linalg.normalized(core)
    return linalg.root(linalg.energy(core.reshape(1, -1))), exponent + e


@placed
def evaluate(t: Tucker, indices: ArrayLike) -> jax.Array:
    """Evaluates entries x[i_1, …, i_d] of a Tucker tensor at a batch of multi-indices.

    O(∏ s_k) operations an entry for a dense core, O(d s r²) for a train; long batches are done in
    pieces, so memory stays bounded.

    Args:
      t: Tucker of order d.
      indices: integers (…, d), each in [−n_k, n_k) as in NumPy.

    Returns:
      (…,) entries; NaN, infinite or zero as in `tensorjax.tt.evaluate`.

    Raises:
      ValueError: the last axis is not d, or an index is out of range. TypeError: no integers.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1, 1)), [jnp.ones((2, 1)), 2 * jnp.ones((3, 1))])
      >>> print(tucker.evaluate(t, [[0, 0], [1, 2]]))
      [2. 2.]

    Source: ours; the definition, mode by mode.
    """
    one("t", t)
    indices = _check.indices(indices, t.shape)
    batch = math.prod(indices.shape[:-1])

    def work() -> int:
        return batch * (t.core.size + _A_CALL * t.order)

    if not _check.is_traced(indices) and first_on_host(f"entries {batch}", work, t):
        found = finite_on_host(lambda: _entries_on_host(t, np.asarray(indices)))
        if found is not None:
            return on_device([found])[0]
    if choose_kernel("tucker.evaluate", (indices, t)) is PROGRAM:
        return _evaluate(t, indices.reshape(-1, t.order)).reshape(indices.shape[:-1])
    rows = np.asarray(indices).reshape(-1, t.order)
    padded = np.zeros((rounded_up(len(rows)), t.order), rows.dtype)
    padded[: len(rows)] = rows
    out = _evaluate(t, padded)
    return returned(np.asarray(out)[: len(rows)].reshape(indices.shape[:-1]), out)


def _entries_on_host(t: Tucker, indices: np.ndarray) -> np.ndarray:
    """Evaluates entries of a Tucker tensor of a dense core by NumPy."""
    wide, exponent = near_one_parts(on_host(t))
    flat = (indices % np.asarray(t.shape)).reshape(-1, t.order)
    out = np.broadcast_to(wide.core.reshape(1, -1), (len(flat), wide.core.size))
    for u, at in zip(wide.factors, flat.T, strict=True):
        rest = out.shape[1] // u.shape[1]
        out = einsum("bs,bsr->br", u[at], out.reshape(len(flat), u.shape[1], rest))
    return linalg.scaled(out[:, 0], exponent).astype(t.dtype).reshape(indices.shape[:-1])


@with_entries
@jax.jit
def _evaluate(t: Tucker, indices: jax.Array) -> jax.Array:
    train = isinstance(t.core, TT)
    entry = _train_entry if train else _dense_entry
    t, exponent = near_one_parts(t)

    def row(index: jax.Array) -> jax.Array:
        pairs = [counted(i, n) for i, n in zip(index, t.shape, strict=True)]
        rows = [u[i] for u, (i, _) in zip(t.factors, pairs, strict=True)]
        value, e = entry(t.core, rows)
        held = jnp.stack([valid for _, valid in pairs]).all()
        return jnp.where(held, linalg.scaled(value, exponent + e), jnp.nan)

    cores = t.core.cores if train else [t.core]
    piece = max(1, _PIECE // max(math.prod(c.shape[1:]) for c in cores))
    if not is_static(indices.shape[0]) or indices.shape[0] <= piece:  # symbolic sizes: in one piece
        return jax.vmap(row)(indices)
    return jax.lax.map(row, indices, batch_size=piece)


def _dense_entry(core: jax.Array, rows: list[jax.Array]) -> tuple[jax.Array, Any]:
    for row in rows:
        core = absorb(row[None], core.reshape(len(row), -1, 1))[0, :, 0]
    return core[0], 0


def _train_entry(core: TT, rows: list[jax.Array]) -> tuple[jax.Array, Any]:
    v, exponent = jnp.ones((1,), rows[0].dtype), 0
    for c, row in zip(core.cores, rows, strict=True):
        v, e = linalg.normalized(linalg.matmul(row, absorb(v[None], c)[0]))
        exponent = exponent + e
    return v[0], exponent
