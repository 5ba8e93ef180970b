"""Inner product of two tensor trains."""

import functools
from typing import Any, cast

import jax

from tensorjax import linalg
from tensorjax._formats.scalar_range import held
from tensorjax._formats.trains import TT
from tensorjax._kernels.known_trains import is_known
from tensorjax._placement import placed
from tensorjax.tt._algebra import Train, conj
from tensorjax.tt._broadcasting import aligned
from tensorjax.tt._folding import as_train
from tensorjax.tt._inner_products import overlaps_on_host
from tensorjax.tt._inner_products.overlaps_in_programs import overlap


@placed
def inner(x: Train, y: Train) -> jax.Array:
    """Computes the inner product ⟨x, y⟩ = Σ conj(x_i) y_i of two tensor trains, a scalar.

    For TT-matrices it is the Frobenius inner product. Intermediate results are kept in range by
    exact powers of two, so only the value itself can overflow, or, in programs of XLA, a core of y
    whose entries are within the number of its entries of the largest one that the dtype holds.

    Args:
      x: TT or TTMatrix; conjugated.
      y: of the same kind and shape.

    Returns:
      Scalar in the promoted dtype.

    Raises:
      TypeError: the arguments are not two trains of one kind. ValueError: their shapes differ.
      OverflowError: on a CPU, the value is out of the range of the dtype, unless it is below
        roundoff of ‖x‖·‖y‖; on accelerators and under jit, vmap and grad it is inf or 0, as in IEEE
        arithmetic.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.inner(tt.ones((2, 3)), tt.ones((2, 3))))
      6.0

    Source: Oseledets (2011), section 4.2; O(d n r³) operations. Departure, ours: programs for one
    CPU multiply trains in float64 from both ends at once, by compiled sweeps (tensorjax/_native).
    The first calls with concrete trains of one shape on a CPU (ten with small cores, three with
    large ones) are NumPy's, with nothing compiled; later ones of real trains are one call of these
    sweeps, float32 in double precision, and may differ by roundoff; long ones of float32, and those
    of complex trains, are programs.
    """
    if is_known("inner", x, y):
        return _held(overlaps_on_host.in_one_call(cast(TT, x), cast(TT, y)), x, y)
    return _checked_inner(x, y)


@as_train
def _checked_inner(x: Train, y: Train) -> jax.Array:
    x, y = aligned(x, y)
    value = overlaps_on_host.inner(cast(TT, x), cast(TT, y))
    return _held(_inner(x, y) if value is None else value, x, y)


def _held(value: jax.Array, x: Any, y: Any) -> jax.Array:
    powers = functools.partial(overlaps_on_host.powers, x, y)
    return held("the inner product", value, powers, "normalize the trains by tt.normalize")


@jax.jit
def _inner(x: TT, y: TT) -> jax.Array:
    return linalg.scaled(*overlap(conj(x), y))
