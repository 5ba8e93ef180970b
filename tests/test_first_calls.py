"""First calls with concrete arrays on a CPU: nothing is compiled, results are those of programs."""

import functools

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest

from tensorjax import _transfer, convert, mera, sketch, tt, tucker
from tensorjax._formats import random_arrays
from tensorjax._kernels.table import NUMPY
from tensorjax.nn import _initializers
from tensorjax.sketch import _apply
from tensorjax.tt._products import inner_product_kernels
from tests.oracles import compilations

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def train(rng, modes, rank, dtype, scale=1.0):
    """A train, or a TT-matrix, of one shape of modes a core."""
    ranks = [1, *[rank] * (len(modes) - 1), 1]
    cores = []
    for r, mode, s in zip(ranks, modes, ranks[1:], strict=False):
        c = rng.standard_normal((r, *mode, s))
        if np.dtype(dtype).kind == "c":
            c = c + 1j * rng.standard_normal(c.shape)
        cores.append(jnp.asarray((scale * c / np.sqrt(c.size)).astype(dtype)))
    return (tt.TTMatrix if len(modes[0]) == 2 else tt.TT)(cores)


def drawn(seed):
    """Two trains, two matrices that fit, and the dtype."""
    rng = np.random.default_rng(seed)
    order, dtype = int(rng.integers(1, 12)), DTYPES[seed % len(DTYPES)]
    m, n, k = (rng.integers(1, 7, order) for _ in range(3))
    ranks = rng.integers(1, 6, 4)
    x, y = (train(rng, [(i,) for i in n], int(r), dtype) for r in ranks[:2])
    a = train(rng, list(zip(m, n, strict=True)), int(ranks[2]), dtype)
    b = train(rng, list(zip(n, k, strict=True)), int(ranks[3]), dtype)
    return x, y, a, b


