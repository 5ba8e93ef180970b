"""What should live where, and how long a step will then take."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

import jax

from tensorjax import _check
from tensorjax.offload import _groups
from tensorjax.offload._bound import Times
from tensorjax.offload._extents import listed
from tensorjax.offload._group import Group
from tensorjax.offload._layers import Activations, Engine, Layer, check_layers
from tensorjax.offload._machine import Machine, layer_seconds
from tensorjax.offload._optimizer import HostOptimizer
from tensorjax.offload._units import size, time

Row = tuple[str, int, int, str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """One way of treating activations.

    Attributes:
      activations: of `Engine`.
      times: of the parts of a step.
      device_bytes: what the device needs besides parameters.
      host_bytes: what the host needs: activations, gradients that wait, updates under way, and
        parameters and states that live there; not the store's staging memory.
      refusal: why it is not possible; empty if it is.
    """

    activations: Activations
    times: Times
    device_bytes: int
    host_bytes: int
    refusal: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Where everything lives, and the step time that follows.

    Attributes:
      weights: bytes of the device for parameters.
      in_memory: groups whose parameters and states live in host memory.
      gradient_bytes: bytes of the host for gradients that wait; None for all.
      chosen: how activations are treated, with the times of a step.
      choices: all that were considered.
      seconds: predicted time of a step, if nothing is lost: the bound where updates overlap; with
        clipping, updates wait for the end of the backward pass, and overlap with the next forward
        pass only. Where the layers are computed by the host's own cores it takes longer, for they
        share these with the optimiser and the copies.
      rows: one for each group: name, bytes of parameters, of states, where each is.
      microbatches: in a step.
      compute_dtype: of the parameters on the device; None for their own.
    """

    weights: int
    in_memory: tuple[str, ...]
    gradient_bytes: int | None
    chosen: Choice
    choices: tuple[Choice, ...]
    seconds: float
    rows: tuple[Row, ...]
    microbatches: int = 1
    compute_dtype: Any = None

    @property
    def bound(self) -> float:
        """P*, seconds that no exact schedule goes below."""
        return self.chosen.times.bound

    def options(self, store: Any) -> dict[str, Any]:
        """Arguments for a `Trainer`, its engine included."""
        return {
            "device_bytes": self.weights,
            "in_memory": self.in_memory,
            "gradient_bytes": None if store is None else self.gradient_bytes,
            "engine": Engine(activations=self.chosen.activations),
            "store": store,
            "microbatches": self.microbatches,
            "compute_dtype": self.compute_dtype,
        }

    def __str__(self) -> str:
        """The plan as a table; neighbours that are alike share a line."""
        width = max(14, *(len(name) for name, _ in _alike(self.rows)))
        lines = [f"{'group':<{width}}{'parameters':>13}{'state':>13}  device    home"]
        for name, (_, params, state, device, home) in _alike(self.rows):
            lines.append(f"{name:<{width}}{size(params):>13}{size(state):>13}  {device:<9} {home}")
        times = self.chosen.times
        lines.append(f"device: {size(self.weights)} of parameters at a time, "
                     f"{size(self.chosen.device_bytes)} besides")  # fmt: skip
        gradients = "all" if self.gradient_bytes is None else size(self.gradient_bytes)
        lines.append(
            f"host: {size(self.chosen.host_bytes)}; gradients that wait there: {gradients}"
        )
        for choice in self.choices:
            mark = "->" if choice is self.chosen else "  "
            why = choice.refusal or f"P* {time(choice.times.bound)}"
            lines.append(f"{mark} activations {choice.activations}: {why}")
        lines.append(
            f"compute {time(times.compute)}, read {time(times.read)}, write {time(times.write)}, "
            f"update {time(times.update)}, first layer {time(times.first)}"
        )
        lines.append(
            f"predicted step {time(self.seconds)}, bound P* {time(self.bound)}, "
            f"updates after the backward pass {time(times.after_backward)}"
        )
        return "\n".join(lines)


