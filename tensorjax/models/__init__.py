"""Reference models (BERT encoder, code model, DLRM, GPT-2) with dense or tensorised layers.

`encoder` (BERT's encoder with a classifier), `code` (the same encoder as a masked language model),
`dlrm` (recommendation from dense and categorical features) and `gpt2` (the language model, whole or
split over devices). Their layers come from specs of `tensorjax.nn`: `nn.Dense()` makes flax's own,
`nn.LowRank(rank)`, `nn.TT(rank=…)` and the others make factorised ones.
"""

from tensorjax import _extras

with _extras.needed_by(__name__):
    from tensorjax.models import code, dlrm, encoder, gpt2

__all__ = ["code", "dlrm", "encoder", "gpt2"]
__dir__ = __all__.copy  # for `dir`: the public names alone
