"""Energy, ⟨σz⟩ and correlations of a state, held as a tensor train or as a MERA."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.spins import exact
from tensorjax import mera, tt
from tensorjax.mera import MERA

X, Z, ONE = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0]), np.eye(2)


class Measured(NamedTuple):
    """Measured values of a state: energy, ⟨σz⟩ and correlations.

    Attributes:
      energy: of the chain.
      field: ⟨σz⟩ at every site.
      correlations: ⟨σx_i σx_j⟩ for the pairs asked.
    """

    energy: float
    field: np.ndarray
    correlations: np.ndarray


def pairs(order: int, distances: Sequence[int]) -> list[tuple[int, int]]:
    """Returns pairs of sites about the middle of the chain, one for each distance."""
    return [((order - r) // 2, (order - r) // 2 + r) for r in distances]


def exactly(order: int, distances: Sequence[int]) -> Measured:
    """Computes the exact energy, ⟨σz⟩ and correlations of the Ising chain."""
    correlations = [exact.correlation(order, i, j) for i, j in pairs(order, distances)]
    return Measured(exact.energy(order), exact.magnetization(order), np.array(correlations))


def of_train(x: tt.TT, distances: Sequence[int]) -> Measured:
    """Measures a train by inner products with operators of TT-rank one."""
    size = float(tt.norm(x)) ** 2

    def value(terms: dict[int, np.ndarray]) -> float:
        cores = [jnp.asarray(terms.get(k, ONE))[None, :, :, None] for k in range(x.order)]
        return float(tt.inner(x, tt.TTMatrix(cores) @ x)) / size

    return _measured(x.order, distances, lambda i, a, j, b: value({i: a, j: b}))


def of_mera(m: MERA, distances: Sequence[int]) -> Measured:
    """Measures a MERA by expectation values in causal cones, each of a pair of sites.

    ⟨σz⟩ is that of a pair with a one beside it: the cone of the bond's term is compiled already.
    """

    def value(i: int, a: np.ndarray, j: int, b: np.ndarray) -> float:
        return float(mera.expectation(m, np.kron(a, b), (i, j)))

    return _measured(m.order, distances, value)


def _measured(
    order: int, distances: Sequence[int], value: Callable[[int, Any, int, Any], float]
) -> Measured:
    bonds = np.array([value(k, X, k + 1, X) for k in range(order - 1)])
    field = [value(k, Z, k + 1, ONE) for k in range(order - 1)]
    field = np.array([*field, value(order - 2, ONE, order - 1, Z)])
    correlations = np.array([value(i, X, j, X) for i, j in pairs(order, distances)])
    return Measured(-float(bonds.sum() + exact.FIELD * field.sum()), field, correlations)