def close(found, expected):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    eps = float(jnp.finfo(expected.dtype).eps)
    found, expected = map(np.asarray, (found, expected))
    np.testing.assert_allclose(found, expected, atol=200 * eps * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_the_host_and_programs_agree(seed):
    x, y, a, b = drawn(9000 + seed)
    calls = [
        (tt.hadamard, x, y),
        (tt.hadamard, a, a),
        (tt.matvec, a, x),
        (tt.matmul, a, b),
        (tt.inner, x, y),
        (tt.inner, b, b),
        (tt.norm, a),
    ]
    for function, *arguments in calls:
        found = function(*arguments)
        expected = jax.jit(function)(*arguments)
        for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            close(f, e)
        assert type(found) is type(expected)


def test_nothing_is_compiled():
    compiled = []

    def listen(name, *_, **__):
        compiled.append(name)

    x, y, a, b = drawn(9100)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(3):
            for function, *arguments in ((tt.hadamard, x, y), (tt.matvec, a, x), (tt.matmul, a, b)):
                function(*arguments)
            tt.inner(x, y), tt.norm(x)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not [name for name in compiled if "compile" in name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_numbers_stay_in_range(dtype, scale):
    """Of trains whose parts leave the range of single precision, though the whole does not."""
    rng = np.random.default_rng(3)
    x, y = (train(rng, [(3,)] * 8, 2, dtype, s) for s in (scale, 1 / scale))
    wide = [[np.asarray(c).astype(np.complex128) for c in t.cores] for t in (x, y)]
    e = np.ones((1, 1), complex)
    for c, d in zip(*wide, strict=True):
        e = np.einsum("ab,aic,bid->cd", e, c.conj(), d)
    expected = e[0, 0]
    found = tt.inner(x, y)
    assert abs(complex(found) - expected) <= 1e3 * float(jnp.finfo(dtype).eps) * abs(expected)


def test_zeros_and_nan_come_through():
    x = tt.zeros((2, 3, 4))
    assert [float(tt.norm(x)), float(tt.inner(x, x))] == [0, 0]
    bad = tt.TT([jnp.full((1, 2, 1), np.nan), jnp.ones((1, 2, 1))])
    assert np.isnan([float(tt.norm(bad)), float(tt.inner(bad, bad))]).all()


def test_first_bilinear_forms_compile_nothing_where_inner_products_do_not():
    """Of drawn ranks: the work of the form is counted as it is, and less than that of A y."""
    rng = np.random.default_rng(9500)
    for _ in range(3):
        order = int(rng.integers(8, 14))
        a = train(rng, [(4, 4)] * order, int(rng.integers(2, 4)), np.float64)
        x, y = (train(rng, [(4,)] * order, int(r), np.float64) for r in rng.integers(9, 18, 2))
        with compilations() as compiled:
            found = tt.bilinear_form(x, a, y)
        assert not compiled
        # As a program, beside the exact product.
        scale = float(tt.norm(x) * tt.norm(y) * tt.norm(a))
        assert abs(float(found) - float(tt.inner(x, a @ y))) <= 1e-12 * scale


def test_a_habit_gets_a_program(monkeypatch):
    """Of XLA, or of one call of C++ where that was built."""
    x, y, *_ = drawn(9101)
    served, swept = [], inner_product_kernels.host_overlap
    monkeypatch.setattr(
        inner_product_kernels, "host_overlap", lambda *cores: served.append(cores) or swept(*cores)
    )
    counts = [tt.inner(x, y) is not None and len(served) for _ in range(13)]
    assert counts == [*range(1, 11), 10, 10, 10]
    half = x.astype(jnp.float32).astype(jnp.bfloat16)
    assert inner_product_kernels.inner_on_host(half, half) is None


def test_new_sites_numbers_of_rows_and_batches_compile_nothing():
    """As they come in a search or a stream: each of them would be a program."""
    rng = np.random.default_rng(9600)
    m = mera.random(jax.random.key(0), (2,) * 8, 2, dtype=np.float64)
    o = rng.standard_normal((4, 4))
    keys = jax.random.split(jax.random.key(1))
    maps = [sketch.gaussian(keys[0], 900, 9, dtype=np.float32)]
    maps.append(sketch.ttrp(keys[1], 900, 9, dtype=np.float32))
    t = train(rng, [(2,)] * 30, 8, np.float64)
    with compilations() as compiled:
        values = [mera.expectation(m, o, (k, k + 1)) for k in range(7)]
        apart = mera.expectation(m, o, (6, 2), normalized=False)
        for rows in rng.integers(300, 900, 4):
            x = rng.standard_normal((rows, 900)).astype(np.float32)
            for p in maps:
                assert sketch.apply(p, x).shape == (rows, 9)
        for _ in range(14):
            tt.evaluate(t, rng.integers(0, 2, (700, 30)))
    assert not compiled
    state = np.asarray(mera.to_dense(m))
    for sites, found in zip(
        [*((k, k + 1) for k in range(7)), (6, 2)], [*values, apart], strict=True
    ):
        psi = np.moveaxis(state, sites, (0, 1)).reshape(4, -1)
        assert abs(float(found) - np.vdot(psi, o @ psi)) < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_maps_of_few_long_rows(seed):
    """NumPy maps the first modes first, by matrices kept with the map: as of many rows."""
    rng, dtype = np.random.default_rng([9250, seed]), DTYPES[seed % 2]
    modes = tuple(int(n) for n in rng.integers(2, 9, 5))
    rows, size = int(rng.integers(1, 9)), int(rng.integers(2, 12))
    p = sketch.ttrp(jax.random.key(seed), modes, (2, 1, 3, 1, 2), rank=2, dtype=dtype)
    surplus = sketch.ttrp(jax.random.key(seed), modes, size, rank=1 + seed, dtype=dtype)
    for q in (p, surplus):
        cores = [np.asarray(c) for c in q.cores]
        x = rng.standard_normal((rows, np.prod(modes))).astype(dtype)
        many = np.concatenate([x, np.zeros((1000, x.shape[1]), dtype)])
        assert not _apply._matrices_from_left(q, cores, len(many), x.shape[1])
        for _ in range(2):  # the matrices are kept after the first call
            close(sketch.apply(q, jnp.asarray(x)), sketch.apply(q, jnp.asarray(many))[:rows])
        # Once for all numbers of rows, and without the map's own arrays they serve nothing.
        kept = vars(q)["_from_left"]
        assert len(kept) > 1
        assert _apply._matrices_from_left(q, cores, rows + 1, x.shape[1]) is kept
        jax.tree.map(lambda c: c.delete(), list(q.cores))
        with pytest.raises(RuntimeError, match="deleted"):
            sketch.apply(q, jnp.asarray(x))


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("seed", range(3))
def test_maps_of_rows(seed, dtype):
    rng = np.random.default_rng(9200 + seed)
    key = jax.random.key(seed)
    modes = tuple(int(n) for n in rng.integers(2, 7, 4))
    size = int(np.prod(modes)) - seed  # padded
    x = rng.standard_normal((3, 2, size)).astype(dtype)
    maps = [sketch.gaussian(key, size, 5, dtype=dtype)]
    for rank in (1, 3):
        maps.append(sketch.ttrp(key, size, 7 + seed, rank=rank, dtype=dtype))
    for p in maps:
        for given in (x, jnp.asarray(x)):
            assert _apply._kernel(p, given) is NUMPY
            close(sketch.apply(p, given), jax.jit(sketch.apply)(p, jnp.asarray(x)))
    bad = x.copy()
    bad[1, 1, 2] = np.nan
    with pytest.raises(ValueError, match="finite"):
        sketch.apply(maps[0], bad)


def test_arrays_reach_jax_as_by_device_put(monkeypatch):
    arrays = [np.arange(6, dtype=d).reshape(2, 3) for d in (np.float32, np.float64, np.complex64)]
    arrays += [arrays[0].T, np.ones((0, 3)), np.asarray(2.0), np.ones(3, jnp.bfloat16)]
    device = jax.devices()[-1]
    for place in (None, jax.sharding.SingleDeviceSharding(device)):
        for x, found in zip(arrays, _transfer.on_device(arrays, place), strict=True):
            expected = jax.device_put(x, place)
            for name in ("aval", "sharding", "committed"):
                assert getattr(found, name) == getattr(expected, name)
            np.testing.assert_array_equal(np.asarray(found), x)
    with jax.default_device(device):
        assert _transfer.on_device(arrays)[0].devices() == {device}
    with jax.enable_x64(False):
        assert _transfer.on_device(arrays)[1].dtype == jnp.float32
    monkeypatch.setattr(_transfer, "_fast", lambda: None)
    assert _transfer.on_device(arrays)[0].sharding == jax.device_put(arrays[0]).sharding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"arity": 3}, {"boundary": "periodic"}, {"layers": 1}])
