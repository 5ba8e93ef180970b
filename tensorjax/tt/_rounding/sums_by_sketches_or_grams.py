"""Sums of tensor trains and of products of trains, rounded by random sketches or Gram matrices.

A *term* is a train, or a product of two that stays one: x ∘ y, A x or A B, whose bonds are pairs of
bonds. A sum of terms is a train whose bonds are the terms' bonds side by side. Two sweeps need no
more of it than products with its cores, term by term, factor by factor: for ranks r and a result of
rank f a product of two costs O(n r³ f), where rounding what has ranks r² takes O(n r⁶).

First from the right, sketches of what lies right of each bond, by one random train for all terms;
then from the left, each bond projected on the range of its sketched unfolding.

Source: H. Al Daas et al., "Randomized algorithms for rounding in the tensor-train format", SIAM J.
Sci. Comput. 45 (2023), algorithm 3.2 (randomize, then orthogonalize; there for sums). Ours: the
products, and the random train of `tensorjax._cores.randomized_rounding.sketches`.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores import gram_rounding
from tensorjax._cores import scaling as balance
from tensorjax._cores.contractions import einsum
from tensorjax._cores.ranks import cut_ranks
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.random_arrays import split_keys
from tensorjax.linalg._arrays import namespace

# Columns of the independent sketch that estimates the error made with a tolerance.
_PROBES = 48
# Parts of a tolerance: of the truncation by singular values, and of what the sketches may miss, by
# an estimate that may be off by a factor of two.
TRUNCATION, _SKETCH = 0.7, 0.35

Array = Any
Factors = tuple[Array, ...]  # a core (r, n, s); two of them; or two cores (r, m, n, s) of matrices
Term = list[Factors]


def modes_of(term: Term) -> list[int]:
    """Returns the mode sizes of a term of a sum of trains to be sketched, from its factors."""
    return [_mode(factors) for factors in term]


def _mode(cores: Factors) -> int:
    if cores[0].ndim == 3:
        return cores[0].shape[1]
    return cores[0].shape[1] * cores[1].shape[2]


def through(cores: Factors, f: Array, omega: Array) -> Array:
    """Extends the sketch of one term of a sum of trains, from the right, by one mode.

    Args:
      cores: of one mode n.
      f: (s, f), or (s, s', f) for two cores.
      omega: (n, f).
    """
    if len(cores) == 1:
        return (einsum("ris,sf->rif", cores[0], f) * omega[None]).sum(1)
    first, second = cores
    if first.ndim == 3:
        t = einsum("ris,stf->ritf", first, f) * omega[None, :, None, :]
        return einsum("ritf,qit->rqf", t, second)
    m, n = first.shape[1], second.shape[2]
    t = einsum("rmks,qknt,stf->qnfrm", first, second, f)
    weights = omega.reshape(m, n, -1).transpose(1, 2, 0)[None, :, :, None, :]
    return (t * weights).sum((1, 4)).transpose(2, 0, 1)


def from_left(w: Array, cores: Factors) -> Array:
    """Contracts a sketched sum's matrix with the left bonds of a train, or of a product of two.

    The bonds of a product are pairs.
    """
    if len(cores) == 1:
        return einsum("fr,rns->fns", w, cores[0])
    first, second = cores
    if first.ndim == 4:
        t = einsum("frq,rmks,qknt->fmnst", w, first, second)
        return t.reshape(t.shape[0], -1, *t.shape[3:])
    return einsum("frq,rns,qnt->fnst", w, first, second)


def edge(term: Term) -> Array:
    """Returns the end interface of a train, or product, in a sketched sum: one entry, 1."""
    return linalg.identity_like(1, term[0][0]).reshape((1,) * (1 + len(term[0])))


def near_one(terms: Sequence[Term]) -> tuple[list[Term], list[list[Any]]]:
    """Scales the cores of a sketched sum of trains near one; returns the exponents too."""
    small: list[Term] = []
    exponents = []
    for term in terms:
        pairs = [balance.near_one(factors) for factors in term]
        small.append([tuple(factors) for factors, _ in pairs])
        exponents.append([e for _, e in pairs])
    return small, [list(es) for es in zip(*exponents, strict=True)]


def sketches(
    terms: Sequence[Term], exponents: Sequence[Any], width: int, key: Any
) -> list[tuple[list[Array], list[Any]]]:
    """Sketches all trains or products in a sum, from the right, by one random train.

    Each term has exponents of its own: on the way their parts may be of very different sizes.
    """
    like = terms[0][0][0]
    sizes = modes_of(terms[0])
    keys = (None, None) if key is None else split_keys(_check.key(key), 2)
    draw = linalg.random_like(keys[0], (sum(sizes), width), like)
    mix = linalg.qr(linalg.random_like(keys[1], (width, width), like))[0]
    ends = np.cumsum(sizes)
    fs = [edge(term) for term in terms]
    powers: list[Any] = [0] * len(terms)
    out: list[Any] = []
    for k in range(len(sizes) - 1, 0, -1):
        omega = draw[ends[k] - sizes[k] : ends[k]]
        fs = [through(term[k], f, omega) for term, f in zip(terms, fs, strict=True)]
        fs, es = _in_range([linalg.matmul(f, mix) for f in fs])
        powers = [balance.settled(sum(p)) for p in zip(powers, exponents[k], es, strict=True)]
        out.append((fs, powers))
    return out[::-1]


def projected(
    terms: Sequence[Term], weights: Sequence[Any], widths: Sequence[int], key: Any
) -> tuple[Cores, Any]:
    """Rounds a weighted sum of trains by sketches: one sweep that projects every bond.

    Args:
      terms: of the same modes, with factors that are all NumPy or all JAX arrays.
      weights: one for each term.
      widths: the ranks wanted, d−1, some more than those that are to be exact.

    Returns:
      The cores, left-orthogonal but for the last, and the exponent of two to scale them back by.
    """
    like, order = terms[0][0][0], len(terms[0])
    terms, exponents = near_one(terms)
    sketched = sketches(terms, exponents, max(widths, default=1), key)
    ws, powers = _in_range([w * edge(term) for term, w in zip(terms, weights, strict=True)])
    out: Cores = []
    for k in range(order - 1):
        images = [from_left(w, term[k]) for w, term in zip(ws, terms, strict=True)]
        rows, n = images[0].shape[:2]
        flat = [m.reshape(rows * n, -1) for m in images]
        powers = [p + e for p, e in zip(powers, exponents[k], strict=True)]
        q = linalg.identity_like(rows * n, like)
        if rows * n > widths[k]:
            fs, right = sketched[k]
            fs = [f.reshape(-1, f.shape[-1])[:, : widths[k]] for f in fs]
            seen = [linalg.matmul(m, f) for m, f in zip(flat, fs, strict=True)]
            q = linalg.qr(_total(seen, [p + e for p, e in zip(powers, right, strict=True)])[0])[0]
            flat = [linalg.matmul(linalg.adjoint(q), m) for m in flat]
        out.append(q.reshape(rows, n, -1))
        ws = [w.reshape(-1, *m.shape[2:]) for w, m in zip(flat, images, strict=True)]
        ws, es = _in_range(ws)
        powers = [balance.settled(p + e) for p, e in zip(powers, es, strict=True)]
    images = [from_left(w, term[-1]) for w, term in zip(ws, terms, strict=True)]
    powers = [p + e for p, e in zip(powers, exponents[-1], strict=True)]
    last, exponent = _total([m.reshape(*m.shape[:2], 1) for m in images], powers)
    return [*out, last], exponent


def within(
    terms: Sequence[Term], weights: Sequence[Any], tol: float, key: Any, probe: Any
) -> tuple[Cores, bool]:
    """Rounds a sum of trains to a tolerance, by sketches of growing width, not by Gram matrices.

    ``key`` is of their random train, ``probe`` of the one that measures. What is left of the
    tolerance, `TRUNCATION`, is for a truncation; all of it if nothing is missed, as is told too.
    """
    modes = modes_of(terms[0])
    bonds = [[math.prod(len(c) for c in factors) for factors in term] for term in terms]
    full = cut_ranks((1, *map(sum, list(zip(*bonds, strict=True))[1:]), 1), modes)[1:-1]
    width = max(len(c) for term in terms for factors in term for c in factors) + linalg.OVERSAMPLE
    while True:
        widths = cut_ranks((1, *(min(width, f) for f in full), 1), modes)[1:-1]
        cores = balance.balanced(*projected(terms, weights, widths, key))
        if widths == full or missed(terms, weights, cores, _PROBES, probe) <= _SKETCH * tol:
            return cores, widths == full
        width *= 2


def _total(arrays: Sequence[Array], exponents: Sequence[Any]) -> tuple[Array, Any]:
    """Adds the parts of a sketched sum of trains, scaled by powers of two; returns the exponent."""
    if len(arrays) == 1:
        return arrays[0], exponents[0]
    most = functools.reduce(namespace(arrays[0]).maximum, exponents)
    small = (linalg.scaled(a, e - most) for a, e in zip(arrays, exponents, strict=True))
    return sum(small), most


def _in_range(ws: list[Array]) -> tuple[list[Array], list[Any]]:
    """Scales the arrays of a sketched sum near one by powers of two; returns exponents."""
    pairs = [balance.near_one([w]) for w in ws]
    return [w for (w,), _ in pairs], [e for _, e in pairs]


def grams(terms: Sequence[Term], weights: Sequence[Any]) -> tuple[list[Array], Any]:
    """Computes Gram matrices of a sum of trains, at every bond, and its squared norm.

    Dense over the bonds of all terms side by side: (Σr, Σr), with r the product of a pair's bonds.
    """
    like = terms[0][0][0]
    count = len(terms)
    g = np.ones((count, count), like.dtype)
    out: list[Array] = []
    for k in range(len(terms[0]) - 1, 0, -1):
        cores = [term[k] for term in terms]
        g = sum(
            _sliced(cores, n, linalg.adjoint(_sliced(cores, n, g))) for n in range(_mode(cores[0]))
        )
        g = linalg.adjoint(g)
        out.append(g)
    cores = [term[0] for term in terms]
    rows = [_sliced(cores, n, np.eye(len(g), dtype=like.dtype)) for n in range(_mode(cores[0]))]
    weighted = [np.asarray(weights, like.dtype) @ row for row in rows]
    total = sum((row @ g @ row.conj()).real for row in weighted)
    return out[::-1], total


def _sliced(cores: Sequence[Factors], n: int, x: Array) -> Array:
    """Multiplies slice n of a sum of trains by a matrix on its right, for Gram matrices."""
    out = []
    start = 0
    for factors in cores:
        sides = [c.shape[-1] for c in factors]
        rows = x[start : start + int(np.prod(sides))].reshape(*sides, -1)
        start += int(np.prod(sides))
        if len(factors) == 1:
            part = einsum("rs,sx->rx", factors[0][:, n], rows)
        elif factors[0].ndim == 3:
            part = einsum("rs,qt,stx->rqx", factors[0][:, n], factors[1][:, n], rows)
        else:
            i, j = divmod(n, factors[1].shape[2])
            part = einsum("rks,qkt,stx->rqx", factors[0][:, i], factors[1][:, :, j], rows)
        out.append(part.reshape(-1, x.shape[1]))
    return np.concatenate(out)


def by_grams(terms: Sequence[Term], weights: Sequence[Any], share: float) -> tuple[Cores, Any]:
    """Rounds a weighted sum of trains by Gram matrices of its bonds: cores and their exponent.

    Returns:
      The cores, and the exponent of two to scale them back by.

    Raises:
      InaccurateGram: roundoff in the Gram matrices is not small beside what may be discarded.
    """
    terms, exponents = near_one(terms)
    powers = [sum(es) for es in zip(*exponents, strict=True)]
    most = max(powers)
    weights = [linalg.scaled(w, p - most) for w, p in zip(weights, powers, strict=True)]
    factors, total = grams(terms, weights)
    gram_rounding.in_reach(total)
    order = len(terms[0])
    ws = [w * edge(term) for term, w in zip(terms, weights, strict=True)]
    out: Cores = []
    for k in range(order - 1):
        images = [from_left(w, term[k]) for w, term in zip(ws, terms, strict=True)]
        rows, n = images[0].shape[:2]
        matrix = np.concatenate([m.reshape(rows * n, -1) for m in images], 1)
        u = gram_rounding.gram_basis(
            matrix, gram_rounding.gram_factor(factors[k]), share * total / (order - 1)
        )
        out.append(u.reshape(rows, n, -1))
        sides = np.cumsum([m[0, 0].size for m in images])[:-1]
        parts = np.split(linalg.project(u, matrix), sides, 1)
        ws = [p.reshape(-1, *m.shape[2:]) for p, m in zip(parts, images, strict=True)]
    images = [from_left(w, term[-1]) for w, term in zip(ws, terms, strict=True)]
    last = np.sum([m.reshape(*m.shape[:2], 1) for m in images], 0)
    # Projections are orthogonal, so the energy that is missing now is the error.
    if not total - linalg.energy(last.reshape(len(last), -1)) <= share * total:
        raise gram_rounding.InaccurateGram
    return [*out, last], most


def missed(
    terms: Sequence[Term], weights: Sequence[Any], cores: Cores, width: int, key: Any
) -> float:
    """Estimates the relative error of a sum of trains rounded by sketches, by a random train.

    An independent random train of rank ``width`` looks at both from the right, and the first mode
    is summed exactly: an unbiased estimate of squares, of a spread of about √((1 + 2/width)^d /
    width).
    """
    probed, exponents = near_one([*terms, [(c,) for c in cores]])
    ws, left = _in_range([w * edge(t) for t, w in zip(probed, [*weights, -1.0], strict=True)])
    fs, right = sketches(probed, exponents, width, key)[0]
    parts = []
    for term, w, f in zip(probed, ws, fs, strict=True):
        image = from_left(w, term[0])
        seen, f = image.reshape(image.shape[1], -1), f.reshape(-1, width)
        parts.append(linalg.matmul(seen, f))
    powers = [sum(es) for es in zip(left, exponents[0], right, strict=True)]
    error, most = _total(parts, powers)
    size = float(linalg.energy(linalg.scaled(parts[-1], powers[-1] - most)))
    return (float(linalg.energy(error)) / size) ** 0.5 if size > 0 else 0.0
