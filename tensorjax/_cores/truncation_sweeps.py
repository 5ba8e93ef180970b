"""Sweeps of TT-rounding that truncate one bond after another, by SVDs or Gram matrices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorjax import linalg
from tensorjax._cores.contractions import absorb, times_right
from tensorjax._cores.orthogonalization import triangles
from tensorjax._cores.unfoldings import Cores, tall, wide

Basis = Callable[[Any], Any]  # matrix (m, f) -> isometry (m, r) onto its leading left subspace


def left_sweep(cores: Cores, factors: Cores, basis: Sequence[Basis]) -> tuple[Cores, Any]:
    """Truncation sweep of a train from left to right, by projection on given bases.

    Returns:
      The cores, and the exponent of two by which to scale them back.
    """
    out: Cores = []
    core, exponent = linalg.normalized(cores[0])
    for k, f in enumerate(factors):
        matrix = tall(core)
        u = basis[k](linalg.matmul(matrix, f))
        out.append(u.reshape(*core.shape[:2], -1))
        core, e = linalg.normalized(absorb(_coordinates(u, matrix), cores[k + 1]))
        exponent = exponent + e
    return [*out, core], exponent


def _coordinates(u: Any, matrix: Any) -> Any:
    """Projects a matrix on a basis u in a TT-rounding sweep, uᴴ matrix; corrected on the host.

    Tolerances near roundoff need it: over seven bonds that lack alone adds up to 15 eps.
    """
    w = linalg.project(u, matrix)
    return w + linalg.project(u, matrix - u @ w) if linalg.is_host(u) else w


def truncate_back(
    cores: Cores, weights: Sequence[Any], ranks: Sequence[int], *, exact: bool = False
) -> Cores:
    """Truncates a left-orthogonal train to ranks by a sweep from right to left.

    Args:
      cores: JAX arrays; NumPy arrays if ``exact``.
      weights: d−1 small matrices that make the columns of the cores orthonormal; None where they
        are.
      ranks: d−1.
      exact: by SVD alone, without a conditional. Derivative rules need it: of a conditional that
        `jax.vmap` batches inside a rule JAX has no transpose.
    """
    if exact:
        return _truncated_back(cores, weights, ranks, _svd_cut)[0]
    out, too_deep = _truncated_back(cores, weights, ranks, _gram_cut)

    def careful(cores: Cores) -> Cores:
        return _truncated_back(cores, weights, ranks, _svd_cut)[0]

    # One decision for the whole train: a conditional at every bond costs more than it saves.
    return lax.cond(jnp.asarray(too_deep), careful, lambda _: out, cores)


def _truncated_back(
    cores: Cores, weights: Sequence[Any], ranks: Sequence[int], cut: Any
) -> tuple[Cores, Any]:
    """Truncates a left-orthogonal train by a sweep; tells whether Gram matrices were too coarse.

    Cores are only ever multiplied by isometries: the singular values go along apart, and are never
    divided by. Also returns whether any cut was too deep for Gram matrices.
    """
    out, too_deep = [cores[-1]], False
    seen = wide(cores[-1])
    bonds = zip(cores[:-1], weights, ranks, strict=True)
    for core, w, rank in reversed(list(bonds)):
        u, energies, deep = cut(seen, rank)
        too_deep = too_deep | deep
        out[-1] = absorb(linalg.adjoint(u), out[-1])
        core = times_right(core, u if w is None else linalg.matmul(w, u))
        seen = linalg.scale_columns(tall(core), linalg.root(energies)).reshape(len(core), -1)
        out.append(core)
    return out[::-1], too_deep


def _gram_cut(seen: Any, rank: int) -> tuple[Any, Any, Any]:
    return linalg.leading_eigenvectors(linalg.gram(seen), rank)


def _svd_cut(seen: Any, rank: int) -> tuple[Any, Any, Any]:
    u, energies, _ = linalg.left_basis(seen, rank=rank, method="svd")
    return u, energies, False


def svd_round(cores: list[Any], ranks: Sequence[int] | None, share: Any) -> tuple[list[Any], Any]:
    """Rounds a train by a QR sweep and a truncation sweep of SVDs, to ranks or an energy share."""
    factors = triangles(cores)
    # Shares of what is left at each bond: never more than shares of the whole.
    part = None if share is None else share / (len(cores) - 1)
    bases = [_svd_basis(r, part) for r in ranks or [None] * len(factors)]
    return left_sweep(cores, factors, bases)


def _svd_basis(rank: int | None, share: Any) -> Basis:
    def basis(matrix: Any) -> Any:
        r = None if rank is None else min(rank, *matrix.shape)
        return linalg.left_basis(matrix, rank=r, share=share, method="svd").u

    return basis


def small_svd_round(cores: Cores, share: float) -> Cores:
    """Rounds a small train of host cores as `svd_round`, to an energy share, by few calls of NumPy.

    Args:
      cores: (r_{k-1}, n_k, r_k) each, two or more, of one dtype, finite; products of their norms
        near one, for nothing is scaled.
      share: of the energy that may be discarded.

    Returns:
      The cores; the last one has the norm.
    """
    factors: Cores = []
    for core in cores[:0:-1]:
        seen = tall(core) @ factors[-1] if factors else tall(core)
        # Without conjugates: of (core F)ᵀ = Q R the factor is Rᵀ, and no Q is formed.
        r: Any = np.linalg.qr(seen.reshape(len(core), -1).T, mode="r")
        factors.append(r.T)
    out, core, tail = [], cores[0], 0.0
    for k, f in enumerate(reversed(factors)):
        matrix = tall(core)
        u, w, _ = np.linalg.svd(matrix @ f, full_matrices=False)
        energies = np.cumsum(np.square(w[::-1], dtype=np.float64))
        tail = share * energies[-1] / len(factors) if k == 0 else tail
        u = u[:, : max(len(w) - int(energies.searchsorted(tail, "right")), 1)]
        out.append(u.reshape(*core.shape[:2], -1))
        core = ((u.conj().T @ matrix) @ wide(cores[k + 1])).reshape(-1, *cores[k + 1].shape[1:])
    return [*out, core]
