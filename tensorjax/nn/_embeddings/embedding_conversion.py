"""Conversion of dense embeddings to TT-matrices, with certified errors, and back."""

from collections.abc import Sequence
from typing import Any

from flax import nnx

from tensorjax.nn._embeddings.embedding import PaddedEmbed, TTEmbedding
from tensorjax.nn._embeddings.embedding_base import Embedding
from tensorjax.nn._parameters import MAX_BYTES
from tensorjax.nn._weight_conversion import (
    Certificate,
    Gates,
    certify,
    check_gates,
    compressed,
    dense_matrix,
    folded,
    paired,
    parameters,
    set_rest,
)


def from_embedding(
    layer: nnx.Embed,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    num_shape: Sequence[int] | None = None,
    feature_shape: Sequence[int] | None = None,
    order: int | None = None,
    padding_idx: int | None = None,
    gates: Gates = "singular values",
    max_bytes: int = MAX_BYTES,
    **options: Any,
) -> tuple[TTEmbedding, Certificate]:
    """Converts a dense embedding to a TT-matrix, by TT-SVD.

    The table is folded into modes, padded with zeros where they call for it, and truncated. Gates
    hold the singular values of their bonds, as those of `tensorjax.nn.from_linear` do.

    Args:
      layer: `flax.nnx.Embed` or `PaddedEmbed`, concrete.
      tol: ‖E − E'‖ ≤ tol·‖E‖, guaranteed up to rounding; chooses the ranks.
      rank: TT-ranks, as for `TTEmbedding`; with ``tol``, at most these.
      num_shape, feature_shape, order: as for `TTEmbedding`.
      padding_idx: as for `TTEmbedding`; its row of the dense table is taken to be zero. None is
        that of the layer, if it has one.
      gates: "singular values" or "ones".
      max_bytes: the largest dense array that may be made.
      **options: others of `TTEmbedding`: ``capacity``, ``out_of_range``.

    Returns:
      (`TTEmbedding` of the dtypes of ``layer``, `Certificate`).

    Raises:
      TypeError: not a `flax.nnx.Embed`, or under a JAX transformation.
      ValueError: neither tol nor rank, NaN or Inf in the table, factors or ranks that do not fit,
        or more than ``max_bytes``.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> dense = nn.to_embedding(nn.TTEmbedding(90, 32, rank=3, order=2, rngs=nnx.Rngs(0)))
      >>> layer, certificate = nn.from_embedding(dense, tol=1e-4, order=2)
      >>> layer.ranks, certificate.error < 1e-4
      ((3,), True)

    Source: I. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011), algorithm 1.
    """
    kinds, sides = (nnx.Embed, PaddedEmbed), ("num_embeddings", "features")
    table = dense_matrix(layer, kinds, "embedding", sides, tol, rank, max_bytes)
    check_gates(gates)
    if padding_idx is None:
        padding_idx = getattr(layer, "padding_idx", None)
    dtype = layer.embedding.dtype
    new = TTEmbedding(
        layer.num_embeddings,
        layer.features,
        rank=1,
        num_shape=num_shape,
        feature_shape=feature_shape,
        order=order,
        dtype=layer.dtype,
        param_dtype=dtype,
        padding_idx=padding_idx,
        rngs=nnx.Rngs(0),
        **options,
    )
    if padding_idx is not None:
        table[padding_idx] = 0
    x = paired(folded(table, new.num_shape, new.feature_shape, max_bytes))
    cores, weights = compressed(x, dtype, tol, rank, gates)
    pairs = zip(new.num_shape, new.feature_shape, strict=True)
    split = [c.reshape(len(c), *pair, -1) for c, pair in zip(cores, pairs, strict=True)]
    new.cores = parameters(split, dtype)
    set_rest(new, layer, weights)
    made = new.table(max_bytes=max_bytes)
    return new, certify(new, made, layer, table, tol, x.shape)


def to_embedding(layer: Embedding, *, max_bytes: int = MAX_BYTES) -> nnx.Embed:
    """Converts a compressed embedding of any format to a dense one with the same rows.

    Args:
      layer: `TTEmbedding`, `TuckerEmbedding` or `CPEmbedding`.
      max_bytes: the largest array that may be made, the padding of the modes included.

    Returns:
      `flax.nnx.Embed` of the layer's dtypes. The row of a padding id is zero, but would be trained,
      and ids out of range are handled as Flax does.

    Raises:
      TypeError: not a compressed embedding.
      ValueError: the table needs more than ``max_bytes``.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.to_embedding(nn.CPEmbedding(90, 32, rank=4, rngs=nnx.Rngs(0))).embedding.shape
      (90, 32)

    Source: ours.
    """
    if not isinstance(layer, Embedding):
        raise TypeError(
            "layer: expected a compressed embedding such as TTEmbedding, got "
            f"{type(layer).__name__}; linear layers are exported by tensorjax.nn.to_linear"
        )
    return dense_embedding(layer, layer.table(max_bytes=max_bytes), nnx.Embed)


def dense_embedding(layer: Embedding, table: Any, kind: Any, **options: Any) -> Any:
    """Builds a dense embedding of a kind with a compressed one's sizes and dtype, and a table."""
    return kind(
        layer.num_embeddings,
        layer.features,
        dtype=layer.dtype,
        param_dtype=table.dtype,
        embedding_init=lambda *_: table,
        rngs=nnx.Rngs(0),
        **options,
    )
