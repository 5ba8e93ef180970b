"""Exact arithmetic of Tucker tensors: sums, scaling, real and imaginary parts, padding.

Of two tensors, both cores are dense or both are trains; where one is of each kind, the train is
multiplied out, as in SciPy, where a sparse matrix plus a dense array is dense.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._formats.arithmetic_operators import multiplied
from tensorjax._formats.trains import TT
from tensorjax._formats.zero_padding import zero_padded
from tensorjax._placement import placed
from tensorjax._typing import Scalar
from tensorjax.tucker._constructors import ones_like
from tensorjax.tucker._core_and_factors import (
    finite_on_host,
    first_on_host,
    from_host,
    near_one_parts,
    on_host,
    scaled_back,
    with_dense_core,
)
from tensorjax.tucker._types import Tucker, check_core_rank, kind, one


def aligned(x: Any, y: Any) -> tuple[Tucker, Tucker]:
    """Aligns two Tucker tensors for sums: one dtype and kind of core; checks the shapes."""
    one("x", x)
    one("y", y)
    if x.shape != y.shape:
        raise ValueError(f"expected Tucker tensors of one shape, got {x.shape} and {y.shape}")
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x, y = x.astype(dtype), y.astype(dtype)
    if isinstance(x.core, TT) is not isinstance(y.core, TT):
        x, y = with_dense_core(x), with_dense_core(y)
    return x, y


@placed
def add(x: Tucker, y: Tucker) -> Tucker:
    """Adds Tucker tensors exactly; multilinear ranks add, and TT-ranks of train cores too.

    The factors stand side by side and are no longer orthonormal; `round` makes them so again and
    lowers the ranks. The sum of dense cores holds ∏ (s_k + t_k) elements.

    Args:
      x: Tucker.
      y: Tucker of the same shape. If one core is dense, so is the other made.

    Returns:
      Tucker of multilinear ranks s_k + t_k, in the promoted dtype.

    Raises:
      TypeError: an argument is no Tucker.
      ValueError: the shapes differ.

    Example:
      >>> import jax
      >>> from tensorjax import tucker
      >>> t = tucker.random(jax.random.key(0), (4, 5), 2)
      >>> tucker.add(t, t).ranks
      (4, 4)

    Source: ours; the direct sum of the cores. The first sums of one shape of concrete tensors with
    dense cores on a CPU are NumPy's, with nothing compiled.
    """
    x, y = aligned(x, y)
    host = None
    if first_on_host("add", lambda: math.prod(map(operator.add, x.ranks, y.ranks)), x, y):
        host = finite_on_host(lambda: _sum(on_host(x), on_host(y)).astype(x.dtype))
    return _add(x, y) if host is None else from_host(host)


def _sum(x: Tucker, y: Tucker) -> Tucker:
    x, y = _balanced(x), _balanced(y)
    xp = np if linalg.is_host(x.factors[0]) else jnp
    factors = tuple(xp.concatenate(p, axis=-1) for p in zip(x.factors, y.factors, strict=True))
    after = _padded(x.core, [(0, s) for s in y.ranks])
    before = _padded(y.core, [(s, 0) for s in x.ranks])
    core = after._namespace.add(after, before) if isinstance(after, TT) else after + before
    return Tucker._unchecked(core, factors)


_add = jax.jit(_sum)


def _balanced(t: Tucker) -> Tucker:
    """Scales core and factors of a Tucker tensor to similar size, to limit roundoff in sums."""
    small, exponent = near_one_parts(t)
    return scaled_back(small.core, small.factors, exponent)


def _padded(core: Any, widths: Sequence[tuple[int, int]]) -> Any:
    """Pads a Tucker core, dense or a train, by zeros before and after in each mode, for sums."""
    if isinstance(core, TT):
        pairs = zip(core.cores, widths, strict=True)
        return TT._unchecked(tuple(zero_padded(c, [(0, 0), w, (0, 0)]) for c, w in pairs))
    return np.pad(core, widths) if linalg.is_host(core) else zero_padded(core, list(widths))


def scale(t: Tucker, factor: Scalar) -> Tucker:
    """Multiplies a Tucker tensor by a scalar, which goes into the core.

    Args:
      t: Tucker.
      factor: a number of Python, NumPy or JAX; the dtype is that which an array would have.

    Returns:
      Tucker of the shape, ranks and kind of core of ``t``.

    Raises:
      TypeError: no Tucker, or no number. ValueError: an array with axes, or an infinite number of
        Python or NumPy: sums of products with it are NaN. (With one of JAX they are NaN or Inf.)

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1,)), [jnp.ones((2, 1))])
      >>> print(tucker.to_dense(tucker.scale(t, 3.0)))
      [3. 3.]

    Source: ours.
    """
    kind("t", t)
    return multiplied(t, factor)


def real(t: Tucker) -> Tucker:
    """Returns the real part of a Tucker tensor exactly; ranks of complex factors double.

    With U = A + iB, a mode of the core is read twice, as it is for A and times i for B. A dense
    core holds up to 2^d times as many elements then, and the TT-ranks of a train core double;
    `round` brings them down.

    Args:
      t: Tucker.

    Returns:
      Tucker of real dtype, ``t`` itself if it is real.

    Raises:
      TypeError: ``t`` is no Tucker.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1, 1)), [jnp.ones((2, 1)), jnp.ones((3, 1))])
      >>> print(tucker.real((2 + 1j) * t).ranks, tucker.to_dense(tucker.real((2 + 1j) * t))[0, 0])
      (2, 2) 2.0

    Source: ours.
    """
    kind("t", t)
    return _part(t, False) if jnp.issubdtype(t.dtype, jnp.complexfloating) else t


def imag(t: Tucker) -> Tucker:
    """Returns the imaginary part of a Tucker tensor exactly; zero for a real one.

    Args:
      t: Tucker.

    Returns:
      Tucker of real dtype: of ranks 2 s_k, or one if ``t`` is real.

    Raises:
      TypeError: ``t`` is no Tucker.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t = tucker.Tucker(jnp.ones((1, 1)), [jnp.ones((2, 1)), jnp.ones((3, 1))])
      >>> print(tucker.to_dense(tucker.imag((2 + 1j) * t))[0, 0])
      1.0

    Source: ours; see `real`.
    """
    kind("t", t)
    return _part(t, True) if jnp.issubdtype(t.dtype, jnp.complexfloating) else 0 * ones_like(t)


@functools.partial(jax.jit, static_argnums=1)
def _part(t: Tucker, imaginary: bool) -> Tucker:
    t = t.astype(t.dtype)
    core: Any = t.core
    train = isinstance(core, TT)
    for k in range(t.order):
        # Axes counted from the end: those before are a batch.
        if train:
            doubled = jnp.concatenate([core.cores[k], 1j * core.cores[k]], axis=-2)
            core = TT._unchecked((*core.cores[:k], doubled, *core.cores[k + 1 :]))
        else:
            core = jnp.concatenate([core, 1j * core], axis=k - t.order)
    if train:
        core = core._namespace.imag(core) if imaginary else core._namespace.real(core)
    else:
        core = core.imag if imaginary else core.real
    factors = tuple(jnp.concatenate([u.real, u.imag], axis=-1) for u in t.factors)
    return Tucker._unchecked(core, factors)


@placed
def pad(
    t: Tucker, rank: int | Sequence[int], core_rank: int | Sequence[int] | None = None
) -> Tucker:
    """Zero-pads a Tucker tensor's core and factors to multilinear ranks; entries are unchanged.

    Args:
      t: Tucker.
      rank: one int for all modes, or one per mode; not below the present ranks.
      core_rank: for a train core, its TT-ranks likewise; None keeps them.

    Returns:
      Tucker of the same entries and of exactly these ranks.

    Raises:
      ValueError: a rank is below the present one, or ``core_rank`` is given for a dense core.

    Example:
      >>> import jax
      >>> from tensorjax import tucker
      >>> tucker.pad(tucker.random(jax.random.key(0), (4, 5), 2), 3).ranks
      (3, 3)

    Source: ours.
    """
    one("t", t)
    check_core_rank(t, core_rank)
    ranks = _check.bond_ranks(rank, [2**62] * t.order, place="mode")
    if any(r < s for r, s in zip(ranks, t.ranks, strict=True)):
        raise ValueError(
            f"rank: expected at least the present ranks {t.ranks}, got {ranks}; "
            "use tucker.round to lower ranks"
        )
    widths = [(0, r - s) for r, s in zip(ranks, t.ranks, strict=True)]
    core = _padded(t.core, widths)
    if core_rank is not None:
        core = core._namespace.pad(core, core_rank)
    pairs = zip(t.factors, widths, strict=True)
    return Tucker._unchecked(core, tuple(zero_padded(u, [(0, 0), w]) for u, w in pairs))
