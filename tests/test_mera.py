"""MERA: against dense contraction, wiring of all kinds, causal cones, samples, bad input."""

import copy
import gc
import math
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tensorjax import linalg, mera, tt
from tests.oracles import compilations, dense, eps, error, norm, normal

# Length, options, and the sites of an operator. One site is passed through in (7, {}), the last
# block takes it in on the ring of 7, and is shorter in (5, arity 3).
STRUCTURES = [
    (7, {}, (6, 1)),
    pytest.param(7, {"boundary": "periodic"}, (6, 0), marks=pytest.mark.slow),
    pytest.param(5, {"arity": 3}, (3, 2, 4), marks=pytest.mark.slow),
    (6, {"arity": (3, 2), "boundary": "periodic"}, (0, 5)),
    (8, {"arity": (2, 3)}, (2,)),
    (2, {}, (1, 0)),
]
DTYPES = (np.float32, np.complex128)


def build(key, n, options, dtype=np.complex128, rank=3):
    shape = [2 + k % 2 for k in range(n)]
    return mera.random(jax.random.key(key), shape, rank, dtype=dtype, **options)


def expanded(m):
    """The dense state by plain matrices on the whole space, site after site."""
    x = np.asarray(m.top, np.result_type(m.dtype, np.float64))
    for layer in reversed(m.layers):
        matrix = np.ones((1, 1))
        for w in layer.isometries:
            matrix = np.kron(matrix, np.asarray(w).reshape(-1, w.shape[-1]))
        x = (matrix @ x.ravel()).reshape(layer.middle)
        for u, pair in zip(layer.disentanglers, layer.wiring.pairs, strict=True):
            moved = np.tensordot(np.asarray(u), x, axes=((2, 3), pair))
            x = np.moveaxis(moved, (0, 1), pair)
    return x


@pytest.mark.parametrize(("n", "options", "sites"), STRUCTURES, ids=str)
def test_contractions_agree_with_the_dense_state(rng, n, options, sites):
    m = build(0, n, options)
    m = mera.MERA(m.layers, 2 * m.top)  # the constructor accepts what random makes
    assert m.boundary == options.get("boundary", "open")
    x = expanded(m)
    assert error(mera.to_dense(m), x) <= 1e-13
    assert error(dense(mera.to_tt(m)), x) <= 1e-13
    assert abs(float(mera.norm(m)) - 2) <= 1e-14
    below = [m.shape[s] for s in sites]
    o = normal(rng, (math.prod(below),) * 2, np.complex128)
    front = np.moveaxis(x, sites, range(len(sites))).reshape(len(o), -1)
    exact = np.vdot(front, o @ front)
    got = mera.expectation(m, o, sites, normalized=False)
    assert abs(complex(got) - exact) <= 1e-12 * norm(o)
    negative = tuple(s - n for s in sites)
    got = mera.expectation(m, o.reshape(below * 2), negative)
    assert abs(complex(got) - exact / 4) <= 1e-12 * norm(o)


@pytest.mark.parametrize(("n", "options", "sites"), STRUCTURES[2:4], ids=str)
def test_inner_products_agree_with_the_dense_states(n, options, sites):
    x, y = build(0, n, options), build(1, n, options, rank=2)
    exact = np.vdot(expanded(x), expanded(y))
    assert abs(complex(mera.inner(x, y)) - exact) <= 1e-13


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_follow_the_dtype(dtype):
    m = build(0, 4, {}, dtype, rank=2)
    operator = np.eye(m.shape[0], dtype=dtype)
    assert m.dtype == mera.to_dense(m).dtype == mera.to_tt(m).dtype == dtype
    assert mera.inner(m, m).dtype == mera.expectation(m, operator, 0).dtype == dtype
    assert mera.norm(m).dtype == np.zeros((), dtype).real.dtype
    assert error(mera.to_dense(m), expanded(m)) <= 50 * eps(dtype)
    low = m.astype(jnp.bfloat16) if dtype == np.float32 else m
    assert np.isfinite(np.asarray(mera.to_tt(low).cores[2], np.complex64)).all()


