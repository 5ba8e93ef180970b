"""Base class of the tensorised convolutions: options, plan, application, dense kernel."""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes
from flax.nnx.nn.linear import canonicalize_padding

from tensorjax import _check, _symbolic, contract, linalg
from tensorjax._placement import like_first, placed_by, sharded
from tensorjax._typing import ArrayLike, DTypeLike, OutSharding, PrecisionLike
from tensorjax.nn._initializers import Init, check_init
from tensorjax.nn._layer_base import TensorLayer
from tensorjax.nn._parameters import MAX_BYTES, check_bytes, check_rngs, checked_dtype
from tensorjax.nn._weight_networks import contracted

Padding = str | int | Sequence[int | tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class ConvPlan:
    """Plan of a tensorised convolution: several small convolutions or one dense, with FLOPs.

    Attributes:
      kind: "sequence": one small convolution after the other, and no dense kernel is made;
        "dense": the kernel is made and applied once, where that takes fewer operations.
      flops: multiplications and additions of the forward pass as planned, without the bias.
      sequence_flops: those of the sequence.
      dense_flops: those of making the kernel and applying it.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TuckerConv(64, 64, (3, 3), rank=16, rngs=nnx.Rngs(0))
      >>> layer.plan((8, 32, 32, 64)).kind
      'sequence'
    """

    kind: Literal["sequence", "dense"]
    flops: int
    sequence_flops: int
    dense_flops: int


class TensorConv(TensorLayer):
    """Abstract base class of the tensorised convolutions, counterparts of `flax.nnx.Conv`.

    Args:
      in_features: C, channels of the input.
      out_features: O, channels of the output.
      kernel_size: sizes (k_1, …, k_s) of the kernel; an int is one axis, as for `flax.nnx.Conv`.
      strides: of the windows, one int or one per axis.
      rank: ranks, as for the subclass.
      padding: "SAME", "VALID", "CIRCULAR", "REFLECT", "CAUSAL", or sizes, as for `flax.nnx.Conv`.
      input_dilation: of the input, one int or one per axis.
      kernel_dilation: of the kernel, one int or one per axis.
      use_bias: whether there is a bias.
      dtype: of the computation; None infers it from input and parameters.
      param_dtype: of the parameters.
      precision: of the products, as in `jax.lax.conv_general_dilated`.
      variance: of the entries of the fresh kernel; 1 / (C Π k) if None, as for `flax.nnx.Conv`.
      init: "normal" or, for some formats, "orthogonal", as for `TTLinear`.
      rngs: the stream "params" is drawn from.

    Attributes:
      in_features: C.
      out_features: O.
      kernel_size: (k_1, …, k_s).
      bias: (O,) or None.

    Raises:
      TypeError: a dtype that does not fit.
      ValueError: sizes, ranks or options that do not fit, by name.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.CPConv(16, 32, (3, 3), rank=8, rngs=nnx.Rngs(0))
      >>> isinstance(layer, nn.TensorConv), layer(jnp.ones((1, 8, 8, 16))).shape
      (True, (1, 8, 8, 32))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        *,
        rank: int | Sequence[int],
        padding: Padding = "SAME",
        input_dilation: int | Sequence[int] = 1,
        kernel_dilation: int | Sequence[int] = 1,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: PrecisionLike | None = None,
        variance: float | None = None,
        init: Init = "normal",
        rngs: nnx.Rngs,
    ):
        self.in_features = _check.integer("in_features", in_features, low=1)
        self.out_features = _check.integer("out_features", out_features, low=1)
        sizes = self.kernel_size = _check.shape("kernel_size", kernel_size)
        self.strides = self._per_axis("strides", strides)
        self.padding = _frozen(padding)
        canonicalize_padding(self.padding, len(sizes))  # which names a wrong one
        self.input_dilation = self._per_axis("input_dilation", input_dilation)
        self.kernel_dilation = self._per_axis("kernel_dilation", kernel_dilation)
        self.use_bias = use_bias
        check_rngs(rngs)
        self.dtype = None if dtype is None else checked_dtype("dtype", dtype)
        self.param_dtype = checked_dtype("param_dtype", param_dtype)
        self.precision = precision
        fan = self.in_features * math.prod(self.kernel_size)
        wanted = 1 / fan if variance is None else float(variance)
        if not 0 < wanted < math.inf:
            raise ValueError(f"variance: expected a positive number, got {variance!r}")
        self._draw(check_init(init), rank, wanted, rngs)
        self.bias = nnx.data(
            nnx.Param(jnp.zeros((self.out_features,), param_dtype)) if use_bias else None
        )

    def _per_axis(self, name: str, value: Any) -> tuple[int, ...]:
        count = len(self.kernel_size)
        values = (value,) * count if isinstance(value, int) or value is None else tuple(value)
        if len(values) != count:
            raise ValueError(f"{name}: expected {count} values, one per axis, got {value!r}")
        return tuple(_check.integer(name, 1 if v is None else v, low=1) for v in values)

    @property
    def modes(self) -> tuple[int, ...]:
        """Mode sizes of the kernel of any tensorised convolution: C, k_1, …, k_s, O."""
        return (self.in_features, *self.kernel_size, self.out_features)

    @property
    def _inputs(self) -> int:
        return 1

    @property
    def _summed(self) -> int:
        return len(self.modes) - 1

    @abc.abstractmethod
    def _steps(self, arrays: list[Any]) -> list[tuple[tuple[int, ...], Any]]:
        """Lists small convolutions that replace a dense one: axes and kernels, for any format.

        A kernel is (C', O') where it goes over no axis, else (k of every axis or 1, C', O'), or
        (…, 1, O') where each channel is convolved by itself.
        """

    def plan(self, shape: Sequence[int]) -> ConvPlan:
        """Plans a convolution for an input shape: whether small ones or the dense one cost less.

        Args:
          shape: of the input, (batch axes, spatial axes, C).

        Returns:
          `ConvPlan`.
        """
        count = len(self.kernel_size)
        batch, spatial = math.prod(shape[: -count - 1]), list(shape[-count - 1 : -1])
        out = [
            max(-(-n * d // s), 1)
            for n, d, s in zip(spatial, self.input_dilation, self.strides, strict=True)
        ]
        network = self.network()
        shapes = [np.broadcast_to(np.float32(0), s) for s in network.shapes]
        sequence = 0
        for axes, kernel in self._steps(shapes):
            for axis in axes:
                spatial[axis] = out[axis]
            sequence += 2 * batch * math.prod(spatial) * math.prod(kernel.shape)
        dense = 2 * batch * math.prod(out) * network.elements
        dense += 2 * network.elements * max(self.ranks)
        kind: Literal["sequence", "dense"] = "sequence" if sequence <= dense else "dense"
        return ConvPlan(kind, min(sequence, dense), sequence, dense)

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Applies the convolution to inputs (batch axes, spatial axes, C), as `flax.nnx.Conv`.

        Args:
          inputs: (batch axes, spatial axes, C); any number of batch axes.
          out_sharding: of the output, as for `flax.nnx.Conv`; None leaves it to JAX.

        Returns:
          (batch axes, spatial axes, O).

        Raises:
          ValueError: too few axes, or other channels than C.
        """
        inputs = jnp.asarray(inputs)
        count = len(self.kernel_size)
        if inputs.ndim <= count or inputs.shape[-1] != self.in_features:
            raise ValueError(
                f"inputs: expected {count} spatial axes and {self.in_features} channels last, got "
                f"shape {inputs.shape}"
            )
        bias = None if self.bias is None else self.bias[...]
        x, bias, *arrays = dtypes.promote_dtype((inputs, bias, *self.arrays()), dtype=self.dtype)
        return sharded(_applied(x, self._convolved, arrays, bias), out_sharding)

    def _convolved(self, x: jax.Array, arrays: list[jax.Array]) -> jax.Array:
        """Computes the convolution as planned, by small convolutions or a dense one; no bias."""
        count = len(self.kernel_size)
        if any(not a.size for a in arrays):  # a bond of rank zero: the bias alone
            arrays = [jnp.zeros([max(n, 1) for n in a.shape], a.dtype) for a in arrays]
        known = all(self.ranks) and _symbolic.is_static(math.prod(x.shape))
        kind = self.plan(x.shape).kind if known else "sequence"
        steps = self._steps(arrays)
        if kind == "dense":
            steps = [(tuple(range(count)), self._dense(arrays))]
        x, padding = self._padded(x)
        for axes, kernel in steps:
            if axes:
                x = self._step(x, axes, kernel, padding)
            else:
                x = contract.einsum("...c,co->...o", x, kernel, precision=self.precision)
        return x

    def _padded(self, x: jax.Array) -> tuple[jax.Array, Any]:
        """Pads a convolution's input for circular, reflecting and causal padding, as Flax does."""
        count = len(self.kernel_size)
        padding = canonicalize_padding(self.padding, count)
        spans = [
            (k - 1) * d + 1 for k, d in zip(self.kernel_size, self.kernel_dilation, strict=True)
        ]
        if padding in ("CIRCULAR", "REFLECT"):
            pads = [(0, 0), *(((n - 1) // 2, n // 2) for n in spans), (0, 0)]
            mode = "wrap" if padding == "CIRCULAR" else "reflect"
            return jnp.pad(x, pads, mode=mode), "VALID"
        if padding == "CAUSAL":
            if count != 1:
                raise ValueError(
                    f'padding: expected "CAUSAL" for one spatial axis only, got {count} of them'
                )
            return jnp.pad(x, [(0, 0), (spans[0] - 1, 0), (0, 0)]), "VALID"
        return x, padding

    def _step(
        self, x: jax.Array, axes: tuple[int, ...], kernel: jax.Array, padding: Any
    ) -> jax.Array:
        """Applies one small convolution of the plan, of any format, over some spatial axes."""
        count = len(self.kernel_size)

        def there(values: Sequence[Any], other: Any) -> list[Any]:
            return [value if k in axes else other for k, value in enumerate(values)]

        letters = "".join(chr(ord("a") + k) for k in range(count))
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            there(self.strides, 1),
            padding if isinstance(padding, str) else there(padding, (0, 0)),
            lhs_dilation=there(self.input_dilation, 1),
            rhs_dilation=there(self.kernel_dilation, 1),
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
            feature_group_count=x.shape[-1] // kernel.shape[-2],
            precision=self.precision,  # type: ignore[arg-type]
        )

    def weight(self, *, max_bytes: int = MAX_BYTES) -> jax.Array:
        """Returns the kernel of any tensorised convolution as a dense array (k_1, …, k_s, C, O).

        Args:
          max_bytes: the largest array that may be made.

        Returns:
          (k_1, …, k_s, C, O), of the dtype of the parameters.

        Raises:
          ValueError: the kernel needs more than ``max_bytes``.
        """
        arrays, network = self.arrays(), self.network()
        check_bytes(network.elements, arrays[0].dtype, max_bytes)
        if any(not a.size for a in arrays):
            shape = (*self.kernel_size, self.in_features, self.out_features)
            return jnp.zeros(shape, arrays[0].dtype)
        wide = [a.astype(linalg.factor_dtype(a.dtype)) for a in arrays]
        return self._dense(wide).astype(arrays[0].dtype)

    def _dense(self, arrays: Sequence[jax.Array]) -> jax.Array:
        """Contracts arrays of any tensorised convolution to a dense kernel (k_1, …, k_s, C, O)."""
        network = self.network()
        whole = contracted(arrays, network.terms, range(len(network.modes)))
        shape = (self.in_features, *self.kernel_size, self.out_features)
        return jnp.moveaxis(whole.reshape(shape), 0, -2)


def _frozen(padding: Any) -> Any:
    """Converts a convolution's padding from lists to tuples, so that it can be hashed."""
    if isinstance(padding, str | int):
        return padding
    return tuple(p if isinstance(p, int) else tuple(p) for p in padding)


@placed_by(like_first)
def _applied(x: jax.Array, convolved: Any, arrays: Any, bias: jax.Array | None) -> jax.Array:
    """Applies a convolution to inputs with any number of batch axes, and adds the bias."""
    count = convolved.__self__.kernel_size
    lead, rest = x.shape[: -len(count) - 1], x.shape[-len(count) - 1 :]
    y = convolved(x.reshape(-1, *rest), arrays)
    y = y.reshape(*lead, *y.shape[1:])
    return y if bias is None else y + bias.reshape((1,) * (y.ndim - 1) + (-1,))
