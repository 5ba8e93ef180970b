"""Calls whose kernel is known from calls before, and memory that results share with the host."""

import contextlib
import copy
import dataclasses
import functools
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import _native, _placement, _transfer, mera, sketch, tt, tucker
from tensorjax._kernels import first_calls, train_signatures

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
CALLS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "hadamard": lambda x, y, a, b: tt.hadamard(x, y),
    "hadamard of matrices": lambda x, y, a, b: tt.hadamard(a, b),
    "matvec": lambda x, y, a, b: tt.matvec(a, x),
    "matmul": lambda x, y, a, b: tt.matmul(a, b),
    "inner": lambda x, y, a, b: tt.inner(x, y),
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX counts one device: elsewhere calls are looked at one by one."""
    monkeypatch.setattr(_placement, "_is_alone", lambda: True)


def cores(rng: np.random.Generator, modes: list[tuple[int, ...]], dtype: Any) -> list[Any]:
    ranks = [1, *rng.integers(1, 4, len(modes) - 1).tolist(), 1]
    shapes = [(ranks[k], *n, ranks[k + 1]) for k, n in enumerate(modes)]
    wide = np.result_type(dtype, np.float64)
    draws = [rng.standard_normal(s).astype(wide) for s in shapes]
    if wide == np.complex128:
        draws = [d + 1j * rng.standard_normal(d.shape) for d in draws]
    return [jnp.asarray(d, dtype) for d in draws]


def given(seed: int) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    dtype, order = DTYPES[seed % 4], int(rng.integers(2, 6))
    n = rng.integers(1, 5, order).tolist()
    x, y = (tt.TT(cores(rng, [(m,) for m in n], dtype)) for _ in range(2))
    a, b = (tt.TTMatrix(cores(rng, [(m, m) for m in n], dtype)) for _ in range(2))
    return x, y, a, b


def dense(found: Any) -> np.ndarray:
    return np.asarray(tt.to_dense(found) if isinstance(found, tt.TT | tt.TTMatrix) else found)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seed", range(4))
def test_calls_that_are_known_agree_with_the_first_ones(name: str, seed: int) -> None:
    call, operands = CALLS[name], given(seed)
    first_calls.forget_first_calls()
    found = [dense(call(*operands)) for _ in range(13)]
    eps = float(np.finfo(DTYPES[seed % 4]).eps)
    for later in found[1:]:
        np.testing.assert_allclose(later, found[0], rtol=1e3 * eps, atol=1e3 * eps)
    assert bool(train_signatures._known) == (not _native.status())
    # Nothing of it is used where values are traced, nor where shapes differ.
    traced = jax.jit(lambda x, y, a, b: call(x, y, a, b))(*operands)
    np.testing.assert_allclose(dense(traced), found[0], rtol=1e3 * eps, atol=1e3 * eps)
    x, y, a, b = operands
    with pytest.raises(ValueError, match="expected"):
        call(x if name == "matvec" else tt.kron(x, x), y, tt.kron(a, a), b)


def test_trains_that_have_no_signature() -> None:
    x, y, *_ = given(1)
    committed = jax.device_put(x, jax.devices()[0])
    mixed = tt.TT((x.cores[0].astype(np.float32), *x.cores[1:]))
    batch = jax.tree.map(lambda c: c[None], x)
    hosted = tt.TT._unchecked(tuple(np.asarray(c) for c in x.cores))
    for t in (committed, mixed, batch, hosted, tt.TT._unchecked((None, 3)), 3, np.ones(2)):
        assert train_signatures.signature(t) is None
    assert train_signatures.signature(x) is train_signatures.signature(tt.TT(x.cores))
    assert (train_signatures.signature(x) is train_signatures.signature(y)) == (x.ranks == y.ranks)


def test_wide_trains_are_refused_where_jax_has_no_wide_types() -> None:
    x, y, *_ = given(1)
    for _ in range(12):
        tt.hadamard(x, y)
    with jax.enable_x64(False), pytest.raises(TypeError, match="jax_enable_x64"):
        tt.hadamard(x, y)


@pytest.mark.parametrize("seed", range(4))
def test_entries_of_few_indices(seed: int) -> None:
    x = given(seed)[0]
    rng = np.random.default_rng(seed)
    shape = np.array(x.shape)
    ids = rng.integers(-shape, shape, (7, len(shape)))
    expected = np.asarray(tt.to_dense(x))[tuple(ids.T)]
    eps = float(np.finfo(x.dtype).eps)
    for _ in range(2):
        np.testing.assert_allclose(tt.evaluate(x, ids), expected, rtol=1e3 * eps, atol=1e3 * eps)
    ids[3, -1] = shape[-1]
    with pytest.raises(ValueError, match="expected mode"):
        tt.evaluate(x, ids)
    x.cores[0].delete()
    with pytest.raises(RuntimeError, match="deleted"):
        tt.evaluate(x, ids[:2])


@pytest.mark.parametrize("dtype", DTYPES[2:])
def test_complex_overlaps_stay_in_range(dtype: Any) -> None:
    """Cores of opposite sizes, whose products leave the range of the dtype and come back."""
    rng = np.random.default_rng(11)
    high = float(np.finfo(dtype).max) ** 0.9
    first_calls.forget_first_calls()
    for factors in ((high, 1 / high, high, 1 / high),):
        base = [cores(rng, [(3,)] * 4, dtype) for _ in range(2)]
        x, y = (tt.TT([c * f for c, f in zip(b, factors, strict=True)]) for b in base)
        (p, q), eps = (tt.TT(b) for b in base), float(np.finfo(dtype).eps)
        size = float(tt.norm(p) * tt.norm(q))
        for _ in range(12):
            np.testing.assert_allclose(tt.norm(x), np.linalg.norm(dense(p)), rtol=200 * eps)
        for _ in range(12):
            expected = np.vdot(dense(p), dense(q))
            # Factors of y cancel within y, those of x within x.
            np.testing.assert_allclose(tt.inner(x, y), expected, atol=200 * eps * size)


@pytest.mark.parametrize(
    "seed", [0, 3, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 4))]
)
def test_eager_gradients_are_those_of_linear_forms(seed: int) -> None:
    """And compile a sum of products, neither the inner product nor its derivative."""
    x, y, *_ = given(seed)
    rng, eps = np.random.default_rng(seed), float(np.finfo(x.dtype).eps)
    first_calls.forget_first_calls()

    def swapped(t: tt.TT, k: int, core: Any) -> tt.TT:
        return tt.TT([core if i == k else c for i, c in enumerate(t.cores)])

    size = float(tt.norm(x))
    inner: Any = lambda a, b: tt.inner(a, b).real  # noqa: E731
    cases: tuple[Any, ...] = (
        (inner, (x, y), 0, lambda k, c: tt.inner(swapped(x, k, c), y)),
        (inner, (x, y), 1, lambda k, c: tt.inner(x, swapped(y, k, c))),
        (tt.norm, (x,), 0, lambda k, c: tt.inner(swapped(x, k, c), x) / size),
    )
    for f, operands, place, form in cases:
        with jax.log_compiles(), _logged() as names:
            found = jax.grad(f, place)(*operands)
        assert not {"jit(_inner)", "jit(_norm)"} & set(names)
        for k, (g, core) in enumerate(zip(found.cores, operands[place].cores, strict=True)):
            assert (g.dtype, g.shape) == (core.dtype, core.shape)
            phase = 1 + 1j if g.dtype.kind == "c" else 1
            move = jnp.asarray(phase * rng.standard_normal(g.shape), g.dtype)
            along = np.sum(np.asarray(g) * np.asarray(move)).real
            most = 1 + float(np.linalg.norm(g) * np.linalg.norm(move))
            np.testing.assert_allclose(along, form(k, move).real, atol=1e3 * eps * most)
    zero = jax.grad(tt.norm)(tt.zeros((2, 3), x.dtype))
    assert not any(c.any() for c in zero.cores)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_eager_derivatives_are_those_of_programs(seed: int) -> None:
    x, y, *_ = given(seed)
    eps = float(np.finfo(x.dtype).eps)
    cases: tuple[Any, ...] = (
        lambda a, b: jax.grad(lambda s, t: tt.inner(s, t).real, (0, 1))(a, b),
        lambda a, b: jax.grad(lambda s: tt.inner(s, s).real)(a),
        lambda a, b: jax.grad(tt.norm)(a),
        lambda a, b: jax.jvp(tt.inner, (a, b), (a, b)),
    )
    for case in cases:
        pairs = zip(jax.tree.leaves(case(x, y)), jax.tree.leaves(jax.jit(case)(x, y)), strict=True)
        for a, b in pairs:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            most = float(np.abs(b).max(initial=0)) + eps
            np.testing.assert_allclose(a, b, rtol=1e3 * eps, atol=1e3 * eps * most)


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Names of the programs that are compiled meanwhile."""
    names: list[str] = []

    class Names(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith("Finished XLA compilation of "):
                names.append(text.split(" of ")[1].split(" in ")[0])

    handler, logger = Names(), logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        yield names
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_by_one_call_keeps_tolerance_and_range(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    high = float(np.finfo(dtype).max) ** 0.5
    for scale in (1.0, high, 1 / high):
        for kind, modes in ((tt.TT, [(3,)] * 4), (tt.TTMatrix, [(2, 3)] * 3)):
            draws = cores(rng, modes, dtype)
            draws[0], draws[1] = draws[0] * dtype(scale), draws[1] / dtype(scale)
            x: Any = kind(draws)
            found = tt.round(x + x, tol=1e-3)
            assert (type(found), found.dtype) == (kind, dtype)
            assert all(r <= s for r, s in zip(found.ranks, x.ranks, strict=True))
            assert float(tt.distance(found, 2 * x)) <= 1e-3 * float(tt.norm(2 * x))
    zero = tt.zeros((3, 3, 3), dtype)
    assert tt.round(zero + zero, tol=1e-3).ranks == (1, 1, 1, 1)
    bad = tt.TT([jnp.full((1, 2, 1), v, dtype) for v in (1, np.nan)])
    with pytest.raises(ValueError, match="finite"):
        tt.round(bad, tol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_share_no_memory_of_the_caller(dtype: Any) -> None:
    """Memory on whole cache lines is taken as it is: that of arguments must be copied."""
    rng = np.random.default_rng(5)
    for shape in ((7,), (6, 5), (40, 4, 30)):
        x = _transfer.on_lines(rng.standard_normal(shape), dtype)
        for method in ("auto", "svd"):
            t = tt.from_dense(x, tol=1e-4, method=method)
            before = np.array(tt.to_dense(t))
            kept = x.copy()
            x[...] = 0
            np.testing.assert_array_equal(tt.to_dense(t), before)
            x[...] = kept


def test_memory_on_whole_lines_is_shared() -> None:
    for size in (0, 1, 5, 1000):
        host = _transfer.on_lines(np.arange(size), np.float32)
        assert host.__array_interface__["data"][0] % _transfer.LINE == 0 or not size
        np.testing.assert_array_equal(_transfer.on_device([host])[0], np.arange(size))


@pytest.mark.skipif(bool(_native.status()), reason=_native.status())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_results_keep_no_large_memory(dtype: Any) -> None:
    """Cores are views of one block: what they keep alive is what they take, or little more."""
    rng = np.random.default_rng(6)
    x = [np.asarray(c) for c in cores(rng, [(9,)] * 5, dtype)]
    wide = [np.tile(c, (9 if k else 1, 1, 9 if k < 4 else 1)) for k, c in enumerate(x)]
    dense = functools.reduce(lambda a, b: np.tensordot(a, b, 1), x)[0, ..., 0]
    kernels = {
        "round": _native.gram_round(wide, 1e-6),
        "from_dense": _native.tt_svd(dense, 1e-6, 1e-12),
    }
    for name, found in kernels.items():
        assert found is not None, name
        taken = sum(c.nbytes + _transfer.LINE for c in found)
        assert all(_owned(c) <= 2 * taken + 2 * _transfer.LINE for c in found), name


def _owned(array: Any) -> int:
    """Bytes of the memory that an array of NumPy keeps alive."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


def test_large_results_are_memory_of_jax() -> None:
    """A program reuses it where they are donated; that of NumPy it could not."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((400, 400))
    rows = tt.TT([jnp.asarray(c) for c in (x[None], rng.standard_normal((400, 400, 1)))])
    p = sketch.gaussian(jax.random.key(0), 30, 400, dtype=np.float64)
    results = {
        "from_dense": tt.from_dense(x, tol=1e-3).cores,
        "round": tt.round(rows, tol=1e-3).cores,
        "apply": [sketch.apply(p, jnp.asarray(rng.standard_normal((400, 30))))],
    }
    for name, arrays in results.items():
        large = [a for a in arrays if a.nbytes > _transfer.SHARED]
        assert large, name
        for a in large:
            place = a.unsafe_buffer_pointer()
            assert _doubled(a).unsafe_buffer_pointer() == place, name
            assert a.is_deleted()


_doubled = jax.jit(lambda x: 2 * x, donate_argnums=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_evaluated_trains_can_be_donated(dtype: Any) -> None:
    """What an evaluation keeps with a train holds none of its memory."""
    rng = np.random.default_rng(8)
    x = tt.TT([2 * c for c in cores(rng, [(5,)] * 4, dtype)])
    ids = rng.integers(0, 5, (3, 4))
    for _ in range(13):
        found = tt.evaluate(x, ids)
    expected, given = np.asarray(found), x.cores
    places = [c.unsafe_buffer_pointer() for c in given]
    made = [_doubled(c) for c in given]
    assert all(c.is_deleted() for c in given)
    assert [c.unsafe_buffer_pointer() for c in made] == places
    with pytest.raises(RuntimeError, match="deleted"):
        tt.evaluate(x, ids)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(tt.evaluate(tt.TT(made), ids), 16 * expected, rtol=100 * eps)


def test_what_is_known_of_a_map_is_in_no_copy_of_it() -> None:
    p = sketch.gaussian(jax.random.key(0), 12, 4, dtype=np.float32)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 12)), np.float32)
    before = pickle.dumps(p)
    first = np.asarray(sketch.apply(p, x))
    assert len(vars(p)) > len(dataclasses.fields(p))  # something is known
    assert pickle.dumps(p) == before
    for made in (copy.copy(p), copy.deepcopy(p), pickle.loads(before), dataclasses.replace(p)):
        assert set(vars(made)) == {f.name for f in dataclasses.fields(p)}
        np.testing.assert_array_equal(sketch.apply(made, x), first)


def test_rows_of_a_map_are_looked_at_again_where_they_differ() -> None:
    p = sketch.gaussian(jax.random.key(0), 12, 4, dtype=np.float32)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 12)), np.float32)
    first = np.asarray(sketch.apply(p, x))
    np.testing.assert_allclose(sketch.apply(p, x), first, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(sketch.apply)(p, x), first, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="finite"):
        sketch.apply(p, x.at[2, 3].set(jnp.nan))
    with pytest.raises(ValueError, match="last axis"):
        sketch.apply(p, x[:, :7])
    committed = jax.device_put(x, jax.devices()[0])
    np.testing.assert_allclose(sketch.apply(p, committed), first, rtol=1e-5, atol=1e-6)


