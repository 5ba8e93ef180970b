"""Quantics toolbox against dense NumPy on drawn grids: functions, operators, transforms."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tests.oracles import dense, error, norm

q = tt.quantics


def drawn_grid(rng, *, most=3, dims=None):
    dims = int(rng.integers(1, 4)) if dims is None else dims
    base = int(rng.integers(2, 4)) if dims < 3 else 2
    bits = rng.integers(1, most + 1, dims).tolist() if rng.integers(2) else int(rng.integers(1, 4))
    low, layout = 3 * rng.normal(size=dims), rng.integers(3)
    return tt.quantics_grid(
        low, low + rng.uniform(0.5, 5, dims), bits, base=base, interleaved=bool(layout != 1),
        fused=bool(layout == 2), endpoint=bool(rng.integers(2)),
    )  # fmt: skip


def sizes(grid):
    return grid.points if isinstance(grid.points, tuple) else (grid.points,) * grid.dims


def digits_and_points(grid):
    digits = np.stack(np.indices(grid.shape), -1)
    return digits, grid.coordinates(digits)


def natural(grid, a):
    """A TT-matrix with rows and columns in the order of the grid's indices."""
    index = np.stack(np.indices(sizes(grid)), -1).reshape(-1, grid.dims)
    at = np.ravel_multi_index(tuple(grid.digits(index).T), grid.shape)
    return dense(a).reshape(a.shape)[np.ix_(at, at)]


def embedded(grid, dim, a):
    n = sizes(grid)
    return np.kron(np.kron(np.eye(math.prod(n[:dim])), a), np.eye(math.prod(n[dim + 1 :])))


def tridiagonal(n, lower, centre, upper, boundary):
    a = lower * np.eye(n, k=-1) + centre * np.eye(n) + upper * np.eye(n, k=1)
    if boundary == "periodic":
        a[0, -1] += lower
        a[-1, 0] += upper
    if boundary == "neumann":
        a[0, 0] += lower
        a[-1, -1] += upper
    return a


def close(t, expected, tol=1e-11):
    return error(dense(t), expected) <= tol * (norm(expected) + 1e-300)


def test_digits_indices_and_points_of_drawn_grids():
    rng = np.random.default_rng(0)
    for _ in range(40):
        grid = drawn_grid(rng)
        digits, x = digits_and_points(grid)
        index = grid.index(digits)
        assert (grid.digits(index) == digits).all()
        assert (grid.nearest(x) == digits).all()
        assert len({tuple(i) for i in index.reshape(-1, grid.dims).tolist()}) == math.prod(
            grid.shape
        )
        assert np.allclose(x, np.array(grid.low) + index * np.array(grid.spacing))
        # Levels go from coarse to fine in every dimension, whatever the others have.
        first = grid.index(np.eye(1, len(grid.shape), dtype=int)[0])
        assert first.max() > 0


def test_exact_functions_on_drawn_grids():
    rng = np.random.default_rng(1)
    for trial in range(16):
        grid = drawn_grid(rng, most=2)
        _, x = digits_and_points(grid)
        c = rng.normal(size=rng.integers(1, 4, grid.dims))
        monomials = itertools.product(*map(range, c.shape))
        values = sum(c[m] * np.prod(x ** np.array(m), -1) for m in monomials)
        t = q.polynomial(grid, c)
        assert close(t, values)
        assert max(t.ranks) <= math.prod(c.shape)
        a = rng.normal(size=grid.dims) + 1j * rng.normal(size=grid.dims)
        assert close(q.exponential(grid, a), np.exp(x @ a))
        assert close(q.cosine(grid, a.real, 0.3), np.cos(x @ a.real + 0.3))
        assert close(q.sine(grid, a, 0.3), np.sin(x @ a + 0.3))
        assert close(q.constant(grid, 2 - 1j), np.full(grid.shape, 2 - 1j))
        assert max(q.sine(grid, 1.0).ranks) <= 2
        if trial == 0:
            jitted = jax.jit(lambda c, w, grid=grid: (q.polynomial(grid, c), q.sine(grid, w, w[0])))
            found = jitted(c, a.real)
            assert close(found[0], values)
            assert close(found[1], np.sin(x @ a.real + a.real[0]))


