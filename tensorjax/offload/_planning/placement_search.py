"""Search for the placement of groups (host memory or disk) that gives the shortest step."""

import dataclasses
from collections.abc import Iterator

from tensorjax.offload._planning.placement_costs import (
    Times,
    Work,
    gradient_bytes,
    largest,
    predicted_seconds,
    step_times,
    stored_bytes,
    unbounded_bytes,
    update_bytes,
    update_memory,
)
from tensorjax.offload._store.statistics import size
from tensorjax.offload._training.options import Overflow
from tensorjax.offload._training.passes.layers import Activations

_TRIES = 64  # counts of groups in memory that are tried, which bounds the time of the search
_BOUNDS = 4  # on what an update takes from the disk, of those that there are
_STORING = 0.1  # of a step: how much better storing all gradients has to look, to be worth its risk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """Result of the placement search: groups in RAM or on disk, predicted step time and memory.

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

    Example:
      >>> from tensorjax import offload
      >>> times = offload.Times(compute=2.0, read=1.0, write=1.0, update=1.0, first=0.1, layer=0.2)
      >>> choice = offload.Choice(
      ...     activations="keep", times=times, seconds=times.bound, weights=1 << 20,
      ...     device_bytes=1 << 22, in_memory=("a",), gradient_bytes=None, gradient_overflow="wait",
      ...     stored=0.0, needs_store=False, host_bytes=1 << 22)
      >>> choice.seconds, choice.refusal
      (2.1, '')
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


def choose(work: Work, device_bytes: int, host_bytes: int) -> Choice:
    """Searches for the placement of groups, in RAM or on disk, that gives the fastest step.

    Groups in memory are not read and written; where they leave room, gradients wait, whose updates
    can then be left to the next forward pass, in which a disk has time.
    """
    groups = work.groups
    needed = largest(work.layers, {name: g.device.nbytes for name, g in groups.items()}) * 2
    total = sum(g.device.nbytes for g in groups.values())
    weights = min(device_bytes - work.on_device, total)
    fixed = work.on_host + gradient_bytes(work)
    short = []
    if weights < min(needed, total):
        short.append(_shortage(work.on_device + min(needed, total), "device", device_bytes))
    if host_bytes < (least := fixed + update_bytes(groups, ())):
        short.append(_shortage(least, "host", host_bytes))
    refusal = " and ".join(short)
    room = max(0, host_bytes - fixed)
    found = (
        _choice(work, max(0, weights), memory, room, refusal) for memory in _candidates(work, room)
    )
    return min(found, key=lambda choice: choice.seconds * (1 + _STORING * choice.stored))


def _candidates(work: Work, room: int) -> Iterator[list[str]]:
    """Yields candidate placements for the search: parameter groups to keep in host memory.

    All but some in even distances, so that the disk is busy in the whole of both passes; or those
    of the first layers, because their update is what a step waits for; or small ones first, where a
    large one would take the room of all; or large ones first. Those whose update would take most
    from the disk may all have to be in memory.
    """
    groups = work.groups
    # Without clipping one gradient waits while another is taken; else all may go to the store.
    two = 0 if work.clip else sum(sorted(g.gradient.nbytes for g in groups.values())[-2:])
    order = list(dict.fromkeys(g for layer in work.layers for g in layer.uses))
    lives = {name: stored_bytes(g) for name, g in groups.items()}
    takes = {name: g.taken(update_memory(g)) for name, g in groups.items()}
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
        everything = (
            len(memory) == len(groups) and unbounded_bytes(work) - gradient_bytes(work) <= left
        )
        if everything or update_bytes(groups, {*memory}) + two <= left:
            yield memory
    yield []


def _spread(order: list[str], away: int) -> list[str]:
    """Returns a placement to be tried: in RAM all but ``away`` evenly spaced groups."""
    rest = len(order) - 1
    places = {1 + (2 * n + 1) * rest // (2 * away) for n in range(away)}
    return [name for n, name in enumerate(order) if n not in places]


def _choice(work: Work, weights: int, memory: list[str], room: int, refusal: str) -> Choice:
    """Builds a `Choice` of the placement search: step time and memory with given groups in RAM."""
    groups, every = work.groups, work.gradients()
    held = sum(stored_bytes(groups[name]) for name in memory)
    host, left = work.on_host + gradient_bytes(work) + held, room - held
    free = unbounded_bytes(work) - gradient_bytes(work)
    gradients: int | None = None
    if len(memory) < len(groups) or free > left:
        under_way = update_bytes(groups, memory)
        gradients = min(every, max(0, left - under_way))
        host += under_way + gradients
    else:
        host += free
    # Each has to have room by itself.
    largest = max(g.gradient.nbytes for g in groups.values())
    waits = not work.clip and gradients is not None and gradients >= largest
    spilled = 0 if waits or gradients is None else every - gradients
    later = 1.0 if gradients is None or not every else gradients / every
    times, once = step_times(work, weights, {*memory}, spilled)
    return Choice(
        activations=work.activations,
        times=times,
        seconds=predicted_seconds(work, times, once, later),
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


def _shortage(nbytes: int, where: str, given: int) -> str:
    """Formats for an error how many bytes the search needs, of which memory, and the limit."""
    return f"needs {nbytes} bytes of the {where} ({size(nbytes)}), got {given}"
