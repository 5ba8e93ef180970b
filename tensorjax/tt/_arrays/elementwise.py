"""Functions applied entry by entry, by cross approximation: map and divide."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tensorjax._formats.trains import TT, single
from tensorjax._placement import placed
from tensorjax.tt._cross.cross import CrossInfo, cross
from tensorjax.tt._evaluation.evaluate import evaluate


@placed
def map(
    f: Callable[..., Any], *trains: TT, tol: float, key: jax.Array, **options: Any
) -> tuple[TT, CrossInfo]:
    """Applies f elementwise to one or more trains, entry by entry, by cross approximation.

    Args:
      f: takes one array (batch,) of entries for each train, and returns (batch,) values.
      trains: one or more TT of one shape.
      tol: relative error asked for; see `cross`.
      key: of `jax.random`.
      options: others of `cross`, as ``max_rank`` and ``max_evaluations``.

    Returns:
      (TT, `CrossInfo`); its status says whether the tolerance was reached.

    Raises:
      ValueError: no train, shapes that differ, values of ``f`` that are not finite.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> from tensorjax import tt
      >>> x = tt.rank_one([jnp.linspace(1.0, 2.0, 5)] * 3)
      >>> root, info = tt.map(np.sqrt, x, tol=1e-5, key=jax.random.key(0))
      >>> info.status, bool(abs(root[4, 4, 4] - 8**0.5) < 1e-4)
      ('converged', True)
    """
    if not trains:
        raise ValueError("trains: expected one or more trains, got none")
    for k, t in enumerate(trains):
        single(f"trains[{k}]", t, TT)
        if t.shape != trains[0].shape:
            raise ValueError(f"trains[{k}]: expected shape {trains[0].shape}, got {t.shape}")

    def values(indices: np.ndarray) -> Any:
        return f(*(np.asarray(evaluate(t, indices)) for t in trains))

    return cross(values, trains[0].shape, tol=tol, key=key, **options)


@placed
def divide(x: TT, y: TT, *, tol: float, key: jax.Array, **options: Any) -> tuple[TT, CrossInfo]:
    """Divides trains elementwise, by cross approximation; no entry of y may be zero.

    Args:
      x: TT.
      y: TT of the same shape.
      tol: relative error asked for; see `cross`.
      key: of `jax.random`.
      options: others of `cross`.

    Returns:
      (TT, `CrossInfo`).

    Raises:
      ValueError: shapes differ, or a quotient that was looked at is not finite.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x = tt.rank_one([jnp.linspace(1.0, 2.0, 5)] * 3)
      >>> one, info = tt.divide(x, x, tol=1e-5, key=jax.random.key(0))
      >>> info.status, one.ranks
      ('converged', (1, 1, 1, 1))
    """

    def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return a / b  # what is not finite, `cross` names with its multi-index

    return map(quotient, x, y, tol=tol, key=key, **options)
