"""Conversion of dense linear layers to tensorised ones, with certified errors, and back."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, cast, get_args, overload

from flax import nnx

from tensorjax import _check
from tensorjax.nn._linear_base import TensorLinear
from tensorjax.nn._linear_layers import TTLinear, TTMatrixLinear, TuckerLinear
from tensorjax.nn._parameters import MAX_BYTES, mark_linear
from tensorjax.nn._weight_conversion import (
    Certificate,
    Gates,
    certify,
    check_gates,
    compressed,
    dense_matrix,
    folded,
    paired,
    parameters,
    set_rest,
    set_tucker,
)

Format = Literal["tt", "tt-matrix", "tucker"]


class _Options(TypedDict, total=False):
    """Keyword arguments of `from_linear` beside the format, for type checkers."""

    tol: float | None
    rank: int | Sequence[int] | None
    in_shape: Sequence[int] | None
    out_shape: Sequence[int] | None
    order: int | None
    gates: Gates
    memory_limit: int | None
    max_bytes: int


@overload
def from_linear(
    layer: nnx.Linear, *, format: Literal["tt"] = "tt", **options: Unpack[_Options]
) -> tuple[TTLinear, Certificate]: ...
@overload
def from_linear(
    layer: nnx.Linear, *, format: Literal["tt-matrix"], **options: Unpack[_Options]
) -> tuple[TTMatrixLinear, Certificate]: ...
@overload
def from_linear(
    layer: nnx.Linear, *, format: Literal["tucker"], **options: Unpack[_Options]
) -> tuple[TuckerLinear, Certificate]: ...
def from_linear(
    layer: nnx.Linear,
    *,
    tol: float | None = None,
    rank: int | Sequence[int] | None = None,
    format: Format = "tt",
    in_shape: Sequence[int] | None = None,
    out_shape: Sequence[int] | None = None,
    order: int | None = None,
    gates: Gates = "singular values",
    memory_limit: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> tuple[TTLinear | TTMatrixLinear | TuckerLinear, Certificate]:
    """Converts a dense linear layer to a tensorised one, by TT-SVD or ST-HOSVD.

    The kernel is folded into modes (padded with zeros where they call for it) and truncated. Bias,
    dtype, param_dtype and precision are kept.

    For a train the gates hold, bond by bond, the singular values of W unfolded there, over the
    largest: W = G_1 D_1 G_2 … with G_1 D_1 … G_k of orthogonal columns and G_{k+1} D_{k+1} … of
    orthonormal rows, up to scale (the canonical form of Vidal, 2003). Setting a gate below τ to
    zero is then the truncation of that bond at τ times its largest singular value, so what prunes
    small gates prunes what matters least. The scale of W is shared evenly by the cores. Directions
    below the rounding error of the dtype, or of float32 if that is less, are left out. A weight of
    zeros becomes a train of the ranks given (else 1) with one core of zeros: it can be trained.

    A TT-matrix is converted likewise, with the modes of input and output in pairs.

    For Tucker the gates are ones: a core divided by the singular values of all its modes would have
    corners too large to train.

    Args:
      layer: `flax.nnx.Linear`, concrete.
      tol: ‖W − W'‖ ≤ tol·‖W‖, guaranteed up to rounding; chooses the ranks.
      rank: ranks, as for the layers; with ``tol``, at most these.
      format: "tt", "tt-matrix" or "tucker".
      in_shape, out_shape, order, memory_limit: as for `TTLinear`.
      gates: "singular values" or, for a fresh start, "ones": they are then divided evenly between
        the cores.
      max_bytes: the largest dense array that may be made.

    Returns:
      (`TTLinear`, `TTMatrixLinear` or `TuckerLinear`, `Certificate`). The layer keeps it as
      ``certificate``.

    Raises:
      TypeError: not a `flax.nnx.Linear`, or under a JAX transformation.
      ValueError: neither tol nor rank, NaN or Inf in the kernel, factors or ranks that do not fit,
        a custom ``dot_general``, or more than ``max_bytes``.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> dense = nn.to_linear(nn.TTLinear(64, 96, rank=3, rngs=nnx.Rngs(0)))
      >>> layer, certificate = nn.from_linear(dense, tol=1e-4)
      >>> layer.ranks, certificate.error < 1e-4, certificate.numbers
      ((3, 3, 3), True, 309)

    Source: Oseledets (2011) for the TT-SVD and its quasi-optimality; N. Vannieuwenhoven, R.
    Vandebril, K. Meerbergen, SIAM J. Sci. Comput. 34 (2012), for the ST-HOSVD.
    """
    sides = ("in_features", "out_features")
    kernel = dense_matrix(layer, (nnx.Linear,), "kernel", sides, tol, rank, max_bytes)
    _check.choice("format", format, get_args(Format))
    check_gates(gates)
    dtype = layer.kernel.dtype
    kinds = {"tt": TTLinear, "tt-matrix": TTMatrixLinear, "tucker": TuckerLinear}
    new = kinds[format](
        layer.in_features,
        layer.out_features,
        rank=1,
        in_shape=in_shape,
        out_shape=out_shape,
        order=order,
        use_bias=layer.bias is not None,
        dtype=layer.dtype,
        param_dtype=dtype,
        precision=layer.precision,
        memory_limit=memory_limit,
        rngs=nnx.Rngs(0),
    )
    x = folded(kernel, new.in_shape, new.out_shape, max_bytes)
    sizes = new.modes
    if isinstance(new, TTMatrixLinear):
        x = paired(x)
        sizes = x.shape
        cores, weights = compressed(x, dtype, tol, rank, gates)
        pairs = zip(new.in_shape, new.out_shape, strict=True)
        cores = [c.reshape(len(c), *pair, -1) for c, pair in zip(cores, pairs, strict=True)]
        made = parameters(cores, dtype)
        new.cores = made if new.use_bias else mark_linear(made)
    elif isinstance(new, TTLinear):
        cores, weights = compressed(x, dtype, tol, rank, gates)
        new.cores = parameters(cores, dtype)
    else:
        weights = set_tucker(new, x, tol, rank)
    set_rest(new, layer, weights)
    made = new.weight(max_bytes=max_bytes)
    return new, certify(new, made, layer, kernel, tol, sizes)


def to_linear(layer: TensorLinear, *, max_bytes: int = MAX_BYTES) -> nnx.Linear:
    """Converts a tensorised linear layer to a dense one with the same outputs.

    Args:
      layer: `TTLinear`, `TTMatrixLinear`, `TuckerLinear` or `CPLinear`.
      max_bytes: the largest array that may be made.

    Returns:
      `flax.nnx.Linear`, with the bias, dtype, param_dtype and precision of the layer.

    Raises:
      TypeError: not a tensorised linear layer.
      ValueError: the weight needs more than ``max_bytes``.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.to_linear(nn.CPLinear(64, 96, rank=4, rngs=nnx.Rngs(0))).kernel.shape
      (64, 96)

    Source: ours.
    """
    if not isinstance(layer, TensorLinear):
        raise TypeError(
            "layer: expected a tensorised linear layer such as TTLinear, got "
            f"{type(layer).__name__}; embeddings are exported by tensorjax.nn.to_embedding"
        )
    options = dense_options(layer, layer.weight(max_bytes=max_bytes))
    new = nnx.Linear(layer.in_features, layer.out_features, **options)
    if layer.bias is not None:
        new.bias = cast(nnx.Param, layer.bias.copy())
    return new


def dense_options(layer: TensorLinear, weight: Any) -> dict[str, Any]:
    """Converts a tensorised linear layer's options to those of a dense one of a given weight."""
    return {
        "use_bias": layer.bias is not None,
        "dtype": layer.dtype,
        "param_dtype": weight.dtype,
        "precision": layer.precision,
        "kernel_init": lambda *_: weight,
        "rngs": nnx.Rngs(0),
    }
