"""Exact arithmetic of trains on their cores: sums, multiples, conjugates, transposes, Kronecker.

Every function works under jit, vmap and grad; TT-ranks add under `add`, and `tensorjax.tt.round`
brings them down again.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax._cores.products import added
from tensorjax._formats.arithmetic_operators import multiplied
from tensorjax._formats.trains import TT, Train, TTMatrix, known
from tensorjax._kernels.train_signatures import is_known, remember
from tensorjax._placement import placed
from tensorjax._typing import Scalar
from tensorjax.tt._broadcasting import broadcast_aligned
from tensorjax.tt._constructors import ones_like
from tensorjax.tt._folding import fold, rearranged, unfold


def _map(x: Train, f: Callable[[jax.Array], jax.Array]) -> Train:
    return type(x)._unchecked(tuple(f(c) for c in x.cores))


@placed
def add(x: Train, y: Train) -> Train:
    """Adds two trains by exact arithmetic: block-diagonal cores, TT-ranks add.

    Args:
      x: TT or TTMatrix.
      y: of the same kind and shape; modes of size one are broadcast, as in NumPy, on both sides.

    Returns:
      Train of the kind and shape of both and of TT-ranks r_k + s_k, in the promoted dtype.

    Raises:
      TypeError: the arguments are not two trains of one kind.
      ValueError: their shapes differ, or the numbers of their modes (``t[None]`` adds one).

    Example:
      >>> from tensorjax import tt
      >>> tt.add(tt.ones((2, 3)), tt.ones((2, 3))).ranks
      (1, 2, 1)

    The cores of each train are brought to one size first, by powers of two whose product is one, so
    that the sum is right for trains whose cores differ in size in opposite ways.

    Source: Oseledets (2011), section 4.1.
    """
    if is_known("add", x, y):
        return type(x)._unchecked(_add_cores(type(x), x.cores, y.cores))
    x, y = broadcast_aligned(x, y)
    remember("add", x, y)
    return type(x)._unchecked(_add_cores(type(x), x.cores, y.cores))


@jax.jit(static_argnums=0)  # of tuples, which are flattened in C, as trains are not
def _add_cores(kind: Any, xs: Any, ys: Any) -> tuple[Any, ...]:
    return _add(kind._unchecked(xs), kind._unchecked(ys)).cores


def _add(x: Any, y: Any) -> Any:
    if isinstance(x, TT):
        return TT._unchecked(tuple(added(x.cores, y.cores)))
    return unfold(_add(fold(x), fold(y)), x.row_shape, x.col_shape)


def scale(x: Train, factor: Scalar) -> Train:
    """Multiplies a tensor train by a scalar (traced or not) exactly, in its last core.

    Args:
      x: TT or TTMatrix.
      factor: a number of Python, NumPy or JAX; the dtype is that which an array would have.

    Returns:
      Train of the kind, shape and TT-ranks of ``x``.

    Raises:
      TypeError: no train, or no number. ValueError: an array with axes, or an infinite number of
        Python or NumPy: sums of products with it are NaN. (With one of JAX they are NaN or Inf.)

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.scale(tt.ones((2,)), 3.0)))
      [3. 3.]

    Source: Oseledets (2011), section 4.1.
    """
    known("x", x)
    return multiplied(x, factor)


def conj(x: Train) -> Train:
    """Computes the complex conjugate of a train exactly, by conjugating its cores.

    Args:
      x: TT or TTMatrix, real or complex.

    Returns:
      Train of the kind, shape, TT-ranks and dtype of ``x``.

    Raises:
      TypeError: ``x`` is no train.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.conj((2 + 1j) * tt.ones((2,)))))
      [2.-1.j 2.-1.j]

    Source: ours; an entry is a product of cores, and its conjugate that of theirs.
    """
    known("x", x)
    return _map(x, jnp.conj)


@placed
def real(x: Train) -> Train:
    """Computes a train's real part by exact arithmetic on cores; TT-ranks double if complex.

    A complex number a + ib acts as the real matrix [[a, −b], [b, a]], and so does a core: that of
    the products is the product of these matrices, which the last core cuts to one column and the
    first one to the row of the real part. `round` brings the ranks down.

    Args:
      x: TT or TTMatrix.

    Returns:
      Of the same kind and shape and of real dtype: ranks 2 r_k, or ``x`` itself if it is real.

    Raises:
      TypeError: ``x`` is no train.

    Example:
      >>> from tensorjax import tt
      >>> z = 1j * tt.ones((2, 3)) + 2
      >>> print(tt.real(z).dtype, tt.to_dense(tt.real(z))[0, 0], tt.to_dense(tt.imag(z))[0, 0])
      float32 2.0 1.0

    Source: ours.
    """
    known("x", x)
    return _part(x, False) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x


@placed
def imag(x: Train) -> Train:
    """Returns the imaginary part of a tensor train exactly; zero for a real train.

    Args:
      x: TT or TTMatrix.

    Returns:
      Of the same kind and shape and of real dtype: ranks 2 r_k, or one if ``x`` is real.

    Raises:
      TypeError: ``x`` is no train.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.imag((2 + 1j) * tt.ones((2,)))))
      [1. 1.]

    Source: ours; see `real`.
    """
    known("x", x)
    complex_ = jnp.issubdtype(x.dtype, jnp.complexfloating)
    return _part(x, True) if complex_ else multiplied(ones_like(x), 0)


@functools.partial(jax.jit, static_argnums=1)
def _part(x: Train, imaginary: bool) -> Train:
    cores = []
    for k, c in enumerate(x.astype(x.dtype).cores):
        # Columns first: [a; b] of the matrix, then [−b; a].
        rows = [c.imag, c.real] if k == 0 and imaginary else [c.real, c.imag]
        turned = [c.real, -c.imag] if k == 0 and imaginary else [-c.imag, c.real]
        keep = 1 if k == 0 else 2
        columns = [rows] if k == x.order - 1 else [rows, turned]
        blocks = [jnp.concatenate(rows[:keep], axis=-x._core_ndim) for rows in columns]
        cores.append(jnp.concatenate(blocks, axis=-1))
    return type(x)._unchecked(tuple(cores))


@placed
def transpose(a: TTMatrix) -> TTMatrix:
    """Transposes a TT-matrix exactly, without conjugation: swaps row and column modes of cores.

    Args:
      a: TTMatrix of row modes m_k and column modes n_k.

    Returns:
      TTMatrix of row modes n_k and column modes m_k, and of the TT-ranks of ``a``.

    Raises:
      TypeError: ``a`` is no TTMatrix; `reverse` reverses the modes of a TT.

    Example:
      >>> from tensorjax import tt
      >>> tt.transpose(tt.ones_matrix((2, 3), (4, 5))).row_shape
      (4, 5)

    Source: ours.
    """
    if not isinstance(a, TTMatrix):
        raise TypeError(f"a: expected a TTMatrix, got {type(a).__name__}")
    known("a", a)
    return TTMatrix._unchecked(rearranged("transpose", a.cores, lambda c: c.swapaxes(-3, -2)))


def kron(x: Train, y: Train) -> Train:
    """Computes the Kronecker (tensor) product of trains exactly: cores of ``x``, then of ``y``.

    Args:
      x: TT or TTMatrix.
      y: of the same kind.

    Returns:
      Train of the modes of ``x``, then those of ``y``; the TT-ranks stay, the rank of the bond
      between them is one. Its dtype is the promoted one.

    Raises:
      TypeError: the arguments are not two trains of one kind.

    Example:
      >>> from tensorjax import tt
      >>> tt.kron(tt.ones((2, 3)), tt.ones((4,))).shape
      (2, 3, 4)

    Source: ours.
    """
    if type(x) is not type(y):
        raise TypeError(f"expected one kind, got {type(x).__name__} and {type(y).__name__}")
    known("x", x)
    known("y", y)
    dtype = jnp.promote_types(x.dtype, y.dtype)
    return type(x)._unchecked(x.astype(dtype).cores + y.astype(dtype).cores)
