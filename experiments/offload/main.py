"""GPT-2 in memory, offloaded to the host, and trained from disk by four schedules.

``python -m experiments run offload`` trains GPT-2 sizes in nine ways and takes the time of a step,
twice each: with the layers computed here, where they share the cores with the optimiser, and on an
emulated device, which waits as long as a step's slowest other part takes. Disk, optimiser and
threads are real in both. README.md in this folder says what came out.

Sources: HiTrain, Journal of Computer Research and Development, DOI 10.7544/issn1000-1239.202550478,
of which only the abstract was at hand (training 1.49 × as fast as an existing scheme, which it does
not name); S. Rajbhandari et al., "ZeRO-Infinity", arXiv 2104.07857 (updates after the backward
pass, O_DIRECT with a deep queue).
"""

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments import Run
from experiments._process_settings import return_memory
from experiments.offload import bound, figure
from experiments.offload.memory import available
from experiments.offload.variants import (
    BASELINE,
    BESIDE,
    BOUNDED,
    DEEPSPEED,
    OURS,
    VARIANTS,
    Setting,
    Variant,
    forgetting,
    measure,
)
from tensorjax import offload
from tensorjax.models import gpt2
from tensorjax.offload import Times

MIB = 2**20
REAL = "these cores"
PAPER = 1.49  # the paper's speed-up, over a scheme that its abstract does not name
SPEED, SHARE = 1.5, 0.85  # asked for, where compute takes as long as the slowest other part
TRIES = 5  # of every part of a step, before all ways and again after them
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 12, "heads": 8, "features": 256, "vocabulary": 4096, "length": 64},
    "mini": {"layers": 10, "heads": 8, "features": 512, "vocabulary": 8192},
    "deep": {"layers": 30, "heads": 8, "features": 512, "vocabulary": 8192},
    "small": {},
    "medium": {"layers": 24, "heads": 16, "features": 1024},
    "large": {"layers": 36, "heads": 20, "features": 1280},
    "xl": {"layers": 48, "heads": 25, "features": 1600},
    "7b": {"layers": 34, "heads": 32, "features": 4096},
}


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults take a quarter of an hour on two CPU cores.

    And 6 GiB of disk.
    """

    sizes: tuple[str, ...] = ("mini", "small")
    """Models: "tiny", "mini" and "deep" (mini with three times the blocks) are not published,
    and neither is "7b"."""
    batch: int = 1
    """Sequences in a batch."""
    length: int = 64
    """Tokens in a sequence."""
    steps: int = 6
    """Steps that are timed."""
    rounds: int = 1
    """Times that parts and ways are gone through; what is compared is so within one round."""
    compute: tuple[float, ...] = (1.0,)
    """Seconds of the emulated device, as multiples of the slowest other part of a step; none for
    these cores only."""
    real: bool = True
    """Also compute the layers here."""
    memory: int = 0
    """MiB that a way may take; those that need more are left out. 0 takes what is free."""
    staging: int = 0
    """MiB of staging memory; 0 takes 16 times the largest group of parameters, and 64."""
    folder: str = ""
    """Where stores are made: a disk, not memory; the system's folder for such if empty."""
    return_memory: bool = True
    """Have glibc's malloc give back large arrays at once; without, more is resident."""

    def __post_init__(self) -> None:
        """Raises ValueError for options that would fail late in a run."""
        unknown = [name for name in self.sizes if name not in SIZES]
        if unknown or not self.sizes:
            raise ValueError(f"sizes: expected names among {', '.join(SIZES)}, got {self.sizes}")
        for name in ("batch", "length", "steps", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("memory", "staging"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if min(self.compute, default=1) <= 0 or not (self.compute or self.real):
            raise ValueError(
                f"compute: expected positive multiples, or none with --real, got {self.compute}"
            )

    @classmethod
    def quick(cls) -> "Config":
        """Returns the options of a quick run: a model of 11 million parameters, three steps."""
        return cls(sizes=("tiny",), steps=3, length=32, real=False)


@forgetting()
def run(config: Config, run: Run) -> None:
    """Measures the parts of a step, then whole steps of all ways by turns."""
    if config.return_memory:
        return_memory()
    config = replace(config, memory=config.memory or available() // MIB)
    if config.folder:
        Path(config.folder).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="offload-", dir=config.folder or None))
    rows: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    reached: list[dict[str, Any]] = []
    try:
        for name in config.sizes:
            found, taken, each = one_size(setting(config, name, folder), config, run)
            held = [row.pop("memory") for row in found]
            reached += goals(found, held)
            for row in found:
                row.pop("over")
            rows += found
            memory += held
            parts += taken
            rounds += each
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    run.table("parts", parts, key=["size", "of the tries"], caption="Seconds of the parts of a "
              "step, each alone; reads and writes go on at once")  # fmt: skip
    run.table(
        "steps",
        rows,
        key=["size", "device", "way"],
        caption="Seconds per step; share of the bound P*, by the medians of the parts and by the "
        f"fastest; speed over {BASELINE!r} and over {DEEPSPEED!r}; medians of the rounds; MiB",
    )
    if rounds and config.rounds > 1:
        run.table("rounds", rounds, key=["size", "device", "way", "round"],
                  caption="Every round by itself")  # fmt: skip
    run.table(
        "memory",
        memory,
        key=["size", "device", "way"],
        caption="MiB: the most the process grew by beyond what it had with all programs compiled; "
        "what is allowed with staging memory, activations and two layers in training, or (strict) "
        "two layers' parameters; what the store and the trainer counted; what the process had",
    )
    if reached:
        run.table(
            "goals",
            reached,
            key=["size", "device", "way", "what"],
            caption="What was asked for, of a device that takes as long as the slowest other part",
        )
    run.figure("speed", figure.bars(rows), caption="Seconds per step, and the bound P*")
    run.compare(*outcome(rows))


def outcome(rows: Sequence[Mapping[str, Any]]) -> tuple[str, bool | None]:
    """Returns the range of speed-ups over the baselines, and whether the paper's is reached."""
    ours = [row for row in rows if row["way"] == OURS]
    over = {
        name: [row[column] for row in ours if row[column] is not None]
        for name, column in ((BASELINE, "speed"), (DEEPSPEED, "over DeepSpeed"))
    }
    said = [
        f"{' to '.join(dict.fromkeys(f'{end:.2f}' for end in (min(found), max(found))))} × {name!r}"
        for name, found in over.items()
        if found
    ]
    devices = ", ".join(dict.fromkeys(row["device"] for row in ours))
    holds = min(over[BASELINE]) >= PAPER if over[BASELINE] else None
    return "; ".join([*said, f"device: {devices}"]), holds


def goals(
    rows: Sequence[Mapping[str, Any]], memory: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yields table rows: goals, and what was reached."""
    reached = [
        (row, f"speed over {other!r}", speed, SPEED, True)
        for row in rows
        for other, speed in row["over"].items()
    ]
    reached += [
        (row, "share of P*", row["of P*"], SHARE, True) for row in rows if row["way"] == OURS
    ]
    reached += [
        (row, "resident memory of allowed", row["resident"] / row["allowed"], 1.0, False)
        for row in memory
        if row["way"] == BOUNDED
    ]
    for row, what, value, goal, least in reached:
        if value is None:
            continue
        # Of the quick run's model, nothing is asked: a step is over before threads have met.
        asked = (not least or row["device"] == "emulated × 1") and row["size"] != "tiny"
        met = value >= goal if least else value <= goal
        yield {
            "size": row["size"],
            "device": row["device"],
            "what": what,
            "way": row["way"],
            "reached": value,
            "goal": f"at {'least' if least else 'most'} {goal:g}" if asked else "",
            "met": ("yes" if met else "no") if asked else "",
        }


def setting(config: Config, name: str, folder: Path) -> Setting:
    """Returns a training setting, with staging memory for two of the largest states."""
    model = gpt2.GPT2Config(**{**SIZES[name], "dropout": 0.0})
    made = Setting(name, model, config.batch, min(config.length, model.length), folder, 0)
    largest = max(made.sizes().values())
    staging = config.staging * MIB or 16 * largest + 64 * MIB
    return Setting(name, model, config.batch, made.length, folder, staging)


def one_size(
    setting: Setting, config: Config, run: Run
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Measures one model size; returns rows of ways, of parts, and of rounds."""
    rounds = [one_round(setting, config, run, number) for number in range(config.rounds)]
    rows = [row for label in rounds[0] for row in described(setting, label, rounds)]
    last = [by_device[[*by_device][-1]].tries for by_device in rounds]  # the real one's, if any
    skipped = () if config.real else ("compute",)
    every = {n: [x for t in last for x in t[n]] for n in last[0] if n not in skipped}
    parts = [
        {"size": setting.name, "parameters": setting.model.numbers, "of the tries": kind.__name__,
         **{name: kind(seconds) for name, seconds in every.items()}}
        for kind in (statistics.median, min)
    ]  # fmt: skip
    return rows, parts, [
        {"size": setting.name, "device": label, "round": number + 1, "way": way,
         "T_c": statistics.median(one.tries["compute"]), "seconds": one.seconds(way),
         "of P*": one.bound(setting, statistics.median) / one.seconds(way),
         "speed": one.speed(way), "over DeepSpeed": one.speed(way, DEEPSPEED)}
        for label in rounds[0]
        for way in (OURS, BOUNDED)
        if way in rounds[0][label].ways
        for number, one in enumerate(by_device[label] for by_device in rounds)
    ]  # fmt: skip


@dataclass(frozen=True)
class Round:
    """Results of one round on one device: tries of the step's parts, and all ways."""

    tries: bound.Tries
    ways: dict[str, dict[str, Any]]

    def bound(self, setting: Setting, kind: Callable[[list[float]], float]) -> float:
        """Computes the lower bound P* from the tries, by their median or minimum."""
        return times(setting, self.tries, kind).bound

    def seconds(self, way: str) -> float:
        """Returns the median seconds of a step in one way."""
        return statistics.median(self.ways[way]["took"])

    def speed(self, way: str, baseline: str = BASELINE) -> float | None:
        """Returns the speed of a way relative to another one; None if that was not run."""
        return self.seconds(baseline) / self.seconds(way) if baseline in self.ways else None


def one_round(setting: Setting, config: Config, run: Run, number: int) -> dict[str, Round]:
    """Measures all ways once, and the step's parts before and after; by device.

    The emulated device takes as long as the slowest part did just before.
    """
    fits = {real: fitting(setting, config, real=real) for real in (False, True)}
    tries = bound.parts(setting, TRIES)
    slowest = max(statistics.median(tries[name]) for name in ("read", "write", "update"))
    devices: list[tuple[str, offload.Engine, list[float]]] = [
        (f"emulated × {share:g}", setting.emulated(share * slowest), [share * slowest])
        for share in config.compute
    ]
    if config.real:
        engine = offload.Engine()
        devices.append((REAL, engine, bound.computing(setting, engine, TRIES)))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for label, engine, _ in devices:
        found[label] = {}
        able, short = fits[label == REAL]
        for way, text in short.items() if not number else ():
            run.console.print(f"{setting.name}, {label}: left out: {way} {text}")
            run.metric(f"left out: {setting.name}, {label}, {way}", text)
        for variant in run.progress(able, f"{setting.name}, {label}, round {number + 1}"):
            found[label][variant.name], trace = measure(setting, variant, engine, config.steps)
            if not number and variant.name in (OURS, BASELINE):
                keep(run, trace, setting.name, label, variant)
    for name, later in bound.parts(setting, TRIES).items():
        tries[name] += later
    return {
        label: Round({**tries, "compute": compute}, found[label]) for label, _, compute in devices
    }


def fitting(
    setting: Setting, config: Config, *, real: bool
) -> tuple[list[Variant], dict[str, str]]:
    """Returns the ways that fit in memory, and why the others are left out."""
    needs = {variant: setting.needs(variant, real=real) // MIB for variant in VARIANTS}
    if min(needs.values()) > config.memory:
        raise ValueError(
            f"memory: expected at least {min(needs.values())} MiB for {setting.name} with "
            f"{setting.staging // MIB} MiB of staging, got {config.memory}"
        )
    able = [variant for variant in VARIANTS if needs[variant] <= config.memory]
    short = {
        variant.name: f"needs {needs[variant]} MiB of memory, may take {config.memory}"
        for variant in VARIANTS
        if variant not in able
    }
    return able, short


def times(setting: Setting, tries: bound.Tries, kind: Callable[[list[float]], float]) -> Times:
    """Computes the times of a step's parts from all tries."""
    found = {name: kind(seconds) for name, seconds in tries.items()}
    return Times(**found, layer=found["compute"] / len(setting.layers()))


def described(
    setting: Setting, label: str, every: Sequence[Mapping[str, Round]]
) -> Iterator[dict[str, Any]]:
    """Yields table rows of all ways, with medians of comparisons within rounds."""
    rounds = [by_device[label] for by_device in every]

    def usual(of: Callable[[Round], float | None]) -> float | None:
        found = [value for one in rounds if (value := of(one)) is not None]
        return statistics.median(found) if found else None

    for name, found in rounds[-1].ways.items():
        found["resident"] = max(one.ways[name]["resident"] for one in rounds)
        seconds = statistics.median([s for one in rounds for s in one.ways[name]["took"]])
        yield {
            "size": setting.name,
            "device": label,
            "way": name,
            "seconds": seconds,
            "tokens/s": setting.batch * setting.length / seconds,
            "P*": usual(lambda one: one.bound(setting, statistics.median)),
            "of P*": usual(
                lambda one, n=name: one.bound(setting, statistics.median) / one.seconds(n)
            ),
            "of least P*": usual(lambda one, n=name: one.bound(setting, min) / one.seconds(n)),
            "speed": usual(lambda one, n=name: one.speed(n)),
            "over DeepSpeed": usual(lambda one, n=name: one.speed(n, DEEPSPEED)),
            "over": {
                other: usual(lambda one, n=name, o=other: one.speed(n, o))
                for other in BESIDE.get(name, ())
            },
            "read": found["read"] / MIB,
            "written": found["written"] / MIB,
            "memory": remembered(setting, label, name, found),
        }


def remembered(setting: Setting, label: str, name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Returns a way's row in the table of memory."""
    row: dict[str, Any] = {"size": setting.name, "device": label, "way": name}
    row["resident"] = found["resident"] / MIB
    if found["staging"]:
        fixed = found["staging"] + found["activations"]
        row["allowed"] = (fixed + setting.two_layers(setting.training())) / MIB
        row["strict"] = (fixed + setting.two_layers(setting.sizes())) / MIB
    parts = ("staging", "host", "gradients", "updates", "activations", "process")
    return {**row, "on device": found["device"] / MIB, **{p: found[p] / MIB for p in parts}}


def keep(run: Run, trace: offload.Trace, size: str, label: str, variant: Variant) -> None:
    """Saves the trace of a way, as JSON for Perfetto and as a picture."""
    device = "emulated" if label.startswith("emulated") else "real"
    name = f"{size}-{device}-{variant.schedule}-{label.split()[-1].replace('.', '_')}"
    trace.save(run.folder / f"trace-{name}.json")
    if not (run.folder / f"trace-{name}.png").exists():
        caption = f"{size}, {label}, {variant.name}: the last two steps"
        run.figure(f"trace-{name}", trace.picture(), caption=caption)