def test_first_calls_of_meras_compile_nothing(options, dtype):
    seed = DTYPES.index(dtype)
    rng = np.random.default_rng([9300, seed, *map(ord, str(options))])
    shape = [int(n) for n in rng.integers(2, 4, int(rng.integers(5, 9)))]
    m = mera.random(jax.random.key(seed), shape, 2, dtype=dtype, **options)
    m = mera.MERA(m.layers, m.top * 10.0 ** int(rng.integers(-9, 9)))
    functions = (mera.norm, mera.to_dense, mera.to_tt, lambda m: mera.inner(m, m))
    with compilations() as compiled:
        found = [f(m) for f in functions]
    assert compiled == []
    expected = [jax.jit(f)(m) for f in functions]
    for k in (0, 1, 3):
        close(found[k], expected[k])
    # The cores of both are orthogonal, and differ by signs.
    assert [c.aval for c in found[2].cores] == [c.aval for c in expected[2].cores]
    close(tt.to_dense(found[2]), found[1])


def test_meras_in_a_loop_get_a_program_and_extreme_norms_are_kept():
    m = mera.random(jax.random.key(1), (2, 3) * 3, 2, dtype=np.float64)
    with compilations() as compiled:
        values = [mera.to_dense(m) for _ in range(40)]
    assert len(compiled) == 1
    close(values[0], values[-1])
    for scale in (1e-200, 1e200):
        assert float(mera.norm(m * scale)) == pytest.approx(scale, rel=1e-12)
    assert float(mera.norm(m * 0.0)) == 0
    assert np.isnan(float(mera.norm(m * np.nan)))