def test_jit_vmap_and_grad():
    keys = jax.random.split(jax.random.key(0), 3)
    zz = jnp.diag(jnp.array([1.0, -1.0, -1.0, 1.0]))

    def loss(m):
        value = mera.expectation(m, zz, (1, 2)) + mera.inner(m, m) * mera.norm(m)
        return value + mera.to_tt(m).cores[2].sum() + mera.to_dense(m)[0, 0, 0, 1]

    batch = jax.vmap(lambda k: mera.random(k, (2,) * 4, 2))(keys)
    assert (batch.shape, batch.order, batch.ranks) == ((2,) * 4, 4, ((2, 2),))
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(loss)))(batch)
    one, gradient = jax.tree.map(lambda x: x[1], (batch, gradients))
    assert abs(float(values[1]) - float(loss(one))) < 1e-12
    direction = jax.tree.map(lambda x: jnp.sin(jnp.arange(x.size)).reshape(x.shape), one)
    ends = [loss(jax.tree.map(lambda x, d, s=s: x + s * d, one, direction)) for s in (1e-6, -1e-6)]
    slope = sum(
        jnp.vdot(g, d)
        for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    assert abs((ends[0] - ends[1]) / 2e-6 - slope) < 1e-7
    with pytest.raises(ValueError, match="m: expected one MERA, got a batch of them \\(3,\\)"):
        mera.norm(batch)


@pytest.mark.slow
def test_the_cone_costs_the_same_in_every_layer():
    z = jnp.diag(jnp.array([1.0, -1.0]))

    def flops(n):
        m = mera.random(jax.random.key(0), (2,) * n, 3)
        f = jax.jit(lambda m: mera.expectation(m, jnp.kron(z, z), (n // 2 - 1, n // 2)))
        return f.lower(m).compile().cost_analysis()["flops"]  # type: ignore[index]

    # Two more layers cost the same at every length.
    counts = [flops(n) for n in (16, 64, 256, 1024)]
    steps = np.diff(counts)
    assert steps.max() <= 1.01 * steps.min()
    assert counts[-1] <= 4 * counts[0]


@pytest.mark.slow
def test_rounding_to_tt_keeps_the_tolerance():
    m = build(0, 8, {}, np.float64, rank=4)
    x = np.asarray(mera.to_dense(m))
    exact = mera.to_tt(m)
    for tol in (0.3, 1e-10):
        t = mera.to_tt(m, tol=tol)
        assert error(dense(t), x) <= tol
        assert all(a <= b for a, b in zip(t.ranks, exact.ranks, strict=True))
    t = jax.jit(lambda m: mera.to_tt(m, rank=6))(m)
    assert max(t.ranks) == 6
    assert error(dense(t), x) <= 2 * error(dense(tt.round(exact, rank=6)), x) + 1e-12
    with pytest.raises(TypeError, match="rank="):
        jax.jit(lambda m: mera.to_tt(m, tol=0.1))(m)


def test_samples_have_the_probabilities_of_the_state():
    m = build(3, 4, {"boundary": "periodic"}, rank=2)
    count = 20_000
    p = np.abs(expanded(m)) ** 2
    drawn = np.asarray(mera.sample(jax.random.key(1), m, count))
    assert drawn.shape == (count, 4)
    found = np.zeros(p.shape)
    np.add.at(found, tuple(drawn.T), 1)
    expected = count * p
    chi2 = np.sum((found - expected) ** 2 / expected)
    degrees = p.size - 1
    assert abs(chi2 - degrees) <= 5 * (2 * degrees) ** 0.5
    again = mera.sample(jax.random.key(1), m, count)
    assert (np.asarray(again) == drawn).all()


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_refinement_finds_a_planted_mera_nearby(dtype):
    planted = build(0, 6, {}, dtype, rank=2)
    target = 3 * mera.to_tt(planted)
    noise = jax.tree.map(lambda x: jnp.sin(jnp.arange(x.size)).reshape(x.shape), planted)
    noise = mera.tangent(planted, noise.astype(dtype))
    start = mera.retract(planted, jax.tree.map(lambda x: 0.2 * x, noise))
    seen = []
    m, info = mera.refine(start, target, steps=80, progress=lambda k, e: seen.append((k, e)))
    assert mera.MERA(m.layers, m.top).ranks == planted.ranks  # still isometric
    error_now = float(tt.distance(mera.to_tt(m), target) / tt.norm(target))
    assert error_now <= 1e-3 < 0.1 < info.errors[0]
    assert error_now == pytest.approx(min(info.errors), rel=1e-3, abs=1e-7)
    assert [k for k, _ in seen] == list(range(1, info.steps + 1))
    assert f"in {info.steps} steps" in str(info)


def test_refinement_takes_optax_optimisers_and_never_makes_worse():
    planted = build(0, 5, {"arity": 3}, np.float64, rank=2)
    target = mera.to_tt(planted)
    start = build(1, 5, {"arity": 3}, np.float64, rank=2)
    m, info = mera.refine(start, target, steps=30, optimizer=optax.adam(0.05))
    assert info.errors[-1] < 0.8 * info.errors[0]
    mera.MERA(m.layers, m.top)  # still isometric
    wild, info = mera.refine(m, target, steps=3, stop=0.0, optimizer=optax.sgd(1e3))
    before = float(tt.distance(mera.to_tt(m), target))
    assert float(tt.distance(mera.to_tt(wild), target)) <= before * (1 + 1e-9)
    assert not info.converged


def test_refinement_takes_bare_transformations_and_complex_targets():
    start = build(0, 4, {}, np.float64, rank=2)
    target = mera.to_tt(build(1, 4, {}, np.complex128, rank=2))
    with jax.numpy_dtype_promotion("standard"):  # real and complex are mixed on purpose
        m, info = mera.refine(start, target, steps=3, optimizer=optax.scale(-0.05))
    assert mera.MERA(m.layers, m.top).dtype == np.complex128
    found = float(tt.distance(mera.to_tt(m), target) / tt.norm(target))
    assert found == pytest.approx(min(info.errors), rel=1e-6)
    chained = optax.chain(mera.conjugate_gradient())

    def loss(m):
        return 1 - jnp.abs(mera.inner(start, m)) ** 2

    other = build(2, 4, {}, np.float64, rank=2)
    value, gradient = jax.value_and_grad(loss)(other)
    options = {"value": value, "value_fn": loss}
    updates, _ = chained.update(gradient, chained.init(other), other, **options)
    assert float(loss(optax.apply_updates(other, updates))) < float(value)


def test_refinement_reads_its_optimizer_in_every_call(rng):
    """Optimisers whose attributes change, that cannot be hashed, and that nothing keeps alive."""

    class Descent:
        __hash__ = None  # type: ignore

        def __init__(self, rate):
            self.rate = rate

        def init(self, params):
            return ()

        def __call__(self, gradients, state, params=None):
            return jax.tree.map(lambda g: -self.rate * g, gradients), state

        update = __call__

    start = build(0, 3, {}, np.float64, rank=2)
    target = mera.to_tt(build(1, 3, {}, np.float64, rank=2))
    descent = Descent(float(rng.uniform(0.01, 0.1)))
    before, after = mera.refine(start, target, steps=1, optimizer=descent)[1].errors
    assert after < before - 1e-6
    descent.rate = 0.0
    pair = optax.GradientTransformation(descent.init, descent)
    before, after = mera.refine(start, target, steps=1, optimizer=pair)[1].errors
    assert after == pytest.approx(before, abs=1e-12)
    held = weakref.ref(descent)
    del descent, pair
    gc.collect()
    assert held() is None
    mera.refine(start, target, steps=1)
    with compilations() as made:
        mera.refine(start, target, steps=2)
    assert not made


def test_numpy_integers_are_integers():
    two = np.int64(2)
    assert mera.wirings(16, two) == mera.wirings(16, 2)
    m = mera.random(jax.random.key(0), (2,) * 4, two, arity=two)
    assert mera.expectation(m, jnp.eye(2), np.int64(1)) == pytest.approx(1)
    assert max(mera.to_tt(m, rank=two).ranks) == 2


def test_a_complex_operator_on_a_real_mera():
    m = build(0, 4, {}, np.float32, rank=2)
    y = np.array([[0, -1j], [1j, 0]], np.complex64)
    with jax.numpy_dtype_promotion("standard"):
        value = mera.expectation(m, y, 0)
    assert value.dtype == np.complex64
    assert abs(complex(value)) <= 1e-6  # the y component of a real state


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_samples_do_not_depend_on_the_norm(size):
    t = tt.ones((2, 2), np.float32) * np.float32(size)
    assert 0.3 < np.asarray(tt.sample(jax.random.key(0), t, 300)).mean() < 0.7


def test_the_transformation_chains_with_optax_and_stays_on_the_manifold():
    m = build(0, 4, {}, np.complex128, rank=2)
    chained = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    optimizer = mera.stiefel(chained)
    state = optimizer.init(m)
    zz = np.diag([1.0, -1.0]).astype(np.complex128)

    @jax.jit
    def step(m, state):
        value, gradient = jax.value_and_grad(lambda m: mera.expectation(m, zz, 0).real)(m)
        updates, state = optimizer.update(jax.tree.map(jnp.conj, gradient), state, m)
        return optax.apply_updates(m, updates), state, value

    values = []
    for _ in range(40):
        m, state, value = step(m, state)
        values.append(float(value))
    mera.MERA(m.layers, m.top)
    assert values[-1] < -0.99  # the state with spin down at the first site


def test_a_mera_is_a_pytree():
    m = build(0, 8, {"boundary": "periodic"})
    leaves, tree = jax.tree.flatten(m)
    for other in (pickle.loads(pickle.dumps(m)), copy.deepcopy(m), tree.unflatten(leaves)):
        assert other.layers[0].wiring == m.layers[0].wiring
        assert (mera.to_dense(other) == mera.to_dense(m)).all()
    assert jax.tree.map(lambda _: None, m).top is None
    assert m.size == sum(x.size for x in leaves)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(m)]
    assert ".layers[0].disentanglers[3]" in paths
    assert "periodic" in repr(m)
    assert "4 disentanglers" in repr(m.layers[0])


def test_layers_are_built_from_plain_pairs_and_may_lack_disentanglers(rng):
    tree = mera.random(jax.random.key(0), (2,) * 4, 2, dtype=np.float64)
    u, ws = tree.layers[0].disentanglers, tree.layers[0].isometries
    m = mera.MERA([(u, ws)], tree.top)
    assert error(mera.to_dense(m), mera.to_dense(tree)) == 0
    bare = mera.MERA([([], ws)], tree.top)
    assert error(mera.to_dense(bare), expanded(bare)) <= 1e-14
    ring = mera.MERA([mera.Layer(u, ws, cuts=[1])], tree.top)
    assert ring.boundary == "periodic"
    assert error(mera.to_dense(ring), expanded(ring)) <= 1e-14
    top = mera.MERA([], normal(rng, (2, 3)))
    assert top.shape == (2, 3)
    assert error(mera.to_dense(top), top.top) == 0


M = mera.random(jax.random.key(0), (2,) * 6, 2, dtype=np.float32)
W, U = M.layers[0].isometries, M.layers[0].disentanglers
EYE = np.eye(2, dtype=np.float32)


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, r"arity: .*blocks of 3 for the 2 sites of layer 0",
         lambda: mera.random(jax.random.key(0), (2, 2), 2, arity=3)),
        (ValueError, r"arity: .*layer 3 \(8 at the bottom\).*fewer layers",
         lambda: mera.random(jax.random.key(0), (2,) * 8, 2, layers=4)),
        (ValueError, "arity: .*>= 2", lambda: mera.random(jax.random.key(0), (2,) * 8, 2, arity=1)),
        (ValueError, "layers: expected 2", lambda: mera.random(
            jax.random.key(0), (2,) * 8, 2, arity=(2, 2), layers=3)),
        (ValueError, "rank: .*got 0", lambda: mera.random(jax.random.key(0), (2,) * 8, 0)),
        (ValueError, "rank: .*2, one per layer",
         lambda: mera.random(jax.random.key(0), (2,) * 8, [2, 2, 2])),
        (ValueError, "boundary", lambda: mera.random(
            jax.random.key(0), (2,) * 8, 2, boundary="closed")),  # type: ignore
        (TypeError, "dtype", lambda: mera.random(jax.random.key(0), (2,) * 8, 2, dtype=int)),
        (ValueError, r"sites: .*\[-6, 5\], got 6", lambda: mera.expectation(M, EYE, 6)),
        (ValueError, "sites: .*different", lambda: mera.expectation(M, np.eye(4), (1, -5))),
        (ValueError, "sites: .*got ()", lambda: mera.expectation(M, EYE, ())),
        (ValueError, r"operator: .*\(4, 4\) or \(2, 2, 2, 2\).*got \(2, 2\)",
         lambda: mera.expectation(M, EYE, (0, 1))),
        (TypeError, "operator: .*int", lambda: mera.expectation(M, np.eye(2, dtype=int), 0)),
        (ValueError, "operator: .*NaN", lambda: mera.expectation(M, np.nan * EYE, 0)),
        (ValueError, "one structure", lambda: mera.inner(M, mera.random(
            jax.random.key(0), (2,) * 6, 2, arity=3))),
        (TypeError, "m: expected a MERA, got ndarray", lambda: mera.to_dense(EYE)),  # type: ignore
        (ValueError, r"layers\[0\].isometries\[1\]: .*orthonormal",
         lambda: mera.MERA([(U, [W[0], 2 * W[1], W[2]]), M.layers[1]], M.top)),
        (ValueError, r"layers\[0\].disentanglers\[0\]: .*orthonormal",
         lambda: mera.MERA([([np.nan * u for u in U], W), M.layers[1]], M.top)),
        (ValueError, r"layers\[1\]: expected the bottom legs \(2, 2, 2\)",
         lambda: mera.MERA([M.layers[0], M.layers[0]], M.top)),
        (ValueError, r"top: expected shape \(2, 2\)", lambda: mera.MERA(M.layers, EYE[0])),
        (ValueError, r"disentanglers\[0\]: .*bottom₁", lambda: mera.Layer([EYE], W)),
        (ValueError, r"disentanglers\[0\]: expected top legs \(2, 2\).*got \(1, 4\)",
         lambda: mera.Layer([U[0].reshape(2, 2, 1, 4)], W)),
        (ValueError, r"isometries\[0\]: .*bottom_k", lambda: mera.Layer([], [EYE[0]])),
        (ValueError, "isometries: .*none", lambda: mera.Layer([], [])),
        (ValueError, "cuts: expected 0 to 2", lambda: mera.Layer(U, W, cuts=[0, 3])),
        (ValueError, "cuts: expected one per", lambda: mera.Layer(U, W, cuts=[0])),
        (ValueError, r"two on \[2\]", lambda: mera.Layer(U, [W[0], EYE, W[1]])),
        (TypeError, "top: .*int", lambda: mera.MERA([], np.ones((2, 2), int))),
        (ValueError, r"target: expected shape \(2, 2, 2, 2, 2, 2\)",
         lambda: mera.refine(M, tt.ones((2,) * 5))),
        (ValueError, r"target: the norm, about 1e\+39, is out of the range of float32",
         lambda: mera.refine(M, tt.ones((2,) * 6, np.float32) * np.float32(3e38))),
        (ValueError, "tol: expected at least 3.6e-06, 10 eps for each of 3 roundings",
         lambda: mera.to_tt(M, tol=2e-6)),
        (ValueError, "target: .*not zero", lambda: mera.refine(M, tt.zeros((2,) * 6))),
        (ValueError, "target: .*NaN", lambda: mera.refine(M, np.nan * tt.ones((2,) * 6))),
        (TypeError, "target: expected a TT", lambda: mera.refine(M, EYE)),  # type: ignore
        (ValueError, "steps: ", lambda: mera.refine(M, tt.ones((2,) * 6), steps=-1)),
        (ValueError, "count: .*got 0", lambda: mera.sample(jax.random.key(0), M, 0)),
    ],
)  # fmt: skip
def test_bad_input_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


