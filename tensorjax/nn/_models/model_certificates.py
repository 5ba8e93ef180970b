"""Certificates of a model's converted layers, and those of exported dense ones."""

import math
from typing import Any

import jax
import numpy as np
from flax import nnx

from tensorjax.nn._certificates import Certificate
from tensorjax.nn._certificates import certificates as measured
from tensorjax.nn._models.exact_weights import double
from tensorjax.nn._models.traversal import check_module, places


def certificates(model: object) -> dict[str, Certificate]:
    """Returns the error certificates of a model's converted layers, by their paths.

    After `tensorize` they are the errors of the truncations, after `detensorize` those of rounding
    the dense weights to their dtype. They are of the moment of
    conversion, whatever training did since; copies and checkpoints of a model have none.

    Args:
      model: any NNX module.

    Returns:
      {path of a layer: `Certificate`}, of shared layers once.

    Raises:
      TypeError: ``model`` is no NNX module.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> model = nnx.Sequential(nnx.Linear(64, 96, rngs=nnx.Rngs(0)))
      >>> nn.certificates(nn.tensorize(model, {"*": nn.TT(rank=8)}))["layers/0"].ranks
      (8, 8, 8)

    Source: ours.
    """
    check_module(model)
    layers = [  # lists of modules have no hash
        place for place in places(model).values() if type(place[0]).__hash__ is not None
    ]
    return {paths[0]: measured[layer] for layer, paths in layers if layer in measured}


def certify_export(new: Any, made: Any, exact: np.ndarray, given: Any) -> None:
    """Stores an exported dense layer's certificate: the rounding error of its weight.

    Args:
      new: the dense layer.
      made: its weight, as stored.
      exact: the weight in double precision.
      given: the layer that it was made from.
    """
    size = float(np.linalg.norm(exact))
    error = float(np.linalg.norm(double(made) - exact))

    def numbers(layer: Any) -> int:
        leaves = jax.tree.leaves(nnx.state(layer, nnx.Param))
        return sum(math.prod(leaf.shape) for leaf in leaves)

    measured[new] = Certificate(
        error=error / size if size else 0.0,
        bound=None,
        least=0.0,
        ranks=(),
        numbers_before=numbers(given),
        numbers=numbers(new),
    )
