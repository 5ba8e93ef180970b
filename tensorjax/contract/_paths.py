"""Contraction-order search: the order of pairwise products that costs least.

The search is opt_einsum's `optimal` for a few operands. For more, greedy and randomised
orders (by cotengra where it is installed, by opt_einsum otherwise) are the starting points
for two exact methods: re-ordering every small subtree optimally until nothing improves, and
dynamic programming over all connected subsets while that is affordable.

How long a search takes is counted in steps, of which the times are known roughly, not measured: all
processes of a program have to find the same order, however busy their machines are.
"""

import contextlib
import functools
import importlib.util
import math
import random
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import opt_einsum

from tensorjax.contract import _einsum_parser as syntax
from tensorjax.contract._argument_checks import Strategy
from tensorjax.contract._dynamic_programming import Effort, Graph, Path, bits, connected_subsets
from tensorjax.contract._trees import Tree, path_cost

_OPTIMAL = 6  # operands up to which opt_einsum's exhaustive search takes milliseconds
_WINDOW = 8  # leaves of the subtrees that are re-ordered
_WHOLE = 11  # operands up to which one such subtree is the whole network
_TRIALS = 16  # randomised orders tried, at most, and eight times as many by cheaper methods
_REFINED = 3  # of which the best are refined
# Seconds an operand that one randomised order takes, by opt_einsum and by cotengra; and the share
# of the time that is left that goes to each of these methods.
_GREEDY, _COTENGRA, _SHARE = 1.5e-4, 4e-4, 0.15
# By default a search takes a second; where the order that it finds runs longer than that at so many
# operations a second, another search takes as long as that order runs, up to half a minute.
_LEAST_SECONDS, _MOST_SECONDS, _FLOPS_PER_SECOND = 1.0, 30.0, 1e10
# Held while Python's random seed, one for all threads, is another.
_SEEDING = threading.RLock()


def _linear_to_ssa(path: Iterable[Sequence[int]], n: int) -> Path:
    """Converts a contraction path to pairs of numbered values; ValueError unless it is valid.

    The k-th product of n operands has number n + k.

    A step over many operands goes left to right.
    """
    nodes, pairs = list(range(n)), []
    steps = list(path)
    if steps and steps[0] == "einsum_path":  # what numpy.einsum_path puts first
        steps = steps[1:]
    for given in steps:
        step = [int(i) if isinstance(i, np.integer) else i for i in given]
        inside = all(isinstance(i, int) and 0 <= i < len(nodes) for i in step)
        if not (inside and step and len(set(step)) == len(step)):
            raise ValueError(
                f"optimize: expected steps of distinct positions below {len(nodes)} (operands "
                f"left at that step), got {tuple(step)}; a product goes to the end of the list"
            )
        chosen = [nodes[i] for i in step]
        nodes = [node for i, node in enumerate(nodes) if i not in step]
        while len(chosen) > 1:
            pairs.append((chosen[0], chosen[1]))
            chosen = [n + len(pairs) - 1, *chosen[2:]]
        nodes.extend(chosen)
    if len(nodes) != 1:
        raise ValueError(
            f"optimize: expected a path that leaves one operand, got {len(nodes)} left of {n}; "
            "add the missing steps"
        )
    return tuple(pairs)


def to_linear(path: Path, n: int) -> tuple[tuple[int, ...], ...]:
    """Converts a contraction path to opt_einsum's form: positions in a list of operands.

    Products are appended to the list.
    """
    if n == 1:
        return ((0,),)
    nodes, steps = list(range(n)), []
    for k, (a, b) in enumerate(path):
        i, j = sorted((nodes.index(a), nodes.index(b)))
        steps.append((i, j))
        del nodes[j], nodes[i]
        nodes.append(n + k)
    return tuple(steps)


def _by_opt_einsum(graph: Graph, finder: Callable[..., Any]) -> Path:
    inputs = [frozenset(bits(mask)) for mask in graph.terms]
    with _fixed_seed():
        linear = finder(inputs, frozenset(bits(graph.output)), dict(enumerate(graph.sizes)), None)
    return _linear_to_ssa(linear, len(graph.terms))


def _by_cotengra(graph: Graph, repeats: int = 4 * _TRIALS) -> Path:
    import cotengra

    inputs = [tuple(bits(mask)) for mask in graph.terms]
    with _fixed_seed(), warnings.catch_warnings():
        # cotengra warns about its own optional dependencies, which this search does not use. Its
        # other methods would start worker processes; subtrees are re-ordered here afterwards.
        warnings.simplefilter("ignore")
        optimizer: Any = cotengra.HyperOptimizer
        search = optimizer(
            methods=["greedy"],
            max_repeats=repeats,
            optlib="random",
            parallel=False,
            reconf_opts=None,
        )
        linear = search(inputs, tuple(bits(graph.output)), dict(enumerate(graph.sizes)))
    return _linear_to_ssa(linear, len(graph.terms))


@contextlib.contextmanager
def _fixed_seed() -> Iterator[None]:
    """Context manager that fixes Python's random seed while a contraction path is searched."""
    with _SEEDING:  # one thread at a time, or another's seed would be restored
        state = random.getstate()
        random.seed(0)
        try:
            yield
        finally:
            random.setstate(state)


