"""Conversion of MERAs to dense arrays and to tensor trains: exact, to an error, or to ranks."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from opt_einsum import get_symbol

from tensorjax import _check, linalg
from tensorjax._cores import scaling
from tensorjax._cores.contractions import einsum
from tensorjax._cores.ranks import rank_bounds
from tensorjax._formats.trains import TT
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.mera._types import MERA, Layer, single

_FAR = 48  # powers of two that the top of a concrete MERA may be off one


def is_numpys(operation: str, m: MERA, work: float = 0.0) -> bool:
    """Whether NumPy converts a MERA to dense or TT; JAX would compile a program per structure."""
    structure = operation, tuple([layer.wiring for layer in m.layers])
    facts = {"dtype": np.dtype(m.dtype), "key": structure, "work": lambda: work}
    return choose_kernel(operation, jax.tree.leaves(m), **facts) is NUMPY


def host_copy(m: MERA) -> MERA:
    """Copies the tensors of a MERA to be converted to the host, as NumPy arrays."""
    return jax.tree.map(np.asarray, m)


def network_einsum(*operands: Any) -> Any:
    """Contracts tensors of a MERA to convert it, by an einsum string or lists of labels."""
    if not isinstance(operands[0], str):
        *pairs, out = operands
        terms = ["".join(map(get_symbol, labels)) for labels in pairs[1::2]]
        operands = f"{','.join(terms)}->{''.join(map(get_symbol, out))}", *pairs[::2]
    return einsum(*operands)


@placed
def to_dense(m: MERA) -> jax.Array:
    """Contracts a MERA to a dense array of shape (n_1, …, n_N).

    Args:
      m: MERA of N sites.

    Returns:
      Array in the dtype of ``m``.

    Raises:
      TypeError: ``m`` is no MERA. ValueError: it is a batch of them.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import mera
      >>> x = mera.to_dense(mera.random(jax.random.key(0), (2,) * 6, 2))
      >>> x.shape, bool(abs(jnp.linalg.norm(x.ravel()) - 1) < 1e-5)
      ((2, 2, 2, 2, 2, 2), True)

    Source: ours; layer by layer from the top, so that the state is smallest.
    """
    single("m", m)
    # Each tensor is applied to no more entries than there are in the end.
    work = len(jax.tree.leaves(m)) * math.prod(m.shape)
    if is_numpys("mera.to_dense", m, work):
        return on_device([np.ascontiguousarray(_dense(host_copy(m)))])[0]
    return _to_dense(m)


def _dense(m: MERA) -> Any:
    x = m.top
    for layer in reversed(m.layers):
        x = _expand(layer, x)
    return x


_to_dense = jax.jit(_dense)


def _expand(layer: Layer, x: Any) -> Any:
    """Contracts one MERA layer with a dense state of its top legs.

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
    """Contracts axes of a growing dense state with a MERA's tensor; returns new labels too."""
    result = sorted([*(a for a in axes if a not in top), *bottom], key=lambda a: (a < 0, abs(a)))
    label = {a: k for k, a in enumerate([*axes, *(b for b in bottom if b not in axes)])}
    fresh = {b: len(label) + k for k, b in enumerate(bottom)}
    operand = [*(fresh[b] for b in bottom), *(label[a] for a in top)]
    out = [fresh.get(a, label[a]) for a in result]
    return network_einsum(x, [label[a] for a in axes], tensor, operand, out), result


@placed
def to_tt(m: MERA, *, tol: float | None = None, rank: int | Sequence[int] | None = None) -> TT:
    """Converts a MERA to a tensor train (TT), exactly or rounded.

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

    Source: ours; the layers act on a train as gates do, and it is rounded after each.
    """
    single("m", m)
    if rank is not None and not isinstance(rank, numbers.Integral):
        _check.bond_ranks(rank, rank_bounds(m.shape))
    if tol is None and rank is None:
        if all(map(linalg.is_host, jax.tree.leaves(m))):
            return exact_train(m)
        if is_numpys("mera.to_tt", m):
            return TT._unchecked(tuple(on_device(exact_train(host_copy(m)).cores)))
        return _exact(m)
    # Layers are isometric, so the errors of rounding add up at most.
    share = None if tol is None else _share(tol, m)
    if tol is not None and rank is None and choose_kernel("mera.to_tt(tol=)", (m, tol)) is NUMPY:
        m = jax.tree.map(np.asarray, m)  # on the host nothing is compiled when ranks change
    top, exponent = _near_one(m.top)
    t = _rounded(_top_cores(top), share, rank, last=not m.layers)
    for k, layer in reversed(list(enumerate(m.layers))):
        cores = [np.asarray(c) if linalg.is_host(m.top) else c for c in t.cores]
        t = _rounded(_expanded_cores(layer, cores), share, rank, last=k == 0)
    return _scaled_back(t, exponent)


