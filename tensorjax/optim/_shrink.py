"""Removal of zero gates: smaller parameters and optimiser moments, with the same outputs."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, _extras
from tensorjax._typing import Optimizer, PyTree, Tree
from tensorjax.optim._packed_arrays import take
from tensorjax.optim._sizes_and_ranks import checked_threshold
from tensorjax.optim._stacked_layers import Stacks
from tensorjax.optim._tensorised_layers import (
    Layer,
    Layout,
    Path,
    check_concrete,
    flatten,
    gated,
    parameter_of,
)

if TYPE_CHECKING:
    from flax import nnx

Cut = dict[int, np.ndarray]  # axis: indices kept


def shrink(
    params: Tree,
    opt_state: PyTree = None,
    *,
    threshold: float = 0.0,
    bucket: int = 1,
    keep_one: bool = True,
    fresh: Optimizer | None = None,
) -> tuple[Tree, Any]:
    """Shrinks cores, gates and optimiser moments: removes bond indices whose rank gate is zero.

    With I_k the live gates of bond k, G_k ← G_k[I_{k−1}, :, I_k] and D_k ← D_k[I_k]; every array of
    the optimiser's state that has the shape of a parameter, and its path at the end of its own, is
    cut likewise. The layers compute what they did before. Under inner optimisers that treat every
    number by itself (SGD, momentum, Adam, Lion, RMSProp, …) the next steps are those that would
    have followed; not where the shape or size of a whole array enters, as in `optax.adafactor`,
    `optax.lamb`, `optax.scale_by_param_block_rms`, `optax.clip_by_block_rms`, a norm clipped after
    Adam, or `optax.contrib.dog`. A compiled step compiles once more for the new shapes.

    Args:
      params: any tree of parameters.
      opt_state: state of any optimiser for them, of Optax or of an nnx.Optimizer; chains,
        partitions, masks and accumulators included.
      threshold: gates at or below it are dropped; 0 drops those that `rank_adaptive` has pruned,
        more changes the layers.
      bucket: kept ranks are rounded up to a multiple of it, by dead indices, to bound the number of
        shapes that a training compiles for; never above the present rank.
      keep_one: whether one index stays where no gate is live. If not, all bonds of that layer get
        rank zero: it is its bias alone.
      fresh: optimiser whose ``init`` gives new moments where the old ones cannot be cut, because
        they do not have the shape of their parameter (Adafactor's factors, GaLore's projections,
        `optax.sm3`, `optax.flatten`); then all moments of that parameter are new.

    Returns:
      (parameters, state) in the same containers; the state is None if none was given. Arrays that
      have nothing to drop are those that were given: donating either donates both. A bond that
      shrinks is no longer sharded, since its new length need not divide the devices.

    Raises:
      ValueError: no gates; gates that are negative, unless above the threshold, or NaN; moments
        that cannot be cut (named), without ``fresh``; a threshold that is NaN.
      TypeError: traced arrays.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from tensorjax import optim
      >>> gates = [jnp.array([1.0, 0.0, 0.2])]
      >>> params = {"cores": [jnp.ones((1, 4, 3)), jnp.ones((3, 5, 1))], "gates": gates}
      >>> params, state = optim.shrink(params, optax.adam(1e-3).init(params))
      >>> params["cores"][1].shape, state[0].mu["cores"][1].shape
      ((2, 5, 1), (2, 5, 1))

    Checkpoints: save (params, opt_state) after a shrink as ever. The shapes are in the checkpoint,
    the containers of the state are not: take the first from its metadata, and the second from the
    optimiser. With an `orbax.checkpoint.StandardCheckpointer`, and parameters in plain containers
    (`shrink_model` says how a model and its nnx.Optimizer are kept)::

        saved = checkpointer.metadata(path).item_metadata.tree[0]
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), saved)
        like = (like, jax.eval_shape(optimizer.init, like))
        params, opt_state = checkpointer.restore(path, like)

    It refuses arrays without elements, which ``keep_one=False`` may leave; take such layers out.

    Source: Yang et al., "CoMERA" (arXiv 2405.14377), whose released program keeps the dead indices.
    """
    _check.integer("bucket", bucket, low=1)
    threshold = checked_threshold(threshold)
    _check.flag("keep_one", keep_one)
    if fresh is not None and not callable(getattr(fresh, "init", None)):
        got = _check.short(fresh)
        raise TypeError(f"fresh: expected an Optax transformation, got {got}")
    stacks = Stacks.of(params)
    params = stacks.split(params)
    layout = gated(params)
    paths, leaves, structure = flatten(params)
    check_concrete("shrink", (leaves, opt_state))
    cuts = _cuts(layout, leaves, threshold, bucket, keep_one, stacks.siblings(layout))
    small = [_cut(leaf, cuts.get(k, {})) for k, leaf in enumerate(leaves)]
    params = jax.tree.unflatten(structure, small)
    if opt_state is None:
        return stacks.join(params), None
    known = {path: (leaves[k], _lossy(leaves[k], cuts.get(k, {}))) for k, path in enumerate(paths)}
    # Traced, so that targets are not held against the smaller size.
    new = None if fresh is None else jax.jit(fresh.init)(params)
    return stacks.join(params), _shrink_state(opt_state, known, new)


def _cuts(
    layout: Layout,
    leaves: list[Any],
    threshold: float,
    bucket: int,
    keep_one: bool,
    siblings: list[list[int]],
) -> dict[int, Cut]:
    """Returns, for every core and gate to be shrunk, the indices of each axis that remain."""
    cuts: dict[int, Cut] = {}
    found = [_kept(layer, leaves, threshold, bucket, keep_one) for layer in layout.layers]
    for copies in siblings:
        for number, kept in enumerate(
            _evened([found[k] for k in copies], layout.layers[copies[0]])
        ):
            found[copies[number]] = kept
    for layer, kept in zip(layout.layers, found, strict=True):
        for gate, bonds, indices in zip(layer.gates, layer.bonds, kept, strict=True):
            cuts[gate] = {0: indices}
            for core, axis in bonds:
                cuts.setdefault(layer.cores[core], {})[axis] = indices
    return cuts


def _kept(
    layer: Layer, leaves: list[Any], threshold: float, bucket: int, keep_one: bool
) -> list[np.ndarray]:
    live = []
    for number, gate in enumerate(np.asarray(leaves[g]) for g in layer.gates):
        live.append(gate > threshold)
        bad = gate[~live[-1] & ~(gate >= 0)]
        if bad.size:
            raise ValueError(
                f"params: expected gates >= 0, got {bad[0]:.4g} in {layer.name}/gates/{number}, "
                "which is not dead; take absolute values, and the signs into a core beside it, or "
                "look for the step that made it NaN"
            )
    if not keep_one and not all(mask.any() for mask in live):
        return [np.arange(0)] * len(live)
    kept = []
    for mask in live:
        count = max(int(mask.sum()), min(1, mask.size))
        count = min(-(-count // bucket) * bucket, mask.size)
        # The live ones, then the first of the dead, in their old order.
        kept.append(np.sort(np.argsort(~mask, kind="stable")[:count]))
    return kept


def _evened(copies: list[list[np.ndarray]], layer: Layer) -> list[list[np.ndarray]]:
    """Shrinks a stacked layer's copies to equal ranks: keeps some indices of zero gates."""
    most = [max(map(len, kept)) for kept in zip(*copies, strict=True)]
    out = []
    for copy in copies:
        pairs = zip(copy, most, layer.ranks, strict=True)
        spare = [(kept, n, np.setdiff1d(np.arange(full), kept)) for kept, n, full in pairs]
        out.append([np.sort(np.r_[kept, dead[: n - len(kept)]]) for kept, n, dead in spare])
    return out


