"""Builds what is written in C and C++, where a compiler is; says what is left out, and goes on.

Called by hatchling. An editable installation gets it in place, for this CPU alone; a wheel for
Linux gets the C++ kernels for every level of its CPUs, and is tagged by what it asks of the system;
other wheels are pure. By hand, to build in place: ``python hatch_build.py``. For another machine:
``CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ python -m build --wheel``, or by the package
ziglang, ``CC="python -m ziglang cc -target aarch64-linux-gnu.2.17"`` and CXX with ``c++``.
"""

import importlib.util
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # called by hand
    BuildHookInterface = object

URING = Path("tensorjax/offload/_store/backends/io_uring.c")
COPIES = Path("tensorjax/offload/_store/_copies_c.c")
SWEEPS = Path("tensorjax/_native/call.cc")
# The oldest glibc on which manylinux wheels are still told apart; jaxlib asks for a newer one.
_OLDEST = (2, 17)
Built = tuple[Path | None, str]


def build_uring(root: Path, target: Path | None = None) -> Built:
    """Compiles the library for io_uring: its path, or None and why there is none.

    Args:
        root: Of the source tree.
        target: Folder for the library; by default that of its source.
    """
    machine, system = _machine("CC", "cc")
    if "linux" not in system:
        return None, f"{system or machine} has no io_uring"
    library = (target or (root / URING).parent) / "libio_uring.so"
    flags = ["-O2", *_lean(system), _sources(root, URING), str(root / URING)]
    return _compiled(library, _compiler("CC", "cc"), flags)


def build_copies(root: Path, target: Path | None = None) -> Built:
    """Compiles the copies past the caches, by Python's stable ABI; as `build_uring`."""
    library = (target or (root / COPIES).parent) / f"{COPIES.stem}.abi3.so"
    _, system = _machine("CC", "cc")
    flags = [
        "-O2", *_lean(system), f"-I{sysconfig.get_path('include')}", _sources(root, COPIES),
        str(root / COPIES),
    ]  # fmt: skip
    if sys.platform == "darwin":
        flags.append("-Wl,-undefined,dynamic_lookup")  # Python's names are found when it is loaded
    return _compiled(library, _compiler("CC", "cc"), flags)


def build_sweeps(root: Path, target: Path | None = None, level: str | None = None) -> Built:
    """Compiles the sweeps over tensor trains; as `build_uring`.

    Args:
        root: Of the source tree.
        target: Folder for the library; by default that of its source.
        level: Of the CPU; by default this one's.
    """
    folder = (root / SWEEPS).parent
    level = level or _levels(root)["level"]()
    library = (target or folder) / f"sweeps-{level}.so"
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is None or not jaxlib.origin:
        return None, "jaxlib, whose headers are needed, is not here"
    headers = Path(jaxlib.origin).parent / "include"
    compiler = _compiler("CXX", "c++")
    # Messages of the headers name their files: not those of the machine where this is built.
    flags = ["-O3", "-std=c++17", f"-isystem{headers}", f"-ffile-prefix-map={headers}=jaxlib"]
    if level.startswith("x86-64"):
        flags.append(f"-march={level}")
    _, system = _machine("CXX", "c++")
    if "linux" in system:
        flags += [*_lean(system), *_self_contained(root, compiler)]
    flags += [_sources(root, SWEEPS), str(root / SWEEPS), "-lpthread"]
    return _compiled(library, compiler, flags)


def _lean(system: str) -> list[str]:
    return ["-s"] if "linux" in system else []


def _sources(root: Path, source: Path) -> str:
    """Returns the flag that puts the digest of the sources into a library: it tells its age."""
    tools = runpy.run_path(str(root / "tensorjax" / "_shared_libraries.py"))
    return f'-DTENSORJAX_SOURCES="{tools["source_digest"]((root / source).parent)}"'


def _self_contained(root: Path, compiler: list[str]) -> list[str]:
    """Returns flags for a library that asks little of the system, and shows nothing but its calls.

    The static libstdc++, if there is one: that of the system may be older than the compiler's.
    """
    folder = (root / SWEEPS).parent
    names = ("pthread_create", "pthread_join", "pthread_once", "hypot")
    wrapped = ",".join(f"--wrap={name}" for name in names)
    flags = [
        str(folder / "older_glibc.cc"), f"-Wl,{wrapped},--gc-sections",
        f"-Wl,--version-script={folder / 'calls.map'}", "-ffunction-sections", "-fdata-sections",
    ]  # fmt: skip
    found = Path(_asked([*compiler, "-print-file-name=libstdc++.a"]))
    return [*flags, "-static-libstdc++"] if found.is_absolute() else flags


