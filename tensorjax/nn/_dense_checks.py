"""Checks that a dense Flax layer can be replaced by a tensorised one."""

from typing import Any, Literal, get_args

import jax
from flax import nnx
from flax.nnx.nn import dtypes

from tensorjax import _check

Gates = Literal["singular values", "ones"]


def check_plain(layer: Any) -> None:
    """Raises ValueError if a dense layer has options that a tensorised layer cannot keep."""
    general = isinstance(layer, nnx.LinearGeneral)
    weight = layer.embedding if isinstance(layer, nnx.Embed) else layer.kernel
    if type(weight) is not nnx.Param:
        raise ValueError(
            f"layer: expected its weight to be an nnx.Param, got {type(weight).__name__}, which "
            "the parameters of a tensorised layer would not be"
        )
    defaults = {
        "dot_general": None if general else jax.lax.dot_general,
        "dot_general_cls": None,
        "promote_dtype": dtypes.promote_dtype,
        "preferred_element_type": None,
        "conv_general_dilated": jax.lax.conv_general_dilated,
        "feature_group_count": 1,
        "mask": None,
    }
    for name, default in defaults.items():
        given = getattr(layer, name, default)
        if given is not default:
            raise ValueError(
                f"layer.{name}: expected the default, {default}, which is what a tensorised layer "
                f"replaces, got {given}"
            )


def concrete(parameter: Any) -> jax.Array:
    """Returns a dense layer's parameter as an array; TypeError if it is only a shape or traced."""
    value = parameter.get_value()
    if isinstance(value, jax.ShapeDtypeStruct):
        raise TypeError('layer: expected concrete parameters, got shapes; use init="random"')
    if _check.is_traced(value):
        raise TypeError(
            "layer: expected concrete parameters; convert the layer outside jit, vmap and grad"
        )
    return value


def check_gates(gates: str) -> None:
    """Checks the option ``gates`` of conversions of dense layers; raises ValueError if unknown."""
    _check.choice("gates", gates, get_args(Gates))
