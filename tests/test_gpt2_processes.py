"""The experiment `gpt2` in several real processes: started, agreed, killed, gone on with."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flax", reason="the experiments have an extra of their own")
pytest.importorskip("matplotlib", reason="the experiments have an extra of their own")
pytest.importorskip("tokenizers", reason="the experiments have an extra of their own")
pytest.importorskip("tyro", reason="the experiments have an extra of their own")

from rich.console import Console

from experiments import Run
from experiments.__main__ import main
from experiments.gpt2.processes import Processes, _number
from tests.compiling import flags

ROOT = Path(__file__).resolve().parents[1]
LOST_AFTER = 10
ENVIRONMENT: dict[str, str] = {}  # of processes that are started


@pytest.fixture
def command(tmp_path):
    """The words of a small training, on texts of eight packages."""
    for package in range(8):
        folder = tmp_path / "texts" / f"p{package}"
        folder.mkdir(parents=True)
        text = "".join(f"def f{k}(x):\n    return x + {k * package}\n" for k in range(100))
        (folder / "a.py").write_text(text)
    return ["run", "gpt2", "--quick", "--text", str(tmp_path / "texts"), "--vocabulary", "300",
            "--held-out", "0.2", "--layers", "1", "--features", "16", "--length", "16", "--batch",
            "4", "--steps", "24", "--evaluations", "12", "--checkpoint-seconds", "0",
            "--sample-tokens", "4", "--results", str(tmp_path / "results")]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def programs(tmp_path_factory):
    """Compiled once for all processes of this file: most of their time would go there."""
    folder = tmp_path_factory.mktemp("programs")
    variables = {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    ENVIRONMENT.update(variables)
    yield
    ENVIRONMENT.clear()


def start(command, options, output, **variables):
    """A process with two simulated devices at most, and what it says in a file."""
    environment = {**os.environ, "XLA_FLAGS": flags(), "JAX_PLATFORMS": "cpu",
                   "PYTHONPATH": str(ROOT), **ENVIRONMENT}  # fmt: skip
    with output.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "experiments", *command, "--lost-after", str(LOST_AFTER),
             *options],
            cwd=ROOT, env=environment | variables, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip


def pair(command, tmp_path, *, devices):
    """Two processes, one started by flags and one by environment variables."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    options = ["--layout", "2d", "--devices", str(devices)]
    flags = ["--coordinator", address, "--processes", "2", "--process", "0"]
    variables = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2",
                 "JAX_PROCESS_ID": "1"}  # fmt: skip
    return (
        start(command, [*options, *flags], tmp_path / "0.txt"),
        start(command, options, tmp_path / "1.txt", **variables),
    )


