"""Table of kernels: for every operation its candidates in order, each with its conditions.

A choice is made at up to four *stages* of a call:

- **call**: by the public function, from its arrays: NumPy at once, or a program of JAX;
- **trace**: while the program is made: XLA's operations alone, or C++ on CPUs beside them;
- **lowering**: for its platform and devices: C++ only in programs for CPUs that stay in this
  process, and where ``one_device`` says so for one device (`tensorjax._native.cpu_primitive`);
- **host**: inside NumPy's algorithms: C++ passes, or NumPy and LAPACK themselves.

The first candidate of a stage all of whose conditions hold serves; the last one has none.
"""

import enum
from typing import NamedTuple

from tensorjax._kernels import conditions as c
from tensorjax._kernels import first_calls
from tensorjax._kernels.conditions import Condition, any_of


class Kernel(enum.StrEnum):
    """Kind of kernel in the table of kernels: NumPy, a compiled program, C++ or XLA."""

    NUMPY = "NumPy"  # and LAPACK, on the host; nothing is compiled
    SMALL = "NumPy, small arrays"
    ROUNDED = "program, rounded size"  # of the next larger one of few batch sizes
    PROGRAM = "program"
    CPP = "C++"
    XLA = "XLA"


class Stage(enum.StrEnum):
    """Stage at which a kernel is chosen: at a concrete call, under tracing, or on the host."""

    CALL = "call"
    TRACE = "trace"
    HOST = "host"


NUMPY, SMALL, ROUNDED, PROGRAM, CPP, XLA = Kernel
CALL, TRACE, HOST = Stage


class Candidate(NamedTuple):
    """Candidate kernel of an operation at one stage, with the conditions of its choice.

    Attributes:
      kernel: what serves.
      conditions: all must hold, asked in this order.
      one_device: whether only programs for one device hold it (`tensorjax._native.cpu_primitive`).
    """

    kernel: Kernel
    conditions: tuple[Condition, ...] = ()
    one_device: bool = False


Row = dict[Stage, tuple[Candidate, ...]]


def _call(*conditions: Condition, kernel: Kernel = NUMPY) -> Row:
    return {CALL: (Candidate(kernel, conditions), Candidate(PROGRAM))}


def _trace(*conditions: Condition, one_device: bool) -> Row:
    cpp = Candidate(CPP, (*conditions, c.not_empty, c.built), one_device)
    return {TRACE: (cpp, Candidate(XLA))}


def _host(*conditions: Condition) -> Row:
    return {HOST: (Candidate(CPP, (*conditions, c.not_empty, c.built)), Candidate(NUMPY))}


_SMALL_TT_SVD: Row = {
    HOST: (
        Candidate(
            CPP,
            (
                *(c.modest_array, c.of_gram, c.not_empty, c.several_modes),
                *(c.gram_may_resolve, c.built),
            ),
        ),
        Candidate(SMALL, (c.small_array, c.gram_resolves)),
        Candidate(NUMPY),
    ),
}
_SMALL_HOSVD: Row = {
    HOST: (Candidate(SMALL, (c.small_modes, c.gram_resolves)), Candidate(NUMPY)),
}
_FIRST_CALLS = (c.lapack_dtype, c.free_on_a_cpu, first_calls.first_calls)
_OVERLAP_BY_BLAS = (
    *(c.lapack_dtype, c.free_on_a_cpu),
    any_of(c.single_or_complex, first_calls.first_calls),
)
_ONE_CALL = (c.of_gram, c.free_on_a_cpu, first_calls.later_calls, c.one_dtype, c.few_sums, c.built)


def _product(*conditions: Condition) -> Row:
    either = any_of(c.out_of_range, *conditions, first_calls.first_calls)
    numpys = Candidate(NUMPY, (c.lapack_dtype, c.free_on_a_cpu, either))
    return {CALL: (Candidate(CPP, _ONE_CALL), numpys, Candidate(PROGRAM))}


_OVERLAP: Row = {
    CALL: (
        Candidate(CPP, (*_ONE_CALL[:-1], c.few_products, c.built)),
        Candidate(NUMPY, _OVERLAP_BY_BLAS),
        Candidate(PROGRAM),
    ),
} | _trace(c.double, one_device=True)
_TO_RANKS = _call(c.not_randomized, c.first_on_one_cpu)

