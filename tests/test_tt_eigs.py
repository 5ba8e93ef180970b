"""Eigenpairs by DMRG and operators of chains: exact energies, dense oracles, budgets, bad input."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import tt
from tensorjax.tt._eigen.single_eigenpair import Search, judged
from tests.oracles import DTYPES, compilations, dense, eps, error, norm, normal

X, Z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])
Y = np.array([[0.0, -1.0j], [1.0j, 0.0]])
HEISENBERG = (np.kron(X, X) + np.kron(Y, Y).real + np.kron(Z, Z)) / 4


def ising(order, field=1.0):
    return tt.chain_operator(order, site=-field * Z, bond=-np.kron(X, X))


def ising_energy(order, field=1.0):
    """Free fermions: minus the sum of the singular values of the bidiagonal matrix A + B."""
    couplings = field * np.eye(order) + np.eye(order, k=1)
    return -float(np.linalg.svd(couplings, compute_uv=False).sum())


def local_sum(terms, sizes, width):
    """Σ_k 1 ⊗ terms[k] ⊗ 1 as a dense matrix."""
    out = np.zeros((math.prod(sizes),) * 2, np.result_type(*terms))
    for k, h in enumerate(terms):
        left, right = math.prod(sizes[:k]), math.prod(sizes[k + width :])
        out += np.kron(np.kron(np.eye(left), h), np.eye(right))
    return out


def hermitian(key, sizes, rank, dtype=float):
    a = tt.random_matrix(key, sizes, sizes, rank, dtype)
    return tt.round((a + tt.conj(tt.transpose(a))) * 0.5, tol=1e-13)


def check(a, values, states, info, tol, count=None):
    """Values, vectors, orthogonality, and what the info says, against a dense eigensolver."""
    h = dense(a)
    exact = np.linalg.eigvalsh(h)
    k = len(states)
    assert values.shape == (k,)
    vectors = np.stack([dense(x).ravel() for x in states], 1)
    assert error(vectors.conj().T @ vectors, np.eye(k)) <= 10 * max(tol, eps(a.dtype) * 100)
    true = np.linalg.norm(h @ vectors - vectors * np.asarray(values), axis=0)
    slack = 1e3 * eps(a.dtype) * np.abs(exact).max()
    assert info.status == "converged", str(info)
    assert (info.residual <= info.bound).all()
    assert np.allclose(true, info.residual, rtol=0.1, atol=slack)
    assert np.abs(np.asarray(values) - exact[:k]).max() <= info.bound.max() + slack
    assert (np.diff(np.asarray(values)) >= -slack).all()
    np.testing.assert_allclose(info.variance, info.residual**2)
    for x, ranks in zip(states, info.ranks, strict=True):
        assert x.ranks == ranks


# Operators of chains -----------------------------------------------------------------------------


def test_chain_operators_are_the_sums_with_minimal_ranks(rng):
    h, g = normal(rng, (3, 3)), normal(rng, (9, 9))
    a = tt.chain_operator(4, site=h, bond=g)
    sizes = (3,) * 4
    assert error(dense(a), local_sum([h] * 4, sizes, 1) + local_sum([g] * 3, sizes, 2)) <= 1e-12
    assert ising(7).ranks == (1, *[3] * 6, 1)
    assert tt.chain_operator(7, site=Z, bond=HEISENBERG).ranks == (1, *[5] * 6, 1)
    for a in (ising(5), tt.chain_operator(5, bond=HEISENBERG)):
        assert a.ranks == tt.round(a, tol=1e-12).ranks
        assert a.dtype == jnp.float64


def test_chain_operators_with_terms_that_differ(rng):
    sizes = (2, 3, 2, 4)
    sites = [normal(rng, (n, n), np.complex128) for n in sizes]
    bonds = [normal(rng, (m * n,) * 2) for m, n in itertools.pairwise(sizes)]
    bonds[1] = np.zeros_like(bonds[1])
    a = tt.chain_operator(4, site=sites, bond=bonds)
    assert a.dtype == jnp.complex128
    assert a.ranks[2] == 2
    assert error(dense(a), local_sum(sites, sizes, 1) + local_sum(bonds, sizes, 2)) <= 1e-12
    assert error(dense(tt.chain_operator(1, site=X)), X) == 0
    assert error(dense(tt.chain_operator(3, site=X)), local_sum([X] * 3, (2,) * 3, 1)) == 0
    assert error(dense(tt.chain_operator(2, bond=HEISENBERG)), HEISENBERG) <= 1e-15
    assert tt.chain_operator(3, site=X, dtype=np.float32).dtype == jnp.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "site, bond: expected"),
        ({"site": np.ones((2, 3))}, r"site\[0\]: expected a square"),
        ({"site": X, "bond": np.eye(6)}, r"bond\[0\]: expected 2 x 2"),
        ({"site": [X, X]}, "site: expected one matrix or 3"),
        ({"bond": [np.eye(4)]}, "bond: expected one matrix or 2"),
        ({"site": np.full((2, 2), np.nan)}, "site: expected finite"),
        ({"bond": np.eye(5)}, r"bond\[0\]: expected"),
    ],
)
def test_bad_terms_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        tt.chain_operator(3, **options)


def test_terms_of_wrong_types_are_named():
    with pytest.raises(TypeError, match="site"):
        tt.chain_operator(3, site=np.eye(2, dtype=int))
    for name in ("site", "bond"):
        for wrong in (float("nan"), True, 3, "x", {}):
            with pytest.raises(
                TypeError, match=f"^{name}: expected a sequence of matrices, or one"
            ):
                tt.chain_operator(3, **{name: wrong})
    with pytest.raises(TypeError, match="complex"):
        tt.chain_operator(3, site=Y, dtype=np.float64)
    with pytest.raises(TypeError, match="concrete"):
        jax.jit(lambda h: tt.chain_operator(3, site=h))(jnp.eye(2))
    with pytest.raises(ValueError, match="site: expected a term"):
        tt.chain_operator(1, bond=np.eye(4))


# Energies ----------------------------------------------------------------------------------------


def test_the_critical_ising_chain_of_64_sites_has_its_exact_energy():
    values, (x,), info = tt.eigsh(ising(64), tol=1e-5)
    assert info.status == "converged"
    assert float(values[0]) == pytest.approx(ising_energy(64), abs=1e-8)
    assert float(values[0]) >= ising_energy(64) - 1e-10
    assert float(tt.norm(x)) == pytest.approx(1, abs=1e-12)
    assert info.residual[0] <= 1e-5 * abs(values[0])


def test_the_first_excitation_of_an_ising_chain_is_one_fermion():
    order, field = 16, 1.5
    couplings = field * np.eye(order) + np.eye(order, k=1)
    gap = 2 * np.linalg.svd(couplings, compute_uv=False).min()
    values, states, _ = tt.eigsh(ising(order, field), k=2, tol=1e-6)
    assert float(values[1] - values[0]) == pytest.approx(gap, abs=1e-8)
    assert abs(float(tt.inner(*states))) <= 1e-6


@pytest.mark.slow
def test_the_heisenberg_chain_of_64_sites():
    """Its energy by quimb 1.15's DMRG2 at bond dimension 128: −28.17542486."""
    values, _, info = tt.eigsh(tt.chain_operator(64, bond=HEISENBERG), tol=1e-5, max_rank=128)
    assert info.status == "converged"
    assert float(values[0]) == pytest.approx(-28.17542486, abs=1e-7)