def _lossy(x: Any, cut: Cut) -> Cut:
    """Selects the axes of an array that are to be shrunk, as pruned bond indices are removed."""
    return {axis: kept for axis, kept in cut.items() if len(kept) < x.shape[axis]}


def _cut(x: Any, cut: Cut) -> Any:
    for axis, indices in _lossy(x, cut).items():
        x = take(jnp.asarray(x), indices, axis)
    return x


def _shrink_state(state: Any, known: dict[Path, tuple[Any, Cut]], fresh: Any) -> Any:
    """Shrinks the arrays of an optimiser's state: removes pruned bond indices."""
    paths, leaves, structure = flatten(state)
    owners = [_owner(path, known) for path in paths]
    if fresh is None:
        whole = sum(np.size(param) for param, _ in known.values())
        out = [
            _moment(path, leaf, owner, known, whole)
            for path, leaf, owner in zip(paths, leaves, owners, strict=True)
        ]
        return jax.tree.unflatten(structure, out)
    new = jax.tree.leaves(fresh)
    if len(new) != len(leaves):
        raise ValueError(
            f"fresh: expected the optimiser that made opt_state, of {len(leaves)} arrays, got one "
            f"whose state has {len(new)}"
        )
    small = [_matching(leaf, owner, known) for leaf, owner in zip(leaves, owners, strict=True)]
    fits = [np.shape(a) == np.shape(b) for a, b in zip(small, new, strict=True)]
    # Moments of one parameter belong together: all are kept, or none.
    lost = {owner for owner, fit in zip(owners, fits, strict=True) if owner and not fit}
    out = [
        a if fit and owner not in lost else b
        for a, b, fit, owner in zip(small, new, fits, owners, strict=True)
    ]
    return jax.tree.unflatten(structure, out)


