"""tensorjax: tensor networks in JAX, and published systems reimplemented on top of them.

Packages: `contract` (contraction plans), `linalg` (array factorisations), `tt` (tensor trains),
`tucker` (Tucker format), `mera` (multiscale entanglement renormalisation), `convert` (between
them), `sketch` (random projections), `pde` (time-dependent equations in coordinates that move),
`interop` (tensors of other packages) and `offload` (training beyond memory); with the extra ``nn``
also `nn` (Flax layers), `optim` (Optax transformations), `parallel` (layouts over devices) and
`models`, with the extra ``plot`` also `plot` (drawings). Each is loaded when it is first used.
`show_versions` prints what a report of a fault needs, `kernel_choices` what serves a call: C++,
NumPy or XLA.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tensorjax import _extras
from tensorjax._version_report import show_versions

if TYPE_CHECKING:
    from tensorjax import (
        contract,
        convert,
        interop,
        linalg,
        mera,
        models,  # noqa: F401
        nn,  # noqa: F401
        offload,
        optim,  # noqa: F401
        parallel,  # noqa: F401
        pde,
        plot,  # noqa: F401
        sketch,
        tt,
        tucker,
    )
    from tensorjax._kernels.printed_table import kernel_choices

# `from tensorjax import *` works without any extra, and so leaves out the packages that need one.
__all__ = [
    "contract",
    "convert",
    "interop",
    "kernel_choices",
    "linalg",
    "mera",
    "offload",
    "pde",
    "show_versions",
    "sketch",
    "tt",
    "tucker",
]
__version__ = "0.1.0"

_EXTRA = tuple(_extras.NEEDED)

if not TYPE_CHECKING:  # checkers see the imports above, and report names that are none

    def __getattr__(name: str) -> Any:
        if name == "kernel_choices":  # what the table is of takes a second to load
            return importlib.import_module("tensorjax._kernels.printed_table").kernel_choices
        if name in __all__ or name in _EXTRA:
            return importlib.import_module(f"tensorjax.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists for `dir` the names in the root package, without packages whose extra is missing."""
    there = (name for name in _EXTRA if all(map(_extras.is_there, _extras.NEEDED[name])))
    return [*__all__, *there, "__version__"]
