"""C++ kernels of TT-rounding: to given ranks as an XLA call, to a tolerance on NumPy arrays."""

import math
from collections.abc import Sequence

import jax
import numpy as np

from tensorjax._native.accepted_arrays import check_arrays, check_train
from tensorjax._native.host_calls import addresses, call
from tensorjax._transfer import LINE, aligned, split_at_lines

_LINE = LINE // 8  # numbers of double precision: every core begins at a whole line


def basis_columns(
    shape: Sequence[int], ranks: Sequence[int], widths: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Bounds the columns of bases at every bond, to size the workspace of C++ TT-rounding."""
    out, left = [], 1
    for k, r in enumerate(ranks[1:-1]):
        left = min(left * shape[k], r)
        if widths is not None:
            left = min(left, widths[k], math.prod(shape[k + 1 :]))
        out.append(left)
    return tuple(out)


def round_to_ranks(
    cores: Sequence[jax.Array],
    draw: jax.Array,
    mix: jax.Array,
    ranks: tuple[int, ...],
    matrices: Sequence[jax.Array] = (),
) -> list[jax.Array]:
    """Rounds a train, or a TT-matrix times a train, to given TT-ranks by a C++ kernel.

    Args:
      cores: (r_{k-1}, n_k, r_k) each, float32 or float64; computed in float64.
      draw: (Σ n, w) random numbers of the sketch's train; every bond gets as many columns above its
        rank as w has above the largest, and with none nothing is cut afterwards. w = 0 for bases
        by QR, without a sketch.
      mix: (w, w), orthogonal.
      ranks: d−1, none above what the modes or the present ranks allow.
      matrices: cores (a_{k-1}, m_k, n_k, a_k) of the matrix train; the product, with modes m_k, is
        not formed. Not with w = 0.
    """
    check_train(cores, 3)
    if matrices:
        check_train(matrices, 4)
        if [c.shape[1] for c in cores] != [a.shape[2] for a in matrices]:
            raise ValueError("matrices: expected columns of the cores' mode sizes, got others")
    modes, width = sum(c.shape[1] for c in matrices or cores), mix.shape[-1]
    check_arrays(cores[0].dtype, (*matrices, draw, mix))
    if draw.shape != (modes, width) or mix.shape != (width, width):
        raise ValueError(
            f"draw, mix: expected ({modes}, w) and (w, w), got {draw.shape}, {mix.shape}"
        )
    if len(ranks) != len(cores) - 1:
        raise ValueError(f"ranks: expected {len(cores) - 1}, got {len(ranks)}")
    bonds = [c.shape[-1] * (matrices[k].shape[-1] if matrices else 1) for k, c in enumerate(cores)]
    old, results = (1, *bonds), rounded_shapes(matrices or cores, ranks)
    shape = [r.shape[1] for r in results]
    call = jax.ffi.ffi_call("tensorjax_round", results, vmap_method="broadcast_all")
    widths = [r + width - max(ranks) for r in ranks] if width else None
    out = call(
        draw, mix, *matrices, *cores,
        ranks=np.asarray(ranks, np.int64),
        columns=np.asarray(basis_columns(shape, old, widths), np.int64),
    )  # fmt: skip
    return list(out)


def rounded_shapes(
    cores: Sequence[jax.Array], ranks: tuple[int, ...]
) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of the cores that the C++ kernel `round_to_ranks` returns."""
    new = (1, *ranks, 1)
    return [
        jax.ShapeDtypeStruct((new[k], c.shape[1], new[k + 1]), c.dtype) for k, c in enumerate(cores)
    ]


def gram_round(
    cores: Sequence[np.ndarray], share: float, most: float = 0.0
) -> list[np.ndarray] | None:
    """Rounds a train in C++ to a share of its energy; None if Gram matrices are too inaccurate.

    Args:
      cores: (r_{k-1}, n_k, r_k) each, real, none empty; computed, and returned, in float64.
      share: of the energy that may be discarded.
      most: power of two that the products of norms of the first cores may be off one; where they
        are further off, the result is None. Nothing is asked if it is 0.
    """
    shapes = [c.shape for c in cores]
    ranks = [1, *(s[-1] for s in shapes)]
    fit = all(len(s) == 3 and s[0] == r and 0 not in s for s, r in zip(shapes, ranks, strict=False))
    if not fit or ranks[-1] != 1 or any(not np.can_cast(c.dtype, np.float64) for c in cores):
        raise ValueError(f"cores: expected a train of real numbers, got cores {shapes}")
    modes = [s[1] for s in shapes]
    pointers, kept = addresses(cores, np.float64)
    found, cells = np.array(ranks, np.int64), sum([c.size for c in cores])
    out = aligned((cells + len(cores) * _LINE,), np.float64)
    sizes = np.array(modes, np.int64), found
    served = call(
        "tensorjax_gram_round", len(cores), *sizes, pointers, float(share), float(most), out
    )
    del kept  # until here: the pointers are to it
    if not served:
        return None
    ranks = found.tolist()
    return split_at_lines(out, zip(ranks[:-1], modes, ranks[1:], strict=True))
