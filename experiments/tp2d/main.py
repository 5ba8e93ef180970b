"""2D tensor parallelism of GPT-2 beside 1D, sequence parallelism, fsdp × tp and 2.5D.

``python -m experiments run tp2d`` compiles one training step (loss and gradient) of GPT-2 for every
layout on simulated devices and reads off what each device holds and sends; compares losses and
gradients with those of one device; and models weak scaling. Wall times are taken on accelerators
only: on simulated devices they mean nothing. README.md in this folder says what came out.

Source: Zhu, Dong, "2D tensor parallelism", CAAI Transactions on Intelligent Systems 20(5), 2025, of
which only the abstract is known here: GPT-2, 2 × 2 devices, 1.84 × the speed of 1D tensor
parallelism, less memory, weak-scaling efficiency 86 %.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from experiments import Run
from experiments.tp2d.steps import Step, largest_error, make, mesh_shape, parameters
from tensorjax import parallel
from tensorjax.models.gpt2 import GPT2Config

MIB = 2**20

# T tokens, H features: steps on either side of the border that theory draws for the wire, at
# T/H = 4, and of that for temp, which lies below 1.
CASES = {
    "T/H = 8": (8, {"length": 256, "features": 256, "layers": 8}),
    "T/H = 1": (4, {"length": 128, "features": 512, "layers": 4}),
    "T/H = 1/8": (4, {"length": 16, "features": 512, "layers": 4}),
}

# The layouts that theory compares: which one sends and holds less depends on T/H.
THEORY = ("1d", "summa")

# What the abstract says, at 4 devices.
PAPER = ({"devices": 4, "layout": "summa", "speed / 1D": 1.84, "efficiency": 0.86},)


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults take some minutes on two CPU cores."""

    devices: tuple[int, ...] = (4, 16)
    """Numbers of devices that steps are compiled for; on a CPU they are simulated."""
    layouts: tuple[str, ...] = ("1d", "1d+sequence", "fsdp+tp", "2d", "summa", "2.5d")
    """Layouts to compare; "summa" is the paper's."""
    heads: int = 16
    """Attention heads of the compiled models."""
    vocabulary: int = 2048
    """Tokens of the compiled models."""
    scaled: tuple[int, ...] = (1, 4, 16, 64)
    """Numbers of devices for the model of weak scaling."""
    batch: int = 8
    """Sequences per device in that model, which is of GPT-2 small."""
    flops: float = 100e12
    """Operations per second that a device reaches, in that model."""
    bandwidth: float = 100e9
    """Bytes per second that a device sends, in that model."""
    latency: float = 5e-6
    """Seconds per message, in that model."""
    repeats: int = 20
    """Steps that are timed on accelerators."""
    seed: int = 0
    """Seed of parameters and tokens."""

    def __post_init__(self) -> None:
        """Raises ValueError for options that would fail late in a run."""
        for name in ("devices", "scaled"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name}: expected numbers >= 1, got {getattr(self, name)}")
        if min(self.devices) < 4:
            raise ValueError(f"devices: expected at least 4 of them, got {self.devices}")
        unknown = [name for name in self.layouts if name not in parallel.NAMES[1:]]
        if unknown or not self.layouts:
            raise ValueError(
                f"layouts: expected names among {', '.join(parallel.NAMES[1:])}, got {self.layouts}"
            )
        if self.repeats < 1:
            raise ValueError(f"repeats: expected at least 1, got {self.repeats}")

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: four devices, and the layouts of the theory."""
        return cls(devices=(4,), layouts=("1d", "fsdp+tp", "2d", "summa"))


def run(config: Config, run: Run) -> None:
    """Compares layouts: compiled costs, equality, model times, and wall times on accelerators."""
    simulate(max(config.devices))
    rows = list(costs(config, run))
    run.table(
        "costs",
        rows,
        key=["step", "devices", "layout"],
        caption="Loss and gradient with rematerialisation, float32: MiB per device, as compiled "
        "and as predicted",
    )
    worst = [abs(row[f"{what} predicted"] / row[what] - 1)
             for row in rows for what in ("temp", "wire") if row[what]]  # fmt: skip
    run.metric("worst error of a prediction", max(worst))
    for step in CASES:
        own = {row["layout"]: row for row in rows if row["step"] == step and row["devices"] == 4}
        for what in ("wire", "temp"):
            if {"1d", "summa"} <= own.keys():
                ratio = own["summa"][what] / own["1d"][what]
                run.metric(f"{what} of summa / 1d at {step}, 4 devices", ratio)
    picked = list(choices(config, rows))
    if picked:
        run.table(
            "choices",
            picked,
            key=["step", "devices"],
            caption="What is least among 1d and summa, as compiled (MiB per device), and what "
            "`plan` predicts to be least",
        )
        run.metric("choices missed", sum(row[f"{what} missed"] for row in picked
                                         for what in ("wire", "temp")))  # fmt: skip
    equal = list(equality(config, run))
    if equal:
        run.table(
            "equality",
            equal,
            key=["layout"],
            caption="A tiny GPT-2 on four devices against one: relative errors, float32",
        )
        run.metric("largest error of a gradient", max(row["gradient"] for row in equal))
    scaled = list(scaling(config))
    run.compare(*outcome(scaled))
    run.table(
        "scaling",
        scaled,
        key=["devices", "layout"],
        paper=PAPER,
        source="paper, recalled",
        caption="Weak scaling of GPT-2 small, a model and not a measurement: "
        f"{config.batch} sequences of 1024 tokens per device",
    )
    if jax.default_backend() == "cpu":
        run.console.print("No wall times: simulated devices share the cores of one machine.")
        return
    timed = list(times(config, run))
    if timed:
        run.table("times", timed, key=["step", "devices", "layout"], caption="Seconds per step")


def outcome(scaled: list[dict[str, Any]]) -> tuple[str, bool | None]:
    """Returns the modelled speed of the paper's layout over 1D on four devices, as a sentence.

    And whether it reaches the paper's.
    """
    (published,) = PAPER
    for row in scaled:
        if (row["devices"], row["layout"]) == (4, published["layout"]) and row["speed / 1D"]:
            said = f"{row['speed / 1D']:.3g} × 1D on 4 devices, in the α–β model"
            return said, bool(row["speed / 1D"] >= published["speed / 1D"])
    return "not modelled on 4 devices", None


def simulate(count: int) -> None:
    """Makes the CPU simulate ``count`` devices, if JAX has not started yet."""
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return


def layouts(config: Config, run: Run) -> Iterator[tuple[str, int, GPT2Config, int, Any]]:
    """Yields every step, number of devices and layout that is possible here."""
    for step, (batch, sizes) in CASES.items():
        model = GPT2Config(
            **sizes, heads=config.heads, vocabulary=config.vocabulary, dropout=0.0, remat="full"
        )
        yield step, 1, model, batch, parallel.Single()
        for devices in config.devices:
            if devices > jax.device_count():
                run.console.print(f"{devices} devices: there are {jax.device_count()}, left out")
                continue
            for name in config.layouts:
                shape = mesh_shape(name, devices)
                found = parallel.plan(model, devices, batch, layouts=[name], meshes=[shape])
                if refusal := found.candidates[0].refusal:
                    run.console.print(f"{step}, {devices} devices, {name}: {refusal}")
                    continue
                yield step, devices, model, batch, make(name, shape)


def costs(config: Config, run: Run) -> Iterator[dict[str, Any]]:
    """Yields rows of memory and traffic of compiled steps, beside predicted ones."""
    for step, devices, model, batch, layout in run.progress(list(layouts(config, run)), "compiled"):
        program = Step(model, layout, batch).compiled()
        memory, traffic = parallel.memory(program), parallel.traffic(program)
        shape = (1, 1) if layout.mesh is None else tuple(layout.mesh.shape.values())
        (wanted,) = parallel.plan(
            model, devices, batch, layouts=[layout.name], meshes=[shape], states=0
        ).candidates
        yield {
            "step": step,
            "devices": devices,
            "layout": layout.name,
            "mesh": "×".join(map(str, shape)),
            "arguments": memory.arguments / MIB,
            "temp": memory.temporary / MIB,
            "temp predicted": wanted.temporary / MIB,
            "wire": traffic.total / MIB,
            "wire predicted": wanted.sent / MIB,
            "collectives": sum(traffic.counts.values()),
        }


def choices(config: Config, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields which of the theory's two layouts costs less, as compiled and as planned."""
    for step, devices in dict.fromkeys((row["step"], row["devices"]) for row in rows):
        both = {
            row["layout"]: row
            for row in rows
            if (row["step"], row["devices"]) == (step, devices) and row["layout"] in THEORY
        }
        if len(both) < len(THEORY):
            continue
        found: dict[str, Any] = {"step": step, "devices": devices}
        for what in ("wire", "temp"):
            least = min(THEORY, key=lambda name: both[name][what])
            wanted = min(THEORY, key=lambda name: both[name][f"{what} predicted"])
            found |= {f"summa {what} / 1d": both["summa"][what] / both["1d"][what],
                      f"least {what}": least, f"least {what}, planned": wanted,
                      f"{what} missed": least != wanted}  # fmt: skip
        batch, sizes = CASES[step]
        model = GPT2Config(
            **sizes, heads=config.heads, vocabulary=config.vocabulary, dropout=0.0, remat="full"
        )
        machine = parallel.Machine(latency=0.0)
        plan = parallel.plan(model, devices, batch, layouts=THEORY, machine=machine)
        yield {**found, "quicker, planned": plan.best.name}


