"""Arguments of the wrong kind: every public function names what it expected, from its own checks.

The cases of `tests/placement_cases.py` are called, and again with each argument, and each option
that they leave out, replaced by something else. That may serve (None often does); where it does
not, the error is raised by a check of the library that names an argument: none comes out of an
operation that met what it cannot use.
"""

import inspect
import linecache
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from tensorjax import _check, contract, linalg, mera, nn, offload, parallel, tt, tucker
from tensorjax.models import gpt2
from tests.placement_cases import CASES

# Arithmetic that other packages import from linalg: no part of its interface.
PRIVATE = {(linalg, name) for name in ("adjoint", "energy", "matmul", "triangle")}
WRONG = (
    None, "x", 3.7, -1, [], {}, (), np.nan, True, [None], object(),
    np.ones(3), jnp.ones((2, 2, 2)),
)  # fmt: skip
LONG = {"refine"}  # hundreds of steps with the options that a case leaves out


def test_arguments_of_wrong_kinds_are_named_by_drawn_functions_on_trains(monkeypatch):
    _check_package(tt, monkeypatch, functions=6)


def test_arguments_of_wrong_kinds_are_named_by_factorisations(monkeypatch):
    for wrong in (np.ones((3, 3), object), np.ones((2, 2), bool), np.ones((2, 3)).astype(str)):
        for f in (linalg.svd, linalg.eigh, linalg.qr, linalg.gram, linalg.polar):
            assert not _problems((f, (np.eye(2),), {}), 0, [wrong])
    for wrong in (np.ones((2, 3)), np.full((3, 3), np.nan), np.ones((2, 3, 4))):
        assert not _problems((linalg.eigh, (np.eye(2),), {}), 0, [wrong])
        assert not _problems((linalg.svd, (np.eye(2),), {}), 0, [wrong])
    choose = (linalg.choose, ("auto", 1e-6, "float64"), {})
    assert not [p for k in (0, 1, 2, "levels") for p in _problems(choose, k, WRONG)]
    _check_package(linalg, monkeypatch, functions=8)


