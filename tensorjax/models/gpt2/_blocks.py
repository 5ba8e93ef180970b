"""Building blocks of GPT-2: layer norm, dense and tensorised linear layers, transformer block."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax import linalg, nn
from tensorjax.models._initial_layers_and_loss import with_linear_spread
from tensorjax.models.gpt2._config import GPT2Config
from tensorjax.parallel import Layout

SPREAD = 0.02  # standard deviation of all of GPT-2's weights at first
_FLAT = 10.0  # from here on GELU is x, or 0, to the last digit of any dtype
EPSILON = 1e-5  # of its layer norms


class Norm(nnx.Module):
    """Layer norm of GPT-2's blocks over the features, for any layout of them on devices."""

    def __init__(self, features: int, param_dtype: Any) -> None:
        self.scale = nnx.Param(jnp.ones((features,), param_dtype))
        self.bias = nnx.Param(jnp.zeros((features,), param_dtype))

    def __call__(self, x: jax.Array, layout: Layout) -> jax.Array:
        return layout.norm(x, self.scale[...], self.bias[...], EPSILON)


class _Linear(nnx.Module):
    """Parameters of dense linear layers in GPT-2 blocks, kernel and bias; base class."""

    def __init__(self, shape: tuple[int, ...], spread: float, param_dtype: Any, rngs: nnx.Rngs):
        self.kernel = nnx.Param(_normal(rngs, shape, spread, param_dtype))
        self.bias = nnx.Param(jnp.zeros(shape[1:], param_dtype))


class Column(_Linear):
    """Dense linear layer of a GPT-2 block that widens features: kernel (features, …, wide)."""

    def __call__(self, x: jax.Array, layout: Layout) -> jax.Array:
        return layout.column(x, self.kernel[...], self.bias[...])


class Row(_Linear):
    """Dense linear layer of a GPT-2 block that maps back to features: kernel (wide, features)."""

    def __call__(self, x: jax.Array, layout: Layout) -> jax.Array:
        return layout.row(x, self.kernel[...], self.bias[...])


class Tensorised(nnx.Module):
    """Wrapper of a tensorised linear layer in a GPT-2 block, in place of a `Column` or a `Row`."""

    def __init__(self, layer: Any, fold: tuple[int, ...] | None) -> None:
        self.layer = layer
        self.fold = fold

    def __call__(self, x: jax.Array, layout: Layout) -> jax.Array:
        if self.fold is None:
            return layout.row(x, self.layer)
        return layout.column(x, self.layer, fold=self.fold)


class Block(nnx.Module):
    """Pre-LN transformer block of GPT-2: attention and MLP, with layer norms and residuals.

    Args:
      config: sizes.
      linear: spec of the four linear layers.
      dtype: of the computation.
      param_dtype: of the parameters.
      rngs: the stream "params" is drawn from.
    """

    def __init__(
        self, config: GPT2Config, linear: nn.Spec, *, dtype: Any, param_dtype: Any, rngs: nnx.Rngs
    ) -> None:
        d, h = config.features, config.hidden
        narrow = SPREAD / (2 * config.layers) ** 0.5  # two residual sums in every layer
        self.config = config
        self.norm1, self.norm2 = Norm(d, param_dtype), Norm(d, param_dtype)
        if isinstance(linear, nn.Dense):
            self.qkv = Column((d, 3, d), SPREAD, param_dtype, rngs)
            self.out = Row((d, d), narrow, param_dtype, rngs)
            self.up = Column((d, h), SPREAD, param_dtype, rngs)
            self.down = Row((h, d), narrow, param_dtype, rngs)
            return

        def layer(n: int, m: int, spread: float, fold: tuple[int, ...] | None) -> Tensorised:
            made = linear.linear(n, m, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
            return Tensorised(with_linear_spread(made, spread), fold)

        self.qkv = layer(d, 3 * d, SPREAD, (3, d))
        self.out = layer(d, d, narrow, None)
        self.up = layer(d, h, SPREAD, (h,))
        self.down = layer(h, d, narrow, None)

    def heads(self, x: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Computes a GPT-2 block's queries, keys, values, each (batch, length, heads, width)."""
        qkv = self.qkv(self.norm1(x, layout), layout)
        count = layout.local("heads", self.config.heads)
        q, k, v = jnp.split(qkv, 3, axis=-2)
        split = (*q.shape[:-2], count, q.shape[-1] // count)
        return q.reshape(split), k.reshape(split), v.reshape(split)

    def after(
        self,
        x: jax.Array,
        attended: jax.Array,
        layout: Layout,
        drop: Callable[[jax.Array, int], jax.Array],
    ) -> jax.Array:
        """Computes a GPT-2 block's output from its input and attention, by projection and MLP."""
        wide = attended.reshape(*attended.shape[:-2], -1)
        x = x + drop(self.out(wide, layout), 0)
        inner = gelu(self.up(self.norm2(x, layout), layout))
        return x + drop(self.down(inner, layout), 1)


def dropped(x: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    """Sets a share of activations in a GPT-2 block to zero at random, and rescales the others."""
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    wide = linalg.factor_dtype(x.dtype)  # 0.9 in bfloat16 is 0.8984
    kept = (x.astype(wide) / jnp.asarray(1 - rate, wide)).astype(x.dtype)
    return jnp.where(keep, kept, jnp.zeros_like(x))


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """Computes GELU in GPT-2 blocks in tanh form; the backward pass stores only the slope."""
    return jax.nn.gelu(x, approximate=True)


@gelu.defjvp
def _gelu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (dx,) = primals, tangents
    scale, cubic = (jnp.asarray(v, x.dtype) for v in ((2 / math.pi) ** 0.5, 0.044715))
    near = jnp.clip(x, -_FLAT, _FLAT)  # its square is finite in half precision too
    square = near * near
    t = jnp.tanh(scale * near * (1 + cubic * square))
    half = 0.5 * (1 + t)
    slope = half + 0.5 * near * (1 - t * t) * scale * (1 + 3 * cubic * square)
    return x * half, slope * dx


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], spread: float, dtype: Any) -> jax.Array:
    return (jax.random.normal(rngs.params(), shape, jnp.float32) * spread).astype(dtype)
