"""Einsum of NumPy arrays by matrix products, whose analysis is cached by the expression.

For loops on the host whose shapes change from call to call: unlike a `Plan`, nothing here depends
on sizes but the order of the products, which is chosen anew where shapes are new.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # a NumPy array
Labels = str
Pair = tuple[int, int]
Path = tuple[Pair, ...]
_NARROW = 3  # columns below which a product of many matrices is slower than a copy


def numpy_einsum(expression: str, *operands: Array) -> Array:
    """Computes an einsum of NumPy arrays, each pair of them by one matrix product.

    The order of products is the cheapest one for up to four operands, greedy for more. The result
    may be a transposed view.

    Args:
      expression: as NumPy's, with an output and without "...".
      operands: one or more arrays, one for each term.
    """
    if len(operands) == 2:
        return _of_two(expression)(*operands)
    if len(operands) == 1:
        return np.einsum(expression, *operands)
    path = _path(expression, tuple(x.shape for x in operands))
    values = list(operands)
    for (i, j), product in zip(path, _products(expression, path), strict=True):
        right, left = values.pop(j), values.pop(i)
        values.append(product(left, right))
    return values[0]


@functools.cache
def _of_two(expression: str) -> Callable[[Array, Array], Array]:
    (a, b), output = _parsed(expression)
    return _pair(a, b, output)


@functools.cache
def _parsed(expression: str) -> tuple[tuple[Labels, ...], Labels]:
    left, arrow, output = expression.replace(" ", "").partition("->")
    if not arrow or "." in left:
        raise ValueError(f'expression: expected "…->…" without an ellipsis, got {expression!r}')
    return tuple(left.split(",")), output


@functools.cache
def _products(expression: str, path: Path) -> tuple[Callable[[Array, Array], Array], ...]:
    """Returns the pairwise products of an einsum in the order ``path``, analysed once."""
    terms, output = _parsed(expression)
    left = list(terms)
    found = []
    for i, j in path:
        b, a = left.pop(j), left.pop(i)
        kept = set(output).union(*left)
        # Axes in the order in which the product has them: only the last one is transposed.
        natural = _natural(a, b, kept) if left else output
        found.append(_pair(a, b, natural))
        left.append(natural)
    return tuple(found)


def _natural(a: Labels, b: Labels, kept: set[str]) -> Labels:
    both = [c for c in dict.fromkeys(a) if c in b and c in kept]
    own = [c for c in dict.fromkeys(a) if c not in b and c in kept]
    other = [c for c in dict.fromkeys(b) if c not in a and c in kept]
    return "".join(both + own + other)


@functools.lru_cache(maxsize=2**14)
def _path(expression: str, shapes: tuple[tuple[int, ...], ...]) -> Path:
    """Chooses the order of products in an einsum of NumPy arrays: pairs of list positions.

    Each pair leaves the list, and its product is appended.
    """
    terms, output = _parsed(expression)
    for term, shape in zip(terms, shapes, strict=True):
        if len(term) != len(shape):
            raise ValueError(f"{expression}: expected {len(term)} axes for {term!r}, got {shape}")
    sizes = dict(zip("".join(terms), itertools.chain(*shapes), strict=True))
    return _cheapest(tuple(map(frozenset, terms)), frozenset(output), sizes)[1]


def _cheapest(
    terms: tuple[frozenset[str], ...], output: frozenset[str], sizes: dict[str, int]
) -> tuple[int, Path]:
    """Finds a NumPy einsum's cheapest order of products; greedy above four operands."""
    if len(terms) == 1:
        return 0, ()
    trials = []
    for j in range(len(terms)):
        for i in range(j):
            rest = (*terms[:i], *terms[i + 1 : j], *terms[j + 1 :])
            both = terms[i] | terms[j]
            cost = math.prod(sizes[c] for c in both)
            trials.append((cost, (i, j), (*rest, both & output.union(*rest))))
    if len(terms) > 4:
        trials = [min(trials, key=lambda trial: trial[0])]
    found = []
    for cost, pair, left in trials:
        more, path = _cheapest(left, output, sizes)
        found.append((cost + more, (pair, *path)))
    return min(found)


@functools.cache
def _pair(a: Labels, b: Labels, output: Labels) -> Callable[[Array, Array], Array]:
    """Returns a function that computes a two-operand einsum, analysed once for all sizes."""
    own = _own_labels(a, b + output), _own_labels(b, a + output)
    if own != (a, b):  # diagonals, and sums over axes of one factor
        inner = _pair(*own, output)
        reductions = f"{a}->{own[0]}", f"{b}->{own[1]}"
        return lambda x, y: inner(np.einsum(reductions[0], x), np.einsum(reductions[1], y))
    batch = "".join(c for c in a if c in b and c in output)
    orders = ["".join(c for c in t if c in u and c not in output) for t, u in ((a, b), (b, a))]
    if not orders[0]:
        return _outer(a, b, output)
    summed = min(orders, key=lambda s: _copies(a, b, batch, s))
    rows, columns = ("".join(c for c in t if c not in u) for t, u in ((a, b), (b, a)))
    turn_a, kept, free_a, sum_a, swap_a = _as_matrices(a, batch, rows, summed)
    turn_b, _, free_b, sum_b, swap_b = _as_matrices(b, batch, columns, summed)
    order = _transposition(batch + rows + columns, output)
    prod = math.prod

    # All in one function, without loops: small products take as long as what surrounds them.
    def product(x: Array, y: Array) -> Array:
        x = x if turn_a is None else x.transpose(turn_a)
        y = y if turn_b is None else y.transpose(turn_b)
        s, t = x.shape, y.shape
        if s[sum_a] != t[sum_b] or s[kept] != t[kept]:
            raise ValueError(f"{a},{b}->{output}: sizes of shared axes differ: {s}, {t}")
        m, n, k = prod(s[free_a]), prod(t[free_b]), prod(s[sum_a])
        more = (prod(s[kept]),) if batch else ()
        p = x.reshape(*more, k, m).mT if swap_a else x.reshape(*more, m, k)
        q = y.reshape(*more, k, n) if swap_b else y.reshape(*more, n, k).mT
        out = (p @ q).reshape(s[kept] + s[free_a] + t[free_b])
        return out if order is None else out.transpose(order)

    if batch:
        return product
    return _stacked_or(product, _stack(a, b, summed, output), _stack(b, a, summed, output))


