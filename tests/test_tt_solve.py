"""tt.solve: AMEn and TT-GMRES against dense solutions, the promise on the residual, bad systems."""

import math

import jax
import numpy as np
import pytest

from tensorjax import tt
from tensorjax.tt._linear import amen, amen_local_systems
from tests.oracles import DTYPES, compilations, cores, dense, eps, error, infinite, norm, normal

METHODS = ("amen", "gmres")
SHAPE = (4, 3, 5, 4)


def dominant(rng, shape, rank, dtype, shift=2.0):
    """A random non-symmetric operator of TT-rank ``rank`` plus a multiple of the identity."""
    ranks = [1, *[rank] * (len(shape) - 1), 1]
    parts = [
        normal(rng, (ranks[k], n, n, ranks[k + 1]), dtype) / np.asarray((rank * n) ** 0.5, dtype)
        for k, n in enumerate(shape)
    ]
    return tt.TTMatrix(parts) + tt.identity(shape, dtype) * shift


def kronecker_sum(matrices):
    """Σ_k I ⊗ … ⊗ M_k ⊗ … ⊗ I, TT-ranks two."""
    out = []
    for k, m in enumerate(matrices):
        c = np.zeros((2, *m.shape, 2), m.dtype)
        c[0, :, :, 0] = c[1, :, :, 1] = np.eye(len(m))
        c[1, :, :, 0] = m
        c = c[1:] if k == 0 else c
        out.append(c[..., :1] if k == len(matrices) - 1 else c)
    return tt.TTMatrix(out)


def laplacian(n, dtype=np.float64):
    return ((2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)) * (n + 1) ** 2).astype(dtype)


def neumann(n):
    m = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    m[0, 0] = m[-1, -1] = 1
    return m


def convection(n, velocity):
    return laplacian(n) + velocity * (np.eye(n, k=1) - np.eye(n, k=-1)) * (n + 1) / 2


def residual(a, x, b):
    """‖A x − b‖ / ‖b‖, dense."""
    return norm(dense(a) @ dense(x).ravel() - dense(b).ravel()) / norm(dense(b))


def agrees(a, b, out, tol):
    """Checks a solution and its info against the dense system."""
    x, info = out
    assert info.status == "converged", info
    assert info.advice == ""
    assert info.residual <= tol
    assert info.ranks == x.ranks
    matrix = dense(a)
    smallest = np.linalg.svd(matrix, compute_uv=False)[-1]
    exact = np.linalg.solve(matrix, dense(b).ravel()).reshape(b.shape)
    assert residual(a, x, b) <= 1.01 * tol
    assert error(dense(x), exact) <= 1.01 * tol * norm(dense(b)) / smallest


# Against dense solutions -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_non_symmetric_systems(rng, method, dtype):
    tol = 1e-9 if eps(dtype) < 1e-10 else 1e-4
    a, b = dominant(rng, SHAPE, 2, dtype), tt.TT(cores(rng, SHAPE, 2, dtype))
    x, info = tt.solve(a, b, tol=tol, method=method)
    assert x.dtype == dtype
    agrees(a, b, (x, info), tol)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(30,), (6, 7), (1, 5, 1, 4), (2,) * 8], ids=str)
def test_orders_and_modes(rng, method, shape):
    a, b = dominant(rng, shape, 1, np.float64), tt.TT(cores(rng, shape, 2, np.float64))
    agrees(a, b, tt.solve(a, b, tol=1e-10, method=method), 1e-10)


@pytest.mark.parametrize("local", ["auto", "direct", "iterative"])
@pytest.mark.parametrize("velocity", [0, 30])
def test_poisson_and_convection_diffusion(rng, velocity, local):
    a = kronecker_sum([convection(n, velocity) for n in (9, 8, 10)])
    for b in (tt.ones((9, 8, 10)), tt.TT(cores(rng, (9, 8, 10), 3, np.float64))):
        agrees(a, b, tt.solve(a, b, tol=1e-9, local=local), 1e-9)


def test_mixed_dtypes_promote(rng):
    a, b = dominant(rng, (4, 5), 2, np.float64), tt.TT(cores(rng, (4, 5), 2, np.complex128))
    with jax.numpy_dtype_promotion("standard"):
        x, info = tt.solve(a, b, tol=1e-10)
        again, _ = tt.solve(a, tt.ones((4, 5), np.float64), tol=1e-8, x0=x)
    assert x.dtype == again.dtype == np.complex128
    agrees(a, b, (x, info), 1e-10)


