"""Norms and inner products of MERAs, by contraction of the whole network."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.contract import einsum, plan
from tensorjax.mera._types import MERA, single

_HIGHEST = jax.lax.Precision.HIGHEST


@placed
def norm(m: MERA) -> jax.Array:
    """Computes the norm ‖m‖ of a MERA: that of its top tensor, as all layers are isometric.

    Args:
      m: MERA.

    Returns:
      Real scalar, of the precision of the top tensor.

    Raises:
      TypeError: ``m`` is no MERA. ValueError: it is a batch of them.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> print(f"{mera.norm(mera.random(jax.random.key(0), (2,) * 64, 2)):.4f}")
      1.0000

    Source: G. Vidal, "Entanglement renormalization", Phys. Rev. Lett. 99, 220405 (2007).
    """
    single("m", m)
    if choose_kernel("mera.norm", (m.top,), dtype=np.dtype(m.top.dtype)) is NUMPY:
        with np.errstate(all="ignore"):
            return on_device([np.asarray(_norm(np.asarray(m.top)))])[0]
    return _norm_of(m.top)


def _norm(top: Any) -> Any:
    scaled, exponent = linalg.normalized(top.reshape(1, -1))
    return linalg.scaled(linalg.root(linalg.energy(scaled)), exponent)


_norm_of = jax.jit(_norm)


@placed
def inner(x: MERA, y: MERA) -> jax.Array:
    """Computes the overlap ⟨x, y⟩ = Σ conj(x_i) y_i (inner product) of two MERAs of one structure.

    Args:
      x: MERA; conjugated.
      y: MERA with the sites, blocks and disentanglers of ``x``; top legs may differ in size.

    Returns:
      Scalar in the promoted dtype.

    Raises:
      ValueError: the structures differ.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> x = mera.random(jax.random.key(0), (2,) * 8, 2)
      >>> print(f"{mera.inner(x, x):.4f}")
      1.0000

    Both networks are contracted as one. At every cut a leg or two of each layer are open, so the
    cost grows exponentially with the number of layers, that is, as a power of the length. The path
    is searched once per structure, which takes seconds from some dozens of sites on.

    Source: ours; the order of products is that of `tensorjax.contract`. First calls with concrete
    arguments on a CPU are NumPy's where they are small, with nothing compiled.
    """
    single("x", x)
    single("y", y)
    if x.shape != y.shape or [a.wiring for a in x.layers] != [b.wiring for b in y.layers]:
        raise ValueError(
            f"x, y: expected MERAs of one structure, got {x!r} and {y!r}; "
            "compare others by mera.to_tt and tt.inner"
        )
    dtype = jnp.promote_types(x.dtype, y.dtype)
    structure = tuple([layer.wiring for layer in x.layers])
    facts = {"dtype": np.dtype(dtype), "key": structure, "work": lambda: _work(x, y)}
    if choose_kernel("mera.inner", jax.tree.leaves((x, y)), **facts) is NUMPY:
        host = jax.tree.map(lambda a: np.asarray(a).astype(dtype, copy=False), (x, y))
        with np.errstate(all="ignore"):
            return on_device([np.asarray(_inner(*host), dtype)])[0]
    return _inner_of(x, y)


def _inner(x: MERA, y: MERA) -> Any:
    dtype = jnp.promote_types(x.dtype, y.dtype)
    # All else is isometric: scale is in the tops.
    (top, p), (other, q) = linalg.normalized(x.top), linalg.normalized(y.top)
    x, y = MERA._unchecked(x.layers, top), MERA._unchecked(y.layers, other)
    if linalg.is_host(top):
        terms = _terms(x, y)
        value = plan(*_with_labels(terms), []).on_host(*(a for a, _ in terms))
        return linalg.scaled(value, p + q)
    terms = _terms(x.astype(dtype), y.astype(dtype))
    return linalg.scaled(einsum(*_with_labels(terms), [], precision=_HIGHEST), p + q)


_inner_of = jax.jit(_inner)


def _terms(x: MERA, y: MERA) -> list[tuple[Any, list[int]]]:
    """Lists the tensors of the overlap ⟨x, y⟩ of two MERAs of one dtype, with axis labels."""
    sites = list(range(x.order))
    bra = _network(x, sites, x.order)
    fresh = 1 + max(max(labels) for _, labels in bra)
    # Tensors that meet at the bottom follow each other, from left to right.
    return [(a.conj(), labels) for a, labels in bra] + _network(y, sites, fresh)


def _with_labels(terms: Sequence[tuple[Any, list[int]]]) -> list[Any]:
    return [part for term in terms for part in term]


def _work(x: MERA, y: MERA) -> float:
    """Counts the multiplications of the overlap of two MERAs, by the plan of its products."""
    host = jax.tree.map(lambda a: np.broadcast_to(np.zeros((), a.dtype), a.shape), (x, y))
    return plan(*_with_labels(_terms(*host)), []).flops / 2


def _network(m: MERA, sites: Sequence[int], fresh: int) -> list[tuple[jax.Array, list[int]]]:
    """Lists all tensors of a MERA with axis labels, for the einsum of an overlap."""
    terms = []
    below = list(sites)
    for layer in m.layers:
        for u, (i, j) in zip(layer.disentanglers, layer.wiring.pairs, strict=True):
            terms.append((u, [below[i], below[j], fresh, fresh + 1]))
            below[i], below[j] = fresh, fresh + 1
            fresh += 2
        tops = []
        for w, block in zip(layer.isometries, layer.wiring.blocks, strict=True):
            terms.append((w, [*(below[i] for i in block), fresh]))
            tops.append(fresh)
            fresh += 1
        below = tops
    return [*terms, (m.top, below)]
