"""Contraction plans: values, derivatives, counted costs, paths, memory limits, bad input."""

import functools
import itertools
import random
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tensorjax import contract
from tensorjax.contract import _paths, _plans_and_einsum
from tests.oracles import check_gradient, compilations, eps, normal, wide

# Every form of expression, at a size where NumPy's plain einsum is the oracle.
SMALL = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    (" i j, jk -> k i ", (3, 4), (4, 5)),
    ("ji", (3, 4)),
    ("ij->ij", (3, 4)),
    ("ijk->ki", (2, 3, 4)),
    ("ij->", (3, 4)),
    ("ii", (4, 4)),
    ("ii->i", (4, 4)),
    ("iij->j", (3, 3, 4)),
    ("ijij->ji", (2, 3, 2, 3)),
    ("iii,iij,j", (2, 2, 2), (2, 2, 3), (3,)),
    ("abz,byc->ac", (2, 3, 4), (3, 5, 2)),
    ("ij,ij->ij", (3, 4), (3, 4)),
    ("ij,ij->", (3, 4), (3, 4)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("a,b->ba", (3,), (4,)),
    ("ab,cd->", (2, 3), (4, 5)),
    ("ir,jr,kr->ijk", (2, 4), (3, 4), (5, 4)),
    ("ia,ib,ic,id->bd", (3, 2), (3, 3), (3, 4), (3, 5)),
    ("ab,bc,cd,da->", (2, 3), (3, 4), (4, 5), (5, 2)),
    ("kai,bkj->aibj", (3, 2, 4), (5, 3, 2)),
    ("", ()),
    (",->", (), ()),
    (",i,->i", (), (3,), ()),
    ("aib,bjc->ijac", (1, 3, 4), (4, 5, 1)),
    ("ij,jk->ik", (3, 1), (1, 2)),
    ("i,i->i", (1,), (3,)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 3)),
    ("...i,i", (2, 3, 4), (4,)),
    ("i...->...", (3, 2, 2)),
    ("a...a->...", (3, 2, 3)),
    ("ij,jk->ik", (0, 4), (4, 2)),
    ("ij,jk->ik", (3, 0), (0, 2)),
]

# Networks whose products dominate, for counting.
LARGE = {
    "product": ("ij,jk->ik", (64, 128), (128, 96)),
    "chain": ("ij,jk,kl,lm->im", (30, 200), (200, 40), (40, 300), (300, 10)),
    "batch": ("bij,bjk,bkl->bil", (8, 32, 32), (8, 32, 32), (8, 32, 32)),
    "transposed": ("kai,bkj->aibj", (64, 5, 6), (7, 64, 8)),
    "matrix and vector": ("ij,j->i", (300, 200), (200,)),
    "hyperedge": ("ir,jr,kr->ijk", (30, 16), (31, 16), (32, 16)),
    "hyperedge, summed": ("ir,jr,kr,ijk->r", (30, 16), (31, 16), (32, 16), (30, 31, 32)),
    "Tucker": ("abc,ia,jb,kc->ijk", (10, 11, 12), (40, 10), (41, 11), (42, 12)),
    "train": ("ia,ajb,bkc,cl->ijkl", (8, 10), (10, 8, 10), (10, 8, 10), (10, 8)),
    "layer": ("xabc,apu,ubqv,vcr->xpqr", (64, 8, 8, 8), (8, 8, 12), (12, 8, 8, 12), (12, 8, 8)),
    "ring": ("abc,cde,efg,gha->bdfh", (6, 10, 6), (6, 10, 6), (6, 10, 6), (6, 10, 6)),
    "attention": ("bqhd,bkhd,bkhe->bqhe", (2, 32, 4, 16), (2, 32, 4, 16), (2, 32, 4, 16)),
    "bilinear": ("bi,bj,ijk->bk", (64, 20), (64, 21), (20, 21, 22)),
    "MERA": ("abcd,aefg,befh,cgih,dj->ij", (8,) * 4, (8,) * 4, (8,) * 4, (8,) * 4, (8, 8)),
    "diagonal and sum": ("aab,bcz,cd->d", (32, 32, 64), (64, 96, 2), (96, 64)),
}


def operands(rng: np.random.Generator, shapes: Any, dtype: Any = np.float64) -> list[np.ndarray]:
    return [normal(rng, shape, dtype) for shape in shapes]


