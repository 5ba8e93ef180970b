"""Conversion of dense convolutions to tensorised ones, with measured errors, and back."""

import string
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from flax import nnx

from tensorjax import _check
from tensorjax.contract._numpy_einsum import numpy_einsum
from tensorjax.nn._convolution_base import TensorConv
from tensorjax.nn._convolution_layers import CPConv, LowRankConv, TTConv, TuckerConv
from tensorjax.nn._parameters import MAX_BYTES
from tensorjax.nn._weight_conversion import (
    Certificate,
    Gates,
    certify,
    check_gates,
    check_plain,
    compressed,
    dense_parameter,
    parameters,
    set_rest,
    set_tucker,
)

ConvFormat = Literal["tt", "tucker", "cp", "low rank"]
_CLASSES: dict[str, type[TensorConv]] = {
    "tt": TTConv,
    "tucker": TuckerConv,
    "cp": CPConv,
    "low rank": LowRankConv,
}
# Sweeps of alternating least squares at most, and the change of the error at which they end.
_SWEEPS, _STALLED = 200, 1e-6


def from_conv(
    layer: nnx.Conv,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    format: ConvFormat = "tucker",
    gates: Gates = "singular values",
    max_bytes: int = MAX_BYTES,
) -> tuple[TensorConv, Certificate]:
    """Converts a dense convolution to a tensorised one, by TT-SVD, ST-HOSVD or CP-ALS.

    Strides, padding, dilation, bias, dtype, param_dtype and precision are kept.

    Args:
      layer: `flax.nnx.Conv`, concrete, with one feature group and no mask.
      tol: ‖K − K'‖ ≤ tol·‖K‖, guaranteed up to rounding; chooses the ranks. Not for "cp".
      rank: ranks, as for the layers; with ``tol``, at most these.
      format: "tt", "tucker", "cp" or "low rank".
      gates: of a train, "singular values" or "ones", as for `from_linear`; else they are ones.
      max_bytes: the largest dense array that may be made.

    Returns:
      (layer of the format, `Certificate`). A CP certificate has no ``least``: none
      is known.

    Raises:
      TypeError: not a `flax.nnx.Conv`, or under a JAX transformation.
      ValueError: neither tol nor rank, a tol for "cp", NaN or Inf in the kernel, feature groups, a
        mask, or more than ``max_bytes``.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> dense = nn.to_conv(nn.TuckerConv(8, 12, (3, 3), rank=4, rngs=nnx.Rngs(0)))
      >>> layer, certificate = nn.from_conv(dense, tol=1e-4)
      >>> layer.ranks, certificate.error < 1e-4
      ((4, 3, 3, 4), True)

    Source: as `from_linear`; alternating least squares: Harshman (1970), Carroll and Chang (1970),
    as in Kolda and Bader, "Tensor Decompositions and Applications" (SIAM Rev. 51, 2009).
    """
    x = _checked_kernel(layer, tol, rank, format, max_bytes)
    check_gates(gates)
    dtype = layer.kernel.dtype
    new = cast(Any, _CLASSES[format])(
        layer.in_features,
        layer.out_features,
        layer.kernel_size,
        layer.strides,
        rank=1,
        use_bias=layer.bias is not None,
        param_dtype=dtype,
        rngs=nnx.Rngs(0),
        **{name: getattr(layer, name) for name in _KEPT},
    )
    x = x.reshape(new.modes)
    if isinstance(new, TTConv):
        cores, weights = compressed(x, dtype, tol, rank, gates)
        new.cores = parameters(cores, dtype)
    elif isinstance(new, TuckerConv):
        weights = set_tucker(new, x, tol, rank)
    else:
        terms = _terms(rank, x.shape)
        new.factors = parameters(_alternating(x, terms), dtype)
        weights = [np.ones(terms)]
    set_rest(new, layer, weights)
    made = np.moveaxis(np.asarray(new.weight(max_bytes=max_bytes)), -2, 0).reshape(x.shape)
    return new, certify(new, made, layer, x, tol, new.modes)


_KEPT = ("padding", "input_dilation", "kernel_dilation", "dtype", "precision")


