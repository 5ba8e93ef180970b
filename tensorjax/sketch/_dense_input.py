"""Random projection of dense input by few wide matrix products."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import _native
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.table import CPP, TRACE
from tensorjax._symbolic import is_static, planned
from tensorjax.contract import einsum
from tensorjax.sketch import _mode_groups
from tensorjax.sketch._map_cores import HIGHEST, halves, merge, row_matrix, scaled_cores
from tensorjax.sketch._map_types import CPRows, Dense, Kronecker, Projection, Sparse, TTRows

_CHUNK = 2**22  # elements gathered at a time


def project(p: Projection, x: jax.Array) -> jax.Array:
    """Projects dense input, rows (batch, N), by a random map to (batch, M)."""
    if isinstance(p, Kronecker):
        return _kronecker(p, x)
    if isinstance(p, TTRows | CPRows):
        return _independent_rows(p, x)
    if isinstance(p, Sparse):
        return _sparse(p, x)
    assert isinstance(p, Dense)
    return _times_transpose(x, p.matrix) * (1 / math.sqrt(p.out_size))


def _times_transpose(x: jax.Array, w: jax.Array) -> jax.Array:
    """Multiplies dense rows by a random map, x wᵀ, with w padded to a multiple of eight rows."""
    count = w.shape[0]
    w = jnp.pad(w, ((0, -count % 8 if count > 4 else 0), (0, 0)))
    y = jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())), precision=HIGHEST)
    return y[:, :count]


def _padded(x: jax.Array, size: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, size - x.shape[1])))


def _kronecker(p: Kronecker, x: jax.Array) -> jax.Array:
    cut = _one_pass(x, p.in_shape, p.out_shape, (1, *p.ranks, 1))
    return _either(p, x, cut) if cut else _by_groups(p, x)


def _by_groups(p: Kronecker, x: jax.Array) -> jax.Array:
    batch, size = x.shape
    n, m, ranks = p.in_shape, p.out_shape, (1, *p.ranks, 1)
    plan = _mode_groups.choose(planned(batch), size, n, m, ranks)
    if plan.pads_input:
        x = _padded(x, math.prod(n))
    cores = scaled_cores(p)
    y = x[:, :, None, None]  # (batch, modes not yet done, bond, modes done)
    for s, e in reversed(list(zip(plan.cuts, plan.cuts[1:], strict=False))):
        core = merge(cores[s:e])[:, :, : y.shape[1]]
        y = _group(y, core)
    return y.reshape(batch, -1)[:, : p.out_size]


def _one_pass(x: jax.Array, n: Sequence[int], m: Sequence[int], ranks: Sequence[int]) -> int:
    """Returns the mode at which a C++ kernel splits dense rows to apply a map; 0 for XLA."""
    whole = len(n) > 1 and x.shape[1] == math.prod(n)
    cut = _mode_groups.choose_cut(n, m, ranks) if whole else 0
    row = math.prod(n[cut:])
    return cut if choose_kernel("sketch.apply", (x,), TRACE, cut=cut, row=row) is CPP else 0


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _either(p: Kronecker, x: jax.Array, cut: int) -> jax.Array:
    results = [jax.ShapeDtypeStruct((x.shape[0], p.out_size), x.dtype)]
    kernels = "sketch.apply", _in_one_pass, _all_by_groups
    return cpp_or_xla(*kernels, p, x, static=(cut,), results=results)[0]


def _in_one_pass(cut: int, p: Kronecker, x: jax.Array) -> jax.Array:
    return _by_halves(_one_pass_over, cut, p, x)


def _all_by_groups(cut: int, p: Kronecker, x: jax.Array) -> jax.Array:
    return _by_groups(p, x)


def _by_halves(function: Callable[..., jax.Array], cut: int, p: Kronecker, x: Any) -> jax.Array:
    """Projects dense input by a Kronecker map with cores merged to a left and a right half."""
    cores = scaled_cores(p)
    left, right = merge(cores[:cut]), merge(cores[cut:])
    rows = x.reshape(x.shape[0], left.shape[2], right.shape[2])
    y = function(rows, jnp.swapaxes(left[0], 0, 1), jnp.swapaxes(right[..., 0], 1, 2))
    return y.reshape(x.shape[0], -1)[:, : p.out_size]


@jax.custom_batching.custom_vmap
def _one_pass_over(x: jax.Array, a: jax.Array, c: jax.Array) -> jax.Array:
    return _native.sketch(x, a, c)


@_one_pass_over.def_vmap
def _over_batches(
    size: int, batched: Sequence[bool], x: jax.Array, a: jax.Array, c: jax.Array
) -> tuple[jax.Array, bool]:
    """Batches the C++ projection of dense rows under `jax.vmap`; a batch of maps goes to XLA."""
    x_batched, *maps_batched = batched
    if x_batched and not any(maps_batched):
        y = _one_pass_over(x.reshape(-1, *x.shape[2:]), a, c)
        return y.reshape(size, -1, *y.shape[1:]), True
    function = _native.sketch if x_batched else _halves_by_xla
    return jax.vmap(function, [0 if b else None for b in batched])(x, a, c), True


@_either.defjvp
def _either_jvp(cut: int, primals: Any, tangents: Any) -> Any:
    _, moved = jax.jvp(functools.partial(_by_halves, _halves_by_xla, cut), primals, tangents)
    return _either(*primals, cut), moved


def _halves_by_xla(x: jax.Array, a: jax.Array, c: jax.Array) -> jax.Array:
    return einsum("bnm,njr,rmk->bjk", x, a, c, precision=HIGHEST)


def _group(y: jax.Array, core: jax.Array) -> jax.Array:
    """Multiplies dense input by one merged core of a Kronecker map, by XLA."""
    batch, size, bond, done = y.shape
    left, m, n, _ = core.shape
    rest = size // n
    if bond * done == 1:
        z = _times_transpose(y.reshape(batch * rest, n), core.reshape(left * m, n))
        return z.reshape(batch, rest, left, m)
    y = y.reshape(batch, rest, n, bond, done)
    z = einsum("xrjbd,aijb->xraid", y, core, precision=HIGHEST)
    return z.reshape(batch, rest, left, m * done)


def _independent_rows(p: TTRows | CPRows, x: jax.Array) -> jax.Array:
    batch, n = x.shape[0], p.in_shape
    widths = (p.terms,) * (len(n) - 1) if isinstance(p, CPRows) else p.ranks
    s = _mode_groups.split_rows(planned(batch), n, p.out_size, widths)
    if s == 0:
        return _times_transpose(x, row_matrix(p)[:, : x.shape[1]])
    left, right = halves(p, s)
    m, t, size = right.shape
    z = _times_transpose(_padded(x, math.prod(n)).reshape(-1, size), right.reshape(m * t, size))
    z = z.reshape(batch, -1, m, t)
    # Summed entry by entry: a batched product of such thin matrices is far slower.
    return jnp.sum(z * left.transpose(2, 0, 1)[None], axis=(1, 3))


def _sparse(p: Sparse, x: jax.Array) -> jax.Array:
    scale = math.sqrt(p.law.fourth_moment / p.out_size)
    m, size = p.out_size, p.in_size
    rows = planned(x.shape[0])
    gather = 50 * rows * p.sign.shape[0]  # a random access costs what ~50 reads in order do
    fill = _mode_groups.product_cost(rows, size, m) + 2 * size * m
    if fill < gather:
        w = jnp.zeros(m * size, x.dtype).at[p.index].set(p.sign, mode="drop")
        return _times_transpose(x, w.reshape(m, size)) * scale
    target, column = p.index // size, p.index % size

    def one(row_of_x: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(row_of_x[column] * p.sign, target, m)

    if not is_static(x.shape[0]):
        return jax.vmap(one)(x) * scale
    rows_at_once = max(1, _CHUNK // p.sign.shape[0])
    return jax.lax.map(one, x, batch_size=min(rows_at_once, rows)) * scale
