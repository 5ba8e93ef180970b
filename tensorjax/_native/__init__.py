"""Optional C++ kernels for tensor trains on CPUs: rounding, inner products, sketches, lookups.

XLA compiles a program for every shape, and its small products, factorisations and eigenproblems
reach a tenth of what a core can do. `round_to_ranks`, `inner`, `multiply`, `add` and `sketch` call
compiled code instead, under jit and vmap like any other operation, and so do lookups in
`tensorjax.nn`; `overlap` serves concrete trains, `exact_product` no batches; `gram_round`,
`tt_svd`, `entries` and the passes serve the host.
A wheel for Linux holds them for several levels of CPUs, and `kernels` says which one serves; from
source, hatch_build.py compiles them if there is a compiler. Without it, on other machines and for
other dtypes, XLA's programs serve. So they do on other platforms, in programs made for
`jax.export` and where XLA would have to split a call over devices. The table in
tensorjax/_kernels/table.py says which calls these kernels serve. TENSORJAX_NATIVE=0 in the
environment turns the sweeps off, and TENSORJAX_NATIVE=x86-64-v2, for one, asks for no better level
than that.
"""

from tensorjax._native.entries_kernel import Evaluator, entries, in_one_piece
from tensorjax._native.loading import kernels, status
from tensorjax._native.lookups import look_up, look_up_gradient
from tensorjax._native.matrix_kernels import gram, pivoted_cholesky, project, sketch
from tensorjax._native.sums_and_products import (
    add,
    exact_product,
    exact_product_shapes,
    inner,
    multiply,
    overlap,
    product_shapes,
    sum_shapes,
)
from tensorjax._native.tt_rounding import basis_columns, gram_round, round_to_ranks, rounded_shapes
from tensorjax._native.tt_svd_small import tt_svd

__all__ = [
    "Evaluator",
    "add",
    "basis_columns",
    "entries",
    "exact_product",
    "exact_product_shapes",
    "gram",
    "gram_round",
    "in_one_piece",
    "inner",
    "kernels",
    "look_up",
    "look_up_gradient",
    "multiply",
    "overlap",
    "pivoted_cholesky",
    "product_shapes",
    "project",
    "round_to_ranks",
    "rounded_shapes",
    "sketch",
    "status",
    "sum_shapes",
    "tt_svd",
]