def test_indicators_on_drawn_grids():
    rng = np.random.default_rng(2)
    for _ in range(40):
        grid = drawn_grid(rng, most=2)
        _, x = digits_and_points(grid)
        points = x.reshape(-1, grid.dims)
        low = points[rng.integers(len(points))]  # ends at points of the grid, or between them
        low = np.where(rng.integers(0, 2, grid.dims), low, rng.uniform(grid.low, grid.high))
        high = low + rng.uniform(0, 3, grid.dims)
        t = q.box(grid, low, high)
        assert (dense(t) == ((x >= low) & (x < high)).all(-1)).all()
        assert max(t.ranks) <= (3**grid.dims if grid.interleaved else 3)
        dim = int(rng.integers(grid.dims))
        t = q.step(grid, low[dim], dim)
        assert (dense(t) == (x[..., dim] >= low[dim])).all()
        assert max(t.ranks) <= 2
        at = points[rng.integers(len(points))]
        assert (dense(q.delta(grid, at)) == (x == at).all(-1)).all()
        n, h = np.array(sizes(grid)), np.array(grid.spacing)
        index = grid.index(np.stack(np.indices(grid.shape), -1))
        ends = grid.endpoint & ((index == 0) | (index == n - 1))
        assert close(q.weights(grid), np.prod(h * np.where(ends, 0.5, 1), -1))


@pytest.mark.parametrize("most", [1, 4])
def test_affine_maps_of_drawn_grids(most):
    """Maps of integers and of fractions, beside their definition in exact arithmetic."""
    rng = np.random.default_rng([8, most])
    for _ in range(15):
        dims, base = int(rng.integers(1, 4 if most == 1 else 3)), int(rng.integers(2, 4))
        bits = int(rng.integers(1, 5 - dims))
        n = base**bits
        down = rng.integers(1, most + 1, (dims, dims + 1))
        above = rng.integers(-3, 4, (dims, dims)), rng.integers(-2 * n, 2 * n, dims)
        rows = np.column_stack(above).astype(object)
        exact = np.vectorize(Fraction, otypes=[object])(rows, down)
        a, b = (exact[:, :-1], exact[:, -1]) if most > 1 else above
        ends, order = ([0.0] * dims, [1.0] * dims), rng.choice(["interleaved", "fused"])
        grid = tt.quantics_grid(*ends, bits, base=base, **{str(order): True})
        index = grid.index(np.stack(np.indices(grid.shape), -1)).reshape(-1, dims)
        places = dict(zip(map(tuple, index.tolist()), range(len(index)), strict=True))
        image = index.astype(object) @ exact[:, :-1].T + exact[:, -1]
        below = np.vectorize(math.floor, otypes=[np.int64])(image)
        for boundary, rounding in itertools.product(("periodic", "dirichlet"), ("floor", "exact")):
            wrapped = below % n if boundary == "periodic" else below
            kept = rounding == "floor" or (image == below).all(axis=1)
            kept = np.broadcast_to(kept, len(index))
            at = enumerate(map(tuple, wrapped.tolist()))
            hits = [(k, places[i]) for k, i in at if i in places and kept[k]]
            expected = np.zeros((len(index),) * 2)
            expected[tuple(np.array(hits, int).reshape(-1, 2).T)] = 1
            found = tt.to_dense(q.affine(grid, a, b, boundary=boundary, rounding=rounding))
            assert (np.asarray(found) == expected).all()


def test_ranks_of_affine_maps():
    grid = tt.quantics_grid(0.0, 1.0, 40)
    for up, down in [(2, 1), (5, 1), (-3, 1), (1, 2), (7, 3), (-5, 4), (1, 9)]:
        for rounding in ("floor", "exact"):
            for boundary in ("periodic", "dirichlet"):
                by, shift = Fraction(up, down), Fraction(3**20, down)
                t = q.affine(grid, by, shift, rounding=rounding, boundary=boundary)
                assert max(t.ranks) <= abs(up) + down


def test_shifts_and_differences_on_drawn_grids():
    rng = np.random.default_rng(3)
    boundaries = ("periodic", "dirichlet", "neumann")
    schemes = {"central": (-0.5, 0, 0.5), "forward": (0, -1, 1), "backward": (-1, 1, 0)}
    for _ in range(20):
        grid = drawn_grid(rng, most=2)
        dim, n = int(rng.integers(grid.dims)), sizes(grid)
        by, kind = int(rng.integers(-12, 13)), boundaries[rng.integers(2)]
        rolled = np.roll(np.eye(n[dim]), by, 0)
        rolled = rolled if kind == "periodic" else np.eye(n[dim], k=-by)
        a = q.shift(grid, by, dim, boundary=kind)
        assert (natural(grid, a) == embedded(grid, dim, rolled)).all()
        assert max(a.ranks) <= 2
        kind, scheme = boundaries[rng.integers(3)], list(schemes)[rng.integers(3)]
        w = np.array(schemes[scheme]) / grid.spacing[dim]
        a = q.derivative(grid, dim, boundary=kind, scheme=scheme)
        expected = embedded(grid, dim, tridiagonal(n[dim], *w, kind))
        assert error(natural(grid, a), expected) <= 1e-13 * norm(expected)
        assert max(a.ranks) <= (5 if kind == "neumann" else 3)
        dims = rng.permutation(grid.dims)[: rng.integers(1, grid.dims + 1)].tolist()
        kinds = [boundaries[rng.integers(3)] for _ in dims]
        second = {k: np.array([1, -2, 1]) / grid.spacing[k] ** 2 for k in dims}
        expected = sum(
            embedded(grid, k, tridiagonal(n[k], *second[k], b))
            for k, b in zip(dims, kinds, strict=True)
        )
        a = q.laplacian(grid, dims, boundary=kinds)
        assert error(natural(grid, a), expected) <= 1e-13 * norm(expected)
        plain = 3 if len(dims) == 1 else 1 + 2 * len(dims) if grid.interleaved else 4
        assert max(a.ranks) <= plain + 2 * kinds.count("neumann")


