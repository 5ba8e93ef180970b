"""Layers of a model: pure functions of parameter groups, and their compiled programs."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tensorjax import linalg
from tensorjax._typing import PyTree
from tensorjax.offload._training.weak_cache import WeakCache

Activations = Literal["recompute", "keep", "offload"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """Layer of a model: a pure function, and the parameter groups that it uses.

    Attributes:
      name: for traces and messages.
      apply: pure function ``apply(params, x, batch, key) -> y``. ``params`` is a tuple with the
        parameters of each group in ``uses``; ``x`` what the layer before returned (None for the
        first), a pytree of arrays, of which gradients pass through the floating ones; ``batch`` a
        microbatch; ``key`` of `jax.random`, or None. The last layer returns a scalar, the mean loss
        over the rows of the microbatch, or, where rows count for different weights (padding, masks,
        targets that are ignored), a pair of scalars: the sum of the losses and their weight, such
        as the count of tokens. The batch's loss is then the sum of the sums over the sum of the
        weights, however it is cut into microbatches, which a mean of means would not be. Weights
        have no gradient. Layers that share one function share its compiled programs.
      uses: names of groups of parameters; ``(name,)`` if empty. Two layers may use one group, as
        the embedding and the logits of GPT-2 do.

    Raises:
      TypeError: ``uses`` is a string.
      ValueError: ``uses`` names a group twice.

    Example:
      >>> import jax.numpy as jnp
      >>> from tensorjax import offload
      >>> double = offload.Layer(name="double", apply=lambda params, x, batch, key: 2 * x)
      >>> double.uses
      ('double',)
    """

    name: str
    apply: Callable[..., Any]
    uses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Sets ``uses`` to the layer's own name if empty; raises an error for an invalid layer."""
        if isinstance(self.uses, str):
            raise TypeError(f"uses: expected a tuple of names, got {self.uses!r}; give it in one")
        object.__setattr__(self, "uses", tuple(self.uses) or (self.name,))
        if len(set(self.uses)) < len(self.uses):
            raise ValueError(f"uses: expected each group once, got {self.uses}")


def check_layers(layers: Sequence[Layer], groups: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Checks that a model's list of layers fits the parameter groups; returns a tuple."""
    if not isinstance(groups, Mapping):
        raise TypeError(
            "params: expected a mapping from names of groups to pytrees, got "
            f"{type(groups).__name__}"
        )
    layers = tuple(layers)
    if not layers:
        raise ValueError("layers: expected at least one, whose result is the loss; got none")
    for layer in layers:
        if not isinstance(layer, Layer):
            raise TypeError(f"layers: expected offload.Layer, got {type(layer).__name__}")
    names = [layer.name for layer in layers]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"layers: expected each name once, got {twice!r} more than once")
    used = {group for layer in layers for group in layer.uses}
    if used != set(groups):
        missing, spare = sorted(used - set(groups)), sorted(set(groups) - used)
        raise ValueError(
            f"params: expected the groups that layers use, missing {missing}, not used {spare}"
        )
    for name in groups:
        if not name or name != name.strip() or "/" in name or name in (".", ".."):
            raise ValueError(
                f"params: expected names without slash or outer blanks, not of dots, got {name!r}"
            )
    return layers


def cut(batch: Any, parts: int) -> list[Any]:
    """Splits a batch for a model's layers into equal microbatches, along first axes of arrays."""
    leaves = jax.tree.leaves(batch)
    wrong = [x for x in leaves if not hasattr(x, "shape")]
    if wrong:
        raise TypeError(
            f"batch: expected arrays, got {type(wrong[0]).__name__}; turn lists into arrays with "
            "np.asarray"
        )
    sizes = {np.shape(x)[:1] for x in leaves}
    if len(sizes) != 1 or sizes & {(), (0,)} or next(iter(sizes))[0] % parts:
        raise ValueError(
            f"batch: expected arrays whose first axes agree and divide by {parts} microbatches, "
            f"not empty, got shapes {[np.shape(x) for x in leaves]}"
        )
    size = next(iter(sizes))[0] // parts
    return [jax.tree.map(lambda x, m=m: x[m * size : (m + 1) * size], batch) for m in range(parts)]


def split_loss(result: Any) -> tuple[jax.Array, jax.Array | None]:
    """Splits the last layer's result for a microbatch into loss and weight (None for a mean).

    Raises:
      TypeError: another kind, or not floating.
      ValueError: not one number.
    """
    loss: Any = result
    weight: Any = None
    if isinstance(result, tuple) and len(result) == 2:
        loss, weight = result
    if isinstance(weight, int | float):
        weight = jnp.asarray(weight)
    for x in (loss,) if weight is None else (loss, weight):
        if not isinstance(x, jax.Array) or jnp.shape(x) != ():
            got = f"shape {x.shape}" if isinstance(x, jax.Array) else type(x).__name__
            raise ValueError(
                f"layers: expected the last one to return a scalar, got {got}; a weighted loss is "
                "a pair of scalars, its sum and its weight"
            )
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise TypeError(
            f"layers: expected the last one to return a floating number, got {loss.dtype}"
        )
    return loss, weight


