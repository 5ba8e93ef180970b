"""Several real processes, each with devices of its own, compute what one device computes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tensorjax import parallel
from tests import tiny_decoder as tiny
from tests.compiling import flags

ROOT = Path(__file__).resolve().parents[1]


def start(index: int, port: int, processes: int, layouts: list[str]) -> subprocess.Popen[str]:
    """A process with one simulated device."""
    environment = {
        **os.environ,
        "XLA_FLAGS": flags(devices=1),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    options = {"port": port, "processes": processes, "index": index, "rows": 2, "columns": 2}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "tests.parallel_process", *words, "--layouts", *layouts]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
def test_four_processes_agree_with_one_device() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    started = [start(index, port, 4, ["2d", "1d"]) for index in range(4)]
    try:
        done = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * 4, done[0][1][-2000:]
    found = json.loads(done[0][0].splitlines()[-1])

    config = tiny.Config()
    params = tiny.init(config)
    step = jax.jit(
        jax.value_and_grad(tiny.loss(parallel.Single(), config)), compiler_options=tiny.QUICKLY
    )
    loss, slopes = step(params, *tiny.data(config, 8))
    norms = [np.linalg.norm(np.ravel(x)) for x in jax.tree.leaves(slopes)]
    for layout in found:
        np.testing.assert_allclose(layout["loss"], loss, rtol=1e-5)
        np.testing.assert_allclose(layout["norms"], norms, rtol=1e-5)
        assert layout["local"] * 4 == sum(x.size for x in jax.tree.leaves(params))
