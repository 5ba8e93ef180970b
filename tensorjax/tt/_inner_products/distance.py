"""Distance of two tensor trains, to roundoff of their norms."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._cores.overlaps import difference
from tensorjax._formats.scalar_range import held, power_of_ten
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import PROGRAM
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._algebra import Train
from tensorjax.tt._broadcasting import aligned
from tensorjax.tt._folding import as_train
from tensorjax.tt._inner_products.norms import NORM_REMEDY


@placed
@as_train
def distance(x: Train, y: Train) -> jax.Array:
    """Computes the distance ‖x − y‖ of two tensor trains, accurate to a few eps·(‖x‖ + ‖y‖).

    The difference is orthogonalised, never squared: ‖x‖² − 2⟨x, y⟩ + ‖y‖² would lose everything
    below √eps.

    Args:
      x: TT or TTMatrix.
      y: of the same kind and shape.

    Returns:
      Real scalar, of the promoted precision; under jit, vmap and grad inf where the dtype
      cannot hold it.

    Raises:
      TypeError: the arguments are not two trains of one kind. ValueError: their shapes differ.
      OverflowError: the distance of concrete finite trains is above the range of the dtype.

    Example:
      >>> from tensorjax import tt
      >>> x = tt.ones((4,) * 10)
      >>> bool(tt.distance(x, x * (1 + 1e-6)) < 2e-6 * tt.norm(x))
      True

    Source: ours; the sweep by QR is that of Oseledets (2011), section 3.
    """
    x, y = aligned(x, y)
    real = jnp.finfo(x.dtype).dtype
    x, y = (t.astype(linalg.factor_dtype(t.dtype)) for t in (x, y))
    if choose_kernel("tt.distance", (x, y)) is PROGRAM:
        return _distance(x.cores, y.cores).astype(real)
    # Concrete trains differ in rank from call to call: on the host nothing is compiled.
    wide = np.result_type(x.dtype, np.float64)
    host = [[np.asarray(c).astype(wide, copy=False) for c in t.cores] for t in (x, y)]
    with np.errstate(over="ignore", invalid="ignore"):  # of Inf, whose distance is NaN
        length, exponent = difference(*host)
        value = np.asarray(np.ldexp(length, exponent).astype(real))
    power = power_of_ten(length, exponent)
    powers = power, lambda: math.inf  # that of equal trains is roundoff, or zero
    return held("the distance", on_device([value])[0], lambda: powers, NORM_REMEDY.format("x - y"))


def _distance(xs: Any, ys: Any) -> Any:
    length, exponent = difference(xs, ys)
    return (np if linalg.is_host(length) else jnp).ldexp(length, exponent)
