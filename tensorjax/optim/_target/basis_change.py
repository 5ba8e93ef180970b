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

from tensorjax import linalg
from tensorjax._cores.unfoldings import absorb, tall, times_axis, times_right, wide
from tensorjax.linalg._arrays import adjoint, epsilon, matmul
from tensorjax.linalg._qr import after, triangle
from tensorjax.optim._explicit_sharding import _whole, widest
from tensorjax.optim._tensorised_leaves import Bond, Layer, Layout, Path, flatten

# Fields of Optax' states that hold parameters, not gradients: of schedule-free optimisers, DoG and
# COCOB, Prodigy, MADGRAD and Mechanic. They go where the parameters go.
PARAMETERS = frozenset({"z", "init_params", "init_particles", "params0", "x0"})


@dataclasses.dataclass(frozen=True)
class Change:
    """New basis of one bond.

    Attributes:
      moves: for each (core, axis) of the bond, the matrices (new, old) for that axis of parameters
        and of gradients.
      live: (new,), the gate in the new basis, zeros and ones.
    """

    moves: dict[Bond, tuple[jax.Array, jax.Array]]
    live: jax.Array


class _Sequence:
    """Factorisations one after the other: side by side, batches of them can stop XLA on a CPU."""

    def __init__(self) -> None:
        self.done: tuple[jax.Array, ...] = ()

    def triangle(self, a: jax.Array) -> jax.Array:
        """Returns r of the QR of a, square by rows of zeros, so that rᴴ r = aᴴ a."""
        r = triangle(after(a, *self.done))
        self.done = (r,)
        return jnp.pad(r, ((0, a.shape[1] - r.shape[0]), (0, 0)))

    def svd(self, a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the singular value decomposition of a square matrix."""
        found = linalg.svd(after(a, *self.done))
        self.done = (found[1],)
        return found  # type: ignore[return-value]


def changes(layer: Layer, leaves: Sequence[Any], order: _Sequence) -> list[Change]:
    """Computes the new basis of every bond of a layer; none for CP, which has no other basis."""
    if layer.kind == "cp" or not layer.gates:
        return []
    with jax.default_matmul_precision("highest"):
        dtype = widest(jnp.float32, *(leaves[k] for k in layer.cores))
        cores = [_whole(jnp.asarray(leaves[k])).astype(dtype) for k in layer.cores]
        gates = [_whole(jnp.asarray(leaves[k])).astype(dtype) for k in layer.gates]
        sides = _train_sides if layer.kind == "tt" else _tucker_sides
        found = []
        for bonds, gate, (left, right) in zip(
            layer.bonds, gates, sides(cores, gates, order), strict=True
        ):
            # Of a Tucker layer the factor is on the left, and the core is named first.
            ends = bonds if layer.kind == "tt" else bonds[::-1]
            found.append(_change(ends, gate, left, right, order))
        return found


def _train_sides(
    cores: list[jax.Array], gates: list[jax.Array], order: _Sequence
) -> list[tuple[jax.Array, jax.Array]]:
    """Returns (ρ_L, ρ_R) of every bond of a train."""
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
    """Returns (ρ_L, ρ_R) of every bond of a Tucker layer, its factor on the left."""
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


def _change(
    ends: tuple[Bond, ...], gate: jax.Array, left: jax.Array, right: jax.Array, order: _Sequence
) -> Change:
    alive, count = gate != 0, jnp.sum(gate != 0)
    u, s, v = order.svd(matmul(left, right))
    kept = jnp.arange(gate.size) < count
    # What is rounding error, as where one side is still zero, has no basis: the bond stays.
    floor = epsilon(s.dtype) * gate.size * jnp.max(s, initial=0.0)
    fits = jnp.isfinite(s).all() & (jnp.min(jnp.where(kept, s, jnp.inf)) > floor)
    scale = jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept & fits, s, 1.0)), 0.0).astype(gate.dtype)
    stay = jnp.diag(alive).astype(gate.dtype)
    x = jnp.where(fits, matmul(right, adjoint(v)) * scale[None, :], stay)  # (old, new)
    inverse = jnp.where(fits, scale[:, None] * matmul(adjoint(u), left), stay)
    # ρ_L has the gate in it already, and X⁻¹ belongs to L D X: the gate goes to the left.
    gate_inverse = jnp.where(alive, 1 / jnp.where(alive, gate, 1.0), 0.0)
    return Change(
        {
            ends[0]: ((gate[:, None] * x).T, inverse * gate_inverse[None, :]),
            ends[1]: (inverse, x.T),
        },
        jnp.where(fits, kept, alive),
    )


def moved(
    layer: Layer, found: list[Change], core: int, value: jax.Array, *, kind: str
) -> jax.Array:
    """Returns an array like a core in the new basis; kind: "parameter", "gradient" or "square"."""
    out = _whole(value)
    for change in found:
        for (position, axis), matrices in change.moves.items():
            if position == core:
                matrix = matrices[kind != "parameter"]
                matrix = jnp.abs(matrix) ** 2 if kind == "square" else matrix
                dtype = widest(matrix, out)
                out = times_axis(out.astype(dtype), matrix.astype(dtype), axis)
    return out


def parameters_moved(
    layout: Layout, found: list[list[Change]], leaves: list[Any]
) -> dict[int, jax.Array]:
    """Returns cores and gates in the new basis by position among the leaves; gates are 0 or 1."""
    out = {}
    for layer, each in zip(layout.layers, found, strict=True):
        if not each:
            continue
        for core, k in enumerate(layer.cores):
            new = moved(layer, each, core, jnp.asarray(leaves[k]), kind="parameter")
            out[k] = new.astype(jnp.result_type(leaves[k]))
        for k, change in zip(layer.gates, each, strict=True):
            out[k] = change.live.astype(jnp.result_type(leaves[k]))
    return out


def moments_of(layout: Layout, leaves: list[Any], state: Any) -> list[tuple[int, int, bool]]:
    """Lists (position in the state, position of its parameter, whether it holds parameters).

    Arrays of the state of other shapes than their parameter's, such as those of `optax.adafactor`,
    are left out: they stay as they are, and follow by their own decay.
    """
    members = {k for layer in layout.layers for k in (*layer.cores, *layer.gates)}
    known: dict[Path, int] = {layout.paths[k]: k for k in members}
    paths, arrays, _ = flatten(state)
    out = []
    for n, (path, array) in enumerate(zip(paths, arrays, strict=True)):
        k = _owner(path, known)
        if k is None or jnp.shape(array) != jnp.shape(leaves[k]):
            continue
        if not jnp.issubdtype(jnp.result_type(array), jnp.inexact):
            continue
        before: tuple[Hashable, ...] = path[: len(path) - len(layout.paths[k])]
        out.append((n, k, not PARAMETERS.isdisjoint(before)))
    return out


def _owner(path: Path, known: dict[Path, int]) -> int | None:
    """Finds the parameter whose path ends that of an array of the optimiser's state."""
    for length in range(len(path), 0, -1):
        if path[-length:] in known:
            return known[path[-length:]]
    return None


def moment_moved(
    layout: Layout, found: list[list[Change]], position: int, value: jax.Array, *, held: bool
) -> jax.Array:
    """Returns one array of the optimiser's state in the new basis.

    An array without a negative entry is taken for second moments, whatever its name.

    Args:
      layout: of the parameters.
      found: changes of all layers.
      position: of its parameter among the leaves.
      value: the array.
      held: whether it holds parameters.
    """
    for layer, each in zip(layout.layers, found, strict=True):
        if each and position in layer.gates:
            return _gate_moment(each[layer.gates.index(position)], value, held)
        if each and position in layer.cores:
            core = layer.cores.index(position)
            new = [
                moved(layer, each, core, value, kind=kind)
                for kind in (("parameter",) if held else ("gradient", "square"))
            ]
            if len(new) == 1 or jnp.iscomplexobj(value):
                return new[0].astype(value.dtype)
            squares = jnp.all(value >= 0) | jnp.iscomplexobj(new[0])
            return jnp.where(squares, new[1], new[0].real).astype(value.dtype)
    return value


def _gate_moment(change: Change, value: jax.Array, held: bool) -> jax.Array:
    """Returns a moment of a gate that was brought into the cores: its mean, if not negative."""
    if held:
        return change.live.astype(value.dtype)
    live = change.live
    mean = jnp.sum(value) / jnp.maximum(jnp.sum(live), 1).astype(value.dtype)
    return jnp.where(live & jnp.all(value >= 0), mean, jnp.zeros_like(value))


def changed(
    layout: Layout,
    leaves: list[Any],
    moving: list[tuple[int, int, bool]],
    moments: list[jax.Array],
    stays: list[jax.Array],
) -> tuple[dict[int, jax.Array], list[jax.Array]]:
    """Brings all layers into the basis of their singular vectors, and their moments along.

    Args:
      layout: of the parameters.
      leaves: the parameters.
      moving: what `moments_of` lists.
      moments: these arrays of the optimiser's state.
      stays: of each layer, whether it stays as it is.

    Returns:
      (new cores and gates by position, new moments).
    """
    order = _Sequence()
    found = [changes(layer, leaves, order) for layer in layout.layers]
    rests = {
        k: stay
        for layer, stay in zip(layout.layers, stays, strict=True)
        for k in (*layer.cores, *layer.gates)
    }
    new = {
        k: jnp.where(rests[k], leaves[k], value)
        for k, value in parameters_moved(layout, found, leaves).items()
    }
    out = []
    for (_, k, held), value in zip(moving, moments, strict=True):
        made = moment_moved(layout, found, k, value, held=held)
        out.append(jnp.where(rests[k], value, made))
    return new, out
