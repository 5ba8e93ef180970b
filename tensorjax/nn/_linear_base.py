"""Base class of the tensorised linear layers: checks, planning, contraction, dense weight."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes

from tensorjax import _check, _symbolic
from tensorjax._placement import like_first, placed_by, sharded
from tensorjax._typing import ArrayLike, DTypeLike, OutSharding, PrecisionLike
from tensorjax.nn._contraction_plans import LayerPlan, plan_layer
from tensorjax.nn._initializers import Init, check_init
from tensorjax.nn._layer_base import TensorLayer
from tensorjax.nn._mode_factors import modes
from tensorjax.nn._parameters import MAX_BYTES, check_bytes, check_rngs, checked_dtype
from tensorjax.nn._weight_networks import contracted


class TensorLinear(TensorLayer):
    """Abstract base class of the tensorised linear layers y = x W + bias.

    Args:
      in_features: N.
      out_features: M.
      rank: ranks, one int or one per bond or mode, as for the subclass.
      in_shape: factors of N; None chooses.
      out_shape: factors of M; None chooses.
      order: number of factors of each, where they are chosen.
      use_bias: whether there is a bias.
      dtype: of the computation; None infers it from input and parameters.
      param_dtype: of the parameters.
      precision: of the products, as in `jax.lax.dot_general`.
      memory_limit: bytes that forward + backward of the contraction may have alive, or None.
      variance: of the entries of the fresh weight; 1 / (N + M) if None.
      init: "normal" or, for some formats, "orthogonal", as for `TTLinear`.
      rngs: the stream "params" is drawn from.

    Attributes:
      in_features: N.
      out_features: M.
      in_shape: factors (n_1, …, n_p) of N; a product above N is padded.
      out_shape: factors (m_1, …, m_q) of M; a product above M is cut.
      bias: (M,) or None.
      dtype: of the computation; None infers it from input and parameters.
      param_dtype: of fresh parameters; gates are in single precision at least.
      precision: of the products, as in `jax.lax.dot_general`.
      memory_limit: bytes that forward + backward of the contraction may have alive, or None.
      certificate: what `tensorjax.nn.from_linear` measured, None for layers made otherwise, and for
        copies of a layer.

    Raises:
      TypeError: a dtype that does not fit.
      ValueError: sizes, factors, ranks or options that do not fit, by name.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> model = nnx.Sequential(nn.TTLinear(64, 96, rank=4, rngs=nnx.Rngs(0)), nnx.relu)
      >>> [type(m).__name__ for _, m in nnx.iter_graph(model) if isinstance(m, nn.TensorLinear)]
      ['TTLinear']
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int | Sequence[int],
        in_shape: Sequence[int] | None = None,
        out_shape: Sequence[int] | None = None,
        order: int | None = None,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: PrecisionLike | None = None,
        memory_limit: int | None = None,
        variance: float | None = None,
        init: Init = "normal",
        rngs: nnx.Rngs,
    ):
        self.in_features = _check.integer("in_features", in_features, low=1)
        self.out_features = _check.integer("out_features", out_features, low=1)
        self.in_shape, self.out_shape = self._folds(in_shape, out_shape, order)
        self.use_bias = use_bias
        check_rngs(rngs)
        self.dtype = None if dtype is None else checked_dtype("dtype", dtype)
        self.param_dtype = checked_dtype("param_dtype", param_dtype)
        self.precision = precision
        if memory_limit is not None:
            memory_limit = _check.integer("memory_limit", memory_limit, low=1)
        self.memory_limit = memory_limit
        wanted = 1 / (in_features + out_features) if variance is None else float(variance)
        if not 0 < wanted < math.inf:
            raise ValueError(f"variance: expected a positive number, got {variance!r}")
        self._draw(check_init(init), rank, wanted, rngs)
        self.bias = nnx.data(
            nnx.Param(jnp.zeros((out_features,), param_dtype)) if use_bias else None
        )

    def _folds(
        self, in_shape: Any, out_shape: Any, order: int | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the mode sizes of inputs and outputs of any tensorised linear layer."""
        rows = modes(self.in_features, in_shape, order, "in_shape")
        # The largest modes at both ends, where the TT-ranks are least.
        columns = modes(self.out_features, out_shape, order, "out_shape")
        return rows, columns if out_shape is not None else columns[::-1]

    @property
    def modes(self) -> tuple[int, ...]:
        """Mode sizes of any tensorised linear layer's weight: the input's, then the output's."""
        return (*self.in_shape, *self.out_shape)

    @property
    def _inputs(self) -> int:
        return len(self.in_shape)

    def plan(self, batch: int | Sequence[int] = 1, *, dtype: DTypeLike | None = None) -> LayerPlan:
        """Plans the contraction of any tensorised linear layer for a batch size, with its cost.

        Args:
          batch: rows of the input: one number, or all leading axes.
          dtype: of the computation; that of the layer or its parameters if None.

        Returns:
          `LayerPlan`; print it for a table of all candidates.

        Raises:
          ValueError: a rank is 0, so that there is nothing to contract, or ``memory_limit`` cannot
            be kept.
        """
        axes = batch if isinstance(batch, Sequence) else (batch,)
        rows = math.prod(_check.integer("batch", size, low=0) for size in axes)
        network = self.network()
        if not all(map(math.prod, network.shapes)):
            raise ValueError(
                f"plan: expected ranks of at least 1, got {self.ranks}; a layer with an empty bond "
                "is its bias alone and contracts nothing"
            )
        if dtype is None:
            dtype = self.dtype or jax.tree.leaves(nnx.state(self, nnx.Param))[0].dtype
        return plan_layer(
            network, rows, np.dtype(dtype), self.use_bias, self.precision, self.memory_limit
        )

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Applies any tensorised linear layer to the input's last axis: y = x W + bias.

        Args:
          inputs: (…, N), any leading axes. They are contracted as one batch, which `plan` is made
            for when the layer is traced; under `jax.vmap` it is made for one example, so keep batch
            axes in the input where you can. A number of rows that `jax.export` leaves open is
            planned as 1024.
          out_sharding: of the output, as for `flax.nnx.Linear`; None leaves it to JAX, and
            on an explicit mesh shards it as the input is, batch axis by batch axis.

        Returns:
          (…, M).

        Raises:
          ValueError: the last axis is not N; or there is a ``memory_limit``, which cannot be kept
            for a symbolic number of rows.
        """
        inputs = jnp.asarray(inputs)
        if inputs.ndim == 0 or inputs.shape[-1] != self.in_features:
            raise ValueError(
                f"inputs: expected shape (…, {self.in_features}), got {inputs.shape}; "
                "the last axis holds the features"
            )
        lead = inputs.shape[:-1]
        bias = None if self.bias is None else self.bias[...]
        x, bias, *arrays = dtypes.promote_dtype(
            (inputs, bias, *self.arrays()), dtype=self.dtype
        )  # fmt: skip
        if any(0 in a.shape for a in arrays):
            y = jnp.zeros((*lead, self.out_features), x.dtype)
            y = _biased(y, bias)
        else:
            y = _applied(x, self._contracted, arrays, bias)
        return sharded(y, out_sharding)

    def _contracted(self, x: jax.Array, arrays: list[jax.Array]) -> jax.Array:
        """Multiplies rows (b, N) by a tensorised linear layer's weight in planned order."""
        rows = math.prod(x.shape[:-1])
        x = x.reshape(rows, self.in_features)
        padding = math.prod(self.in_shape) - self.in_features
        if padding:
            x = jnp.pad(x, ((0, 0), (0, padding)))
        if self.memory_limit is not None and not _symbolic.is_static(rows):
            raise _symbolic.no_limit(x.shape)
        plan = self.plan(_symbolic.planned(rows), dtype=x.dtype)
        y = plan.contraction(x.reshape(rows, *self.in_shape), *arrays)
        return y.reshape(rows, math.prod(self.out_shape))[:, : self.out_features]

    def weight(self, *, max_bytes: int = MAX_BYTES) -> jax.Array:
        """Returns the weight W of any tensorised linear layer as a dense matrix (N, M).

        Args:
          max_bytes: the largest array that may be made.

        Returns:
          (N, M), N inputs and M outputs, of the dtype of the parameters.

        Raises:
          ValueError: W needs more than ``max_bytes``.
        """
        arrays, network = self.arrays(), self.network()
        check_bytes(network.elements, arrays[0].dtype, max_bytes)
        sides = (math.prod(self.in_shape), math.prod(self.out_shape))
        if any(0 in a.shape for a in arrays):
            return jnp.zeros((self.in_features, self.out_features), arrays[0].dtype)
        w = contracted(arrays, network.terms, range(len(network.modes)))
        return w.reshape(sides)[: self.in_features, : self.out_features]


@placed_by(like_first)
def _applied(x: jax.Array, contracted: Any, arrays: Any, bias: jax.Array | None) -> jax.Array:
    """Multiplies inputs (…, N) by any tensorised linear layer's weight, adds the bias: (…, M)."""
    lead = x.shape[:-1]
    y = contracted(x, arrays)
    return _biased(y.reshape(*lead, y.shape[-1]), bias)


def _biased(y: jax.Array, bias: jax.Array | None) -> jax.Array:
    return y if bias is None else y + bias.reshape((1,) * (y.ndim - 1) + (-1,))
