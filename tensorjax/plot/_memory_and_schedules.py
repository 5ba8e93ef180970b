"""Memory plans and schedules of training from disk, and shards of arrays on a mesh of devices."""

from collections.abc import Sequence

import jax
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from tensorjax import offload
from tensorjax.offload._training import trace as spans
from tensorjax.plot._axes import COLOURS, INK, axes_of, concrete

_PLACES = {"host": COLOURS[2], "disk": COLOURS[1]}


def memory(plan: offload.Plan, *, ax: Axes | None = None) -> Axes:
    """Draws a memory plan: a bar for each parameter group, in host memory or on disk.

    Args:
      plan: of `offload.plan`.
      ax: to draw into; new axes if None.

    Returns:
      The axes, in MiB; parameters are full, states hatched. The title has the predicted time of a
      step and its lower bound.

    Raises:
      TypeError: another object than a plan.

    Example:
      >>> import jax, matplotlib, optax
      >>> matplotlib.use("Agg")
      >>> from tensorjax import offload, plot
      >>> def loss(params, x, batch, key):
      ...     return ((batch @ params[0]["w"]) ** 2).mean()
      >>> layers = [offload.Layer(name="only", apply=loss)]
      >>> params = {"only": {"w": jax.ShapeDtypeStruct((256, 256), "float32")}}
      >>> plan = offload.plan(
      ...     layers, params, optax.adam(1e-3), jax.ShapeDtypeStruct((8, 256), "float32"),
      ...     machine=offload.Machine(read=2e9, write=1e9, place=2e10, update=1e9),
      ...     device_bytes=1 << 24, host_bytes=1 << 24, seconds={"only": (0.01, 0.02)},
      ... )
      >>> plot.memory(plan).get_xlabel()
      'MiB'

    Source: ours.
    """
    if not isinstance(plan, offload.Plan):
        raise TypeError(f"plan: expected an offload.Plan, got {type(plan).__name__}")
    ax = axes_of(ax, 6.4, 0.8 + 0.22 * max(4, len(plan.rows)))
    for k, (_, params, state, _, home) in enumerate(plan.rows):
        colour, mib = _PLACES[home], 2.0**-20
        ax.barh(k, params * mib, color=colour, ec=INK, lw=0.5)
        ax.barh(k, state * mib, left=params * mib, color=colour, ec=INK, lw=0.5, hatch="///")
    ax.set_yticks(range(len(plan.rows)), [row[0] for row in plan.rows], fontsize=7)
    ax.invert_yaxis()
    homes = [home for home in _PLACES if any(row[-1] == home for row in plan.rows)]
    ax.margins(x=0.3)  # room for the legend beside the bars
    boxes = [Rectangle((0, 0), 1, 1, fc=_PLACES[home], ec=INK) for home in homes]
    ax.legend(boxes, homes, loc="upper right")
    ax.set_xlabel("MiB")
    ax.set_title(f"{plan.seconds:.3g} s a step, bound {plan.bound:.3g} s", fontsize=9)
    return ax


def schedule(
    trace: offload.Trace, steps: Sequence[int] | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draws the schedule of a training from disk: reads, computation, updates and writes.

    Args:
      trace: of `offload.Trainer`, with ``Trainer.trace``.
      steps: which, counted from 0; the last two that were computed if None.
      ax: to draw into; new axes if None.

    Returns:
      The axes, in seconds: a row for each kind of activity, a dotted line where a step begins.

    Raises:
      TypeError: another object than a trace. ValueError: no spans of these steps.

    Example:
      >>> import matplotlib
      >>> matplotlib.use("Agg")
      >>> from tensorjax import offload, plot
      >>> trace = offload.Trace()
      >>> trace.add("read", "layer 1", 0.0, 0.2, 0)
      >>> trace.add("compute", "layer 1 forward", 0.2, 0.5, 0)
      >>> [label.get_text() for label in plot.schedule(trace).get_yticklabels()]
      ['compute', 'read']

    Source: ours.
    """
    if not isinstance(trace, offload.Trace):
        raise TypeError(f"trace: expected an offload.Trace, got {type(trace).__name__}")
    ax = axes_of(ax, 8.0, 3.2)
    handles = spans.draw(trace, ax, steps)
    if handles:
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    return ax


def shards(x: jax.Array | jax.ShapeDtypeStruct, *, ax: Axes | None = None) -> Axes:
    """Draws the memory of an array on a mesh: its parts on devices, over its first two axes.

    Args:
      x: an array, or a `jax.ShapeDtypeStruct` with a sharding. Of more than two axes those after
        the second must not be split.
      ax: to draw into; new axes if None.

    Returns:
      The axes; every part has the numbers of the devices that hold it.

    Raises:
      ValueError: no axes, no sharding, or one that splits a later axis. TypeError: a traced array.

    Example:
      >>> import jax.numpy as jnp
      >>> import matplotlib
      >>> matplotlib.use("Agg")
      >>> from tensorjax import plot
      >>> len(plot.shards(jnp.zeros((8, 8))).patches)
      1

    Source: ours.
    """
    concrete("x", x)
    sharding = getattr(x, "sharding", None)
    if sharding is None or not x.ndim:
        raise ValueError(f"x: expected an array of one axis or more with a sharding, got {x!r:.80}")
    parts: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for device, index in sharding.devices_indices_map(x.shape).items():
        bounds = tuple(s.indices(n)[:2] for s, n in zip(index, x.shape, strict=True))
        parts.setdefault(bounds, []).append(device.id)
    if any(b != (0, n) for at in parts for b, n in zip(at[2:], x.shape[2:], strict=True)):
        raise ValueError(f"x: an axis after the second is split, {sharding}; draw a slice of it")
    rows, columns = x.shape[0], x.shape[1] if x.ndim > 1 else 1
    ax = axes_of(ax, 4.2, 3.4)
    for k, (at, devices) in enumerate(sorted(parts.items())):
        (top, bottom), (left, right) = at[0], at[1] if x.ndim > 1 else (0, 1)
        colour = COLOURS[k % len(COLOURS)]
        ax.add_patch(
            Rectangle((left, top), right - left, bottom - top, fc=colour, ec=INK, alpha=0.55)
        )
        middle = (left + right) / 2, (top + bottom) / 2
        ax.text(*middle, _listed(devices), ha="center", va="center", fontsize=8)
    ax.set(xlim=(0, columns), ylim=(rows, 0), xlabel="axis 1", ylabel="axis 0")
    ax.set_title(f"{tuple(x.shape)} on {len(sharding.device_set)} devices", fontsize=9)
    return ax


def _listed(devices: list[int]) -> str:
    shown = ", ".join(map(str, sorted(devices)[:8]))
    return shown + (", …" if len(devices) > 8 else "")
