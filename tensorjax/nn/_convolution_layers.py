"""Convolutions in TT, Tucker and CP format, each computed as a sequence of small convolutions."""

import math
from typing import Any

import jax

from tensorjax import contract
from tensorjax.nn._convolution_base import TensorConv
from tensorjax.nn._layer_base import CanonicalWeight, TrainWeight, TuckerWeight

Steps = list[tuple[tuple[int, ...], Any]]


class TTConv(TrainWeight, TensorConv):
    """Convolution whose kernel is a tensor train with gates on its bonds, applied axis by axis.

    K[i_1 … i_s, c, o] = G_0[c] D_0 G_1[i_1] D_1 … G_s[i_s] D_s G_{s+1}[o]: channels to r_0 by a
    pointwise product, a convolution over each spatial axis alone, and a pointwise product to the
    output's channels.

    Attributes:
      cores: list of s + 2 parameters, (1, C, r_0), (r_0, k_1, r_1), …, (r_s, O, 1).
      gates: list of s + 1 parameters (r_k,), ones at first.
      ranks: TT-ranks r_0, …, r_s.

    The others are those of `TensorConv`.

    Args:
      in_features, out_features, kernel_size, strides, padding, input_dilation, kernel_dilation,
        use_bias, dtype, param_dtype, precision, rngs: as for `TensorConv`.
      rank: TT-ranks: one int, cut where a bond cannot need as much, or one per interior bond.
      variance: of the entries of the kernel at first, exact.
      init: as for `TTLinear`.

    Raises:
      ValueError: sizes, or ranks that no bond can have.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TTConv(16, 32, (3, 3), strides=2, rank=8, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((4, 28, 28, 16))).shape, layer.ranks, layer.numbers
      ((4, 14, 14, 32), (8, 8, 8), 824)

    Source: Garipov, Podoprikhin, Novikov, Vetrov, "Ultimate tensorization" (arXiv 1611.03214), for
    convolutions with trains. Departure: channels are not folded, so that every core is a
    convolution.
    """

    def _steps(self, arrays: list[Any]) -> Steps:
        first, *inner, last = arrays
        steps: Steps = [((), first[0])]
        for axis, core in enumerate(inner):
            r, k, s = core.shape
            shape = [1] * len(inner)
            shape[axis] = k
            steps.append(((axis,), core.transpose(1, 0, 2).reshape(*shape, r, s)))
        return [*steps, ((), last[..., 0])]


class LowRankConv(TTConv):
    """Convolution whose kernel, as a matrix (C k_1 ⋯ k_s, O), is a product of rank r.

    It is a `TTConv` of two cores, with the spatial axes and the input's channels in the first.

    Attributes:
      cores: list of two parameters, (1, C Π k, r) and (r, O, 1).
      gates: list of one parameter (r,), ones at first.
      ranks: (r,).

    The others are those of `TensorConv`.

    Args:
      in_features, out_features, kernel_size, strides, padding, input_dilation, kernel_dilation,
        use_bias, dtype, param_dtype, precision, rngs: as for `TensorConv`.
      rank: r, cut at the smaller side of the matrix.
      variance: of the entries of the kernel at first, exact.
      init: as for `TTLinear`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.LowRankConv(16, 32, (3, 3), rank=4, rngs=nnx.Rngs(0)).numbers  # 4 (144 + 32 + 1) + 32
      740

    Source: Zhang, Zou, He, Sun, "Accelerating Very Deep Convolutional Networks for Classification
    and Detection" (TPAMI 2016, arXiv 1505.06798).
    """

    @property
    def modes(self) -> tuple[int, ...]:
        """Sizes (C k_1 ⋯ k_s, O) of the low-rank convolution's kernel as a matrix."""
        return (self.in_features * math.prod(self.kernel_size), self.out_features)

    def _steps(self, arrays: list[Any]) -> Steps:
        first, last = arrays
        kernel = first.reshape(self.in_features, *self.kernel_size, first.shape[-1])
        count = len(self.kernel_size)
        kernel = kernel.transpose(*range(1, count + 1), 0, count + 1)
        return [(tuple(range(count)), kernel), ((), last[..., 0])]


