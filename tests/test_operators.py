"""Operators with scalars of any kind, casts, copies and arrays that are none, for every format."""

import copy
import dataclasses
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import contract, convert, interop, mera, sketch, tt, tucker
from tests.oracles import DTYPES, cores, dense, eps, error, norm, normal, tucker_dense, wide

HALF = (jnp.bfloat16, np.float16)


def formats(rng, dtype):
    """One tensor of every format and its dense array by NumPy."""
    flat = cores(rng, (2, 6, 2), 2, dtype)
    sizes = ((2, 1), (2, 3), (1, 2))
    matrix = tt.TTMatrix(
        [c.reshape(len(c), *n, c.shape[-1]) for c, n in zip(flat, sizes, strict=True)]
    )
    train = tt.TT(cores(rng, (2, 3, 2), 2, dtype))
    factors = [normal(rng, (n + 1, n)).astype(dtype) for n in train.shape]
    boxed = tucker.Tucker(normal(rng, (2, 3, 2), dtype), factors)
    held = tucker.Tucker(train, factors)
    layered = mera.random(jax.random.key(0), (2,) * 4, 2, dtype=dtype)
    return {"TT": train, "TTMatrix": matrix, "Tucker": boxed, "Tucker of a TT": held,
            "MERA": layered}  # fmt: skip


def full(x):
    if isinstance(x, tucker.Tucker):
        return tucker_dense(x)
    return wide(mera.to_dense(x)) if isinstance(x, mera.MERA) else dense(x)


def drawn_scalars(rng, dtype):
    """Numbers of all kinds; whole ones do not change the dtype, others by the rules of JAX."""
    small = int(rng.integers(1, 100))
    real = float(rng.uniform(0.1, 3.0))
    yield from (small, -small, 0, True, real, -real, 0.0)
    yield from (np.bool_(True), np.array(True), jnp.array(True), jnp.array(0, jnp.uint8))
    for kind in (np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int64):
        yield from (kind(small), np.array(small, kind), jnp.array(small, kind), kind(0))
    for kind in (np.float16, np.float32, np.float64, jnp.bfloat16):
        yield from (jnp.array(real, kind), np.asarray(real).astype(kind)[()])
    yield from (complex(real, -real), np.complex64(real + 1j), jnp.array(1j * real))
    if jnp.finfo(dtype).maxexp > 200:
        yield from (2**70 + small, -(3**50), 2**64 - 1, np.uint64(2**64 - 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, jnp.bfloat16])
def test_scalars_of_all_kinds_do_what_they_do_to_an_array(rng, dtype):
    with jax.numpy_dtype_promotion("standard"):
        scalars = list(drawn_scalars(rng, dtype))
        rng.shuffle(scalars)
        shares = [[*scalars[k::5], 1.5 - 0.5j] for k in range(5)]  # every scalar beside one format
        for (name, x), share in zip(formats(rng, dtype).items(), shares, strict=True):
            a = full(x)
            for s in share:
                number = complex(s) if np.iscomplexobj(s) else float(s)
                expected = dtype if isinstance(s, int) else jnp.result_type(dtype, s)
                found = {"*": (x * s, a * number), "r*": (s * x, a * number)}
                if number:
                    found["/"] = (x / s, a / number)
                if name != "MERA":
                    found |= {"+": (x + s, a + number), "r+": (s + x, a + number),
                              "-": (x - s, a - number), "r-": (s - x, number - a)}  # fmt: skip
                for sign, (y, exact) in found.items():
                    assert (type(y), y.dtype) == (type(x), expected), (name, sign, s)
                    limit = 200 * eps(dtype) * (norm(a) + abs(number) * a.size**0.5 + norm(exact))
                    assert error(full(y), exact) <= limit, (name, sign, s)


def test_zeros_that_are_known_do_not_raise_ranks(rng):
    for name, x in formats(rng, np.float64).items():
        if name == "MERA":
            continue
        for zero in (0, 0.0, False, np.uint8(0), np.float64(0), np.zeros(())):
            for y in (zero + x, x + zero, x - zero):
                assert y.ranks == x.ranks
                assert error(full(y), full(x)) == 0
            assert error(full(zero - x), -full(x)) == 0
        assert sum([x]).ranks == x.ranks
        assert sum([x, x, x]).ranks == (x + x + x).ranks
        assert error(full(sum([x, x])), 2 * full(x)) <= 1e-14 * norm(full(x))


