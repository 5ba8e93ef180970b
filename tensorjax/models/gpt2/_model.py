"""GPT-2 as a Flax NNX module: logits and loss, on one device or sharded by a layout."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from tensorjax import _check, nn
from tensorjax._typing import DTypeLike
from tensorjax.models._checks import check_ids, check_spec
from tensorjax.models._checks import check_length as _check_length
from tensorjax.models._initial_layers_and_loss import checked_weights
from tensorjax.models.gpt2._attention import attend
from tensorjax.models.gpt2._blocks import SPREAD, Block, Norm, dropped
from tensorjax.models.gpt2._config import GPT2Config
from tensorjax.parallel import Layout, Single

# Logical axes of all dense parameters, by the last names of their paths; a layout maps them to a
# mesh. Those of a block have the axis "layer" before them.
_AXES: dict[tuple[str, ...], tuple[str | None, ...]] = {
    ("tokens",): ("vocab", "embed"),
    ("positions",): ("position", "embed"),
    ("scale",): ("embed",),
    ("bias",): ("embed",),
    ("qkv", "kernel"): ("embed", "qkv", "heads"),
    ("qkv", "bias"): ("qkv", "heads"),
    ("out", "kernel"): ("heads", "embed"),
    ("up", "kernel"): ("embed", "mlp"),
    ("up", "bias"): ("mlp",),
    ("down", "kernel"): ("mlp", "embed"),
}

_SINGLE = Single()  # one object, as programs are kept by their layout


class GPT2(nnx.Module):
    """GPT-2 language model of any size, with dense or tensorised linear layers.

    Tokens and learned positions are embedded, go through pre-LN blocks of causal attention and an
    MLP with GELU in its tanh form, and a last layer norm; logits are products with the token
    table. The parameters of all blocks are stacked: each has a leading axis of ``layers``, over
    which `jax.lax.scan` goes. So the program is compiled for one block, however many there are, or
    for a few of them (`GPT2Config.unroll`).

    Tensorised layers are stacked too, their initialisation mapped by `jax.vmap`. That works
    because all layers of one kind have the same ranks; ranks that differ from layer to layer, as
    `tensorjax.optim.shrink` makes them, would need a loop that is not rolled, and a program that
    grows with the layers.

    Inside, the vocabulary is padded to a multiple of 128 (`GPT2Config.padded`), with rows of zeros
    that no logit comes from and no gradient goes to.

    Args:
      config: sizes.
      linear: spec of the linear layers: `nn.Dense()`, or a format of `tensorjax.nn`, such as
        `nn.TT(rank=30)` or `nn.LowRank(16)`. Embeddings and layer norms are dense always.
      dtype: of the computation, such as ``jnp.bfloat16``; that of the parameters if None. Layer
        norms, softmax and losses are computed in single precision in any case.
      param_dtype: of the parameters.
      attention: implementation of `jax.nn.dot_product_attention`: "xla", "cudnn" (fused, half
        precision on NVIDIA only), or None to leave it to JAX.
      rngs: the stream "params" is drawn from.

    Attributes:
      config: sizes.
      tokens: parameter (padded, features).
      positions: parameter (length, features).
      blocks: all blocks in one, every parameter with a leading axis of ``layers``.
      norm: the last layer norm.

    Raises:
      TypeError: a spec that is no layer specification of `tensorjax.nn`.
      ValueError: shapes or ids that do not fit, by name.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> from tensorjax.models.gpt2 import GPT2, GPT2Config
      >>> model = GPT2(GPT2Config.tiny(), linear=nn.TT(rank=4), rngs=nnx.Rngs(0))
      >>> tokens = jnp.array([[3, 1, 4, 1, 5]])
      >>> model(tokens).shape
      (1, 5, 120)
      >>> total, count = model.loss(tokens[:, :-1], tokens[:, 1:])
      >>> round(float(total / count)), float(count)        # log 120 = 4.8
      (5, 4.0)

    Source: Radford et al. (2019); initialisation and pre-LN as there in section 2.3. Departures:
    dropout is not applied to the attention weights, for fused attention has none.
    """

    def __init__(
        self,
        config: GPT2Config,
        *,
        linear: nn.Spec = nn.Dense(),  # noqa: B008  (a frozen dataclass)
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        attention: str | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        linear = check_spec("linear", linear)
        _check.choice("attention", attention, (None, "xla", "cudnn"))
        self.config = config
        self.attention = attention
        self.dtype = jnp.dtype(param_dtype if dtype is None else dtype)
        for name, value in (("dtype", self.dtype), ("param_dtype", jnp.dtype(param_dtype))):
            if not jnp.issubdtype(value, jnp.floating):
                raise TypeError(f"{name}: expected a floating-point type, got {value}")
        rows = _normal(rngs, (config.vocabulary, config.features), param_dtype)
        self.tokens = nnx.Param(jnp.pad(rows, ((0, config.padded - config.vocabulary), (0, 0))))
        self.positions = nnx.Param(_normal(rngs, (config.length, config.features), param_dtype))

        def block(rngs: nnx.Rngs) -> Block:
            return Block(config, linear, dtype=self.dtype, param_dtype=param_dtype, rngs=rngs)

        self.blocks = _stacked(block, jax.random.split(rngs.params(), config.layers))
        self.norm = Norm(config.features, param_dtype)

    def __call__(
        self, tokens: jax.Array, *, layout: Layout | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """Computes the GPT-2 model's next-token logits (batch, length, vocab), float32 at least.

        Args:
          tokens: integers (batch, length) in [0, vocabulary). What follows one out of range is NaN
            where they are traced, and a ValueError elsewhere.
          layout: of `tensorjax.parallel`, where parameters and tokens are the blocks of one device
            inside `jax.shard_map`; the logits are then those of that device's block of the batch.
            None where nothing is split.
          key: of `jax.random`, for dropout; None computes without.

        Returns:
          (batch, length, vocabulary), or that device's block of it.

        Raises:
          ValueError: ids out of range, or sequences longer than ``config.length`` or empty.
        """
        layout = _SINGLE if layout is None else layout
        logits = layout.logits(self.hidden(tokens, layout=layout, key=key), self.tokens[...])
        return layout.gather(logits, self.config.vocabulary)

    def loss(
        self,
        tokens: jax.Array,
        targets: jax.Array,
        weights: jax.Array | None = None,
        *,
        layout: Layout | None = None,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Computes a GPT-2 model's weighted sum of losses, −log p(target), and the sum of weights.

        Their quotient is the mean loss. Two sums can be added over batches and devices, of
        whatever weights; a mean cannot. Where no target counts both are 0, as is the gradient of
        the first: divide by ``jnp.where(count > 0, count, 1)`` where that can happen, for 0 / 0
        and its gradient are NaN.

        Args:
          tokens: integers (batch, length). Out of range they are a ValueError; where they are
            traced, as under `jax.jit`, nothing can raise, and the sum is NaN under all layouts.
          targets: integers (batch, length): the tokens that come next. −100 counts for none; others
            out of range are as for ``tokens``.
          weights: (batch, length), of each target; all ones if None.
          layout, key: as for a call.

        Returns:
          Two scalars: Σ w·(−log p) and Σ w.

        Raises:
          ValueError: ids out of range, shapes that differ, or sequences that are too long or empty.
        """
        layout = _SINGLE if layout is None else layout
        tokens = check_ids("tokens", tokens, self.config.vocabulary, 2)
        targets = check_ids("targets", targets, self.config.vocabulary, 2, ignored=True)
        weights = checked_weights(targets, weights, "tokens", tokens.shape)
        x = self.hidden(tokens, layout=layout, key=key)
        logits = layout.logits(x, self.tokens[...])
        return layout.cross_entropy(logits, targets, weights, self.config.vocabulary)

    def hidden(
        self, tokens: jax.Array, *, layout: Layout | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """Computes a GPT-2 model's hidden states (batch, length, features), after the last norm.

        Args:
          tokens, layout, key: as for a call.

        Returns:
          (batch, length, features), of the type ``dtype`` of the model.

        Raises:
          ValueError: ids out of range, or sequences longer than ``config.length`` or empty.
        """
        layout, config = _SINGLE if layout is None else layout, self.config
        tokens = check_ids("tokens", tokens, config.vocabulary, 2)
        length = check_length(tokens, config)
        options = {"vocabulary": config.vocabulary, "dtype": self.dtype}
        x = layout.embed(self.tokens[...], tokens, **options)
        x = x + layout.positions(self.positions[...], length, dtype=self.dtype)
        drop = _dropping(config, layout)
        keys = (
            None if key is None or not config.dropout else jax.random.split(key, config.layers + 1)
        )
        x = drop(x, None if keys is None else keys[0])
        graph, params = nnx.split(self.blocks)

        keys = None if keys is None else keys[1:]
        body, unroll = _loop_body(graph, config, self.attention, layout)
        x, _ = jax.lax.scan(body, x, (params, keys), unroll=unroll)
        return self.norm(x, layout)

    def axes(self) -> nnx.State:
        """Returns logical axis names of the model's parameters, by which a layout shards them.

        Returns:
          A pytree like ``nnx.state(model, nnx.Param)``, its leaves `jax.sharding.PartitionSpec` of
          the names "vocab", "position", "embed", "heads", "mlp", "qkv", "layer" and None. The
          cores of tensorised layers have no names: they are small, and lie on all devices, which
          share tokens or the layers' modes among them (`Layout.column`).

        Example:
          >>> from flax import nnx
          >>> from tensorjax.models.gpt2 import GPT2, GPT2Config
          >>> model = GPT2(GPT2Config.tiny(), rngs=nnx.Rngs(0))
          >>> tuple(model.axes()["blocks"]["up"]["kernel"].get_value())
          ('layer', 'embed', 'mlp')
        """
        return jax.tree_util.tree_map_with_path(axes_of, nnx.state(self, nnx.Param))

    @property
    def numbers(self) -> int:
        """Number of parameters of a GPT-2 model, without the padding of the vocabulary."""
        held = sum(math.prod(x.shape) for x in jax.tree.leaves(nnx.state(self, nnx.Param)))
        return held - (self.config.padded - self.config.vocabulary) * self.config.features


@functools.lru_cache(maxsize=32)
def _loop_body(
    graph: Any, config: GPT2Config, attention: str | None, layout: Layout
) -> tuple[Callable[..., Any], int]:
    """Builds the body of a GPT-2 model's scan over its blocks, and how many blocks it unrolls.

    Cached: outside of `jax.jit` a scan is compiled once for each body.
    """
    drop = _dropping(config, layout)

    def body(x: jax.Array, inputs: Any) -> tuple[jax.Array, None]:
        params, key = inputs
        block = nnx.merge(graph, params)
        q, k, v = block.heads(x, layout)
        y = attend(q, k, v, attention, is_causal=True)

        def numbered(y: jax.Array, number: int) -> jax.Array:
            return drop(y, None if key is None else jax.random.fold_in(key, number))

        return block.after(x, y, layout, numbered), None

    unroll = _unroll(config, layout)
    return _remat(body, config, unroll), unroll


def _dropping(config: GPT2Config, layout: Layout) -> Callable[[jax.Array, Any], jax.Array]:
    """Returns a GPT-2 model's dropout of activations by a key, none if that is None."""

    def drop(x: jax.Array, key: Any) -> jax.Array:
        return x if key is None else dropped(x, layout.key(key, x), config.dropout)

    return drop


def check_length(tokens: jax.Array, config: GPT2Config) -> int:
    """Checks the tokens given to a GPT-2 model; returns the length, ValueError if 0 or too long."""
    if not tokens.shape[0]:
        raise ValueError(
            f"tokens: expected at least one row of them, got shape {tokens.shape}; leave out "
            "empty batches"
        )
    return _check_length(tokens, config.length)


def _normal(rngs: nnx.Rngs, shape: tuple[int, int], dtype: Any) -> jax.Array:
    return (jax.random.normal(rngs.params(), shape, jnp.float32) * SPREAD).astype(dtype)


def _stacked(build: Callable[[nnx.Rngs], Block], keys: jax.Array) -> Block:
    """Builds a GPT-2 model's blocks all at once, as one block of stacked parameters."""
    graph = nnx.split(nnx.eval_shape(lambda: build(nnx.Rngs(0))))[0]
    params = jax.vmap(lambda key: nnx.split(build(nnx.Rngs(params=key)))[1])(keys)
    return nnx.merge(graph, params)


def _unroll(config: GPT2Config, layout: Layout) -> int:
    """Returns how many blocks the scan of a GPT-2 model unrolls in each step."""
    if config.unroll is not None:
        return config.unroll
    if jax.default_backend() != "cpu" or config.remat != "none" or layout.mesh is not None:
        return 1
    return config.layers if config.layers <= 12 else 1


def _remat(body: Callable[..., Any], config: GPT2Config, unroll: int) -> Callable[..., Any]:
    if config.remat == "none":
        return body
    policies = jax.checkpoint_policies
    policy = policies.dots_with_no_batch_dims_saveable if config.remat == "dots" else None
    # A loop keeps the recomputation from being merged with the first computation by itself.
    return jax.checkpoint(body, policy=policy, prevent_cse=unroll > 1)


def axes_of(path: Any, leaf: jax.Array) -> PartitionSpec:
    """Returns a GPT-2 parameter's logical axes as a `PartitionSpec`, from its path in the model."""
    names = tuple(str(entry.key) for entry in path if hasattr(entry, "key"))
    stack = ("layer",) if names[0] == "blocks" else ()
    if "layer" in names:  # of a tensorised one
        return PartitionSpec(*stack, *(None,) * (leaf.ndim - len(stack)))
    return PartitionSpec(*stack, *(_AXES.get(names[-2:]) or _AXES[names[-1:]]))