def equality(config: Config, run: Run) -> Iterator[dict[str, Any]]:
    """Yields errors of losses and gradients on four devices against one."""
    if jax.device_count() < 4:
        run.console.print(f"equality: expected 4 devices, there are {jax.device_count()}, left out")
        return
    model = GPT2Config.tiny(features=64, heads=8, vocabulary=251, remat="full")
    params = parameters(model, config.seed)
    wanted = Step(model, parallel.Single(), 8)(params)
    for name in run.progress(config.layouts, "compared"):
        shape = mesh_shape(name, 4)
        loss, gradient = Step(model, make(name, shape), 8)(params)
        yield {
            "layout": name,
            "mesh": "×".join(map(str, shape)),
            "loss": largest_error(loss, wanted[0]),
            "gradient": largest_error(gradient, wanted[1]),
        }


def scaling(config: Config) -> Iterator[dict[str, Any]]:
    """Yields modelled step times as the batch grows with the number of devices."""
    machine = parallel.Machine(
        flops=config.flops, bandwidth=config.bandwidth, latency=config.latency
    )
    # Sixteen heads, so that sixteen devices can split them.
    model = GPT2Config(heads=16, remat="full")

    def seconds(name: str, devices: int) -> parallel.Candidate:
        shape = (1, 1) if devices == 1 else mesh_shape(name, devices)
        return parallel.plan(
            model,
            devices,
            config.batch * devices,
            layouts=["single" if devices == 1 else name],
            meshes=[shape],
            machine=machine,
        ).candidates[0]

    alone = seconds("single", 1).seconds
    for devices in sorted(set(config.scaled) - {1}):
        line = seconds("1d", devices)
        for name in config.layouts:
            if name == "2.5d" and devices < 4:
                continue
            found = seconds(name, devices)
            if found.refusal:
                continue
            yield {
                "devices": devices,
                "layout": name,
                "ms": 1e3 * found.seconds,
                "GiB held": found.memory / 2**30,
                "GiB sent": found.sent / 2**30,
                "efficiency": alone / found.seconds,
                "speed / 1D": None if line.refusal else line.seconds / found.seconds,
            }


def times(config: Config, run: Run) -> Iterator[dict[str, Any]]:
    """Yields measured step times on accelerators."""
    for step, devices, model, batch, layout in run.progress(list(layouts(config, run)), "timed"):
        yield {
            "step": step,
            "devices": devices,
            "layout": layout.name,
            "seconds": Step(model, layout, batch).seconds(
                parameters(model, config.seed), config.repeats
            ),
        }
