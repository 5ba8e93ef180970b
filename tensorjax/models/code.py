"""BERT-like masked language model of source code, on the encoder of `encoder`.

Source: J. Devlin et al., arXiv 1810.04805 (masked language model); Z. Feng et al., "CodeBERT",
arXiv 2002.08155, whose compression Yang et al. report in "CoMERA", arXiv 2405.14377.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax import _ids, nn
from tensorjax._typing import DTypeLike
from tensorjax.models._checks import check_ids
from tensorjax.models._initial_layers_and_loss import cross_entropy, fresh_linear
from tensorjax.models.encoder import EncoderConfig, Trunk

__all__ = ["CodeModel"]
__dir__ = __all__.copy  # for `dir`: the public names alone


class CodeModel(nnx.Module):
    """Masked language model of code, whose output layer is tied to the token embedding.

    Logits are x ↦ E GELU-LN(x) + b with the table E of the embedding, tensorised or not, so that
    no second vocabulary × features matrix is stored.

    Args:
      config: sizes; ``classes`` is not used.
      linear: spec of the linear layers, that of the head included.
      embedding, dtype, param_dtype, rngs: as for `Trunk`.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> from tensorjax.models.code import CodeModel
      >>> from tensorjax.models.encoder import EncoderConfig
      >>> model = CodeModel(EncoderConfig.tiny(), linear=nn.TT(rank=4), embedding=nn.TT(rank=4),
      ...                   rngs=nnx.Rngs(0))
      >>> tokens, masked = jnp.array([[2, 7, 1, 9]]), jnp.array([[2]])
      >>> model(tokens, masked).shape          # logits at position 2 only
      (1, 1, 128)

    Source: Devlin et al., arXiv 1810.04805, section 3.1 and the released head: linear layer, GELU,
    layer norm, tied embedding, bias.
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
        self.transform = fresh_linear(linear, config.features, config.features, **options)
        self.norm = nnx.LayerNorm(config.features, epsilon=1e-12, **options)
        self.bias = nnx.Param(jnp.zeros((config.vocabulary,), param_dtype))

    def __call__(
        self, tokens: jax.Array, positions: jax.Array | None = None, mask: jax.Array | None = None
    ) -> jax.Array:
        """Computes the code model's logits of tokens at given positions, (batch, count, vocab).

        Args:
          tokens: integers (batch, length), some of them replaced.
          positions: integers (batch, count), where logits are wanted; all positions if None. The
            output layer is the most expensive, so ask for the masked positions alone. Those outside
            [0, length) are a ValueError; where they are traced, their logits are NaN.
          mask: as in `Trunk`.

        Returns:
          (batch, count, vocabulary), unnormalised.

        Raises:
          ValueError: ids, positions or shapes that do not fit, by name.
        """
        x = self.trunk(tokens, mask=mask)
        if positions is not None:
            positions = check_ids("positions", positions, x.shape[1], 2)
            if positions.shape[0] != x.shape[0]:
                raise ValueError(
                    f"positions: expected shape ({x.shape[0]}, count), one row for every row of "
                    f"tokens, got {positions.shape}"
                )
            x = _rows_at(x, positions)
        x = self.norm(jax.nn.gelu(self.transform(x), approximate=False))
        logits = self.trunk.tokens.attend(x)
        return logits + self.bias[...].astype(logits.dtype)[None, None]

    def loss(
        self,
        tokens: jax.Array,
        targets: jax.Array,
        positions: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        weights: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the code model's weighted sum of masked-token losses, and the sum of weights.

        Args:
          tokens, positions, mask: as for a call.
          targets: integers (batch, count), the true tokens: −100 counts for none, others outside
            [0, vocabulary) are a ValueError, or NaN where they are traced.
          weights: (batch, count), of each target; all ones if None.

        Returns:
          Two scalars: Σ w·(−log p) and Σ w; their quotient is the mean loss.

        Raises:
          ValueError: ids, positions or shapes that do not fit, by name.
        """
        targets = check_ids("targets", targets, self.trunk.config.vocabulary, 2, ignored=True)
        return cross_entropy(self(tokens, positions, mask), targets, weights)


def _rows_at(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Gathers the vectors of the code model at ``positions``, as (batch, count, features)."""
    length = x.shape[1]
    places = _ids.as_int32(positions, length)
    valid = _ids.inside(places, length)
    rows = jnp.take_along_axis(x, jnp.where(valid, places, 0)[:, :, None], axis=1)
    return _ids.or_nan(rows, valid)