def test_quotients_are_divisions(rng):
    """By integers, whose reciprocals are not of the dtype, in and outside of jit and vmap."""
    three, both = jnp.int32(3), jnp.array([3, 7], jnp.int8)
    for name, x in formats(rng, np.float64).items():
        for y in (x / 3, x / np.uint8(3), x / three, jax.jit(operator.truediv)(x, three)):
            assert error(full(y), full(x) / 3) <= 8 * eps(np.float64) * norm(full(x)), name
        many = jax.vmap(lambda s, x=x: x / s)(both)
        second = jax.tree.map(lambda a, y: a if a.ndim == y.ndim else a[1], many, x)
        assert error(full(second), full(x) / 7) <= 8 * eps(np.float64) * norm(full(x))
        with pytest.raises(ZeroDivisionError, match="divisor"):
            _ = x / 0
        with pytest.raises(ZeroDivisionError, match="divisor"):
            _ = x / np.uint8(0)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_infinite_and_missing_factors(rng, dtype):
    """Infinite ones are refused, for they would turn into NaN; NaN is NaN at every entry."""
    of_dtype = np.dtype(dtype).type
    infinite = [np.inf, -np.inf, of_dtype(np.inf), np.asarray(-np.inf, dtype), complex(0, np.inf)]
    for name, x in formats(rng, dtype).items():
        operators = [operator.mul, lambda x, s: s * x]
        if hasattr(type(x), "namespace"):
            operators += [operator.add, operator.sub, lambda x, s: s - x]
        for factor in infinite[: 5 if np.dtype(dtype).kind == "c" else 4]:
            for f in operators:
                with pytest.raises(ValueError, match="factor: expected a finite number"):
                    f(x, factor)
            assert not full(x / factor).any(), name
        for nothing in (np.nan, of_dtype(np.nan), jnp.asarray(np.nan, dtype)):
            for y in (x * nothing, x / nothing, jax.jit(operator.mul)(x, nothing)):
                assert np.isnan(full(y)).all(), name
        # Numbers of JAX are not looked at: what is wrong is NaN or Inf at every entry.
        much, zero = jnp.asarray(np.inf, dtype), jnp.asarray(0, dtype)
        for y in (x * much, jax.jit(operator.mul)(x, much), x / zero):
            with np.errstate(invalid="ignore"):
                assert not np.isfinite(full(y)).any(), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_quotients_are_in_range_where_the_result_is(rng, dtype):
    info = np.finfo(np.zeros(1, dtype).real.dtype)
    low, high = np.log10(float(info.tiny)), np.log10(float(info.max))
    for _ in range(6):
        top = rng.uniform(low + 1, high - 1)
        bottom = rng.uniform(max(low - 3, top - high + 2), min(high - 1, top - low - 2))
        number = (10**top * normal(rng, (1, 3, 1), np.float64)).astype(dtype)
        divisor = np.asarray(10**bottom).astype(dtype)[()]
        if np.dtype(dtype).kind == "c" and rng.random() < 0.5:
            divisor = divisor * np.asarray(1j).astype(dtype)[()]
        exact = wide(number).astype(np.clongdouble) / np.clongdouble(divisor)
        x = tt.TT([number])
        for y in (x / divisor, x / jnp.asarray(divisor), jax.jit(operator.truediv)(x, divisor)):
            ratio = np.asarray(y.cores[0]).astype(np.clongdouble) / exact - 1
            assert np.abs(ratio).max() <= 8 * eps(dtype), (top, bottom)
    # A number of Python that the dtype does not hold, beside a core that brings it back.
    if np.dtype(dtype).itemsize == 4:
        tiny = tt.TT([np.full((1, 3, 1), 1e-30, dtype)])
        assert error(dense(tiny * 1e50) / 1e20, np.ones(3)) <= 1e-6
        assert error(dense(tiny / 1e-50) / 1e20, np.ones(3)) <= 1e-6


