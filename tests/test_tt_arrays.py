"""Trains do what arrays do: indexing, reshaping, permuting, sums over modes, against NumPy."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt, tucker
from tests.oracles import cores, dense, error, norm, normal

LONG = pytest.mark.slow  # compiling takes long
SHAPES = [(5,), pytest.param((3, 4), marks=LONG), (2, 1, 5), pytest.param((4, 3, 2, 3), marks=LONG),
          pytest.param((2, 3, 1, 4, 2), marks=LONG)]  # fmt: skip
DTYPES = [pytest.param(np.float64, marks=LONG), np.complex128]


def drawn(rng, shape, dtype=np.float64, rank=3):
    return tt.TT(cores(rng, shape, rank, dtype))


def drawn_matrix(rng, rows, columns, dtype=np.float64):
    flat = drawn(rng, [m * n for m, n in zip(rows, columns, strict=True)], dtype)
    sizes = zip(flat.cores, rows, columns, strict=True)
    return tt.TTMatrix([c.reshape(len(c), m, n, -1) for c, m, n in sizes])


def close(out, expected, tol=1e-11):
    expected = np.asarray(expected)
    found = dense(out) if isinstance(out, tt.TT | tt.TTMatrix) else np.asarray(out)
    assert found.shape == expected.shape
    assert error(found, expected) <= tol * max(norm(expected), 1)


def drawn_key(rng, n):
    """An integer or a slice, of any sign and step, that picks something."""
    kind = rng.integers(4)
    if kind == 0:
        return int(rng.integers(-n, n))
    if kind == 1:
        return slice(None)
    low = int(rng.integers(0, n))
    high = int(rng.integers(low + 1, n + 1))
    if kind == 2:
        return slice(low, high, int(rng.integers(1, 3)))
    return slice(high - 1, low - 1 if low else None, -int(rng.integers(1, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_basic_indexing(rng, shape, dtype):
    t = drawn(rng, shape, dtype)
    x = dense(t)
    for _ in range(12):
        keys = [drawn_key(rng, n) for n in shape[: rng.integers(0, len(shape) + 1)]]
        for _ in range(rng.integers(0, 3)):
            keys.insert(int(rng.integers(0, len(keys) + 1)), None)
        if rng.integers(2):
            keys.insert(int(rng.integers(0, len(keys) + 1)), Ellipsis)
        at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
        before = sum(k is not None for k in keys[:at])
        after = [k for k in keys[at + 1 :] if k is not None]
        modes = [*range(before), *range(len(shape) - len(after), len(shape))]
        fits = [k for k in keys if k is not None and k is not Ellipsis]
        # Those after the dots were drawn for other modes.
        if any(isinstance(k, int) and not -shape[m] <= k < shape[m]
               for k, m in zip(fits, modes, strict=True)):  # fmt: skip
            continue
        expected = x[tuple(keys)]
        close(t[tuple(keys)], expected)
        close(jax.jit(lambda t, keys=keys: t[tuple(keys)])(t), expected)


def test_one_vector_of_indices_or_booleans(rng):
    t = drawn(rng, (4, 5, 3))
    x = dense(t)
    rows, mask = np.array([3, -1, 0, 0]), np.array([True, False, True, True, False])
    close(t[rows], x[rows])
    close(t[:, mask], x[:, mask])
    close(t[1, [2, 4]], x[1, [2, 4]])
    close(t[..., jnp.array([2, 0]), None], x[..., [2, 0], None])
    close(t[0, 1, rows[2:]], x[0, 1, rows[2:]])
    for key, what in [
        ((rows, slice(None), 0), "move"), ((rows, rows), "one vector"), (mask, "4 Booleans"),
        (np.array([4]), r"\[-4, 4\)"), (np.zeros((2, 2), int), "shape"), (1.5, "float"),
        (True, "Boolean"), ((0, 0, 0, 0), "at most 3"), (4, r"\[-4, 4\)"), ("a", "str"),
        ((..., ...), "one Ellipsis"), ((0, 0, 3), r"mode 2"),
    ]:  # fmt: skip
        with pytest.raises(IndexError, match=what):
            t[key]


def test_traced_indices(rng):
    t = drawn(rng, (4, 5, 3))
    x = dense(t)
    pick = jax.jit(lambda t, i, j: (t[i, 1:, j], t[i, j, 0], t[jnp.stack([i, j])]))
    a, b, c = pick(t, 3, -2)
    close(a, x[3, 1:, -2])
    close(b, x[3, -2, 0])
    close(c, x[[3, -2]])
    for i, j in ((4, 0), (-5, 0), (0, 5)):
        assert np.isnan(np.asarray(pick(t, i, j)[1]))
    gradient = jax.grad(lambda t: t[1, 2, 0])(t)
    assert norm(gradient.cores[0][:, 1]) > 0
    assert norm(gradient.cores[0][:, 0]) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_columns_and_blocks_of_a_matrix(rng, dtype):
    a = drawn_matrix(rng, (2, 3, 2), (3, 2, 2), dtype)
    x = dense(a)
    full = x.reshape(2, 3, 2, 3, 2, 2)
    close(a[5], x[5].reshape(3, 2, 2))
    close(a[-7, :], x[-7].reshape(3, 2, 2))
    close(a[:, -1], x[:, -1].reshape(2, 3, 2))
    close(a[3, 4], x[3, 4])
    close(a[(1, 2, 0), (0, 1, 1)], full[1, 2, 0, 0, 1, 1])
    close(a[(1, slice(None), 0), (0, slice(None), 1)], full[1, :, 0, 0, :, 1])
    close(a[(slice(0, 1), 1, slice(None)),], full[:1, 1:2].reshape(2, 12))
    close(a[(1, 0, 1), :], full[1, 0, 1])
    close(a[(1, 0, 1), (0, slice(None), 1)], full[1, 0, 1, 0, :, 1])
    close(a[..., (0, 1, slice(0, 1))], full[:, :, :, 0:1, 1:2, :1].reshape(12, 1))
    close(jax.jit(lambda a, i, j: a[i, j])(a, 11, -12), x[11, -12])
    assert np.isnan(np.asarray(jax.jit(lambda a, i: a[i, 0])(a, 12)))
    for key, what in [((12, 0), "rows"), ((0, -13), "columns"), ((0, 0, 0), "3 keys"),
                      (slice(2), "tuple"), ((slice(None), [1]), "tuple")]:  # fmt: skip
        with pytest.raises(IndexError, match=what):
            a[key]


def factorised(rng, total):
    """A drawn shape of so many entries."""
    shape = []
    while total > 1:
        divisors = [k for k in range(2, total + 1) if total % k == 0]
        shape.append(int(rng.choice(divisors)))
        total //= shape[-1]
    for _ in range(rng.integers(0, 3)):
        shape.insert(int(rng.integers(0, len(shape) + 1)), 1)
    return tuple(shape) or (1,)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("total", [1, 36, *(pytest.param(n, marks=LONG) for n in (24, 64, 210))])
def test_reshape(rng, total, dtype):
    for _ in range(4):
        t = drawn(rng, factorised(rng, total), dtype)
        shape = factorised(rng, total)
        out = tt.reshape(t, shape)
        close(out, dense(t).reshape(shape))
        bounds = [min(math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape))]
        assert all(r <= b for r, b in zip(out.ranks[1:-1], bounds, strict=True))
        close(jax.jit(lambda t, shape=shape: tt.reshape(t, shape))(t), dense(t).reshape(shape))
        loose = tt.reshape(t, shape, tol=0.2)
        assert error(dense(loose), dense(out)) <= 0.2 * norm(dense(out))
        assert max(loose.ranks) <= max(out.ranks)


def test_reshape_to_and_from_quantics_and_of_matrices(rng):
    x = tt.rank_one([jnp.exp(jnp.linspace(0.0, 1.0, 2**k)) for k in (10, 6)])
    digits = tt.reshape(x, (2,) * 16)
    assert digits.ranks == (1,) * 17
    close(tt.reshape(digits, (2**10, -1)), dense(x))
    a = drawn_matrix(rng, (4, 6), (6, 2))
    out = tt.reshape(a, ((2, 2, 3, 2), (3, 2, 1, 2)))
    assert (out.row_shape, out.col_shape) == ((2, 2, 3, 2), (3, 2, 1, 2))
    close(out, dense(a))
    close(tt.reshape(out, ((8, 3), (-1, 4)), tol=1e-9), dense(a))
    for shape, what in [((2,), "expected 12"), ((5, -1), "expected 12"), ((), "expected 12")]:
        with pytest.raises(ValueError, match=what):
            tt.reshape(drawn(rng, (3, 4)), shape)
    # In range, whatever single cores have.
    scales = (1e-200, 1e250, 1e-100)
    pairs = zip(cores(rng, (4, 4, 4), 2, np.float64), scales, strict=True)
    far = tt.TT([c * s for c, s in pairs])
    close(tt.reshape(tt.reshape(far, (2,) * 6), (4, 4, 4)) * 1e50, dense(far) * 1e50)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_permute(rng, shape, dtype):
    t = drawn(rng, shape, dtype)
    for axes in list(itertools.permutations(range(len(shape))))[:: max(1, len(shape) ** 2 // 2)]:
        expected = dense(t).transpose(axes)
        out = tt.permute(t, axes)
        close(out, expected)
        loose = tt.permute(t, axes, tol=0.1)
        assert error(dense(loose), expected) <= 0.1 * norm(expected)
        close(jax.jit(lambda t, axes=axes: tt.permute(t, axes))(t), expected)
        small = jax.jit(lambda t, axes=axes: tt.permute(t, axes, rank=2))(t)
        assert max(small.ranks) <= 2
    close(tt.reverse(t), dense(t).transpose())
    close(t.T, dense(t).T)


def test_permute_of_a_matrix_and_bad_axes(rng):
    a = drawn_matrix(rng, (2, 3, 2), (3, 1, 2))
    out = tt.permute(a, (2, 0, 1))
    assert (out.row_shape, out.col_shape) == ((2, 2, 3), (2, 3, 1))
    expected = dense(a).reshape(2, 3, 2, 3, 1, 2).transpose(2, 0, 1, 5, 3, 4)
    close(out, expected.reshape(12, 6))
    close(a.T, dense(a).T)
    for axes in ((0, 0, 1), (0, 1), (0, 1, 3)):
        with pytest.raises(ValueError, match="axes"):
            tt.permute(a, axes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_means_and_variances(rng, shape, dtype):
    t = drawn(rng, shape, dtype)
    x = dense(t)
    axes = [None, 0, -1, (0, len(shape) - 1) if len(shape) > 1 else (0,), ()]
    for axis in axes:
        for ours, theirs in [(tt.sum, np.sum), (tt.mean, np.mean), (tt.var, np.var)]:
            close(ours(t, axis), theirs(x, axis=axis))
            close(jax.jit(lambda t, axis=axis, ours=ours: ours(t, axis))(t), theirs(x, axis=axis))
    for k in range(len(shape)):
        close(tt.cumsum(t, k), np.cumsum(x, axis=k))
        w = normal(rng, (3, shape[k]), dtype)
        close(tt.mode_product(t, w, k), np.moveaxis(np.tensordot(w, x, (1, k)), 0, k))


def test_a_variance_beside_a_large_mean_and_of_many_entries(rng):
    noise = tt.scale(drawn(rng, (4, 5, 6)), 1e-3)
    x = 1e6 + dense(noise)
    assert float(tt.var(noise + 1e6)) == pytest.approx(np.var(x), rel=1e-6)
    long = tt.rank_one([jnp.array([1.0, 3.0], jnp.float32)] + [jnp.ones(100, jnp.float32)] * 40)
    assert float(tt.var(long)) == pytest.approx(1.0, rel=1e-5)
    assert float(tt.mean(long)) == pytest.approx(2.0, rel=1e-5)


def test_sums_traces_and_diagonals_of_matrices(rng):
    a = drawn_matrix(rng, (2, 3), (3, 2))
    x = dense(a)
    close(tt.sum(a), x.sum())
    close(tt.mean(a), x.mean())
    close(tt.var(a), x.var())
    close(tt.reshape(tt.sum(a, 0), (6,)), x.sum(0))
    close(tt.reshape(tt.mean(a, 1), (6,)), x.mean(1))
    b = drawn_matrix(rng, (2, 3), (2, 3), np.complex128)
    close(tt.trace(b), np.trace(dense(b)))
    close(tt.reshape(tt.diagonal(b), (6,)), np.diagonal(dense(b)))
    close(tt.diagonal_matrix(tt.diagonal(b)), np.diag(np.diagonal(dense(b))))
    with pytest.raises(ValueError, match="equal row and column"):
        tt.trace(a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensordot(rng, dtype):
    for _ in range(8):
        shapes = [[int(n) for n in rng.integers(1, 4, rng.integers(1, 5))] for _ in range(2)]
        count = int(rng.integers(0, min(map(len, shapes)) + 1))
        left, right = (rng.permutation(len(s))[:count].tolist() for s in shapes)
        for i, j in zip(left, right, strict=True):
            shapes[1][j] = shapes[0][i]
        x, y = (drawn(rng, tuple(s), dtype) for s in shapes)
        close(tt.tensordot(x, y, (left, right)), np.tensordot(dense(x), dense(y), (left, right)))
    x, y = drawn(rng, (2, 3, 4), dtype), drawn(rng, (3, 4, 2), dtype)
    expected = np.tensordot(dense(x), dense(y), 2)
    close(jax.jit(lambda x, y: tt.tensordot(x, y, 2))(x, y), expected)
    for axes, what in [(3, "equal sizes"), (([0, 0], [0, 1]), "once"), (([0], [0, 1]), "as many")]:
        with pytest.raises(ValueError, match=what):
            tt.tensordot(x, y, axes)


def test_functions_entry_by_entry(rng, key):
    x, y = (tt.rank_one([1 + rng.random(4) for _ in range(4)]) for _ in range(2))
    out, info = tt.map(lambda a, b: np.exp(-a * b), x, y, tol=1e-9, key=key)
    assert info.status == "converged"
    close(out, np.exp(-dense(x) * dense(y)), 1e-8)
    out, info = tt.divide(x, y + x, tol=1e-9, key=key)
    close(out, dense(x) / (dense(x) + dense(y)), 1e-8)
    with pytest.raises(ValueError, match="finite"):
        tt.divide(x, 0 * x, tol=1e-6, key=key)
    with pytest.raises(ValueError, match="expected shape"):
        tt.map(np.add, x, tt.ones((4, 4)), tol=1e-6, key=key)


def test_creation(rng):
    x = drawn(rng, (2, 3))
    close(tt.zeros_like(x), np.zeros((2, 3)))
    close(tt.unit((2, 3, 2), (-1, 0, 1)), np.eye(12)[7].reshape(2, 3, 2))
    vectors = [rng.random(n) for n in (2, 3, 4)]
    for ours, theirs in zip(
        tt.meshgrid(*vectors), np.meshgrid(*vectors, indexing="ij"), strict=True
    ):
        close(ours, theirs)
    close(tt.pad_modes(x, [(1, 0), (2, 1)]), np.pad(dense(x), [(1, 0), (2, 1)]))
    with pytest.raises(ValueError, match="indices"):
        tt.unit((2, 3), (2, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extrema(rng, dtype):
    for shape in ((7,), (4, 1, 5), (2,) * 10, (5, 6, 4, 3)):
        t = drawn(rng, shape, dtype)
        x = dense(t)
        for find, exact in ((tt.argmax, x.max()), (tt.argmin, x.min())):
            value, index, info = find(t, candidates=int(rng.integers(1, 400)))
            assert float(value) == pytest.approx(x[index], rel=1e-5)
            sign = 1 if find is tt.argmax else -1
            assert sign * info.bound >= sign * exact - 1e-5 * abs(exact)
            if info.status == "certified":
                assert float(value) == pytest.approx(exact, rel=1e-5)
        value, index, info = tt.argmax(t, candidates=10_000)
        assert info.status == "certified"
        assert float(value) == pytest.approx(x.max(), rel=1e-5)


def test_extrema_of_what_no_array_holds(rng):
    at = tuple(int(i) for i in rng.integers(0, 5, 40))
    peak = tt.unit((5,) * 40, at, float)
    value, index, _ = tt.argmin(tt.ones_like(peak) * 1e-3 - peak)
    assert (index, float(value)) == (at, pytest.approx(-0.999))
    far = tt.TT(
        [c * s for c, s in zip(drawn(rng, (4,) * 6).cores, [1e100, 1e-100] * 3, strict=True)]
    )
    assert tt.argmax(far)[1] == np.unravel_index(dense(far).argmax(), (4,) * 6)
    for bad, kind in ((peak.astype(complex), TypeError), (peak * np.nan, ValueError)):
        with pytest.raises(kind, match="t"):
            tt.argmax(bad)
    with pytest.raises(TypeError, match="outside"):
        jax.jit(tt.argmax)(peak)


def test_ranks_of_permuted_trains_are_those_needed(rng):
    t = tt.random(jax.random.key(0), (2,) * 12, 3, float)
    back = list(range(12))[::-1]
    assert max(tt.permute(t, back).ranks) <= 3
    there = [*range(1, 12), 0]
    out = tt.permute(tt.permute(t, there), [11, *range(11)])
    assert max(out.ranks) <= 3
    close(out, dense(t))
    with pytest.raises(TypeError, match="tol"):
        jax.jit(lambda t: tt.permute(t, back, tol=0.1))(t)
    with pytest.raises(TypeError, match="tol"):
        jax.jit(lambda t: tt.reshape(t, (2**12,), tol=0.1))(t)
    small = jax.jit(lambda t: tt.permute(t, there, rank=4, tol=0.5))(t)
    assert max(small.ranks) <= 4


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64])
def test_traced_indices_of_any_dtype(rng, kind):
    t, a = drawn(rng, (300, 5)), tt.identity((20, 20), float)
    low = -1 if np.iinfo(kind).min else 5
    pick = jax.jit(lambda t, k: t[k])
    close(pick(t, kind(low)), dense(t)[low])
    close(pick(t, np.array([3, low, 100], kind)), dense(t)[[3, low, 100]])
    entry = jax.jit(lambda a, k: a[k, k])
    assert float(entry(a, kind(low))) == 1
    if kind in (np.uint8, np.int32):  # a long program
        huge = tt.identity((2,) * 33, float)  # of more rows than 32 bits count
        assert [float(entry(huge, kind(k))) for k in (3, low)] == [1, 1]


def test_derivatives_of_permuted_trains_of_lower_rank(rng):
    t = tt.ones((2, 2, 3), float)
    t, w = t + t, normal(rng, (3, 2, 2), np.float64)
    found = jax.grad(lambda t: jnp.vdot(w, tt.to_dense(tt.permute(t, (2, 0, 1)))))(t)
    exact = jax.grad(lambda t: jnp.vdot(w, tt.to_dense(t).transpose(2, 0, 1)))(t)
    for a, b in zip(found.cores, exact.cores, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


MOVED = {
    "mode_product": lambda t, w: tt.mode_product(t, w, 1),
    "tucker.mode_product": lambda t, w: tucker.mode_product(
        tucker.Tucker(t, [jnp.ones((5, n), t.dtype) for n in t.shape]), w @ w.T, 1),
    "reshape": lambda t, w: tt.reshape(t, (t.shape[0] * t.shape[1], *t.shape[2:])),
    "permute": lambda t, w: tt.permute(t, (0, 2, 1, *range(3, t.order))),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_programs_of_moves_hold_no_more_operations_for_more_cores(rng, name):
    """They compiled for seconds: exponents of all cores were computed for each of them."""

    def program(f, shape, dtype):
        t = drawn(rng, shape, dtype)
        text = jax.jit(f).lower(t, normal(rng, (5, shape[1]), dtype)).as_text()
        kinds = re.findall(r"stablehlo\.(\w+)", text)
        return sorted(k for k in kinds if k not in ("reshape", "broadcast_in_dim", "constant"))

    def derivative(t, w):
        return jax.jvp(lambda c: MOVED[name](tt.TT([t.cores[0], c, *t.cores[2:]]), w),
                       [t.cores[1]], [t.cores[1]])[1]  # fmt: skip

    def batch(t, w):
        return jax.vmap(MOVED[name], (None, 0))(t, jnp.stack([w, w]))

    shape = tuple(rng.integers(2, 5, 4).tolist())
    longer = shape + tuple(rng.integers(2, 5, int(rng.integers(4, 12))).tolist())
    for f, dtype in [(MOVED[name], np.float32), (derivative, np.complex64), (batch, np.float32)]:
        found = program(f, shape, dtype)
        assert found == program(f, longer, dtype)
        assert not {"bitcast_convert", "reduce"} & set(found)  # no exponents


def test_products_and_means_in_range(rng):
    y = tt.rank_one([jnp.ones(10, jnp.float32)] * 40 + [jnp.full(2, 1e-30, jnp.float32)])
    out = tt.tensordot(tt.ones((10,) * 40, jnp.float32), y, 40)
    np.testing.assert_allclose(tt.to_dense(out), 1e10, rtol=1e-4)
    for dtype in (jnp.bfloat16, jnp.float16, np.float32):
        x, a = tt.ones((10,) * 40, dtype), tt.TTMatrix([jnp.ones((1, 300, 300, 1), dtype)])
        few = 4 * float(jnp.finfo(dtype).eps)
        assert float(tt.mean(x)) == pytest.approx(1, abs=few)
        assert float(tt.mean(a)) == pytest.approx(1, abs=few)
        assert float(tt.var(x)) < 1e-3
