"""Products and inner products of concrete trains: by NumPy at first, later by one call of C++.

XLA takes some tenths of a second to compile them, anew for every combination of shapes, while the
products of small cores take NumPy no longer than a program of XLA takes to be called. A program of
one call of C++ takes hundredths of a second to compile, and has the least overhead of all.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _native, linalg
from tensorjax._cores.contractions import absorb
from tensorjax._cores.overlaps import bond_overlap
from tensorjax._cores.products import hadamard_core, matmul_core, matvec_core
from tensorjax._cores.scaling import factors_in_range
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import CPP, PROGRAM
from tensorjax._transfer import on_device
from tensorjax.tt._evaluation.numpy_entries import _on_host, near_one

# The matrix carried from core to core is rescaled once its squared norm leaves 2^±_TAME.
_TAME = 60


def _common(cores: Sequence[Any]) -> tuple[np.dtype, bool]:
    """Returns the common dtype of cores, and whether all have it."""
    dtypes = [c.dtype for c in cores]
    if dtypes.count(dtypes[0]) == len(dtypes):
        return dtypes[0], True
    return np.dtype(functools.reduce(jnp.promote_types, dtypes)), False


def product(x: Any, y: Any, kind: str) -> Any:
    """Computes an exact product of concrete trains or TT-matrices; None if a program is better.

    By NumPy, or by one call of C++. Programs do not look at the sizes of cores: those with products
    out of range stay here.
    """
    cores = (*x.cores, *y.cores)
    dtype, same = _common(cores)

    found: list[Any] = []

    def factors() -> tuple[Cores, Sequence[np.ndarray], bool]:
        if not found:
            left, given = _on_host(x.cores, dtype), _on_host(y.cores, dtype)
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
        "sums": lambda: _sums(kind, shapes),
    }
    chosen = choose_kernel(f"tt.{kind}", cores, dtype=dtype, **facts)
    if chosen is PROGRAM:
        return None
    made = TTMatrix if kind == "matmul" else type(y)
    if chosen is CPP:
        return made._unchecked(tuple(_product_in_one_call(x.cores, y.cores, kind != "hadamard")))
    left, right, _ = factors()
    with np.errstate(all="ignore"), _blas_threads.one_thread(True):
        out = [_PRODUCTS[kind](a, b) for a, b in zip(left, right, strict=True)]
    return made._unchecked(tuple(on_device(out)))


_product_in_one_call = jax.jit(_native.exact_product, static_argnums=2)
_overlap_in_one_call = jax.jit(_native.overlap)


@functools.lru_cache(maxsize=4096)
def _sums(kind: str, shapes: tuple[tuple[int, ...], ...]) -> float:
    """Counts the multiplications in a product's sums over modes; infinite if a core is empty."""
    if any(0 in shape for shape in shapes):
        return math.inf
    if kind not in ("matvec", "matmul"):
        return 0.0
    half = len(shapes) // 2
    pairs = zip(shapes[:half], shapes[half:], strict=True)
    return float(sum(math.prod(a) * math.prod(b) / b[1] for a, b in pairs))


def _products_in_range(left: Cores, right: Cores, kind: str) -> Sequence[np.ndarray]:
    """Scales the second factor of a product if products with the first might overflow."""
    squares = [np.vdot(c, c).real for c in (*left, *right)]
    if min(squares) > 2.0**-_TAME and max(squares) < 2.0**_TAME:
        return right
    return factors_in_range(left, right, 1 if kind == "hadamard" else max(c.shape[2] for c in left))


def _written(x: Any, y: Any, kind: str) -> float:
    """Counts the entries in the cores of a product of trains."""
    total = 0.0
    for a, b in zip(x.cores, y.cores, strict=True):
        shape = a.shape
        shared = max(1, math.prod(shape[1:-1]) if kind == "hadamard" else shape[2])
        rest = b.shape if kind != "matvec" else (*b.shape, 1)
        total += math.prod(shape) * math.prod(rest) / shared ** (1 if kind == "hadamard" else 2)
    return total


