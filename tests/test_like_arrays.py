"""What a user of NumPy tries first on a train: it does what arrays do, or names the function."""

import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import mera, tt, tucker
from tests.oracles import cores, dense, error, norm, normal, tucker_dense

DTYPES = (np.float32, np.float64, np.complex64, np.complex128, jnp.bfloat16)


def drawn(rng, dtype=None, low=1):
    shape = tuple(int(n) for n in rng.integers(low, 5, int(rng.integers(1, 6))))
    dtype = DTYPES[rng.integers(len(DTYPES))] if dtype is None else dtype
    return tt.TT(cores(rng, shape, int(rng.integers(1, 4)), dtype))


def close(found, expected, name=""):
    """Of the kind, shape and values of an array of NumPy, to the precision of the result."""
    values = dense(found) if isinstance(found, tt.TT | tt.TTMatrix) else np.asarray(found)
    assert values.shape == np.shape(expected), name
    tol = 40 * float(jnp.finfo(found.dtype).eps)
    assert error(values, expected) <= tol * max(norm(expected), 1), name


def integer(rng, n):
    """An index of any type that NumPy takes."""
    k = int(rng.integers(-n, n))
    kinds = (int, np.int8, np.int64, np.array, jnp.asarray)
    return kinds[rng.integers(len(kinds))](k)


def key_of_a_mode(rng, n, vector):
    kind = rng.integers(4 if vector else 3) if n else 1 + rng.integers(2)
    if kind == 0:
        return integer(rng, n)
    if kind == 1:
        bounds = [None if rng.integers(3) == 0 else int(rng.integers(-n - 2, n + 3)) for _ in "ab"]
        return slice(*bounds, int(rng.choice([-3, -1, 1, 2])))
    if kind == 2:
        return slice(None)
    many = rng.integers(-n, n, int(rng.integers(0, 4)))
    return (many, many.tolist(), jnp.asarray(many), rng.random(n) < 0.5)[rng.integers(4)]


def drawn_key(rng, shape):
    """A key of all kinds, with a vector at most and integers only beside it."""
    given = int(rng.integers(0, len(shape) + 1))
    at = int(rng.integers(0, given + 1)) if rng.integers(2) else given
    modes = [*range(at), *range(len(shape) - given + at, len(shape))]
    keys, vectors = [], 0
    for k in modes:
        keys.append(key_of_a_mode(rng, shape[k], vectors == 0))
        vectors += isinstance(keys[-1], list) or np.ndim(keys[-1]) == 1
    if vectors:  # NumPy moves a mode to the front where integers stand apart from the vector
        keys = [k if isinstance(k, slice | list) or np.ndim(k) else slice(None) for k in keys]
    if at < given or rng.integers(2):
        keys.insert(at, Ellipsis)
    for _ in range(int(rng.integers(0, 3))):
        keys.insert(int(rng.integers(0, len(keys) + 1)), None)
    return tuple(keys) if len(keys) != 1 or rng.integers(2) else keys[0]


@pytest.mark.parametrize("low", [1, 0])
def test_drawn_keys_pick_what_numpy_picks(rng, low):
    for _ in range(40):
        t = drawn(rng, low=low)
        x = dense(t)
        key = drawn_key(rng, t.shape)
        try:
            theirs = jax.tree.map(lambda k: np.asarray(k) if isinstance(k, jax.Array) else k, key)
            expected = x[theirs]
        except IndexError:
            with pytest.raises(IndexError):
                t[key]
            continue
        close(t[key], expected, f"{t.shape}[{key}]")


def drawn_axes(rng, order):
    axes = rng.permutation(order)[: int(rng.integers(0, order + 1))]
    axes = [int(k) - order * int(rng.integers(2)) for k in axes]
    kinds = [None, tuple(axes), *axes[:1], *map(np.int64, axes[:1])]
    return kinds[rng.integers(len(kinds))]


