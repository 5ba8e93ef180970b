"""Exact products and sums of trains from their cores, and products of one core with a matrix."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _native
from tensorjax._cores.contractions import einsum
from tensorjax._cores.scaling import cast, evening, shared_out
from tensorjax._cores.unfoldings import Cores
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.table import CPP, NUMPY, TRACE
from tensorjax.linalg._arrays import is_host
from tensorjax.linalg._powers_of_two import exponent_of, exponents_held, normalized, scaled

Times = Callable[[Any, Any], Any]
# Products of cores from so many elements on, with last axes below so many, are multiplied row by
# row: NumPy's inner loop is as long as the last axis of what it broadcasts.
_MANY, _SHORT = 2**11, 64


def merged_bonds(core: Any) -> Any:
    """Merges the pairs of left and right bonds of a core that is a product of two cores."""
    (p, r, *modes, q, s) = core.shape
    return core.reshape(p * r, *modes, q * s)


def hadamard_core(a: Any, b: Any) -> Any:
    """Multiplies cores of two trains, or of two TT-matrices, entry by entry; bonds multiply."""
    if is_host(a) and is_host(b):
        return _hadamard_on_host(a, b)
    return merged_bonds(einsum("paq,ras->praqs" if a.ndim == 3 else "pabq,rabs->prabqs", a, b))


def matvec_core(a: Any, x: Any) -> Any:
    """Multiplies a core of a TT-matrix by a core of a train; bonds multiply."""
    if is_host(a) and is_host(x):
        return _matvec_on_host(a, x)
    return merged_bonds(einsum("pmnq,rns->prmqs", a, x))


def matmul_core(a: Any, b: Any) -> Any:
    """Multiplies cores of two TT-matrices, as in a matrix product; bonds multiply."""
    return merged_bonds(einsum("pmnq,rnks->prmkqs", a, b))


def _hadamard_on_host(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    (r, *modes, s), (p, *_, q) = a.shape, b.shape
    if q < _SHORT and a.size * p * q >= _MANY:
        long, tiled = np.repeat(a, q, axis=-1), np.tile(b, s)
        return (long[:, None] * tiled[None]).reshape(r * p, *modes, s * q)
    if a.ndim == 3:
        out = a[:, None, :, :, None] * b[None, :, :, None, :]
    else:
        out = a[:, None, :, :, :, None] * b[None, :, :, :, None, :]
    return out.reshape(r * p, *modes, s * q)


def _matvec_on_host(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    # As `einsum`, without what it takes to look a product up: half as long again for small cores.
    (p, m, n, q), (r, _, s) = a.shape, x.shape
    rows = a.transpose(0, 1, 3, 2).reshape(p * m * q, n)
    out = (rows @ x.transpose(1, 0, 2).reshape(n, r * s)).reshape(p, m, q, r, s)
    return out.transpose(0, 3, 1, 2, 4).reshape(p * r, m, q * s)


def matvec(a: Sequence[Any], x: Sequence[Any]) -> Cores:
    """Multiplies a TT-matrix by a train, given as cores, exactly; TT-ranks multiply."""
    return [matvec_core(p, c) for p, c in zip(a, x, strict=True)]


def added(xs: Sequence[Any], ys: Sequence[Any]) -> Cores:
    """Adds two trains exactly, as lists of JAX cores: block-diagonal cores, whose bonds add.

    The cores of each train are brought to one size first, by powers of two: if blocks of opposite
    sizes stood side by side, the smaller ones would be lost where a core is scaled as a whole.
    """
    if len(xs) == 1:
        return [xs[0] + ys[0]]
    chosen: Any = _either_sum if choose_kernel("tt.add", (*xs, *ys), TRACE) is CPP else _sum_by_xla
    return chosen(list(xs), list(ys))[:-1]


@jax.custom_jvp
def _either_sum(xs: Cores, ys: Cores) -> list[Any]:
    results = _native.sum_shapes(xs, ys)
    return cpp_or_xla("tt.add", _native.add, _sum_by_xla, xs, ys, results=results)


@_either_sum.defjvp
def _either_sum_jvp(primals: Any, tangents: Any) -> Any:
    out = _either_sum(*primals)
    xs, ys = tangents
    return out, [*_side_by_side(xs, ys, out[-1]), np.zeros(out[-1].shape, jax.dtypes.float0)]


def _sum_by_xla(xs: Cores, ys: Cores) -> list[Any]:
    moves = jnp.concatenate([evening(xs), evening(ys)], -1)
    return [*_side_by_side(xs, ys, moves), moves]


def _side_by_side(xs: Cores, ys: Cores, moves: Any) -> Cores:
    """Puts two trains' cores side by side for exact products and sums, scaled to one size."""
    parts = [scaled(c, moves[..., k, None, None, None]) for k, c in enumerate([*xs, *ys])]
    pairs = list(zip(parts[: len(xs)], parts[len(xs) :], strict=True))
    middle = (_block_diagonal(a, b) for a, b in pairs[1:-1])
    return [jnp.concatenate(pairs[0], -1), *middle, jnp.concatenate(pairs[-1], -3)]


