"""Greedy cross interpolation: nested index sets of a tensor train, grown pivot by pivot.

Bond k = 0 … d lies left of mode k. Its *left set* holds r_k multi-indices of the modes before it,
its *right set* as many of the modes after it. Core k of the interpolation needs the *fibres*
F_k = f(left set k, all of mode k, right set k + 1), and the train is

  f ≈ F_0 P_1⁻¹ F_1 P_2⁻¹ ⋯ F_{d−1},   P_k = f(left set k, right set k).

Sets only grow, so a fibre once evaluated is never given up. Left sets are nested, and P_k is
therefore a part of F_{k−1}.

P_k has an inverse as long as its rows and its columns are different ones and no pivot is roundoff:
where the interpolation is exact, what is left of a row or column is roundoff, which may well be
larger than a threshold that is relative to the largest entry of the tensor.
"""

import itertools

import numpy as np

from tensorjax.tt._cross.sampled_function import Oracle, Part

# Random entries that are evaluated in a block to find large residuals: _PROBES, one for each index
# of its bond, and one for each index of its larger mode, up to _MODE_PROBES.
_PROBES, _MODE_PROBES = 8, 64
# A residual is roundoff up to so many units of what was added and subtracted to make it: sums of r
# products lose about √r units, and the coefficients of an interpolation as many again.
_ROUNDOFF = 32 * float(np.finfo(np.float64).eps)


