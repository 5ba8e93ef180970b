"""Differential operators with affine coefficients, (M y + b)·∇ + S:∇∇ + c, as TT-matrices."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.contractions import einsum
from tensorjax._formats.trains import TTMatrix
from tensorjax._typing import ArrayLike
from tensorjax.pde._arguments import floats, or_zero
from tensorjax.pde._discretization.axis import DD, ONE, YD, Axis, D, Y
from tensorjax.pde._discretization.grid import Box

# Places of 0, 1 and c among the coefficients of which the cores of an operator are made.
_ZERO, _ONE, _CONSTANT = range(3)


class Coefficients(NamedTuple):
    """Coefficients M, b, S, c of the affine operator L v = (M y + b)·∇v + S:∇∇v + c v.

    Attributes:
      matrix: M, (d, d), or None for zero.
      shift: b, (d,), or None.
      diffusion: S, (d, d), of which only the symmetric part counts, or None.
      constant: c.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> still = pde.Coefficients(matrix=-np.eye(2), diffusion=0.1 * np.eye(2))
      >>> print(still.moving(np.eye(2)).matrix)
      [[-2. -0.]
       [-0. -2.]]
    """

    matrix: Any = None
    shift: Any = None
    diffusion: Any = None
    constant: Any = 0.0

    def moving(self, sigma: ArrayLike, beta: ArrayLike | None = None) -> "Coefficients":
        """Returns the coefficients of the affine operator L − (Σ y + β)·∇, in moving coordinates.

        Args:
          sigma: Σ, (d, d).
          beta: β, (d,), or None for zero.

        Returns:
          `Coefficients`, new ones.
        """
        d = np.shape(sigma)[0]
        _, (matrix, sigma, shift, beta) = floats(
            or_zero(self.matrix, d, d), sigma, or_zero(self.shift, d), or_zero(beta, d)
        )
        return self._replace(matrix=matrix - sigma, shift=shift - beta)


def affine_generator(
    box: Box,
    matrix: ArrayLike | None,
    shift: ArrayLike | None,
    diffusion: ArrayLike | None,
    constant: ArrayLike = 0.0,
) -> TTMatrix:
    """Builds the affine operator L v = (M y + b)·∇v + S:∇∇v + c v as a TT-matrix.

    A finite automaton runs along the axes. Up to the middle its states are "no factor yet", one for
    every ∂_i and every y_i met, and "done"; from the middle on one for every ∂_j and y_j still to
    come. The TT-rank of the bond after p of d axes is 2 min(p, d − p) + 2, without M
    min(p, d − p) + 2, and 2 with neither M nor S.

    Args:
      box: of d axes.
      matrix: M, (d, d), or None.
      shift: b, (d,), or None.
      diffusion: S, (d, d), or None. Its symmetric part is taken.
      constant: c.

    Returns:
      TTMatrix of n_k rows and columns; of NumPy arrays in double precision, or of JAX arrays if a
      coefficient is traced (jit, vmap and grad work).

    Raises:
      ValueError: wrong shapes, NaN or Inf.

    Example:
      >>> import numpy as np
      >>> from tensorjax import pde
      >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
      >>> pde.affine_generator(pde.Box.fourier(2), rotation, None, 0.1 * np.eye(2)).ranks
      (1, 4, 1)

    Source: ours; the automaton as in McCulloch, J. Stat. Mech. (2007) P10014, section 3.
    """
    cores = affine_states(box, Coefficients(matrix, shift, diffusion, constant))
    return TTMatrix._unchecked(
        tuple(_expanded(c, a.basis) for c, a in zip(cores, box.axes, strict=True))
    )


def affine_right_side(box: Box, given: Coefficients) -> TTMatrix:
    """Builds the affine operator of a PDE as a TT-matrix that is stable in time integration.

    As `affine_generator`, but between walls, where products with y are projected.
    """
    cores = affine_states(box, given)
    return TTMatrix._unchecked(
        tuple(_expanded(c, a.stable_basis) for c, a in zip(cores, box.axes, strict=True))
    )


def affine_states(box: Box, given: Coefficients) -> list[Any]:
    """Builds TT-cores (r, 5, s) of an affine differential operator over 1, ∂, y, y∂ and ∂².

    The same automaton as in `affine_generator`, without the matrices: what is `differentiated`
    needs no more.
    """
    d = box.dim
    names = ("matrix", "shift", "diffusion")
    for name, value, shape in zip(names, given, ((d, d), (d,), (d, d)), strict=False):
        if value is not None and np.shape(value) != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {np.shape(value)}")
        _check.finite(name, value)
    _check.finite("constant", given.constant)
    matrix, shift, diffusion = given[:3]
    xp, (m, b, s, c) = floats(
        or_zero(matrix, d, d), or_zero(shift, d), or_zero(diffusion, d, d), given.constant
    )
    s = (s + s.T) / 2
    kinds = given.matrix is not None, given.diffusion is not None
    zero_one = np.arange(2.0) if xp is np else jnp.arange(2, dtype=m.dtype)
    # One gather for each core: a time step builds these up to three times.
    entries = xp.concatenate([zero_one, c.reshape(1), b, *(x.ravel() for x in (m, s, 2 * s))])
    return [entries[places] for places in _places(d, kinds)]


@functools.lru_cache(maxsize=64)
def _places(d: int, kinds: tuple[bool, bool]) -> list[np.ndarray]:
    """Returns where each entry of the cores of an affine operator stands among its coefficients.

    Those are 0, 1, c, b, M, S and 2 S in one vector.

    Args:
      d: number of axes.
      kinds: whether there are a matrix M and a diffusion S.
    """
    square = np.arange(d * d).reshape(d, d)
    b, (m, s, twice) = 3 + np.arange(d), (3 + d + k * d * d + square for k in range(3))
    return [_states(k, d, kinds, m, b, s, twice) for k in range(d)]


class _Cut:
    """Numbering of TT bond states between axes p and p + 1 in the affine differential operator.

    They are "nothing yet", the ∂_i, the y_i, and "done".
    """

    def __init__(self, p: int, d: int, kinds: tuple[bool, bool]):
        self.left = p <= d - p
        self.nodes = np.arange(0, p) if self.left else np.arange(p, d)
        self.has_y = kinds[0]
        self.features = len(self.nodes) if any(kinds) else 0
        self.size = 2 + self.features * (2 if self.has_y else 1)

    def d(self, nodes: Any) -> Any:
        return 1 + np.asarray(nodes) - (self.nodes[0] if self.features else 0)

    def y(self, nodes: Any) -> Any:
        return self.d(nodes) + self.features


def _states(
    k: int, d: int, kinds: tuple[bool, bool], m: Any, b: Any, s: Any, twice: Any
) -> np.ndarray:
    """Returns the places of the entries of TT-core k (r, 5, s) of an affine operator."""
    before, after = _Cut(k, d, kinds), _Cut(k + 1, d, kinds)
    out = np.full((before.size, 5, after.size), _ZERO)
    out[0, ONE, 0] = out[-1, ONE, -1] = _ONE
    out[0, YD, -1] = m[k, k]
    out[0, D, -1] = b[k]
    out[0, DD, -1] = s[k, k]
    if k == 0:
        out[0, ONE, -1] = _CONSTANT
    if any(kinds):
        _begin(out, k, after, kinds, m, twice)
        _go_on(out, before, after, kinds, m, twice)
        _finish(out, k, before, kinds, m, twice)
    out = out[:1] if k == 0 else out
    return out[..., -1:] if k == d - 1 else out


def _begin(core: np.ndarray, k: int, after: _Cut, kinds: Any, m: Any, twice: Any) -> None:
    """Fills in the TT-core of an affine operator at axis k where terms in axes (k, j > k) start."""
    if after.left:
        core[0, D, after.d(k)] = _ONE
        if kinds[0]:
            core[0, Y, after.y(k)] = _ONE
        return
    j = after.nodes
    core[0, D, after.d(j)] = twice[k, j]
    if kinds[0]:
        core[0, Y, after.d(j)] = m[j, k]
        core[0, D, after.y(j)] = m[k, j]


def _go_on(core: np.ndarray, before: _Cut, after: _Cut, kinds: Any, m: Any, twice: Any) -> None:
    """Fills in an affine operator's TT-core at an axis on which terms of other axes do not act."""
    if before.left != after.left:
        i, j = before.nodes[:, None], after.nodes[None]
        core[before.d(i), ONE, after.d(j)] = twice[i, j]
        if kinds[0]:
            core[before.d(i), ONE, after.y(j)] = m[i, j]
            core[before.y(i), ONE, after.d(j)] = m[j, i]
        return
    i = np.intersect1d(before.nodes, after.nodes)
    core[before.d(i), ONE, after.d(i)] = _ONE
    if kinds[0]:
        core[before.y(i), ONE, after.y(i)] = _ONE