def _starting_points(graph: Graph, seconds: float) -> tuple[list[Path], Effort]:
    """Finds initial contraction paths by greedy and random search; also returns the time left."""
    n = len(graph.terms)
    if n <= _OPTIMAL:
        return [_by_opt_einsum(graph, opt_einsum.paths.optimal)], Effort(math.inf)
    found = [_by_opt_einsum(graph, opt_einsum.paths.greedy)]
    effort = Effort(seconds - n * _GREEDY)
    random_greedy = opt_einsum.path_random.RandomGreedy
    for minimize, most in (("flops", 8 * _TRIALS), ("size", _TRIALS)):
        trials = effort.trials(n * _GREEDY, most, _SHARE)
        if trials:
            finder = random_greedy(minimize=minimize, max_repeats=trials)
            found.append(_by_opt_einsum(graph, finder))
    if n > _WHOLE and importlib.util.find_spec("cotengra"):
        trials = effort.trials(n * _COTENGRA, 4 * _TRIALS, _SHARE)
        if trials:
            found.append(_by_cotengra(graph, trials))
    return list(dict.fromkeys(found)), effort


def _automatic(graph: Graph, seconds: float | None) -> list[Path]:
    """Searches contraction paths for a given time, or one that the best order's cost decides."""
    if seconds is not None:
        return _timed_search(graph, seconds)
    if len(graph.terms) <= _WHOLE:
        return _timed_search(graph, math.inf)
    first = _timed_search(graph, _LEAST_SECONDS)
    cost = min(path_cost(graph, path) for path in first)
    run = min(graph.first_cost(cost) / _FLOPS_PER_SECOND, _MOST_SECONDS)
    if run <= _LEAST_SECONDS:
        return first
    # The second search starts as the first did, but may share its time otherwise and end worse.
    return list(dict.fromkeys([*first, *_timed_search(graph, run)]))


def _timed_search(graph: Graph, seconds: float) -> list[Path]:
    """Refines the best initial contraction paths for about so many seconds."""
    n = len(graph.terms)
    found, effort = _starting_points(graph, seconds)
    found.sort(key=lambda path: path_cost(graph, path))
    refined, parts = [], min(_REFINED, len(found)) + (n > _WHOLE)
    for path in found[:_REFINED]:
        tree, part = Tree(graph, path), effort.part(parts)
        tree.refine(n if n <= _WHOLE else _WINDOW, part)
        refined.append(tree.path())
        effort.left += part.left
        parts -= 1
    best = min(refined, key=lambda path: path_cost(graph, path))
    if n > _WHOLE:
        exact = connected_subsets(graph, path_cost(graph, best), effort.part(2))
        if exact:
            tree = Tree(graph, exact)
            tree.refine(_WINDOW, effort)
            best = tree.path()
    others = [Tree(graph, path).path() for path in found]
    return list(dict.fromkeys([best, *refined, *others]))


@functools.lru_cache(maxsize=4096)
def search(
    terms: tuple[tuple[int, ...], ...],
    output: tuple[int, ...],
    sizes: tuple[int, ...],
    strategy: Strategy,
    minimize: str,
    seconds: float | None = None,
) -> tuple[Path, ...]:
    """Searches for contraction paths, the cheapest first, each ordered for least memory.

    An explicit path keeps the order of its steps.

    Args:
        terms: labels of each operand; every label in two of them or in the output as well.
        output: labels of the result.
        sizes: size of each label.
        strategy: what `check_strategy` returned.
        minimize: ``"flops"`` or ``"bytes"``.
        seconds: that ``"auto"`` takes, about; None is chosen by what the contraction costs.

    Returns:
        One path for a given strategy, several different ones for ``"auto"``.

    Raises:
        ValueError: if an explicit path does not fit the operands.
    """
    # Empty axes must not make every order look free.
    graph = Graph(terms, output, [max(size, 1) for size in sizes], minimize)
    if isinstance(strategy, tuple):
        return (_linear_to_ssa(strategy, len(terms)),)
    if len(terms) < 3:
        return (((0, 1),),) if len(terms) == 2 else ((),)
    if strategy == "auto":
        return tuple(_automatic(graph, seconds))
    if strategy == "cotengra":
        return (Tree(graph, _by_cotengra(graph)).path(),)
    finder = opt_einsum.paths.get_path_fn(strategy) if isinstance(strategy, str) else strategy
    return (Tree(graph, _by_opt_einsum(graph, finder)).path(),)


def network_paths(
    network: syntax.Network,
    strategy: Strategy,
    minimize: str,
    seconds: float | None,
) -> tuple[Path, ...]:
    """Searches contraction paths, once for all networks that differ in labels only."""
    numbers = {c: i for i, c in enumerate(dict.fromkeys("".join(network.reduced)))}
    found_for = functools.partial(
        search,
        tuple(tuple(numbers[c] for c in term) for term in network.reduced),
        tuple(sorted(numbers[c] for c in network.reduced_output)),
        tuple(network.sizes[c] for c in numbers),
        strategy,
        seconds=seconds,
    )
    found = found_for("flops")
    if minimize != "flops":
        found += found_for("bytes")
    return tuple(dict.fromkeys(found))
