"""Tensor trains and TT-matrices: types, construction, exact arithmetic, rounding.

Example:
  >>> import jax
  >>> from tensorjax import tt
  >>> x = tt.random(jax.random.key(0), (4, 5, 6), rank=3)
  >>> tt.round(x + x, rank=3).ranks
  (1, 3, 3, 1)
"""

import sys

from tensorjax._train import TT, TTMatrix
from tensorjax.tt._algebra import (
    add,
    concatenate,
    conj,
    hadamard,
    kron,
    matmul,
    matvec,
    ones_like,
    scale,
    transpose,
)
from tensorjax.tt._build import (
    effective_ranks,
    identity,
    ones,
    pad,
    random,
    random_matrix,
    rank_one,
    to_dense,
    trim,
    zeros,
)
from tensorjax.tt._chain import chain_operator
from tensorjax.tt._decompose import from_dense, matrix_from_dense
from tensorjax.tt._eigs import EigInfo, eigsh
from tensorjax.tt._reduce import contract_modes, distance, evaluate, inner, norm
from tensorjax.tt._round import orthogonalize, round
from tensorjax.tt._sample import sample

__all__ = [
    "TT",
    "EigInfo",
    "TTMatrix",
    "add",
    "chain_operator",
    "concatenate",
    "conj",
    "contract_modes",
    "distance",
    "effective_ranks",
    "eigsh",
    "evaluate",
    "from_dense",
    "hadamard",
    "identity",
    "inner",
    "kron",
    "matmul",
    "matrix_from_dense",
    "matvec",
    "norm",
    "ones",
    "ones_like",
    "orthogonalize",
    "pad",
    "random",
    "random_matrix",
    "rank_one",
    "round",
    "sample",
    "scale",
    "to_dense",
    "transpose",
    "trim",
    "zeros",
]

# The operators of trains, and formats that hold trains, find these functions by the type.
TT.namespace = TTMatrix.namespace = sys.modules[__name__]
