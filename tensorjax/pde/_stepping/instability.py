"""Stability check of Runge–Kutta steps at fixed ranks, from their stages, also under jit.

Differences of stages are powers of the operator: with a right side A v + g, dt (k₃ − k₂) of the
classical Runge–Kutta method is dt A e, e = s₃ − s₂, whatever the source is and however A changes
with time. ‖dt A e‖/‖e‖ is a lower bound of dt ‖A‖. Where it is above what the method admits, and
dt A e is no small part of v, v consists of modes that grow in every step without bound. Physical
growth (a contracting density, a reaction) is not flagged where the steps resolve it.

Source: ours; the bound is that of a power iteration.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tensorjax._cores import products
from tensorjax._cores.contractions import einsum
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT
from tensorjax.pde._stepping.right_side import Rates
from tensorjax.pde._stepping.runge_kutta_adams_imex import STABLE
from tensorjax.pde._stepping.sketched_sums import Train, relative_norm, rounded

# Stages are combined to e and to dt A e by these weights of v, of the stages and of the result; dt
# A e counts where it is more than this share of v. Of the method of order 2 the two slopes are of
# different times: what changes within a step is taken for a rate, unless it is required to be most
# of what the step does.
_E, _AE = {"rk4": (0, -1, 1, 0, 0), "rk2": (-1, 1, 0)}, {"rk4": (1, 0, -2, 1, 0), "rk2": (0, -2, 2)}
_SHARE = {"rk4": 0.05, "rk2": 0.5}
# Powers of the rate ρ and factors of ρ^p ‖dt A e‖, which is the first term that a method leaves out
# of exp(dt A) v: (dt A)^5 v/120 with e = (dt A)² v/4, and (dt A)³ v/6 with e = dt A v.
_ERROR = {"rk4": (2, 1 / 30), "rk2": (1, 1 / 6)}
# Steps of the power iteration that estimates the fastest rate.
_ITERATIONS = 6


class Rate(NamedTuple):
    """Fastest rate of an operator times dt, and whether a step shows instability.

    Attributes:
      value: of the operator, times dt, from below.
      unstable: whether it is too fast for the method, and a part of v that counts.
      error: of the step over ‖v‖, as if the operator were constant in it.
    """

    value: Any
    unstable: Any
    error: Any


def rate(method: str, trains: Sequence[Any], change: Sequence[Any] = ()) -> Rate:
    """Estimates the fastest rate from the stages of a Runge–Kutta step, to detect instability.

    Args:
      method: "rk4" or "rk2".
      trains: v, the stages, and the result.
      change: pairs (train, weight) of dt times what the source changes by within the step; of the
        method of order 4 it is not needed.
    """
    known = [*trains, *(x for x, _ in change)]
    gram = _gram(known)
    size = jnp.sqrt(jnp.maximum(gram[0, 0], gram[len(trains) - 1, len(trains) - 1]))
    none = [0.0] * len(change)
    e = _size(gram, [*_E[method], *none])
    image = _size(gram, [*_AE[method], *(-w for _, w in change)])
    value = jnp.where(image > 0, image / e, 0.0)
    unstable = (image > _SHARE[method] * size) & (value > min(STABLE[method]))
    # Sizes below this share of v are roundoff of its squares, and so is what follows from them.
    floor = 10 * jnp.finfo(gram.dtype).eps ** 0.5 * size
    seen = (image > floor) & (e > floor)
    power, factor = _ERROR[method]
    error = factor * image * jnp.where(seen, value, 0.0) ** power / jnp.where(size > 0, size, 1)
    return Rate(value, unstable, error)


def rounded_off(parts: Sequence[Any], weights: Sequence[Any], bonds: Sequence[int]) -> Any:
    """Computes the loss by rounding to rank one, at each bond, beside which instability is judged.

    At every bond by itself, whatever is rounded at others. Below 10 √eps it is zero: differences of
    squares do not tell.

    Args:
      parts: trains, or pairs (operator, train) for what the operator makes of it.
      weights: of each in the sum.
      bonds: k, between cores k − 1 and k, for which it is asked.

    Returns:
      One for each of the bonds.
    """
    parts = [
        TT._unchecked(tuple(products.matvec(list(p[0].cores), list(p[1].cores))))
        if isinstance(p, tuple) else p
        for p in parts
    ]  # fmt: skip
    w = jnp.stack([jnp.asarray(x, parts[0].dtype) for x in weights])
    left = _grams([x.cores for x in parts])
    # From the right: the same sweep over mirrored trains.
    right = _grams([[c.transpose(2, 1, 0) for c in x.cores[::-1]] for x in parts])[::-1]
    out = []
    for k in bonds:
        here, there = left[k], right[k] * (w[:, None] * w[None])[:, :, None, None]
        many = here.shape[0] * here.shape[2]
        here, there = (g.transpose(0, 2, 1, 3).reshape(many, many) for g in (here, there))
        # Squares of singular values of the sum at the bond: what is not the largest is lost.
        values, vectors = jnp.linalg.eigh(here)
        root = vectors * jnp.sqrt(jnp.maximum(values, 0))[None]
        squares = jnp.maximum(jnp.linalg.eigvalsh(root.T @ there @ root), 0)
        total = squares.sum()
        lost = jnp.sqrt(squares[:-1].sum() / jnp.where(total > 0, total, 1))
        out.append(jnp.where(lost > 10 * jnp.finfo(lost.dtype).eps ** 0.5, lost, 0.0))
    return jnp.stack(out)


def _size(gram: Any, weights: Sequence[Any]) -> Any:
    """Computes ‖Σ w x‖ of stages whose growth tells instability, from their Gram matrix."""
    w = jnp.stack([jnp.asarray(x, gram.dtype) for x in weights])
    return jnp.sqrt(jnp.maximum(w @ gram @ w, 0))


def _gram(trains: Sequence[Any]) -> Any:
    """Computes the Gram matrix of trains whose growth tells instability, up to a scale."""
    return _grams([x.cores for x in trains])[-1][:, :, 0, 0]


def _grams(trains: Sequence[Sequence[Any]]) -> list[Any]:
    """Computes Gram matrices (m, m, r, r) of stages at every bond, for their instability.

    Each up to a scale; of smaller ranks the rest is zero.
    """
    states = [jnp.ones((len(trains),) * 2 + (1, 1), trains[0][0].dtype)]
    for cores in zip(*trains, strict=True):
        room = [max(n) for n in zip(*(c.shape for c in cores), strict=True)]
        pads = [[(0, m - n) for m, n in zip(room, c.shape, strict=True)] for c in cores]
        stack = jnp.stack([jnp.pad(c, p) for c, p in zip(cores, pads, strict=True)])
        state = einsum("xyab,xanc,ybnd->xycd", states[-1], stack, stack)
        # Squares stay within the range of the dtype.
        top = jnp.abs(state).max()
        states.append(state / jnp.where((top > 0) & jnp.isfinite(top), top, 1))
    return states


def fastest(
    rates: Rates,
    cores: Cores,
    dt: float,
    share: float,
    stable: tuple[float, float],
    near: float = 1.0,
) -> float | None:
    """Estimates the fastest rate of a PDE's right side, to tell instability; None if stable.

    Instability grows out of the small parts of v: those below ``share`` are asked apart. Only
    linear operators have rates; a source has none, and what a reaction does the norms tell.

    Args:
      rates: linear operators.
      cores: of v.
      dt: the step.
      share: of ‖v‖.
      stable: what dt times a real, and an imaginary, rate may be.
      near: share of that at which a part of v has to change for the fastest rate to be looked for.
    """
    big = rounded([Train(cores)], [1.0], share).cores
    low = [4] * (len(cores) - 1)
    small = rounded([Train(cores), Train(big)], [1.0, -1.0], 0.1, low)
    asked = [cores]
    if small.norm > 1e-14 * float(np.linalg.norm(cores[0])):
        asked.append(small.cores)
    rate = max(_rate(rates, part) for part in asked)
    if not (math.isfinite(rate) and dt * rate > near * max(stable)):
        return None
    part = asked[-1]
    for _ in range(_ITERATIONS):  # towards what grows fastest
        size = float(np.linalg.norm(part[0]))
        if not (math.isfinite(size) and size > 0):
            break
        terms = rates.terms(part, 0.1)
        part = rounded(terms, [1 / size] * len(terms), 0.3, low).cores
    last = _rate(rates, part)
    rate = max(rate, last) if math.isfinite(last) else rate
    return rate if dt * rate > max(stable) else None


def _rate(rates: Rates, cores: Cores) -> float:
    """Estimates the rate of change ‖Q(v)‖ / ‖v‖ of a PDE, to tell instability."""
    terms = rates.terms(cores, 0.1)
    return relative_norm(terms, [1.0] * len(terms), Train(cores)) if terms else 0.0
