"""Local expectation values of MERAs by the causal cone."""

import math
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax._typing import ArrayLike
from tensorjax.contract import einsum, plan
from tensorjax.mera._overlap_network import norm
from tensorjax.mera._types import MERA, Layer, single
from tensorjax.mera._wiring import Wiring

_HIGHEST = jax.lax.Precision.HIGHEST


class ConeLayer(NamedTuple):
    """Disentanglers and isometries of one MERA layer that lie in the causal cone of some sites.

    Attributes:
      disentanglers: of `Layer.disentanglers`.
      isometries: of `Layer.isometries`, which are the sites of the layer above.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> cone = mera.causal_cone(mera.random(jax.random.key(0), (2,) * 8, 2), (3,))
      >>> cone[0].isometries
      (1, 2)
    """

    disentanglers: tuple[int, ...]
    isometries: tuple[int, ...]


def causal_cone(m: MERA, sites: int | Sequence[int]) -> list[ConeLayer]:
    """Finds the causal cone of sites of a MERA: the tensors on which their reduced state depends.

    All other tensors cancel with their conjugates in expectation values of these sites. Of a binary
    MERA the cone of neighbours holds a few tensors of each layer, whatever its length.

    Args:
      m: MERA; values are not read.
      sites: one or several, different; negative ones count from the end.

    Returns:
      A `ConeLayer` for every layer, from the bottom up; the top tensor is always in the cone.

    Raises:
      ValueError: sites out of range or given twice. TypeError: ``m`` is no MERA.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> m = mera.random(jax.random.key(0), (2,) * 8, 2)
      >>> mera.causal_cone(m, 3)[0]
      ConeLayer(disentanglers=(1,), isometries=(1, 2))

    Source: G. Vidal, "Class of quantum many-body states that can be efficiently simulated", Phys.
    Rev. Lett. 101, 110501 (2008).
    """
    single("m", m)
    found, at = [], tuple(sorted(_checked_sites(m, sites)))
    for layer in m.layers:
        found.append(_cone(layer.wiring, at))
        at = found[-1].isometries
    return found


def _cone(wiring: Wiring, sites: Sequence[int]) -> ConeLayer:
    """Finds tensors of a MERA layer in the causal cone of some sites below."""
    pairs = wiring.pairs
    involved = tuple(j for j, pair in enumerate(pairs) if set(pair) & set(sites))
    touched = {*sites, *(s for j in involved for s in pairs[j])}
    blocks = tuple(b for b, block in enumerate(wiring.blocks) if touched & set(block))
    return ConeLayer(involved, blocks)


@placed
def expectation(
    m: MERA, operator: ArrayLike, sites: int | Sequence[int], *, normalized: bool = True
) -> jax.Array:
    """Computes ⟨m|O|m⟩ / ⟨m|m⟩ of a MERA m and a local operator O on k sites, by its causal cone.

    All tensors outside the cone cancel with their conjugates, so the cost is that of a few small
    contractions per layer: logarithmic in the length. It grows steeply with the number of separate
    sites, for the cones of distant sites meet only near the top.

    Args:
      m: MERA.
      operator: (n_a, n_b, …, n_a, n_b, …), rows first, or the matrix (n_a n_b ⋯, n_a n_b ⋯).
      sites: a, b, …: different, in any order, neighbours or not; negative ones count from the end.
      normalized: whether to divide by ⟨m|m⟩.

    Returns:
      A scalar in the dtype that arithmetic between ``m`` and ``operator`` gives; 0 if m is zero.

    Raises:
      ValueError: sites out of range or given twice, or an operator of another size.
      TypeError: an operator of integers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import mera
      >>> m = mera.random(jax.random.key(0), (2,) * 1024, 2)
      >>> print(f"{mera.expectation(m, jnp.eye(4), (511, 512)):.4f}")
      1.0000

    Source: G. Evenbly, G. Vidal, "Algorithms for entanglement renormalization", Phys. Rev. B 79,
    144108 (2009), section IV (ascending superoperators). First calls with concrete arguments on a
    CPU are NumPy's, with nothing compiled.
    """
    single("m", m)
    chosen = _checked_sites(m, sites)
    o = _checked_operator(m, operator, chosen)
    normalized = _check.flag("normalized", normalized)
    dtype = jnp.promote_types(m.dtype, jax.dtypes.canonicalize_dtype(o.dtype))
    order = sorted(range(len(chosen)), key=chosen.__getitem__)
    o = o.transpose(*order, *(len(order) + k for k in order)).astype(dtype)
    at = tuple(sorted(chosen))
    if _is_numpys(m, o, at, dtype):
        with np.errstate(all="ignore"):
            value = _on_host(jax.tree.map(np.asarray, m), np.asarray(o), at, normalized)
        return on_device([np.asarray(value, dtype)])[0]
    o = jnp.asarray(o)
    # A program for each form of a step, which most sites and layers share, not for each pair.
    for layer in m.layers:
        o, at = _ascended(layer, o, at)
    value = _expectation(MERA._unchecked((), m.top.astype(dtype)), o, at)
    if normalized:
        return value
    size = norm(m).astype(dtype)
    return value * size * size  # not the square: it may overflow where the value does not


