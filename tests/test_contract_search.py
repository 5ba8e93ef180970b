"""Searches for contraction orders: exact windows, bounded effort; and plans that run on NumPy."""

import itertools
import random
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum
import pytest

from tensorjax import contract
from tensorjax.contract import _dynamic_programming, _paths, _plans_and_einsum, _trees
from tests.oracles import eps


def drawn(
    r: random.Random, count: int, extra: int, largest: int = 4
) -> tuple[str, list[tuple[int, ...]]]:
    """A connected network of ``count`` arrays: a random tree, and some more bonds."""
    terms: list[list[int]] = [[] for _ in range(count)]
    pairs = [(k, r.randrange(k)) for k in range(1, count)]
    pairs += [tuple(r.sample(range(count), 2)) for _ in range(extra)]
    for label, pair in enumerate(pairs):
        for k in pair:
            terms[k].append(label)
    sizes = [r.randint(2, largest) for _ in pairs]
    text = ",".join("".join(map(opt_einsum.get_symbol, term)) for term in terms)
    return text + "->", [tuple(sizes[label] for label in term) for term in terms]


def all_trees(items: tuple[int, ...]) -> Iterator[object]:
    """Every binary tree over some numbers."""
    if len(items) == 1:
        yield items[0]
        return
    first, *rest = items
    for size in range(len(rest)):
        for chosen in itertools.combinations(rest, size):
            others = tuple(k for k in rest if k not in chosen)
            for left in all_trees((first, *chosen)):
                for right in all_trees(others):
                    yield left, right


def tree_cost(
    graph: _dynamic_programming.Graph, masks: list[int], needed: int, tree: object
) -> int:
    """Cost by definition: a label goes once nothing outside of the product carries it."""

    def visit(node) -> tuple[int, set[int], int]:
        if isinstance(node, int):
            return masks[node], {node}, 0
        (a, ia, ca), (b, ib, cb) = map(visit, node)
        inside = ia | ib
        outside = needed
        for k, mask in enumerate(masks):
            outside |= 0 if k in inside else mask
        result = (a | b) & outside
        return result, inside, ca + cb + graph.cost(a, b, result)

    return visit(tree)[2]


@pytest.mark.parametrize("minimize", ["flops", "bytes"])
def test_windows_are_optimal(minimize: str) -> None:
    r = random.Random(5)
    for _ in range(12):
        count, labels = r.randint(3, 5), r.randint(2, 9)
        masks = [r.getrandbits(labels) | 1 << r.randrange(labels) for _ in range(count)]
        uses = [sum(mask >> label & 1 for mask in masks) for label in range(labels)]
        needed = sum(1 << k for k, u in enumerate(uses) if u == 1 or (u and r.random() < 0.3))
        graph = _dynamic_programming.Graph(
            [], [], [r.choice([1, 2, 3, 8, 50]) for _ in uses], minimize
        )
        costs = [tree_cost(graph, masks, needed, t) for t in all_trees(tuple(range(count)))]
        found = _dynamic_programming.all_subsets(graph, masks, needed, 1 << 200)
        assert found
        # The cost that comes first is exact; ties in it may be broken another way.
        assert graph.first_cost(found[(1 << count) - 1].cost) == graph.first_cost(min(costs))
        assert _dynamic_programming.all_subsets(graph, masks, needed, min(costs)) is None


