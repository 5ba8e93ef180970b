"""Local systems of AMEn, on the host: operator, preconditioners, GMRES, dense solver.

The operator on one site is Σ_{ab} L_a ⊗ A_{ab} ⊗ R_b, with the interfaces L (r, a, r), R (s, b, s)
and the core A (a, n, n, b); vectors are arrays (r, n, s).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.contractions import absorb, einsum, times_mode, times_right
from tensorjax._cores.interfaces import apply_one
from tensorjax.linalg import adjoint

Array = Any
Apply = Callable[[Array], Array]
# Eigenvalues below this share of the largest are taken for zeros of a singular system.
_NULL = 1e-13
# Eigenvectors with a larger condition number are not used for inversion.
_SKEWED = 1e6


class Local(NamedTuple):
    """Operator of AMEn's local system at one site: a core of A between two interfaces.

    Attributes:
      lefts: (r, a, r) what lies left of the site: conjugated basis, operator, basis.
      core: (a, n, n, b) of the operator.
      rights: (s, b, s) what lies right of it.
    """

    lefts: Array
    core: Array
    rights: Array

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (r, n, s) of the unknown core in AMEn's local linear system."""
        return self.lefts.shape[0], self.core.shape[1], self.rights.shape[0]

    def __call__(self, x: Array) -> Array:
        """Applies the operator of AMEn's local system to a core (r, n, s)."""
        return apply_one(self.lefts, self.core, self.rights, x)

    def dense(self) -> Array:
        """Returns the dense matrix (r n s, r n s) of AMEn's local linear system."""
        size = math.prod(self.shape)
        t = einsum("yax,amnb,sbt->ymsxnt", self.lefts, self.core, self.rights)
        return t.reshape(size, size)


def solve_dense(local: Local, rhs: Array, floor: float | None = None) -> Array:
    """Solves AMEn's local linear system by elimination, or least squares if it is singular.

    The inverse is checked by what it does to the right-hand side, which costs no condition number.
    With ``floor`` singular values below that share of the largest count as zero.
    """
    matrix, flat = local.dense(), rhs.ravel()
    size = np.linalg.norm(matrix)
    if not 0 < size < np.inf:
        return np.zeros_like(rhs)
    if floor is not None:
        return np.linalg.lstsq(matrix, flat, rcond=floor)[0].reshape(rhs.shape)
    try:
        x = np.linalg.solve(matrix, flat)
        # A pivot of roundoff size blows the solution up to 1/eps.
        if np.linalg.norm(x) * size * _NULL <= np.linalg.norm(flat):
            return x.reshape(rhs.shape)
    except np.linalg.LinAlgError:
        pass
    return np.linalg.lstsq(matrix, flat, rcond=_NULL)[0].reshape(rhs.shape)


# Preconditioners ---------------------------------------------------------------------------------


def kronecker(local: Local) -> Apply:
    """Builds a preconditioner of AMEn's local system: the inverse of the nearest Kronecker sum.

    Nearest is meant in the Frobenius norm.

    Partial traces give the three terms; fast diagonalisation inverts them. For Laplacians and all
    sums of operators on single modes this is the exact inverse, at the price of a few products.
    """
    lefts, core, rights = local
    r, n, s = local.shape
    t_left = np.trace(lefts, axis1=0, axis2=2)
    t_core = np.trace(core, axis1=1, axis2=2)
    t_right = np.trace(rights, axis1=0, axis2=2)
    mean = t_left @ t_core @ t_right / (r * n * s)
    x = einsum("yax,a->yx", lefts, t_core @ t_right / (n * s))
    y = einsum("a,amnb,b->mn", t_left, core, t_right) / (r * s)
    z = einsum("sbt,b->st", rights, t_left @ t_core / (r * n))
    (wx, vx, ux), (wy, vy, uy), (wz, vz, uz) = _diagonalised([x, y, z])
    sums = wx[:, None, None] + wy[None, :, None] + wz[None, None, :] - 2 * mean
    if not np.iscomplexobj(vx) and not np.iscomplexobj(vy) and not np.iscomplexobj(vz):
        sums = sums.real if not np.iscomplexobj(core) else sums
    size = np.abs(sums)
    alive = size > _NULL * size.max()
    inverse = np.divide(1, sums, out=np.zeros_like(sums), where=alive)
    uzt, vzt = np.ascontiguousarray(uz.T), np.ascontiguousarray(vz.T)
    real = not np.iscomplexobj(core) and not np.iscomplexobj(lefts)

    def apply(v: Array) -> Array:
        t = _three(ux, uy, uzt, v)
        t = _three(vx, vy, vzt, t * inverse)
        return t.real if real and np.iscomplexobj(t) else t

    return apply


def _three(x: Array, y: Array, zt: Array, v: Array) -> Array:
    """Multiplies a vector of AMEn's local system by three matrices, axis by axis."""
    return times_mode(absorb(x, times_right(v, zt)), y)


