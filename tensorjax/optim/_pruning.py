"""Pruning to a size in one go: canonical gates, and cuts of the least important bond indices."""

import heapq
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check
from tensorjax._cores.contractions import join, times_axis
from tensorjax._cores.orthogonalization import right_orthogonal
from tensorjax._cores.unfoldings import tall
from tensorjax._placement import returned
from tensorjax._typing import PyTree, Tree
from tensorjax.optim._gate_updates import Gates
from tensorjax.optim._packed_arrays import padded, picked
from tensorjax.optim._sizes_and_ranks import (
    Measure,
    Polynomial,
    Term,
    check_flops,
    checked,
    terms,
)
from tensorjax.optim._stacked_layers import Stacks
from tensorjax.optim._tensorised_layers import Layer, check_concrete, flatten, gated

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
    """Returns the relative size below which a singular value counts as zero in pruning."""
    finest = min(jnp.finfo(dtype).eps for dtype in (*layer.dtypes, jnp.float32))
    return float(finest) * max(max(shape) for shape in layer.shapes)


def _living(values: np.ndarray, gate: np.ndarray, floor: float) -> np.ndarray:
    """Returns a bond's rank gate after pruning to canonical form: one above roundoff, else zero."""
    found = np.zeros(gate.shape)
    found[: len(values)] = values > floor * values[0]
    found[0] = 1.0
    return found


def prune(
    params: Tree,
    target: float,
    *,
    importance: PyTree | None = None,
    measure: Measure = "numbers",
    rows: int = 1,
) -> Tree:
    """Prunes ranks to a target size: zeroes gates of least importance per freed size first.

    Greedy: of all bonds of all layers, the index of least importance per unit of size that it frees
    is removed first, then the next one, with sizes updated. One index of every bond stays. `shrink`
    removes the dead indices from the arrays.

    With s = E[(∂L/∂g)²] over samples, ½ s g² is the rise of the loss without that index: to second
    order, where the gradient vanishes, with Fisher's matrix for the Hessian. It tells indices apart
    in the basis that `canonical` gives; gates are one there. Importance is not measured again as
    indices are removed, and indices that a removed neighbour has made linearly dependent stay.

    Args:
      params: any tree of parameters.
      target: size to reach, in the measure, of the tensorised layers: that of `size`.
      importance: a tree like ``params``, of which only what stands at the gates is read: s, the
        mean of squared gradients, not negative. None is one everywhere: gates² decide, as they can
        where a training has pressed on them, but not after `canonical`, which has them all one.
      measure: as of `size`.
      rows: as of `size`.

    Returns:
      The same tree, with more zeros in its gates. As it was, if it is small enough.

    Raises:
      ValueError: a target below that of rank one; no gates, or some that are negative, NaN or Inf;
        importance of other shapes, negative or NaN.
      TypeError: traced arrays.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import optim
      >>> layer = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": [jnp.ones(3)]}
      >>> worth = {"cores": [None, None], "gates": [jnp.array([0.5, 0.1, 0.2])]}
      >>> small = optim.prune(layer, 20, importance=worth)
      >>> print(small["gates"][0], optim.size(small))
      [1. 0. 1.] 18

    Source: Theis, Korshunova, Tejani, Huszár, "Faster gaze prediction with dense networks and
    Fisher pruning" (arXiv 1801.05787), there for channels and their operations; Molchanov, Mallya,
    Tyree, Frosio, Kautz, "Importance estimation for neural network pruning" (CVPR 2019, arXiv
    1906.10771). For TT-ranks, in a canonical basis, it is ours.
    """
    measure = checked(measure)
    rows = _check.integer("rows", rows, low=1)
    check_concrete("prune", (target,))
    if isinstance(target, bool) or not isinstance(target, numbers.Real) or not target >= 0:
        raise ValueError(f"target: expected a number that is not negative, got {target!r}")
    check_flops(params, measure)
    stacks = Stacks.of(params)
    params, importance = stacks.split(params), stacks.split(importance, "importance")
    layout = gated(params)
    _, leaves, structure = flatten(params)
    gates = {g: leaves[g] for g in layout.gates}
    check_concrete("prune", (list(gates.values()), importance))
    worth = _worth(params, gates, importance)
    # Of each bond the live indices, the least important last.
    left = [
        [np.argsort(-worth[g], kind="stable")[: int(np.sum(np.asarray(gates[g]) > 0))].tolist()
         for g in layer.gates]
        for layer in layout.layers
    ]  # fmt: skip
    _cut_greedily(
        left,
        [[worth[g] for g in layer.gates] for layer in layout.layers],
        [list(terms(layer, measure, rows)) for layer in layout.layers],
        target,
    )
    for layer, kept in zip(layout.layers, left, strict=True):
        for g, indices in zip(layer.gates, kept, strict=True):
            mask = np.zeros(np.shape(leaves[g]), bool)
            mask[indices] = True
            leaves[g] = jnp.where(mask, leaves[g], jnp.zeros((), jnp.result_type(leaves[g])))
    return stacks.join(jax.tree.unflatten(structure, leaves))


