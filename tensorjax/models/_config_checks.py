"""Checks of models' configurations: sizes, heads, dropout rates, and specs of layers."""

import numbers
from typing import Any

import numpy as np

from tensorjax.nn import Spec


def check_spec(name: str, spec: Any) -> Spec:
    """Checks that a layer's option in a model's configuration is a layer specification."""
    if isinstance(spec, type) or not (hasattr(spec, "linear") and hasattr(spec, "embedding")):
        raise TypeError(
            f"{name}: expected a spec of tensorjax.nn, such as nn.Dense() or nn.TT(rank=30), "
            f"got {spec!r}"
        )
    return spec


def check_sizes(config: Any, names: tuple[str, ...], low: int = 1) -> None:
    """Checks a model's configuration: fields are integers of at least ``low``, else ValueError.

    NumPy integers are replaced by Python's.
    """
    for name in names:
        value = getattr(config, name)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < low:
            raise ValueError(f"{name}: expected an int of at least {low}, got {value!r}")
        if not isinstance(value, int):
            object.__setattr__(config, name, int(value))


def check_heads_and_dropout(config: Any) -> None:
    """Raises ValueError unless heads divide features and the dropout rate is in [0, 1)."""
    if config.features % config.heads:
        raise ValueError(
            f"heads: expected a divisor of features = {config.features}, got {config.heads}"
        )
    rate: float = config.dropout
    if not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ValueError(f"dropout: expected a rate in [0, 1), got {rate!r}")