def mean_loss(results: Sequence[Any]) -> float:
    """Computes the loss of a batch from the last layer's results for the microbatches."""
    losses = [split_loss(result) for result in results]
    total = sum(float(loss) for loss, _ in losses)
    weight = sum(1.0 if weight is None else float(weight) for _, weight in losses)
    return total / weight if weight else 0.0


class LayerPrograms:
    """Jitted programs of one model layer: forward pass, backward pass and loss.

    What they are traced from does not refer to them: so programs, and the arrays in them that a
    layer captures, are freed with the function, and not only when the collector looks again.
    """

    def __init__(self, apply: Callable[..., Any], shardings: tuple[Any, ...]) -> None:
        passes = _LayerPasses(apply, shardings)
        self.forward = jax.jit(apply)
        self.forward_keeping = jax.jit(passes.forward_keeping)
        self.backward = jax.jit(passes.backward, donate_argnums=(5,))
        self.backward_kept = jax.jit(passes.backward_kept, donate_argnums=(6,))
        self.last = jax.jit(passes.last, donate_argnums=(5,))
        # The weight of the loss alone: it seldom depends on the parameters, so little is computed.
        self.weight = jax.jit(lambda *given: split_loss(apply(*given))[1])
        self._weighs: dict[Any, bool] = {}
        self._row_losses = jax.jit(passes.losses_of_rows)
        self._means: set[Any] = set()

    def check_mean(self, name: str, params: PyTree, xs: Any, batches: Any) -> None:
        """Raises ValueError if a last layer's loss without weight is not the mean over rows.

        Such a loss depends on how a batch is cut. It is computed once for given shapes, of the
        first row of each of two microbatches and of both rows, without a random key; and again
        with what marks padding, 0 or −100, in one array after the other of the second row: later
        batches may be padded where the first one is not. Arrays that are split over devices,
        inputs whose first axis is not that of the batch, and layers that need a key or a fixed
        number of rows are not looked at.
        """
        signature = _signature(params, xs, batches)
        if signature in self._means:
            return
        arrays = jax.tree.leaves((xs, batches))
        rows = np.shape(jax.tree.leaves(batches)[0])[:1]
        if any(np.shape(a)[:1] != rows or len(a.devices()) > 1 for a in arrays):
            return
        dtypes = {a.dtype for a in jax.tree.leaves((params, xs))}
        floats = [d for d in dtypes if jnp.issubdtype(d, jnp.floating)]
        close = max((float(jnp.finfo(d).eps) for d in floats), default=0.0) ** (1 / 3)
        first, second = batches
        for changed in (second, *_padded(second)):
            try:
                one, other, both = map(float, self._row_losses(params, xs, [first, changed]))
            except (TypeError, ValueError, IndexError):  # it needs a key, or a number of rows
                break
            if not _is_mean(one, other, both, close):
                padded = "" if changed is second else ", one of them padded,"
                raise ValueError(
                    f"layers: expected {name!r} to return the mean loss of the rows, which several "
                    f"microbatches are averaged by; the losses of two rows{padded} are {one:.6g} "
                    f"and {other:.6g}, that of both is {both:.6g}. Return a pair, the sum of the "
                    "losses and its weight (such as the number of rows or of tokens that count), "
                    "or use microbatches=1"
                )
        self._means.add(signature)

    def weighs(self, *given: Any) -> bool:
        """Whether the last layer returns a weight with its loss, found by tracing it."""
        signature = _signature(*given)
        if signature not in self._weighs:
            self._weighs[signature] = jax.eval_shape(self.weight, *given) is not None
        return self._weighs[signature]


