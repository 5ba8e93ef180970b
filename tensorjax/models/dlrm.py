"""DLRM: deep learning recommendation model on dense and categorical features.

Source: M. Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", arXiv 1906.00091.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorjax import nn
from tensorjax._typing import DTypeLike
from tensorjax.models._checks import check_ids, check_sizes, check_spec, rows_of
from tensorjax.models._initial_layers_and_loss import fresh_linear, with_spread

__all__ = ["DLRM", "DLRMConfig"]
__dir__ = __all__.copy  # for `dir`: the public names alone


# Rows of the 26 tables of the Criteo Kaggle data.
_CRITEO = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class DLRMConfig:
    """Configuration of a DLRM: sizes, and the thresholds below which layers stay dense.

    Attributes:
      dense: number of dense features.
      tables: rows of each embedding table.
      features: width of the embeddings and of the bottom MLP's output.
      bottom: hidden widths of the MLP of the dense features.
      top: hidden widths of the MLP of the interactions; one logit follows.
      table_from: tables with fewer rows stay dense.
      linear_from: linear layers with a smaller in_features × out_features stay dense.

    Raises:
      ValueError: a size that is no positive integer, or no tables.

    Example:
      >>> from tensorjax.models.dlrm import DLRMConfig
      >>> len(DLRMConfig.criteo().tables), sum(DLRMConfig.criteo().tables)
      (26, 33762577)
    """

    dense: int
    tables: tuple[int, ...]
    features: int = 16
    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (512, 256)
    table_from: int = 1000
    linear_from: int = 4096

    def __post_init__(self) -> None:
        """Raises ValueError unless the sizes of a DLRM are valid."""
        check_sizes(self, ("dense", "features"))
        check_sizes(self, ("table_from", "linear_from"), low=0)
        for name in ("tables", "bottom", "top"):
            widths = getattr(self, name)
            if any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1
                   for n in widths):  # fmt: skip
                raise ValueError(f"{name}: expected ints of at least 1, got {widths!r}")
            object.__setattr__(self, name, tuple(map(int, widths)))
        if not self.tables:
            raise ValueError("tables: expected at least one, got none; use an MLP instead")

    @classmethod
    def criteo(cls) -> "DLRMConfig":
        """Returns the DLRM configuration for Criteo Kaggle data: 26 tables, 540M parameters.

        Returns:
          `DLRMConfig` of 13 dense features and 26 tables.
        """
        return cls(dense=13, tables=_CRITEO)

    @classmethod
    def tiny(cls, **changes: Any) -> "DLRMConfig":
        """Returns a small DLRM configuration for tests: three tables and narrow MLPs.

        Args:
          **changes: fields of the configuration that replace these.

        Returns:
          `DLRMConfig` of 4 dense features and tables of 5, 60 and 3000 rows.
        """
        sizes = {"dense": 4, "tables": (5, 60, 3000), "features": 8, "bottom": (16,), "top": (32,)}
        return cls(**{**sizes, "table_from": 50, "linear_from": 256, **changes})


class _MLP(nnx.Module):
    """Multilayer perceptron of the DLRM model: ReLU between layers, and at the ``end`` if asked."""

    def __init__(
        self, widths: tuple[int, ...], linear: nn.Spec, threshold: int, end: bool, **options: Any
    ) -> None:
        dense = nn.Dense()
        self.layers = nnx.List(
            [
                fresh_linear(linear if n * m >= threshold and m > 1 else dense, n, m, **options)
                for n, m in itertools.pairwise(widths)
            ]
        )
        self.end = end

    def __call__(self, x: jax.Array) -> jax.Array:
        for number, layer in enumerate(self.layers, 1):
            x = layer(x)
            if self.end or number < len(self.layers):
                x = jax.nn.relu(x)
        return x


class DLRM(nnx.Module):
    """DLRM, a deep learning recommendation model: bottom MLP, embeddings, dot products, top MLP.

    With z₀ the bottom MLP's output and z_k the row of table k, the top MLP sees z₀ and all zᵢ·zⱼ,
    j < i. Tables and layers below the thresholds of the configuration stay dense, whatever the
    specs are.

    Args:
      config: sizes.
      linear: spec of the linear layers.
      embedding: spec of the tables.
      dtype: of the computation; that of the parameters if None.
      param_dtype: of the parameters.
      rngs: stream "params".

    Raises:
      TypeError: a spec that is no layer specification of `tensorjax.nn`.
      ValueError: sizes or shapes that do not fit, by name.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> from tensorjax.models.dlrm import DLRM, DLRMConfig
      >>> model = DLRM(DLRMConfig.tiny(), embedding=nn.TT(rank=4), rngs=nnx.Rngs(0))
      >>> model(jnp.ones((2, 4)), jnp.array([[0, 59, 17], [4, 3, 2999]])).shape
      (2,)

    Source: Naumov et al., arXiv 1906.00091, section 2.2, one category per table; ReLU after the
    last bottom layer too, as in the released code. Departure: tables begin normal with
    variance 1 / features, not uniform.
    """

    def __init__(
        self,
        config: DLRMConfig,
        *,
        linear: nn.Spec = nn.Dense(),  # noqa: B008  (a frozen dataclass)
        embedding: nn.Spec = nn.Dense(),  # noqa: B008
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        linear, embedding = check_spec("linear", linear), check_spec("embedding", embedding)
        dense, count = nn.Dense(), len(config.tables) + 1
        self.config = config
        self.tables = nnx.List(
            [
                with_spread(
                    (embedding if rows >= config.table_from else dense).embedding(
                        rows, config.features, **options
                    ),
                    config.features**-0.5,
                )
                for rows in config.tables
            ]
        )
        width = config.features
        bottom, top = (config.dense, *config.bottom, width), (*config.top, 1)
        pairs = count * (count - 1) // 2
        self.bottom = _MLP(bottom, linear, config.linear_from, end=True, **options)
        self.top = _MLP((width + pairs, *top), linear, config.linear_from, end=False, **options)

    def __call__(self, dense: jax.Array, categories: jax.Array) -> jax.Array:
        """Computes a DLRM's logits (batch,) from dense and categorical features.

        Args:
          dense: floats (batch, dense).
          categories: integers (batch, number of tables), column k in [0, tables[k]). Others are a
            ValueError; where ids are traced, as under `jax.jit`, the logit of their row is NaN.

        Returns:
          (batch,), one unnormalised logit for each row.

        Raises:
          ValueError: shapes that do not fit, or categories out of range.
        """
        dense, shape = jnp.asarray(dense), np.shape(categories)
        batch = dense.shape[0] if dense.ndim else 0
        for name, found, width in (
            ("dense", dense.shape, self.config.dense),
            ("categories", shape, len(self.config.tables)),
        ):
            if found != (batch, width):
                raise ValueError(f"{name}: expected shape (batch, {width}), got {found}")
        categories = check_ids("categories", categories, self.config.tables, 2)
        first = self.bottom(dense)
        tables = zip(self.tables, self.config.tables, strict=True)
        rows = [rows_of(table, categories[:, k], n) for k, (table, n) in enumerate(tables)]
        z = jnp.stack([first, *rows], axis=1)
        products = jnp.einsum("bif,bjf->bij", z, z)
        below = np.tril_indices(z.shape[1], -1)
        top = self.top(jnp.concatenate([first, products[:, *below]], axis=1))
        return top[:, 0]