def _cut_greedily(
    left: list[list[list[int]]],
    worth: list[list[np.ndarray]],
    listed: list[list[Term]],
    target: float,
) -> None:
    """Removes the bond indices of least importance per freed size until a size is reached.

    Args:
      left: for each bond of each layer the indices kept, the least important last; changed here.
      worth: importance of every index, likewise.
      listed: for each layer its size as a polynomial of the ranks: (factor, bonds).
      target: size to reach.
    """

    def sized(layer: int, less: int | None = None) -> float:
        ranks = [len(kept) - (bond == less) for bond, kept in enumerate(left[layer])]
        if ranks and min(ranks) == 0:
            return 0
        return sum(c * math.prod(ranks[g] for g in bonds) for c, bonds in listed[layer])

    def cheapest(layer: int) -> list[tuple[float, int, int]]:
        """Returns (importance per freed size, layer, bond) of the cut to make next, if any."""
        now, found = sized(layer), []
        for bond, kept in enumerate(left[layer]):
            if len(kept) > 1:
                freed = now - sized(layer, bond)
                found.append((worth[layer][bond][kept[-1]] / max(freed, 1e-9), layer, bond))
        return sorted(found)[:1]

    size = sum(map(sized, range(len(left))))
    next_of = [cut for layer in range(len(left)) for cut in cheapest(layer)]
    heapq.heapify(next_of)
    while size > target:
        if not next_of:
            raise ValueError(
                f"target: expected at least {size}, the size at rank one, got {target}; take a "
                "larger one"
            )
        _, layer, bond = heapq.heappop(next_of)
        size -= sized(layer) - sized(layer, bond)
        left[layer][bond].pop()
        for cut in cheapest(layer):
            heapq.heappush(next_of, cut)


def _worth(params: Any, gates: dict[int, Any], importance: Any) -> dict[int, np.ndarray]:
    """Returns the importance of every rank gate, by which `prune` cuts; −1 for zero gates."""
    given: dict[Any, Any] = {}
    if importance is not None:
        paths, leaves, _ = flatten(importance)
        given = dict(zip(paths, leaves, strict=True))
    found = {}
    names, _, _ = flatten(params)
    for position, gate in gates.items():
        path, values = names[position], np.asarray(gate, np.float64)
        good = np.isfinite(values) & (values >= 0)
        if not good.all():
            raise ValueError(
                f"params: expected gates >= 0 and finite, got {values[~good][0]:.4g} in "
                f"{'/'.join(map(str, path))}; bring them into the cores by optim.canonical, "
                "or look for the step that made it NaN"
            )
        share = np.ones_like(values)
        if importance is not None:
            name = "/".join(map(str, path))
            if path not in given or np.shape(given[path]) != values.shape:
                got = np.shape(given[path]) if path in given else "nothing"
                raise ValueError(
                    f"importance: expected one number for each gate of {name}, shape "
                    f"{values.shape}, got {got}; pass a tree like params"
                )
            share = np.asarray(given[path], np.float64)
            if not (share >= 0).all():
                raise ValueError(f"importance: expected numbers >= 0, got {share.min()} at {name}")
        found[position] = np.where(values > 0, share * values**2, -1.0)
    return found


def doomed(
    gates: Gates,
    polynomial: Polynomial,
    values: jax.Array,
    live: jax.Array,
    threshold: Any,
    *,
    keep_one: bool,
    target: jax.Array | None,
    frozen: jax.Array,
    most: jax.Array | None = None,
) -> jax.Array:
    """Marks rank gates for pruning: those below the threshold, until a target size is met.

    Args:
      values: new gates, one vector.
      live: which of them were not dead before.
      threshold: gates at or below it may die.
      keep_one: whether the largest gate of a bond has to stay.
      target: size below which no further gate dies, the smallest dying first; None: all die.
      frozen: which of them must stay as they are.
      most: how many may die, with a target only.
    """
    may_die = live & ~frozen & (values <= threshold)
    if keep_one:
        may_die &= ~gates.largest(values, live)
    if target is not None:
        # Position of every gate that may die, in ascending order; the others come last.
        order = jnp.argsort(jnp.where(may_die, values, jnp.inf), stable=True)
        place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))

        def enough(count: jax.Array) -> jax.Array:
            left = gates.per_bond(live & ~(may_die & (place < count)))
            return polynomial.of_living(left) <= target

        count = _least(enough, jnp.sum(may_die), values.size)
        may_die &= place < (count if most is None else jnp.minimum(count, most.astype(count.dtype)))
    if not keep_one:  # nothing passes a layer with an empty bond: its other bonds go too
        alive = polynomial.living(gates.per_bond(live & ~may_die))
        may_die |= live & ~frozen & ~alive[gates.owners[gates.bonds]]
    return may_die