@pytest.mark.parametrize("sites", [1, 2])
def test_pairs_are_those_of_the_dense_matrix(key, sites):
    spin = np.sqrt(2) * np.eye(3, k=1)
    spin = (
        np.kron(np.diag([1.0, 0, -1]), np.diag([1.0, 0, -1]))
        + (np.kron(spin, spin.T) + np.kron(spin.T, spin)) / 2
    )
    laplacian = 100.0 * (2 * np.eye(9) - np.eye(9, k=1) - np.eye(9, k=-1))
    cases = {
        "aklt": tt.chain_operator(5, bond=spin + spin @ spin / 3),  # four-fold ground state
        "doublets": tt.chain_operator(7, bond=HEISENBERG),
        "complex": tt.chain_operator(7, site=0.2 * Y, bond=np.kron(X, Y) - np.kron(Y, X) + 0j),
        "random": hermitian(key, (4, 1, 5, 6), 3),
        "random complex": hermitian(key, (3,) * 4, 3, complex),
        "laplacian": tt.chain_operator(3, site=laplacian),
        "two cores": tt.chain_operator(2, site=laplacian),
    }
    for name, a in cases.items():
        out = tt.eigsh(a, k=3, tol=1e-7, sites=sites)
        check(a, *out, 1e-7), name


