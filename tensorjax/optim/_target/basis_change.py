"""Change of basis of the bonds of gated layers under jit: cores, gates and optimiser moments.

Every bond of a train or a Tucker layer goes into the basis of its singular vectors, as `canonical`
has it, with shapes that stay: dead indices are zeros behind the live ones. With the layer unfolded
at a bond as L D R, and triangles of QR ρ_L of L D and ρ_R of R, so that ρ_L ρ_R = U Λ Vᴴ, the new
parts are L D X and X⁻¹ R with

    X = ρ_R V Λ^{−1/2},    X⁻¹ = Λ^{−1/2} Uᴴ ρ_L.

Gradients and averages of them go by the inverse transpose, second moments by its squared entries,
as for entries that are independent.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._cores.contractions import absorb, times_axis, times_right
from tensorjax._cores.unfoldings import tall, wide
from tensorjax.linalg._arrays import adjoint, epsilon, matmul
from tensorjax.linalg._qr import after, triangle
from tensorjax.optim._explicit_sharding import _whole, like, widest
from tensorjax.optim._tensorised_leaves import Bond, Layer, Layout, Path, flatten, parameter_of

# Fields of Optax' states that hold parameters, not gradients: of schedule-free optimisers, DoG and
# COCOB, Prodigy, MADGRAD, Mechanic and SAM. They go where the parameters go.
PARAMETERS = frozenset({"z", "init_params", "init_particles", "params0", "x0", "cache"})


@dataclasses.dataclass(frozen=True)
class Change:
    """New basis of one bond of a layer: matrices for its cores, and its new gate.

    Attributes:
      moves: for each (core, axis) of the bond, the matrices (new, old) for that axis of parameters
        and of gradients.
      live: (new,), the gate in the new basis, zeros and ones.
    """

    moves: dict[Bond, tuple[jax.Array, jax.Array]]
    live: jax.Array


class _Sequence:
    """Chain of matrix factorisations that XLA runs one after another, never side by side."""

    def __init__(self, done: tuple[jax.Array, ...] = ()) -> None:
        self.done = done

    def triangle(self, a: jax.Array) -> jax.Array:
        """Computes a square r with rᴴ r = aᴴ a from the QR factorisation of a."""
        r = triangle(after(a, *self.done))
        self.done = (r,)
        return jnp.pad(r, ((0, a.shape[1] - r.shape[0]), (0, 0)))

    def svd(self, a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Computes the singular value decomposition of a square matrix."""
        found = linalg.svd(after(a, *self.done))
        self.done = (found[1],)
        return found  # type: ignore[return-value]


def changes(
    layer: Layer, cores: list[jax.Array], gates: list[jax.Array], order: _Sequence
) -> list[Change]:
    """Computes the basis of singular vectors of every bond of a TT or Tucker layer."""
    with jax.default_matmul_precision("highest"):
        dtype = widest(jnp.float32, *cores)
        cores = [core.astype(dtype) for core in cores]
        gates = [gate.astype(dtype) for gate in gates]
        sides = _train_sides if layer.kind == "tt" else _tucker_sides
        lefts, rights = zip(*sides(cores, gates, order), strict=True)
        # Of a Tucker layer the factor is on the left, and the core is named first.
        ends = [bonds if layer.kind == "tt" else bonds[::-1] for bonds in layer.bonds]
        return _changes(ends, gates, lefts, rights, order)


def _train_sides(
    cores: list[jax.Array], gates: list[jax.Array], order: _Sequence
) -> list[tuple[jax.Array, jax.Array]]:
    """Computes the triangular factors left and right of every bond of a TT layer."""
    parts = [core.reshape(core.shape[0], -1, core.shape[-1]) for core in cores]
    lefts: list[jax.Array] = []
    for part, gate in zip(parts, gates, strict=False):
        scaled = part * gate[None, None, :]
        lefts.append(order.triangle(tall(absorb(lefts[-1], scaled) if lefts else scaled)))
    rights: list[jax.Array] = []
    for k in range(len(parts) - 1, 0, -1):
        scaled = parts[k] if k == len(gates) else parts[k] * gates[k][None, None, :]
        scaled = times_right(scaled, rights[-1]) if rights else scaled
        rights.append(adjoint(order.triangle(adjoint(wide(scaled)))))
    return list(zip(lefts, rights[::-1], strict=True))


