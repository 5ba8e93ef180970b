"""Linear layers whose weight is a tensor network with gates: TT, TT-matrix, Tucker, CP."""

import math
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax._placement import like_first, placed_by, sharded
from tensorjax._typing import ArrayLike, OutSharding
from tensorjax.nn import _initializers, _weight_networks
from tensorjax.nn._initializers import Init
from tensorjax.nn._layer_base import CanonicalWeight, TrainWeight, TuckerWeight
from tensorjax.nn._linear_base import TensorLinear
from tensorjax.nn._mode_factors import paired_modes, train_ranks
from tensorjax.nn._parameters import mark_linear, ones, values
from tensorjax.nn._weight_networks import WeightNetwork


class TTLinear(TrainWeight, TensorLinear):
    """Linear layer whose weight is a tensor train with gates on its bonds.

    y = x W + bias, with W (N × M) folded into modes, those of the input first:

        W[i_1 … i_p, j_1 … j_q] = G_1[i_1] D_1 G_2[i_2] D_2 … G_{p+q}[j_q],

    with N = Π n_k, M = Π m_k, G_k of size r_{k−1} × n_k × r_k and diagonal D_k = diag(gates[k]).
    The rank of W is at most the TT-rank r_p of the bond in the middle.

    How it is computed is planned for forward and backward together on the number of rows: see
    `plan`. W is materialised only where that is cheaper, and the plan then says "dense".

    Attributes:
      cores: list of p + q parameters (r_{k−1}, n_k, r_k).
      gates: list of p + q − 1 parameters (r_k,), ones at first.
      ranks: TT-ranks r_1, …, r_{p+q−1} of the interior bonds.

    The others are those of `TensorLinear`.

    Args:
      in_features: N.
      out_features: M.
      rank: TT-ranks: one int, cut where a bond cannot need as much, or one per interior bond.
      in_shape: factors of N, or of a larger number: the input is padded with zeros. None chooses,
        see `tensorjax.nn.factor`.
      out_shape: factors of M, or of a larger number: the output is cut.
      order: number of factors of N and of M, where they are chosen.
      use_bias: whether there is a bias.
      dtype: of the computation; None infers it from input and parameters.
      param_dtype: of the parameters.
      precision: of the products, as in `jax.lax.dot_general`.
      memory_limit: bytes that the contraction may have alive in forward + backward: rows are then
        cut into slices, and intermediates recomputed in the backward pass. An error where that
        cannot be reached.
      variance: of the entries of W at first, exact. None is 1 / (N + M), half of Glorot's.
      init: "normal": the cores are iid normal, of one variance v with v^{p+q} Π r_k = variance, as
        the paper has them. "orthogonal": random isometries G_1 … G_p and adjoint isometries
        G_{p+1} … G_{p+q}, so that all singular values of W are the same at first; products of many
        normal matrices are badly conditioned, and such layers learn slowly.
      rngs: the stream "params" is drawn from.

    Raises:
      ValueError: factors whose product is too small, or ranks that no bond can have.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TTLinear(768, 3072, rank=30, rngs=nnx.Rngs(0))
      >>> layer.in_shape, layer.out_shape, layer.ranks
      ((12, 8, 8), (12, 16, 16), (12, 30, 30, 30, 16))
      >>> layer(jnp.ones((4, 7, 768))).shape
      (4, 7, 3072)
      >>> layer.plan(4096).kind, layer.numbers
      ('halves', 32150)

    Source: Yang et al., "CoMERA: Computing- and Memory-Efficient Training via Rank-Adaptive Tensor
    Optimization" (NeurIPS 2024, arXiv 2405.14377). Departures: any numbers of factors; padding;
    the order of products follows from the batch size, where theirs is always the halves. Orthogonal
    factors: Saxe, McClelland, Ganguli, "Exact solutions to the nonlinear dynamics of learning in
    deep linear neural networks" (ICLR 2014, arXiv 1312.6120); that a train is drawn so is ours.
    """