def _diagonalised(matrices: list[Array]) -> list[tuple[Array, Array, Array]]:
    """Diagonalises the preconditioner of AMEn's local system, three matrices; Hermitian if skew.

    The latter if a v is too ill-conditioned.
    """
    scale = max(np.abs(m).max() for m in matrices)
    if any(np.abs(m - adjoint(m)).max() > 1e-10 * scale for m in matrices):
        out = []
        for m in matrices:
            w, v = np.linalg.eig(m)
            try:
                u = np.linalg.inv(v)
            except np.linalg.LinAlgError:
                break
            if not np.linalg.norm(u) * np.linalg.norm(v) <= _SKEWED * len(v):
                break
            out.append((w, v, u))
        else:
            return out
    pairs = [np.linalg.eigh((m + adjoint(m)) / 2) for m in matrices]
    return [(w, v, adjoint(v)) for w, v in pairs]


def block(local: Local) -> Apply:
    """Builds the block Jacobi preconditioner of AMEn's local system, a block per pair of bonds."""
    lefts, core, rights = local
    left, right = (np.diagonal(i, axis1=0, axis2=2) for i in (lefts, rights))
    blocks = einsum("ar,amnb,bs->rsmn", left, core, right)
    inverse = _safe_inverse(blocks)

    def apply(v: Array) -> Array:
        return (inverse @ v.swapaxes(1, 2)[..., None])[..., 0].swapaxes(1, 2)

    return apply


def _safe_inverse(blocks: Array) -> Array:
    try:
        inverse = np.linalg.inv(blocks)
        if np.isfinite(inverse).all():
            return inverse
    except np.linalg.LinAlgError:
        pass
    return np.linalg.pinv(blocks, rcond=_NULL)


def jacobi(local: Local) -> Apply:
    """Builds the Jacobi preconditioner of AMEn's local system: the inverse of its diagonal."""
    lefts, core, rights = local
    left, middle, right = (
        np.diagonal(c, axis1=i, axis2=j)
        for c, i, j in ((lefts, 0, 2), (core, 1, 2), (rights, 0, 2))
    )  # (a, r), (a, b, n), (b, s)
    diagonal = einsum("ar,abn,bs->rns", left, middle, right)
    size = np.abs(diagonal)
    floor = max(1e-8 * size.max(), np.finfo(size.dtype).tiny)
    inverse = 1 / np.where(size > floor, diagonal, 1)
    return lambda v: inverse * v


PRECONDITIONERS: dict[str, Callable[[Local], Apply]] = {
    "kronecker": kronecker,
    "block": block,
    "jacobi": jacobi,
    "none": lambda _: lambda v: v,
}


# Krylov iteration --------------------------------------------------------------------------------


def gmres(
    apply: Apply,
    rhs: Array,
    precondition: Apply,
    tol: float,
    restart: int,
    cycles: int,
) -> tuple[Array, float, int]:
    """Solves AMEn's local system by restarted GMRES, right-preconditioned, to an absolute residual.

    Returns:
      Solution, norm of its residual, count of iterations.
    """
    x, residual, done = np.zeros_like(rhs), rhs, 0
    norm = float(np.linalg.norm(residual))
    for _ in range(cycles):
        if norm <= tol:
            break
        step, count = _cycle(apply, residual, precondition, tol, restart)
        done += count
        tried = residual - apply(step)
        before, after = norm, float(np.linalg.norm(tried))
        if not after < before:
            break
        x, residual, norm = x + step, tried, after
        if norm > 0.5 * before:
            break
    return x, norm, done


def _cycle(
    apply: Apply, residual: Array, precondition: Apply, tol: float, restart: int
) -> tuple[Array, int]:
    beta = float(np.linalg.norm(residual))
    basis = np.empty((restart + 1, residual.size), residual.dtype)
    h = np.zeros((restart + 1, restart), residual.dtype)
    basis[0] = residual.ravel() / beta
    y, count = np.zeros(0, residual.dtype), 0
    for j in range(restart):
        w = apply(precondition(basis[j].reshape(residual.shape))).ravel()
        size = np.linalg.norm(w)
        for _ in range(2):  # once is not enough for orthogonality
            c = basis[: j + 1].conj() @ w
            w = w - c @ basis[: j + 1]
            h[: j + 1, j] += c
        h[j + 1, j] = np.linalg.norm(w)
        start = np.zeros(j + 2, residual.dtype)
        start[0] = beta
        tall = h[: j + 2, : j + 1]
        try:
            y = np.linalg.lstsq(tall, start, rcond=1e-14)[0]
        except np.linalg.LinAlgError:  # entries far apart, of a preconditioner near singular
            break
        count = j + 1
        left = np.linalg.norm(tall @ y - start)
        if left <= tol or not abs(h[j + 1, j]) > 1e-14 * size:
            break
        basis[j + 1] = w / h[j + 1, j]
    found = y @ basis[:count]
    return precondition(found.reshape(residual.shape)), count
