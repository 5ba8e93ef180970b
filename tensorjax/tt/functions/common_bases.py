"""Conversion of functional trains to common bases, by matrices applied to their coefficients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorjax._formats.trains import TT
from tensorjax.tt._arrays.mode_product import mode_product
from tensorjax.tt.functions.bases import Basis, same_interval
from tensorjax.tt.functions.function_train import FunctionTrain, checked


def in_dtype(matrix: np.ndarray, dtype: Any) -> np.ndarray:
    """Casts a matrix on basis coefficients to their dtype, for common bases and derivatives."""
    return matrix.astype(dtype)


def times_modes(t: TT, matrices: Mapping[int, np.ndarray]) -> TT:
    """Applies matrices, as those to common bases, to modes of a functional train's coefficients."""
    for k, matrix in matrices.items():
        t = mode_product(t, in_dtype(matrix, t.dtype), k)
    return t


def on_common_bases(f: FunctionTrain, g: FunctionTrain) -> tuple[tuple[Basis, ...], TT, TT]:
    """Converts two functional trains on one box to common bases, exactly."""
    check_boxes(f, g)
    bases: list[Basis] = []
    of_f: dict[int, np.ndarray] = {}
    of_g: dict[int, np.ndarray] = {}
    for k, (a, b) in enumerate(zip(f.bases, g.bases, strict=True)):
        basis, of_a, of_b = a.common(b)
        bases.append(basis)
        if basis != a:
            of_f[k] = of_a
        if basis != b:
            of_g[k] = of_b
    return tuple(bases), times_modes(f.coefficients, of_f), times_modes(g.coefficients, of_g)


def check_boxes(f: FunctionTrain, g: FunctionTrain) -> None:
    """Raises ValueError if function trains have no common bases: other boxes or kinds of basis."""
    if checked(f).ndim != checked(g, "g").ndim:
        raise ValueError(f"g: expected a function of {f.ndim} variables, got {g.ndim}")
    for k, (a, b) in enumerate(zip(f.bases, g.bases, strict=True)):
        same_interval(a, b, k)
