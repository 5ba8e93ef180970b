"""Tensor trains and TT-matrices: construction, arithmetic, rounding, solvers, cross, completion.

Functions by task:

  types        TT, TTMatrix: operators + - * / ** @, t[3, :, 2:5], t.shape, t.ranks, t.T
  create       zeros ones random rank_one unit meshgrid zeros_like ones_like; from_dense, to_dense
  matrices     identity rank_one_matrix random_matrix zeros_matrix ones_matrix chain_operator
               matrix_from_dense transpose trace diagonal diagonal_matrix kron pinv
  arithmetic   add scale hadamard power divide map matvec matmul linear_combination conj real imag
               inner norm log_norm distance normalize pairwise_inner bilinear_form
  entries      evaluate argmax argmin sample
  axes         sum mean var cumsum tensordot mode_product contract_modes reshape permute reverse
               broadcast_to concatenate pad_modes
  ranks        round orthogonalize singular_values pad trim effective_ranks
               stream stream_add stream_train
  from calls   cross integrate complete
  equations    solve eigsh
  manifold     tangent_project tangent_inner tangent_sum retract transport riemannian_grad
               value_and_riemannian_grad riemannian_descent riemannian_cg
  statistics   moment marginal conditional log_density sobol variance_components mean_dimension
               dimension_distribution
  quantics     quantics_grid index_to_quantics quantics_to_index; the module quantics
  modules      quantics (2^n grids), functions (of continuous variables), patches (local ranks)
  results      CompleteInfo CrossInfo CrossProgress EigInfo ExtremumInfo IntegrateInfo SolveInfo
               QuanticsGrid Stream

``help(tt.round)`` describes a function, ``help(tt.TT)`` a type with its methods and operators.

``rank=`` means one thing in every function that takes it: an upper bound, one int for all bonds or
one per bond. Ranks of the result are lower where the modes or the ranks of the input are; only a
train that is padded to ``rank`` at every bond (`pad`) keeps exactly these ranks, so that loops
under jit keep their shapes. `pad`, and `random` for ranks given bond by bond, use exactly ``rank``.

Example:
  >>> import jax
  >>> from tensorjax import tt
  >>> x = tt.random(jax.random.key(0), (4, 5, 6), rank=3)
  >>> tt.round(x + x, rank=3).ranks
  (1, 3, 3, 1)
"""

from typing import TYPE_CHECKING

from tensorjax import _extras, _other_names
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax.tt import functions, patches, quantics
from tensorjax.tt._arrays.dense_products import dense_before, dense_product
from tensorjax.tt._arrays.elementwise import divide, map, power
from tensorjax.tt._arrays.extrema import ExtremumInfo, argmax, argmin
from tensorjax.tt._arrays.indexing_and_concatenation import (
    concatenate,
    item,
    matrix_item,
    pad_modes,
)
from tensorjax.tt._arrays.mode_products import contract_modes, mode_product
from tensorjax.tt._arrays.reductions import cumsum, mean, sum, var
from tensorjax.tt._arrays.reshaping import permute, reshape, reverse
from tensorjax.tt._arrays.tensordot import tensordot
from tensorjax.tt._arrays.trace_diagonal_pinv import (
    diagonal,
    diagonal_matrix,
    pinv,
    trace,
)
from tensorjax.tt._broadcasting import broadcast_to
from tensorjax.tt._chain_operators import chain_operator
from tensorjax.tt._completion.completion import CompleteInfo, complete
from tensorjax.tt._constructors import (
    identity,
    meshgrid,
    ones,
    ones_like,
    ones_matrix,
    random,
    random_matrix,
    rank_one,
    rank_one_matrix,
    unit,
    zeros,
    zeros_like,
    zeros_matrix,
)
from tensorjax.tt._cross.cross import CrossInfo, CrossProgress, cross
from tensorjax.tt._eigen.eigsh import EigInfo, eigsh
from tensorjax.tt._entries import evaluate
from tensorjax.tt._exact_arithmetic import add, conj, imag, kron, real, scale, transpose
from tensorjax.tt._linear.solve import SolveInfo, solve
from tensorjax.tt._manifold.riemannian_gradients import (
    riemannian_cg,
    riemannian_descent,
    riemannian_grad,
    value_and_riemannian_grad,
)
from tensorjax.tt._manifold.tangent_space import (
    retract,
    tangent_inner,
    tangent_project,
    tangent_sum,
    transport,
)
from tensorjax.tt._products.bilinear_forms_and_pairs import bilinear_form, pairwise_inner
from tensorjax.tt._products.hadamard_and_matrix_products import (
    hadamard,
    linear_combination,
    matmul,
    matvec,
)
from tensorjax.tt._products.inner_products import distance, inner, log_norm, norm, normalize
from tensorjax.tt._quadrature.integral_info import IntegrateInfo
from tensorjax.tt._quadrature.integrate import integrate
from tensorjax.tt._rank_padding import effective_ranks, pad, trim
from tensorjax.tt._rounding.orthogonalize import orthogonalize
from tensorjax.tt._rounding.round import round
from tensorjax.tt._rounding.singular_values import singular_values
from tensorjax.tt._statistics.densities import conditional, log_density, marginal
from tensorjax.tt._statistics.moments import moment
from tensorjax.tt._statistics.sampling import sample
from tensorjax.tt._statistics.sobol_and_variance_components import (
    dimension_distribution,
    mean_dimension,
    sobol,
    variance_components,
)
from tensorjax.tt._streaming_sums import Stream, stream, stream_add, stream_train
from tensorjax.tt._to_dense import to_dense
from tensorjax.tt._tt_svd.from_dense import from_dense, matrix_from_dense
from tensorjax.tt.quantics.grids import (
    QuanticsGrid,
    index_to_quantics,
    quantics_grid,
    quantics_to_index,
)