def test_norms_and_distances_of_nan_are_nan():
    """Never zero, which would be read as agreement; on the host and in programs."""
    m = mera.random(jax.random.key(0), (2,) * 4, 2)
    core = tucker.Tucker(jnp.full((2, 2), np.nan), [jnp.ones((3, 2))] * 2)
    train = tt.TT([jnp.full((1, 2, 1), np.nan), jnp.ones((1, 2, 1))])
    for f, *given in (
        (mera.norm, m * np.nan),
        (tucker.norm, core),
        (tucker.distance, core, core),
        (tt.norm, train),
        (tt.distance, train, train),
    ):
        assert np.isnan([float(f(*given)), float(jax.jit(f)(*given))]).all(), f.__name__


def test_random_formats_of_many_shapes_share_programs_and_are_those_of_traced_keys():
    rng = np.random.default_rng(9400)
    shapes = [tuple(int(n) for n in rng.integers(1, 6, rng.integers(5, 9))) for _ in range(12)]
    key, rank = jax.random.key(7), int(rng.integers(2, 5))
    calls = {
        "trains": lambda k, s: tt.random(k, s, rank, np.float32),
        "Tucker": lambda k, s: tucker.random(k, s, 2, np.float64),
        "maps": lambda k, s: sketch.ttrp(k, s, 3, rank=2, dtype=np.float32),
    }
    for call in calls.values():
        with compilations() as compiled:
            found = [call(key, shape) for shape in shapes]
        assert len(compiled) <= 6  # lengths and numbers of vectors: few powers of four
        traced = jax.jit(lambda k, call=call: call(k, shapes[-1]))(key)
        for f, e in zip(*map(jax.tree.leaves, (found[-1], traced)), strict=True):
            close(f, e)
    inside = jax.jit(lambda: tt.random(key, shapes[0], rank, np.float32))()  # a concrete key
    for f, e in zip(inside.cores, tt.random(key, shapes[0], rank, np.float32).cores, strict=True):
        close(f, e)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_first_sums_and_products_to_ranks_compile_nothing(seed, dtype):
    """As accurate as the exact ones truncated by SVDs, at static ranks."""
    rng = np.random.default_rng(9700 + seed)
    modes = [(int(n),) for n in rng.integers(1, 6, rng.integers(1, 6))]
    x, y = (train(rng, modes, int(r), dtype) for r in rng.integers(1, 5, 2))
    a = tt.diagonal_matrix(train(rng, modes, 2, dtype))
    exact = tt.linear_combination([x, (x, y), (a, y)], [1.0, 2.0, -0.5])
    rank = int(rng.integers(1, 5))
    options = [{"rank": rank}, {"rank": rank, "tol": 1e-2}, {"rank": rank, "tol": 1e-5}]
    with compilations() as compiled:
        sums = [tt.linear_combination([x, (x, y), (a, y)], [1.0, 2.0, -0.5], **o) for o in options]
        rounded = [tt.round(exact, **o) for o in options[1:]]
    assert not compiled
    best = tt.distance(exact, tt.round(exact, rank=rank, method="svd"))
    size, eps = float(tt.norm(exact)), float(jnp.finfo(dtype).eps)
    for found, o in zip([*sums, *rounded], [*options, *options[1:]], strict=True):
        assert (found.dtype, found.ranks) == (np.dtype(dtype), sums[0].ranks)
        allowed = np.hypot(1.1 * float(best), o.get("tol", 0.0) * size) + 100 * eps * size
        assert float(tt.distance(exact, found)) <= allowed


