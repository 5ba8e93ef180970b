"""Specifications of layers (dense, low-rank, TT, TT-matrix, Tucker, CP) of any size."""

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx

from tensorjax._typing import DTypeLike, PrecisionLike
from tensorjax.nn._convolution_base import TensorConv
from tensorjax.nn._convolution_conversion import ConvFormat, from_conv
from tensorjax.nn._convolution_layers import CPConv, LowRankConv, TTConv, TuckerConv
from tensorjax.nn._embeddings.embedding import (
    CPEmbedding,
    PaddedEmbed,
    TTEmbedding,
    TuckerEmbedding,
)
from tensorjax.nn._embeddings.embedding_conversion import from_embedding
from tensorjax.nn._embeddings.id_checks import OutOfRange
from tensorjax.nn._initializers import Init
from tensorjax.nn._linear_base import TensorLinear
from tensorjax.nn._linear_conversion import Format, from_linear
from tensorjax.nn._linear_layers import CPLinear, TTLinear, TTMatrixLinear, TuckerLinear
from tensorjax.nn._weight_conversion import Certificate


@dataclasses.dataclass(frozen=True)
class Spec(abc.ABC):
    """Base class of layer specifications: `Dense`, `LowRank`, `TT`, `TTMatrix`, `Tucker` and `CP`.

    All build fresh layers by `linear` and `embedding`. TT, TTMatrix, LowRank and, for linear
    layers, Tucker also convert dense layers, by `from_linear` and `from_embedding`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> spec = nn.TT(rank=4)
      >>> isinstance(spec, nn.Spec), spec.linear(64, 96, rngs=nnx.Rngs(0)).ranks
      (True, (4, 4, 4))
    """

    def linear(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> Any:
        """Builds a linear layer of this specification with fresh parameters.

        Args:
          in_features: N.
          out_features: M.
          use_bias: whether it has a bias.
          dtype: of the computation; None infers it from input and parameters.
          param_dtype: of the parameters.
          rngs: the stream "params" is drawn from.

        Returns:
          A layer of Flax or of `tensorjax.nn`, such as `flax.nnx.Linear` or `TTLinear`.

        Raises:
          ValueError: the specification has no rank, or sizes that do not fit.
        """
        kind, options = self._linear(in_features, out_features)
        self._need_rank(options)
        return kind(
            in_features,
            out_features,
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            rngs=rngs,
            **options,
        )

    def embedding(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        padding_idx: int | None = None,
        rngs: nnx.Rngs,
    ) -> Any:
        """Builds an embedding of this specification with fresh parameters.

        Args:
          num_embeddings: rows; ids are in [0, num_embeddings).
          features: columns.
          dtype: of the rows; None is that of the parameters.
          param_dtype: of the parameters.
          padding_idx: an id whose row is zero and has no gradient, or None.
          rngs: the stream "params" is drawn from.

        Returns:
          A layer of Flax or of `tensorjax.nn`, such as `flax.nnx.Embed` or `TTEmbedding`.

        Raises:
          ValueError: the specification has no rank, or sizes that do not fit.
        """
        kind, options = self._embedding(num_embeddings, features)
        self._need_rank(options)
        if kind is nnx.Embed:
            kind = nnx.Embed if padding_idx is None else PaddedEmbed
        if kind is not nnx.Embed:
            options["padding_idx"] = padding_idx
        return kind(
            num_embeddings, features, dtype=dtype, param_dtype=param_dtype, rngs=rngs, **options
        )

    def from_linear(
        self, layer: nnx.Linear, *, tol: float | None = None
    ) -> tuple[TensorLinear, Certificate]:
        """Converts a dense linear layer to this specification's format, by `nn.from_linear`.

        Args:
          layer: `flax.nnx.Linear`.
          tol: relative error; with a rank in the spec, the rank is at most that.

        Returns:
          (`TTLinear`, `TTMatrixLinear` or `TuckerLinear`, `Certificate`).

        Raises:
          ValueError: a format that no dense layer can be turned into, and all that
            `tensorjax.nn.from_linear` raises.
        """
        kind, options = self._linear(layer.in_features, layer.out_features)
        formats: dict[Any, Format] = {
            TTLinear: "tt", TTMatrixLinear: "tt-matrix", TuckerLinear: "tucker",
        }  # fmt: skip
        if kind not in formats:
            raise ValueError(
                "spec: expected TT, TTMatrix, LowRank or Tucker to convert a dense layer, got "
                f'{self}; use init="random" for this one'
            )
        for name in ("precision", "init"):  # it keeps those of the layer
            options.pop(name, None)
        return from_linear(layer, tol=tol, format=formats[kind], **options)

    def from_embedding(
        self, layer: nnx.Embed, *, tol: float | None = None
    ) -> tuple[TTEmbedding, Certificate]:
        """Converts a dense embedding to this specification's format, by `nn.from_embedding`.

        Args:
          layer: `flax.nnx.Embed`.
          tol: relative error; with a rank in the spec, the rank is at most that.

        Returns:
          (`TTEmbedding`, `Certificate`).

        Raises:
          ValueError: a format that no dense embedding can be turned into, and all that
            `tensorjax.nn.from_embedding` raises.
        """
        kind, options = self._embedding(layer.num_embeddings, layer.features)
        if kind is not TTEmbedding:
            raise ValueError(
                f"spec: expected TT or LowRank to convert a dense embedding, got {self}; "
                'use init="random" for this one'
            )
        options.pop("init")
        return from_embedding(layer, tol=tol, **options)

    def conv(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] = 1,
        *,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> Any:
        """Builds a convolution of this specification with fresh parameters.

        Args:
          in_features: channels of the input.
          out_features: channels of the output.
          kernel_size: of the spatial axes.
          strides: of the windows.
          rngs: the stream "params" is drawn from.
          **options: others of `TensorConv`, such as ``padding`` and ``use_bias``.

        Returns:
          A layer of Flax or of `tensorjax.nn`, such as `flax.nnx.Conv` or `TuckerConv`.

        Raises:
          ValueError: the specification has no rank, or sizes that do not fit.
        """
        kind, own = self._conv()
        self._need_rank(own)
        own |= {name: value for name, value in options.items() if value is not None}
        return kind(in_features, out_features, kernel_size, strides, rngs=rngs, **own)

    def from_conv(
        self, layer: nnx.Conv, *, tol: float | None = None
    ) -> tuple[TensorConv, Certificate]:
        """Converts a dense convolution to this specification's format, by `nn.from_conv`.

        Args:
          layer: `flax.nnx.Conv`.
          tol: relative error; with a rank in the spec, the rank is at most that.

        Returns:
          (layer of the format, `Certificate`).

        Raises:
          ValueError: all that `tensorjax.nn.from_conv` raises.
        """
        kind, own = self._conv()
        formats: dict[Any, ConvFormat] = {
            TTConv: "tt", TuckerConv: "tucker", CPConv: "cp", LowRankConv: "low rank",
        }  # fmt: skip
        if kind not in formats:
            raise ValueError(f"spec: expected a tensor format to convert to, got {self}")
        return from_conv(layer, tol=tol, rank=own["rank"], format=formats[kind])

    def _need_rank(self, options: dict[str, Any]) -> None:
        if "rank" in options and options["rank"] is None:
            raise ValueError(
                f"rank: expected a rank to make a fresh layer with, got None in {self}; only a "
                "dense layer that is converted to a tolerance can do without"
            )

    @abc.abstractmethod
    def _linear(self, in_features: int, out_features: int) -> tuple[Any, dict[str, Any]]:
        """Returns the class of linear layers that the specification builds, and its options."""

    @abc.abstractmethod
    def _embedding(self, num_embeddings: int, features: int) -> tuple[Any, dict[str, Any]]:
        """Returns the class of embeddings that the specification builds, and its options."""

    @abc.abstractmethod
    def _conv(self) -> tuple[Any, dict[str, Any]]:
        """Returns the class of convolutions that the specification builds, and its options."""


@dataclasses.dataclass(frozen=True)
class Dense(Spec):
    """Specification of dense layers: `flax.nnx.Linear` and `flax.nnx.Embed`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.Dense().linear(3, 4, rngs=nnx.Rngs(0)).kernel.shape
      (3, 4)
    """

    def _linear(self, in_features: int, out_features: int) -> tuple[Any, dict[str, Any]]:
        return nnx.Linear, {}

    def _embedding(self, num_embeddings: int, features: int) -> tuple[Any, dict[str, Any]]:
        return nnx.Embed, {}

    def _conv(self) -> tuple[Any, dict[str, Any]]:
        return nnx.Conv, {}


@dataclasses.dataclass(frozen=True)
class LowRank(Spec):
    """Specification of layers with low-rank weights W = U D V, with a gate D.

    Attributes:
      rank: of the weight; cut at the smaller number of features.
      init: "normal" or "orthogonal", as for `TTLinear`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.LowRank(4).linear(64, 96, rngs=nnx.Rngs(0)).numbers == 4 * (64 + 96 + 1) + 96
      True
    """

    rank: int | None = None
    init: Init = dataclasses.field(default="normal", kw_only=True)

    def _linear(self, in_features: int, out_features: int) -> tuple[Any, dict[str, Any]]:
        shapes = {"in_shape": (in_features,), "out_shape": (out_features,)}
        return TTLinear, {"rank": self.rank, "init": self.init, **shapes}

    def _embedding(self, num_embeddings: int, features: int) -> tuple[Any, dict[str, Any]]:
        shapes = {"num_shape": (num_embeddings, 1), "feature_shape": (1, features)}
        return TTEmbedding, {"rank": self.rank, "init": self.init, **shapes}

    def _conv(self) -> tuple[Any, dict[str, Any]]:
        return LowRankConv, {"rank": self.rank, "init": self.init}


@dataclasses.dataclass(frozen=True)
class _Format(Spec):
    """Base class of layer specifications in TT, Tucker and CP format, with common options."""

    rank: int | tuple[int, ...] | None = None
    in_shape: tuple[int, ...] | None = dataclasses.field(default=None, kw_only=True)
    out_shape: tuple[int, ...] | None = dataclasses.field(default=None, kw_only=True)
    order: int | None = dataclasses.field(default=None, kw_only=True)
    init: Init = dataclasses.field(default="normal", kw_only=True)
    precision: PrecisionLike = dataclasses.field(default=None, kw_only=True)
    memory_limit: int | None = dataclasses.field(default=None, kw_only=True)
    num_shape: tuple[int, ...] | None = dataclasses.field(default=None, kw_only=True)
    feature_shape: tuple[int, ...] | None = dataclasses.field(default=None, kw_only=True)
    capacity: int | None = dataclasses.field(default=None, kw_only=True)
    out_of_range: OutOfRange = dataclasses.field(default="error", kw_only=True)

    def __post_init__(self) -> None:
        """Converts a layer specification's lists to tuples, so that it can be hashed."""
        for name in ("rank", "in_shape", "out_shape", "num_shape", "feature_shape"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))

    def _options(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("rank", "order", "init", *names)}

    def _linear(self, in_features: int, out_features: int) -> tuple[Any, dict[str, Any]]:
        options = self._options("in_shape", "out_shape", "precision", "memory_limit")
        return self._layers()[0], options

    def _embedding(self, num_embeddings: int, features: int) -> tuple[Any, dict[str, Any]]:
        options = self._options("num_shape", "feature_shape", "capacity", "out_of_range")
        return self._layers()[1], options

    def _conv(self) -> tuple[Any, dict[str, Any]]:
        names = ("rank", "init", "precision")
        return self._layers()[2], {name: getattr(self, name) for name in names}

    @abc.abstractmethod
    def _layers(self) -> tuple[Any, Any, Any]:
        """Returns the layer classes of a tensor format: linear layers, embeddings, convolutions."""


