"""Trains over the digits of quantics grids: from automata, and products over dimensions."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores import scaling
from tensorjax._cores.contractions import absorb, einsum, join, merge, times_right
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax.tt.quantics.grids import QuanticsGrid, digits_of, fused_counts, grid_places

# What a state of an automaton leads to at a digit: blocks (b,) of a train, (b, b) of a TT-matrix.
Step = Mapping[tuple[Any, Any], Any]


def automaton(steps: Sequence[Step], start: Mapping[Any, Any], end: Mapping[Any, Any]) -> list[Any]:
    """Builds the cores of a train over digits from an automaton that reads digits in order.

    A bond's indices are the states that some start reaches and that reach some end, so ranks count
    states that matter.

    Args:
      steps: for each digit, blocks by pairs of states (before, after).
      start: weights of the states before the first digit.
      end: weights of the states after the last one.

    Returns:
      Host cores; of rank one and zero if no start reaches an end.
    """
    modes = np.shape(next(iter(steps[0].values())))
    reached = [[s for s in start if start[s] != 0]]
    for step in steps:
        now = {b for (a, b), x in step.items() if a in reached[-1] and np.any(x)}
        reached.append(sorted(now, key=str))
    reached[-1] = [s for s in reached[-1] if end.get(s, 0) != 0]
    for k in range(len(steps) - 1, -1, -1):
        leads = {a for (a, b), x in steps[k].items() if b in reached[k + 1] and np.any(x)}
        reached[k] = [s for s in reached[k] if s in leads]
    if not all(reached):
        return [np.zeros((1, *modes, 1)) for _ in steps]
    nothing = np.zeros(modes)
    cores = []
    for step, before, after in zip(steps, reached[:-1], reached[1:], strict=True):
        rows = [np.stack([step.get((a, b), nothing) for b in after], -1) for a in before]
        cores.append(np.stack(rows).reshape(len(before), -1, len(after)))
    cores[0] = absorb(np.array([[start[s] for s in reached[0]]]), cores[0])
    cores[-1] = times_right(cores[-1], np.array([[end[s]] for s in reached[-1]]))
    return [c.reshape(c.shape[0], *modes, c.shape[-1]) for c in cores]


def over_dimensions(grid: QuanticsGrid, factors: Sequence[Sequence[Any] | None]) -> list[Any]:
    """Combines trains over one dimension's digits each to one over all digits of a quantics grid.

    Args:
      grid: whose order of digits counts.
      factors: for every dimension the cores over its digits, of a train or of a TT-matrix, or None
        for ones or the identity. Right ends may be open: the last bond has all of them then.

    Returns:
      Cores, one a digit. A bond's rank is the product of those of the factors.
    """
    axes = next(f[0].ndim for f in factors if f is not None) - 2
    plain = np.ones(grid.base) if axes == 1 else np.eye(grid.base)
    open_ranks = [1] * grid.dims
    cores = []
    for dim, level in grid_places(grid):
        factor = factors[dim]
        core = plain[None, ..., None] if factor is None else factor[level]
        cores.append(_beside(open_ranks, dim, core))
        open_ranks[dim] = core.shape[-1]
    return cores


def _beside(ranks: Sequence[int], dim: int, core: Any) -> Any:
    """Extends a core over one dimension's digits by identities on other dimensions' bonds."""
    above, below = int(np.prod(ranks[:dim])), int(np.prod(ranks[dim + 1 :]))
    if above == below == 1:
        return core
    xp = np if isinstance(core, np.ndarray) else jnp
    a, b = xp.eye(above, dtype=core.dtype), xp.eye(below, dtype=core.dtype)
    modes = "mn"[: core.ndim - 2]
    out = einsum(f"ax,r{modes}s,by->arb{modes}xsy", a, core, b)
    (r, *n, s) = core.shape
    return out.reshape(above * r * below, *n, above * s * below)


def fused(grid: QuanticsGrid, cores: Sequence[Any]) -> list[Any]:
    """Merges cores over single digits to cores over the modes of a fused quantics grid."""
    if not grid.fused:
        return list(cores)
    out, at = [], 0
    for count in fused_counts(digits_of(grid)):
        group = list(cores[at : at + count])
        out.append(merge(group) if group[0].ndim == 3 else _merged_matrices(group))
        at += count
    return out


def _merged_matrices(cores: Sequence[Any]) -> Any:
    out = cores[0]
    for core in cores[1:]:
        (r, m, n, _), (_, k, j, s) = out.shape, core.shape
        out = join(out, core).transpose(0, 1, 3, 2, 4, 5).reshape(r, m * k, n * j, s)
    return out


def parameter(name: str, value: Any, dtype: Any = None) -> tuple[Any, Any]:
    """Converts the parameter of a train over digits to an array; also returns the train's dtype.

    Concrete ones are NumPy's in double precision, with which cores are computed on the host.
    """
    if _check.is_traced(value):
        x = jnp.asarray(value)
        x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(_check.inexact_dtype(None))
        kind = x.dtype
    else:
        x = np.asarray(value)
        if x.dtype.kind not in "biufc" and not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TypeError(f"{name}: expected numbers, got {_check.short(value)}")
        typed = hasattr(value, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)
        kind = x.dtype if typed else np.result_type(x.dtype, np.float64)
        kind = jax.dtypes.canonicalize_dtype(kind)
        complex_ = jnp.issubdtype(x.dtype, jnp.complexfloating)
        x = x.astype(np.complex128 if complex_ else np.float64)
        _check.finite(name, x)
    found = kind if dtype is None else _check.inexact_dtype(dtype)
    if jnp.iscomplexobj(x) and not jnp.issubdtype(found, jnp.complexfloating):
        raise TypeError(f"dtype: expected a complex one for complex {name}, got {found}")
    return (x, found) if isinstance(x, np.ndarray) else (x.astype(found), found)


def like(constants: Any, x: Any) -> Any:
    """Casts constants to the array library and dtype of the parameters of trains over digits."""
    return constants.astype(x.dtype) if linalg.is_host(x) else jnp.asarray(constants, x.dtype)


def built(kind: type[Any], grid: QuanticsGrid, cores: Sequence[Any], dtype: Any = None) -> Any:
    """Assembles a TT or TT-matrix from cores over digits, fused in the order of its grid."""
    dtype = _check.inexact_dtype(dtype)
    whole = fused(grid, cores)
    if all(map(linalg.is_host, whole)):
        whole = _narrowed(whole, dtype)
    return kind._unchecked(tuple(jnp.asarray(c, dtype) for c in whole))


def _narrowed(cores: list[Any], dtype: Any) -> list[Any]:
    """Casts host cores over digits to a narrower dtype; they share a size that one cannot hold."""
    info = jnp.finfo(dtype)
    if all(jnp.finfo(c.dtype).bits <= info.bits for c in cores):
        return cores
    refused = (
        f"dtype: {jnp.dtype(dtype).name} cannot hold the result in {len(cores)} cores; take a "
        "wider one (float64 needs jax.config.update('jax_enable_x64', True)), or scale the function"
    )
    out = scaling.cast(cores, 0, dtype, refused)
    least = float(info.smallest_normal)
    for given, core in zip(cores, out, strict=True):
        exact = _check.held_subnormal(dtype, given).all() and (core == given).all()
        if 0 < float(np.abs(core).max()) < least and not exact:
            raise OverflowError(refused)
    return out


def train(grid: QuanticsGrid, cores: Sequence[Any], dtype: Any = None) -> TT:
    """Builds a TT on a quantics grid from cores over its digits."""
    return built(TT, grid, cores, dtype)


def matrix(grid: QuanticsGrid, cores: Sequence[Any], dtype: Any = None) -> TTMatrix:
    """Assembles a TT-matrix from cores over digits, fused in the order of its quantics grid."""
    return built(TTMatrix, grid, cores, dtype)
