"""Gradient transformations in Optax's form that work without Optax installed."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Transformation(NamedTuple):
    """Optax-style optimiser (init and update functions) for where Optax is not installed.

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
    """Wraps init and update as Optax's gradient transformation type where Optax is installed."""
    try:
        import optax
    except ModuleNotFoundError:
        return Transformation(init, update)
    return optax.GradientTransformationExtraArgs(init, update)
