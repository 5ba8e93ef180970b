"""Base class of the compressed embeddings: lookups, logits, bags of rows, dense table."""

import abc
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes
from jax.sharding import PartitionSpec

from tensorjax import _check, _symbolic, contract, linalg
from tensorjax._kernels.choice import choose_kernel, is_cpp_default
from tensorjax._kernels.table import CPP, TRACE
from tensorjax._placement import like_first, placed, placed_by, sharded
from tensorjax._typing import ArrayLike, DTypeLike, OutSharding
from tensorjax.nn._embeddings import table_networks as networks
from tensorjax.nn._embeddings.compiled_lookup import lookup
from tensorjax.nn._embeddings.id_checks import OutOfRange, as_integers, resolve
from tensorjax.nn._embeddings.lookup_plan import LookupPlan, make_plan, symbolic_plan
from tensorjax.nn._embeddings.table_networks import LookupNetwork
from tensorjax.nn._initializers import Init, check_init
from tensorjax.nn._layer_base import GatedLayer
from tensorjax.nn._mode_factors import modes
from tensorjax.nn._parameters import MAX_BYTES, check_bytes, check_rngs, checked_dtype, values

_lookup = jax.jit(lookup, static_argnums=0, inline=True)
Mode = Literal["sum", "mean"]


def fold(
    num_embeddings: int,
    features: int,
    num_shape: Sequence[int] | None,
    feature_shape: Sequence[int] | None,
    order: int | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns row and column mode sizes of an embedding table: those given, checked, or chosen.

    Args:
      num_shape: factors whose product is at least ``num_embeddings``, or None.
      feature_shape: factors whose product is at least ``features``, or None.
      order: number of factors, or None.
    """
    _check.integer("num_embeddings", num_embeddings, low=1)
    _check.integer("features", features, low=1)
    if order is None and num_shape is None and feature_shape is not None:
        order = len(_check.shape("feature_shape", feature_shape))
    rows = modes(num_embeddings, num_shape, order, "num_shape")
    columns = modes(features, feature_shape, len(rows) if feature_shape is None else None,
                    "feature_shape")  # fmt: skip
    if len(rows) != len(columns):
        raise ValueError(
            f"feature_shape: expected {len(rows)} factors, as many as num_shape = {rows}, got "
            f"{columns}; fill the shorter one up with ones"
        )
    return rows, columns


def _real(name: str, dtype: Any) -> np.dtype:
    found = checked_dtype(name, dtype)
    if not jnp.issubdtype(found, jnp.floating):
        raise TypeError(f"{name}: expected a real floating-point type, got {dtype!r}")
    return found


class Embedding(GatedLayer):
    """Base class of compressed embeddings; use `TTEmbedding`, `TuckerEmbedding`, `CPEmbedding`.

    A table E (num_embeddings, features) is held as factors with gates; rows are made when ids are
    looked up.

    Args:
      num_embeddings: rows; ids are in [0, num_embeddings).
      features: columns.
      rank: ranks, one int or one per bond or mode, as for the subclass.
      num_shape: factors of the rows; None chooses.
      feature_shape: factors of the columns; None chooses.
      order: number of factors, where they are chosen.
      dtype: of the rows; None is that of the parameters.
      param_dtype: of the parameters.
      padding_idx: an id whose row is zero and has no gradient, or None.
      capacity: distinct ids that rows are made for at a time; None chooses.
      out_of_range: policy for ids outside the table, as for `TTEmbedding`.
      variance: of the entries of the fresh table.
      init: "normal" or, for some formats, "orthogonal", as for `TTEmbedding`.
      rngs: the stream "params" is drawn from.

    Raises:
      TypeError: a dtype that is not real and floating.
      ValueError: sizes, factors, ranks or options that do not fit, by name.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.CPEmbedding(1000, 64, rank=8, rngs=nnx.Rngs(0))
      >>> isinstance(layer, nn.Embedding), layer(jnp.array([3, 999])).shape
      (True, (2, 64))
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        rank: int | Sequence[int],
        num_shape: Sequence[int] | None = None,
        feature_shape: Sequence[int] | None = None,
        order: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        padding_idx: int | None = None,
        capacity: int | None = None,
        out_of_range: OutOfRange = "error",
        variance: float = 1.0,
        init: Init = "normal",
        rngs: nnx.Rngs,
    ):
        self.num_shape, self.feature_shape = fold(
            num_embeddings, features, num_shape, feature_shape, order
        )
        self.num_embeddings, self.features = int(num_embeddings), int(features)
        check_rngs(rngs)
        self.dtype = None if dtype is None else _real("dtype", dtype)
        self.param_dtype = _real("param_dtype", param_dtype)
        if padding_idx is not None:
            padding_idx = _check.integer("padding_idx", padding_idx, low=0, high=num_embeddings - 1)
        if capacity is not None:
            capacity = _check.integer("capacity", capacity, low=1)
        self.padding_idx, self.capacity = padding_idx, capacity
        choices = get_args(OutOfRange)
        self.out_of_range: OutOfRange = _check.choice("out_of_range", out_of_range, choices)
        if not 0 < variance < math.inf:
            raise ValueError(f"variance: expected a positive number, got {variance!r}")
        self._draw(check_init(init), rank, variance, rngs)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of any compressed embedding's table: TT-ranks, multilinear ranks, or (R,) of CP."""
        return tuple(gate.shape[-1] for gate in self.gates)

    @abc.abstractmethod
    def _network(self) -> tuple[list[jax.Array], LookupNetwork]:
        """Returns arrays of any compressed embedding's table without gates, and their structure."""

    def _gated(self) -> tuple[list[jax.Array], LookupNetwork]:
        """Returns arrays of any compressed embedding's table, with gates, and their structure."""
        arrays, network = self._network()
        return networks.gated(network, arrays, values(self.gates)), network

    def plan(self, count: int) -> LookupPlan:
        """Plans the lookup of ``count`` ids in any compressed embedding, with operation counts.

        Args:
          count: how many ids a call looks up, repeated ones included.

        Returns:
          `LookupPlan`; print it for the order of the products.
        """
        _check.integer("count", count, low=0)
        return self._plan(*self._network(), count, is_cpp_default())

    def _plan(
        self, operands: list[jax.Array], network: LookupNetwork, count: Any, sweeps: bool = True
    ) -> LookupPlan:
        """Plans any compressed embedding's lookup of ids, by compiled CPU code where possible."""
        if not _symbolic.is_static(count):
            return symbolic_plan(network, self.features, self.capacity, self.num_embeddings)
        held = (*operands, *values(self.gates))
        facts = {
            "kept_dtype": self.dtype in (None, held[0].dtype),
            "rows": math.prod(self.num_shape),
            "train": networks.is_train(network) and network.order > 1,
            "unlimited": self.capacity is None or self.capacity >= count,
        }
        compiled = sweeps and choose_kernel("nn.TTEmbedding", held, TRACE, **facts) is CPP
        return make_plan(
            network, self.features, count, self.capacity, self.num_embeddings, compiled=compiled
        )

    def __call__(self, ids: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Looks up the rows of integer ids in any compressed embedding's table.

        Args:
          ids: (…), integers of any type. A number of them that `jax.export` leaves open is planned
            as 1024: looked up as they are, or in rounds of ``capacity`` distinct ones if it is
            given.
          out_sharding: of the rows, as for `flax.nnx.Embed`; None leaves it to JAX, and on
            an explicit mesh shards them as the ids are.

        Returns:
          (…, features), of the type ``dtype`` of the layer.

        Raises:
          TypeError: ``ids`` are not integers.
          ValueError: an id is out of range, if ids are concrete and ``out_of_range="error"``.
        """
        where = resolve(
            ids,
            rows=self.num_embeddings,
            size=math.prod(self.num_shape),
            padding_idx=self.padding_idx,
            out_of_range=self.out_of_range,
        )
        operands, network = self._network()
        none = _symbolic.is_static(where.size) and not where.size
        if none or any(not x.size for x in operands):  # no ids, or a bond of rank 0
            lost = (where > math.prod(self.num_shape))[..., None]
            fill = jnp.where(lost, jnp.nan, 0.0).astype(self.dtype or operands[0].dtype)
            return sharded(jnp.broadcast_to(fill, (*where.shape, self.features)), out_sharding)
        request = self._plan(operands, network, where.size)._request._replace(dtype=self.dtype)
        return sharded(_rows(where, request, operands, values(self.gates)), out_sharding)

    def attend(self, query: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Computes the logits query · Eᵀ for all rows of the table E, as `flax.nnx.Embed.attend`.

        Args:
          query: (…, features).
          out_sharding: of the logits, as for `flax.nnx.Embed`; None is as for calls.

        Returns:
          (…, num_embeddings). The order of the products is planned for the number of queries; the
          table is materialised only where that is cheapest. The logit of a padding id is 0.

        Raises:
          ValueError: ``query`` has another last axis.
        """
        query = jnp.asarray(query)
        if query.ndim == 0 or query.shape[-1] != self.features:
            raise ValueError(f"query: expected shape (…, {self.features}), got {query.shape}")
        operands, network = self._gated()
        query, *operands = dtypes.promote_dtype((query, *operands), dtype=self.dtype)
        return sharded(_logits(query, self._attended, network, operands), out_sharding)

    def _attended(
        self, query: jax.Array, network: LookupNetwork, operands: list[jax.Array]
    ) -> jax.Array:
        lead, order = query.shape[:-1], len(self.num_shape)
        batch = math.prod(lead)
        rows = query.reshape(batch, self.features)
        rows = jnp.pad(rows, ((0, 0), (0, math.prod(self.feature_shape) - self.features)))
        # The network's own labels for its axes; a fresh one for the queries.
        every = networks.bond(order + 1)
        columns = [networks.column(k) for k in range(order)]
        interleaved: list[Any] = [rows.reshape(batch, *self.feature_shape), [every, *columns]]
        for array, term in zip(operands, network.terms, strict=True):
            interleaved += [array, [*term]]
        if any(not x.size for x in interleaved[::2]):
            return jnp.zeros((*lead, self.num_embeddings), query.dtype)
        logits = contract.einsum(*interleaved, [every, *range(order)])
        logits = logits.reshape(batch, -1)[:, : self.num_embeddings]
        if self.padding_idx is not None:
            logits = jnp.where(
                (jnp.arange(self.num_embeddings) == self.padding_idx)[None, :],
                jnp.zeros((), query.dtype),
                logits,
            )
        return logits.reshape(*lead, self.num_embeddings)

    def table(self, *, max_bytes: int = MAX_BYTES) -> jax.Array:
        """Returns any compressed embedding's table as a dense array (num_embeddings, features).

        Args:
          max_bytes: the largest array that may be made, the padding of the modes included.

        Returns:
          (num_embeddings, features), of the parameters' dtype; the row of a padding id is zero.

        Raises:
          ValueError: the table needs more than ``max_bytes``.
        """
        operands, network = self._gated()
        sides = (math.prod(self.num_shape), math.prod(self.feature_shape))
        check_bytes(math.prod(sides), operands[0].dtype, max_bytes)
        if any(not x.size for x in operands):
            return jnp.zeros((self.num_embeddings, self.features), operands[0].dtype)
        return _table(network, operands, (self.num_embeddings, self.features), self.padding_idx)

    def bag(
        self,
        ids: ArrayLike,
        *,
        segments: ArrayLike | None = None,
        num_bags: int | None = None,
        weights: ArrayLike | None = None,
        mode: Mode = "sum",
    ) -> jax.Array:
        """Computes the sum or mean of the embedding rows of each bag of ids, perhaps weighted.

        Args:
          ids: (…, length): each last axis is a bag, filled up with the padding id. Or (n,) with
            ``segments``.
          segments: (n,), the bag of each id, in any order; those outside [0, num_bags) count for
            none.
          num_bags: how many bags there are, with ``segments``.
          weights: of the shape of ``ids``; None is all ones.
          mode: "sum", or "mean": over the ids that have a row, neither padding nor zero for being
            out of range (the sum of their weights is the divisor); that of an empty bag is zero.

        Returns:
          (…, features), or (num_bags, features) with ``segments``; of the dtype of the rows, but
          summed in single precision at least.

        Raises:
          ValueError: shapes that do not fit, ``segments`` without ``num_bags`` or the other way
            round, another mode.
          TypeError: ``ids`` or ``segments`` are not integers.
        """
        _check.choice("mode", mode, get_args(Mode))
        if segments is None and num_bags is not None:
            raise ValueError(
                f"num_bags: expected None without segments, got {num_bags!r}; each last axis of "
                "ids is a bag"
            )
        array = as_integers(ids)
        if array.ndim == 0 or (segments is not None and array.ndim != 1):
            expected = "(…, length)" if segments is None else "(n,) with segments"
            raise ValueError(f"ids: expected shape {expected}, got {array.shape}")
        rows = self(ids)
        dtype, wide = rows.dtype, linalg.factor_dtype(rows.dtype)
        rows, share = rows.astype(wide), jnp.ones(array.shape, wide)
        if weights is not None:
            share = jnp.asarray(weights).astype(wide)
            if share.shape != array.shape:
                raise ValueError(
                    f"weights: expected the shape {array.shape} of ids, got {share.shape}"
                )
        if self.padding_idx is not None:
            where = array
            if self.out_of_range == "clip":  # onto the padding id, perhaps
                where = where.clip(0, self.num_embeddings - 1)
            share = jnp.where(jnp.asarray(where) == self.padding_idx, jnp.zeros_like(share), share)
        if self.out_of_range == "zero":
            outside = (array < 0) | (array >= self.num_embeddings)
            share = jnp.where(jnp.asarray(outside), jnp.zeros_like(share), share)
        if segments is None:
            total = contract.einsum("...lf,...l->...f", rows, share)
            divisor = share.sum(-1)
        else:
            total, divisor = _segmented(rows, share, segments, num_bags)
        if mode == "sum":
            return total.astype(dtype)
        divisor = jnp.where(divisor == 0, jnp.ones_like(divisor), divisor)
        return (total / divisor[..., None]).astype(dtype)


@placed
def _table(
    network: LookupNetwork, operands: Any, shape: tuple[int, int], padding_idx: int | None
) -> jax.Array:
    whole = networks.dense(network, operands)[: shape[0], : shape[1]]
    return whole if padding_idx is None else whole.at[padding_idx].set(jnp.zeros((), whole.dtype))


@placed_by(like_first)
def _rows(
    where: jax.Array, request: Any, operands: list[jax.Array], gates: list[jax.Array]
) -> jax.Array:
    rows = _lookup(request, operands, gates, where.reshape(-1))
    return rows.reshape(*where.shape, rows.shape[-1])


@placed_by(like_first)
def _logits(query: jax.Array, attended: Any, network: LookupNetwork, operands: Any) -> jax.Array:
    return attended(query, network, operands)


@placed_by(lambda out, _: [PartitionSpec()] * len(out))
def _segmented(
    rows: jax.Array, share: jax.Array, segments: Any, num_bags: int | None
) -> tuple[jax.Array, jax.Array]:
    if num_bags is None:
        raise ValueError("num_bags: expected the number of bags with segments, got None")
    count = _check.integer("num_bags", num_bags, low=0)
    where = as_integers(segments, "segments")
    if where.shape != share.shape:
        raise ValueError(f"segments: expected the shape {share.shape} of ids, got {where.shape}")
    where = jnp.asarray(where)
    where = jnp.where((where < 0) | (where >= count), count, where)

    def summed(x: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x, where, count, mode="drop")

    return summed(rows * share[:, None]), summed(share)