@pytest.mark.parametrize("dtype", DTYPES)
def test_rearranged_modes_compile_nothing(dtype):
    rng = np.random.default_rng(9800)
    for _ in range(3):
        sizes = [int(n) for n in rng.integers(1, 6, rng.integers(2, 5))]
        t = train(rng, [(n,) for n in sizes], 3, dtype)
        a = train(rng, [(n, n) for n in sizes], 2, dtype)
        order = rng.permutation(len(sizes)).tolist()
        last = rng.standard_normal((4, sizes[-1])).astype(dtype)
        with compilations() as compiled:
            found = {
                "permute": tt.permute(t, order),
                "reverse": tt.reverse(t),
                "reshape": tt.reshape(t, (-1, sizes[-1])),
                "pad": tt.pad_modes(t, [(1, 2)] * len(sizes)),
                "mode": tt.mode_product(t, last, -1),
                "diagonal": tt.diagonal(a),
                "tensordot": tt.tensordot(t, tt.reverse(t), 1),
                "identity": tt.diagonal(tt.identity(sizes, dtype)),
            }
            back = tt.transpose(a)
        assert not compiled
        x, m = np.asarray(tt.to_dense(t)), np.asarray(tt.to_dense(a))
        wanted = {
            "permute": x.transpose(order),
            "reverse": x.transpose(),
            "reshape": x.reshape(-1, sizes[-1]),
            "pad": np.pad(x, [(1, 2)] * x.ndim),
            "mode": x @ last.T,
            "diagonal": np.diagonal(m.reshape(x.size, -1)).reshape(x.shape),
            "tensordot": np.tensordot(x, x.transpose(), 1),
            "identity": np.ones(x.shape, dtype),
        }
        for name, value in wanted.items():
            close(tt.to_dense(found[name]), value)
        close(tt.to_dense(back).reshape(x.size, -1), m.reshape(x.size, -1).T)


OTHERS = [pytest.param(d, marks=pytest.mark.slow) for d in (*DTYPES[1:3], jnp.bfloat16, np.float16)]


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, *OTHERS])
def test_random_arrays_on_the_host_are_those_of_jax(dtype, monkeypatch):
    """Bit by bit, of drawn shapes, in first calls and in later ones."""
    rng = np.random.default_rng([9950, np.dtype(dtype).itemsize])
    key = jax.random.key(int(rng.integers(2**31)))
    shapes = [tuple(map(int, rng.integers(1, 9, order))) for order in rng.integers(0, 4, 3)]
    keys = [*jax.random.split(key, 3), key]
    for draw in (jax.random.normal, *[jax.random.gumbel] * (dtype == np.float32)):
        expected = [draw(k, s, dtype) for k, s in zip(keys, [*shapes, (7, 5)], strict=True)]
        for first in (True, False):
            monkeypatch.setattr(random_arrays._first, "is_first", lambda *_, now=first: now)
            found = random_arrays.on_host(draw, key, shapes, dtype)
            whole = random_arrays.one_on_host(draw, key, (7, 5), dtype)
            for x, e in zip([*found, whole], expected, strict=True):
                assert (x.shape, x.dtype) == (e.shape, e.dtype)
                np.testing.assert_array_equal(x, e)


def test_keys_on_the_host_are_those_of_jax():
    for key in (jax.random.key(2**31 + 5), jax.random.PRNGKey(11)):
        with compilations() as compiled:
            found = [*random_arrays.split_keys(key, 6)]
            found.append(random_arrays.folded_key(key, 2**32 - 1))
        assert not compiled
        expected = [*jax.random.split(key, 6), jax.random.fold_in(key, 2**32 - 1)]
        for f, e in zip(found, expected, strict=True):
            assert (f.dtype, f.committed) == (e.dtype, e.committed)
            assert (jax.random.key_data(f) == jax.random.key_data(e)).all()
    # Counts of more than 32 bits, as of arrays beyond 2^32 entries.
    high, low = random_arrays.hashed(np.array([1, 2], np.uint32), np.array([2**32 + 3]))
    expected = jax.extend.random.threefry2x32_p.bind(*np.array([1, 2, 1, 3], np.uint32)[:, None])
    assert (high[0], low[0]) == (int(expected[0][0]), int(expected[1][0]))


