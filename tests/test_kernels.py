"""Choice of kernels: the table is complete and asked, and all candidates of a row agree."""

import ast
import contextlib
import functools
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import tensorjax
from tensorjax import _native, convert, linalg, mera, nn, pde, sketch, tt, tucker
from tensorjax._cores import dense_decompositions
from tensorjax._kernels import choice, conditions, entry_costs, first_calls
from tensorjax._kernels.conditions import Condition
from tensorjax._kernels.printed_table import markdown
from tensorjax._kernels.table import CALL, CPP, FIXED, HOST, REMARKS, TABLE, TRACE
from tensorjax.mera import _overlap_network as mera_inner
from tensorjax.mera import _to_dense_and_tt
from tensorjax.sketch import _apply
from tensorjax.tt import _entries
from tensorjax.tt._arrays import mode_products, reshaping
from tensorjax.tt._products import hadamard_and_matrix_products as products
from tensorjax.tt._products import inner_product_kernels as inners
from tensorjax.tt._products import inner_products, product_kernels
from tensorjax.tt._rounding import round as rounding
from tensorjax.tt._statistics import sampling
from tensorjax.tt._tt_svd import from_dense
from tensorjax.tucker import _rounding as tucker_rounding
from tensorjax.tucker._decompositions import hosvd

ROOT = Path(__file__).resolve().parents[1]
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


# The table.


def test_the_last_candidate_of_every_stage_has_no_conditions() -> None:
    for operation, row in TABLE.items():
        assert row, operation
        for candidates in row.values():
            free = [not c.conditions for c in candidates]
            assert free == [False] * (len(candidates) - 1) + [True]
            kernels = [c.kernel for c in candidates]
            assert len(set(kernels)) == len(kernels)
    assert REMARKS.keys() <= TABLE.keys()


def test_conditions_have_names_of_their_own_and_reasons() -> None:
    held = {c for row in TABLE.values() for cs in row.values() for k in cs for c in k.conditions}
    found = {c for c in held if not c.parts} | {p for c in held for p in c.parts}
    assert len({c.name for c in found}) == len(found)
    assert all(c.reason for c in found)
    defined = (*vars(conditions).values(), *vars(first_calls).values())
    assert not {c for c in defined if isinstance(c, Condition)} - found


@functools.cache
def modules() -> list[tuple[str, list[ast.AST]]]:
    """Paths of all modules, with the nodes of their trees."""
    paths = sorted((ROOT / "tensorjax").rglob("*.py"))
    return [
        (str(p.relative_to(ROOT / "tensorjax")), [*ast.walk(ast.parse(p.read_text("utf-8")))])
        for p in paths
    ]


