"""Sharding of parameter trees and optimiser states for a layout."""

from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tensorjax._optax import check_optimizer
from tensorjax._typing import PyTree, Tree


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)


def shardings(specs: PyTree, mesh: Mesh) -> Any:
    """Converts parameters' tree of `PartitionSpec` to a tree of `NamedSharding` on a mesh.

    Args:
      specs: tree of `PartitionSpec`, as `Layout.spec` makes them.
      mesh: of the layout.

    Returns:
      The same tree, with a `jax.sharding.NamedSharding` for each.

    Raises:
      TypeError: leaves other than `PartitionSpec`. ValueError: axes that the mesh lacks.

    Example:
      >>> from tensorjax import parallel
      >>> layout = parallel.layout("2d", parallel.mesh(1, 1))
      >>> found = parallel.shardings({"w": layout.spec(("embed", "mlp"))}, layout.mesh)
      >>> tuple(found["w"].spec)
      ('r', 'c')

    Source: ours.
    """
    for spec in jax.tree.leaves(specs, is_leaf=_is_spec):
        if not _is_spec(spec):
            raise TypeError(f"specs: expected PartitionSpecs, got {type(spec).__name__}")
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=_is_spec)


def shard(tree: Tree, specs: PyTree, mesh: Mesh | None) -> Tree:
    """Copies every array of a parameter tree to a mesh, sharded by its `PartitionSpec`.

    Args:
      tree: of arrays. With several processes each one has to hold the same values, for example as
        NumPy arrays; each then reads only the blocks of its own devices.
      specs: the same tree of `PartitionSpec`.
      mesh: of the layout; None returns the tree as it is.

    Returns:
      The same tree of JAX arrays, placed on the mesh.

    Raises:
      ValueError: an array that does not split into equal blocks, or whose spec is missing.

    Example:
      >>> import numpy as np
      >>> from tensorjax import parallel
      >>> layout = parallel.layout("2d", parallel.mesh(1, 1))
      >>> specs = {"w": layout.spec(("embed", "mlp"))}
      >>> w = parallel.shard({"w": np.ones((4, 8))}, specs, layout.mesh)
      >>> tuple(w["w"].sharding.spec)
      ('r', 'c')

    Source: ours.
    """
    if mesh is None:
        return tree
    placed = shardings(specs, mesh)

    def place(path: Any, x: Any, sharding: Any) -> jax.Array:
        if not isinstance(sharding, NamedSharding):
            raise ValueError(
                f"specs{jax.tree_util.keystr(path)}: expected a PartitionSpec, got {sharding!r}"
            )
        try:
            if len(sharding.spec) > np.ndim(x):
                raise ValueError
            sharding.shard_shape(np.shape(x))
        except ValueError:
            sizes = dict(mesh.shape)
            raise ValueError(
                f"tree{jax.tree_util.keystr(path)}: expected a shape that {sharding.spec} splits "
                f"into equal blocks on a mesh of {sizes}, got {np.shape(x)}; "
                "pad it (Layout.padded), or take another mesh"
            ) from None
        if sharding.is_fully_addressable:
            return jax.device_put(x, sharding)
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree_util.tree_map_with_path(place, tree, placed)


def state_shardings(
    optimizer: optax.GradientTransformation, params: PyTree, specs: PyTree, mesh: Mesh
) -> Any:
    """Returns an optimiser state's shardings: moments like parameters, counters replicated.

    Args:
      optimizer: from Optax.
      params: arrays or `jax.ShapeDtypeStruct`.
      specs: the same tree of `PartitionSpec`.
      mesh: of the layout.

    Returns:
      The tree of ``optimizer.init(params)`` with a `NamedSharding` for every array; counters and
      the like are on all devices. Pass it as ``out_shardings`` of a jitted ``optimizer.init``.

    Raises:
      TypeError: ``optimizer`` is none, or leaves of ``specs`` are no `PartitionSpec`. ValueError:
        trees of different structure, or axes that the mesh lacks.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from tensorjax import parallel
      >>> layout, adam = parallel.layout("2d", parallel.mesh(1, 1)), optax.adam(1e-3)
      >>> params, specs = {"w": jnp.ones((4, 8))}, {"w": layout.spec(("embed", "mlp"))}
      >>> where = parallel.state_shardings(adam, params, specs, layout.mesh)
      >>> state = jax.jit(adam.init, out_shardings=where)(params)
      >>> tuple(state[0].mu["w"].sharding.spec)
      ('r', 'c')

    Source: ours.
    """
    check_optimizer("optimizer", optimizer)
    state = jax.eval_shape(optimizer.init, params)
    placed = shardings(specs, mesh)

    def masked(node: Any) -> bool:
        return isinstance(node, optax.MaskedNode)

    def like(leaf: Any, sharding: NamedSharding, param: Any) -> Any:
        if masked(leaf):
            return leaf
        # Factored moments (Adafactor) belong to a parameter but have not its shape.
        same = np.shape(leaf) == np.shape(param)
        return sharding if same else NamedSharding(mesh, PartitionSpec())

    return optax.tree_utils.tree_map_params(
        optimizer,
        like,
        state,
        placed,
        params,
        transform_non_params=lambda _: NamedSharding(mesh, PartitionSpec()),
        is_leaf=masked,
    )
