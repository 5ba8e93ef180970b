"""Generators of coordinates: the quadratic form beside dense tensors, and ranks that fall."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

from tensorjax import pde, tt
from tensorjax.pde._generators import (
    canonical_form,
    inputs_and_motion,
    tangent_normal_factors,
)
from tensorjax.pde._generators import normal_component as normal
from tensorjax.pde._generators.inputs_and_motion import Setting

BOXES = {
    "fourier": lambda d: pde.Box.fourier(d, [5, 6, 7, 5][:d], 1.5),
    "chebyshev": lambda d: pde.Box.chebyshev(d, [5, 6, 7, 5][:d], 1.5),
    "finite differences": lambda d: pde.Box.finite_differences(d, [5, 6, 7, 5][:d], 1.5),
}


def chained(cores: Any) -> np.ndarray:
    """(r_0, n_1, …, n_d, r_d)."""
    out = np.asarray(cores[0])
    for c in cores[1:]:
        out = np.tensordot(out, np.asarray(c), 1)
    return out


def dense(cores: Any) -> np.ndarray:
    return chained(cores)[0, ..., 0]


def on_mode(a: np.ndarray, x: np.ndarray, k: int) -> np.ndarray:
    return np.moveaxis(np.tensordot(a, x, (1, k)), 0, k)


def normal_projection(cores: Any) -> Any:
    """1 − P from the derivatives of the tensor by the entries of its cores, the tangent space."""
    ones = np.ones((1, 1))
    parts = []
    for k, core in enumerate(cores):
        left = chained(cores[:k]).reshape(-1, core.shape[0]) if k else ones
        right = chained(cores[k + 1 :]).reshape(core.shape[2], -1) if k < len(cores) - 1 else ones
        part = np.einsum("ia,mn,bj->imjanb", left, np.eye(core.shape[1]), right)
        parts.append(part.reshape(left.shape[0] * core.shape[1] * right.shape[1], -1))
    u, s, _ = np.linalg.svd(np.concatenate(parts, axis=1), full_matrices=False)
    q = u[:, s > 1e-11 * s[0]]
    return lambda z: z.ravel() - q @ (q.T @ z.ravel())


def drawn(rng: np.random.Generator, sizes: Any, ranks: Any) -> list[np.ndarray]:
    ends = (1, *ranks[: len(sizes) - 1], 1)
    return [rng.standard_normal((ends[k], n, ends[k + 1])) for k, n in enumerate(sizes)]


class Case:
    """A random state and right side on a small box, dense and as trains, in L² coordinates."""

    def __init__(self, d: int, kind: str, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.box = BOXES[kind](d)
        self.modes = tangent_normal_factors.modes_of(self.box)
        sizes = self.box.shape
        self.v = tt.TT(drawn(rng, sizes, (2, 3, 2)))
        self.source = tt.TT(drawn(rng, sizes, (2, 2, 2)))
        square = drawn(rng, [n * n for n in sizes], (2, 2, 2))
        self.operator = tt.TTMatrix(
            [c.reshape(len(c), n, n, -1) for c, n in zip(square, sizes, strict=True)]
        )
        self.matrix = rng.standard_normal((d, d))
        self.shift = rng.standard_normal(d)
        self.diffusion = rng.standard_normal((d, d))
        self.right = pde.RightSide(
            self.box,
            pde.Coefficients(self.matrix, self.shift, self.diffusion, 0.3),
            (self.operator,),
            self.source,
            lambda v, tol: tt.hadamard(v, v),
        )
        self.root = [np.ones(n) for n in self.box.shape]
        if self.modes.root is not None:
            self.root = list(self.modes.root)

    def weighted(self, x: np.ndarray) -> np.ndarray:
        for k, w in enumerate(self.root):
            x = on_mode(np.diag(w), x, k)
        return x

    def right_side(self, x: np.ndarray) -> np.ndarray:
        """Q of values x, in L² coordinates."""
        affine = pde.affine_generator(self.box, *self.right.affine)
        return self.others(x) + self.weighted(times(affine, x))

    def others(self, x: np.ndarray) -> np.ndarray:
        """Q without its affine part."""
        return self.weighted(np.asarray(tt.to_dense(self.source)) + x * x + times(self.operator, x))

    def moved(self, x: np.ndarray) -> list[np.ndarray]:
        """y_k ∂_j of values x, in L² coordinates, j ≠ k, row by row."""
        d = self.box.dim
        return [z for _, _, z in self.crossing(x)[: d * d - d]]

    def crossing(self, x: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
        """The same and then ∂_j ∂_k for j < k, with the lower and the upper one of j and k."""
        axes, d = self.box.axes, self.box.dim
        first = [on_mode(a.d1, x, j) for j, a in enumerate(axes)]
        out = []
        for j in range(d):
            for k in range(d):
                if j != k:
                    z = self.weighted(on_mode(np.diag(axes[k].points), first[j], k))
                    out.append((min(j, k), max(j, k), z))
        for j, k in zip(*np.triu_indices(d, 1), strict=True):
            out.append((j, k, self.weighted(on_mode(axes[k].d1, first[j], k))))
        return out


def times(o: Any, x: np.ndarray) -> np.ndarray:
    out = x[None]
    for k, c in enumerate(o.cores):
        # (bond, …): mode k + 1 of the array, the operator's bond in front.
        out = np.moveaxis(np.tensordot(np.asarray(c), out, ((0, 2), (0, k + 1))), 0, k + 1)
    return out[0]


def close(a: Any, b: Any, tol: float = 1e-11) -> bool:
    return bool(
        np.max(np.abs(np.asarray(a) - np.asarray(b))) <= tol * np.max(np.abs(np.asarray(b)))
    )


@pytest.mark.parametrize("kind", list(BOXES))
@pytest.mark.parametrize("d", [2, 3, 4])
def test_the_form_is_that_of_dense_tensors(d: int, kind: str):
    case = Case(d, kind, d)
    x = np.asarray(tt.to_dense(case.v))
    cores = case.modes.weighted([np.asarray(c) for c in case.v.cores])
    n = normal_projection(cores)
    b = np.stack([n(z) for z in case.moved(x)])
    q = n(case.right_side(x))
    rng = np.random.default_rng(1)
    sigma = rng.standard_normal((d, d))
    np.fill_diagonal(sigma, 0)

    setting = Setting(case.v, case.right, case.box, 1e-10)
    form = setting.form(setting.point, 1e-10, measure=True)
    assert close(form.gram, b @ b.T)
    assert close(form.load, b @ q)
    assert np.isclose(form.cost(0 * sigma), np.linalg.norm(q), rtol=1e-10)
    flat = normal.off_diagonal(sigma)
    assert np.isclose(form.cost(sigma), np.linalg.norm(q - flat @ b), rtol=1e-10)

    # The paper's motion is the least-squares solution.
    motion = pde.Convex(regularization=0.0)(case.v, case.right, None, case.box, 1e-10, 0.0)
    best = np.linalg.lstsq(b.T, q, rcond=1e-12)[0]
    least = np.linalg.norm(q - best @ b) / np.linalg.norm(cores_norm(cores))
    assert np.isclose(motion.cost, least, rtol=1e-9)
    assert close(normal.off_diagonal(motion.sigma), best, 1e-8)


def cores_norm(cores: Any) -> np.ndarray:
    return np.linalg.norm(dense(cores))


def decaying(case: Case) -> Any:
    """A state whose unfoldings have singular values over many orders of magnitude."""
    one, two = (np.asarray(c) for c in (tt.to_dense(case.v), tt.to_dense(case.source)))
    x = one + 1e-3 * two + 1e-6 * np.sin(np.arange(one.size)).reshape(one.shape)
    return tt.from_dense(jnp.asarray(x), tol=1e-9)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_truncations_are_points_and_tell_the_normal_space_there(d: int):
    case = Case(d, "fourier", 7)
    v = decaying(case)
    setting = Setting(v, case.right, case.box, 1e-9)
    x = np.asarray(tt.to_dense(v))
    for tol in (0.3, 1e-2, 1e-5):
        ranks = canonical_form.truncated_ranks(setting.point, tol)
        point = canonical_form.truncated(setting.point, ranks)
        y = dense(point.cores)
        assert np.linalg.norm(x - y) <= tol * np.linalg.norm(x)
        assert point.ranks == ranks
        for p in range(d - 1):  # all bonds hold the same tensor
            cores = [*point.left[:p], point.centers[p], *point.right[p:]]
            assert close(dense(cores), y, 1e-12)
        form = setting.form(point, tol, kappa=2.0)
        # N by bonds: of b and the affine part, only what acts on both sides of a bond counts there,
        # with the modes after it projected; all else does in full.
        pieces = [bond_projection(point, p) for p in range(1, d)]
        moved = [(i, j, projected_after(point, j, z)) for i, j, z in case.crossing(x)]
        b = [[n(z) if i < p <= j else 0 * x for i, j, z in moved] for p, n in enumerate(pieces, 1)]
        known = normal.off_diagonal(case.matrix)
        s = case.diffusion + case.diffusion.T
        known = [*known, *s[np.triu_indices(d, 1)]]
        gram, load = 0.0, 0.0
        for n, parts in zip(pieces, b, strict=True):
            flat = np.stack([z.ravel() for z in parts])
            gram = gram + flat @ flat.T
            load = load + flat @ n(case.others(y) + 2.0 * x).ravel()
        count = d * d - d
        assert close(form.gram, gram[:count, :count])
        assert close(form.load, (gram @ known + load)[:count])
        # The bonds together are all of N.
        z = case.right_side(x)
        assert close(sum(n(z) for n in pieces).ravel(), normal_projection(point.cores)(z), 1e-10)


def projected_after(point: Any, mode: int, z: np.ndarray) -> np.ndarray:
    if mode == z.ndim - 1:
        return z
    v = chained(point.right[mode:]).reshape(point.right[mode].shape[0], -1)
    return ((z.reshape(-1, v.shape[1]) @ v.T) @ v).reshape(z.shape)


def bond_projection(point: Any, p: int) -> Any:
    """(L_{p−1} − L_p)(1 − R_p)."""
    u = chained(point.left[:p]).reshape(-1, point.left[p - 1].shape[2])
    v = chained(point.right[p - 1 :]).reshape(point.right[p - 1].shape[0], -1)
    before = np.eye(point.left[0].shape[0] if p == 1 else 0)
    if p > 1:
        before = chained(point.left[: p - 1]).reshape(-1, point.left[p - 2].shape[2])
    n = point.left[p - 1].shape[1]
    outer = np.kron(before @ before.T, np.eye(n)) - u @ u.T

    def projected(z: np.ndarray) -> np.ndarray:
        flat = outer @ z.reshape(len(u), -1)
        return (flat - (flat @ v.T) @ v).reshape(z.shape)

    return projected


@pytest.mark.parametrize("d", [2, 3, 4])
def test_the_flow_goes_down_the_nuclear_norms(d: int):
    case = Case(d, "fourier", 11)
    x = np.asarray(tt.to_dense(case.v))
    motion = pde.Flow(rate=2.0, smoothing=0.2)(case.v, case.right, None, case.box, 1e-10, 0.0)

    size = np.linalg.norm(x)

    def norms(z: np.ndarray) -> float:
        sizes = np.cumprod(z.shape)[:-1]
        found = [np.linalg.svd(z.reshape(n, -1), compute_uv=False) for n in sizes]
        return sum(np.hypot(s, 0.2 * size).sum() for s in found)

    step = 1e-6
    slopes = [(norms(x + step * b) - norms(x - step * b)) / (2 * step) for b in case.moved(x)]
    assert close(normal.off_diagonal(motion.sigma), 2 * np.array(slopes) / size, 1e-6)


def test_what_is_far_below_the_root_of_eps_is_still_seen():
    """An exact motion leaves nothing, and a Gaussian nearly of rank one is not taken for one."""
    rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    box = pde.Box.fourier(2, 48)
    correlation = 1e-5
    start = pde.Gaussian(np.zeros(2), np.array([[1.0, correlation], [correlation, 0.5]]))
    problem = pde.Liouville(rotation, start, box)
    at = pde.AffineMap.identity(2)
    v = problem.initial(at, 1e-12)
    right = problem.right_side(at, 0.0)
    setting = Setting(v, right, box, 1e-12)
    form = setting.form(setting.point, 1e-12, measure=True)
    # The tangent space holds y₁^a y₂^b v of a, b ≤ 1 or more: what is left is of the order of ε².
    assert 0 < form.cost(np.zeros((2, 2))) < 1e-8 * setting.point.scale
    assert form.cost(-rotation) == 0
    x = np.asarray(tt.to_dense(v))
    d1, y = box.axes[0].d1, box.axes[0].points
    left, right_part = setting.point.left[0][0], setting.point.right[0][:, :, 0]
    b = (d1 @ x) * y[None]
    b = b - left @ (left.T @ b)
    b = b - (b @ right_part.T) @ right_part
    assert np.isclose(form.gram[0, 0], np.sum(b**2), rtol=1e-3)


def test_operators_are_factored_exactly():
    rng = np.random.default_rng(0)
    axis = pde.Box.fourier(1, 16).axes[0]
    k = rng.standard_normal((3, 5, 4)) * (rng.uniform(size=(3, 5, 4)) < 0.3)
    core = np.einsum("atb,tij->aijb", k, axis.basis)
    weights, matrices = tangent_normal_factors._factored(core)
    assert len(matrices) <= 5
    assert close(np.einsum("tab,tij->aijb", weights, matrices), core, 1e-12)
    # A block that is zero where rows are compared is found by its norm, and kept.
    core[0, 1, 1, 0] += 1.0
    weights, matrices = tangent_normal_factors._factored(core)
    assert close(np.einsum("tab,tij->aijb", weights, matrices), core, 1e-12)
    weights, matrices = tangent_normal_factors._factored(np.zeros((2, 3, 3, 2)))
    assert matrices.shape == (0, 3, 3)


@pytest.mark.parametrize("kind", ["fourier", "chebyshev"])
def test_the_gauge_holds_means_and_variances(kind: str):
    """d/dt of mean and variance of v² under v_t = Q − (Σ y + β)·∇v, by a difference in time."""
    box = {"fourier": pde.Box.fourier, "chebyshev": pde.Box.chebyshev}[kind](3, 40, 7.0)
    covariance = np.array([[1.0, 0.2, 0.0], [0.2, 0.6, -0.1], [0.0, -0.1, 0.8]])
    rng = np.random.default_rng(3)
    drift = 0.5 * rng.standard_normal((3, 3))
    start = pde.Gaussian(np.array([0.3, -0.2, 0.1]), covariance)
    problem = pde.OrnsteinUhlenbeck(
        drift, 0.2 * np.eye(3), start, box, offset=np.array([0.5, 0.1, -0.4])
    )
    at = pde.AffineMap.identity(3)
    v, right = problem.initial(at, 1e-8), problem.right_side(at, 0.0)
    step = 1e-4
    for name, still in (("none", False), ("moments", True)):
        motion = pde.MultiLevel(gauge=name)(v, right, at, box, 1e-8, 0.0)
        moving = right.moving(motion.sigma, motion.beta)
        out = []
        for h in (-step, step):
            terms = [v, *moving.terms(v)]
            w = tt.linear_combination(terms, [1.0, *[h] * (len(terms) - 1)], tol=1e-12)
            setting = Setting(w, right, box, 1e-8)
            form = setting.form(setting.point, 1e-8)
            out.append(inputs_and_motion.spread(setting.point, setting.modes, form.family, box))
        rates = [
            np.max(np.abs(a - b)) / (2 * step)
            for a, b in (
                (out[1].mean, out[0].mean),
                (np.diag(out[1].covariance), np.diag(out[0].covariance)),
            )
        ]
        assert (max(rates) < 1e-6) == still
        assert np.any(np.diag(motion.sigma)) == still


def test_the_edge_gauge_acts_where_the_edge_is_near_and_only_inwards():
    wide, narrow = pde.Box.fourier(2, 64, 9.0), pde.Box.fourier(2, 64, 3.5)
    growing = np.array([[0.4, 0.3], [0.0, -0.4]])
    for box, acts in ((wide, False), (narrow, True)):
        problem = pde.Liouville(growing, pde.Gaussian(np.zeros(2), 0.5 * np.eye(2)), box)
        at = pde.AffineMap.identity(2)
        v, right = problem.initial(at, 1e-6), problem.right_side(at, 0.0)
        motion = pde.MultiLevel()(v, right, at, box, 1e-6, 0.0)
        assert (motion.sigma[0, 0] < -0.1) == acts
        assert motion.sigma[1, 1] == 0  # this one shrinks by itself


def test_the_guard_takes_the_convex_motion_where_levels_leave_much_more():
    start = pde.Gaussian(np.zeros(2), np.array([[1.0, 0.1], [0.1, 0.3]]))
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    problem, at = pde.Liouville(turn, start, pde.Box.fourier(2, 48, 7.0)), pde.AffineMap.identity(2)
    given = problem.initial(at, 1e-5), problem.right_side(at, 0.0), at, problem.box, 1e-5, 0.0
    convex = pde.Convex()(*given)
    stiff = pde.MultiLevel(regularization=100.0)(*given)
    free = pde.MultiLevel(regularization=100.0, guard=False)(*given)
    assert convex.cost < 1e-3 * convex.cost_without
    assert 0.02 < free.cost / free.cost_without < 0.5
    assert close(stiff.sigma, convex.sigma, 1e-12)
    assert not stiff.guarded


def test_the_edge_gauge_ignores_waves_that_the_points_do_not_resolve():
    """They fill the box; coordinates that shrink for them would make them larger still."""
    box = pde.Box.fourier(2, 48, 5.0)
    problem = pde.Liouville(
        np.array([[0.4, 0.3], [0.0, -0.4]]), pde.Gaussian(np.zeros(2), 0.5 * np.eye(2)), box
    )
    at = pde.AffineMap.identity(2)
    v, right = problem.initial(at, 1e-8), problem.right_side(at, 0.0)
    wave = 1e-5 * np.sin(12.6 * box.points[0])
    even = 1e-5 * np.exp(-((box.points[0] - 4.7) ** 2))
    for change, acts in ((0 * wave, False), (wave, False), (even, True)):
        first, second = v.cores
        change = change[None, :, None] * np.linalg.norm(first)
        u = tt.TT([np.asarray(first) + change, second])
        motion = pde.MultiLevel()(u, right, at, box, 1e-4, 0.0)
        assert (motion.edge > 1e-6) == np.any(change)
        assert (motion.sigma[0, 0] < -0.1) == acts


def test_the_diagonal_is_free():
    """Motions y_j ∂_j v and ∂_j v lie in the tangent space: they change no cost."""
    case = Case(3, "fourier", 2)
    setting = Setting(case.v, case.right, case.box, 1e-10)
    n = normal_projection(setting.point.cores)
    x = np.asarray(tt.to_dense(case.v))
    for k, axis in enumerate(case.box.axes):
        derived = on_mode(axis.d1, x, k)
        for z in (derived, on_mode(np.diag(axis.points), derived, k)):
            assert np.linalg.norm(n(z)) < 1e-12 * np.linalg.norm(z)
    for generator in (pde.Convex(), pde.MultiLevel(guard=False, gauge="none"), pde.Flow()):
        motion = generator(case.v, case.right, None, case.box, 1e-10, 0.0)
        assert not np.any(np.diag(motion.sigma))
        assert not np.any(motion.beta)
        assert np.any(motion.sigma)


def test_the_guard_stops_what_would_only_serve_the_large_parts():
    """Singular values far below the tolerance: the coarse levels ask for more than v can bear."""
    rng = np.random.default_rng(4)
    box = pde.Box.fourier(2, 13, 3.0)
    u, w = (np.linalg.qr(rng.standard_normal((13, 13)))[0] for _ in range(2))
    v = tt.TT([(u[:, :11] * 10.0 ** -np.arange(11))[None], w[:11, :, None]])
    affine = pde.Coefficients(rng.standard_normal((2, 2)), None, rng.standard_normal((2, 2)))
    right = pde.RightSide(box, affine)
    free = pde.MultiLevel(guard=False, gauge="none")(v, right, None, box, 1e-6, 0.0)
    assert free.cost > 1.05 * free.cost_without
    assert not free.guarded
    assert np.any(free.sigma)
    held = pde.MultiLevel(gauge="none")(v, right, None, box, 1e-6, 0.0)
    assert held.guarded
    assert not np.any(held.sigma)
    assert held.cost == held.cost_without == free.cost_without
    assert held.levels == (*(0.3 * 10.0**-k for k in range(6)), 1e-6)
    assert held.ranks == (1, 2, 3, 4, 5, 6, 11)


def test_coordinates_that_gain_nothing_stay_at_rest():
    """u_t = −u²: no motion helps, and one that the coarse levels like costs accuracy."""
    covariance = np.array([[0.6, 0.3], [0.3, 0.5]])
    start = pde.Gaussian(np.zeros(2), covariance, amplitude=1.0)
    box = pde.Box.fourier(2, 48, 6.0)
    problem = pde.AdvectionDiffusionReaction(None, None, start, box, reaction=(0.0, 0.0, -1.0))
    x = np.random.default_rng(0).multivariate_normal(np.zeros(2), covariance, 500)
    errors = {}
    for coordinates in ("fixed", "adaptive"):
        final = pde.integrate(problem, t1=0.2, dt=0.05, tol=1e-6, coordinates=coordinates).final
        u = problem.exact(final.t, x)
        assert u is not None
        found = pde.evaluate(final.v, final.map, box, x)
        errors[coordinates] = np.linalg.norm(found - u) / np.linalg.norm(u)
    assert errors["adaptive"] < 3 * errors["fixed"]


def test_directions_that_no_level_sees_get_no_motion():
    """Eigenvalues of roundoff, weighted as fine levels are, once gave Σ of hundreds."""
    drift = [pde.Sin([0.0, 1.0]), pde.Sin([1.0, 0.0], amplitude=-1.0)]
    start = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.2]))
    box = pde.Box.finite_differences(2, 96, 5.0, order=6)
    problem = pde.FokkerPlanck(drift, None, start, box)
    at = pde.AffineMap.identity(2)
    v, right = problem.initial(at, 1e-6), problem.right_side(at, 0.0)
    for guard in (True, False):
        motion = pde.MultiLevel(guard=guard)(v, right, at, box, 1e-6, 0.0)
        assert np.abs(motion.sigma).max() < 3


@pytest.mark.parametrize("generator", [pde.Convex(), pde.MultiLevel(), pde.Flow()])
def test_an_isotropic_gaussian_in_rotation_needs_no_motion(generator: Any):
    """y_j ∂_k v and y_k ∂_j v are parallel: singular normal equations, and nothing to gain."""
    for d in (2, 4):
        rotation = np.triu(np.ones((d, d)), 1)
        rotation = rotation - rotation.T
        problem = pde.Liouville(
            rotation, pde.Gaussian(np.zeros(d), np.eye(d)), pde.Box.fourier(d, 32)
        )
        at = pde.AffineMap.identity(d)
        v, right = problem.initial(at, 1e-8), problem.right_side(at, 0.0)
        assert max(v.ranks) == 1
        motion = generator(v, right, at, problem.box, 1e-8, 0.0)
        assert np.all(np.isfinite(motion.sigma))
        assert np.allclose(motion.sigma, -motion.sigma.T, atol=1e-6)
        assert motion.cost_without < 1e-8


def test_bad_states_and_options_are_refused():
    box = pde.Box.fourier(2, 16)
    right = pde.RightSide(box, pde.Coefficients(np.ones((2, 2))))
    bad = tt.TT([jnp.ones((1, 16, 1)), jnp.full((1, 16, 1), jnp.nan)])
    for generator in (pde.Convex(), pde.MultiLevel(), pde.Flow()):
        with pytest.raises(ValueError, match="v: expected finite"):
            generator(bad, right, None, box, 1e-6, 0.0)
        with pytest.raises(ValueError, match="v: expected the shape"):
            generator(tt.ones((16, 16, 16)), right, None, box, 1e-6, 0.0)
        still = generator(tt.zeros((16, 16)), right, None, box, 1e-6, 0.0)
        assert not np.any(still.sigma)
        line = pde.Box.fourier(1, 16)
        alone = generator(tt.ones((16,)), pde.RightSide(line), None, line, 1e-6, 0.0)
        assert alone.sigma.shape == (1, 1)
    with pytest.raises(ValueError, match="regularization: expected"):
        pde.Convex(regularization=-1.0)
    with pytest.raises(ValueError, match="levels: expected"):
        pde.MultiLevel(levels=(2.0,))
    with pytest.raises(ValueError, match="kappa: expected"):
        pde.MultiLevel(kappa=-1.0)
    with pytest.raises(ValueError, match="gauge: expected"):
        pde.MultiLevel(gauge="edges")
    with pytest.raises(ValueError, match="rate: expected"):
        pde.Flow(rate=0.0)
    with pytest.raises(ValueError, match="smoothing: expected"):
        pde.Flow(smoothing=-0.1)
    with pytest.raises(ValueError, match="motion: expected sigma of shape"):
        pde.Prescribed(lambda t: np.zeros(3))(tt.ones((16, 16)), right, None, box, 1e-6, 0.0)


class Plane:
    """RK4 in two dimensions on full matrices, rounded after every step; Σ extrapolated linearly."""

    def __init__(self, problem: Any, velocity: Any):
        self.problem, self.velocity = problem, velocity
        axis = problem.box.axes[0]
        self.y, self.d1 = axis.points, axis.d1

    def rate(self, v: np.ndarray, gamma: np.ndarray, sigma: np.ndarray, beta: np.ndarray) -> Any:
        """For velocities without divergence."""
        y = np.stack(np.meshgrid(self.y, self.y, indexing="ij"))
        f = np.tensordot(gamma, self.velocity(np.tensordot(np.linalg.inv(gamma), y, 1)), 1)
        w = f + np.tensordot(sigma, y, 1) + beta[:, None, None]
        return -w[0] * (self.d1 @ v) - w[1] * (v @ self.d1.T)

    def run(self, generator: Any, end: float, steps: int, tol: float) -> tuple[Any, Any, list[int]]:
        at = pde.AffineMap.identity(2)
        v, dt, past, ranks = self.problem.initial(at, tol), end / steps, None, []
        gamma = np.eye(2)
        for i in range(steps):
            at = pde.AffineMap(gamma, np.zeros(2))
            right = self.problem.right_side(at, i * dt)
            motion = generator(v, right, at, self.problem.box, tol, i * dt)
            slope = 0 * motion.sigma if past is None else (motion.sigma - past) / dt
            past = motion.sigma

            def stage(x: Any, h: float, m: Any = motion, slope: Any = slope) -> Any:
                sigma = m.sigma + h * slope
                return self.rate(x[0], x[1], sigma, m.beta), sigma @ x[1]

            state = (dense(v.cores), gamma)
            k1 = stage(state, 0)
            k2 = stage([x + dt / 2 * k for x, k in zip(state, k1, strict=True)], dt / 2)
            k3 = stage([x + dt / 2 * k for x, k in zip(state, k2, strict=True)], dt / 2)
            k4 = stage([x + dt * k for x, k in zip(state, k3, strict=True)], dt)
            x, gamma = (
                s + dt / 6 * (a + 2 * b + 2 * c + d)
                for s, a, b, c, d in zip(state, k1, k2, k3, k4, strict=True)
            )
            v = tt.from_dense(jnp.asarray(x), tol=tol)
            ranks.append(max(v.ranks))
        return dense(v.cores), gamma, ranks

    def error(self, v: np.ndarray, gamma: np.ndarray, t: float) -> float:
        y = np.stack(np.meshgrid(self.y, self.y, indexing="ij")).reshape(2, -1)
        exact = self.problem.exact(t, np.linalg.solve(gamma, y).T).reshape(v.shape)
        return float(np.linalg.norm(v - exact) / np.linalg.norm(exact))


def linear(matrix: Any, variances: Any, n: int, half_width: float) -> Plane:
    matrix = np.asarray(matrix)
    start = pde.Gaussian(np.zeros(2), np.diag(variances), amplitude=1.0)
    problem = pde.Liouville(matrix, start, pde.Box.fourier(2, n, half_width))
    return Plane(problem, lambda x: np.tensordot(matrix, x, 1))


def test_a_rotating_gaussian_keeps_its_rank():
    """P1: fixed coordinates end at rank 20 or so."""
    plane = linear([[0.0, 1.0], [-1.0, 0.0]], [1.0, 0.16], 112, 7.0)
    v, gamma, ranks = plane.run(pde.MultiLevel(), np.pi / 4, 80, 1e-8)
    assert max(ranks) <= 3
    assert plane.error(v, gamma, np.pi / 4) < 1e-6
    _, _, ranks = plane.run(pde.Convex(), np.pi / 4, 80, 1e-8)
    assert max(ranks) <= 7
    _, _, ranks = plane.run(pde.Fixed(), np.pi / 4, 80, 1e-6)
    assert 13 <= ranks[-1] <= 17


def test_a_gaussian_drawn_out_stays_in_its_box():
    """P3: fixed coordinates end at rank 60 or so, and without a gauge at the edge."""
    plane = linear([[0.0, 1.0], [1.0, 0.0]], [0.5, 0.25], 96, 6.0)
    v, gamma, ranks = plane.run(pde.MultiLevel(), 1.0, 80, 1e-8)
    assert max(ranks) <= 3
    assert plane.error(v, gamma, 1.0) < 2e-8
    v, gamma, ranks = plane.run(pde.MultiLevel(gauge="none"), 1.0, 80, 1e-8)
    assert plane.error(v, gamma, 1.0) > 2e-8


@pytest.mark.parametrize(("tol", "fixed", "moved"), [(1e-4, 7, 3), (1e-6, 14, 11)])
def test_nonlinear_drifts_gain_less(tol: float, fixed: int, moved: int):
    """P4."""
    drift = [[pde.Sin([0.0, 1.0])], [pde.Sin([1.0, 0.0], amplitude=-1.0)]]
    start = pde.Gaussian(np.zeros(2), np.diag([0.5, 0.08]), amplitude=1.0)
    problem = pde.FokkerPlanck(drift, None, start, pde.Box.fourier(2, 112, 5.0))
    plane = Plane(problem, lambda x: np.stack([np.sin(x[1]), -np.sin(x[0])]))
    still, gamma, ranks = plane.run(pde.Fixed(), 1.0, 80, tol)
    assert abs(ranks[-1] - fixed) <= 1
    error = plane.error(still, gamma, 1.0)
    v, gamma, ranks = plane.run(pde.MultiLevel(), 1.0, 80, tol)
    assert max(ranks) <= moved + 1 < fixed
    assert plane.error(v, gamma, 1.0) < 2.5 * error


def test_feedback_turns_a_misaligned_gaussian_upright():
    """P7, which starts at rank 15: without feedback its rank stays."""
    turn = np.deg2rad(30)
    basis = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    matrix = np.array([[0.0, 0.5], [-0.5, 0.0]])
    start = pde.Gaussian(np.zeros(2), basis @ np.diag([1.0, 0.16]) @ basis.T, amplitude=1.0)
    problem = pde.Liouville(matrix, start, pde.Box.fourier(2, 112, 7.0))
    plane = Plane(problem, lambda x: np.tensordot(matrix, x, 1))
    _, _, ranks = plane.run(pde.MultiLevel(kappa=20.0), 1.0, 100, 1e-6)
    assert ranks[0] >= 14
    assert ranks[-1] <= 4
    _, _, ranks = plane.run(pde.MultiLevel(), 1.0, 40, 1e-6)
    assert ranks[-1] >= 14


@pytest.mark.parametrize("d", [3, 4])
def test_sparse_forms_are_those_of_all_entries(d: int, monkeypatch: Any):
    """Drawn states of high rank and of rank one: no motion depends on how entries are kept."""
    for seed in range(3):
        case = Case(d, "fourier", seed)
        low = tt.round(case.v, rank=1)
        for v in (case.v, low):
            found = {}
            for name, least, most in (("dense", 99, 0.1), ("full", 2, 0.0), ("sparse", 2, 1e9)):
                monkeypatch.setattr(normal, "_SPARSE", least)
                monkeypatch.setattr(normal, "_FULL", most)
                setting = Setting(v, case.right, case.box, 1e-6)
                form = setting.form(setting.point, 1e-6, measure=True)
                motion = pde.MultiLevel(guard=False)(v, case.right, None, case.box, 1e-6, 0.0)
                gram = form.gram if name == "dense" else form.gram.toarray()
                found[name] = gram, form.load, motion.sigma, motion.cost
            for name in ("full", "sparse"):
                for a, b in zip(found[name], found["dense"], strict=True):
                    assert close(a, b, 1e-7)


def test_blocks_have_the_spectrum_of_the_whole(rng: Any):
    """Drawn block matrices, permuted: solutions and restrictions by blocks and in one piece."""
    for _ in range(5):
        sizes = rng.integers(1, 5, 6)
        parts = [rng.normal(size=(n, n)) for n in sizes]
        whole = scipy.linalg.block_diag(
            *(a @ np.diag(10.0 ** -np.arange(len(a))) @ a.T for a in parts)
        )
        order = rng.permutation(len(whole))
        whole = whole[np.ix_(order, order)]
        load = whole @ rng.normal(size=len(whole))
        by_blocks = normal.spectrum(scipy.sparse.csr_array(whole))
        assert max(b.index.shape[1] for b in by_blocks.blocks) == max(sizes)
        one = normal.spectrum(whole)
        assert np.isclose(by_blocks.largest, one.largest)
        for floor in (0.0, 1e-3):
            assert close(*(normal.filtered(s, load, floor) for s in (by_blocks, one)), 1e-7)
        small, kept = normal.visible(scipy.sparse.csr_array(whole), load, 1e-2)
        expected, other = normal.visible(whole, load, 1e-2)
        assert close(small.toarray(), expected, 1e-9)
        assert close(kept, other, 1e-9)


def test_pairs_of_axes_decouple_at_rank_one(rng: Any):
    """The generator's cost in many dimensions: no block of the normal equations grows with d."""
    d = 16
    matrix = rng.normal(size=(d, d)) / d
    start = pde.Gaussian(np.zeros(d), np.diag(rng.uniform(0.3, 1.0, d)))
    box = pde.Box.fourier(d, 24, 6.0)
    problem = pde.OrnsteinUhlenbeck(matrix - np.eye(d), 0.1 * np.eye(d), start, box)
    at = pde.AffineMap.identity(d)
    v, right = problem.initial(at, 1e-4), problem.right_side(at, 0.0)
    setting = Setting(v, right, box, 1e-4)
    form = setting.form(setting.point, 1e-4, measure=True)
    assert max(b.index.shape[1] for b in normal.spectrum(form.gram).blocks) <= 2
    motion = pde.MultiLevel()(v, right, at, box, 1e-4, 0.0)
    assert motion.cost < 1e-4 * motion.cost_without  # 24 points an axis


@pytest.mark.parametrize("kind", BOXES)
def test_operators_of_many_matrices_give_the_form_of_factored_ones(rng, monkeypatch, kind):
    box = BOXES[kind](3)
    cores = drawn(rng, box.shape, (3, 4))
    v = tt.TT([jnp.asarray(c) for c in cores])
    ranks = (1, 3, 2, 1)
    others = tuple(
        tt.TTMatrix(
            [jnp.asarray(rng.standard_normal((a, n, n, b)))
             for a, n, b in zip(ranks, box.shape, ranks[1:], strict=False)]
        )
        for _ in range(2)
    )  # fmt: skip
    right = pde.RightSide(box, pde.Coefficients(diffusion=np.eye(3)), others)
    forms = []
    for wide in (0, 10**6):
        monkeypatch.setattr(inputs_and_motion, "_WIDE", wide)
        setting = Setting(v, right, box, 1e-6)
        assert bool(setting.terms.wide) == (wide == 0)
        forms.append(setting.form(setting.point, 1e-6, measure=True))
    for a, b in ((forms[0].energy, forms[1].energy), (forms[0].load, forms[1].load)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * np.abs(b).max())
