"""Checks of tensors that are to be converted, and imports of optional packages."""

import importlib
from typing import Any

from tensorjax import _check
from tensorjax.mera import MERA
from tensorjax.tt import TT, TTMatrix
from tensorjax.tucker import Tucker

Format = TT | TTMatrix | Tucker | MERA


def optional(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this conversion needs the package {error.name!r}: pip install {install}",
            name=error.name,
        ) from error


def single(x: Any) -> None:
    """Checks that an argument is a single tensor that can be converted, or raises an error."""
    if not isinstance(x, TT | TTMatrix | Tucker | MERA):
        raise TypeError(f"x: expected a TT, TTMatrix, Tucker or MERA, got {type(x).__name__}")
    if _check.is_traced(x):
        raise TypeError(
            "x: expected concrete arrays, got traced ones; convert outside jit and vmap"
        )
    if isinstance(x, TT | TTMatrix):
        batched = x.cores[0].ndim != (3 if isinstance(x, TT) else 4)
    elif isinstance(x, Tucker):
        batched = x.factors[0].ndim != 2
    else:
        batched = x.top.ndim != (len(x.layers[-1].isometries) if x.layers else x.top.ndim)
    if batched:
        raise ValueError("x: expected one tensor, got a batch of them; convert them one by one")
