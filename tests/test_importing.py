"""What an import loads, what is said where an extra is missing, what `dir` and reports show."""

import importlib
import inspect
import os
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorjax
from tensorjax import _extras, _native, _other_names, _version_report, contract, pde, tt
from tests.public_surface import PACKAGES, module

ROOT = Path(__file__).resolve().parents[1]
TOP = ("contract", "convert", "interop", "linalg", "mera", "models", "nn", "offload", "optim",
       "parallel", "pde", "plot", "sketch", "tt", "tucker")  # fmt: skip

# Stands for an environment without some packages: a finder before all others refuses them.
WITHOUT = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def run(code: str, missing: tuple[str, ...] = (), **environment: str) -> str:
    head = WITHOUT.format(missing=missing) if missing else ""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + code], cwd=ROOT, capture_output=True,
        text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_tensorjax_loads_next_to_nothing() -> None:
    """Modules are counted, for times on a busy machine say little; below JAX none is loaded."""
    code = "import sys; import tensorjax; print(*[m for m in sys.modules if 'jax' in m])"
    loaded = run(code).split()
    assert len([name for name in loaded if name.startswith("tensorjax")]) <= 6
    assert not [name for name in loaded if name.partition(".")[0] in ("jax", "jaxlib")]


def test_packages_load_when_they_are_used_and_others_stay_out() -> None:
    code = """
import sys, tensorjax
assert tensorjax.tucker.Tucker and tensorjax.tt.TT
from tensorjax import contract
import tensorjax.mera
loaded = {m.split(".")[1] for m in sys.modules if m.startswith("tensorjax.")}
print(*sorted(loaded & set(%r)))
"""
    assert run(code % (TOP,)).split() == ["contract", "linalg", "mera", "tt", "tucker"]


def test_operators_find_their_functions_wherever_a_format_comes_from() -> None:
    """A pickle, or a function of another package: `tensorjax.tt` is not imported by its user."""
    code = """
import sys
{make}
assert "tensorjax.tt" not in sys.modules
assert (t + t).ranks[1] == 2 * t.ranks[1] and t[1:].shape[0] == t.shape[0] - 1
assert (t @ t).shape == () and t.T.shape == t.shape[::-1]
"""
    made = "from tensorjax import mera; import jax\n"
    made += "t = mera.to_tt(mera.random(jax.random.key(0), (2,) * 4, 2))"
    saved = pickle.dumps(tensorjax.tt.ones((2, 3), np.float32))
    run(code.format(make=made))
    run(code.format(make=f"import pickle; t = pickle.loads({saved!r})"))


MISSING = (
    "flax",
    "optax",
    "orbax",
    "safetensors",
    "xxhash",
    "sklearn",
    "tensornetwork",
    "quimb",
    "matplotlib",
)


def test_what_needs_an_extra_names_it() -> None:
    """By every way to import it, of all packages that need one; the others work without."""
    code = """
import importlib, tensorjax
for name in {names!r}:
    for attempt in (lambda: getattr(tensorjax, name),
                    lambda: importlib.import_module("tensorjax." + name),
                    lambda: exec("from tensorjax import " + name)):
        try:
            attempt()
        except ModuleNotFoundError as error:
            assert f"tensorjax.{{name}} needs " in str(error), error
            extra = "plot" if name == "plot" else "nn"
            assert f"pip install 'tensorjax[{{extra}}]'" in str(error), error
            assert error.name in {missing!r}, error.name
        else:
            raise AssertionError(name)
    assert name not in dir(tensorjax)
from tensorjax import *
for name in tensorjax.__all__:
    getattr(tensorjax, name)
for name in dir(tensorjax):
    getattr(tensorjax, name)
try:
    sketch.TTRandomProjection
except ModuleNotFoundError as error:
    assert "tensorjax[experiments]" in str(error), error
else:
    raise AssertionError("sklearn")
try:
    offload.to_safetensors(None, "/nowhere")
except ModuleNotFoundError as error:
    assert "tensorjax[nn]" in str(error), error
else:
    raise AssertionError("safetensors")
tensorjax.show_versions()
"""
    said = run(code.format(names=tuple(_extras.NEEDED), missing=MISSING), MISSING)
    assert "Compiled kernels:" in said


@pytest.mark.parametrize("missing", ["flax", "optax"])
def test_each_missing_package_alone_is_named(missing: str) -> None:
    code = """
import tensorjax
for name, needs in tensorjax._extras.NEEDED.items():
    try:
        getattr(tensorjax, name)
        assert {0!r} not in needs
    except ModuleNotFoundError as error:
        assert {0!r} in needs and "needs {0}, " in str(error), (name, error)
"""
    run(code.format(missing), (missing,))


def test_other_failures_of_an_import_pass_as_they_are() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match=r"No module named 'numpy\.nothing'"),
        _extras.needed_by("tensorjax.nn"),
    ):
        importlib.import_module("numpy.nothing")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tensorjax.nothing  # type: ignore[attr-defined]


def test_dir_shows_what_is_public() -> None:
    assert set(dir(tensorjax)) == {*TOP, "kernel_choices", "show_versions", "__version__"}
    for package in PACKAGES:
        public = module(package).__all__
        assert dir(module(package)) == sorted(public), package
        assert len(public) == len(set(public))
        assert all(getattr(module(package), name, None) is not None for name in public), package