def test_keys_that_the_host_cannot_serve_are_left_to_jax():
    key = jax.random.key(0)
    others = [jax.random.key(0, impl="rbg"), jax.random.split(key), jnp.zeros((3, 2), np.uint32)]
    others.append(jax.device_put(key, jax.devices()[0]))  # committed
    assert [random_arrays.words_of(k) for k in others] == [None] * 4
    seen = []
    jax.jit(lambda k: seen.append(random_arrays.words_of(k)) or 0)(key)
    jax.jit(lambda: seen.append(random_arrays.words_of(key)) or 0)()
    jax.jit(lambda: seen.append(random_arrays.words_of(jax.random.PRNGKey(0))) or 0)()
    with jax.threefry_partitionable(False):
        seen.append(random_arrays.words_of(key))
    assert seen == [None] * 4


def test_keys_that_the_host_cannot_serve_give_the_arrays_of_jax():
    def drawn_by_jax(key):
        keys = jax.random.split(key, 3)
        shapes, scales = [(1, 3, 2), (2, 4, 2), (2, 6, 1)], [2**-0.5, 2**-0.5, 1.0]
        return [
            jax.random.normal(k, s, np.float32) * jnp.float32(c)
            for k, s, c in zip(keys, shapes, scales, strict=True)
        ]

    cases = [(jax.random.key(3, impl="rbg"), True), (jax.random.key(3), False)]
    for key, partitionable in cases:
        with jax.threefry_partitionable(partitionable):
            found = tt.random(key, (3, 4, 6), 2, np.float32).cores
            for x, e in zip(found, drawn_by_jax(key), strict=True):
                np.testing.assert_array_equal(x, e)


def test_draws_transfer_nothing_implicitly(monkeypatch):
    """So that `jax.transfer_guard` does not forbid them, in first calls and in later ones."""
    key, t = jax.random.key(0), tt.ones((3, 4, 6))
    old = jax.random.PRNGKey(0)
    rngs = type("Rngs", (), {"params": lambda _: key})()
    calls = [
        lambda: tt.random(key, (3, 4, 6), 2),
        lambda: tucker.random(old, (3, 4, 6), 2),
        lambda: mera.random(key, (2,) * 4, 2),
        lambda: tt.stream(key, (3, 4), 2),
        lambda: sketch.gaussian(key, 10, 3),
        lambda: sketch.sparse(key, 10, 3),
        lambda: _initializers.train("normal", rngs, [(1, 3, 2), (2, 4, 1)], 1, 1.0, np.float32),
        lambda: _initializers.train("orthogonal", rngs, [(1, 3, 1)], 1, 1.0, np.float32),
        lambda: tt.sample(key, t, 3),
        lambda: tt.sample(key, t, 3, squared=False),
    ]
    for first, some in ((True, calls), (False, calls[:-2])):  # samples get programs of their own
        monkeypatch.setattr(random_arrays._first, "is_first", lambda *_, now=first: now)
        with jax.transfer_guard("disallow"):
            for call in some:
                call()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("s", "dtype"), [(1.0, np.float64), (1.5, np.float32), (3, np.float32), ("sqrt", jnp.bfloat16)]
)
def test_sparse_maps_on_the_host_are_those_of_programs(s, dtype):
    rng, key = np.random.default_rng([9960, *map(ord, str(s))]), jax.random.key(3)
    n, m = int(rng.integers(1, 3000)), int(rng.integers(1, 40))
    draw = functools.partial(sketch.sparse, in_shape=n, out_shape=m, s=s, dtype=dtype)
    found, expected = draw(key), jax.jit(draw)(key)
    for f, e in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert f.dtype == e.dtype
        np.testing.assert_array_equal(f, e)