def _stacked_or(
    merged: Callable[[Array, Array], Array], first: Any, second: Any
) -> Callable[[Array, Array], Array]:
    """Returns an einsum product that reads one factor as a stack of matrices without copying."""
    if first is None and second is None:
        return merged

    def product(x: Array, y: Array) -> Array:
        # The larger one, for the other one is copied.
        if first is None or (second is not None and y.size > x.size):
            out = second(y, x)  # type: ignore[misc]
        else:
            out = first(x, y)
        return merged(x, y) if out is None else out

    return product


def _stack(
    term: Labels, other: Labels, summed: Labels, output: Labels
) -> Callable[[Array, Array], Array | None] | None:
    """Returns a function, for NumPy's einsum, that multiplies a matrix stack without a copy.

    For a factor whose summed axes lie between free ones; None for others.

    One call for each matrix of the stack takes a half to a fifth of the time of a transposed copy
    of it, unless it is very narrow: the product is then None.
    """
    before, found, after = term.partition(summed)
    if not (found and before and after):
        return None
    free = "".join(c for c in other if c not in summed)
    turn, _, rows, inner, swap = _as_matrices(other, "", free, summed)
    order = _transposition(before + free + after, output)
    n, m = len(before), len(before) + len(summed)

    def product(stack: Array, x: Array) -> Array | None:
        shape = stack.shape
        outer, columns = math.prod(shape[:n]), math.prod(shape[m:])
        if outer < 2 or columns < _NARROW:
            return None
        x = x if turn is None else x.transpose(turn)
        s = x.shape
        if s[inner] != shape[n:m]:
            raise ValueError(f"{term},{other}->{output}: sizes of shared axes differ: {shape}, {s}")
        r, k = math.prod(s[rows]), math.prod(s[inner])
        p = x.reshape(k, r).mT if swap else x.reshape(r, k)
        out = p @ stack.reshape(outer, k, columns)
        out = out.reshape(shape[:n] + s[rows] + shape[m:])
        return out if order is None else out.transpose(order)

    return product


def _own_labels(term: Labels, others: Labels) -> Labels:
    """Returns the labels that an einsum's pairwise product of NumPy arrays keeps of one factor."""
    return "".join(c for c in dict.fromkeys(term) if c in others)


def _transposition(found: Labels, wanted: Labels) -> tuple[int, ...] | None:
    return None if found == wanted else tuple(found.index(c) for c in wanted)


def _copies(a: Labels, b: Labels, batch: Labels, summed: Labels) -> int:
    """Counts the factors that NumPy must copy for a product if summed axes have this order."""
    return sum(
        term not in (batch + summed + free, batch + free + summed)
        for term in (a, b)
        for free in ["".join(c for c in term if c not in batch + summed)]
    )


def _as_matrices(
    term: Labels, batch: Labels, free: Labels, summed: Labels
) -> tuple[tuple[int, ...] | None, slice, slice, slice, bool]:
    """Analyses how the axes of an einsum's factor merge to a batch of matrices, for NumPy.

    Returns the transposition, the slices of batch, free and summed axes, and an order.

    The last value says whether summed axes come before the free ones: BLAS takes either.
    """
    first = term == batch + summed + free
    order = _transposition(term, batch + (summed + free if first else free + summed))
    n = len(batch)
    cut = n + len(summed if first else free)
    ahead, behind = slice(n, cut), slice(cut, None)
    return order, slice(n), behind if first else ahead, ahead if first else behind, first


def _outer(a: Labels, b: Labels, output: Labels) -> Callable[[Array, Array], Array]:
    """Returns a function that computes a two-operand NumPy einsum without summed labels."""
    orders = [_transposition(t, "".join(c for c in output if c in t)) for t in (a, b)]
    masks = [tuple(slice(None) if c in t else None for c in output) for t in (a, b)]
    shared = [(a.index(c), b.index(c)) for c in a if c in b]

    def product(x: Array, y: Array) -> Array:
        if any(x.shape[i] != y.shape[j] for i, j in shared):  # NumPy would repeat an axis of one
            raise ValueError(
                f"{a},{b}->{output}: sizes of shared axes differ: expected equal ones, got "
                f"{x.shape}, {y.shape}"
            )
        x, y = (
            v if order is None else v.transpose(order)
            for v, order in zip((x, y), orders, strict=True)
        )
        return x[masks[0]] * y[masks[1]]

    return product