def _levels(root: Path) -> dict[str, Any]:
    """The levels of CPUs, as the package tells them when it looks for the library."""
    return runpy.run_path(str((root / SWEEPS).with_name("level.py")))


def _compiler(variable: str, default: str) -> list[str]:
    return shlex.split(os.environ.get(variable) or sysconfig.get_config_var(variable) or default)


def _machine(variable: str, default: str) -> tuple[str, str]:
    """The architecture and the system for which a compiler compiles; empty where there is none."""
    found = _asked([*_compiler(variable, default), "-dumpmachine"])
    machine, _, system = found.partition("-")
    return machine, system


def _asked(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _compiled(library: Path, compiler: list[str], flags: list[str]) -> Built:
    command = [*compiler, "-fPIC", "-shared", "-Wall", *flags, "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    if done.returncode or not library.exists():
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no output"]
        return None, lines[0]
    return library, ""


BUILDS = {
    "io_uring library": build_uring,
    "copies past the caches": build_copies,
    "compiled sweeps": build_sweeps,
}


def build_all(builds: Iterable[Callable[[], Built]]) -> list[Built]:
    """Runs builds side by side: each waits for its compiler."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [*pool.map(lambda build: build(), builds)]


def wheel_builds(root: Path, target: Path) -> dict[str, tuple[Path, Callable[[], Built]]]:
    """Returns what a wheel for the compilers' machine holds: the folder of each part, its build."""
    machine, system = _machine("CXX", "c++")
    parts = {
        "io_uring library": (URING.parent, partial(build_uring, root, target)),
        "copies past the caches": (COPIES.parent, partial(build_copies, root, target)),
    }
    if "linux" in system and "gnu" in system:
        found = _levels(root)
        for level in found["X86"] if machine == "x86_64" else found["known"](machine):
            build = partial(build_sweeps, root, target, level)
            parts[f"compiled sweeps for {level}"] = SWEEPS.parent, build
    return parts


def wheel_tag(libraries: Iterable[Path], machine: str) -> str:
    """Returns the tag of a wheel with these libraries: the oldest glibc that has all they ask.

    Args:
        libraries: Of C, without a version of Python.
        machine: Their architecture.

    Returns:
        Such as py3-none-manylinux_2_17_x86_64; where they need this system's libstdc++,
        py3-none-linux_x86_64, which says nothing of others.
    """
    texts = [library.read_bytes() for library in libraries]
    if any(b"GLIBCXX_" in text for text in texts):
        return f"py3-none-linux_{machine}"
    found = (re.findall(rb"\0GLIBC_(\d+)\.(\d+)", text) for text in texts)
    asked = {(int(major), int(minor)) for versions in found for major, minor in versions}
    major, minor = max(asked | {_OLDEST})
    return f"py3-none-manylinux_{major}_{minor}_{machine}"


class NativeBuildHook(BuildHookInterface):
    """Adds to the wheel what can be built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files."""
        root = Path(self.root)
        if version == "editable":  # what is built lies beside its source, where it is found
            built = build_all(partial(build, root) for build in BUILDS.values())
            self._say(dict(zip(BUILDS, built, strict=True)))
            return
        self._folder = Path(tempfile.mkdtemp())
        machine, system = _machine("CC", "cc")
        if "linux" not in system or "gnu" not in system:
            self.app.display_warning(
                f"tensorjax: a pure wheel, without compiled code: {self._why_pure(system)}"
            )
            return
        parts = wheel_builds(root, self._folder)
        built = build_all(build for _, build in parts.values())
        self._say(dict(zip(parts, built, strict=True)))
        added = [
            (library, folder / library.name)
            for (folder, _), (library, _) in zip(parts.values(), built, strict=True)
            if library is not None
        ]
        if not added:
            self.app.display_warning("tensorjax: a pure wheel, as nothing could be compiled")
            return
        build_data["force_include"] |= {str(library): str(place) for library, place in added}
        build_data["pure_python"] = False
        build_data["tag"] = wheel_tag([library for library, _ in added], machine)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling when the wheel is written."""
        if version != "editable":
            shutil.rmtree(self._folder, ignore_errors=True)

    def _say(self, built: dict[str, Built]) -> None:
        for name, (library, why) in built.items():
            if library is None:
                self.app.display_warning(f"tensorjax: without the {name} ({why})")

    @staticmethod
    def _why_pure(system: str) -> str:
        if not system:
            return f"no C compiler was found on {platform.system()}"
        return f"wheels with it are made for Linux with glibc, not for {system}"


if __name__ == "__main__":
    for name, build in BUILDS.items():
        built, reason = build(Path(__file__).resolve().parent)
        print(built or f"{name}: not built: {reason}")
