"""What is written in C and C++ is built on installation, or a reason given why not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_build
from tensorjax._native.level import level

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("function", "compiler", "default", "stem"),
    [
        ("build_uring", "CC", "cc", "libio_uring."),
        ("build_copies", "CC", "cc", "_copies_c.abi3."),
        pytest.param("build_sweeps", "CXX", "c++", f"sweeps-{level()}.", marks=pytest.mark.slow),
    ],
)
def test_it_is_built_or_a_reason_given(
    function: str, compiler: str, default: str, stem: str, tmp_path: Path
) -> None:
    """And a missing compiler never breaks an installation."""
    code = (
        f"import pathlib, sys; from hatch_build import {function}\n"
        f"print(*{function}(pathlib.Path('.'), pathlib.Path(sys.argv[1])), sep='|')"
    )

    def build(**environment: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, text=True,
            capture_output=True, env={**os.environ, **environment},
        )  # fmt: skip
        return done.stdout.strip().split("|")

    library, why = build(**{compiler: "no-such-compiler"})
    assert library == "None"
    assert why
    # The flags, not the code, are looked at: the optimiser would take most of the time.
    quick = tmp_path / "quick"
    quick.write_text(f'#!/bin/sh\nexec {os.environ.get(compiler, default)} "$@" -O0\n')
    quick.chmod(0o755)
    library, why = build(**{compiler: str(quick)})
    assert (library == "None") == bool(why)
    if not why:
        assert Path(library).name.startswith(stem)
        assert Path(library).stat().st_size > 1000


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
@pytest.mark.parametrize(
    "changed",
    ["hatch_build.py", "tensorjax/_native/team.h", f"{hatch_build.URING}", f"{hatch_build.COPIES}"],
)
def test_make_installs_again_when_what_is_compiled_has_changed(
    changed: str, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    installed.touch()
    command = ["make", "--question", "install", f"VENV={tmp_path}"]

    def is_old(*options: str) -> bool:
        done = subprocess.run([*command, *options], cwd=ROOT, check=False, capture_output=True)
        return done.returncode == 1

    assert not is_old()
    assert is_old("--what-if", changed)