@dataclasses.dataclass(frozen=True)
class TT(_Format):
    """Specification of tensor-train layers: `TTLinear`, `TTEmbedding`.

    Attributes:
      rank: TT-ranks: one int for all bonds, cut where one cannot need as much, or one per bond.
        None is for `tensorjax.nn.tensorize` with a tolerance, which chooses the ranks.
      in_shape, out_shape: factors of the features of a linear layer; None chooses.
      order: number of factors, where they are chosen.
      init: "normal" or, but for `CP`, "orthogonal", as for `TTLinear`.
      precision, memory_limit: as for `TTLinear`.
      num_shape, feature_shape: factors of the rows and columns of an embedding; None chooses.
      capacity, out_of_range: as for `TTEmbedding`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.TT(rank=8).linear(64, 96, rngs=nnx.Rngs(0)).ranks
      (8, 8, 8)
    """

    def _layers(self) -> tuple[Any, Any, Any]:
        return TTLinear, TTEmbedding, TTConv


@dataclasses.dataclass(frozen=True)
class TTMatrix(_Format):
    """Specification of TT-matrix layers: `TTMatrixLinear`, `TTEmbedding`.

    They save parameters and optimiser state, and no time in products with many rows: from about 256
    features on these are planned with the dense matrix, where those of `TT` and `LowRank` of equal
    size are faster.

    Attributes:
      rank: TT-ranks: one int for all bonds, cut where one cannot need as much, or one per bond;
        None as for `TT`.
      in_shape, out_shape, order, init, precision, memory_limit, num_shape, feature_shape,
        capacity, out_of_range: as for `TT`. Convolutions are those of `TT`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.TTMatrix(rank=8).linear(64, 96, rngs=nnx.Rngs(0)).ranks
      (8,)
      >>> [spec.linear(512, 2048, rngs=nnx.Rngs(0)).plan(128).kind
      ...  for spec in (nn.TTMatrix(rank=27), nn.LowRank(40))]
      ['dense', 'halves']
    """

    def _layers(self) -> tuple[Any, Any, Any]:
        return TTMatrixLinear, TTEmbedding, TTConv


@dataclasses.dataclass(frozen=True)
class Tucker(_Format):
    """Specification of Tucker layers: `TuckerLinear`, `TuckerEmbedding`.

    Attributes:
      rank: multilinear ranks: one int, cut at every mode, or one per mode; None as for `TT`.
      in_shape, out_shape, order, init, precision, memory_limit, num_shape, feature_shape,
        capacity, out_of_range: as for `TT`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.Tucker(rank=3, order=2).linear(64, 96, rngs=nnx.Rngs(0)).ranks
      (3, 3, 3, 3)
    """

    def _layers(self) -> tuple[Any, Any, Any]:
        return TuckerLinear, TuckerEmbedding, TuckerConv


@dataclasses.dataclass(frozen=True)
class CP(_Format):
    """Specification of CP layers, sums of products of vectors: `CPLinear`, `CPEmbedding`.

    Attributes:
      rank: number of terms.
      in_shape, out_shape, order, init, precision, memory_limit, num_shape, feature_shape,
        capacity, out_of_range: as for `TT`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> nn.CP(rank=10).linear(64, 96, rngs=nnx.Rngs(0)).ranks
      (10,)
    """

    def _layers(self) -> tuple[Any, Any, Any]:
        return CPLinear, CPEmbedding, CPConv
