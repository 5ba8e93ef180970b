"""Layout of a transformer on a mesh: sharding of arrays, and its linear layers and loss.

Sources: M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053 (1D: columns, then rows, of weights);
V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv
2205.05198 (sequence parallelism); Q. Xu, Y. You, "An Efficient 2D Method for Training Super-Large
Deep Learning Models" (Optimus), arXiv 2104.05343 (2D, SUMMA); B. Wang et al., "Tesseract", arXiv
2105.14500 (2.5D).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tensorjax import _ids, linalg
from tensorjax._typing import DTypeLike
from tensorjax.parallel import _collectives as collectives
from tensorjax.parallel import _tt_linear
from tensorjax.parallel._sharding_rules import Placing


@dataclasses.dataclass(frozen=True, eq=False)
class Layout(Placing):
    """Layout of a transformer on a mesh: sharding rules, and operations on a device's blocks.

    A model is written once, on local blocks, and calls a layout for all that needs another
    device. It runs under one `jax.shard_map` (`over`), and `jax.grad` goes around that: every
    transpose, the sums of gradients of replicated parameters included, is JAX's own.

    Rules map what an axis means to axes of the mesh. Those of activations x (batch, length, embed):

      - ``batch``: axes over which the batch is split.
      - ``length``: axes over which x is split along its length between linear layers (sequence
        parallelism). Tokens come whole, and attention sees the whole length.
      - ``features``: axes over which x is split along its features between linear layers.

    Those of parameters:

      - ``mlp``, ``heads``, ``vocab``: axes over which the wide side of a weight is split. All three
        have the same; ``length`` or ``features`` have them too, or are None.
      - ``embed``: axes over which the other side of a weight is stored in pieces. A weight is
        gathered over them where it is used, so the batch has to be split over them as well.

    Vectors (biases, norms) and positions are split over all of these axes: every parameter takes
    1/p of its bytes per device, unless it is replicated over an axis that no rule of parameters
    names.

    Args:
      name: for tables.
      mesh: None for one device.
      rules: as above. Axes without a rule are not split.
      rows: how `row` multiplies: "scatter" adds up products of local columns, "gather" is SUMMA,
        which joins the columns of x first and has the weight split as for `column`.
      overlap: where features are split, `column` and `row` pass blocks around a ring and multiply
        each as it arrives, instead of joining all first: products can run beside communication.
        The same bytes, and the same sums in another order.

    Raises:
      ValueError: rules that contradict each other or name axes that the mesh has not.

    Example:
      >>> from tensorjax import parallel
      >>> layout = parallel.Single()
      >>> tuple(layout.spec(("layer", "embed", "mlp")))
      (None, None, None)
      >>> layout.local("heads", 12)
      12
    """

    def embed(
        self,
        table: jax.Array,
        ids: jax.Array,
        *,
        vocabulary: int | None = None,
        dtype: DTypeLike | None = None,
    ) -> jax.Array:
        """Looks up, in a layout, token embeddings in a table that is sharded over devices.

        Args:
          table: block of ("vocab", "embed").
          ids: integers (batch, length) of rows of the table, this device's block of the batch.
          vocabulary: true number of words; all rows of the table if None. The rows of ids outside
            [0, vocabulary) are NaN, under all layouts: inside a compiled program nothing can raise.
          dtype: of the result; that of the table if None. Gradients are added up in single
            precision at least, over tokens and over devices.

        Returns:
          x (batch, length, embed), as it lies between linear layers.

        Raises:
          ValueError: a length that does not split where a rule splits it, or a vocabulary larger
            than the table.
        """
        self.padded("length", ids.shape[1])
        here, dtype = table.shape[0], dtype or table.dtype
        self._check_vocabulary(vocabulary, here)
        count = here * self.ways(self.wide) if vocabulary is None else vocabulary
        ids = collectives.gather(_ids.as_int32(ids, count), self.stored, 0)
        place = ids - collectives.index(self.wide) * here
        valid = _ids.inside(ids, count)
        mine = _ids.inside(place, here) & valid
        # Widened before rows are taken: going back, a row adds up the cotangents of all its tokens.
        wide = collectives.vary(table, self.batch).astype(linalg.factor_dtype(table.dtype))
        rows = wide.at[jnp.where(mine, place, 0)].get(mode="promise_in_bounds").astype(dtype)
        x = _ids.or_nan(jnp.where(mine[..., None], rows, jnp.zeros((), dtype)), valid)
        # Other tokens' features are here, those tokens have some of ours.
        x = collectives.exchange(x, self.stored, 0, -1)
        return self._reduce(x)

    def positions(
        self, table: jax.Array, length: int, *, dtype: DTypeLike | None = None
    ) -> jax.Array:
        """Returns a layout's first rows of the position table, sharded like the activations.

        Args:
          table: block of ("position", "embed").
          length: of the sequences.
          dtype: of the result; that of the table if None.

        Returns:
          (1, length, embed), as x lies between linear layers.

        Raises:
          ValueError: a length outside [1, rows of the table].
        """
        if not 0 < length <= table.shape[0]:
            raise ValueError(
                f"length: expected a number in [1, {table.shape[0]}], as there are positions, "
                f"got {length}"
            )
        x = self._whole(table[:length], dtype)
        return collectives.block(x, self.length, 0)[None]

    def norm(self, x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
        """Layer norm by a `Layout`, over features that it may have split, in float32 at least.

        Where features are split, means and variances of the blocks are gathered and combined by
        the formula of Chan, Golub, LeVeque (1979): nothing cancels, however large the mean.

        Args:
          x: (batch, length, embed), as it lies between linear layers.
          scale: block of ("embed",).
          bias: block of ("embed",).
          epsilon: added to the variance.

        Returns:
          As x, and of its dtype.
        """
        wide = linalg.factor_dtype(x.dtype)
        y = x.astype(wide)
        mean = jnp.mean(y, axis=-1, keepdims=True)
        # One difference for the variance and the result: its derivative is then one sum. Of two,
        # XLA computes what goes back along the residual path anew in every block (CPU, 0.10.1).
        centred = y - mean
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        if self.features:
            parts = collectives.gather(jnp.concatenate([mean, variance], -1), self.features, -1)
            means, variances = parts[..., 0::2], parts[..., 1::2]
            mean = jnp.mean(means, axis=-1, keepdims=True)
            variance = jnp.mean(variances + (means - mean) ** 2, axis=-1, keepdims=True)
            centred = y - mean
        y = centred * jax.lax.rsqrt(variance + epsilon)
        scale, bias = (collectives.row(self._whole(v).astype(wide), x.ndim) for v in (scale, bias))
        return (y * scale + bias).astype(x.dtype)

    def column(
        self,
        x: jax.Array,
        w: jax.Array | Callable[[jax.Array], jax.Array],
        b: jax.Array | None = None,
        *,
        fold: tuple[int, ...] = (),
    ) -> jax.Array:
        """Applies a layout's column-parallel linear layer that widens x, as the first of an MLP.

        Args:
          x: (batch, length, embed), as it lies between linear layers.
          w: block of ("embed", …, "mlp" or "heads"); axes between are not split. It is used in the
            dtype of x, and its gradient added up over devices in single precision at least. Or a
            layer, such
            as those of `tensorjax.nn`, whose parameters are the same on all devices. A tensor train
            whose leading modes split is applied by its modes where features are split: a device
            contracts its blocks of the first mode of the input and of the output, and only T × rank
            elements are added up between. First modes are split because a block of features is a
            block of them; of those that `tensorjax.nn` chooses, the input's first is its largest,
            the output's first its smallest. Both have to be multiples of the number of blocks, and
            the output's of so many times the product of ``fold`` but its last size. Any other layer
            gets all features of a part of the length: each device applies it to its tokens.
          b: block of (…, "mlp" or "heads"), or None.
          fold: global sizes (…, wide) that the last axis of a layer's output is folded into.

        Returns:
          (batch, length, …, wide): this device's block of the batch and of the wide axis.
        """
        if callable(w):
            layer = self._layer(w, x)
            if self._by_modes(layer, fold):
                return _tt_linear.product(layer, x, self.features, fold)
            y = layer(self._own(x))
            y = y.reshape(*y.shape[:-1], *(fold or y.shape[-1:]))
            return collectives.exchange(y, self.wide, -1, 1)
        y = self._columns(x, self._stored(w, 0, x.dtype))
        if b is None:
            return y
        return y + collectives.row(self._stored(b, -1, y.dtype), y.ndim)

    def row(
        self,
        x: jax.Array,
        w: jax.Array | Callable[[jax.Array], jax.Array],
        b: jax.Array | None = None,
    ) -> jax.Array:
        """Applies a layout's row-parallel linear layer back to features, as the second of an MLP.

        Args:
          x: (batch, length, wide), as `column` returns it.
          w: block of ("mlp" or "heads", "embed"); or a layer, as for `column`.
          b: block of ("embed",), or None.

        Returns:
          (batch, length, embed), as it lies between linear layers.
        """
        if callable(w):
            layer = self._layer(w, x)
            if self._by_modes(layer, ()):
                return _tt_linear.product(layer, x, self.features, ())
            return self._shared(layer(collectives.exchange(x, self.wide, 1, -1)))
        if self.rows == "gather":
            y = self._joined(x, self._stored(w, 0, x.dtype))
        elif self.overlap and self.features:
            y = collectives.ring_scatter_product(x, self._stored(w, -1, x.dtype), self.features)
        else:
            y = self._reduce(collectives.product(x, self._stored(w, -1, x.dtype)))
        return y if b is None else y + collectives.row(self._whole(b, y.dtype), y.ndim)

    def _by_modes(self, layer: object, fold: tuple[int, ...]) -> bool:
        """Whether a layout applies a tensor-train layer with its modes split over devices."""
        return bool(self.features) and _tt_linear.splits(layer, self.ways(self.features), fold)

    def _own(self, x: jax.Array) -> jax.Array:
        """Reshards a layout's activations: here all features of a part of the sequence."""
        if self.wide:
            self._check_length(x.shape[1] * (self.ways(self.length)))
        if self.features:
            return collectives.exchange(x, self.features, 1, -1)
        return x if self.length else collectives.block(x, self.wide, 1)

    def _shared(self, y: jax.Array) -> jax.Array:
        """Reshards activations from parts of the sequence to the layout's: inverse of `_own`."""
        if self.features:
            return collectives.exchange(y, self.features, -1, 1)
        return y if self.length else collectives.gather(y, self.wide, 1, same=True)

    def _check_length(self, length: int) -> None:
        if length % self.ways(self.wide):
            raise ValueError(
                f"length: expected a multiple of {self.ways(self.wide)}, over which the tokens of "
                f"a tensorised layer are split on a mesh of {self._shape()}, got {length}"
            )

    def logits(self, x: jax.Array, table: jax.Array) -> jax.Array:
        """Computes a layout's logits from hidden states and the sharded token table.

        Args:
          x: (batch, length, embed), as it lies between linear layers.
          table: block of ("vocab", "embed").

        Returns:
          (batch, length, vocab): this device's block of the batch and of the padded vocabulary, in
          single precision at least, whatever the dtype of x. `cross_entropy` and `gather` leave the
          padding out.
        """
        wide = linalg.factor_dtype(x.dtype)
        return self._columns(x, self._stored(table, -1, x.dtype).T, wide)

    def cross_entropy(
        self, logits: jax.Array, targets: jax.Array, weights: jax.Array, vocabulary: int
    ) -> tuple[jax.Array, jax.Array]:
        """Sums, in float32 at least, the cross-entropy of a layout's vocabulary-sharded logits.

        Args:
          logits: (batch, length, vocab), as `logits` returns them.
          targets: integers (batch, length), this device's block. −100 counts for none, as if its
            weight were 0; any other outside [0, vocabulary) makes the sum NaN, whatever its weight.
          weights: floating (batch, length), this device's block; 0 leaves a token out.
          vocabulary: true number of words: columns from there on count as absent.

        Returns:
          The sum of weights × losses and the sum of weights: scalars, equal on all devices. Both
          are 0 where no target counts, and so is the gradient of the first. Logits of tokens that
          are left out do not count, whatever they are.

        Raises:
          ValueError: a vocabulary larger than the logits have columns.
        """
        z = logits.astype(linalg.factor_dtype(logits.dtype))
        here = z.shape[-1]
        self._check_vocabulary(vocabulary, here)
        first = collectives.index(self.wide) * here
        targets = _ids.as_int32(targets, vocabulary)
        ignored, valid = targets == _ids.IGNORED, _ids.inside(targets, vocabulary)
        weights = jnp.where(ignored, jnp.zeros((), z.dtype), weights.astype(z.dtype))
        place = targets - first
        mine = _ids.inside(place, here) & valid
        # Read before the padding is masked: going back, XLA then masks in the same pass.
        found = jnp.take_along_axis(z, jnp.where(mine, place, 0)[..., None], axis=-1)[..., 0]
        if here * self.ways(self.wide) > vocabulary:
            words = collectives.row(first + jnp.arange(here, dtype=jnp.int32), z.ndim)
            z = jnp.where(words < vocabulary, z, jnp.asarray(-jnp.inf, z.dtype))
        # Logits of which no loss is finite are zero where no weight counts, as 0 · NaN is NaN. The
        # others stay, for the gradient in the weights.
        top = jax.lax.stop_gradient(jnp.max(z, axis=-1))
        odd = (weights == 0) & ~jnp.isfinite(top)
        z = jnp.where(odd[..., None], jnp.zeros((), z.dtype), z)
        top = collectives.largest(jnp.where(odd, jnp.zeros((), z.dtype), top), self.wide)
        mass = jnp.sum(jnp.exp(z - top[..., None]), axis=-1)
        found = jnp.where(mine, found, jnp.zeros((), z.dtype))
        mass, found = collectives.total(jnp.stack([mass, found]), self.wide)
        losses = jnp.log(mass) + top - found
        counts = (weights != 0) | jnp.isfinite(losses)
        losses = jnp.where(counts, losses, jnp.zeros((), z.dtype))
        losses = jnp.where(valid | ignored, losses, jnp.asarray(jnp.nan, z.dtype))
        sums = jnp.stack([jnp.sum(weights * losses), jnp.sum(weights)])
        loss, count = collectives.total(sums, self.batch)
        return loss, count

    def gather(self, logits: jax.Array, vocabulary: int) -> jax.Array:
        """Gathers a layout's logits that are sharded over the vocabulary; drops the padding.

        Args:
          logits: (batch, length, vocab), as `logits` returns them.
          vocabulary: true number of words; columns from there on are left out.

        Returns:
          (batch, length, vocabulary): this device's block of the batch.

        Raises:
          ValueError: a vocabulary larger than the logits have columns.
        """
        self._check_vocabulary(vocabulary, logits.shape[-1])
        return collectives.gather(logits, self.wide, -1, same=True)[..., :vocabulary]

    def _check_vocabulary(self, vocabulary: int | None, here: int) -> None:
        """Raises ValueError if the vocabulary exceeds a layout's sharded token table."""
        rows = here * self.ways(self.wide)
        if vocabulary is not None and vocabulary > rows:
            raise ValueError(
                f"vocabulary: expected at most the {rows} words that there are, got {vocabulary}"
            )

    def _stored(self, w: jax.Array, dim: int, dtype: Any) -> jax.Array:
        """Gathers a layout's weight over mesh axes that shard it in storage, cast to ``dtype``.

        The parameter is marked as varying along all batch axes before the gather: its gradient is
        then summed over the other batch axes after the reduce-scatter, when it is smallest.
        """
        return self._placed(functools.partial(self._joined_blocks, dim=dim), w, dtype)

    def _placed(self, place: Callable[[jax.Array], jax.Array], w: jax.Array, dtype: Any) -> Any:
        """Casts a layout's parameter and gathers it by ``place``; without a mesh only casts."""
        if self.mesh is None:
            return w if dtype is None else w.astype(dtype)
        return collectives.placed(place, w, dtype)

    def _joined_blocks(self, w: jax.Array, dim: int) -> jax.Array:
        return collectives.gather(collectives.vary(w, self.batch), self.stored, dim)

    def _whole(self, v: jax.Array, dtype: Any = None) -> jax.Array:
        """Gathers a layout's sharded feature vector, as a bias, for this device's activations."""

        def place(v: jax.Array) -> jax.Array:
            v = self._joined_blocks(v, -1)
            if self.features:
                return v
            return collectives.gather(v, self.wide, -1, same=not self.length)

        return self._placed(place, v, dtype)

    def _layer(self, layer: Any, x: jax.Array) -> Any:
        """Returns a layout's layer whose gradients are summed over devices in float32 at least.

        Its parameters are marked as varying on all devices before the cast to half precision, not
        after.
        """
        dtype = getattr(layer, "dtype", None) or x.dtype
        if self.mesh is None or linalg.factor_dtype(dtype) == dtype:
            return layer

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array):
                return leaf
            return collectives.placed(lambda w: collectives.vary(w, axes), leaf)

        axes = (*self.batch, *self.wide)
        return jax.tree.map(place, layer)  # layers of Flax are pytrees

    def _columns(self, x: jax.Array, w: jax.Array, dtype: Any = None) -> jax.Array:
        """Multiplies a layout's activations of the whole sequence by this device's columns."""
        return self._joined(collectives.gather(x, self.length, 1), w, dtype)

    def _joined(self, x: jax.Array, w: jax.Array, dtype: Any = None) -> jax.Array:
        """Multiplies a layout's activations, with features of all devices, by a weight."""
        if self.overlap:
            return collectives.ring_product(x, w, self.features, dtype)
        return collectives.product(collectives.gather(x, self.features, -1), w, dtype)

    def _reduce(self, y: jax.Array) -> jax.Array:
        """Sums a layout's partial results of a linear layer, and keeps this device's part."""
        if self.length:
            return collectives.scatter(y, self.length, 1)
        if self.features:
            return collectives.scatter(y, self.features, -1)
        return collectives.total(y, self.wide)