def close(x: Any, y: Any, factor: float = 1e3) -> None:
    """Agreement up to rounding at the scale of the larger array."""
    assert x.shape == y.shape
    y = wide(y)
    scale = max(float(np.abs(y).max(initial=0)), 1e-30)
    assert np.abs(wide(x) - y).max(initial=0) <= factor * eps(x.dtype) * scale


def analysis(function: Any, *args: Any) -> tuple[float, Any]:
    """Operations that XLA counts in a compiled program, and its memory."""
    compiled = jax.jit(function).lower(*args).compile()
    cost: Any = compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return cost["flops"], compiled.memory_analysis()


def total(memory: Any) -> int:
    sizes = ("argument_size", "output_size", "temp_size")
    return sum(getattr(memory, f"{name}_in_bytes") for name in sizes)


def structs(shapes: Any, dtype: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def with_vjp(plan: contract.Plan) -> Any:
    def run(cotangent: jax.Array, *arrays: jax.Array) -> Any:
        value, pull = jax.vjp(plan, *arrays)
        return value, pull(cotangent)

    return run


def loss(plan: Any) -> Any:
    return lambda *arrays: jnp.sum(jnp.abs(plan(*arrays)) ** 2)


def gradients(plan: Any, arrays: Any) -> Any:
    return jax.grad(loss(plan), tuple(range(len(arrays))))(*arrays)


# Values and derivatives --------------------------------------------------------------------------


@pytest.mark.parametrize(("expr", "shapes"), [(e, s) for e, *s in SMALL])
def test_values_and_gradients(rng, expr, shapes):
    xs = operands(rng, shapes, np.complex128)
    p = contract.plan(expr, *xs)

    @jax.jit
    def run(*arrays: jax.Array) -> Any:
        reference = functools.partial(jnp.einsum, expr)
        return p(*arrays), gradients(p, arrays), gradients(reference, arrays)

    value, got, want = run(*xs)
    assert (p.shape, p.dtype) == (value.shape, value.dtype)
    close(value, np.einsum(expr, *xs))
    for x, y in zip(got, want, strict=True):
        close(x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, jnp.bfloat16, np.int32, np.bool_])
def test_dtypes(rng, dtype):
    xs = [jnp.asarray(3 * x).astype(dtype) for x in operands(rng, [(3, 4), (4, 5), (5, 2)])]
    got = contract.einsum("ij,jk,kl->l", *xs)
    assert got.dtype == dtype
    want = np.einsum("ij,jk,kl->l", *[np.asarray(x) if dtype == np.bool_ else wide(x) for x in xs])
    if jnp.issubdtype(dtype, jnp.inexact):
        close(got, want)
    else:
        np.testing.assert_array_equal(got, want)


def test_mixed_dtypes_are_promoted_once(rng):
    a, b, c = operands(rng, [(3, 4), (4, 5), (5,)])
    xs = (jnp.asarray(a, jnp.bfloat16), jnp.asarray(b, jnp.float32), jnp.asarray(c, jnp.complex64))
    got = contract.einsum("ij,jk,k->i", *xs)
    assert got.dtype == jnp.complex64
    close(got, np.einsum("ij,jk,k->i", *map(wide, xs)))
    assert contract.einsum("ij,->ij", xs[1], 2.0).dtype == jnp.float32  # a Python scalar is weak


def test_precision_and_preferred_type_reach_every_product(rng):
    xs = [jnp.asarray(x, jnp.bfloat16) for x in operands(rng, [(8, 16), (16, 8), (8, 4), (4, 4)])]
    p = contract.plan("ij,jk,kl,ll->il", *xs, precision="highest", preferred_element_type="float32")
    assert p.precision == "highest"
    assert p.preferred_element_type == p.dtype == jnp.float32
    products = [e for e in equations(jax.make_jaxpr(p)(*xs).jaxpr) if e.primitive.name == DOT]
    assert len(products) == 3
    highest = jax.lax.Precision.HIGHEST
    assert {e.params["precision"] for e in products} == {(highest, highest)}
    assert {e.params["preferred_element_type"] for e in products} == {jnp.dtype("float32")}
    close(p(*xs), np.einsum("ij,jk,kl,ll->il", *map(wide, xs)))
    assert all(g.dtype == jnp.bfloat16 for g in gradients(p, xs))
    whole = contract.plan("ij,jk->ik", (4, 4), (4, 4), dtype="int8", preferred_element_type="int32")
    assert whole(*[np.full((4, 4), 100, np.int8)] * 2).tolist() == [[40000] * 4] * 4


