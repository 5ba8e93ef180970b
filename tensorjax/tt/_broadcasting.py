"""Broadcasting of tensor trains as in NumPy: modes of size one are repeated; TT-ranks stay."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import TT, Train, TTMatrix, known, single
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax._placement import placed, returned
from tensorjax._typing import Shape


@placed
def broadcast_to(t: Train, shape: Shape | Sequence[Shape]) -> Train:
    """Broadcasts a train to a shape, as `numpy.broadcast_to`: repeats modes of size one.

    Args:
      t: TT or TTMatrix.
      shape: as many modes as ``t`` has; of a TTMatrix (row_shape, col_shape). ``t[None]`` adds
        modes of size one.

    Returns:
      Train of that shape and of the ranks of ``t``.

    Raises:
      ValueError: another number of modes, or a mode of another size than one that differs.

    Example:
      >>> from tensorjax import tt
      >>> tt.broadcast_to(tt.ones((2, 1)), (2, 5)).shape
      (2, 5)

    Source: ours; the rule is NumPy's.
    """
    single("t", t)
    given = mode_shapes(t)
    sides = [shape] if isinstance(t, TT) else list(shape)
    if len(sides) != len(given[0]):
        raise ValueError(f"shape: expected (row_shape, col_shape), got {shape}")
    asked = list(zip(*(_check.shape("shape", side, low=0) for side in sides), strict=True))
    fits = len(asked) == len(given) and all(
        m in (1, n) for a, b in zip(given, asked, strict=True) for m, n in zip(a, b, strict=True)
    )
    if not fits:
        raise ValueError(
            f"shape: expected the sizes {_shown(given)}, of which ones may grow, got {shape}; "
            "t[None] adds a mode of size one"
        )
    return _repeated(t, asked)


def together(x: Any, y: Any) -> tuple[Any, Any]:
    """Broadcasts two tensor trains to one shape; returns them unchanged if that is impossible.

    Batches too: modes are counted from the end of the cores.
    """
    if type(x) is not type(y) or not isinstance(x, TT | TTMatrix) or x.order != y.order:
        return x, y
    left, right = mode_shapes(x), mode_shapes(y)
    if left == right:
        return x, y
    pairs = list(zip(left, right, strict=True))
    if not all(1 in (m, n) or m == n for a, b in pairs for m, n in zip(a, b, strict=True)):
        return x, y
    shape = [tuple(n if m == 1 else m for m, n in zip(a, b, strict=True)) for a, b in pairs]
    return _repeated(x, shape), _repeated(y, shape)


def _of_one_shape(x: Any, y: Any) -> bool:
    """Whether two trains, or two TT-matrices, have equal mode sizes and need no broadcasting."""
    if isinstance(x, TT):  # in half the time of tuples of one size each
        return x.shape == y.shape
    return mode_shapes(x) == mode_shapes(y)


def mode_shapes(t: TT | TTMatrix) -> list[tuple[int, ...]]:
    return [c.shape[1 - t._core_ndim : -1] for c in t.cores]


def sizes_of(t: TT | TTMatrix) -> Any:
    """Returns the mode sizes of a train to broadcast: of a TT-matrix those of rows and columns."""
    return t.shape if isinstance(t, TT) else (t.row_shape, t.col_shape)


def _repeated(t: Any, modes: Sequence[tuple[int, ...]]) -> Any:
    """Broadcasts the cores of a train to given mode sizes."""
    lead = t._core_ndim
    shapes = [(*c.shape[: 1 - lead], *n, c.shape[-1]) for c, n in zip(t.cores, modes, strict=True)]
    pairs = zip(t.cores, shapes, strict=True)
    return type(t)._unchecked(tuple(c if c.shape == s else _grown(c, s) for c, s in pairs))


def _grown(core: Any, shape: tuple[int, ...]) -> jax.Array:
    if choose_kernel("tt.broadcast_to", (core,)) is not NUMPY:
        return jnp.broadcast_to(core, shape)
    # By NumPy, and back: every new shape would compile a program.
    return returned(np.ascontiguousarray(np.broadcast_to(np.asarray(core), shape)), core)


def _shown(modes: Sequence[tuple[int, ...]]) -> Any:
    sides = tuple(zip(*modes, strict=True))
    return sides[0] if len(sides) == 1 else sides


def check_alike(x: Any, y: Any) -> None:
    """Raises an error unless tensor trains have one type and one shape, without broadcasting."""
    if type(x) is not type(y) or not isinstance(x, TT | TTMatrix):
        raise TypeError(
            "expected two TT or two TTMatrix, "
            f"got {type(x).__name__} and {type(y).__name__}; build them with tt.from_dense"
        )
    if not _of_one_shape(x, y):
        raise ValueError(f"expected trains of one shape, got {mode_shapes(x)} and {mode_shapes(y)}")


def aligned(x: Train, y: Train) -> tuple[Train, Train]:
    """Casts trains of one shape to a common dtype, without broadcasting; raises for others."""
    check_alike(x, y)
    return _of_one_dtype(x, y)


def broadcast_aligned(x: Train, y: Train) -> tuple[Train, Train]:
    """Broadcasts two tensor trains to one shape, and casts them to their common dtype."""
    # Sizes are asked for once where they are the same: they take as long as a small core's product.
    if type(x) is not type(y) or not isinstance(x, TT | TTMatrix) or not _of_one_shape(x, y):
        return aligned(*together(x, y))
    return _of_one_dtype(x, y)


def _of_one_dtype(x: Train, y: Train) -> tuple[Train, Train]:
    # Kinds and shapes have been compared: what is left to ask is whether JAX has the dtype enabled.
    dtypes = [c.dtype for c in (*x.cores, *y.cores)]
    if dtypes.count(dtypes[0]) == len(dtypes):
        if not _check.is_enabled(dtypes[0]):
            known("x", x)
            known("y", y)
        return x, y
    known("x", x)
    known("y", y)
    dtype = jnp.promote_types(x.dtype, y.dtype)
    return x.astype(dtype), y.astype(dtype)