_PRODUCTS = {"hadamard": hadamard_core, "matvec": matvec_core, "matmul": matmul_core}


def inner(x: TT, y: TT) -> jax.Array | None:
    """Computes ⟨x, y⟩ of two trains by NumPy, on the host; None if a program is better."""
    found = _overlap(x, y, "inner")
    if found is None or isinstance(found, jax.Array):
        return found
    with np.errstate(all="ignore"):
        return on_device([np.asarray(linalg.scaled(*found))])[0]


def norm(x: TT) -> jax.Array | None:
    """Computes ‖x‖ of a train by NumPy, on the host; None if a compiled program is better."""
    found = _overlap(x, x, "norm")
    if found is None or isinstance(found, jax.Array):
        return found
    square, exponent = found[0].real, found[1]
    half = exponent // 2
    with np.errstate(all="ignore"):
        rest = np.ldexp(square, exponent - 2 * half)
        root = abs(rest * 0) if rest <= 0 else np.sqrt(rest)
        return on_device([np.asarray(np.ldexp(root, half))])[0]


def squared_norm(x: TT) -> tuple[Any, int] | None:
    """Computes ‖x‖² of a train by NumPy as (m, e), which means m·4^e; None if a program is better.

    In double precision: the norm of a train of many sites is a product of many rounded factors.
    """
    if choose_kernel("tt.log_norm", x.cores) is PROGRAM:
        return None
    wide = np.result_type(linalg.factor_dtype(x.dtype), np.float64)
    with np.errstate(all="ignore"), _blas_threads.one_thread(True):
        cores = _on_host(x.cores, wide)
        square, exponent = _swept(cores, cores)
        square, shift = linalg.normalized(np.asarray(square.real))
        half = (exponent + shift) // 2
        return linalg.scaled(square, exponent + shift - 2 * half), half


def _overlap(x: TT, y: TT, kind: str) -> tuple[Any, int] | jax.Array | None:
    """Computes Σ conj(x_i) y_i by NumPy as mantissa and exponent; None if a program is better.

    Or what is asked for, the inner product or the norm, by one call of C++.
    """
    cores = x.cores if kind == "norm" else (*x.cores, *y.cores)
    dtype, same = _common(cores)
    shapes = tuple([c.shape for c in cores])
    facts = {
        "dtype": dtype,
        "key": kind,
        "shapes": shapes,
        "work": lambda: _work(x, y),
        "one_dtype": same,
        "sums": lambda: _sums(kind, shapes),
    }
    chosen = choose_kernel(f"tt.{kind}", cores, **facts)
    if chosen is CPP:
        return _overlap_in_one_call(x.cores, () if kind == "norm" else y.cores)
    if chosen is PROGRAM:
        return None
    with np.errstate(all="ignore"), _blas_threads.one_thread(True):
        left = _on_host(x.cores, dtype)
        return _swept(left, left if x is y else _on_host(y.cores, dtype))


def _work(x: TT, y: TT) -> float:
    """Counts the multiplications in an inner product of trains."""
    return sum(
        a.shape[0] * b.shape[1] * b.shape[2] * (b.shape[0] + a.shape[2])
        for a, b in zip(x.cores, y.cores, strict=True)
    )


def _swept(xs: Cores, ys: Cores) -> tuple[Any, int]:
    """Computes the inner product of two trains of NumPy cores as mantissa and exponent.

    Cores are brought near one when their turn comes: they are read once, while in the cache.
    """
    low, high = 2.0**-_TAME, 2.0**_TAME
    e: Any = np.ones((1, 1), ys[0].dtype)
    exponent = 0
    for left, right in zip(xs, ys, strict=True):
        (a,), more = near_one([left])
        (b,), shift = ((a,), more) if left is right else near_one([right])
        exponent += more + shift
        e = bond_overlap(a, absorb(e, b))
        if not low < np.vdot(e, e).real < high:
            e, shift = linalg.normalized(e)
            exponent += shift
    return e[0, 0], exponent
