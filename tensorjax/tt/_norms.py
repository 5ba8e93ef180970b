"""Inner products, norms and distances of tensor trains."""

import functools
import math
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, _native, linalg
from tensorjax._cores.overlaps import difference
from tensorjax._formats.trains import TT, TTMatrix
from tensorjax._kernels.choice import choose_kernel, cpp_or_xla
from tensorjax._kernels.table import CPP, PROGRAM, TRACE
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.contract import einsum
from tensorjax.tt import _products_on_host
from tensorjax.tt._algebra import Train, aligned, conj
from tensorjax.tt._folding import as_train

_NOT_HELD = (0.0, math.inf)
_HIGHEST = jax.lax.Precision.HIGHEST


@placed
@as_train
def inner(x: Train, y: Train) -> jax.Array:
    """Computes the inner product ⟨x, y⟩ = Σ conj(x_i) y_i of two trains, a scalar.

    For TT-matrices it is the Frobenius inner product. Intermediate results are kept in range by
    exact powers of two, so only the value itself can overflow, or, in programs of XLA, a core of y
    whose entries are within the number of its entries of the largest one that the dtype holds.

    Args:
      x: TT or TTMatrix; conjugated.
      y: of the same kind and shape.

    Returns:
      Scalar in the promoted dtype.

    Raises:
      TypeError: the arguments are not two trains of one kind. ValueError: their shapes differ.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.inner(tt.ones((2, 3)), tt.ones((2, 3))))
      6.0

    Source: Oseledets (2011), section 4.2; O(d n r³) operations. Departure, ours: programs for one
    CPU multiply trains in float64 from both ends at once, by compiled sweeps (tensorjax/_native).
    The first calls with concrete trains of one shape on a CPU (ten with small cores, three with
    large ones) are NumPy's, with nothing compiled; later ones of real trains are one call of these
    sweeps, float32 in double precision, and may differ by roundoff.
    """
    x, y = aligned(x, y)
    value = _products_on_host.inner(cast(TT, x), cast(TT, y))
    return _inner(x, y) if value is None else value


@jax.jit
def _inner(x: TT, y: TT) -> jax.Array:
    return linalg.scaled(*overlap(conj(x), y))


@placed
@as_train
def norm(x: TT | TTMatrix) -> jax.Array:
    """Computes the Frobenius norm ‖x‖ of a train, a real scalar.

    By the inner product: accurate to about √eps·(sizes of the terms) if ``x`` is a difference of
    nearly equal trains. `distance` has no such loss.

    A norm that the dtype cannot hold raises outside of transformations; under jit, vmap and grad it
    is inf or 0, as in IEEE arithmetic. `log_norm` and `normalize` have no such limit. First calls
    are served as those of `inner`.

    Args:
      x: TT or TTMatrix.

    Returns:
      Real scalar, of the precision of ``x``.

    Raises:
      OverflowError: the norm of a concrete finite train is above, or that of a nonzero one below
        the range of the dtype.

    Example:
      >>> from tensorjax import tt
      >>> print(f"{tt.norm(tt.ones((10,) * 30)):.3g}")
      1e+15

    Source: Oseledets (2011), section 4.2.
    """
    value = _products_on_host.norm(cast(TT, x))
    value = _norm(x) if value is None else value
    if not _check.is_traced(value) and value.ndim == 0 and float(value) in _NOT_HELD:
        _check_held(cast(TT, x), value.dtype)
    return value


def _check_held(x: TT, dtype: Any) -> None:
    """Raises OverflowError if the norm of a train is out of the range of its dtype."""
    square, half = map(np.asarray, _products_on_host.squared_norm(x) or _squared_norm(x))
    info = jnp.finfo(dtype)
    # Where terms cancel, a square of zero is roundoff, which differs between implementations.
    held = info.minexp - info.nmant <= float(half) < info.maxexp - 1
    if np.isfinite(square) and square > 0 and not held:
        _refuse("norm", np.log10(float(square)) / 2 + float(half) * np.log10(2.0), dtype)


def _refuse(name: str, power: float, dtype: Any) -> NoReturn:
    """Raises OverflowError for a norm or a distance of about 10^power."""
    what = "the train" if name == "norm" else "the difference of the trains"
    raise OverflowError(
        f"the {name}, about 1e{power:+.0f}, is out of the range of {jnp.dtype(dtype).name}; "
        f"tt.log_norm of {what} gives its logarithm, tt.normalize a train of norm one"
    )


def squared_norm(x: TT) -> tuple[jax.Array, jax.Array]:
    """Computes the squared norm of a train as (m, e), which means m·4^e."""
    mantissa, exponent = overlap(conj(x), x, True)
    mantissa, shift = linalg.normalized(mantissa.real)
    half = (exponent + shift) // 2
    return linalg.scaled(mantissa, exponent + shift - 2 * half), half


_squared_norm = jax.jit(squared_norm)


@jax.jit
def _norm(x: TT) -> jax.Array:
    mantissa, exponent = overlap(conj(x), x, True)
    half = exponent // 2
    rest = jnp.ldexp(mantissa.real, exponent - 2 * half)
    # The derivative of the square root at zero would be infinite: the zero train gets none. NaN is
    # not <= 0, and so comes through.
    none = rest <= 0
    root = jnp.where(none, 0, jnp.sqrt(jnp.where(none, 1, rest)))
    return jnp.ldexp(root, half)