def test_linalg_shows_factorisations_alone() -> None:
    helpers = {"adjoint", "epsilon", "scaled", "is_host", "matmul", "power_of_two", "root"}
    assert not helpers & set(tensorjax.linalg.__all__)
    assert all(callable(getattr(tensorjax.linalg, name)) for name in helpers)


# Reports.


def rows(title: str) -> dict[str, str]:
    return dict(_version_report.report()[title])


def test_the_report_tells_versions_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    tensorjax.show_versions()
    said = capsys.readouterr().out
    for line in (f"jax: {jax.__version__}", f"numpy: {np.__version__}", "python: 3."):
        assert line in said
    assert rows("Packages")["tensorjax"].startswith(tensorjax.__version__)
    assert rows("Devices")["backend"] == jax.default_backend()
    assert sum(int(n) for name, n in rows("Devices").items() if "(" in name) == len(jax.devices())


def test_the_report_tells_which_kernels_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of `tensorjax._native` itself, wherever the kernels are, or are not."""
    found = rows("Compiled kernels")
    serving = [name for name, said in found.items() if name.startswith("trains") and said == "yes"]
    assert len(serving) == (not _native.status())
    why = "sweeps.so was\n not built"
    found_none = _native.loading.Kernels("", {"x86-64-v2": why}, why)
    monkeypatch.setattr(_native, "kernels", lambda: found_none)
    found = rows("Compiled kernels")
    assert "yes" not in [said for name, said in found.items() if name.startswith("trains")]
    assert any("sweeps.so was not built" in said for said in found.values())


def test_kernels_that_are_turned_off_are_reported_so() -> None:
    said = run("import tensorjax; tensorjax.show_versions()", TENSORJAX_NATIVE="0")
    assert "turned off by TENSORJAX_NATIVE=0" in said


def test_a_package_that_is_missing_is_reported_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise _version_report.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_version_report.importlib.metadata, "version", version)
    assert rows("Optional packages")["flax"] == "not installed (extra nn)"
    assert rows("Packages")["tensorjax"] == f"{tensorjax.__version__} (not installed)"


def test_help_of_tt_begins_with_all_its_functions_by_task() -> None:
    """`help(tt)` prints every docstring: what is where stands on its first screen."""
    tt = tensorjax.tt
    table = tt.__doc__.partition("Functions by task:")[2].partition("``help")[0]
    listed = re.findall(r"\w+", "\n".join(line[15:] for line in table.splitlines()))
    assert set(tt.__all__) <= set(listed), set(tt.__all__) - set(listed)
    assert len(table.splitlines()) <= 35
    text = pydoc.plain(pydoc.render_doc(tt.TT))
    assert "Functions by task" not in text


NAMES = [("dot", "tt.inner"), ("svd", "tt.from_dense"), ("exp", r"tt.map\(jnp.exp"), ("?", "")]


@pytest.mark.parametrize(("theirs", "ours"), NAMES)
def test_names_of_other_libraries_lead_to_ours(theirs: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=f"{re.escape(theirs)}'.*{ours}"):
        getattr(tt, theirs)
    assert not hasattr(tt, theirs)


@pytest.mark.parametrize("name", " ".join(_other_names.REMOVED_FROM_PDE).split())
def test_names_that_were_removed_lead_to_what_serves(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}'; see .*adaptive.*times as long.*removed"):
        getattr(pde, name)
    assert name not in pde.__all__


def test_names_of_other_libraries_are_none_of_ours() -> None:
    for theirs, hint in _other_names.FUNCTIONS.items():
        assert not {*theirs.split()} & {*tt.__all__}
        for name in re.findall(r"\btt\.(\w+)", hint):
            assert hasattr(tt, name), name


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: tt.eigsh(tt.identity((2, 2)), tol=1e-3, which="LA"), "largest are those of -A"),
        (lambda: tt.eigsh(tt.identity((2, 2)), tol=1e-3, M=None), "generalised problems"),
        (lambda: tt.solve(tt.identity((2,)), tt.ones((2,)), tol=1e-3, nswp=3), "max_sweeps="),
        (lambda: tt.round(tt.ones((2, 2)), eps=1e-3), "is tol="),
        (lambda: tt.round(tt.ones((2, 2)), rmax=2), "by rank="),
        (lambda: tt.cross(np.sum, (2, 2), tol=1e-3, rmax=2), "by max_rank="),
        (lambda: contract.einsum("i->", jnp.ones(2), dtype="float32"), "preferred_element_type="),
    ],
)
def test_options_of_other_libraries_lead_to_ours(call: Any, hint: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument") as found:
        call()
    assert hint in "".join(found.value.__notes__)


def test_hints_name_options_that_the_function_has() -> None:
    for name in tt.__all__:
        function = getattr(tt, name)
        if not hasattr(function, "is_placed"):
            continue
        known = inspect.signature(function).parameters
        for theirs in " ".join(_other_names.OPTIONS).split():
            problem = TypeError(f"{name}() got an unexpected keyword argument '{theirs}'")
            _other_names.explain(name, known, [theirs], problem)
            for option in re.findall(r"(\w+)=", "".join(getattr(problem, "__notes__", ()))):
                assert option in known, (name, theirs)


def test_other_unknown_options_and_errors_have_no_hint() -> None:
    for call in (
        lambda: tt.round(tt.ones((2,)), other=1), lambda: tt.round(3, tol=1e-3),
        lambda: tt.norm(tt.ones((2,)), rtol=1),
    ):  # fmt: skip
        with pytest.raises(TypeError) as found:
            call()
        assert not hasattr(found.value, "__notes__")
