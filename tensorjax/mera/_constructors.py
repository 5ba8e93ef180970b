"""Construction of random MERAs, and contraction of MERAs to dense arrays and tensor trains."""

import math
import numbers
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._first_calls import is_hosted, pays
from tensorjax._formats.trains import TT
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.contract import einsum
from tensorjax.mera._types import MERA, Layer, Wiring, single

Boundary = Literal["open", "periodic"]
_HIGHEST = jax.lax.Precision.HIGHEST


def wirings(
    length: int,
    arity: int | Sequence[int] = 2,
    *,
    boundary: Boundary = "open",
    layers: int | None = None,
) -> list[Wiring]:
    """Plans the blocks and disentangler cuts of every layer of a MERA, from the bottom up.

    Blocks have ``arity`` sites; what a division leaves over forms a shorter last block. A single
    left-over site is passed through by an isometry of arity one; on a ring it joins the last block.
    Arguments as for `random`.

    Example:
      >>> from tensorjax import mera
      >>> [w.arities for w in mera.wirings(7)]
      [(2, 2, 2, 1), (2, 2)]
    """
    if boundary not in ("open", "periodic"):
        raise ValueError(f"boundary: expected 'open' or 'periodic', got {boundary!r}")
    several = isinstance(arity, Sequence)
    given = list(arity) if isinstance(arity, Sequence) else [arity]
    for k in given:
        _check.integer("arity", k, low=2)
    if several and layers is not None and layers != len(given):
        raise ValueError(f"layers: expected {len(given)}, one per arity, got {layers}")
    count = len(given) if several else layers
    if count is not None:
        _check.integer("layers", count, low=1)
    out: list[Wiring] = []
    sites = length
    while len(out) < count if count is not None else sites > given[0] or not out:
        k = given[len(out)] if several else given[0]
        if sites < k:
            raise ValueError(
                f"arity: expected at most the number of sites, got blocks of {k} for the {sites} "
                f"sites of layer {len(out)} ({length} at the bottom); ask for fewer layers, a "
                "smaller arity or a longer tensor"
            )
        out.append(_wiring(sites, k, boundary))
        sites = len(out[-1].arities)
    return out


def _wiring(sites: int, arity: int, boundary: Boundary) -> Wiring:
    full, rest = divmod(sites, arity)
    arities = (arity,) * full + ((rest,) if rest else ())
    if boundary == "open" or len(arities) == 1:
        return Wiring(arities, tuple(range(len(arities) - 1)))
    if rest == 1:  # one site has no room for two disentanglers: the last block takes it in
        arities = (*arities[:-2], arity + 1)
    return Wiring(arities, tuple(range(len(arities) if len(arities) > 1 else 0)))


@placed
def random(
    key: jax.Array,
    shape: Sequence[int],
    rank: int | Sequence[int],
    *,
    arity: int | Sequence[int] = 2,
    boundary: Boundary = "open",
    layers: int | None = None,
    dtype: Any = None,
) -> MERA:
    """Constructs a random MERA of norm one: Haar isometries, disentanglers, normal top tensor.

    Args:
      key: `jax.random.key`.
      shape: mode sizes (n_1, …, n_N).
      rank: size of the top legs, one int for all layers or one per layer; cut where a block has
        fewer dimensions below.
      arity: sites per block, one int for all layers or one per layer, from the bottom up.
      boundary: "open" or "periodic" (a disentangler between the last site and the first).
      layers: how many; by default until no more sites are left than ``arity``.
      dtype: floating or complex; JAX's default float if None.

    Returns:
      MERA. Blocks are of ``arity`` sites; where the length is not divisible the last one is
      shorter. One site left alone is passed through by a square isometry; on a ring the last block
      takes it in.

    Raises:
      ValueError: more sites in a block than in the layer, sizes or ranks below 1.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> mera.random(jax.random.key(0), (4,) * 12, 2, layers=2).size
      1536
    """
    sizes = _check.shape("shape", shape)
    dtype = _check.inexact_dtype(dtype)
    plan = wirings(len(sizes), arity, boundary=boundary, layers=layers)
    ranks = [rank] * len(plan) if isinstance(rank, numbers.Integral) else list(rank)  # type: ignore[arg-type]
    if len(ranks) != len(plan):
        raise ValueError(f"rank: expected one int or {len(plan)}, one per layer, got {len(ranks)}")
    built = []
    for wiring, r, k in zip(plan, ranks, jax.random.split(key, len(plan)), strict=True):
        layer = _random_layer(k, wiring, sizes, _check.integer("rank", r, low=1), dtype)
        built.append(layer)
        sizes = layer.top
    # Not one of the keys above: those of n layers are not the first of n + 1.
    top = jax.random.normal(jax.random.fold_in(key, len(plan)), sizes, dtype)
    return MERA._unchecked(tuple(built), top / jnp.linalg.norm(top.reshape(-1)).astype(dtype))