def test_reductions_over_drawn_axes(rng):
    for _ in range(6):
        t, u = drawn(rng), None
        x, axes, keep = dense(t), drawn_axes(rng, t.order), bool(rng.integers(2))
        for ours, theirs in ((tt.sum, np.sum), (tt.mean, np.mean), (tt.var, np.var)):
            if ours is tt.var and t.dtype == jnp.bfloat16:
                continue
            expected = theirs(x, axis=axes, keepdims=keep)
            close(ours(t, axes, keepdims=keep), expected, f"{ours.__name__} {t} {axes}")
        k = np.int32(rng.integers(-t.order, t.order))
        close(tt.cumsum(t, k), np.cumsum(x, k), f"cumsum {t} {k}")
        w = normal(rng, (int(rng.integers(1, 4)), t.shape[k]), t.dtype)
        product = np.moveaxis(np.tensordot(w.astype(x.dtype), x, (1, k)), 0, k)
        close(tt.mode_product(t, w, k), product)
        u = tt.TT(cores(rng, t.shape, 2, t.dtype))
        if t.dtype == jnp.bfloat16:
            continue
        axes = [int(k) for k in rng.permutation(t.order)]
        close(tt.permute(t, [np.int64(a - t.order) for a in axes]), x.transpose(axes))
        pair = [a - t.order for a in axes[:2]], axes[:2]
        close(tt.tensordot(t, u, pair), np.tensordot(x, dense(u), pair), f"tensordot {t} {pair}")
        close(tt.concatenate([t, u], k), np.concatenate([x, dense(u)], k))


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_and_attributes(rng, dtype):
    t = drawn(rng, dtype)
    u = tt.TT(cores(rng, t.shape, 2, dtype))
    x, y = dense(t), dense(u)
    close(-t, -x), close(+t, x), close(t - u, x - y), close(t * u, x * y), close(2 - t, 2 - x)
    close(t.T, x.T), close(t @ u, np.dot(x.ravel(), y.ravel()))
    for power in (2, np.int64(2), 2.0, np.float64(2)):
        close(t**power, x**2)
    moved = t
    moved += 1
    moved *= 2
    close(moved, 2 * (x + 1))
    for number in (np.ones((), t.dtype), jnp.ones((), t.dtype)):
        close(number * t, x), close(t * number, x)
    close(sum([t, u]), x + y)
    rows = [t[k] for k in range(t.shape[0])]
    assert len(t) == len(list(t)) == len(rows) == t.shape[0]
    for row, expected in zip(t, x, strict=True):
        close(row, expected)
    assert t.nbytes == sum(c.nbytes for c in t.cores)
    assert (np.shape(t), np.ndim(t), jnp.shape(t)) == (t.shape, t.ndim, t.shape)
    assert float(abs(t[(0,) * t.ndim])) >= 0


# Expressions, and what their errors name.
NAMED = {
    "np.sum(t)": "tt.sum", "np.mean(t)": "tt.mean", "np.transpose(t)": "tt.permute",
    "np.concatenate([t, t])": "tt.concatenate", "np.array_equal(t, u)": "tt.distance",
    "np.allclose(t, u)": "tt.distance", "np.asarray(t)": "tt.to_dense",
    "jnp.asarray(t)": "tt.to_dense", "t == u": "tt.distance", "t != u": "tt.distance",
    "t == 1": "tt.distance", "bool(t)": "tt.norm", "t and u": "tt.norm", "1.0 in t": "tt.argmax",
    "t.sum()": "tt.sum", "t.real": "tt.real", "t.conj()": "tt.conj", "t.conjugate()": "tt.conj",
    "t.reshape((2, 3))": "tt.reshape", "t.ravel()": "tt.reshape", "t.max()": "tt.argmax",
    "t.dot(u)": "t @ x", "t.at[0].set(1)": "tt.unit", "t.__setitem__(0, 1)": "tt.unit",
    "t.transpose()": "t.T", "t.H": "tt.conj", "t.numpy()": "tt.to_dense", "abs(t)": "tt.map",
    "t / u": "tt.divide", "1 / t": "tt.map", "t ** -1": "tt.map", "t ** 0.5": "tt.map",
    "np.sum(k)": "tucker.to_dense", "k == k2": "tucker.distance", "bool(k)": "tucker.norm",
    "np.exp(t)": "tt.map(numpy.exp", "jnp.exp(t)": "tt.map(numpy.exp", "np.maximum(t, u)": "tt.map",
    "jnp.sum(t)": "tt.sum", "jnp.linalg.norm(t)": "tt.norm", "jnp.where(True, t, u)": "tt.map",
    "jax.jit(jnp.dot)(t, u)": "t @ x", "jnp.stack([t, u])": "tt.concatenate",
    "np.round(t)": "tt.round", "round(t)": "tt.round", "round(t, 2)": "tt.map",
    "float(t)": "t[0", "int(t)": "t[0", "complex(t)": "t[0", "math.sqrt(t)": "tt.map",
    "math.floor(t)": "tt.map", "t % 2": "tt.map(numpy.remainder", "2 // t": "tt.map",
    "divmod(t, u)": "tt.map", "t < u": "tt.map(numpy.less,", "np.ones(3) >= t": "tt.map",
    "jnp.float32(2) < t": "tt.map", "max(t, u)": "tt.map", "~t": "tt.map", "t & 1": "tt.map",
    "2 ** t": "tt.map(numpy.power", "t ** t": "tt.map(numpy.power",
    "np.ones(3) @ t": "mode_product", "jnp.ones(3) @ t": "mode_product",
    "jnp.ones(3) / t": "tt.map", "np.add(t, np.ones(3))": "scalar",
    "np.add.reduce(t)": "tt.to_dense", "np.add(t, u, out=np.ones((2, 3)))": "x + y",
    "t.__delitem__(0)": "does not change", "jax.jit(lambda t, n: t**n)(t, 2)": "static",
    "np.exp(k)": "tucker.to_tt", "float(k)": "t[0", "round(k)": "tucker.round", "k / k2": "tt.map",
    "jnp.sum(k)": "tucker.to_dense", "abs(k)": "tucker.to_tt", "k @ k": "tucker.to_dense",
    "np.exp(f)": "tt.functions.compose(numpy.exp", "f.integrate": "tt.functions.integrate",
    "jnp.sum(f)": "to_dense", "1 / f": "tt.functions.compose", "f % 2": "tt.functions.compose",
    "np.exp(m)": "mera.to_tt", "jnp.linalg.norm(m)": "mera.norm", "m.norm()": "mera.norm",
    "m / m": "mera.to_tt", "float(m)": "mera.to_tt", "m < 1": "mera.to_tt",
    "np.sum(p)": "tt.patches.sum", "jnp.exp(p)": "tt.patches.to_dense", "p ** 2": "to_dense",
    "float(p)": "tt.patches.to_dense", "p * p": "unsupported", "jnp.dot(p, p)": "to_dense",
    "k.conjugate()": "no attribute", "k.real": "tucker.real", "k.full()": "tucker.to_dense",
    "a == b": "tt.distance", "a.trace()": "tt.trace", "a.H": "tt.conj", "a[0:2]": "tuple",
}  # fmt: skip


