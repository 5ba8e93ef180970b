"""Canonical form of tensorised layers: every bond in the basis of its singular vectors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax._cores.contractions import join, times_axis
from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax._cores.unfoldings import tall
from tensorjax._placement import returned
from tensorjax._typing import Tree
from tensorjax.optim._layers.parameter_paths import flatten
from tensorjax.optim._layers.tensorised_layers import Layer, Stacks, check_concrete, gated

Arrays = list[np.ndarray]


def canonical(params: Tree) -> Tree:
    """Converts tensorised layers to canonical form: every bond in the basis of singular vectors.

    Training leaves the indices of a bond in any basis, so that what a layer does is spread over all
    of them and none can be spared. Here the gates D_k are first multiplied into the cores; a train
    is then brought to Vidal's form W = Γ_1 Λ_1 Γ_2 Λ_2 … Γ_d, in which cutting index a of bond k
    alone is an error of Λ_k[a] in Frobenius norm, and Λ goes to both sides evenly:

        G_k = Λ_{k−1}^{1/2} Γ_k Λ_k^{1/2},    D_k = 1.

    A Tucker layer gets orthonormal factors and an all-orthogonal core. In both, indices come in
    descending order of their singular values, and those of rounding error alone get a gate of zero.
    A CP layer has no such freedom and stays as it is, as do dense parameters and layers of which
    all gates of a bond are zero.

    Moments of an optimiser belong to the old basis: begin them anew. The first and the last core of
    a train take its norm between them.

    Args:
      params: any tree of parameters, whole on this host: here the work is done, in double
        precision. Layers may share all of their parameters, but not their gates alone.

    Returns:
      The same tree, with arrays of the same shapes and dtypes.

    Raises:
      ValueError: no gates; NaN or Inf in cores or gates, or where new cores exceed their dtype;
        cores of which some are complex and others are not.
      TypeError: traced arrays.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import optim
      >>> cores = [jnp.ones((1, 4, 2)), jnp.ones((2, 4, 1))]  # twice the same index
      >>> params = optim.canonical({"cores": cores, "gates": [jnp.ones(2)]})
      >>> print(params["gates"][0], float(abs(params["cores"][0][0, 0, 0] ** 2).round(3)))
      [1. 0.] 2.0

    Source: Vidal, "Efficient classical simulation of slightly entangled quantum computations"
    (PRL 91, 147902, 2003), eq. 6; De Lathauwer, De Moor, Vandewalle, "A multilinear singular value
    decomposition" (SIAM J. Matrix Anal. Appl. 21, 2000). That Λ goes to both sides is ours.
    """
    stacks = Stacks.of(params)
    params = stacks.split(params)
    layout = gated(params)
    _, leaves, structure = flatten(params)
    check_concrete("canonical", leaves)
    for layer in layout.layers:
        live = all(np.any(np.asarray(leaves[g]) != 0) for g in layer.gates)
        if not layer.gates or layer.kind == "cp" or not live:
            continue
        at = (*layer.cores, *layer.gates)
        if len({jnp.iscomplexobj(leaves[p]) for p in layer.cores}) > 1:
            raise ValueError(
                f"params: expected cores that are all real or all complex, got both in {layer.name}"
            )
        wide = [_wide(leaves[p], layer) for p in at]
        make = _train if layer.kind == "tt" else _tucker
        for place, new in zip(at, make(layer, wide[: len(layer.cores)], wide[len(layer.cores) :]),
                              strict=True):  # fmt: skip
            leaves[place] = _like(new, leaves[place], layer)
    return stacks.join(jax.tree.unflatten(structure, leaves))


def _wide(leaf: Any, layer: Layer) -> np.ndarray:
    found = np.asarray(leaf)
    dtype = np.complex128 if jnp.iscomplexobj(found) else np.float64
    found = found.astype(dtype)
    if not np.isfinite(found).all():
        raise ValueError(f"params: expected finite numbers, got NaN or Inf in {layer.name}")
    return found


def _like(new: np.ndarray, old: Any, layer: Layer) -> jax.Array:
    dtype = jnp.result_type(old)
    if new.size and np.abs(new).max() > jnp.finfo(dtype).max:
        raise ValueError(
            f"params: the canonical cores of {layer.name}, up to {np.abs(new).max():.3g}, exceed "
            f"{dtype}; take a wider one"
        )
    made = np.asarray(new, dtype)
    return returned(made, old) if isinstance(old, jax.Array) else jnp.asarray(made)


def _train(layer: Layer, cores: Arrays, gates: Arrays) -> Arrays:
    floor = _floor(layer)
    parts = [core.reshape(core.shape[0], -1, core.shape[-1]) for core in cores]
    for k, gate in enumerate(gates):
        parts[k] = parts[k] * gate
    parts, _ = right_orthogonal(parts, scale=False)
    values: Arrays = []
    for k in range(len(parts) - 1):  # columns orthonormal, from the left
        left, modes, _ = parts[k].shape
        u, s, v = np.linalg.svd(tall(parts[k]), full_matrices=False)
        parts[k] = u.reshape(left, modes, -1)
        parts[k + 1] = join(s[:, None] * v, parts[k + 1])
        values.append(s)
    scales = [np.sqrt(np.maximum(s, floor * s[0] if s[0] else 1.0)) for s in values]
    ends = [np.ones(1), *scales, np.ones(1)]
    made = []
    for k, part in enumerate(parts):  # Λ_{k−1} Γ_k, and Λ_{k−1} Γ_k at the right end too
        new = part / ends[k][:, None, None] * ends[k + 1]
        shape = cores[k].shape
        full = np.zeros((shape[0], part.shape[1], shape[-1]), new.dtype)
        full[: new.shape[0], :, : new.shape[2]] = new
        made.append(full.reshape(shape))
    return made + [_living(s, gate, floor) for s, gate in zip(values, gates, strict=True)]


def _tucker(layer: Layer, parts: Arrays, gates: Arrays) -> Arrays:
    floor = _floor(layer)
    core, *factors = parts
    made, live = [], []
    for k, (factor, gate) in enumerate(zip(factors, gates, strict=True)):
        q, r = np.linalg.qr((factor * gate).reshape(-1, gate.size))
        core = times_axis(core, r, k)
        made.append(q)
    for k, (factor, gate) in enumerate(zip(factors, gates, strict=True)):
        u, s, _ = np.linalg.svd(
            np.moveaxis(core, k, 0).reshape(core.shape[k], -1), full_matrices=False
        )
        core = times_axis(core, u.conj().T, k)
        full = np.zeros((factor.size // gate.size, gate.size), u.dtype)
        full[:, : u.shape[1]] = made[k] @ u
        made[k] = full.reshape(factor.shape)
        live.append(_living(s, gate, floor))
    whole = np.zeros(parts[0].shape, core.dtype)
    whole[tuple(slice(n) for n in core.shape)] = core
    return [whole, *made, *live]


def _floor(layer: Layer) -> float:
    """Returns the relative size below which a bond's singular value counts as zero."""
    finest = min(jnp.finfo(dtype).eps for dtype in (*layer.dtypes, jnp.float32))
    return float(finest) * max(max(shape) for shape in layer.shapes)


def _living(values: np.ndarray, gate: np.ndarray, floor: float) -> np.ndarray:
    """Returns a bond's new rank gate: one for singular values above roundoff, else zero."""
    found = np.zeros(gate.shape)
    found[: len(values)] = values > floor * values[0]
    found[0] = 1.0
    return found
