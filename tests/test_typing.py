"""Types that a checker sees: users' scripts under strict checkers, and where `Any` may stand."""

import inspect
import json
import os
import re
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest

from tests.compiling import flags
from tests.public_surface import PACKAGES, Public, functions, methods

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


# Lines that no checker may pass, and a word of what it says.
WRONG = {
    "tt.ones((2, 3)) + 'a'": "Operator",
    "tt.ones((2, 3)) @ 3": "Operator",
    "tt.round(tt.ones((2, 3)), tolerance=1e-3)": "tolerance",
    "tt.norm(3)": "TTMatrix",
    "tt.nrom(tt.ones((2, 3)))": "nrom",
    "tensorjax.nothing": "nothing",
    "tt.solve(tt.ones((2,)), tt.ones((2,)), tol=1e-3)": "TTMatrix",
    "tt.random(0, (2, 3), rank=2)": "Array",
    "assert_type(tt.ones((2, 3)) * 2, float)": "assert_type",
    "mera.random(key, (2,) * 8, rank=2).bounday": "bounday",
    "sketch.ttrpp": "ttrpp",
}
HEAD = "from typing import assert_type\nimport jax\nimport tensorjax\n"
HEAD += "from tensorjax import mera, sketch, tt\nkey = jax.random.key(0)\n"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, str]]:
    """What pyright finds in the users' scripts and in one of wrong lines: file, line, message."""
    project, environment = folder_of_a_user(tmp_path_factory.mktemp("user"), NAMES)
    (project / "wrong.py").write_text(HEAD + "\n".join(f"print({line})" for line in WRONG))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, str(project)], cwd=project, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [(Path(x["file"]).name, x["range"]["start"]["line"] + 1, x["message"]) for x in found]


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "tensorjax" / "py.typed").exists()


@pytest.mark.slow
def test_scripts_of_users_pass_pyright_strict(said: list[tuple[str, int, str]]) -> None:
    assert [x for x in said if x[0] != "wrong.py"] == []


