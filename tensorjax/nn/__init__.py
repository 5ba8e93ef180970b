"""Flax NNX linear layers and embeddings with weights in TT, TT-matrix, Tucker or CP format.

Names by task:

  whole models   tensorize detensorize choose Choice summary certificates Certificate from_linen
  specs          TT TTMatrix Tucker CP LowRank Dense Spec; factor folds features into modes
  linear         TTLinear TTMatrixLinear TuckerLinear CPLinear TensorLinear
                 TensorLinearGeneral from_linear to_linear
  embeddings     TTEmbedding TuckerEmbedding CPEmbedding Embedding PaddedEmbed
                 from_embedding to_embedding
  convolutions   TTConv TuckerConv CPConv LowRankConv TensorConv from_conv to_conv
  adapters       adapt merge_adapters Adapted Frozen
  plans          LayerPlan LookupPlan ConvPlan Candidate

``help(nn.tensorize)`` describes a function, ``help(nn.TTLinear)`` a layer with its methods.

They replace `flax.nnx.Linear` and `flax.nnx.Embed`, one by one or in a whole model by one call:

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from tensorjax import nn
    >>> rngs = nnx.Rngs(0)
    >>> model = nnx.Sequential(nnx.Embed(1000, 96, rngs=rngs), nnx.Linear(96, 384, rngs=rngs))
    >>> small = nn.tensorize(model, {"*": nn.TT(rank=8)}, init="random", rngs=rngs)
    >>> small(jnp.array([[5, 7, 999]])).shape
    (1, 3, 384)
    >>> print(nn.summary(small))
    path      layer        features   modes             ranks      dense  parameters  ratio
    layers/0  TTEmbedding  1000 → 96  10·10·10 | 6·4·4  8 8       96,000       3,376   28.4
    layers/1  TTLinear     96 → 384   12·8 | 6·8·8      8 8 8 8   37,248       1,984   18.8
    all                                                          133,248       5,360   24.9

`TTLinear`, `TTMatrixLinear`, `TuckerLinear` and `CPLinear` plan their products for the batch size,
forward and backward together (`TTLinear.plan`); `factor` chooses how features are folded into
modes; `from_linear` and `to_linear` convert; `Dense`, `LowRank`, `TT`, `TTMatrix`, `Tucker` and
`CP` are specs, which say how to build layers of any size. `TTEmbedding`, `TuckerEmbedding` and
`CPEmbedding` replace `flax.nnx.Embed`, with `from_embedding` and `to_embedding`. In
`flax.nnx.MultiHeadAttention` `TensorLinearGeneral` takes the place of linear layers over several
axes. `tensorjax.optim` finds the ranks in training.
"""

from tensorjax import _extras

with _extras.needed_by(__name__):
    from tensorjax.nn._contraction_plans import Candidate, LayerPlan
    from tensorjax.nn._convolution_base import ConvPlan, TensorConv
    from tensorjax.nn._convolution_conversion import from_conv, to_conv
    from tensorjax.nn._convolution_layers import CPConv, LowRankConv, TTConv, TuckerConv
    from tensorjax.nn._embeddings.embedding import (
        CPEmbedding,
        PaddedEmbed,
        TTEmbedding,
        TuckerEmbedding,
    )
    from tensorjax.nn._embeddings.embedding_base import Embedding
    from tensorjax.nn._embeddings.embedding_conversion import from_embedding, to_embedding
    from tensorjax.nn._embeddings.lookup_plan import LookupPlan
    from tensorjax.nn._linear_base import TensorLinear
    from tensorjax.nn._linear_conversion import from_linear, to_linear
    from tensorjax.nn._linear_layers import (
        CPLinear,
        TensorLinearGeneral,
        TTLinear,
        TTMatrixLinear,
        TuckerLinear,
    )
    from tensorjax.nn._mode_factors import factor
    from tensorjax.nn._models.adapters import Adapted, Frozen, adapt, merge_adapters
    from tensorjax.nn._models.detensorize import detensorize
    from tensorjax.nn._models.linen_models import from_linen
    from tensorjax.nn._models.spec_choice import Choice, choose
    from tensorjax.nn._models.summary import certificates, summary
    from tensorjax.nn._models.tensorize import tensorize
    from tensorjax.nn._specs import CP, TT, Dense, LowRank, Spec, TTMatrix, Tucker
    from tensorjax.nn._weight_conversion import Certificate

__all__ = [
    "CP",
    "TT",
    "Adapted",
    "CPConv",
    "CPEmbedding",
    "CPLinear",
    "Candidate",
    "Certificate",
    "Choice",
    "ConvPlan",
    "Dense",
    "Embedding",
    "Frozen",
    "LayerPlan",
    "LookupPlan",
    "LowRank",
    "LowRankConv",
    "PaddedEmbed",
    "Spec",
    "TTConv",
    "TTEmbedding",
    "TTLinear",
    "TTMatrix",
    "TTMatrixLinear",
    "TensorConv",
    "TensorLinear",
    "TensorLinearGeneral",
    "Tucker",
    "TuckerConv",
    "TuckerEmbedding",
    "TuckerLinear",
    "adapt",
    "certificates",
    "choose",
    "detensorize",
    "factor",
    "from_conv",
    "from_embedding",
    "from_linear",
    "from_linen",
    "merge_adapters",
    "summary",
    "tensorize",
    "to_conv",
    "to_embedding",
    "to_linear",
]
__dir__ = _extras.names(__name__, __all__)  # `help` prints the table of the docstring
