"""Exact arithmetic of tensor trains and TT-matrices, on their cores: by NumPy, C++ or XLA.

Ranks add under `add`, multiply under `hadamard`, `matvec` and `matmul`; `tensorjax.tt.round` brings
them down again. Every function works under jit, vmap and grad.

XLA takes some tenths of a second to compile a product, anew for every combination of shapes, while
the products of small cores take NumPy no longer than a program of XLA takes to be called. A program
of one call of C++ takes hundredths of a second to compile, and has the least overhead of all.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _blas_threads, _native
from tensorjax._cores.products import added, hadamard_core, matmul_core, matvec_core
from tensorjax._cores.scaling import factors_in_range
from tensorjax._cores.unfoldings import Cores
from tensorjax._formats.arithmetic_operators import multiplied
from tensorjax._formats.trains import TT, TTMatrix, known
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.table import CPP, PROGRAM, TRACE
from tensorjax._kernels.train_signatures import is_known, remember
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax._typing import Scalar
from tensorjax.tt._broadcasting import broadcast_aligned
from tensorjax.tt._constructors import ones_like
from tensorjax.tt._entries import on_host
from tensorjax.tt._folding import fold, rearranged, unfold

Train = TypeVar("Train", TT, TTMatrix)

# Cores are multiplied as they are where the squared norms of all lie within 2^±_TAME.
_TAME = 60
# Nanoseconds that C++ takes for a multiplication of float64 in sums over modes, and to write a sum
# (half of it of float32); of complex numbers to multiply a row of a core by a number and to add it
# up, and for an element of it: `python -m experiments run bench/core --only shapes`, with AVX-512.
_MULTIPLICATION, _SUM = 0.06, 0.8
_ROW, _PART_OF_ROW = 3.5, 0.25


def _map(x: Train, f: Callable[[jax.Array], jax.Array]) -> Train:
    return type(x)._unchecked(tuple(f(c) for c in x.cores))


@placed
def add(x: Train, y: Train) -> Train:
    """Adds two trains entry by entry, exactly, by block-diagonal cores; TT-ranks add.

    Args:
      x: TT or TTMatrix.
      y: of the same kind and shape; modes of size one are broadcast, as in NumPy, on both sides.

    Returns:
      Train of the kind and shape of both and of TT-ranks r_k + s_k, in the promoted dtype.

    Raises:
      TypeError: the arguments are not two trains of one kind.
      ValueError: their shapes differ, or the numbers of their modes (``t[None]`` adds one).

    Example:
      >>> from tensorjax import tt
      >>> tt.add(tt.ones((2, 3)), tt.ones((2, 3))).ranks
      (1, 2, 1)

    The cores of each train are brought to one size first, by powers of two whose product is one, so
    that the sum is right for trains whose cores differ in size in opposite ways.

    Source: Oseledets (2011), section 4.1.
    """
    if is_known("add", x, y):
        return type(x)._unchecked(_add_cores(type(x), x.cores, y.cores))
    x, y = broadcast_aligned(x, y)
    remember("add", x, y)
    return type(x)._unchecked(_add_cores(type(x), x.cores, y.cores))


@jax.jit(static_argnums=0)  # of tuples, which are flattened in C, as trains are not
def _add_cores(kind: Any, xs: Any, ys: Any) -> tuple[Any, ...]:
    return _add(kind._unchecked(xs), kind._unchecked(ys)).cores


def _add(x: Any, y: Any) -> Any:
    if isinstance(x, TT):
        return TT._unchecked(tuple(added(x.cores, y.cores)))
    return unfold(_add(fold(x), fold(y)), x.row_shape, x.col_shape)


def scale(x: Train, factor: Scalar) -> Train:
    """Multiplies a tensor train by a scalar (traced or not), in its last core.

    Args:
      x: TT or TTMatrix.
      factor: a number of Python, NumPy or JAX; the dtype is that which an array would have.

    Returns:
      Train of the kind, shape and TT-ranks of ``x``.

    Raises:
      TypeError: no train, or no number. ValueError: an array with axes, or an infinite number of
        Python or NumPy: sums of products with it are NaN. (With one of JAX they are NaN or Inf.)

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.scale(tt.ones((2,)), 3.0)))
      [3. 3.]

    Source: Oseledets (2011), section 4.1.
    """
    known("x", x)
    return multiplied(x, factor)


def conj(x: Train) -> Train:
    """Computes the complex conjugate of a train exactly, by conjugating its cores.

    Args:
      x: TT or TTMatrix, real or complex.

    Returns:
      Train of the kind, shape, TT-ranks and dtype of ``x``.

    Raises:
      TypeError: ``x`` is no train.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.conj((2 + 1j) * tt.ones((2,)))))
      [2.-1.j 2.-1.j]

    Source: ours; an entry is a product of cores, and its conjugate that of theirs.
    """
    known("x", x)
    return _map(x, jnp.conj)


@placed
def real(x: Train) -> Train:
    """Computes a train's real part by exact arithmetic on cores; TT-ranks double if complex.

    A complex number a + ib acts as the real matrix [[a, −b], [b, a]], and so does a core: that of
    the products is the product of these matrices, which the last core cuts to one column and the
    first one to the row of the real part. `round` brings the ranks down.

    Args:
      x: TT or TTMatrix.

    Returns:
      Of the same kind and shape and of real dtype: ranks 2 r_k, or ``x`` itself if it is real.

    Raises:
      TypeError: ``x`` is no train.

    Example:
      >>> from tensorjax import tt
      >>> z = 1j * tt.ones((2, 3)) + 2
      >>> print(tt.real(z).dtype, tt.to_dense(tt.real(z))[0, 0], tt.to_dense(tt.imag(z))[0, 0])
      float32 2.0 1.0

    Source: ours.
    """
    known("x", x)
    return _part(x, False) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x


@placed
def imag(x: Train) -> Train:
    """Returns the imaginary part of a tensor train exactly; zero for a real train.

    Args:
      x: TT or TTMatrix.

    Returns:
      Of the same kind and shape and of real dtype: ranks 2 r_k, or one if ``x`` is real.

    Raises:
      TypeError: ``x`` is no train.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.to_dense(tt.imag((2 + 1j) * tt.ones((2,)))))
      [1. 1.]

    Source: ours; see `real`.
    """
    known("x", x)
    complex_ = jnp.issubdtype(x.dtype, jnp.complexfloating)
    return _part(x, True) if complex_ else multiplied(ones_like(x), 0)


@functools.partial(jax.jit, static_argnums=1)
def _part(x: Train, imaginary: bool) -> Train:
    cores = []
    for k, c in enumerate(x.astype(x.dtype).cores):
        # Columns first: [a; b] of the matrix, then [−b; a].
        rows = [c.imag, c.real] if k == 0 and imaginary else [c.real, c.imag]
        turned = [c.real, -c.imag] if k == 0 and imaginary else [-c.imag, c.real]
        keep = 1 if k == 0 else 2
        columns = [rows] if k == x.order - 1 else [rows, turned]
        blocks = [jnp.concatenate(rows[:keep], axis=-x._core_ndim) for rows in columns]
        cores.append(jnp.concatenate(blocks, axis=-1))
    return type(x)._unchecked(tuple(cores))


@jax.jit
def exact_hadamard(x: Train, y: Train) -> Train:
    if isinstance(x, TT) and isinstance(y, TT):
        return _train_product(x, y)
    return _pairwise(x, y, hadamard_core, type(x))


def _train_product(x: TT, y: TT) -> TT:
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x, y = x.astype(dtype), y.astype(dtype)  # cores of one train may differ too
    pairs = list(zip(x.cores, y.cores, strict=True))

    def work() -> int:  # elements written
        return sum(a.size * b.size // max(1, a.shape[1]) for a, b in pairs)

    chosen = choose_kernel("tt.hadamard", (*x.cores, *y.cores), TRACE, work=work)
    return (_either_product if chosen is CPP else _by_xla)(x, y)


def _by_xla(x: TT, y: TT) -> TT:
    return _pairwise(x, y, hadamard_core, TT)


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


def exact_product(a: Any, b: Any, multiply: Callable[[Any, Any], Any], kind: Any) -> Any:
    dtype = jnp.promote_types(a.dtype, b.dtype)
    return _jitted_pairwise(a.astype(dtype), b.astype(dtype), multiply, kind)


_jitted_pairwise = jax.jit(_pairwise, static_argnums=(2, 3))


@placed
def transpose(a: TTMatrix) -> TTMatrix:
    """Transposes a TT-matrix, without conjugation: swaps row and column modes of every core.

    Args:
      a: TTMatrix of row modes m_k and column modes n_k.

    Returns:
      TTMatrix of row modes n_k and column modes m_k, and of the TT-ranks of ``a``.

    Raises:
      TypeError: ``a`` is no TTMatrix; `reverse` reverses the modes of a TT.

    Example:
      >>> from tensorjax import tt
      >>> tt.transpose(tt.ones_matrix((2, 3), (4, 5))).row_shape
      (4, 5)

    Source: ours.
    """
    if not isinstance(a, TTMatrix):
        raise TypeError(f"a: expected a TTMatrix, got {type(a).__name__}")
    known("a", a)
    return TTMatrix._unchecked(rearranged("transpose", a.cores, lambda c: c.swapaxes(-3, -2)))


def kron(x: Train, y: Train) -> Train:
    """Computes the Kronecker (tensor) product of trains exactly: cores of ``x``, then of ``y``.

    Args:
      x: TT or TTMatrix.
      y: of the same kind.

    Returns:
      Train of the modes of ``x``, then those of ``y``; the TT-ranks stay, the rank of the bond
      between them is one. Its dtype is the promoted one.

    Raises:
      TypeError: the arguments are not two trains of one kind.

    Example:
      >>> from tensorjax import tt
      >>> tt.kron(tt.ones((2, 3)), tt.ones((4,))).shape
      (2, 3, 4)

    Source: ours.
    """
    if type(x) is not type(y):
        raise TypeError(f"expected one kind, got {type(x).__name__} and {type(y).__name__}")
    known("x", x)
    known("y", y)
    dtype = jnp.promote_types(x.dtype, y.dtype)
    return type(x)._unchecked(x.astype(dtype).cores + y.astype(dtype).cores)


def common_dtype(cores: Sequence[Any]) -> tuple[np.dtype, bool]:
    """Returns the common dtype of the cores of a host product, and whether all have it."""
    dtypes = [c.dtype for c in cores]
    if dtypes.count(dtypes[0]) == len(dtypes):
        return dtypes[0], True
    return np.dtype(functools.reduce(jnp.promote_types, dtypes)), False


def product(x: Any, y: Any, kind: str, known_dtype: Any = None) -> Any:
    """Computes an exact product of tensor trains by NumPy or C++; None if XLA is better.

    By NumPy, or by one call of C++. Programs do not look at the sizes of cores: those with products
    out of range stay here. ``known_dtype`` is that of all cores, where the caller knows it.
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
    """Counts the multiplications of a host product in sums over modes; inf for empty cores."""
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

    Real sums are made by tiles of several rows of a product; complex ones row by row of the last
    axis, which is short where ranks are low.
    """
    total = mode_sums(kind, shapes)
    if not 0 < total < math.inf:
        return total
    half = len(shapes) // 2
    pairs = list(zip(shapes[:half], shapes[half:], strict=True))
    if dtype.kind != "c":
        written = sum(math.prod(a) * math.prod(b) / b[1] ** 2 for a, b in pairs)
        return dtype.itemsize / 8 * (_MULTIPLICATION * total + _SUM * written)
    rows = ((math.prod(a) * math.prod(b) / b[1] / b[-1], b[-1]) for a, b in pairs)
    return sum(count * (_ROW + _PART_OF_ROW * length) for count, length in rows)


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
