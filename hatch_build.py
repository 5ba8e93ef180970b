"""Builds the io_uring extension where a compiler and the headers of liburing are; else goes on.

Called by hatchling on every install; by hand, to build it in place: ``python hatch_build.py``.
"""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # called by hand
    BuildHookInterface = object

SOURCE = Path("tensorjax/offload/_backends/_uring_c.c")


def build(root: Path, target: Path | None = None) -> tuple[Path | None, str]:
    """Compiles the extension: its path, or None and why there is none.

    Args:
        root: Of the source tree.
        target: Folder for the extension; by default that of its source.
    """
    source = root / SOURCE
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    library = (target or source.parent) / f"_uring_c{suffix}"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = [
        *shlex.split(compiler), "-O2", "-fPIC", "-shared", "-Wall",
        f"-I{sysconfig.get_path('include')}", str(source), "-o", str(library), "-luring",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    if done.returncode or not library.exists():
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no output"]
        return None, lines[0]
    return library, ""


class UringBuildHook(BuildHookInterface):
    """Adds the extension to the wheel if it can be built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files."""
        library, why = build(Path(self.root))
        if library is None:
            self.app.display_info(f"tensorjax: without the io_uring extension ({why})")
            return
        build_data["artifacts"].append(str(library.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


if __name__ == "__main__":
    built, reason = build(Path(__file__).resolve().parent)
    print(built or f"not built: {reason}")