def test_small_and_short_ones_are_diagonalised(key):
    for sizes, k in (((7,), 7), ((2, 2), 4), ((2, 3, 2), 12)):
        a = hermitian(key, sizes, 3, complex)
        check(a, *tt.eigsh(a, k=k, tol=1e-10), 1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_keep_the_dtype(dtype):
    a = tt.chain_operator(8, bond=HEISENBERG, dtype=dtype)
    out = tt.eigsh(a, k=2, tol=1e-4)
    assert out[0].dtype == jnp.finfo(dtype).dtype
    assert all(x.dtype == dtype for x in out[1])
    check(a, *out, 1e-4)


def test_classical_energies_have_local_minima_and_are_found(rng):
    """Diagonal operators: every configuration is a stationary point of DMRG."""
    bonds = [c * np.kron(Z, Z) for c in rng.standard_normal(9)]
    a = tt.chain_operator(10, site=[c * Z for c in 0.3 * rng.standard_normal(10)], bond=bonds)
    values, states, info = tt.eigsh(a, k=3, tol=1e-8)
    exact = np.sort(np.diagonal(dense(a)))
    assert np.abs(np.asarray(values) - exact[:3]).max() <= 1e-7
    assert max(max(x.ranks) for x in states) == 1
    assert info.status == "converged"


@pytest.mark.parametrize("seed", range(8))
def test_levels_of_diagonal_operators_are_found(seed):
    """Their eigenvectors are products, whose bonds need no direction beside the first."""
    rng = np.random.default_rng(seed)
    site = np.diag(rng.permutation([0.0, 1.0])) * float(rng.integers(1, 4))
    bond = np.diag(rng.integers(-1, 2, 4) * 1.0) * (seed % 2)
    a = tt.chain_operator(int(rng.integers(5, 9)), site=site, bond=bond)
    k = int(rng.integers(1, 4))
    check(a, *tt.eigsh(a, k=k, tol=1e-7, key=jax.random.key(seed)), 1e-7)


def test_zero_and_the_identity_have_any_orthonormal_vectors():
    for a, value in ((tt.identity((2,) * 7), 1.0), (tt.identity((2,) * 7) * 0.0, 0.0)):
        values, states, info = tt.eigsh(a, k=3, tol=1e-8)
        np.testing.assert_allclose(values, value, atol=1e-12)
        gram = np.array([[float(tt.inner(x, y)) for x in states] for y in states])
        assert error(gram, np.eye(3)) <= 1e-6
        assert info.status == "converged"


@pytest.mark.parametrize("order", [3, 7])
def test_pairs_do_not_depend_on_the_scale_of_the_operator(rng, order):
    """Nor on where it sits: in one core, or in opposite ways in the cores of two terms."""
    a = tt.chain_operator(order, site=rng.standard_normal() * Z, bond=HEISENBERG)
    wanted, _, info = tt.eigsh(a, k=2, tol=1e-8)
    for power in (*rng.integers(160, 300, 2), *-rng.integers(160, 300, 2)):
        scale, seen = 10.0**power, []
        k, m = rng.choice(order, 2, replace=False)
        one, two, opposite = (list(a.cores) for _ in range(3))
        one[k] = one[k] * scale
        two[k], two[m] = two[k] * scale, two[m] / scale
        opposite[k], opposite[m] = opposite[k] / scale, opposite[m] * scale
        values, _, found = tt.eigsh(tt.TTMatrix(one), k=2, tol=1e-8, callback=seen.append)
        assert error(values / scale, wanted) <= 1e-9 * norm(wanted)
        assert (found.status, found.check) == (info.status, info.check)
        assert (found.residual <= found.bound).all()
        np.testing.assert_allclose(found.bound / scale, info.bound, rtol=1e-6)
        assert abs(min(s.value for s in seen) / scale - wanted[0]) <= 1e-6 * norm(wanted)
        both = tt.add(tt.TTMatrix(two), tt.TTMatrix(opposite))
        values, _, found = tt.eigsh(both, k=2, tol=1e-8)
        assert found.status == "converged"
        assert error(values, 2 * wanted) <= 1e-9 * norm(wanted)
    skew = tt.random_matrix(jax.random.key(0), (2,) * order, (2,) * order, 2) * 1e290
    with pytest.raises(ValueError, match="expected a Hermitian operator"):
        tt.eigsh(skew, tol=1e-8)


@pytest.mark.parametrize("k", [1, 2])
def test_pairs_do_not_depend_on_the_scales_within_the_operator(rng, k):
    """Blocks of cores moved in opposite ways, and indices of bonds, by powers that cancel."""
    for order in (3, int(rng.integers(5, 8))):
        a = tt.chain_operator(order, site=rng.standard_normal() * Z, bond=HEISENBERG)
        wanted, _, info = tt.eigsh(a, k=k, tol=1e-7)
        half, power = order // 2, int(rng.integers(150, 300)) * int(rng.choice([-1, 1]))
        ends = [power] * half, [-power] * half
        blocks = [*ends[0], *[0] * (order % 2), *ends[1]]
        moved = [np.asarray(c) * 2.0**p for c, p in zip(a.cores, blocks, strict=True)]
        gauged = [np.array(c) for c in a.cores]
        for left, right in itertools.pairwise(gauged):
            sizes = 2.0 ** rng.integers(-250, 250, len(right))
            left *= sizes
            right /= sizes[:, None, None, None]
        for cores in (moved, gauged):
            values, states, found = tt.eigsh(tt.TTMatrix(cores), k=k, tol=1e-7)
            assert error(values, wanted) <= 1e-9 * norm(wanted)
            assert (found.status, found.check) == ("converged", info.check)
            assert (found.residual <= found.bound).all()
            check(a, values, states, found, 1e-7)


@pytest.mark.parametrize("order", [3, 6])
def test_eigenvalues_that_the_dtype_cannot_hold_are_refused(rng, order):
    a = tt.chain_operator(order, site=-Z, bond=HEISENBERG)
    for dtype, low, top in ((np.float32, 39, 60), (np.float64, 309, 800)):
        for sign, advice in ((1, "divide"), (-1, "multiply")):
            power = sign * rng.uniform(low, top)
            few = [(c * 10.0 ** (power / order)).astype(dtype) for c in a.cores]
            with pytest.raises(OverflowError, match=f"{dtype.__name__} cannot .*; {advice}"):
                tt.eigsh(tt.TTMatrix(few), k=2, tol=1e-4)
    flat = tt.chain_operator(order, site=np.diag([0.0, 1.0]))  # the lowest value is 0
    small = [(c * 10.0 ** (-30 / order)).astype(np.float32) for c in flat.cores]
    value, _, info = tt.eigsh(tt.TTMatrix(small), tol=1e-4)
    assert (abs(float(value[0])) <= 1e-35, info.status) == (True, "converged")


def test_residuals_that_are_no_numbers_never_converge():
    cores = [np.asarray(c, np.float64) for c in tt.chain_operator(4, site=Z).cores]
    x = [np.full((1, 2, 1), 0.5**0.5)] * 4
    for bad in (np.nan, 1e200):
        options = dict.fromkeys(Search._fields) | {"dtype": np.float64, "tol": 1e-4}
        search = Search(**options | {"operator": [bad * c for c in cores]})  # type: ignore
        for status in ("converged", "energy"):
            with np.errstate(all="ignore"):
                assert judged(search, x, [], 1.0, status).status == "stalled"


# Missed levels -----------------------------------------------------------------------------------


def classical(fields, couplings, k):
    """A diagonal chain of spins, and its k lowest energies, by dynamic programming.

    Every configuration is a local minimum of DMRG, or nearly so: levels are easily missed.
    """
    best = {s: [fields[0] * s] for s in (1, -1)}
    for h, c in zip(fields[1:], couplings, strict=True):
        best = {s: sorted(e + h * s + c * s * t for t in (1, -1) for e in best[t])[:k]
                for s in (1, -1)}  # fmt: skip
    chain = tt.chain_operator(
        len(fields),
        site=[h * Z for h in fields],
        bond=[c * np.kron(Z, Z) for c in couplings],
    )
    return chain, np.array(sorted(best[1] + best[-1])[:k])


def drawn_chains(rng, orders):
    for order in orders:
        yield rng.standard_normal(order), rng.standard_normal(order - 1)
        yield 0.3 * rng.standard_normal(order), -np.ones(order - 1)  # domain walls
        yield np.full(order, -rng.uniform(0.1, 0.5)), -np.ones(order - 1)  # twofold levels
        yield rng.integers(-2, 3, order) * 1.0, rng.integers(1, 3, order - 1) * 1.0  # manifold


def check_levels(fields, couplings, k):
    a, exact = classical(fields, couplings, k)
    values, states, info = tt.eigsh(a, k=k, tol=1e-8)
    assert info.status == "converged", str(info)
    assert info.check == ("exhaustive" if a.order <= 16 else "searched")
    assert {"exhaustive": "none, by", "searched": "no proof"}[info.check] in str(info)
    assert error(values, exact) <= 1e-6 * norm(exact), (fields, couplings, k)
    gram = np.array([[float(tt.inner(x, y)) for x in states] for y in states])
    assert error(gram, np.eye(k)) <= 1e-6


def test_no_level_of_a_small_chain_is_missed(rng):
    check_levels(np.full(12, -0.3), -np.ones(11), 5)
    for fields, couplings in drawn_chains(rng, (7, 10)):
        check_levels(fields, couplings, int(rng.integers(1, 7)))


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 16))]
)
def test_levels_that_differ_by_a_stretch_of_a_long_chain_are_found(seed):
    """More than 2^16 entries, so that no vector sees all of them."""
    rng = np.random.default_rng([42, seed])
    order = int(rng.integers(18, 26))
    fields = rng.uniform(0.1, 0.6) * (rng.standard_normal(order) if seed % 2 else -np.ones(order))
    check_levels(fields, -np.ones(order - 1), int(rng.integers(3, 7)))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3))])
