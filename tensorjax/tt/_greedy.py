"""Greedy cross interpolation: nested index sets of a train, grown pivot by pivot.

Bond k = 0 … d lies left of mode k. Its *left set* holds r_k multi-indices of the modes before it,
its *right set* as many of the modes after it. Core k of the interpolation needs the *fibres*
F_k = f(left set k, all of mode k, right set k + 1), and the train is

  f ≈ F_0 P_1⁻¹ F_1 P_2⁻¹ ⋯ F_{d−1},   P_k = f(left set k, right set k).

Sets only grow, so a fibre once evaluated is never given up.
"""

from typing import Any

import numpy as np

from tensorjax.tt._oracle import Oracle

# Random entries looked at for a new pivot at a bond: so many, and per row and column of the block.
_PROBES = 8


class Sets:
    """Index sets and fibres of all bonds.

    Attributes:
      left: left[k] (r_k, k) multi-indices; nested, left[k + 1] ⊂ left[k] × mode k.
      right: right[k] (r_k, d − k) multi-indices.
      fibres: fibres[k] (r_k, n_k, r_{k+1}).
    """

    def __init__(self, oracle: Oracle, point: np.ndarray):
        """Rank one, through one entry that must not be zero."""
        d = len(oracle.shape)
        self._oracle = oracle
        self.left = [point[None, :k] for k in range(d + 1)]
        self.right = [point[None, k:] for k in range(d + 1)]
        # Rows of the left set k + 1 in left set k × mode k.
        self._picked = [point[k : k + 1] for k in range(d)]
        self.fibres = [
            oracle.block(self._rows(k), self.right[k + 1]).reshape(1, n, 1)
            for k, n in enumerate(oracle.shape)
        ]
        self._cores: list[np.ndarray | None] = [None] * d

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(map(len, self.left))

    def cores(self) -> list[np.ndarray]:
        """Cores (r_k, n_k, r_{k+1}) of the interpolating train."""
        return [self._core(k) for k in range(len(self.fibres))]

    def _core(self, k: int) -> np.ndarray:
        core = self._cores[k]
        if core is None:
            core = self.fibres[k]
            if k < len(self.fibres) - 1:
                core = _interpolant(core, self._picked[k])
            self._cores[k] = core
        return core

    def _rows(self, k: int) -> np.ndarray:
        """Multi-indices left set k × mode k, (r n, k + 1)."""
        n = self._oracle.shape[k]
        left = self.left[k]
        return np.concatenate(
            [np.repeat(left, n, 0), np.tile(np.arange(n), len(left))[:, None]], axis=1
        )

    def _columns(self, k: int) -> np.ndarray:
        """Multi-indices mode k × right set k + 1, (n r, d − k)."""
        n = self._oracle.shape[k]
        right = self.right[k + 1]
        return np.concatenate(
            [np.repeat(np.arange(n), len(right))[:, None], np.tile(right, (n, 1))], axis=1
        )

    def visit(
        self, k: int, threshold: float, limit: int, forward: bool, rng: np.random.Generator
    ) -> tuple[float, int]:
        """Looks for entries that the train misses around bond k, and adds the worst as pivots.

        Random entries of the block (left set × mode) × (mode × right set) show where the residual
        is large. Going forward, whole columns of those are evaluated and the best rows taken of
        them; going backward it is the other way round.

        Args:
          k: bond, 1 … d − 1.
          threshold: residuals up to here are left alone.
          limit: pivots to add at most.
          forward: whether columns are chosen first.
          rng: of the random entries.

        Returns:
          The largest residual seen, and the number of pivots added.
        """
        a = self._core(k - 1).reshape(-1, len(self.left[k]))
        b = self.fibres[k].reshape(len(self.left[k]), -1)
        rows, columns = self._rows(k - 1), self._columns(k)
        i, j = self._probes(k, rows, columns, rng)
        if not i.size:
            return 0.0, 0
        residual = np.abs(
            self._oracle.pairs(rows[i], columns[j]) - np.einsum("sr,rs->s", a[i], b[:, j])
        )
        level = float(residual.max())
        line = (j if forward else i)[np.argsort(-residual, kind="stable")]
        line = line[: int(np.count_nonzero(residual > threshold))]
        line = line[np.sort(np.unique(line, return_index=True)[1])][:limit]
        if not line.size:
            return level, 0
        if forward:
            seen = self._oracle.block(rows, columns[line]) - a @ b[:, line]
            pi, pj = _pivots(seen, threshold)
            pj = line[pj]
        else:
            seen = self._oracle.block(rows[line], columns) - a[line] @ b
            pj, pi = _pivots(seen.T, threshold)
            pi = line[pi]
        self._add(k, pi, columns[pj])
        return max(level, float(np.abs(seen).max())), len(pi)

    def include(self, point: np.ndarray, threshold: float, limit: int) -> int:
        """Adds the right parts of a multi-index wherever the train misses their columns.

        Returns:
          The number of pivots added.
        """
        added = 0
        for k in range(1, len(self.fibres)):
            if len(self.left[k]) >= limit:
                continue
            column = point[None, k:]
            a = self._core(k - 1).reshape(-1, len(self.left[k]))
            seen = self._oracle.block(self._rows(k - 1), column)
            i, _ = _pivots(seen - a @ seen[self._picked[k - 1]], threshold)
            if len(i):
                self._add(k, i, column)
                added += 1
        return added

    def _probes(
        self, k: int, rows: np.ndarray, columns: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Random places of the block of bond k, off the rows and columns that are exact already."""
        i = np.setdiff1d(np.arange(len(rows)), self._picked[k - 1], assume_unique=True)
        taken = np.isin(self._oracle.keys(columns, k), self._oracle.keys(self.right[k], k))
        j = np.flatnonzero(~taken)
        count = _PROBES + len(self.left[k]) + max(self._oracle.shape[k - 1 : k + 1])
        if i.size * j.size <= count:
            return np.repeat(i, j.size), np.tile(j, i.size)
        return rng.choice(i, count), rng.choice(j, count)

    def _add(self, k: int, picked: np.ndarray, right: np.ndarray) -> None:
        """Adds pivots at bond k: rows of left set k − 1 × mode k − 1, and right multi-indices."""
        rows = self._rows(k - 1)
        shape = self._oracle.shape
        before = self._oracle.block(rows, right).reshape(-1, shape[k - 1], len(right))
        after = self._oracle.block(rows[picked], self._columns(k))
        # Nothing changes before all is known: the budget may end in any evaluation.
        self.fibres[k - 1] = np.concatenate([self.fibres[k - 1], before], axis=2)
        self.fibres[k] = np.concatenate(
            [self.fibres[k], after.reshape(len(picked), shape[k], -1)], axis=0
        )
        self.left[k] = np.concatenate([self.left[k], rows[picked]])
        self.right[k] = np.concatenate([self.right[k], right])
        self._picked[k - 1] = np.concatenate([self._picked[k - 1], picked])
        self._cores[k - 1] = self._cores[k] = None


def _interpolant(fibres: np.ndarray, picked: np.ndarray) -> np.ndarray:
    """F P⁻¹ with P the picked rows of F: through an orthonormal basis, for P is ill-conditioned."""
    q = np.linalg.qr(fibres.reshape(-1, fibres.shape[-1]))[0]
    return np.linalg.solve(q[picked].T, q.T).T.reshape(fibres.shape)


def _pivots(residual: np.ndarray, threshold: float) -> tuple[Any, Any]:
    """Rows and columns of the pivots of an LU factorisation with complete pivoting."""
    residual = residual.copy()
    rows: list[int] = []
    columns: list[int] = []
    for _ in range(min(residual.shape)):
        size = np.abs(residual)
        at = int(size.argmax())
        i, j = divmod(at, residual.shape[1])
        if not size[i, j] > threshold:
            break
        rows.append(i)
        columns.append(j)
        residual -= np.outer(residual[:, j], residual[i] / residual[i, j])
        residual[i] = 0
        residual[:, j] = 0
    return np.array(rows, np.int64), np.array(columns, np.int64)