TABLE: dict[str, Row] = {
    # Dense arrays to trains and back.
    "tt.from_dense(tol=)": _call(c.concrete) | _SMALL_TT_SVD,
    "tt.from_dense(rank=)": _TO_RANKS,
    "tt.to_dense": _call(c.on_one_cpu),
    "tucker.from_dense(tol=)": _call(c.concrete) | _SMALL_HOSVD,
    "tucker.from_dense(rank=)": _TO_RANKS,
    "linalg.gram": _host(c.short_matrix),
    "linalg.project": _host(c.wide_matrix),
    # Rounding.
    "tt.round(tol=)": _call(c.in_cpu_memory),
    "tt.round(tol=), one call": _host(c.real, c.several),
    "tt.round(tol=), few calls": {
        HOST: (Candidate(SMALL, (c.of_gram, c.several, c.small_train)), Candidate(NUMPY)),
    },
    "tt.round(tol=), Gram sweep": _host(c.double, c.in_one_piece, c.several),
    "tt.round(tol=), Gram factor": _host(c.double, c.matrix),
    "tt.round(rank=)": _trace(c.no_tolerance, c.real, c.columns_fit, one_device=False),
    "tt.round(rank=, tol=)": _call(c.rest_concrete, c.drawn_once, *_FIRST_CALLS),
    "tt.singular_values": _call(c.in_cpu_memory),
    "tt.orthogonalize": _call(c.on_one_cpu),
    "tt.pad": _call(c.on_one_device),
    "tt.effective_ranks": _call(c.concrete),
    "tucker.round(tol=)": _call(c.concrete),
    "convert.tt_to_tucker(tol=)": _call(c.concrete),
    "convert.tt_to_tucker(rank=)": _call(c.rest_concrete, *_FIRST_CALLS),
    "mera.to_tt(tol=)": _call(c.concrete),
    # Sums and products.
    "tt.add": _trace(c.of_gram, one_device=True),
    "tt.hadamard": _product() | _trace(c.real, one_device=True),
    "tt.matvec": _product(c.modest_sums) | _trace(c.of_gram, c.few_sums, one_device=True),
    "tt.matmul": _product() | _trace(c.of_gram, c.few_sums, one_device=True),
    "tt.TTMatrix @ array": _call(*_FIRST_CALLS),
    "tt.pinv": _call(c.on_one_cpu, c.rest_concrete),
    "tt.matvec(rank=)": _trace(
        c.no_tolerance, c.one_product, c.real, c.columns_fit, one_device=False
    ),
    "tt.linear_combination(rank=)": _call(c.rest_concrete, c.drawn_once, *_FIRST_CALLS),
    # Numbers.
    "tt.inner": _OVERLAP,
    "tt.norm": _OVERLAP,
    "tt.inner, derivative": _call(*_FIRST_CALLS, c.one_dtype),
    "tt.log_norm": _call(c.on_one_cpu),
    "tt.bilinear_form": _call(*_FIRST_CALLS),
    "tt.pairwise_inner": _call(first_calls.first_calls),
    "tt.pairwise_inner, stacked cores": _call(c.lapack_dtype, c.free_on_a_cpu),
    "tt.distance": _call(c.concrete),
    "tucker.norm": _call(c.concrete),
    "tucker.to_dense": _call(*_FIRST_CALLS),
    "mera.norm": _call(c.lapack_dtype, c.free_on_a_cpu),
    "tt.evaluate": _call(
        c.on_one_cpu, any_of(c.few_operations, c.rows_shared, first_calls.first_evaluations)
    ),
    "tt.evaluate, entries": _host(c.few_operations, c.of_gram),
    "tucker.evaluate": _call(c.data, c.first_on_one_cpu, kernel=ROUNDED),
    "tt.sobol": _call(c.lapack_dtype, c.free_on_a_cpu, c.rest_concrete),
    "pde.evaluate": _call(c.concrete),
    "tt.functions.evaluate": _call(c.first_on_one_cpu),
    "tt.sample": _call(c.little_noise, c.first_on_one_cpu),
    "tt.sample(squared=False)": _call(c.first_on_one_cpu),
    "tt.log_density": _call(c.on_one_cpu),
    "tt.quantics.toeplitz": _call(c.on_one_cpu),
    "tt.patches.inner": _call(c.on_one_cpu),
    # Modes.
    "tt.contract_modes": _call(c.on_one_cpu),
    "tt.TT[...]": _call(c.on_one_cpu),
    "tucker.Tucker[...]": _call(c.on_one_cpu),
    "tt.broadcast_to": _call(c.on_one_cpu),
    "tt.reshape": _call(c.on_one_cpu),
    "tt.mode_product": _call(c.on_one_cpu),
    "tt.transpose": _call(*_FIRST_CALLS),
    "tt.tensordot": _call(*_FIRST_CALLS),
    "tt.permute": _call(c.on_one_cpu),
    "tt.tangent_project": _call(c.on_one_cpu),
    "tt.tangent_project, products": _call(*_FIRST_CALLS),
    "tt.stream_add": _call(*_FIRST_CALLS),
    # MERAs, projections, layers.
    "mera.inner": _call(*_FIRST_CALLS),
    "mera.to_dense": _call(*_FIRST_CALLS),
    "mera.to_tt": _call(*_FIRST_CALLS),
    "mera.expectation": _call(*_FIRST_CALLS),
    "sketch.apply": {
        CALL: (
            Candidate(
                NUMPY,
                (
                    *(c.data, c.blas_map, c.lapack_dtype, c.rows_on_cpu),
                    any_of(c.fast_by_blas, first_calls.first_projections),
                ),
            ),
            Candidate(ROUNDED, (c.data, c.map_concrete, c.read_by_host)),
            Candidate(PROGRAM),
        ),
    }
    | _trace(c.split_in_two, c.large_input, c.real, c.whole_vectors, one_device=True),
    "sketch.apply(sparse)": _call(c.rows, c.on_one_cpu, kernel=ROUNDED),
    "nn.TTEmbedding": _trace(
        c.real, c.kept_dtype, c.ids_fit, c.a_train, c.no_rounds, one_device=True
    ),
}

