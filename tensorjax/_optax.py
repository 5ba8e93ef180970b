"""Optimisers in Optax's form, which need no Optax."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Transformation(NamedTuple):
    """An optimiser in Optax's form, two pure functions, for where Optax is not installed.

    Attributes:
      init: ``init(params) -> state``.
      update: ``update(gradients, state, params, **extra) -> (updates, state)``.
    """

    init: Callable[..., Any]
    update: Callable[..., Any]


def transformation(init: Callable[..., Any], update: Callable[..., Any]) -> Any:
    """In Optax's own type where Optax is installed: its chains then pass extra arguments on."""
    try:
        import optax
    except ModuleNotFoundError:
        return Transformation(init, update)
    return optax.GradientTransformationExtraArgs(init, update)