def _is_numpys(m: MERA, o: Any, at: tuple[int, ...], dtype: Any) -> bool:
    """Whether NumPy, not a JAX program, computes an expectation value by a causal cone."""
    arrays = [*jax.tree.leaves(m), *([] if linalg.is_host(o) else [o])]
    structure = at, tuple([layer.wiring for layer in m.layers])
    facts = {"dtype": np.dtype(dtype), "key": structure, "work": lambda: 0.0}
    return choose_kernel("mera.expectation", arrays, **facts) is NUMPY


def _on_host(m: MERA, o: Any, at: tuple[int, ...], normalized: bool) -> Any:
    """Computes an expectation value of a MERA in NumPy, by causal cones, with nothing compiled."""
    for layer in m.layers:
        o, at = _ascended(layer, o, at)
    top, exponent = linalg.normalized(m.top.reshape(1, -1))
    square = linalg.energy(top)
    value = _closed(top.reshape(m.top.shape).astype(o.dtype), o, at)
    if normalized:
        return value / square if square > 0 else 0 * value
    size = linalg.scaled(np.ones((), square.dtype), exponent)
    return value * size * size


def _checked_sites(m: MERA, sites: int | Sequence[int]) -> list[int]:
    single = isinstance(sites, numbers.Integral)
    listed: list[Any] = [sites] if single else _check.several("sites", sites, "sites")
    n = m.order
    chosen = [_check.integer("sites", s, low=-n, high=n - 1) % n for s in listed]
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"sites: expected one or more different sites, got {tuple(listed)}")
    return chosen


def _checked_operator(m: MERA, operator: Any, sites: list[int]) -> Any:
    o = _check.inexact("operator", operator)
    _check.finite("operator", o)
    below = tuple(m.shape[s] for s in sites)
    size = math.prod(below)
    if o.shape not in ((size, size), below + below):
        raise ValueError(
            f"operator: expected shape {(size, size)} or {below + below} for the sites "
            f"{tuple(sites)}, got {o.shape}"
        )
    return o.reshape(below + below)


@jax.jit(static_argnums=2)
def _expectation(m: MERA, o: jax.Array, sites: tuple[int, ...]) -> jax.Array:
    for layer in m.layers:
        o, sites = _ascended(layer, o, sites)
    # Normalised: its norm may be out of range, and cancels in the quotient.
    m = MERA._unchecked((), linalg.normalized(m.top)[0])
    top = m.top.astype(o.dtype)
    top = top / linalg.where_positive(norm(m), 1.0).astype(o.dtype)
    return _closed(top, o, sites)


def _closed(top: Any, o: Any, sites: tuple[int, ...]) -> Any:
    """Contracts an operator with a MERA's top tensor and its conjugate, where the cone ends."""
    ket = list(range(top.ndim))
    bra = [top.ndim + k if k in sites else k for k in ket]
    support = [*(bra[s] for s in sites), *(ket[s] for s in sites)]
    return _network([top.conj(), o, top], [bra, support, ket], [])


def _network(arrays: Sequence[Any], labels: Sequence[Sequence[int]], result: Sequence[int]) -> Any:
    """Contracts a MERA's causal cone to an expectation value, all of NumPy or all of JAX."""
    operands = [part for x, names in zip(arrays, labels, strict=True) for part in (x, list(names))]
    if linalg.is_host(arrays[0]):
        return plan(*operands, list(result)).on_host(*arrays)
    return einsum(*operands, list(result), precision=_HIGHEST)


def _ascended(layer: Layer, o: Any, sites: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """Maps a local operator up one MERA layer, through its causal cone."""
    cone = _cone(layer.wiring, sites)
    involved = [(layer.wiring.pairs[j], layer.disentanglers[j]) for j in cone.disentanglers]
    below = sorted(s for b in cone.isometries for s in layer.wiring.blocks[b])
    # Labels: legs outside the operator have one label for bra and ket, and so are contracted.
    ket = {s: k for k, s in enumerate(below)}
    fresh = len(below)
    bra = {s: ket[s] + fresh if s in sites else ket[s] for s in below}
    fresh *= 2
    terms = [(o, (*(bra[s] for s in sorted(sites)), *(ket[s] for s in sorted(sites))), False)]
    for (i, j), u in involved:
        for side, conjugated in ((ket, False), (bra, True)):
            terms.append((u, (side[i], side[j], fresh, fresh + 1), conjugated))
            side[i], side[j] = fresh, fresh + 1
            fresh += 2
    above: list[tuple[int, int]] = []
    for b in cone.isometries:
        w, block = layer.isometries[b], layer.wiring.blocks[b]
        above.append((fresh, fresh + 1))
        terms.append((w, (*(bra[s] for s in block), fresh), True))
        terms.append((w, (*(ket[s] for s in block), fresh + 1), False))
        fresh += 2
    result = [*(a for a, _ in above), *(a for _, a in above)]
    arrays, labels, conjugated = zip(*terms, strict=True)
    step = _contraction if linalg.is_host(o) else _contracted
    return step(arrays, labels, conjugated, tuple(result)), cone.isometries


def _contraction(arrays: Any, labels: Any, conjugated: Any, result: tuple[int, ...]) -> Any:
    dtype = arrays[0].dtype
    cast = [x.astype(dtype) for x in arrays]
    given = [x.conj() if c else x for x, c in zip(cast, conjugated, strict=True)]
    return _network(given, labels, result)


_contracted = jax.jit(_contraction, static_argnums=(1, 2, 3))
