"""Nothing of the process is left changed: threads of BLAS, CPUs, listeners, options, filters."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorjax import _blas_threads
from tensorjax.linalg._subspaces.subspaces_on_host import Asked, all_needed

ROOT = Path(__file__).resolve().parents[1]

# Modules that may name JAX's private ones. Both do so in functions, the first with a public way to
# fall back on, the second for want of one.
PRIVATE = {"_transfer", "offload._processes"}


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="CPUs of threads: Linux")
@pytest.mark.parametrize("calls", ["8", pytest.param("all", marks=pytest.mark.slow)])
def test_calls_leave_the_process_as_they_find_it(calls: str) -> None:
    hidden = {"XLA_FLAGS", "OPENBLAS_NUM_THREADS"}
    environment = {name: x for name, x in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "process_state.py", *([] if calls == "all" else [calls])],
        cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_a_rank_test_on_the_host_runs_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It factorises by the BLAS that `one_thread` limits: others' threads go on spinning."""
    limited, threads = _blas_threads.controls("numpy.linalg._umath_linalg"), []
    factorised = np.linalg.cholesky

    def counted(a: np.ndarray) -> np.ndarray:
        threads.append(limited[0]() if limited else 1)
        return factorised(a)

    monkeypatch.setattr(np.linalg, "cholesky", counted)
    a = np.random.default_rng(0).standard_normal((128, 256))
    with _blas_threads.one_thread(True):
        assert all_needed(a @ a.T, Asked(share=1e-6))
    assert threads == [1]


def test_private_modules_of_jax_are_named_where_it_is_known() -> None:
    found = set()
    for path in (ROOT / "tensorjax").rglob("*.py"):
        text = path.read_text("utf-8")
        if "_src" not in text:  # walking all functions of all files takes long
            continue
        tree = ast.parse(text)
        inside = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.Attribute) and node.attr == "_src":
                names.append("jax._src")
            if any(name == "jax._src" or name.startswith("jax._src.") for name in names):
                assert node in inside, f"{path}: imported with the package"
                found.add(".".join(path.relative_to(ROOT / "tensorjax").with_suffix("").parts))
    assert found <= PRIVATE
