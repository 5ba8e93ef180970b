"""BERT encoder with a classifier on its first token.

Source: J. Devlin, M. Chang, K. Lee, K. Toutanova, "BERT: Pre-training of Deep Bidirectional
Transformers for Language Understanding", arXiv 1810.04805. The configuration of six encoders is
that of Yang et al., "CoMERA", arXiv 2405.14377.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax import nn
from tensorjax._typing import DTypeLike
from tensorjax.models._checks import (
    check_heads_and_dropout,
    check_ids,
    check_length,
    check_sizes,
    check_spec,
    rows_of,
)
from tensorjax.models._initial_layers_and_loss import cross_entropy, fresh_linear, with_spread

__all__ = ["Encoder", "EncoderConfig", "Trunk"]
__dir__ = __all__.copy  # for `dir`: the public names alone


_EPSILON = 1e-12  # BERT's, in its layer norms
_SPREAD = 0.02  # standard deviation of all of BERT's embeddings at first


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Configuration of a BERT encoder; by default CoMERA's six-block encoder for MNLI.

    Attributes:
      vocabulary: number of tokens.
      features: width of the model.
      layers: number of transformer blocks.
      heads: attention heads; they divide ``features``.
      hidden: width inside the MLP of each block.
      length: longest sequence; one learned position each.
      segments: segment ids, two for a pair of texts.
      classes: outputs of the classifier.
      dropout: rate, of embeddings, attention outputs, MLP outputs and of the pooled vector.
      padding: token id that is masked when no mask is given.
      sinusoids: positions begin as sines and cosines (Vaswani et al., arXiv 1706.03762, section
        3.5), still learned, instead of normal: a short training then finds neighbours sooner.
      linear_biases: attention begins near each token: head h of H adds −2^(−8h/H)·|i − j| to its
        logits (Press et al., arXiv 2108.12409, "ALiBi", symmetric as encoders have it). It has no
        parameters; a masked language model then finds its neighbours without a long plateau.
      norm_first: layer norms before attention and MLP ("pre-LN", with one more at the end) instead
        of after the residual sums, as BERT has them. The embeddings have their norm in both.

    Raises:
      ValueError: a size that is no positive integer, heads that do not divide the features, a rate
        outside [0, 1).

    Example:
      >>> from tensorjax.models.encoder import EncoderConfig
      >>> EncoderConfig(classes=2).layers, EncoderConfig.tiny().features
      (6, 32)
    """

    vocabulary: int = 30522
    features: int = 768
    layers: int = 6
    heads: int = 12
    hidden: int = 3072
    length: int = 512
    segments: int = 2
    classes: int = 3
    dropout: float = 0.1
    padding: int = 0
    sinusoids: bool = False
    linear_biases: bool = False
    norm_first: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError unless sizes and dropout rate of an encoder are valid."""
        names = ("vocabulary", "features", "layers", "heads", "hidden", "length", "segments")
        check_sizes(self, (*names, "classes"))
        check_heads_and_dropout(self)

    @classmethod
    def tiny(cls, **changes: Any) -> "EncoderConfig":
        """Returns a small encoder configuration for tests: two blocks of width 32.

        Args:
          **changes: fields of the configuration that replace these.

        Returns:
          `EncoderConfig` of 128 tokens, sequences of up to 16, without dropout.
        """
        sizes = {"vocabulary": 128, "features": 32, "layers": 2, "heads": 4, "hidden": 64}
        return cls(**{**sizes, "length": 16, "dropout": 0.0, **changes})


class _Attention(nnx.Module):
    """Multi-head self-attention of the BERT encoder, with a padding mask."""

    def __init__(self, config: EncoderConfig, linear: nn.Spec, **options: Any) -> None:
        width = config.features
        self.query = fresh_linear(linear, width, width, **options)
        self.key = fresh_linear(linear, width, width, **options)
        self.value = fresh_linear(linear, width, width, **options)
        self.out = fresh_linear(linear, width, width, **options)
        self.heads, self.linear_biases = config.heads, config.linear_biases

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        split = (*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        q, k, v = (layer(x).reshape(split) for layer in (self.query, self.key, self.value))
        bias = _linear_biases(x.shape[1], self.heads, q.dtype) if self.linear_biases else None
        y = jax.nn.dot_product_attention(q, k, v, bias, mask=mask[:, None, None, :])
        return self.out(y.reshape(x.shape))


class _Block(nnx.Module):
    """Transformer block of the BERT encoder: attention and MLP, with residuals and layer norms."""

    def __init__(self, config: EncoderConfig, linear: nn.Spec, **options: Any) -> None:
        self.attention = _Attention(config, linear, **options)
        self.up = fresh_linear(linear, config.features, config.hidden, **options)
        self.down = fresh_linear(linear, config.hidden, config.features, **options)
        self.norms = nnx.List([_norm(config, **options) for _ in range(2)])
        self.dropout = nnx.Dropout(config.dropout, rngs=options["rngs"])
        self.norm_first = config.norm_first

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        first, second = self.norms
        if self.norm_first:
            x = x + self.dropout(self.attention(first(x), mask))
            return x + self.dropout(self._mlp(second(x)))
        x = first(x + self.dropout(self.attention(x, mask)))
        return second(x + self.dropout(self._mlp(x)))

    def _mlp(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.gelu(self.up(x), approximate=False))


def _linear_biases(length: int, heads: int, dtype: Any) -> jax.Array:
    """Returns the encoder's ALiBi attention biases, linear in distance: (1, heads, n, n)."""
    slopes = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    distances = np.abs(np.arange(length)[:, None] - np.arange(length)[None])
    return jnp.asarray(-slopes[:, None, None] * distances, dtype)[None]