def test_the_derivative_by_a_divisor(rng):
    x = tt.TT(cores(rng, (2, 3), 2, np.float64))
    for s in (0.7, -41.0, 1e-5):
        found = jax.grad(lambda s: tt.to_dense(x / s).sum())(s)
        assert abs(found + dense(x).sum() / s**2) <= 1e-12 * abs(found)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_takes_integers_that_it_cannot_hold(dtype):
    x = tt.TT([np.full((1, 4, 1), 2.0**-8).astype(dtype)])
    assert (wide(tt.to_dense(x * (2**17))) == 2.0**9).all()
    assert (wide(tt.to_dense(x / 2)) == 2.0**-9).all()


def test_what_is_no_scalar_is_refused(rng):
    others = [np.ones(3), jnp.ones((1,)), np.array("x"), np.str_("x"), np.datetime64("2020"), None,
              "x", [1.0], object(), jax.random.key(0), np.longdouble(2), {}]  # fmt: skip
    for x in formats(rng, np.float32).values():
        for other in others:
            for f in (operator.mul, operator.truediv, operator.add, operator.sub):
                for pair in ((x, other), (other, x)):
                    with pytest.raises(TypeError):
                        f(*pair)
        with pytest.raises(TypeError, match=r"scalar .*shape \(3,\).*to_dense"):
            _ = np.ones(3) * x
    for scale, x in (
        (tt.scale, tt.ones((2,))),
        (tucker.scale, tucker.from_dense(np.eye(2), tol=0.1)),
    ):
        with pytest.raises(TypeError, match=r"factor: expected a scalar.*'x'"):
            scale(x, "x")
        with pytest.raises(ValueError, match=r"factor: expected a scalar.*shape \(3,\)"):
            scale(x, jnp.ones(3))


def test_no_format_is_an_array(rng):
    for x in formats(rng, np.float32).values():
        for f in (np.asarray, np.array, jnp.asarray, jnp.array, lambda x: np.stack([x, x])):
            with pytest.raises(TypeError, match=f"{x.dense_name}"):
                f(x)
            with pytest.raises(TypeError, match=f"{x.dense_name}"):
                f(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), x))


# Casts and parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_casts_that_are_none_of_the_tensor_are_refused(rng, dtype):
    for name, x in formats(rng, dtype).items():
        for other in (np.int32, bool, np.uint8):
            with pytest.raises(
                TypeError, match="dtype: expected a floating-point or complex dtype"
            ):
                x.astype(other)
        if np.dtype(dtype).kind == "c":
            with pytest.raises(TypeError, match=r"real part.*(tt|tucker)\.real"):
                x.astype(np.float32)
        single = np.complex64 if np.dtype(dtype).kind == "c" else np.float32
        assert error(full(x.astype(single)), full(x)) <= 1e-5 * norm(full(x)), name
        assert x.astype(np.complex128).dtype == np.complex128


@pytest.mark.parametrize("shape", [(4,), (3, 2), (2, 1, 3, 2), (2,) * 6])
def test_real_and_imaginary_parts(rng, shape):
    for dtype in (np.complex64, np.complex128, np.float32):
        z = tt.TT(cores(rng, shape, 3, dtype))
        for part, exact in ((tt.real, dense(z).real), (tt.imag, dense(z).imag)):
            y = part(z)
            assert not np.iscomplexobj(y.cores[0])
            assert y.dtype == np.zeros(1, dtype).real.dtype
            assert all(a <= 2 * b for a, b in zip(y.ranks[1:-1], z.ranks[1:-1], strict=True))
            assert error(dense(y), exact) <= 50 * eps(dtype) * norm(dense(z))
            batch = jax.vmap(part)(jax.tree.map(lambda c: jnp.stack([2 * c, c]), z))
            second = jax.tree.map(lambda c: c[1], batch)
            assert error(dense(second), exact) <= 50 * eps(dtype) * norm(dense(z))


# 64 bits in JAX's mode of 32 ---------------------------------------------------------------------


