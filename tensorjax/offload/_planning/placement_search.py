"""Search for the placement of groups (host memory or disk) that gives the shortest step."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax

from tensorjax.offload._planning.machine_speed import Machine
from tensorjax.offload._planning.step_time_bound import Times
from tensorjax.offload._training.engine import Engine
from tensorjax.offload._training.layers import Activations, Layer
from tensorjax.offload._training.optimizer.host_optimizer import Into
from tensorjax.offload._training.options import Overflow
from tensorjax.offload._training.parameter_groups import Group
from tensorjax.offload._units import size

_TRIES = 64  # counts of groups in memory that are tried, which bounds the time of the search
_BOUNDS = 4  # on what an update takes from the disk, of those that there are
_STORING = 0.1  # of a step: how much better storing all gradients has to look, to be worth its risk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """Placement of parameter groups for one activation strategy, with its step time and memory.

    Attributes:
      activations: of `Engine`.
      times: of the parts of a step.
      seconds: predicted time of a step.
      weights: bytes of the device for parameters.
      device_bytes: what the device needs besides.
      in_memory: groups whose parameters and states live in host memory.
      gradient_bytes: of the host for gradients that wait; None for all.
      gradient_overflow: what becomes of others.
      stored: share of all gradients that are expected to be written and read again.
      needs_store: whether something has to be on disk.
      host_bytes: what the host needs: activations, gradients that wait, updates under way, and
        parameters and states that live there; not the store's staging memory.
      refusal: why it is not possible; empty if it is.
    """

    activations: Activations
    times: Times
    seconds: float
    weights: int
    device_bytes: int
    in_memory: tuple[str, ...]
    gradient_bytes: int | None
    gradient_overflow: Overflow
    stored: float
    needs_store: bool
    host_bytes: int
    refusal: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Workload of a training step for the placement search: layers, groups, times, memory.

    Attributes:
      activations: how they are treated.
      layers: of the model.
      groups: by name.
      machine: speeds.
      forward, backward: seconds of all layers' passes, for all microbatches.
      on_device: bytes of the device besides parameters.
      on_host: bytes of the host for activations.
      clip: whether gradients are clipped by their norm.
    """

    activations: Activations
    layers: Sequence[Layer]
    groups: dict[str, Group]
    machine: Machine
    forward: float
    backward: float
    on_device: int
    on_host: int
    clip: bool

    def gradients(self) -> int:
        """Returns the bytes of the gradients of all groups that are placed."""
        return sum(g.gradient.nbytes for g in self.groups.values())


def choose(work: Work, device_bytes: int, host_bytes: int) -> Choice:
    """Searches for the parameter groups to keep in host memory that make a step fastest.

    Groups in memory are not read and written; where they leave room, gradients wait, whose updates
    can then be left to the next forward pass, in which a disk has time.
    """
    groups = work.groups
    needed = largest(work.layers, {name: g.device.nbytes for name, g in groups.items()}) * 2
    total = sum(g.device.nbytes for g in groups.values())
    weights = min(device_bytes - work.on_device, total)
    fixed = work.on_host + _arriving(work)
    short = []
    if weights < min(needed, total):
        short.append(_needs(work.on_device + min(needed, total), "device", device_bytes))
    if host_bytes < (least := fixed + _under_way(groups, ())):
        short.append(_needs(least, "host", host_bytes))
    refusal = " and ".join(short)
    room = max(0, host_bytes - fixed)
    found = (
        _choice(work, max(0, weights), memory, room, refusal) for memory in _candidates(work, room)
    )
    return min(found, key=lambda choice: choice.seconds * (1 + _STORING * choice.stored))