def names_of_call(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


ASKING = ("choose_kernel", "cpp_or_xla", "is_numpys")  # the last one for MERAs


def test_every_row_is_asked_and_nothing_else() -> None:
    """Operations are named where they are chosen; products by `f"tt.{kind}"`."""
    named: set[str] = set()
    for name, nodes in modules():
        calls = [n for n in nodes if isinstance(n, ast.Call)]
        asked = [n for n in calls if names_of_call(n) in ASKING]
        if name.startswith("_kernels") or not asked:
            continue
        for call in asked:
            first = call.args[0]
            if isinstance(first, ast.Constant):
                assert first.value in TABLE, (name, first.value)
            if isinstance(first, ast.JoinedStr):
                named |= {f"tt.{kind}" for kind in ("hadamard", "matvec", "matmul")}
        texts = {n.value for n in nodes if isinstance(n, ast.Constant)}
        named |= {n for n in texts if isinstance(n, str) and n in TABLE}
    assert named == TABLE.keys()


# Modules that look at platforms or at what was built for another purpose than to choose a kernel.
ELSEWHERE = {
    "_version_report.py": "a report",
    "_placement.py": "where results are put",
    "_transfer.py": "where constants are made, which are the same",
    "_formats/overflow_checks.py": "no program waits for an accelerator's scalar to be looked at",
    "_formats/random_arrays.py": "how random arrays are made, which changes none",
    "models/gpt2/_model.py": "how far a loop is unrolled",
    "models/gpt2/_attention.py": "JAX's own attention lacks a product on CPUs",
    "linalg/_qr.py": "how large the matrices are that a CPU's LAPACK is given",
    "linalg/_svd_eigh_polar.py": "results of one platform are refined",
    "offload/_training/passes/engine.py": "whose memory the optimiser's is",
}


def test_no_other_module_decides() -> None:
    """By the platform, by what C++ was built, or by counts of calls."""
    found = set()
    for name, nodes in modules():
        if name.split("/")[0] in ("_kernels", "_native"):
            continue
        for node in nodes:
            word = getattr(node, "attr", getattr(node, "id", None))
            words = {"default_backend", "platform_dependent", "is_first", "FirstCalls", "on_cpu"}
            status = (
                word == "status" and getattr(getattr(node, "value", None), "id", "") == "_native"
            )
            value = getattr(node, "value", None)  # the name of the module has none
            platform = (
                word == "platform" and value and getattr(value, "id", "") not in ("sys", "os")
            )
            if word in words or status or platform:
                found.add(name)
    assert found == ELSEWHERE.keys()


def test_the_table_is_printed() -> None:
    text = str(tensorjax.kernel_choices())
    assert all(operation in text for operation in TABLE)
    rows = tensorjax.kernel_choices("tt.round").rows
    assert {r.operation for r in rows} == {n for n in TABLE if n.startswith("tt.round(")}
    assert repr(tensorjax.kernel_choices("tt.inner")).count("else") == 2
    with pytest.raises(ValueError, match="expected one of"):
        tensorjax.kernel_choices("tt.rounding")
    assert all(name in markdown() for name in (*TABLE, *FIXED))


def test_the_page_of_kernels_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "kernels.py"))
    page = script["PAGE"].read_text("utf-8")
    assert script["written"](page) == page


# What serves, observed.


def train(rng: np.random.Generator, modes: Any, rank: int, dtype: Any) -> Any:
    """A train of modes, or a TT-matrix of pairs of modes."""
    pairs = [m if isinstance(m, tuple) else (m,) for m in modes]
    ranks = [1, *[rank] * (len(pairs) - 1), 1]
    cores = []
    for r, mode, s in zip(ranks, pairs, ranks[1:], strict=False):
        c = rng.standard_normal((2, r, *mode, s))
        c = c[0] + 1j * c[1] if np.dtype(dtype).kind == "c" else c[0]
        cores.append(jnp.asarray((c / np.sqrt(c.size)).astype(dtype)))
    return (tt.TTMatrix if len(pairs[0]) == 2 else tt.TT)(cores)


class Given:
    """Drawn operands of the operations, of one dtype, made when they are asked for."""

    def __init__(self, seed: int, dtype: Any, **arrays: Any) -> None:
        self.seed, self.dtype = seed, np.dtype(dtype)
        self.rng = np.random.default_rng([43, seed])
        order = int(self.rng.integers(3, 5))
        self.modes, self.rows = ([int(k) for k in self.rng.integers(2, 5, order)] for _ in "nm")
        self.indices = self.rng.integers(0, 2, (5, order))
        self.key = jax.random.key(seed)
        vars(self).update(arrays)

    @functools.cached_property
    def x(self) -> tt.TT:
        return train(self.rng, self.modes, 2, self.dtype)

    @functools.cached_property
    def y(self) -> tt.TT:
        return train(self.rng, self.modes, 2, self.dtype)

    @functools.cached_property
    def twice(self) -> tt.TT:
        """The train x with ranks twice as large as it needs."""
        pairs = [np.concatenate([c, c], -1) if k == 0 else np.concatenate([c, 0 * c], -1)
                 for k, c in enumerate(map(np.asarray, self.x.cores[:-1]))]  # fmt: skip
        cores = [*pairs, np.asarray(self.x.cores[-1])]
        cores = [c if k == 0 else np.concatenate([c, c], 0) / 2 for k, c in enumerate(cores)]
        return tt.TT(cores)

    @functools.cached_property
    def a(self) -> tt.TTMatrix:
        return train(self.rng, list(zip(self.rows, self.modes, strict=True)), 2, self.dtype)

    @functools.cached_property
    def dense(self) -> jax.Array:
        out = np.ones((1, 1), self.dtype)
        for c in map(np.asarray, self.x.cores):
            out = np.tensordot(out, c, 1)
        return jnp.asarray(out.reshape(self.modes))

    @functools.cached_property
    def v(self) -> jax.Array:
        return jnp.asarray(np.ones(self.modes[0], self.dtype))

    @functools.cached_property
    def u(self) -> tucker.Tucker:
        return tucker.from_dense(self.dense, rank=2)

    @functools.cached_property
    def m(self) -> mera.MERA:
        return mera.random(self.key, (2,) * 5, 2, dtype=self.dtype)

    @functools.cached_property
    def real(self) -> np.dtype:
        return np.zeros(0, self.dtype).real.dtype

    @functools.cached_property
    def data(self) -> jax.Array:
        return jnp.asarray(self.rng.standard_normal((3, 12)).astype(self.real))

    @functools.cached_property
    def p(self) -> Any:
        return sketch.ttrp(self.key, (3, 4), (2, 2), dtype=self.real)

    def arrays(self, call: Callable[["Given"], Any]) -> dict[str, Any]:
        """The operands that a call names."""
        return {n: getattr(self, n) for n in call.__code__.co_names if n in OPERANDS}

    def of(self, arrays: dict[str, Any]) -> "Given":
        """The same operands in other places, or traced."""
        return Given(self.seed, self.dtype, **arrays)


