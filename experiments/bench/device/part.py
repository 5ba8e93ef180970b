"""Process of one part: ``python -m experiments.bench.device.part NAME --rows FILE …``."""

import argparse
import importlib
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments import _provenance
from experiments.bench.device.parts import PARTS
from experiments.bench.device.rows import Budget, Emit

PACKAGES = ("flax", "optax", "torch", "torchTT", "jax-cuda13-plugin", "jax-cuda12-plugin",
            "nvidia-cudnn-cu13")  # fmt: skip


def about(commit: str, tiny: bool) -> dict[str, Any]:
    """Returns the provenance of this process's rows: device, date, versions, commit."""
    found = _provenance.device()
    return {
        "device": found.pop("kind"),
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "versions": _provenance.versions(PACKAGES),
        "commit": commit,
        "tiny": tiny,
        "host": {name: value for name, value in found.items() if value != ""},
    }


def main() -> None:
    """Runs the part of `bench/device` that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--module", default="")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--facts", default="{}")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    budget = Budget(given.seconds, given.tiny, facts=json.loads(given.facts))
    module = given.module or {part.name: part.module for part in PARTS}[given.name]
    run = importlib.import_module(module).run
    emit = Emit(given.rows, given.name, about(given.commit, given.tiny))
    run(budget, emit)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # Threads that still compile, or a library's, keep no finished part alive.
    os._exit(0)
