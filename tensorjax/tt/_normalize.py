"""Log-norm and normalisation of trains whose norm over- or underflows."""

import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from tensorjax import linalg
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._placement import placed
from tensorjax.tt._folding import as_train
from tensorjax.tt._norms import _squared_norm, squared_norm

Train = TypeVar("Train", TT, TTMatrix)


@placed
@as_train
def log_norm(t: TT | TTMatrix) -> jax.Array:
    """Computes ln ‖t‖, the log of a train's Frobenius norm, however large; −∞ for zero.

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
    return _log_norm(t)


@jax.jit
def _log_norm(t: TT) -> jax.Array:
    square, half = squared_norm(t.astype(linalg.factor_dtype(t.dtype)))
    none = square <= 0
    log = jnp.log(jnp.where(none, 1, square)) / 2 + half.astype(square.dtype) * math.log(2)
    return jnp.where(none, -jnp.inf, log).astype(jnp.finfo(t.dtype).dtype)


@placed
def normalize(t: Train) -> Train:
    """Normalises a train: t / ‖t‖, of norm one; a zero train stays as it is.

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
    # Of cores near one the norm is so near to one that all of them can share its exponent.
    small = TT._unchecked(
        tuple(_near_one(c.astype(linalg.factor_dtype(t.dtype)))[0] for c in t.cores)
    )
    square, half = _squared_norm(small)
    none = square <= 0
    root: Any = jnp.sqrt(jnp.where(none, 1, square)).astype(small.dtype)
    share, rest = jnp.divmod(jnp.where(none, 0, -half), t.order)
    roots = [root] + [jnp.ones_like(root)] * (t.order - 1)
    # What is left takes one power from each of so many cores: all of it, one core could not hold.
    exponents = [share + (k < rest).astype(share.dtype) for k in range(t.order)]
    cores = map(_over, small.cores, roots, exponents)
    return TT._unchecked(tuple(c.astype(t.dtype) for c in cores))
