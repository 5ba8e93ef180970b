"""Cayley transform and skew part, for optimisation over matrices with orthonormal columns."""

from tensorjax.linalg._arrays import (
    Array,
    adjoint,
    identity_like,
    namespace,
)


def skew(a: Array) -> Array:
    """Returns the skew-Hermitian part (a − aᴴ)/2 of a matrix."""
    return (a - adjoint(a)) / 2


def cayley(z: Array) -> Array:
    """Computes the Cayley transform (1 − z/2)⁻¹ (1 + z/2), unitary for skew-Hermitian z."""
    eye = identity_like(z.shape[-1], z)
    return namespace(z).linalg.solve(eye - z / 2, eye + z / 2)