OPERANDS = {"x", "y", "twice", "a", "dense", "v", "u", "m", "data", "p"}
SINGLE, MESH = {"free", "committed"}, {"free", "committed", "mesh"}
# Rows of the stage "call": the call, where NumPy's code is, where that of programs is, and places
# of the operands for which NumPy serves first calls.
CALLS: dict[str, tuple[Callable[[Given], Any], tuple[Any, str], tuple[Any, str], set[str]]] = {
    "tt.inner": (
        lambda g: tt.inner(g.x, g.y), (inners, "host_overlap"), (inner_products, "_inner"), SINGLE,
    ),
    "tt.norm": (
        lambda g: tt.norm(g.x), (inners, "host_overlap"), (inner_products, "_norm"), SINGLE,
    ),
    "tt.hadamard": (
        lambda g: tt.hadamard(g.x, g.y),
        (product_kernels._PRODUCTS, "hadamard"), (products, "exact_hadamard"), SINGLE,
    ),
    "tt.matvec": (
        lambda g: tt.matvec(g.a, g.x),
        (product_kernels._PRODUCTS, "matvec"), (products, "exact_matrix_product"), SINGLE,
    ),
    "tt.matmul": (
        lambda g: tt.matmul(tt.transpose(g.a), g.a),
        (product_kernels._PRODUCTS, "matmul"), (products, "exact_matrix_product"), SINGLE,
    ),
    "tt.evaluate": (
        lambda g: tt.evaluate(g.x, g.indices),
        (_entries, "entries"), (_entries, "_evaluate"), SINGLE,
    ),
    "tt.contract_modes": (
        lambda g: tt.contract_modes(g.x, {0: g.v}),
        (mode_products, "_contracted_by_numpy"), (mode_products, "_contract_modes"), SINGLE,
    ),
    "tt.round(tol=)": (
        lambda g: tt.round(g.twice, tol=1e-4, rank=2),
        (rounding, "_dynamic"), (rounding, "_static"), MESH,
    ),
    "tt.from_dense(tol=)": (
        lambda g: tt.from_dense(g.dense, tol=1e-4, rank=2),
        (dense_decompositions, "to_tolerance"), (from_dense, "_static"), MESH,
    ),
    "tt.from_dense(rank=)": (
        lambda g: tt.from_dense(g.dense, rank=2),
        (dense_decompositions, "to_ranks"), (from_dense, "_static"), SINGLE,
    ),
    "tucker.from_dense(tol=)": (
        lambda g: tucker.from_dense(g.dense, tol=1e-4, rank=5),
        (dense_decompositions, "to_tolerance"), (hosvd, "_static"), MESH,
    ),
    "tucker.from_dense(rank=)": (
        lambda g: tucker.from_dense(g.dense, rank=4),
        (dense_decompositions, "to_ranks"), (hosvd, "_static"), SINGLE,
    ),
    "tucker.round(tol=)": (
        lambda g: tucker.round(g.u, tol=1e-4, rank=2),
        (tucker_rounding, "_dynamic"), (tucker_rounding, "_static"), MESH,
    ),
    "convert.tt_to_tucker(tol=)": (
        lambda g: convert.tt_to_tucker(g.x, tol=1e-4, rank=4)[0],
        (convert._tt_to_tucker, "_dynamic"), (convert._tt_to_tucker, "_static"), MESH,
    ),
    "tt.permute": (
        lambda g: tt.permute(g.x, (1, 0, *range(2, g.x.order)), tol=None),
        (reshaping, "_permuted_on_host"), (reshaping, "_permuted"), SINGLE,
    ),
    "tt.sample": (
        lambda g: tt.sample(jax.random.key(3), g.x, 4),
        (sampling, "_on_host"), (sampling, "_sample"), SINGLE,
    ),
    "mera.norm": (
        lambda g: mera.norm(g.m), (mera_inner, "on_device"), (mera_inner, "_norm_of"), SINGLE,
    ),
    "mera.inner": (
        lambda g: mera.inner(g.m, g.m),
        (mera_inner, "on_device"), (mera_inner, "_inner_of"), SINGLE,
    ),
    "mera.to_dense": (
        lambda g: mera.to_dense(g.m),
        (_to_dense_and_tt, "host_copy"), (_to_dense_and_tt, "_to_dense"), SINGLE,
    ),
    "mera.to_tt": (
        lambda g: mera.to_tt(g.m),
        (_to_dense_and_tt, "host_copy"), (_to_dense_and_tt, "_exact"), SINGLE,
    ),
    "sketch.apply": (
        lambda g: sketch.apply(g.p, g.data),
        (_apply, "_project_by_numpy"), (_apply, "_project"), SINGLE,
    ),
}  # fmt: skip
DEFAULT = ("tt.inner", "tt.evaluate", "tt.hadamard", "tt.from_dense(rank=)", "tt.round(tol=)")
calls = [name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in CALLS]


