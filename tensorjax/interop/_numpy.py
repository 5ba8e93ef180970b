"""Conversion of tensors to and from plain lists and dictionaries of NumPy arrays."""

from typing import Any

import jax
import numpy as np

from tensorjax.interop._checks_and_imports import Format, single
from tensorjax.mera import MERA, Layer
from tensorjax.tt import TT, TTMatrix
from tensorjax.tucker import Tucker


def to_numpy(x: Format) -> Any:
    """Converts a tensor to NumPy arrays in lists and dictionaries, without package types.

    Args:
      x: one tensor, with concrete arrays.

    Returns:
      TT and TTMatrix: the list of cores. Tucker: the pair (core, list of factors), the core an
      array or a list of cores. MERA: {"layers": [{"disentanglers": [...], "isometries": [...],
      "cuts": [...]}, ...], "top": array}.

    Raises:
      TypeError: no tensor of these formats, or traced arrays. ValueError: a batch of tensors.

    Example:
      >>> from tensorjax import interop, tt
      >>> print(interop.to_numpy(tt.ones((2,)))[0].ravel())
      [1. 1.]

    Source: ours.
    """
    single(x)
    if isinstance(x, TT | TTMatrix):
        return [np.asarray(c) for c in x.cores]
    if isinstance(x, Tucker):
        dense = isinstance(x.core, jax.Array)
        core = np.asarray(x.core) if dense else [np.asarray(c) for c in x.core.cores]
        return core, [np.asarray(u) for u in x.factors]
    layers = [
        {
            "disentanglers": [np.asarray(u) for u in layer.disentanglers],
            "isometries": [np.asarray(w) for w in layer.isometries],
            "cuts": list(layer.wiring.cuts),
        }
        for layer in x.layers
    ]
    return {"layers": layers, "top": np.asarray(x.top)}


def from_numpy(data: Any) -> Format:
    """Converts the output of `to_numpy` to a tensor; its structure determines the format.

    Args:
      data: a list of cores (r, n, s) or (r, m, n, s); a pair (core, factors); or a dictionary with
        "layers" and "top".

    Returns:
      TT, TTMatrix, Tucker or MERA.

    Raises:
      TypeError: another structure, or integers. ValueError: shapes that do not fit.

    Example:
      >>> import numpy as np
      >>> from tensorjax import interop
      >>> interop.from_numpy([np.ones((1, 2, 3), np.float32), np.ones((3, 4, 1), np.float32)])
      TT(shape=(2, 4), ranks=(1, 3, 1), dtype=float32)

    Source: ours.
    """
    if isinstance(data, dict) and set(data) == {"layers", "top"}:
        if not isinstance(data["layers"], list | tuple):
            raise TypeError(f"data['layers']: expected a list, got {type(data['layers']).__name__}")
        for k, x in enumerate(data["layers"]):
            if not isinstance(x, dict) or not {"disentanglers", "isometries"} <= set(x):
                got = set(x) if isinstance(x, dict) else type(x).__name__
                raise ValueError(
                    f"data['layers'][{k}]: expected 'disentanglers' and 'isometries', got {got}"
                )
        layers = [Layer(x["disentanglers"], x["isometries"], x.get("cuts")) for x in data["layers"]]
        return MERA(layers, data["top"])
    if isinstance(data, list | tuple) and len(data) == 2 and isinstance(data[1], list | tuple):
        core, factors = data
        return Tucker(TT(core) if isinstance(core, list | tuple) else core, factors)
    if isinstance(data, list | tuple) and data and {np.ndim(c) for c in data} <= {3, 4}:
        return (TT if np.ndim(data[0]) == 3 else TTMatrix)(data)
    raise TypeError(
        "data: expected a list of cores (r, n, s) or (r, m, n, s), a pair (core, factors) or a "
        f"dictionary with 'layers' and 'top', got {type(data).__name__}"
    )