def _owner(path: Path, known: dict[Path, tuple[Any, Cut]]) -> Path | None:
    """Finds the parameter of an array of an optimiser's state that is to be shrunk, by its path."""
    found = parameter_of(path, known)
    if found is not None:
        return found
    for length in range(len(path) - 1, 0, -1):
        for start in range(len(path) - length):
            found = path[start : start + length]
            if found in known and known[found][1]:
                return found
    return None


def _matching(leaf: Any, owner: Path | None, known: dict[Path, tuple[Any, Cut]]) -> Any:
    """Shrinks an optimiser's array if it has its parameter's shape."""
    if owner is None or np.shape(leaf) != np.shape(known[owner][0]):
        return leaf
    return _cut(leaf, known[owner][1])


def _moment(
    path: Path, leaf: Any, owner: Path | None, known: dict[Path, tuple[Any, Cut]], whole: int
) -> Any:
    """Shrinks an optimiser moment; raises ValueError for unknown layouts."""
    expected = None
    if owner is not None and known[owner][1]:
        shape = np.shape(known[owner][0])
        # One number for a whole parameter does not depend on its shape.
        if np.size(leaf) > 1 and (np.shape(leaf) != shape or path[-len(owner) :] != owner):
            expected = f"moments of the shape of their parameter, {shape}"
        elif "projector" in path:  # of GaLore: its axes are not those of the parameter
            expected = "no projections"
    elif owner is None and np.shape(leaf) == (whole,) and whole > 1:  # optax.flatten
        expected = "moments of each parameter, not of all of them in one array"
    if expected is None:
        return _matching(leaf, owner, known)
    raise ValueError(
        f"opt_state: expected {expected}, got {np.shape(leaf)} at {'/'.join(map(str, path))}; pass "
        "fresh=optimizer to start such moments anew"
    )


def shrink_model(
    model: object,
    optimizer: "nnx.Optimizer[Any] | None" = None,
    *,
    threshold: float = 0.0,
    bucket: int = 1,
    keep_one: bool = True,
    fresh: bool = False,
) -> None:
    """Shrinks a Flax NNX module and its `nnx.Optimizer` in place: removes pruned bond indices.

    Functions under `nnx.jit` compile once more, for the new shapes.

    Checkpoints: a model and an optimiser made anew have the containers, the checkpoint has the
    arrays and their shapes. With an `orbax.checkpoint.StandardCheckpointer`::

        checkpointer.save(path, jax.tree.leaves(nnx.state((model, optimizer))))

        model, optimizer = ...  # as at the start of the training
        saved = list(checkpointer.metadata(path).item_metadata.tree)
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in saved]
        structure = jax.tree.structure(nnx.state((model, optimizer)))
        arrays = checkpointer.restore(path, like)
        nnx.update((model, optimizer), jax.tree.unflatten(structure, arrays))

    Args:
      model: nnx.Module with tensorised layers.
      optimizer: nnx.Optimizer of it, or None.
      threshold: as of `shrink`.
      bucket: as of `shrink`.
      keep_one: as of `shrink`.
      fresh: whether moments that cannot be cut are started anew.

    Raises:
      ValueError: as `shrink`, and where two layers share their gates.
      TypeError: traced arrays.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn, optim
      >>> layer = nn.TTLinear(8, 8, rank=3, order=1, rngs=nnx.Rngs(0))
      >>> layer.gates[0][...] = jnp.array([1.0, 0.0, 0.5])
      >>> optim.shrink_model(layer)
      >>> layer.ranks
      (2,)

    Source: as `shrink`.
    """
    with _extras.needed_by("tensorjax.optim.shrink_model"):
        from flax import nnx  # only here: optim itself works on any tree

    owners: dict[int, tuple[str, set[int]]] = {}
    for path, node in nnx.iter_graph(model):
        if not isinstance(node, nnx.Module):
            continue
        name = "/".join(map(str, path)) or "(top)"
        held = [
            jax.tree.leaves(getattr(node, part, ()), is_leaf=lambda x: isinstance(x, nnx.Variable))
            for part in ("gates", "cores", "core", "factors")
        ]
        every = {id(leaf) for leaves in held for leaf in leaves}
        for gate in held[0]:
            owner, parts = owners.setdefault(id(gate), (name, every))
            if parts != every:  # tied layers share all of them
                raise ValueError(
                    f"model: expected gates of their own in every layer, got those of {owner} in "
                    f"{name} too; share all cores and gates, or whole layers"
                )
    state = nnx.state(model, nnx.Param if optimizer is None else optimizer.wrt)
    moments = None if optimizer is None else optimizer.opt_state
    small, moments = shrink(
        state, moments, threshold=threshold, bucket=bucket, keep_one=keep_one,
        fresh=optimizer.tx if fresh and optimizer is not None else None,
    )  # fmt: skip
    nnx.update(model, small)
    if optimizer is not None:
        nnx.update(optimizer.opt_state, nnx.state(moments))
