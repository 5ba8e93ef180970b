"""Models that are dense, low-rank or tensorised from one definition, by the specs they are given.

`encoder` (BERT's encoder with a classifier), `code` (the same encoder as a masked language model)
and `dlrm` (recommendation from dense and categorical features). Their layers come from specs of
`tensorjax.nn`: `nn.Dense()` makes flax's own, `nn.LowRank(rank)`, `nn.TT(rank=…)` and the others
make factorised ones.
"""

from tensorjax.models import code, dlrm, encoder

__all__ = ["code", "dlrm", "encoder"]
