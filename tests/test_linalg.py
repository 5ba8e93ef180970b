"""Array factorisations: the promise on the error, batches, derivatives, bad input."""

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import linalg
from tensorjax.linalg import _svd_eigh_polar
from tests.oracles import (
    DTYPES,
    REAL,
    check_gradient,
    eps,
    error,
    matrix,
    norm,
    normal,
    tails,
    wide,
)

HOST_OR_DEVICE = (np.asarray, jnp.asarray)


def spectra(k: int, dtype: Any) -> dict[str, np.ndarray]:
    e = eps(dtype)
    return {
        "down to eps": np.logspace(0, np.log10(e), k),
        "flat": np.ones(k),
        "a step to 3 √eps": np.r_[np.ones(k // 2), np.full(k - k // 2, 3 * e**0.5)],
        "a step under √eps": np.r_[np.ones(2), np.full(k - 2, 0.1 * e**0.5)],
        "a step to 10 eps": np.r_[1.0, np.full(k - 1, 10 * e / k**0.5)],
        "rank one": np.r_[1.0, np.zeros(k - 1)],
        "zero": np.zeros(k),
    }


def product(out: linalg.SVD) -> np.ndarray:
    return (wide(out.u) * wide(out.s)) @ wide(out.vh)


# The promise -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", linalg.METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_truncated_svd_keeps_the_error_asked(rng, dtype, method):
    e = eps(dtype)
    for shape in ((12, 7), (7, 12), (4, 90)):
        for name, s in spectra(min(shape), dtype).items():
            a = matrix(rng, *shape, s, dtype)
            exact = tails(np.linalg.svd(wide(a), compute_uv=False))
            for tol in (10 * e, 30 * e, 1e4 * e, 0.3 * e**0.5, 3 * e**0.5, 0.5):
                for array in HOST_OR_DEVICE:
                    out = linalg.truncated_svd(array(a), tol=tol, method=method)
                    where = (shape, name, tol / e, array.__module__)
                    # One eps for the roundoff of this measurement itself.
                    assert error(product(out), a) <= (tol + e) * norm(a), where
                    assert len(out.s) <= max((exact > tol * norm(a)).sum(), 1) + 1, where


@pytest.mark.parametrize("method", linalg.METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rank_with_tol_zeroes_what_tol_discards(rng, dtype, method):
    e = eps(dtype)
    jitted = jax.jit(lambda a, tol: linalg.truncated_svd(a, rank=6, tol=tol, method=method))
    for name, s in spectra(6, dtype).items():
        a = matrix(rng, 9, 6, s, dtype)
        for tol in (30 * e, 1e4 * e, 0.3 * e**0.5, 0.5):
            for out in (
                linalg.truncated_svd(a, rank=6, tol=tol, method=method),
                jitted(jnp.asarray(a), tol),
            ):
                assert error(product(out), a) <= (tol + e) * norm(a), (name, tol / e)
                alone = linalg.truncated_svd(a, tol=tol, method=method)
                assert (np.asarray(out.s) > 0).sum() <= len(alone.s) + 1, (name, tol / e)
        assert jitted(jnp.asarray(a), 0.5).s.shape == (6,)


@pytest.mark.parametrize("array", HOST_OR_DEVICE)
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_factors_keep_dtype_and_kind(rng, dtype, array):
    a = array(normal(rng, (6, 5), dtype))
    for options in ({"tol": 0.1}, {"rank": 2}, {"rank": 3, "tol": 0.1}):
        for method in linalg.METHODS:
            out = linalg.truncated_svd(a, method=method, **options)
            assert out.u.dtype == out.vh.dtype == a.dtype, (options, method)
            assert out.s.dtype == out.discarded.dtype == a.real.dtype, (options, method)
            assert isinstance(out.u, np.ndarray) == (array is np.asarray), (options, method)


@pytest.mark.parametrize("array", HOST_OR_DEVICE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_factored_in_single(rng, dtype, array):
    a = array(jnp.asarray(rng.standard_normal((6, 5)), dtype))
    single = np.asarray(a, np.float32)
    for options in (
        {"tol": 0.1},
        {"rank": 2},
        {"rank": 3, "tol": 0.1},
        {"rank": 2, "method": "gram"},
    ):
        out = linalg.truncated_svd(a, **options)
        assert {part.dtype for part in out} == {a.dtype}, options
        s = np.linalg.svd(single)[1][: out.s.shape[-1]]
        np.testing.assert_allclose(np.asarray(out.s, np.float32), s, rtol=1e-2)
    u, p = linalg.polar(a)
    assert u.dtype == p.dtype == a.dtype
    u, p = np.asarray(u, np.float32), np.asarray(p, np.float32)
    np.testing.assert_allclose(u @ p, single, atol=5e-2)


@pytest.mark.parametrize("array", HOST_OR_DEVICE)
def test_batches_of_nothing(array):
    a = array(np.zeros((0, 3, 4)))
    assert [part.shape for part in linalg.qr(a)] == [(0, 3, 3), (0, 3, 4)]
    assert linalg.range_finder(a, 2).shape == (0, 3, 2)
    for options in ({"tol": 1e-3}, {"rank": 2}, {"rank": 2, "tol": 1e-3}):
        for method in linalg.METHODS:
            out = linalg.truncated_svd(a, method=method, **options)
            rank = out.s.shape[-1]
            assert (out.u.shape, out.vh.shape) == ((0, 3, rank), (0, rank, 4))
            assert out.discarded.shape == (0,)
    for shape in ((3, 0, 4), (4, 0)):
        for options in ({"tol": 1e-3}, {"rank": 2}):
            with pytest.raises(ValueError, match="a: expected matrices with rows and columns"):
                linalg.truncated_svd(array(np.zeros(shape)), **options)


@pytest.mark.parametrize("dtype", REAL)
def test_discarded_is_the_error(rng, dtype):
    a = matrix(rng, 40, 30, np.logspace(0, -5, 30), dtype)
    for method in linalg.METHODS:
        for options in ({"rank": 9}, {"tol": 1e-3}, {"rank": 12, "tol": 1e-3}):
            out = linalg.truncated_svd(a, method=method, **options)
            assert np.sqrt(out.discarded) == pytest.approx(error(product(out), a), rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_gram_of_a_long_matrix_is_summed_in_pieces(rng, dtype):
    a = normal(rng, (3, 40_000), dtype)
    exact = wide(a) @ wide(a).conj().T
    for array in HOST_OR_DEVICE:
        assert error(linalg.gram(array(a)), exact) <= 30 * eps(dtype) * norm(exact)


# The factorisations ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_factors_have_their_structure(rng, dtype, shape):
    a, k = normal(rng, shape, dtype), min(shape)
    bound = 50 * eps(dtype) * norm(a)
    for x in (a, jnp.asarray(a)):
        q, r = linalg.qr(x)
        u, s, vh = linalg.svd(x)
        w, p = linalg.polar(x)
        hermitian = linalg.matmul(x, linalg.adjoint(x))
        values, vectors = linalg.eigh(hermitian)
        for isometry in (q, u, wide(vh).conj().T, w if shape[0] >= shape[1] else wide(w).conj().T):
            assert error(wide(isometry).conj().T @ wide(isometry), np.eye(k)) <= 50 * eps(dtype)
        assert error(wide(q) @ wide(r), a) <= bound
        assert error(np.tril(wide(r), -1), 0 * wide(r)) <= bound
        assert error((wide(u) * wide(s)) @ wide(vh), a) <= bound
        assert error(wide(w) @ wide(p), a) <= bound
        assert error(wide(p), wide(p).conj().T) <= bound
        assert np.linalg.eigvalsh(wide(p)).min() >= -bound
        rebuilt = (wide(vectors) * wide(values)) @ wide(vectors).conj().T
        assert error(rebuilt, hermitian) <= bound * norm(a)
        assert (np.diff(s) <= 0).all()
        assert (np.diff(values) <= 0).all()


BATCHED: dict[str, Callable[[Any], Any]] = {
    "qr": lambda a: linalg.matmul(*linalg.qr(a)),
    "svd": lambda a: linalg.svd(a)[1],
    "eigh": lambda a: linalg.eigh(linalg.gram(a))[0],
    "polar": lambda a: linalg.polar(a),
    "range": lambda a: linalg.project(linalg.range_finder(a, 2), a),
    **{
        f"{method} {options}": lambda a, method=method, options=options: jnp.abs(
            linalg.truncated_svd(a, method=method, **options).u
        )
        for method in ("svd", "gram", "randomized")
        for options in ({"rank": 2}, {"rank": 3, "tol": 0.3})
    },
}


@pytest.mark.parametrize("name", BATCHED)
def test_leading_axes_are_a_batch(rng, name):
    f = BATCHED[name]
    a = jnp.asarray(normal(rng, (2, 3, 20, 15)))
    one_by_one = [[f(a[i, j]) for j in range(3)] for i in range(2)]
    stacked = jax.tree.map(
        lambda *x: jnp.stack(x).reshape(2, 3, *x[0].shape),
        *functools.reduce(operator.iadd, one_by_one, []),
    )
    for batched in (f(a), jax.vmap(jax.vmap(f))(a)):
        for x, y in zip(jax.tree.leaves(batched), jax.tree.leaves(stacked), strict=True):
            assert error(x, y) <= 1e4 * eps(np.float64) * norm(y)


# Derivatives -------------------------------------------------------------------------------------


def _low_rank(method: str) -> Callable[[Any], Any]:
    def f(a):
        out = linalg.truncated_svd(a, rank=2, method=method)  # type: ignore[arg-type]
        return linalg.matmul(linalg.scale_columns(out.u, out.s), out.vh)

    return f


def _projector(u: Any) -> Any:
    return linalg.matmul(u, linalg.adjoint(u))


def _eigen(a: Any) -> Any:
    _, v = linalg.eigh(_projector(a))
    return _projector(v[:, :2])


# Functions of the factors that do not depend on the gauge.
SMOOTH: dict[str, Callable[[Any], Any]] = {
    "qr projector": lambda a: _projector(linalg.qr(a)[0][:, :2]),
    "qr product": lambda a: linalg.matmul(*linalg.qr(a)),
    "triangle": lambda a: _projector(
        linalg.adjoint(linalg.triangle(a if a.shape[0] >= a.shape[1] else linalg.adjoint(a)))
    ),
    "svd values": lambda a: linalg.svd(a)[1] ** 3,
    "svd product": lambda a: linalg.matmul(
        linalg.scale_columns(linalg.svd(a)[0], linalg.svd(a)[1]), linalg.svd(a)[2]
    ),
    "eigh projector": _eigen,
    "polar": lambda a: linalg.polar(a)[0],
    "polar factor": lambda a: linalg.polar(a)[1],
    "rank 2 by svd": _low_rank("svd"),
    "rank 2 by gram": _low_rank("gram"),
    "rank 2 by sketch": _low_rank("randomized"),
}


def loss(name: str) -> Callable[[Any], jax.Array]:
    """A real number with a weight of its own for every entry."""

    def f(a: Any) -> jax.Array:
        out = SMOOTH[name](a)
        weight = jnp.cos(jnp.arange(out.size, dtype=jnp.float64)).reshape(out.shape)
        both = jnp.real(out) * weight + jnp.imag(out) * weight[::-1]
        return jnp.sum(both)

    return f


@pytest.mark.parametrize("shape", [(5, 3), pytest.param((3, 5), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_equal_finite_differences(rng, name, shape):
    f = jax.jit(loss(name))
    for dtype in (np.float64, np.complex128):
        check_gradient(f, jnp.asarray(normal(rng, shape, dtype)), rng)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_the_polar_factor_has_its_derivative_at_isometries(rng, shape):
    """All singular values are equal there, and the derivative exists all the same."""
    for dtype in (np.float64, np.complex128):
        a = matrix(rng, *shape, np.ones(min(shape)), dtype)
        check_gradient(jax.jit(loss("polar")), jnp.asarray(a), rng)


@pytest.mark.parametrize("method", linalg.METHODS)
@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_the_subspace_has_its_derivative_where_it_is_unique(rng, shape, method):
    """A gap at the cut is enough: values may repeat above it and vanish below."""

    def projected(a):
        u = linalg.left_basis(a, rank=2, method=method).u
        out = linalg.matmul(u, linalg.project(u, a))
        return jnp.sum(jnp.real(out) * np.cos(np.arange(out.size)).reshape(out.shape))

    for s in ([2, 2, 0, 0], [2, 1, 0, 0], [3, 2, 1, 1], [2, 2, 1, 0.5]):
        a = jnp.asarray(matrix(rng, *shape, np.asarray(s, float), np.complex128))
        check_gradient(jax.jit(projected), a, rng)


def tall_shapes(count: int = 6) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(8)
    widths = rng.integers(1, 64, count)
    heights = np.maximum(widths, 2 ** rng.uniform(5, 13, count)).astype(int)
    shapes = [(int(m), int(n)) for m, n in zip(heights, widths, strict=True)]
    return [*shapes, (3, *shapes[0]), (1, 4096, 24)]


@pytest.mark.parametrize("shape", tall_shapes())
def test_triangles_of_tall_matrices_are_computed_by_small_factorisations(rng, shape):
    a = normal(rng, shape, np.float32)
    a[..., shape[-1] // 2] = 0  # as an index that is dead
    program = jax.jit(linalg.triangle).lower(a).compile()
    r = np.asarray(program(a), np.float64)
    gram = np.swapaxes(a, -1, -2).astype(np.float64) @ a
    assert r.shape == (*shape[:-2], shape[-1], shape[-1])
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    np.testing.assert_allclose(np.swapaxes(r, -1, -2) @ r, gram, atol=2e-6 * gram.max())
    if jax.default_backend() == "cpu":  # larger ones start threads that go on spinning
        calls = [x for x in program.as_text().splitlines() if '"lapack_sgeqrf' in x]
        found = [re.findall(r"= \(f32\[([\d,]+)\]", line)[0].split(",") for line in calls]
        sizes = [math.prod(map(int, dims[-2:])) for dims in found]
        assert sizes
        assert max(sizes) <= 2**13


def degenerate(m: int, n: int) -> dict[str, np.ndarray]:
    one = np.eye(m, n)
    padded = np.zeros((m, n))
    padded[:2, :2] = [[1.0, 2.0], [3.0, 4.0]]
    return {
        "zero": 0 * one,
        "identity": one,
        "one zero value": one * np.r_[0.0, np.ones(n - 1)],
        "padded": padded,
        "rank one": np.ones((m, n)),
        "tiny": 1e-200 * one,
        "a pair": one * (1 + 1e-14 * np.arange(n)),
    }


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_finite_where_singular_values_repeat_or_vanish(name, shape):
    gradient = jax.jit(jax.grad(loss(name)))
    for what, a in degenerate(*shape).items():
        assert np.isfinite(gradient(jnp.asarray(a))).all(), what


@pytest.mark.parametrize("method", ["svd", "gram"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_subspaces_of_matrices_whose_squares_are_out_of_range(rng, method, dtype):
    top = int(jnp.finfo(dtype).maxexp)
    for exponent in (-0.9, -0.6, 0.6, 0.9):
        scale = 2.0 ** int(exponent * top)
        a = normal(rng, (4, 7), dtype)
        big = (a * np.asarray(scale, dtype)).astype(dtype)
        eps = float(jnp.finfo(dtype).eps)
        for given in (big, jnp.asarray(big)):
            f, energies = linalg.square_factor(given, method=method)
            f = np.asarray(f) / np.asarray(scale, dtype)
            expected = a @ a.conj().T
            assert np.abs(f @ f.conj().T - expected).max() <= 1e3 * eps * np.abs(expected).max()
            assert not np.isnan(energies).any()
        near = linalg.left_basis(a, rank=2, method=method).u
        u, energies, discarded = linalg.left_basis(big, rank=2, method=method)
        assert np.abs(u @ u.conj().T - near @ near.conj().T).max() <= 1e4 * eps
        assert not np.isnan(energies).any()
        assert not np.isnan(discarded)
        cut = linalg.left_basis(big, share=0.2, method=method).u
        assert cut.shape == linalg.left_basis(a, share=0.2, method=method).u.shape
        assert not linalg.left_basis(0 * big, rank=2, method=method).energies.any()


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, "got neither", lambda a: linalg.truncated_svd(a)),
        (ValueError, "tol.*-1", lambda a: linalg.truncated_svd(a, tol=-1.0)),
        (ValueError, "tol.*got 0", lambda a: linalg.truncated_svd(a, tol=0)),
        (ValueError, "tol.*nan", lambda a: linalg.truncated_svd(a, tol=float("nan"))),
        (ValueError, "tol.*10 eps", lambda a: linalg.truncated_svd(a, tol=1e-16)),
        (ValueError, "rank.*got 0", lambda a: linalg.truncated_svd(a, rank=0)),
        (ValueError, "rank.*got 1.5", lambda a: linalg.truncated_svd(a, rank=1.5)),
        (ValueError, "method.*'exact'", lambda a: linalg.truncated_svd(a, rank=1, method="exact")),
        (ValueError, "a: .*NaN", lambda a: linalg.truncated_svd(a * np.nan, tol=0.1)),
        (ValueError, "a: .*Inf", lambda a: linalg.truncated_svd(a / 1e-320, rank=1)),
        (TypeError, "a: .*int", lambda a: linalg.truncated_svd(a.astype(int), rank=1)),
        (TypeError, "a: .*int", lambda a: linalg.polar(a.astype(int))),
        (ValueError, r"a: .*\(3,\)", lambda a: linalg.truncated_svd(a[0], rank=1)),
        (ValueError, "rank", lambda a: linalg.left_basis(jnp.asarray(a), tail=1.0)),
        (TypeError, "rank=", lambda a: jax.jit(lambda x: linalg.truncated_svd(x, tol=0.1))(a)),
        (
            TypeError,
            "rank=",
            lambda a: jax.vmap(lambda x: linalg.truncated_svd(x, tol=0.1))(a[None]),
        ),
    ],
)
def test_bad_input_is_named(kind, message, call):
    with (
        np.errstate(over="ignore"),
        pytest.raises(kind, match=message),
    ):
        call(np.full((4, 3), 10.0))


@pytest.mark.parametrize("shape", [(32, 32), (100, 60), (8, 200), (5, 3), (1, 7)])
def test_rough_singular_vectors_are_refined_to_roundoff(rng, shape):
    """As those of Jacobi's method on GPUs are, which are orthonormal to hundreds of eps."""
    k = min(shape)
    spectra = {
        "random": np.sort(rng.random(k))[::-1],
        "ones": np.ones(k),
        "down to eps": np.geomspace(1, 1e-16, k),
        "pairs": np.repeat(np.geomspace(1, 1e-16, k // 2 + 1), 2)[:k],
        "deficient": np.arange(k) < (k + 1) // 2,
    }
    for dtype in DTYPES:
        unit = eps(dtype)
        for name, s in spectra.items():
            a = matrix(rng, *shape, s * 1.0, dtype)
            u, values, vh = np.linalg.svd(a, full_matrices=False)
            rough = (u + 100 * unit * normal(rng, u.shape, u.dtype) / k**0.5).astype(dtype)
            other = (vh + 100 * unit * normal(rng, vh.shape, vh.dtype) / k**0.5).astype(dtype)
            found = _svd_eigh_polar.refined(*map(jnp.asarray, (a, rough, values, other)))
            u, values, vh = map(wide, found)
            assert error(u.conj().T @ u, np.eye(k)) <= 30 * k**0.5 * unit, name
            assert error(vh @ vh.conj().T, np.eye(k)) <= 30 * k**0.5 * unit, name
            assert error((u * values) @ vh, wide(a)) <= 30 * k**0.5 * unit * norm(a), name


@pytest.mark.parametrize("size", [1, 5, 32])
def test_rough_eigenvectors_are_refined_to_roundoff(rng, size):
    for dtype in DTYPES:
        unit = eps(dtype)
        for w in (np.ones(size), np.geomspace(1, 1e-16, size), rng.standard_normal(size)):
            q = np.linalg.qr(normal(rng, (size, size), dtype))[0]
            a = ((q * w) @ q.conj().T).astype(dtype)
            a = (a + a.conj().T) / 2
            w, v = np.linalg.eigh(a)
            rough = (v + 100 * unit * normal(rng, v.shape, v.dtype) / size**0.5).astype(dtype)
            w, v = map(wide, _svd_eigh_polar.refined_eigh(*map(jnp.asarray, (a, w, rough))))
            assert error(v.conj().T @ v, np.eye(size)) <= 30 * size**0.5 * unit
            assert error((v * w) @ v.conj().T, wide(a)) <= 30 * size**0.5 * unit * norm(a)


def test_singular_values_lower_for_gpus_with_their_refinement():
    """And for CPUs without: it is chosen when a program is lowered."""

    def program(platform):
        lowered = jax.export.export(jax.jit(linalg.svd), platforms=[platform])
        return lowered(jax.ShapeDtypeStruct((6, 4), np.float32)).mlir_module()

    assert program("cuda").count("dot_general") > program("cpu").count("dot_general") == 0