def test_orthonormality_is_not_asked_where_it_is_waived():
    loose = mera.MERA([(U, [2 * w for w in W]), M.layers[1]], M.top, check=False)
    assert loose.shape == M.shape
    assert linalg.epsilon(loose.dtype) == eps(np.float32)


def test_expectation_shares_programs_between_sites() -> None:
    m = mera.random(jax.random.key(0), (2,) * 32, 2)
    o = jnp.eye(4, dtype=m.dtype)
    rng = np.random.default_rng(3)
    first = [int(s) for s in rng.permutation(31)[:12]]
    with compilations() as compiled:
        for s in first:
            assert float(mera.expectation(m, o, (s, s + 1))) == pytest.approx(1, abs=1e-4)
    assert len(compiled) <= 14
    with compilations() as compiled:
        for s in first:
            mera.expectation(m, 2 * o, (s + 1, s))
    assert len(compiled) <= 3


@pytest.mark.parametrize("seed", range(4))
def test_the_causal_cone_is_what_expectation_values_depend_on(seed: int) -> None:
    """Tensors outside it may be replaced by others, those inside may not."""
    boundary = ("open", "periodic")[seed % 2]
    m, other = (
        mera.random(jax.random.key(k), (2,) * 12, 2, dtype=float, boundary=boundary)
        for k in (seed, seed + 9)
    )
    z, site = jnp.diag(jnp.array([1.0, -1.0])), int(np.random.default_rng(seed).integers(12))
    cone = mera.causal_cone(m, site)

    def with_others(inside: bool) -> mera.MERA:
        layers = []
        for mine, its, here in zip(m.layers, other.layers, cone, strict=True):
            parts = []
            for name in ("disentanglers", "isometries"):
                pairs = enumerate(zip(getattr(mine, name), getattr(its, name), strict=True))
                kept = getattr(here, name)
                parts.append([b if (j in kept) is inside else a for j, (a, b) in pairs])
            layers.append(mera.Layer(*parts, wiring=mine.wiring))
        return mera.MERA(layers, m.top)

    value = mera.expectation(m, z, site)
    np.testing.assert_allclose(mera.expectation(with_others(False), z, site), value, atol=1e-12)
    assert abs(mera.expectation(with_others(True), z, site) - value) > 1e-3