def _sinusoids(key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
    """Returns the encoder's sinusoidal position embeddings (length, features), spread as others."""
    length, features = shape
    rates = 1e4 ** (-np.arange(0, features, 2) / features)
    angles = np.arange(length)[:, None] * rates[None]
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :features]
    return jnp.asarray(2**0.5 * _SPREAD * waves, dtype)


def _norm(config: EncoderConfig, **options: Any) -> nnx.LayerNorm:
    return nnx.LayerNorm(config.features, epsilon=_EPSILON, **options)


class Trunk(nnx.Module):
    """BERT encoder without a head: embeddings and transformer blocks.

    Args:
      config: sizes.
      linear: spec of the linear layers of every block.
      embedding: spec of the token embedding. Positions and segments stay dense.
      dtype: of the computation; that of the parameters if None.
      param_dtype: of the parameters.
      rngs: streams "params" and "dropout".

    Raises:
      TypeError: a spec that is no layer specification of `tensorjax.nn`.
      ValueError: sizes or shapes that do not fit, by name.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> from tensorjax.models.encoder import EncoderConfig, Trunk
      >>> config = EncoderConfig.tiny()
      >>> trunk = Trunk(config, linear=nn.Dense(), embedding=nn.Dense(), rngs=nnx.Rngs(0))
      >>> len(trunk.blocks)                 # trunk(tokens) is (batch, length, features)
      2

    Source: Devlin et al., arXiv 1810.04805.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        linear: nn.Spec,
        embedding: nn.Spec,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        linear, embedding = check_spec("linear", linear), check_spec("embedding", embedding)
        self.config = config
        self.tokens = with_spread(
            embedding.embedding(config.vocabulary, config.features, **options), _SPREAD
        )
        spread = nnx.initializers.normal(_SPREAD)
        self.positions = nnx.Embed(
            config.length,
            config.features,
            embedding_init=_sinusoids if config.sinusoids else spread,
            **options,
        )
        self.segments = nnx.Embed(
            config.segments, config.features, embedding_init=spread, **options
        )
        self.norm = _norm(config, **options)
        self.last = nnx.data(_norm(config, **options) if config.norm_first else None)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.blocks = nnx.List([_Block(config, linear, **options) for _ in range(config.layers)])

    def __call__(
        self, tokens: jax.Array, segments: jax.Array | None = None, mask: jax.Array | None = None
    ) -> jax.Array:
        """Encodes tokens (batch, length) as vectors (batch, length, features).

        Args:
          tokens: integers in [0, vocabulary). Others are a ValueError; where ids are traced, as
            under `jax.jit`, nothing can raise, and the vectors of their row are NaN.
          segments: integers in [0, segments), or None for all zero; others are as for ``tokens``.
          mask: booleans, or integers as tokenizers give them, true where a token may be attended
            to; by default where it is not the padding. Positions that are masked do not change the
            others; their own vectors have no meaning.

        Returns:
          (batch, length, features).

        Raises:
          ValueError: ids out of range, shapes that differ, or sequences that are too long or empty.
        """
        tokens = check_ids("tokens", tokens, self.config.vocabulary, 2)
        length = check_length(tokens, self.config.length)
        mask = tokens != self.config.padding if mask is None else jnp.asarray(mask)
        mask = mask if mask.dtype == bool else mask != 0
        if segments is None:
            segments = jnp.zeros_like(tokens)
        segments = check_ids("segments", segments, self.config.segments, 2)
        for name, value in (("segments", segments), ("mask", mask)):
            if value.shape != tokens.shape:
                raise ValueError(
                    f"{name}: expected the shape of tokens, {tokens.shape}, got {value.shape}"
                )
        x = rows_of(self.tokens, tokens, self.config.vocabulary)
        x = x + rows_of(self.segments, segments, self.config.segments)
        x = x + self.positions(jnp.arange(length))[None]
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x, mask)
        return x if self.last is None else self.last(x)


class Encoder(nnx.Module):
    """Text classifier: a BERT encoder, and a linear layer on its pooled first token.

    Dense, low-rank and tensorised models are one definition with other specs. What is small stays
    dense whatever the specs: positions, segments, layer norms and the last layer (features ×
    classes). The pooler, features × features, follows ``linear``.

    Args:
      config: sizes.
      linear: spec of the linear layers.
      embedding, dtype, param_dtype, rngs: as for `Trunk`.

    Raises:
      TypeError: a spec that is no layer specification of `tensorjax.nn`.
      ValueError: sizes or shapes that do not fit, by name.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> from tensorjax.models.encoder import Encoder, EncoderConfig
      >>> model = Encoder(EncoderConfig.tiny(), linear=nn.TT(rank=4), embedding=nn.TT(rank=4),
      ...                 rngs=nnx.Rngs(0))
      >>> model.eval()                                        # no dropout
      >>> model(jnp.array([[2, 7, 11, 0], [2, 5, 0, 0]])).shape    # 0 is the padding
      (2, 3)

    Source: Devlin et al., arXiv 1810.04805: post-LN blocks, exact GELU, tanh pooler on the first
    token. Departures: ``norm_first`` may put the layer norms first, ``sinusoids`` begins
    the positions otherwise; there is no dropout on the attention weights.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        linear: nn.Spec = nn.Dense(),  # noqa: B008  (a frozen dataclass)
        embedding: nn.Spec = nn.Dense(),  # noqa: B008
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.trunk = Trunk(config, linear=linear, embedding=embedding, **options)
        self.pooler = fresh_linear(linear, config.features, config.features, **options)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.head = nnx.Linear(config.features, config.classes, **options)

    def __call__(
        self, tokens: jax.Array, segments: jax.Array | None = None, mask: jax.Array | None = None
    ) -> jax.Array:
        """Computes the encoder's class logits (batch, classes) from the pooled first token.

        Args:
          tokens: integers (batch, length) in [0, vocabulary), as for `Trunk`.
          segments: integers (batch, length) in [0, segments), or None for all zero.
          mask: booleans (batch, length), true where a token may be attended to; None masks padding.

        Returns:
          (batch, classes), unnormalised.
        """
        first = self.trunk(tokens, segments, mask)[:, 0]
        return self.head(self.dropout(jnp.tanh(self.pooler(first))))

    def loss(
        self,
        tokens: jax.Array,
        labels: jax.Array,
        segments: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        weights: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the encoder's weighted sum of losses −log p(label), and the sum of weights.

        Args:
          tokens, segments, mask: as for `Trunk`.
          labels: integers (batch,): −100 counts for none, others outside [0, classes) are a
            ValueError, or NaN where they are traced.
          weights: (batch,), of each label; all ones if None.

        Returns:
          Two scalars: Σ w·(−log p) and Σ w; their quotient is the mean loss.
        """
        labels = check_ids("labels", labels, self.head.out_features, 1, ignored=True)
        return cross_entropy(self(tokens, segments, mask), labels, weights)