class Sets:
    """Nested index sets of a cross interpolation that greedy pivots enlarge, with their fibres.

    Attributes:
      left: left[k] (r_k, k) multi-indices; left[k + 1] ⊂ left[k] × mode k.
      right: right[k] (r_k, d − k) multi-indices.
      fibres: fibres[k] (r_k, n_k, r_{k+1}).
    """

    def __init__(self, oracle: Oracle, point: np.ndarray):
        """Builds cross interpolation's index sets: one pivot per bond, from one nonzero entry."""
        d = len(oracle.shape)
        self._oracle = oracle
        self.left = [point[None, :k] for k in range(d + 1)]
        self.right = [point[None, k:] for k in range(d + 1)]
        # picked[k]: the places of left set k + 1 in left set k × mode k.
        self._picked = [point[k : k + 1] for k in range(d)]
        # Where members of right set k stand in mode k × right set k + 1: mode and number there.
        self._taken = [np.array([[i, 0]]) for i in point]
        # Members of right set k that were offered, and do not stand there yet.
        self._loose = [np.empty((0, d - k), np.int64) for k in range(d)]
        self.fibres = _fibres_through(oracle, point)
        self._cores: list[np.ndarray | None] = [None] * d

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(map(len, self.left))

    @property
    def size(self) -> float:
        """Absolute value of f at the first pivot of a greedy cross interpolation."""
        return float(np.abs(self.fibres[-1][0, self._picked[-1][0], 0]))

    def largest(self) -> np.ndarray:
        """Returns the multi-index of f's largest entry on fibres through the first greedy pivot."""
        fibres = [np.abs(f[0, :, 0]) for f in self.fibres]
        k = int(np.argmax([f.max() for f in fibres]))
        point = self.left[-1][0].copy()
        point[k] = int(fibres[k].argmax())
        return point

    def cores(self) -> list[np.ndarray]:
        """Builds the cores of the train that interpolates a tensor at its greedy pivots."""
        return [self._core(k) for k in range(len(self.fibres))]

    def visit(
        self, k: int, threshold: float, limit: int, forward: bool, rng: np.random.Generator
    ) -> tuple[float, int]:
        """Searches one bond's unfolding for large residuals of `cross`, and adds pivots there.

        Random entries of the block (left set × mode) × (mode × right set) show where the residual
        is large. Through the worst of them goes a column, through the largest residual of that a
        row, and where they cross is the pivot; going backward the row comes first.

        Args:
          k: bond, 1 … d − 1.
          threshold: residuals up to here are left alone.
          limit: pivots to add at most.
          forward: whether columns come first.

        Returns:
          The largest residual at the random entries, and the number of pivots added.
        """
        block = self._block(k)
        i, j = self._probes(k, block, rng)
        if not i.size:
            return 0.0, 0
        residual = block.residual(i, j)
        level = float(np.abs(residual).max())
        try:
            while len(block.pivots) < limit:
                worst = int(np.abs(residual).argmax())
                if not abs(residual[worst]) > threshold:
                    break
                if block.cross(int(i[worst]), int(j[worst]), forward, threshold):
                    residual = block.reduced(residual, i, j)
                else:
                    residual[worst] = 0  # roundoff: another entry may show more
        finally:  # the budget may end in the middle: what is found is kept
            if block.pivots:
                picked, taken = np.array(block.pivots).T
                before, after = np.stack(block.columns_seen, axis=1), np.stack(block.rows_seen)
                place = np.stack(np.divmod(taken, len(self.right[k + 1])), axis=1)
                self._taken[k] = np.concatenate([self._taken[k], place])
                left, right = block.rows.index[picked], block.columns.index[taken]
                self._add(k, picked, left, right, before, after)
        return level, len(block.pivots)

    def offer(self, k: int, right: np.ndarray, threshold: float, limit: int) -> int:
        """Adds pivots of cross interpolation at one bond, at given right multi-indices.

        Returns:
          The number of pivots added at bond k.
        """
        right = _new_rows(right, self.right[k])
        if limit < 1 or not len(right):
            return 0
        rows = self._rows(k - 1)
        seen = self._oracle.block(rows, self._oracle.part(right, k))
        a, _ = self._factors(k)
        pivots = seen[self._picked[k - 1]]
        residual = seen - a @ pivots
        roundoff = _ROUNDOFF * (np.abs(a) @ np.abs(pivots))
        residual[np.abs(residual) <= roundoff] = 0
        residual[self._picked[k - 1]] = 0
        picked, taken = leading_pivots(residual, threshold, limit)
        if picked.size:
            after = self._oracle.block(rows.take(picked), self._columns(k))
            self._loose[k] = np.concatenate([self._loose[k], right[taken]])
            self._add(k, picked, rows.index[picked], right[taken], seen[:, taken], after)
        return picked.size

    def _core(self, k: int) -> np.ndarray:
        core = self._cores[k]
        if core is None:
            core = self.fibres[k]
            if k < len(self.fibres) - 1:
                core = _interpolant(core, self._picked[k])
            self._cores[k] = core
        return core

    def _rows(self, k: int) -> Part:
        """Returns the row multi-indices of the unfolding where `cross` seeks greedy pivots."""
        n, left = self._oracle.shape[k], self.left[k]
        index = np.empty((len(left), n, k + 1), np.int64)
        index[:, :, :k] = left[:, None]
        index[:, :, k] = np.arange(n)
        return self._oracle.part(index.reshape(-1, k + 1), 0)

    def _columns(self, k: int) -> Part:
        """Returns the column multi-indices of the unfolding where `cross` seeks greedy pivots."""
        n, right = self._oracle.shape[k], self.right[k + 1]
        index = np.empty((n, len(right), right.shape[1] + 1), np.int64)
        index[:, :, 0] = np.arange(n)[:, None]
        index[:, :, 1:] = right
        return self._oracle.part(index.reshape(n * len(right), -1), k)

    def _block(self, k: int) -> "_Block":
        """Builds the unfolding of a tensor at one bond, in which greedy pivots are sought."""
        rows, columns = self._rows(k - 1), self._columns(k)
        if len(self._loose[k]):
            self._find_loose(k, columns.index)
        block = _Block(self._oracle, rows, columns, *self._factors(k))
        block.free_rows[self._picked[k - 1]] = False
        mode, number = self._taken[k].T
        block.free_columns[mode * len(self.right[k + 1]) + number] = False
        return block

    def _find_loose(self, k: int, columns: np.ndarray) -> None:
        """Finds the columns of a bond's unfolding that are pivots given to `cross` from outside."""
        loose = []
        for member in self._loose[k]:
            at = np.flatnonzero((columns == member).all(axis=1))
            if at.size:
                place = np.stack(np.divmod(at, len(self.right[k + 1])), axis=1)
                self._taken[k] = np.concatenate([self._taken[k], place])
            else:
                loose.append(member)
        self._loose[k] = np.array(loose, np.int64).reshape(len(loose), columns.shape[1])

    def _factors(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns factors of the cross interpolation of a bond's unfolding at its pivots."""
        r = len(self.left[k])
        return self._core(k - 1).reshape(-1, r), self.fibres[k].reshape(r, -1)

    def _probes(
        self, k: int, block: "_Block", rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws random entries of a bond's unfolding, off rows and columns of greedy pivots."""
        i, j = np.flatnonzero(block.free_rows), np.flatnonzero(block.free_columns)
        longest = max(self._oracle.shape[k - 1 : k + 1])
        count = _PROBES + len(self.left[k]) + min(longest, _MODE_PROBES)
        if i.size * j.size <= count:
            return np.repeat(i, j.size), np.tile(j, i.size)
        return i[rng.integers(0, i.size, count)], j[rng.integers(0, j.size, count)]

    def _add(
        self,
        k: int,
        picked: np.ndarray,
        left: np.ndarray,
        right: np.ndarray,
        before: np.ndarray,
        after: np.ndarray,
    ) -> None:
        """Adds pivots at one bond to cross interpolation's nested index sets, and their fibres.

        Args:
          picked: (q,) their places in left set k − 1 × mode k − 1.
          left: (q, k) their left multi-indices.
          right: (q, d − k) their right ones.
          before: (r n, q) new entries of the fibres of core k − 1.
          after: (q, n r) new entries of the fibres of core k.
        """
        old = self.fibres[k - 1]
        before = before.reshape(*old.shape[:2], -1)
        after = after.reshape(-1, *self.fibres[k].shape[1:])
        self.left[k] = np.concatenate([self.left[k], left])
        self.right[k] = np.concatenate([self.right[k], right])
        self._picked[k - 1] = np.concatenate([self._picked[k - 1], picked])
        self.fibres[k - 1] = np.concatenate([old, before], axis=2)
        self.fibres[k] = np.concatenate([self.fibres[k], after])
        self._cores[k - 1] = self._cores[k] = None


def _fibres_through(oracle: Oracle, point: np.ndarray) -> list[np.ndarray]:
    """Evaluates the fibres through the first pivot of greedy cross: cores (1, n_k, 1)."""
    cuts = np.cumsum([0, *oracle.shape])
    index = np.tile(point, (cuts[-1], 1))
    for k, n in enumerate(oracle.shape):
        index[cuts[k] : cuts[k + 1], k] = np.arange(n)
    values = oracle.pairs(oracle.part(index[:, :1], 0), oracle.part(index[:, 1:], 1))
    return [values[a:b].reshape(1, -1, 1) for a, b in itertools.pairwise(cuts)]


class _Block:
    """Unfolding of a tensor at one bond, to whose cross interpolation greedy pivots are added.

    Attributes:
      rows: R left multi-indices.
      columns: C right multi-indices.
      pivots: places (i, j) of the crosses.
      columns_seen: entries of the tensor in the columns of the pivots, (R,) each.
      rows_seen: entries in their rows, (C,) each.
      free_rows: (R,) which rows are no pivots yet.
      free_columns: (C,) which columns are none.
    """

    def __init__(self, oracle: Oracle, rows: Part, columns: Part, a: np.ndarray, b: np.ndarray):
        self.rows, self.columns = rows, columns
        self.pivots: list[tuple[int, int]] = []
        self.columns_seen: list[np.ndarray] = []
        self.rows_seen: list[np.ndarray] = []
        self.free_rows = np.ones(len(rows.keys), bool)
        self.free_columns = np.ones(len(columns.keys), bool)
        self._oracle, self._a, self._b = oracle, a, b
        self._crosses: list[tuple[np.ndarray, np.ndarray]] = []

    def residual(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Computes the error at entries (i, j) of the interpolation at a bond's greedy pivots."""
        exact = self._oracle.pairs(self.rows.take(i), self.columns.take(j))
        return exact - (self._a[i] * self._b.T[j]).sum(axis=1)

    def reduced(self, residual: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Updates residuals at entries (i, j) after a new greedy pivot."""
        column, row = self._crosses[-1]
        return (residual - column[i] * row[j]) * (self.free_rows[i] & self.free_columns[j])

    def cross(self, i: int, j: int, forward: bool, threshold: float) -> bool:
        """Adds a greedy pivot in column j or row i, unless the residual is small."""
        if forward:
            seen_column, column = self._column(j)
            i = int((np.abs(column) * self.free_rows).argmax())
            seen_row, row = self._row(i)
        else:
            seen_row, row = self._row(i)
            j = int((np.abs(row) * self.free_columns).argmax())
            seen_column, column = self._column(j)
        if not abs(row[j]) > max(threshold, self._roundoff(i, j)):
            return False
        self.free_rows[i] = self.free_columns[j] = False
        self.pivots.append((i, j))
        self.columns_seen.append(seen_column)
        self.rows_seen.append(seen_row)
        self._crosses.append((column, row / row[j]))
        return True

    def _roundoff(self, i: int, j: int) -> float:
        """Bounds the roundoff in the residual at entry (i, j) of greedy pivots' interpolation."""
        terms = float(np.abs(self._a[i]) @ np.abs(self._b[:, j]))
        return _ROUNDOFF * (terms + sum(abs(c[i] * r[j]) for c, r in self._crosses))

    def _column(self, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Evaluates column j of an unfolding for greedy pivots: its values and its residuals."""
        seen = self._oracle.block(self.rows, self.columns.take([j]))[:, 0]
        residual = seen - self._a @ self._b[:, j]
        for column, row in self._crosses:
            residual -= column * row[j]
        return seen, residual

    def _row(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Evaluates row i of an unfolding for greedy pivots: returns its values and residuals."""
        seen = self._oracle.block(self.rows.take([i]), self.columns)[0]
        residual = seen - self._a[i] @ self._b
        for column, row in self._crosses:
            residual -= column[i] * row
        return seen, residual


def _interpolant(fibres: np.ndarray, picked: np.ndarray) -> np.ndarray:
    """Computes an interpolation core F P⁻¹ of greedy cross from fibres F and pivot rows P."""
    q = np.linalg.qr(fibres.reshape(-1, fibres.shape[-1]))[0]
    return divided(q, q[picked]).reshape(fibres.shape)


def divided(q: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Computes q R⁻¹ for the pivot rows R of greedy cross, by least squares if R is singular.

    Example:
      >>> import numpy as np
      >>> print(divided(np.array([[2.0, 0.0], [4.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 0.0]])))
      [[1. 0.]
       [2. 0.]]
    """
    try:
        out = np.linalg.solve(rows.T, q.T).T
        if np.isfinite(out).all():
            return out
    except np.linalg.LinAlgError:
        pass
    return np.linalg.lstsq(rows.T, q.T, rcond=None)[0].T


def _new_rows(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns distinct multi-indices that are no pivots of a greedy cross interpolation yet."""
    seen = set(map(tuple, known.tolist()))
    fresh = [r for r in dict.fromkeys(map(tuple, rows.tolist())) if r not in seen]
    return np.array(fresh, np.int64).reshape(len(fresh), rows.shape[1])


def leading_pivots(
    matrix: np.ndarray, threshold: float, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the first pivots of a residual matrix for greedy cross, by complete pivoting.

    Example:
      >>> import numpy as np
      >>> leading_pivots(np.array([[1.0, 0.0, 2.0], [4.0, 0.0, 8.0]]), 1e-9, 3)
      (array([1]), array([2]))
    """
    matrix = matrix.copy()
    rows: list[int] = []
    columns: list[int] = []
    for _ in range(min(limit, *matrix.shape)):
        i, j = divmod(int(np.abs(matrix).argmax()), matrix.shape[1])
        if not abs(matrix[i, j]) > threshold:
            break
        rows.append(i)
        columns.append(j)
        matrix -= np.outer(matrix[:, j], matrix[i] / matrix[i, j])
        matrix[i] = matrix[:, j] = 0
    return np.array(rows, np.int64), np.array(columns, np.int64)