def test_levels_that_nothing_leads_to_are_seen_in_spaces_of_vectors(seed):
    """Projectors on random product states: DMRG sees a plain without slopes."""
    rng = np.random.default_rng([43, seed])
    size, order = [(2, 13), (3, 8), (4, 7), (2, 14)][seed]
    count, k = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    vectors = rng.standard_normal((count, order, size)) ** 3
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    depths = np.arange(1.0, count + 1)
    a = tt.identity((size,) * order) * 0.0
    for depth, vs in zip(depths, vectors, strict=True):
        a = a - depth * tt.TTMatrix([np.outer(v, v)[None, :, :, None] for v in vs])
    gram = np.einsum("iks,jks->ijk", vectors, vectors).prod(axis=2)
    levels = -np.linalg.eigvalsh(np.sqrt(np.outer(depths, depths)) * gram)
    values, _, info = tt.eigsh(a, k=k, tol=1e-7)
    assert (info.status, info.check) == ("converged", "exhaustive")
    assert error(values, np.sort([*levels, *np.zeros(k)])[:k]) <= 1e-6


@pytest.mark.slow
def test_no_level_of_a_longer_chain_is_missed(rng):
    for fields, couplings in drawn_chains(rng, (12, 15, 18)):
        check_levels(fields, couplings, int(rng.integers(2, 6)))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_levels_of_random_fields_are_those_of_the_dense_matrix(rng, dtype):
    bond = HEISENBERG.astype(dtype)
    for order, k in ((8, 6), (7, 4)):
        site = [c * (Z if dtype == np.float64 else Y) for c in rng.uniform(-1, 1, order)]
        check(
            a := tt.chain_operator(order, site=site, bond=bond), *tt.eigsh(a, k=k, tol=1e-7), 1e-7
        )