def test_the_inverse_laplacian():
    rng = np.random.default_rng(4)
    for base, bits in ((2, 1), (2, 5), (3, 3), (5, 2)):
        grid = tt.quantics_grid(rng.normal(), 4, bits, base=base, endpoint=bool(rng.integers(2)))
        a = q.inverse_laplacian(grid)
        expected = np.linalg.inv(natural(grid, q.laplacian(grid)))
        assert error(natural(grid, a), expected) <= 1e-12 * norm(expected)
        assert max(a.ranks) <= 5
    fine = tt.quantics_grid(0.0, 1.0, bits=20)
    x = q.inverse_laplacian(fine) @ tt.ones(fine.shape)  # −x (1 − x) / 2 but for the grid's ends
    middle = tt.evaluate(x, fine.nearest([0.5]))
    assert abs(middle + 0.125) < 1e-6


def test_toeplitz_and_circulant_matrices_of_drawn_trains():
    rng = np.random.default_rng(5)
    for _ in range(12):
        shape = tuple(rng.integers(1, 4, rng.integers(1, 5)).tolist())
        n = math.prod(shape)
        i, j = np.indices((n, n))
        t = tt.from_dense(rng.normal(size=shape) + 1j * rng.normal(size=shape), tol=1e-14)
        a = q.circulant(t)
        column = dense(t).ravel()
        assert error(dense(a).reshape(n, n), column[(i - j) % n]) <= 1e-12 * n
        assert all(r <= 2 * s for r, s in zip(a.ranks, t.ranks, strict=True))
        t = tt.from_dense(rng.normal(size=(2, *shape)), tol=1e-14)
        both = dense(t).ravel()
        a = q.toeplitz(t)
        assert error(dense(a).reshape(n, n), both[(i - j) % (2 * n)]) <= 1e-12 * n
        assert all(r <= 2 * s for r, s in zip(a.ranks[1:], t.ranks[2:], strict=True))


def test_fourier_transforms_of_drawn_grids():
    rng = np.random.default_rng(6)
    for _ in range(12):
        grid = drawn_grid(rng, most=2)
        n = sizes(grid)
        bits = grid.bits if isinstance(grid.bits, tuple) else (grid.bits,) * grid.dims
        dims = rng.permutation(grid.dims)[: rng.integers(1, grid.dims + 1)].tolist()
        expected = np.ones((1, 1))
        for k in range(grid.dims):
            f = np.fft.fft(np.eye(n[k]), norm="ortho")
            reverse = np.arange(n[k]).reshape((grid.base,) * bits[k]).T.ravel()
            expected = np.kron(expected, f[reverse] if k in dims else np.eye(n[k]))
        assert error(natural(grid, q.fourier(grid, dims)), expected) <= 1e-11 * norm(expected)
        back = natural(grid, q.fourier(grid, dims, inverse=True))
        assert error(back, expected.conj().T) <= 1e-11 * norm(expected)