def test_operators_without_a_definite_projection(rng):
    """Skew, indefinite and permuting: the projected systems of AMEn may all be singular."""
    a = dominant(rng, SHAPE, 2, np.float64, 0.0)
    b = tt.TT(cores(rng, SHAPE, 2, np.float64))
    for operator in (a - tt.transpose(a), a + tt.transpose(a)):
        agrees(operator, b, tt.solve(operator, b, tol=1e-8), 1e-8)
    shift = tt.TTMatrix([np.roll(np.eye(5), 1, 0)[None, :, :, None]] * 3)
    first = tt.rank_one([np.eye(5)[0]] * 3)
    agrees(shift, first, tt.solve(shift, first, tol=1e-10), 1e-10)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("name", ["auto", "kronecker", "block", "jacobi", "none"])
def test_local_preconditioners(rng, name, dtype):
    a = kronecker_sum([laplacian(n, dtype) / n**2 for n in SHAPE]) + dominant(
        rng, SHAPE, 1, dtype, 1.0
    )
    b = tt.TT(cores(rng, SHAPE, 2, dtype))
    out = tt.solve(a, b, tol=1e-8, local="iterative", preconditioner=name)
    assert out[1].iterations > 0
    agrees(a, b, out, 1e-8)


def test_the_kronecker_preconditioner_is_exact_for_sums_over_modes():
    a, b = kronecker_sum([convection(12, 3)] * 4), tt.ones((12,) * 4)
    counts = {
        name: tt.solve(a, b, tol=1e-8, local="iterative", preconditioner=name)[1].iterations
        for name in ("kronecker", "none")
    }
    assert counts["kronecker"] <= 2 * 4 * 8, counts
    assert 10 * counts["kronecker"] < counts["none"], counts


def test_a_preconditioner_of_ones_own(rng):
    a, b = dominant(rng, SHAPE, 2, np.float64), tt.TT(cores(rng, SHAPE, 2, np.float64))
    shapes = []

    def local(lefts, core, rights):
        matrix = np.einsum("xay,amnb,zbw->xmzynw", lefts, core, rights)
        shape = (len(lefts), core.shape[1], len(rights))
        inverse = np.linalg.inv(matrix.reshape(math.prod(shape), -1))
        shapes.append(shape)
        return lambda v: (inverse @ v.ravel()).reshape(shape)

    x, info = tt.solve(a, b, tol=1e-10, local="iterative", preconditioner=local)
    agrees(a, b, (x, info), 1e-10)
    assert len(shapes) >= info.iterations  # an exact inverse: one iteration each

    calls = []

    def halved(x):
        calls.append(x.dtype)
        return x * 0.5

    x, info = tt.solve(a, b, tol=1e-10, method="gmres", preconditioner=halved)
    agrees(a, b, (x, info), 1e-10)
    assert len(calls) == info.iterations


# The promise -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [16, 64])
def test_the_residual_holds_in_high_dimension(n):
    """Poisson on n¹⁰ points: the residual by a way of its own, and the symmetry of the solution."""
    d = 10
    a, b = kronecker_sum([laplacian(n)] * d), tt.ones((n,) * d)
    x, info = tt.solve(a, b, tol=1e-8)
    assert info.status == "converged"
    assert max(x.ranks) <= 20
    measured = float(tt.distance(tt.matvec(a, x), b)) / n ** (d / 2)
    assert measured <= 1e-8
    assert measured == pytest.approx(info.residual, rel=1e-3)
    points = [[1] + [5] * (d - 1), [5] * (d - 1) + [1], [n - 2] + [n - 6] * (d - 1)]
    values = np.asarray(tt.evaluate(x, np.array(points)))
    np.testing.assert_allclose(values, values[0], rtol=1e-4)


def test_tolerances_down_to_roundoff(rng):
    a, b = dominant(rng, SHAPE, 2, np.float64), tt.TT(cores(rng, SHAPE, 2, np.float64))
    residuals = []
    for tol in (1e-2, 1e-5, 1e-12, 1e-14):
        x, info = tt.solve(a, b, tol=tol)
        assert info.status == "converged"
        assert residual(a, x, b) <= tol + 1e-15
        residuals.append(info.residual)
    assert residuals[0] > residuals[1] > residuals[2]


