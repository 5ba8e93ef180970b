"""Bilinear forms ⟨x|A|y⟩ of a TT-matrix between two trains, contracted without forming A y."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, linalg
from tensorjax._cores import interfaces
from tensorjax._cores.scaling import near_one
from tensorjax._formats.scalar_range import Powers, held, power_of_ten
from tensorjax._formats.trains import TT, TTMatrix, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._folding import fold
from tensorjax.tt._inner_products import overlaps_on_host


@placed
def bilinear_form(x: TT, a: TTMatrix, y: TT) -> jax.Array:
    """Computes ⟨x|A|y⟩ of a TT-matrix between two trains in one sweep, without A y.

    Args:
      x: TT of shape ``a.row_shape``; conjugated.
      a: TTMatrix.
      y: TT of shape ``a.col_shape``.

    Returns:
      Scalar; only the value itself can leave the range of the dtype.

    Raises:
      TypeError: arguments of other kinds. ValueError: shapes that do not fit. OverflowError: the
        value is out of the range of the dtype, as of `inner`.

    Example:
      >>> from tensorjax import tt
      >>> x = tt.ones((2, 3))
      >>> print(tt.bilinear_form(x, tt.identity((2, 3)), x))
      6.0

    Source: A. Novikov et al., "Tensor Train decomposition on TensorFlow (T3F)", JMLR 21 (2020),
    ``bilinear_form``; Schollwöck, Ann. Phys. 326 (2011), section 6.2. For trains of ranks r and a
    matrix of ranks R it takes O(d n r² R (r + n R)) operations; first calls with concrete
    arguments on a CPU are NumPy's, with nothing compiled.
    """
    single("x", x, TT)
    single("a", a, TTMatrix)
    single("y", y, TT)
    if x.shape != a.row_shape or y.shape != a.col_shape:
        raise ValueError(
            f"x, y: expected shapes {a.row_shape} and {a.col_shape}, the rows and columns of a, "
            f"got {x.shape} and {y.shape}"
        )
    dtype = functools.reduce(jnp.promote_types, (x.dtype, a.dtype, y.dtype))
    parts = [[c.astype(dtype) for c in t.cores] for t in (x, a, y)]
    cores = [c for part in parts for c in part]
    facts = {"dtype": np.dtype(dtype), "key": "bilinear", "work": lambda: _work(x, a, y)}
    if choose_kernel("tt.bilinear_form", cores, **facts) is NUMPY:
        with np.errstate(all="ignore"), _blas_threads.one_thread(True):
            value = on_device([np.asarray(_form(*jax.tree.map(np.asarray, parts)))])[0]
    else:
        value = _compiled(*parts)
    powers = functools.partial(_powers, x, a, y)
    return held("the bilinear form", value, powers, "scale the trains by tt.normalize")


def _powers(x: TT, a: TTMatrix, y: TT) -> Powers:
    """Returns log10 |⟨x|A|y⟩| and a function for log10 ‖x‖·‖A‖·‖y‖, for overflow checks."""
    kind = np.result_type(*(linalg.factor_dtype(t.dtype) for t in (x, a, y)), np.float64)
    parts = [[np.asarray(c).astype(kind) for c in t.cores] for t in (x, a, y)]
    with np.errstate(all="ignore"):
        power = power_of_ten(*_scaled_form(*parts))
    return power, lambda: sum(overlaps_on_host.norm_power(t) for t in (x, fold(a), y))


def _work(x: TT, a: TTMatrix, y: TT) -> float:
    """Counts the multiplications in a bilinear form of a TT-matrix."""
    total = 0.0
    for left, operator, right in zip(x.cores, a.cores, y.cores, strict=True):
        (p, m, s), (r, _, n, t), (q, _, v) = left.shape, operator.shape, right.shape
        total += p * r * q * n * v + p * r * n * v * m * t + p * m * t * v * s
    return total


def _form(xs: Any, operators: Any, ys: Any) -> Any:
    """Computes a bilinear form of cores by a sweep of interfaces, scaled by powers of two."""
    return linalg.scaled(*_scaled_form(xs, operators, ys)).astype(xs[0].dtype)


def _scaled_form(xs: Any, operators: Any, ys: Any) -> tuple[Any, Any]:
    """Computes a bilinear form of cores as (m, e), which means m·2^e."""
    wide = linalg.factor_dtype(xs[0].dtype)
    edge, exponent = interfaces.edge(xs[0].astype(wide)), 0
    for site in zip(xs, operators, ys, strict=True):
        (x, a, y), e = near_one([c.astype(wide) for c in site])
        edge, own = linalg.normalized(interfaces.left(edge, x, a, y))
        exponent = exponent + e + own
    return edge[0, 0, 0], exponent


_compiled = jax.jit(_form)
