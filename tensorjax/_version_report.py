"""Report of versions, devices and compiled kernels, for bug reports and logs of experiments."""

import importlib
import importlib.metadata
import os
import platform
import sys
import tempfile
from pathlib import Path

_REQUIRED = ("tensorjax", "jax", "jaxlib", "numpy", "scipy", "opt_einsum")
_OPTIONAL = {
    "flax": "nn",
    "optax": "nn",
    "orbax-checkpoint": "nn",
    "safetensors": "nn",
    "xxhash": "offload",
    "tensornetwork": "network",
    "cotengra": "network",
    "scikit-learn": "experiments",
    "matplotlib": "plot",
}
Rows = list[tuple[str, str]]


def show_versions() -> None:
    """Prints the versions of packages, the devices, and the compiled kernels in use, or why not.

    Optional packages are not imported for it; JAX starts its backends. What it prints may go into
    a report as it is, but holds the path of the interpreter and the name of the system.

    Example:
      >>> import tensorjax
      >>> tensorjax.show_versions()
      System:
          python: 3...
      Compiled kernels:...

    Source: ours.
    """
    for title, rows in report().items():
        print(f"{title}:")
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            print(f"    {name:>{width}}: {value}")


def report() -> dict[str, Rows]:
    """Returns tables of versions, devices and compiled kernels, as rows by title."""
    return {
        "System": _system(),
        "Packages": [(name, _version(name)) for name in _REQUIRED],
        "Optional packages": [(name, _optional(name)) for name in _OPTIONAL],
        "Devices": _devices(),
        "Compiled kernels": _kernels(),
    }


def _system() -> Rows:
    python = sys.version.split("\n")[0].strip()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        ("python", python),
        ("executable", sys.executable),
        ("machine", platform.platform()),
        ("processor", f"{_processor()}, {cores} cores for this process"),
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _version(package: str) -> str:
    """Returns the version of an installed package, or "not installed".

    Of a source tree of tensorjax, its own version.
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        own = getattr(sys.modules.get("tensorjax"), "__version__", None)
        return f"{own} (not installed)" if package == "tensorjax" and own else "not installed"


def _optional(package: str) -> str:
    found = _version(package)
    return f"{found} (extra {_OPTIONAL[package]})" if found == "not installed" else found


def _devices() -> Rows:
    import jax

    settings: Rows = [("jax_enable_x64", str(jax.config.read("jax_enable_x64")))]
    try:
        devices = jax.devices()
    except RuntimeError as error:  # a platform was asked for that is not there
        return [("none", _in_one_line(error)), *settings]
    kinds: dict[str, int] = {}
    for device in devices:
        name = f"{device.platform} ({device.device_kind})"
        kinds[name] = kinds.get(name, 0) + 1
    of = f", process {jax.process_index()} of {jax.process_count()}"
    found: Rows = [("backend", jax.default_backend() + (of if jax.process_count() > 1 else ""))]
    return [*found, *((name, str(count)) for name, count in kinds.items()), *settings]


def _kernels() -> Rows:
    """Returns the rows of `show_versions` on C++ kernels and io_uring: in use, or why not."""
    from tensorjax import _native

    level, others, reason = _native.kernels()
    states = {name: f"no: {_in_one_line(why)}" for name, why in others.items()}
    if level:
        states[level] = "yes"
    elif not states:
        states["any level"] = f"no: {_in_one_line(reason)}"
    rows = [(f"trains, {name}", states[name]) for name in sorted(states, reverse=True)]
    if not level:
        rows.append(("instead", "XLA and NumPy serve"))
    return [*rows, ("io_uring", _io_uring())]


def _io_uring() -> str:
    # By name: offload lies above the helpers, and nothing of it is loaded but for this report.
    uring = importlib.import_module("tensorjax.offload._store.backends.uring")
    with tempfile.TemporaryDirectory() as folder:
        answers = uring.probe(Path(folder))
    why = answers["io_uring"]
    return f"no: {_in_one_line(why)}" if why else f"yes (tried in {Path(folder).parent})"


def _in_one_line(text: object) -> str:
    return " ".join(str(text).split())
