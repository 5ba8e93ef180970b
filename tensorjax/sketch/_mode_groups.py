"""Grouping of the modes of a Kronecker map into few matrix products, by a cost model.

A map on many modes is a chain of products. Mode by mode, each product is so thin that it runs at a
few percent of the memory bandwidth. The modes are therefore merged into few groups, whose
cores are multiplied out first (they are small), and the groups applied from the last, which is
contiguous in memory. `choose` minimises a model of the time over all cuts into groups; `choose_cut`
finds two groups for compiled code that applies both to a row at once.

The unit of cost is reading one element of the input from memory. The constants are fitted to XLA on
CPUs, float32, 1000 rows of 10⁴ and of 2.5·10⁵ elements; a GPU's balance is similar.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

_WRITE = 8.0  # writing one element of a fresh result (its pages are first mapped and cleared)
_FLOP = 1 / 48  # one floating-point operation of a matrix product
_BUILD = 4.0  # computing one element of a merged core
_PAD = 4.0  # copying one element into a padded input
_STEP = 2e4  # launching one product
# Of `choose_cut`:
_MOST_PRODUCTS = 24  # multiplications for each element read that cost less than XLA's reading
_CACHED = 2**15  # elements of the accumulator that stay in cache
_VECTOR = 16  # contiguous elements, one SIMD vector


class Groups(NamedTuple):
    """Division of a random map's d modes into consecutive groups, with its predicted cost.

    Attributes:
      cuts: 0 = c_0 < … < c_g = d; group k holds modes c_k … c_{k+1} − 1.
      pads_input: whether the input is padded to ∏ n_k. If not, and it is shorter than that, there
        is one group, whose matrix loses its last columns instead.
      cost: modelled time, in units of reading one element.
    """

    cuts: tuple[int, ...]
    pads_input: bool
    cost: float


def product_cost(rows: int, inner: int, columns: int) -> float:
    """Estimates the time of a matrix product, by which a random map's modes are grouped."""
    read = rows * inner + inner * columns
    return _STEP + read + _WRITE * rows * columns + _FLOP * 2 * rows * inner * columns


@functools.lru_cache(maxsize=4096)
def choose(
    batch: int, in_size: int, n: Sequence[int], m: Sequence[int], ranks: Sequence[int]
) -> Groups:
    """Finds the cheapest grouping of a random map's modes by dynamic programming.

    Args:
      batch: rows of the input.
      in_size: elements of a row, at most ∏ n_k.
      n: (n_1, …, n_d).
      m: (m_1, …, m_d).
      ranks: (r_0, …, r_d) of the map.
    """
    d = len(n)
    # best[e]: cost and cuts for modes e … d − 1, applied already.
    best: dict[int, tuple[float, tuple[int, ...]]] = {d: (0.0, (d,))}
    for s in reversed(range(d)):
        options = (
            (best[e][0] + _group_cost(batch, n, m, ranks, s, e), (s, *best[e][1]))
            for e in range(s + 1, d + 1)
        )
        best[s] = min(options)
    whole = math.prod(n)
    padding = 0.0 if in_size == whole else _PAD * batch * whole
    cost, cuts = best[0]
    cut = Groups(cuts, in_size != whole, cost + padding)
    single = Groups((0, d), False, _group_cost(batch, n, m, ranks, 0, d))
    return single if single.cost < cut.cost else cut


@functools.lru_cache(maxsize=4096)
def choose_cut(n: Sequence[int], m: Sequence[int], ranks: Sequence[int]) -> int:
    """Finds the mode that splits a random map in two groups of modes, to read x once; 0 if none.

    It combines the modes before the cut first, in ∏ m · r multiplications for every element read.

    Args:
      n: (n_1, …, n_d).
      m: (m_1, …, m_d).
      ranks: (r_0, …, r_d) of the map.
    """
    best, most = 0, float(_MOST_PRODUCTS)
    for s in range(1, len(n)):
        columns = math.prod(m[:s]) * ranks[s]
        products = columns * (1 + math.prod(m[s:]) / math.prod(n[:s]))
        row = columns * math.prod(n[s:])  # sums that should stay in the cache
        if products <= most and row <= _CACHED and math.prod(n[s:]) >= _VECTOR:
            best, most = s, products
    return best


def _group_cost(
    batch: int, n: Sequence[int], m: Sequence[int], ranks: Sequence[int], s: int, e: int
) -> float:
    rows = batch * math.prod(n[:s]) * math.prod(m[e:])
    inner = math.prod(n[s:e]) * ranks[e]
    columns = math.prod(m[s:e]) * ranks[s]
    build = _BUILD * inner * columns if e - s > 1 else 0.0
    return product_cost(rows, inner, columns) + build


def split_rows(batch: int, n: Sequence[int], m: int, widths: Sequence[int]) -> int:
    """Finds where to cut a random map of M independent rows into two groups of modes, or 0.

    Args:
      batch: rows of the input.
      n: (n_1, …, n_d).
      m: the rows M of the map.
      widths: bond size of a row at each interior cut: its TT-rank or count of terms.
    """
    size = math.prod(n)
    widest = max(widths, default=1)
    costs = {0: product_cost(batch, size, m) + _BUILD * size * m * widest}
    for s in range(1, len(n)):
        left, right = math.prod(n[:s]), math.prod(n[s:])
        columns = m * widths[s - 1]
        first = product_cost(batch * left, right, columns)
        # The second step reads what the first wrote, entry by entry.
        costs[s] = first + 2 * batch * left * columns + _BUILD * (left + right) * columns
    return min(costs, key=lambda s: costs[s])