@contextlib.contextmanager
def observed(monkeypatch: pytest.MonkeyPatch, operation: str) -> Iterator[list[str]]:
    """Which of NumPy's code and that of programs, or of one call of C++, were called."""
    seen: list[str] = []

    def wrap(name: str, place: Any, key: str) -> None:
        is_dict = isinstance(place, dict)
        real = place[key] if is_dict else getattr(place, key)

        def watched(*args: Any, **options: Any) -> Any:
            seen.append(name)
            return real(*args, **options)

        (patch.setitem if is_dict else patch.setattr)(place, key, watched)

    with monkeypatch.context() as patch:
        wrap("NumPy", *CALLS[operation][1])
        wrap("program", *CALLS[operation][2])
        wrap("C++", product_kernels, "_product_in_one_call")
        wrap("C++", inners, "_overlap_in_one_call")
        yield seen


def places(given: Given, call: Any) -> Iterator[tuple[str, Given]]:
    device = jax.devices()[0]
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("d",))
    over = jax.NamedSharding(mesh, P())
    arrays = given.arrays(call)
    yield "free", given
    yield "committed", given.of(jax.device_put(arrays, device))
    yield "mesh", given.of(jax.device_put(arrays, over))


@pytest.mark.parametrize("operation", calls)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_serves_is_what_the_table_says(
    operation: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = DTYPES[(seed + list(CALLS).index(operation)) % 4]
    call, *_, numpys = CALLS[operation]
    for place, given in places(Given(seed, dtype), call):
        first_calls.forget_first_calls()
        with observed(monkeypatch, operation) as seen:
            call(given)
        assert seen[:1] == ["NumPy" if place in numpys else "program"], place
    with observed(monkeypatch, operation) as seen:
        jax.eval_shape(lambda arrays: call(given.of(arrays)), given.arrays(call))
    assert seen[:1] == ["program"]


@pytest.mark.parametrize("operation", ["tt.inner", "tt.hadamard", "tt.evaluate"])
def test_first_calls_are_numpys_and_later_ones_programs(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_calls.forget_first_calls()
    monkeypatch.setattr(conditions, "FEW_OPERATIONS", 0)  # entries that C++ always serves
    monkeypatch.setattr(first_calls, "COMPILING", 0.0)
    given = Given(7, np.float64)
    with observed(monkeypatch, operation) as seen:
        for _ in range(12):
            CALLS[operation][0](given)
    cores = len(seen[:-2]) // 10  # products are NumPy's core by core
    in_one_call = operation != "tt.evaluate" and not _native.status()
    assert seen == ["NumPy"] * 10 * cores + ["C++" if in_one_call else "program"] * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_overlaps_of_single_precision_are_by_blas(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C++ multiplies them in double precision, at half the speed; those of float64 stay its own."""
    first_calls.forget_first_calls()
    monkeypatch.setattr(first_calls, "CALLS", {})
    monkeypatch.setattr(conditions, "MOST_SINGLE", 2**9)
    rng = np.random.default_rng(4)
    served = "program" if _native.status() else "C++"
    for rank, single in ((2, served), (9, "NumPy")):
        x = tt.TT([rng.standard_normal(s).astype(dtype) for s in ((1, 3, rank), (rank, 3, 1))])
        y = tt.TT([rng.standard_normal(s).astype(dtype) for s in ((1, 3, 9), (9, 3, 1))])
        with observed(monkeypatch, "tt.inner") as seen:
            found = tt.inner(x, y)
        assert seen == [single if dtype == np.float32 else served]
        expected = np.vdot(tt.to_dense(x), tt.to_dense(y))
        np.testing.assert_allclose(found, expected, rtol=1e3 * np.finfo(dtype).eps)
        # A sum over a core near the largest number would leave the range in single precision.
        up = 0.4 * float(np.finfo(dtype).max) / float(jnp.abs(y.cores[0]).max())
        down = tt.TT([c / up**0.5 for c in x.cores])
        with observed(monkeypatch, "tt.inner") as seen:
            again = tt.inner(down, tt.TT([up * y.cores[0], y.cores[1]]))
        assert seen == [single if dtype == np.float32 else served]
        np.testing.assert_allclose(again, found, rtol=1e4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("seed", range(5))
def test_entries_are_made_one_by_one_up_to_some_number_of_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    order, rank = int(rng.integers(2, 25)), int(rng.integers(1, 200))
    ranks = [1, *[rank] * (order - 1), 1]
    shapes = list(zip(ranks, rng.integers(2, 100, order).tolist(), ranks[1:], strict=False))
    batches = [2**k for k in range(24)]
    once = sum(r * s for r, _, s in shapes)
    chosen = [entry_costs.faster_one_by_one(b, shapes, b * once) for b in batches]
    assert chosen == sorted(chosen, reverse=True)
    assert (chosen[0], chosen[-1]) == (True, False)


# All candidates of a row give the same.


@contextlib.contextmanager
def forced(operation: str, stage: Any, kernel: Any) -> Iterator[None]:
    """A row of the table with one candidate alone, in programs that are made within."""
    row = TABLE[operation]
    kept = row[stage]
    row[stage] = (next(c for c in kept if c.kernel is kernel)._replace(conditions=()),)
    choice._chosen_alike.cache_clear()
    if stage is not CALL:
        jax.clear_caches()
    try:
        yield
    finally:
        row[stage] = kept
        choice._chosen_alike.cache_clear()
        if stage is not CALL:
            jax.clear_caches()


def jitted(call: Callable[[Given], Any]) -> Callable[[Given], Any]:
    return lambda g: jax.jit(lambda arrays: call(g.of(arrays)))(g.arrays(call))


def as_dense(found: Any) -> list[np.ndarray]:
    for kind, dense in ((tt.TT, tt.to_dense), (tt.TTMatrix, tt.to_dense),
                        (tucker.Tucker, tucker.to_dense), (mera.MERA, mera.to_dense)):  # fmt: skip
        if isinstance(found, kind):
            return [np.asarray(dense(found))]
    return [np.asarray(x) for x in jax.tree.leaves(found)]


def embedding_rows(g: Given) -> Any:
    from flax import nnx

    layer = nn.TTEmbedding(12, 12, rank=2, num_shape=(2, 3, 2), feature_shape=(2, 2, 3),
                           rngs=nnx.Rngs(0), param_dtype=g.real)  # fmt: skip
    return layer(np.arange(12))


def real_train(g: Given) -> tt.TT:
    return train(np.random.default_rng(5), (3, 4, 2), 2, np.float64)


def density(g: Given) -> Any:
    start = pde.Gaussian(np.zeros(2), np.diag([1.0, 0.25]))
    box, map = pde.Box.fourier(2, 24, 6.0), pde.AffineMap.identity(2)
    return pde.evaluate(start.train(box, map, 1e-5), map, box, np.zeros((3, 2)))


def function(g: Given) -> Any:
    bases = [tt.functions.Chebyshev(n - 1, 0.0, 1.0) for n in g.x.shape]
    points = np.asarray(g.indices, np.empty(0, g.dtype).real.dtype) / 2
    return tt.functions.evaluate(tt.functions.FunctionTrain(bases, g.x), points)


wide = np.random.default_rng(0).standard_normal((3, 2**14))
OTHERS: dict[str, Callable[[Given], Any]] = {
    "tt.add": lambda g: tt.add(g.x, g.y),
    "tt.to_dense": lambda g: tt.to_dense(g.x),
    "tt.round(rank=)": lambda g: tt.round(g.twice, rank=2),
    "tt.round(tol=), one call": lambda g: tt.round(g.twice, tol=1e-3),
    "tt.round(tol=), few calls": lambda g: tt.round(g.twice, tol=1e-3),
    "tt.inner, derivative": lambda g: jax.grad(lambda x: tt.inner(x, g.y).real)(g.x),
    "tt.round(tol=), Gram sweep": lambda g: tt.round(g.twice, tol=1e-3, method="gram"),
    "tt.round(tol=), Gram factor": lambda g: tt.linear_combination(
        [g.x, g.x], tol=1e-3, method="gram"
    ),
    "tt.matvec(rank=)": lambda g: tt.matvec(g.a, g.x, rank=4),
    "tt.linear_combination(rank=)": lambda g: tt.linear_combination([g.x, (g.x, g.y)], rank=4),
    "tt.round(rank=, tol=)": lambda g: tt.round(g.twice, rank=2, tol=1e-12),
    "tt.transpose": lambda g: tt.transpose(g.a),
    "tt.tensordot": lambda g: tt.tensordot(g.x, tt.reverse(g.y), 1),
    "tt.bilinear_form": lambda g: tt.bilinear_form(tt.matvec(g.a, g.x), g.a, g.x),
    "tt.pairwise_inner": lambda g: tt.pairwise_inner([g.x, g.y]),
    "tt.pairwise_inner, stacked cores": lambda g: tt.pairwise_inner([g.x, g.y]),
    "tt.TTMatrix @ array": lambda g: g.a @ np.ones(g.a.shape[1], g.dtype),
    "tt.pinv": lambda g: tt.pinv(g.x, 1),
    "tt.broadcast_to": lambda g: tt.broadcast_to(tt.ones((1, 3), g.dtype), (4, 3)),
    "tt.sobol": lambda g: tt.mean_dimension(real_train(g)),
    "pde.evaluate": density,
    "tt.functions.evaluate": function,
    "tt.singular_values": lambda g: tt.singular_values(g.x),
    "tt.orthogonalize": lambda g: tt.orthogonalize(g.x, 1),
    "tt.sample(squared=False)": lambda g: tt.sample(
        jax.random.key(3), real_train(g) * real_train(g), 4, squared=False
    ),
    "tt.log_density": lambda g: tt.log_density(g.x, g.indices, squared=True),
    "tt.quantics.toeplitz": lambda g: tt.quantics.toeplitz(
        tt.random(jax.random.key(2), (2,) * 4, 2, g.dtype)
    ),
    "tt.patches.inner": lambda g: tt.patches.inner(
        tt.patches.PatchedTT(g.x.shape, [()], [g.x]), g.y
    ),
    "tt.pad": lambda g: tt.pad(g.x, 4),
    "tt.effective_ranks": lambda g: list(tt.effective_ranks(tt.pad(g.x, 4))),
    "tt.distance": lambda g: tt.distance(g.x, g.y),
    "tt.log_norm": lambda g: tt.log_norm(g.x),
    "tt.TT[...]": lambda g: g.x[0, 1:],
    "tt.reshape": lambda g: tt.reshape(g.x, (-1, g.x.shape[-1])),
    "tt.mode_product": lambda g: tt.mode_product(g.x, np.eye(g.x.shape[1], dtype=g.x.dtype), 1),
    "tt.tangent_project": lambda g: tt.tangent_project(g.x, g.y),
    "tt.tangent_project, products": lambda g: tt.tangent_project(g.x, g.y),
    "tt.stream_add": lambda g: tt.stream_train(
        tt.stream_add(tt.stream(jax.random.key(0), g.x.shape, 20, g.dtype), g.x)
    ),
    "tucker.to_dense": lambda g: tucker.to_dense(tucker.hadamard(g.u, g.u)),
    "tucker.Tucker[...]": lambda g: g.u[0, 1:],
    "convert.tt_to_tucker(rank=)": lambda g: convert.tt_to_tucker(g.x, rank=2)[0],
    "tucker.norm": lambda g: tucker.norm(g.u),
    "tucker.evaluate": lambda g: tucker.evaluate(g.u, g.indices),
    "mera.expectation": lambda g: mera.expectation(g.m, np.diag([1.0, -1.0]), 2),
    "mera.to_tt(tol=)": lambda g: mera.to_tt(g.m, rank=4),
    "sketch.apply(sparse)": lambda g: sketch.apply(g.p, sparse(g)),
    "nn.TTEmbedding": embedding_rows,
    "tt.evaluate, entries": lambda g: tt.evaluate(g.x, g.indices),
    "linalg.gram": lambda g: linalg.gram(wide),
    "linalg.project": lambda g: linalg.project(np.eye(3)[:, :2], wide),
}


def sparse(g: Given) -> Any:
    import scipy.sparse

    return scipy.sparse.coo_array(np.asarray(g.data))


EVERY = {**{name: case[0] for name, case in CALLS.items()}, **OTHERS}
stages = [(name, stage) for name, row in TABLE.items() for stage in row]
BY_DEFAULT = {
    ("tt.inner", CALL), ("tt.inner", TRACE), ("tt.hadamard", TRACE), ("tt.evaluate", CALL),
    ("tt.round(tol=), Gram sweep", HOST), ("tt.from_dense(tol=)", HOST), ("linalg.gram", HOST),
    ("tt.linear_combination(rank=)", CALL), ("tt.tensordot", CALL),
    ("tt.contract_modes", CALL), ("tt.round(rank=)", TRACE), ("tt.from_dense(rank=)", CALL),
    ("tucker.from_dense(tol=)", HOST),
}  # fmt: skip


def test_every_row_has_a_call() -> None:
    assert set(TABLE) - set(EVERY) == set()


@pytest.mark.parametrize(
    ("operation", "stage"),
    [s if s in BY_DEFAULT else pytest.param(*s, marks=pytest.mark.slow) for s in stages],
)
def test_all_candidates_of_a_row_agree(operation: str, stage: Any) -> None:
    real = ("mera", "sketch", "tt.inner", "tt.norm")  # of some, C++ serves real ones alone
    complexes = stage is CALL and not operation.startswith(real)
    given = Given(11, np.complex128 if complexes else np.float64)
    call = EVERY[operation]
    if operation == "sketch.apply" and stage is TRACE:
        p = sketch.ttrp(jax.random.key(0), (9, 20), (3, 2), dtype=np.float64)
        x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 180)))
        call = lambda g: jax.jit(sketch.apply)(p, x)  # noqa: E731
    elif stage is TRACE and operation != "nn.TTEmbedding":
        call = jitted(EVERY[operation])
    found = {}
    for candidate in TABLE[operation][stage]:
        if candidate.kernel is CPP and _native.status():
            pytest.skip(_native.status())
        first_calls.forget_first_calls()
        with forced(operation, stage, candidate.kernel):
            found[candidate.kernel] = as_dense(call(given))
    first, *others = found.values()
    assert others
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, atol=1e-11 * max(np.abs(a).max(), 1e-300), rtol=0)
