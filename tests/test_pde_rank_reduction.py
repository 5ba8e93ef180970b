"""Rank-reducing linear maps of given functions."""

import numpy as np
import pytest

from tensorjax import pde, tt
from tests.oracles import dense, error, norm
from tests.test_pde_problems import covariance, mesh

TOL = 1e-5
SLOW = pytest.mark.slow
MORE = [(2, 2, 10), (3, 2, 5), (3, 3, 5)]


def mixture(rng, d, count):
    parts = [
        pde.Gaussian(rng.uniform(-1, 1, d), 0.3 * covariance(rng, d) + 0.1 * np.eye(d))
        for _ in range(count)
    ]
    return pde.Mixture(rng.uniform(0.5, 1, count), parts)


def turned(rng, d):
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def check(found, values, box):
    """What holds of every answer: det Γ = 1, no higher ranks, the train is v in the coordinates."""
    map, v, info = found
    assert abs(map.det - 1) < 1e-12
    assert info.ranks == v.ranks
    assert info.reduced == (sum(info.ranks) < sum(info.ranks_before))
    assert max(info.ranks) <= max(info.ranks_before)
    if not info.reduced:
        assert info.ranks == info.ranks_before
        assert np.array_equal(map.matrix, np.eye(box.dim))
        assert not np.any(map.shift)
    assert all(b < a for a, b in zip(info.costs, info.costs[1:], strict=False))
    exact = values(map.inverse(mesh(box))).reshape(box.shape)
    assert error(dense(v), exact) <= TOL * norm(exact)


@pytest.mark.parametrize(
    ("d", "count", "steps"),
    [(2, 1, 20), (2, 3, 10), (3, 1, 20), *(pytest.param(*c, marks=SLOW) for c in MORE)],
)
def test_mixtures_never_get_higher_ranks(rng, d, count, steps):
    box = pde.Box.fourier(d, 40, 7.0)
    for _ in range(2):
        start = mixture(rng, d, count)
        found = pde.rank_reducing_map(start, box, tol=TOL, max_steps=steps)
        check(found, start.values, box)
        if count == 1:  # a Gaussian has rank one in coordinates of its own
            assert max(found[2].ranks) == 1 < max(found[2].ranks_before)


@pytest.mark.parametrize("kind", [pytest.param("ridge", marks=SLOW), "quartic", "lattice"])
def test_what_is_turned_against_the_coordinates_is_turned_back(rng, kind):
    box = pde.Box.fourier(2, 64, 6.0)
    q, m = turned(rng, 2), rng.uniform(-0.5, 0.5, 2)
    functions = {
        "ridge": lambda z: np.exp(-0.5 * np.square(z).sum(1)) / (1 + np.square(z[:, 0])),
        "quartic": lambda z: np.exp(-0.3 * (z**4).sum(1)),
        "lattice": lambda z: np.exp(-0.5 * np.square(z).sum(1)) * (2 + np.cos(2 * z)).prod(1),
    }

    def values(x):
        return functions[kind]((x - m) @ q)

    found = pde.rank_reducing_map(values, box, tol=TOL)
    check(found, values, box)
    assert max(found[2].ranks) <= 2 < 4 < max(found[2].ranks_before)


def test_costs_are_nuclear_norms_of_the_unfoldings(rng):
    box = pde.Box.chebyshev(3, 20, 4.0)
    start = mixture(rng, 3, 2)
    _, _, info = pde.rank_reducing_map(start, box, tol=1e-8, smoothing=0.05, max_steps=0)
    weights = [np.sqrt(w) for w in box.weights]
    x = start.values(mesh(box)).reshape(box.shape)
    x = np.einsum("ijk,i,j,k->ijk", x, *weights)
    spectra = [np.linalg.svd(x.reshape(n, -1), compute_uv=False) / norm(x) for n in (20, 400)]
    assert np.isclose(info.costs[0], sum((np.hypot(s, 0.05) - 0.05).sum() for s in spectra))
    assert (info.status, info.reduced, info.evaluations) == ("max_steps", False, 1)


def test_functions_of_rank_one_get_the_identity(rng):
    box = pde.Box.fourier(3, 24, 5.0)
    start = pde.Gaussian(rng.uniform(-1, 1, 3), np.diag(rng.uniform(0.2, 0.5, 3)))
    for v in (start, start.train(box, pde.AffineMap.identity(3), 1e-8), tt.zeros(box.shape)):
        map, train, info = pde.rank_reducing_map(v, box, tol=TOL)
        assert (info.status, info.reduced, info.evaluations) == ("converged", False, 1)
        assert np.array_equal(map.matrix, np.eye(3))
        assert train.ranks == (1, 1, 1, 1)
        assert "rank one" in info.message


def test_a_train_is_mapped_by_its_interpolant(rng):
    box, at = pde.Box.fourier(2, 40, 7.0), pde.AffineMap.identity(2)
    given = mixture(rng, 2, 1).train(box, at, 1e-9)
    found = pde.rank_reducing_map(given, box, tol=TOL)
    check(found, lambda x: np.asarray(pde.evaluate(given, at, box, x)), box)
    assert found[2].reduced


def test_no_map_takes_a_function_out_of_its_box(rng):
    # With the long axis along a diagonal there is room in the corners alone.
    q = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2)
    start = pde.Gaussian(np.zeros(2), q @ np.diag([1.2, 0.15]) @ q.T)
    box = pde.Box.fourier(2, 48, 4.2)
    found = pde.rank_reducing_map(start, box, tol=TOL)
    check(found, start.values, box)
    train = start.train(box, pde.AffineMap.identity(2), TOL)
    assert found[2].edge_mass <= max(TOL, 2 * pde.edge_mass(train, box))


def test_the_map_serves_an_integration(rng):
    start, box = pde.Gaussian(np.zeros(2), covariance(rng, 2)), pde.Box.fourier(2, 64, 8.0)
    map, v, _ = pde.rank_reducing_map(start, box, tol=TOL)
    problem = pde.OrnsteinUhlenbeck(-np.eye(2), 0.1 * np.eye(2), start, box)
    solution = pde.integrate(problem, t1=0.1, dt=0.05, tol=1e-4, start=pde.State(v, map, 0.0))
    x = problem.sample(np.random.default_rng(0), 0.1, 100)
    found = pde.evaluate(solution.final.v, solution.final.map, box, x)
    assert error(found, problem.exact(0.1, x)) < 1e-3 * norm(found)


def test_bad_arguments_are_named():
    box, start = pde.Box.fourier(2, 16, 5.0), pde.Gaussian(np.zeros(2), np.eye(2))
    for change, word in [
        ({"smoothing": -1.0}, "smoothing"), ({"tol": 0.0}, "tol"), ({"max_steps": -1}, "max_steps"),
        ({"v": 1.0}, "v: expected"), ({"v": tt.ones((16, 8))}, "v: expected the shape"),
        ({"v": pde.Gaussian(np.zeros(3), np.eye(3))}, "v: expected 2 coordinates"),
        ({"v": lambda x: np.nan * x[:, 0]}, "NaN"),
    ]:  # fmt: skip
        given = {"v": start, **change}
        with pytest.raises(ValueError, match=word):
            pde.rank_reducing_map(given.pop("v"), box, **given)