def test_what_roundoff_forbids_is_said():
    n = 24
    a, b = kronecker_sum([laplacian(n)] * 3), tt.ones((n,) * 3)
    x, info = tt.solve(a, b, tol=3e-15)
    assert info.status == "stalled"
    assert "roundoff" in info.advice
    assert 3e-15 < info.residual < 1e-11
    measured = float(tt.distance(tt.matvec(a, x), b)) / n**1.5
    assert measured == pytest.approx(info.residual, rel=0.5)


def quantics_laplacian(levels):
    """tridiag(−1, 2, −1) on 2^levels points: borrow and carry as the states of the bonds."""
    one, up = np.eye(2), np.array([[0.0, 1.0], [0.0, 0.0]])
    c = np.zeros((3, 2, 2, 3))
    c[0, :, :, 0], c[0, :, :, 1], c[0, :, :, 2] = one, -up, -up.T
    c[1, :, :, 1], c[2, :, :, 2] = up.T, up
    last = np.stack([2 * one - up - up.T, up.T, up])[..., None]
    return tt.TTMatrix([c[:1], *[c] * (levels - 2), last])


def test_quantics_grids():
    """A parabola on 2^L points has ranks 3; its system a condition number of 4^L."""
    small = dense(quantics_laplacian(4))
    assert (small == 2 * np.eye(16) - np.eye(16, k=1) - np.eye(16, k=-1)).all()
    x, info = tt.solve(quantics_laplacian(10), tt.ones((2,) * 10), tol=1e-8)
    assert info.status == "converged"
    assert max(x.ranks) == 3
    i = np.arange(1, 1025)
    np.testing.assert_allclose(dense(x).ravel(), i * (1025 - i) / 2, rtol=1e-8)
    _, info = tt.solve(quantics_laplacian(16), tt.ones((2,) * 16), tol=1e-10)
    assert info.status == "stalled"
    assert "roundoff" in info.advice


def test_float32_cannot_hold_what_float64_can():
    a = kronecker_sum([laplacian(40, np.float32)] * 3)
    b = tt.ones((40,) * 3, np.float32)
    x, info = tt.solve(a, b, tol=2e-6)
    assert x.dtype == np.float32
    assert info.status == "stalled"
    assert "float32" in info.advice
    assert info.residual > 2e-6


@pytest.mark.parametrize("method", METHODS)
def test_a_first_guess(rng, method):
    a, b = dominant(rng, SHAPE, 2, np.float64), tt.TT(cores(rng, SHAPE, 2, np.float64))
    exact, info = tt.solve(a, b, tol=1e-12)
    again, at_once = tt.solve(a, b, tol=1e-10, x0=exact, method=method)
    assert (at_once.status, at_once.sweeps, at_once.iterations) == ("converged", 0, 0)
    assert at_once.residual <= 1e-10
    assert error(dense(again), dense(exact)) <= 1e-12 * norm(dense(exact))
    near = exact + tt.TT(cores(rng, SHAPE, 1, np.float64)) * 1e-3
    out = tt.solve(a, b, tol=1e-10, x0=near, method=method)
    agrees(a, b, out, 1e-10)
    zero = tt.zeros(SHAPE, np.float64)
    agrees(a, b, tt.solve(a, b, tol=1e-10, x0=zero, method=method), 1e-10)
    assert info.seconds > 0


@pytest.mark.parametrize("method", METHODS)
def test_zero_right_hand_sides_have_zero_solutions(rng, method):
    a = dominant(rng, SHAPE, 2, np.float64)
    zero = tt.TT(cores(rng, SHAPE, 2, np.float64)) * 0.0
    x, info = tt.solve(a, zero, tol=1e-8, method=method, x0=tt.ones(SHAPE, np.float64))
    assert (info.status, info.residual, x.ranks) == ("converged", 0.0, (1, 1, 1, 1, 1))
    assert norm(dense(x)) == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("big", "small"), [(1e200, 1e-80), (1e-200, 1e80), (1e-90, 1e-300)])
def test_scales_far_from_one(rng, method, big, small):
    a, b = dominant(rng, SHAPE, 2, np.float64), tt.TT(cores(rng, SHAPE, 2, np.float64))
    x, info = tt.solve(a * big, b * small, tol=1e-9, method=method)
    assert info.status == "converged"
    x = tt.TT([np.asarray(c) / np.abs(c).max() for c in x.cores])
    image, target = dense(a) @ dense(x).ravel(), dense(b).ravel()
    factor = image @ target / (image @ image)
    assert norm(factor * image - target) <= 1e-8 * norm(target)