def _near_one(top: Any) -> tuple[Any, Any]:
    """Scales the top of a MERA to convert near one, where QR may overflow; and the exponent."""
    if _check.is_traced(top):
        return linalg.normalized(top)
    host = np.asarray(top)
    e = linalg.exponent_of(host)
    return (top, 0) if abs(e) < _FAR else (linalg.scaled(host, -e), e)


def _scaled_back(t: TT, exponent: Any) -> TT:
    if _check.is_traced(exponent):
        return TT._unchecked(tuple(scaling.shared_out(t.cores, exponent)))
    if exponent == 0:
        return t
    held = linalg.exponents_held(t.dtype)
    cores = scaling.balanced([np.asarray(c) for c in t.cores], exponent, fit=held)
    return TT._unchecked(tuple(on_device(cores)))


def _share(tol: Any, m: MERA) -> Any:
    """Divides the tolerance of a conversion from MERA to TT evenly over its roundings."""
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
    return TT._namespace.round(t, tol=tol, rank=rank, method="svd")


def exact_train(m: MERA) -> TT:
    """Converts a MERA to a tensor train (TT) exactly, in NumPy or JAX as its arrays are."""
    cores = _top_cores(m.top)
    for layer in reversed(m.layers):
        cores = _expanded_cores(layer, cores)
    return TT._unchecked(tuple(cores))


@jax.jit
def _exact(m: MERA) -> TT:
    top, exponent = linalg.normalized(m.top)
    return _scaled_back(exact_train(MERA._unchecked(m.layers, top)), exponent)


def _top_cores(top: Any) -> list[Any]:
    return _split(top.reshape(1, *top.shape, 1))


def _split(x: Any) -> list[Any]:
    """Splits a MERA's top or block (r, n_1, …, n_k, s) into k TT-cores exactly, by QR."""
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
    """Contracts a MERA layer with a tensor train of its top legs to TT-cores below."""
    cores: list[Any] = []
    for core, w in zip(coarse, layer.isometries, strict=True):
        block = network_einsum("atb,it->aib", core, w.reshape(-1, w.shape[-1]))
        cores += _split(block.reshape(core.shape[0], *w.shape[:-1], core.shape[-1]))
    for u, (i, j) in zip(layer.disentanglers, layer.wiring.pairs, strict=True):
        if i < j:
            cores[i], cores[j] = _split(network_einsum("axm,myb,ijxy->aijb", cores[i], cores[j], u))
        else:
            cores = _closed(cores, u)
    return cores


def _closed(cores: list[Any], u: Any) -> list[Any]:
    """Applies a disentangler across the two ends of a TT, to convert a periodic MERA."""
    last, first, above_last, above_first = u.shape
    matrix = u.transpose(0, 2, 1, 3).reshape(1, last * above_last, first * above_first, 1)
    left, right = _split(matrix)
    head = network_einsum("mjy,ayb->ajmb", right.reshape(-1, first, above_first), cores[0])
    tail = network_einsum("ixm,axb->maib", left.reshape(last, above_last, -1), cores[-1])
    bond = linalg.identity_like(len(tail), u)
    middle = [network_einsum("mn,aib->mainb", bond, c) for c in cores[1:-1]]
    out = [head.reshape(*head.shape[:2], -1)]
    out += [c.reshape(c.shape[0] * c.shape[1], c.shape[2], -1) for c in middle]
    return [*out, tail.reshape(-1, *tail.shape[2:])]