def _random_layer(
    key: jax.Array, wiring: Wiring, sizes: Sequence[int], rank: int, dtype: Any
) -> Layer:
    keys = iter(jax.random.split(key, len(wiring.cuts) + len(wiring.arities)))
    us = []
    for i, j in wiring.pairs:
        m, n = sizes[i], sizes[j]
        us.append(_haar(next(keys), m * n, m * n, dtype).reshape(m, n, m, n))
    ws = []
    for block in wiring.blocks:
        below = [sizes[i] for i in block]
        top = min(rank, math.prod(below))
        ws.append(_haar(next(keys), math.prod(below), top, dtype).reshape(*below, top))
    return Layer._unchecked(tuple(us), tuple(ws), wiring)


def _haar(key: jax.Array, rows: int, columns: int, dtype: Any) -> jax.Array:
    q, r = linalg.qr(jax.random.normal(key, (rows, columns), linalg.factor_dtype(dtype)))
    diagonal = jnp.diagonal(r)
    size = jnp.abs(diagonal)
    # QR fixes the phases of r's diagonal; Haar measure needs them divided out (Mezzadri 2007).
    phase = jnp.where(size > 0, diagonal / jnp.where(size > 0, size, 1).astype(r.dtype), 1)
    return linalg.scale_columns(q, phase).astype(dtype)


@placed
def to_dense(m: MERA) -> jax.Array:
    """Contracts a MERA to a dense array of shape (n_1, …, n_N).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import mera
      >>> x = mera.to_dense(mera.random(jax.random.key(0), (2,) * 6, 2))
      >>> x.shape, bool(abs(jnp.linalg.norm(x.ravel()) - 1) < 1e-5)
      ((2, 2, 2, 2, 2, 2), True)
    """
    single("m", m)
    # Each tensor is applied to no more entries than there are in the end.
    work = len(jax.tree.leaves(m)) * math.prod(m.shape)
    if _serves_on_host("to_dense", m, work):
        return on_device([np.ascontiguousarray(_dense(_on_host(m)))])[0]
    return _to_dense(m)


def _dense(m: MERA) -> Any:
    x = m.top
    for layer in reversed(m.layers):
        x = _expand(layer, x)
    return x


_to_dense = jax.jit(_dense)


def _serves_on_host(kind: str, m: MERA, work: float = 0.0) -> bool:
    """Whether NumPy serves to contract a MERA: a program would be compiled for each structure."""
    leaves = jax.tree.leaves(m)
    structure = kind, tuple([layer.wiring for layer in m.layers])
    return is_hosted(leaves, np.dtype(m.dtype)) and pays(structure, leaves, lambda: work)


def _on_host(m: MERA) -> MERA:
    return jax.tree.map(np.asarray, m)


def _expand(layer: Layer, x: Any) -> Any:
    """Contracts a layer of a MERA with a dense state of its top legs.

    A disentangler is applied as soon as both its sites exist, while the state is smallest.
    """
    axes = [-1 - b for b in range(x.ndim)]  # sites, or −1 − block for blocks still folded
    pairs = dict(zip(layer.wiring.pairs, layer.disentanglers, strict=True))
    for b, (w, block) in enumerate(zip(layer.isometries, layer.wiring.blocks, strict=True)):
        x, axes = _apply(x, axes, w, list(block), [-1 - b])
        for (i, j), u in list(pairs.items()):
            if i in axes and j in axes:
                x, axes = _apply(x, axes, u, [i, j], [i, j])
                del pairs[i, j]
    return x


def _apply(
    x: Any, axes: list[int], tensor: Any, bottom: list[int], top: list[int]
) -> tuple[Any, list[int]]:
    """Contracts the axes ``top`` of a dense state with a MERA's tensor, and sorts new axes in."""
    result = sorted([*(a for a in axes if a not in top), *bottom], key=lambda a: (a < 0, abs(a)))
    label = {a: k for k, a in enumerate([*axes, *(b for b in bottom if b not in axes)])}
    fresh = {b: len(label) + k for k, b in enumerate(bottom)}
    operand = [*(fresh[b] for b in bottom), *(label[a] for a in top)]
    out = [fresh.get(a, label[a]) for a in result]
    return _einsum(x, [label[a] for a in axes], tensor, operand, out), result


