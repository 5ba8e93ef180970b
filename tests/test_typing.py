"""Types that a checker sees: users' scripts under strict checkers, `Any` and sections counted."""

import inspect
import json
import os
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.public_surface import PACKAGES, Callable_, public_callables

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tests" / "typed_scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


def folder_of_a_user(folder: Path, scripts: list[str]) -> tuple[Path, dict[str, str]]:
    """Makes a folder outside of the sources with scripts, and a path where tensorjax lies."""
    site, project = folder / "site", folder / "project"
    site.mkdir()
    project.mkdir()
    (site / "tensorjax").symlink_to(ROOT / "tensorjax")  # an installed package, not a source tree
    for name in scripts:
        (project / f"{name}.py").write_text((SCRIPTS / f"{name}.py").read_text("utf-8"), "utf-8")
    strict = {"typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (project / "pyrightconfig.json").write_text(json.dumps(strict))
    return project, {**os.environ, "PYTHONPATH": str(site)}


def pyright(folder: Path, scripts: list[str]) -> list[str]:
    project, environment = folder_of_a_user(folder, scripts)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, str(project)], cwd=project, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [f"{x['file']}:{x['range']['start']['line'] + 1}: {x['message']}" for x in found]


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "tensorjax" / "py.typed").exists()


@pytest.mark.slow
def test_scripts_of_users_pass_pyright_strict(tmp_path: Path) -> None:
    assert pyright(tmp_path, NAMES) == []


@pytest.mark.slow
def test_wrong_scripts_do_not_pass_pyright(tmp_path: Path) -> None:
    """A checker that sees `Any` everywhere would let all of them pass."""
    wrong = {
        "tt.ones((2, 3)) + 'a'": "Operator",
        "tt.ones((2, 3)) @ 3": "Operator",
        "tt.round(tt.ones((2, 3)), tolerance=1e-3)": "tolerance",
        "tt.norm(3)": "norm",
        "tt.nrom(tt.ones((2, 3)))": "nrom",
        "tensorjax.nothing": "nothing",
        "tt.solve(tt.ones((2,)), tt.ones((2,)), tol=1e-3)": "TTMatrix",
        "tt.random(0, (2, 3), rank=2)": "Array",
        "assert_type(tt.ones((2, 3)) * 2, float)": "assert_type",
        "mera.random(key, (2,) * 8, rank=2).bounday": "bounday",
        "sketch.ttrpp": "ttrpp",
    }
    project, environment = folder_of_a_user(tmp_path, [])
    head = "from typing import assert_type\nimport jax\nimport tensorjax\n"
    head += "from tensorjax import mera, sketch, tt\nkey = jax.random.key(0)\n"
    (project / "wrong.py").write_text(head + "\n".join(f"print({line})" for line in wrong))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    said: dict[int, str] = {}
    for x in json.loads(done.stdout)["generalDiagnostics"]:
        line = x["range"]["start"]["line"] - head.count("\n")
        said[line] = said.get(line, "") + x["message"]
    missed = [line for k, (line, word) in enumerate(wrong.items()) if word not in said.get(k, "")]
    assert missed == []


@pytest.mark.slow
def test_scripts_of_users_pass_mypy_strict(tmp_path: Path) -> None:
    project, environment = folder_of_a_user(tmp_path, NAMES)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        # Silent about what is imported: it has checks of its own.
        [*command, "--follow-imports=silent", *(f"{name}.py" for name in NAMES)], cwd=project,
        env={**environment, "MYPYPATH": environment["PYTHONPATH"]}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.startswith("Success"), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_scripts_of_users_run(name: str) -> None:
    """`assert_type` says nothing at run time, but calls that types allow must exist."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def holds_any(annotation: object) -> bool:
    """Whether an annotation is `Any`, or a union with it; `dict[str, Any]` says something."""
    if annotation is typing.Any or annotation in ("Any", "Any | None"):
        return True
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(x is typing.Any for x in typing.get_args(annotation))
    return False


def annotated_any(found: Callable_) -> Iterator[str]:
    """Yields the parameters of a public function, and "return", whose annotation is `Any`."""
    signature = inspect.signature(found.function)
    if found.is_init:
        signature = signature.replace(return_annotation=None)
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        assert parameter.annotation is not inspect.Parameter.empty, (found.name, parameter)
        if holds_any(parameter.annotation):
            yield parameter.name
    if holds_any(signature.return_annotation):
        yield "return"


@pytest.mark.parametrize("package", PACKAGES)
def test_any_is_where_anything_goes(package: str) -> None:
    """New parameters and results get types; those that cannot have one are listed with reasons."""