def to_conv(layer: TensorConv, *, max_bytes: int = MAX_BYTES) -> nnx.Conv:
    """Converts a tensorised convolution to a dense one with the same outputs.

    Args:
      layer: `TTConv`, `TuckerConv` or `CPConv`.
      max_bytes: the largest array that may be made.

    Returns:
      `flax.nnx.Conv`, with the bias, options and dtypes of the layer.

    Raises:
      TypeError: not a tensorised convolution.
      ValueError: the kernel needs more than ``max_bytes``.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.to_conv(nn.CPConv(16, 32, (3, 3), rank=4, rngs=nnx.Rngs(0))).kernel.shape
      (3, 3, 16, 32)

    Source: ours.
    """
    if not isinstance(layer, TensorConv):
        raise TypeError(
            f"layer: expected a tensorised convolution such as TTConv, got {type(layer).__name__}"
        )
    new = dense_conv(layer, layer.weight(max_bytes=max_bytes))
    if layer.bias is not None:
        new.bias = cast(nnx.Param, layer.bias.copy())
    return new


def dense_conv(layer: TensorConv, kernel: Any) -> nnx.Conv:
    """Builds a `flax.nnx.Conv` with the options of a tensorised convolution and a given kernel."""
    return nnx.Conv(
        layer.in_features,
        layer.out_features,
        layer.kernel_size,
        layer.strides,
        use_bias=layer.bias is not None,
        param_dtype=kernel.dtype,
        kernel_init=lambda *_: kernel,
        rngs=nnx.Rngs(0),
        **{name: getattr(layer, name) for name in _KEPT},
    )


def _checked_kernel(layer: Any, tol: Any, rank: Any, format: Any, max_bytes: int) -> np.ndarray:
    """Returns the kernel of a dense convolution in double precision, channels first; checks it."""
    if type(layer) is not nnx.Conv:
        raise TypeError(f"layer: expected a flax.nnx.Conv, got {type(layer).__name__}")
    if format not in _CLASSES:
        raise ValueError(f"format: expected one of {tuple(_CLASSES)}, got {format!r}")
    check_plain(layer)
    if format == "cp" and (tol is not None or rank is None):
        raise ValueError(
            'tol: expected None and a rank with format="cp": no truncation of a sum of products '
            "guarantees an error; the certificate says which one was reached"
        )
    shape = tuple(layer.kernel_shape)
    return np.moveaxis(dense_parameter(layer, "kernel", shape, tol, rank, max_bytes), -2, 0)


def _terms(rank: Any, modes: Sequence[int]) -> int:
    (given,) = rank if isinstance(rank, Sequence) else (rank,)
    enough = int(np.prod(modes)) // max(modes)
    return min(_check.integer("rank", given, low=1), enough)


def _alternating(x: np.ndarray, terms: int) -> list[np.ndarray]:
    """Fits the CP factors of a dense convolution kernel by alternating least squares.

    It starts with the leading singular vectors of every unfolding, filled up by normal ones.
    """
    rng, order = np.random.default_rng(0), x.ndim
    flat = [np.moveaxis(x, k, 0).reshape(n, -1) for k, n in enumerate(x.shape)]
    factors = []
    for matrix in flat:
        n = matrix.shape[0]
        u = np.linalg.eigh(matrix @ matrix.conj().T)[1][:, ::-1][:, :terms]
        more = rng.standard_normal((n, terms - u.shape[1])) / n**0.5
        factors.append(np.concatenate([u, more], 1).astype(x.dtype))
    size, before = float(np.linalg.norm(x)), np.inf
    if not size:
        return [*factors[:-1], np.zeros_like(factors[-1])]
    letters = string.ascii_lowercase
    for _ in range(_SWEEPS):
        for k in range(order):
            others = [j for j in range(order) if j != k]
            gram = np.ones((terms, terms), x.dtype)
            for j in others:
                gram = gram * (factors[j].T @ factors[j].conj())
            terms_of = ",".join([letters[:order], *(letters[j] + "z" for j in others)])
            conjugates = (factors[j].conj() for j in others)
            right = numpy_einsum(f"{terms_of}->{letters[k]}z", x, *conjugates)
            # Slightly damped: terms that grow against each other are a known end of these sweeps.
            damped = gram + 1e-10 * np.trace(gram).real / terms * np.eye(terms)
            factors[k] = np.linalg.solve(damped.T, right.T).T
            scale = np.linalg.norm(factors[k], axis=0)
            if k < order - 1:
                factors[k] = factors[k] / np.where(scale > 0, scale, 1)
        fit = np.vdot(factors[-1], right).real
        norm = (gram * (factors[-1].T @ factors[-1].conj())).sum().real
        error = max(size**2 - 2 * fit + norm, 0.0) ** 0.5 / size
        if before - error < _STALLED:
            break
        before = error
    scale = np.linalg.norm(factors[-1], axis=0)
    share = np.where(scale > 0, scale, 1) ** (1 / order)
    return [*(f * share for f in factors[:-1]), factors[-1] / share ** (order - 1)]