def _tucker_sides(
    cores: list[jax.Array], gates: list[jax.Array], order: _Sequence
) -> list[tuple[jax.Array, jax.Array]]:
    """Computes the triangular factors on both sides of every bond of a Tucker layer."""
    core, *factors = cores
    lefts = [
        order.triangle(tall(f) * gate[None, :]) for f, gate in zip(factors, gates, strict=True)
    ]
    found = []
    for k, left in enumerate(lefts):
        rest = core
        for j, other in enumerate(lefts):
            rest = rest if j == k else times_axis(rest, other, j)
        rows = jnp.moveaxis(rest, k, 0).reshape(rest.shape[k], -1)
        found.append((left, adjoint(order.triangle(adjoint(rows)))))
    return found


def _changes(
    ends: list[tuple[Bond, ...]], gates: list[jax.Array], lefts: Sequence[jax.Array],
    rights: Sequence[jax.Array], order: _Sequence,
) -> list[Change]:  # fmt: skip
    """Returns the new bases of a layer's bonds, from their gates and triangles (ρ_L, ρ_R).

    All bonds are one batch, padded by dead indices to the largest rank, as every operation on
    each alone is a kernel to compile.
    """
    most = max(gate.size for gate in gates)
    sizes = np.array([gate.size for gate in gates])[:, None]

    def padded(arrays: Sequence[jax.Array]) -> jax.Array:
        return jnp.stack([jnp.pad(x, [(0, most - n) for n in x.shape]) for x in arrays])

    gate, left, right = padded(gates), padded(lefts), padded(rights)
    alive = gate != 0
    u, s, v = order.svd(matmul(left, right))
    kept = jnp.arange(most)[None] < jnp.sum(alive, 1, keepdims=True)
    # What is rounding error, as where one side is still zero, has no basis: the bond stays.
    share = jnp.asarray(epsilon(s.dtype) * sizes, s.dtype)
    floor = share * jnp.max(s, 1, keepdims=True, initial=0.0)
    fits = jnp.isfinite(s).all(1, keepdims=True)
    fits &= jnp.min(jnp.where(kept, s, jnp.inf), 1, keepdims=True) > floor
    scale = jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept & fits, s, 1.0)), 0.0).astype(gate.dtype)
    stay = (alive[:, :, None] & np.eye(most, dtype=bool)[None]).astype(gate.dtype)
    whole = fits[..., None]
    x = jnp.where(whole, matmul(right, adjoint(v)) * scale[:, None, :], stay)  # (…, old, new)
    inverse = jnp.where(whole, scale[..., None] * matmul(adjoint(u), left), stay)
    # ρ_L has the gate in it already, and X⁻¹ belongs to L D X: the gate goes to the left.
    gate_inverse = jnp.where(alive, 1 / jnp.where(alive, gate, 1.0), 0.0)
    below = jnp.swapaxes(gate[..., None] * x, 1, 2), inverse * gate_inverse[:, None, :]
    above = inverse, jnp.swapaxes(x, 1, 2)
    live = jnp.where(fits, kept, alive)
    return [
        Change(
            {
                end: (parameters[k, :n, :n], gradients[k, :n, :n])
                for end, (parameters, gradients) in zip(both, (below, above), strict=True)
            },
            live[k, :n],
        )
        for k, (n, both) in enumerate(zip(sizes[:, 0], ends, strict=True))
    ]


