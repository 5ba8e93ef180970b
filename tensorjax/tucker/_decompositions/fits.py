"""Report, checks and errors that fits of Tucker tensors to data share."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.scaling import balanced
from tensorjax.tucker._types import Tucker


@dataclasses.dataclass(frozen=True)
class FitInfo:
    """Report of an alternating fit of a Tucker tensor: status, error and sweeps.

    Attributes:
      status: "converged", a sweep changed the error by less than ``tol``; or "max_sweeps", the
        sweeps did not suffice: raise ``max_sweeps``.
      error: ‖x − result‖ / ‖x‖ over the entries that the mask keeps.
      sweeps: over all modes.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tucker
      >>> t, info = tucker.hooi(jnp.ones((3, 4)), rank=1)
      >>> info.status, info.error < 1e-6
      ('converged', True)

    Source: ours.
    """

    status: Literal["converged", "max_sweeps"]
    error: float
    sweeps: int


def checked_data(x: Any, mask: Any) -> tuple[np.ndarray, Any]:
    """Checks data and mask of a Tucker fit (HOOI, nonnegative); returns both for the host."""
    if _check.is_traced(x, mask):
        raise TypeError("x: expected a concrete array; fits iterate outside of jit, vmap and grad")
    x = _check.inexact("x", x)
    _check.shape("x.shape", x.shape)
    host = np.asarray(x).astype(np.result_type(linalg.factor_dtype(x.dtype), np.float64))
    if mask is None:
        _check.finite("x", host)
        return host, None
    kept = np.asarray(mask)
    if kept.dtype != bool:
        raise TypeError(f"mask: expected Booleans, got dtype {kept.dtype}")
    if kept.shape != host.shape or not kept.any():
        got = f"shape {kept.shape}" if kept.shape != host.shape else "none that is true"
        raise ValueError(f"mask: expected Booleans of shape {host.shape}, some true, got {got}")
    host = np.where(kept, host, 0)
    _check.finite("x", host)
    return host, None if kept.all() else kept


def relative_error(x: np.ndarray, fitted: np.ndarray, kept: Any) -> float:
    """Computes the relative error ‖x − fitted‖ / ‖x‖ of a Tucker fit over unmasked entries."""
    off = x - fitted if kept is None else np.where(kept, x - fitted, 0)
    size = float(np.linalg.norm(x if kept is None else np.where(kept, x, 0)))
    return float(np.linalg.norm(off)) / size if size else float(np.linalg.norm(off))


def as_tucker(core: Any, factors: Sequence[Any], exponent: int, x: Any) -> Tucker:
    """Builds a fitted Tucker tensor in the dtype of the data, multiplied by 2^exponent."""
    dtype = jax.dtypes.canonicalize_dtype(np.asarray(x).dtype)
    *factors, core = balanced([*factors, core], exponent, fit=linalg.exponents_held(dtype))
    core, *factors = jax.device_put([np.asarray(a).astype(dtype) for a in (core, *factors)])
    return Tucker._unchecked(core, tuple(factors))
