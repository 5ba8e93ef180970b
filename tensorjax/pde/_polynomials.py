"""Polynomials of a train, entry by entry, on the host and in double precision."""

from collections.abc import Sequence

import jax

from tensorjax import linalg
from tensorjax._cores import Cores, cut_ranks
from tensorjax.tt import _fused as fused
from tensorjax.tt import _hosted as hosted

# Columns of the sketch that measures what a product is short of; parts of a tolerance, as in
# `tt.linear_combination`: of the truncation by singular values, and of what sketches may miss.
_PROBES, _TRUNCATION, _SKETCH = 48, 0.7, 0.35


def polynomial(cores: Cores, coefficients: Sequence[float], tol: float) -> Cores:
    """Σ_{k ≥ 2} c_k vᵏ of a train v, at a relative error of about ``tol`` for every product."""
    last = max(k for k, c in enumerate(coefficients) if c)
    pairs, weights, power = [], [], cores
    for k in range(2, last + 1):
        if coefficients[k]:
            pairs.append((power, cores))
            weights.append(coefficients[k])
        if k < last:
            power = _products([(power, cores)], [1.0], tol)
    return _products(pairs, weights, tol)


def _products(pairs: Sequence[tuple[Cores, Cores]], weights: list[float], tol: float) -> Cores:
    """Σ w x∘y without any of the products, whose ranks multiply: see `tt.linear_combination`."""
    terms = [list(zip(x, y, strict=True)) for x, y in pairs]
    modes = [c.shape[1] for c in pairs[0][0]]
    if len(modes) == 1:
        return [sum(w * x[0] * y[0] for w, (x, y) in zip(weights, pairs, strict=True))]
    bonds = [[len(x) * len(y) for x, y in term] for term in terms]
    full = cut_ranks((*map(sum, zip(*bonds, strict=True)), 1), modes)[1:-1]
    width = max(len(c) for pair in pairs for x in pair for c in x) + linalg.OVERSAMPLE
    while True:
        widths = cut_ranks((1, *(min(width, f) for f in full), 1), modes)[1:-1]
        cores, _ = fused.projected(terms, weights, widths, None)
        missed = fused.missed(terms, weights, cores, _PROBES, jax.random.key(1))
        if widths == full or missed <= _SKETCH * tol:
            return hosted.rounded(cores, _TRUNCATION * tol)
        width *= 2