def _moved(
    layer: Layer, found: list[Change], core: int, values: jax.Array, kinds: list[str]
) -> jax.Array:
    """Transforms a core and its optimiser moments to the new bases of its bonds.

    All go in one batch of products, as each product is a kernel to compile.

    Args:
      layer: the layer.
      found: its changes.
      core: position in the layer.
      values: (arrays, …), the arrays.
      kinds: what they are, as `_kind` says.
    """
    nothing_negative = jnp.all(values.real >= 0, axis=range(1, values.ndim))
    squares = np.array([k == "square" for k in kinds]) | (
        nothing_negative & np.array([k == "unknown" for k in kinds])
    )
    parameters = np.array([k == "parameter" for k in kinds])
    for change in found:
        for (position, axis), (of_parameters, of_gradients) in change.moves.items():
            if position == core:
                squared = (jnp.abs(of_gradients) ** 2).astype(of_gradients.dtype)
                matrices = jnp.where(squares[:, None, None], squared[None], of_gradients[None])
                matrices = jnp.where(parameters[:, None, None], of_parameters[None], matrices)
                dtype = widest(matrices, values)
                values = jax.vmap(times_axis, (0, 0, None))(
                    values.astype(dtype), matrices.astype(dtype), axis
                )
    return values


def _kind(value: jax.Array, parameter: jax.Array, held: bool) -> str:
    """Returns what a moment holds: "parameter", "gradient" or "square"; "unknown" if undecided.

    Those which are real beside complex parameters are squares. Of the others those are taken for
    squares, whatever their name, which have no negative entry: "unknown" before the data is seen.
    """
    if held:
        return "parameter"
    if jnp.iscomplexobj(value):
        return "gradient"
    return "square" if jnp.iscomplexobj(parameter) else "unknown"


def moments_of(layout: Layout, leaves: list[Any], state: Any) -> list[tuple[int, int, bool]]:
    """Lists the arrays of an optimiser's state that belong to cores or gates, with these.

    Arrays of the state of other shapes than their parameter's, such as those of `optax.adafactor`,
    are left out: they stay as they are, and follow by their own decay.
    """
    members = {k for layer in layout.layers for k in (*layer.cores, *layer.gates)}
    known: dict[Path, int] = {layout.paths[k]: k for k in members}
    paths, arrays, _ = flatten(state)
    out = []
    for n, (path, array) in enumerate(zip(paths, arrays, strict=True)):
        owner = parameter_of(path, known)
        k = None if owner is None else known[owner]
        if k is None or jnp.shape(array) != jnp.shape(leaves[k]):
            continue
        if not jnp.issubdtype(jnp.result_type(array), jnp.inexact):
            continue
        before: tuple[Hashable, ...] = path[: len(path) - len(layout.paths[k])]
        out.append((n, k, not PARAMETERS.isdisjoint(before)))
    return out


def _gates_moved(change: Change, values: jax.Array, held: list[bool]) -> jax.Array:
    """Returns gate and gate moments after a change of basis: ones, and means of moments.

    Args:
      change: of its bond.
      values: (arrays, indices).
      held: which of them hold parameters, and become what the gate is.
    """
    live = change.live.astype(values.dtype)
    mean = jnp.sum(values, 1, keepdims=True) / jnp.maximum(jnp.sum(live), 1)
    mean = jnp.where(jnp.all(values >= 0, 1, keepdims=True), mean, jnp.zeros_like(mean))
    return live[None] * jnp.where(np.array(held)[:, None], jnp.ones_like(mean), mean)


def changed(
    layout: Layout,
    leaves: list[Any],
    moving: list[tuple[int, int, bool]],
    moments: list[jax.Array],
    stays: list[jax.Array],
) -> tuple[dict[int, jax.Array], list[jax.Array]]:
    """Transforms all bonds to the basis of their singular vectors, and optimiser moments too.

    Layers of the same shapes are one loop, so that the program holds one copy of the change.

    Args:
      layout: of the parameters.
      leaves: the parameters.
      moving: what `moments_of` lists.
      moments: these arrays of the optimiser's state.
      stays: of each layer, whether it stays as it is.

    Returns:
      (new cores and gates by position, new moments).
    """
    new: dict[int, jax.Array] = {}
    out = list(moments)
    done: tuple[jax.Array, ...] = ()
    for numbers, held in _alike(layout, leaves, moving, moments):
        parts = [_parts(layout.layers[n]) for n in numbers]
        owned = [[[m for m, (_, k, _) in enumerate(moving) if k == p] for p in each]
                 for each in parts]  # fmt: skip
        arrays = [
            [[_whole(jnp.asarray(leaves[p])), *(_whole(moments[m]) for m in ms)]
             for p, ms in zip(each, of_each, strict=True)]
            for each, of_each in zip(parts, owned, strict=True)
        ]  # fmt: skip
        found, done = _each_changed(
            layout.layers[numbers[0]], held, arrays, [stays[n] for n in numbers], done
        )
        for each, of_each, values in zip(parts, owned, found, strict=True):
            for p, ms, (value, *moved) in zip(each, of_each, values, strict=True):
                new[p] = like(value, leaves[p])
                for m, moment in zip(ms, moved, strict=True):
                    out[m] = like(moment, moments[m])
    return new, out