def _finish(core: np.ndarray, k: int, before: _Cut, kinds: Any, m: Any, twice: Any) -> None:
    """Fills in the TT-core of an affine operator at axis k where terms in axes (i < k, k) end."""
    if not before.left:
        core[before.d(k), D, -1] = _ONE
        if kinds[0]:
            core[before.y(k), Y, -1] = _ONE
        return
    i = before.nodes
    core[before.d(i), D, -1] = twice[i, k]
    if kinds[0]:
        core[before.d(i), Y, -1] = m[i, k]
        core[before.y(i), D, -1] = m[k, i]


def _expanded(states: Any, matrices: Any) -> Any:
    """Builds an affine operator's core from coefficients (r, 5, s) of 1, ∂, y, y∂ and ∂²."""
    xp = np if isinstance(states, np.ndarray) else jnp
    return einsum("aob,omn->amnb", states, xp.asarray(matrices).astype(states.dtype))


def differentiated(axis: Axis, core: np.ndarray) -> np.ndarray:
    """Applies the factors 1, ∂, y, y∂, ∂² of affine operators to a TT-core: (5, r, n, s)."""
    if axis.projected is not None:
        return np.stack([core, *(np.matmul(m, core) for m in axis.stable_basis[1:])])
    first = np.matmul(axis.d1, core)
    y = axis.points[:, None]
    moved = y * first if axis.movable else np.matmul(axis.d1, y * core) - core
    return np.stack([core, first, y * core, moved, np.matmul(axis.d2, core)])