def wide_calls(made):
    """Functions of tensors of float64, each with a name."""
    t, a, k, h, m = (made[n] for n in ("TT", "square", "Tucker", "Tucker of a TT", "MERA"))
    key, p = jax.random.key(0), made["map"]
    yield from {n: lambda n=n: getattr(tt, n)(t) for n in
                ("norm", "to_dense", "trim", "effective_ranks", "conj", "ones_like", "real",
                 "imag")}.items()  # fmt: skip
    yield from {
        "operators": lambda: 2 * t, "division": lambda: t / 3, "minus": lambda: -t,
        "sum": lambda: t + t, "constant": lambda: t + 1, "product": lambda: t * t,
        "round": lambda: tt.round(t, rank=1), "tol": lambda: tt.round(t, tol=1e-3),
        "inner": lambda: tt.inner(t, t), "distance": lambda: tt.distance(t, t),
        "hadamard": lambda: tt.hadamard(t, t, tol=1e-2), "pad": lambda: tt.pad(t, 5),
        "evaluate": lambda: tt.evaluate(t, [0, 0, 0]), "kron": lambda: tt.kron(t, t),
        "orthogonalize": lambda: tt.orthogonalize(t, 0), "sample": lambda: tt.sample(key, t, 3),
        "tangent": lambda: tt.tangent_project(t, t), "retract": lambda: tt.retract(t, t, 2),
        "matvec": lambda: a @ t, "matmul": lambda: a @ a, "transpose": lambda: tt.transpose(a),
        "combination": lambda: tt.linear_combination([t, t], tol=0.1),
        "solve": lambda: tt.solve(a, t, tol=0.1), "eigsh": lambda: tt.eigsh(a, k=1, tol=0.1),
        "tucker": lambda: convert.tt_to_tucker(t, rank=1), "sketch": lambda: sketch.apply(p, t),
        "mera": lambda: convert.tt_to_mera(t, tol=0.1), "cast": lambda: made["low"].astype("f8"),
        "constructor": lambda: tt.TT(t.cores), "NumPy cores": lambda: tt.TT([np.ones((1, 3, 1))]),
        "jit": lambda: jax.jit(tt.norm)(t), "ones": lambda: tt.ones((2,), np.float64),
        "random": lambda: tt.random(key, (2, 2), 1, np.float64),
        "from_numpy": lambda: interop.from_numpy([np.ones((1, 3, 1))]),
        "pickle": lambda: pickle.loads(made["pickle"]),
    }.items()  # fmt: skip
    for n, x in (("dense", k), ("train", h)):
        for f in ("norm", "to_dense", "orthogonalize", "ones_like", "real", "imag"):
            yield f"tucker.{f} {n}", lambda f=f, x=x: getattr(tucker, f)(x)
        yield f"{n} + {n}", lambda x=x: x + x
        yield f"{n} / 2", lambda x=x: x / 2
        yield f"tucker.round {n}", lambda x=x: tucker.round(x, rank=1)
        yield f"Tucker {n}", lambda x=x: tucker.Tucker(x.core, x.factors)
    for f in ("norm", "to_dense", "to_tt"):
        yield f"mera.{f}", lambda f=f: getattr(mera, f)(m)
    yield "mera.inner", lambda: mera.inner(m, m)
    yield "2 m", lambda: 2 * m
    yield "MERA", lambda: mera.MERA(m.layers, m.top)
    yield "mera.random", lambda: mera.random(key, (2,) * 4, 2, dtype=np.float64)


def test_one_error_for_float64_where_jax_has_32_bits(rng):
    made = formats(rng, np.float64)
    made["square"] = tt.identity((2, 3, 2), np.float64)
    made["map"] = sketch.ttrp(jax.random.key(0), (2, 3, 2), 3, dtype=np.float32)
    made["low"] = tt.ones((2, 3), np.float32)
    made["pickle"] = pickle.dumps(made["TT"])
    with jax.enable_x64(False):
        for name, call in wide_calls(made):
            with pytest.raises(TypeError) as found:
                call()
            assert "jax_enable_x64', True)" in str(found.value), name
            assert "cast to float32" in str(found.value), name
        # What is offered works: cast, or dense data, which JAX rounds by its rule.
        assert tt.norm(made["TT"].astype(np.float32)).dtype == np.float32
        assert tt.from_dense(np.ones((2, 3)), tol=1e-3).dtype == np.float32
        assert interop.to_numpy(made["TT"])[0].dtype == np.float64


