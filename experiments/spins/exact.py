"""The open transverse-field Ising chain, H = −Σ σx σx − Σ σz, by free fermions.

The Jordan–Wigner and Bogoliubov transformations leave one matrix M, with the field on its diagonal
and the coupling beside it. Its singular values are the energies of the fermions (up to a factor of
two), and all correlations of the ground state are determinants of its orthogonal polar factor Q.

Source: Lieb, Schultz, Mattis, Ann. Phys. 16 (1961) 407; Pfeuty, Ann. Phys. 57 (1970) 79.
"""

import numpy as np

FIELD = 1.0  # the critical one


def _factors(order: int, field: float) -> tuple[np.ndarray, np.ndarray]:
    """Singular values of M, and its polar factor."""
    m = field * np.eye(order) + np.eye(order, k=1)
    u, s, vh = np.linalg.svd(m)
    return s, u @ vh


def energy(order: int, field: float = FIELD) -> float:
    """The energy of the ground state."""
    return -float(_factors(order, field)[0].sum())


def magnetization(order: int, field: float = FIELD) -> np.ndarray:
    """⟨σz⟩ at every site."""
    return np.diagonal(_factors(order, field)[1]).copy()


def correlation(order: int, i: int, j: int, field: float = FIELD) -> float:
    """⟨σx_i σx_j⟩ for i < j: a determinant, by Wick's theorem."""
    q = _factors(order, field)[1]
    return float(np.linalg.det(q[i:j, i + 1 : j + 1]))