def test_long_trains(rng):
    """2⁶⁰ unknowns: norms far beyond what entries suggest."""
    d = 60
    a = kronecker_sum([np.array([[3.0, -1.0], [-1.0, 2.0]])] * d)
    x, info = tt.solve(a, tt.ones((2,) * d) * 1e3, tol=1e-8)
    assert info.status == "converged"
    left = tt.distance(tt.matvec(a, x), tt.ones((2,) * d) * 1e3)
    assert float(left) <= 1e-8 * 1e3 * 2.0 ** (d / 2) * 1.01


def test_deterministic_and_nothing_compiled(rng, key):
    a, b = dominant(rng, SHAPE, 2, np.float64), tt.TT(cores(rng, SHAPE, 2, np.float64))
    for options in ({}, {"key": key}, {"method": "gmres"}):
        first, info = tt.solve(a, b, tol=1e-6, **options)
        with compilations() as programs:
            second, again = tt.solve(a, b, tol=1e-6, **options)
        assert programs == []
        assert info.history == again.history
        for p, q in zip(first.cores, second.cores, strict=True):
            assert (p == q).all()
    keyed = tt.solve(a, b, tol=1e-6, key=key)[1].history
    assert keyed != tt.solve(a, b, tol=1e-6)[1].history


@pytest.mark.parametrize("method", METHODS)
def test_the_callback_sees_every_sweep(rng, method):
    a, b = dominant(rng, SHAPE, 2, np.float64), tt.TT(cores(rng, SHAPE, 2, np.float64))
    seen = []
    _, info = tt.solve(
        a, b, tol=1e-8, method=method, callback=lambda *args: seen.append(args), restart=5
    )
    assert [s[0] for s in seen] == list(range(1, info.sweeps + 1))
    assert seen[-1][1] < 1e-6 < seen[0][1]
    assert all(len(s[2]) == len(SHAPE) + 1 for s in seen)


