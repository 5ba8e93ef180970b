"""Planner: which groups are kept in host memory or on disk, and the predicted step time."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax

from tensorjax import _check
from tensorjax._typing import DTypeLike, Optimizer, PyTree
from tensorjax.offload._errors import listed
from tensorjax.offload._planning.machine_speed import Machine, layer_seconds
from tensorjax.offload._planning.placement_costs import Work, largest, shared_groups
from tensorjax.offload._planning.placement_search import Choice, choose
from tensorjax.offload._store.disk.extents import capacity
from tensorjax.offload._store.statistics import size, time
from tensorjax.offload._store.store import TensorStore
from tensorjax.offload._training import options as _options
from tensorjax.offload._training.passes.engine import Engine
from tensorjax.offload._training.passes.layers import Activations, Layer, check_layers
from tensorjax.offload._training.updates import parameter_groups
from tensorjax.offload._training.updates.host_optimizer import HostOptimizer
from tensorjax.offload._training.updates.parameter_groups import Group

Row = tuple[str, int, int, str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Memory plan of offloaded training: parameter groups in RAM or on disk, predicted step time.

    Attributes:
      chosen: how activations are treated, what lives where, and the times of a step.
      choices: all ways of treating them that were considered.
      rows: one for each group: name, bytes of parameters, of states, where each is.
      microbatches: in a step.
      compute_dtype: of the parameters on the device; None for their own.
      clip: largest norm of the gradients, where that is known.
      staging: bytes of staging memory that were set aside for a store; None if none were.
      capacity: bytes of disk that a store of all of it takes.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from tensorjax import offload
      >>> def loss(params, x, batch, key):
      ...     return jnp.mean((batch @ params[0]) ** 2)
      >>> machine = offload.Machine(read=2e9, write=2e9, place=2e10, update=1e9)
      >>> plan = offload.plan(
      ...     [offload.Layer(name="a", apply=loss)], {"a": jnp.ones((256, 256))}, optax.adam(1e-3),
      ...     jnp.ones((8, 256)), machine=machine,
      ...     device_bytes=1 << 23, host_bytes=1 << 22, seconds={"a": (1e-3, 2e-3)})
      >>> plan.in_memory, plan.needs_store, len(plan.rows), plan.seconds >= plan.bound
      (('a',), False, 1, True)
    """

    chosen: Choice
    choices: tuple[Choice, ...]
    rows: tuple[Row, ...]
    microbatches: int = 1
    compute_dtype: Any = None
    clip: float | None = None
    staging: int | None = None
    capacity: int = 0

    @property
    def weights(self) -> int:
        """Bytes of device memory that a memory plan reserves for parameters."""
        return self.chosen.weights

    @property
    def in_memory(self) -> tuple[str, ...]:
        """Names of the parameter groups that a memory plan keeps in host memory, not on disk."""
        return self.chosen.in_memory

    @property
    def gradient_bytes(self) -> int | None:
        """Bytes of host memory that a memory plan gives to waiting gradients; None for no limit."""
        return self.chosen.gradient_bytes

    @property
    def seconds(self) -> float:
        """Predicted seconds of a training step under this memory plan, without overheads.

        It is the bound, but where updates have to be made during the backward pass because there is
        no memory for gradients to wait, or, with clipping, during the next forward pass. Where the
        layers are computed by the host's own cores it takes longer, for they share these with the
        optimiser and the copies.
        """
        return self.chosen.seconds

    @property
    def bound(self) -> float:
        """Lower bound P*, in seconds, on the step time of any exact schedule of a memory plan."""
        return self.chosen.times.bound

    @property
    def needs_store(self) -> bool:
        """Whether a memory plan puts parameters or waiting gradients on disk, in a tensor store."""
        return self.chosen.needs_store

    def store(self, path: str | Path, **options: Any) -> TensorStore:
        """Opens a tensor store with the capacity and staging memory of this memory plan.

        Args:
          path: a folder.
          options: as for `TensorStore`.

        Returns:
          An open `TensorStore`.
        """
        return TensorStore(path, **{"capacity": self.capacity, "staging": self.staging, **options})

    def options(self, store: Any) -> dict[str, Any]:
        """Returns the keyword arguments of a `Trainer` that follows this memory plan.

        Without clipping gradients wait for room where there is not enough; schedules other than
        "overlap" need ``gradient_overflow="store"`` instead. Another engine may take the place of
        the one here, such as ``gpt2.engine(config, layout, activations=plan.chosen.activations)``;
        of shardings a plan knows nothing: its sizes are those of whole arrays.

        Args:
          store: what `store` opened, or None, where nothing has to be on disk.

        Returns:
          A dictionary of keyword arguments.

        Raises:
          ValueError: no store, though something has to be on disk.
        """
        if store is None and self.needs_store:
            raise ValueError(
                f"store: expected one, for only {len(self.in_memory)} of {len(self.rows)} groups "
                "and what gradients there is room for live in memory, got None; Plan.store opens it"
            )
        found = {
            "device_bytes": self.weights,
            "in_memory": self.in_memory,
            "gradient_bytes": self.gradient_bytes,
            "gradient_overflow": self.chosen.gradient_overflow,
            "engine": Engine(activations=self.chosen.activations),
            "store": store,
            "microbatches": self.microbatches,
            "compute_dtype": self.compute_dtype,
        }
        return found if self.clip is None else {**found, "clip": self.clip}

    def __str__(self) -> str:
        """Formats a memory plan as a text table, in which groups of equal sizes share a line."""
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
            why = choice.refusal or (
                f"predicted step {time(choice.seconds)}, P* {time(choice.times.bound)}"
            )
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
    """Merges rows of a memory plan's printed table that differ only in the group's name."""
    places: dict[Any, list[int]] = {}
    for n, row in enumerate(rows):
        places.setdefault(row[1:], []).append(n)
    found = []
    for some in places.values():
        first, last, count = rows[some[0]], rows[some[-1]], len(some)
        title = f"{first[0]} ... {last[0]}, each of {count}" if count > 1 else first[0]
        if some[-1] - some[0] >= count:  # others are between
            title = f"{count} of {first[0]} ... {last[0]}"
        found.append((title, first))
    return found


