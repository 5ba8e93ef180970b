"""Gradient transformations in Optax's form, without Optax installed, and the check of one."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Transformation(NamedTuple):
    """Optimiser in Optax's form, a pair of init and update, for use without Optax.

    Attributes:
      init: ``init(params) -> state``.
      update: ``update(gradients, state, params, **extra) -> (updates, state)``.

    Example:
      >>> from tensorjax import mera
      >>> halve = mera.Transformation(lambda p: (), lambda g, state, p=None: (g / 2, state))
      >>> halve.update(3.0, halve.init(1.0))
      (1.5, ())

    Source: the form of Optax's GradientTransformation.
    """

    init: Callable[..., Any]
    update: Callable[..., Any]


def transformation(init: Callable[..., Any], update: Callable[..., Any]) -> Any:
    """Builds an Optax gradient transformation, or a `Transformation` if Optax is missing."""
    try:
        import optax
    except ModuleNotFoundError:
        return Transformation(init, update)
    return optax.GradientTransformationExtraArgs(init, update)


def check_optimizer(name: str, value: Any) -> None:
    """Raises TypeError unless an argument is an optimiser in Optax's form."""
    if not all(callable(getattr(value, method, None)) for method in ("init", "update")):
        call = f"; call it, as in {name}=optax.adam(1e-3)" if callable(value) else ""
        raise TypeError(
            f"{name}: expected a transformation as Optax makes them, with init and update, got "
            f"{type(value).__name__}{call}"
        )
