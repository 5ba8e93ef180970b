"""Bases of singular vectors of bonds, from triangles of both sides, and what they do to arrays.

With a layer unfolded at a bond as L D R, and triangles of QR ρ_L of L D and ρ_R of R, so that
ρ_L ρ_R = U Λ Vᴴ, the new parts are L D X and X⁻¹ R with

    X = ρ_R V Λ^{−1/2},    X⁻¹ = Λ^{−1/2} Uᴴ ρ_L.

Gradients and averages of them go by the inverse transpose, second moments by its squared entries,
as for entries that are independent.

Both sides of a bond then have the singular values Λ^{1/2}, and the derivative of a layer by core k
of a train has the norm (Λ_{k−1} Λ_k)^{1/2} of the largest ones: less for the first and the last
core, which hold the norm of the layer between them, and more for the others. A step along the
gradient diverges on those at a rate that was fine before. Scalars, c_k for what is left and 1/c_k
for what is right of a bond, make these norms equal, which is where their largest is least.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax.linalg._arrays import adjoint, epsilon, matmul
from tensorjax.linalg._qr import after, triangle

Pair = tuple[jax.Array, jax.Array]


class Factorisations:
    """Sequence of QRs and SVDs for bond bases, run one by one, as XLA's may deadlock."""

    def __init__(self, done: tuple[jax.Array, ...] = ()) -> None:
        self.done = done

    def triangle(self, a: jax.Array) -> jax.Array:
        """Computes r with rᴴ r = aᴴ a by QR, for bond bases, of one matrix or a batch."""
        r = triangle(after(a, *self.done))
        self.done = (r,)
        return jnp.pad(r, [(0, 0)] * (a.ndim - 2) + [(0, a.shape[-1] - r.shape[-2]), (0, 0)])

    def svd(self, a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Computes the SVD of square matrices for bond bases, after earlier factorisations."""
        found = linalg.svd(after(a, *self.done))
        self.done = (found[1],)
        return found  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class Bases:
    """New bases of bonds: matrices (bonds, new, old) for the cores on both sides, and new gates.

    Attributes:
      below: for the left part of every bond, the matrices of parameters and of gradients.
      above: for the right part, likewise.
      live: (bonds, new), gates in the new basis, zeros and ones.
      norms: (2, bonds), of the layer's parts on the left and on the right of every bond, spectral,
        or Frobenius norms where the basis stays as it is; 0 for a layer that stays.
    """

    below: Pair
    above: Pair
    live: jax.Array
    norms: jax.Array

    def but(self, stays: jax.Array) -> "Bases":
        """Returns new bond bases in which bonds marked by ``stays`` (bonds,) are left unchanged."""
        still = stays[:, None, None]

        def kept(x: jax.Array) -> jax.Array:
            return jnp.where(still, jnp.eye(x.shape[-1], dtype=x.dtype)[None], x)

        below, above = ((kept(a), kept(b)) for a, b in (self.below, self.above))
        return Bases(below, above, self.live, jnp.where(stays, 0.0, self.norms))

    def balanced(self, powers: np.ndarray) -> "Bases":
        """Balances norms of neighbouring cores: scales bases by c on the left, 1/c on the right.

        Args:
          powers: (2, bonds, bonds), of log c of each bond per log of the norms on both sides of
            each, as `powers_of_train` has it; zeros for layers that are not balanced. A layer that
            stays or has a side of zeros is left as it is.
        """
        if not powers.any():
            return self
        together = (powers[0] != 0) | (powers[0] != 0).T | np.eye(len(powers[0]), dtype=bool)
        known = jnp.all(self.norms > 0, 0)
        whole = jnp.all(known[None] | ~together, 1)
        logs = jnp.log(jnp.where(known, self.norms, 1.0))
        # Products of matrices and vectors by parts: XLA may round them on GPUs.
        c = jnp.exp(jnp.sum(powers.astype(logs.dtype) * logs[:, None], (0, 2)))
        c = jnp.where(whole, c, 1.0)
        c = c[:, None, None].astype(self.below[0].dtype)
        (left, left_gradient), (right, right_gradient) = self.below, self.above
        return dataclasses.replace(
            self, below=(left * c, left_gradient / c), above=(right / c, right_gradient * c)
        )


def powers_of_train(bonds: int) -> np.ndarray:
    """Computes exponents of norms, (2, bonds, bonds), that balance bond bases of a train.

    With a and b the norms of what is left and right of a bond, the derivative by core j of d has
    the norm e_j = a_{j−1} b_j, and log c_k = Σ_{j≤k} log e_j − k/d Σ_j log e_j.
    """
    cores = bonds + 1
    e = np.stack([np.eye(cores, bonds, -1), np.eye(cores, bonds)])
    share = np.arange(1, cores)[:, None] / cores
    return np.cumsum(e, 1)[:, :-1] - share * np.sum(e, 1, keepdims=True)


def powers_of_tucker(bonds: int) -> np.ndarray:
    """Computes exponents of norms that balance bond bases of a Tucker layer."""
    own = np.stack([np.zeros((bonds, bonds)), np.eye(bonds)])
    return own - np.ones((2, bonds, bonds)) / (bonds + 1)


def bases(
    gate: jax.Array, left: jax.Array, right: jax.Array, sizes: np.ndarray, order: Factorisations
) -> Bases:
    """Computes the singular vectors of many bonds, padded to one size, as new bases for them.

    Args:
      gate: (bonds, r).
      left: (bonds, r, r), triangles ρ_L.
      right: (bonds, r, r), ρ_R.
      sizes: (bonds,), ranks without padding.
    """
    most = gate.shape[1]
    alive = gate != 0
    u, s, v = order.svd(matmul(left, right))
    kept = jnp.arange(most)[None] < jnp.sum(alive, 1, keepdims=True)
    # What is rounding error, as where one side is still zero, has no basis: the bond stays.
    share = jnp.asarray(epsilon(s.dtype) * sizes[:, None], s.dtype)
    floor = share * jnp.max(s, 1, keepdims=True, initial=0.0)
    fits = jnp.isfinite(s).all(1, keepdims=True)
    fits &= jnp.min(jnp.where(kept, s, jnp.inf), 1, keepdims=True) > floor
    scale = jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept & fits, s, 1.0)), 0.0).astype(gate.dtype)
    stay = (alive[:, :, None] & np.eye(most, dtype=bool)[None]).astype(gate.dtype)
    whole = fits[..., None]
    x = jnp.where(whole, matmul(right, adjoint(v)) * scale[:, None, :], stay)  # (…, old, new)
    inverse = jnp.where(whole, scale[..., None] * matmul(adjoint(u), left), stay)
    # ρ_L has the gate in it already, and X⁻¹ belongs to L D X: the gate goes to the left.
    gate_inverse = jnp.where(alive, 1 / jnp.where(alive, gate, 1.0), 0.0)
    below = jnp.swapaxes(gate[..., None] * x, 1, 2), inverse * gate_inverse[:, None, :]
    live = jnp.where(fits, kept, alive)
    sides = jnp.stack([jnp.linalg.norm(side, axis=(1, 2)) for side in (left, right)])
    norms = jnp.where(fits[:, 0], jnp.sqrt(jnp.max(s, 1, initial=0.0)), sides)
    return Bases(below, (inverse, jnp.swapaxes(x, 1, 2)), live, norms.astype(s.dtype))


@dataclasses.dataclass(frozen=True)
class Kinds:
    """Kinds of the arrays at a bond, which a change of basis treats as parameters or squares.

    Attributes:
      parameters: (…,), constant.
      squares: (…,).
    """

    parameters: np.ndarray
    squares: jax.Array

    @classmethod
    def of(cls, kinds: Sequence[Sequence[str]], values: jax.Array) -> "Kinds":
        """Classifies arrays (cores, arrays, …) for bond bases: parameters, gradients or squares."""
        names = np.full(values.shape[:2], "gradient", object)  # of padding too
        for row, each in enumerate(kinds):
            names[row, : len(each)] = each
        nothing_negative = jnp.all(values.real >= 0, axis=range(2, values.ndim))
        squared, unknown = ((names == kind).astype(bool) for kind in ("square", "unknown"))
        squares = squared | (nothing_negative & unknown)
        return cls((names == "parameter").astype(bool), squares)

    def matrices(self, pair: Pair) -> jax.Array:
        """Returns for each array at a bond the new basis as matrix, of parameters or gradients."""
        of_parameters, of_gradients = (x[:, None] for x in pair)
        squared = (jnp.abs(of_gradients) ** 2).astype(of_gradients.dtype)
        found = jnp.where(self.squares[..., None, None], squared, of_gradients)
        return jnp.where(self.parameters[..., None, None], of_parameters, found)


def gates_moved(live: jax.Array, values: jax.Array, held: np.ndarray) -> jax.Array:
    """Computes gates after a change of bond bases, zeros and ones, and their moments, as means.

    Args:
      live: (bonds, r), of the new basis.
      values: (bonds, arrays, r).
      held: (bonds, arrays), which of them hold parameters, and become what the gate is.
    """
    one = live[:, None].astype(values.dtype)
    mean = jnp.sum(values, 2, keepdims=True) / jnp.maximum(jnp.sum(one, 2, keepdims=True), 1)
    mean = jnp.where(jnp.all(values >= 0, 2, keepdims=True), mean, jnp.zeros_like(mean))
    return one * jnp.where(held[..., None], jnp.ones_like(mean), mean)