def plan(
    layers: Sequence[Layer],
    params: Mapping[str, Any],
    optimizer: Optimizer,
    batch: PyTree,
    *,
    machine: Machine,
    device_bytes: int,
    host_bytes: int,
    microbatches: int = 1,
    staging: int | Literal["auto"] | None = None,
    clip: float | bool | None = None,
    compute_dtype: DTypeLike | None = None,
    key: jax.Array | None = None,
    activations: Iterable[Activations] = get_args(Activations),
    seconds: Mapping[str, tuple[float, float]] | None = None,
) -> Plan:
    """Plans which parameter groups live in host memory or on disk, and predicts the step time.

    The device holds the activations, the gradients of two layers (those of one are taken to the
    host while the next is computed), those that an accelerator adds up by itself, and as many
    parameters as then fit. The host holds what updates under way take; the rest of its memory is
    divided between groups that live there and gradients that wait, whose updates can be left to the
    next forward pass, in which a disk has time; so that a step is shortest. The rest is on disk, in
    even distances, so that the disk is busy in the whole of both passes.

    Args:
      layers: sequence of `Layer`, as for `Trainer`.
      params: parameters by group, or functions that return them, as for `Trainer`.
      optimizer: an Optax transformation, as for `Trainer`.
      batch: ONE MICROBATCH, not a whole batch: arrays, not shapes, where ``seconds`` is None.
      machine: speeds, as `measure` finds them.
      device_bytes: memory of the device, for everything.
      host_bytes: memory of the host, without what programs take. Where glibc's malloc serves them,
        arrays below 32 MiB that were given back stay with the process, up to as much again, unless
        it was started with MALLOC_MMAP_THRESHOLD_=1048576 in its environment.
      microbatches: in a step.
      staging: bytes of it that a store takes for transfers; "auto" for 64 MiB and 8 times the
        largest group's parameters. They are set aside where something has to be on disk. With None
        staging memory is not part of ``host_bytes``.
      clip: largest norm of all gradients, which `Plan.options` hands on, or whether there is one.
      compute_dtype: as for `Trainer`.
      key: of `jax.random`, for layers that draw.
      activations: ways of treating them that may be chosen.
      seconds: of the forward and the backward pass of each layer with recomputation, for one
        microbatch; measured here if None.

    Returns:
      `Plan`, of which `Plan.options` makes a `Trainer`; print it for the table.

    Raises:
      ValueError: budgets that are no integers or too small for any way, with what is needed; times
        of layers that are missing in ``seconds``.
      TypeError: another machine than a `Machine`.

    Example:
      >>> import jax.numpy as jnp
      >>> import optax
      >>> from tensorjax import offload
      >>> def linear(params, x, batch, key):
      ...     return (batch if x is None else x) @ params[0]
      >>> def loss(params, x, batch, key):
      ...     return jnp.mean((x @ params[0]) ** 2)
      >>> layers = [offload.Layer(name=name, apply=linear) for name in "ab"]
      >>> layers.append(offload.Layer(name="c", apply=loss))
      >>> params = {"a": jnp.ones((256, 256)), "b": jnp.ones((256, 256)), "c": jnp.ones((256, 1))}
      >>> machine = offload.Machine(read=2e9, write=2e9, place=2e10, update=1e9)
      >>> plan = offload.plan(
      ...     layers, params, optax.adam(1e-3), jnp.ones((8, 256)), machine=machine,
      ...     device_bytes=1 << 23, host_bytes=2 << 20, seconds=dict.fromkeys("abc", (1e-3, 2e-3)))
      >>> plan.in_memory, plan.needs_store, plan.capacity
      (('c',), True, 3178496)

    Source: ours. The bound is that of `Times`.
    """
    layers = check_layers(layers, params)
    if not isinstance(machine, Machine):
        raise TypeError(f"machine: expected a Machine, as measure() finds it, got {machine!r}")
    for name, value in (("device_bytes", device_bytes), ("host_bytes", host_bytes)):
        _check.integer(name, value, low=0)
    _check.integer("microbatches", microbatches, low=1)
    kinds, clips = _kinds(activations), clip is not None and clip is not False
    norm = None if isinstance(clip, bool) else _options.checked_clip(clip)
    host = HostOptimizer(optimizer, compute_dtype)
    groups = parameter_groups.make_groups(
        parameter_groups.shapes(params), host, store=None, in_memory=(), lent=Engine().lends
    )
    if seconds is None:
        cast = {name: functools.partial(_cast, host, given) for name, given in params.items()}
        seconds = layer_seconds(layers, cast, batch, Engine(), key=key)
    if missing := [layer.name for layer in layers if layer.name not in seconds]:
        raise ValueError(f"seconds: expected those of every layer, got none of {listed(missing)}")
    forward, backward = (
        microbatches * sum(seconds[layer.name][n] for layer in layers) for n in (0, 1)
    )
    whole = Work(
        activations="recompute", layers=layers, groups=groups, machine=machine, forward=forward,
        backward=backward, on_device=_summing_bytes(layers, groups, microbatches), on_host=0,
        clip=clips,
    )  # fmt: skip
    sizes = [microbatches * n for n in activation_bytes(layers, groups, batch, key)]
    works = [_work(whole, kind, *sizes) for kind in kinds]
    found, chosen, aside = _fastest(works, device_bytes, host_bytes, _aside(staging, groups))
    spills = chosen.gradient_bytes is not None and chosen.gradient_overflow == "store"
    return Plan(
        chosen=chosen,
        choices=found,
        rows=_rows(groups, chosen),
        microbatches=microbatches,
        compute_dtype=compute_dtype,
        clip=norm,
        staging=aside,
        capacity=capacity(parameter_groups.specs(groups.values(), gradients=spills)),
    )


