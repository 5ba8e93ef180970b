"""Kernels of exact products of trains, entry by entry or by TT-matrices: NumPy, C++ or XLA.

TT-ranks multiply under `hadamard`, `matvec` and `matmul`.

XLA takes some tenths of a second to compile a product, anew for every combination of shapes, while
the products of small cores take NumPy no longer than a program of XLA takes to be called. A program
of one call of C++ takes hundredths of a second to compile, and has the least overhead of all.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _native, _symbolic
from tensorjax._cores.products import hadamard_core, matmul_core, matvec_core
from tensorjax._cores.scaling import factors_in_program, factors_in_range
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, Train, TTMatrix
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.table import CPP, PROGRAM, TRACE
from tensorjax._kernels.train_signatures import remember
from tensorjax._transfer import on_device
from tensorjax.tt._entries import on_host

# Cores are multiplied as they are where the squared norms of all lie within 2^±_TAME.
_TAME = 60
# Nanoseconds that C++ takes for a multiplication of float64 in sums over modes, and to write a sum
# (half of it of float32): `python -m experiments run bench/core --only shapes`, with AVX-512.
_MULTIPLICATION, _SUM = 0.06, 0.8


@jax.jit
def exact_hadamard(x: Train, y: Train) -> Train:
    if isinstance(x, TT) and isinstance(y, TT):
        return _train_product(x, y)
    return _pairwise(*_in_range(x, y), hadamard_core, type(x))


def _in_range(x: Any, y: Any, terms: int = 1) -> tuple[Any, Any]:
    """Scales the factors of a product in a program where products of cores may overflow."""
    left, right = factors_in_program(x.cores, y.cores, terms)
    return type(x)._unchecked(tuple(left)), type(y)._unchecked(tuple(right))


def _train_product(x: TT, y: TT) -> TT:
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x, y = x.astype(dtype), y.astype(dtype)  # cores of one train may differ too
    pairs = list(zip(x.cores, y.cores, strict=True))

    def work() -> int:  # elements written
        return sum(a.size * b.size // max(1, a.shape[1]) for a, b in pairs)

    chosen = choose_kernel("tt.hadamard", (*x.cores, *y.cores), TRACE, work=work)
    return (_either_product if chosen is CPP else _by_xla)(x, y)


def _by_xla(x: TT, y: TT) -> TT:
    return _pairwise(*_in_range(x, y), hadamard_core, TT)


def _by_sweeps(x: TT, y: TT) -> list[jax.Array]:
    return _native.multiply(x.cores, y.cores)


@jax.custom_jvp
def _either_product(x: TT, y: TT) -> TT:
    results = _native.product_shapes(x.cores, y.cores)
    kernels = "tt.hadamard", _by_sweeps, _by_xla
    return TT._unchecked(tuple(cpp_or_xla(*kernels, x, y, results=results)))


@_either_product.defjvp
def _either_product_jvp(primals: Any, tangents: Any) -> Any:
    return jax.jvp(_by_xla, primals, tangents)


def _pairwise(x: Any, y: Any, multiply: Callable[[Any, Any], Any], kind: Any) -> Any:
    """Multiplies two trains core by core in a compiled program, for their exact products."""
    pairs = zip(x.cores, y.cores, strict=True)
    return kind._unchecked(tuple(multiply(a, b) for a, b in pairs))


@jax.jit(static_argnums=2)
def exact_matrix_product(a: TTMatrix, b: Any, name: str) -> Any:
    """Multiplies a TT-matrix with a train, by ``name`` "matvec", or a TT-matrix, in a program."""
    dtype = jnp.promote_types(a.dtype, b.dtype)
    a, b = a.astype(dtype), b.astype(dtype)
    cores = (*a.cores, *b.cores)
    shapes = tuple([c.shape for c in cores])
    facts = {
        "dtype": np.dtype(dtype),
        "sum_time": lambda: predicted_sum_time(name, shapes, np.dtype(dtype)),
    }
    chosen = choose_kernel(f"tt.{name}", cores, TRACE, **facts)
    return (_either_matrix_product if chosen is CPP else _matrix_product_by_xla)(name, a, b)


def _matrix_product_by_xla(name: str, a: TTMatrix, b: Any) -> Any:
    multiply, kind = _PRODUCTS[name], TTMatrix if name == "matmul" else TT
    return _pairwise(*_in_range(a, b, max(a.col_shape)), multiply, kind)


def _matrix_product_by_cpp(name: str, a: TTMatrix, b: Any) -> list[jax.Array]:
    return _native.exact_product(a.cores, b.cores, sums=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _either_matrix_product(name: str, a: TTMatrix, b: Any) -> Any:
    kernels = f"tt.{name}", _matrix_product_by_cpp, _matrix_product_by_xla
    results = _native.exact_product_shapes(a.cores, b.cores, sums=True)
    cores = cpp_or_xla(*kernels, a, b, static=(name,), results=results, batched=False)
    return type(b)._unchecked(tuple(cores))


@_either_matrix_product.defjvp
def _either_matrix_product_jvp(name: str, primals: Any, tangents: Any) -> Any:
    return jax.jvp(functools.partial(_matrix_product_by_xla, name), primals, tangents)


def common_dtype(cores: Sequence[Any]) -> tuple[np.dtype, bool]:
    """Returns the common dtype of the cores of a host product, and whether all have it."""
    dtypes = [c.dtype for c in cores]
    if dtypes.count(dtypes[0]) == len(dtypes):
        return dtypes[0], True
    return np.dtype(functools.reduce(jnp.promote_types, dtypes)), False


def product(x: Any, y: Any, kind: str, known_dtype: Any = None) -> Any:
    """Computes an exact product of tensor trains by NumPy or C++; None if XLA is better.

    By NumPy, or by one call of C++. Those with products out of range stay here: programs that scale
    them take longer to compile. ``known_dtype`` is that of all cores, where the caller knows it.
    """
    cores = (*x.cores, *y.cores)
    dtype, same = common_dtype(cores) if known_dtype is None else (known_dtype, True)

    found: list[Any] = []

    def factors() -> tuple[Cores, Sequence[np.ndarray], bool]:
        if not found:
            left, given = on_host(x.cores, dtype), on_host(y.cores, dtype)
            with np.errstate(all="ignore"), _blas_threads.one_thread(True):
                right = _products_in_range(left, given, kind)
            found.append((left, right, right is given))
        return found[0]

    shapes = tuple([c.shape for c in cores])
    facts = {
        "key": kind,
        "shapes": shapes,
        "work": lambda: _written(x, y, kind),
        "in_range": lambda: factors()[2],
        "one_dtype": same,
        "sums": lambda: mode_sums(kind, shapes),
        "sum_time": lambda: predicted_sum_time(kind, shapes, dtype),
    }
    chosen = choose_kernel(f"tt.{kind}", cores, dtype=dtype, **facts)
    if chosen is PROGRAM:
        return None
    if chosen is CPP:
        remember(kind, x, y)
        return in_one_call(x, y, kind)
    left, right, _ = factors()
    with np.errstate(all="ignore"), _blas_threads.one_thread(True):
        out = [_PRODUCTS[kind](a, b) for a, b in zip(left, right, strict=True)]
    return (TTMatrix if kind == "matmul" else type(y))._unchecked(tuple(on_device(out)))


def in_one_call(x: Any, y: Any, kind: str) -> Any:
    """Computes an exact product of tensor trains by one call of C++, which `product` has chosen."""
    made = TTMatrix if kind == "matmul" else type(y)
    return made._unchecked(tuple(_product_in_one_call(x.cores, y.cores, kind != "hadamard")))


_product_in_one_call = jax.jit(_native.exact_product, static_argnums=2)


@functools.lru_cache(maxsize=4096)
def mode_sums(kind: str, shapes: tuple[tuple[int, ...], ...]) -> float:
    """Counts the multiplications of a product in sums over modes; inf if empty or symbolic."""
    if not all(map(_symbolic.is_static, itertools.chain(*shapes))):
        return math.inf
    if any(0 in shape for shape in shapes):
        return math.inf
    if kind not in ("matvec", "matmul"):
        return 0.0
    half = len(shapes) // 2
    pairs = zip(shapes[:half], shapes[half:], strict=True)
    return float(sum(math.prod(a) * math.prod(b) / b[1] for a, b in pairs))


@functools.lru_cache(maxsize=4096)
def predicted_sum_time(kind: str, shapes: tuple[tuple[int, ...], ...], dtype: np.dtype) -> float:
    """Predicts the nanoseconds that a host product takes to sum over modes in C++.

    A complex multiplication is four real ones, and a complex sum two.
    """
    total = mode_sums(kind, shapes)
    if not 0 < total < math.inf:
        return total
    half = len(shapes) // 2
    pairs = zip(shapes[:half], shapes[half:], strict=True)
    written = sum(math.prod(a) * math.prod(b) / b[1] ** 2 for a, b in pairs)
    parts = 2 if dtype.kind == "c" else 1
    size = dtype.itemsize / parts / 8
    return size * (_MULTIPLICATION * parts**2 * total + _SUM * parts * written)


def _products_in_range(left: Cores, right: Cores, kind: str) -> Sequence[np.ndarray]:
    """Scales the cores of the second factor of a product on the host if products might overflow."""
    squares = [np.vdot(c, c).real for c in (*left, *right)]
    if min(squares) > 2.0**-_TAME and max(squares) < 2.0**_TAME:
        return right
    return factors_in_range(left, right, 1 if kind == "hadamard" else max(c.shape[2] for c in left))


def _written(x: Any, y: Any, kind: str) -> float:
    """Counts the entries in the cores of a host product of trains, to choose its kernel."""
    total = 0.0
    for a, b in zip(x.cores, y.cores, strict=True):
        shape = a.shape
        shared = max(1, math.prod(shape[1:-1]) if kind == "hadamard" else shape[2])
        rest = b.shape if kind != "matvec" else (*b.shape, 1)
        total += math.prod(shape) * math.prod(rest) / shared ** (1 if kind == "hadamard" else 2)
    return total


_PRODUCTS = {"hadamard": hadamard_core, "matvec": matvec_core, "matmul": matmul_core}