@placed
def to_tt(m: MERA, *, tol: float | None = None, rank: int | Sequence[int] | None = None) -> TT:
    """Converts a MERA to a tensor train, exactly or rounded.

    Args:
      m: MERA. One of NumPy arrays is contracted by NumPy, and gives cores of NumPy.
      tol: relative error allowed, at least 10 eps for each layer and the top; outside jit. None is
        exact.
      rank: TT-ranks to round to, after every layer; static. None keeps all that the shapes allow.

    Returns:
      TT of shape ``m.shape``. Exact TT-ranks grow with the number of layers, by up to the squared
      size of a leg each: for more than some dozens of sites give a rank or a tolerance.

    Raises:
      TypeError: ``tol`` alone under a JAX transformation.
      ValueError: impossible ranks or tolerances.

    Example:
      >>> import jax
      >>> from tensorjax import mera
      >>> mera.to_tt(mera.random(jax.random.key(0), (2,) * 6, 2)).ranks
      (1, 2, 4, 4, 4, 2, 1)
    """
    single("m", m)
    if tol is None and rank is None:
        if all(map(linalg.is_host, jax.tree.leaves(m))):
            return _cores_of(m)
        if _serves_on_host("to_tt", m):
            return TT._unchecked(tuple(on_device(_cores_of(_on_host(m)).cores)))
        return _exact(m)
    # Layers are isometric, so the errors of rounding add up at most.
    share = None if tol is None else _share(tol, m)
    if tol is not None and rank is None and not _check.is_traced(m, tol):
        m = jax.tree.map(np.asarray, m)  # on the host nothing is compiled when ranks change
    t = _rounded(_top_cores(m.top), share, rank, last=not m.layers)
    for k, layer in reversed(list(enumerate(m.layers))):
        cores = [np.asarray(c) if linalg.is_host(m.top) else c for c in t.cores]
        t = _rounded(_expanded_cores(layer, cores), share, rank, last=k == 0)
    return t


def _share(tol: Any, m: MERA) -> Any:
    """Divides a tolerance evenly over a MERA's roundings to a train: one per layer, one on top."""
    count = 1 + len(m.layers)
    least = 10 * count * linalg.epsilon(m.dtype)
    if not _check.is_traced(tol) and _check.tolerance(tol, m.dtype) < least:
        raise ValueError(
            f"tol: expected at least {least:.2g}, 10 eps for each of {count} roundings, got "
            f"{tol:.2g}; ask for less accuracy, or for rank= instead"
        )
    return tol / count


def _rounded(cores: list[Any], tol: float | None, rank: Any, *, last: bool) -> TT:
    t = TT._unchecked(tuple(jax.device_put(cores)))
    if rank is not None and not isinstance(rank, numbers.Integral) and not last:
        rank = max(rank)  # ranks bond by bond are meant for the whole
    return TT.namespace.round(t, tol=tol, rank=rank, method="svd")


def _cores_of(m: MERA) -> TT:
    cores = _top_cores(m.top)
    for layer in reversed(m.layers):
        cores = _expanded_cores(layer, cores)
    return TT._unchecked(tuple(cores))


_exact = jax.jit(_cores_of)


# Below, arrays may be of NumPy or of JAX.


def _einsum(*operands: Any) -> Any:
    """`einsum` in either of its forms, to contract MERAs."""
    if linalg.is_host(operands[isinstance(operands[0], str)]):
        return np.einsum(*operands, optimize=True)
    return einsum(*operands, precision=_HIGHEST)


def _top_cores(top: Any) -> list[Any]:
    return _split(top.reshape(1, *top.shape, 1))


def _split(x: Any) -> list[Any]:
    """Splits (r, n_1, …, n_k, s), of a MERA, into k TT cores exactly, by QR."""
    dtype = x.dtype
    x = x.astype(linalg.factor_dtype(dtype))
    cores = []
    while x.ndim > 3:
        r, n = x.shape[:2]
        rest = x.reshape(r * n, -1)
        if r * n <= rest.shape[1]:
            q = linalg.identity_like(r * n, x)
        else:
            q, rest = linalg.qr(rest)
        cores.append(q.reshape(r, n, -1))
        x = rest.reshape(-1, *x.shape[2:])
    return [c.astype(dtype) for c in [*cores, x]]


def _expanded_cores(layer: Layer, coarse: Sequence[Any]) -> list[Any]:
    """Contracts a MERA's layer with the cores of a tensor train of its top legs."""
    cores: list[Any] = []
    for core, w in zip(coarse, layer.isometries, strict=True):
        block = _einsum("atb,it->aib", core, w.reshape(-1, w.shape[-1]))
        cores += _split(block.reshape(core.shape[0], *w.shape[:-1], core.shape[-1]))
    for u, (i, j) in zip(layer.disentanglers, layer.wiring.pairs, strict=True):
        if i < j:
            cores[i], cores[j] = _split(_einsum("axm,myb,ijxy->aijb", cores[i], cores[j], u))
        else:
            cores = _closed(cores, u)
    return cores


def _closed(cores: list[Any], u: Any) -> list[Any]:
    """Applies a MERA's ring disentangler to the last and first site, via all cores' bonds."""
    last, first, above_last, above_first = u.shape
    matrix = u.transpose(0, 2, 1, 3).reshape(1, last * above_last, first * above_first, 1)
    left, right = _split(matrix)
    head = _einsum("mjy,ayb->ajmb", right.reshape(-1, first, above_first), cores[0])
    tail = _einsum("ixm,axb->maib", left.reshape(last, above_last, -1), cores[-1])
    bond = linalg.identity_like(len(tail), u)
    middle = [_einsum("mn,aib->mainb", bond, c) for c in cores[1:-1]]
    out = [head.reshape(*head.shape[:2], -1)]
    out += [c.reshape(c.shape[0] * c.shape[1], c.shape[2], -1) for c in middle]
    return [*out, tail.reshape(-1, *tail.shape[2:])]