# Systems that cannot be solved -------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_too_low_a_cap_on_ranks_gives_the_best_within_it(rng, method):
    a, b = dominant(rng, SHAPE, 2, np.float64), tt.TT(cores(rng, SHAPE, 2, np.float64))
    x, info = tt.solve(a, b, tol=1e-8, max_rank=2, method=method)
    assert info.status == "stalled"
    assert "max_rank" in info.advice
    assert max(x.ranks) <= 2
    assert 1e-8 < info.residual < 0.5
    assert residual(a, x, b) == pytest.approx(info.residual, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_singular_systems(rng, method):
    a, ones = kronecker_sum([neumann(5)] * 3), tt.ones((5,) * 3)
    b = tt.TT(cores(rng, (5,) * 3, 2, np.float64))
    mean = float(tt.inner(ones, b)) / 125
    solvable = tt.round(b - ones * mean, tol=1e-13)
    x, info = tt.solve(a, solvable, tol=1e-8, method=method)
    assert info.status == "converged"
    assert residual(a, x, solvable) <= 1e-8
    x, info = tt.solve(a, b + ones * 1.0, tol=1e-8, method=method)
    assert info.status == "singular"
    assert "singular" in info.advice
    # No train can do better than the part of b in the range of A.
    outside = abs(mean + 1) * 125**0.5 / norm(dense(b + ones))
    assert outside * (1 - 1e-9) <= info.residual <= 1.0
    assert residual(a, x, b + ones) == pytest.approx(info.residual, rel=1e-6)
    if method == "amen":
        assert info.residual <= outside * 1.01


def test_singular_non_symmetric_systems(rng):
    """One-sided differences around a ring: what is left is the mean of b."""
    a = kronecker_sum([np.eye(n) - np.roll(np.eye(n), 1, 0) for n in (5, 4, 6)])
    b = tt.TT(cores(rng, (5, 4, 6), 2, np.float64))
    outside = abs(dense(b).mean()) * 120**0.5 / norm(dense(b))
    x, info = tt.solve(a, b, tol=1e-8)
    assert info.status == "singular"
    assert info.residual == pytest.approx(outside, rel=1e-2)
    assert residual(a, x, b) == pytest.approx(info.residual, rel=1e-6)


def drawn_singular(rng, kind, n):
    """A singular matrix of one mode: of a graph, Hermitian, or of a Markov chain."""
    m = normal(rng, (n, n), np.complex128 if kind == "hermitian" else np.float64)
    if kind == "markov":
        m = np.abs(m) * (1 - np.eye(n))
        return m - np.diag(m.sum(0))
    u, sigma, _ = np.linalg.svd(m @ m.conj().T)
    return (u * np.append(1 + sigma[:-1], 0)) @ u.conj().T


@pytest.mark.parametrize("kind", ["graph", "hermitian", "markov"])
def test_singular_systems_that_are_solvable_in_single_precision(rng, kind):
    """Roundoff of b, outside the range of A, must not be divided by roundoff of A."""
    for _ in range(3):
        shape = tuple(rng.integers(2, 5, int(rng.integers(3, 5))).tolist())
        dtype = np.complex64 if kind == "hermitian" else np.float32
        a = kronecker_sum([drawn_singular(rng, kind, n).astype(dtype) for n in shape])
        y = tt.TT([c.astype(dtype) for c in cores(rng, shape, 2, dtype)])
        b = tt.round(a @ y, tol=2e-6)
        x, info = tt.solve(a, b, tol=1e-4)
        assert (info.status, info.advice) == ("converged", "")
        assert residual(a, x, b) <= 1e-4
        least = np.linalg.lstsq(dense(a), dense(b).ravel(), rcond=1e-6)[0]
        assert norm(dense(x)) <= 30 * norm(least)


@pytest.mark.parametrize("method", METHODS)
def test_the_zero_operator_is_singular(method):
    a = tt.TTMatrix([np.zeros((1, 4, 4, 1))] * 3)
    x, info = tt.solve(a, tt.ones((4,) * 3), tol=1e-8, method=method)
    assert info.status == "singular"
    assert info.residual == pytest.approx(1.0)
    assert np.isfinite(dense(x)).all()


@pytest.mark.parametrize("method", METHODS)
def test_too_few_sweeps_are_said(rng, method):
    a = kronecker_sum([laplacian(6)] * 4)
    b = tt.TT(cores(rng, (6,) * 4, 2, np.float64))
    x, info = tt.solve(a, b, tol=1e-10, max_sweeps=1, restart=4, method=method)
    assert info.status == "max_sweeps"
    assert info.sweeps == 1
    assert "max_sweeps" in info.advice
    assert residual(a, x, b) == pytest.approx(info.residual, rel=1e-6)
    assert info.residual <= 1


def test_gmres_without_a_preconditioner_stalls_where_one_converges():
    """The inverse of one mode's operator, in every mode, is a rank-one preconditioner."""
    n = 24
    mass = [np.diag(np.logspace(0, 4, n)) + 0.1 * laplacian(n) / n**2 for _ in range(3)]
    a = tt.TTMatrix([m[None, :, :, None] for m in mass])
    b = tt.ones((n,) * 3)
    _, plain = tt.solve(a, b, tol=1e-8, method="gmres", restart=10, max_sweeps=3)
    assert plain.status != "converged"
    assert plain.advice
    inverse = tt.TTMatrix([np.linalg.inv(m)[None, :, :, None] for m in mass])
    x, info = tt.solve(
        a, b, tol=1e-8, method="gmres", preconditioner=lambda v: tt.matvec(inverse, v)
    )
    assert info.status == "converged"
    assert info.iterations <= 3
    assert float(tt.distance(tt.matvec(a, x), b)) <= 1e-8 * n**1.5


# Bad input ---------------------------------------------------------------------------------------

A = tt.identity((2, 3), np.float64)
B = tt.ones((2, 3), np.float64)
WIDE = tt.TTMatrix([np.ones((1, 2, 3, 1)), np.ones((1, 3, 3, 1))])
NAN = tt.TT([np.full((1, 2, 1), np.nan), np.ones((1, 3, 1))])


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (TypeError, "A: .*TTMatrix.*ndarray", lambda: tt.solve(np.eye(6), B, tol=0.1)),
        (TypeError, "A: .*TTMatrix.*TT;", lambda: tt.solve(B, B, tol=0.1)),
        (TypeError, "b: .*TT", lambda: tt.solve(A, np.ones(6), tol=0.1)),
        (TypeError, "x0: .*TT", lambda: tt.solve(A, B, tol=0.1, x0=np.ones(6))),
        (ValueError, "A: .*square.*(2, 3)", lambda: tt.solve(WIDE, B, tol=0.1)),
        (ValueError, "b: .*(2, 3).*(3, 2)", lambda: tt.solve(A, tt.ones((3, 2)), tol=0.1)),
        (ValueError, "x0: .*(2, 3).*(2, 2)", lambda: tt.solve(A, B, tol=0.1, x0=tt.ones((2, 2)))),
        (ValueError, "b: .*NaN", lambda: tt.solve(A, NAN, tol=0.1)),
        (ValueError, "A: .*NaN", lambda: tt.solve(infinite(A), B, tol=0.1)),
        (ValueError, "x0: .*NaN", lambda: tt.solve(A, B, tol=0.1, x0=NAN)),
        (ValueError, "tol: .*got 0", lambda: tt.solve(A, B, tol=0)),
        (ValueError, "tol: .*10 eps", lambda: tt.solve(A, B, tol=1e-16)),
        (ValueError, "method: .*'cg'", lambda: tt.solve(A, B, tol=0.1, method="cg")),
        (ValueError, "max_rank: .*got 0", lambda: tt.solve(A, B, tol=0.1, max_rank=0)),
        (ValueError, "max_sweeps: .*got 0", lambda: tt.solve(A, B, tol=0.1, max_sweeps=0)),
        (ValueError, "enrichment: .*got 0", lambda: tt.solve(A, B, tol=0.1, enrichment=0)),
        (ValueError, "restart: .*got 0",
         lambda: tt.solve(A, B, tol=0.1, method="gmres", restart=0)),
        (ValueError, "local: .*'fast'", lambda: tt.solve(A, B, tol=0.1, local="fast")),
        (ValueError, "preconditioner: .*'ilu'",
         lambda: tt.solve(A, B, tol=0.1, preconditioner="ilu")),
        (ValueError, "preconditioner: .*'block'",
         lambda: tt.solve(A, B, tol=0.1, method="gmres", preconditioner="block")),
        (ValueError, "preconditioner: .*(2, 3).*(3, 3)",
         lambda: tt.solve(A * 2.0, B, tol=0.1, method="gmres",
                          preconditioner=lambda _: tt.ones((3, 3)))),
        (ValueError, r"preconditioner\(x\): .*NaN",
         lambda: tt.solve(A * 2.0, B, tol=0.1, method="gmres", preconditioner=lambda _: NAN)),
        (TypeError, r"preconditioner\(x\): .*NoneType",
         lambda: tt.solve(A * 2.0, B, tol=0.1, method="gmres", preconditioner=lambda _: None)),
        (ValueError, r"preconditioner: .*\(1, 2, 1\).*\(2,\)",
         lambda: tt.solve(A * 2.0 + A, B + B * 2.0, tol=0.1, local="iterative",
                          preconditioner=lambda *_: lambda _: np.ones(2))),
        (TypeError, "jit", lambda: jax.jit(lambda b: tt.solve(A, b, tol=0.1)[0])(B)),
    ],
)  # fmt: skip
def test_bad_input_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("local", ["auto", "iterative"])
def test_systems_that_are_only_ill_conditioned_are_solved_once(rng, local, monkeypatch):
    """Least squares would find the same again; the advice does not call A singular."""
    shape = tuple(rng.integers(2, 5, 4).tolist())
    spectra = [np.diag(np.geomspace(1, 10.0 ** -rng.uniform(1, 1.3), n)) for n in shape]
    a = tt.TTMatrix([m.astype(np.float32)[None, :, :, None] for m in spectra])
    b = tt.TT([c.astype(np.float32) for c in cores(rng, shape, 2, np.float32)])
    monkeypatch.setattr(amen, "_of_least_norm", None)
    x, info = tt.solve(a, b, tol=1.3e-6, local=local)
    assert residual(a, x, b) == pytest.approx(info.residual, rel=1e-2)
    assert info.status == "converged" or "condition of A exceeds tol" in info.advice


@pytest.mark.parametrize("size", [np.inf, np.nan, 1e200])
def test_a_preconditioner_near_singular_ends_a_local_solve_without_an_error(rng, size: float):
    """What it makes of the second direction is of no use; the first must not be lost."""
    matrix, calls = np.diag(rng.uniform(1.0, 2.0, 12)), []

    def precondition(v: np.ndarray) -> np.ndarray:
        calls.append(v)
        return v * size if len(calls) == 2 else v

    with np.errstate(all="ignore"):
        b = rng.standard_normal(12)
        x, left, _ = amen_local_systems.gmres(
            lambda v: matrix @ v, b, precondition, 1e-12, restart=6, cycles=3
        )
    assert np.isfinite(x).all()
    assert left <= np.linalg.norm(b)
    assert left == pytest.approx(np.linalg.norm(matrix @ x - b), abs=1e-12)