def overlap(x: TT, y: TT, same: bool = False) -> tuple[jax.Array, jax.Array]:
    """Computes Σ_i x_i y_i of two trains, without conjugation, as mantissa and exponent."""
    dtype = jnp.promote_types(x.dtype, y.dtype)
    x, y = x.astype(dtype), y.astype(dtype)  # cores of one train may differ too
    operation = _operation(same)
    if choose_kernel(operation, (*x.cores, *y.cores), TRACE) is CPP:
        return _either_overlap(x, y, same)
    return _overlap_by_xla(x, y, same)


def _operation(same: bool) -> str:
    return "tt.norm" if same else "tt.inner"


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _either_overlap(x: TT, y: TT, same: bool) -> tuple[jax.Array, jax.Array]:
    results = jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct((), jnp.int32)
    native, otherwise = (_norm_by_sweeps, _norm_by_xla) if same else (_by_sweeps, _overlap_by_xla)
    operands = (x,) if same else (x, y)
    kernels = _operation(same), native, otherwise
    mantissa, exponent = cpp_or_xla(*kernels, *operands, results=results)
    return mantissa, exponent


def _by_sweeps(x: TT, y: TT) -> tuple[jax.Array, jax.Array]:
    return _native.inner(x.cores, y.cores)


def _norm_by_sweeps(x: TT) -> tuple[jax.Array, jax.Array]:
    return _native.inner(x.cores)


def _norm_by_xla(x: TT) -> tuple[jax.Array, jax.Array]:
    return _overlap_by_xla(x, x, True)  # real: the conjugate is the train itself


@_either_overlap.defjvp
def _either_overlap_jvp(same: bool, primals: Any, tangents: Any) -> Any:
    return jax.jvp(_overlap_by_xla, primals, tangents)


def _overlap_by_xla(x: TT, y: TT, same: bool = False) -> tuple[jax.Array, jax.Array]:
    e = jnp.ones((1, 1), x.dtype)
    exponent = jnp.zeros((), jnp.int32)
    # From the right: all that is transposed is a right factor, which XLA multiplies fastest.
    for a, b in zip(reversed(x.cores), reversed(y.cores), strict=True):
        size = linalg.exponent_of(a)
        e = e * linalg.power_of_two(-size, e.dtype)
        # One after the other: two large cores must not meet before e has scaled one of them down.
        e = einsum("aic,cd->aid", a, e, precision=_HIGHEST)
        if same:
            # So many terms of the size of b, which is that of a, may be beyond what each of them
            # is within; exponents are clipped to two below the largest one. Elsewhere a look at b
            # would take as long as the product.
            terms = math.ceil(math.log2(a.shape[1] * a.shape[2] ** 2)) + 4
            down = jnp.maximum(size + terms - int(jnp.finfo(e.dtype).maxexp), 0)
            e, size = e * linalg.power_of_two(-down, e.dtype), size + down
        e, shift = linalg.normalized(einsum("aid,bid->ab", e, b, precision=_HIGHEST))
        exponent = exponent + shift + size
    return e[0, 0], exponent


@placed
@as_train
def distance(x: Train, y: Train) -> jax.Array:
    """Computes the distance ‖x − y‖ of two trains, accurate to a few eps·(‖x‖ + ‖y‖).

    The difference is orthogonalised, never squared: ‖x‖² − 2⟨x, y⟩ + ‖y‖² would lose everything
    below √eps.

    Args:
      x: TT or TTMatrix.
      y: of the same kind and shape.

    Returns:
      Real scalar, of the promoted precision; under jit, vmap and grad inf where the dtype
      cannot hold it.

    Raises:
      TypeError: the arguments are not two trains of one kind. ValueError: their shapes differ.
      OverflowError: the distance of concrete finite trains is above the range of the dtype.

    Example:
      >>> from tensorjax import tt
      >>> x = tt.ones((4,) * 10)
      >>> bool(tt.distance(x, x * (1 + 1e-6)) < 2e-6 * tt.norm(x))
      True

    Source: ours; the sweep by QR is that of Oseledets (2011), section 3.
    """
    x, y = aligned(x, y)
    real = jnp.finfo(x.dtype).dtype
    x, y = (t.astype(linalg.factor_dtype(t.dtype)) for t in (x, y))
    if choose_kernel("tt.distance", (x, y)) is PROGRAM:
        return _distance(x.cores, y.cores).astype(real)
    # Concrete trains differ in rank from call to call: on the host nothing is compiled.
    wide = np.result_type(x.dtype, np.float64)
    host = [[np.asarray(c).astype(wide, copy=False) for c in t.cores] for t in (x, y)]
    length, exponent = difference(*host)
    with np.errstate(over="ignore"):
        value = np.ldexp(length, exponent).astype(real)
    if np.isfinite(length) and not np.isfinite(value):
        _refuse("distance", np.log10(float(length)) + exponent * np.log10(2.0), real)
    return on_device([np.asarray(value)])[0]


def _distance(xs: Any, ys: Any) -> Any:
    length, exponent = difference(xs, ys)
    return (np if linalg.is_host(length) else jnp).ldexp(length, exponent)