class TuckerConv(TuckerWeight, TensorConv):
    """Convolution whose kernel is in Tucker format with gates on its bonds.

    K[i_1 … i_s, c, o] = Σ G[a, b_1 … b_s, z] U[c, a] Π_k V_k[i_k, b_k] W[o, z] (gates left out): a
    pointwise product from C to a few channels, one convolution with all spatial axes between them,
    and a pointwise product to O. With ranks of the spatial axes at k_1, …, k_s it is Tucker-2.

    Attributes:
      core: parameter (s_C, s_1, …, s_s, s_O).
      factors: list of parameters (C, s_C), (k_1, s_1), …, (O, s_O).
      gates: list of parameters, one for each axis of the core, ones at first.
      ranks: of the core.

    The others are those of `TensorConv`.

    Args:
      in_features, out_features, kernel_size, strides, padding, input_dilation, kernel_dilation,
        use_bias, dtype, param_dtype, precision, rngs: as for `TensorConv`.
      rank: multilinear ranks: one int, cut at every mode, or one per mode C, k_1, …, k_s, O.
      variance: of the entries of the kernel at first, exact.
      init: as for `TuckerLinear`.

    Raises:
      ValueError: sizes, or ranks above their modes.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TuckerConv(16, 32, (3, 3), rank=8, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((4, 28, 28, 16))).shape, layer.ranks
      ((4, 28, 28, 32), (8, 3, 3, 8))

    Source: Kim, Park, Yoo, Choi, Yang, Shin, "Compression of Deep Convolutional Neural Networks for
    Fast and Low Power Mobile Applications" (ICLR 2016, arXiv 1511.06530).
    """

    def _steps(self, arrays: list[Any]) -> Steps:
        first, core, *spatial, last = arrays
        count = len(spatial)
        if isinstance(core, jax.Array):
            operands: list[Any] = [core, [0, *range(1, count + 1), count + 1]]
            for k, factor in enumerate(spatial):
                operands += [factor, [count + 2 + k, k + 1]]
            out = [*range(count + 2, 2 * count + 2), 0, count + 1]
            kernel = contract.einsum(*operands, out, precision=self.precision)
        else:  # shapes alone, for the plan
            kernel = core.reshape(-1)[:1]
            kernel = jax.ShapeDtypeStruct(
                (*self.kernel_size, core.shape[0], core.shape[-1]), kernel.dtype
            )
        return [((), first), (tuple(range(count)), kernel), ((), last.T)]


class CPConv(CanonicalWeight, TensorConv):
    """Convolution whose kernel is in CP format: a gated sum of R products of vectors.

    K[i_1 … i_s, c, o] = Σ_a D[a] U[c, a] Π_k V_k[i_k, a] W[o, a]: a pointwise product from C to R
    channels, a convolution of each channel by itself over one axis after the other, and a pointwise
    product to O.

    Attributes:
      factors: list of parameters (C, R), (k_1, R), …, (O, R).
      gates: list of one parameter (R,), ones at first.
      ranks: (R,).

    The others are those of `TensorConv`.

    Args:
      in_features, out_features, kernel_size, strides, padding, input_dilation, kernel_dilation,
        use_bias, dtype, param_dtype, precision, rngs: as for `TensorConv`.
      rank: R, one int; cut at the product of all modes but the largest, which always suffices.
      variance: of the entries of the kernel at first, exact.
      init: "normal"; there are no orthogonal ones.

    Raises:
      ValueError: sizes, or a rank that is not a positive integer.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.CPConv(16, 32, (3, 3), rank=10, rngs=nnx.Rngs(0)).numbers
      582

    Source: Lebedev, Ganin, Rakhuba, Oseledets, Lempitsky, "Speeding-up Convolutional Neural
    Networks Using Fine-tuned CP-Decomposition" (ICLR 2015, arXiv 1412.6553).
    """

    def _steps(self, arrays: list[Any]) -> Steps:
        first, *spatial, last = arrays
        steps: Steps = [((), first)]
        for axis, factor in enumerate(spatial):
            shape = [1] * len(spatial)
            shape[axis] = factor.shape[0]
            steps.append(((axis,), factor.reshape(*shape, 1, factor.shape[1])))
        return [*steps, ((), last.T)]