__all__ = [
    "TT",
    "CompleteInfo",
    "CrossInfo",
    "CrossProgress",
    "EigInfo",
    "ExtremumInfo",
    "IntegrateInfo",
    "QuanticsGrid",
    "SolveInfo",
    "Stream",
    "TTMatrix",
    "add",
    "argmax",
    "argmin",
    "bilinear_form",
    "broadcast_to",
    "chain_operator",
    "complete",
    "concatenate",
    "conditional",
    "conj",
    "contract_modes",
    "cross",
    "cumsum",
    "diagonal",
    "diagonal_matrix",
    "dimension_distribution",
    "distance",
    "divide",
    "effective_ranks",
    "eigsh",
    "evaluate",
    "from_dense",
    "functions",
    "hadamard",
    "identity",
    "imag",
    "index_to_quantics",
    "inner",
    "integrate",
    "kron",
    "linear_combination",
    "log_density",
    "log_norm",
    "map",
    "marginal",
    "matmul",
    "matrix_from_dense",
    "matvec",
    "mean",
    "mean_dimension",
    "meshgrid",
    "mode_product",
    "moment",
    "norm",
    "normalize",
    "ones",
    "ones_like",
    "ones_matrix",
    "orthogonalize",
    "pad",
    "pad_modes",
    "pairwise_inner",
    "patches",
    "permute",
    "pinv",
    "power",
    "quantics",
    "quantics_grid",
    "quantics_to_index",
    "random",
    "random_matrix",
    "rank_one",
    "rank_one_matrix",
    "real",
    "reshape",
    "retract",
    "reverse",
    "riemannian_cg",
    "riemannian_descent",
    "riemannian_grad",
    "round",
    "sample",
    "scale",
    "singular_values",
    "sobol",
    "solve",
    "stream",
    "stream_add",
    "stream_train",
    "sum",
    "tangent_inner",
    "tangent_project",
    "tangent_sum",
    "tensordot",
    "to_dense",
    "trace",
    "transport",
    "transpose",
    "trim",
    "unit",
    "value_and_riemannian_grad",
    "var",
    "variance_components",
    "zeros",
    "zeros_like",
    "zeros_matrix",
]
__dir__ = _extras.names(__name__, __all__)  # what `help` prints of them is the docstring's table

if not TYPE_CHECKING:
    __getattr__ = _other_names.missing(__name__, _other_names.FUNCTIONS)