def _summing_bytes(layers: Sequence[Layer], groups: dict[str, Group], microbatches: int) -> int:
    """Computes the device bytes of gradients that a memory plan sets aside: those of two layers.

    An accelerator also holds sums over the layers that share a group, which it adds up by itself.
    """
    sums = {name: g.sums if microbatches > 1 else g.gradient.nbytes for name, g in groups.items()}
    shared = (g.sums for g in shared_groups(layers, groups) if g.lent)
    return 2 * largest(layers, sums) + sum(shared)


def _aside(staging: Any, groups: Mapping[str, Group]) -> int | None:
    """Returns the bytes of host memory that a memory plan sets aside for staging, or None."""
    if staging == "auto":
        return 8 * max(g.params.nbytes for g in groups.values()) + (64 << 20)
    return None if staging is None else _check.integer("staging", staging, low=1)


def _fastest(
    works: Sequence[Work], device_bytes: int, host_bytes: int, aside: int | None
) -> tuple[tuple[Choice, ...], Choice, int | None]:
    """Finds the fastest split of parameters between RAM and disk for a memory plan.

    Args:
      works: one for each activation strategy.
      aside: bytes of staging memory, taken from ``host_bytes`` where something has to be on disk.

    Returns:
      The split of each strategy, the fastest of them, and the bytes that were set aside.

    Raises:
      ValueError: none fits.
    """
    found, chosen = _best(works, device_bytes, host_bytes)
    if aside and (chosen is None or chosen.needs_store):
        found, chosen = _best(works, device_bytes, max(0, host_bytes - aside))
    else:
        aside = None
    if chosen is None:
        said = f" beside {aside} bytes of staging memory, of host_bytes too" if aside else ""
        raise ValueError(
            f"device_bytes, host_bytes: no way fits{said}; "
            + "; ".join(f"{choice.activations}: {choice.refusal}" for choice in found)
        )
    return found, chosen, aside