KINDS = ("TT", "complex TT", "TTMatrix", "Tucker", "MERA")


def host_tensor(kind, key):
    """Draws a tensor of a format in 64 bits, whose arrays are NumPy's."""
    dtype = np.complex128 if kind == "complex TT" else np.float64
    if kind == "TTMatrix":
        out = tt.random_matrix(key, (3, 2), (2, 4), rank=2, dtype=dtype)
    elif kind == "MERA":
        out = mera.random(key, (2,) * 4, 2, dtype=dtype)
    else:
        out = tt.random(key, (3, 4, 2), rank=2, dtype=dtype)
    if kind == "Tucker":
        out = tucker.from_dense(tt.to_dense(out), rank=2)
    return jax.tree.map(np.asarray, out)


@pytest.mark.parametrize("kind", KINDS)
def test_all_operators_refuse_numpy_arrays_of_64_bits_without_x64(kind):
    """A tensor that was made, or pickled, with x64 on meets one error with it off, of any format.

    Results in 64 bits, or rounded to 32 by JAX, passed silently before.
    """
    t = host_tensor(kind, jax.random.key(5))
    module = {"Tucker": tucker, "MERA": mera}.get(kind, tt)
    calls = [
        lambda t: 2 * t, lambda t: t / 3, lambda t: -t, lambda t: t.dtype.type(0.5) * t,
        module.norm, module.to_dense, lambda t: module.inner(t, t),
    ]  # fmt: skip
    if kind != "MERA":
        calls += [lambda t: t + t, lambda t: t - t, lambda t: 0 + t, lambda t: t + 1]
        calls += [lambda t: module.scale(t, 2.0), lambda t: t * 1e30]
    if kind not in ("MERA", "TTMatrix"):
        calls.append(lambda t: t * t)
    t = pickle.loads(pickle.dumps(t))
    with jax.enable_x64(False):
        for call in calls:
            with pytest.raises(TypeError, match="while jax_enable_x64 is off"):
                call(t)
    for call in calls:
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(call(t)))
