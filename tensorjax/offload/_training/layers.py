"""Model as a list of layers: pure functions, and the parameter groups that each of them uses."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Activations = Literal["recompute", "keep", "offload"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """Layer of a model: a pure function, and the parameter groups that it uses.

    Attributes:
      name: for traces and messages.
      apply: pure function ``apply(params, x, batch, key) -> y``. ``params`` is a tuple with the
        parameters of each group in ``uses``; ``x`` what the layer before returned (None for the
        first), a pytree of arrays, of which gradients pass through the floating ones; ``batch`` a
        microbatch; ``key`` of `jax.random`, or None. The last layer returns a scalar, the mean loss
        over the rows of the microbatch, or, where rows count for different weights (padding, masks,
        targets that are ignored), a pair of scalars: the sum of the losses and their weight, such
        as the count of tokens. The batch's loss is then the sum of the sums over the sum of the
        weights, however it is cut into microbatches, which a mean of means would not be. Weights
        have no gradient. Layers that share one function share its compiled programs.
      uses: names of groups of parameters; ``(name,)`` if empty. Two layers may use one group, as
        the embedding and the logits of GPT-2 do.

    Raises:
      TypeError: ``uses`` is a string.
      ValueError: ``uses`` names a group twice.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import offload
      >>> double = offload.Layer(name="double", apply=lambda params, x, batch, key: 2 * x)
      >>> double.uses
      ('double',)
    """

    name: str
    apply: Callable[..., Any]
    uses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Sets ``uses`` to the layer's own name if empty; raises an error for an invalid layer."""
        if isinstance(self.uses, str):
            raise TypeError(f"uses: expected a tuple of names, got {self.uses!r}; give it in one")
        object.__setattr__(self, "uses", tuple(self.uses) or (self.name,))
        if len(set(self.uses)) < len(self.uses):
            raise ValueError(f"uses: expected each group once, got {self.uses}")


def check_layers(layers: Sequence[Layer], groups: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Checks that a model's list of layers fits the parameter groups; returns a tuple."""
    if not isinstance(groups, Mapping):
        raise TypeError(
            "params: expected a mapping from names of groups to pytrees, got "
            f"{type(groups).__name__}"
        )
    layers = tuple(layers)
    if not layers:
        raise ValueError("layers: expected at least one, whose result is the loss; got none")
    for layer in layers:
        if not isinstance(layer, Layer):
            raise TypeError(f"layers: expected offload.Layer, got {type(layer).__name__}")
    names = [layer.name for layer in layers]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"layers: expected each name once, got {twice!r} more than once")
    used = {group for layer in layers for group in layer.uses}
    if used != set(groups):
        missing, spare = sorted(used - set(groups)), sorted(set(groups) - used)
        raise ValueError(
            f"params: expected the groups that layers use, missing {missing}, not used {spare}"
        )
    for name in groups:
        if not name or name != name.strip() or "/" in name or name in (".", ".."):
            raise ValueError(
                f"params: expected names without slash or outer blanks, not of dots, got {name!r}"
            )
    return layers
