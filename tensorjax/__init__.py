"""tensorjax: tensor networks in JAX, and the published systems that stand on them.

Modules: `contract` (contraction plans), `linalg` (array factorisations), `tt` (tensor trains),
`tucker` (Tucker format), `mera` (multiscale entanglement renormalisation) and `sketch` (random
projections).
"""

from tensorjax import contract, linalg, mera, sketch, tt, tucker

__all__ = ["contract", "linalg", "mera", "sketch", "tt", "tucker"]
__version__ = "0.1.0"
