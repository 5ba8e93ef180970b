"""Random initialisation of tensor-network weights: normal or orthogonal, of a given variance."""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax import _check, linalg
from tensorjax._formats.random_arrays import one_on_host
from tensorjax._transfer import on_device

Init = Literal["normal", "orthogonal"]
_Shape = tuple[int, ...]


def check_init(init: Any) -> Init:
    """Checks the option ``init``, the initialisation of a weight, "normal" or "orthogonal"."""
    return _check.choice("init", init, get_args(Init))


def train(
    init: Init,
    rngs: nnx.Rngs,
    shapes: Sequence[Sequence[int]],
    split: int,
    variance: float,
    dtype: Any,
) -> list[nnx.Param]:
    """Draws initial TT-cores of a layer whose weight's entries have the given variance.

    "orthogonal": isometries left of bond ``split``, adjoint isometries right of it, so that all
    singular values of the unfolding at that bond are one. Where ranks grow faster than modes admit,
    a core is only an isometry in the mean.
    """
    ranks = [shape[0] for shape in shapes[1:]]
    if init == "normal":
        return normals(rngs, shapes, variance, math.prod(ranks), dtype)
    folds = [_tall(shape) if k < split else _flat(shape) for k, shape in enumerate(shapes)]
    entries = math.prod(math.prod(shape[1:-1]) for shape in shapes)
    size = (entries * variance / ranks[split - 1]) ** 0.5 if ranks else (entries * variance) ** 0.5
    return _isometries(rngs, shapes, folds, size, dtype)


def tucker(
    init: Init,
    rngs: nnx.Rngs,
    core: Sequence[int],
    factors: Sequence[Sequence[int]],
    split: int,
    variance: float,
    dtype: Any,
) -> list[nnx.Param]:
    """Draws initial Tucker core and factors of a layer whose weight has the given variance.

    "orthogonal": factors are isometries, and the core is one or its adjoint, where its first
    ``split`` axes are rows and the others columns.
    """
    shapes = [core, *factors]
    if init == "normal":
        return normals(rngs, shapes, variance, math.prod(core), dtype)
    rows, columns = math.prod(core[:split]), math.prod(core[split:])
    entries = math.prod(math.prod(shape[:-1]) for shape in factors)
    fold = (rows, columns, rows >= columns)
    size = (entries * variance / min(rows, columns)) ** 0.5
    return _isometries(rngs, shapes, [fold, *map(_tall, factors)], size, dtype)


def canonical(
    init: Init, rngs: nnx.Rngs, shapes: Sequence[Sequence[int]], variance: float, dtype: Any
) -> list[nnx.Param]:
    """Draws initial CP factors of a layer whose weight's entries have the given variance.

    Raises:
      ValueError: ``init`` is "orthogonal".
    """
    if init == "orthogonal":
        raise ValueError(
            'init: expected "normal" for a sum of products of vectors, got "orthogonal": it has no '
            "isometries; take TT or Tucker for them"
        )
    return normals(rngs, shapes, variance, shapes[0][-1], dtype)


def normals(
    rngs: nnx.Rngs, shapes: Sequence[Sequence[int]], variance: float, terms: int, dtype: Any
) -> list[nnx.Param]:
    """Initialises normal arrays so that sums of ``terms`` products have the given variance."""
    scale = (variance / terms) ** (0.5 / len(shapes))
    return _params(rngs, shapes, None, scale, dtype)


# Rows and columns of an array as a matrix, and whether its columns (or else its rows) are to be
# orthonormal.
_Fold = tuple[int, int, bool]


def _tall(shape: Sequence[int]) -> _Fold:
    return math.prod(shape[:-1]), shape[-1], True


def _flat(shape: Sequence[int]) -> _Fold:
    return shape[0], math.prod(shape[1:]), False


def _isometries(
    rngs: nnx.Rngs, shapes: Sequence[Sequence[int]], folds: Sequence[_Fold], size: float, dtype: Any
) -> list[nnx.Param]:
    return _params(rngs, shapes, tuple(folds), size ** (1 / len(shapes)), dtype)


def _params(
    rngs: nnx.Rngs,
    shapes: Sequence[Sequence[int]],
    folds: tuple[_Fold, ...] | None,
    scale: float,
    dtype: Any,
) -> list[nnx.Param]:
    key, dtype = rngs.params(), jnp.dtype(dtype)
    wide = linalg.factor_dtype(dtype)  # half precision is drawn in single
    sizes = tuple(map(tuple, shapes))
    draw = one_on_host(jax.random.normal, key, (sum(map(math.prod, sizes)),), wide)
    if draw is None:
        drawn = _drawn(key, scale, sizes, folds, dtype)
    elif folds is None:
        drawn = on_device(_scaled(_parts(draw, sizes), scale, sizes, dtype))
    else:
        given = on_device([draw, np.asarray(scale, wide)])
        drawn = _shaped(*given, sizes, folds, dtype)
    return [nnx.Param(x) for x in drawn]


# All in one program: drawing takes long to compile.
@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _drawn(
    key: jax.Array,
    scale: Any,
    shapes: tuple[_Shape, ...],
    folds: tuple[_Fold, ...] | None,
    dtype: Any,
) -> list[jax.Array]:
    count = sum(map(math.prod, shapes))
    draw = jax.random.normal(key, (count,), linalg.factor_dtype(dtype))
    return _shaped(draw, scale, shapes, folds, dtype)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _shaped(
    draw: Any, scale: Any, shapes: tuple[_Shape, ...], folds: tuple[_Fold, ...] | None, dtype: Any
) -> list[jax.Array]:
    """Draws initial arrays of a weight: normal or orthogonal, scaled to a given variance."""
    parts = _parts(draw, shapes)
    if folds is not None:
        parts = _orthonormal(parts, folds)
    return _scaled(parts, scale, shapes, dtype)


def _parts(draw: Any, shapes: Sequence[_Shape]) -> list[Any]:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return (np if linalg.is_host(draw) else jnp).split(draw, ends[:-1])


def _scaled(parts: Sequence[Any], scale: Any, shapes: Sequence[_Shape], dtype: Any) -> list[Any]:
    xp = np if linalg.is_host(parts[0]) else jnp
    scale = xp.asarray(scale, linalg.factor_dtype(dtype))
    return [(scale * x).astype(dtype).reshape(s) for x, s in zip(parts, shapes, strict=True)]


def _orthonormal(parts: Sequence[jax.Array], folds: Sequence[_Fold]) -> list[jax.Array]:
    """Converts initial normal arrays to Haar-distributed isometries, for init="orthogonal"."""
    out: list[jax.Array] = []
    for part, (rows, columns, tall) in zip(parts, folds, strict=True):
        matrix = part.reshape(rows, columns)
        matrix = matrix if rows >= columns else linalg.adjoint(matrix)
        if out:  # no two factorisations side by side where layers are drawn under vmap
            matrix = linalg.after(matrix, out[-1])
        q, r = linalg.qr(matrix)
        diagonal = jnp.diagonal(r)  # its phases in q make q uniformly distributed
        size = jnp.abs(diagonal).astype(q.dtype)
        phases = jnp.where(size > 0, diagonal / jnp.where(size > 0, size, 1), 1)
        q = linalg.scale_columns(q, phases)
        q = q if rows >= columns else linalg.adjoint(q)
        kept = columns if tall else rows
        out.append(q * (kept / min(rows, columns)) ** 0.5)
    return out