@pytest.mark.slow
def test_wrong_scripts_do_not_pass_pyright(said: list[tuple[str, int, str]]) -> None:
    """A checker that sees `Any` everywhere would let all of them pass."""
    messages: dict[int, str] = {}
    for name, number, message in said:
        line = number - 1 - HEAD.count("\n")
        messages[line] = messages.get(line, "") + (message if name == "wrong.py" else "")
    found = enumerate(WRONG.items())
    assert [line for k, (line, word) in found if word not in messages.get(k, "")] == []


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
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": flags()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Parameters and results that stay `Any`, by package and reason. A new one needs a reason here.
ANY = {
    "contract": {
        "operands in two forms, as of `numpy.einsum`; options are opt_einsum's": (
            "einsum(expr, arrays, options) plan(expr, operands, optimize)"
        ),
    },
    "interop": {
        "objects of packages without types": (
            "from_numpy(data) from_quimb(x) to_numpy(return) to_quimb(return)"
        ),
    },
    "models.dlrm": {"fields of the configuration, handed on": "DLRMConfig.tiny(changes)"},
    "models.encoder": {"fields of the configuration, handed on": "EncoderConfig.tiny(changes)"},
    "models.gpt2": {
        "fields of the configuration, handed on": (
            "GPT2Config.large(changes) GPT2Config.medium(changes) GPT2Config.small(changes) "
            "GPT2Config.tiny(changes) GPT2Config.xl(changes) from_huggingface(changes) "
            "read_groups(changes)"
        ),
    },
    "nn": {
        "the class of a layer, or of what takes a model's place, hangs on specs and rules": (
            "CP.embedding(return) CP.linear(return) Dense.embedding(return) Dense.linear(return) "
            "LowRank.embedding(return) LowRank.linear(return) Spec.embedding(return) "
            "Spec.linear(return) TT.embedding(return) TT.linear(return) Tucker.embedding(return) "
            "TTMatrix.embedding(return) TTMatrix.linear(return) TTMatrix.conv(return) "
            "Tucker.linear(return) adapt(return) detensorize(return) merge_adapters(return) "
            "tensorize(return) CP.conv(return) Dense.conv(return) LowRank.conv(return) "
            "Spec.conv(return) TT.conv(return) Tucker.conv(return)"
        ),
        "options, handed on": (
            "PaddedEmbed.__init__(options) from_embedding(options) CP.conv(options) "
            "Dense.conv(options) LowRank.conv(options) Spec.conv(options) TT.conv(options) "
            "TTMatrix.conv(options) "
            "Tucker.conv(options)"
        ),
    },
    "offload": {
        "trees and programs of the user's layers": (
            "Engine.__init__(data) Engine.add(return) Engine.backward(kept, dy) "
            "Engine.batch(return) Engine.device(return) Engine.evaluate(return) "
            "Engine.fetch(arrays, return) Engine.finite(return) Engine.last(share) "
            "Engine.place(return) Engine.shares(keys) Engine.wait(value, return)"
        ),
        "whatever JSON or the user keeps": (
            "TensorStore.__init__(model) TensorStore.commit(meta) TensorStore.meta(return) "
            "Trainer.data(return) Trainer.step(data)"
        ),
        "what the planner hands to a store and a trainer": (
            "Plan.__init__(compute_dtype) Plan.options(store) Plan.store(options)"
        ),
    },
    "optim": {"a tree of the same structure, of strings": "labels(return)"},
    "parallel": {
        "of the layout that is named": "layout(options)",
        "a configuration of any model": "plan(config)",
        "a tree of the same structure, of shardings": (
            "shardings(return) state_shardings(return)"
        ),
    },
    "pde": {
        "a field: array-likes go in, arrays are held": (
            "AdvectionDiffusionReaction.__init__(velocity, conductivity, matrix, offset, "
            "potential) FokkerPlanck.__init__(drift, diffusion, matrix, offset) "
            "Gaussian.__init__(mean, covariance) Liouville.__init__(matrix, offset) "
            "OrnsteinUhlenbeck.__init__(matrix, diffusion, offset) "
            "Power.__init__(weights, offset, amplitude) Product.__init__(amplitude) "
            "Separable.__init__(amplitude) "
            "Sin.__init__(weights, phase, amplitude)"
        ),
        "NumPy's, or JAX's where anything is traced": (
            "AffineMap.cond(return) AffineMap.det(return) AffineMap.forward(return) "
            "AffineMap.inverse(return) Axis.interpolate(return)"
        ),
        "of xarray, which need not be installed": "Solution.to_xarray(return)",
    },
    "sketch": {
        "dense or sparse, in classes that share no base": (
            "TTRandomProjection.fit(X, y) TTRandomProjection.inverse_transform(X) "
            "TTRandomProjection.transform(X) apply(x, return)"
        ),
    },
    "tt": {
        "a scalar where no mode remains, else a train": (
            "contract_modes(return) mean(return) moment(return) sum(return) "
            "tensordot(return) var(return)"
        ),
        "options, handed on to `tt.cross`": "divide(options) map(options)",
        "named, or a function of the system": "solve(preconditioner)",
    },
    "tt.functions": {
        "options, handed on to `tt.cross`": "compose(options) interpolate(options)",
    },
}  # fmt: skip


def holds_any(annotation: object) -> bool:
    """Whether an annotation is `Any`, or a union with it; `dict[str, Any]` says something."""
    if annotation is typing.Any or annotation in ("Any", "Any | None"):
        return True
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(x is typing.Any for x in typing.get_args(annotation))
    return False


def annotated_any(found: Public) -> list[str]:
    """Lists the parameters of a public function, and "return", whose annotation is `Any`."""
    signature = found.signature
    names = {p.name: p.annotation for p in signature.parameters.values()}
    if not found.name.endswith("__init__"):
        names["return"] = signature.return_annotation
    assert inspect.Parameter.empty not in names.values(), f"{found.name}: {signature}"
    return [name for name, annotation in names.items() if holds_any(annotation)]


def entries(text: str) -> set[tuple[str, str]]:
    found = re.findall(r"([\w.]+)\(([^)]*)\)", text)
    return {(name, argument.strip()) for name, inside in found for argument in inside.split(",")}


@pytest.mark.parametrize("package", PACKAGES)
def test_any_is_where_anything_goes(package: str) -> None:
    """New parameters and results get types; those that cannot have one are listed with reasons."""
    whole = "pde" if package == "pde.problems" else package  # which repeats what pde has
    allowed = set().union(*(entries(text) for text in ANY.get(whole, {}).values()))
    public = [*functions(package), *methods(package)]
    found = {(x.name, name) for x in public if typed(x) for name in annotated_any(x)}
    assert found - allowed == set()
    assert whole != package or allowed - found == set()  # what has a type leaves the list


def typed(x: Public) -> bool:
    """Whether the signature is written by hand, unlike those that typing.Protocol makes."""
    return x.function.__module__.startswith("tensorjax")
