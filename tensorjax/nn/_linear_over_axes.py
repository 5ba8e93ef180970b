"""Tensorised linear layer over several axes, the replacement of `flax.nnx.LinearGeneral`."""

import math
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax._placement import like_first, placed_by, sharded
from tensorjax._typing import ArrayLike, OutSharding
from tensorjax.nn._linear_base import TensorLinear


class TensorLinearGeneral(nnx.Module):
    """Tensorised linear layer over several axes, in place of `flax.nnx.LinearGeneral`.

    `tensorize` puts it in the place of such layers, of which `flax.nnx.MultiHeadAttention` is made:
    the axes that are contracted are folded into one, and the outputs unfolded.

    Args:
      layer: from prod(in_features) to prod(out_features).
      in_features: sizes of the axes that are contracted.
      out_features: sizes of the axes that they become, the last ones.
      axis: which axes are contracted, in the order of ``in_features``.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=nnx.Rngs(0))
      >>> small = nn.tensorize(attention, {"*": nn.TT(rank=8)})
      >>> small.query.layer.ranks, small.query(jnp.ones((2, 7, 64))).shape
      ((8, 8, 8), (2, 7, 4, 16))
    """

    def __init__(
        self,
        layer: TensorLinear,
        in_features: tuple[int, ...],
        out_features: tuple[int, ...],
        axis: tuple[int, ...],
    ):
        self.layer = layer
        self.in_features = in_features
        self.out_features = out_features
        self.axis = axis

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Applies the linear layer over the input's axes ``axis``; the outputs come last.

        Args:
          inputs: with axes of the sizes ``in_features`` at ``axis``; all others are batch axes.
          out_sharding: of the output, as for `flax.nnx.LinearGeneral`; None leaves it to JAX.

        Returns:
          (batch axes, *out_features).

        Raises:
          ValueError: those axes have other sizes.
        """
        inputs = jnp.asarray(inputs)
        count = len(self.axis)
        axes = [a % inputs.ndim for a in self.axis] if inputs.ndim >= count else []
        if tuple(inputs.shape[a] for a in axes) != self.in_features:
            raise ValueError(
                f"inputs: expected sizes {self.in_features} at the axes {self.axis}, got shape "
                f"{inputs.shape}"
            )
        y = _applied(jnp.moveaxis(inputs, axes, range(-count, 0)), self.layer, count)
        y = y.reshape(*y.shape[:-1], *self.out_features)
        return sharded(y, out_sharding)


@placed_by(like_first)
def _applied(x: jax.Array, layer: Any, count: int) -> jax.Array:
    """Applies a linear layer to the last ``count`` axes of x, flattened to one."""
    return layer(x.reshape(*x.shape[:-count], math.prod(x.shape[-count:])))


def flat(layer: nnx.LinearGeneral) -> nnx.Linear:
    """Converts a dense `LinearGeneral`, stacked or not, to a `Linear` with flattened axes."""
    axes = len(layer.in_features) + len(layer.out_features)

    def folded(value: Any, shape: tuple[int, ...]) -> Any:
        if isinstance(value, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(shape, value.dtype)
        return value.reshape(shape)

    kernel, bias = layer.kernel, layer.bias
    lead = kernel.shape[:-axes]
    sides = (math.prod(layer.in_features), math.prod(layer.out_features))
    made = nnx.eval_shape(
        lambda: nnx.Linear(
            *sides,
            use_bias=bias is not None,
            dtype=layer.dtype,
            param_dtype=kernel.dtype,
            precision=layer.precision,
            rngs=nnx.Rngs(0),
        )
    )
    made.kernel = cast(nnx.Param, kernel.replace(folded(kernel.get_value(), (*lead, *sides))))
    if bias is not None:
        made.bias = cast(nnx.Param, bias.replace(folded(bias.get_value(), (*lead, sides[1]))))
    return made
