"""Driver of `bench/device`: runs its parts in processes, within a budget of time.

A part that crashes, runs out of memory or hangs costs its own share and no more: it is ended with
all that it started, a row says so, and the next part begins.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.bench.device.parts import Part
from experiments.bench.device.rows import CRASHED, Emit, read

ROOT = Path(__file__).resolve().parents[3]
# A part stops by itself so long before it would be ended: its imports and its exit take time, too.
_MARGIN = 6.0
_TAIL = 12  # lines of a part's last words that are kept
_UNKNOWN_FLAG = "Unknown flag"
_NOBODY: dict[str, Any] = {
    "device": "unknown", "date": "", "versions": {}, "commit": "", "tiny": False, "host": {},
}  # fmt: skip


@dataclass
class Plan:
    """Plan of a run of `bench/device`: parts, seconds, folder, commit.

    Attributes:
        parts: In their order; the first one says what the device is.
        seconds: For all of them.
        folder: Where the file of results goes.
        commit: Of the sources.
        tiny: Sizes of a trial.
        margin: Seconds before the end of its share at which a part is to stop by itself.
        environment: Of the processes, besides what this one has.
        say: Called with a line about each part.
        clock: In seconds.
    """

    parts: Sequence[Part]
    seconds: float
    folder: Path
    commit: str = ""
    tiny: bool = False
    margin: float = _MARGIN
    environment: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], Any] = print
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Ended:
    """End of a part's process: its last output, whether it was killed, its exit status."""

    killed: bool
    status: int
    said: str


def drive(plan: Plan) -> Path:
    """Runs all parts of a plan; returns the file of their rows."""
    end = plan.clock() + plan.seconds
    folder = disk_folder()
    with tempfile.TemporaryDirectory(prefix="bench-device-", dir=folder) as scratch:
        path, about = Path(scratch) / "rows.jsonl", {**_NOBODY, "commit": plan.commit}
        facts: dict[str, Any] = {}
        for number, part in enumerate(plan.parts):
            left = end - plan.clock()
            share = left * part.share / sum(p.share for p in plan.parts[number:])
            emit = Emit(path, part.name, {**about, "date": now(), "tiny": plan.tiny})
            _one(plan, part, share, left, path, Path(scratch), facts, emit)
            if number == 0:
                rows = read(path)[0] if path.exists() else []
                about |= rows[0]["about"] if rows else {}
                facts = {row["case"]: row for row in rows if "left out" not in row}
                facts = {case: {k: v for k, v in row.items() if k not in ("about", "part", "case")}
                         for case, row in facts.items()}  # fmt: skip
                path = _named(plan.folder, about["device"], path)
    plan.say(f"results: {path}")
    return path


