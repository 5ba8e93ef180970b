"""tensorjax: tensor networks in JAX, and published systems reimplemented on top of them.

Modules: `contract` (contraction plans), `linalg` (array factorisations), `tt` (tensor trains),
`tucker` (Tucker format), `mera` (multiscale entanglement renormalisation), `convert` (between
them), `sketch` (random projections) and `pde` (time-dependent equations in coordinates that move).
`kernel_choices` shows what serves a call: C++, NumPy or XLA.
Imported by their names, for what they need:
`tensorjax.interop` (tensors of other packages), and with the extra ``nn`` `tensorjax.nn` (Flax
layers), `tensorjax.optim` (Optax transformations) and `tensorjax.models`.
"""

from tensorjax import contract, convert, linalg, mera, pde, sketch, tt, tucker
from tensorjax._kernels.report import kernel_choices

__all__ = [
    "contract",
    "convert",
    "kernel_choices",
    "linalg",
    "mera",
    "pde",
    "sketch",
    "tt",
    "tucker",
]
__version__ = "0.1.0"