def _block_diagonal(a: jax.Array, b: jax.Array) -> jax.Array:
    keep = [(0, 0)] * (a.ndim - 1)
    top = jnp.pad(a, [*keep, (0, b.shape[-1])])
    low = jnp.pad(b, [*keep, (a.shape[-1], 0)])
    return jnp.concatenate([top, low], -3)


def combined(terms: list[Cores], weights: Any) -> Cores:
    """Adds weighted trains of host cores exactly, by block-diagonal cores; their bonds add."""
    if len(terms[0]) == 1:
        return [sum(w * t[0] for w, t in zip(weights, terms, strict=True))]
    first = np.concatenate([w * t[0] for w, t in zip(weights, terms, strict=True)], -1)
    last = np.concatenate([t[-1] for t in terms], 0)
    return [first, *(_blocks(list(c)) for c in list(zip(*terms, strict=True))[1:-1]), last]


def _blocks(cores: Cores) -> Any:
    rows, columns = (sum(c.shape[i] for c in cores) for i in (0, 2))
    out = np.zeros((rows, cores[0].shape[1], columns), np.result_type(*cores))
    r = s = 0
    for c in cores:
        out[r : r + c.shape[0], :, s : s + c.shape[2]] = c
        r, s = r + c.shape[0], s + c.shape[2]
    return out


def is_in_range(array: Any, matrix: Any) -> bool:
    """Whether a product of a concrete array on a CPU with a matrix is known to be in range.

    False for traced arrays and for those elsewhere, which are not looked at.
    """
    if choose_kernel("tt.mode_product", (array, matrix)) is not NUMPY:
        return False
    low, high = exponents_held(array.dtype)
    size = exponent_of(np.asarray(array)) + exponent_of(np.asarray(matrix))
    return low < size < high - (2 * matrix.shape[1]).bit_length()


def times_in_range(arrays: Sequence[Any], at: int, matrix: Any, times: Times, name: str) -> Cores:
    """Multiplies an array, one of those whose product a tensor is, by a matrix, in range.

    What this array cannot hold all of them share.

    Args:
      arrays: of JAX, in one dtype.
      at: which of them is multiplied.
      matrix: in the same dtype.
      times: makes the product of the array and the matrix.
      name: of the tensor, for the error.

    Raises:
      OverflowError: concrete finite arrays on a CPU, whose product the dtype cannot hold in as
        many: one would be infinite, or zero though it is not.
    """
    out = _times_in_range(tuple(arrays), at, matrix, times)
    if choose_kernel("tt.mode_product", out) is not NUMPY:
        return out
    if all(map(_is_in_use, out)) or not are_finite([*arrays, matrix]):
        return out
    # Something is infinite or zero: known from the product in double precision whether rightly.
    wide = np.complex128 if matrix.dtype.kind == "c" else np.float64
    small, exponents = zip(
        *(normalized(np.asarray(a).astype(wide)) for a in (*arrays, matrix)), strict=True
    )
    small = [*small[:at], times(small[at], small[-1]), *small[at + 1 : -1]]
    if not all(c.any() for c in small):
        return out
    refused = (
        f"{name}: {matrix.dtype} cannot hold the product with the matrix in {len(out)} arrays; "
        "scale the tensor or the matrix first, or cast them to a wider dtype"
    )
    held = cast(small, sum(exponents), matrix.dtype, refused)
    least = int(jnp.finfo(matrix.dtype).minexp)
    if min(map(exponent_of, held)) <= least:  # subnormal: digits are lost, and programs flush it
        raise OverflowError(refused)
    return [jnp.asarray(c) for c in held]


@jax.jit(static_argnums=(1, 3))
def _times_in_range(arrays: Sequence[Any], at: int, matrix: Any, times: Times) -> Cores:
    (array, own), (small, e) = normalized(arrays[at]), normalized(matrix)
    return shared_out([*arrays[:at], times(array, small), *arrays[at + 1 :]], own + e, at=at)


def _is_in_use(array: Any) -> bool:
    """Whether a concrete factor of a product is finite and not zero."""
    host = np.asarray(array)
    return bool(np.isfinite(host).all() and host.any())


def are_finite(arrays: Sequence[Any]) -> bool:
    """Whether all entries of concrete arrays, such as products of cores, are finite."""
    return all(bool(np.isfinite(np.asarray(a)).all()) for a in arrays)