@pytest.mark.slow
@pytest.mark.parametrize("package", CASES, ids=lambda package: package.__name__)
def test_arguments_of_wrong_kinds_are_named(package, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # "x" for a path is a path: what is saved there goes with the test
    _check_package(package, monkeypatch)


def _check_package(package: Any, monkeypatch: Any, functions: int | None = None) -> None:
    draw = random.Random(f"{package.__name__} {functions}")
    titles = sorted(CASES[package])
    found = [
        problem
        for title in (titles if functions is None else draw.sample(titles, functions))
        for call, argument in _replaceable(package, title, monkeypatch)
        for problem in _problems(call, argument, draw.sample(WRONG, 2))
    ]
    assert not found, "\n".join(found)


def test_arguments_of_functions_without_cases_are_named():
    """Of functions that take models, trees, optimisers and functions, which the tables lack."""
    m, other = (mera.random(jax.random.key(0), (2,) * n, 2) for n in (4, 8))
    params, mesh = {"a": jnp.ones((4, 2))}, parallel.mesh(1, 1)
    layers = [offload.Layer(name="a", apply=lambda p, x, b, key: jnp.mean(b @ p[0]))]
    engine, batch = offload.Engine(), jnp.ones((3, 4))
    calls = {
        "direction:": [(mera.tangent, m, other), (mera.retract, m, other)],
        "inner:": [(mera.stiefel, 3), (mera.stiefel, optax.adam)],
        "f:": [(tt.riemannian_grad, 3), (tt.value_and_riemannian_grad, None)],
        "model:": [(f, x) for f in (gpt2.groups, nn.summary, nn.certificates, nn.adapt,
                                    nn.detensorize, nn.merge_adapters) for x in (3, params)],
        "tensors:": [(offload.capacity, 3), (offload.capacity, [params])],
        "params:": [(offload.tensors, 3, optax.sgd(0.1)),
                    (offload.layer_seconds, layers, {}, batch, engine)],
        "optimizer:": [(offload.tensors, params, 3),
                       (parallel.state_shardings, 3, params, {"a": P()}, mesh)],
        "specs:": [(parallel.shardings, {"a": 3}, mesh),
                   (parallel.state_shardings, optax.adam(0.1), params, {"a": 3}, mesh)],
    }  # fmt: skip
    with pytest.raises(TypeError, match=r"call it, as in inner=optax.adam\("):
        mera.stiefel(optax.adam)
    for name, each in calls.items():
        for function, *arguments in each:
            with pytest.raises((TypeError, ValueError), match=f"^{name} expected"):
                function(*arguments)


def test_batches_of_keys_and_matrices_in_half_precision_are_named():
    keys = jax.random.split(jax.random.key(0), 3)
    for call in (
        lambda key: tt.random(key, (3, 4), 2), lambda key: tt.sample(key, tt.ones((2,))),
        lambda key: mera.random(key, (2, 2), 2), lambda key: tt.stream(key, (3, 4), 2),
    ):  # fmt: skip
        for some in (keys, jax.random.split(jax.random.PRNGKey(0), 3)):
            with pytest.raises(ValueError, match=r"key: expected one key, got a batch of shape"):
                call(some)
    for dtype in (np.float16, jnp.bfloat16):
        for f in (linalg.svd, linalg.qr, linalg.eigh):
            for a in (np.ones((2, 2), dtype), jnp.ones((2, 2), dtype)):
                with pytest.raises(TypeError, match=r"a: expected single or double precision"):
                    f(a)
    for dtype in (np.int8, np.int16, np.uint8):
        for f in (linalg.svd, linalg.qr, linalg.eigh):
            for a in (np.eye(2, dtype=dtype), jnp.eye(2, dtype=dtype))[: 1 + (f is linalg.qr)]:
                assert abs(np.abs(f(a)[1]).sum() - 2) <= 1e-6


def test_masked_entries_do_not_count_as_data():
    x = np.ma.masked_array(np.ones((3, 4)), mask=np.eye(3, 4, dtype=bool))
    known = np.ma.masked_array(np.ones((3, 4)), mask=False)
    where = np.indices((3, 4)).reshape(2, -1).T

    def einsum(x: Any) -> Any:
        return contract.einsum("ij->i", x)

    for call in (
        lambda x: tt.from_dense(x, tol=0.1), lambda x: tucker.from_dense(x, rank=1),
        lambda x: tucker.hooi(x, rank=1), lambda x: tt.rank_one(list(x)),
        lambda x: tt.complete(where, x.ravel(), (3, 4), 1), linalg.svd, linalg.qr,
        einsum, lambda x: tt.identity((3,)) @ x,
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"masked entries, got [13] of"):
            call(x)
        if call is not einsum:  # JAX has its own error for all arrays of this class
            call(known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # of NumPy, for the class
        matrix = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    assert np.allclose(tt.to_dense(tt.from_dense(matrix, tol=1e-8)), np.asarray(matrix))


def test_raw_errors_are_found():
    def careless(values: Any) -> int:
        return len(values)

    call = (careless, ([1],), {})
    assert _problems(call, 0, [3])
    assert not _problems(call, 0, [[]])


Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _replaceable(package: Any, title: str, monkeypatch: Any) -> Iterator[tuple[Call, int | str]]:
    """Yields the call of a function that its case makes, once for each of its arguments."""
    name = title.split()[0]
    function = getattr(package, name, None)  # None: the case is of an operator or an indexing
    if name in LONG or (package, name) in PRIVATE or not callable(function):
        return
    calls: list[Call] = []

    def recorded(*args: Any, **options: Any) -> Any:
        calls.append((function, args, options))
        return function(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(package, name, recorded)
        CASES[package][title](lambda tree: tree)
    for call in calls[-1:]:
        yield from ((call, argument) for argument in _arguments(*call))


def _arguments(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> list[int | str]:
    """Lists the positions and names of the arguments that a call gives, or could give."""
    parameters = list(inspect.signature(function).parameters.values())[len(args) :]
    named = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*range(len(args)), *dict.fromkeys([*options, *named])]


def _problems(call: Call, argument: int | str, values: Any) -> list[str]:
    function, args, options = call
    found = []
    for value in values:
        changed = list(args)
        given = dict(options)
        (given if isinstance(argument, str) else changed)[argument] = value  # type: ignore[index]
        try:
            function(*changed, **given)
        except Exception as error:
            if not _is_checked(error):
                what = f"{type(error).__name__}: {str(error)[:120]}"
                found.append(
                    f"{function.__name__}, argument {argument!r} = {_check.short(value)}: {what}"
                )
    return found


def _is_checked(error: Exception) -> bool:
    """Whether an error was raised by a statement of the library, as an error of its arguments."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    lines = [linecache.getline(last.filename, (last.lineno or 0) - k) for k in range(3)]
    ours = "tensorjax" in last.filename and any("raise" in line for line in lines)
    return ours and isinstance(error, TypeError | ValueError | LookupError | ArithmeticError)
