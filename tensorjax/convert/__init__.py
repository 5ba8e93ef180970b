"""Conversion of tensor trains to Tucker tensors and to MERAs, with error reports.

Example:
  >>> import jax
  >>> from tensorjax import convert, tt, tucker
  >>> factors = [jax.random.normal(k, (30, 2)) for k in jax.random.split(jax.random.key(0), 4)]
  >>> t = tucker.Tucker(tt.random(jax.random.key(1), (2, 2, 2, 2), rank=3), factors)
  >>> train = tt.TT([jax.numpy.einsum("ni,aib->anb", u, c) for u, c in zip(factors, t.core.cores)])
  >>> found, info = convert.tt_to_tucker(train, tol=1e-5)
  >>> found.ranks
  (2, 2, 2, 2)
"""

from tensorjax.convert._reports import CutInfo, LayerInfo, MERAInfo, TuckerInfo
from tensorjax.convert._tt_to_mera import tt_to_mera
from tensorjax.convert._tt_to_tucker import tt_to_tucker

__all__ = ["CutInfo", "LayerInfo", "MERAInfo", "TuckerInfo", "tt_to_mera", "tt_to_tucker"]
__dir__ = __all__.copy  # for `dir`: the public names alone
