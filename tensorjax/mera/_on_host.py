"""MERAs on the host: whether NumPy contracts them, concrete copies, and einsums by either."""

from typing import Any

import jax
import numpy as np
from opt_einsum import get_symbol

from tensorjax._cores.contractions import einsum
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import NUMPY
from tensorjax.mera._types import MERA


def is_numpys(operation: str, m: MERA, work: float = 0.0) -> bool:
    """Whether a MERA operation runs in NumPy; JAX would compile a program per structure."""
    structure = operation, tuple([layer.wiring for layer in m.layers])
    facts = {"dtype": np.dtype(m.dtype), "key": structure, "work": lambda: work}
    return choose_kernel(operation, jax.tree.leaves(m), **facts) is NUMPY


def host_copy(m: MERA) -> MERA:
    """Copies the tensors of a MERA to the host, as NumPy arrays."""
    return jax.tree.map(np.asarray, m)


def network_einsum(*operands: Any) -> Any:
    """Contracts tensors of a MERA by an einsum, given as a string or as lists of axis labels."""
    if not isinstance(operands[0], str):
        *pairs, out = operands
        terms = ["".join(map(get_symbol, labels)) for labels in pairs[1::2]]
        operands = f"{','.join(terms)}->{''.join(map(get_symbol, out))}", *pairs[::2]
    return einsum(*operands)
