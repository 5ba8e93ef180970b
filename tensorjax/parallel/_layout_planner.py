"""Layout planner: predicts memory, traffic and time of a training step before compilation."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from jax.sharding import AbstractMesh, AxisType

from tensorjax import _check
from tensorjax.parallel import _gpt2_cost_formulas
from tensorjax.parallel._alpha_beta_model import Machine, seconds_to_send
from tensorjax.parallel._gpt2_cost_formulas import Remat
from tensorjax.parallel._layout import Layout
from tensorjax.parallel._named_layouts import NAMES, layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """Predicted memory, communication and time of a training step for one layout on one mesh.

    Attributes:
      name: of the layout.
      mesh: sizes of "r", "c", or of "d", "r", "c".
      arguments: bytes of parameters, of the optimiser's state and of the batch.
      gradients: bytes.
      temporary: bytes of activations and of all else that a step needs for a while.
      activations: bytes of what the blocks keep for the backward pass; part of ``temporary``.
      wire: bytes sent, by purpose ("columns", "rows", "weights", …).
      messages: sent one after the other; those of vectors go along with others.
      compute: seconds for products.
      communication: seconds for sending, nothing of it hidden behind products.
      refusal: why the layout cannot be used; all costs are then zero.

    Example:
      >>> import types
      >>> from tensorjax import parallel
      >>> xl = types.SimpleNamespace(
      ...     layers=48, features=1600, heads=25, vocabulary=50257, length=1024)
      >>> best = parallel.plan(xl, 4, 32, layouts=["fsdp+tp"]).best
      >>> best.mesh, best.seconds == best.compute + best.communication, best.refusal
      ((4, 1), True, '')
    """

    name: str
    mesh: tuple[int, ...]
    arguments: float = 0.0
    gradients: float = 0.0
    temporary: float = 0.0
    activations: float = 0.0
    wire: dict[str, float] = dataclasses.field(default_factory=dict)
    messages: int = 0
    compute: float = 0.0
    communication: float = 0.0
    refusal: str = ""

    @property
    def sent(self) -> float:
        """Bytes that a device sends per training step, as predicted by the layout planner."""
        return sum(self.wire.values())

    @property
    def memory(self) -> float:
        """Peak bytes that a device holds, as predicted by the layout planner."""
        return self.arguments + self.gradients + self.temporary

    @property
    def seconds(self) -> float:
        """Seconds of a training step predicted by the planner: compute plus communication."""
        return self.compute + self.communication


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """Predictions of the layout planner: costs of all candidates, the best; printed as a table.

    Attributes:
      candidates: as they were looked at.
      memory_limit: bytes per device, or None.

    Example:
      >>> from tensorjax import parallel
      >>> from tensorjax.models.gpt2 import GPT2Config
      >>> found = parallel.plan(GPT2Config(heads=16), devices=4, batch=32)
      >>> found.best.seconds <= found["1d"].seconds
      True
    """

    candidates: tuple[Candidate, ...]
    memory_limit: float | None = None

    @property
    def best(self) -> Candidate:
        """Planner's fastest layout that fits the memory limit; of equals, that of least memory.

        Raises:
          ValueError: none fits, or all are refused.
        """
        usable = [c for c in self.candidates if not c.refusal]
        if not usable:
            raise ValueError(
                "layouts: expected at least one that splits the model and the batch, but all are "
                f"refused:\n{self}"
            )
        fitting = [c for c in usable if self.memory_limit is None or c.memory <= self.memory_limit]
        if not fitting:
            least = min(c.memory for c in usable)
            raise ValueError(
                f"memory_limit: expected at least {least:,.0f} bytes per device, got "
                f'{self.memory_limit}; take more devices, a smaller batch, or remat="full" '
                f"in the configuration\n{self}"
            )
        return min(fitting, key=lambda c: (c.seconds, c.memory))

    def __getitem__(self, name: str) -> Candidate:
        """Returns the planner's cost of a layout on its fastest mesh, or a refused one."""
        own = [c for c in self.candidates if c.name == name]
        if not own:
            names = sorted({c.name for c in self.candidates})
            raise KeyError(f"expected the name of a layout, one of {names}, got {name!r}")
        return min(own, key=lambda c: (bool(c.refusal), c.seconds, c.memory))

    def __str__(self) -> str:
        """Formats the planner's predicted costs of all layouts as a table, the fastest first."""
        head = ("layout", "mesh", "args MiB", "temp MiB", "wire MiB", "messages", "ms", "")
        usable = sorted(
            (c for c in self.candidates if not c.refusal), key=lambda c: (c.seconds, c.memory)
        )
        rows = [head, *(self._row(c) for c in usable)]
        rows += [
            (c.name, _times(c.mesh), *[""] * 5, c.refusal) for c in self.candidates if c.refusal
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
        lines = []
        for row in rows:
            cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1])]
            cells += [row[i].rjust(widths[i]) for i in range(2, len(widths))]
            lines.append("  ".join([*cells, row[-1]]).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _row(self, c: Candidate) -> tuple[str, ...]:
        over = self.memory_limit is not None and c.memory > self.memory_limit
        return (
            c.name,
            _times(c.mesh),
            *(f"{n / 2**20:,.1f}" for n in (c.arguments, c.temporary, c.sent)),
            str(c.messages),
            f"{1e3 * c.seconds:,.2f}",
            "does not fit" if over else "",
        )


def plan(
    config: Any,
    devices: int,
    batch: int,
    *,
    length: int | None = None,
    layouts: Sequence[str] | None = None,
    meshes: Sequence[tuple[int, ...]] | None = None,
    remat: bool | Remat | None = None,
    itemsize: int = 4,
    param_itemsize: int = 4,
    states: float = 2,
    machine: Machine | None = None,
    memory_limit: float | None = None,
) -> Plan:
    """Plans layouts: predicts memory, traffic and time of a GPT-2 training step for each.

    The program that is predicted is that of loss and gradient, with dense layers and without
    dropout: the optimiser counts by its state alone, masks of dropout do not count.

    Bytes on the wire follow from what the layouts do, collective by collective; compiled programs
    on simulated devices agree (see the tests). Temporary bytes are a fit to what XLA lays out on a
    CPU, where attention's scores are stored. XLA for CPUs computes half precision in single
    precision: programs that it compiles hold and send as with ``itemsize=4``. A model of a single
    block has no loop, and XLA merges a part of what is computed again: temporary bytes are then
    predicted up to a third too low, wire bytes up to a sixth too high. Time is an α–β model: it
    knows neither topology nor overlap.

    Args:
      config: with ``layers``, ``features``, ``heads``, ``vocabulary`` and ``length``, as
        `tensorjax.models.gpt2.GPT2Config` has them; ``padded`` rows of the token table and
        ``remat`` if they are there.
      devices: how many. They need not be there.
      batch: sequences per step, on all devices together.
      length: tokens of a sequence; ``config.length`` if None.
      layouts: names to choose from; all if None, "single" among them where there is one device.
      meshes: (r, c) or (d, r, c), of so many devices; all that make a difference if None.
      remat: what the backward pass computes again: "none" (or False), all of a block but its
        products with weights ("dots"), or whole blocks ("full", or True). None takes
        ``config.remat``, and "full" where there is none.
      itemsize: bytes of a number of the computation: 2 for bfloat16. Logits take four at least.
      param_itemsize: bytes of a number of the parameters, of their gradients and of the optimiser.
      states: optimiser-state entries per parameter: two for Adam.
      machine: links and products; the defaults of `Machine` are an assumption.
      memory_limit: bytes per device that may be held.

    Returns:
      A `Plan`; print it for the table.

    Raises:
      TypeError: a configuration without these fields.
      ValueError: sizes that are no positive integers, unknown layouts, meshes of another number of
        devices, a length that the configuration has no positions for; by name. A layout whose
        blocks would not be equal is not an error: the table says why it is refused.

    Example:
      >>> import types
      >>> from tensorjax import parallel
      >>> xl = types.SimpleNamespace(
      ...     layers=48, features=1600, heads=25, vocabulary=50257, length=1024)
      >>> found = parallel.plan(xl, 4, 32, layouts=["1d", "fsdp+tp"])
      >>> found.best.name, found.best.mesh
      ('fsdp+tp', (4, 1))
      >>> found["1d"].refusal.partition(";")[0]
      "heads: expected a multiple of 4 for layout '1d' on a mesh of r=1 × c=4, got 25"

    Source: ours; the layouts are those of the papers named in `Megatron`, `FsdpTp` and `Summa`.
    """
    devices = _check.integer("devices", devices, low=1)
    batch = _check.integer("batch", batch, low=1)
    _check_config(config)
    words = config.length
    if length is not None:
        words = _check.integer("length", length, low=1, high=config.length)
    names = _names(layouts, devices)
    shapes = None if meshes is None else [_shape(mesh, devices) for mesh in meshes]
    if machine is not None and not isinstance(machine, Machine):
        raise TypeError(f"machine: expected a parallel.Machine, got {machine!r}")
    if not (isinstance(states, int | float) and 0 <= states < math.inf):
        raise ValueError(f"states: expected a number >= 0, got {states!r}")
    if memory_limit is not None:
        _check.number("memory_limit", memory_limit, low=0, open=True, finite=False)
    step = _Step(
        remat=_remat(getattr(config, "remat", "full") if remat is None else remat),
        positions=config.length,
        itemsize=_check.integer("itemsize", itemsize, low=1, high=8),
        param_itemsize=_check.integer("param_itemsize", param_itemsize, low=1, high=8),
        states=states,
        machine=Machine() if machine is None else machine,
    )
    found = []
    for name in names:
        own = list(_meshes(name, devices)) if shapes is None else shapes
        if not own or (name == "single" and devices > 1):
            wanted = "one device" if name == "single" else "more than one device"
            refusal = f"devices: expected {wanted} for layout {name!r}, got {devices}"
            found.append(Candidate(name=name, mesh=(1, devices), refusal=refusal))
            continue
        for shape in own:
            try:
                made = _layout(name, shape)
                sizes = _gpt2_cost_formulas.Sizes.of(made, config, batch, words)
            except ValueError as error:
                found.append(Candidate(name=name, mesh=shape, refusal=str(error)))
                continue
            found.append(step.candidate(made, sizes, shape))
    return Plan(tuple(found), memory_limit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Step:
    """Training step whose cost the layout planner predicts: precision, remat, machine."""

    remat: Remat
    positions: int
    itemsize: int
    param_itemsize: int
    states: float
    machine: Machine

    def candidate(
        self, made: Layout, sizes: _gpt2_cost_formulas.Sizes, shape: tuple[int, ...]
    ) -> Candidate:
        wire: dict[str, float] = {}
        hops = 0
        for part in _gpt2_cost_formulas.collectives(made, sizes, self.positions, self.remat):
            width = max(self.itemsize, 4) if part.single else self.itemsize
            wire[part.name] = wire.get(part.name, 0.0) + width * part.sent
            hops += part.hops
        numbers = sizes.parameters(self.positions) / (sizes.wide * sizes.stored)
        parameters = self.param_itemsize * numbers
        kept, worked = _gpt2_cost_formulas.temporary(made, sizes, self.remat, self.itemsize)
        return Candidate(
            name=made.name if made.mesh is not None else "single",
            mesh=shape,
            arguments=(1 + self.states) * parameters + 12 * sizes.tokens,
            gradients=parameters,
            temporary=self.itemsize * (kept + worked),
            activations=self.itemsize * kept,
            wire={name: sent for name, sent in wire.items() if sent},
            messages=hops,
            compute=_gpt2_cost_formulas.flops(sizes, self.remat) / self.machine.flops,
            communication=seconds_to_send(self.machine, sum(wire.values()), hops),
        )


_FIELDS = ("layers", "features", "heads", "vocabulary", "length")


def _check_config(config: Any) -> None:
    missing = [name for name in _FIELDS if not hasattr(config, name)]
    if missing:
        raise TypeError(
            f"config: expected {', '.join(_FIELDS)}, as GPT2Config has them, got "
            f"{type(config).__name__} without {', '.join(missing)}"
        )
    for name in _FIELDS:
        _check.integer(f"config.{name}", getattr(config, name), low=1)


def _names(layouts: Sequence[str] | None, devices: int) -> tuple[str, ...]:
    if layouts is None:
        return NAMES if devices == 1 else NAMES[1:]
    names = (layouts,) if isinstance(layouts, str) else tuple(layouts)
    if not names:
        raise ValueError(f"layouts: expected names among {', '.join(NAMES)}, got none")
    for name in names:
        if name not in NAMES:
            raise ValueError(f"layouts: expected names among {', '.join(NAMES)}, got {name!r}")
    return names


def _shape(mesh: Any, devices: int) -> tuple[int, ...]:
    shape = _check.shape("meshes", mesh)
    if len(shape) not in (2, 3) or math.prod(shape) != devices:
        raise ValueError(
            f"meshes: expected (r, c) or (d, r, c) whose product is devices = {devices}, got "
            f"{shape}"
        )
    return shape


def _remat(given: Any) -> Remat:
    named: dict[Any, Remat] = {False: "none", True: "full"}
    if isinstance(given, bool):
        return named[given]
    if given not in get_args(Remat):
        raise ValueError(f"remat: expected a bool or one of {get_args(Remat)}, got {given!r}")
    return given


def _meshes(name: str, devices: int) -> Iterator[tuple[int, ...]]:
    """Yields the shapes of meshes of ``devices`` devices that the planner tries for a layout."""
    if name == "single":
        if devices == 1:
            yield (1, 1)
    elif name.startswith("1d"):
        yield (1, devices)
    elif name == "2.5d":
        for depth in _divisors(devices):
            if depth > 1:
                yield from ((depth, *mesh) for mesh in _meshes("2d", devices // depth))
    else:
        # One column is plain fsdp, one row is 1D with its x split along the features.
        least = 1 if name == "fsdp+tp" else 2
        shapes = [(r, devices // r) for r in _divisors(devices)]
        yield from [s for s in shapes if s[0] > 1 and s[1] >= least] or shapes[-1:]


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def _layout(name: str, shape: tuple[int, ...]) -> Layout:
    axes = ("d", "r", "c")[-len(shape) :]
    mesh: Any = AbstractMesh(tuple(shape), axes, axis_types=(AxisType.Auto,) * len(axes))
    return layout(name, None if name == "single" else mesh)


def _times(mesh: tuple[int, ...]) -> str:
    return "×".join(map(str, mesh))
