"""Conditions of the choice of kernels: devices, dtypes and sizes of arrays, counts of calls.

A condition is a predicate of a call's arrays and of *facts*, named values that the caller adds. It
has a name, by which the table prints it, a reason, and the source of its constants: the benchmark
whose cases they were set by, on two cores of an AMD EPYC with AVX-512.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from tensorjax import _check, _native, _placement, _symbolic
from tensorjax._check import is_traced
from tensorjax._kernels.entry_costs import ROWS_PER_INDEX, faster_one_by_one
from tensorjax._native import accepted_arrays

Arrays = Sequence[Any]
Facts = Mapping[str, Any]
CORE_BENCH = "python -m experiments run bench/core --only "
# With at least so many entries per index, of matrices of so many elements, NumPy multiplies all
# rows of an index at once, and is faster than a program, which gathers a matrix for each.
MATRIX = 2**10
# Multiplications of entries of a train up to which C++ may make them one by one, and up to which it
# always does.
FEW_OPERATIONS, ALWAYS_FEW = 2**25, 2**16
# Elements of a batch of dense rows up to which NumPy is the faster one for maps of any kind, and
# for gaussian ones in single precision.
FEW_ROWS, FEW_GAUSSIAN = 2**18, 2**20
# Elements of a JAX array up to which the host reads it, to round the number of rows up.
SMALL_BATCH = 2**16
# Elements of the input from which on one pass in C++ is faster than XLA's products by groups.
LARGE_INPUT = 2**18
# Bytes of the widest vector registers (AVX-512): shorter rows leave them partly empty.
VECTOR = 64
# Columns of a basis: LAPACK counts its workspaces in 32 bits. Above the second number, bases by
# Householder's reflections one by one, as the exact sweep makes them, are slower than LAPACK's.
MOST_COLUMNS, MOST_EXACT_COLUMNS = 2**14, 32
# Columns of a wide matrix from which on one pass in C++ beats NumPy: smaller ones fit into caches.
# With more rows than the second number, NumPy's products are as fast.
WIDE, MOST_ROWS = 2**14, 512
# Smallest Gram matrices that the C++ pass makes in less time than NumPy, in entries of what they
# are of; and most rows of these, of wide and of tall matrices in float64, and of other types.
LEAST_GRAM, FEW_WIDE, FEW_TALL, FEW_OTHERS = 2**13, 16, 4, 64
# Most rows of a wide matrix where NumPy may multiply in single precision.
FEW_NARROW = 24
# Elements below which a TT-SVD is one Gram matrix a bond, without a choice of methods and cuts.
SMALL_ARRAY = 2**16
# The same of an ST-HOSVD whose modes are no longer than the second number.
SMALL_MODES, SIDES = 2**18, 64
# The same in C++, which has no overhead of calls, and no random sketches.
MODEST_ARRAY = 2**20
# Elements of all cores up to which trains are rounded by QR and SVD, in few calls of NumPy.
SMALL_TRAIN = 2**15
# The same of complex trains, whose Gram matrices are by NumPy.
SMALL_COMPLEX_TRAIN = 2**17
# Microseconds a core, as forecast, in the sums of a product of trains up to which C++ makes them in
# one call; and multiplications a core up to which NumPy makes those of a matrix and a train: a
# program makes larger ones.
MOST_SUM_TIME, MOST_SUMS_OF_NUMPY = 150, 2**18
# Multiplications in an overlap of float32 trains up to which C++, computing in double precision,
# takes no longer than the products of a BLAS in single precision, with NumPy's calls; the same of
# complex128 ones, of which C++ makes four real products for each complex one.
MOST_SINGLE, MOST_COMPLEX = 2**21, 2**25
# Random numbers drawn before a sampling sweep at most: 64 MiB in double precision.
MOST_NOISE = 2**23

_REAL = (np.dtype(np.float32), np.dtype(np.float64))


def power(n: int) -> str:
    return f"2^{n.bit_length() - 1}"


class Condition(NamedTuple):
    """Condition of a kernel: a named predicate of a call, with its reason.

    Attributes:
      name: as the table prints it.
      holds: the predicate, of arrays and facts.
      reason: why the kernel serves only where it holds.
      source: command that times both candidates at the constants, if there are any.
      parts: conditions of which one must hold, if it is made of several.
    """

    name: str
    holds: Callable[[Arrays, Facts], bool]
    reason: str
    source: str = ""
    parts: tuple["Condition", ...] = ()


def condition(
    name: str, reason: str, source: str = ""
) -> Callable[[Callable[[Arrays, Facts], bool]], Condition]:
    """Decorator factory that turns a predicate of a call into a `Condition` for kernels."""
    return lambda holds: Condition(name, holds, reason, source)


def any_of(*conditions: Condition) -> Condition:
    """Combines kernel conditions into one that holds if any of them does, asked in this order."""

    def holds(arrays: Arrays, facts: Facts) -> bool:
        return any(c.holds(arrays, facts) for c in conditions)

    return Condition(", or ".join(c.name for c in conditions), holds, "", parts=conditions)


# Where arrays are, and whether they have values.


@condition("concrete", "a tracer has no values that NumPy could read")
def concrete(arrays: Arrays, facts: Facts) -> bool:
    return not any(isinstance(x, Tracer) for x in jax.tree.leaves(arrays))


@condition(
    "concrete, on one device",
    "NumPy takes no program for every new shape; what lies on a mesh stays there",
)
def on_one_device(arrays: Arrays, facts: Facts) -> bool:
    return concrete.holds(arrays, facts) and all(
        len(x.devices()) == 1 for x in arrays if isinstance(x, jax.Array)
    )


@condition(
    "concrete, in the memory of CPUs",
    "NumPy reads them where they are; on an accelerator one program per bucket of ranks serves",
)
def in_cpu_memory(arrays: Arrays, facts: Facts) -> bool:
    if _placement._is_alone():
        return concrete.holds(arrays, facts)
    return concrete.holds(arrays, facts) and all(
        d.platform == "cpu" for c in arrays if isinstance(c, jax.Array) for d in c.devices()
    )


@condition(
    "concrete, each on one CPU device",
    "NumPy reads them in place; what lies on a mesh or an accelerator stays there",
)
def on_one_cpu(arrays: Arrays, facts: Facts) -> bool:
    leaves = jax.tree.leaves(arrays)
    if _placement._is_alone():
        return not any(isinstance(x, Tracer) for x in leaves)
    return all(map(on_cpu, leaves))


@condition(
    "concrete, the data on one CPU device",
    "NumPy reads them in place; what lies on a mesh or an accelerator stays there",
)
def first_on_one_cpu(arrays: Arrays, facts: Facts) -> bool:
    return on_cpu(*arrays)


@condition(
    "concrete JAX arrays on one CPU device, not committed to the only one",
    "NumPy reads them in place, and its results are put where JAX puts new arrays",
)
def free_on_a_cpu(arrays: Arrays, facts: Facts) -> bool:
    if not _placement._is_alone():
        return all(isinstance(c, jax.Array) and on_cpu(c) for c in arrays)
    try:  # where there is one device, results are put nowhere afterwards
        return not any(map(_placement._COMMITTED, arrays))
    except (AttributeError, jax.errors.ConcretizationTypeError):
        return False  # traced, or abstract


# Dtypes.


@condition("single or double precision", "NumPy has no fast products of half precision")
def lapack_dtype(arrays: Arrays, facts: Facts) -> bool:
    dtype = facts["dtype"]
    return dtype.kind in "fc" and dtype.itemsize >= 4


@condition("all float32, or all float64", "C++ is written for real numbers, of one type a call")
def real(arrays: Arrays, facts: Facts) -> bool:
    dtypes = [c.dtype for c in arrays]  # counted: to hash them takes longer
    return dtypes[0] in _REAL and dtypes.count(dtypes[0]) == len(dtypes)


@condition("single or double precision, real or complex", "C++ is written for these types")
def of_gram(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].dtype in accepted_arrays.GRAM_DTYPES


@condition(
    "single precision, or complex numbers",
    "for cores of trains, a BLAS multiplies them in half of XLA's time",
    CORE_BENCH + "shapes",
)
def single_or_complex(arrays: Arrays, facts: Facts) -> bool:
    return facts["dtype"] != np.float64


@condition("all float64", "C++ is written for this type")
def double(arrays: Arrays, facts: Facts) -> bool:
    return all(c.dtype == np.float64 for c in arrays)


# Sizes, and what else the caller knows.


def _fact(name: str) -> Callable[[Arrays, Facts], bool]:
    def holds(arrays: Arrays, facts: Facts) -> bool:
        return bool(facts[name])

    return holds


@condition("no axis of size 0", "C++ and LAPACK take no empty arrays")
def not_empty(arrays: Arrays, facts: Facts) -> bool:
    return all(0 not in c.shape for c in arrays)


@condition(
    'method is not "randomized", of large arrays or with a key',
    "its sketch is XLA's, drawn by jax.random",
)
def not_randomized(arrays: Arrays, facts: Facts) -> bool:
    return facts["method"] != "randomized"


@condition(
    f"bases of at most {power(MOST_COLUMNS)} columns ({MOST_EXACT_COLUMNS} by QR, not sketched)",
    "LAPACK counts its workspaces in 32 bits; longer Householder sweeps are LAPACK's better part",
    CORE_BENCH + "rounding",
)
def columns_fit(arrays: Arrays, facts: Facts) -> bool:
    shape, ranks = facts["shape"], facts["ranks"]
    if len(shape) < 2 or 0 in (*shape, *ranks):
        return False
    most = MOST_EXACT_COLUMNS if facts["exact"] else MOST_COLUMNS
    return max(_native.basis_columns(shape, ranks)) <= most


@condition(
    f"{power(LARGE_INPUT)} elements or more",
    "of smaller inputs XLA's products are as fast",
    CORE_BENCH + "projection",
)
def large_input(arrays: Arrays, facts: Facts) -> bool:
    return _symbolic.planned(arrays[0].size) >= LARGE_INPUT


@condition(f"rows of {VECTOR} bytes or more", "C++ fills whole vector registers")
def whole_vectors(arrays: Arrays, facts: Facts) -> bool:
    return facts["row"] * arrays[0].dtype.itemsize >= VECTOR


@condition(
    f"float64 rows, at most {MOST_ROWS}, of {power(WIDE)} elements or more, contiguous",
    "C++ passes over the data once, with its own threads; smaller ones fit into NumPy's caches",
    CORE_BENCH + "svd",
)
def wide_matrix(arrays: Arrays, facts: Facts) -> bool:
    a = arrays[0]
    wide = a.ndim == 2 and a.shape[0] <= MOST_ROWS and a.shape[1] >= WIDE
    return wide and a.dtype == np.float64 and a.flags.c_contiguous and a.flags.aligned


@condition(
    f"{power(LEAST_GRAM)} elements or more, of few rows ({FEW_WIDE}, or {FEW_TALL} columns, of "
    f"float64; {FEW_OTHERS} of other types, or {FEW_NARROW} of wide ones where single precision "
    "suffices), or of float64 and wide as for linalg.project",
    "a BLAS is slow for few rows, and converts single precision and complex numbers in passes",
    CORE_BENCH + "svd",
)
def short_matrix(arrays: Arrays, facts: Facts) -> bool:
    a, right = arrays[0], facts.get("right", False)
    if a.ndim != 2 or a.dtype not in accepted_arrays.GRAM_DTYPES or a.size < LEAST_GRAM:
        return False
    rows, columns = a.shape[::-1] if right else a.shape
    if a.dtype == np.float64:
        few = rows <= (FEW_TALL if right else FEW_WIDE) and a.size >= 2 * LEAST_GRAM
        most = few or (not right and wide_matrix.holds(arrays, facts))
    else:
        few = rows <= FEW_NARROW and not right if facts.get("narrow") else rows <= FEW_OTHERS
        most = few and columns >= LEAST_GRAM / 8
    return bool(most) and a.flags.aligned and min(a.strides) >= 0


@condition("a matrix that is not empty", "C++ factors one matrix")
def matrix(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].ndim == 2 and arrays[0].size > 0


@condition("contiguous, aligned", "C++ reads plain memory")
def in_one_piece(arrays: Arrays, facts: Facts) -> bool:
    return all(c.flags.c_contiguous and c.flags.aligned for c in arrays)


@condition("two cores or more", "one core has no bond")
def several(arrays: Arrays, facts: Facts) -> bool:
    return len(arrays) > 1


@condition(
    f"fewer than {power(SMALL_ARRAY)} elements",
    "calls of NumPy are what small arrays cost: no choice of methods, no attempt that may fail",
    CORE_BENCH + "shapes",
)
def small_array(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].size < SMALL_ARRAY


@condition(
    f"fewer than {power(SMALL_ARRAY)} elements; {power(SMALL_MODES)} of modes of at most {SIDES}",
    "no choice of methods, as of small arrays; random sketches gain nothing of so short sides",
    CORE_BENCH + "shapes",
)
def small_modes(arrays: Arrays, facts: Facts) -> bool:
    x = arrays[0]
    return x.size < (SMALL_MODES if max(x.shape, default=1) <= SIDES else SMALL_ARRAY)


@condition(
    f"fewer than {power(MODEST_ARRAY)} elements",
    "C++ has one method, a Gram matrix for several bonds; larger arrays gain by random sketches",
    CORE_BENCH + "shapes",
)
def modest_array(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].size < MODEST_ARRAY


@condition(
    f"at most {power(SMALL_TRAIN)} elements in all cores, {power(SMALL_COMPLEX_TRAIN)} if complex",
    "calls of NumPy are what small trains cost: QR and SVD are two a core, Gram matrices ten",
    CORE_BENCH + "shapes",
)
def small_train(arrays: Arrays, facts: Facts) -> bool:
    most = SMALL_COMPLEX_TRAIN if arrays[0].dtype.kind == "c" else SMALL_TRAIN
    return sum([c.size for c in arrays]) <= most


@condition("two modes or more", "one mode has no bond")
def several_modes(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].ndim > 1


@condition(
    "tol alone, above the roundoff of Gram matrices",
    "what a Gram matrix cannot see must not be discarded",
)
def gram_resolves(arrays: Arrays, facts: Facts) -> bool:
    share = facts["share"]
    return facts["method"] != "svd" and share is not None and share >= facts["floor"]()


@condition(
    "tol alone, above the error of Gram matrices",
    "near it, C++ gives arrays back whose spectrum has no gap where it would cut",
)
def gram_may_resolve(arrays: Arrays, facts: Facts) -> bool:
    share = facts["share"]
    return facts["method"] != "svd" and share is not None and share >= facts["least"]()


@condition(
    f"at most {power(MOST_NOISE)} random numbers",
    "they are drawn before the sweep; a program draws them mode by mode",
)
def little_noise(arrays: Arrays, facts: Facts) -> bool:
    return facts["noise"] <= MOST_NOISE


@condition(
    "concrete rows and map on one CPU device, not committed to the only one",
    "NumPy reads them in place, and its results are put where JAX puts new arrays",
)
def rows_on_cpu(arrays: Arrays, facts: Facts) -> bool:
    x, leaves = arrays[0], jax.tree.leaves(facts["map"])
    if _check.is_traced(x, leaves):
        return False
    if _placement._is_alone():
        return not any(a.committed for a in (x, *leaves) if isinstance(a, jax.Array))
    return all(map(on_cpu, (x, *leaves)))


@condition(
    f"fewer than {power(FEW_ROWS)} elements; a gaussian map, of {power(FEW_GAUSSIAN)}, or float64",
    "larger inputs are read once by a program; in single precision XLA multiplies faster",
    CORE_BENCH + "projection",
)
def fast_by_blas(arrays: Arrays, facts: Facts) -> bool:
    x = arrays[0]
    if facts["dense"]:
        return x.size < FEW_GAUSSIAN or x.dtype == np.float64
    return x.size < FEW_ROWS


@condition(
    f"rows of NumPy, or at most {power(SMALL_BATCH)} elements on one CPU device, not committed",
    "the host rounds the number of rows up, so that few programs are compiled",
)
def read_by_host(arrays: Arrays, facts: Facts) -> bool:
    x = arrays[0]
    if isinstance(x, np.ndarray):
        return True
    return on_cpu(x) and x.size <= SMALL_BATCH and not x.committed


@condition("fewer rows than int32 counts", "C++ counts ids in 32 bits")
def ids_fit(arrays: Arrays, facts: Facts) -> bool:
    return facts["rows"] < np.iinfo(np.int32).max


drawn_once = Condition(
    "no key=", _fact("drawn"), "NumPy and programs have one fixed draw, but with a key other ones"
)
no_tolerance = Condition(
    "rank= alone", _fact("static"), "C++ cuts to ranks; what a tolerance discards depends on data"
)
one_product = Condition(
    "one matrix times one train", _fact("one_product"), "C++ makes no sums and no other products"
)
out_of_range = Condition(
    "products of cores leave the range of the dtype",
    lambda arrays, facts: not facts["in_range"](),
    "NumPy scales them first; a program that does is slower to compile",
)
split_in_two = Condition(
    "a map of two modes or more, of rows that are not padded",
    _fact("cut"),
    "C++ applies both halves of a map in one pass",
)
blas_map = Condition(
    "a gaussian or TTRP map, of the dtype of the rows", _fact("blas_map"), "others are programs"
)
map_concrete = Condition(
    "a concrete map", lambda arrays, facts: not _check.is_traced(facts["map"]), "as for rows"
)
rows = Condition("one row or more", _fact("count"), "nothing to compute")
rest_concrete = Condition(
    "the other arguments concrete",
    lambda arrays, facts: not _check.is_traced(facts["rest"]),
    "as for the train itself",
)
data = Condition("not empty", lambda arrays, facts: bool(arrays[0].size), "nothing to compute")
kept_dtype = Condition(
    "results in the dtype of the parameters", _fact("kept_dtype"), "C++ converts nothing"
)
a_train = Condition(
    "a train of two cores or more", _fact("train"), "C++ multiplies slices of a chain"
)
no_rounds = Condition(
    "no capacity below the number of ids", _fact("unlimited"), "rounds of ids are a program's"
)
built = Condition(
    "C++ built and on",
    lambda arrays, facts: not _native.status(),
    "hatch_build.py compiles it on installation; TENSORJAX_NATIVE=0 turns it off",
)

one_dtype = Condition("cores of one dtype", _fact("one_dtype"), "C++ converts nothing")
few_sums = Condition(
    "no empty core, and sums over modes of complex numbers, or of at most "
    f"{MOST_SUM_TIME} µs a core, as forecast",
    lambda arrays, facts: (
        facts["sum_time"]() < np.inf
        if arrays[0].dtype.kind == "c"
        else facts["sum_time"]() <= 1e3 * MOST_SUM_TIME * len(arrays) / 2
    ),
    "a program of one C++ call has the least overhead; for long sums the real products of XLA are "
    "as fast, complex ones are not",
    CORE_BENCH + "shapes",
)
modest_sums = Condition(
    f"at most {power(MOST_SUMS_OF_NUMPY)} multiplications a core in sums over modes",
    lambda arrays, facts: facts["sums"]() <= MOST_SUMS_OF_NUMPY * len(arrays) / 2,
    "a BLAS makes them in no more time than a program, and the cores have been read already",
    CORE_BENCH + "shapes",
)


def most_products(dtype: np.dtype) -> int:
    """Returns the multiplications up to which overlaps of other types than float64 are by C++."""
    return MOST_COMPLEX if dtype == np.complex128 else MOST_SINGLE


few_products = Condition(
    f"float64, or at most {power(MOST_SINGLE)} multiplications, of complex128 "
    f"{power(MOST_COMPLEX)}",
    lambda arrays, facts: (
        facts["dtype"] == np.float64 or facts["products"]() <= most_products(facts["dtype"])
    ),
    "C++ computes in double precision, of which a processor does half as much, and complex numbers "
    "as real ones",
    CORE_BENCH + "shapes",
)


@condition(
    f"at most {power(FEW_OPERATIONS)} multiplications that a model of the costs finds faster in "
    "C++, with C++",
    "C++ makes few entries in less time than tables of several cores, or a product for all entries "
    "of an index, take to be made, or a program of many arguments to be called",
    CORE_BENCH + "shapes",
)
def few_operations(arrays: Arrays, facts: Facts) -> bool:
    batch, shapes = facts["batch"], facts["shapes"]
    if _native.status() or not batch:
        return False
    operations = batch * sum([r * s for r, _, s in shapes])
    if operations > FEW_OPERATIONS:
        return False
    return operations <= ALWAYS_FEW or faster_one_by_one(batch, shapes, operations)


@condition(
    f"{ROWS_PER_INDEX} entries or more per index of a matrix of {power(MATRIX)} elements or more",
    "entries of one index share a product of NumPy, while a program gathers a matrix for each",
    CORE_BENCH + "arithmetic",
)
def rows_shared(arrays: Arrays, facts: Facts) -> bool:
    batch, shapes = facts["batch"], facts["shapes"]
    return not batch or any(batch >= ROWS_PER_INDEX * n and r * s >= MATRIX for r, n, s in shapes)


def on_cpu(x: Any, *others: Any) -> bool:
    """Condition that arrays are concrete and the first of them is on a single CPU device."""
    if is_traced(x, *others):
        return False
    if isinstance(x, jax.Array):
        return len(x.devices()) == 1 and all(d.platform == "cpu" for d in x.devices())
    return jax.default_backend() == "cpu"
