"""Normal equations of the coordinate generators, for the off-diagonal Σ, and their eigenvalues."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse


def off_diagonal(matrix: np.ndarray) -> np.ndarray:
    """Returns the unknowns of normal equations: the off-diagonal entries of Σ, row by row."""
    return matrix[~np.eye(len(matrix), dtype=bool)]


def from_off_diagonal(values: np.ndarray, d: int) -> np.ndarray:
    """Builds Σ (d, d) of zero diagonal from the unknowns of normal equations, row by row."""
    out = np.zeros((d, d))
    out[~np.eye(d, dtype=bool)] = values
    return out


class Block(NamedTuple):
    """Diagonal blocks, all of one size, of normal equations, with their eigendecompositions.

    Attributes:
      index: rows of each, (blocks, size).
      values: eigenvalues, (blocks, size).
      vectors: (blocks, size, size).
    """

    index: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """Computes a vector's coefficients (blocks, size) in normal equations' eigenvectors."""
        return (self.vectors.swapaxes(1, 2) @ x[self.index][:, :, None])[:, :, 0]


class Spectrum(NamedTuple):
    """Eigendecomposition of the block-diagonal matrix of normal equations, block by block."""

    blocks: list[Block]
    size: int

    @property
    def largest(self) -> float:
        """Largest eigenvalue of the matrix of normal equations; zero if none is positive."""
        return max((float(b.values.max()) for b in self.blocks), default=0.0)

    def combined(self, coefficients: list[np.ndarray]) -> np.ndarray:
        """Computes a vector from its coefficients in the eigenvectors of normal equations."""
        out = np.zeros(self.size)
        for b, c in zip(self.blocks, coefficients, strict=True):
            out[b.index] = (b.vectors @ c[:, :, None])[:, :, 0]
        return out


def spectrum(matrix: Any) -> Spectrum:
    """Computes the eigendecomposition of normal equations, dense or sparse, block by block."""
    n = matrix.shape[0]
    if not scipy.sparse.issparse(matrix):
        w, z = np.linalg.eigh(matrix)
        return Spectrum([Block(np.arange(n)[None], w[None], z[None])], n)
    _, labels = scipy.sparse.csgraph.connected_components(matrix, directed=False)
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = np.empty(n, int)
    place[order] = np.arange(n) - starts[labels[order]]
    entries = matrix.tocoo()
    blocks = []
    for size in np.unique(sizes):
        which = np.nonzero(sizes == size)[0]
        number = np.full(len(sizes), -1)
        number[which] = np.arange(len(which))
        mine = number[labels[entries.row]] >= 0
        rows, columns = entries.row[mine], entries.col[mine]
        dense = np.zeros((len(which), size, size))
        dense[number[labels[rows]], place[rows], place[columns]] = entries.data[mine]
        index = order[starts[which][:, None] + np.arange(size)]
        blocks.append(Block(index, *np.linalg.eigh(dense)))
    return Spectrum(blocks, n)


def filtered(found: Spectrum, load: np.ndarray, floor: float) -> np.ndarray:
    """Solves normal equations by the regularised pseudoinverse w/(w² + floor²)."""
    least = found.size * np.finfo(float).eps * max(found.largest, 0.0)
    parts = []
    for b in found.blocks:
        w = np.where(b.values > least, b.values, 0)
        bottom = w**2 + floor**2
        gain = np.where(bottom > 0, w / np.where(bottom > 0, bottom, 1), 0)
        parts.append(gain * b.coordinates(load))
    return found.combined(parts)


def visible(matrix: Any, load: np.ndarray, share: float) -> tuple[Any, np.ndarray]:
    """Sets small eigenvalues of normal equations (matrix, load) to zero, block by block."""
    found = spectrum(matrix)
    least = share * max(found.largest, 0.0)
    kept = found.combined([b.coordinates(load) * (b.values > least) for b in found.blocks])
    parts = [
        (b.vectors * np.where(b.values > least, b.values, 0)[:, None]) @ b.vectors.swapaxes(1, 2)
        for b in found.blocks
    ]
    if not scipy.sparse.issparse(matrix):
        return parts[0][0], kept
    rows = [
        np.broadcast_to(b.index[:, :, None], p.shape)
        for b, p in zip(found.blocks, parts, strict=True)
    ]
    columns = [
        np.broadcast_to(b.index[:, None], p.shape) for b, p in zip(found.blocks, parts, strict=True)
    ]
    entries, row, column = (np.concatenate([x.ravel() for x in y]) for y in (parts, rows, columns))
    return scipy.sparse.csr_array((entries, (row, column)), shape=matrix.shape), kept


def among(gram: Any, load: np.ndarray, kept: np.ndarray) -> tuple[Any, np.ndarray]:
    """Restricts normal equations for a coordinate motion Σ y to some entries of Σ."""
    if len(kept) == len(load):
        return gram, load
    return gram[kept][:, kept], load[kept]
