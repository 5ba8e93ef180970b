"""Linear systems in TT format."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

from tensorjax import _check, linalg
from tensorjax._train import TT, TTMatrix, single
from tensorjax.tt import _amen as amen
from tensorjax.tt import _hosted as hosted

Status = Literal["converged", "stalled", "singular", "max_sweeps"]


@dataclasses.dataclass(frozen=True)
class SolveInfo:
    """How a linear solve went.

    Attributes:
      status: "converged", "stalled", "singular" or "max_sweeps".
      residual: ‖A x − b‖ / ‖b‖ of the train returned, measured, not estimated.
      sweeps: passes over the train (AMEn), or Krylov steps (GMRES).
      ranks: TT-ranks of the train returned.
      local_iterations: Krylov steps in local systems, all together (AMEn).
      seconds: wall-clock time.
      history: estimated residual after each sweep.
      advice: what to try next; empty if converged.
    """

    status: Status
    residual: float
    sweeps: int
    ranks: tuple[int, ...]
    local_iterations: int
    seconds: float
    history: tuple[float, ...]
    advice: str


def solve(
    A: TTMatrix,
    b: TT,
    *,
    tol: float,
    x0: TT | None = None,
    max_rank: int | None = None,
    max_sweeps: int = 50,
    enrichment: int = 4,
    local: str = "auto",
    preconditioner: Any = "auto",
    key: Any = None,
    callback: Callable[[int, float, tuple[int, ...]], Any] | None = None,
) -> tuple[TT, SolveInfo]:
    """Solves A x = b."""
    begin = time.perf_counter()
    wide = np.result_type(np.float64, A.dtype, b.dtype)
    a, rhs = ([np.asarray(c).astype(wide) for c in t.cores] for t in (A, b))
    rhs, scale_b = hosted.right_orthogonal(rhs)
    x = hosted.right_orthogonal(hosted.rounded(rhs, 1e-2, enrichment))[0]
    size = np.linalg.norm(rhs[0])
    rhs[0] = rhs[0] / size
    a, scale_a = amen.balanced(a, x)
    options = amen.Options(max_rank or 10**9, 200, amen.PRECONDITIONERS["kronecker"])
    out = amen.run(a, rhs, x, tol, options, enrichment, max_sweeps)
    return out
