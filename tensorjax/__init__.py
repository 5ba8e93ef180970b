"""tensorjax: tensor networks in JAX, and the published systems that stand on them.

Modules: `contract` (contraction plans), `linalg` (array factorisations), `tt` (tensor trains),
`tucker` (Tucker format), `mera` (multiscale entanglement renormalisation), `convert` (between
them) and `sketch` (random projections). `tensorjax.interop` (tensors of other packages) is imported
by its name.
"""

from tensorjax import contract, convert, linalg, mera, sketch, tt, tucker

__all__ = ["contract", "convert", "linalg", "mera", "sketch", "tt", "tucker"]
__version__ = "0.1.0"