def _parts(layer: Layer) -> tuple[int, ...]:
    return (*layer.cores, *layer.gates)


def _alike(
    layout: Layout, leaves: list[Any], moving: list[tuple[int, int, bool]], moments: list[Any]
) -> list[tuple[list[int], list[list[bool]]]]:
    """Groups the layers that change basis by kind, shapes and dtypes.

    Returns:
      (positions of the layers, whether the moments of each part hold parameters) of each group.
    """
    groups: dict[Any, tuple[list[int], list[list[bool]]]] = {}
    for number, layer in enumerate(layout.layers):
        if layer.kind == "cp" or not layer.gates:
            continue
        parts, held, dtypes = _parts(layer), [], []
        for p in parts:
            own = [(m, h) for m, (_, k, h) in enumerate(moving) if k == p]
            held.append([h for _, h in own])
            dtypes.append([jnp.result_type(x) for x in (leaves[p], *(moments[m] for m, _ in own))])
        key = (layer.kind, layer.shapes, layer.ranks, repr(held), repr(dtypes))
        groups.setdefault(key, ([], held))[0].append(number)
    return [*groups.values()]


def _each_changed(
    layer: Layer, held: list[list[bool]], arrays: list[Any], stays: list[jax.Array],
    done: tuple[jax.Array, ...],
) -> tuple[list[Any], tuple[jax.Array, ...]]:  # fmt: skip
    """Changes the bases of several layers of equal shapes in one loop.

    Args:
      layer: one of them.
      held: for each part, whether its moments hold parameters.
      arrays: for each layer and part, the parameter and its moments.
      stays: of each layer, whether it stays as it is.
      done: arrays to wait for.
    """
    if len(arrays) == 1:
        order = _Sequence(done)
        return [_layer_changed(layer, held, arrays[0], stays[0], order)], order.done
    zero = jnp.zeros((1,), jnp.float32)

    def body(last: jax.Array, given: Any) -> tuple[jax.Array, Any]:
        order = _Sequence((last,))
        values, rests = given
        out = _layer_changed(layer, held, values, rests, order)
        return after(zero, *order.done), out

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *arrays)
    last, found = jax.lax.scan(body, after(zero, *done), (stacked, jnp.stack(stays)))
    return [jax.tree.map(lambda x, n=n: x[n], found) for n in range(len(arrays))], (last,)


def _layer_changed(
    layer: Layer, held: list[list[bool]], arrays: list[list[jax.Array]], stays: jax.Array,
    order: _Sequence,
) -> list[list[jax.Array]]:  # fmt: skip
    """Changes the bases of one layer: returns parameters and moments, with gates 0 or 1."""
    count = len(layer.cores)
    found = changes(layer, [x[0] for x in arrays[:count]], [x[0] for x in arrays[count:]], order)
    out = []
    for part, (values, of_values) in enumerate(zip(arrays, held, strict=True)):
        dtype, own = widest(*values), [True, *of_values]
        old = jnp.stack([value.astype(dtype) for value in values])
        if part < count:
            kinds = [_kind(x, values[0], h) for x, h in zip(values, own, strict=True)]
            new = _moved(layer, found, part, old, kinds)
        else:
            new = _gates_moved(found[part - count], old, own)
        new = jnp.where(stays, old.astype(new.dtype), new)
        out.append([_cast(x, value.dtype) for x, value in zip(new, values, strict=True)])
    return out


def _cast(x: jax.Array, dtype: Any) -> jax.Array:
    return (x if jnp.issubdtype(dtype, jnp.complexfloating) else x.real).astype(dtype)
