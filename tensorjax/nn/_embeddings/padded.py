"""Dense embedding with a padding id whose row stays zero."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax import _check, _ids
from tensorjax._typing import ArrayLike, OutSharding


class PaddedEmbed(nnx.Embed):
    """Dense `flax.nnx.Embed` with a padding id, whose row is zero and has no gradient.

    The rows of ids outside [0, num_embeddings) are NaN; negative ones do not count from the end.

    Args:
      num_embeddings: rows.
      features: columns.
      padding_idx: the id.
      **options: those of `flax.nnx.Embed`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.Dense().embedding(5, 2, padding_idx=0, rngs=nnx.Rngs(0))
      >>> bool(layer(jnp.array([0, 3]))[0].any())
      False
    """

    def __init__(self, num_embeddings: int, features: int, *, padding_idx: int, **options: Any):
        super().__init__(num_embeddings, features, **options)
        self.padding_idx = _check.integer(
            "padding_idx", padding_idx, low=0, high=num_embeddings - 1
        )

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Looks up embedding rows: zeros for the padding id, NaN for ids out of range.

        Args:
          inputs: integers (…).
          out_sharding: of the rows, as for `flax.nnx.Embed`.

        Returns:
          (…, features).
        """
        inputs = jnp.asarray(inputs)
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            return super().__call__(inputs, out_sharding)  # Flax says what is wrong
        ids = _ids.as_int32(inputs, self.num_embeddings)
        valid = _ids.inside(ids, self.num_embeddings)
        rows = super().__call__(jnp.where(valid, ids, 0), out_sharding)
        rows = jnp.where((ids == self.padding_idx)[..., None], 0, rows)
        return _ids.or_nan(rows, valid)

    def attend(self, query: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Computes the logits for all embedding rows; that of the padding id is 0.

        Args:
          query: (…, features).
          out_sharding: of the logits, as for `flax.nnx.Embed`.

        Returns:
          (…, num_embeddings).
        """
        logits = super().attend(jnp.asarray(query), out_sharding)
        padding = jnp.arange(self.num_embeddings) == self.padding_idx
        lead = (1,) * (logits.ndim - 1)
        return jnp.where(padding.reshape(*lead, -1), jnp.zeros((), logits.dtype), logits)