def test_random_functions_of_new_shapes_compile_next_to_nothing():
    """A program for each power of four of entries, whatever the shapes."""
    rng = np.random.default_rng(9970)
    key = jax.random.key(3)

    def draws(shape, rank):
        t = tt.random(key, shape, rank)
        return (
            t,
            tt.sample(key, t, int(rng.integers(1, 9))),
            tt.sample(key, tt.ones(shape), 5, squared=False),
            tt.stream(key, shape, rank),
            tucker.random(key, shape, 2),
            mera.random(key, shape, 2),
            sketch.gaussian(key, shape, 3),
            sketch.sparse(key, shape, 9),
        )

    with compilations() as compiled:
        for _ in range(12):
            draws(tuple(int(n) for n in rng.integers(2, 5, 4)), int(rng.integers(1, 4)))
    assert len(compiled) <= 28  # seven laws and dtypes, up to 4096 entries; 96 calls


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_streams_and_samples_on_the_host_are_those_of_traced_keys(dtype):
    key = jax.random.key(5)
    found = tt.stream(key, (4, 3, 5), 3, dtype)
    expected = jax.jit(lambda k: tt.stream(k, (4, 3, 5), 3, dtype))(key)
    for f, e in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        close(f, e)
    t = tt.random(key, (4, 3, 5), 2, dtype)
    np.testing.assert_array_equal(tt.sample(key, t, 9), jax.jit(lambda k: tt.sample(k, t, 9))(key))


CASES = [
    (0, np.float32),
    *[pytest.param(k, d, marks=pytest.mark.slow) for k in (1, 2) for d in DTYPES],
]


@pytest.mark.parametrize(("seed", "dtype"), CASES)
def test_first_calls_of_tucker_tensors_and_of_tangents_compile_nothing(seed, dtype):
    """And give what programs give."""
    rng = np.random.default_rng([9980, seed])
    shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 5)))
    keys = [jax.random.key(k) for k in range(4)]
    x, y = (
        tucker.random(k, shape, int(r), dtype=dtype) for k, r in zip(keys, (2, 3), strict=False)
    )
    x = tucker.Tucker(x.core * np.asarray(1e25, dtype), x.factors)
    s, t = (tt.random(k, shape, r, dtype) for k, r in zip(keys, (2, 3), strict=False))
    where = rng.integers(0, shape, (5, len(shape)))
    stream = tt.stream(keys[0], shape, 3, dtype)
    calls = {
        "inner": (tucker.inner, x, y),
        "hadamard": (tucker.hadamard, y, y),
        "to_dense": (tucker.to_dense, x),
        "sum": (tucker.add, x, y),
        "to_tt": (tucker.to_tt, y),
        "evaluate": (lambda z: tucker.evaluate(z, where), x),
        "project": (tt.tangent_project, tt.orthogonalize(s, 0), t),
        "add": (lambda state, z: tt.stream_add(state, (z, z), -2.0), stream, t),
        "train": (tt.stream_train, tt.stream_add(stream, t)),
    }
    for name, (f, *given) in calls.items():
        with compilations() as compiled:
            found = f(*given)
        assert not compiled, name
        if seed == 0:  # programs take long to compile
            continue
        expected = jax.jit(f)(*given)
        if isinstance(found, tt.TT | tucker.Tucker):
            assert [a.aval for a in jax.tree.leaves(found)] == [
                a.aval for a in jax.tree.leaves(expected)
            ]
            dense = tt.to_dense if isinstance(found, tt.TT) else tucker.to_dense
            found, expected = dense(found), dense(expected)
        for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            close(a, b)