def test_a_level_above_the_lowest_is_not_taken_for_them(rng):
    """Starts at the wrong eigenvectors: the search for lower ones finds those that were missed."""
    a, exact = classical(rng.standard_normal(8), rng.standard_normal(7), 8)
    _, states, _ = tt.eigsh(a, k=8, tol=1e-9)
    values, _, info = tt.eigsh(a, k=3, tol=1e-8, x0=states[5:])
    assert info.status == "converged"
    assert error(values, exact[:3]) <= 1e-7


def test_zero_modes_converge_at_any_tolerance():
    """The projector form of AKLT's chain: four ground states of energy zero."""
    spin = np.sqrt(2) * np.eye(3, k=1)
    spin = (
        np.kron(np.diag([1.0, 0, -1]), np.diag([1.0, 0, -1]))
        + (np.kron(spin, spin.T) + np.kron(spin.T, spin)) / 2
    )
    for order, tol in ((6, 1e-3), (6, 1e-13), (8, 1e-8)):
        a = tt.chain_operator(order, bond=spin / 2 + spin @ spin / 6 + np.eye(9) / 3)
        values, _, info = tt.eigsh(a, k=4, tol=tol)
        assert info.status == "converged", str(info)
        assert np.abs(np.asarray(values)).max() <= info.bound.max()