def _best(
    works: Sequence[Work], device_bytes: int, host_bytes: int
) -> tuple[tuple[Choice, ...], Choice | None]:
    """Finds, per activation strategy, the memory plan that splits RAM and disk fastest."""
    found = tuple(choose(work, device_bytes, host_bytes) for work in works)
    able = [choice for choice in found if not choice.refusal]
    return found, min(able, key=lambda choice: choice.seconds, default=None)


def _cast(host: HostOptimizer, given: Any) -> Any:
    """Casts parameters to the device's dtype, to measure layer times for a memory plan."""
    return host.cast(given() if callable(given) else given)


def _kinds(activations: Any) -> list[Activations]:
    """Checks a memory plan's argument ``activations``; returns its strategies, no duplicates."""
    known = get_args(Activations)
    several = isinstance(activations, Iterable) and not isinstance(activations, str)
    asked: list[Any] = list(activations) if several else []
    if not asked or any(kind not in known for kind in asked):
        raise ValueError(f"activations: expected some of {known}, got {activations!r}")
    return [kind for kind in known if kind in asked]


def _work(whole: Work, kind: Activations, inputs: int, kept: int) -> Work:
    """Predicts, for a memory plan, a step's times and memory with one activation strategy.

    Args:
      whole: what it does with recomputation, whose backward passes have a forward pass in them.
      inputs: bytes of all layers' inputs.
      kept: bytes of what the backward passes can be spared.
    """
    forward, backward, on_host = whole.forward, whole.backward, 0
    on_device = whole.on_device + inputs
    if kind != "recompute":
        backward = max(backward - forward, forward)
    if kind == "keep":
        on_device += kept
    if kind == "offload":  # of a layer, and of the next one, which is given ahead
        on_device += 2 * kept // len(whole.layers)
    if kind == "offload":
        backward, on_host = backward + 2 * kept / whole.machine.place, kept
    return dataclasses.replace(
        whole, activations=kind, backward=backward, on_device=on_device, on_host=on_host
    )


def _rows(groups: Mapping[str, Group], chosen: Choice) -> tuple[Row, ...]:
    """Returns the rows of a memory plan's table: name, bytes and RAM or disk of every group.

    Either all groups stay on the device, or all count as streamed, two layers at a time.
    """
    resident = chosen.weights >= sum(g.device.nbytes for g in groups.values())
    return tuple(
        (
            name,
            g.params.nbytes,
            g.state.nbytes,
            "resident" if resident else "streamed",
            "host" if name in chosen.in_memory else "disk",
        )
        for name, g in groups.items()
    )


def activation_bytes(
    layers: Sequence[Layer], groups: dict[str, Group], batch: Any, key: Any
) -> tuple[int, int]:
    """Predicts, for a memory plan, bytes of layer inputs and saved activations of a microbatch."""
    x, inputs, kept = None, 0, 0
    engine = Engine(activations="keep")
    for layer in layers[:-1]:
        mine = tuple(
            groups[g].device.unflatten(
                [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in groups[g].device.leaves]
            )
            for g in layer.uses
        )
        x, new = engine.shapes(layer, mine, x, batch, key)
        inputs += _bytes(x)
        kept += _bytes(new)
    return inputs, kept


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
