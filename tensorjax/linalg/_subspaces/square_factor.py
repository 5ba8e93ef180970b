"""Square factor f of a Gram matrix, f fᴴ = a aᴴ, with the subspaces of a matrix at small size."""

from typing import Any

import jax
import jax.numpy as jnp

from tensorjax._typing import AnyArray
from tensorjax.linalg._arrays import Array, adjoint, is_host, matmul, root, scale_columns
from tensorjax.linalg._powers_of_two import normalized, scaled
from tensorjax.linalg._subspaces.method_choice import Method
from tensorjax.linalg._subspaces.spectrum import left_spectrum, reciprocals
from tensorjax.linalg._subspaces.truncated_basis import check_options


def square_factor(
    a: AnyArray, *, rank: int | None = None, share: float | None = None, method: Method = "svd"
) -> tuple[AnyArray, AnyArray]:
    """Computes a square factor f of a aᴴ, with the left singular subspaces of a at small size.

    The columns of f are the left singular vectors times the singular values, so f has all the left
    subspaces of ``a``, and those of its unfoldings, at the size of a square matrix. Entries of
    ``a`` may be of any size: it is scaled by a power of two, so that no square leaves the range.

    Args:
      a: (…, m, n).
      rank: how many singular values must be accurate beside the largest; all if None.
      share: the share of ‖a‖_F² below which they need not be accurate.
      method: "svd" or "gram" ("randomized" is taken as "gram").

    Returns:
      (f, squared singular values (…, k), descending), k = min(m, n). Squared singular values are
      infinite or zero where they are out of range.

    Raises:
      TypeError: ``a`` is no array of numbers, or share no number. ValueError: ``a`` has fewer than
        two axes, the rank is below 0, the method unknown.

    Example:
      >>> import numpy as np
      >>> from tensorjax import linalg
      >>> a = np.arange(12.0).reshape(2, 6)
      >>> f, energies = linalg.square_factor(a)
      >>> f.shape, bool(np.allclose(f @ f.T, a @ a.T))
      ((2, 2), True)

    Source: ours.
    """
    check_options(a, rank, share, method)
    x, exponent = normalized(a, axis=(-2, -1))
    f, energies = factor_near_one(x, rank=rank, share=share, method=method)
    e = exponent[..., 0]
    return scaled(f, exponent), scaled(scaled(energies, e), e)


def factor_near_one(
    a: Array, *, rank: int | None, share: float | None, method: Method
) -> tuple[Array, Array]:
    """Computes a square factor of a Gram matrix, as `square_factor`, if squares are in range."""
    method = "gram" if method == "randomized" else method
    if is_host(a):
        return _square_factor(a, share, rank, method)
    return _differentiable_factor(a, share, rank, method)


def _square_factor(a: Array, share: Any, rank: int | None, method: Method) -> tuple[Array, Array]:
    u, energies = left_spectrum(a, rank, None, share, method)
    return scale_columns(u, root(energies)), energies


_differentiable_factor = jax.custom_jvp(_square_factor, nondiff_argnums=(2, 3))


@_differentiable_factor.defjvp
def _square_factor_jvp(rank: Any, method: Method, primals: Any, tangents: Any) -> Any:
    """Differentiates a subspace's square-root factor, f fᴴ = a aᴴ, its directions held fixed."""
    (a, share), (da, _) = primals, tangents
    f, energies = _differentiable_factor(a, share, rank, method)
    moved = matmul(da, matmul(adjoint(a), f))
    inverse = reciprocals(energies, energies, method)
    change = 2 * jnp.sum((f.conj() * moved).real, axis=-2) * inverse
    return (f, energies), (scale_columns(moved, inverse), change)