# Options -----------------------------------------------------------------------------------------


def test_one_site_keeps_the_ranks_of_its_start_or_widens_them(key):
    a = ising(10)
    start = tt.random(key, (2,) * 10, 3, float)
    values, (x,), info = tt.eigsh(a, tol=1e-8, sites=1, x0=start)
    assert x.ranks == tt.orthogonalize(start, 0).ranks
    assert info.status == "max_rank"
    assert "expand" in info.advice
    best = tt.eigsh(a, tol=1e-8, max_rank=3)[0]
    assert float(values[0]) == pytest.approx(float(best[0]), abs=1e-4)
    wider = tt.eigsh(a, tol=1e-8, sites=1, x0=start, expand=4)
    check(a, *wider, 1e-8)
    padded = tt.pad(tt.ones((2,) * 10, float), [2, 4, 8, 8, 8, 8, 8, 4, 2])
    values, (x,), _ = tt.eigsh(a, tol=1e-6, sites=1, x0=padded)
    assert x.ranks == padded.ranks
    assert float(values[0]) == pytest.approx(float(wider[0][0]), abs=1e-6)


def test_a_good_start_saves_sweeps_and_a_complex_one_makes_it_complex():
    a = ising(9)
    _, states, info = tt.eigsh(a, k=2, tol=1e-8)
    again = tt.eigsh(a, k=2, tol=1e-8, x0=states)
    assert sum(again[2].sweeps) < sum(info.sweeps)
    check(a, *again, 1e-8)
    check(a, *tt.eigsh(a, tol=1e-8, x0=states[0].astype(complex)), 1e-8)


def test_too_small_budgets_return_the_best_so_far_with_its_error():
    a = ising(16)
    exact = ising_energy(16)
    values, (x,), info = tt.eigsh(a, tol=1e-10, max_sweeps=1)
    assert info.status == "max_sweeps"
    assert "max_sweeps" in info.advice
    assert info.advice in str(info)
    assert info.residual[0] > info.bound[0]
    values, (x,), info = tt.eigsh(a, tol=1e-10, max_rank=2)
    assert info.status == "max_rank"
    assert max(x.ranks) == 2
    assert exact + 1e-2 < float(values[0]) < 0.99 * exact
    residual = float(tt.distance(a @ x, x * values[0]))
    assert residual == pytest.approx(float(info.residual[0]), rel=1e-6)
    assert float(values[0]) - exact <= residual
    for sites in (1, 2):
        for rank in (1, 3):
            x = tt.eigsh(a, tol=1e-8, max_rank=rank, sites=sites)[1][0]
            assert max(x.ranks) == rank


