"""Builds what is written in C and C++, where a compiler and the headers are; else goes on without.

Called by hatchling on every install; by hand, to build in place: ``python hatch_build.py``.
"""

import importlib.util
import os
import runpy
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # called by hand
    BuildHookInterface = object

URING = Path("tensorjax/offload/_store/backends/_uring_c.c")
COPIES = Path("tensorjax/offload/_store/_copies_c.c")
SWEEPS = Path("tensorjax/_native/call.cc")


def build_uring(root: Path, target: Path | None = None) -> tuple[Path | None, str]:
    """Compiles the io_uring extension: its path, or None and why there is none.

    Args:
        root: Of the source tree.
        target: Folder for the extension; by default that of its source.
    """
    return _extension(root, target, URING, "-luring")


def build_copies(root: Path, target: Path | None = None) -> tuple[Path | None, str]:
    """Compiles the copies past the caches; as `build_uring`."""
    return _extension(root, target, COPIES)


def build_sweeps(root: Path, target: Path | None = None) -> tuple[Path | None, str]:
    """Compiles the sweeps over tensor trains for this CPU; as `build_uring`."""
    level = _level(root)
    library = (target or (root / SWEEPS).parent) / f"sweeps-{level}.so"
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is None or not jaxlib.origin:
        return None, "jaxlib, whose headers are needed, is not here"
    flags = ["-O3", "-std=c++17", f"-isystem{Path(jaxlib.origin).parent / 'include'}"]
    if level.startswith("x86-64"):
        flags.append(f"-march={level}")
    return _compiled(library, _compiler("CXX", "c++"), [*flags, str(root / SWEEPS), "-lpthread"])


def _extension(
    root: Path, target: Path | None, source: Path, *libraries: str
) -> tuple[Path | None, str]:
    """Compiles an extension of Python, written in C."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    library = (target or (root / source).parent) / f"{source.stem}{suffix}"
    flags = ["-O2", f"-I{sysconfig.get_path('include')}", str(root / source), *libraries]
    if sys.platform == "darwin":
        flags.append("-Wl,-undefined,dynamic_lookup")  # Python's names are found when it is loaded
    return _compiled(library, _compiler("CC", "cc"), flags)


def _level(root: Path) -> str:
    """The instructions of this CPU, as the package tells them when it looks for the library."""
    return runpy.run_path(str((root / SWEEPS).with_name("level.py")))["level"]()


def _compiler(variable: str, default: str) -> list[str]:
    return shlex.split(os.environ.get(variable) or sysconfig.get_config_var(variable) or default)


def _compiled(library: Path, compiler: list[str], flags: list[str]) -> tuple[Path | None, str]:
    command = [*compiler, "-fPIC", "-shared", "-Wall", *flags, "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    if done.returncode or not library.exists():
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no output"]
        return None, lines[0]
    return library, ""


BUILDS = {
    "io_uring extension": build_uring,
    "copies past the caches": build_copies,
    "compiled sweeps": build_sweeps,
}


class NativeBuildHook(BuildHookInterface):
    """Adds to the wheel what can be built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files."""
        for name, build in BUILDS.items():
            library, why = build(Path(self.root))
            if library is None:
                self.app.display_info(f"tensorjax: without the {name} ({why})")
                continue
            build_data["artifacts"].append(str(library.relative_to(self.root)))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


if __name__ == "__main__":
    for name, build in BUILDS.items():
        built, reason = build(Path(__file__).resolve().parent)
        print(built or f"{name}: not built: {reason}")
