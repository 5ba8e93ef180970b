"""Provenance of a result: versions, device and commit."""

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RECORDED_PACKAGES = ("tensorjax", "jax", "jaxlib", "numpy", "scipy", "opt_einsum")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns the versions of Python, of the usual packages and of ``packages``, if installed."""
    found = {"python": platform.python_version()}
    for name in (*RECORDED_PACKAGES, *packages):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device() -> dict[str, Any]:
    """Returns the device that JAX runs on, the host's processor, and the state of C++ kernels."""
    import jax

    from tensorjax import _native

    first = jax.devices()[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": jax.device_count(),
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "x64": bool(jax.config.read("jax_enable_x64")),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "compiled_sweeps": _native.status() or "yes",
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> dict[str, Any] | None:
    """Returns the git commit of this checkout and whether files differ from it, if any."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None  # an unpacked copy inside somebody else's checkout
        return {"hash": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None
