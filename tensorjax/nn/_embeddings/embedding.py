"""Embedding layers: tables in TT-matrix, Tucker or CP format with gates, or dense with padding."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tensorjax import _check, _ids
from tensorjax._typing import ArrayLike, OutSharding
from tensorjax.nn import _initializers
from tensorjax.nn._embeddings import table_networks as networks
from tensorjax.nn._embeddings.embedding_base import Embedding
from tensorjax.nn._embeddings.table_networks import LookupNetwork
from tensorjax.nn._initializers import Init
from tensorjax.nn._mode_factors import bounded, train_ranks
from tensorjax.nn._parameters import ones, values


class TTEmbedding(Embedding):
    """Embedding whose table is a TT-matrix with gates on its bonds.

    With rows i = (i_1 … i_D) and columns j = (j_1 … j_D), both folded into modes,

        E[i, j] = G_1[i_1, j_1] D_1 G_2[i_2, j_2] D_2 … G_D[i_D, j_D],

    G_k[i, j] of size r_{k−1} × r_k and diagonal D_k = diag(gates[k]).

    How ids are looked up is planned on how many there are (`plan`): one core at a time for few;
    from tables of the products of several cores, such as the two halves, for many; by way of the
    dense table where ids outnumber its rows. Many ids are sorted, and rows are made for the
    distinct ones, ``capacity`` of them at a time, in as many rounds as it takes. On one CPU, in
    single or double precision, compiled code makes the rows of distinct ids where it was built,
    from cores or products of neighbouring ones; it needs no capacity, and serves unless one is
    given that the ids exceed. Of a narrow table the program counts the distinct ids, and makes the
    dense table where they are more than the plan says. No other program holds the table.

    A lookup in a dense table is a copy, and faster than any of these, but its gradient and the
    update of a training step are as large as the table. On a CPU training steps are faster here in
    wide tables that are asked for far fewer ids than rows, and slower than dense in narrow tables
    and with about as many ids as rows (``bench/layers``, group "embedding-step"). Where rows are
    looked up forward alone and the table has room in memory, make it once:
    `tensorjax.nn.to_embedding`, or `tensorjax.nn.detensorize` for a whole model.

    Attributes:
      cores: list of D parameters (r_{k−1}, m_k, n_k, r_k), with r_0 = r_D = 1.
      gates: list of D − 1 parameters (r_k,), ones at first.
      num_shape: factors (m_1, …, m_D) of the ids; rows above num_embeddings are never read.
      feature_shape: factors (n_1, …, n_D) of the features; columns above are cut.
      ranks: TT-ranks r_1, …, r_{D−1} of the interior bonds.
      numbers: number of parameters.

    Args:
      num_embeddings: rows of the table; ids are in [0, num_embeddings).
      features: columns.
      rank: TT-ranks: one int, cut where a bond cannot need as much, or one per interior bond.
      num_shape: factors whose product is at least num_embeddings. None chooses.
      feature_shape: as many factors whose product is at least features. None chooses.
      order: number of factors, where they are chosen.
      dtype: of the rows and of the computation; None is that of the parameters.
      param_dtype: of the parameters.
      padding_idx: an id whose row is zero and has no gradient, or None.
      capacity: distinct ids that rows are made for at a time. None chooses 2 n^{3/4} of n ids if
        there are at least 256, which is enough for words; fewer are looked up as they are, as are
        any n that do not exceed the capacity given.
      out_of_range: what becomes of ids below zero or from num_embeddings on. "error": a ValueError;
        where ids are traced, as under `jax.jit`, nothing can raise, and the row is NaN, as that of
        `jax.numpy.take`. "clip": the nearest id. "zero": a row of zeros. No gradient comes of them,
        unless clipped. Negative ids do not count from the end.
      variance: of the entries of the table at first, exact.
      init: "normal": the cores are iid normal, of one variance v with v^D Π r_k = variance.
        "orthogonal": isometries left of the bond in the middle, adjoint ones right of it.
      rngs: the stream "params" is drawn from.

    Raises:
      ValueError: factors whose product is too small, ranks that no bond can have, options out of
        range.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TTEmbedding(30522, 768, rank=32, num_shape=(16, 20, 10, 10),
      ...                        feature_shape=(4, 4, 8, 6), padding_idx=0, capacity=1024,
      ...                        rngs=nnx.Rngs(0))
      >>> layer(jnp.array([[0, 7], [5, 30521]])).shape, layer.ranks, layer.numbers
      ((2, 2, 768), (32, 32, 32), 167904)
      >>> print(layer.plan(4096))
      4096 ids: 1024 distinct ids at a time
      table of modes 0, 1: 320 rows of 512
      table of modes 2, 3: 100 rows of 1536
      forward 7.06e+07 flops, with backward 2.62e+08

    Sources: Z. Yang et al., "CoMERA: Computing- and memory-efficient training via rank-adaptive
    tensor optimization" (NeurIPS 2024), for gates and for lookups of distinct ids by halves;
    O. Hrinchuk et al., "Tensorized embedding layers" (Findings of EMNLP 2020), for the TT-matrix.
    Departures: which partial products become tables follows from the number of ids, where theirs
    are always the halves; more distinct ids than there is room for cost rounds.

    Where ids are looked up distinct or by compiled code, reverse mode is built in
    (`jax.custom_vjp`): forward mode then works on gradients, but not on the layer itself, and with
    distinct ids reverse mode only once. Derivatives of gradients of compiled code are XLA's, of all
    ids as they are: they need memory for the partial products of every id. `jax.vmap` over ids
    looks up each example by itself: one call with all ids is faster. Programs for other platforms,
    for several devices and those of `jax.export` hold XLA's lookups, in both directions.
    """

    def _draw(self, init: Init, rank: Any, variance: float, rngs: nnx.Rngs) -> None:
        pairs = list(zip(self.num_shape, self.feature_shape, strict=True))
        ranks = train_ranks(rank, [m * n for m, n in pairs])
        full = (1, *ranks, 1)
        shapes = [(full[k], *pair, full[k + 1]) for k, pair in enumerate(pairs)]
        split = len(shapes) // 2
        drawn = _initializers.train(init, rngs, shapes, split, variance, self.param_dtype)
        self.cores = nnx.List(drawn)
        self.gates = ones(ranks, self.param_dtype)

    def _network(self) -> tuple[list[jax.Array], LookupNetwork]:
        cores = values(self.cores)
        return cores, networks.train([c.shape for c in cores])


class TuckerEmbedding(Embedding):
    """Embedding whose table is in Tucker format with gates on its bonds.

    With rows and columns folded into modes as those of `TTEmbedding`,

        E[i, j] = Σ C[a_1 … a_D] Π_k D_k[a_k] U_k[i_k, j_k, a_k].

    The core has Π s_k elements: keep D small, or the ranks. Lookups are planned as there.

    Attributes:
      core: parameter (s_1, …, s_D).
      factors: list of D parameters (m_k, n_k, s_k).
      gates: list of D parameters (s_k,), ones at first.
      ranks: (s_1, …, s_D).

    The others are those of `TTEmbedding`.

    Args:
      num_embeddings: rows of the table.
      features: columns.
      rank: multilinear ranks: one int, cut at every m_k n_k, or one per mode.
      num_shape, feature_shape, order, dtype, param_dtype, padding_idx, capacity, out_of_range,
        rngs: as for `TTEmbedding`.
      variance, init: as for `TTEmbedding`: core and factors are iid normal of one variance, or
        isometries.

    Raises:
      ValueError: as `TTEmbedding`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.TuckerEmbedding(1000, 64, rank=8, order=3, rngs=nnx.Rngs(0))
      >>> layer([3, 1, 3]).shape, layer.ranks
      ((3, 64), (8, 8, 8))
    """

    def _draw(self, init: Init, rank: Any, variance: float, rngs: nnx.Rngs) -> None:
        pairs = list(zip(self.num_shape, self.feature_shape, strict=True))
        ranks = bounded(rank, [m * n for m, n in pairs], "mode")
        shapes = [(*pair, s) for pair, s in zip(pairs, ranks, strict=True)]
        split = len(shapes) // 2
        drawn = _initializers.tucker(init, rngs, ranks, shapes, split, variance, self.param_dtype)
        self.core, self.factors = drawn[0], nnx.List(drawn[1:])
        self.gates = ones(ranks, self.param_dtype)

    def _network(self) -> tuple[list[jax.Array], LookupNetwork]:
        arrays = [self.core[...], *values(self.factors)]
        return arrays, networks.tucker([x.shape for x in arrays])


class CPEmbedding(Embedding):
    """Embedding whose table is in CP format, a gated sum of products of vectors.

    With rows and columns folded into modes as those of `TTEmbedding`,

        E[i, j] = Σ_a D[a] Π_k U_k[i_k, j_k, a].

    Attributes:
      factors: list of D parameters (m_k, n_k, R).
      gates: list of one parameter (R,), ones at first.
      ranks: (R,).

    The others are those of `TTEmbedding`.

    Args:
      num_embeddings: rows of the table.
      features: columns.
      rank: number of terms R, one int; cut at the product of all m_k n_k but the largest, which
        always suffices.
      num_shape, feature_shape, order, dtype, param_dtype, padding_idx, capacity, out_of_range,
        rngs: as for `TTEmbedding`.
      variance: as for `TTEmbedding`: the factors are iid normal, of one variance.
      init: "normal"; there are no orthogonal ones.

    Raises:
      ValueError: as `TTEmbedding`.

    Example:
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.CPEmbedding(1000, 64, rank=20, order=3, rngs=nnx.Rngs(0))
      >>> layer([3, 1, 3]).shape, layer.ranks
      ((3, 64), (20,))
    """

    def _draw(self, init: Init, rank: Any, variance: float, rngs: nnx.Rngs) -> None:
        pairs = list(zip(self.num_shape, self.feature_shape, strict=True))
        sizes = [m * n for m, n in pairs]
        (terms,) = bounded(rank, [math.prod(sizes) // max(sizes)], "sum")
        shapes = [(*pair, terms) for pair in pairs]
        drawn = _initializers.canonical(init, rngs, shapes, variance, self.param_dtype)
        self.factors = nnx.List(drawn)
        self.gates = ones([terms], self.param_dtype)

    def _network(self) -> tuple[list[jax.Array], LookupNetwork]:
        factors = values(self.factors)
        return factors, networks.canonical([x.shape for x in factors])


class PaddedEmbed(nnx.Embed):
    """Dense `flax.nnx.Embed` with a padding id, whose row is zero and has no gradient.

    The rows of ids outside [0, num_embeddings) are NaN; negative ones do not count from the end.

    Args:
      num_embeddings: rows.
      features: columns.
      padding_idx: the id.
      **options: those of `flax.nnx.Embed`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from tensorjax import nn
      >>> layer = nn.Dense().embedding(5, 2, padding_idx=0, rngs=nnx.Rngs(0))
      >>> bool(layer(jnp.array([0, 3]))[0].any())
      False
    """

    def __init__(self, num_embeddings: int, features: int, *, padding_idx: int, **options: Any):
        super().__init__(num_embeddings, features, **options)
        self.padding_idx = _check.integer(
            "padding_idx", padding_idx, low=0, high=num_embeddings - 1
        )

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Looks up embedding rows: zeros for the padding id, NaN for ids out of range.

        Args:
          inputs: integers (…).
          out_sharding: of the rows, as for `flax.nnx.Embed`.

        Returns:
          (…, features).
        """
        inputs = jnp.asarray(inputs)
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            return super().__call__(inputs, out_sharding)  # Flax says what is wrong
        ids = _ids.as_int32(inputs, self.num_embeddings)
        valid = _ids.inside(ids, self.num_embeddings)
        rows = super().__call__(jnp.where(valid, ids, 0), out_sharding)
        rows = jnp.where((ids == self.padding_idx)[..., None], 0, rows)
        return _ids.or_nan(rows, valid)

    def attend(self, query: ArrayLike, out_sharding: OutSharding = None) -> jax.Array:
        """Computes the logits for all embedding rows; that of the padding id is 0.

        Args:
          query: (…, features).
          out_sharding: of the logits, as for `flax.nnx.Embed`.

        Returns:
          (…, num_embeddings).
        """
        logits = super().attend(jnp.asarray(query), out_sharding)
        padding = jnp.arange(self.num_embeddings) == self.padding_idx
        lead = (1,) * (logits.ndim - 1)
        return jnp.where(padding.reshape(*lead, -1), jnp.zeros((), logits.dtype), logits)