def test_runs_repeat_themselves_and_report(key):
    a = ising(10)
    seen = []
    first = tt.eigsh(a, tol=1e-8, key=key, callback=seen.append)
    second = tt.eigsh(a, tol=1e-8, key=key)
    assert (dense(first[1][0]) == dense(second[1][0])).all()
    assert tuple(seen) == first[2].history
    assert [s.sweep for s in seen] == list(range(1, first[2].sweeps[0] + 1))
    assert seen[-1].value == pytest.approx(float(first[0][0]), abs=1e-9)
    assert seen[0].residual > seen[-1].residual
    with compilations() as programs:
        tt.eigsh(ising(10), tol=1e-6)
    assert programs == []


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "options", "message"),
    [
        (tt.TTMatrix([np.ones((1, 2, 3, 1))]), {}, "A: expected a square"),
        (tt.chain_operator(3, site=np.triu(np.ones((2, 2)))), {}, "Hermitian"),
        (tt.chain_operator(3, site=1j * Z), {}, "Hermitian"),
        (tt.TTMatrix([np.full((1, 2, 2, 1), np.nan)]), {}, "A: expected finite"),
        (ising(3), {"k": 9}, "k: expected at most 8"),
        (ising(3), {"k": 0}, "k: expected an integer"),
        (ising(3), {"tol": 1e-17}, "tol: expected at least"),
        (ising(3), {"tol": -1.0}, "tol: expected a positive"),
        (ising(3), {"sites": 3}, "sites: expected"),
        (ising(3), {"max_rank": 0}, "max_rank: expected"),
        (ising(3), {"max_sweeps": 0}, "max_sweeps: expected"),
        (ising(3), {"expand": -1}, "expand: expected"),
        (ising(3), {"x0": tt.ones((2, 2))}, "x0: expected shape"),
        (ising(3), {"x0": tt.zeros((2,) * 3)}, "x0: expected a train other than zero"),
        (ising(3), {"x0": [tt.ones((2,) * 3)] * 2}, "x0: expected at most"),
    ],
)
def test_bad_input_is_named(a, options, message):
    with pytest.raises(ValueError, match=message):
        tt.eigsh(a, **{"tol": 1e-6, **options})


def test_wrong_kinds_and_traces_are_named():
    with pytest.raises(TypeError, match="A: expected a TTMatrix"):
        tt.eigsh(tt.ones((2, 2)), tol=1e-6)
    with pytest.raises(TypeError, match="ranks depend on the data"):
        jax.jit(lambda a: tt.eigsh(a, tol=1e-6)[0])(ising(3))


@pytest.mark.parametrize("seed", range(3))
def test_a_search_may_end_by_its_energy(seed):
    rng = np.random.default_rng(seed)
    order, energy_tol = int(rng.integers(7, 11)), 10.0 ** rng.uniform(-8, -5)
    fields = [h * Z for h in rng.uniform(-1, 1, order)]
    a = tt.chain_operator(order, site=fields, bond=HEISENBERG)
    exact = np.linalg.eigvalsh(dense(a))[:2]
    for k in (1, 2):
        values, states, info = tt.eigsh(a, k=k, tol=1e-12, energy_tol=energy_tol)
        whole = tt.eigsh(a, k=k, tol=1e-12)[2]
        assert set(info.statuses) <= {"energy", "converged"}
        assert np.abs(np.asarray(values) - exact[:k]).max() <= 10 * energy_tol * np.abs(exact).max()
        assert sum(info.sweeps) < sum(whole.sweeps)
        if info.status == "energy":
            assert "energy_tol" in info.advice
            assert (info.residual > info.bound).any()
        h = dense(a)
        for x, value, residual in zip(states, values, info.residual, strict=True):
            v = dense(x).ravel()
            assert abs(norm(h @ v - float(value) * v) - residual) <= 1e-9


@pytest.mark.parametrize("bad", [0.0, -1e-3, math.nan, math.inf, "1e-3", 1j])
def test_energy_tolerances_that_are_none(bad):
    with pytest.raises(ValueError, match="energy_tol: expected a positive number"):
        tt.eigsh(ising(4), tol=1e-6, energy_tol=bad)