def test_the_search_is_bounded_and_better_with_time(monkeypatch) -> None:
    """Effort is counted: so many steps whatever the machine does, and the same order each time."""
    steps = {"orders": 0, "trials": 0, "pairs": 0.0}

    def counting(name, function, of):
        def call(*args, **kwargs):
            steps[name] += of(*args)
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(
        _trees,
        "all_subsets",
        counting("orders", _dynamic_programming.all_subsets, lambda g, m, *_: 3 ** len(m)),
    )
    finder = opt_einsum.path_random.RandomGreedy
    monkeypatch.setattr(finder, "setup", counting("trials", finder.setup, lambda *_: 1))
    r = random.Random(1)
    for count in (40, 100):
        expr, shapes = drawn(r, count, count // 2)
        flops = {}
        for seconds in (0.0, 0.3):
            steps.update(orders=0, trials=0)
            _paths.search.cache_clear()
            plan = contract.plan(expr, *shapes, seconds=seconds)
            flops[seconds] = plan.flops
            assert steps["orders"] <= seconds * 2 * _trees._ORDERS + 3**9
            _paths.search.cache_clear()
            _plans_and_einsum._plan.cache_clear()
            assert contract.plan(expr, *shapes, seconds=seconds).path == plan.path
        greedy = contract.plan(expr, *shapes, optimize="greedy").flops
        assert flops[0.3] < flops[0.0] <= greedy


def test_a_search_by_default_costs_about_one_run_of_its_order(monkeypatch) -> None:
    """A greedy order that is far from the best must not buy half a minute of search."""
    asked = []
    timed = _paths._timed_search

    def search(graph, seconds):
        asked.append(seconds)
        return timed(graph, min(seconds, 0.02))

    monkeypatch.setattr(_paths, "_timed_search", search)
    r = random.Random(7)
    for count, extra, largest in ((60, 30, 4), (100, 60, 4), (40, 40, 9)):
        expr, shapes = drawn(r, count, extra, largest)
        first = contract.plan(expr, *shapes, seconds=1.0)
        asked.clear()
        plan = contract.plan(expr, *shapes)
        assert plan.flops <= first.flops
        greedy = contract.plan(expr, *shapes, optimize="greedy").flops
        assert asked[0] == 1.0
        # `flops` counts a product and a sum, the search products alone.
        assert sum(asked[1:]) <= min(first.flops / 1e10, 30.0) < greedy / 1e10
        assert len(asked) == 1 + (first.flops > 2e10)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("kind", "seconds"), [(ValueError, -1), (ValueError, float("nan")), (TypeError, "long")]
)
def test_bad_times_are_named(kind, seconds) -> None:
    with pytest.raises(kind, match="seconds: expected"):
        contract.plan("ij,jk->ik", (2, 3), (3, 4), seconds=seconds)


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int32", "bool", "bfloat16"])
def test_plans_run_on_numpy(dtype: str) -> None:
    """On drawn expressions with diagonals, sums, outer products, sizes 0 and 1, and slices."""
    r, rng = random.Random(7), np.random.default_rng(7)
    exact = dtype in ("int32", "bool")
    tolerance = 0 if exact else 100 * eps(jnp.dtype(dtype))
    for case in range(12):
        letters = "abcdefg"[: r.randint(1, 7)]
        sizes = {c: r.choice([0, 1, 2, 3] if case % 6 == 0 else [1, 2, 3, 4]) for c in letters}
        terms = ["".join(r.choices(letters, k=r.randint(0, 4))) for _ in range(r.randint(1, 5))]
        output = [c for c in letters if any(c in term for term in terms) and r.random() < 0.4]
        expr = f"{','.join(terms)}->{''.join(output)}"
        arrays = [rng.integers(0, 3, [sizes[c] for c in t]).astype(jnp.dtype(dtype)) for t in terms]
        plan = contract.plan(expr, *arrays)
        found, wanted = plan.on_host(*arrays), np.asarray(plan(*arrays))
        assert type(found) is np.ndarray
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(
            found.astype(complex),
            wanted.astype(complex),
            rtol=tolerance,
            err_msg=expr,
        )


def test_sliced_plans_run_on_numpy(rng) -> None:
    shapes = [(8, 6, 4), (4, 6, 10), (10, 8, 6)]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    whole = contract.plan("abc,cbd,daf->bf", *arrays)
    least = whole.peak_bytes - 8 * 8 * 4
    for limit in (whole.peak_bytes - 1, least):
        plan = contract.plan("abc,cbd,daf->bf", *arrays, memory_limit=limit)
        assert plan.slices
        np.testing.assert_allclose(plan.on_host(*arrays), whole(*arrays), rtol=1e-12)


def test_traced_operands_are_refused_on_the_host() -> None:
    plan = contract.plan("i,i->", (2,), (2,))
    with pytest.raises(TypeError, match="operand 0: expected a concrete array"):
        jax.jit(plan.on_host)(np.ones(2, np.float32), np.ones(2, np.float32))
    with pytest.raises(ValueError, match="operand 1: expected shape"):
        plan.on_host(np.ones(2), np.ones(3))