def _candidates(work: Work, room: int) -> Iterator[list[str]]:
    """Yields candidate placements: lists of parameter groups to keep in host memory.

    All but some in even distances, so that the disk is busy in the whole of both passes; or those
    of the first layers, because their update is what a step waits for; or small ones first, where a
    large one would take the room of all; or large ones first. Those whose update would take most
    from the disk may all have to be in memory.
    """
    groups = work.groups
    # Without clipping one gradient waits while another is taken; else all may go to the store.
    two = 0 if work.clip else sum(sorted(g.gradient.nbytes for g in groups.values())[-2:])
    order = list(dict.fromkeys(g for layer in work.layers for g in layer.uses))
    lives = {name: _lives(g) for name, g in groups.items()}
    takes = {name: g.taken(_from_disk(g)) for name, g in groups.items()}
    by_size = sorted(order, key=lives.__getitem__)
    step = max(1, len(order) // _TRIES)
    tried = [_spread(order, away) for away in range(0, len(order), step)]
    bounds = sorted({*takes.values()}, reverse=True)
    for most in bounds[:: max(1, len(bounds) // _BOUNDS)]:
        first = {name for name in order if takes[name] > most}
        for names in (order, by_size, by_size[::-1]):
            fitting = [name for name in order if name in first]
            left = room - most - two - sum(lives[name] for name in fitting)
            for name in names:
                if name not in first and lives[name] <= left:
                    left -= lives[name]
                    fitting.append(name)
            tried += [fitting[:n] for n in range(len(fitting), max(0, len(first) - 1), -step)]
    for memory in {frozenset(memory): memory for memory in tried}.values():
        left = room - sum(lives[name] for name in memory)
        everything = len(memory) == len(groups) and _unbounded(work) - _arriving(work) <= left
        if everything or _under_way(groups, {*memory}) + two <= left:
            yield memory
    yield []


def _spread(order: list[str], away: int) -> list[str]:
    """Returns the groups without ``away`` of them, evenly spaced, which are to live on disk."""
    rest = len(order) - 1
    places = {1 + (2 * n + 1) * rest // (2 * away) for n in range(away)}
    return [name for n, name in enumerate(order) if n not in places]


def _choice(work: Work, weights: int, memory: list[str], room: int, refusal: str) -> Choice:
    """Builds a `Choice` of the search: step time and memory if given groups stay in host memory."""
    groups, every = work.groups, work.gradients()
    held = sum(_lives(groups[name]) for name in memory)
    host, left = work.on_host + _arriving(work) + held, room - held
    free = _unbounded(work) - _arriving(work)
    gradients: int | None = None
    if len(memory) < len(groups) or free > left:
        under_way = _under_way(groups, memory)
        gradients = min(every, max(0, left - under_way))
        host += under_way + gradients
    else:
        host += free
    # Each has to have room by itself.
    largest = max(g.gradient.nbytes for g in groups.values())
    waits = not work.clip and gradients is not None and gradients >= largest
    spilled = 0 if waits or gradients is None else every - gradients
    later = 1.0 if gradients is None or not every else gradients / every
    times, once = _times(work, weights, {*memory}, spilled)
    return Choice(
        activations=work.activations,
        times=times,
        seconds=_predicted(work, times, once, later),
        weights=weights,
        device_bytes=work.on_device,
        in_memory=tuple(memory),
        gradient_bytes=gradients,
        gradient_overflow="wait" if waits else "store",
        stored=spilled / every if every else 0.0,
        # With clipping gradients are bounded by a store only, though they may all have room.
        needs_store=len(memory) < len(groups) or (gradients is not None and not waits),
        host_bytes=host,
        refusal=refusal,
    )


def _times(work: Work, weights: int, memory: set[str], spilled: int) -> tuple[Times, float]:
    """Predicts the times of a step under one placement of the search, and of the forward reads."""
    groups, machine = work.groups, work.machine
    disk = [g for name, g in groups.items() if name not in memory]
    lives = sum(map(_lives, disk))
    state = sum(g.params.nbytes + g.state.nbytes for g in disk)
    # What stays on the device is not read; the rest is, in both passes. The backward pass shares
    # what it reads with the update, unless that has another dtype or has to wait for its end.
    total = sum(g.device.nbytes for g in groups.values())
    away = 0.0 if not total else max(0, total - weights) / total
    once = away * sum(g.device.nbytes for g in disk)
    again = away * sum(g.device.nbytes for g in disk if work.clip or g.weights is not None)
    first = [groups[g] for g in work.layers[0].uses]
    moved = sum(g.params.nbytes + g.state.nbytes for g in first if g.name not in memory)
    numbers = sum(_numbers(g) for g in first)
    compute = work.forward + work.backward
    times = Times(
        compute=compute,
        read=(once + again + state + spilled) / machine.read,
        write=(lives + spilled) / machine.write,
        update=sum(_numbers(g) for g in groups.values()) / machine.update,
        first=moved / machine.read + numbers / machine.update,
        layer=compute / len(work.layers),
    )
    return times, once / machine.read


def _predicted(work: Work, times: Times, once: float, later: float) -> float:
    """Predicts a placement's step time if some updates are left to the next forward pass.

    Args:
      work: what it does.
      times: of its parts.
      once: seconds of reads for the forward pass.
      later: the most that gradients which wait let be left to it.
    """
    if work.clip:  # all of them are
        other = max(times.read, times.write, times.update)
        return max(times.bound, work.backward + max(work.forward + times.first, other))
    rest = times.read - once
    updates = max(rest, times.write, times.update)
    share = min(later, max(0.0, 1 - work.backward / updates)) if updates else 0.0
    forward = max(work.forward, once + share * rest, share * times.write, share * times.update)
    return max(times.bound, forward + max(work.backward, (1 - share) * updates))


def activation_bytes(
    layers: Sequence[Layer], groups: dict[str, Group], batch: Any, key: Any
) -> tuple[int, int]:
    """Predicts the bytes of layer inputs and saved activations of a microbatch."""
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


def _lives(group: Group) -> int:
    """Returns the bytes that a group occupies where it is placed: all its stored arrays."""
    return sum(packing.nbytes for packing in group.packings)


def _arriving(work: Work) -> int:
    """Computes a placement's host memory for gradients in transfer or partly summed, in bytes.

    The gradient that arrives, and those that other layers are to add to; from an accelerator, which
    adds up by itself, all of two layers.
    """
    groups, shared = work.groups.values(), shared_groups(work.layers, work.groups)
    if any(g.lent for g in groups):
        return 2 * largest(work.layers, {g.name: g.gradient.nbytes for g in groups})
    arriving = max(g.sums if g in shared else g.gradient.nbytes for g in groups)
    return arriving + sum(g.sums for g in shared)


def _under_way(groups: Mapping[str, Group], memory: Collection[str]) -> int:
    """Computes the memory for one group's update under a placement of the search, at most."""
    return max(g.taken("place" if name in memory else _from_disk(g)) for name, g in groups.items())


def _from_disk(group: Group) -> Into:
    """Returns the memory in which the placement search updates a group on disk."""
    return "spare" if group.lent else "gradient"


def _unbounded(work: Work) -> int:
    """Computes host bytes of gradients and updates that a placement without limits may take."""
    gradients = work.gradients()
    if not any(g.lent for g in work.groups.values()):
        shared = shared_groups(work.layers, work.groups)
        gradients += sum(max(0, g.sums - g.gradient.nbytes) for g in shared)
    weights = [0 if g.weights is None else g.weights.nbytes for g in work.groups.values()]
    return gradients + 2 * max(weights)


def shared_groups(layers: Sequence[Layer], groups: Mapping[str, Group]) -> list[Group]:
    """Returns the groups that several layers use, which count once in a placement."""
    uses = Counter(g for layer in layers for g in layer.uses)
    return [groups[g] for g, count in uses.items() if count > 1]


def _needs(nbytes: int, where: str, given: int) -> str:
    return f"needs {nbytes} bytes of the {where} ({size(nbytes)}), got {given}"


def largest(layers: Sequence[Layer], sizes: Mapping[str, int]) -> int:
    """Computes the bytes of the largest layer, for a placement, from the sizes of groups."""
    return max(sum(sizes[g] for g in layer.uses) for layer in layers)


def _numbers(group: Group) -> int:
    return sum(leaf.nbytes // leaf.dtype.itemsize for leaf in group.params.leaves)