def test_errors_name_the_function(key):
    t, u = tt.random(key, (2, 3), 2), tt.ones((2, 3))
    names = {
        "np": np, "jnp": jnp, "t": t, "u": u, "a": tt.identity((2, 3)), "b": tt.identity((2, 3)),
        "k": tucker.random(key, (2, 3), 2), "k2": tucker.random(key, (2, 3), 2), "jax": jax,
        "math": math, "m": mera.random(key, (2,) * 4, 2), "f": tt.functions.FunctionTrain(
            [tt.functions.Chebyshev(n - 1) for n in t.shape], t),
        "p": tt.patches.PatchedTT((2, 3), [()], [t]),
    }  # fmt: skip
    for expression, word in NAMED.items():
        with pytest.raises((TypeError, ValueError, AttributeError, IndexError)) as caught:
            eval(expression, names)
        assert word in str(caught.value), (expression, str(caught.value))
    assert t == t
    assert t != "a"
    assert t in [u, t][1:]
    assert hash(t) == hash(t)
    assert (t is None) is False and t != None  # noqa: E711, PT018
    entry = (0, 1)
    changed = t + tt.unit(t.shape, entry) * (5.0 - t[entry])  # the advice of `at`
    expected = dense(t)
    expected[entry] = 5
    close(changed, expected)


def test_functions_that_are_operators_give_what_these_give(rng, key):
    t, u = tt.random(key, (2, 3), 2), tt.random(key, (2, 3), 1)
    a, b, k = tt.identity((2, 3)), tt.ones_matrix((2, 3), (2, 3)), tucker.random(key, (2, 3), 2)
    pairs = ((t, u), (a, b), (t, 2), (2, t), (a, np.float32(3)), (np.ones(6, "f4"), a))
    names = {"add": "add", "subtract": "sub", "multiply": "mul", "negative": "neg",
             "positive": "pos", "divide": "truediv", "matmul": "matmul",
             "power": "pow"}  # fmt: skip
    for pair in pairs:
        for name, sign in names.items():
            f, theirs = getattr(np, name), getattr(operator, sign)
            trains = [x for x in pair if isinstance(x, tt.TT | tt.TTMatrix)]
            given = pair if f.nargs == 3 else trains[:1]
            try:
                expected = theirs(*given)
            except (TypeError, ValueError) as refused:
                with pytest.raises(type(refused)):
                    f(*given)
                continue
            found = f(*given)
            assert type(found) is type(expected)
            assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(expected)))
    assert (np.size(t), np.size(a), np.size(a, 1), np.size(k), np.size(t, (0, 1))) == (
        6,
        36,
        6,
        6,
        6,
    )
    assert np.size(tt.ones((10,) * 30)) == 10**30
    total = np.zeros((), t.dtype)
    total += t  # NumPy asks for the sum in place, which no array can hold
    close(total, dense(t))
    for power in (np.array(2), jnp.array(2), 2.0):
        close(t**power, dense(t) ** 2)
    values, g = (
        tucker_dense(k),
        tt.functions.FunctionTrain([tt.functions.Chebyshev(2)] * 2, tt.ones((3, 3))),
    )
    for power in (0, 1, 3):
        assert error(tucker_dense(k**power), values**power) <= 1e-5 * norm(values**power)
        np.testing.assert_allclose((g**power)([0.5, 0.2]), g([0.5, 0.2]) ** power, rtol=1e-5)
