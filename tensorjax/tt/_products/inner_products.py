"""Inner product, norm and distance of tensor trains, log-norm and normalisation."""

import functools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import _check, linalg
from tensorjax._cores.overlaps import difference
from tensorjax._cores.scaling import computed_once, evenly, shared_exponents
from tensorjax._formats.overflow_checks import held, power_of_ten
from tensorjax._formats.trains import TT, Train, TTMatrix
from tensorjax._kernels.choice import choose_kernel
from tensorjax._kernels.table import PROGRAM
from tensorjax._kernels.train_signatures import is_known
from tensorjax._placement import placed
from tensorjax._transfer import on_device
from tensorjax.tt._broadcasting import aligned
from tensorjax.tt._exact_arithmetic import conj
from tensorjax.tt._folding import as_train
from tensorjax.tt._products import inner_product_kernels
from tensorjax.tt._products.inner_product_derivatives import (
    differentiable_inner,
    differentiable_norm,
)

NORM_REMEDY = "tt.log_norm of {} gives its logarithm, tt.normalize a train of norm one"


@placed
def inner(x: Train, y: Train) -> jax.Array:
    """Computes the inner product ⟨x, y⟩ = Σ conj(x_i) y_i of two tensor trains, a scalar.

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
      OverflowError: on a CPU, the value is out of the range of the dtype, unless it is below
        roundoff of ‖x‖·‖y‖; on accelerators and under jit, vmap and grad it is inf or 0, as in IEEE
        arithmetic.

    Example:
      >>> from tensorjax import tt
      >>> print(tt.inner(tt.ones((2, 3)), tt.ones((2, 3))))
      6.0

    Source: Oseledets (2011), section 4.2; O(d n r³) operations. Departure, ours: programs for one
    CPU multiply trains in float64 from both ends at once, by compiled sweeps (tensorjax/_native).
    The first calls with concrete trains of one shape on a CPU (ten with small cores, three with
    large ones) are NumPy's, with nothing compiled; later ones are one call of C++, in double
    precision whatever the dtype, and may differ by roundoff; long ones of float32 or of complex
    trains are programs.
    """
    if is_known("inner", x, y):
        return _held(inner_product_kernels.in_one_call(cast(TT, x), cast(TT, y)), x, y)
    return _checked_inner(x, y)


@as_train
def _checked_inner(x: Train, y: Train) -> jax.Array:
    x, y = aligned(x, y)
    value = inner_product_kernels.inner_on_host(cast(TT, x), cast(TT, y))
    if value is None:
        program = _inner_by_rule if _check.is_traced(x, y) else _inner
        value = program(cast(TT, x), cast(TT, y))
    return _held(value, x, y)


def _held(value: jax.Array, x: Any, y: Any) -> jax.Array:
    powers = functools.partial(inner_product_kernels.powers, x, y)
    return held("the inner product", value, powers, "normalize the trains by tt.normalize")


@jax.jit
def _inner(x: TT, y: TT) -> jax.Array:
    return linalg.scaled(*inner_product_kernels.overlap(conj(x), y))


_inner_by_rule = differentiable_inner(lambda x, y: _inner(x, y))


@placed
@as_train
def norm(x: TT | TTMatrix) -> jax.Array:
    """Computes the Frobenius norm ‖x‖ of a tensor train, a real scalar.

    By the inner product: accurate to about √eps·(sizes of the terms) if ``x`` is a difference of
    nearly equal trains. `distance` has no such loss.

    On a CPU a norm that the dtype cannot hold raises; on accelerators and under jit, vmap and grad
    it is inf or 0, as in IEEE arithmetic. `log_norm` and `normalize` have no such limit. First
    calls are served as those of `inner`.

    Args:
      x: TT or TTMatrix.

    Returns:
      Real scalar, of the precision of ``x``.

    Raises:
      OverflowError: on a CPU, the norm of a concrete finite train is above, or that of a nonzero
        one below the range of the dtype.

    Example:
      >>> from tensorjax import tt
      >>> print(f"{tt.norm(tt.ones((10,) * 30)):.3g}")
      1e+15

    Source: Oseledets (2011), section 4.2.
    """
    value = inner_product_kernels.norm_on_host(cast(TT, x))
    if value is None:
        value = (_norm_by_rule if _check.is_traced(x) else _norm)(cast(TT, x))
    powers = functools.partial(inner_product_kernels.norm_powers, cast(TT, x))
    return held("the norm", value, powers, NORM_REMEDY.format("the train"))


@jax.jit
def _norm(x: TT) -> jax.Array:
    mantissa, exponent = inner_product_kernels.overlap(conj(x), x, True)
    half = exponent // 2
    rest = jnp.ldexp(mantissa.real, exponent - 2 * half)
    # The derivative of the square root at zero would be infinite: the zero train gets none. NaN is
    # not <= 0, and so comes through.
    none = rest <= 0
    root = jnp.where(none, 0, jnp.sqrt(jnp.where(none, 1, rest)))
    return jnp.ldexp(root, half)


_norm_by_rule = differentiable_norm(lambda x: _norm(x))


