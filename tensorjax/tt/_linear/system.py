"""Linear system A x = b on the host: cores in double precision, scaled to stay in range."""

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._cores import orthogonalization, overlaps, products, rounding
from tensorjax._cores.interfaces import edge, right
from tensorjax._cores.products import matmul_core
from tensorjax._cores.ranks import cut_ranks
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, TTMatrix

# A residual r with ‖Aᴴ r‖ below this share of ‖r‖ σ (see `System.weakness`) is in the null space.
NULL = 1e-5
# A residual below so many times the roundoff level cannot be lowered further.
NEAR = 100
Report = Callable[[int, float, tuple[int, ...]], Any]  # of sweep, residual and ranks
Measure = Callable[[Cores], float]  # the norm of the residual that a solution leaves


class Outcome(NamedTuple):
    """Result for the linear system A x = b: best solution, residual, status and history.

    Attributes:
      x: cores.
      residual: ‖a x − b‖, measured.
      status: "converged", "stalled" or "max_sweeps".
      iterations: Krylov steps.
      history: the residuals seen on the way.
    """

    x: Cores
    residual: float
    status: str
    sweeps: int
    iterations: int
    history: tuple[float, ...]


class System:
    """Linear system A x = b of NumPy cores, scaled by powers of two to stay in range.

    Attributes:
      dtype: of the solution to return.
      wide: float64 or complex128, the dtype of all cores here.
      a, b, x: cores of A / 2^·, of b / 2^·, and of a first guess at the solution of that system; b
        and x are right-orthogonal.
      size: ‖b‖, near one; 0 for the zero train.
      exponent: the solution wanted is 2^exponent times that of a x = b.
    """

    def __init__(self, A: TTMatrix, b: TT, x0: TT | None, dtype: Any, rank: int):
        self.dtype = dtype
        self.wide = np.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else np.float64
        self.b, e = orthogonalization.right_orthogonal(self.cores(b))
        self.size = float(np.linalg.norm(self.b[0]))
        if x0 is not None:
            x, f = orthogonalization.right_orthogonal(self.cores(x0))
        else:  # the solution is about as smooth as b
            x, f = smooth_start(self.b, rank), 0
        self.a, g = _balanced(self.cores(A), x)
        self.exponent = e - g
        if x0 is not None:
            x[0] = x[0] * 2.0 ** min(max(f - self.exponent, -900), 900)
        self.x = x

    def cores(self, t: TT | TTMatrix) -> Cores:
        """Copies a train of the linear system to NumPy arrays in double precision."""
        return [np.asarray(c).astype(self.wide) for c in t.cores]

    def residual(self, x: Cores) -> float:
        """Computes the residual ‖a x − b‖ of the linear system at a train x."""
        return overlaps.distance(products.matvec(self.a, x), self.b)

    def cast_residual(self, x: Cores) -> float:
        """Computes the residual ‖a x − b‖ of a train x after x is cast to the result's dtype."""
        cast = [c.astype(self.dtype).astype(self.wide) for c in x]
        return self.residual(cast)

    def fits(self, x: Cores, tol: float) -> bool:
        """Whether a linear system's solution, cast to its dtype too, has a residual ≤ ``tol``."""
        return np.dtype(self.dtype) == self.wide or self.cast_residual(x) <= tol

    def first_guess(self, measure: Measure, max_rank: float) -> tuple[float, Cores]:
        """Returns a linear system's initial guess, or zero if that is better, with its residual."""
        zero = [0 * c[:1, :, :1] for c in self.b]
        guesses = [zero] if max(map(len, self.x)) > max_rank else [zero, self.x]
        return min(((measure(x), x) for x in guesses), key=lambda pair: pair[0])

    def random(self, key: Any, rank: int) -> Cores:
        """Draws a right-orthogonal random train in the shape of a linear system's right side."""
        sizes = [c.shape[1] for c in self.b]
        ranks = cut_ranks((1, *[rank] * (len(sizes) - 1), 1), sizes)
        shapes = [(r, n, s) for r, n, s in zip(ranks, sizes, ranks[1:], strict=False)]
        draw = linalg.random_like(key, (sum(map(math.prod, shapes)),), self.b[0])
        parts = np.split(draw, np.cumsum([math.prod(s) for s in shapes])[:-1])
        z = [p.reshape(s) for p, s in zip(parts, shapes, strict=True)]
        return orthogonalization.right_orthogonal(z)[0]

    def normal(self, x: Cores) -> "System":
        """Returns the normal equations aᴴ a x = aᴴ b of a linear system, with a first guess."""
        adjoint = [c.conj().swapaxes(1, 2) for c in self.a]
        out = copy.copy(self)
        out.a = [matmul_core(p, q) for p, q in zip(adjoint, self.a, strict=True)]
        out.b = orthogonalization.right_orthogonal(products.matvec(adjoint, self.b), scale=False)[0]
        out.size = float(np.linalg.norm(out.b[0]))
        out.x = orthogonalization.right_orthogonal(x, scale=False)[0]
        return out

    def weakness(self, x: Cores) -> float:
        """Computes ‖Aᴴ r‖ / (‖r‖ σ) of a linear system's residual r: tiny if A is nearly singular.

        Far below one it proves A to be nearly singular: its smallest singular value is no larger
        than this times σ.
        """
        gap = products.combined([self.b, products.matvec(self.a, x)], [1.0, -1.0])
        r = rounding.rounded(gap, 1e-7)
        adjoint = [c.conj().swapaxes(1, 2) for c in self.a]
        image, length = overlaps.norm(products.matvec(adjoint, r)), overlaps.norm(r)
        size = length * self._sigma()
        return image / size if size > 0 else 0.0

    def roundoff(self, x: Cores) -> float:
        """Estimates the residual of a linear system's solution that is exact but for roundoff."""
        return float(jnp.finfo(self.dtype).eps) * self._sigma() * overlaps.norm(x)

    def _sigma(self) -> float:
        """Root mean square of the singular values of the linear system's TT-matrix."""
        return overlaps.norm(
            [c.reshape(len(c), -1, c.shape[-1]) / c.shape[1] ** 0.5 for c in self.a]
        )


def smooth_start(b: Cores, rank: int) -> Cores:
    """Rounds b of the linear system A x = b in TT format to about ``rank``, as a first guess."""
    if len(b) == 1 or not np.abs(b[0]).max() > 0:
        return list(b)
    return orthogonalization.right_orthogonal(rounding.rounded(b, 1e-3, rank))[0]


def _balanced(a: Cores, x: Cores) -> tuple[Cores, int]:
    """Scales cores of A so that interfaces of A x = b are near one; returns the exponent too."""
    out, exponent = list(a), 0
    # A unit vector in place of the first core, whose size means nothing.
    first = x[0] / (np.linalg.norm(x[0]) or 1.0)
    interface = edge(first)
    for k in range(len(a) - 1, -1, -1):
        y = x[k] if k else first
        interface = right(interface, y, a[k], y)
        size = np.abs(interface).max() or np.abs(a[k]).max()
        e = int(np.frexp(size)[1]) if size > 0 else 0
        out[k], interface = a[k] * 2.0**-e, interface * 2.0**-e
        exponent += e
    return out, exponent


Search = Callable[[System, float, Report], Outcome]


def capped(out: Outcome, cap: int | None) -> bool:
    """Whether a solution of the linear system A x = b has a rank that reaches the cap."""
    return cap is not None and max(map(len, out.x)) >= cap
