"""Numbers out of tensor trains: inner products, norms, distances, entries, contracted modes."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, _native, linalg
from tensorjax._cores import absorb, difference, shared_out, times_right
from tensorjax._ids import counted
from tensorjax._native.dispatch import on_cpu
from tensorjax._placement import placed
from tensorjax._train import TT, single
from tensorjax._transfer import on_device
from tensorjax.contract import einsum
from tensorjax.tt import _entries, _on_host
from tensorjax.tt._algebra import _aligned, as_train, conj

_NOT_HELD = (0.0, math.inf)
_HIGHEST = jax.lax.Precision.HIGHEST
# Numbers gathered at a time by `evaluate`: 256 MiB of float64.
_GATHER_LIMIT = 2**25
# Numbers in a table of multiplied cores at the ends of a train, and between.
_END_TABLE, _TABLE = 2**22, 2**17


@placed
@as_train
def inner(x: TT, y: TT) -> jax.Array:
    """⟨x, y⟩ = Σ conj(x_i) y_i, a scalar.

    For TT-matrices it is the Frobenius inner product. Intermediate results are kept in range by
    exact powers of two, so only the value itself can overflow, or, in programs of XLA, a core of y
    whose entries are within the number of its entries of the largest one that the dtype holds.

    Args:
      x: TT or TTMatrix; conjugated.
      y: of the same kind and shape.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.inner(tt.ones((2, 3)), tt.ones((2, 3))))
      6.0

    Source: Oseledets (2011), section 4.2; O(d n r³) operations. Departure, ours: programs for one
    CPU multiply trains in float64 from both ends at once, by compiled sweeps (tensorjax/_native).
    The first calls with concrete trains of one shape on a CPU (ten with small cores, three with
    large ones) are NumPy's, with nothing compiled; programs may differ from them by roundoff.
    """
    x, y = _aligned(x, y)
    value = _on_host.inner(x, y)
    return _inner(x, y) if value is None else value


@jax.jit
def _inner(x: TT, y: TT) -> jax.Array:
    return linalg.scaled(*overlap(conj(x), y))


@placed
@as_train
def norm(x: TT) -> jax.Array:
    """‖x‖, the Frobenius norm, a real scalar.

    By the inner product: accurate to about √eps·(sizes of the terms) if ``x`` is a difference of
    nearly equal trains. `distance` has no such loss.

    A norm that the dtype cannot hold raises outside of transformations; under jit, vmap and grad it
    is inf or 0, as in IEEE arithmetic. `log_norm` and `normalize` have no such limit. First calls
    are served as those of `inner`.

    Raises:
      OverflowError: the norm of a concrete finite train is above, or that of a nonzero one below
        the range of the dtype.

    Example:
      >>> from tensorjax import tt
      >>> print(f"{tt.norm(tt.ones((10,) * 30)):.3g}")
      1e+15
    """
    value = _on_host.norm(x)
    value = _norm(x) if value is None else value
    if not _check.is_traced(value) and value.ndim == 0 and float(value) in _NOT_HELD:
        _check_held(x, value.dtype)
    return value


def _check_held(x: TT, dtype: Any) -> None:
    """Raises if a norm left the range of its dtype: dividing by it would give zeros or NaN."""
    square, half = map(np.asarray, _squared_norm(x))
    info = jnp.finfo(dtype)
    # Where terms cancel, a square of zero is roundoff, and other sweeps have other roundoff.
    held = info.minexp - info.nmant <= float(half) < info.maxexp - 1
    if np.isfinite(square) and square > 0 and not held:
        power = (np.log10(float(square)) / 2) + float(half) * np.log10(2.0)
        raise OverflowError(
            f"the norm, about 1e{power:+.0f}, is out of the range of {dtype}; "
            "tt.log_norm gives its logarithm, tt.normalize the train over its norm"
        )


def squared_norm(x: TT) -> tuple[jax.Array, jax.Array]:
    """‖x‖² as (m, e), it is m·4^e, with m in [1/2, 2) or zero."""
    mantissa, exponent = overlap(conj(x), x, True)
    mantissa, shift = linalg.normalized(mantissa.real)
    half = (exponent + shift) // 2
    return linalg.scaled(mantissa, exponent + shift - 2 * half), half


_squared_norm = jax.jit(squared_norm)


@jax.jit
def _norm(x: TT) -> jax.Array:
    mantissa, exponent = overlap(conj(x), x, True)
    half = exponent // 2
    rest = jnp.ldexp(mantissa.real, exponent - 2 * half)
    # The derivative of the square root at zero would be infinite: the zero train gets none. NaN is
    # not <= 0, and so comes through.
    none = rest <= 0
    root = jnp.where(none, 0, jnp.sqrt(jnp.where(none, 1, rest)))
    return jnp.ldexp(root, half)


def overlap(x: TT, y: TT, same: bool = False) -> tuple[jax.Array, jax.Array]:
    """Σ x_i y_i as (mantissa, exponent of two); ``same`` says that x is the conjugate of y."""
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x, y = x.astype(dtype), y.astype(dtype)  # cores of one train may differ too
    if _native.overlaps(x.cores, y.cores):
        return _either_overlap(x, y, same)
    return _overlap_by_xla(x, y, same)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _either_overlap(x: TT, y: TT, same: bool) -> tuple[jax.Array, jax.Array]:
    results = jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct((), jnp.int32)
    native, otherwise = (_norm_by_sweeps, _norm_by_xla) if same else (_by_sweeps, _overlap_by_xla)
    operands = (x,) if same else (x, y)
    mantissa, exponent = on_cpu(native, otherwise, *operands, results=results)
    return mantissa, exponent


def _by_sweeps(x: TT, y: TT) -> tuple[jax.Array, jax.Array]:
    return _native.inner(x.cores, y.cores)


def _norm_by_sweeps(x: TT) -> tuple[jax.Array, jax.Array]:
    return _native.inner(x.cores)


def _norm_by_xla(x: TT) -> tuple[jax.Array, jax.Array]:
    return _overlap_by_xla(x, x, True)  # real: the conjugate is the train itself


@_either_overlap.defjvp
def _either_overlap_jvp(same: bool, primals: Any, tangents: Any) -> Any:
    return jax.jvp(_overlap_by_xla, primals, tangents)


def _overlap_by_xla(x: TT, y: TT, same: bool = False) -> tuple[jax.Array, jax.Array]:
    e = jnp.ones((1, 1), x.dtype)
    exponent = jnp.zeros((), jnp.int32)
    # From the right: all that is transposed is a right factor, which XLA multiplies fastest.
    for a, b in zip(reversed(x.cores), reversed(y.cores), strict=True):
        size = linalg.exponent_of(a)
        e = e * linalg.power_of_two(-size, e.dtype)
        # One after the other: two large cores must not meet before e has scaled one of them down.
        e = einsum("aic,cd->aid", a, e, precision=_HIGHEST)
        if same:
            # So many terms of the size of b, which is that of a, may be beyond what each of them
            # is within; exponents are clipped to two below the largest one. Elsewhere a look at b
            # would take as long as the product.
            terms = math.ceil(math.log2(a.shape[1] * a.shape[2] ** 2)) + 4
            down = jnp.maximum(size + terms - int(jnp.finfo(e.dtype).maxexp), 0)
            e, size = e * linalg.power_of_two(-down, e.dtype), size + down
        e, shift = linalg.normalized(einsum("aid,bid->ab", e, b, precision=_HIGHEST))
        exponent = exponent + shift + size
    return e[0, 0], exponent


@placed
@as_train
def distance(x: TT, y: TT) -> jax.Array:
    """‖x − y‖, accurate to a few eps·(‖x‖ + ‖y‖).

    The difference is orthogonalised, never squared: ‖x‖² − 2⟨x, y⟩ + ‖y‖² would lose everything
    below √eps.

    Args:
      x: TT or TTMatrix.
      y: of the same kind and shape.

    Example:
      >>> from tensorjax import tt
      >>> x = tt.ones((4,) * 10)
      >>> bool(tt.distance(x, x * (1 + 1e-6)) < 2e-6 * tt.norm(x))
      True
    """
    x, y = _aligned(x, y)
    real = jnp.finfo(x.dtype).dtype
    x, y = (t.astype(linalg.factor_dtype(t.dtype)) for t in (x, y))
    if _check.is_traced(x, y):
        return _distance(x.cores, y.cores).astype(real)
    # Concrete trains differ in rank from call to call: on the host nothing is compiled.
    wide = np.result_type(x.dtype, np.float64)
    host = [[np.asarray(c).astype(wide, copy=False) for c in t.cores] for t in (x, y)]
    return on_device([np.asarray(_distance(*host)).astype(real)])[0]


def _distance(xs: Any, ys: Any) -> Any:
    length, exponent = difference(xs, ys)
    return (np if linalg.is_host(length) else jnp).ldexp(length, exponent)


@placed
def evaluate(t: TT, indices: Any) -> jax.Array:
    """Entries x[i_1, …, i_d] at a batch of multi-indices.

    Args:
      t: TT of order d.
      indices: integers (…, d), each in [−n_k, n_k) as in NumPy.

    Returns:
      (…,) entries.

    Raises:
      ValueError: the last axis is not d, or an index is out of range; of indices known only under
        a transformation, such entries are NaN.
      TypeError: the indices are not integers.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.evaluate(tt.ones((2, 3)), [[0, 0], [1, 2]]))
      [1. 1.]

    O(r²) operations an entry and core at most: for long batches, neighbouring cores are first
    multiplied out as far as a table of no more rows than the batch holds them. Memory stays
    bounded, for very long batches are done in pieces. Concrete arrays on a CPU are served by NumPy,
    and nothing is compiled until the same shapes and batch size have come ten times.
    """
    single("t", t, TT)
    indices = _check.indices(indices, t.shape)
    if _entries.is_hosted(t, indices):
        host = np.asarray(indices).reshape(-1, t.order)
        if _entries.pays(t, host):
            out = _entries.entries(t, host, _groups(t, len(host)))
            out = out.astype(t.dtype, copy=False).reshape(indices.shape[:-1])
            return on_device([out])[0]
    return _evaluate(t, jnp.asarray(indices).reshape(-1, t.order)).reshape(indices.shape[:-1])


@jax.jit
def _evaluate(t: TT, indices: jax.Array) -> jax.Array:
    tables: list[jax.Array] = []
    rows: list[jax.Array] = []
    exponent: Any = jnp.zeros((), jnp.int32)
    valid = jnp.ones(indices.shape[:1], bool)
    for a, b in _groups(t, indices.shape[0]):
        table, e = _product(t.cores[a:b])
        exponent = exponent + e
        # Rows first: what is gathered lies together.
        tables.append(table.transpose(1, 0, 2))
        row = jnp.zeros((), jnp.int32)
        for k in range(a, b):
            i, held = counted(indices[:, k], t.shape[k])
            row, valid = row * t.shape[k] + i, valid & held
        rows.append(row)

    def entry(rows: tuple[jax.Array, ...]) -> jax.Array:
        v, power = tables[0][rows[0], 0], exponent
        for table, row in zip(tables[1:], rows[1:], strict=True):
            v, e = linalg.normalized(v)
            power = power + e
            # Not as a product of matrices: so the gather is fused, and never stored.
            v = jnp.sum(v[:, None] * table[row], axis=0)
        return linalg.scaled(v[0], power)

    widest = max(table.shape[1] * table.shape[2] for table in tables)
    piece = max(1, _GATHER_LIMIT // widest)
    if indices.shape[0] <= piece:
        out = jax.vmap(entry)(tuple(rows))
    else:
        out = jax.lax.map(entry, tuple(rows), batch_size=piece)
    return jnp.where(valid, out, jnp.asarray(jnp.nan, out.dtype))


def _groups(t: TT, batch: int) -> Sequence[tuple[int, int]]:
    """Ranges of cores to multiply out, for a batch of so many entries.

    Long ones at both ends, where products are vectors; small tables between, for the cache.
    """
    return _grouped(t.shape, t.ranks, batch)


@functools.lru_cache(maxsize=1024)
def _grouped(
    shape: tuple[int, ...], ranks: tuple[int, ...], batch: int
) -> tuple[tuple[int, int], ...]:
    order = len(shape)

    def fits(a: int, b: int) -> bool:
        ends = a == 0 or b == order
        rows = math.prod(shape[a:b])
        return rows <= batch and rows * ranks[a] * ranks[b] <= (_END_TABLE if ends else _TABLE)

    first = 1
    while first < order and fits(0, first + 1):
        first += 1
    groups, last = [(0, first)], order
    while last - 1 > first and fits(last - 1, order):
        last -= 1
    tail = [(last, order)] if last < order else []
    while first < last:
        b = first + 1
        while b < last and fits(first, b + 1):
            b += 1
        groups.append((first, b))
        first = b
    return tuple(groups + tail)


def _product(cores: Sequence[jax.Array]) -> tuple[jax.Array, Any]:
    """Neighbouring cores as one, (r, ∏ n, s), over 2^e; and e."""
    out, exponent = cores[0], 0
    for core in cores[1:]:
        out, e = linalg.normalized(out)
        exponent = exponent + e
        out = einsum("aib,bjc->aijc", out, core, precision=_HIGHEST)
        out = out.reshape(out.shape[0], -1, out.shape[-1])
    return out, exponent


@placed
def contract_modes(t: TT, vectors: Mapping[int, Any]) -> Any:
    """Contracts modes with vectors: Σ_{i_k} x[…, i_k, …] v_k[i_k] for each k (no conjugation).

    Args:
      t: TT of order d.
      vectors: {mode: vector (n_mode,)}; modes 0 … d−1, negative ones count from the end.

    Returns:
      TT of the remaining modes, or a scalar if none remains.

    Raises:
      ValueError: a mode is out of range or given twice, or a vector has the wrong length.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> tt.contract_modes(tt.ones((2, 3, 4)), {1: jnp.ones(3)}).shape
      (2, 4)
    """
    single("t", t, TT)
    chosen: dict[int, Any] = {}
    for mode, vector in vectors.items():
        k = _check.integer("mode", mode, low=-t.order, high=t.order - 1) % t.order
        v = _check.inexact(f"vectors[{mode}]", vector)
        if k in chosen or v.shape != (t.shape[k],):
            problem = "given twice" if k in chosen else f"shape {v.shape}"
            raise ValueError(
                f"vectors[{mode}]: expected one vector of shape ({t.shape[k]},), got {problem}"
            )
        kind = jax.dtypes.canonicalize_dtype(v.dtype)
        chosen[k] = v.astype(jnp.promote_types(kind, t.dtype))
    if _entries.is_hosted(t, chosen):
        return _entries.contracted(t, chosen)
    return _contract_modes(t, chosen)


@jax.jit
def _contract_modes(t: TT, vectors: dict[int, jax.Array]) -> Any:
    dtype = jnp.result_type(t.dtype, *(v.dtype for v in vectors.values()))
    pending: Any = None  # what the modes contracted since the last core make of the bond
    exponent: Any = jnp.zeros((), jnp.int32)
    cores: list[jax.Array] = []
    at = 0  # the core that takes the exponent
    for k, core in enumerate(t.cores):
        core = core.astype(dtype)
        if k in vectors:
            v, e = linalg.normalized(vectors[k].astype(dtype))
            matrix = jnp.einsum("aib,i->ab", core, v, precision=_HIGHEST)
            matrix = matrix if pending is None else linalg.matmul(pending, matrix)
            pending, more = linalg.normalized(matrix)
            exponent = exponent + e + more
        elif pending is not None:
            at = len(cores)
            cores.append(absorb(pending, core))
            pending = None
        else:
            cores.append(core)
    if not cores:
        assert pending is not None
        return linalg.scaled(pending[0, 0], exponent)
    if pending is not None:
        at = len(cores) - 1
        cores[-1] = times_right(cores[-1], pending)
    return TT._unchecked(tuple(shared_out(cores, exponent, at=at) if vectors else cores))
