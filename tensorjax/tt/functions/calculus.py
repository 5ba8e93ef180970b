"""Integrals, derivatives and inner products of functional trains, exact in their bases."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tensorjax import _check
from tensorjax._placement import placed
from tensorjax.tt._arrays.mode_products import contract_modes, mode_product
from tensorjax.tt._products.inner_products import inner as trains_inner
from tensorjax.tt._products.inner_products import norm as trains_norm
from tensorjax.tt.functions.function_train import (
    FunctionTrain,
    checked,
    checked_variable,
    in_dtype,
    on_common_bases,
    times_modes,
)


@placed
def integrate(
    f: FunctionTrain, variables: int | Sequence[int] | None = None
) -> FunctionTrain | jax.Array:
    """Integrates a functional train over all or some of its variables.

    Args:
      f: functional train of d variables.
      variables: numbers of the variables to integrate over, in [−d, d); all if None.

    Returns:
      Scalar; or the `FunctionTrain` of the variables that remain, in their order.

    Raises:
      ValueError: a variable that is out of range or given twice.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> bases = [tt.functions.Chebyshev(1, 0.0, 1.0)] * 2   # 1, 2x − 1
      >>> f = tt.functions.FunctionTrain(bases, tt.rank_one([jnp.ones(2)] * 2))   # 4 x y
      >>> print(f"{tt.functions.integrate(f):.3f} {tt.functions.integrate(f, 0)([0.5]):.3f}")
      1.000 1.000

    Source: Gorodetsky et al. (2019), section 2; Clenshaw–Curtis' integrals of polynomials.
    """
    checked(f)
    if variables is None:
        variables = range(f.ndim)
    numbers = [variables] if isinstance(variables, int) else list(variables)
    chosen = [checked_variable(f, k) for k in numbers]
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"variables: expected different ones, got {variables!r}")
    if not chosen:
        return f
    vectors = {k: in_dtype(f.bases[k].integrals, f.dtype) for k in chosen}
    rest = contract_modes(f.coefficients, vectors)
    if len(chosen) == f.ndim:
        return rest
    return FunctionTrain._unchecked(
        tuple(b for k, b in enumerate(f.bases) if k not in chosen), rest
    )


@placed
def derivative(f: FunctionTrain, variable: int, order: int = 1) -> FunctionTrain:
    """Differentiates a functional train with respect to one variable; the TT-ranks stay.

    Args:
      f: functional train of d variables.
      variable: its number, in [−d, d).
      order: how many times, at least 1.

    Returns:
      `FunctionTrain` on the same box, in a basis of lower degree for that variable.

    Raises:
      ValueError: a variable out of range, or more derivatives than a spline has.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> bases = [tt.functions.Chebyshev(1)] * 2   # 1, x
      >>> f = tt.functions.FunctionTrain(bases, tt.rank_one([jnp.array([0.0, 1.0])] * 2))   # x y
      >>> print(f"{tt.functions.derivative(f, 1)([0.25, 0.5]):.4f}")
      0.2500

    Source: the recurrences of J. Mason, D. Handscomb, "Chebyshev Polynomials" (2003), section
    2.4.5, and of C. de Boor, "A Practical Guide to Splines" (1978), chapter X.
    """
    checked(f)
    k = checked_variable(f, variable)
    bases, train = list(f.bases), f.coefficients
    for _ in range(_check.integer("order", order, low=1)):
        bases[k], matrix = bases[k].derivative()
        train = mode_product(train, in_dtype(matrix, f.dtype), k)
    return FunctionTrain._unchecked(tuple(bases), train)


@placed
def inner(f: FunctionTrain, g: FunctionTrain) -> jax.Array:
    """Computes the inner product ∫ conj(f) g of two functional trains in L² over their box.

    Args:
      f: functional train; conjugated.
      g: functional train on the same box.

    Returns:
      Scalar in the promoted dtype.

    Raises:
      ValueError: another box, or bases of another kind.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> bases = [tt.functions.Chebyshev(1, 0.0, 1.0)] * 2   # 1, 2x − 1
      >>> f = tt.functions.FunctionTrain(bases, tt.rank_one([jnp.ones(2)] * 2))   # 4 x y
      >>> print(f"{tt.functions.inner(f, f):.4f}")
      1.7778

    Source: ours: `tensorjax.tt.inner` in orthonormal bases.
    """
    bases, x, y = on_common_bases(f, g)
    factors = {k: b.orthonormal for k, b in enumerate(bases)}
    return trains_inner(times_modes(x, factors), times_modes(y, factors))


@placed
def norm(f: FunctionTrain) -> jax.Array:
    """Computes the norm of a functional train in L², the root of ∫ |f|² over its box.

    Args:
      f: functional train.

    Returns:
      Real scalar.

    Raises:
      OverflowError: as `tensorjax.tt.norm`, outside of transformations.

    Example:
      >>> from tensorjax import tt
      >>> bases = [tt.functions.Chebyshev(1, 0.0, 2.0)] * 2
      >>> f = tt.functions.FunctionTrain(bases, tt.rank_one([[1.0, 0.0]] * 2))   # 1
      >>> print(f"{tt.functions.norm(f):.4f}")
      2.0000

    Source: ours: `tensorjax.tt.norm` in orthonormal bases.
    """
    checked(f)
    factors = {k: b.orthonormal for k, b in enumerate(f.bases)}
    return jnp.asarray(trains_norm(times_modes(f.coefficients, factors)))