def tuckers(rng, dtype):
    """Two Tucker tensors of drawn sizes, with a dense core and with a train for a core."""
    order = int(rng.integers(2, 5))
    shape, ranks = rng.integers(2, 7, order), rng.integers(1, 4, order)
    core = train(rng, [(int(s),) for s in ranks], 3, dtype, 1e3)
    factors = [train(rng, [(int(n * s),)], 1, dtype).cores[0].reshape(n, s) for n, s in
               zip(shape, ranks, strict=True)]  # fmt: skip
    return [tucker.Tucker(tt.to_dense(core), factors), tucker.Tucker(core, factors)]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_first_calls_of_tucker_tensors_to_ranks_compile_nothing(seed):
    """Rounding to ranks, orthogonalisation and indexing of both kinds; results as of programs."""
    rng, dtype = np.random.default_rng([9990, seed]), DTYPES[seed]
    for t in tuckers(rng, dtype):
        n, many = t.shape[0], [slice(None)] * (t.order - 1)
        calls = {
            "round": lambda t: tucker.round(t, rank=2),
            "round both": lambda t: tucker.round(t, rank=2, tol=1e-3),
            "orthogonalize": tucker.orthogonalize,
            "slice": lambda t, n=n: t[n // 2 :],
            "vector": lambda t, n=n: t[[0, n - 1]],
            "new mode": lambda t: t[..., None],
        }
        calls["integer"] = lambda t, many=many: t[(1, *many)]
        if t.order > 2:
            calls["integer and new"] = lambda t, many=many: t[(None, 1, *many[1:], -1)]
        if isinstance(t.core, tt.TT):
            calls["round bonds"] = lambda t: tucker.round(t, core_rank=2)
        x = np.asarray(tucker.to_dense(t))
        exact = {k: f for k, f in calls.items() if "round" not in k} | {
            "orthogonalize": lambda x: x
        }
        for name, call in calls.items():
            with compilations() as compiled:
                found = call(t)
            assert not compiled, name
            if seed == 0:  # programs take long to compile
                if name in exact:
                    close(tucker.to_dense(found), exact[name](x))
                continue
            expected = jax.jit(call)(t)
            pairs = zip(*map(jax.tree.leaves, (found, expected)), strict=True)
            assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs), name
            close(tucker.to_dense(found), tucker.to_dense(expected))


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_first_conversions_to_tucker_tensors_compile_nothing(seed):
    rng, dtype = np.random.default_rng([9991, seed]), DTYPES[seed]
    t = train(rng, [(int(n),) for n in rng.integers(2, 9, int(rng.integers(1, 5)))], 2, dtype)
    for options in ({"rank": 2}, {"rank": 3, "tol": 1e-3}):
        with compilations() as compiled:
            found, info = convert.tt_to_tucker(t, **options)
        assert not compiled
        x, y = (np.asarray(f(z)) for f, z in ((tt.to_dense, t), (tucker.to_dense, found)))
        error = np.linalg.norm(x - y) / np.linalg.norm(x)
        assert error <= float(info.error) * 1.001 + 100 * np.finfo(dtype).eps
        if seed:
            expected, other = jax.jit(functools.partial(convert.tt_to_tucker, **options))(t)
            assert (found.ranks, found.core.ranks) == (expected.ranks, expected.core.ranks)
            close(tucker.to_dense(found), tucker.to_dense(expected))
            assert float(info.error) == pytest.approx(float(other.error), rel=1e-3, abs=1e-6)


def test_every_rank_of_a_tucker_rounding_has_first_calls():
    """Programs are compiled for ranks too: many ranks are not many calls of one program."""
    rng = np.random.default_rng(9992)
    shape = tuple(rng.integers(5, 8, 3).tolist())
    t = tucker.random(jax.random.key(0), shape, 5, core_rank=4)
    x = train(rng, [(n,) for n in shape], 4, np.float32)
    with compilations() as compiled:
        for k in range(1, 5):
            tucker.round(t, rank=k)
            tucker.round(t, core_rank=k)
            convert.tt_to_tucker(x, rank=k)
            convert.tt_to_tucker(x, rank=k, tol=1e-3)
    assert not compiled


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_orthogonalisation_of_numbers_that_are_not_finite_warns_of_nothing(bad):
    t = tucker.Tucker(jnp.full((2, 2), bad), [jnp.ones((4, 2)), jnp.ones((4, 2))])
    assert not np.isfinite(tucker.orthogonalize(t).core).any()
