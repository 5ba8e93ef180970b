"""Log-norm and normalisation of tensor trains whose norm over- or underflows."""

import math
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._cores.scaling import computed_once, evenly, shared_exponents
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import PROGRAM
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._folding import as_train
from tensorjax.tt._inner_products import overlaps_on_host
from tensorjax.tt._inner_products.norms import squared_norm, squared_norm_by_program

Train = TypeVar("Train", TT, TTMatrix)


@placed
@as_train
def log_norm(t: TT | TTMatrix) -> jax.Array:
    """Computes ln ‖t‖, the log of a tensor train's Frobenius norm, however large; −∞ for zero.

    Right also where `norm` overflows or vanishes, with derivatives: that of a zero train is zero.

    Args:
      t: TT or TTMatrix.

    Returns:
      Real scalar, of the precision of ``t``.

    Raises:
      TypeError: ``t`` is no train. ValueError: it is a batch of them.

    Example:
      >>> from tensorjax import tt
      >>> print(f"{tt.log_norm(tt.ones((10_000,) * 20)):.3f}")  # of a norm of 1e40
      92.103

    Source: ours.
    """
    t = cast(TT, t)
    found = overlaps_on_host.squared_norm(t)
    if found is None:
        return _log_norm(t)
    square, half = found
    with np.errstate(all="ignore"):
        log = -math.inf if square <= 0 else np.log(square) / 2 + half * math.log(2)
    return on_device([np.asarray(log).astype(jnp.finfo(t.dtype).dtype)])[0]


@jax.jit
def _log_norm(t: TT) -> jax.Array:
    square, half = squared_norm(t.astype(linalg.factor_dtype(t.dtype)))
    none = square <= 0
    log = jnp.log(jnp.where(none, 1, square)) / 2 + half.astype(square.dtype) * math.log(2)
    return jnp.where(none, -jnp.inf, log).astype(jnp.finfo(t.dtype).dtype)


@placed
def normalize(t: Train) -> Train:
    """Normalises a tensor train: t / ‖t‖, of norm one; a zero train stays as it is.

    Right also where ``t / tt.norm(t)`` is not, for no scalar may hold the norm: cores are scaled
    by powers of two, which all of them share.

    Args:
      t: TT or TTMatrix.

    Returns:
      Train of the kind, shape, TT-ranks and dtype of ``t``.

    Raises:
      TypeError: ``t`` is no train. ValueError: it is a batch of them.

    Example:
      >>> from tensorjax import tt
      >>> print(f"{tt.norm(tt.normalize(tt.ones((10_000,) * 20))):.4f}")
      1.0000

    Source: ours.
    """
    return _normalize(t)


@as_train
def _normalize(t: Any) -> Any:
    return _normalized(t)


# Programs of one core each: of hundreds of cores, most alike, few are compiled.
_near_one = jax.jit(linalg.normalized)
_over = jax.jit(lambda core, root, e: linalg.scaled(core / root, e))


def _normalized(t: TT) -> TT:
    if choose_kernel("tt.log_norm", t.cores) is PROGRAM:
        return _normalized_by_programs(t)
    dtype = linalg.factor_dtype(t.dtype)
    cores = [linalg.normalized(np.asarray(c).astype(dtype, copy=False))[0] for c in t.cores]
    found = overlaps_on_host.squared_norm(TT._unchecked(tuple(cores)))
    assert found is not None  # by the same row of the table
    square, half = found
    if not square <= 0:
        with np.errstate(all="ignore"):
            cores[0] = cores[0] / np.sqrt(square).astype(cores[0].real.dtype)
            exponents = evenly(-half, t.order)
            cores = [linalg.scaled(c, e) for c, e in zip(cores, exponents, strict=True)]
    return TT._unchecked(tuple(on_device([c.astype(t.dtype, copy=False) for c in cores])))


def _normalized_by_programs(t: TT) -> TT:
    # Of cores near one the norm is so near to one that all of them can share its exponent.
    small = TT._unchecked(
        tuple(_near_one(c.astype(linalg.factor_dtype(t.dtype)))[0] for c in t.cores)
    )
    square, half = squared_norm_by_program(small)
    none = square <= 0
    root: Any = jnp.sqrt(jnp.where(none, 1, square)).astype(small.dtype)
    roots = [root] + [jnp.ones_like(root)] * (t.order - 1)
    exponents = shared_exponents(computed_once(jnp.where(none, 0, -half)), t.order, 0, False)
    cores = map(_over, small.cores, roots, exponents)
    return TT._unchecked(tuple(c.astype(t.dtype) for c in cores))
