"""Layout on a device mesh from the options of the command line."""

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax

from tensorjax import parallel
from tensorjax.models.gpt2 import GPT2Config

Name = Literal["single", "1d", "1d+sequence", "fsdp+tp", "2d", "summa", "auto"]
CHOICE = get_args(Name)[1:-1]  # what "auto" chooses from on several devices


def layout(
    name: Name,
    devices: int | None,
    config: GPT2Config,
    batch: int,
    *,
    itemsize: int = 4,
    say: Callable[[Any], None] = lambda table: None,
) -> parallel.Layout:
    """Returns a parallel layout for a model, by name and number of devices.

    Meshes of two dimensions are as square as they can be, with fewer rows than columns; those of
    "auto" are the plan's, see `tensorjax.parallel.plan`.

    Args:
        name: Of the layout.
        devices: How many; all by default.
        config: Sizes of the model.
        batch: Sequences of a step.
        itemsize: Bytes of a number in the computation, for the plan.
        say: Told the plan, where there is one.

    Raises:
        ValueError: Sizes that do not split, or fewer devices than were asked for.
    """
    if devices is not None and devices < 1:
        raise ValueError(f"devices: expected at least 1, got {devices}")
    count = jax.device_count() if devices is None else devices
    if count > jax.device_count():
        raise ValueError(
            f"devices: expected at most the {jax.device_count()} that there are, got {count}; "
            f"a CPU simulates them with XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    if jax.process_count() > 1 and (name == "single" or count != jax.device_count()):
        raise ValueError(
            f"layout: expected one that takes all {jax.device_count()} devices of "
            f"{jax.process_count()} processes, got {name!r} on {1 if name == 'single' else count}; "
            "give --layout auto, and no --devices or as many as there are"
        )
    if name == "single" or (name == "auto" and count == 1):
        return parallel.Single()
    if name == "auto":
        plan = parallel.plan(config, count, batch, layouts=CHOICE, itemsize=itemsize)
        say(plan)
        return parallel.layout(plan.best.name, parallel.mesh(*plan.best.mesh))
    rows = 1 if name.startswith("1d") else max(r for r in range(1, count + 1)
                                               if count % r == 0 and r * r <= count)  # fmt: skip
    made = parallel.layout(name, parallel.mesh(rows, count // rows))
    for axis, size in (("heads", config.heads), ("embed", config.features), ("batch", batch),
                       ("mlp", config.hidden), ("length", config.length)):  # fmt: skip
        made.padded(axis, size)  # raises where it does not split
    _check_vocabulary(made, config)
    return made


def _check_vocabulary(made: parallel.Layout, config: GPT2Config) -> None:
    """Raises ValueError if a layout cannot split the padded token table evenly."""
    blocks, rows = made.ways(made.wide), config.padded
    if rows % blocks:
        step = math.lcm(blocks, GPT2Config(vocabulary=1).padded)
        down = rows // step * step
        near = f"{down} or {down + step}" if down else f"{step}"
        raise ValueError(
            f"vocabulary: expected one whose padded table splits into {blocks} blocks for layout "
            f"{made.name!r}, got {config.vocabulary}, padded to {rows} rows; take {near}, or "
            "another number of devices"
        )
