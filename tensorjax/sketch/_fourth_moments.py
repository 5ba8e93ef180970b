"""Fourth moments of a Kronecker-structured random map, as sums over pairings.

Four copies a, b, c, d of x meet in E‖f(x)‖⁴ = Σ_ij E[f_i f_i f_j f_j], copies a, b at row i and
c, d at row j. In each mode the expectation over iid entries with moments 0, 1, 0, Δ is a sum of
four pairings of the copies' column indices:

    0: ab|cd always,   1: ac|bd and 2: ad|bc if i_k = j_k,   3: abcd if i_k = j_k, times Δ − 3.

A map of TT-ranks r carries the same pairings on its bonds: between pairings π and π' of
neighbouring modes the four bond indices have r² free values if π = π' ≤ 2 and r otherwise; over
the scale r² that is 1 or 1/r. So the moment is a chain with four states per bond, whatever r is.
The path 0, 0, …, 0 is the squared mean ‖x‖⁴; it is tracked as a fifth state, so that the variance
is the sum of the other paths, and nothing cancels.

Feng, Tang, He, Zhou, Liao (arXiv 2010.10797) bound this moment for TT-ranks one. The exact
operator, its bond weights and the count of kept rows are derived here, and checked by enumeration.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from tensorjax._cores.contractions import einsum
from tensorjax.sketch._map_cores import row_digits

# Which of two labels each of the copies a, b, c, d carries in a mode, per pairing.
LABELS = ((0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 0, 0, 0))
# States of the chain: 0 has paired ab|cd in every mode so far; s = 1 … 4 is pairing s − 1, else.
STATES = 5
PAIRING = (0, 0, 1, 2, 3)


def mode_weights(out_shape: Sequence[int], rows: int, delta: float) -> list[np.ndarray]:
    """Computes weights of four index pairings in every mode, for a random map's fourth moment.

    They are normalised so that the weights of the path 0, …, 0 multiply to one.
    """
    out = []
    scale = (math.prod(out_shape) / rows) ** 2  # rows left out do not count
    for step in row_digits(out_shape, rows):
        m, s, _ = step.shape
        same = einsum("iab,icd->acbd", step, step).reshape(s * s, s * s)
        both = np.kron(step.sum(0), step.sum(0))
        out.append(np.stack([both, same, same, (delta - 3) * same]) * (scale / m**2))
        scale = 1.0
    return out


def bond_weights(rank: int) -> np.ndarray:
    """Returns weights (5, 5) of steps between pairings at a bond, for a map's fourth moment."""
    out = np.full((STATES, STATES), 1 / rank)
    out[range(4), range(4)] = 1  # pairing 3 leaves r of r² values free even towards itself
    out[0, 1] = 0  # who has paired ab|cd throughout and does so again stays in state 0 …
    out[1:, 0] = 0  # … and nobody comes back to it
    return out


def start() -> np.ndarray:
    """Returns the start (5,) of the sweep over modes for a random map's fourth moment."""
    return np.array([1.0, 0.0, 1.0, 1.0, 1.0])


def total(out_shape: Sequence[int], rows: int, ranks: Sequence[int], delta: float) -> float:
    """Sums a random map's fourth moments over all pairings: Var ‖f(x)‖² / ‖x‖⁴ at rank-one x.

    For Δ = 3 this is the variance at any rank-one x, and the largest one over all x.
    """
    weights = mode_weights(out_shape, rows, delta)
    state = np.zeros((STATES, weights[0].shape[1]))
    state[:, 0] = start()
    for k, w in enumerate(weights):
        if k:
            state = bond_weights(ranks[k - 1]).T @ state
        state = np.stack([state[s] @ w[PAIRING[s]] for s in range(STATES)])
    return float(np.sum(state[1:]))


def patterns(
    out_shape: Sequence[int], rows: int, ranks: Sequence[int], delta: float, *, real: bool
) -> dict[tuple[int, ...], float]:
    """Expands a random map's fourth moment in patterns, one pairing of copies per mode.

    Relabelling the copies permutes pairings 0, 1, 2, so patterns that differ by it are merged:
    15 remain of 64 for d = 3, and 51 of 256 for d = 4.

    Args:
      out_shape: (m_1, …, m_d).
      rows: how many rows of the ∏ m_k are kept.
      ranks: the interior TT-ranks of the map.
      delta: the fourth moment Δ of its entries.
      real: whether x is real. For a complex x copies b and d are conjugates, and only the exchange
        of b and d is a symmetry.
    """
    weights = mode_weights(out_shape, rows, delta)
    merged: dict[tuple[int, ...], float] = {}
    for pattern in itertools.product(range(4), repeat=len(out_shape)):
        if not any(pattern):
            continue  # the squared mean
        vector = np.eye(1, weights[0].shape[1])[0]
        for k, pairing in enumerate(pattern):
            if k and (pattern[k - 1] != pairing or pairing == 3):
                vector = vector / ranks[k - 1]
            vector = vector @ weights[k][pairing]
        name = _canonical(pattern, real)
        merged[name] = merged.get(name, 0.0) + float(np.sum(vector))
    return {name: weight for name, weight in merged.items() if weight}


def _canonical(pattern: tuple[int, ...], real: bool) -> tuple[int, ...]:
    if not real:
        first = next((p for p in pattern if p in (0, 2)), 0)
        return tuple(2 - p if first == 2 and p in (0, 2) else p for p in pattern)
    names: dict[int, int] = {3: 3}
    for p in pattern:
        names.setdefault(p, len(names) - 1)
    return tuple(names[p] for p in pattern)
