"""Gradient transformations in Optax's form that work without Optax installed."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Transformation(NamedTuple):
    """Optax-style optimiser (init and update functions) for where Optax is not installed.

    Attributes:
      init: ``init(params) -> state``.
      update: ``update(gradients, state, params, **extra) -> (updates, state)``.
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
