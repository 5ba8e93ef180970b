"""Diffusion matrices of Fokker–Planck equations: constant, sums of terms, or any function of x."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TTMatrix
from tensorjax.pde._arguments import coefficient, floats
from tensorjax.pde._discretization import variable_coefficients as multipliers
from tensorjax.pde._discretization.grid import Box, random_points
from tensorjax.pde._maps.affine_maps import AffineMap
from tensorjax.pde._problems.drifts import Cores, Power, Product, Term
from tensorjax.pde._problems.partial_derivatives import partial_derivative
from tensorjax.pde._problems.user_functions import InFewSizes, Remembered, takes_time

Interpretation = Literal["ito", "stratonovich", "klimontovich"]
# Share of ∂_i D_ij that joins the drift of the Itô equation.
_SHARES = {"ito": 0.0, "stratonovich": 0.5, "klimontovich": 1.0}
# Number of random points of the box at which a diffusion's symmetry and sign are checked.
_LOOKS = 1000


class Diffusion:
    """Diffusion matrix D(t, x) of a Fokker–Planck equation: constant, sum of terms or function.

    Args:
      given: None, a number or a constant matrix; a `Term`, for a multiple of the identity; a
        sequence of pairs (term, matrix), which are summed; d entries of a diagonal, or d rows of d
        entries, each a term, a number or None; or a function of points (m, d), or of t and points,
        with values (m, d), a diagonal, or (m, d, d).
      box: of the points at which it is checked.
      tol: relative error of cross approximations.
      interpretation: of the noise, see `tensorjax.pde.FokkerPlanck`.
    """

    def __init__(self, given: Any, box: Box, tol: float, interpretation: Interpretation):
        _check.choice("interpretation", interpretation, get_args(Interpretation))
        self.share, self.dim, self.tol = _SHARES[interpretation], box.dim, tol
        self.constant: Any = None
        self.terms: list[tuple[Term, np.ndarray]] = []
        self.function = (
            InFewSizes(given, takes_time(given, "diffusion")) if callable(given) else None
        )
        self._known = Remembered("diffusion")
        if self.function is None:
            constant, self.terms = _parsed(given, box.dim)
            constant = diffusion_matrix("diffusion", constant, box.dim)
            zero = not _check.is_traced(constant) and constant is not None and not np.any(constant)
            self.constant = None if zero else constant
        if self.variable:
            self._check(box, interpretation)

    @property
    def variable(self) -> bool:
        """Whether a diffusion matrix D(t, x) depends on x or t."""
        return self.function is not None or bool(self.terms)

    @property
    def timed(self) -> bool:
        """Whether a diffusion matrix D(t, x) depends on time."""
        return self.function is not None and self.function.timed

    def values(self, x: np.ndarray, t: float = 0.0) -> np.ndarray:
        """Evaluates a diffusion matrix, (m, d, d), at physical points (m, d)."""
        out = np.zeros((len(x), self.dim, self.dim))
        if self.function is not None:
            found = self.function(x, t)
            if found.shape == x.shape:
                return found[:, :, None] * np.eye(self.dim)
            if found.shape != out.shape:
                raise ValueError(
                    f"diffusion: expected values of shape {x.shape}, a diagonal, or {out.shape}, "
                    f"got {found.shape}; a function of one point becomes one of many by jax.vmap"
                )
            return found
        for term, matrix in self.terms:
            out = out + term.values(x)[:, None, None] * matrix
        return out if self.constant is None else out + self.constant

    def spurious(self, x: np.ndarray, t: float = 0.0) -> np.ndarray:
        """Evaluates the drift (m, d) that a diffusion induces, by Stratonovich or Klimontovich."""
        out = np.zeros_like(x)
        if not (self.share and self.variable):
            return out
        for j in range(self.dim):
            slope = partial_derivative(
                lambda p, j=j: self.values(p, t)[:, :, j].astype(float), x, j
            )
            out = out + self.share * slope
        return out

    def operators(self, box: Box, map: AffineMap, t: float) -> tuple[TTMatrix, ...]:
        """Builds the diffusion operator's TT-matrices for the part of D that depends on x.

        The share of ∂_i D_ij in the drift is that of ∂_i (D_ij ∂_j v), so that no derivative of D
        is taken.
        """
        out = []
        for cores, matrix in self.pieces(box, map, t):
            _, (gamma, s) = floats(map.matrix, matrix)
            tensor = gamma @ s @ gamma.T
            if self.share < 1:
                out.append(multipliers.second(box, (1 - self.share) * tensor, cores))
            if self.share > 0:
                out.append(multipliers.conduction(box, self.share * tensor, cores))
        return tuple(out)

    def pieces(self, box: Box, map: AffineMap, t: float) -> list[tuple[Cores, np.ndarray]]:
        if self.function is None:
            return [(term.cores(box, map, self.tol), matrix) for term, matrix in self.terms]
        entries = _units(self.dim, self._diagonal)

        def of_box(y: np.ndarray) -> np.ndarray:
            d = self.values(map.inverse(y), t)
            check_sign("diffusion", d, f"at t = {t:g}" if self.timed else "in the box")
            return np.stack([d[:, i, j] for i, j, _ in entries], 1)

        at = t if self.timed else None
        found = self._known.components(of_box, map, box, self.tol, at)
        return [(m, unit) for m, (_, _, unit) in zip(found, entries, strict=True) if np.any(m[0])]

    def _check(self, box: Box, interpretation: str) -> None:
        """Raises ValueError if the diffusion matrix is not symmetric positive semidefinite."""
        found = self.values(random_points(box, _LOOKS))
        size = np.abs(found).max()
        if not np.allclose(found, found.mT, atol=1e-12 * size):
            raise ValueError("diffusion: expected a symmetric matrix, got one that is not")
        check_sign("diffusion", found, "in the box")
        self._diagonal = not np.any(found * (1 - np.eye(self.dim)))
        if self.function is None:
            turns = any(np.linalg.eigvalsh(m)[0] < -1e-12 * np.abs(m).max() for _, m in self.terms)
        else:
            turns = not self._diagonal
        if interpretation == "stratonovich" and turns:
            raise ValueError(
                "interpretation: in the sense of Stratonovich the drift depends on the matrix of "
                "the noise, which D does not determine where its directions vary with x: give a "
                "diagonal D, or pairs (term, matrix), or the drift of the Itô equation"
            )


def check_sign(name: str, values: np.ndarray, where: str) -> None:
    """Raises ValueError if a diffusion matrix (m, d, d) at points is not positive semidefinite."""
    low = float(np.linalg.eigvalsh((values + values.mT) / 2).min()) if len(values) else 0.0
    if not low >= -1e-10 * np.abs(values).max(initial=0.0):
        raise ValueError(
            f"{name}: expected a positive semidefinite matrix {where}, got an eigenvalue "
            f"{low:.2g}; negative diffusion has no solution forward in time. If D is one for a "
            'part of space only, take a box within that, and coordinates="fixed"'
        )


def _units(d: int, diagonal: bool) -> list[tuple[int, int, np.ndarray]]:
    """Lists the entries (i, j) of a diffusion matrix with their unit matrices."""
    out = []
    for i in range(d):
        for j in range(i, i + 1 if diagonal else d):
            unit = np.zeros((d, d))
            unit[i, j] = unit[j, i] = 1.0
            out.append((i, j, unit))
    return out


def _parsed(given: Any, d: int) -> tuple[Any, list[tuple[Term, np.ndarray]]]:
    """Splits a user's diffusion matrix into a constant and pairs (scalar term, matrix)."""
    if isinstance(given, Term):
        given = [(given, np.eye(d))]
    if not _has_terms(given):
        return given, []
    pairs = [tuple(g) if isinstance(g, Sequence) else (g,) for g in given]
    if all(len(p) == 2 and np.ndim(p[1]) == 2 and isinstance(p[0], Term) for p in pairs):
        terms = [(p[0], diffusion_matrix("diffusion", p[-1], d)) for p in pairs]
        constant = None
    else:
        constant, terms = _entries(pairs, d)
    for term, _ in terms:
        term.check(d)
    return constant, terms