@placed
@as_train
def distance(x: Train, y: Train) -> jax.Array:
    """Computes the distance ‖x − y‖ of two tensor trains, accurate to a few eps·(‖x‖ + ‖y‖).

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
        return distance_of_cores(x.cores, y.cores).astype(real)
    # Concrete trains differ in rank from call to call: on the host nothing is compiled.
    wide = np.result_type(x.dtype, np.float64)
    host = [[np.asarray(c).astype(wide, copy=False) for c in t.cores] for t in (x, y)]
    with np.errstate(over="ignore", invalid="ignore"):  # of Inf, whose distance is NaN
        length, exponent = difference(*host)
        value = np.asarray(np.ldexp(length, exponent).astype(real))
    power = power_of_ten(length, exponent)
    powers = power, lambda: math.inf  # that of equal trains is roundoff, or zero
    return held("the distance", on_device([value])[0], lambda: powers, NORM_REMEDY.format("x - y"))


def distance_of_cores(xs: Any, ys: Any) -> Any:
    """Computes ‖x − y‖ of two trains of NumPy or JAX cores, with no check of its range."""
    length, exponent = difference(xs, ys)
    return (np if linalg.is_host(length) else jnp).ldexp(length, exponent)


@placed
@as_train
def log_norm(t: TT | TTMatrix) -> jax.Array:
    """Computes ln ‖t‖, the log of a tensor train's Frobenius norm, however large; −∞ for zero.

    Right also where `norm` overflows or vanishes, with derivatives: that of a zero train is zero.

    Args:
      t: TT or TTMatrix.

    Returns:
      Real scalar, of the precision of ``t``.

    Raises:
      TypeError: ``t`` is no train. ValueError: it is a batch of them.

    Example:
      >>> from tensorjax import tt
      >>> print(f"{tt.log_norm(tt.ones((10_000,) * 20)):.3f}")  # of a norm of 1e40
      92.103

    Source: ours.
    """
    t = cast(TT, t)
    found = inner_product_kernels.squared_norm_on_host(t)
    if found is None:
        return _log_norm(t)
    square, half = found
    with np.errstate(all="ignore"):
        log = -math.inf if square <= 0 else np.log(square) / 2 + half * math.log(2)
    return on_device([np.asarray(log).astype(jnp.finfo(t.dtype).dtype)])[0]


@jax.jit
def _log_norm(t: TT) -> jax.Array:
    square, half = inner_product_kernels.squared_norm(t.astype(linalg.factor_dtype(t.dtype)))
    none = square <= 0
    log = jnp.log(jnp.where(none, 1, square)) / 2 + half.astype(square.dtype) * math.log(2)
    return jnp.where(none, -jnp.inf, log).astype(jnp.finfo(t.dtype).dtype)


@placed
def normalize(t: Train) -> Train:
    """Normalises a tensor train: t / ‖t‖, of norm one; a zero train stays as it is.

    Right also where ``t / tt.norm(t)`` is not, for no scalar may hold the norm: cores are scaled
    by powers of two, which all of them share.

    Args:
      t: TT or TTMatrix.

    Returns:
      Train of the kind, shape, TT-ranks and dtype of ``t``.

    Raises:
      TypeError: ``t`` is no train. ValueError: it is a batch of them.

    Example:
      >>> from tensorjax import tt
      >>> print(f"{tt.norm(tt.normalize(tt.ones((10_000,) * 20))):.4f}")
      1.0000

    Source: ours.
    """
    return _normalized(t)


# Programs of one core each: of hundreds of cores, most alike, few are compiled.
_near_one = jax.jit(linalg.normalized)
_over = jax.jit(lambda core, root, e: linalg.scaled(core / root, e))


@as_train
def _normalized(t: Any) -> Any:
    if choose_kernel("tt.log_norm", t.cores) is PROGRAM:
        return _normalized_by_programs(t)
    dtype = linalg.factor_dtype(t.dtype)
    cores = [linalg.normalized(np.asarray(c).astype(dtype, copy=False))[0] for c in t.cores]
    found = inner_product_kernels.squared_norm_on_host(TT._unchecked(tuple(cores)))
    assert found is not None  # by the same row of the table
    square, half = found
    if not square <= 0:
        with np.errstate(all="ignore"):
            cores[0] = cores[0] / np.sqrt(square).astype(cores[0].real.dtype)
            exponents = evenly(-half, t.order)
            cores = [linalg.scaled(c, e) for c, e in zip(cores, exponents, strict=True)]
    return TT._unchecked(tuple(on_device([c.astype(t.dtype, copy=False) for c in cores])))


def _normalized_by_programs(t: TT) -> TT:
    # Of cores near one the norm is so near to one that all of them can share its exponent.
    small = TT._unchecked(
        tuple(_near_one(c.astype(linalg.factor_dtype(t.dtype)))[0] for c in t.cores)
    )
    square, half = inner_product_kernels.squared_norm_by_program(small)
    none = square <= 0
    root: Any = jnp.sqrt(jnp.where(none, 1, square)).astype(small.dtype)
    roots = [root] + [jnp.ones_like(root)] * (t.order - 1)
    exponents = shared_exponents(computed_once(jnp.where(none, 0, -half)), t.order, 0, False)
    cores = map(_over, small.cores, roots, exponents)
    return TT._unchecked(tuple(c.astype(t.dtype) for c in cores))
