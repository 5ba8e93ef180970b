"""Random projection of tensor trains and TT-matrices, without materialising size-N vectors."""

import math

import jax
import jax.numpy as jnp

from tensorjax import tt
from tensorjax._placement import placed
from tensorjax.contract import einsum
from tensorjax.sketch._map_cores import HIGHEST, row_digits, scaled_cores
from tensorjax.sketch._map_types import CPRows, Dense, Kronecker, Projection, Sparse, TTRows

_MOST_COLUMNS = 2**24  # of a TT-matrix whose image under the map is a dense (M, columns) array


@placed
def to_tt_matrix(p: Kronecker) -> tt.TTMatrix:
    """Converts a `ttrp` map f(x) = A x to the TT-matrix A, which multiplies trains.

    If fewer than ∏ m_k rows are in use the others are zero, which doubles the interior ranks.

    Args:
      p: `Kronecker` map, as `ttrp` draws it.

    Returns:
      TTMatrix of row modes ``p.out_shape`` and column modes ``p.in_shape``.

    Raises:
      TypeError: ``p`` is another map, or none.

    Example:
      >>> import jax
      >>> from tensorjax import sketch
      >>> sketch.to_tt_matrix(sketch.ttrp(jax.random.key(0), (25, 25, 16), (4, 3, 2))).shape
      (24, 10000)

    Source: Feng et al., arXiv 2010.10797, see `ttrp`; the mask of unused rows is ours.
    """
    if not isinstance(p, Kronecker):
        raise TypeError(f"p: expected a map from sketch.ttrp, got {type(p).__name__}")
    cores = scaled_cores(p)
    if p.out_size == math.prod(p.out_shape):
        return tt.TTMatrix(cores)
    masks = row_digits(p.out_shape, p.out_size)
    masks[0] = masks[0][:, :1]  # the automaton starts in state 0 …
    masks[-1] = masks[-1].sum(-1, keepdims=True)  # … and may end in both
    masked = []
    for core, mask in zip(cores, masks, strict=True):
        out = einsum("aijb,ics->acijbs", core, jnp.asarray(mask, core.dtype), precision=HIGHEST)
        r, s, m, n, r2, s2 = out.shape
        masked.append(out.reshape(r * s, m, n, r2 * s2))
    return tt.TTMatrix(masked)


def project_train(p: Projection, x: tt.TT | tt.TTMatrix) -> tt.TT | tt.TTMatrix | jax.Array:
    """Applies a random map to a tensor train, or to every column of a TT-matrix."""
    if isinstance(p, Kronecker):
        a = to_tt_matrix(p)
        return tt.matvec(a, x) if isinstance(x, tt.TT) else tt.matmul(a, x)
    # A train is a TT-matrix of one column; cores (q, n, columns, q').
    cores = x.cores if isinstance(x, tt.TTMatrix) else tuple(c[:, :, None] for c in x.cores)
    _check_columns(x)
    if isinstance(p, CPRows):
        out = _cp_rows(p, cores)
    elif isinstance(p, TTRows):
        out = _tt_rows(p, cores)
    elif isinstance(p, Sparse):
        out = _sparse(p, cores)
    else:
        assert isinstance(p, Dense)
        dense = tt.to_dense(x).reshape(p.in_size, -1)
        out = jnp.matmul(p.matrix, dense, precision=HIGHEST) * (1 / math.sqrt(p.out_size))
    return out if isinstance(x, tt.TTMatrix) else out[:, 0]


def _check_columns(x: tt.TT | tt.TTMatrix) -> None:
    if isinstance(x, tt.TTMatrix) and x.shape[1] > _MOST_COLUMNS:
        raise ValueError(
            f"x: expected at most {_MOST_COLUMNS} columns, got {x.shape[1]}: rows without product "
            "structure give a dense (M, columns) result; use sketch.ttrp, which gives a TTMatrix"
        )


def _cp_rows(p: CPRows, cores: tuple[jax.Array, ...]) -> jax.Array:
    scale = 1 / math.sqrt(p.terms * p.out_size)
    state = jnp.full((p.out_size, p.terms, 1, 1), scale, cores[0].dtype)
    for factor, core in zip(p.factors, cores, strict=True):
        # Over the mode first: the bonds of the train are wider than one.
        step = einsum("mtqk,qnls,mtn->mtskl", state, core, factor, precision=HIGHEST)
        state = step.reshape(*step.shape[:3], -1)
    return state[:, :, 0].sum(1)


def _tt_rows(p: TTRows, cores: tuple[jax.Array, ...]) -> jax.Array:
    state = jnp.ones((p.out_size, 1, 1, 1), cores[0].dtype)
    for row, core in zip(scaled_cores(p), cores, strict=True):
        step = einsum("mrqk,qnls,mrnt->mtskl", state, core, row, precision=HIGHEST)
        state = step.reshape(*step.shape[:3], -1)
    return state[:, 0, 0]


def _sparse(p: Sparse, cores: tuple[jax.Array, ...]) -> jax.Array:
    """Projects a tensor train by a sparse random map, from its entries at the map's nonzeros."""
    index = p.index % p.in_size
    state = None
    for core in reversed(cores):
        index, digit = index // core.shape[1], index % core.shape[1]
        slices = core[:, digit]  # (q, nonzeros, columns, q')
        if state is None:
            state = slices[..., 0]
            continue
        step = einsum("qjls,sjk->qjlk", slices, state, precision=HIGHEST)
        state = step.reshape(*step.shape[:2], -1)
    assert state is not None
    values = state[0] * p.sign[:, None]
    scale = math.sqrt(p.law.fourth_moment / p.out_size)
    return jax.ops.segment_sum(values, p.index // p.in_size, p.out_size) * scale