def _least(enough: Any, high: jax.Array, size: int) -> jax.Array:
    """Finds by bisection the fewest gates to prune for which ``enough`` is true, or ``high``."""

    def halved(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) // 2
        found = enough(middle)
        high = jnp.where(found, middle, high)
        return jnp.where(found, low, jnp.minimum(middle + 1, high)), high

    # A loop, so that the program holds one copy of the test.
    rounds = math.ceil(math.log2(size + 1))
    return jax.lax.fori_loop(0, rounds, halved, (jnp.zeros_like(high), high))[1]


def least_important(
    gates: Gates,
    polynomial: Polynomial,
    worth: jax.Array,
    live: jax.Array,
    frozen: jax.Array,
    *,
    budget: jax.Array,
    gate_size: float,
    most: jax.Array,
    together: np.ndarray,
) -> jax.Array:
    """Marks the least important rank gates to prune, down to a model size, under jit.

    The order is that of `prune`, on traced arrays, but that what an index loses is divided by the
    square root of what its whole bond is worth: half way, in logarithms, to the shares within a
    layer of LAMP (Lee et al., arXiv 2010.07611; there of magnitudes). One index of every bond
    stays. Bonds of the copies of a stacked layer lose an index each at once, as one array holds all
    copies, and only ranks that are the same for all make it smaller.

    Args:
      worth: importance of every gate.
      live: which of them are not dead.
      frozen: which of them must stay.
      budget: size at which it ends; −inf: all die that may.
      gate_size: that a live gate adds to the size.
      most: how many may die.
      together: (bonds,), a number for every bond, the same for those that are cut at once.
    """
    members = [np.flatnonzero(together == n).tolist() for n in range(together.max(initial=-1) + 1)]
    table = padded(members, together.size)

    def of_groups(x: jax.Array, reduce: Any, fill: float) -> jax.Array:
        if table.shape[1] == 1:
            return x
        return reduce(picked(jnp.append(x, jnp.asarray(fill, x.dtype)), table), 1)

    def candidates(alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        ranks = gates.per_bond(alive)
        may = alive & ~frozen & (ranks > 1)[gates.bonds]
        # Of copies of different ranks those of the largest are cut.
        open_ranks = jnp.where(gates.per_bond(may) > 0, ranks, 0.0)
        largest = of_groups(open_ranks, jnp.max, 0.0)[together]
        return ranks, may & (ranks == largest)[gates.bonds]

    def goes_on(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        alive, count = carry
        ranks, may = candidates(alive)
        size = polynomial.of_living(ranks) + gate_size * jnp.sum(ranks)
        return (size > budget) & (count < most) & jnp.any(may)

    def removed(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        alive, count = carry
        ranks, may = candidates(alive)
        # The size is linear in every rank: its slope is what one index less frees.
        freed = polynomial.slopes(ranks) + gate_size
        least = gates.largest(-worth, may)
        whole = gates.per_bond(jnp.where(alive, worth, 0.0))
        # Early in a training whole layers look useless to the loss of the samples at hand, and
        # would be cut to rank one. By shares of the bond alone, layers would all get equal ranks.
        lost = gates.per_bond(jnp.where(least, worth, 0.0)) / jnp.sqrt(jnp.maximum(whole, tiny))
        has = gates.per_bond(least) > 0
        lost = of_groups(lost, jnp.sum, 0.0)
        freed = of_groups(jnp.where(has, freed, 0.0), jnp.sum, 0.0)
        score = jnp.where(of_groups(has, jnp.any, False), lost / jnp.maximum(freed, 1e-9), jnp.inf)
        chosen = (jnp.arange(score.size) == jnp.argmin(score))[together]
        gone = least & chosen[gates.bonds]
        return alive & ~gone, count + jnp.sum(gone, dtype=jnp.float32)

    tiny = jnp.finfo(worth.dtype).tiny
    start = (live, jnp.zeros((), jnp.float32))
    return live & ~jax.lax.while_loop(goes_on, removed, start)[0]