def _alike(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Rows that follow each other and differ in nothing but the name as one, with its name."""
    found = []
    for _, some in itertools.groupby(rows, key=lambda row: row[1:]):
        first, *rest = some
        title = f"{first[0]} ... {rest[-1][0]}, each of {len(rest) + 1}" if rest else first[0]
        found.append((title, first))
    return found


def plan(
    layers: Sequence[Layer],
    params: Mapping[str, Any],
    optimizer: Any,
    batch: Any,
    *,
    machine: Machine,
    device_bytes: int,
    host_bytes: int,
    microbatches: int = 1,
    clip: bool = False,
    compute_dtype: Any = None,
    activations: Collection[Activations] = get_args(Activations),
    seconds: Mapping[str, tuple[float, float]] | None = None,
) -> Plan:
    """Decides what lives where, from sizes, measured speeds and measured layers.

    The device holds the activations, the gradients of two layers (those of one are taken to the
    host while the next is computed), and as many parameters as then fit. The host holds, in this
    order: what updates under way take, gradients that wait, then parameters and states, those of
    the first layers first, because their update is what a step waits for. The rest is on disk.

    Args:
      layers: as for `Trainer`.
      params: as for `Trainer`.
      optimizer: as for `Trainer`.
      batch: one microbatch: arrays, not shapes, where ``seconds`` is None.
      machine: speeds, as `measure` finds them.
      device_bytes: memory of the device, for everything.
      host_bytes: memory of the host, without staging and what programs take.
      microbatches: in a step.
      clip: whether gradients are clipped by their norm.
      compute_dtype: as for `Trainer`.
      activations: ways of treating them that may be chosen.
      seconds: of the forward and the backward pass of each layer with recomputation, for one
        microbatch; measured here if None.

    Raises:
      ValueError: budgets that are too small for any way, with what is needed.
    """
    layers = check_layers(layers, params)
    for name, value in (("device_bytes", device_bytes), ("host_bytes", host_bytes)):
        _check.integer(name, value, low=0)
    _check.integer("microbatches", microbatches, low=1)
    known = get_args(Activations)
    if isinstance(activations, str) or not activations or not set(activations) <= set(known):
        raise ValueError(f"activations: expected some of {known}, got {activations!r}")
    host = HostOptimizer(optimizer, compute_dtype)
    groups = _groups.make_groups(_groups.shapes(params), host, store=None, in_memory=())
    if seconds is None:
        cast = {name: functools.partial(_cast, host, given) for name, given in params.items()}
        seconds = layer_seconds(layers, cast, batch, Engine(), repeats=3)
    if missing := [layer.name for layer in layers if layer.name not in seconds]:
        raise ValueError(f"seconds: expected those of every layer, got none of {listed(missing)}")
    passes = (sum(f for f, _ in seconds.values()), sum(b for _, b in seconds.values()))
    inputs, kept = _activation_bytes(layers, groups, batch)
    inputs, kept = inputs * microbatches, kept * microbatches
    found = []
    for kind in activations:
        moved = 2 * kept / machine.place if kind == "offload" else 0.0
        # A backward pass with recomputation has a forward pass in it.
        backward = passes[1] if kind == "recompute" else max(passes[1] - passes[0], passes[0])
        compute = microbatches * (passes[0] + backward) + moved
        on_device = inputs + (kept if kind == "keep" else 0)
        on_device += 2 * _largest(layers, groups, "gradient")
        on_host = kept if kind == "offload" else 0
        found.append(
            _choice(layers, groups, machine, kind, compute, on_device, on_host,
                    (device_bytes, host_bytes), clip=clip)
        )  # fmt: skip
    able = [f for f in found if not f[0].refusal]
    if not able:
        raise ValueError(
            "device_bytes, host_bytes: no way fits; "
            + "; ".join(f"{c.activations}: {c.refusal}" for c, *_ in found)
        )
    chosen, weights, memory, gradients = min(able, key=lambda f: f[0].times.bound)
    resident = _resident(groups, weights)
    rows = tuple(
        (
            name,
            g.params.nbytes,
            g.state.nbytes,
            "resident" if name in resident else "streamed",
            "host" if name in memory else "disk",
        )
        for name, g in groups.items()
    )
    return Plan(
        weights=weights,
        in_memory=memory,
        gradient_bytes=gradients,
        chosen=chosen,
        choices=tuple(f[0] for f in found),
        seconds=_predicted(chosen.times, passes, microbatches, clip=clip),
        rows=rows,
        microbatches=microbatches,
        compute_dtype=compute_dtype,
    )


def _cast(host: HostOptimizer, given: Any) -> Any:
    """Parameters as the device computes with them."""
    return host.cast(given() if callable(given) else given)


def _lives(group: Group) -> int:
    """Bytes of a group where it lives: parameters, state, and parameters for the device."""
    return sum(bundle.nbytes for bundle in group.bundles)


def _choice(
    layers: Sequence[Layer],
    groups: dict[str, Group],
    machine: Machine,
    kind: Activations,
    compute: float,
    on_device: int,
    on_host: int,
    budgets: tuple[int, int],
    *,
    clip: bool,
) -> tuple[Choice, int, tuple[str, ...], int | None]:
    """A way of treating activations, with parameters on the device, groups and gradients."""
    needed = _largest(layers, groups, "device") * 2
    total = sum(g.device.nbytes for g in groups.values())
    weights = min(budgets[0] - on_device, total)
    refusal = ""
    if weights < min(needed, total):
        refusal = _needs(on_device + needed, "device")
    every = sum(g.gradient.nbytes for g in groups.values())
    fixed = on_host + _work_bytes(layers, groups)
    left = budgets[1] - fixed
    if left < 0:
        refusal = refusal or _needs(fixed, "host")
    wanted = every if clip else 2 * max(g.gradient.nbytes for g in groups.values())
    gradients: int | None = max(0, min(left, wanted))
    left -= gradients
    memory: list[str] = []
    for name in _in_order(layers):
        nbytes = _lives(groups[name])
        if nbytes > left:
            break
        memory.append(name)
        left -= nbytes
    spilled = max(0, every - gradients) if clip else 0
    host = budgets[1] - left
    free = on_host + _free_work_bytes(groups) - (fixed + gradients)
    if len(memory) == len(groups) and free <= left:
        gradients, host, spilled = None, host + free, 0
    times = _times(layers, groups, machine, compute, max(weights, 0), set(memory), spilled)
    choice = Choice(activations=kind, times=times, device_bytes=on_device, host_bytes=host,
                    refusal=refusal)  # fmt: skip
    return choice, weights, tuple(memory), gradients


def _work_bytes(layers: Sequence[Layer], groups: dict[str, Group]) -> int:
    """What a trainer with bounded gradients takes beside them, states and staging.

    The gradient that arrives, those that other layers are to add to, the results of an update.
    """
    uses = Counter(g for layer in layers for g in layer.uses)
    partial = sum(groups[g].gradient.nbytes for g, count in uses.items() if count > 1)
    arriving = max(g.gradient.nbytes for g in groups.values())
    return arriving + partial + max(g.results for g in groups.values())


def _free_work_bytes(groups: dict[str, Group]) -> int:
    """What a trainer without bounds takes: gradients, two updates, spare states, handed on."""
    kinds = {g.kind: g.state.nbytes for g in groups.values()}
    counts = Counter(g.kind for g in groups.values())
    spare = sum(min(counts[kind], 2) * nbytes for kind, nbytes in kinds.items())
    gradients = sum(g.gradient.nbytes for g in groups.values())
    handed = 2 * max(g.device.nbytes for g in groups.values())
    return gradients + 2 * max(g.results for g in groups.values()) + spare + handed


def _needs(nbytes: int, where: str) -> str:
    return f"needs {nbytes} bytes of the {where} ({size(nbytes)})"


def _times(
    layers: Sequence[Layer],
    groups: dict[str, Group],
    machine: Machine,
    compute: float,
    weights: int,
    memory: set[str],
    spilled: int,
) -> Times:
    """Seconds of the parts of a step: bytes by speeds."""
    disk = [g for name, g in groups.items() if name not in memory]
    lives = sum(map(_lives, disk))
    state = sum(g.params.nbytes + g.state.nbytes for g in disk)
    # The backward pass shares what it reads with the update, unless that has another dtype.
    uses = sum(g.device.nbytes * (1 if g.weights is None else 2) for g in disk)
    total = sum(g.device.nbytes for g in groups.values())
    # What stays on the device is not read; the rest is, in both passes.
    streamed = 0.0 if not total else uses * max(0, total - weights) / total
    first = [groups[g] for g in layers[0].uses]
    moved = sum(g.params.nbytes + g.state.nbytes for g in first if g.name not in memory)
    numbers = sum(_numbers(g) for g in first)
    return Times(
        compute=compute,
        read=(streamed + state + spilled) / machine.read,
        write=(lives + spilled) / machine.write,
        update=sum(_numbers(g) for g in groups.values()) / machine.update,
        first=moved / machine.read + numbers / machine.update,
        layer=compute / len(layers),
    )


def _predicted(
    times: Times, passes: tuple[float, float], microbatches: int, *, clip: bool
) -> float:
    if not clip:
        return times.bound
    forward = microbatches * passes[0]
    other = max(times.read, times.write, times.update)
    return times.compute - forward + max(forward + times.first, other)


def _resident(groups: dict[str, Group], weights: int) -> set[str]:
    """Groups that stay on the device: all, or none to name, as two layers are always streamed."""
    total = sum(g.device.nbytes for g in groups.values())
    return set(groups) if weights >= total else set()


def _activation_bytes(
    layers: Sequence[Layer], groups: dict[str, Group], batch: Any
) -> tuple[int, int]:
    """Bytes of all layers' inputs, and of what the backward pass can be spared, of a microbatch."""
    x, inputs, kept = None, 0, 0
    engine = Engine(activations="keep")
    for layer in layers[:-1]:
        mine = tuple(
            groups[g].device.unflatten(
                [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in groups[g].device.leaves]
            )
            for g in layer.uses
        )
        x, new = engine.shapes(layer, mine, x, batch)
        inputs += _bytes(x)
        kept += _bytes(new)
    return inputs, kept


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _largest(layers: Sequence[Layer], groups: dict[str, Group], bundle: str) -> int:
    return max(sum(getattr(groups[g], bundle).nbytes for g in layer.uses) for layer in layers)


def _in_order(layers: Sequence[Layer]) -> list[str]:
    return list(dict.fromkeys(g for layer in layers for g in layer.uses))


def _numbers(group: Group) -> int:
    return sum(leaf.nbytes // leaf.dtype.itemsize for leaf in group.params.leaves)
