"""Functions applied entry by entry: map, divide and power, by cross approximation or products."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tensorjax import _check
from tensorjax._formats.trains import Train, TTMatrix, single
from tensorjax._placement import placed
from tensorjax.tt._broadcasting import sizes_of, together
from tensorjax.tt._constructors import ones_like
from tensorjax.tt._cross.cross import CrossInfo, cross
from tensorjax.tt._entries import evaluate
from tensorjax.tt._folding import fold, unfold
from tensorjax.tt._products.hadamard_and_matrix_products import hadamard
from tensorjax.tt._rounding.round import round


@placed
def map(
    f: Callable[..., Any], *trains: Train, tol: float, key: jax.Array, **options: Any
) -> tuple[Train, CrossInfo]:
    """Applies a function elementwise to tensor trains of one shape, by cross approximation.

    Args:
      f: takes one array (batch,) of entries for each train, and returns (batch,) values.
      trains: one or more TT, or TTMatrix, of one shape; modes of size one are broadcast.
      tol: relative error asked for; see `cross`.
      key: of `jax.random`.
      options: others of `cross`, as ``max_rank`` and ``max_evaluations``.

    Returns:
      (train of the kind given, `CrossInfo`); its status says whether the tolerance was reached.

    Raises:
      TypeError: trains of both kinds. ValueError: no train, shapes that differ, values of ``f``
        that are not finite or not one for each entry.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> from tensorjax import tt
      >>> x = tt.rank_one([jnp.linspace(1.0, 2.0, 5)] * 3)
      >>> root, info = tt.map(np.sqrt, x, tol=1e-5, key=jax.random.key(0))
      >>> info.status, bool(abs(root[4, 4, 4] - 8**0.5) < 1e-4)
      ('converged', True)

    Source: ours; the entries of the trains are what `cross` asks for, whose sources it names.
    """
    _check.function("f", f)
    given = _common(trains)
    if isinstance(given[0], TTMatrix):
        out, info = map(f, *(fold(t) for t in given), tol=tol, key=key, **options)
        return unfold(out, given[0].row_shape, given[0].col_shape), info  # type: ignore[return-value]

    def values(indices: np.ndarray) -> Any:
        entries = [np.asarray(evaluate(t, indices)) for t in given]
        try:
            found = f(*entries)
        except TypeError as error:
            error.add_note(f"f: gets {len(given)} arrays {entries[0].shape}, one of each train")
            raise
        if np.ndim(found) > 1:  # `cross` would take further axes for components
            raise ValueError(
                f"f: expected values {entries[0].shape}, one for each entry, got an array of shape "
                f"{np.shape(found)}; map one component after the other"
            )
        return found

    return cross(values, given[0].shape, tol=tol, key=key, **options)  # type: ignore[return-value]


def _common(trains: Sequence[Any]) -> list[Any]:
    """Broadcasts the tensor trains of an elementwise function to one shape, or raises an error."""
    if not trains:
        raise ValueError("trains: expected one or more trains, got none")
    given = list(trains)
    for k, t in enumerate(given):
        single(f"trains[{k}]", t, entries=True)
        if type(t) is not type(given[0]):
            names = f"{type(given[0]).__name__} and {type(t).__name__}"
            raise TypeError(f"trains[{k}]: expected trains of one kind, got {names}")
        given[0], _ = together(given[0], t)
    for k, t in enumerate(given):
        given[k], _ = together(t, given[0])
        if sizes_of(given[k]) != sizes_of(given[0]):
            raise ValueError(f"trains[{k}]: expected shape {sizes_of(given[0])}, got {sizes_of(t)}")
    return given


@placed
def divide(
    x: Train, y: Train, *, tol: float, key: jax.Array, **options: Any
) -> tuple[Train, CrossInfo]:
    """Divides tensor trains entry by entry, by cross approximation; no entry of ``y`` may be zero.

    Args:
      x: TT or TTMatrix.
      y: of the same kind and shape; modes of size one are broadcast.
      tol: relative error asked for; see `cross`.
      key: of `jax.random`.
      options: others of `cross`.

    Returns:
      (train of the kind given, `CrossInfo`).

    Raises:
      ValueError: shapes differ, or a quotient that was looked at is not finite.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x = tt.rank_one([jnp.linspace(1.0, 2.0, 5)] * 3)
      >>> one, info = tt.divide(x, x, tol=1e-5, key=jax.random.key(0))
      >>> info.status, one.ranks
      ('converged', (1, 1, 1, 1))

    Source: ours; the quotients are what `cross` asks for, whose sources it names.
    """

    def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return a / b  # what is not finite, `cross` names with its multi-index

    return map(quotient, x, y, tol=tol, key=key, **options)


@placed
def power(
    x: Train, exponent: int, *, tol: float | None = None, rank: int | Sequence[int] | None = None
) -> Train:
    """Raises the entries of a tensor train to a power, as `numpy.power`, also ``x ** exponent``.

    Args:
      x: TT or TTMatrix.
      exponent: an integer of at least 0. Roots and other powers, 1/x among them, are for `map`:
        ``tt.map(np.sqrt, x, tol=…, key=…)``.
      tol: relative error allowed in each of the at most 2 log₂(exponent) products; outside jit.
      rank: TT-ranks of all products, static. With neither, the result is exact, and the TT-ranks
        are to that power.

    Returns:
      Train of the kind and shape of ``x``.

    Raises:
      ValueError: a negative exponent, or one that is no integer.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import tt
      >>> x = tt.rank_one([jnp.array([1.0, 2.0]), jnp.array([1.0, 3.0])])
      >>> print(tt.to_dense(x**3))
      [[  1.  27.]
       [  8. 216.]]

    Source: repeated squaring, D. Knuth, "The Art of Computer Programming" 2, section 4.6.3.
    """
    single("x", x)
    exponent = _check.integer("exponent", exponent, low=0)
    if exponent == 0:
        return ones_like(x)
    out: Any = None
    square = x
    while True:
        if exponent % 2:
            out = square if out is None else hadamard(out, square, tol=tol, rank=rank)
        exponent //= 2
        if not exponent:
            break
        square = hadamard(square, square, tol=tol, rank=rank)
    if out is x and (tol is not None or rank is not None):
        return round(x, tol=tol, rank=rank)
    return out
