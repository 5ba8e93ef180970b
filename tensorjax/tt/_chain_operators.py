"""Nearest-neighbour Hamiltonians as TT-matrices (MPO): site terms and pair terms of a chain."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TTMatrix
from tensorjax._placement import placed
from tensorjax._typing import ArrayLike, DTypeLike
from tensorjax.tt._rank_padding import trim


@placed
def chain_operator(
    order: int,
    *,
    site: ArrayLike | Sequence[ArrayLike] | None = None,
    bond: ArrayLike | Sequence[ArrayLike] | None = None,
    dtype: DTypeLike | None = None,
) -> TTMatrix:
    """Builds a nearest-neighbour Hamiltonian Σ_k h_k + Σ_k g_{k,k+1} as a TT-matrix (MPO).

    A finite automaton runs along the chain. Its states, the bond's indices, are "no term yet", "in
    the middle of a pair", one for each of the t products in g = Σ_t a_t ⊗ b_t, and "term done". So
    the TT-rank is 2 + t, with t the operator-Schmidt rank of g, found by an SVD: 3 for an Ising
    chain and 5 for a Heisenberg chain. States that nothing reaches are left out. With ``site``
    alone it is a Kronecker sum: where h is the Laplacian of one axis, that of a grid of d axes.

    Args:
      order: number of sites d.
      site: h, a matrix (n, n) for all sites, or a sequence of d, whose sizes n_k may differ.
      bond: g, a matrix (n², n²) for all pairs, rows (i_k, i_{k+1}), or a sequence of d − 1, of
        sizes n_k n_{k+1}. ``np.kron(a, b)`` is a on the left site times b on the right one.
      dtype: of the cores; that of the terms if None.

    Returns:
      TTMatrix with n_k rows and columns at site k.

    Raises:
      ValueError: no terms, terms that are not square or do not fit each other, wrong counts, NaN.
      TypeError: terms of integers, or traced ones: the ranks depend on them.

    Example:
      The critical Ising chain, −Σ σx σx − Σ σz:

      >>> import numpy as np
      >>> from tensorjax import tt
      >>> x, z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])
      >>> tt.chain_operator(64, site=-z, bond=-np.kron(x, x)).ranks[:4]
      (1, 3, 3, 3)

    Source: I. McCulloch, "From density-matrix renormalization group to matrix product states",
    J. Stat. Mech. (2007) P10014, section 3; Schollwöck, Ann. Phys. 326 (2011), section 6.1. The SVD
    of the pair's term is a departure, ours: they take the products as given.
    """
    order = _check.integer("order", order, low=1)
    sites = _terms("site", site, order)
    bonds = _terms("bond", bond, order - 1)
    if sites is None and bonds is None:
        raise ValueError(
            "site, bond: expected terms on sites, on pairs of neighbours, or both, got neither"
        )
    sizes = _sizes(sites, bonds, order)
    sites = sites or [np.zeros((n, n)) for n in sizes]
    bonds = bonds or [np.zeros((m * n,) * 2) for m, n in itertools.pairwise(sizes)]
    pairs = [_products(g, sizes[k], sizes[k + 1]) for k, g in enumerate(bonds)]
    kind = np.result_type(*sites, *bonds) if dtype is None else _check.dtype_of("dtype", dtype)
    if not jnp.issubdtype(kind, jnp.inexact):
        raise TypeError(f"dtype: expected a floating-point or complex dtype, got {kind}")
    if any(np.iscomplexobj(x) for x in (*sites, *bonds)) and kind.kind != "c":
        raise TypeError(f"dtype: expected a complex dtype for complex terms, got {kind}")
    cores = [_core(h, pairs[k - 1 : k], pairs[k : k + 1]) for k, h in enumerate(sites)]
    cores[0] = cores[0][:1]
    cores[-1] = cores[-1][..., -1:]
    kind = jax.dtypes.canonicalize_dtype(kind)
    return trim(TTMatrix([jnp.asarray(c.astype(kind)) for c in cores]))


def _terms(name: str, value: Any, count: int) -> list[np.ndarray] | None:
    """Checks site or pair terms of a chain Hamiltonian: returns a list of matrices, or None."""
    if value is None:
        return None
    if _check.is_traced(value):
        raise TypeError(
            f"{name}: expected concrete terms, got traced ones, on which the ranks depend; build "
            "the operator outside jit, vmap and grad"
        )
    one = hasattr(value, "ndim") and value.ndim == 2
    listed = [value] * count if one else _check.several(name, value, "matrices, or one matrix")
    if len(listed) != count:
        raise ValueError(f"{name}: expected one matrix or {count} of them, got {len(listed)}")
    terms = [np.asarray(_check.inexact(f"{name}[{k}]", x)) for k, x in enumerate(listed)]
    for k, x in enumerate(terms):
        if x.ndim != 2 or x.shape[0] != x.shape[1] or x.size == 0:
            raise ValueError(f"{name}[{k}]: expected a square matrix, got shape {x.shape}")
    _check.finite(name, terms)
    return terms


def _sizes(
    sites: Sequence[np.ndarray] | None, bonds: Sequence[np.ndarray] | None, order: int
) -> list[int]:
    """Returns the mode sizes of a chain Hamiltonian from its site terms or its pair terms."""
    if sites is not None:
        sizes = [len(h) for h in sites]
    elif bonds:
        sizes = [math.isqrt(len(bonds[0]))] * order
    else:
        raise ValueError("site: expected a term for a chain of one site, got None")
    for k, g in enumerate(bonds or []):
        if len(g) != sizes[k] * sizes[k + 1]:
            raise ValueError(
                f"bond[{k}]: expected {sizes[k]} x {sizes[k + 1]} = {sizes[k] * sizes[k + 1]} rows "
                f"for the sites {k} and {k + 1}, got {len(g)}; sizes that differ from site to site "
                "are read off the terms in site="
            )
    return sizes


def _products(g: np.ndarray, m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors a two-site operator into a sum of products of one-site operators, by an SVD."""
    wide = g.astype(np.result_type(g.dtype, np.float64))
    by_site = wide.reshape(m, n, m, n).transpose(0, 2, 1, 3).reshape(m * m, n * n)
    u, s, vh = np.linalg.svd(by_site, full_matrices=False)
    t = int(np.sum(s > 8 * max(m, n) ** 2 * np.finfo(g.dtype).eps * s[0]))
    root = np.sqrt(s[:t])
    return (u[:, :t] * root).reshape(m, m, t), (root[:, None] * vh[:t]).reshape(t, n, n)


def _core(h: np.ndarray, before: Sequence[Any], after: Sequence[Any]) -> np.ndarray:
    """Builds one core of a chain Hamiltonian from its site term and the adjacent pair terms."""
    b = before[0][1] if before else np.zeros((0, *h.shape))
    a = after[0][0] if after else np.zeros((*h.shape, 0))
    core = np.zeros((2 + len(b), *h.shape, 2 + a.shape[-1]), np.result_type(h, a, b, np.float64))
    core[0, :, :, 0] = core[-1, :, :, -1] = np.eye(len(h))
    core[0, :, :, -1] = h
    core[0, :, :, 1:-1] = a
    core[1:-1, :, :, -1] = b
    return core