class TTMatrixLinear(TensorLinear):
    """Linear layer whose weight is a TT-matrix (matrix product operator) with gates on its bonds.

    y = x W + bias, with W (N × M) folded into as many modes of the input as of the output:

        W[i_1 … i_d, j_1 … j_d] = G_1[i_1, j_1] D_1 G_2[i_2, j_2] D_2 … G_d[i_d, j_d],

    with N = Π n_k, M = Π m_k, G_k of size r_{k−1} × n_k × m_k × r_k and diagonal D_k =
    diag(gates[k]). With two cores it is a sum of r Kronecker products. Where `TTLinear` has a bond
    between all inputs and all outputs, so that the rank of W is at most that TT-rank, here W has
    full rank even at TT-ranks of one: of equal size it suits layers whose modes mean something, as
    rows and columns of an image do, and small layers; `TTLinear` suits weights of low rank.

    Attributes:
      cores: list of d parameters (r_{k−1}, n_k, m_k, r_k).
      gates: list of d − 1 parameters (r_k,), ones at first.
      ranks: TT-ranks r_1, …, r_{d−1} of the interior bonds.

    The others are those of `TensorLinear`.

    Args:
      in_features: N.
      out_features: M.
      rank: TT-ranks: one int, cut where a bond cannot need as much, or one per interior bond.
      in_shape: factors of N, or of a larger number: the input is padded with zeros. None chooses,
        see `tensorjax.nn.factor`.
      out_shape: factors of M, as many as of N, or of a larger number: the output is cut.
      order: number d of factors; None takes that of given factors, else what the larger side wants,
        and 2 at least. The smaller side, if its factors are not given, then stays whole if it has
        at most 32 features: those of a table, or classes, have no order that modes could follow.
      use_bias, dtype, param_dtype, precision, memory_limit, variance, rngs: as for `TTLinear`.
      init: "normal": the cores are iid normal, of one variance v with v^d Π r_k = variance.
        "orthogonal": random isometries left of the bond in the middle and adjoint ones right of it,
        of the train with the modes n_k m_k: the singular values of the unfolding at that bond are
        the same at first, and those of W are not.

    Raises:
      ValueError: factors whose product is too small, not as many of both sides, or ranks that no
        bond can have.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TTMatrixLinear(768, 3072, rank=8, rngs=nnx.Rngs(0))
      >>> layer.in_shape, layer.out_shape, layer.ranks
      ((12, 8, 8), (12, 16, 16), (8, 8))
      >>> layer(jnp.ones((4, 7, 768))).shape
      (4, 7, 3072)
      >>> small = nn.TTMatrixLinear(64, 96, rank=1, rngs=nnx.Rngs(0))
      >>> int(jnp.linalg.matrix_rank(small.weight(), 1e-6)), small.numbers
      (64, 257)

    Source: A. Novikov, D. Podoprikhin, A. Osokin, D. Vetrov, "Tensorizing neural networks"
    (NeurIPS 2015, arXiv 1509.06569). Departures: gates, padding, planned products.
    """

    def _folds(
        self, in_shape: Any, out_shape: Any, order: int | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return paired_modes((self.in_features, self.out_features), (in_shape, out_shape), order)

    def _draw(self, init: Init, rank: Any, variance: float, rngs: nnx.Rngs) -> None:
        sizes = [n * m for n, m in zip(self.in_shape, self.out_shape, strict=True)]
        ranks = train_ranks(rank, sizes)
        shapes = _weight_networks.train_matrix(self.in_shape, self.out_shape, ranks).shapes
        split = (len(sizes) + 1) // 2
        drawn = nnx.List(_initializers.train(init, rngs, shapes, split, variance, self.param_dtype))
        self.cores = drawn if self.use_bias else mark_linear(drawn)
        self.gates = ones(ranks, self.param_dtype)

    @property
    def ranks(self) -> tuple[int, ...]:
        """TT-ranks of the interior bonds of `TTMatrixLinear`'s weight."""
        return tuple(core.shape[-4] for core in self.cores[1:])

    def network(self) -> WeightNetwork:
        """Returns the tensor-network structure of `TTMatrixLinear`'s weight."""
        return _weight_networks.train_matrix(self.in_shape, self.out_shape, self.ranks)

    def arrays(self) -> list[jax.Array]:
        """Returns the cores of `TTMatrixLinear`'s weight, multiplied by its gates."""
        return _weight_networks.gated_train(*(values(part) for part in (self.cores, self.gates)))


class TuckerLinear(TuckerWeight, TensorLinear):
    """Linear layer whose weight is in Tucker format with gates on its bonds.

    y = x W + bias, with W (N × M) folded into modes as for `TTLinear`:

        W[i_1 … i_d] = Σ C[a_1 … a_d] Π_k D_k[a_k] U_k[i_k, a_k],    d = p + q.

    The core has Π s_k elements: keep d small, or the ranks. The rank of W is at most the smaller of
    s_1 … s_p and s_{p+1} … s_d.

    Attributes:
      core: parameter (s_1, …, s_d).
      factors: list of d parameters (n_k, s_k).
      gates: list of d parameters (s_k,), ones at first.
      ranks: (s_1, …, s_d).

    The others are those of `TensorLinear`.

    Args:
      in_features: N.
      out_features: M.
      rank: multilinear ranks: one int, cut at every n_k, or one per mode.
      in_shape, out_shape, order, use_bias, dtype, param_dtype, precision, memory_limit, rngs: as
        for `TTLinear`.
      variance, init: as for `TTLinear`: core and factors are iid normal of one variance, or the
        factors are isometries and so is the core, from input to output.

    Raises:
      ValueError: factors whose product is too small, or ranks above their modes.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TuckerLinear(64, 96, rank=4, order=2, rngs=nnx.Rngs(0))
      >>> layer.in_shape, layer.out_shape, layer.ranks
      ((8, 8), (8, 12), (4, 4, 4, 4))
    """


class CPLinear(CanonicalWeight, TensorLinear):
    """Linear layer whose weight is in CP format: a gated sum of R products of vectors.

    y = x W + bias, with W (N × M) folded into modes as for `TTLinear`:

        W[i_1 … i_d] = Σ_a D[a] Π_k U_k[i_k, a],    d = p + q.

    The rank of W is at most R.

    Attributes:
      factors: list of d parameters (n_k, R).
      gates: list of one parameter (R,), ones at first.
      ranks: (R,).

    The others are those of `TensorLinear`.

    Args:
      in_features: N.
      out_features: M.
      rank: R, one int; cut at the product of all modes but the largest, which always suffices.
      in_shape, out_shape, order, use_bias, dtype, param_dtype, precision, memory_limit, rngs: as
        for `TTLinear`.
      variance: as for `TTLinear`: the factors are iid normal, of one variance.
      init: "normal"; there are no orthogonal ones.

    Raises:
      ValueError: factors whose product is too small, or a rank that is not a positive integer.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.CPLinear(64, 96, rank=10, order=2, rngs=nnx.Rngs(0)).numbers
      466
    """


class TensorLinearGeneral(nnx.Module):
    """Tensorised linear layer over several axes, in place of `flax.nnx.LinearGeneral`.

    `tensorize` puts it in the place of such layers, of which `flax.nnx.MultiHeadAttention` is made:
    the axes that are contracted are folded into one, and the outputs unfolded.

    Args:
      layer: from prod(in_features) to prod(out_features).
      in_features: sizes of the axes that are contracted.
      out_features: sizes of the axes that they become, the last ones.
      axis: which axes are contracted, in the order of ``in_features``.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=nnx.Rngs(0))
      >>> small = nn.tensorize(attention, {"*": nn.TT(rank=8)})
      >>> small.query.layer.ranks, small.query(jnp.ones((2, 7, 64))).shape
      ((8, 8, 8), (2, 7, 4, 16))
    """

    def __init__(
        self,
        layer: TensorLinear,
        in_features: tuple[int, ...],
        out_features: tuple[int, ...],
        axis: tuple[int, ...],
    ):
        self.layer = layer
        self.in_features = in_features
        self.out_features = out_features
        self.axis = axis

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Applies the linear layer over the input's axes ``axis``; the outputs come last.

        Args:
          inputs: with axes of the sizes ``in_features`` at ``axis``; all others are batch axes.
          out_sharding: of the output, as for `flax.nnx.LinearGeneral`; None leaves it to JAX.

        Returns:
          (batch axes, *out_features).

        Raises:
          ValueError: those axes have other sizes.
        """
        inputs = jnp.asarray(inputs)
        count = len(self.axis)
        axes = [a % inputs.ndim for a in self.axis] if inputs.ndim >= count else []
        if tuple(inputs.shape[a] for a in axes) != self.in_features:
            raise ValueError(
                f"inputs: expected sizes {self.in_features} at the axes {self.axis}, got shape "
                f"{inputs.shape}"
            )
        y = _applied(jnp.moveaxis(inputs, axes, range(-count, 0)), self.layer, count)
        y = y.reshape(*y.shape[:-1], *self.out_features)
        return sharded(y, out_sharding)


@placed_by(like_first)
def _applied(x: jax.Array, layer: Any, count: int) -> jax.Array:
    """Applies the layer in a `TensorLinearGeneral` to the last ``count`` axes of x, flattened."""
    return layer(x.reshape(*x.shape[:-count], math.prod(x.shape[-count:])))


def flat(layer: nnx.LinearGeneral) -> nnx.Linear:
    """Converts a dense `LinearGeneral`, stacked or not, to a `Linear` with flattened axes."""
    axes = len(layer.in_features) + len(layer.out_features)

    def folded(value: Any, shape: tuple[int, ...]) -> Any:
        if isinstance(value, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(shape, value.dtype)
        return value.reshape(shape)

    kernel, bias = layer.kernel, layer.bias
    lead = kernel.shape[:-axes]
    sides = (math.prod(layer.in_features), math.prod(layer.out_features))
    made = nnx.eval_shape(
        lambda: nnx.Linear(
            *sides,
            use_bias=bias is not None,
            dtype=layer.dtype,
            param_dtype=kernel.dtype,
            precision=layer.precision,
            rngs=nnx.Rngs(0),
        )
    )
    made.kernel = cast(nnx.Param, kernel.replace(folded(kernel.get_value(), (*lead, *sides))))
    if bias is not None:
        made.bias = cast(nnx.Param, bias.replace(folded(bias.get_value(), (*lead, sides[1]))))
    return made
