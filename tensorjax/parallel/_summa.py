"""SUMMA: product of matrices that are sharded over both dimensions of a mesh."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tensorjax import _check
from tensorjax.parallel import _collectives as collectives


def summa(
    x: jax.Array, w: jax.Array, mesh: Mesh | None = None, *, overlap: bool = False
) -> jax.Array:
    """Multiplies two matrices that are sharded over rows and columns of a mesh, by SUMMA.

    On each device, with blocks of X, W and Y on ("r", "c"):

        Y = all_gather(X, "c") @ all_gather(W, "r"),
        dX = psum_scatter(dY Wᵀ, "c"),    dW = psum_scatter(Xᵀ dY, "r").

    Every device sends (c − 1)/c of its row of X and (r − 1)/r of its column of W; memory at rest is
    1/(r c) of each. The mesh need not be square.

    Args:
      x: (rows, …, inner) of floating dtype: rows lie on "r", the last axis on "c".
      w: (inner, columns): rows lie on "r", columns on "c".
      mesh: with axes "r" and "c"; None takes that of ``x``, if it lies on one.
      overlap: pass blocks of X around the ring "c" and multiply each as it arrives, so that
        communication may run beside products. The same bytes, and the same sums in another order.

    Returns:
      Y (rows, …, columns), split as X.

    Raises:
      ValueError: shapes that do not match or do not split, no mesh, or one of other axes.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import parallel
      >>> y = parallel.summa(jnp.ones((4, 6)), jnp.ones((6, 2)), parallel.mesh(1, 1))
      >>> y.shape, float(y[0, 0])
      ((4, 2), 6.0)

    Source: R. van de Geijn, J. Watts, "SUMMA: Scalable Universal Matrix Multiplication Algorithm"
    (1997); Q. Xu, Y. You, arXiv 2104.05343, for its use in a transformer. Departure: all blocks are
    gathered at once, where SUMMA broadcasts them one by one; ``overlap`` does it block by block.
    """
    where = _mesh_of(x) if mesh is None else mesh
    if not {"r", "c"} <= set(where.axis_names):
        raise ValueError(
            f"mesh: expected axes 'r' and 'c', got {where.axis_names}; make it with parallel.mesh"
        )
    r, c = (where.shape[axis] for axis in ("r", "c"))
    if x.ndim < 2 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ValueError(
            f"w: expected shape ({x.shape[-1] if x.ndim else '?'}, columns) for x of shape "
            f"{x.shape}, got {w.shape}"
        )
    for name, size, blocks in (
        ("x", x.shape[0], r),
        ("x", x.shape[-1], c),
        ("w", w.shape[0], r),
        ("w", w.shape[1], c),
    ):
        if size % blocks:
            raise ValueError(
                f"{name}: expected sizes that split into {blocks} equal blocks on a mesh of "
                f"{r} × {c}, got {size} in shape {(x if name == 'x' else w).shape}; pad it"
            )

    return _program(where, x.ndim, bool(overlap))(x, w)


@functools.lru_cache(maxsize=64)
def _program(mesh: Mesh, ndim: int, overlap: bool) -> Callable[..., jax.Array]:
    """Builds the jitted SUMMA matrix product on a mesh; cached, to compile only once."""

    def local(x: jax.Array, w: jax.Array) -> jax.Array:
        w = collectives.gather(w, ("r",), 0)
        if overlap:
            return collectives.ring_product(x, w, ("c",))
        return collectives.product(collectives.gather(x, ("c",), -1), w)

    spec = PartitionSpec("r", *(None,) * (ndim - 2), "c")
    specs = (spec, PartitionSpec("r", "c"))
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=spec))


def _mesh_of(x: jax.Array) -> Any:
    sharding = None if _check.is_traced(x) else getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        raise ValueError("mesh: expected a mesh, or x that lies on one; got neither")
    return sharding.mesh