@pytest.mark.parametrize("bits", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_the_fourier_transform_has_small_ranks_and_is_accurate(bits):
    grid = tt.quantics_grid(0.0, 1.0, bits)
    f = q.fourier(grid, tol=1e-10)
    assert max(f.ranks) <= 12
    back = q.fourier(grid, tol=1e-10, inverse=True)
    shape = grid.shape
    t = tt.normalize(tt.random(jax.random.key(bits), shape, 3)).astype(complex)
    again = tt.matvec(back, tt.matvec(f, t))
    assert tt.distance(again, t) <= 1e-8 * tt.norm(t)
    if bits == 8:
        values = dense(t).ravel()
        spectrum = np.asarray(tt.to_dense(tt.reverse(tt.matvec(f, t)))).ravel()
        assert error(spectrum, np.fft.fft(values, norm="ortho")) <= 1e-9 * norm(values)


def test_fine_grids_and_ranges():
    grid = tt.quantics_grid([-20.0, 0.0], [20.0, 1.0], bits=26)
    t = q.exponential(grid, [17.0, 2.0])  # e^(±340): partial products stay in range
    x = np.array([[19.5, 0.5], [-19.5, 0.25], [0.0, 0.0]])
    at = grid.nearest(x)
    exact = np.exp(grid.coordinates(at) @ np.array([17.0, 2.0]))
    assert np.allclose(tt.evaluate(t, at), exact, rtol=1e-11)
    a = q.laplacian(grid, boundary=["dirichlet", "periodic"])
    assert a.shape == (2**52, 2**52)
    assert max(a.ranks) == 5


def test_dtypes_of_what_is_made():
    grid = tt.quantics_grid(0.0, 1.0, bits=3)
    assert q.polynomial(grid, np.ones(2, np.float32)).dtype == np.float32
    assert q.exponential(grid, 1j).dtype == np.complex128
    assert q.step(grid, 0.5, dtype=np.float32).dtype == np.float32
    assert q.fourier(grid, dtype=np.complex64).dtype == np.complex64
    assert q.sine(grid, 2).dtype == np.float64


LONG = tt.quantics_grid(0.0, 1.0, 30)
F65 = Fraction(1, 65)
GRID, PLANE = tt.quantics_grid(0.0, 1.0, 3), tt.quantics_grid([0, 0], [1, 1], 2)
WRONG = [
    (ValueError, "bits: expected one number or 2", lambda: tt.quantics_grid([0, 0], [1, 1], [3])),
    (
        ValueError,
        "fused",
        lambda: tt.quantics_grid([0, 0], [1, 1], 3, interleaved=False, fused=True),
    ),
    (ValueError, "bits: .*2\\*\\*63", lambda: tt.index_to_quantics([[1]], 64)),
    (ValueError, "digits: expected fused", lambda: PLANE._replace(fused=True).index([[4, 0]])),
    (ValueError, "last axis of 4", lambda: PLANE.index([[0, 1]])),
    (TypeError, "grid: expected a tt.quantics_grid", lambda: q.constant((2, 2))),
    (ValueError, "value: expected a scalar", lambda: q.constant(GRID, np.ones(2))),
    (ValueError, "coefficients: expected 2 axes", lambda: q.polynomial(PLANE, np.ones(3))),
    (ValueError, "coefficients.*finite", lambda: q.polynomial(GRID, [1.0, np.nan])),
    (ValueError, "rates: expected one number or 2", lambda: q.exponential(PLANE, np.ones(3))),
    (TypeError, "complex rates", lambda: q.exponential(GRID, 1j, dtype=np.float64)),
    (ValueError, "dim", lambda: q.step(GRID, 0.5, 1)),
    (ValueError, "at: .*nan", lambda: q.step(GRID, np.nan)),
    (ValueError, "x: expected a point", lambda: q.delta(GRID, 1.5)),
    (ValueError, "low: expected one number or 1", lambda: q.box(GRID, [0, 0], 1)),
    (ValueError, "boundary", lambda: q.shift(GRID, 1, boundary="neumann")),
    (ValueError, "boundary", lambda: q.laplacian(GRID, boundary="robin")),
    (ValueError, "boundary", lambda: q.affine(GRID, 1, boundary="neumann")),
    (ValueError, "linear: expected shape \\(2, 2", lambda: q.affine(PLANE, 3)),
    (TypeError, "linear: expected integers", lambda: q.affine(GRID, 0.5)),
    (ValueError, "ranks explode", lambda: q.affine(LONG, 10**5)),
    (ValueError, "smaller denominators", lambda: q.affine(PLANE, np.eye(2, dtype=int), [F65, F65])),
    (ValueError, "rounding", lambda: q.affine(GRID, 1, rounding="up")),
    (ValueError, "scheme", lambda: q.derivative(GRID, scheme="upwind")),
    (ValueError, "given once", lambda: q.laplacian(PLANE, [0, -2])),
    (ValueError, "tt.solve", lambda: q.inverse_laplacian(PLANE)),
    (ValueError, "t: expected shape \\(2", lambda: q.toeplitz(tt.ones((3, 2)))),
    (ValueError, "tol", lambda: q.fourier(GRID, tol=0.0)),
    (TypeError, "complex dtype", lambda: q.fourier(GRID, dtype=float)),
    (TypeError, "at: .*traced", lambda: jax.jit(lambda x: q.step(GRID, x))(0.5)),
    (
        TypeError,
        "digits: .*traced",
        lambda: jax.jit(lambda d: tt.quantics_to_index(d, dims=1))(jnp.ones((1, 3), int)),
    ),
]


@pytest.mark.parametrize(("kind", "message", "call"), WRONG)
def test_wrong_arguments_are_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()