def now() -> str:
    """Returns the present time in UTC, as text."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _named(folder: Path, device: str, begun: Path) -> Path:
    """Creates the file of results, named by device and date, with the rows so far."""
    folder.mkdir(parents=True, exist_ok=True)
    short = "".join(c if c.isalnum() else "-" for c in device.lower())
    short = "-".join(filter(None, short.split("-")))
    path = folder / f"{short}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    path.write_text(begun.read_text("utf-8") if begun.exists() else "", "utf-8")
    return path


def _one(
    plan: Plan,
    part: Part,
    share: float,
    left: float,
    path: Path,
    scratch: Path,
    facts: Mapping[str, Any],
    emit: Emit,
) -> None:
    """Runs one part within its share of the time, and records how it ended."""
    least = 0.0 if plan.tiny else part.least
    if share < least <= left:  # better whole than not at all: those after it have less
        share = least
    if share < least or share <= 0:
        emit.left_out("all", f"out of time: {max(share, 0):.0f} s left, {least:.0f} s needed")
        return
    plan.say(f"== {part.name}: {share:.0f} s")
    start = plan.clock()
    flags = part.flags
    ended = _process(plan, part, share, path, scratch, facts, flags)
    if flags and ended.status and _UNKNOWN_FLAG in ended.said:
        emit.left_out(flags, "XLA does not know this flag; the part runs without it")
        again = share - (plan.clock() - start)
        ended = _process(plan, part, again, path, scratch, facts, "")
    took = plan.clock() - start
    if ended.killed:
        emit.left_out("the rest", f"out of time: ended after its share of {share:.0f} s")
    elif ended.status:
        emit.left_out("the rest", f"{CRASHED} ({_status(ended.status)}): {ended.said}")
    plan.say(f"== {part.name}: ended after {took:.1f} s")


def _status(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def _process(
    plan: Plan,
    part: Part,
    seconds: float,
    path: Path,
    scratch: Path,
    facts: Mapping[str, Any],
    flags: str,
) -> Ended:
    """Runs a part's process, and kills it with its children when its time is over."""
    command = [sys.executable, "-X", "faulthandler", "-m", "experiments.bench.device.part",
               part.name, "--module", part.module, "--rows", str(path.resolve()),
               "--seconds", f"{max(seconds - plan.margin, 0.75 * seconds):.3f}",
               "--commit", plan.commit, "--facts", json.dumps(facts)]  # fmt: skip
    log, own = scratch / f"{part.name}.log", scratch / part.name
    own.mkdir(exist_ok=True)
    variables = {**environment(plan, scratch, flags), "TMPDIR": str(own)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command + ["--tiny"] * plan.tiny, cwd=ROOT, env=variables,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        killed = False
        try:
            process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            killed = True
        finally:  # also where this process is interrupted
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(own, ignore_errors=True)  # a store may fill the disk
    said = log.read_text("utf-8", errors="replace").splitlines()
    for line in said:
        plan.say(line)
    return Ended(killed, process.returncode, " | ".join(said[-_TAIL:])[-1500:])


def environment(plan: Plan, scratch: Path, flags: str) -> dict[str, str]:
    """Returns the environment variables of the parts' processes."""
    found = {**os.environ, **plan.environment}
    # PyTorch and the trainer's pinned memory need room beside JAX; parts do not share a process.
    found.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    found.setdefault("JAX_COMPILATION_CACHE_DIR", str(scratch / "programs"))
    found.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0" if plan.tiny else "0.5")
    # Not even errors: XLA takes one for each of the CPU's programs in the cache (jaxlib 0.10.1),
    # for features of the processor that are its own invention. What is fatal is said anyway.
    found.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    found["PYTHONUNBUFFERED"] = "1"
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), found.get("PYTHONPATH", "")]))
    platforms = found.get("JAX_PLATFORMS", "")
    if platforms and "cpu" not in platforms.split(","):
        found["JAX_PLATFORMS"] = f"{platforms},cpu"  # values are compared with the CPU's
    if plan.tiny:  # programs that run once
        flags = f"{flags} --xla_backend_optimization_level=1"
    found["XLA_FLAGS"] = f"{found.get('XLA_FLAGS', '')} {flags}".strip()
    return found


def disk_folder() -> Path:
    """Returns the folder for temporary files with the most free space that is on a disk."""
    named = [os.environ.get("TMPDIR", ""), tempfile.gettempdir(), "/var/tmp", os.getcwd()]
    able = []
    for name in filter(None, named):
        with contextlib.suppress(OSError):
            if os.access(name, os.W_OK) and _kind(Path(name).resolve()) not in ("tmpfs", "ramfs"):
                able.append((shutil.disk_usage(name).free, name))
    return Path(max(able)[1] if able else tempfile.gettempdir())


def _kind(path: Path) -> str:
    """Returns the type of the file system that a folder is on; empty if unknown."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    found = [(line.split()[1], line.split()[2]) for line in lines]
    over = [(len(where), kind) for where, kind in found if path.is_relative_to(where)]
    return max(over, default=(0, ""))[1]