# Copies ------------------------------------------------------------------------------------------

SHAPE = jax.ShapeDtypeStruct((2, 3), np.float32)
LEAVES = [None, True, 3, 1.5, np.ones(2), np.arange(3), SHAPE, "x", b"x"]


def trees(rng):
    key = jax.random.key(0)
    made = formats(rng, np.complex64)
    made["layer"] = made["MERA"].layers[0]
    made["info"] = convert.tt_to_tucker(made["TT"], rank=2)[1]
    made["stream"] = tt.stream(key, (2, 3), 2)
    for draw in (sketch.ttrp, sketch.khatri_rao, sketch.tt_rows, sketch.cp_rows):
        made[draw.__name__] = draw(key, (3, 4), 5)
    for draw in (sketch.gaussian, sketch.sparse):
        made[draw.__name__] = draw(key, 12, 5)
    return made


def same(x, y):
    a, b = jax.tree.leaves(x), jax.tree.leaves(y)
    return jax.tree.structure(x) == jax.tree.structure(y) and all(
        type(p) is type(q) and np.array_equal(p, q) for p, q in zip(a, b, strict=True)
    )


def test_copies_and_pickles_of_any_leaves(rng):
    for name, x in trees(rng).items():
        abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), x)
        for y in [x, abstract, *(jax.tree.map(lambda _, leaf=leaf: leaf, x) for leaf in LEAVES)]:
            assert same(copy.copy(y), y), name
            assert same(copy.deepcopy(y), y), name
            # JAX's own ShapeDtypeStruct has no pickle of the two oldest protocols.
            shapes = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(y))
            for protocol in range(2 if shapes else 0, pickle.HIGHEST_PROTOCOL + 1):
                assert same(pickle.loads(pickle.dumps(y, protocol)), y), (name, protocol)
            assert type(x).__name__ in repr(y)
            assert str(y)
        masked = jax.tree.map(lambda _: object(), x)
        assert copy.deepcopy(masked) is not masked
        if dataclasses.is_dataclass(x):
            assert same(dataclasses.replace(x), x)
            assert same(dataclasses.replace(abstract), abstract)


def test_a_plan_survives_a_pickle():
    plan = contract.plan("ij,jk->ik", (2, 3), (3, 5))
    other = pickle.loads(pickle.dumps(plan))
    assert copy.deepcopy(plan) is plan
    assert other.path == plan.path
    assert (other(jnp.ones((2, 3)), jnp.ones((3, 5))) == 3).all()


@pytest.mark.parametrize("kind", ["TT", "TTMatrix"])
@pytest.mark.parametrize(
    ("operation", "function"),
    [
        (lambda x: x / x, "tt.divide"),
        (lambda x: 1 / x, "tt.map"),
        (lambda x: np.float32(2) / x, "tt.map"),
        (lambda x: x**0.5, "tt.map"),
        (abs, "tt.map"),
    ],
)
def test_operators_without_an_exact_result_name_the_function_for_it(kind, operation, function):
    x = tt.ones((2, 3)) if kind == "TT" else tt.identity((2, 3))
    with pytest.raises(TypeError, match=function):
        operation(x)


def test_attributes_that_are_functions_are_named():
    trains = [tt.ones((2, 3)), tt.identity((2, 3))]
    for name in ("sum", "mean", "norm", "round", "reshape", "to_dense"):
        for x in trains:
            assert not hasattr(x, name)
            with pytest.raises(AttributeError, match=rf"tt\.{name}\(…\)"):
                getattr(x, name)
    with pytest.raises(AttributeError, match=r"tucker\.norm\(…\)"):
        _ = tucker.from_dense(jnp.ones((2, 3)), rank=1).norm
    for name in ("cors", "_sum", "__enter__"):
        with pytest.raises(AttributeError, match="has no attribute") as error:
            getattr(trains[0], name)
        assert "…" not in str(error.value)