def _entries(rows: list[tuple[Any, ...]], d: int) -> tuple[Any, list[tuple[Term, np.ndarray]]]:
    """Converts the entries of a diffusion matrix to a constant and pairs (scalar term, matrix)."""
    size = {len(r) for r in rows}
    if len(rows) != d or size not in ({1}, {d}):
        raise ValueError(
            f"diffusion: expected {d} entries of a diagonal, or {d} rows of {d} entries (terms, "
            f"numbers or None), or pairs (term, matrix), got {len(rows)} of lengths {sorted(size)}"
        )
    constant, terms = np.zeros((d, d)), []
    for i, row in enumerate(rows):
        for j, entry in enumerate(row, start=i if len(row) == 1 else 0):
            unit = np.zeros((d, d))
            unit[i, j] += 0.5
            unit[j, i] += 0.5
            if isinstance(entry, Term):
                terms.append((entry, unit))
            else:
                constant += (0.0 if entry is None else float(entry)) * unit
    same: dict[int, tuple[Term, np.ndarray]] = {}
    for term, unit in terms:  # one term in several places is one term with their sum
        same[id(term)] = term, unit + (same[id(term)][1] if id(term) in same else 0)
    return (constant if np.any(constant) else None), list(same.values())


def _has_terms(given: Any) -> bool:
    if isinstance(given, list | tuple):
        return any(_has_terms(g) for g in given)
    return isinstance(given, Term)


def diffusion_matrix(name: str, value: Any, dim: int) -> Any:
    """Converts a constant diffusion to a matrix; ValueError unless positive semidefinite."""
    if value is None:
        return None
    if callable(value):
        raise ValueError(
            f"{name}: expected a number or a constant matrix ({dim}, {dim}), got a function; for "
            "one that depends on x see pde.FokkerPlanck and pde.AdvectionDiffusionReaction"
        )
    if isinstance(value, str):
        raise ValueError(
            f"{name}: expected a number or a constant matrix ({dim}, {dim}), got {value!r}"
        )
    if np.ndim(value) == 0:
        value = value * np.eye(dim)
    value = coefficient(name, value, (dim, dim))
    if _check.is_traced(value):
        return value
    low, high = np.linalg.eigvalsh((value + value.T) / 2)[[0, -1]]
    if not np.allclose(value, value.T, atol=1e-12 * np.abs(value).max()):
        raise ValueError(
            f"{name}: expected a symmetric matrix, got one that is not; D:∇∇u sees (D + Dᵀ)/2 only"
        )
    if low < -1e-12 * abs(high):
        raise ValueError(
            f"{name}: expected a symmetric positive semidefinite matrix, got eigenvalues from "
            f"{low:.2g} to {high:.2g}; negative diffusion has no solution forward in time"
        )
    return value


def proportional(tensor: np.ndarray) -> list[list[Any]]:
    """Returns the diffusion matrix with entries S_ij x_i x_j (geometric Brownian motion)."""
    d = len(tensor)
    e = np.eye(d)
    rows: list[list[Any]] = [[None] * d for _ in range(d)]
    for i in range(d):
        for j in range(i, d):
            if tensor[i, j]:
                term = Product([Power(e[i]), Power(e[j])], amplitude=float(tensor[i, j]))
                rows[i][j] = rows[j][i] = term
    return rows
