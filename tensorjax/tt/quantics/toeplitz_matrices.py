"""Toeplitz and circulant matrices of trains, and discrete Fourier transforms, as TT-matrices."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from tensorjax._cores.contractions import einsum
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax.tt.quantics.digit_trains import like


@placed
def circulant(t: TT) -> TTMatrix:
    """Constructs the circulant TT-matrix C[i, j] = t[(i − j) mod N] from a tensor train t.

    Args:
      t: TT of the N entries, most significant digits first, whose modes may have any sizes.

    Returns:
      TTMatrix with twice the TT-ranks of ``t``. Its product with a train is the cyclic convolution.

    Raises:
      TypeError: no TT.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> c = tt.quantics.circulant(tt.from_dense(jnp.arange(4.0).reshape(2, 2), rank=2))
      >>> print(c @ jnp.array([0.0, 1.0, 0.0, 0.0]))
      [3. 0. 1. 2.]

    Source: Kazeev, Khoromskij and Tyrtyshnikov (2013), see `shift`, Theorem 3.3.
    """
    single("t", t, TT)
    cores = [_with_carries(c) for c in _near(t)]
    # A carry out of the first digit is dropped: indices are modulo N. None comes into the last.
    return _closed(cores, like(np.ones((1, 2)), cores[0]))


@placed
def toeplitz(t: TT) -> TTMatrix:
    """Constructs the N × N Toeplitz matrix from its first column and row, a train of 2 N entries.

    Args:
      t: TT of shape (2, n_1, …, n_d), N = ∏ n_k: the first N entries are the column, entry 2 N − k
        is that of the first row at k = 1, …, N − 1; the entry N is not used. This is the first
        column of the circulant matrix of which the result is the first block.

    Returns:
      TTMatrix of row and column shape (n_1, …, n_d), with twice the TT-ranks of ``t``.

    Raises:
      ValueError: a first mode that is not of size 2, or no other. TypeError: no TT.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> both = jnp.array([1.0, 2.0, 3.0, 4.0, 0.0, 7.0, 6.0, 5.0])
      >>> t = tt.from_dense(both.reshape(2, 2, 2), rank=4)
      >>> print(tt.to_dense(tt.quantics.toeplitz(t)).reshape(4, 4).round())
      [[1. 5. 6. 7.]
       [2. 1. 5. 6.]
       [3. 2. 1. 5.]
       [4. 3. 2. 1.]]

    Source: Kazeev, Khoromskij and Tyrtyshnikov (2013), see `shift`, Theorem 3.3.
    """
    single("t", t, TT)
    if t.order < 2 or t.shape[0] != 2:
        raise ValueError(f"t: expected shape (2, n_1, …), got {t.shape}")
    first, *others = _near(t)
    cores = [_with_carries(c) for c in others]
    # Row and column have no digit before: the offset's first digit is minus the carry, mod 2.
    cores[0] = einsum("cr,rcmns->mns", first[0], cores[0].reshape(-1, 2, *cores[0].shape[1:]))[None]
    return _closed(cores, None)


def _near(t: TT) -> list[Any]:
    """Returns a quantics train's cores for a Toeplitz matrix, in NumPy if they lie on one CPU."""
    on_host = choose_kernel("tt.quantics.toeplitz", (t,)) is NUMPY
    return [np.asarray(c) if on_host else c.astype(t.dtype) for c in t.cores]


def _with_carries(core: Any) -> Any:
    """Builds the core of a Toeplitz matrix over one digit, with carries on its bonds."""
    n = core.shape[1]
    add = np.zeros((2, n, n, n, 2))
    for offset in range(n):
        for j in range(n):
            for into in (0, 1):
                out, i = divmod(j + offset + into, n)
                add[out, i, j, offset, into] = 1
    both = einsum("rks,cijkd->rcijsd", core, like(add, core))
    (r, c, _, _, s, d) = both.shape
    return both.reshape(r * c, n, n, s * d)


def _closed(cores: list[Any], first: Any) -> TTMatrix:
    """Closes the outer bonds of a Toeplitz matrix's cores, and builds the TT-matrix."""
    if first is not None:
        cores[0] = einsum("ar,rmns->amns", first, cores[0])
    cores[-1] = cores[-1][..., :1]
    return TTMatrix._unchecked(tuple(map(jnp.asarray, cores)))
