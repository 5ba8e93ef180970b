"""Conditions of the choice of kernels: places and dtypes of arrays, sizes, counts of first calls.

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
from tensorjax._kernels.first_calls import FirstCalls
from tensorjax._native import argument_checks

Arrays = Sequence[Any]
Facts = Mapping[str, Any]

# First calls of products of trains: by elements written, or multiplications, how many calls with
# equal shapes NumPy serves. Programs are two to four times faster where cores are small, and take
# as long to compile as some hundreds of such calls; larger products gain less from NumPy's start.
CALLS = {2**18: 10, 2**23: 3}
# The same for entries of trains, whatever their number: compiling takes seconds there.
CALLS_OF_EVALUATE = 10
# More of them where compiling for every core, in seconds, takes longer than NumPy's calls, of so
# many seconds an entry and core and a multiplication: both together never take twice the better.
COMPILING, AN_ENTRY, A_PRODUCT = 0.1, 2e-8, 3e-10
# First projections of dense rows of one shape that NumPy serves, of so many elements at most: it
# takes up to twice as long as a program, which takes half a second to compile for every shape.
CALLS_OF_SKETCH, MOST_SKETCHED = 10, 2**25
# With at least so many entries per index, of matrices of so many elements, NumPy multiplies all
# rows of an index at once, and is faster than a program, which gathers a matrix for each.
ROWS_PER_INDEX, MATRIX = 64, 2**10
# Multiplications of entries of a train up to which C++ makes them one by one: where a table of
# several cores, or a product for all entries of an index, does not pay.
FEW_OPERATIONS = 2**19
# Elements of a batch of dense rows up to which NumPy is the faster one for maps of any kind.
FEW_ROWS = 2**18
# Elements of a JAX array up to which the host reads it, to round the number of rows up.
SMALL_BATCH = 2**16
# Elements of the input from which on one pass in C++ is faster than XLA's products by groups.
LARGE_INPUT = 2**18
# Bytes of a product from which on fresh memory is what it costs: C++ asks for huge pages.
LARGE_RESULT = 2**22
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
# Elements below which a TT-SVD is one Gram matrix a bond, without a choice of methods and cuts.
SMALL_ARRAY = 2**16
# The same in C++, which has no overhead of calls, and no random sketches.
MODEST_ARRAY = 2**20
# Multiplications in the sums of a product of trains up to which C++ makes them in one call: larger
# ones are for a BLAS, or for XLA's products.
MOST_SUMS = 2**18
# Random numbers drawn before a sampling sweep at most: 64 MiB in double precision.
MOST_NOISE = 2**23

_REAL = (np.dtype(np.float32), np.dtype(np.float64))
_CORE = "python -m experiments run bench/core --only "
_SOLVERS = "python -m experiments run bench/solvers"


def _power(n: int) -> str:
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


def _condition(
    name: str, reason: str, source: str = ""
) -> Callable[[Callable[[Arrays, Facts], bool]], Condition]:
    """Decorator factory that turns a predicate of a call into a `Condition`."""
    return lambda holds: Condition(name, holds, reason, source)


def any_of(*conditions: Condition) -> Condition:
    """Combines conditions into one that holds if any of them does, asked in this order."""

    def holds(arrays: Arrays, facts: Facts) -> bool:
        return any(c.holds(arrays, facts) for c in conditions)

    return Condition(", or ".join(c.name for c in conditions), holds, "", parts=conditions)


# Where arrays are, and whether they have values.


@_condition("concrete", "a tracer has no values that NumPy could read")
def concrete(arrays: Arrays, facts: Facts) -> bool:
    return not any(isinstance(x, Tracer) for x in jax.tree.leaves(arrays))


@_condition(
    "concrete, on one device",
    "NumPy takes no program for every new shape; what lies on a mesh stays there",
)
def on_one_device(arrays: Arrays, facts: Facts) -> bool:
    return concrete.holds(arrays, facts) and all(
        len(x.devices()) == 1 for x in arrays if isinstance(x, jax.Array)
    )


@_condition(
    "concrete, in the memory of CPUs",
    "NumPy reads them where they are; on an accelerator one program per bucket of ranks serves",
)
def in_cpu_memory(arrays: Arrays, facts: Facts) -> bool:
    return concrete.holds(arrays, facts) and all(
        d.platform == "cpu" for c in arrays if isinstance(c, jax.Array) for d in c.devices()
    )


@_condition(
    "concrete, each on one CPU device",
    "NumPy reads them in place; what lies on a mesh or an accelerator stays there",
)
def on_one_cpu(arrays: Arrays, facts: Facts) -> bool:
    leaves = jax.tree.leaves(arrays)
    if _placement._is_alone():
        return not any(isinstance(x, Tracer) for x in leaves)
    return all(map(_check.on_cpu, leaves))


@_condition(
    "concrete, the data on one CPU device",
    "NumPy reads them in place; what lies on a mesh or an accelerator stays there",
)
def first_on_one_cpu(arrays: Arrays, facts: Facts) -> bool:
    return _check.on_cpu(*arrays)


@_condition(
    "concrete JAX arrays on one CPU device, not committed to the only one",
    "NumPy reads them in place, and its results are put where JAX puts new arrays",
)
def free_on_a_cpu(arrays: Arrays, facts: Facts) -> bool:
    if not _placement._is_alone():
        return all(isinstance(c, jax.Array) and _check.on_cpu(c) for c in arrays)
    try:  # where there is one device, results are put nowhere afterwards
        return not any(map(_placement._COMMITTED, arrays))
    except (AttributeError, jax.errors.ConcretizationTypeError):
        return False  # traced, or abstract


# Dtypes.


@_condition("single or double precision", "NumPy has no fast products of half precision")
def lapack_dtype(arrays: Arrays, facts: Facts) -> bool:
    dtype = facts["dtype"]
    return dtype.kind in "fc" and dtype.itemsize >= 4


@_condition("all float32, or all float64", "C++ is written for real numbers, of one type a call")
def real(arrays: Arrays, facts: Facts) -> bool:
    dtypes = [c.dtype for c in arrays]  # counted: to hash them takes longer
    return dtypes[0] in _REAL and dtypes.count(dtypes[0]) == len(dtypes)


@_condition("single or double precision, real or complex", "C++ is written for these types")
def of_gram(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].dtype in argument_checks.GRAM_DTYPES


@_condition("all float64", "C++ is written for this type")
def double(arrays: Arrays, facts: Facts) -> bool:
    return all(c.dtype == np.float64 for c in arrays)


# Sizes, and what else the caller knows.


def _fact(name: str) -> Callable[[Arrays, Facts], bool]:
    def holds(arrays: Arrays, facts: Facts) -> bool:
        return bool(facts[name])

    return holds


@_condition("no axis of size 0", "C++ and LAPACK take no empty arrays")
def not_empty(arrays: Arrays, facts: Facts) -> bool:
    return all(0 not in c.shape for c in arrays)


@_condition('method is not "randomized"', "its sketch is XLA's, drawn by jax.random")
def not_randomized(arrays: Arrays, facts: Facts) -> bool:
    return facts["method"] != "randomized"


@_condition(
    f"bases of at most {_power(MOST_COLUMNS)} columns ({MOST_EXACT_COLUMNS} by QR, not sketched)",
    "LAPACK counts its workspaces in 32 bits; longer Householder sweeps are LAPACK's better part",
    _CORE + "rounding",
)
def columns_fit(arrays: Arrays, facts: Facts) -> bool:
    shape, ranks = facts["shape"], facts["ranks"]
    if len(shape) < 2 or 0 in (*shape, *ranks):
        return False
    most = MOST_EXACT_COLUMNS if facts["exact"] else MOST_COLUMNS
    return max(_native.basis_columns(shape, ranks)) <= most


@_condition(
    f"a result of {_power(LARGE_RESULT)} bytes or more",
    "C++ writes to huge pages; of smaller results XLA's program is as fast",
    _CORE + "arithmetic",
)
def large_result(arrays: Arrays, facts: Facts) -> bool:
    return facts["work"]() * arrays[0].dtype.itemsize >= LARGE_RESULT


@_condition(
    f"{_power(LARGE_INPUT)} elements or more",
    "of smaller inputs XLA's products are as fast",
    _CORE + "projection",
)
def large_input(arrays: Arrays, facts: Facts) -> bool:
    return _symbolic.planned(arrays[0].size) >= LARGE_INPUT


@_condition(f"rows of {VECTOR} bytes or more", "C++ fills whole vector registers")
def whole_vectors(arrays: Arrays, facts: Facts) -> bool:
    return facts["row"] * arrays[0].dtype.itemsize >= VECTOR


@_condition(
    f"float64 rows, at most {MOST_ROWS}, of {_power(WIDE)} elements or more, contiguous",
    "C++ passes over the data once, with its own threads; smaller ones fit into NumPy's caches",
    _CORE + "svd",
)
def wide_matrix(arrays: Arrays, facts: Facts) -> bool:
    a = arrays[0]
    wide = a.ndim == 2 and a.shape[0] <= MOST_ROWS and a.shape[1] >= WIDE
    return wide and a.dtype == np.float64 and a.flags.c_contiguous and a.flags.aligned


@_condition(
    f"{_power(LEAST_GRAM)} elements or more, of few rows ({FEW_WIDE}, or {FEW_TALL} columns, of "
    f"float64; {FEW_OTHERS} of other types), or of float64 and wide as for linalg.project",
    "a BLAS is slow for few rows, and converts single precision and complex numbers in passes",
    _CORE + "svd",
)
def short_matrix(arrays: Arrays, facts: Facts) -> bool:
    a, right = arrays[0], facts.get("right", False)
    if a.ndim != 2 or a.dtype not in argument_checks.GRAM_DTYPES or a.size < LEAST_GRAM:
        return False
    rows, columns = a.shape[::-1] if right else a.shape
    if a.dtype == np.float64:
        few = rows <= (FEW_TALL if right else FEW_WIDE) and a.size >= 2 * LEAST_GRAM
        most = few or (not right and wide_matrix.holds(arrays, facts))
    else:
        most = rows <= FEW_OTHERS and columns >= LEAST_GRAM / 8
    return bool(most) and a.flags.aligned and min(a.strides) >= 0


@_condition("a matrix that is not empty", "C++ factors one matrix")
def matrix(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].ndim == 2 and arrays[0].size > 0


@_condition("contiguous, aligned", "C++ reads plain memory")
def in_one_piece(arrays: Arrays, facts: Facts) -> bool:
    return all(c.flags.c_contiguous and c.flags.aligned for c in arrays)


@_condition("two cores or more", "one core has no bond")
def several(arrays: Arrays, facts: Facts) -> bool:
    return len(arrays) > 1


@_condition(
    f"fewer than {_power(SMALL_ARRAY)} elements",
    "calls of NumPy are what small arrays cost: no choice of methods, no attempt that may fail",
    _CORE + "shapes",
)
def small_array(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].size < SMALL_ARRAY


@_condition(
    f"fewer than {_power(MODEST_ARRAY)} elements",
    "C++ has one method, a Gram matrix for several bonds; larger arrays gain by random sketches",
    _CORE + "shapes",
)
def modest_array(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].size < MODEST_ARRAY


@_condition("two modes or more", "one mode has no bond")
def several_modes(arrays: Arrays, facts: Facts) -> bool:
    return arrays[0].ndim > 1


@_condition(
    "tol alone, above the roundoff of Gram matrices",
    "what a Gram matrix cannot see must not be discarded",
)
def gram_resolves(arrays: Arrays, facts: Facts) -> bool:
    share = facts["share"]
    return facts["method"] != "svd" and share is not None and share >= facts["floor"]()


@_condition(
    f"at most {_power(MOST_NOISE)} random numbers",
    "they are drawn before the sweep; a program draws them mode by mode",
)
def little_noise(arrays: Arrays, facts: Facts) -> bool:
    return facts["noise"] <= MOST_NOISE


@_condition(
    "concrete rows and map on one CPU device, not committed to the only one",
    "NumPy reads them in place, and its results are put where JAX puts new arrays",
)
def rows_on_cpu(arrays: Arrays, facts: Facts) -> bool:
    x, leaves = arrays[0], jax.tree.leaves(facts["map"])
    if _check.is_traced(x, leaves):
        return False
    if _placement._is_alone():
        return not any(a.committed for a in (x, *leaves) if isinstance(a, jax.Array))
    return all(map(_check.on_cpu, (x, *leaves)))


@_condition(
    f"fewer than {_power(FEW_ROWS)} elements, or float64 under a gaussian map",
    "larger inputs are read once by a program; in single precision XLA multiplies faster",
    _CORE + "projection",
)
def fast_by_blas(arrays: Arrays, facts: Facts) -> bool:
    x = arrays[0]
    return x.size < FEW_ROWS or (facts["dense"] and x.dtype == np.float64)


@_condition(
    f"rows of NumPy, or at most {_power(SMALL_BATCH)} elements on one CPU device, not committed",
    "the host rounds the number of rows up, so that few programs are compiled",
)
def read_by_host(arrays: Arrays, facts: Facts) -> bool:
    x = arrays[0]
    if isinstance(x, np.ndarray):
        return True
    return _check.on_cpu(x) and x.size <= SMALL_BATCH and not x.committed


@_condition("fewer rows than int32 counts", "C++ counts ids in 32 bits")
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
    "NumPy scales them first; programs do not look at the sizes of cores",
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
    f"no empty core, and at most {_power(MOST_SUMS)} multiplications in sums over modes",
    lambda arrays, facts: facts["sums"]() <= MOST_SUMS,
    "a program of one C++ call has the least overhead, and a BLAS is faster for long sums",
    _CORE + "shapes",
)

# First calls.

_counted, _repeated, _evaluated, _sketched = (FirstCalls() for _ in range(4))


@_condition(
    "one of the first calls with these shapes ("
    + ", ".join(f"{n} up to {_power(most)}" for most, n in CALLS.items())
    + " operations)",
    "a program takes tenths of a second to compile, and NumPy no longer than its call",
    _SOLVERS,
)
def first_calls(arrays: Arrays, facts: Facts) -> bool:
    return _is_first(_counted, arrays, facts)


def _is_first(counts: FirstCalls, arrays: Arrays, facts: Facts) -> bool:
    def allowed() -> int:
        done = facts["work"]()
        return next((n for most, n in CALLS.items() if done <= most), 0)

    shapes = facts["shapes"] if "shapes" in facts else tuple([c.shape for c in arrays])
    return counts.is_first((facts["key"], shapes, arrays[0].dtype), allowed)


@_condition(
    "none of these first calls",
    "a program of one call takes hundredths of a second to compile",
    _CORE + "shapes",
)
def later_calls(arrays: Arrays, facts: Facts) -> bool:
    return not _is_first(_repeated, arrays, facts)


@_condition(
    f"one of the first {CALLS_OF_EVALUATE} calls with these shapes, or of as many as take no "
    "longer than to compile",
    "a program of some dozens of cores takes seconds to compile",
    _CORE + "arithmetic",
)
def first_evaluations(arrays: Arrays, facts: Facts) -> bool:
    def allowed() -> int:
        cores, batch = facts["cores"], max(facts["batch"], 1)
        products = sum(c.shape[0] * c.shape[2] for c in cores)
        once = batch * (len(cores) * AN_ENTRY + products * A_PRODUCT)
        return max(CALLS_OF_EVALUATE, int(COMPILING * len(cores) / once))

    return _evaluated.is_first((facts["batch"], facts["key"]), allowed)


@_condition(
    f"one of the first {CALLS_OF_SKETCH} calls with these shapes, of at most "
    f"{_power(MOST_SKETCHED)} elements",
    "a program takes half a second to compile for every number of rows",
    _CORE + "shapes",
)
def first_projections(arrays: Arrays, facts: Facts) -> bool:
    x = arrays[0]
    if x.size > MOST_SKETCHED:
        return False
    leaves = tuple([a.shape for a in jax.tree.leaves(facts["map"])])
    key = x.shape, x.dtype, facts["dense"], leaves
    return _sketched.is_first(key, lambda: CALLS_OF_SKETCH)


@_condition(
    f"at most {_power(FEW_OPERATIONS)} multiplications, with C++",
    "C++ makes few entries in less time than a program of many arguments takes to be called",
    _CORE + "shapes",
)
def few_operations(arrays: Arrays, facts: Facts) -> bool:
    if _native.status() or not facts["batch"]:
        return False
    sizes = sum(c.shape[0] * c.shape[2] for c in facts["cores"])
    return facts["batch"] * sizes <= FEW_OPERATIONS


@_condition(
    f"{ROWS_PER_INDEX} entries or more per index of a matrix of {_power(MATRIX)} elements or more",
    "entries of one index share a product of NumPy, while a program gathers a matrix for each",
    _CORE + "arithmetic",
)
def rows_shared(arrays: Arrays, facts: Facts) -> bool:
    batch = facts["batch"]
    sizes = (c.shape for c in facts["cores"])
    return not batch or any(batch >= ROWS_PER_INDEX * n and r * s >= MATRIX for r, n, s in sizes)


def forget_first_calls() -> None:
    """Resets, for tests, the counts of first calls that the conditions of kernels keep."""
    _counted.clear()
    _repeated.clear()
    _sketched.clear()
    _evaluated.clear()
