"""Range finder: orthonormal basis of a matrix's approximate range from a random sketch."""

import jax

from tensorjax import _check
from tensorjax._typing import AnyArray
from tensorjax.linalg._arrays import adjoint, check_matrices, matmul, random_like
from tensorjax.linalg._qr import qr

# Extra columns of a random sketch: the error is then within a few per cent of the best, and the
# probability of worse falls with the factorial of this number (Halko, Martinsson, Tropp 2011, §10).
OVERSAMPLE = 10


def range_finder(
    a: AnyArray, rank: int, *, power: int = 1, key: jax.Array | None = None
) -> AnyArray:
    """Computes an orthonormal basis of a matrix's approximate range from a random sketch.

    Args:
      a: (…, m, n).
      rank: number of columns, oversampling included; at most min(m, n).
      power: subspace iterations, each a product with aᴴ and one with a.
      key: for the draw; a fixed one if None.

    Returns:
      (…, m, rank) orthonormal columns, in the dtype of ``a``.

    Raises:
      TypeError: ``a`` is no array of numbers, or a key that is none. ValueError: it has fewer than
        two axes, or no such rank; a negative power.

    Example:
      >>> import numpy as np
      >>> from tensorjax import linalg
      >>> a = np.outer(np.arange(6.0), np.ones(4))
      >>> q = linalg.range_finder(a, 2)
      >>> bool(np.allclose(q @ (q.T @ a), a))
      True

    Source: Halko, Martinsson, Tropp, SIAM Rev. 53 (2011), algorithm 4.4. Entries are uniform here.
    """
    check_matrices("a", a)
    rank = _check.integer("rank", rank, low=1, high=min(a.shape[-2:]))
    power = _check.integer("power", power, low=0)
    q = qr(matmul(a, random_like(key, (a.shape[-1], rank), a)))[0]
    for _ in range(power):
        q = qr(matmul(adjoint(a), q))[0]
        q = qr(matmul(a, q))[0]
    return q
