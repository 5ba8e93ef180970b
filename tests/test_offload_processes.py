"""Several processes train one model, each with its part of it: as one does, and none by itself."""

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xxhash", reason="the store has an extra of its own")

from tensorjax import offload
from tests import offload_shards_process as program
from tests.compiling import flags

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs are kept: compiled once for all processes."""
    return tmp_path_factory.mktemp("programs")


def start(
    programs: Path, runs: list[str], *, model: str, rows: int, columns: int, each: int, **more: Any
) -> list[subprocess.Popen[str]]:
    """As many processes as a mesh takes, with so many devices each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "XLA_FLAGS": flags(devices=each),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",  # as here: keys draw other numbers without
        "PYTHONPATH": str(ROOT),
        # Most of their time would go there.
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    count = rows * columns // each
    given = {"model": model, "rows": rows, "columns": columns, "port": port, "processes": count}
    words = [word for name, x in {**given, **more}.items() for word in (f"--{name}", str(x))]
    started = []
    for index in range(count):
        command = [sys.executable, "-m", "tests.offload_shards_process", *words,
                   "--index", str(index), "--runs", *runs]  # fmt: skip
        # Not a pipe, which would fill up while nobody reads it: the runtime has much to say.
        with (programs / f"stderr{index}").open("w") as file:
            started.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
                    stderr=file,
                )
            )  # fmt: skip
    return started


def lines(out: str) -> list[list[str]]:
    """What a process said, without what the runtime has to say."""
    return [line.split() for line in out.splitlines() if line.startswith(("begin", "step", "end"))]


def run(programs: Path, runs: list[str], **options: Any) -> list[list[str]]:
    """What all processes said, which is the same, once they have ended well."""
    started = start(programs, runs, **options)
    try:
        said = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for index, process in enumerate(started):
        assert process.returncode == 0, (programs / f"stderr{index}").read_text()[-3000:]
    first, *others = map(lines, said)
    assert all(other == first for other in others)
    return first


@functools.cache
def in_memory(name: str, steps: int) -> list[Any]:
    """Losses and norms of one process."""
    model = program.MODELS[name](None)
    with program.training(model, None) as trainer:
        found = [trainer.step(model.batch(number)) for number in range(steps)]
    assert max(step.norm for step in found) > program.COMMON["clip"]  # or nothing was clipped
    return [[step.loss, step.norm] for step in found]


def check_equal(name: str, said: list[list[str]]) -> None:
    got = [[float.fromhex(x) for x in line[2:]] for line in said if line[0] == "step"]
    np.testing.assert_allclose(got, in_memory(name, len(got)), rtol=1e-5)


def check_files(folder: Path, name: str, count: int) -> None:
    """One file for each process, each with its part of what one process would have."""
    sizes = [path.stat().st_size for path in sorted(folder.glob("data-*"))]
    model = program.MODELS[name](None)
    tensors = len(offload.tensors(model.params, program.optimizer(), gradients=True))
    # Each slot begins on a page; in parts more arrays are small, and share one.
    assert len(sizes) == count
    assert max(sizes) <= program.room(model) / count + 4 * 4096 * tensors


@pytest.mark.slow
def test_two_processes_train_as_one_does(tmp_path: Path, programs: Path) -> None:
    """Each has a row of a mesh of 2 × 2: matrices in one piece, vectors in two that lie apart."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = {"model": "layers", "rows": 2, "columns": 2, "each": 2}
    runs = [f"{whole}:5", f"{parts}:2:elsewhere", f"{parts}:5:elsewhere"]
    said = run(programs, runs, **options, **{"commit-every": 2})
    assert [line[:2] for line in said if line[0] == "begin"] == [["begin", n] for n in "002"]
    wanted, again = said[1:7], said[12:]
    check_equal("layers", wanted[:-1])
    check_files(whole, "layers", 2)
    assert again == wanted[2:]


@pytest.mark.slow
@pytest.mark.parametrize("each", [2, 1])
def test_gpt2_on_a_mesh_of_processes(tmp_path: Path, programs: Path, each: int) -> None:
    """Two and four of them; two that are begun again as new processes go on bit for bit."""
    pytest.importorskip("flax", reason="the models have an extra of their own")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = {"model": "gpt2", "rows": 2, "columns": 2, "each": each}
    said = run(programs, [f"{whole}:4", *([f"{parts}:2"] if each == 2 else [])], **options)
    wanted = said[:6]
    check_equal("gpt2", wanted[1:-1])
    check_files(whole, "gpt2", 4 // each)
    if each == 1:
        return
    assert said[6] == ["begin", "0"]
    again = run(programs, [f"{parts}:4"], **options)
    assert again == [["begin", "2"], *wanted[3:]]


@pytest.mark.slow
def test_a_killed_process_leaves_all_stores_on_one_step(tmp_path: Path, programs: Path) -> None:
    """Killed at several moments, near the commits that every step makes."""
    folder = tmp_path / "killed"
    options = {"model": "layers", "rows": 2, "columns": 2, "each": 2, "commit-every": 1,
               "lost-after": 20}  # fmt: skip
    wanted = run(programs, [f"{tmp_path / 'whole'}:12"], **options)
    rng, begun = np.random.default_rng(3), 0
    for lost in (1, 0):
        started = start(programs, [f"{folder}:12"], **options)
        try:
            stop = int(rng.integers(2, 4))
            for line in started[lost].stdout:
                if (words := lines(line)) and words[0][0] == "begin":
                    begun = int(words[0][1])
                if words and words[0][0] == "step" and int(words[0][1]) >= begun + stop:
                    break
            time.sleep(rng.uniform(0.0, 0.05))
            started[lost].send_signal(signal.SIGKILL)
            # It notices by a collective, or the runtime does, which ends it.
            assert started[1 - lost].wait(timeout=120) != 0
        finally:
            for process in started:
                process.kill()
                process.communicate()
    again = run(programs, [f"{folder}:12"], **options)
    assert int(again[0][1]) > begun
    assert again[1:] == wanted[1 + int(again[0][1]) :]