class _LayerPasses:
    """Forward and backward functions of one model layer, to be jitted as its programs."""

    def __init__(self, apply: Callable[..., Any], shardings: tuple[Any, ...]) -> None:
        self._apply, self._shardings = apply, shardings
        # What a backward pass is, by the signature it was traced with.
        self._pulls: dict[Any, Any] = {}

    def backward(
        self, params: PyTree, x: Any, batch: PyTree, key: Any, dy: Any, sums: PyTree
    ) -> Any:
        """Recomputes a layer's forward pass, then computes its backward pass."""
        _, pull = jax.vjp(lambda p, x: self._apply(p, x, batch, key), params, x)
        gradient, dx = pull(dy)
        return dx, self._added(sums, gradient)

    def last(
        self, params: PyTree, x: Any, batch: PyTree, key: Any, share: Any, sums: PyTree
    ) -> Any:
        """Program of the last layer: its loss and backward pass, gradients times ``share``."""

        def loss_of(params: PyTree, x: Any) -> jax.Array:
            return split_loss(self._apply(params, x, batch, key))[0]

        loss, pull = jax.vjp(loss_of, params, x)
        narrow, rest = _divided(share, loss.dtype)
        gradient, dx = pull(narrow)
        if rest is not None:
            gradient = jax.tree.map(lambda g: _times(g, rest, wide=True), gradient)
            dx = jax.tree.map(lambda g: _times(g, rest, wide=False), dx)
        wide = linalg.factor_dtype(loss.dtype)
        return jnp.asarray(share, wide) * loss.astype(wide), dx, self._added(sums, gradient)

    def forward_keeping(self, params: PyTree, x: Any, batch: PyTree, key: Any) -> Any:
        """Computes a layer's output, and the intermediates that its backward pass needs."""
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        function = jax.checkpoint(lambda p, x: self._apply(p, x, batch, key), policy=policy)
        y, pull = jax.vjp(function, params, x)
        leaves, tree = jax.tree.flatten(pull)
        # The arguments will be there again: only what is new is kept, never the parameters.
        arguments = {id(a): n for n, a in enumerate(jax.tree.leaves((params, x, batch, key)))}
        places = [arguments.get(id(leaf)) for leaf in leaves]
        self._pulls[_signature(params, x, batch, key)] = (tree, places)
        return y, [leaf for leaf, n in zip(leaves, places, strict=True) if n is None]

    def backward_kept(
        self, params: PyTree, x: Any, batch: PyTree, key: Any, kept: Any, dy: Any, sums: PyTree
    ) -> Any:
        """Computes a layer's backward pass from intermediates saved in the forward pass."""
        tree, places = self._pulls[_signature(params, x, batch, key)]
        arguments, new = jax.tree.leaves((params, x, batch, key)), iter(kept)
        leaves = [next(new) if n is None else arguments[n] for n in places]
        gradient, dx = jax.tree.unflatten(tree, leaves)(dy)
        return dx, self._added(sums, gradient)

    def _added(self, sums: Any, gradient: Any) -> Any:
        """Adds a layer's gradients to those of earlier microbatches, sharded as the parameters."""
        if sums is not None:
            gradient = jax.tree.map(lambda s, g: s + g.astype(s.dtype), sums, gradient)
        return tuple(
            group if where is None else jax.lax.with_sharding_constraint(group, where)
            for group, where in zip(gradient, self._shardings, strict=True)
        )

    def losses_of_rows(self, params: PyTree, xs: Any, batches: Any) -> list[Any]:
        """Computes a last layer's losses of two microbatches' first rows, alone and together."""
        one, other = (jax.tree.map(lambda a: a[:1], pair) for pair in zip(xs, batches, strict=True))
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), one, other)
        return [split_loss(self._apply(params, *row, None))[0] for row in (one, other, both)]


def _padded(batch: Any) -> Iterator[Any]:
    """Yields a microbatch with one array after the other filled with what marks padding."""
    leaves, tree = jax.tree.flatten(batch)
    for k, leaf in enumerate(leaves):
        extended = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)  # keys, which mark nothing
        kind = "" if extended else np.dtype(leaf.dtype).kind
        for fill in {"b": (0, 1), "i": (0, -100), "": ()}.get(kind, (0,)):
            filled = jnp.full_like(leaf, fill)
            yield jax.tree.unflatten(tree, [*leaves[:k], filled, *leaves[k + 1 :]])


def _is_mean(one: float, other: float, both: float, close: float) -> bool:
    """Whether a loss of two rows is the mean of those of one; NaN or Inf just if one of them is."""
    if not all(map(math.isfinite, (one, other, both))):
        return math.isfinite(both) == (math.isfinite(one) and math.isfinite(other))
    gap = abs(both - (one + other) / 2)
    return gap <= close * max(abs(one), abs(other), abs(both))


# The compiled programs of a layer's function, by that and its shardings (tree and leaves). All
# engines share them, as long as the function is there.
programs_of = WeakCache(
    lambda apply, tree, leaves: LayerPrograms(apply, jax.tree.unflatten(tree, leaves))
)


def _divided(share: Any, dtype: Any) -> tuple[jax.Array, jax.Array | None]:
    """Splits a layer's factor in two: a cotangent in the loss's dtype, and the rest in a wider one.

    Half precision has too few bits for most factors and no numbers as small as those of many
    tokens. The cotangent is a power of two, which rounds nothing, near the root of the factor:
    with that, gradients of float16 are between those of the sum and those of the mean, of which
    the former may be too large and the latter too small. The rest, with its sign, is None, for 1,
    where the dtype is not narrower.
    """
    wide = linalg.factor_dtype(dtype)
    if wide == dtype:
        return jnp.asarray(share, dtype), None
    share = jnp.asarray(share, wide)
    root = jnp.ldexp(jnp.ones((), wide), jnp.frexp(share)[1] // 2)
    narrow = jnp.clip(root, float(jnp.finfo(dtype).tiny), float(jnp.finfo(dtype).max)).astype(dtype)
    return narrow, share / narrow.astype(wide)


def _times(x: jax.Array, factor: jax.Array, *, wide: bool) -> jax.Array:
    """Scales cotangents for a layer's backward pass in float32 at least; casts back or stays wide.

    Cotangents of integers, which have no numbers, stay as they are.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    dtype = linalg.factor_dtype(x.dtype)
    found = x.astype(dtype) * factor.astype(dtype)
    return found if wide else found.astype(x.dtype)


def _signature(*arguments: Any) -> Any:
    leaves, tree = jax.tree.flatten(arguments)
    return tree, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