def slurm(command, tmp_path, *, devices):
    """Two processes with the variables of two tasks of Slurm on this machine."""
    first = 2**16 - 2**12  # JAX takes the port from the last twelve bits of the job's number
    for job in range(2**12):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("localhost", first + job))
            break
    variables = {"SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    options = ["--layout", "2d", "--devices", str(devices), "--cluster", "slurm"]
    return tuple(
        start(command, options, tmp_path / f"{task}.txt", **variables,
              SLURM_PROCID=str(task), SLURM_LOCALID=str(task))
        for task in range(2)
    )  # fmt: skip


def losses(results):
    """Steps and losses in the newest run."""
    line = json.loads((results / "gpt2" / "runs.jsonl").read_text().splitlines()[-1])
    rows = (results / "gpt2" / line["run"] / "curve.csv").read_text().splitlines()
    names = rows[0].split(",")
    found = [dict(zip(names, row.split(","), strict=True)) for row in rows[1:]]
    return [tuple(float(row[name]) for name in ("step", "train", "valid")) for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_ends_all_and_the_checkpoint_goes_on(command, tmp_path, lost) -> None:
    started = pair(command, tmp_path, devices=4)
    kept = tmp_path / "results" / "gpt2" / "checkpoints"
    try:
        limit = time.monotonic() + 240
        while not list(kept.glob("*/[0-9]*")) and time.monotonic() < limit:
            assert all(process.poll() is None for process in started), (
                tmp_path / "0.txt"
            ).read_text()
            time.sleep(0.2)
        started[lost].kill()
        # The runtime takes so long to be sure, and twice as long to give up saying good-bye.
        assert started[1 - lost].wait(timeout=3 * LOST_AFTER + 30) != 0
    finally:
        for process in started:
            process.kill()
            process.wait()
    said = (tmp_path / f"{1 - lost}.txt").read_text().replace("\n", " ")
    assert "gives no sign of life for 10 s ends all, and checkpoints stay" in said
    # Whatever notices first: a collective, or the runtime, which ends the process by itself.
    ours = f"process {1 - lost} of 2 lost another one and cannot go on"
    assert ours in said or "most likely indicates that another task died" in said
    assert not (tmp_path / "results" / "gpt2" / "runs.jsonl").exists()

    if lost:  # what is kept is of the same kind, whoever is lost
        return
    # One process, another layout and mesh: it goes on, and ends where an unbroken training does.
    assert main([*command, "--layout", "fsdp+tp", "--devices", "2"]) == 0
    broken = losses(tmp_path / "results")
    assert main([*command, "--results", str(tmp_path / "whole")]) == 0
    np.testing.assert_allclose(broken, losses(tmp_path / "whole"), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("started_by", [pair, slurm])
def test_two_processes_train_as_one_does(command, tmp_path, started_by) -> None:
    command = [*command, "--steps", "6", "--evaluations", "2"]
    export = ["--export", str(tmp_path / "exported")]
    started = started_by([*command, *export], tmp_path, devices=4)
    try:
        assert [process.wait(timeout=300) for process in started] == [0, 0], (
            tmp_path / "0.txt"
        ).read_text()
    finally:
        for process in started:
            process.kill()
    assert "process 1 of 2: done, nothing is written here" in (tmp_path / "1.txt").read_text()
    assert (tmp_path / "exported" / "model.safetensors").stat().st_size > 1000
    together = losses(tmp_path / "results")
    if started_by is slurm:  # another way to begin, of the same training
        assert [step for step, *_ in together] == [3, 6]
        return
    assert main([*command, "--results", str(tmp_path / "one")]) == 0
    np.testing.assert_allclose(together, losses(tmp_path / "one"), rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coordinator": "localhost:1"}, "processes: expected with the other options"),
        ({"count": 2, "index": 0}, "coordinator: expected with the other options"),
    ],
)
def test_options_of_several_processes_belong_together(tmp_path, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        Processes(**options).start(Run(tmp_path, Console(quiet=True)), None)


def test_variables_are_numbers_and_flags_go_first(monkeypatch) -> None:
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    assert (_number(None, "JAX_NUM_PROCESSES"), _number(2, "JAX_NUM_PROCESSES")) == (4, 2)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "four")
    with pytest.raises(ValueError, match="JAX_NUM_PROCESSES: expected an integer, got 'four'"):
        _number(None, "JAX_NUM_PROCESSES")


def test_a_discarded_run_keeps_nothing(tmp_path) -> None:
    from experiments._registry import find
    from experiments._results import record

    console = Console(quiet=True)
    with record(find("gpt2"), None, quick=True, results=tmp_path, console=console) as run:
        run.discard("process 1 of 2")
        run.metric("loss", 1.0)
        run.table("rows", [{"a": 1}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_one_process_simulates_the_devices_that_it_is_asked_for(command, tmp_path) -> None:
    """As the README has it: JAX must not have begun to work before."""
    options = ["--steps", "2", "--evaluations", "1", "--layout", "auto", "--devices", "4"]
    started = start([*command, *options], [], tmp_path / "0.txt")
    try:
        assert started.wait(timeout=300) == 0, (tmp_path / "0.txt").read_text()
    finally:
        started.kill()
    said = (tmp_path / "0.txt").read_text()
    assert "on 4 of 4 devices" in " ".join(said.split())
