"""Local eigenproblems of DMRG on one or two sites: dense, Lanczos and block Krylov solvers.

The interfaces on either side are those of `tensorjax._cores.interfaces`; all arrays are NumPy's.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorjax._cores.interfaces import LocalOperator

Array = np.ndarray
# Local spaces up to this size are diagonalised densely: faster there, and without stagnation.
_DENSE = 64


class Rule(NamedTuple):
    """Options of local eigenproblems of DMRG: sites, rank cap, truncation, Lanczos.

    Attributes:
      sites: of a local problem, 1 or 2.
      cap: largest rank kept.
      share: of the norm squared that may be discarded at each bond.
      steps: of Lanczos per local problem, at most.
      goal: residual at which a local problem is solved.
      extra: directions added to each bond.
    """

    sites: int
    cap: int
    share: float
    steps: int
    goal: float
    extra: int


class Local(LocalOperator):
    """Operator of DMRG's local eigenproblem, deflated by eigenvectors found before."""

    def __init__(
        self,
        left: Array,
        sites: Sequence[Array],
        right: Array,
        shadows: Array | None = None,
        shift: float = 0.0,
    ):
        super().__init__(left, sites, right)
        self.shadows, self.shift = shadows, shift

    def __call__(self, x: Array) -> Array:
        t = super().__call__(x)
        if self.shadows is not None:
            overlaps = self.shift * (self.shadows.conj() @ x.ravel())
            change = overlaps @ self.shadows
            t += change.reshape(x.shape)
        return t

    def dense(self) -> Array:
        """Returns the dense matrix of DMRG's local eigenproblem, deflated."""
        t = super().dense()
        return t if self.shadows is None else t + self.shift * self.shadows.T @ self.shadows.conj()


class Solved(NamedTuple):
    """Solution of a local eigenproblem of DMRG: lowest eigenpair, other vectors, first residual.

    Attributes:
      start: residual of the tensor it started from.
      spread: largest magnitude of an eigenvalue.
      others: (j, …) the eigenvectors that come next, as far as they are known.
    """

    value: float
    x: Array
    start: float
    spread: float
    others: Array


def lowest(local: Local, x: Array, rule: Rule, rng: Any) -> Solved:
    """Solves DMRG's local eigenproblem for the lowest pair: densely if small, else by Lanczos."""
    if x.size <= _DENSE:
        h = local.dense()
        image = h @ x.ravel()
        residual = float(np.linalg.norm(image - np.vdot(x, image).real * x.ravel()))
        w, z = np.linalg.eigh(h)
        rows = z.T
    else:
        w, rows, residual = _lanczos(local, x, rule, rng)
    vectors = rows.reshape(-1, *x.shape)
    spread = float(np.abs(w[[0, -1]]).max())
    return Solved(float(w[0]), vectors[0], residual, spread, vectors[1:])


def lowest_block(local: Local, thetas: Array, steps: int) -> tuple[Array, Array]:
    """Solves a local eigenproblem of block DMRG for its lowest pairs, by block Krylov steps.

    In small spaces they are exact eigenpairs; there may be fewer of them than ``thetas``.
    """
    count, shape = len(thetas), thetas.shape[1:]
    size = thetas[0].size
    if size <= max(_DENSE, 4 * count):
        w, z = np.linalg.eigh(local.dense())
        return w[:count], np.ascontiguousarray(z.T[:count]).reshape(-1, *shape)
    basis = np.linalg.qr(thetas.reshape(count, -1).T)[0].T
    images = _images(local, basis, shape)
    for _ in range(steps):
        w, z = np.linalg.eigh(basis.conj() @ images.T)
        rows = z.T[:count]
        vectors = rows @ basis
        residual = rows @ images - w[:count, None] * vectors
        left = size - len(basis)
        fresh = residual[np.linalg.norm(residual, axis=1) > 1e-13 * np.abs(w).max()][:left]
        if not len(fresh):
            break
        fresh = np.linalg.qr(_outside(fresh, basis).T)[0].T
        fresh = np.linalg.qr(_outside(fresh, basis).T)[0].T
        basis = np.concatenate([basis, fresh])
        images = np.concatenate([images, _images(local, fresh, shape)])
    w, z = np.linalg.eigh(basis.conj() @ images.T)
    vectors = z.T[:count] @ basis
    return w[:count], vectors.reshape(-1, *shape)


def _images(local: Local, rows: Array, shape: tuple[int, ...]) -> Array:
    return np.stack([local(x.reshape(shape)).ravel() for x in rows])


def _outside(rows: Array, basis: Array) -> Array:
    """Projects rows on the complement of the Krylov basis of DMRG's local eigenproblem."""
    return rows - (rows @ basis.conj().T) @ basis


def _lanczos(local: Local, x: Array, rule: Rule, rng: Any) -> tuple[Array, Array, float]:
    """Runs Lanczos, fully reorthogonalised, on DMRG's local eigenproblem: pairs, residual."""
    steps = min(rule.steps, x.size)
    basis = np.empty((steps, x.size), x.dtype)
    t, residuals = np.zeros((steps, steps)), []
    basis[0] = x.ravel() / np.linalg.norm(x)
    w = z = np.ones((1, 1))
    for m in range(steps):
        image = local(basis[m].reshape(x.shape)).ravel()
        t[m, m] = np.vdot(basis[m], image).real
        image = _orthogonal(image, basis[: m + 1])
        beside = float(np.linalg.norm(image))
        # Directions for other bonds need all the vectors: then no step is spared.
        if m + 1 == steps or not rule.extra:
            w, z = np.linalg.eigh(t[: m + 1, : m + 1])
        residuals.append(beside * abs(z[-1, 0]))
        noise = 1e-14 * float(np.abs(t[: m + 1, : m + 1]).max())
        if m + 1 == steps or (residuals[m] <= max(rule.goal, noise) and not rule.extra):
            break
        if beside <= noise:
            # An invariant subspace, which need not hold the lowest vector: on from a random one.
            beside = 0.0
            image = rng.uniform(-1, 1, x.size).astype(x.dtype)
            image = _orthogonal(image, basis[: m + 1])
        t[m, m + 1] = t[m + 1, m] = beside
        basis[m + 1] = image / np.linalg.norm(image)
    vectors = z.T @ basis[: len(w)]
    vectors[0] /= np.linalg.norm(vectors[0])
    return w, vectors, residuals[0]


def _orthogonal(x: Array, rows: Array) -> Array:
    for _ in range(2):  # twice is enough (Kahan, Parlett)
        x = x - (rows.conj() @ x) @ rows
    return x