# What the names of kernels leave open, for readers of the table.
REMARKS: dict[str, str] = {
    "tt.from_dense(tol=)": "with rank= too, ranks above it are cut as without tol=",
    "tt.to_dense": "NumPy measures the cores only: near one, the program does not rescale",
    "tt.round(tol=)": "the program has one bucketed rank, and is trimmed afterwards",
    "tt.round(tol=), one call": "where Gram matrices resolve the tolerance, and products of cores "
    "are in range; for others the next rows",
    "tt.round(tol=), Gram sweep": "where Gram matrices resolve the tolerance; see linalg.choose",
    "tt.transpose": "and tt.reverse, tt.diagonal, tt.diagonal_matrix, tt.pad_modes, "
    "tt.mode_product",
    "tt.mode_product": "NumPy measures the core and the matrix: near one, the product is that of "
    "tt.transpose; and tucker.mode_product",
    "tt.tangent_project": "NumPy measures the cores only; so for all of tt.tangent_*",
    "tt.tangent_project, products": "of cores that need no scaling",
    "tt.stream_add": "and tt.stream_train",
    "tt.hadamard": "exact products; with rank= or tol= see tt.linear_combination below",
    "tt.add": "and operators, tt.concatenate",
    "tt.norm": "in programs tt.log_norm and tt.normalize too",
    "tt.inner, derivative": "and tt.norm, where tangents alone are traced",
    "tt.log_norm": "and tt.normalize",
    "tt.pad": "and tucker.pad",
    "tt.linear_combination(rank=)": "and tt.hadamard, tt.matvec, tt.matmul with rank=",
    "tt.round(rank=, tol=)": "where the tolerance asks for more than rank=",
    "tt.pairwise_inner": "asked where NumPy has stacked the cores",
    "tt.log_density": "and tt.marginal, tt.conditional",
    "tt.quantics.toeplitz": "and tt.quantics.circulant",
    "tt.patches.inner": "and tt.patches.norm, sum, to_dense, so that no program is compiled for "
    "each of many ranks",
    "tt.sobol": "and tt.mean_dimension, tt.dimension_distribution",
    "tucker.norm": "and tucker.distance",
    "tucker.to_dense": "of dense cores; and tucker.add, inner, hadamard, to_tt, first calls of "
    "evaluate; of all cores tucker.round(rank=), tucker.orthogonalize",
    "tt.effective_ranks": "and tt.trim",
}
# Operations that have nothing to choose.
FIXED: dict[str, str] = {
    "tt.cross, tt.solve, tt.eigsh, tt.complete, tt.argmax, tt.map": (
        "NumPy: every step has other ranks, and a program would be compiled for each; black boxes "
        "and their own programs apart"
    ),
    "tt.linear_combination, tt.hadamard, tt.matmul": "with tol= alone NumPy",
    "convert.tt_to_mera": "NumPy: ranks follow from the data",
    "pde.integrate": "NumPy for ranks that adapt, one program for ranks that are given",
    "contract.plan": "a program; NumPy by `Plan.on_host`",
    "linalg": "NumPy and LAPACK for NumPy arrays, XLA for JAX arrays",
    "nn, optim, models, offload": "programs of XLA, of which embeddings may hold C++",
}