DOT = "dot_general"


def equations(jaxpr: Any) -> Any:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", None)
            if inner is not None:
                yield from equations(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize("name", LARGE)
def test_products_are_matrix_products(name):
    """Sums and diagonals come first; all else is a product of (batches of) matrices."""
    p = contract.plan(LARGE[name][0], *LARGE[name][1:])
    found = list(equations(jax.make_jaxpr(p)(*structs(p.shapes, "float32")).jaxpr))
    names = [e.primitive.name for e in found]
    assert names.count(DOT) == len(p.shapes) - 1
    assert "reduce_sum" not in names[names.index(DOT) :]
    for e in found:
        (summed, _), (batch, _) = e.params["dimension_numbers"] if e.primitive.name == DOT else NONE
        if summed:
            assert len(summed) == 1
            assert len(batch) <= 1
            assert max(v.aval.ndim for v in e.invars) <= 3


NONE = (((), ()), ((), ()))


def test_transformations(rng):
    xs = [jnp.asarray(x) for x in operands(rng, [(3, 4), (4, 5), (5, 3)])]
    p = contract.plan("ij,jk,ki->k", *xs)
    want = p(*xs)
    close(jax.jit(p)(*xs), want)
    batch = jnp.stack([xs[0], 2 * xs[0]])
    close(jax.vmap(p, (0, None, None))(batch, *xs[1:]), jnp.stack([want, 2 * want]))
    close(jax.jit(jax.vmap(p, (None, 0, 0)))(xs[0], *(jnp.stack([x] * 2) for x in xs[1:]))[1], want)
    close(jax.jvp(p, xs, xs)[1], 3 * want)  # it is linear in each of three operands
    check_gradient(lambda a: loss(p)(*a), xs, rng)
    flat = jax.hessian(lambda a: p(a, *xs[1:]).sum() ** 2)(xs[0]).reshape(12, 12)
    assert np.linalg.matrix_rank(np.asarray(flat)) == 1


def test_more_labels_than_letters(rng):
    d = 30
    labels = [opt_einsum.get_symbol(i) for i in range(2 * d + 1)]
    terms = [labels[2 * i] + labels[2 * i + 1] + labels[2 * i + 2] for i in range(d)]
    expr = ",".join([*terms, *(labels[2 * i + 1] for i in range(d))]) + f"->{labels[0]}{labels[-1]}"
    cores, vectors = operands(rng, [(3, 2, 3)] * d), operands(rng, [(2,)] * d)
    want = np.eye(3)
    for core, vector in zip(cores, vectors, strict=True):
        want = want @ np.einsum("anb,n->ab", core, vector)
    close(contract.einsum(expr, *cores, *vectors), want)


def test_interleaved_operands(rng):
    x, y = operands(rng, [(3, 4), (4, 5)])
    close(contract.einsum(x, [0, 1], y, [1, 2], [2, 0]), (x @ y).T)
    assert contract.plan((2, 3), [0, 1], (3, 4), [1, 2]).shape == (2, 4)


# Plans -------------------------------------------------------------------------------------------


def test_plans_are_cached():
    p = contract.plan("ij,jk->ik", (3, 4), (4, 5))
    assert contract.plan(" ij, jk ", *structs(p.shapes, np.float32)) is p
    assert contract.plan("ij,jk", *(np.ones(s, np.float32) for s in p.shapes)) is p
    assert contract.plan("ij,jk", *p.shapes, dtype="float64") is not p
    assert contract.plan("ij,jk", *p.shapes, precision="highest") is not p
    assert contract.plan("ij,jk->ki", *p.shapes) is not p
    assert len({p, p}) == 1

    @jax.jit
    def traced(x: jax.Array) -> jax.Array:
        assert contract.plan("ij,jk->ik", x, p.shapes[1]) is p
        return x

    traced(jnp.ones((3, 4), jnp.float32))


def test_an_eager_call_is_one_program(rng):
    xs = [jnp.asarray(x) for x in operands(rng, [(7, 11), (11, 7), (7, 5)])]
    p = contract.plan("ij,ji,ik->k", *xs)
    with compilations() as first:
        p(*xs)
    with compilations() as second:
        p(*xs)
        contract.einsum("ij,ji,ik->k", *xs)
    assert (len(first), len(second)) == (1, 0)


def test_a_plan_can_be_read():
    p = contract.plan("ab,bbc,cd->ad", (64, 64), (64, 64, 64), (64, 8), memory_limit=1_200_000)
    text = str(p)
    assert text == p.table()
    assert "bbc->bc" in text
    assert "forward + backward" in text
    assert str(contract.plan("ij->ji", (2, 3))).count("\n") == 4


# Costs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("name", LARGE)
def test_costs_agree_with_the_compiled_program(name, dtype):
    """XLA counts operations of the element type, complex ones too, as `Plan.flops` does."""
    expr, *shapes = LARGE[name]
    p = contract.plan(expr, *shapes, dtype=dtype)
    xs = structs(shapes, dtype)
    flops, memory = analysis(p, *xs)
    assert p.flops == pytest.approx(flops, rel=0.05)
    assert p.peak_bytes == pytest.approx(total(memory), rel=0.3)
    flops, memory = analysis(with_vjp(p), *structs([p.shape], dtype), *xs)
    assert p.grad.flops == pytest.approx(flops, rel=0.05)
    assert p.grad.peak_bytes == pytest.approx(total(memory), rel=0.5)
    assert p.grad.bytes > p.bytes


def test_the_gradient_of_a_loss_costs_what_the_plan_says():
    for name in ("chain", "layer", "ring"):
        expr, *shapes = LARGE[name]
        p = contract.plan(expr, *shapes)
        run = jax.value_and_grad(lambda *a, p=p: jnp.sum(p(*a) ** 2), tuple(range(len(shapes))))
        assert p.grad.flops == pytest.approx(
            analysis(run, *structs(shapes, "float32"))[0], rel=0.05
        )


def test_costs_by_hand():
    p = contract.plan("ij,jk->ik", (2, 3), (3, 5), dtype="float64")
    assert p.flops == 2 * 2 * 3 * 5
    assert p.bytes == p.peak_bytes == 8 * (2 * 3 + 3 * 5 + 2 * 5)
    assert p.grad == (3 * p.flops, 3 * p.bytes, 2 * p.peak_bytes)
    assert contract.plan("i,j->ij", (3,), (5,)).flops == 15  # no sum, one multiplication each
    assert contract.plan("ij,jk->ik", (3, 1), (1, 5)).flops == 15
    assert contract.plan("ij->i", (3, 5)).flops == 3 * 4  # five numbers, four additions
    assert contract.plan("ij->ji", (3, 5)).flops == 0
    # The sum over z comes first: additions, then a product without z.
    assert contract.plan("abz,bc->ac", (2, 3, 4), (3, 5)).flops == 2 * 3 * 3 + 2 * 2 * 3 * 5
    z = contract.plan("ij,jk->ik", (2, 3), (3, 5), dtype="complex64")
    assert (z.flops, z.real_flops) == (60, 240)  # a complex multiply-add is 8 real operations
    # No gradient reaches an integer operand.
    n = contract.plan("ij,jk->ik", jax.ShapeDtypeStruct((2, 3), "int32"), (3, 5))
    assert n.grad.flops == 2 * n.flops


def test_residuals_are_counted(rng):
    """`jax.vjp` keeps what `residual_bytes` says, and the operands; none when rematerialised."""
    xs = [jnp.asarray(x) for x in operands(rng, [(32, 32)] * 4)]
    p = contract.plan("ab,bc,cd,de->ae", *xs)
    q = contract.plan("ab,bc,cd,de->ae", *xs, memory_limit=p.peak_bytes)
    assert (p.remat, q.remat, dict(q.slices)) == (False, True, {})
    assert q.grad.flops > p.grad.flops
    held = [sum(x.nbytes for x in jax.tree.leaves(jax.vjp(plan, *xs)[1])) for plan in (p, q)]
    given = sum(x.nbytes for x in xs)
    assert [p.residual_bytes + given, q.residual_bytes + given] == held
    assert (p.residual_bytes, q.residual_bytes) == (2 * 32 * 32 * 8, 0)
    for got, want in zip(gradients(q, xs), gradients(p, xs), strict=True):
        close(got, want)


# Paths -------------------------------------------------------------------------------------------


def random_network(seed: int) -> tuple[str, list[tuple[int, ...]]]:
    """A connected or disconnected network with hyperedges, diagonals, sums and axes of size 1."""
    r = random.Random(seed)
    n = r.randint(2, (4, 7, 10)[seed % 3])
    terms, sizes = [""] * n, {}
    for label in (opt_einsum.get_symbol(i) for i in range(r.randint(n, 2 * n + 1))):
        sizes[label] = r.choice([1, 2, 2, 3, 4, 5])
        for _ in range(r.choice([1, 2, 2, 2, 3, 4])):
            i = r.randrange(n)
            if len(terms[i]) < 5:
                terms[i] += label
    used = sorted({label for term in terms for label in term})
    out = [label for label in used if r.random() < 0.25][:4]
    r.shuffle(out)
    return f"{','.join(terms)}->{''.join(out)}", [tuple(sizes[c] for c in t) for t in terms]


def strategies(n: int) -> list[str]:
    return ["optimal"] * (n <= 7) + ["branch-all"] * (n <= 5) + ["dp", "greedy", "auto", "auto-hq"]


def check_never_costlier(expr: str, shapes: Any) -> contract.Plan:
    """By opt_einsum's own count and by ours."""
    p = contract.plan(expr, *shapes)
    for name in strategies(len(shapes)):
        strategy: Any = name
        path, info = opt_einsum.contract_path(expr, *shapes, shapes=True, optimize=strategy)
        assert p.flops <= int(info.opt_cost)
        assert p.flops <= contract.plan(expr, *shapes, optimize=path).flops
    return p


@pytest.mark.parametrize("name", LARGE)
def test_never_costlier_than_opt_einsum(name):
    expr, *shapes = LARGE[name]
    p = check_never_costlier(expr, shapes)
    again = opt_einsum.contract_path(expr, *shapes, shapes=True, optimize=list(p.path))
    assert tuple(again[0]) == p.path


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(rng, seed):
    expr, shapes = random_network(seed)
    check_never_costlier(expr, shapes)
    xs = operands(rng, shapes)
    close(contract.einsum(expr, *xs), opt_einsum.contract(expr, *xs), 1e5)


def chain(n: int, seed: int = 0) -> tuple[str, list[tuple[int, ...]]]:
    r = random.Random(seed)
    sizes = [r.randint(2, 50) for _ in range(n + 1)]
    labels = [opt_einsum.get_symbol(i) for i in range(n + 1)]
    terms = ",".join(labels[i] + labels[i + 1] for i in range(n))
    return f"{terms}->{labels[0]}{labels[-1]}", list(itertools.pairwise(sizes))


@pytest.mark.parametrize("installed", [True, False])
def test_many_operands(monkeypatch, installed):
    """Optimal for a chain of 30 matrices, with cotengra and without, and repeatable."""
    expr, shapes = chain(30)
    if not installed:
        monkeypatch.setattr(_paths.importlib.util, "find_spec", lambda name: None)
    state = random.getstate()
    found = []
    for _ in range(2):
        _paths.search.cache_clear()
        _plans_and_einsum._plan.cache_clear()
        found.append(contract.plan(expr, *shapes))
    assert found[0].path == found[1].path
    assert random.getstate() == state
    exact = opt_einsum.contract_path(expr, *shapes, shapes=True, optimize="dp")[1].opt_cost
    assert found[0].flops == int(exact)


def test_given_paths_and_strategies(rng):
    expr, shapes = "ij,jk,kl,lm->im", [(2, 3), (3, 4), (4, 5), (5, 6)]
    xs = operands(rng, shapes)
    want = np.linalg.multi_dot(xs)
    assert contract.plan(expr, *xs, optimize=[(2, 3), (0, 1), (0, 1)]).path[0] == (2, 3)
    whole = contract.plan(expr, *xs, optimize=[(0, 1, 2, 3)])
    assert len(whole.path) == 3  # one step over all: pairs from left to right
    numpy_path = np.einsum_path(expr, *xs, optimize="optimal")[0]
    random_greedy = opt_einsum.RandomGreedy(max_repeats=4)
    for optimize in (numpy_path, "optimal", "dp", "greedy", "random-greedy", random_greedy):
        p = contract.plan(expr, *xs, optimize=optimize)
        assert p.flops >= contract.plan(expr, *xs).flops
        close(p(*xs), want)
    p = contract.plan(expr, *xs)
    assert contract.plan(expr, *xs, minimize="bytes").bytes <= p.bytes
    assert contract.plan(expr, *xs, minimize="peak").peak_bytes <= p.peak_bytes


# Memory limits -----------------------------------------------------------------------------------

# A free index, a batch, a summed one, a hyperedge, an inner axis of the output, a ring.
SLICED = [
    ("xabc,apu,ubqv,vcr->xpqr", 0.5, (64, 4, 4, 4), (4, 4, 6), (6, 4, 4, 6), (6, 4, 4)),
    ("bij,bjk,bkl->bil", 0.5, (8, 16, 16), (8, 16, 16), (8, 16, 16)),
    ("ai,bi,ci,abc->", 0.5, (24, 16), (25, 16), (26, 16), (24, 25, 26)),
    ("ai,ij,jk,kl,la->", 0.8, (60, 60), (60, 60), (60, 60), (60, 60), (60, 60)),
    ("ir,jr,kr->kij", 0.6, (12, 64), (14, 64), (16, 64)),
    ("ijk,klm,mni->jln", 0.4, (12, 8, 12), (12, 8, 12), (12, 8, 12)),
]


@pytest.mark.parametrize(("expr", "fraction", "shapes"), [(e, f, s) for e, f, *s in SLICED])
def test_a_memory_limit_is_kept(rng, expr, fraction, shapes):
    xs = [jnp.asarray(x) for x in operands(rng, shapes)]
    p = contract.plan(expr, *xs)
    fixed = sum(x.nbytes for x in xs) + 8 * int(np.prod(p.shape))
    limit = int(fixed + fraction * (p.peak_bytes - fixed))
    q = contract.plan(expr, *xs, memory_limit=limit)
    assert q.slices
    assert q.remat
    assert q.peak_bytes <= limit < p.peak_bytes
    close(q(*xs), p(*xs))
    for got, want in zip(*jax.jit(lambda: (gradients(q, xs), gradients(p, xs)))(), strict=True):
        close(got, want)
    close(jax.jvp(q, xs, xs)[1], len(xs) * p(*xs))
    before, after = (analysis(plan, *xs)[1] for plan in (p, q))
    assert after.temp_size_in_bytes < before.temp_size_in_bytes
    assert total(after) <= 1.1 * limit


def test_sliced_plans_under_transformations(rng):
    xs = [jnp.asarray(x) for x in operands(rng, [(48, 48)] * 3)]
    p = contract.plan("ab,bc,cd->ad", *xs)
    q = contract.plan("ab,bc,cd->ad", *xs, memory_limit=p.peak_bytes - 8000)
    assert q.slices

    def run(f: Any, *a: jax.Array) -> Any:
        batched = jax.vmap(f, (0, None, None))(jnp.stack(a), *a[1:])
        nested = jax.jvp(jax.grad(loss(f)), a, a)[1]
        return batched, nested

    both = (jax.jit(functools.partial(run, f))(*xs) for f in (q, p))
    for got, want in zip(*both, strict=True):
        close(got, want)


def test_a_sliced_loop_is_counted_in_full(rng):
    """XLA counts one slice; products that no slice changes are made once, before the loop."""
    shapes = [(64, 48), (48, 48), (48, 32)]
    p = contract.plan("ab,bc,cd->ad", *shapes, optimize=[(0, 1), (0, 1)])
    q = contract.plan("ab,bc,cd->ad", *shapes, optimize=[(0, 1), (0, 1)], memory_limit=38_000)
    assert set(q.slices) == {"a"}
    assert q.flops == p.flops
    flops, _ = analysis(q, *structs(shapes, "float32"))
    assert flops * q.slices["a"] == pytest.approx(q.flops, rel=0.01)


def test_a_memory_limit_for_gradients(rng):
    expr, *shapes = LARGE["layer"]
    xs = [jnp.asarray(x, jnp.float32) for x in operands(rng, shapes)]
    p = contract.plan(expr, *xs)
    limit = p.grad.peak_bytes * 2 // 3
    q = contract.plan(expr, *xs, memory_limit=limit, limit_grad=True)
    assert q.slices
    assert q.grad.peak_bytes <= limit
    cotangent = jnp.ones(p.shape, p.dtype)
    before, after = (analysis(with_vjp(plan), cotangent, *xs)[1] for plan in (p, q))
    assert after.temp_size_in_bytes < before.temp_size_in_bytes
    assert total(after) <= 1.1 * limit
    for got, want in zip(gradients(q, xs), gradients(p, xs), strict=True):
        close(got, want)


def test_short_floats_are_summed_over_slices_in_single_precision():
    """Ones summed in bfloat16 stop at 256; the sum over slices must not."""
    xs = [jnp.ones((48, 512), jnp.bfloat16)] * 2 + [jnp.ones((48, 48), jnp.bfloat16)]
    p = contract.plan("ij,kj,ik->", *xs)
    q = contract.plan("ij,kj,ik->", *xs, memory_limit=p.peak_bytes - 2000)
    assert q.slices
    assert float(q(*xs)) == 48 * 48 * 512


def test_an_unreachable_limit():
    fixed = 3 * 64 * 64 * 4
    with pytest.raises(ValueError, match=rf"memory_limit: got 5 bytes.* {fixed} are the operands"):
        contract.plan("ij,jk->ik", (64, 64), (64, 64), memory_limit=5)
    with pytest.raises(ValueError, match="raise it, use a smaller dtype or shard"):
        contract.plan("ij->ji", (64, 64), memory_limit=64 * 64 * 4)
    assert not contract.plan("ij,jk->ik", (64, 64), (64, 64), memory_limit=fixed).slices


# Sharded operands --------------------------------------------------------------------------------


def test_explicitly_sharded_operands(rng):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        a, b = operands(rng, [(8, 16, 4), (8, 4, 16)])
        x = jax.device_put(a, NamedSharding(mesh, P("x", "y", None)))
        y = jax.device_put(b, NamedSharding(mesh, P("x", None, None)))
        got = contract.einsum("bsd,bdt->bst", x, y)
        assert jax.typeof(got).sharding.spec == P("x", "y", None)
    close(got, a @ b)


def test_inner_axes_stay_sharded_unless_merged(rng):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    x, w = operands(rng, [(8, 16, 4), (4, 6)])
    x = jax.device_put(x, NamedSharding(mesh, P("x", "y", None)))
    w = jax.device_put(w, NamedSharding(mesh, P()))
    p = contract.plan("bsd,df->bsf", x, w, merge_axes=False)
    assert "all-gather" not in str(jax.jit(p).lower(x, w).compile().as_text())
    close(p(x, w), np.asarray(x) @ np.asarray(w))


# Bad input ---------------------------------------------------------------------------------------

GOOD = ((3, 4), (4, 5))


@pytest.mark.parametrize(
    ("expr", "shapes", "options", "error", "message"),
    [
        ("ij,jk->ik", GOOD[:1], {}, ValueError, "operands: expected 2 .*, got 1; pass one"),
        ("ij,jk->ik", (), {}, ValueError, "operands: expected at least one"),
        (
            "ij,jk->ik",
            ((3, 4), (4, 5, 6)),
            {},
            ValueError,
            r"operand 1: expected 2 axes .*\(4, 5, 6",
        ),
        ("ij,jk->ik", ((3, 4), (5, 6)), {}, ValueError, "operand 1: expected size 4 for index 'j'"),
        ("ij,jk->iz", GOOD, {}, ValueError, "expr: expected output labels that occur .* got 'z'"),
        ("ij,jk->ii", GOOD, {}, ValueError, "expr: expected every output label once, got 'i' 2"),
        ("ij,jk->ik->", GOOD, {}, ValueError, "expr: expected subscripts such as"),
        ("ij,jk-ik", GOOD, {}, ValueError, "expr: expected subscripts such as"),
        ("i1,jk->ik", GOOD, {}, ValueError, "expr: expected letters .* got '1'"),
        ("i..,jk->ik", GOOD, {}, ValueError, "expr: expected at most one '...' per term"),
        (3, (), {}, TypeError, "expr: expected a string such as"),
        ("ij,jk->ik", ((3, 4), [4, 5]), {}, TypeError, r"operand 1: expected an array, .* got \[4"),
        ("ij,jk->ik", ((3, 4), None), {}, TypeError, "operand 1: expected an array"),
        ("ij,jk->ik", ((3, 4), (4, -5)), {}, TypeError, "non-negative ints"),
        ("ij,jk->ik", GOOD, {"dtype": "str"}, TypeError, "dtype: expected a dtype of numbers"),
        ("ij,jk->ik", GOOD, {"memory_limit": 0}, ValueError, "memory_limit: expected a positive"),
        ("ij,jk->ik", GOOD, {"memory_limit": -1}, ValueError, "memory_limit: expected a positive"),
        ("ij,jk->ik", GOOD, {"memory_limit": "1G"}, TypeError, "memory_limit: expected a number"),
        (
            "ij,jk->ik",
            GOOD,
            {"limit_grad": True},
            ValueError,
            "limit_grad: expected a memory_limit",
        ),
        ("ij,jk->ik", GOOD, {"optimize": "best"}, ValueError, "optimize: expected one of 'auto'"),
        ("ij,jk->ik", GOOD, {"optimize": 3}, TypeError, "optimize: expected the name"),
        ("ij,jk->ik", GOOD, {"optimize": [(0, 2)]}, ValueError, "optimize: expected steps of"),
        ("ij,jk->ik", GOOD, {"optimize": []}, ValueError, "optimize: expected a path that leaves"),
        ("ij,jk->ik", GOOD, {"minimize": "time"}, ValueError, "minimize: expected 'flops'"),
        ("ij,jk->ik", GOOD, {"precision": "low"}, ValueError, "precision: got 'low'"),
        (
            "ij,jk->ik",
            GOOD,
            {"dtype": "complex64", "preferred_element_type": "float32"},
            ValueError,
            "preferred_element_type: expected a type that can hold complex64, got float32",
        ),
    ],
)
def test_bad_plans(expr, shapes, options, error, message):
    with pytest.raises(error, match=message):
        contract.plan(expr, *shapes, **options)


def test_bad_calls():
    p = contract.plan("ij,jk->ik", *GOOD)
    x, y = map(np.ones, GOOD)
    with pytest.raises(ValueError, match=r"operand 1: expected shape \(4, 5\) .* got \(4, 6\)"):
        p(x, np.ones((4, 6)))
    with pytest.raises(ValueError, match=r"operands: expected 2 .* got 1"):
        p(x)
    with pytest.raises(TypeError, match="operand 1: expected an array, got str"):
        p(x, "y")
    with pytest.raises(TypeError, match="operand 0: expected an array, got tuple"):
        contract.einsum("ij,jk->ik", GOOD[0], y)


@pytest.mark.parametrize("expr", ["ij->i", "ij,jk->i", "ij,jk,kl->il", "ii,jk->k", "i,j->"])
@pytest.mark.parametrize("preferred", ["int32", "float32", None])
def test_booleans_are_counted_where_a_type_of_sums_is_preferred(expr, preferred, rng):
    terms = expr.split("->")[0].split(",")
    xs = [rng.random([4] * len(term)) < 0.7 for term in terms]
    plan = contract.plan(expr, *xs, preferred_element_type=preferred)
    exact = np.einsum(expr, *(x.astype(preferred or bool) for x in xs))
    for found in (plan(*xs), jax.jit(plan)(*xs), plan.on_host(*xs)):
        assert found.dtype == exact.dtype
        np.testing.assert_array_equal(found, exact)


def test_threads_that_plan_leave_the_random_state_as_it_was():
    entered, goes_on = threading.Event(), threading.Event()

    def first():
        with _paths._fixed_seed():
            entered.set()
            goes_on.wait(10)

    def second():
        with _paths._fixed_seed():
            pass

    before = random.getstate()
    threads = [threading.Thread(target=f) for f in (first, second)]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    goes_on.set()
    for thread in threads:
        thread.join(10)
    assert random.getstate() == before


def test_positions_of_a_path_may_be_integers_of_numpy():
    path = [(np.int64(0), np.int64(1)), (0, 1)]
    plan = contract.plan("ij,jk,kl->il", (2, 3), (3, 4), (4, 5), optimize=path)
    assert plan is contract.plan("ij,jk,kl->il", (2, 3), (3, 4), (4, 5), optimize=[(0, 1), (0, 1)])
