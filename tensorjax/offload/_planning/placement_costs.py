"""Costs of a placement of groups: its step time, the lower bound of that, and its memory."""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tensorjax.offload._planning.machine_speed import Machine
from tensorjax.offload._training.passes.layers import Activations, Layer
from tensorjax.offload._training.updates.host_optimizer import Into
from tensorjax.offload._training.updates.parameter_groups import Group


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Times of the parts of a step (compute, read, write, update), costs of a placement.

    Attributes:
      compute: T_c, forward and backward pass of all layers.
      read, write: T_r and T_w, all reads and all writes, measured while the other goes on.
      update: T_o, the optimiser of all parameters.
      first: ℓ₀, reading and updating what the first layer needs.
      layer: f + b, forward and backward pass of one layer.

    Raises:
      ValueError: a time that is negative, NaN or infinite.

    Example:
      >>> from tensorjax import offload
      >>> times = offload.Times(compute=2.0, read=1.0, write=1.0, update=1.0, first=0.1, layer=0.2)
      >>> times.bound < times.after_backward
      True
    """

    compute: float
    read: float
    write: float
    update: float
    first: float
    layer: float

    def __post_init__(self) -> None:
        """Raises ValueError unless the times that a placement costs are finite and not negative."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name}: expected seconds >= 0, got {value!r}")

    @property
    def bound(self) -> float:
        """Lower bound P* on the seconds that a step with this placement costs, by exact schedules.

        P* = max(T_c + ℓ₀, max(T_r, T_w, T_o) + f + b), in the symbols of the attributes.

        The first layer cannot be computed before it has been updated, which waits for the last
        gradient; and what moves can overlap with everything but the first gradient's computation.

        Example:
          >>> from tensorjax import offload
          >>> times = offload.Times(
          ...     compute=1.0, read=1.0, write=0.5, update=0.4, first=0.1, layer=0.05
          ... )
          >>> times.bound, times.after_backward
          (1.1, 2.0)
        """
        other = max(self.read, self.write, self.update)
        return max(self.compute + self.first, other + self.layer)

    @property
    def after_backward(self) -> float:
        """Seconds that a placement costs if updates follow backward: T_c + max(T_r, T_w, T_o)."""
        return self.compute + max(self.read, self.write, self.update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Training step whose groups are to be placed in RAM or on disk: layers, times, memory.

    Attributes:
      activations: how they are treated.
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
        """Returns the gradient bytes of all groups that are to be placed in RAM or on disk."""
        return sum(g.gradient.nbytes for g in self.groups.values())


def step_times(work: Work, weights: int, memory: set[str], spilled: int) -> tuple[Times, float]:
    """Predicts the times that a placement in RAM or on disk costs, and those of forward reads."""
    groups, machine = work.groups, work.machine
    disk = [g for name, g in groups.items() if name not in memory]
    lives = sum(map(stored_bytes, disk))
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


def predicted_seconds(work: Work, times: Times, once: float, later: float) -> float:
    """Predicts a placement's cost in seconds if some updates wait for the next forward pass.

    Args:
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


def stored_bytes(group: Group) -> int:
    """Returns the bytes that placing a parameter group costs in RAM or on disk: all its arrays."""
    return sum(packing.nbytes for packing in group.packings)


def gradient_bytes(work: Work) -> int:
    """Computes what a placement costs in host bytes of gradients in transfer or partly summed.

    The gradient that arrives, and those that other layers are to add to; from an accelerator, which
    adds up by itself, all of two layers.
    """
    groups, shared = work.groups.values(), shared_groups(work.layers, work.groups)
    if any(g.lent for g in groups):
        return 2 * largest(work.layers, {g.name: g.gradient.nbytes for g in groups})
    arriving = max(g.sums if g in shared else g.gradient.nbytes for g in groups)
    return arriving + sum(g.sums for g in shared)


def update_bytes(groups: Mapping[str, Group], memory: Collection[str]) -> int:
    """Computes the most host bytes that one update costs in a placement with groups on disk."""
    return max(
        g.taken("place" if name in memory else update_memory(g)) for name, g in groups.items()
    )


def update_memory(group: Group) -> Into:
    """Returns the memory that updates of a group placed on disk overwrite: spare or gradient."""
    return "spare" if group.lent else "gradient"


def unbounded_bytes(work: Work) -> int:
    """Computes the host bytes that gradients and updates cost in a placement without a limit."""
    gradients = work.gradients()
    if not any(g.lent for g in work.groups.values()):
        shared = shared_groups(work.layers, work.groups)
        gradients += sum(max(0, g.sums - g.gradient.nbytes) for g in shared)
    weights = [0 if g.weights is None else g.weights.nbytes for g in work.groups.values()]
    return gradients + 2 * max(weights)


def shared_groups(layers: Sequence[Layer], groups: Mapping[str, Group]) -> list[Group]:
    """Returns the parameter groups that several layers use, whose costs are counted once."""
    uses = Counter(g for layer in layers for g in layer.uses)
    return [groups[g] for g, count in uses.items() if count > 1]


def largest(layers: Sequence[Layer], sizes: Mapping[str, int]) -> int:
    """Computes what the largest layer costs in bytes, from the sizes of the groups placed."""
    return max(sum(sizes[g] for g in layer.uses) for layer in layers)


def _numbers(group: Group) -> int:
    return sum(leaf.nbytes // leaf.dtype.itemsize for leaf in group.params.leaves)
