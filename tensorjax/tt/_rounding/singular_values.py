"""Singular values of tensor trains, for every bond."""

from typing import Any

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.contractions import absorb
from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax._cores.unfoldings import Cores, tall
from tensorjax._formats.trains import TT, Train, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed, replicated
from tensorjax.linalg._arrays import factor_dtype
from tensorjax.tt._folding import folded
from tensorjax.tt._rounding.orthogonalize import orthogonal_cores


@placed
def singular_values(t: Train) -> list[jax.Array]:
    """Computes the singular values of a train at every bond (Schmidt values of a state).

    Bond k parts the first k modes from the others; its singular values are those of the unfolding
    of the tensor there. Their squares sum to the squared norm at each bond, and what a rounding to
    rank r discards there is the sum of the squares beyond the r-th.

    Args:
      t: TT or TTMatrix, of d modes.

    Returns:
      List of d − 1 arrays, descending, of min(rank, product of the modes left of the bond, product
      of those right of it) entries each, in the real dtype of ``t``; one zero where there are no
      entries. Values below eps times the norm are roundoff. Those that the dtype cannot hold are
      inf, as the norm is.

    Raises:
      TypeError: ``t`` is no train. ValueError: it is batched, or holds NaN or Inf.

    Example:
      >>> from tensorjax import tt
      >>> x = tt.unit((2, 2), (0, 0)) + 0.5 * tt.unit((2, 2), (1, 1))
      >>> print([s.round(3).tolist() for s in tt.singular_values(x)])
      [[1.0, 0.5]]

    Source: Oseledets (2011), section 3; of states, G. Vidal, "Efficient classical simulation of
    slightly entangled quantum computations", Phys. Rev. Lett. 91, 147902 (2003). O(d n r³)
    operations: one QR sweep and one sweep of SVDs.
    """
    single("t", t)
    _check.finite("t", t)
    return _singular_values(t)


@folded
def _singular_values(t: Any) -> Any:
    if choose_kernel("tt.singular_values", t.cores) is not NUMPY:
        return _by_program(t)
    wide = np.result_type(factor_dtype(t.dtype), np.float64)
    found = _spectra(*right_orthogonal([np.asarray(c).astype(wide) for c in t.cores]))
    real = np.finfo(t.dtype).dtype
    with np.errstate(over="ignore"):  # inf, as documented
        place = replicated(t.cores[0])
        return [jax.device_put(s.astype(real), place) for s in found]


@jax.jit
def _by_program(t: TT) -> list[jax.Array]:
    return [s.astype(np.finfo(t.dtype).dtype) for s in _spectra(*orthogonal_cores(t, 0))]


def _spectra(cores: Cores, exponent: Any) -> Cores:
    """Computes `singular_values` of every bond from right-orthogonal cores, times 2^exponent."""
    values, core = [], cores[0]
    for following in cores[1:]:
        _, s, vh = linalg.svd(tall(core))
        values.append(linalg.scaled(s, exponent))
        core = absorb(s[:, None].astype(vh.dtype) * vh, following)
    return values
