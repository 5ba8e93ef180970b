"""TT-SVD and arithmetic of trains in a few lines of NumPy each, as a user would write them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Cores = list[np.ndarray]


def gram_tt_svd(x: np.ndarray, tol: float) -> Cores:
    """Computes a TT-SVD by Gram matrices of the smaller side of unfoldings, left to right."""
    cut, rank, cores = _threshold(x, tol), 1, []
    for n in x.shape[:-1]:
        x = x.reshape(rank * n, -1)
        wide = x.shape[0] <= x.shape[1]
        w, v = np.linalg.eigh(x @ x.conj().T if wide else x.conj().T @ x)
        w = np.maximum(w, 0)
        v = v[:, min(int(np.searchsorted(np.cumsum(w), cut, "right")), len(w) - 1) :]
        if wide:
            u, x = v, v.conj().T @ x
        else:
            s = np.sqrt(np.maximum(w[-v.shape[1] :], np.finfo(w.dtype).tiny))
            u, x = (x @ v) / s, s[:, None] * v.conj().T
        cores.append(u.reshape(rank, n, -1))
        rank = u.shape[1]
    return [*cores, x.reshape(rank, -1, 1)]


def gram_tt_svd_from_the_right(x: np.ndarray, tol: float) -> Cores:
    """Computes a TT-SVD by Gram matrices from right to left.

    That is better where the first mode is long. The first core has the norm.
    """
    cut, rank, cores = _threshold(x, tol), 1, []
    for n in x.shape[:0:-1]:
        x = x.reshape(-1, n * rank)
        tall = x.shape[0] >= x.shape[1]
        w, v = np.linalg.eigh(x.conj().T @ x if tall else x @ x.conj().T)
        w = np.maximum(w, 0)
        v = v[:, min(int(np.searchsorted(np.cumsum(w), cut, "right")), len(w) - 1) :]
        if tall:
            u, x = v.conj().T, x @ v
        else:
            s = np.sqrt(np.maximum(w[-v.shape[1] :], np.finfo(w.dtype).tiny))
            u, x = (v.conj().T @ x) / s[:, None], v * s
        cores.insert(0, u.reshape(-1, n, rank))
        rank = u.shape[0]
    return [x.reshape(1, -1, rank), *cores]


def svd_tt_svd(x: np.ndarray, tol: float) -> Cores:
    """Computes a TT-SVD by the SVD of every unfolding."""
    cut, rank, cores = _threshold(x, tol), 1, []
    for n in x.shape[:-1]:
        u, s, x = np.linalg.svd(x.reshape(rank * n, -1), full_matrices=False)
        kept = max(len(s) - int(np.searchsorted(np.cumsum(s[::-1] ** 2), cut, "right")), 1)
        cores.append(u[:, :kept].reshape(rank, n, kept))
        rank, x = kept, s[:kept, None] * x[:kept]
    return [*cores, x.reshape(rank, -1, 1)]


def _threshold(x: np.ndarray, tol: float) -> float:
    return tol**2 * float(np.vdot(x, x).real) / max(x.ndim - 1, 1)


def in_double(plain: Callable[..., Cores]) -> Callable[..., Cores]:
    """Returns a TT-SVD function that computes in double precision and casts the cores back."""

    def call(x: np.ndarray, tol: float) -> Cores:
        cores = plain(x.astype(np.result_type(x.dtype, np.float64)), tol)
        return [c.astype(x.dtype) for c in cores]

    return call


def st_hosvd(x: np.ndarray, tol: float) -> tuple[np.ndarray, Cores]:
    """Computes a Tucker decomposition by Gram matrices, mode by mode (ST-HOSVD)."""
    cut, factors = tol**2 * float(np.vdot(x, x).real) / x.ndim, []
    for k, n in enumerate(x.shape):
        a = np.moveaxis(x, k, 0).reshape(n, -1)
        w, v = np.linalg.eigh(a @ a.conj().T)
        w = np.maximum(w, 0)
        u = v[:, min(int(np.searchsorted(np.cumsum(w), cut, "right")), n - 1) :]
        rest = x.shape[:k] + x.shape[k + 1 :]
        x = np.moveaxis((u.conj().T @ a).reshape(-1, *rest), 0, k)
        factors.append(u)
    return x, factors


def st_hosvd_in_double(x: np.ndarray, tol: float) -> tuple[np.ndarray, Cores]:
    """Computes the Tucker decomposition of `st_hosvd` in double precision, and casts it back."""
    core, factors = st_hosvd(x.astype(np.result_type(x.dtype, np.float64)), tol)
    return core.astype(x.dtype), [u.astype(x.dtype) for u in factors]


def tucker_dense(core: Any, factors: Sequence[Any]) -> np.ndarray:
    """Multiplies the core of a Tucker decomposition by its factors, in double precision."""
    out = np.asarray(core)
    out = out.astype(np.result_type(out.dtype, np.float64))
    for u in factors:  # the first axis is multiplied and goes to the end: all do once
        out = np.tensordot(out, np.asarray(u), (0, 1))
    return out


def rounded(cores: Cores, tol: float) -> Cores:
    """Rounds a train: QR from the right, SVD from the left."""
    cores = list(cores)
    for k in range(len(cores) - 1, 0, -1):
        r, n, s = cores[k].shape
        q, t = np.linalg.qr(cores[k].reshape(r, n * s).conj().T)
        cores[k] = q.conj().T.reshape(-1, n, s)
        cores[k - 1] = np.tensordot(cores[k - 1], t.conj().T, 1)
    cut = tol**2 * float(np.vdot(cores[0], cores[0]).real) / max(len(cores) - 1, 1)
    for k in range(len(cores) - 1):
        r, n, s = cores[k].shape
        u, w, vh = np.linalg.svd(cores[k].reshape(r * n, s), full_matrices=False)
        kept = max(len(w) - int(np.searchsorted(np.cumsum(w[::-1] ** 2), cut, "right")), 1)
        cores[k] = u[:, :kept].reshape(r, n, kept)
        cores[k + 1] = np.tensordot(w[:kept, None] * vh[:kept], cores[k + 1], 1)
    return cores


def hadamard(xs: Cores, ys: Cores) -> Cores:
    """Computes the cores of the entry-wise product of two trains."""
    return [
        (x[:, None, :, :, None] * y[None, :, :, None, :]).reshape(
            x.shape[0] * y.shape[0], x.shape[1], -1
        )
        for x, y in zip(xs, ys, strict=True)
    ]


def matvec(matrix: Cores, xs: Cores) -> Cores:
    """Computes the cores of a TT-matrix times a train."""
    out = []
    for a, x in zip(matrix, xs, strict=True):
        t = np.tensordot(a, x, (2, 1)).transpose(0, 3, 1, 2, 4)
        out.append(t.reshape(t.shape[0] * t.shape[1], t.shape[2], -1))
    return out


def inner(xs: Cores, ys: Cores) -> Any:
    """Computes the inner product of two trains."""
    e = np.ones((1, 1), xs[0].dtype)
    for x, y in zip(xs, ys, strict=True):
        e = np.tensordot(x.conj(), np.tensordot(e, y, 1), ((0, 1), (0, 1)))
    return e[0, 0]


def evaluate(cores: Cores, indices: np.ndarray) -> np.ndarray:
    """Evaluates a train at a batch of multi-indices."""
    v = cores[0][0, indices[:, 0]]
    for k, core in enumerate(cores[1:], 1):
        v = (v[:, None] @ core.transpose(1, 0, 2)[indices[:, k]])[:, 0]
    return v[:, 0]


def applied(cores: Cores, rows: np.ndarray) -> np.ndarray:
    """Multiplies dense rows by the transpose of a TT-matrix.

    It has m_k rows and n_k columns in mode k.
    """
    t = rows.reshape(len(rows), 1, -1)  # (batch and modes done, bond, the rest)
    for core in cores:
        r, m, n, s = core.shape
        t = t.reshape(t.shape[0], r * n, -1).transpose(0, 2, 1)
        t = t @ core.transpose(0, 2, 1, 3).reshape(r * n, m * s)
        t = t.reshape(t.shape[0], -1, m, s).transpose(0, 2, 3, 1).reshape(-1, s, t.shape[1])
    return t.reshape(len(rows), -1)
